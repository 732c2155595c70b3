"""Every mechanism at corners of declarations, through a database: a draw never fails, and the class of
its outcome (numbers, texts, none) depends on rows no more than its guarantee allows.

Draws of one table replay the same streams of random words as those of another. How often each class
comes is bounded from both sides, and a table's bound is held against the other's times e^epsilon, plus
delta, for as many units as the tables differ in.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import exp
from typing import Any

import numpy as np
from corner_audit import Findings
from corner_tables import Corner, Number, Store

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import NONE, Result
from dpflow.errors import DpflowError
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.testing.audit import RARE, clopper_pearson
from dpflow.testing.backend_relations import Content
from dpflow.testing.examples import (
    EXAMPLE_TABLE,
    Example,
    add_computed_columns,
    examples_for,
    plan_mechanism,
    read_examples,
)
from dpflow.testing.harness import StreamSource, epsilon_delta

#: Draws of each table, so many that one class on one table and another one on another are told apart;
#: and CPU seconds after which there are no more.
DRAWS, SECONDS = 48, 0.1
#: At so small an epsilon, classes may differ hardly at all.
EPSILON = "0.01"
Values = Sequence[tuple[str | None, Number]]


def move_bounds(
    table: Table, corner: Corner, place: Mapping[str, Any], label: str | None = None
) -> Table:
    """The declaration with every bounded column at the corner, except for a label of rows."""
    columns = {}
    for name, column in table.columns.items():
        plain = column.model_dump(mode="json", exclude_unset=True)
        moves = column.lower is not None and name != label
        columns[name] = corner.column | {"public": column.public} if moves else plain
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


def fill_table(table: Table, corner: Corner, values: Values, label: str | None) -> Content:
    """Rows of units of their own, with the corner's value in every bounded column but the label."""
    bounded = [n for n, c in table.columns.items() if c.lower is not None and n != label]
    kinds = dict.fromkeys([*table.columns, table.privacy_unit.column], "VARCHAR")
    kinds |= dict.fromkeys(bounded, corner.kind) | ({label: "SMALLINT"} if label in kinds else {})
    rows: list[list[str | None]] = []
    for i, (text, _) in enumerate(values):
        row: dict[str, str | None] = {}
        for name in kinds:
            keys = table.columns[name].public_keys if name in table.columns else None
            row[name] = keys[i % len(keys)] if keys else f"2020-01-0{i + 1}"
        row |= dict.fromkeys(bounded, text) | {table.privacy_unit.column: str(i)}
        row |= {label: str(i % 2)} if label in kinds else {}
        rows.append([*row.values()])
    return kinds, rows


@dataclass
class Outcomes:
    """What one table showed.

    Attributes:
        refusal: the class of the error before the charge; "" if there was none.
        classes: how often each class of outcome came.
    """

    values: Values
    refusal: str = ""
    classes: Counter[Any] = field(default_factory=Counter)


def audit_mechanism(mechanism: Mechanism[Any], corner: Corner, store: Store, part: int) -> Findings:
    """Draw from three tables of the corner: the empty one, the fullest, and one between.

    Args:
        part: with which of the mechanism's examples to begin, and which table is between; an example
            whose plan or request is refused makes room for the next one.
    """
    findings = Findings()
    declared = move_bounds(EXAMPLE_TABLE, corner, {"database": "t.duckdb"})
    examples = list(list_examples(mechanism, declared))
    start = part % max(1, len(examples))
    for example in [*examples[start:], *examples[:start]]:
        planned = _plan_at(mechanism, example, corner, {"database": "t.duckdb"})
        if planned is None:
            findings.refused += 1
            continue
        tables = list(corner.tables())
        tables = [tables[0], tables[1 + part % (len(tables) - 2)], tables[-1]]
        label = example.params.get("label")
        contents = [fill_table(example.table, corner, values, label) for values in tables]
        places = store({f"t{i}": content for i, content in enumerate(contents)})
        seen = []
        for i, values in enumerate(tables):
            planned = _plan_at(mechanism, example, corner, places[f"t{i}"])
            assert planned is not None, "a plan does not depend on where rows are"
            outcomes, failures = _draw_often(mechanism, planned, values)
            words = f"{_name(mechanism, example, corner)}: {[text for text, _ in values]}"
            findings.problems += [f"{words}: {failure}" for failure in failures]
            findings.answered += not outcomes.refusal
            findings.refused += bool(outcomes.refusal)
            seen.append(outcomes)
        epsilon, delta = epsilon_delta(planned.event)
        replaces = planned.table.neighbours == "replace"
        for one, other in permutations(seen, 2):
            if problem := compare_classes(one, other, epsilon, delta, replaces=replaces):
                findings.problems.append(f"{_name(mechanism, example, corner)}: {problem}")
        if findings.answered:
            break
    return findings


def _name(mechanism: Mechanism[Any], example: Example, corner: Corner) -> str:
    return f"{mechanism.name} {dict(example.params)} at {corner.name}"


@dataclass(frozen=True)
class _Planned:
    table: Table
    params: Any
    event: Any


def _plan_at(
    mechanism: Mechanism[Any], example: Example, corner: Corner, place: Mapping[str, Any]
) -> _Planned | None:
    """A plan at the smaller epsilon, else at the example's own; None where neither can be."""
    for params in ({**example.params, "epsilon": EPSILON}, example.params):
        try:
            at_corner = move_bounds(example.table, corner, place, params.get("label"))
            moved = replace(example, table=at_corner, params=params)
            table = add_computed_columns(mechanism, moved).table
            return _Planned(table, *plan_mechanism(mechanism, table, params))
        except DpflowError:
            continue
    return None


def _draw_often(
    mechanism: Mechanism[Any], planned: _Planned, values: Values
) -> tuple[Outcomes, list[str]]:
    """The outcomes of one table, and which errors its draws ended in: those are the class none."""
    outcomes, failures = Outcomes(values), Counter[str]()
    private = PrivateTable(planned.table)
    request = mechanism.data_request(planned.params, planned.table)
    try:
        private.check_request(request)
    except DpflowError as refusal:
        outcomes.refusal = type(refusal).__name__
        return outcomes, []
    end = time.thread_time() + SECONDS
    try:
        with private.hold_open(), private.open_answer(request, ()) as answer:
            for seed in range(DRAWS):
                if seed and time.thread_time() > end:
                    break
                result = NONE
                try:
                    result = mechanism.draw(
                        planned.params, planned.table, answer, StreamSource(seed)
                    )
                except Exception as error:
                    failures[f"{type(error).__name__}: {error}"] += 1
                outcomes.classes[classify_result(result)] += 1
    except Exception as error:
        failures[f"{type(error).__name__}: {error}"] += 1
        outcomes.classes[classify_result(NONE)] += DRAWS
    return outcomes, [f"{text}, in {n} draws" for text, n in failures.items()]


def classify_result(result: Result) -> frozenset[tuple[str, str]]:
    """Which measures it has, and of each whether it is a number, a text or none."""
    return frozenset(
        (
            row.measure,
            "none" if row.value is None else type(row.value).__name__.replace("int", "float"),
        )
        for row in result.rows
    )


def compare_classes(
    one: Outcomes, other: Outcomes, epsilon: float, delta: float, *, replaces: bool
) -> str:
    """What is wrong with the classes of two tables under (epsilon, delta); "" if nothing is."""
    if one.refusal != other.refusal:
        return f"refused as {one.refusal or 'answered'!r} and {other.refusal or 'answered'!r} before the charge"
    sizes = len(one.values), len(other.values)
    if replaces and sizes[0] != sizes[1]:
        return ""
    moved = sum(a != b for a, b in zip(one.values, other.values))
    # A unit with another value is one that left and one that came.
    apart = moved if replaces else 2 * moved + abs(sizes[0] - sizes[1])
    grown = exp(min(apart * epsilon, 50.0))
    loose = delta * sum(exp(min(i * epsilon, 50.0)) for i in range(apart))
    n, m = one.classes.total(), other.classes.total()
    for kind, count in one.classes.items():
        least = float(clopper_pearson(np.array([count]), n, RARE)[0][0])
        most = float(clopper_pearson(np.array([other.classes[kind]]), m, RARE)[1][0])
        if least > grown * most + loose:
            texts = [[text for text, _ in table.values] for table in (one, other)]
            return f"{sorted(kind)} in {count} of {n} draws of {texts[0]}, {other.classes[kind]} of {m} of {texts[1]}"
    return ""
