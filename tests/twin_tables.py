"""Two files that differ by one unit, and what its rows may move: for caches of partial aggregates."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckdb_files import duckdb_file
from hypothesis import strategies as st

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, Groups, SortedValues, ValueCounts
from dpflow.tables.backends.duckdb_backend.requests import cached_blocks
from dpflow.tables.private import PrivateTable
from dpflow.testing.neighbours import answer_fingerprint

DAYS = ("2013-01-01", "2013-01-02", "2013-01-03")
#: Calls that a full disk lets fail.
FULL_DISK = ("posix_fallocate", "replace", "fsync", "open")
#: The unit that one of the files does not have.
EXTRA = 99
ROWS, GROUPS, LARGEST = 2, 2, 5
REQUESTS = (
    GroupedSums("k", ("a", "b", "c"), GROUPS, ROWS, (("v", 0),)),
    GroupedSums("n", None, GROUPS, ROWS),
    GroupedSums("p.side", ("l", "r"), 1, ROWS, (("v", 2),)),
    SortedValues("v", ROWS, "k", ("a", "b", "c"), GROUPS),
    SortedValues("v", ROWS),
)
MADE = """
CREATE TABLE places AS SELECT unnest(['a', 'b', 'c']) AS k, unnest(['l', 'r', 'l']) AS side;
CREATE TABLE data AS SELECT (i % 7)::INTEGER AS u, DATE '2013-01-01' + (i % 3)::INT AS d,
    ['a', 'b', 'c'][i * 5 % 11 % 3 + 1] AS k, (i * 3 % 6)::INTEGER AS v, (i % 4)::INTEGER AS n,
    '' AS text FROM range(84) t(i)
"""

rows = st.tuples(st.sampled_from(DAYS), st.sampled_from("abc"), st.integers(0, LARGEST))
#: One change: what happens, to which unit, and in which day, group and with which value.
changes = st.tuples(
    st.sampled_from(["insert", "insert", "delete", "update", "move", "rename", "long text"]),
    st.sampled_from([EXTRA, EXTRA, 0, 1]),
    rows,
    st.sampled_from(DAYS),
)
#: What the owner does to both files: nothing, rewrites of the table or of the dimension, a refresh.
owners_acts = st.sampled_from(
    ["", "rewrite", "reload", "reload", "dimension", "dimension again", "refresh"]
)
histories = st.lists(
    st.tuples(st.lists(changes, max_size=3), owners_acts, st.integers(1, 3)), min_size=2, max_size=3
)
ACTS = {
    "rewrite": "CREATE OR REPLACE TABLE data AS SELECT * FROM data ORDER BY d, u, k, v, n",
    "reload": f"UPDATE data SET v = 5 - v WHERE d = '{DAYS[0]}'",
    "dimension": "UPDATE places SET side = CASE side WHEN 'l' THEN 'r' ELSE 'l' END",
    "dimension again": "CREATE OR REPLACE TABLE places AS SELECT * FROM places",
}


def seal(data: bytes) -> str:
    return hmac.new(b"key", data, hashlib.sha256).hexdigest()


def write_change(change: tuple[str, int, tuple[str, str, int], str]) -> str:
    """A statement that changes rows of one unit only."""
    kind, unit, (day, group, value), other = change
    where = f"WHERE u = {unit} AND d = '{day}'"
    return {
        "insert": f"INSERT INTO data VALUES ({unit}, '{day}', '{group}', {value}, {value % 4}, '')",
        "delete": f"DELETE FROM data {where}",
        "update": f"UPDATE data SET v = {value} {where}",
        "move": f"UPDATE data SET d = '{other}' {where}",
        "rename": f"UPDATE data SET k = '{group}' {where}",
        # What a request does not read, and what leaves a block without a fingerprint.
        "long text": f"UPDATE data SET text = repeat('x', 5000) {where}",
    }[kind]


#: What a release asks for: a request, its days, one of two declarations, and a condition.
@dataclass(frozen=True)
class Asked:
    request: Any
    days: tuple[str, ...]
    upper: int = LARGEST
    # A condition on the column of long texts is read with it.
    where: str | None = "text IS NOT NULL OR n >= 0"


class World:
    """One of the two files, with what its sealed blocks must be.

    Attributes:
        sealed: the answer of each block that is surely sealed.
        perhaps: answers of blocks that a release sealed or not before it was stopped.
        strict: whether each answer is compared with what it must be, beside the twin's.
    """

    def __init__(self, folder: Path, mode: str, made: str = MADE, strict: bool = True) -> None:
        folder.mkdir()
        self.folder, self.mode, self.version, self.strict = folder, mode, 1, strict
        self.sealed: dict[Any, Any] = {}
        self.perhaps: dict[Any, list[Any]] = defaultdict(list)
        self.write(made)

    @property
    def path(self) -> Path:
        return self.folder / "private.duckdb"

    def write(self, statement: str, into_file: bool = True) -> None:
        """Execute, and leave the rows in the file, or in the write-ahead log beside it."""
        with duckdb_file(self.path) as connection:
            if not into_file:
                connection.execute("PRAGMA disable_checkpoint_on_shutdown")
                connection.execute("SET wal_autocheckpoint = '1TB'")
            connection.execute(statement)

    def exchange_file(self) -> None:
        """Put a new file with the same rows in the place of the old one."""
        new = self.folder / "new.duckdb"
        with duckdb_file(new) as connection:
            connection.execute(f"ATTACH '{self.path}' AS old")
            connection.execute("COPY FROM DATABASE old TO new")
        os.replace(new, self.path)

    def declare(self, asked: Asked, database: Path) -> dict[str, Any]:
        return {
            "name": "data",
            "database": str(database),
            "privacy_unit": {"column": "u"},
            "protects": "unit-block",
            "block": "d",
            "contribution_bounds": {"rows": ROWS, "groups": GROUPS},
            "columns": {
                "v": {"lower": 0, "upper": asked.upper},
                "k": {"public_keys": ["a", "b", "c"]},
                "n": {},
                "text": {},
                "p.side": {"public_keys": ["l", "r"]},
            },
            "joins": [{"relation": "places", "name": "p", "kind": "dimension", "on": {"k": "k"}}],
            "cached_partials": self.mode,
            "sealed_version": self.version if self.mode == "sealed" else 1,
        }

    def open_table(self, asked: Asked, database: Path | None = None) -> PrivateTable:
        declared = self.declare(asked, database or self.path)
        return PrivateTable(Table.model_validate(declared), asked.where, seal)

    def fresh_parts(self, asked: Asked) -> list[Any]:
        """The answer of each day from the rows as they are, by a copy without a cache."""
        copy = self.folder / "copy.duckdb"
        for end in ("", ".wal"):
            with suppress(FileNotFoundError):
                shutil.copy(f"{self.path}{end}", f"{copy}{end}")
        fresh = self.open_table(asked, copy)
        with fresh.hold_open():
            parts = [fresh.answer(asked.request, [day]) for day in asked.days]
        for end in ("", ".wal"):
            copy.with_name(copy.name + end).unlink(missing_ok=True)
        shutil.rmtree(copy.with_name("copy.duckdb.partials"), ignore_errors=True)
        return parts

    def key(self, asked: Asked, day: str) -> Any:
        return (asked.request, asked.upper, asked.where, self.version, day)

    def expect(self, asked: Asked) -> list[Any]:
        """What each day's answer must be; settles what an interrupted release left open."""
        parts = self.fresh_parts(asked)
        if self.mode == "checked":
            return parts
        for at, day in enumerate(asked.days):
            key = self.key(asked, day)
            if key not in self.sealed and self.perhaps.get(key):
                candidates = [*self.perhaps.pop(key), parts[at]]
                found = answer_fingerprint(self.open_table(asked).answer(asked.request, [day]))
                matching = [one for one in candidates if answer_fingerprint(one) == found]
                assert matching
                self.sealed[key] = matching[0]
            parts[at] = self.sealed.setdefault(key, parts[at])
        return parts

    def answer(self, asked: Asked) -> Any:
        """The answer with the cache, after comparing it with what it must be."""
        if not self.strict:
            return self.open_table(asked).answer(asked.request, asked.days)
        expected = cached_blocks.merge_parts(self.expect(asked))
        answer = self.open_table(asked).answer(asked.request, asked.days)
        assert answer_fingerprint(answer) == answer_fingerprint(expected)
        return answer

    def stop(self, asked: Asked) -> None:
        """Note what a release that may be stopped would seal now."""
        for part, day in zip(self.fresh_parts(asked), asked.days, strict=True):
            if self.key(asked, day) not in self.sealed:
                self.perhaps[self.key(asked, day)].append(part)


def _by_key(keys: Sequence[Any], numbers: Any) -> dict[Any, int]:
    return dict(zip(keys, map(int, numbers), strict=True))


def distance(a: dict[Any, int], b: dict[Any, int]) -> int:
    """How much two statistics differ in all groups together."""
    return sum(abs(a.get(key, 0) - b.get(key, 0)) for key in a.keys() | b.keys())


def check_distance(asked: Asked, with_unit: Any, without: Any, touched: set[str]) -> None:
    """One unit moves a statistic by what it may contribute to each block that ever had its rows."""
    request, blocks = asked.request, len(touched & set(asked.days))
    if isinstance(with_unit, ValueCounts):
        assert isinstance(without, ValueCounts) and isinstance(request, SortedValues)
        most = ROWS * (GROUPS if request.by else 1)
        by_value = []
        for one in (with_unit, without):
            codes = [0] * len(one.values) if one.codes is None else one.codes.tolist()
            by_value.append(_by_key([*zip(codes, one.values.tolist(), strict=True)], one.counts))
        # Another choice among the unit's own values takes one away for each that it adds.
        assert distance(*by_value) <= most * blocks
        return
    assert isinstance(with_unit, Groups) and isinstance(request, GroupedSums)
    cells = request.groups
    for name, most in (("units", 1), ("rows", ROWS)):
        a, b = (_by_key(one.keys, getattr(one, name)) for one in (with_unit, without))
        assert distance(a, b) <= most * cells * blocks
    for column, centre in request.values:
        a, b = (_by_key(one.keys, one.sums[column]) for one in (with_unit, without))
        assert distance(a, b) <= max(centre, asked.upper - centre) * ROWS * cells * blocks


def touched_days(change: Any) -> set[str]:
    """The days in which a change may put, alter or remove rows of the extra unit."""
    kind, unit, (day, _, _), other = change
    return set() if unit != EXTRA else {day, other} if kind == "move" else {day}
