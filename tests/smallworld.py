"""A tiny private table, its declaration and a ledger, for tests of the doors."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from duckdb_files import duckdb_file

from dpflow.ledger import Ledger
from dpflow.tables.private import PrivateTable

DECLARATION: dict[str, Any] = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "block": "day",
    "protects": "unit-block",
    "contribution_bounds": {"rows": 2},
    "columns": {
        "city": {"public_keys": ["Oslo", "Rome"], "groups": 1},
        "clinic": {},
        "age": {"lower": 0, "upper": 120},
        "note": {},
    },
}
#: What an audit that a mechanism passed says, without its name.
PASSED_AUDIT: dict[str, Any] = {
    "method": "exact",
    "epsilon": 4.0,
    "delta": 0.0,
    "measured_epsilon": 4.0,
    "weakened": 2,
    "power": 1.0,
    "verdict": "not refuted",
    "arithmetic": "of requests",
    "ranges": True,
    "coverage": {
        "neighbours": ["add-remove", "replace"],
        "protects": ["unit", "unit-block"],
        "unit column": ["declared", "not"],
        "declared columns": ["0", "100"],
        "declared groups": ["not"],
        "declared rows of a group": ["not"],
        "bounded columns": ["0", "100"],
        "all columns: lower": ["-1000", "0"],
        "all columns: upper": ["0", "1000"],
        "all columns: step": ["1"],
        "all columns: missing": ["skip"],
        "all columns: keys": ["1", "400", "private"],
        "declares": ["block"],
        "rows of a unit": ["1", "1000"],
        "groups of a unit": ["1", "100"],
        "rows of a unit in a group": ["1", "1000"],
        "limits": ["a column's", "the table's"],
        "by": ["None", "a column"],
        "by: keys": ["1", "400", "private"],
        "epsilon": ["1/1000", "100"],
        "delta": ["0", "1/1000000000", "1/10"],
        "noise": ["auto", "gaussian", "laplace"],
    },
}
ROWS = """
CREATE TABLE visits AS
SELECT 'p' || (i % 40) AS person, DATE '2020-01-01' + CAST(i % 2 AS INTEGER) AS day,
       CASE WHEN i % 3 = 0 THEN 'Rome' ELSE 'Oslo' END AS city, 'c' || (i % 2) AS clinic, 20 + i % 50 AS age, 'n' AS note
FROM range(80) t(i)
"""


@cache
def _write_database(sql: str) -> bytes:
    """The file after these statements: most tests fill their table in the same way."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "visits.duckdb"
        with duckdb_file(file) as connection:
            connection.execute(sql)
        return file.read_bytes()


class Tiny:
    """A folder with ``visits.yml``, its table, and ``ledger.sqlite`` with epsilon 1 and delta 1e-6
    a day.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database, self.ledger = folder / "visits.duckdb", folder / "ledger.sqlite"

    def declare(self, **changes: Any) -> Path:
        """Write the declaration, with changes."""
        path = self.folder / "visits.yml"
        path.write_text(yaml.safe_dump(DECLARATION | changes))
        return path

    def fill(self, sql: str = ROWS) -> None:
        """Make the table afresh."""
        self.database.unlink(missing_ok=True)
        self.database.write_bytes(_write_database(sql))

    def lose_entries(self) -> None:
        """Restore an old copy of the ledger, and recover without a checkpoint: all scopes are closed."""
        copy = self.ledger.with_name("copy.sqlite")
        with contextlib.closing(sqlite3.connect(self.ledger)) as connection:
            connection.execute("VACUUM INTO ?", [str(copy)])
        Ledger(self.ledger).grant("lost", 1, 0, table=None, principal="owner")
        for end in ("-wal", "-shm"):
            self.ledger.with_name(self.ledger.name + end).unlink(missing_ok=True)
        copy.replace(self.ledger)
        assert "visits" in Ledger(self.ledger).recover(reason="disk", principal="owner")

    def spent(self) -> str:
        """What the only block that was asked spent of its epsilon."""
        (row,) = Ledger(self.ledger).remaining("visits").rows()
        return str(row["epsilon_spent"])

    def spent_by_block(self) -> dict[str, str]:
        """What each block that was asked spent of its epsilon."""
        rows = Ledger(self.ledger).remaining("visits").rows()
        return {row["block"]: row["epsilon_spent"] for row in rows}

    def file(self, **changes: Any) -> Path:
        """Write a release file."""
        content = {
            "name": "visits",
            "mechanism": "count",
            "table": "visits.yml",
            "scope": "visits",
            "blocks": ["2020-01-01"],
            "params": {"epsilon": "0.5"},
        }
        path = self.folder / "release.yml"
        path.write_text(
            yaml.safe_dump({k: v for k, v in (content | changes).items() if v is not None})
        )
        return path


# All doors of a private table through which rows are read.
READS = (
    *("answer", "open_answer", "grouped_rows", "unit_rows", "grouped_units"),
    *("group_moments", "group_estimates", "estimates_over"),
)


def forbid_reads(patch: pytest.MonkeyPatch) -> None:
    """Fail the test when a row of a private table is read, through whichever door."""
    for name in READS:
        patch.setattr(PrivateTable, name, lambda *_, **__: pytest.fail("rows were read"))


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    """A small world in which everything works."""
    from dpflow.tables.access.declarations import load_table

    made = Tiny(tmp_path)
    made.fill()
    table = load_table(made.declare())
    Ledger(made.ledger, create=True).grant(
        "visits", 1, "1e-6", filter="basic", table=table, principal="owner"
    )
    return made
