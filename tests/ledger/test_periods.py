"""Quotas that refresh: each period holds one quota, whatever clocks say; the scope above never refreshes."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import sqlite3
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from audit_program import export_text, run_audit

from dpflow.core.accounting.events import Pure
from dpflow.core.accounting.periods import PERIODS, name_account, name_period, next_start
from dpflow.errors import BudgetExceeded, GrantConflict, InvalidInput, LedgerCorrupt
from dpflow.ledger import Ledger, ReleaseKey
from dpflow.ledger.history.chain import hash_entry
from dpflow.ledger.storage.compact_json import canonical_json

NOVEMBER = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[dt.datetime], None]:
    """Sets what the ledger's entries and readers take for now."""
    from dpflow.ledger.books import charges
    from dpflow.ledger.history import chain

    def set_clock(now: dt.datetime) -> None:
        monkeypatch.setattr(chain.time, "time", now.timestamp)
        monkeypatch.setattr(charges, "today", now.date)

    set_clock(NOVEMBER)
    return set_clock


def make_ledger(folder: Path, period: Any = "month", blocks: bool = False) -> Ledger:
    ledger = Ledger(folder / "ledger.sqlite", anchor=folder / "anchor", create=True)
    ledger.grant("flights", 2, 0, table=None, filter="basic", blocks=blocks, principal="owner")
    ledger.quota("flights/team", "0.5", 0, period=period, principal="owner")
    return ledger


def charge(
    ledger: Ledger,
    name: str,
    epsilon: str = "0.3",
    blocks: tuple[str, ...] = (),
    scope: str = "flights/team",
) -> None:
    event, request = Pure(Fraction(epsilon)), {"name": name}
    key = ReleaseKey(scope, "", "", name, name)
    ledger.reserve(
        key, event=event, blocks=blocks, family=name, slot=None, principal="team", request=request
    )


def left(ledger: Ledger, scope: str) -> Any:
    return ledger.remaining(scope).rows()[0]["epsilon_left"]


Clock = Callable[[dt.datetime], None]


def test_periods_part_days() -> None:
    """Every day of five years is in one period, names grow with days, and the next begins with another."""
    day = dt.date(2024, 12, 20)
    for period in PERIODS:
        names = [name_period(period, day + dt.timedelta(days=n)) for n in range(1827)]
        assert names == sorted(names) and len({*map(len, names)}) == 1
        for n in range(1826):
            start = next_start(period, day + dt.timedelta(days=n))
            before = start - dt.timedelta(days=1)
            assert name_period(period, before) == names[n] != name_period(period, start)
    assert name_account("month", "2026-11-01", day) == "2024-12/2026-11-01"


def test_a_quota_refreshes_and_its_scope_does_not(tmp_path: Path, clock: Clock) -> None:
    ledger = make_ledger(tmp_path)
    charge(ledger, "a")
    with pytest.raises(
        BudgetExceeded, match=r"period '2026-11' cannot pay.*[Ww]ait for the next month"
    ):
        charge(ledger, "b")
    clock(NOVEMBER.replace(day=30, hour=23))
    with pytest.raises(BudgetExceeded):
        charge(ledger, "b")
    clock(dt.datetime(2026, 12, 1, tzinfo=dt.UTC))
    assert left(ledger, "flights/team") == "0.5" and left(ledger, "flights") == "1.7"
    charge(ledger, "b")
    row = ledger.remaining("flights/team").rows()[0]
    assert (row["period"], row["renews"], row["epsilon_left"]) == ("2026-12", "2027-01-01", "0.2")
    # What was spent through it adds up, whatever refreshes.
    loss = ledger.odometer("flights/team")[""]
    assert loss is not None and str(float(loss.epsilon)) == "0.6"
    for month in range(1, 5):
        clock(dt.datetime(2027, month, 1, tzinfo=dt.UTC))
        charge(ledger, f"c{month}")
    clock(dt.datetime(2027, 5, 1, tzinfo=dt.UTC))
    assert left(ledger, "flights/team") == "0.5"
    with pytest.raises(BudgetExceeded, match="scope 'flights' cannot pay"):
        charge(ledger, "last")
    assert ledger.verify().ok


def test_blocks_refresh_one_by_one(tmp_path: Path, clock: Clock) -> None:
    ledger = make_ledger(tmp_path, "week", blocks=True)
    charge(ledger, "a", blocks=("2026-11-22", "2026-11-23"))
    with pytest.raises(BudgetExceeded):
        charge(ledger, "b", blocks=("2026-11-23",))
    charge(ledger, "c", blocks=("2026-11-24",))
    clock(NOVEMBER + dt.timedelta(days=7))
    charge(ledger, "d", blocks=("2026-11-23",))
    rows = {row["block"]: row["epsilon_left"] for row in ledger.remaining("flights/team").rows()}
    assert rows == {"2026-11-23": "0.2"}
    assert set(ledger.odometer("flights/team")) == {"2026-11-22", "2026-11-23", "2026-11-24", "*"}
    assert ledger.verify().ok


def test_clocks_that_differ_add_nothing(tmp_path: Path, clock: Clock) -> None:
    """A clock that is wrong moves a charge to another period; no period ever holds more than a quota."""
    ledger = make_ledger(tmp_path)
    charge(ledger, "a", "0.5")
    clock(NOVEMBER.replace(month=12))
    charge(ledger, "fast", "0.5")
    clock(NOVEMBER)
    with pytest.raises(BudgetExceeded):
        charge(ledger, "b", "0.1")
    clock(NOVEMBER.replace(month=12))
    with pytest.raises(BudgetExceeded):
        charge(ledger, "c", "0.1")
    assert left(ledger, "flights") == "1" and ledger.verify().ok


def test_bill_and_entry_have_one_time(tmp_path: Path, clock: Clock, monkeypatch: Any) -> None:
    """A charge at midnight: the clock moves on while it is made, and its entry still says its period."""
    from dpflow.ledger.history import chain

    ledger = make_ledger(tmp_path)
    last = dt.datetime(2026, 11, 30, 23, 59, 59, tzinfo=dt.UTC).timestamp()
    ticks = iter(range(100))
    monkeypatch.setattr(chain.time, "time", lambda: last + next(ticks))
    charge(ledger, "a")
    entry = ledger.history()[-1]
    assert entry.at.startswith("2026-11-30") and ["flights/team", "2026-11"] in [
        c[:2] for c in entry.body["charges"]
    ]
    assert ledger.verify().ok


def test_what_may_change(tmp_path: Path, clock: Clock) -> None:
    """The period stays once something was charged; amounts need to hold what this period spent."""
    ledger = make_ledger(tmp_path, "day")
    ledger.quota("flights/team", "0.5", 0, period="month", principal="owner")
    charge(ledger, "a")
    for other in ("day", "never"):
        with pytest.raises(GrantConflict, match=r"counts each month, which stays"):
            ledger.quota("flights/team", 1, 0, period=other, principal="owner")  # type: ignore[arg-type]
    with pytest.raises(GrantConflict, match="already spent more"):
        ledger.quota("flights/team", "0.2", 0, principal="owner")
    clock(NOVEMBER.replace(month=12))
    assert ledger.quota("flights/team", "0.2", 0, principal="owner").filter.period == "month"  # type: ignore[union-attr]
    with pytest.raises(BudgetExceeded):
        charge(ledger, "b")
    assert ledger.verify().ok
    ledger.quota("flights/other", "0.2", 0, principal="owner")
    charge(ledger, "x", "0.1", scope="flights/other")
    with pytest.raises(GrantConflict, match="counts without periods"):
        ledger.quota("flights/other", "0.2", 0, period="day", principal="owner")
    with pytest.raises(InvalidInput, match="refreshes each day, week, month, or never"):
        ledger.quota("flights/other", "0.2", 0, period="year", principal="owner")  # type: ignore[arg-type]


def test_two_principals_change_no_period_after_a_charge(tmp_path: Path, clock: Clock) -> None:
    ledger = make_ledger(tmp_path, "never")
    waiting = ledger.quota("flights/team", "0.5", 0, period="day", approvals=2, principal="ann")
    charge(ledger, "a")
    with pytest.raises(GrantConflict, match="has changed since"):
        ledger.approve("flights/team", waiting.seq, principal="bob")  # type: ignore[union-attr]


def test_import_keeps_periods(tmp_path: Path, clock: Clock) -> None:
    ledger = make_ledger(tmp_path)
    charge(ledger, "a")
    lines = io.StringIO()
    ledger.export(lines)
    copy = Ledger(tmp_path / "copy.sqlite", anchor=tmp_path / "anchor", create=True)
    copy.import_(io.StringIO(lines.getvalue()), principal="owner")
    assert left(copy, "flights/team") == "0.2"
    with pytest.raises(BudgetExceeded):
        charge(copy, "b")
    clock(NOVEMBER.replace(month=12))
    charge(copy, "b")
    assert copy.verify().ok


MOVED = "UPDATE dpflow_account SET block = '{}' WHERE block = '{}'"


@pytest.mark.parametrize("blocks", [(), ("2026-11", "2026-12/x")])
def test_accounts_moved_by_hand_buy_nothing(
    tmp_path: Path, clock: Clock, blocks: tuple[str, ...]
) -> None:
    """A spent account called as another period's, deleted, or put back as it was: the next charge refuses."""
    ledger = make_ledger(tmp_path, blocks=bool(blocks))
    behind = "/" + blocks[0] if blocks else ""
    charge(ledger, "a", "0.2", blocks)

    def run(*statements: str) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    def refuse() -> None:
        assert not ledger.verify().ok
        with pytest.raises(LedgerCorrupt, match="dpflow_account is not what"):
            charge(ledger, "b", "0.2", blocks)

    now, other = f"2026-11{behind}", f"2026-10{behind}"
    run(MOVED.format(other, now))
    refuse()
    run(MOVED.format(now, other))
    charge(ledger, "c", "0.2", blocks)
    run("UPDATE dpflow_account SET epsilon = epsilon / 2 WHERE scope = 'flights/team'")
    refuse()
    run(f"DELETE FROM dpflow_account WHERE block = '{now}'")
    refuse()
    clock(NOVEMBER.replace(month=12))
    refuse()


def rewrite(entry: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    """An entry that whoever holds the keys could have written and sealed."""
    body = json.loads(entry.body)
    change(body)
    return entry._replace(body=canonical_json(body))


def read_entries(ledger: Ledger) -> list[Any]:
    import sqlalchemy as sa

    from dpflow.ledger.storage import schema
    from dpflow.ledger.storage.statements import Prepared

    with ledger._database.begin_reading() as transaction:
        return list(
            transaction.rows(Prepared(sa.select(schema.entry).order_by(schema.entry.c.seq)))
        )


def test_the_rules_refuse_other_periods(tmp_path: Path, clock: Clock) -> None:
    """A sealed charge in a period that is not its entry's, or a refreshing scope, is illegal."""
    from dpflow.ledger.audit.recheck import recheck_entries

    ledger = make_ledger(tmp_path)
    charge(ledger, "a")
    entries = read_entries(ledger)
    assert recheck_entries(entries).problems == []

    def move(body: dict[str, Any]) -> None:
        body["charges"][1][1] = "2026-12"

    def bare(body: dict[str, Any]) -> None:
        body["charges"][1][1] = ""

    for change in (move, bare):
        problems = recheck_entries([*entries[:-1], rewrite(entries[-1], change)]).problems
        assert problems == [f"entry {entries[-1].seq} does not charge its whole path"]

    def refresh(body: dict[str, Any]) -> None:
        rule = json.loads(body["filter"])
        body["filter"] = json.dumps(rule | {"period": "day"})

    changed = [rewrite(entries[0], refresh), *entries[1:]]
    assert "lets a scope refresh that is no quota" in recheck_entries(changed).problems[0]


def test_the_audit_program_knows_periods(tmp_path: Path, clock: Clock) -> None:
    """In its own words: it follows periods of all kinds, and refuses what `recheck` refuses."""
    ledger = make_ledger(tmp_path)
    for period in ("day", "week"):
        ledger.quota(f"flights/{period}", "0.2", 0, period=period, principal="owner")
    for month in (11, 12):
        clock(NOVEMBER.replace(month=month))
        charge(ledger, f"a{month}")
        charge(ledger, f"d{month}", "0.2", scope="flights/day")
        charge(ledger, f"w{month}", "0.2", scope="flights/week")
    ledger.quota("flights/week", "0.3", 0, principal="owner")
    clock(NOVEMBER.replace(year=2027))
    ledger.quota("flights/week", "0.1", 0, principal="owner")
    lines = export_text(ledger).splitlines()
    done = run_audit("\n".join(lines), tmp_path)
    assert done.returncode == 0, done.stderr
    sums = {(row["scope"], row["block"]) for row in map(json.loads, done.stdout.splitlines())}
    assert {("flights/week", "2026-W48"), ("flights/day", "2026-12-23")} < sums

    def change(kind: str, old: str, new: str) -> str:
        """An export with one entry changed, chained again from there."""
        changed, previous, once = [], "", True
        for line in map(json.loads, lines):
            if line["line"] == "entry":
                if once and line["kind"] == kind and old in line["body"]:
                    once, line["body"] = False, line["body"].replace(old, new)
                line["previous"] = previous or line["previous"]
                previous = line["hash"] = hash_entry(line)
            changed.append(json.dumps(line))
        assert not once
        return "\n".join(changed)

    for kind, old, new, rule in (
        ("reserve", '"2026-11"', '"2026-12"', "not its path"),
        ("reserve", '"2026-W48"', '""', "not its path"),
        ("grant", '\\"tail_delta\\"', '\\"period\\":\\"day\\",\\"tail_delta\\"', "no quota"),
        ("grant", '\\"period\\":\\"week\\"', '\\"period\\":\\"year\\"', "its filter.period"),
        ("grant", '\\"version\\":1', '\\"version\\":4', "its filter.version"),
    ):
        done = run_audit(change(kind, old, new), tmp_path)
        assert done.returncode == 1 and rule in done.stderr, (kind, done.stderr)


def test_a_release_that_pays_nothing_is_found(tmp_path: Path, clock: Clock) -> None:
    """Where budgets are of blocks, the audit program took an entry without any charge for a legal one."""
    from dpflow.ledger.audit.recheck import recheck_entries

    ledger = make_ledger(tmp_path, blocks=True)
    charge(ledger, "a", blocks=("b",))
    entries = read_entries(ledger)
    unpaid = rewrite(entries[-1], lambda body: body.update(charges=[]))
    assert recheck_entries([*entries[:-1], unpaid]).problems
    line = unpaid._asdict() | {"hash": hash_entry(unpaid._asdict())}
    lines = [
        *export_text(ledger).splitlines()[: len(entries)],
        json.dumps(line | {"line": "entry"}),
    ]
    done = run_audit("\n".join(lines), tmp_path)
    assert done.returncode == 1 and "tables or blocks" in done.stderr, done.stderr
