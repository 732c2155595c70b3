"""Every verb of the ledger, on both SQLite and PostgreSQL."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from crashes import KILLED
from forked_programs import ForkedProgram, run_forked

from dpflow.core.accounting.events import Approximate, DiscreteGaussian, Pure
from dpflow.errors import (
    BudgetExceeded,
    DatasetLocked,
    GrantConflict,
    InvalidAmount,
    InvalidInput,
    LedgerCorrupt,
    LedgerUnavailable,
    PlanRefused,
    RetryConflict,
    SessionClosed,
    UnknownName,
)
from dpflow.ledger import Ledger, ReleaseKey, Reservation, Slot

HALF = Pure(Fraction(1, 2))
#: Longer than what the digits of a hash can hold by chance.
NOISE = 77_717_771_777_177_717_771
TRIGGERS = {
    "dpflow_entry_append_only": "dpflow_entry",
    "dpflow_scope_stays": "dpflow_scope",
    "dpflow_scope_has_entry": "dpflow_scope",
}


class Place:
    """Where a ledger under test lives, so that it can be opened again."""

    def __init__(self, target: str, anchor: Path) -> None:
        self.target, self.anchor = target, anchor

    def open(self, create: bool = False) -> Ledger:
        return Ledger(self.target, anchor=self.anchor, create=create)

    def attack(self, *statements: str) -> None:
        """What somebody with all rights on the database, but without the anchor, can do."""
        sqlite = "://" not in self.target
        engine = sa.create_engine(f"sqlite:///{self.target}" if sqlite else self.target)
        with engine.begin() as connection:
            if sqlite:
                find = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
                for (name,) in connection.exec_driver_sql(find).fetchall():
                    connection.exec_driver_sql(f"DROP TRIGGER {name}")
            else:
                for name, table in TRIGGERS.items():
                    connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name} ON {table}")
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place on each database."""
    if request.param == "sqlite":
        return Place(str(tmp_path / "ledger.sqlite"), tmp_path / "anchor")
    make: Callable[[], str] = request.getfixturevalue("postgres")
    return Place(make(), tmp_path / "anchor")


@pytest.fixture
def ledger(place: Place) -> Ledger:
    """A ledger with epsilon 1, delta 1e-6 on scope "s"."""
    opened = place.open(create=True)
    opened.grant("s", 1, "1e-6", table=None, filter="basic", principal="owner")
    return opened


def key(run_identity: str = "day", digest: str = "d1", scope: str = "s") -> ReleaseKey:
    return ReleaseKey(scope, "dag", "task", run_identity, digest)


def reserve(ledger: Ledger, at: ReleaseKey | None = None, **changes: Any) -> Reservation:
    given: dict[str, Any] = {
        "event": HALF,
        "blocks": (),
        "family": "family",
        "slot": None,
        "principal": "p",
        "request": {"name": "n"},
    }
    return ledger.reserve(at or key(), **(given | changes))


def spent(ledger: Ledger, scope: str = "s") -> dict[str, Fraction]:
    return {row["block"]: Fraction(row["epsilon_spent"]) for row in ledger.remaining(scope).rows()}


def test_a_settled_release_stays_free(ledger: Ledger, place: Place) -> None:
    """The same key returns the stored result from any process, and charges nothing."""
    held = reserve(ledger)
    ledger.settle(held, {"rows": [1]})
    again = reserve(place.open())
    assert (again.release_id, again.settled, again.result) == (held.release_id, True, {"rows": [1]})
    assert spent(ledger) == {"": Fraction(1, 2)}


def test_a_crashed_try_is_taken_over(ledger: Ledger) -> None:
    """Reserved but unsettled: the next try uses the same reservation, and the first writer wins."""
    first, second = reserve(ledger), reserve(ledger)
    assert (first.release_id, second.attempt) == (second.release_id, 2)
    assert ledger.settle(second, {"rows": ["second"]}).result == {"rows": ["second"]}
    assert ledger.settle(first, {"rows": ["first"]}).result == {"rows": ["second"]}
    assert spent(ledger) == {"": Fraction(1, 2)}


def test_the_budget_is_a_wall(ledger: Ledger) -> None:
    """What does not fit is refused with what is left, and charges nothing."""
    reserve(ledger, key("1"))
    reserve(ledger, key("2"))
    with pytest.raises(
        BudgetExceeded, match=r"scope 's' cannot pay: epsilon 0.5 is asked, 0 of 1 is left"
    ):
        reserve(ledger, key("3"))
    assert spent(ledger) == {"": Fraction(1)}
    assert ledger.check("s", [HALF], ()) is not None


def test_a_retry_that_asks_for_something_else_is_refused(ledger: Ledger) -> None:
    """One task instance, one release: another digest needs the word."""
    reserve(ledger, slot=Slot("run/task"))
    with pytest.raises(RetryConflict, match="spend_again"):
        reserve(ledger, key(digest="d2"), family="other", slot=Slot("run/task"))
    reserve(ledger, key(digest="d2"), family="other", slot=Slot("run/task"), spend_again=True)
    assert spent(ledger) == {"": Fraction(1)}


def test_a_new_mechanism_version_keeps_the_reservation_of_its_slot(ledger: Ledger) -> None:
    """Same family and event: a retry after an upgrade is no new charge; another run is."""
    held = reserve(ledger, slot=Slot("run/task"))
    assert reserve(ledger, key(digest="d2"), slot=Slot("run/task")).release_id == held.release_id
    assert (
        reserve(ledger, key("next day", digest="d2"), slot=Slot("run2/task")).release_id
        != held.release_id
    )


def test_a_charge_debits_every_scope_and_block_or_none(place: Place) -> None:
    """A quota below a dataset: when the second block of the quota is full, nothing is charged
    anywhere.
    """
    ledger = place.open(create=True)
    for scope, epsilon in (("data", 2), ("data/team", 1)):
        ledger.grant(
            scope,
            epsilon,
            0,
            table=None,
            filter="basic",
            blocks=True,
            protects="x",
            principal="owner",
        )
    reserve(ledger, key("1", scope="data/team"), event=Pure(1), blocks=["b2"])
    with pytest.raises(BudgetExceeded, match="scope 'data/team', block 'b2' cannot pay"):
        reserve(ledger, key("2", scope="data/team"), blocks=["b1", "b2"])
    assert spent(ledger, "data") == spent(ledger, "data/team") == {"b2": Fraction(1)}
    reserve(ledger, key("3", scope="data"), blocks=["b1", "b2"])
    assert spent(ledger, "data") == {"b1": Fraction(1, 2), "b2": Fraction(3, 2)}


def test_blocks_must_fit_the_scope(ledger: Ledger) -> None:
    """A scope without blocks takes none, and the other way round."""
    with pytest.raises(InvalidInput, match="has no blocks"):
        reserve(ledger, blocks=["b"])
    ledger.grant("t", 1, 0, table=None, filter="basic", blocks=True, principal="owner")
    with pytest.raises(InvalidInput, match="charged per block"):
        reserve(ledger, key(scope="t"))


def test_grants_rise_and_fall_to_what_is_spent(ledger: Ledger) -> None:
    """Raising is a new promise, lowering stops at the spend, filter and protection are fixed."""
    reserve(ledger)
    ledger.grant("s", 3, "1e-6", table=None, filter="basic", principal="owner")
    ledger.grant("s", "0.5", "1e-6", table=None, filter="basic", principal="owner")
    with pytest.raises(GrantConflict, match="already spent more"):
        ledger.grant("s", "0.4", "1e-6", table=None, filter="basic", principal="owner")
    with pytest.raises(GrantConflict, match="filter cannot be changed"):
        ledger.grant("s", 3, "1e-6", table=None, filter="renyi", principal="owner")
    with pytest.raises(GrantConflict, match="same declaration"):
        ledger.grant(
            "s", 3, "1e-6", table=None, filter="basic", protects="other", principal="owner"
        )
    with pytest.raises(GrantConflict, match="grant 'nowhere' first"):
        ledger.grant("nowhere/team", 1, 0, table=None, filter="basic", principal="owner")


@pytest.mark.parametrize(
    "epsilon", [0, -1, "nan", float("nan"), float("inf"), "1e-400", 1e308, "1e400", True, None, "x"]
)
def test_amounts_that_are_none_are_refused(ledger: Ledger, epsilon: object) -> None:
    """No grant without an exact, positive, finite amount; nothing is written."""
    before = len(ledger.history())
    with pytest.raises(InvalidAmount, match="epsilon"):
        ledger.grant("z", epsilon, 0, table=None, filter="basic", principal="owner")
    assert len(ledger.history()) == before


def test_unknown_scopes_list_close_matches(ledger: Ledger) -> None:
    """A typo in a scope is answered with the scope that was meant."""
    ledger.grant("patients", 1, 0, table=None, filter="basic", principal="owner")
    with pytest.raises(UnknownName, match="did you mean 'patients'"):
        reserve(ledger, key(scope="patient"))


@pytest.mark.parametrize("name", ["a\nb", "x" * 10_000, "", "\x00"])
def test_odd_names_are_refused(ledger: Ledger, name: str) -> None:
    """Control characters and endless names never reach the database."""
    with pytest.raises(InvalidInput, match="printable characters"):
        ledger.grant(name, 1, 0, table=None, filter="basic", principal="owner")


def test_long_names_fit_every_index(ledger: Ledger) -> None:
    """Names of 200 characters beyond Latin took more bytes than PostgreSQL's index has, and the
    refusal called itself retryable.
    """
    draw = random.Random(5)
    names = ["".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(200)) for _ in range(4)]
    ledger.grant(names[0], 1, 0, table=None, filter="basic", principal="owner")
    reserve(ledger, ReleaseKey(*names, "d" * 64), data=[names[1] * 4])
    wide = [chr(0x20000 + draw.randrange(0xA000)) * 200 for _ in range(4)]
    with pytest.raises(InvalidInput, match="the key takes 3264 bytes in UTF-8"):
        ReleaseKey(*wide, "d" * 64)
    with pytest.raises(InvalidInput, match="a name of data takes 3200 bytes in UTF-8"):
        reserve(ledger, ReleaseKey(*names, "e" * 64), data=[wide[0] * 4])


def test_quotes_are_only_characters(ledger: Ledger) -> None:
    """Names are bound, never spliced."""
    name = "o'brien\"; DROP TABLE dpflow_entry; --"
    ledger.grant(name, 1, 0, table=None, filter="basic", principal="owner")
    reserve(ledger, key(scope=name))
    assert spent(ledger, name) == {"": Fraction(1, 2)}


def test_a_filter_refuses_what_it_cannot_price(ledger: Ledger) -> None:
    """A Gaussian has no pure cost, so the basic filter does not guess one."""
    with pytest.raises(PlanRefused, match="basic"):
        reserve(ledger, event=DiscreteGaussian(Fraction(4)))
    reserve(ledger, event=Approximate(Fraction(1, 10), Fraction(1, 10**6)))


def test_resolve_fences_an_orphan(ledger: Ledger) -> None:
    """A late settle is discarded, a later try refused, the charge stays."""
    held = reserve(ledger)
    ledger.resolve(held.release_id, reason="host lost", principal="owner")
    with pytest.raises(RetryConflict, match="was fenced"):
        ledger.settle(held, {"rows": []})
    with pytest.raises(RetryConflict, match="is fenced"):
        reserve(ledger)
    assert spent(ledger) == {"": Fraction(1, 2)}
    with pytest.raises(InvalidInput, match="only a reserved one"):
        ledger.resolve(held.release_id, reason="again", principal="owner")


def session(ledger: Ledger, exclusive: bool = False) -> str:
    held = ledger.open_session(
        key("gate"),
        event=HALF,
        blocks=(),
        family="f",
        slot=None,
        principal="p",
        state={"noise": NOISE},
        exclusive=exclusive,
        request={"name": "gate"},
    )
    return held.session_id


def test_a_session_answers_once_and_advances_with_its_answer(ledger: Ledger) -> None:
    """A repeated query returns the stored answer; a stale version stores nothing; a closed session
    refuses.
    """
    name = session(ledger)
    assert session(ledger) == name
    first = ledger.answer(
        name, query="q1", expected_version=0, state={"noise": 1}, answer={"verdict": "yes"}
    )
    again = ledger.answer(
        name, query="q1", expected_version=0, state={"noise": 2}, answer={"verdict": "no"}
    )
    assert (
        first is not None
        and again is not None
        and first.answer == again.answer == {"verdict": "yes"}
    )
    assert (
        ledger.answer(name, query="q2", expected_version=0, state={"noise": 3}, answer={}) is None
    )
    ledger.answer(name, query="q2", expected_version=1, state={"noise": 3}, answer={}, closed=True)
    with pytest.raises(SessionClosed, match="used up"):
        ledger.answer(name, query="q3", expected_version=2, state={}, answer={})
    assert spent(ledger) == {"": Fraction(1, 2)}


def test_tries_of_an_open_session_are_counted(ledger: Ledger) -> None:
    """By an entry of each, which an auditor counts, too; a closed session is tried no more."""
    name = session(ledger)
    ledger.count_try(name, "p")
    ledger.count_try(name, "q")
    (record,) = ledger.open_sessions()
    assert (record.attempts, record.answers) == (3, 0) and ledger.verify().ok
    ledger.answer(name, query="q", expected_version=0, state={}, answer={}, closed=True)
    with pytest.raises(RetryConflict, match="is closed; there is nothing to try"):
        ledger.count_try(name, "p")
    assert not ledger.open_sessions() and ledger.verify().ok


def test_an_unknown_session_has_no_empty_list(ledger: Ledger) -> None:
    """Neither answers nor batches: an id that was mistyped is an error, which names the right one."""
    name = session(ledger)
    ledger.answer(name, query="q", expected_version=0, state={}, answer={"verdict": "yes"})
    mistyped = name[:-1] + ("0" if name[-1] != "0" else "1")
    for read in (ledger.answers, ledger.batches, lambda at: ledger.ask(at, "q")):
        with pytest.raises(UnknownName, match=f"did you mean '{name}'"):
            read(mistyped)
    charged = reserve(ledger, key("another day"))
    with pytest.raises(UnknownName, match="there is no session"):
        ledger.answers(charged.release_id)
    assert len(ledger.answers(name)) == 1 and ledger.batches(name) == []


def test_secret_state_shows_nowhere(ledger: Ledger) -> None:
    """Neither a repr nor the history holds it; the history has a keyed commitment."""
    name = session(ledger)
    shown = (
        repr(ledger.session(name)) + repr(ledger.history()) + repr(ledger.releases()) + repr(ledger)
    )
    assert str(NOISE) not in shown and ledger.session(name).state == {"noise": NOISE}


def test_an_open_gate_closes_its_scope(ledger: Ledger) -> None:
    """While an exclusive session is open nothing else is released from its scope, above it or below
    it.
    """
    name = session(ledger, exclusive=True)
    with pytest.raises(DatasetLocked, match="a gate session is open on scope 's'"):
        reserve(ledger)
    ledger.answer(name, query="q", expected_version=0, state={}, answer={}, closed=True)
    reserve(ledger)


def test_commitments_are_keyed(ledger: Ledger, place: Place, tmp_path: Path) -> None:
    """The same data gives another digest for another purpose or another ledger."""
    other = Ledger(tmp_path / "other.sqlite", create=True)
    assert ledger.commitment(b"x", "a") == place.open().commitment(b"x", "a")
    assert (
        len(
            {
                ledger.commitment(b"x", "a"),
                ledger.commitment(b"x", "b"),
                other.commitment(b"x", "a"),
            }
        )
        == 3
    )


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE dpflow_entry SET principal = 'mallory' WHERE seq = 2", "entry 2 was changed"),
        ("DELETE FROM dpflow_entry WHERE seq = 2", "entry 2 is missing"),
        (
            "DELETE FROM dpflow_entry WHERE seq = (SELECT max(seq) FROM dpflow_entry)",
            "which is gone",
        ),
        ("UPDATE dpflow_account SET epsilon = 0", "account s does not hold"),
        (
            "UPDATE dpflow_release SET result = '{\"rows\": [2]}' WHERE state = 'settled'",
            "is not the one that was settled",
        ),
        (
            "UPDATE dpflow_release SET secret = '{\"noise\": 0}' WHERE state = 'open'",
            "is not the one its last answer left",
        ),
        ("DELETE FROM dpflow_release WHERE state = 'settled'", "was charged and is gone"),
        ("UPDATE dpflow_scope SET protects = 'nobody'", "scope s is not what was granted"),
    ],
)
def test_verify_finds_what_was_touched(
    ledger: Ledger, place: Place, statement: str, finding: str
) -> None:
    """Each kind of tampering is named, and an untouched ledger verifies."""
    ledger.settle(reserve(ledger), {"rows": [1]})
    session(ledger)
    assert ledger.verify().ok
    place.attack(statement)
    report = ledger.verify()
    assert not report.ok and finding in str(report)


def test_the_history_cannot_be_edited_by_accident(ledger: Ledger, place: Place) -> None:
    """A trigger stops updates and deletes on both databases."""
    engine = sa.create_engine(
        f"sqlite:///{place.target}" if "://" not in place.target else place.target
    )
    for statement in ("UPDATE dpflow_entry SET kind = 'x'", "DELETE FROM dpflow_entry"):
        with pytest.raises(sa.exc.DBAPIError, match="append-only"), engine.begin() as connection:
            connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_restored_backup_is_found(tmp_path: Path) -> None:
    """The anchor has seen more than an old copy holds."""
    path = tmp_path / "l.sqlite"
    ledger = Ledger(path, create=True)
    ledger.grant("s", 1, 0, table=None, filter="basic", principal="owner")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", [str(tmp_path / "old")])
    reserve(ledger)
    del ledger
    gc.collect()  # closes its connection
    shutil.copy(tmp_path / "old", path)
    assert "old copy was restored" in str(Ledger(path).verify())


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    """A text file, a foreign database, no version of a ledger, no file, and no place to write."""
    (tmp_path / "text").write_text("not a database, by far; just words " * 40)
    with pytest.raises(LedgerCorrupt, match="is not a ledger"):
        Ledger(tmp_path / "text")
    with sqlite3.connect(tmp_path / "foreign") as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(LedgerCorrupt, match="no dpflow ledger"):
        Ledger(tmp_path / "foreign", create=True)
    Ledger(tmp_path / "l", create=True)
    for version in ("0", "01", "1.0", "-1", "٩", " 1", "1\n", "9" * 30, ""):
        with sqlite3.connect(tmp_path / "l") as connection:
            connection.execute("UPDATE dpflow_meta SET value = ?", (version,))
        with pytest.raises(LedgerCorrupt, match="schema version"):
            Ledger(tmp_path / "l")
    with pytest.raises(InvalidInput, match="there is no ledger"):
        Ledger(tmp_path / "missing")
    with pytest.raises(LedgerUnavailable, match="cannot be written"):
        Ledger(tmp_path / "text" / "below" / "l", create=True)


def test_an_older_program_waits_for_its_upgrade(tmp_path: Path) -> None:
    """Of a later ledger, whether that was upgraded before the program began or under it: retryable, and it
    says what to upgrade. A ledger that is only damaged is not taken for one.
    """
    ledger = Ledger(tmp_path / "l", create=True)
    ledger.grant("s", 1, 0, table=None, filter="basic", principal="owner")

    def damage_index() -> None:
        with sqlite3.connect(tmp_path / "l") as connection:
            connection.execute("DELETE FROM dpflow_node")

    damage_index()
    with pytest.raises(LedgerCorrupt):
        reserve(ledger)
    with sqlite3.connect(tmp_path / "l") as connection:
        connection.execute("UPDATE dpflow_meta SET value = '99' WHERE name = 'schema'")
    for use in (
        lambda: Ledger(tmp_path / "l"),
        lambda: reserve(ledger),
        lambda: ledger.remaining("s"),
    ):
        with pytest.raises(LedgerUnavailable, match="Upgrade dpflow on this machine"):
            use()
    with sqlite3.connect(tmp_path / "l") as connection:
        assert connection.execute("SELECT count(*) FROM dpflow_release").fetchone() == (0,)


def test_a_full_disk_records_nothing(tmp_path: Path) -> None:
    """When the file cannot grow, the charge fails as a whole and is retryable."""
    ledger = Ledger(tmp_path / "l", create=True)
    ledger.grant("s", 1, 0, table=None, filter="basic", principal="owner")
    with ledger._database.begin_reading() as transaction:
        pages = transaction.text("PRAGMA page_count")[0][0]
        transaction.text(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerUnavailable, match="this step recorded nothing") as caught:
        reserve(ledger, request={"name": "x" * 100_000})
    assert caught.value.retryable
    assert spent(ledger) == {"": Fraction(0)} and ledger.verify().ok


RACE = """
import sys
from dpflow.core.accounting.events import Pure
from dpflow.errors import BudgetExceeded
from dpflow.ledger import Ledger, ReleaseKey, Slot
ledger, won = Ledger(sys.argv[1], anchor=sys.argv[2]), 0
for n in range(10):
    key = ReleaseKey("race", "", "", f"{sys.argv[3]}-{n}", "d")
    try:
        held = ledger.reserve(key, event=Pure("0.1"), blocks=(), family="f", slot=None, principal="p", request={})
        ledger.settle(held, {"rows": []})
        won += 1
    except BudgetExceeded:
        pass
print(won)
"""


def test_racing_processes_never_overrun(place: Place) -> None:
    """Six processes ask for sixty charges of which thirty fit: exactly thirty commit, and the sum
    is exact.
    """
    ledger = place.open(create=True)
    ledger.grant("race", 3, 0, table=None, filter="basic", principal="owner")
    racers = [ForkedProgram(RACE, place.target, str(place.anchor), str(n)) for n in range(6)]
    assert sum(int(racer.wait()[1][0]) for racer in racers) == 30
    assert spent(ledger, "race") == {"": Fraction(3)}
    assert ledger.verify().ok


CRASH = """
import sys
from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseKey, Slot
ledger = Ledger(sys.argv[1], anchor=sys.argv[2])
key = ReleaseKey("s", "dag", "task", "day", "d1")
held = ledger.reserve(key, event=Pure("0.5"), blocks=(), family="family", slot=Slot("slot"), principal="p", request={"name": "n"})
ledger.settle(held, {"rows": []})
"""


@pytest.mark.parametrize(
    "point",
    [
        "reserve.before-commit",
        "reserve.after-commit",
        "settle.before-commit",
        "settle.after-commit",
    ],
)
def test_sigkill_leaves_at_most_one_charge(ledger: Ledger, place: Place, point: str) -> None:
    """Killed anywhere in the protocol, the next try completes with one charge and one result."""
    assert run_forked(CRASH, place.target, str(place.anchor), fault=point) == KILLED
    assert run_forked(CRASH, place.target, str(place.anchor)) == 0
    assert [r.state for r in ledger.releases()] == ["settled"]
    assert spent(ledger) == {"": Fraction(1, 2)} and ledger.verify().ok


def test_a_fork_gets_a_connection_of_its_own(ledger: Ledger) -> None:
    """A child that inherited an open ledger can charge without disturbing its parent."""
    reserve(ledger, key("parent"))
    child = os.fork()
    if child == 0:
        try:
            reserve(ledger, key("child"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert spent(ledger) == {"": Fraction(1)}


def test_the_key_is_for_this_user_only(ledger: Ledger, place: Place) -> None:
    """Directory 0700, key 0600."""
    assert stat.S_IMODE(place.anchor.stat().st_mode) == 0o700
    assert stat.S_IMODE((place.anchor / "key").stat().st_mode) == 0o600


def test_the_test_server_leaves_home_alone(postgres: Callable[[], str]) -> None:
    """The PostgreSQL from the wheel runs under /tmp; HOME's mode is what it was for this user."""
    before = Path.home().stat().st_mode
    postgres()
    assert Path.home().stat().st_mode == before


def test_reserved_kinds_are_a_list(ledger):
    """Just the kinds that the ledger writes itself: the name of a method of ours is no reason."""
    from dpflow.ledger.audit.recheck import RESERVED_KINDS, Recheck

    for kind in sorted(RESERVED_KINDS):
        with pytest.raises(InvalidInput, match="only the ledger writes"):
            ledger.record(kind, {}, principal="p")
        assert callable(getattr(Recheck, f"_apply_{kind}"))
    for kind in ("_init__", "apply_grant", "contract"):
        ledger.record(kind, {}, principal="p")
    assert ledger.verify().ok
