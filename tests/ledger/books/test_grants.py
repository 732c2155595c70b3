"""Grants, quotas, blocks: every account is debited, or none."""

from __future__ import annotations

import json
from fractions import Fraction
from types import SimpleNamespace

import pytest

from dpflow.core.accounting.events import Pure, Unprotected
from dpflow.core.contract.declaration import NOBODY
from dpflow.errors import (
    BudgetExceeded,
    GrantConflict,
    InvalidAmount,
    InvalidInput,
    LedgerUnavailable,
    PlanRefused,
    UnknownName,
)
from dpflow.ledger import ReleaseCharge
from dpflow.ledger.history.chain import Writer


def test_budget_is_spent_to_the_unit(ledger, ask):
    """Ten times 0.1 fits into 1 exactly; the next 1e-12 does not."""
    for n in range(10):
        ask.reserve(ledger, str(n))
    with pytest.raises(
        BudgetExceeded, match=r"scope 'flights' cannot pay: epsilon 1e-12 is asked, 0 of 1 is left"
    ):
        ask.reserve(ledger, "x", "1e-12")
    assert ask.spent(ledger) == {"": "1"} and ledger.verify().ok


def test_quota_and_dataset_pay_together(ledger, ask):
    """A charge below a quota debits both, and a refusal by either debits neither."""
    ledger.grant("flights/team", "0.2", 0, table=None, filter="basic", principal="owner")
    ask.reserve(ledger, "a", scope="flights/team")
    with pytest.raises(BudgetExceeded, match="flights/team") as refusal:
        ask.reserve(ledger, "b", "0.15", scope="flights/team")
    assert refusal.value.scope == "flights/team" and refusal.value.block is None
    assert (ask.spent(ledger), ask.spent(ledger, "flights/team")) == ({"": "0.1"}, {"": "0.1"})
    ask.reserve(ledger, "c", "0.9")
    with pytest.raises(BudgetExceeded, match="scope 'flights' cannot"):
        ask.reserve(ledger, "d", scope="flights/team")


def test_what_a_budget_refuses_leaves_an_entry(ledger, ask, monkeypatch):
    """Who asked for what, and which budget refused: of a release, of one in a list, and of a session.
    It stays refused where nothing can be written.
    """
    ledger.grant("flights/team", "0.2", 0, table=None, filter="basic", principal="owner")
    terms = ask.terms("0.15", request={"name": "late"}, principal="airflow:nightly")
    asks = [ReleaseCharge(ask.key(name, scope="flights/team"), **terms) for name in "ab"]
    with pytest.raises(BudgetExceeded):
        ledger.reserve_many(asks)
    with pytest.raises(BudgetExceeded):
        ledger.open_session(ask.key("s"), **ask.terms("1.1"), state={"left": 1}, exclusive=True)
    first, second = ledger.history(limit=2)
    assert (first.kind, first.scope, first.principal) == (
        "refuse",
        "flights/team",
        "airflow:nightly",
    )
    assert first.body == {
        "dag_id": "dag",
        "task_id": "t",
        "run_identity": "o",
        "event": '{"epsilon":"0.15","kind":"pure.v1"}',
        "name": "late",
        "account": ["flights/team", ""],
    }
    assert (second.kind, second.body["account"]) == ("refuse", ["flights", ""])
    assert ledger.verify().ok and ask.spent(ledger) == {"": "0"}
    add_entry = Writer.add_entry

    def fail(writer, kind, *rest):
        if kind == "refuse":
            raise LedgerUnavailable("the disk is full")
        add_entry(writer, kind, *rest)

    monkeypatch.setattr(Writer, "add_entry", fail)
    with pytest.raises(BudgetExceeded):
        ledger.reserve_many(asks)
    assert len(ledger.history()) == 4 and ledger.verify().ok


def test_blocks_have_accounts_of_their_own(place, ask):
    """Days are charged apart, all days of one release or none, and a day named twice pays once."""
    ledger = place.open()
    ledger.grant(
        "days",
        1,
        0,
        table=None,
        filter="basic",
        blocks=True,
        protects="one aircraft-day",
        principal="owner",
    )
    ask.reserve(ledger, "a", "0.6", scope="days", blocks=["mon", "mon"])
    with pytest.raises(BudgetExceeded, match="block 'mon'") as refusal:
        ask.reserve(ledger, "b", "0.6", scope="days", blocks=["tue", "mon"])
    assert refusal.value.block == "mon"
    assert ask.spent(ledger, "days") == {"mon": "0.6"}
    ask.reserve(ledger, "year", "0.1", scope="days", blocks=[f"d{n}" for n in range(365)])
    assert len(ask.spent(ledger, "days")) == 366 and ledger.verify().ok


def test_blocks_must_match_the_scope(ledger, ask):
    """A scope without blocks takes none, one with blocks needs some."""
    with pytest.raises(InvalidInput, match="has no blocks"):
        ask.reserve(ledger, blocks=["mon"])
    ledger.grant("days", 1, 0, table=None, blocks=True, principal="owner")
    with pytest.raises(InvalidInput, match="name the blocks"):
        ask.reserve(ledger, scope="days")


def test_grants_are_raised_and_lowered(ledger, ask):
    """A grant may go down to what is spent, in every block, and up."""
    ask.reserve(ledger, epsilon="0.5")
    with pytest.raises(GrantConflict, match="already spent more than epsilon 0.4"):
        ledger.grant("flights", "0.4", 0, table=None, filter="basic", principal="owner")
    ledger.grant("flights", "0.5", 0, table=None, filter="basic", principal="owner")
    assert ledger.check("flights", [Pure(Fraction(1, 10))], []) is not None
    ledger.grant("flights", 2, 0, table=None, filter="basic", principal="owner")
    assert ledger.check("flights", [Pure(Fraction(1, 10))] * 15, []) is None
    assert "0 of" not in str(ledger.check("flights", [Pure(Fraction(1, 10))] * 16, []))


@pytest.mark.parametrize("name", ["renyi", "hybrid"])
def test_raising_a_grant_keeps_the_order_of_its_sums(place, ask, name):
    """The Renyi sums were made at one order; a raise must compare them at that order, or it would
    give budget away.
    """
    ledger = place.open()
    before = ledger.grant("s", 1, "1e-6", table=None, filter=name, principal="owner").filter
    assert (
        ledger.grant("s", 3, "1e-6", table=None, filter=name, principal="owner").filter.order
        != before.order
    )  # nothing spent yet
    before = ledger.scope("s").filter
    ask.reserve(ledger, scope="s")
    after = ledger.grant("s", 9, "1e-5", table=None, filter=name, principal="owner").filter
    assert after.order == before.order and after.epsilon == 9
    assert ledger.verify().ok


def test_renyi_path_never_opens_after_spending(place, ask):
    """A hybrid grant that spent without a delta counted nothing on the Renyi path, so that path
    stays closed.
    """
    ledger = place.open()
    ledger.grant("s", 1, 0, table=None, filter="hybrid", principal="owner")
    ask.reserve(ledger, scope="s")
    assert (
        ledger.grant("s", 1, "1e-6", table=None, filter="hybrid", principal="owner").filter.order
        is None
    )


def test_contradicting_grants(ledger):
    """Another filter, another protection, an orphaned quota: refused."""
    with pytest.raises(GrantConflict, match="uses the basic filter"):
        ledger.grant("flights", 1, "1e-6", table=None, filter="renyi", principal="owner")
    with pytest.raises(GrantConflict, match="granted to protect"):
        ledger.grant(
            "flights", 1, 0, table=None, filter="basic", protects="one flight", principal="owner"
        )
    with pytest.raises(GrantConflict, match="per block|same declaration"):
        ledger.grant("flights/q", 1, 0, table=None, filter="basic", blocks=True, principal="owner")
    with pytest.raises(GrantConflict, match="grant 'nowhere' first"):
        ledger.grant("nowhere/q", 1, 0, table=None, principal="owner")


def test_unsupported_event_is_refused_before_anything_is_charged(ledger, ask):
    """Basic accounting cannot pay for zCDP."""
    from dpflow.core.accounting.events import from_json

    with pytest.raises(PlanRefused, match="basic accounting cannot pay"):
        ask.reserve(ledger, event=from_json({"kind": "zcdp.v1", "rho": "0.1", "delta": "0"}))
    assert ask.spent(ledger) == {"": "0"}


@pytest.mark.parametrize("stranger", ["subclass", "mapping", "text", "nothing"])
def test_an_event_of_unknown_type_is_refused(ledger, ask, stranger):
    """The vocabulary is closed: whatever claims to cost something without being in it is refused,
    never free.
    """

    class Free(Pure):
        pass

    event = {
        "subclass": Free(Fraction(1, 10)),
        "mapping": {"kind": "pure.v1"},
        "text": "pure.v1",
        "nothing": None,
    }[stranger]
    for verb in (
        lambda: ask.reserve(ledger, event=event),
        lambda: ledger.check("flights", [event], []),
        lambda: ledger.require(("flights", [event], [])),
        lambda: ledger.open_session(
            ask.key("gate"), **ask.terms(event=event), state={}, exclusive=False
        ),
    ):
        with pytest.raises(PlanRefused, match="is not supported"):
            verb()
    assert ask.spent(ledger) == {"": "0"} and len(ledger.history()) == 1


def test_nothing_is_free_where_somebody_is_protected(place, ask):
    """An event without a claim costs nothing, so only a scope that protects nobody takes it, quotas
    included.
    """
    ledger = place.open()
    for scope, protects in (("people", "all rows of one person"), ("unsaid", ""), ("open", NOBODY)):
        ledger.grant(scope, 1, 0, table=None, filter="basic", protects=protects, principal="owner")
        ledger.quota(f"{scope}/team", 1, 0, principal="owner")
    for scope in ("people", "people/team", "unsaid", "unsaid/team"):
        with pytest.raises(PlanRefused, match="makes no privacy guarantee, and scope"):
            ask.reserve(ledger, scope=scope, event=Unprotected())
    ask.reserve(ledger, scope="open/team", event=Unprotected())
    assert ask.spent(ledger, "open") == {"": "0"} and ledger.verify().ok


@pytest.mark.parametrize(
    "amount", ["-1", "0", "NaN", "inf", "1e-400", "1e308", 5e-324, "one", None, True]
)
def test_amounts_that_are_none(ledger, amount):
    """Negative, NaN, infinite, subnormal and absurd amounts are refused and nothing changes."""
    with pytest.raises(InvalidAmount, match="epsilon"):
        ledger.grant("flights", amount, 0, table=None, filter="basic", principal="owner")
    assert len(ledger.history()) == 1


NAMES_THAT_ARE_NONE = ["", "a\nb", "x" * 201, "x" * 10_000, "a//b", "/a", "a/", "a\0b", "\ud800"]


def test_names_that_are_none(ledger, ask):
    """Control characters, empty parts and 10 kB names are refused, without being repeated."""
    before = len(ledger.history())
    for name in NAMES_THAT_ARE_NONE:
        for verb in (
            lambda name=name: ledger.grant(name, 1, 0, table=None, principal="owner"),
            lambda name=name: ask.reserve(ledger, scope=name),
        ):
            with pytest.raises(InvalidInput, match="printable|path|no granted scope"):
                verb()
        with pytest.raises(InvalidInput, match="principal" if name and "/" not in name else "."):
            ask.reserve(ledger, principal=name if "/" not in name else "")
    # Nothing of it was written, so each name met the ledger that the first one did.
    assert len(ledger.history()) == before


def test_quotes_are_ordinary_characters(place, ask):
    """A name with quotes and SQL in it is a name."""
    name = "o'Hare\"; DROP TABLE dpflow_entry; -- %s :x ?"
    ledger = place.open()
    ledger.grant(name, 1, 0, table=None, filter="basic", principal=name)
    ask.reserve(ledger, scope=name, principal=name, slot=name)
    assert ask.spent(ledger, name) == {"": "0.1"} and ledger.verify().ok
    assert [e.principal for e in ledger.history(name)] == [name, name]


def test_unknown_scope_names_those_that_exist(ledger, ask):
    """A typo is answered with what is there."""
    with pytest.raises(UnknownName, match="did you mean 'flights'"):
        ask.reserve(ledger, scope="flight")


def test_odometer_reports_what_is_spent(ledger, ask):
    """The report of a basic scope is its sum."""
    ask.reserve(ledger)
    assert ledger.odometer("flights")[""].epsilon == Fraction(1, 10)


# --- a scope and its table --------------------------------------------------------------------------------------------

DAYS = SimpleNamespace(protection_text="all rows of one person in one day", protects="unit-block")
PEOPLE = SimpleNamespace(protection_text="all rows of one person", protects="unit")


def test_a_grant_says_which_table_or_that_there_is_none(place):
    """A table that was left out bound the scope to none, and no later grant could mend that."""
    ledger = place.open()
    with pytest.raises(TypeError, match="table"):
        ledger.grant("s", 1, 0, filter="basic", principal="owner")
    assert ledger.scopes() == []


def test_a_scope_is_bound_to_another_table_until_something_is_charged(place, ask):
    """From no table to one, from one to another, with its quotas: each is an entry of the history.
    After a charge it stays.
    """
    ledger = place.open()
    ledger.grant("s", 1, 0, table=None, filter="basic", principal="owner")
    ledger.quota("s/team", "0.5", 0, principal="owner")
    ledger.quota("s/team/a", "0.2", 0, principal="owner")
    ledger.grant("sother", 1, 0, table=None, filter="basic", principal="owner")
    for table, blocks in ((PEOPLE, False), (DAYS, True)):
        ledger.grant("s", 2, 0, table=table, filter="basic", principal="owner 2")
        for name, epsilon in (("s", 2), ("s/team", Fraction(1, 2)), ("s/team/a", Fraction(1, 5))):
            scope = ledger.scope(name)
            assert (scope.protects, scope.blocks) == (table.protection_text, blocks)
            assert scope.epsilon == epsilon
    assert ledger.scope("sother").protects == ""
    entries = [(entry.kind, entry.scope, entry.principal) for entry in ledger.history()][-3:]
    assert entries == [("grant", name, "owner 2") for name in ("s", "s/team", "s/team/a")]
    assert ledger.verify().ok
    ask.reserve(ledger, scope="s/team", blocks=["2020-01-01"])
    with pytest.raises(GrantConflict, match="granted to protect"):
        ledger.grant("s", 2, 0, table=PEOPLE, filter="basic", principal="owner")
    ledger.grant("s", 3, 0, table=DAYS, filter="basic", principal="owner")
    assert ledger.verify().ok


def test_a_scope_that_paid_nothing_for_a_release_is_charged(place, ask):
    """A release that protects nobody costs 0 and still binds the scope."""
    ledger = place.open()
    ledger.grant("s", 1, 0, table=None, filter="basic", protects=NOBODY, principal="owner")
    ask.reserve(ledger, scope="s", event=Unprotected())
    with pytest.raises(GrantConflict, match="granted to protect"):
        ledger.grant("s", 1, 0, table=PEOPLE, filter="basic", principal="owner")


def test_only_a_table_binds_a_scope_to_something_else(place):
    """A grant without a table does not, and a quota keeps the binding of the scope above it."""
    ledger = place.open()
    ledger.grant("s", 1, 0, table=PEOPLE, filter="basic", principal="owner")
    ledger.quota("s/q", 1, 0, principal="owner")
    for scope, table in (("s", None), ("s/q", DAYS)):
        with pytest.raises(GrantConflict, match="granted to protect"):
            ledger.grant(scope, 1, 0, table=table, filter="basic", principal="owner")
    assert len(ledger.history()) == 2


def test_a_release_that_was_planned_for_another_table_is_refused(place, ask):
    """Its plan was checked before the scope was bound to another table: the charge looks again, in
    its own transaction.
    """
    ledger = place.open()
    ledger.grant("s", 1, 0, table=PEOPLE, filter="basic", principal="owner")
    other = SimpleNamespace(protection_text="one visit", protects="unit")
    ledger.grant("s", 1, 0, table=other, filter="basic", principal="owner")
    with pytest.raises(PlanRefused, match="granted to protect one visit"):
        ask.reserve(ledger, scope="s", protects=PEOPLE.protection_text)
    with pytest.raises(PlanRefused, match="granted to protect one visit"):
        ledger.open_session(
            ask.key("gate", scope="s"),
            **ask.terms(protects=PEOPLE.protection_text),
            state={},
            exclusive=False,
        )
    assert ask.spent(ledger, "s") == {"": "0"} and not ledger.releases()
    ask.reserve(ledger, scope="s", protects=other.protection_text)


def test_a_history_that_binds_a_charged_scope_to_another_table_does_not_verify():
    """No verb writes such an entry, so whoever did has the key and bad intentions."""
    from dpflow.core.accounting.privacy_filters import Cost, make_filter
    from dpflow.ledger.audit.recheck import Recheck
    from dpflow.ledger.audit.verify import ENTRIES

    def grant(seq, protects):
        rule = make_filter("basic", Fraction(1), Fraction(0))
        body = {"filter": json.dumps(rule.to_json()), "protects": protects, "blocks": 0}
        body["capacity"] = [10**12, 0, -1, -1]
        said = {"seq": seq, "kind": "grant", "scope": "s", "body": json.dumps(body), "root": "r"}
        return ENTRIES.row(**dict.fromkeys(ENTRIES.row._fields, "") | said)

    recheck = Recheck()
    recheck.apply_entry(grant(1, "one visit"))
    recheck.apply_entry(grant(2, "one person"))
    recheck.accounts["s"] = {"": Cost(1, 0, 0)}
    assert recheck.problems == []
    recheck.apply_entry(grant(3, "one visit"))
    assert recheck.problems == ["entry 3 binds a scope to a table after a charge"]


@pytest.mark.parametrize(
    ("epsilon", "delta", "is_large"),
    [
        ("20", "1e-3", False),
        ("20.000000000001", 0, True),
        ("1", "0.001000000000000001", True),
        (10**6, 0, True),
        ("1", 0, False),
    ],
)
def test_a_large_grant_is_confirmed(ledger, epsilon, delta, is_large):
    """Above epsilon 20 or delta 1e-3 nothing is written unless it is meant; `quota` is bounded by it."""
    before = ledger.history()
    terms = {"table": None, "filter": "basic", "principal": "owner"}
    if is_large:
        with pytest.raises(InvalidInput, match="confirm_large=True"):
            ledger.grant("large", epsilon, delta, **terms)
        for flag in ("no", "False", 1):
            with pytest.raises(InvalidInput, match="confirm_large is a .*; write True or False"):
                ledger.grant("large", epsilon, delta, confirm_large=flag, **terms)
        assert ledger.history() == before
    granted = ledger.grant("large", epsilon, delta, confirm_large=is_large, **terms)
    assert granted.filter.delta == Fraction(str(delta)) and ledger.verify().ok
