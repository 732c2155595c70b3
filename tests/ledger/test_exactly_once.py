"""One key, one charge, one result."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations

import pytest

from dpflow.errors import BudgetExceeded, InvalidInput, RetryConflict
from dpflow.ledger import ReleaseCharge, Reservation, make_slot


def test_settled_key_returns_the_stored_result_for_nothing(ledger, ask):
    """A cleared task gets its first result bit for bit, with its names in their order, and pays
    nothing.
    """
    first = ask.reserve(ledger)
    ledger.settle(first, {"z": 1, "a": [1.5, None]}, snapshot="s")
    again = ask.reserve(ledger)
    assert again.settled and list(again.result.items()) == [("z", 1), ("a", [1.5, None])]
    assert ask.spent(ledger) == {"": "0.1"}


def test_crashed_try_is_taken_over(ledger, ask):
    """A reserved key gives its reservation to the next try under a new attempt number."""
    first, second = ask.reserve(ledger), ask.reserve(ledger)
    assert (first.release_id, first.attempt, second.attempt) == (second.release_id, 1, 2)
    assert ask.spent(ledger) == {"": "0.1"}


def test_first_settle_wins(ledger, ask):
    """An orphan that settles first wins; its retry is told the stored result."""
    orphan, retry = ask.reserve(ledger), ask.reserve(ledger)
    ledger.settle(orphan, {"value": 1})
    late = ledger.settle(retry, {"value": 2})
    assert late.result == {"value": 1}
    assert ledger.release(orphan.release_id).result == {"value": 1}


@pytest.mark.parametrize("change", ["task", "run_identity", "digest", "ordinal", "scope"])
def test_every_part_of_the_key_counts(ledger, ask, change):
    """A release that differs in one part of its key is another release, and is paid."""
    ledger.grant("flights/b", 1, 0, table=None, filter="basic", principal="owner")
    ask.reserve(ledger)
    ask.reserve(
        ledger,
        **{change: 1 if change == "ordinal" else "flights/b" if change == "scope" else "other"},
    )
    assert ask.spent(ledger) == {"": "0.2"}


def test_changed_retry_is_refused_unless_it_says_so(ledger, ask):
    """A template with now() changes the digest in its slot: refused, and paid only on demand."""
    ask.reserve(ledger, "now-1", slot="run/-1")
    with pytest.raises(RetryConflict, match="spend_again"):
        ask.reserve(ledger, "now-2", slot="run/-1", family="g")
    for text in ("no", "False", "0", None, 1):
        with pytest.raises(InvalidInput, match="spend_again is a .*; write True or False"):
            ask.reserve(ledger, "now-2", slot="run/-1", family="g", spend_again=text)
    assert ask.spent(ledger) == {"": "0.1"}
    ask.reserve(ledger, "now-2", slot="run/-1", family="g", spend_again=True)
    assert ask.spent(ledger) == {"": "0.2"}


def test_new_mechanism_version_keeps_its_reservation_in_a_run(ledger, ask):
    """The same family and event in the same slot is the same release; in another run it is paid
    again.
    """
    first = ask.reserve(ledger, "v1", slot="run1")
    assert ask.reserve(ledger, "v2", slot="run1").release_id == first.release_id
    assert ask.reserve(ledger, "v2", slot="run2").release_id != first.release_id


def test_family_with_another_price_is_a_conflict(ledger, ask):
    """A version that costs more cannot ride on a cheaper reservation."""
    ask.reserve(ledger, "v1", slot="run1")
    with pytest.raises(RetryConflict, match="asks? for the same release|something else"):
        ask.reserve(ledger, "v2", "0.2", slot="run1")


def test_mapped_inputs_in_another_order(ledger, ask):
    """Reordered inputs find their releases, and an instance that was never paid for is paid once,
    not more.
    """
    ask.reserve(ledger, "A", slot="run/0", family="A")
    with pytest.raises(RetryConflict, match="once the other instances have run"):
        ask.reserve(ledger, "B", slot="run/0", family="B")
    ask.reserve(ledger, "A", slot="run/1", family="A")
    ask.reserve(ledger, "B", slot="run/0", family="B")
    assert ask.spent(ledger) == {"": "0.2"}
    with pytest.raises(RetryConflict, match="mapped task instance 1"):
        ask.reserve(ledger, "C", slot="run/1", family="C")


def test_a_replay_in_another_run_owes_nothing(ledger, ask):
    """Instances of several tasks are counted apart: each replays, and a change there is refused."""
    ask.reserve(ledger, "A", slot="one/-1", family="A")
    for run in ("two", "three"):
        ask.reserve(ledger, "A", slot=f"{run}/-1", family="A")
        with pytest.raises(RetryConflict, match="released something else for this interval"):
            ask.reserve(ledger, "B", slot=f"{run}/-1", family="B")
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


@pytest.mark.parametrize("first", ["A", "AB", "ABC"])
def test_lists_that_change_across_two_runs_of_an_interval(ledger, ask, first):
    """Reordered, grown, shrunk or edited: over both runs, however often each instance is tried, never
    more is paid than there are map indexes. What only moved or was added is complete in the end.
    """
    for second in ("".join(row) for n in (1, 2, 3) for row in permutations("ABC", n)):

        def asks(contents, interval=f"{first} {second}"):
            got = set()
            for number, content in enumerate(contents):
                with contextlib.suppress(RetryConflict):
                    words = {"run_identity": interval, "family": content}
                    ask.reserve(ledger, content, "0.001", slot=f"{interval}/{number}", **words)
                    got.add(content)
            return got

        assert asks(first) == set(first)
        for _ in range(3):
            got = asks(second)
            assert asks(first) == set(first)
        paid = ledger.releases_by_name("flights", "n", ("dag", f"{first} {second}"))
        assert len(paid) <= max(len(first), len(second))
        if set(first) <= set(second):
            assert got == set(second)
        elif len(second) <= len(first):
            assert len(paid) == len(first)
    assert ledger.verify().ok


def test_a_refusal_says_what_changed(ledger, ask):
    """Parameters by name, never their values; the declaration where the request reads the same."""
    asked = {
        "name": "n",
        "mechanism": "count",
        "params": {"by": "age", "epsilon": "0.1"},
        "table": "visits",
    }
    other = asked | {"where": "age > 77", "params": {"epsilon": "0.2", "by": "age"}}
    ask.reserve(ledger, "A", slot="one/-1", family="A", request=asked)
    with pytest.raises(RetryConflict, match=r"changed: parameter epsilon, where\)") as refusal:
        ask.reserve(ledger, "B", "0.2", slot="one/-1", family="B", request=other)
    assert "77" not in str(refusal.value) and "revision" not in str(refusal.value)
    with pytest.raises(RetryConflict, match="changed: the declaration of table visits"):
        ask.reserve(ledger, "B", slot="one/-1", family="B", request=asked)
    with pytest.raises(RetryConflict, match=r"changed: ordinal\)"):
        ask.reserve(ledger, "A", slot="one/-1", family="B", ordinal=1, request=asked)


def test_many_are_reserved_and_settled_whole(ledger, ask):
    """All of a batch, or none; each has its key, its entry and its result; the batch again is free."""
    asks = [ReleaseCharge(ask.key(f"d{n}"), **ask.terms("0.3")) for n in range(4)]
    with pytest.raises(BudgetExceeded):
        ledger.reserve_many(asks)
    assert ask.spent(ledger) == {"": "0"} and ledger.releases() == []
    held = ledger.reserve_many([asks[0], *asks[:3]])
    assert held[0] == held[1] and len({one.release_id for one in held}) == 3
    assert ask.spent(ledger) == {"": "0.9"}
    ledger.settle(held[1], {"value": "first"})
    results = [(one, {"value": n}, f"rows {n}") for n, one in enumerate(held[1:])]
    settled = ledger.settle_many(results, principal="p")
    assert [one.result["value"] for one in settled] == ["first", 1, 2]
    with pytest.raises(InvalidInput, match="no release 'feed'"):
        ledger.settle_many([(held[1], {}, None), (Reservation("feed", 1, False), {}, None)])
    assert ledger.reserve_many(asks[:3]) == settled and ask.spent(ledger) == {"": "0.9"}
    kinds = [entry.kind for entry in ledger.history()]
    assert kinds == ["grant", "refuse", *["reserve"] * 3, *["settle"] * 3] and ledger.verify().ok


def test_a_batch_with_many_terms_charges_each_budget_by_all_of_them(ledger, ask):
    """Charges on equal terms share a bill, others do not; a refusal names what is left after those
    before it.
    """
    ledger.quota("flights/a", "0.5", 0, principal="owner")
    terms = [("flights/a", "0.1"), ("flights/a", "0.1"), ("flights/a", "0.2"), ("flights", "0.1")]
    asks = [
        ReleaseCharge(replace(ask.key(str(n)), scope=scope), **ask.terms(epsilon))
        for n, (scope, epsilon) in enumerate(terms)
    ]
    held = ledger.reserve_many(asks)
    assert [len(one.release_id) for one in held] == [16] * 4
    assert len({one.release_id for one in held}) == 4
    assert ask.spent(ledger) == {"": "0.5"}
    assert ledger.remaining("flights/a").rows()[0]["epsilon_spent"] == "0.4"
    more = [replace(one, key=replace(one.key, task_id="more")) for one in asks[:2]]
    with pytest.raises(BudgetExceeded, match="epsilon 0.1 is asked, 0 of 0.5 is left") as caught:
        ledger.reserve_many(more)
    assert caught.value.scope == "flights/a"
    assert ask.spent(ledger) == {"": "0.5"} and ledger.verify().ok


def test_a_snapshot_is_a_text(ledger, ask):
    """A number stood in the row as a text and in the history as a number: no later verification
    passed.
    """
    held = ask.reserve(ledger)
    for snapshot in (7, b"x", "", "x" * 201):
        with pytest.raises(InvalidInput, match="a snapshot must be"):
            ledger.settle(held, {}, snapshot=snapshot)
    ledger.settle(held, {}, snapshot="7")
    assert ledger.verify().ok


def test_slots_are_unambiguous():
    """Scope a with name b:c is not scope a:b with name c."""
    assert make_slot("a", "b:c#1") != make_slot("a:b", "c#1")


def test_another_mechanism_version_keeps_the_release_of_its_slot(ledger, ask):
    """Where only the digest differs, the slot's release is the one it paid for."""
    first = ask.reserve(ledger, "v1", family="F", slot="one/-1")
    assert ask.reserve(ledger, "v2", family="F", slot="one/-1").release_id == first.release_id
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


def test_a_release_pays_for_no_other_privacy_cost(ledger, ask):
    """A mechanism version that costs more must not take over what was charged for less."""
    ask.reserve(ledger, "old", family="F", slot="one/-1")
    with pytest.raises(RetryConflict, match="released something else"):
        ask.reserve(ledger, "new", "0.9", family="F", slot="one/-1")
    assert ask.spent(ledger) == {"": "0.1"}


def test_resolve_closes_an_orphan(ledger, ask):
    """After an owner's decision the late settle is discarded, later tries are refused, and the
    charge stays.
    """
    orphan = ask.reserve(ledger)
    ledger.resolve(orphan.release_id, reason="host lost", principal="owner")
    with pytest.raises(RetryConflict, match="discarded"):
        ledger.settle(orphan, {"value": 1})
    with pytest.raises(RetryConflict, match="closed by an owner"):
        ask.reserve(ledger)
    assert ask.spent(ledger) == {"": "0.1"}
    assert ledger.history()[-1].body["reason"] == "host lost"


def test_resolve_may_let_a_retry_go_on(ledger, ask):
    """With decision retry the orphan is fenced and a new try settles the same reservation."""
    orphan = ask.reserve(ledger)
    ledger.resolve(orphan.release_id, reason="zombie", principal="owner", decision="retry")
    retry = ask.reserve(ledger)
    with pytest.raises(RetryConflict, match="fenced"):
        ledger.settle(orphan, {"value": 1})
    assert ledger.settle(retry, {"value": 2}).result == {"value": 2}
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


def test_only_orphans_can_be_resolved(ledger, ask):
    """A settled release is beyond an owner's decision."""
    done = ledger.settle(ask.reserve(ledger), {"value": 1})
    with pytest.raises(InvalidInput, match="is settled; only a reserved one"):
        ledger.resolve(done.release_id, reason="no", principal="owner")


def test_invented_reservations_settle_nothing(ledger, ask):
    """A reservation or attempt that the ledger never gave out is refused."""
    real = ask.reserve(ledger)
    with pytest.raises(InvalidInput, match="no release 'feed'"):
        ledger.settle(Reservation("feed", 1, False), {})
    with pytest.raises(RetryConflict, match="discarded"):
        ledger.settle(Reservation(real.release_id, 7, False), {})


def test_equal_asks_at_once_pay_once(ledger, ask):
    """A zombie and its retry in two threads share one charge and see one result."""
    with ThreadPoolExecutor(8) as pool:
        got = list(
            pool.map(
                lambda n: ledger.settle(ask.reserve(ledger), {"value": n}).result["value"], range(8)
            )
        )
    assert len(set(got)) == 1
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


def test_every_entry_names_its_principal(ledger, ask):
    """Each verb writes down whose act it was: not who opened or reserved first, but who did this."""
    ledger.quota("flights/team", "0.5", 0, principal="owner 2")
    ask.reserve(ledger, principal="ann", slot="one")
    ask.reserve(ledger, principal="bob", slot="two")
    ledger.settle(ask.reserve(ledger, principal="eve"), {"value": 1}, principal="eve")
    ledger.settle(ask.reserve(ledger, "quiet", principal="ann"), {"value": 1})
    orphan = ask.reserve(ledger, "orphan", principal="ann")
    ledger.resolve(orphan.release_id, reason="lost", principal="owner 3")
    held = ledger.open_session(
        ask.key("gate"), **ask.terms(principal="ann"), state={"v": 0}, exclusive=False
    )
    ledger.answer(
        held.session_id, query="q", expected_version=0, state={}, answer={}, principal="bob"
    )
    ledger.answer_batch(held.session_id, {"r": {}}, expected_version=1, state={}, principal="eve")
    ledger.answer(held.session_id, query="s", expected_version=2, state={}, answer={})
    ledger.record("contract", {"ok": True}, principal="checker")
    assert [(entry.kind, entry.principal) for entry in ledger.history()] == [
        ("grant", "owner"), ("grant", "owner 2"), ("reserve", "ann"), ("join", "bob"), ("retry", "bob"), ("retry", "eve"),
        ("settle", "eve"), ("reserve", "ann"), ("settle", "ann"), ("reserve", "ann"), ("resolve", "owner 3"),
        ("session", "ann"), ("answer", "bob"), ("answer", "eve"), ("answer", "ann"), ("contract", "checker"),
    ]  # fmt: skip
    assert ledger.verify().ok


@pytest.mark.parametrize("nobody", ["a\nb", "x" * 201, 7])
def test_an_act_of_nobody_is_refused(ledger, ask, nobody):
    """A principal is a printable name wherever one is given; nothing is recorded otherwise."""
    held = ledger.open_session(ask.key("gate"), **ask.terms(), state={"v": 0}, exclusive=False)
    reserved, before = ask.reserve(ledger), len(ledger.history())
    acts = [
        lambda: ledger.grant("flights", 2, 0, table=None, filter="basic", principal=nobody),
        lambda: ledger.quota("flights/a", 1, 0, principal=nobody),
        lambda: ask.reserve(ledger, "new", principal=nobody),
        lambda: ledger.settle(reserved, {}, principal=nobody),
        lambda: ledger.resolve(reserved.release_id, reason="r", principal=nobody),
        lambda: ledger.open_session(
            ask.key("h"), **ask.terms(principal=nobody), state={}, exclusive=False
        ),
        lambda: ledger.answer(
            held.session_id, query="q", expected_version=0, state={}, answer={}, principal=nobody
        ),
        lambda: ledger.answer_batch(
            held.session_id, {"q": {}}, expected_version=0, state={}, principal=nobody
        ),
        lambda: ledger.record("contract", {}, principal=nobody),
    ]
    for act in acts:
        with pytest.raises(InvalidInput, match="a principal must be a text"):
            act()
    assert len(ledger.history()) == before and ledger.verify().ok


def test_releases_are_found_by_name(ledger, ask):
    """By the whole name, quotes and all, in a scope; those of one run alone if asked."""
    names = ["look", "look", "look 2", 'lo"ok', "lo_k", "%"]
    for number, name in enumerate(names):
        ask.reserve(
            ledger,
            f"d{number}",
            run_identity=f"o{number}",
            request={"name": name, "mechanism": "m"},
        )
    found = {
        name: [one.request["name"] for one in ledger.releases_by_name("flights", name)]
        for name in [*names, "loo"]
    }
    assert found == {name: [name] * names.count(name) for name in found}
    assert len(ledger.releases_by_name("flights", "look", ("dag", "o1"))) == 1
    assert (
        ledger.releases_by_name("flights", "look", ("dag", "o5"))
        == ledger.releases_by_name("other", "look")
        == []
    )
