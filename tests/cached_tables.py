"""A table of five days whose sums are cached, and what its owner and a disk do to it."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file
from twin_tables import seal

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.core.contract.squares import Square
from dpflow.tables.private import PrivateTable

DAYS = [f"2013-01-0{day}" for day in range(1, 6)]


ROWS = """
CREATE TABLE data AS SELECT i % 97 AS u, DATE '2013-01-01' + (i % 5)::INT AS d, ['a', 'b', 'c', 'x'][i * 7 % 4 + 1] AS k,
       nullif(i % 13, 12) AS v, CAST(i % 6 AS INTEGER) AS n FROM range(5000) t(i)
"""


REQUESTS = [
    GroupedSums("k", ("b", "none", "a"), 99, 999, (("v", 3),), (Square("v", 3, 5),)),
    GroupedSums("n", None, 99, 999),
    GroupedSums(None, None, 1, 999, (("v", 0),)),
    SortedValues("v", 999),
    SortedValues("v", 999, "k", ("c", "none", "a"), 99),
]


CUT = [
    GroupedSums("k", ("a", "b", "c", "x"), 2, 3, (("v", 5),)),
    SortedValues("v", 2, "k", ("a", "b", "c", "x"), 2),
    SortedValues("v", 3),
]


def again(found: PrivateTable, **changes: Any) -> PrivateTable:
    """The same table in a new object, or with another declaration."""
    data = (
        found.declaration.model_dump(mode="json")
        | {"database": found.declaration.database}
        | changes
    )
    return PrivateTable(Table.model_validate(data), seal=seal)


def write(found: PrivateTable, statement: str) -> None:
    with duckdb_file(found.declaration.database) as connection:
        connection.execute(statement)


def folder(found: PrivateTable) -> Path:
    return found.declaration.database.with_name(found.declaration.database.name + ".partials")


CHANGES = [
    f"INSERT INTO data VALUES (3, '{DAYS[1]}', 'a', 1, 1)",
    f"DELETE FROM data WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET v = 11 WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET u = 4 WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET k = 'b' WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET v = NULL WHERE d = '{DAYS[1]}' AND u = 3",
]


def damage(kind: str, files: list[Path]) -> None:
    one, other = files[:2]
    content = one.read_bytes()
    if kind == "forged":
        one.write_bytes(content[:-8] + (10**6).to_bytes(8, "little"))
    elif kind == "torn":
        one.write_bytes(content[: len(content) // 2])
    elif kind == "empty":
        one.write_bytes(b"")
    elif kind == "exchanged":
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif kind == "re-sealed under another key":
        _, _, data = content.partition(b"\n")
        one.write_bytes(
            hmac.new(b"other", data, hashlib.sha256).hexdigest().encode() + b"\n" + data
        )
    elif kind == "a link":
        other.rename(elsewhere := other.parent.parent / "elsewhere")
        other.symlink_to(elsewhere)
    elif kind == "readable by others":
        one.chmod(0o644)


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str, after: int = 0) -> None:
    """Let a call of ``os`` fail as on a full disk, after so many that succeed."""
    real, calls = getattr(os, name), iter(range(after))

    def full(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, name, full)


def table_of_day(table: PrivateTable, day: str) -> Any:
    """The block's answer from its rows, which no bound cuts."""
    return PrivateTable(table.declaration).answer(REQUESTS[0], [day])
