"""Rows are believed only while they are what the newest entry left: put back, edited or deleted, the
next charge that uses them refuses.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from dpflow.errors import DpflowError, LedgerCorrupt, RetryConflict
from dpflow.ledger.books.records import AnswerRecord
from dpflow.ledger.history import state
from dpflow.ledger.history.checkpoint import Signer
from dpflow.ledger.storage import schema

NIGHTLY = Signer.create("nightly")
INDEXED = [table for table in schema.metadata.sorted_tables if "identity" in table.info]


def test_another_draw_for_the_same_charge_is_refused(ledger, place, ask):
    """A settled release set back to reserved: the same key gave another draw, and it verified."""
    held = ask.reserve(ledger, "paid")
    ledger.settle(held, {"value": 7})
    place.sql("UPDATE dpflow_release SET state = 'reserved', result = NULL, snapshot = NULL")
    with pytest.raises(LedgerCorrupt, match="not what the newest entry"):
        ask.reserve(ledger, "paid")
    place.sql("UPDATE dpflow_release SET result_digest = NULL")
    for settle in (lambda: ask.reserve(ledger, "paid"), lambda: ledger.settle(held, {"value": 8})):
        with pytest.raises(LedgerCorrupt, match="not what the newest entry"):
            settle()


def test_a_balance_set_back_buys_nothing(ledger, place, ask):
    """Sums set to zero, ten more paid, and the sums put right: 2 of 1 were spent, and it
    verified.
    """
    for n in range(10):
        ask.reserve(ledger, f"first {n}")
    place.sql("UPDATE dpflow_account SET epsilon = 0")
    for n in range(10):
        with pytest.raises(LedgerCorrupt, match="dpflow_account is not what"):
            ask.reserve(ledger, f"second {n}")


def test_a_raised_filter_buys_nothing(ledger, place, ask):
    """A filter raised by hand, overspent, and put back."""
    for n in range(10):
        ask.reserve(ledger, f"first {n}")
    place.sql(
        'UPDATE dpflow_scope SET filter = replace(filter, \'"epsilon":"1"\', \'"epsilon":"9"\')'
    )
    with pytest.raises(LedgerCorrupt, match="dpflow_scope is not what"):
        ask.reserve(ledger, "second")


def test_a_fenced_release_stays_so(ledger, place, ask):
    """Opened again by hand, it drew again."""
    held = ask.reserve(ledger, "lost")
    ledger.resolve(held.release_id, reason="lost", principal="owner")
    place.sql("UPDATE dpflow_release SET state = 'reserved', fenced_below = 0")
    for again in (lambda: ask.reserve(ledger, "lost"), lambda: ledger.settle(held, {"value": 1})):
        with pytest.raises(LedgerCorrupt, match="not what the newest entry"):
            again()


def test_an_edited_result_is_not_given_out(ledger, place, ask):
    """The settled result is checked against its sealed digest before it is returned."""
    held = ask.reserve(ledger, "paid")
    ledger.settle(held, {"value": 7})
    place.sql("UPDATE dpflow_release SET result = '{\"value\": 8}'")
    for read in (
        lambda: ask.reserve(ledger, "paid"),
        lambda: ledger.settle(held, {"value": 7}),
        lambda: ledger.release(held.release_id),
        lambda: ledger.find(ask.key("paid")),
    ):
        with pytest.raises(LedgerCorrupt, match="not what this ledger encrypted there"):
            read()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE dpflow_release SET state = 'reserved'",
        "UPDATE dpflow_release SET run_identity = 'other'",
        "UPDATE dpflow_release SET seq = 9, snapshot = 'x'",
        "UPDATE dpflow_release SET request = replace(request, '\"m\"', '\"bounds\"')",
        "put back",
    ],
)
def test_releases_by_name_are_proved(ledger, place, ask, change):
    """Bounds are taken from a release that a name means: an edited row gave other ones."""
    request = {"name": "look", "mechanism": "m"}
    held = ask.reserve(ledger, "paid", request=request)
    with place.intruder() as run:
        names = ", ".join(column.name for column in schema.release.columns)
        (old,) = run(f"SELECT {names} FROM dpflow_release")
        ledger.settle(held, {"value": 7})
        (found,) = ledger.releases_by_name("flights", "look")
        assert found == ledger.release(held.release_id) and found.result == {"value": 7}
        if change == "put back":
            run("DELETE FROM dpflow_release")
            run(f"INSERT INTO dpflow_release ({names}) VALUES ({', '.join('?' * len(old))})", *old)
        else:
            run(change)
    with pytest.raises(LedgerCorrupt, match="dpflow_release is not what"):
        ledger.releases_by_name("flights", "look")
    if "run_identity" not in change:
        with pytest.raises(LedgerCorrupt, match="dpflow_release is not what"):
            ledger.releases_by_name("flights", "look", ("dag", "o"))


def test_what_a_run_has_paid_for_is_proved(ledger, place, ask):
    """A row moved into a run had its precheck pass as paid; one that was deleted is still to pay,
    which its own charge refuses.
    """
    ask.reserve(ledger, "paid", run_identity="o")
    assert ledger.is_paid("flights", "dag", "o", "paid")
    assert not ledger.is_paid("flights", "dag", "p", "paid")
    place.sql("UPDATE dpflow_release SET run_identity = 'p'")
    with pytest.raises(LedgerCorrupt, match="dpflow_release is not what"):
        ledger.is_paid("flights", "dag", "p", "paid")
    place.sql("DELETE FROM dpflow_release")
    assert not ledger.is_paid("flights", "dag", "o", "paid")
    with pytest.raises(LedgerCorrupt, match="dpflow_release is not what"):
        ask.reserve(ledger, "paid", run_identity="o")


def play(ledger: Any, ask: Any, round: int) -> None:
    """Each verb once more; it touches rows of every table."""
    demand = {"witness": NIGHTLY.public_text, "witness_every": 1000}
    ledger.grant("flights", 2 + round, 0, table=None, filter="basic", principal="owner", **demand)
    told = ledger.grant(
        "both", 2 + round, 0, table=None, filter="basic", approvals=2, principal="owner"
    )
    ledger.approve("both", told.seq, principal="other")
    ask.reserve(ledger, "taken over", slot="run/0")
    held = ask.reserve(ledger, f"settled {round}", slot=f"run/1-{round}", data=("table t",))
    ledger.settle(held, {"value": round})
    gate = ledger.open_session(
        ask.key("session"), **ask.terms(slot="run/2"), state={"left": 9}, exclusive=False
    )
    ledger.answer(
        gate.session_id,
        query=f"q{round}",
        expected_version=gate.version,
        state={"left": 8},
        answer={"verdict": "yes"},
    )
    ledger.tell_verdict(gate.session_id, f"q{round}")
    shut = ledger.open_session(
        ask.key(f"gate {round}"),
        **ask.terms(slot=None, data=("table g",)),
        state={},
        exclusive=True,
    )
    ledger.answer(shut.session_id, query="q", expected_version=0, state={}, answer={}, closed=True)


def use(ledger: Any, ask: Any, round: int) -> None:
    """What a charge decides on: each row is of use to one of these."""
    play(ledger, ask, round)
    for n in range(2):
        assert ask.reserve(ledger, f"settled {n}", slot=f"run/1-{n}").settled
        gate = ledger.open_session(
            ask.key(f"gate {n}"),
            **ask.terms(slot=None, data=("table g",)),
            state={},
            exclusive=True,
        )
        assert gate.closed and isinstance(ledger.ask(gate.session_id, "q"), AnswerRecord)
    session = ledger.open_session(
        ask.key("session"), **ask.terms(slot="run/2"), state={}, exclusive=False
    )
    assert len(ledger.answers(session.session_id)) == session.version
    for n in range(2):
        ledger.tell_verdict(session.session_id, f"q{n}")


@pytest.mark.parametrize("change", ["put back", "deleted"])
@pytest.mark.parametrize("table", INDEXED, ids=str)
def test_an_earlier_valid_row_is_not_believed(ledger, place, ask, table, change):
    """Each row of each table, as some earlier entry left it, or gone: what uses it refuses."""
    names = [column.name for column in table.columns]
    key = [names.index(column.name) for column in table.primary_key]
    where = " AND ".join(f"{names[at]} = ?" for at in key)
    insert = f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(names))})"
    play(ledger, ask, 0)
    tried = 0
    with place.intruder() as run:
        read = f"SELECT {', '.join(names)} FROM {table.name}"
        earlier = {tuple(row[at] for at in key): row for row in run(read)}
        play(ledger, ask, 1)
        for at in [tuple(row[at] for at in key) for row in run(read)]:
            # What uses the row may have passed other steps before: read it as it is now.
            (row,) = run(f"{read} WHERE {where}", *at)
            old = earlier.get(at)
            if change == "put back" and old in (None, row):
                continue  # there is no other copy of it
            run(f"DELETE FROM {table.name} WHERE {where}", *at)
            if change == "put back":
                run(insert, *old)
            assert ledger.verify().problems, row
            with pytest.raises(DpflowError) as refusal:
                use(ledger, ask, 2 + tried)
            assert isinstance(refusal.value, LedgerCorrupt), (row, refusal.value)
            run(f"DELETE FROM {table.name} WHERE {where}", *at)
            run(insert, *row)
            assert not ledger.verify().problems, "what a refused charge left behind"
            tried += 1
    expected = {"dpflow_slot": 0, "dpflow_answer": 0, "dpflow_verdict": 0}.get(table.name, 1)
    assert tried >= (expected if change == "put back" else 1)


@pytest.mark.parametrize("change", ["put back", "deleted"])
def test_an_earlier_node_is_not_believed(ledger, place, ask, change):
    """The index is no better guarded than the rows: its root is."""
    with place.intruder() as run:
        (old,) = run("SELECT prefix, body FROM dpflow_node WHERE prefix = ''")
        ask.reserve(ledger, "next")
        run("DELETE FROM dpflow_node WHERE prefix = ''")
        if change == "put back":
            run("INSERT INTO dpflow_node VALUES (?, ?)", *old)
    with pytest.raises(LedgerCorrupt, match="dpflow_node is not what"):
        ask.reserve(ledger, "last")
    assert ledger.verify().problems


def test_a_refusal_on_a_false_row_is_no_refusal(ledger, place, ask):
    """A row that would have a charge refused is named as what it is, not as a lack of budget."""
    ask.reserve(ledger, "first", slot="run/0")
    with pytest.raises(RetryConflict):
        ask.reserve(ledger, "changed", "0.2", slot="run/0")
    place.sql("UPDATE dpflow_account SET epsilon = 1000000000000")
    with pytest.raises(LedgerCorrupt, match="dpflow_account is not what"):
        ask.reserve(ledger, "second")
    demand = {"witness": NIGHTLY.public_text, "witness_every": 3}
    ledger.grant("watched", 1, 0, table=None, principal="owner", **demand)
    place.sql("UPDATE dpflow_witness SET charges = 3")
    with pytest.raises(LedgerCorrupt, match="dpflow_witness is not what"):
        ask.reserve(ledger, "third", scope="watched")


class Memory:
    """The nodes of a trie without a database."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}

    def rows(self, statement: Any, rows: list[dict[str, str]]) -> list[Any]:
        names = [row["prefix"] for row in rows]
        return [statement.row(name, self.nodes[name]) for name in names if name in self.nodes]

    def many(self, statement: Any, rows: list[dict[str, str]]) -> None:
        self.nodes |= {row["prefix"]: row["body"] for row in rows}


def test_the_root_depends_on_the_items_alone():
    """In whatever order and in however many steps items come and change, root and nodes are those
    of all of them at once.
    """
    draw, memory, root = random.Random(3), Memory(), state.EMPTY_ROOT
    items: dict[str, str] = {}
    for _ in range(60):
        books = state.LedgerState(memory, root)
        for _ in range(draw.choice([1, 1, 5, 60])):
            name = draw.choice([*items, None, None]) or f"{draw.getrandbits(256):064x}"
            # Some share many digits, so that branches have only one child.
            name = "0000" + name[4:] if draw.random() < 0.3 else name
            books._reads[name] = items.get(name), "test"
            items[name] = books._writes[name] = f"{draw.getrandbits(256):064x}"
        # Reads are of before this step: what was written twice is read as it was then.
        paths = {n: state.LedgerState(memory, root)._load_paths([n])[n] for n in books._writes}
        books._reads = {name: (state.find_digest(path, name), "t") for name, path in paths.items()}
        root = books.store_root()
        nodes: dict[str, str] = {}
        whole = state.build_nodes(
            sorted(name + digest for name, digest in items.items()), nodes.__setitem__
        )
        assert root == whole and nodes == memory.nodes


def test_names_cannot_be_taken_for_lists(ledger, ask):
    """A block called like a scope, in a scope called like the list of all blocks, stood in the
    place of that scope's list: no first charge to that scope ever passed.
    """
    ledger.grant("all", 1, 0, table=None, filter="basic", protects="u", blocks=True, principal="o")
    ask.reserve(ledger, "first", scope="all", blocks=["flights", "all"])
    ask.reserve(ledger, "second")
    assert ask.spent(ledger) == {"": "0.1"} and not ledger.verify().problems


def test_many_new_blocks_are_listed_once(ledger, ask, monkeypatch):
    """Each new block digested the whole list: 4,000 in one charge took 24 CPU seconds, while
    everybody waited.
    """
    ledger.grant("b", 1, 0, table=None, filter="basic", protects="u", blocks=True, principal="o")
    digest, calls = state.RowIndex.digest_list, []

    def counts(form: Any, rows: Any) -> Any:
        calls.append(form)
        return digest(form, rows)

    monkeypatch.setattr(state.RowIndex, "digest_list", counts)
    blocks = [f"block {n}" for n in range(50)]
    ask.reserve(ledger, "many", scope="b", blocks=blocks)
    assert len(calls) <= 2  # as it was, and as it is now
    assert ask.spent(ledger, "b") == dict.fromkeys(blocks, "0.1") and not ledger.verify().problems


def test_a_new_block_proves_no_others_sums(ledger, place, ask, monkeypatch):
    """Each first charge proved every row of its scope: 0.76 CPU seconds behind 20,000 blocks or periods, while
    everybody waited. Who is in the list is proved still, and so is every sum that is read.
    """
    ledger.grant("b", 1, 0, table=None, filter="basic", protects="u", blocks=True, principal="o")
    digest, calls = state.RowIndex.digest_rows, []

    def count(form: Any, rows: Any) -> Any:
        calls.append(form)
        return digest(form, rows)

    monkeypatch.setattr(state.RowIndex, "digest_rows", count)
    counts = []
    for n in range(12):
        calls.clear()
        ask.reserve(ledger, str(n), "0.5", scope="b", blocks=[f"block {n}"])
        counts.append(len(calls))
    assert counts[1:] == [counts[1]] * 11
    row = "WHERE scope = 'b' AND block = 'block 3'"
    place.sql(f"UPDATE dpflow_account SET epsilon = 0 {row}")
    ask.reserve(ledger, "beside it", scope="b", blocks=["block 12"])
    for read in (
        lambda: ledger.remaining("b"),
        lambda: ask.reserve(ledger, "of it", scope="b", blocks=["block 3"]),
    ):
        with pytest.raises(LedgerCorrupt, match="dpflow_account is not what"):
            read()
    assert ledger.verify().problems
    place.sql(f"DELETE FROM dpflow_account {row}")
    with pytest.raises(LedgerCorrupt, match="dpflow_account is not what"):
        ask.reserve(ledger, "new", scope="b", blocks=["block 13"])


EDITS = {
    "request": "UPDATE dpflow_release SET request = replace(request, 'n', 'm')",
    "name": "UPDATE dpflow_release SET name = 'n' WHERE name <> 'n'",
    "scope": "UPDATE dpflow_scope SET protects = 'nobody'",
    "paid": "UPDATE dpflow_release SET digest = 'unpaid' WHERE name = 'n'",
}


@pytest.mark.parametrize("edit", EDITS)
def test_lists_hold_no_edited_row(ledger, place, ask, edit):
    """Lists of releases and scopes were given out as they were found, and republished so."""
    ask.reserve(ledger, "d", request={"name": "n", "epsilon": "0.1"})
    ask.reserve(ledger, "e", request={"name": "other"})
    place.sql(EDITS[edit])
    lists = {
        "request": lambda: ledger.releases("flights"),
        "name": lambda: ledger.releases_by_name("flights", "n"),
        "scope": ledger.scopes,
        "paid": lambda: ledger.is_paid("flights", "dag", "o", "unpaid"),
    }
    with pytest.raises(LedgerCorrupt, match="not what the newest entry"):
        lists[edit]()


def test_a_list_shows_what_its_transaction_changed(ledger, ask):
    """A list that was read before a change gave the sums as they were then; those of the rows not
    so.
    """
    ask.reserve(ledger, "first", "0.2")
    (before,) = ask.spent(ledger).values()
    with ledger._begin_writing() as writer:
        rows = writer.state.list_rows(schema.account, "flights")
        row = writer.state.find(schema.account, scope="flights", block="")
        changed = writer.state.update(schema.account, row, epsilon=row.epsilon + 1)
        assert writer.state.list_rows(schema.account, "flights") == [changed] != rows
        writer.state.update(schema.account, changed, epsilon=row.epsilon)
        assert writer.state.list_rows(schema.account, "flights") == rows
    assert ask.spent(ledger) == {"": before} and not ledger.verify().problems
