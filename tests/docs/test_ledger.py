"""What docs/ledger.md shows is run, and its audit agrees with the ledger without importing dpflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()


@pytest.fixture
def used(tiny: Tiny) -> Tiny:
    """The page's commands in its order, with a release and a note that looks like a charge between
    them.
    """
    for place in (*tiny.folder.glob("ledger.sqlite*"), *tiny.folder.glob("ledger.sqlite.anchor/*")):
        if place.is_file():
            place.unlink()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DPFLOW")}
    environment |= {
        "DPFLOW_LEDGER": "ledger.sqlite",
        "COLUMNS": "200",
        "PATH": f"{Path(sys.executable).parent}",
    }
    for command in re.findall(r"^    (dpflow .*)$", PAGE, re.MULTILINE):
        if command.startswith("dpflow ledger export"):
            Ledger(tiny.ledger).record(
                "note", {"charges": [["visits", "", 10**12, 0, 0]]}, principal="somebody"
            )
            release = [
                "dpflow",
                "release",
                str(tiny.file(scope="visits/team-a", params={"epsilon": "0.25"})),
            ]
            subprocess.run(
                release, env=environment, cwd=tiny.folder, check=True, capture_output=True
            )
        done = subprocess.run(
            command.split(),
            env=environment,
            cwd=tiny.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    return tiny


def test_the_audit_adds_up_the_spend(used: Tiny) -> None:
    """No site packages at all: the program sees the export and nothing else."""
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert program is not None
    command = [sys.executable, "-I", "-S", "-c", program.group(1), "ledger.jsonl"]
    done = subprocess.run(command, cwd=used.folder, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["scope"], r["granted"], r["units"]) for r in rows] == [
        ("visits", "1", [25 * 10**10, 0, 0]),
        ("visits/team-a", "0.4", [25 * 10**10, 0, 0]),
    ]
    lines = (used.folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    for damaged in (
        lines[:2] + lines[3:],
        [line.replace("250000000000", "150000000000") for line in lines],
    ):
        (used.folder / "damaged.jsonl").write_text("".join(damaged))
        done = subprocess.run(
            [*command[:-1], "damaged.jsonl"], cwd=used.folder, capture_output=True, check=False
        )
        assert done.returncode != 0


def test_the_moved_ledger_goes_on(used: Tiny) -> None:
    """The copy holds the same accounts and verifies."""
    moved = Ledger(used.folder / "moved.sqlite", anchor=used.folder / "ledger.sqlite.anchor")
    assert moved.verify().ok
    assert [
        row["epsilon_left"]
        for name in ("visits", "visits/team-a")
        for row in moved.remaining(name).rows()
    ] == [
        "0.75",
        "0.15",
    ]
