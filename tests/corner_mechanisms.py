"""Every mechanism at corners of declarations, through a database: a draw never fails, whatever the rows are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from corner_audit import Findings
from corner_tables import Corner, Number, Store

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.sampling.randomness import Source
from dpflow.engine.fail_closed import draw_or_none
from dpflow.errors import DpflowError
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.testing.examples import (
    EXAMPLE_TABLE,
    Example,
    add_computed_columns,
    examples_for,
    plan_mechanism,
    read_examples,
)


def move_bounds(table: Table, corner: Corner, place: Mapping[str, Any]) -> Table:
    """The declaration with every bounded column at the corner."""
    columns = {}
    for name, column in table.columns.items():
        plain = column.model_dump(mode="json", exclude_unset=True)
        columns[name] = plain if column.lower is None else corner.column
    raw = table.model_dump(mode="json", exclude_unset=True)
    raw.pop("database", None)
    return Table.model_validate({**raw, "columns": columns, **place})


def list_mechanisms() -> dict[str, Mechanism[Any]]:
    """Every installed mechanism that answers in one draw."""
    found = Registry.load().mechanisms
    return {name: one for name, one in sorted(found.items()) if isinstance(one, Mechanism)}


def list_examples(mechanism: Mechanism[Any], table: Table) -> Iterator[Example]:
    """The mechanism's own examples, else those of the standard names."""
    try:
        yield from examples_for(mechanism, [table])
    except DpflowError:
        own = read_examples(Registry.load().collect_examples(mechanism.name))
        yield from [replace(one, sides=None) for one in own][:3]


def fill_rows(table: Table, values: Sequence[tuple[str | None, Number]]) -> list[list[str | None]]:
    """Rows of units of their own, with the corner's value in every bounded column."""
    rows = []
    for i, (text, _) in enumerate(values):
        row: list[str | None] = []
        for name, column in table.columns.items():
            keys = column.public_keys
            if column.lower is not None:
                row.append(text)
            elif name == table.privacy_unit.column:
                row.append(str(i))
            else:
                row.append(keys[i % len(keys)] if keys else f"2020-01-0{i + 1}")
        rows.append(row)
    return rows


def audit_mechanism(
    mechanism: Mechanism[Any], corner: Corner, store: Store, most: int | None = None
) -> Findings:
    """Draw once from each of five tables of the corner, for each example that plans there; from three
    for the first ``most`` examples alone.
    """
    findings = Findings()
    declared = move_bounds(EXAMPLE_TABLE, corner, {"database": "t.duckdb"})
    for example in list(list_examples(mechanism, declared))[:most]:
        tables = list(corner.tables())
        tables = (
            [tables[0], tables[2], tables[-1]] if most else [*tables[:3], tables[-3], tables[-1]]
        )
        columns = example.table.columns
        kinds = {n: corner.kind if c.lower is not None else "VARCHAR" for n, c in columns.items()}
        rows = {f"t{i}": (kinds, fill_rows(example.table, v)) for i, v in enumerate(tables)}
        places = store(rows)
        for i, values in enumerate(tables):
            words = f"{mechanism.name} {dict(example.params)} at {corner.name}: {[t for t, _ in values]}"
            _draw_once(mechanism, example, corner, places[f"t{i}"], words, findings)
    return findings


def _draw_once(
    mechanism: Mechanism[Any],
    example: Example,
    corner: Corner,
    place: Mapping[str, Any],
    words: str,
    findings: Findings,
) -> None:
    try:
        moved = replace(example, table=move_bounds(example.table, corner, place))
        table = add_computed_columns(mechanism, moved).table
        params, _ = plan_mechanism(mechanism, table, example.params)
        private = PrivateTable(table)
        request = mechanism.data_request(params, table)
        private.check_request(request)
    except DpflowError:
        findings.refused += 1
        return
    failures: list[str] = []

    def draw(source: Source) -> Any:
        with private.open_answer(request, ()) as answer:
            return mechanism.draw(params, table, answer, source)

    draw_or_none(draw, None, failures)
    findings.answered += 1
    findings.problems += [f"{words}: {failure}" for failure in failures]
