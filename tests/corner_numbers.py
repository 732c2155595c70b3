"""Released numbers against the error that they state, at corners of declarations and through a database.

Each table repeats a corner's values, so that its true numbers are known. A release is drawn often from
one answer, and a number misses where the truth is outside its half-width at 95 %, or its rank outside
what its remark says.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fractions import Fraction
from functools import cache
from itertools import count, product
from math import isqrt
from typing import Any

from corner_mechanisms import list_mechanisms as _load_mechanisms
from corner_tables import DAY, FORMS, Corner, Number, Store
from scipy.stats import binom

from dpflow.core.contract.results import Row
from dpflow.errors import DpflowError
from dpflow.tables.private import PrivateTable
from dpflow.testing.examples import plan_mechanism
from dpflow.testing.harness import StreamSource
from dpflow.testing.reference_sums import grid_value

#: Draws from one answer, CPU seconds after which there are no more, and rows of the fullest table.
DRAWS, SECONDS, ROWS = 16, 0.05, 60
#: A coin of 5 % shows so many misses with this probability, in what is asked at all corners.
RARE = 1e-9
EPSILONS = ("40", "1")


@dataclass(frozen=True)
class Rows:
    """The rows of a table: each has a unit of its own, and keys a and b in turn.

    Attributes:
        raw: the values as they are.
        steps: the values as they count: clamped and on the grid.
    """

    raw: Sequence[Number]
    steps: Sequence[int | None]
    step: Fraction

    def numbers(self, key: str = "") -> list[Fraction]:
        """Values that are not missing, of one key or of all."""
        chosen = [s for i, s in enumerate(self.steps) if not key or "ab"[i % 2] == key]
        return [one * self.step for one in chosen if one is not None]

    def size(self, key: str = "") -> int:
        """Rows of one key or of all."""
        return sum(not key or "ab"[i % 2] == key for i in range(len(self.steps)))


list_mechanisms = cache(_load_mechanisms)
Truth = Callable[[Rows, Row], Fraction | int | None]


def _count(rows: Rows, row: Row) -> int:
    return rows.size(row.key)


def _units(rows: Rows, row: Row) -> int | None:
    if not row.measure.startswith("units with"):
        return None
    alone = "units with 1 row" if row.key == "" else "units with 1 group"
    return rows.size() if row.measure == alone else 0


def _moment(rows: Rows, row: Row) -> Fraction | int | None:
    """A sum, mean, variance or count of the values, as the measure's name says."""
    numbers = rows.numbers(row.key)
    kind = re.split(r"[( ]", row.measure)[0]
    if kind in ("count", "count_distinct", "rows"):
        return rows.size(row.key)
    if kind == "sum":
        return sum(numbers, Fraction(0))
    if not numbers:
        return None
    mean = sum(numbers, Fraction(0)) / len(numbers)
    if kind == "mean":
        return mean
    return sum((one - mean) ** 2 for one in numbers) / len(numbers) if kind == "variance" else None


def _deviation(rows: Rows, row: Row) -> Fraction | None:
    """The root, to far more digits than a double has."""
    variance = _moment(rows, replace(row, measure="variance"))
    if variance is None:
        return None
    scale = 1 << 400
    return Fraction(isqrt(int(variance * scale * scale)), scale)


def _below(rows: Rows, row: Row) -> Fraction | None:
    try:
        key = Fraction(row.key)
    except ValueError:
        try:
            key = Fraction(date.fromisoformat(row.key).toordinal() - date(1970, 1, 1).toordinal())
        except ValueError:
            return None
    # It counts values beyond the bounds, too.
    numbers = [one for one in rows.raw if one is not None and one == one]
    return Fraction(sum(one < key for one in numbers), len(numbers)) if numbers else None


CASES: Mapping[str, tuple[Mapping[str, Any], Truth]] = {
    "count": ({}, _count),
    "count_distinct": ({}, _count),
    "truncated_count": ({"delta": "1e-6"}, _count),
    "histogram": ({"by": "k"}, _count),
    "sum": ({"column": "x"}, _moment),
    "mean": ({"column": "x"}, _moment),
    "variance": ({"column": "x"}, _moment),
    "standard_deviation": ({"column": "x"}, _deviation),
    "vector_sum": ({"columns": ["x", "y"]}, _moment),
    "aggregates": (
        {
            "by": "k",
            "measures": [
                "count",
                *({"measure": m, "column": "x"} for m in ("sum", "mean", "variance")),
            ],
        },
        _moment,
    ),
    "cdf": ({"column": "x"}, _below),
    "contributions": ({}, _units),
}

#: Mechanisms that say in words how far the rank of a number is off.
RANKS: Mapping[str, Mapping[str, Any]] = {
    "median": {"column": "x"},
    "quantile": {"column": "x", "p": "9/10"},
    "quantiles": {"column": "x", "quantiles": ["1/4", "1/2", "9/10"]},
    # So far inside that 60 rows tell their rank.
    "minimum": {"column": "x", "tail": "0.3"},
    "maximum": {"column": "x", "tail": "0.3"},
}


@dataclass
class Misses:
    """How often numbers missed the truth, by what they are.

    Attributes:
        problems: what cannot be chance, in words.
        refused: plans and requests without an answer.
    """

    drawn: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    refused: int = 0

    def add(self, name: str, hits: Sequence[bool], words: str) -> None:
        """Count the draws of one number of one table."""
        misses = len(hits) - sum(hits)
        if misses and binom.sf(misses - 1, len(hits), 0.05) < RARE:
            self.problems.append(f"{words}: {misses} of {len(hits)} intervals miss")
        self.drawn[name] += len(hits)
        self.missed[name] += misses


def audit_numbers(
    names: Sequence[str], corner: Corner, store: Store, first: int, neighbours: str
) -> Misses:
    """Draw from tables of 0, 1, 3 and 60 rows of a corner, and hold every number against the truth.

    Args:
        first: the first seed; corners take others, so that their misses are independent.
        neighbours: the neighbouring relation.
    """
    misses, texts, seeds = Misses(), corner.values, count(first, 1000)
    tables = [[texts[i % len(texts)] for i in range(n)] for n in (0, 1, 3, ROWS)]
    kinds = {"u": "BIGINT", "k": "VARCHAR", "p": "BIGINT", "b": "DATE"}
    kinds |= {"x": corner.kind, "y": corner.kind}
    contents = {}
    for i, values in enumerate(tables):
        listed = [[str(n), "ab"[n % 2], "0", DAY, text, text] for n, (text, _) in enumerate(values)]
        contents[f"t{i}"] = (kinds, listed)
    places = store(contents)
    for i, values in enumerate(tables):
        declared = FORMS["own"].declare(corner, places[f"t{i}"], "")
        declared = declared.model_copy(update={"neighbours": neighbours})
        column = declared.column("x")
        raw = [number for _, number in values]
        rows = Rows(raw, [grid_value(number, column) for number in raw], Fraction(column.step))
        # Small tables have little that a second epsilon would show.
        for name, epsilon in product(names, EPSILONS if len(values) == ROWS else EPSILONS[:1]):
            params, truth = (RANKS[name], None) if name in RANKS else CASES[name]
            drawn = list(_draw(name, declared, {**params, "epsilon": epsilon}, next(seeds)))
            misses.refused += not drawn
            words = f"{name} at {epsilon}, {neighbours}, {corner.name}: {len(values)} rows"
            # By key and measure; of a release at most eight rows, spread over the keys.
            numbers: dict[tuple[str, str], list[Row]] = {}
            for released in drawn:
                for row in released[:: max(1, len(released) // 8)]:
                    numbers.setdefault((row.key, row.measure), []).append(row)
            for number, draws in numbers.items():
                held = (_holds(rows, row, truth) for row in draws)
                hits = [hit for hit in held if hit is not None]
                misses.add(f"{name} {number[1]}", hits, f"{words}: {number}")
    return misses


def _draw(name: str, table: Any, params: Mapping[str, Any], first: int) -> Iterator[Sequence[Row]]:
    """The rows of up to `DRAWS` releases; nothing where one is refused."""
    mechanism = list_mechanisms()[name]
    try:
        planned, _ = plan_mechanism(mechanism, table, params)
        private = PrivateTable(table)
        request = mechanism.data_request(planned, table)
        private.check_request(request)
    except DpflowError:
        return
    end = time.thread_time() + SECONDS
    with private.hold_open(), private.open_answer(request, ()) as answer:
        for seed in range(DRAWS):
            if seed and time.thread_time() > end:
                return
            yield mechanism.draw(planned, table, answer, StreamSource(first + seed)).rows


def _holds(rows: Rows, row: Row, truth: Truth | None) -> bool | None:
    """Whether the truth is in the interval, or without one the rank of a quantile is where its remark says; None where
    nothing is stated.
    """
    if truth is None:
        stated = re.search(r"its rank among .* is within ([0-9.]+) %", row.remark)
        if row.value is None or stated is None:
            return None
        # A number stands for the step that is nearest to it.
        value = round(Fraction(str(row.value)) / rows.step) * rows.step
        numbers = rows.numbers()
        share = Fraction(stated[1]) / 100
        named = {"median": Fraction(1, 2), "minimum": Fraction(3, 10), "maximum": Fraction(7, 10)}
        level = named.get(row.measure)
        level = Fraction(row.measure.split()[-1]) if level is None else level
        below = Fraction(sum(one < value for one in numbers), max(1, len(numbers)))
        upto = Fraction(sum(one <= value for one in numbers), max(1, len(numbers)))
        return below - share <= level <= upto + share
    if row.value is None or row.half_width_95 is None:
        return None
    expected = truth(rows, row)
    if expected is None:
        # Nothing to be right about: a number of a group without values must not be shown as known.
        return False if truth is _moment and not row.remark else None
    return abs(Fraction(row.value) - expected) <= Fraction(row.half_width_95)
