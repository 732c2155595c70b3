"""What docs/how-to/operate-the-ledger.md shows is run, and its audit agrees with the ledger without
importing dpflow.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from audit_program import start_program, write_program
from page_runner import ROOT, run_page

from dpflow.ledger import Ledger

PAGE = ROOT / "docs" / "how-to" / "operate-the-ledger.md"
INTERNALS = ROOT / "docs" / "internals" / "ledger.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's commands in its order; then a note that looks like a charge, and a second export."""
    folder = tmp_path_factory.mktemp("ledger")
    run_page(PAGE, folder=folder)
    write_program(folder)
    ledger = Ledger(folder / "moved.sqlite")
    ledger.record("note", {"charges": [["visits", "", 10**12, 0, 0]]}, principal="somebody")
    with (folder / "second.jsonl").open("w") as stream:
        ledger.export(stream)
    return folder


def test_the_audit_adds_up_the_spend(folder: Path) -> None:
    """What was charged, and no damage goes unseen."""
    done = start_program("second.jsonl", folder=folder)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["scope"], r["granted"], r["units"][:2]) for r in rows] == [
        ("visits", "1", [10**11, 0]),
        ("visits/team-a", "0.4", [10**11, 0]),
    ]
    assert all(0 < r["units"][2] < 10**11 for r in rows), "and Renyi divergence, under hybrid"
    lines = (folder / "second.jsonl").read_text().splitlines(keepends=True)
    smaller = [line.replace(f"{10**11}", f"{10**10}") for line in lines]
    for damage in (lines[:2] + lines[3:], smaller):
        assert damage != lines
        (folder / "damaged.jsonl").write_text("".join(damage))
        assert start_program("damaged.jsonl", folder=folder).returncode != 0


def test_every_test_that_the_page_names_exists() -> None:
    """A failure's row names its proof; one of them had been renamed."""
    named = set(re.findall(r"`(test_\w+)`", INTERNALS.read_text()))
    there = set[str]()
    for file in (ROOT / "tests").rglob("test_*.py"):
        there |= set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))
    assert len(named) > 15 and named - there == set()


def test_the_moved_ledger_goes_on(folder: Path) -> None:
    """The copy holds the same budgets and verifies."""
    moved = Ledger(folder / "moved.sqlite")
    assert moved.verify().ok
    left = [
        row["epsilon_left"]
        for name in ("visits", "visits/team-a")
        for row in moved.remaining(name).rows()
    ]
    assert left == ["0.9", "0.3"]
