"""A session whose source lacks what its questions read is refused before it is charged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from dpflow import Ledger, Session, open_predictions, plan
from dpflow.core.accounting.events import Unprotected
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow.engine.planning.precheck import SOURCE_AWAY, find_source_fault, forecast
from dpflow.engine.releases.plan import Plan
from dpflow.errors import DpflowError, PlanRefused, TableUnreadable, UnknownName
from dpflow.registry import Registry
from dpflow.testing.examples import (
    EXAMPLE_TABLE,
    Example,
    add_computed_columns,
    examples_for,
    plan_mechanism,
    read_examples,
)

if TYPE_CHECKING:
    from smallworld import Tiny

REGISTRY = Registry.load()
SESSIONS = sorted(
    name for name, one in REGISTRY.mechanisms.items() if isinstance(one, InteractiveMechanism)
)


def find_example(name: str) -> Example:
    """The first example: its own, or one of the standard names."""
    mechanism = REGISTRY.mechanisms[name]
    own = read_examples(REGISTRY.collect_examples(name))
    example = own[0] if own else examples_for(mechanism, [EXAMPLE_TABLE])[0]
    computed = add_computed_columns(mechanism, example)
    _, event = plan_mechanism(mechanism, computed.table, example.params)
    if not isinstance(event, Unprotected):
        return example
    return replace(example, table=example.table.model_copy(update={"generalisation_only": True}))


def list_faults(table: Table, turn: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the source, and in which column: every second one is away, or every first."""
    yield from (("file", ""), ("relation", ""))
    listed = [table.privacy_unit.column, table.block, *table.columns]
    for number, name in enumerate(dict.fromkeys(name for name in listed if name is not None)):
        # A text that is no key may be of any type.
        column = table.columns.get(name, Column())
        used = name in (table.privacy_unit.column, table.block)
        is_missing = (number + turn) % 2 == 0 or (
            not used and column.lower is None and column.public_keys is None
        )
        yield "missing" if is_missing else "type", name
    # Last: a gate that is open closes its data to others.
    yield "nothing", ""


def write_source(table: Table, fault: str, of: str) -> None:
    """Fill the table's file, less what is at fault."""
    table.database.unlink(missing_ok=True)
    if fault == "file":
        return
    listed = []
    for name in dict.fromkeys([table.privacy_unit.column, table.block, *table.columns]):
        if name is None or (fault, of) == ("missing", name):
            continue
        declared = table.columns.get(name)
        bounded = declared is not None and declared.lower is not None
        kind = "BIGINT" if bounded else "VARCHAR"
        kind = "INTEGER[]" if (fault, of) == ("type", name) else kind
        listed.append(f'CAST(NULL AS {kind}) AS "{name}"')
    relation = "another" if fault == "relation" else table.relation_name
    with duckdb.connect(str(table.database)) as connection:
        connection.execute(f'CREATE TABLE "{relation}" AS SELECT {", ".join(listed)}')


def open_door(planned: Plan, ledger: Ledger, example: Example) -> None:
    """Open the session, and ask it what needs no candidate."""
    if isinstance(planned.mechanism, PredictionMechanism):
        return open_predictions(planned, ledger).learn_models()
    session = Session.open(planned, ledger, REGISTRY)
    for query in example.queries[:2]:
        try:
            session.ask(dict(query))
        except PlanRefused as error:
            assert "hand one to ask" in str(error)
    return None


@pytest.mark.parametrize("name", SESSIONS)
def test_what_a_source_lacks_is_never_charged(name: str, tmp_path: Path) -> None:
    """Of file, relation and each declared column: with any of them away or of another type, a session is
    refused and nothing is charged, or no question misses it.
    """
    example = find_example(name)
    table = example.table.model_copy(update={"database": tmp_path / "t.duckdb"})
    unit = table.privacy_unit.column
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=tmp_path / "anchor")
    scope = {"filter": "basic", "table": table, "principal": "owner", "confirm_large": True}
    ledger.grant("s", 10**4, 0.1, **scope)
    blocks = ["2020-01-01"] if table.protects == "unit-block" else None
    refused = set[str]()
    for revision, (fault, of) in enumerate(list_faults(table, SESSIONS.index(name)), 1):
        write_source(table, fault, of)
        terms: dict[str, Any] = {"name": "x", "scope": "s", "blocks": blocks, "revision": revision}
        planned = plan(name, table, **terms, **example.params)
        charged = len(ledger.releases())
        try:
            open_door(planned, ledger, example)
        except DpflowError as error:
            assert len(ledger.releases()) == charged, f"charged without {fault} {of}: {error}"
            refused.add(f"{fault} {of}".strip())
    assert refused >= {"file", "relation"} and "nothing" not in refused
    assert {f"missing {unit}", f"type {unit}"} & refused


def test_a_block_and_a_metric_are_checked_too(tiny: Tiny) -> None:
    """What a block's column cannot hold, and a metric's SQL that reads what is not declared, are refused
    before the charge; the forecast says it first.
    """
    ledger = Ledger(tiny.ledger)
    terms: dict[str, Any] = {"name": "watch", "scope": "visits", "epsilon": "0.25"}
    watch = plan("above_threshold", tiny.folder / "visits.yml", blocks=["tomorrow"], **terms)
    with pytest.raises(PlanRefused, match="tomorrow"):
        find_source_fault(watch)
    with pytest.raises(PlanRefused, match="tomorrow"):
        Session.open(watch, ledger, REGISTRY)
    tiny.database.unlink()
    watch = plan("above_threshold", tiny.folder / "visits.yml", blocks=["2020-01-01"], **terms)
    assert SOURCE_AWAY in forecast(watch, ledger, REGISTRY)
    with pytest.raises(TableUnreadable):
        Session.open(watch, ledger, REGISTRY)
    assert ledger.releases() == []


def test_a_metric_of_an_unknown_column_is_not_charged(tmp_path: Path) -> None:
    """A gate whose SQL reads a column that is not declared could answer nothing."""
    example = find_example("gate")
    table = example.table.model_copy(update={"database": tmp_path / "t.duckdb"})
    write_source(table, "nothing", "")
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=tmp_path / "anchor")
    ledger.grant("s", 10, 0.1, filter="basic", table=table, principal="owner", confirm_large=True)
    metric = {
        "estimator": {"sql": "avg(nothing)", "range": [0, 1], "default": 0, "better": "higher"}
    }
    with pytest.raises(UnknownName, match="nothing"):
        planned = plan("gate", table, name="x", scope="s", **{**example.params, "metric": metric})
        Session.open(planned, ledger, REGISTRY)
    assert ledger.releases() == []
