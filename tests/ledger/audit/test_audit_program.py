"""The audit program of docs/how-to/operate-the-ledger.md: it computes what dpflow computes, in its own
words, and goes on through a recovery.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from audit_program import export_text, load_program, run_audit

from dpflow.core.accounting import events
from dpflow.core.accounting.events import (
    ZCDP,
    Approximate,
    BoundedRange,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Pure,
    Repeated,
    SparseVector,
    Unprotected,
)
from dpflow.core.accounting.privacy_filters import Cost, Filter, make_filter
from dpflow.ledger import Ledger
from dpflow.ledger.books import charges
from dpflow.ledger.history.chain import Writer
from dpflow.ledger.history.checkpoint import Signer, parse_note


@pytest.fixture(scope="module")
def costs() -> Iterator[Any]:
    """Its module of costs, with its decimal context."""
    with load_program() as modules:
        yield modules["costs"]


third = Fraction(1, 3)
EVENTS: list[Event] = [
    Pure(Fraction("1e-12")),
    Pure(third),
    Pure(Fraction(40)),
    SparseVector(Fraction("0.7")),
    BoundedRange(Fraction("0.01")),
    BoundedRange(Fraction(9)),
    Approximate(third, Fraction("1e-7")),
    DiscreteLaplace(Fraction(7), 3),
    DiscreteLaplace(Fraction("0.1"), 1),
    Unprotected(),
    Composed((Pure(third), Approximate(third, Fraction("1e-9")), DiscreteLaplace(Fraction(9)))),
    Repeated(Composed((Pure(third), BoundedRange(third))), 17),
]
NO_EPSILON: list[Event] = [
    ZCDP(Fraction("0.01"), Fraction("1e-8")),
    DiscreteGaussian(Fraction("12.5"), third),
    Composed((Pure(third), ZCDP(third))),
]
FILTERS = [
    make_filter("basic", Fraction(1), Fraction("1e-6")),
    make_filter("renyi", Fraction(2), Fraction("1e-6"), tail_share=Fraction(1, 3)),
    make_filter("hybrid", Fraction("0.5"), Fraction("1e-9"), tail_share=Fraction(1, 7)),
    Filter("hybrid", Fraction(3), Fraction("1e-6"), Fraction(5, 2), Fraction("1e-7")),
    Filter("renyi", Fraction("0.01"), Fraction("1e-6"), Fraction(3), Fraction("1e-7")),
    make_filter("basic", Fraction(1), Fraction(0)),
]


def test_every_cost_is_computed_to_the_unit(costs: Any) -> None:
    """For every kind of event and every filter, from the texts that the history holds."""
    kinds, compared = set(), 0
    for rule in FILTERS:
        assert costs.capacity(rule.to_json()) == [*vars(rule.capacity()).values()]
        for event in EVENTS + (NO_EPSILON if rule.order is not None else []):
            kinds.add(event.kind)
            if event.rho_delta()[1] and rule.delta == rule.tail_delta:
                continue  # this grant pays no delta of a mechanism
            ours = rule.event_cost(event)
            assert costs.least_cost(events.to_json(event), rule.to_json()) == [
                *vars(ours).values()
            ], (event, rule)
            compared += 1
    assert kinds == set(events._KINDS) and compared > 60


CHEAPER = {
    "epsilon": ("basic", lambda cost: Cost(cost.epsilon // 2, cost.delta, cost.renyi)),
    "delta": ("basic", lambda cost: Cost(cost.epsilon, cost.delta - 1, cost.renyi)),
    "Renyi divergence": ("hybrid", lambda cost: Cost(cost.epsilon, cost.delta, cost.renyi - 1)),
    "a path": ("renyi", lambda cost: Cost(0, cost.delta, 0)),
}


@pytest.mark.parametrize("what", CHEAPER)
def test_a_charge_below_its_events_cost_is_found(tmp_path, ask, monkeypatch, what):
    """A ledger that was made to charge one unit less on one path, though it sealed it."""
    name, cheaper = CHEAPER[what]
    ledger = Ledger(tmp_path / "l.sqlite", anchor=tmp_path / "anchor", create=True)
    ledger.grant("s", 9, "1e-5", table=None, filter=name, tail_share="0.5", principal="o")
    event = Approximate(Fraction("0.1"), Fraction("1e-7"))
    ask.reserve(ledger, "right", scope="s", event=event)
    assert run_audit(export_text(ledger), tmp_path).returncode == 0
    sum_costs = charges._sum_costs

    def pay_less(row: Any, paid: Any) -> Any:
        scope, cost = sum_costs(row, paid)
        return scope, cheaper(cost)

    monkeypatch.setattr(charges, "_sum_costs", pay_less)
    ask.reserve(ledger, "wrong", scope="s", event=event)
    monkeypatch.undo()
    done = run_audit(export_text(ledger), tmp_path)
    assert "less than it costs" in done.stderr and done.returncode
    assert "charges less than its event costs" in str(ledger.verify())


def test_a_grant_that_holds_more_than_it_says_is_found(tmp_path, monkeypatch):
    """Its Renyi path, too, which only logarithms tell."""
    ledger = Ledger(tmp_path / "l.sqlite", anchor=tmp_path / "anchor", create=True)
    add_entry = Writer.add_entry

    def more(writer: Any, kind: str, scope: str, name: str, principal: str, body: Any) -> None:
        epsilon, delta, divergence, tail = body["capacity"]
        body = body | {"capacity": [epsilon, delta, divergence + 1, tail]}
        add_entry(writer, kind, scope, name, principal, body)

    monkeypatch.setattr(Writer, "add_entry", more)
    ledger.grant("s", 1, "1e-6", table=None, filter="hybrid", principal="o")
    done = run_audit(export_text(ledger), tmp_path)
    assert "another capacity than it grants" in done.stderr and done.returncode
    assert "another capacity than it grants" in str(ledger.verify())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda rule: rule | {"version": 2}, "filter.version"),
        (lambda rule: rule | {"period": "year"}, "filter.period"),
        (lambda rule: rule | {"later": 1}, "filter.later"),
        (lambda rule: {n: v for n, v in rule.items() if n != "delta"}, "filter.delta"),
        (lambda rule: rule | {"tail_delta": "1e-7"}, "filter"),
    ],
)
def test_a_field_that_it_does_not_know_is_named(place, tmp_path, change, field) -> None:
    """Of a later version, or of a period that no ledger has."""
    ledger = place.open()
    with ledger._begin_writing() as writer:
        rule = change(make_filter("basic", Fraction(1), Fraction(0)).to_json())
        text = json.dumps(rule, sort_keys=True, separators=(",", ":"))
        body = {"filter": text, "protects": "", "blocks": 0, "capacity": [10**12, 0, -1, -1]}
        writer.add_entry("grant", "s", "", "owner", body)
    ended = run_audit(export_text(ledger), tmp_path)
    assert ended.returncode == 1
    assert f"entry 1 (grant) breaks a rule: its {field} is missing, unknown" in ended.stderr
    header, rest = export_text(ledger).split("\n", 1)
    later = header.replace('"schema":"1"', '"schema":"2"')
    assert later != header
    ended = run_audit(f"{later}\n{rest}", tmp_path)
    assert "no export that this program reads: its schema" in ended.stderr


def test_only_checkpoints_by_named_keys_are_compared(ledger, ask, tmp_path):
    """What no named key signed, and what is no checkpoint, stops with a sentence; each other is named with its entry."""
    ask.reserve(ledger, "one")
    early, key = ledger.checkpoint(), ledger.signer.public_text
    point = parse_note(early)
    ask.reserve(ledger, "two")
    export = export_text(ledger)
    done = run_audit(export, tmp_path, early, keys=[key])
    assert done.returncode == 0, done.stderr
    assert "checkpoint of entry 2 by" in done.stderr and "1 entries behind it" in done.stderr
    stranger, sign = Signer.create("stranger"), ledger.signer.sign
    spent = tuple((s, b, replace(c, epsilon=9 * 10**11)) for s, b, c in point.spent)
    for note, keys, sentence in (
        (early, [], "no key that was named signed note-0.txt"),
        (stranger.sign(point.text), [key], "no key that was named signed"),
        (sign(replace(point, spent=spent).text), [key], "less is spent than note-0.txt says"),
        (sign(replace(point, ledger_id="b" * 16).text), [key], "does not extend note-0.txt"),
        (sign(replace(point, size=1).text), [key], "does not extend note-0.txt"),
        ("4 00ff\n", [key], "note-0.txt is no checkpoint"),
        ("", [key], "note-0.txt is no checkpoint"),
        (sign("no checkpoint\nx\n"), [key], "note-0.txt is no checkpoint"),
    ):
        done = run_audit(export, tmp_path, note, keys=keys)
        assert done.returncode == 1 and sentence in done.stderr, (sentence, done.stderr)
        assert "Traceback" not in done.stderr and "all within" not in done.stderr


def test_the_checkpoint_of_a_recovery_is_compared(ledger, ask, tmp_path):
    """Its entries are gone; the recovery says that it took their sums over."""
    ask.reserve(ledger, "one")
    point, key = parse_note(ledger.checkpoint()), ledger.signer.public_text
    spent = tuple((s, b, replace(c, epsilon=7 * 10**11)) for s, b, c in point.spent)
    lost = ledger.signer.sign(replace(point, size=99, head="1" * 64, spent=spent).text)
    ledger.recover(reason="host lost", principal="owner", checkpoint=lost)
    assert ledger.verify(since=lost).ok
    alone = run_audit(export_text(ledger), tmp_path)
    assert "name its file" in alone.stderr and "sums may be too small" in alone.stderr
    done = run_audit(export_text(ledger), tmp_path, lost, keys=[key])
    assert done.returncode == 0 and "taken over" in done.stderr and "name its" not in done.stderr
    more = tuple((s, b, replace(c, epsilon=8 * 10**11)) for s, b, c in point.spent)
    other = ledger.signer.sign(replace(point, size=99, head="1" * 64, spent=more).text)
    assert "less is spent" in run_audit(export_text(ledger), tmp_path, other, keys=[key]).stderr
