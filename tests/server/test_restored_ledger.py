"""A service whose ledger and anchor are put back to an older state while it runs."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

from service_world import RELEASE, ServiceWorld, settle


def copy_database(source: Path, target: Path) -> None:
    """As a backup or restore does that a running program does not notice."""
    with (
        contextlib.closing(sqlite3.connect(source)) as a,
        contextlib.closing(sqlite3.connect(target)) as b,
    ):
        a.backup(b)


def test_a_restored_ledger_is_told_as_what_it_is(tmp_path: Path) -> None:
    """No release passes, and no answer asks for a repetition."""
    world = ServiceWorld(tmp_path)
    database, mark = tmp_path / "ledger.sqlite", world.ledger.anchor_folder / "mark"
    copy_database(database, tmp_path / "kept.sqlite")
    shutil.copy2(mark, tmp_path / "kept.mark")
    with world.test_client("bob") as bob:
        assert settle(bob, "release", RELEASE).status_code == 200
        newest = world.ledger.newest_entry()
        copy_database(tmp_path / "kept.sqlite", database)
        shutil.copy2(tmp_path / "kept.mark", mark)
        for name in ("r1", "r2"):
            answer = settle(bob, "release", RELEASE | {"name": name})
            told = answer.json()
            assert (answer.status_code, told["type"], told["retryable"]) == (
                500,
                "LedgerCorrupt",
                False,
            )
            assert "does not verify" in told["message"] and "repeated" not in told["message"]
    with contextlib.closing(sqlite3.connect(database)) as ledger:
        assert ledger.execute("SELECT max(seq) FROM dpflow_entry").fetchone()[0] < newest[0]
