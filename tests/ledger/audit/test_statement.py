"""An account statement says after each release what the ledger itself said then."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from html import escape

import pytest
from audit_program import export_text

from dpflow.core.accounting.events import Pure
from dpflow.errors import LedgerCorrupt, UnknownName
from dpflow.ledger.audit import statement as statements
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note


def balances(ledger, scope):
    """What is left, and a unit's total, as the ledger's other verbs say it."""
    rows = ledger.remaining(scope).rows()
    epsilon = min(
        (Decimal(row["epsilon_left"]) for row in rows if row["epsilon_left"]), default=None
    )
    renyi = min((Decimal(row["renyi_left"]) for row in rows if row.get("renyi_left")), default=None)
    return epsilon, renyi


@pytest.mark.parametrize("name", ["basic", "renyi", "hybrid"])
def test_each_line_says_what_was_left(ledger, ask, name):
    """Costs and balances are those of `remaining` right after it, on each path of the filter."""
    scope = f"scope {name}"
    ledger.grant(scope, 2, "1e-6", table=None, filter=name, principal="owner")
    said = [balances(ledger, scope)]
    for number in range(3):
        held = ask.reserve(
            ledger, f"d{number}", scope=scope, event=Pure(Fraction(number + 1, 100)),
            request={"name": f"count {number}", "table": "visits"},
        )  # fmt: skip
        if number != 1:
            ledger.settle(held, {"rows": []})
        said.append(balances(ledger, scope))
    stated = ledger.statement(scope, by="table")
    assert [line.what for line in stated.lines] == ["grant", *["release"] * 3]
    assert [line.name for line in stated.lines[1:]] == [f"count {n}" for n in range(3)]
    assert [line.state for line in stated.lines] == ["", "settled", "reserved", "settled"]
    for line, (epsilon, renyi) in zip(stated.lines, said, strict=True):
        assert (line.left_epsilon == "") == (name == "renyi")
        assert name == "renyi" or Decimal(line.left_epsilon) == epsilon
        assert (line.left_renyi == "") == (name == "basic")
        assert name == "basic" or Decimal(line.left_renyi) == renyi
    (total,) = stated.totals
    assert (total.group, total.releases) == ("visits", 3)
    assert name == "renyi" or total.epsilon == "0.06"
    assert ("two guarantees of one loss" in stated.summary) == (name != "basic")
    proved = ledger.odometer(scope)[""]
    assert 0 <= Fraction(stated.unit_epsilon) - proved.epsilon < Fraction(1, 10**12)


def test_a_unit_in_all_blocks_pays_their_sum(ledger, ask):
    """Each line has the total over the blocks beside the balance of its own."""
    ledger.grant(
        "daily", 1, 0, table=None, filter="basic", protects="x", blocks=True, principal="o"
    )
    for number, blocks in enumerate((["a"], ["b"], ["a", "b"])):
        ask.reserve(ledger, f"d{number}", scope="daily", blocks=blocks)
    lines = ledger.statement("daily").lines[1:]
    assert [(line.blocks, line.left_epsilon, line.unit_epsilon) for line in lines] == [
        ("a", "0.9", "0.1"), ("b", "0.9", "0.2"), ("a,b", "0.8", "0.4"),
    ]  # fmt: skip
    assert ledger.odometer("daily")["*"].epsilon == Fraction("0.4")
    (total,) = ledger.statement("daily").totals
    assert (total.epsilon, total.sum_epsilon, total.releases) == ("0.2", "0.4", 3)
    assert "has paid epsilon 0.4, delta 0 in all" in ledger.statement("daily").summary


def test_a_period_and_its_groups(ledger, ask):
    """What came before counts in balances and is in no line or total; quotas are part of a scope."""
    ledger.quota("flights/a", "0.5", 0, principal="owner")
    ask.reserve(ledger, "before", principal="ann")
    since = ledger.history(limit=1)[0].seq + 1
    ask.reserve(ledger, "one", scope="flights/a", principal="bob")
    ask.reserve(ledger, "two", principal="bob")
    until = ledger.history(limit=1)[0].seq
    stated = ledger.statement("flights", since=since, until=until, by="principal")
    assert [(line.scope, line.left_epsilon) for line in stated.lines] == [("flights/a", "0.8")]
    assert [(t.group, t.releases, t.epsilon) for t in stated.totals] == [("bob", 1, "0.1")]
    assert ledger.statement("flights", by="dag").totals[0].group == "dag"
    assert len(ledger.statement("flights/a").lines) == 2
    with pytest.raises(UnknownName):
        ledger.statement("nobody")


def lose_most(ledger, ask):
    """One charge of .1 that is not settled, and a recovery by a checkpoint that had .7."""
    ask.reserve(ledger, "one")
    point = Checkpoint.parse(open_note(ledger.checkpoint(), [ledger.signer.public_text])[0])
    spent = tuple((s, b, replace(c, epsilon=7 * 10**11)) for s, b, c in point.spent)
    lost = ledger.signer.sign(replace(point, size=99, head="1" * 64, spent=spent).text)
    ledger.recover(reason="host lost", principal="owner", checkpoint=lost)


def test_what_a_recovery_took_over_is_a_line(ledger, ask):
    """Its total has the sums of the checkpoint, nothing is left of what it closed, and what it fenced is fenced."""
    lose_most(ledger, ask)
    lines = ledger.statement("flights").lines
    assert [line.what for line in lines] == ["grant", "release", "recovery"]
    assert (lines[2].left_epsilon, lines[2].unit_epsilon, lines[2].name) == (
        "0",
        "0.7",
        "host lost",
    )
    assert lines[1].state == "fenced"
    totals = ledger.statement("flights").totals
    assert [(one.group, one.releases, one.epsilon) for one in totals][-1] == (
        "lost entries",
        0,
        "0.6",
    )


def test_a_report_says_what_a_recovery_took_over(ledger, ask):
    """The sums in all are those of the ledger; what was fenced does not run; terms that were stated are grants."""
    lose_most(ledger, ask)
    page = ledger.report("flights")[0]
    (row,) = re.findall(r"<tr><td>all rows</td>(.*?)</tr>", page)
    assert row.count("<td>0.7</td>") == 2
    assert "orphan" not in page and "from the checkpoint of entry 99 by" in page
    later = ledger.report("flights", since=ledger.history(limit=1)[0].seq)[0]
    (row,) = re.findall(r"<tr><td>all rows</td>(.*?)</tr>", later)
    assert "<td>0.6</td>" in row and "<td>0.7</td>" in row


def test_what_lost_entries_charged_is_in_no_total(ledger, ask, place):
    """After a loss that closed the scope: nothing is left, and each total says that it may be too small, for ever."""
    ask.reserve(ledger, "one")
    early = ledger.checkpoint()
    point = Checkpoint.parse(open_note(early, [ledger.signer.public_text])[0])
    ledger.recover(
        reason="disk", principal="owner",
        checkpoint=ledger.signer.sign(replace(point, size=99, head="1" * 64).text),
    )  # fmt: skip
    stated = ledger.statement("flights")
    assert stated.lines[-1].left_epsilon == "0" and not stated.is_whole
    assert "has paid at least epsilon 0.1" in stated.summary
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    stated = ledger.statement("flights")
    assert stated.lines[-1].left_epsilon == "0.9" and "at least" in stated.summary
    assert ledger.has_recovered()
    page = ledger.report("flights")[0]
    for text in (str(ledger.verify()), " ".join(stated.remarks), page):
        assert "entries were lost before entry" in text


def test_periods_of_one_block_are_added_up(ledger, ask, monkeypatch):
    """The people of a quota that refreshes lose in each month what they lose in all."""
    ledger.grant("s", 10, 0, table=None, filter="basic", principal="o")
    ledger.quota("s/q", "0.1", 0, period="month", principal="o")
    for month in ("08", "09", "10"):
        at = dt.datetime.fromisoformat(f"2099-{month}-02T00:00:00+00:00").timestamp()
        monkeypatch.setattr(chain.time, "time", lambda at=at: at)
        ask.reserve(ledger, f"in {month}", scope="s/q", principal="ann")
    ledger.quota("s/q", "0.2", 0, principal="o")
    stated = ledger.statement("s/q", by="principal")
    assert [(t.group, t.epsilon) for t in stated.totals] == [("ann", "0.3")]
    assert [line.left_epsilon for line in stated.lines] == ["0.1", "0", "0", "0", "0.1"]
    page = ledger.report("s/q")[0]
    assert "<td>ann</td><td>3</td><td>0.3</td>" in page
    (row,) = re.findall(r"<tr><td>all rows</td>(.*?)</tr>", page)
    assert row.count("<td>0.3</td>") == 2


def test_a_page_of_a_restored_copy_begins_with_not_verified(ledger, ask):
    """It is no success of a nightly job either."""
    ask.reserve(ledger, "one")
    point = Checkpoint.parse(open_note(ledger.checkpoint(), [ledger.signer.public_text])[0])
    other = ledger.signer.sign(replace(point, size=99, head="1" * 64).text)
    page, checked = ledger.report("flights", checkpoints=[other])
    assert not checked.ok and "NOT verified: " in page and "was verified" not in page
    assert page.index("NOT verified") < page.index("From the first entry")


def test_a_page_says_what_nobody_signed_and_who_may(ledger, ask, monkeypatch):
    """And what else verification warns of, such as clocks that went back."""
    ann, bob = Signer.create("ann"), Signer.create("bob")
    terms = {"table": None, "filter": "basic", "principal": "login"}
    keys = [ann.public_text, bob.public_text]
    told = ledger.grant("signed", 1, 0, signers=keys, signer=ann, approvals=2, **terms)
    ledger.approve("signed", told.seq, principal="login", signer=bob)
    ask.reserve(ledger, "one")
    monkeypatch.setattr(chain.time, "time", lambda: 10**9)
    ask.reserve(ledger, "two")
    remarks = ledger.verify().remarks
    assert "self-declared" in remarks[0] and "warning: time goes back" in " ".join(remarks)
    stated = ledger.statement("flights")
    assert stated.remarks == remarks
    page = ledger.report("flights")[0]
    assert all(escape(remark) in page for remark in remarks)
    assert "self-declared</td>" in ledger.report("flights")[0]
    page = ledger.report("signed")[0]
    conditions = f"2 approvals; signers ann+{ann.number.hex()}, bob+{bob.number.hex()}"
    assert f"<td>{conditions}</td><td>bob</td><td>signed</td>" in page
    assert f"filter basic; {conditions}; signed" in page


def test_scopes_that_pay_for_one_table_are_named(ledger, ask):
    """Whoever may grant can make another scope: its charges are in no sum of the first."""
    for scope in ("visits2", "beside"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", principal="mallory")
    ask.reserve(ledger, "one", data=["table t"])
    ask.reserve(ledger, "two", scope="visits2", data=["table t"])
    ask.reserve(ledger, "three", scope="beside", data=["table u"])
    sentence = "scopes flights and visits2 pay for the same data"
    report = ledger.verify()
    assert report.ok and sentence in str(report) and "beside" not in str(report)
    assert sentence in " ".join(ledger.statement("flights").remarks)
    assert sentence in ledger.report("flights")[0]


def test_forms_agree_and_are_safe(ledger, ask):
    """CSV, JSON and HTML hold the same lines; a name is text in each; no form holds a result."""
    held = ask.reserve(ledger, "one", request={"name": 'a <b>, "c"'})
    ledger.settle(held, {"rows": ["marzipan"]})
    stated = ledger.statement("flights")
    buffer = io.StringIO()
    csv.writer(buffer).writerows(stated.csv_rows())
    rows = list(csv.DictReader(io.StringIO(buffer.getvalue())))
    assert [row["name"] for row in rows] == ["", 'a <b>, "c"']
    assert rows[1] == {name: str(value) for name, value in stated.to_json()["lines"][1].items()}
    page = ledger.report("flights")[0]
    assert "a &lt;b&gt;, &quot;c&quot;" in page and "<b>," not in page
    assert "marzipan" not in page + buffer.getvalue() + str(stated.to_json())
    assert "marzipan" in export_text(ledger)


def test_nothing_is_stated_that_does_not_verify(ledger, place, ask):
    ask.reserve(ledger, "one")
    place.sql("UPDATE dpflow_account SET epsilon = 1")
    with pytest.raises(LedgerCorrupt):
        place.open().statement("flights")


@pytest.mark.parametrize(
    ("units", "digits", "text"),
    [(0, 12, "0"), (1, 18, "0.000000000000000001"), (15 * 10**11, 12, "1.5"), (10**13, 12, "10")],
)
def test_amounts_are_decimals_without_exponent(units, digits, text):
    assert statements._decimal(units, digits) == text
