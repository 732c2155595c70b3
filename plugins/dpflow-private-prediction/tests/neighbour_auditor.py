"""An exact privacy audit of one prediction: every neighbour of small tables, every point, no
sampling.

Prediction is (epsilon, delta)-DP when for every point the answer's distribution changes by at most
that between any two neighbouring tables (Dwork and Feldman 2018, Definition 1.2). The auditor is
given the answer's exact distribution as a function of the rows, replaces each row by each
alternative, takes rows away, and reports the worst it finds, with the witness. Randomness that does
not depend on rows (who is in which shard, tie-breakers, seeds) must be the same for both
neighbours: fix it inside ``law``.

It proves nothing about tables it did not see, but a wrong constant, a statistic of the whole table
or an order that rows decide shows on tables of five rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Row = Hashable
Law = Mapping[Any, float]  #: every possible answer with its probability


@dataclass(frozen=True)
class Finding:
    """The worst pair: ``epsilon`` is the max-divergence between the answers at ``point``, infinite
    where one is impossible.
    """

    epsilon: float
    point: Any = None
    rows: tuple[Row, ...] = ()
    neighbour: tuple[Row, ...] = ()

    def keeps_epsilon(self, epsilon: float) -> bool:
        """Whether no pair was further apart than this guarantee, but for rounding."""
        # The rounding of a logarithm is no violation.
        return self.epsilon <= epsilon * (1 + 1e-9) + 1e-12


def max_divergence(p: Law, q: Law, delta: float = 0.0) -> float:
    """The least epsilon with p(S) <= e^epsilon q(S) + delta for all sets S, and with p and q
    exchanged.

    For delta = 0 it is the largest |ln p(x) - ln q(x)|. Otherwise it is found by bisection, to
    1e-9.
    """
    # Without delta the worst set is a single answer, so no search is needed.
    if delta == 0:
        pairs = [(p.get(x, 0.0), q.get(x, 0.0)) for x in {*p, *q}]
        apart = [(a, b) for a, b in pairs if a != b]
        if any(a <= 0 or b <= 0 for a, b in apart):
            return math.inf
        return max((abs(math.log(a) - math.log(b)) for a, b in apart), default=0.0)

    def excess(epsilon: float) -> float:
        sides = ((p, q), (q, p))
        return max(
            sum(max(0.0, a[x] - math.exp(epsilon) * b.get(x, 0.0)) for x in a) for a, b in sides
        )

    low, high = 0.0, 1.0
    if excess(0.0) <= delta:
        return 0.0
    while excess(high) > delta:
        low, high = high, 2 * high
        # e^512 is near the end of the doubles.
        if high > 512:
            return math.inf
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


def list_neighbours(
    rows: Sequence[Row], alternatives: Iterable[Row], relation: Literal["replace", "add-remove"]
) -> Iterator[tuple[Row, ...]]:
    """Tables that differ from this one in one row; under add-remove the last one is gone, which is
    any one by symmetry.
    """
    if relation == "add-remove":
        # By symmetry, removing the last row stands for removing any.
        if rows:
            yield tuple(rows[:-1])
        return
    for other in alternatives:
        for index in range(len(rows)):
            if rows[index] != other:
                yield (*rows[:index], other, *rows[index + 1 :])


def audit_prediction(
    law: Callable[[tuple[Row, ...], Any], Law],
    tables: Iterable[Sequence[Row]],
    alternatives: Sequence[Row],
    points: Sequence[Any],
    *,
    relation: Literal["replace", "add-remove"] = "replace",
    delta: float = 0.0,
) -> Finding:
    """The worst finding over these tables, all their neighbours and these points.

    Args:
        law: the exact distribution of the answer to a point, from the rows.
        tables: base tables; keep them small, ``law`` runs (rows x alternatives x points) times for
        each.
        alternatives: rows that may stand in for another.
        points: query points.
        relation: which tables are neighbours.
        delta: report the epsilon that holds up to this delta.
    """
    worst = Finding(0.0)
    for table in tables:
        rows = tuple(table)
        here = [law(rows, point) for point in points]
        for neighbour in list_neighbours(rows, alternatives, relation):
            for point, p in zip(points, here):
                epsilon = max_divergence(p, law(neighbour, point), delta)
                if epsilon > worst.epsilon:
                    worst = Finding(epsilon, point, rows, neighbour)
    return worst


def largest_move(
    value: Callable[[tuple[Row, ...], Any], float],
    tables: Iterable[Sequence[Row]],
    alternatives: Sequence[Row],
    points: Sequence[Any],
) -> float:
    """The largest |value(S, x) - value(S', x)|: what a claimed stability rate must cover."""
    worst = 0.0
    for table in tables:
        rows = tuple(table)
        here = [value(rows, point) for point in points]
        for neighbour in list_neighbours(rows, alternatives, "replace"):
            worst = max(
                [worst, *(abs(v - value(neighbour, point)) for v, point in zip(here, points))]
            )
    return worst
