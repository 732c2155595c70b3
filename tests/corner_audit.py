"""Requests at corners of declarations, through a database: refused for every table or answered for every
table, and answered exactly.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from corner_tables import FORMS, Corner, Form, Store
from twin_tables import seal

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import MAX_MAGNITUDE
from dpflow.core.contract.requests import (
    CellGrid,
    CountedSums,
    GroupedSums,
    GroupEstimates,
    GroupMoments,
    GroupValues,
    KeySets,
    Records,
    SortedValues,
    UnboundedValues,
    UnitScores,
    UnitSizes,
)
from dpflow.core.contract.squares import Square
from dpflow.errors import DpflowError
from dpflow.tables.private import PrivateTable
from dpflow.testing.reference_sums import grid_value

SECRET, GROUPS = b"0123456789abcdef", 3
EXPRESSIONS = (
    *("avg(x)", "sum(x)", "min(x)", "var_samp(x)", "stddev_pop(x)", "corr(x, y)", "sum(x * y)"),
    *("avg(x + y)", "avg(abs(-x))", "max(bucket(x, 7))", "regr_slope(x, y)", "covar_pop(x, y)"),
    *("sum(x) FILTER (WHERE bucket(x, 3) <= x)", "count(DISTINCT x)", "quantile_cont(x, 0.3)"),
)
CONDITIONS = (
    "x + 1 > 0",
    "x * x >= 0",
    "x % 7 = 0",
    "abs(x) >= 0",
    "bucket(x, 1000) < x",
    "-x < 1",
)
GRIDS = [(e, 0) for e in (None, -1000, -3, 0, 62, 63, 126, 127, 1000)] + [(0, 1), (63, 2**70)]
#: Parts of a corner's questions, of which a sample asks one.
PARTS = 9

#: The values of a table's rows, on the grid.
Steps = Sequence[int | None]


@dataclass
class Findings:
    """What an audit saw.

    Attributes:
        answered, refused: numbers of requests, over all tables.
        problems: what was wrong, in words.
    """

    answered: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """Something asked of each table of a corner.

    Attributes:
        check: refuses it by the catalog alone.
        ask: answers it, and says what is wrong with the answer; "" if nothing is.
        where: a condition.
    """

    name: str
    check: Callable[[PrivateTable], None]
    ask: Callable[[PrivateTable, Steps], str]
    where: str | None = None


def audit_corner(
    corner: Corner, store: Store, part: int | None = None, form: str = "own"
) -> Findings:
    """Ask every question of every table of a corner.

    Args:
        part: only three tables and a few questions, others for each number.
        form: one of `FORMS`. Where sums are cached, each question is asked twice.
    """
    where_it_is = FORMS[form]
    tables, questions = list(corner.tables()), list(list_questions(corner, where_it_is))
    if where_it_is.cached != "off":
        questions = [question for question in questions if "sums" in question.name]
    if part is not None:
        tables = [tables[0], tables[1 + part % (len(tables) - 1)], tables[-1]]
        questions = questions[part % PARTS :: PARTS]
    relations = {}
    for i, values in enumerate(tables):
        own, other = where_it_is.relations(corner, values)
        relations |= {f"t{i}": own} | ({} if other is None else {f"o{i}": other})
    places = store(relations)
    findings = Findings()
    outcomes: dict[str, Counter[str]] = {}
    for i, values in enumerate(tables):
        declaration = where_it_is.declare(corner, places[f"t{i}"], f"o{i}")
        column = declaration.column(f"{where_it_is.prefix}x")
        steps = [grid_value(number, column) for _, number in values]
        by_condition: dict[str | None, list[Question]] = {}
        for question in questions:
            by_condition.setdefault(question.where, []).append(question)
        times = 1 if where_it_is.cached == "off" else 2
        for where, asked_together in list(by_condition.items()) * times:
            private = PrivateTable(declaration, where, seal if times > 1 else None)
            with private.hold_open():
                for question in asked_together:
                    words = f"{corner.name}: {form}: {[text for text, _ in values]}"
                    outcome = _ask_question(question, private, steps, findings, words)
                    outcomes.setdefault(question.name, Counter())[outcome] += 1
    for name, counted in outcomes.items():
        if len(counted) > 1:
            findings.problems.append(f"{corner.name}: {form}: {name}: outcomes {dict(counted)}")
    return findings


def _ask_question(
    question: Question, private: PrivateTable, steps: Steps, findings: Findings, words: str
) -> str:
    try:
        question.check(private)
    except DpflowError as refusal:
        findings.refused += 1
        return f"refused: {type(refusal).__name__}"
    findings.answered += 1
    try:
        problem = question.ask(private, steps)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        findings.problems.append(f"{words}: {question.name}: {problem}")
    return "answered"


def list_questions(corner: Corner, form: Form) -> Iterator[Question]:
    """Every kind of request, on a corner's column."""
    low, high = corner.low, corner.high
    x, y = f"{form.prefix}x", f"{form.prefix}y"

    def plain(name: str, request: Any, compare: Callable[[Any, Steps], str]) -> Question:
        def ask(table: PrivateTable, steps: Steps) -> str:
            return compare(table.answer(request, form.blocks), steps)

        return Question(name, _checker(request, form), ask)

    def rename(text: str) -> str:
        return re.sub(r"\b([xy])\b", rf"{form.prefix}\1", text)

    for centre in dict.fromkeys((low, high, (low + high) // 2)):
        summed = GroupedSums(values=((x, centre),))
        yield plain(f"sums around {centre}", summed, _sum_comparison(x, centre))
        reach = max(high - centre, centre - low, 1)
        for kind, square in (
            ("squares", Square(x, centre, 5)),
            ("coarse squares", Square.fit(x, centre, reach)),
        ):
            squares = GroupedSums(squares=(square,))
            name = f"sums of {kind} around {centre}"
            yield plain(name, squares, _sum_comparison(x, centre, square))
    middle = (low + high) // 2
    both = {"values": ((x, middle), (y, low)), "squares": (Square(x, middle, 0),)}
    for name, request in {
        "grouped": GroupedSums("k", ("a", "b"), values=((x, low),)),
        "grouped, of one group": GroupedSums("k", ("a", "b"), 1, values=((x, high),)),
        "by private key": GroupedSums("p", None, 1, values=((x, low),)),
        "of several rows": GroupedSums(rows_per_group=3, values=((x, middle),)),
        "of several columns": GroupedSums(**both),
    }.items():
        yield plain(f"sums {name}", request, _total_comparison(request))
    for name, values in {
        "values": SortedValues(x, 1),
        "values, 3 rows": SortedValues(x, 3),
        "values, many rows": SortedValues(x, 2000),
        "values by key": SortedValues(x, 2, "k", ("a", "b"), 1),
    }.items():
        yield plain(name, values, _compare_values)
    yield plain("records", Records((x, y), 2), _record_comparison((x, y)))
    yield plain("key sets", KeySets("p"), lambda *_: "")
    yield plain("unit sizes", UnitSizes(("p", "k")), lambda *_: "")
    for name, unbounded in {
        "open": UnboundedValues(x),
        "open by key": UnboundedValues(x, "k", ("a", "b"), 1, 2),
    }.items():
        yield Question(name, _checker(unbounded, form), _ask_open(unbounded))
    groups = GroupValues(GROUPS, (x, y))
    yield Question(
        "group values",
        _checker(groups, form),
        lambda t, _: _bad_numbers(t, t.grouped_rows(groups, SECRET, ())[1]),
    )
    yield Question(
        "unit scores",
        _checker(UnitScores((x,)), form),
        lambda t, _: _bad_numbers(t, t.unit_rows((x,), ())[1]),
    )
    for skips in (False, True):
        yield _ask_units(x, form, skips)
    for measures in (("n", "x", "xx"), ("n", "xy", "yy", "equal")):
        yield _ask_moments(GroupMoments(GROUPS, (x, y), measures), form)
    for text in EXPRESSIONS:
        yield _ask_estimate(rename(text), form)
    for condition in CONDITIONS:
        counted = plain(f"sums where {condition}", GroupedSums(), lambda *_: "")
        yield replace(counted, where=rename(condition))


def _checker(request: Any, form: Form) -> Callable[[PrivateTable], None]:
    return lambda table: table.check_request(request, form.blocks)


def _square(square: Square, value: int) -> int:
    """A term by its definition, in fractions."""
    near = _round_half_up(Fraction(abs(value - square.centre), 2**square.drop))
    return _round_half_up(Fraction(near**2, 2**square.shift)) - square.half


def _round_half_up(number: Fraction) -> int:
    return math.floor(number + Fraction(1, 2))


def _sum_comparison(
    x: str, centre: int, square: Square | None = None
) -> Callable[[Any, Steps], str]:
    """Compares a sum around a centre, or a sum of squares."""

    def compare(groups: Any, steps: Steps) -> str:
        present = [value for value in steps if value is not None]
        terms = [v - centre if square is None else _square(square, v) for v in present]
        moment = "sum" if square is None else "square"
        got = [groups.rows[0], groups.units[0], groups.moment(moment, x)[0]]
        expected = [len(steps), len(steps), min(max(sum(terms), -MAX_MAGNITUDE), MAX_MAGNITUDE)]
        return "" if list(map(int, got)) == expected else f"{got}, not {expected}"

    return compare


def _total_comparison(request: GroupedSums) -> Callable[[Any, Steps], str]:
    """Compares the total of sums by group."""
    (x, centre), *_ = request.values

    def compare(groups: Any, steps: Steps) -> str:
        present = [value for value in steps if value is not None]
        got = sum(map(int, groups.sums[x])), sum(map(int, groups.counts[x]))
        expected = sum(value - centre for value in present), len(present)
        return "" if got == expected else f"{got}, not {expected}"

    return compare


def _compare_values(answer: Any, steps: Steps) -> str:
    got = Counter()
    for value, number in zip(answer.values.tolist(), answer.counts.tolist()):
        got[value] += number
    expected = Counter(value for value in steps if value is not None)
    return "" if got == expected else f"{dict(got)}, not {dict(expected)}"


def _record_comparison(columns: Sequence[str]) -> Callable[[Any, Steps], str]:
    def compare(answer: Any, steps: Steps) -> str:
        expected = sorted((value, value) for value in steps if value is not None)
        got = sorted(zip(*(answer.columns[name].tolist() for name in columns)))
        return "" if got == expected else f"{got}, not {expected}"

    return compare


def _ask_open(request: UnboundedValues) -> Callable[[PrivateTable, Steps], str]:
    def ask(table: PrivateTable, steps: Steps) -> str:
        with table.open_answer(request, ()) as column:
            rows = column.rows.tolist()
            column.sample_values(2)
            if (units := column.count_units()) > len(steps):
                return f"{units} units, not {len(steps)}"
            assert column.public_size is None or column.public_size
            for exponent, trim in GRIDS:
                codes = range(len(rows))
                bins = column.count_cells({c: CellGrid(exponent, trim) for c in codes})
                for code in codes:
                    left = max(0, rows[code] - 2 * trim)
                    if int(bins[code].counts.sum()) != left:
                        return f"cells of 2^{exponent} without {trim}: {bins[code].counts}, not {left} of {rows}"
        return ""

    return ask


def _ask_units(x: str, form: Form, skips: bool) -> Question:
    """How many units holdout groups are made of, and sums beside that number."""
    counted = CountedSums(values=((x, 0),))

    def ask(table: PrivateTable, steps: Steps) -> str:
        for columns in ((), (x,)):
            units = table.grouped_units(columns, form.blocks, skips_missing=skips)
            if not units.doubt and units.number != len(steps):
                return f"{units.number} units, not {len(steps)}"
        table.answer(counted, form.blocks)
        return ""

    return Question(f"units, missing ones skipped: {skips}", _checker(counted, form), ask)


def _bad_numbers(table: PrivateTable, columns: Mapping[str, Any]) -> str:
    for name, array in columns.items():
        column: Column = table.declaration.column(name)
        assert column.lower is not None and column.upper is not None
        numbers = np.asarray(array, float)
        numbers = numbers[~np.isnan(numbers)]
        if ((numbers < float(column.lower)) | (numbers > float(column.upper))).any():
            return f"{numbers} outside the bounds"
    return ""


def _ask_moments(request: GroupMoments, form: Form) -> Question:
    def check(table: PrivateTable) -> None:
        if not table.can_sum_exactly(request):
            raise DpflowError("moments are not asked of these bounds")
        table.check_request(request, form.blocks)

    def ask(table: PrivateTable, steps: Steps) -> str:
        answer = table.group_moments(request, SECRET, ())
        present = [value for value in steps if value is not None]
        size = float(table.declaration.column(request.columns[0]).step)
        totals = {"n": len(present), "equal": len(present), "x": sum(present) * size}
        for name in {*totals} & {*request.measures}:
            if not np.isclose(answer[name].sum(), totals[name]):
                return f"{name}: {answer[name]}, not {totals[name]}"
        return ""

    return Question(f"moments {request.measures}", check, ask)


def _ask_estimate(text: str, form: Form) -> Question:
    request = GroupEstimates(GROUPS, text)

    def ask(table: PrivateTable, steps: Steps) -> str:
        numbers = table.group_estimates(request, SECRET, ())
        return "" if numbers.shape == (GROUPS,) else f"{numbers}"

    return Question(text, _checker(request, form), ask)
