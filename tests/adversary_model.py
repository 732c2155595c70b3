"""An adversary between the verbs of a ledger's callers (`ledger_callers`), who edits, deletes or puts back
any row of any table, uses a copy of the database beside it, destroys the disk, or begins with a changed ledger
of an earlier version.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ledger_callers import EVERY, FOLDERS, NIGHTLY, SEEDS, Callers, is_sound

from dpflow.core.accounting.events import Pure
from dpflow.errors import LedgerCorrupt
from dpflow.ledger import (
    Ledger,
    ReleaseKey,
    Slot,
)
from dpflow.ledger.audit import migrations
from dpflow.ledger.storage import schema

TABLES = schema.metadata.sorted_tables
#: Stands for an earlier version, whose tables are those of this one.
EARLIER = "0"
Rows = dict[tuple[Any, ...], tuple[Any, ...]]
OFTEN = {"dpflow_meta": 1, "dpflow_node": 1, "dpflow_entry": 2}


def written_over(table: Any, true: Any, false: Any, now: Any) -> bool:
    """Whether a verb wrote all that was false: such as the result of a release that had none. Only
    columns apart from their row are written without being read.
    """
    if not (true and false and now):
        return False
    wrong = [n for n, column in enumerate(table.columns) if true[n] != false[n]]
    apart = [
        n for n, column in enumerate(table.columns) if column.name in table.info.get("apart", ())
    ]
    return {*wrong} <= {*apart} and all(now[n] != false[n] for n in wrong)


@functools.cache
def make_earlier() -> tuple[tempfile.TemporaryDirectory[str], Any]:
    """A folder with a ledger of an earlier version and its anchor, and what the ledger says."""
    folder = tempfile.TemporaryDirectory(prefix="dpflow-earlier-", dir=FOLDERS)
    target = Path(folder.name) / "l.sqlite"
    ledger = Ledger(target, anchor=Path(folder.name) / "anchor", create=True)
    for scope in ("old", "old/a"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", principal="o")
    terms: Any = {"event": Pure(Fraction(1, 10)), "blocks": (), "family": "f", "principal": "o"}
    terms |= {"request": {"name": "n"}}
    for name in ("settled", "pending"):
        key = ReleaseKey("old/a", "d", "t", name, name)
        held = ledger.reserve(key, slot=Slot("run", name), **terms)
        if name == "settled":
            ledger.settle(held, {"n": 1}, snapshot="7")
    key = ReleaseKey("old", "", "", "o", "session")
    session = ledger.open_session(key, slot=None, state={"left": 2}, exclusive=True, **terms)
    reply: Any = {"expected_version": 0, "state": {"left": 1}, "answer": {"label": 3}}
    ledger.answer(session.session_id, query="q", **reply)
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute("UPDATE dpflow_meta SET value = ? WHERE name = 'schema'", (EARLIER,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return folder, describe(ledger)


def describe(ledger: Ledger) -> Any:
    """What a ledger says of its budgets and releases."""
    left = {scope.scope: ledger.remaining(scope.scope).rows() for scope in ledger.scopes()}
    return left, ledger.releases()


class Adversary(Callers):
    """Moves of the adversary; callers go on between and during them."""

    def __init__(self) -> None:
        super().__init__()
        #: Rows that were there once, by table.
        self.seen: dict[str, Rows] = defaultdict(dict)

    @initialize(
        seed=SEEDS, start=st.sampled_from(["new", "new", "earlier"]), asked=st.integers(0, 2)
    )
    def begin(self, seed: int, start: str, asked: int) -> None:
        """A new ledger, or one of an earlier version that somebody changed before its upgrade; perhaps
        with a session that was asked.
        """
        if start != "new" and "://" not in self.place.target:
            self.upgrade_changed(random.Random(seed))
        self.ledger = self.place.open()
        for scope, tenths in (("s", 9), ("s/a", 6)):
            self.grant(scope, tenths)
        for scope, tenths in (("s/m", 6), ("s/m/d", 3)):
            self.pace(scope, tenths, self.periods[scope])
        terms: Any = {"table": None, "filter": "basic", "principal": "o"}
        terms |= {"witness": NIGHTLY.public_text, "witness_every": EVERY}
        self.ledger.grant("w", Fraction(9, 10), 0, **terms)
        self.granted["w"] = 9
        self.propose("ann", 6)
        self.approve("bob")
        assert self.granted["both"] == 6
        if asked:
            self.open_session("s", "x", False)
            # The second from the state before the first, which is gone.
            for query, late in (("q", 0), ("r", 1))[:asked]:
                self.answer(next(iter(self.sessions)), query, late, False)

    def upgrade_changed(self, chance: random.Random) -> None:
        folder, expected = make_earlier()
        shutil.copy(Path(folder.name) / "l.sqlite", self.place.target)
        shutil.copytree(Path(folder.name) / "anchor", self.place.anchor)
        with self.place.intruder() as run:
            names = ("scope", "account", "release", "data", "slot", "answer", "entry")
            table = "dpflow_" + chance.choice(names)
            columns = [row[1] for row in run(f"PRAGMA table_info({table})")]
            column = chance.choice(columns)
            values = [row[0] for row in run(f"SELECT DISTINCT {column} FROM {table}")]
            old, new = chance.choice(values), chance.choice(values)
            shutil.copy(self.place.target, f"{self.place.target}.before")
            # What the database itself refuses is no attack.
            with contextlib.suppress(sqlite3.IntegrityError):
                run(f"UPDATE {table} SET {column} = ? WHERE {column} IS ?", new, old)
        told = self.attempt_upgrade(self.place)
        # Tables are filled from the entries, so a changed row is refused or of no effect.
        if told is None:
            shutil.copy(f"{self.place.target}.before", self.place.target)
            told = self.attempt_upgrade(self.place)
        assert told is not None and not told.problems
        assert describe(self.place.open()) == expected

    @staticmethod
    def attempt_upgrade(place: Any) -> Any:
        tables = {EARLIER: migrations._TABLES[schema.VERSION]}
        with (
            mock.patch.object(schema, "UPGRADABLE", (EARLIER,)),
            mock.patch.dict(migrations._TABLES, tables),
            contextlib.suppress(LedgerCorrupt),
        ):
            return Ledger.upgrade(place.target, anchor=place.anchor, principal="o")
        return None

    @precondition(lambda self: self.copy is None and "://" not in self.place.target)
    @rule()
    def part(self) -> None:
        """Copy the database; from now on somebody may use either."""
        target = f"{self.folder.name}/copy.sqlite"
        with contextlib.closing(sqlite3.connect(self.place.target)) as connection:
            connection.execute("VACUUM INTO ?", [target])
        self.copy = self.make_place(target, self.place.anchor)

    @precondition(
        lambda self: not self.recovered and self.copy is None and "://" not in self.place.target
    )
    @rule(seed=SEEDS)
    def lose(self, seed: int) -> None:
        """The disk is lost, and an older copy is brought back beside the anchor. The owner recovers by
        a checkpoint, which is of the very end or not.
        """
        chance = random.Random(seed)
        target = f"{self.folder.name}/restored.sqlite"
        Path(target).unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(self.place.target)) as connection:
            connection.execute("VACUUM INTO ?", [target])
        left, now = copy.deepcopy((self.releases, self.sessions, self.held)), self.newest_entry()
        for _ in range(chance.randint(1, 3)):
            self.play(chance)
        note, signed = self.ledger.checkpoint(), self.newest_entry()
        known = copy.deepcopy((self.granted, self.periods, self.spent))
        if chance.random() < 0.5:
            self.play(chance)
        end = self.newest_entry()
        if end == now:
            return
        self.place = self.make_place(target, self.place.anchor)
        self.ledger, self.recovered = self.place.open(), True
        assert not is_sound(self.ledger.verify()), "an older copy was taken for the newest"
        # Not by the newest: what the witness saw behind it is given up.
        with mock.patch.dict(os.environ):
            os.environ.pop("DPFLOW_LEDGER_WITNESS", None)
            closed = self.ledger.recover(reason="r", principal="o", checkpoint=note)
        self.granted, self.periods, self.spent = known
        self.releases, self.sessions, self.held = left
        # What the witness has seen of the lost entries is in its folder, and not in this ledger.
        ((_, self.behind),) = [(s.scope, s.charges) for s in self.ledger.witness_states()]
        every = [scope.scope for scope in self.ledger.scopes()]
        assert closed == ([] if signed == end else every), "lost charges unnoticed"
        self.closed, self.waiting = {*closed}, None
        for release in self.releases.values():
            release.closed |= not release.results
        for session in self.sessions.values():
            session.open = False
        assert is_sound(self.ledger.verify(since=note, new_only=True))
        self.agree()

    @precondition(lambda self: self.copy is not None)
    @rule()
    def change_over(self) -> None:
        """Go on at the other copy."""
        self.place, self.copy = self.copy, self.place
        self.ledger = self.place.open()

    def rows(self, table: Any) -> Rows:
        names = [column.name for column in table.columns]
        key = [names.index(column.name) for column in table.primary_key]
        with self.place.intruder() as run:
            found = run(f"SELECT {', '.join(names)} FROM {table.name}")
        return {tuple(row[at] for at in key): tuple(row) for row in found}

    def put(self, table: Any, key: tuple[Any, ...], row: tuple[Any, ...] | None) -> bool:
        """Whether the row with this key could be made this one, or none."""
        where = " AND ".join(f"{column.name} = ?" for column in table.primary_key)
        names = ", ".join(column.name for column in table.columns)
        before = self.rows(table).get(key)
        with self.place.intruder() as run:
            run(f"DELETE FROM {table.name} WHERE {where}", *key)
            if row is not None:
                insert = f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' * len(row))})"
                try:
                    run(insert, *row)
                # What the database itself refuses is no attack.
                except Exception:
                    if before is not None:
                        run(insert, *before)
                    return False
        return True

    @rule(seed=SEEDS)
    def tamper(self, seed: int) -> None:
        """Make one row another; let some verbs come; then put right what is still wrong."""
        chance = random.Random(seed)
        table = chance.choice(
            [t for t in TABLES for _ in range(OFTEN.get(t.name, 3)) if self.rows(t)]
        )
        rows, names = self.rows(table), [column.name for column in table.columns]
        kind = chance.choice(["delete", "edit", "edit", "restore", "restore"])
        earlier = {at: row for at, row in self.seen[table.name].items() if rows.get(at[:-1]) != row}
        if kind == "restore" and earlier:
            old = chance.choice(sorted(earlier, key=repr))
            key, false = old[:-1], earlier[old]
        else:
            key = chance.choice(sorted(rows, key=repr))
            false = None if kind != "edit" else self.edited(chance, rows, key, names, table)
        self.seen[table.name] |= {(*at, row): row for at, row in rows.items()}
        true = rows.get(key)
        if false == true or not self.put(table, key, false):
            return
        assert not is_sound(self.ledger.verify()), (table.name, key, true, false)
        for _ in range(chance.randint(1, 4)):
            self.play(chance)
            now = self.rows(table).get(key)
            assert not is_sound(self.ledger.verify()) or written_over(table, true, false, now)
        if true and false and now:  # a verb may have changed other cells
            self.put(table, key, tuple(t if n == f else n for t, f, n in zip(true, false, now)))
        elif now == false:
            self.put(table, key, true)
        self.agree()

    def edited(
        self, chance: random.Random, rows: Rows, key: tuple[Any, ...], names: list[str], table: Any
    ) -> tuple[Any, ...] | None:
        """A row with one cell that another row has, or nearly the same."""
        keys = {column.name for column in table.primary_key}
        places = [n for n, name in enumerate(names) if name not in keys]
        if not places:  # a row that is its key: another one is a row too many beside one too few
            return None
        at, row = chance.choice(places), rows[key]
        others = sorted({other[at] for other in rows.values()} - {row[at]}, key=repr)
        near = [row[at] + 1, 0] if isinstance(row[at], int) else [f"{row[at]}x", ""]
        return (*row[:at], chance.choice(others + near), *row[at + 1 :])


def run_model(places: Any, make_place: Any, first: int | None = None, **options: Any) -> None:
    """Run the machine; with ``first`` on the examples of this seed."""
    # A failure is told as it was found: to make it smaller takes minutes.
    options |= {"phases": [Phase.generate], "report_multiple_bugs": False}
    chosen = settings(stateful_step_count=25, deadline=None, database=None, **options)
    parts = {"places": staticmethod(places), "make_place": staticmethod(make_place)}
    # Of a class in a file Hypothesis parses the source, in which CPython 3.11 was once seen to fail
    # (SystemError: AST constructor recursion depth mismatch).
    parts["__module__"] = "drawn"
    machine = type("Adversary", (Adversary,), parts)
    machine = machine if first is None else seed(first)(machine)
    run_state_machine_as_test(machine, settings=chosen)
