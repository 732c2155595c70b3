"""Random verbs while somebody edits, deletes or puts back any row of any table between them.

A witness outside the ledger notes what callers were told. Never was more charged than was granted,
never were there two draws for one charge, and whenever the ledger verifies, its history is what the
witness saw.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from dpflow.core.accounting.events import Pure
from dpflow.errors import DpflowError, LedgerCorrupt
from dpflow.ledger import ReleaseKey, Reservation, Slot
from dpflow.ledger.storage import schema

TABLES = schema.metadata.sorted_tables
TENTH = 10**11
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


class Machine(RuleBasedStateMachine):
    """The ledger, the witness, and the adversary."""

    places: Callable[[], Any]
    make_place: Callable[[str, Path], Any]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="dpflow-adversary-")
        root = Path(self.folder.name)
        self.place = self.make_place(str(self.places() or root / "ledger.sqlite"), root / "anchor")
        self.ledger = self.place.open()
        self.granted = {"s": 0, "s/a": 0}
        self.spent: Counter[str] = Counter()
        self.held: list[tuple[str, Reservation]] = []
        self.results: dict[str, set[int]] = defaultdict(set)
        self.seen: dict[str, Rows] = defaultdict(dict)
        self.number = 0
        for scope, tenths in (("s", 9), ("s/a", 6)):
            self.grant(scope, tenths)

    # --- verbs, each noted by the witness if it went through ------------------------------------

    def attempt(self, verb: Callable[[], Any]) -> Any:
        try:
            return verb()
        except DpflowError as error:
            return error

    @rule(scope=st.sampled_from(["s", "s/a"]), tenths=st.integers(1, 12))
    def grant(self, scope: str, tenths: int) -> None:
        terms: Any = {"table": None, "filter": "basic", "principal": "o"}
        told = self.attempt(lambda: self.ledger.grant(scope, Fraction(tenths, 10), 0, **terms))
        if not isinstance(told, DpflowError):
            assert self.spent[scope] <= tenths
            self.granted[scope] = tenths

    @rule(
        scope=st.sampled_from(["s", "s/a"]),
        name=st.sampled_from("abcd"),
        tenths=st.sampled_from([1, 1, 2, 4]),
        instance=st.sampled_from([None, "0", "1"]),
    )
    def reserve(self, scope: str, name: str, tenths: int, instance: str | None) -> None:
        key = ReleaseKey(scope, "", "", "o", name)
        told = self.attempt(
            lambda: self.ledger.reserve(
                key,
                event=Pure(Fraction(tenths, 10)),
                blocks=(),
                family=name,
                slot=None if instance is None else Slot(f"run of {scope}", instance),
                principal="p",
                request={"name": name},
            )
        )
        if isinstance(told, DpflowError):
            return
        if told.settled:
            assert told.result["n"] in self.results[told.release_id]
            return
        self.held.append((scope, told))
        if told.attempt == 1:
            for at in ("s", scope)[: 1 + ("/" in scope)]:
                self.spent[at] += tenths
                assert self.spent[at] <= self.granted[at], "charged beyond the grant"

    @rule(data=st.data(), late=st.integers(0, 1))
    def settle(self, data: st.DataObject, late: int) -> None:
        if self.held:
            self.number += 1
            held = data.draw(st.sampled_from(self.held))[1]
            held = Reservation(held.release_id, max(held.attempt - late, 1), False)
            told = self.attempt(lambda: self.ledger.settle(held, {"n": self.number}))
            if not isinstance(told, DpflowError):
                self.results[held.release_id].add(told.result["n"])
                assert len(self.results[held.release_id]) == 1, "two draws for one charge"

    @rule(data=st.data(), decision=st.sampled_from(["close", "retry"]))
    def resolve(self, data: st.DataObject, decision: Any) -> None:
        if self.held:
            name = data.draw(st.sampled_from(self.held))[1].release_id
            self.attempt(
                lambda: self.ledger.resolve(name, reason="r", principal="o", decision=decision)
            )

    # --- the adversary --------------------------------------------------------------------------

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

    @rule(data=st.data(), verbs=st.integers(1, 4))
    def tamper(self, data: st.DataObject, verbs: int) -> None:
        """Make one row another; let some verbs come; then put right what is still wrong."""
        table = data.draw(st.sampled_from([t for t in TABLES if self.rows(t)]))
        rows, names = self.rows(table), [column.name for column in table.columns]
        kind = data.draw(st.sampled_from(["delete", "edit", "restore", "restore"]))
        earlier = {at: row for at, row in self.seen[table.name].items() if rows.get(at[:-1]) != row}
        if kind == "restore" and earlier:
            old = data.draw(st.sampled_from(sorted(earlier, key=repr)))
            key, false = old[:-1], earlier[old]
        else:
            key = data.draw(st.sampled_from(sorted(rows, key=repr)))
            false = None if kind != "edit" else self.edited(data, rows, key, names, table)
        self.seen[table.name] |= {(*at, row): row for at, row in rows.items()}
        true = rows.get(key)
        if false == true or not self.put(table, key, false):
            return
        assert not self.ledger.verify().ok, (table.name, key, true, false)
        for _ in range(verbs):
            verb = data.draw(st.sampled_from([self.reserve, self.settle, self.resolve, self.grant]))
            self.play(data, verb)
            report = self.attempt(self.ledger.verify)
            assert isinstance(report, LedgerCorrupt) or not report.ok
        if self.rows(table).get(key) == false:
            self.put(table, key, true)
        self.agree()

    def edited(
        self, data: st.DataObject, rows: Rows, key: tuple[Any, ...], names: list[str], table: Any
    ) -> tuple[Any, ...] | None:
        """A row with one cell that another row has, or nearly the same."""
        keys = {column.name for column in table.primary_key}
        places = [n for n, name in enumerate(names) if name not in keys]
        if not places:  # a row that is its key: another one is a row too many beside one too few
            return None
        at, row = data.draw(st.sampled_from(places)), rows[key]
        others = sorted({other[at] for other in rows.values()} - {row[at]}, key=repr)
        near = [row[at] + 1, 0] if isinstance(row[at], int) else [f"{row[at]}x", ""]
        return (*row[:at], data.draw(st.sampled_from(others + near)), *row[at + 1 :])

    def play(self, data: st.DataObject, verb: Any) -> None:
        if verb == self.reserve:
            scope, name = (
                data.draw(st.sampled_from(["s", "s/a"])),
                data.draw(st.sampled_from("abcd")),
            )
            verb(scope, name, data.draw(st.sampled_from([1, 4])), data.draw(st.sampled_from([None, "0"])))  # fmt: skip
        elif verb == self.grant:
            verb(data.draw(st.sampled_from(["s", "s/a"])), data.draw(st.integers(1, 12)))
        elif verb == self.settle:
            verb(data, 0)
        else:
            verb(data, "close")

    def agree(self) -> None:
        """With all rows right the ledger verifies, and says what the witness saw."""
        report = self.ledger.verify()
        assert report.ok, report
        for scope in self.granted:
            ((_, cost),) = self.ledger.remaining(scope).spent
            assert cost.epsilon == self.spent[scope] * TENTH <= self.granted[scope] * TENTH

    def teardown(self) -> None:
        self.agree()
        self.folder.cleanup()


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("sqlite", 8),
        ("postgresql", 2),
        pytest.param("sqlite", 400, marks=pytest.mark.slow),
        pytest.param("postgresql", 40, marks=pytest.mark.slow),
    ],
)
def test_an_adversary_between_the_verbs_gains_nothing(
    request: pytest.FixtureRequest, make_place: Any, kind: str, examples: int
) -> None:
    """Whatever rows are made of, and whenever."""
    places = (lambda: None) if kind == "sqlite" else request.getfixturevalue("postgres")
    chosen = settings(max_examples=examples, stateful_step_count=20, deadline=None, database=None)
    machine = type(
        "Adversary",
        (Machine,),
        {"places": staticmethod(places), "make_place": staticmethod(make_place)},
    )
    run_state_machine_as_test(machine, settings=chosen)
