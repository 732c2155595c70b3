"""Calculators: sample sizes, radii of truncated noise, and facts about public columns."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, model_validator

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import SystemSource
from dpflow_interior_point import CITATION
from dpflow_interior_point.building_blocks import row_counts
from dpflow_interior_point.building_blocks.stage_costs import COUNTING, GroupShare
from dpflow_interior_point.building_blocks.truncated_noise import (
    TruncatedDelta,
    TruncatedNoiseLaw,
    count_noise,
    pair_radius,
    scalar_radius,
    simple_radius,
)
from dpflow_interior_point.theory import public_columns

Count = Annotated[int, Field(ge=1, le=10**9)]
Values = Annotated[list[FiniteFloat], Field(min_length=1, max_length=10**6)]
Share = Annotated[float, Field(gt=0, lt=1)]


class NoiseParams(Params):
    """``epsilon``, ``delta``: the privacy cost. ``neighbours``: replace or add-remove. ``rows``: of
    one unit.
    """

    epsilon: Epsilon = Fraction(1)
    delta: TruncatedDelta = Fraction(1, 10**6)
    neighbours: Literal["replace", "add-remove"] = "replace"
    rows: Count = 1

    @property
    def exchange(self) -> bool:
        """Whether units are replaced."""
        return self.neighbours == "replace"


class InteriorRowsParams(NoiseParams):
    """As `NoiseParams`. ``alpha``: of the median. ``q``, ``p2``:
    the numbers of a distribution of your own, from public data (the largest mass of a class [2^j,
    2^(j+1)) of |x - x'|, the second largest of a cell of that width). ``c``, ``beta``: normalised
    variance and failure probability of the proved numbers of rows.
    """

    alpha: Exact = Fraction(1, 4)
    q: Share | None = None
    p2: Share | None = None
    c: Annotated[float, Field(ge=1, le=1e9)] = math.pi / 2
    beta: Share = 0.05

    @model_validator(mode="after")
    def _check_ranges(self) -> InteriorRowsParams:
        if not 0 < self.alpha < Fraction(1, 2):
            raise ValueError("alpha must lie strictly between 0 and 1/2, such as 0.25")
        if (self.q is None) != (self.p2 is None):
            raise ValueError("q and p2 belong together; give both or neither")
        return self


def show_interior_rows(params: InteriorRowsParams) -> Sheet:
    """Rows that a median or interior point of a column without a known range needs.

    One row per distribution; proved sample sizes are in the notes.
    """
    share = GroupShare(params.epsilon, params.delta, params.exchange, params.rows)
    # A median trims by the number of rows, which only replaced units of one row make public.
    counted = (
        share
        if params.exchange and params.rows == 1
        else share.take_share(1 - COUNTING, Fraction(1))
    )
    pairs, cells = share.stage_noise(None)
    median = row_counts.rows_for_median(
        *counted.stage_noise(None, sliced=True), params.alpha, params.alpha / 4
    )
    shapes = dict(row_counts.SHAPES)
    if params.q is not None and params.p2 is not None:
        shapes = {"yours": (params.q, params.p2)}
    rows = [
        (name, row_counts.rows_needed(pairs, cells, q, p2), median)
        for name, (q, p2) in shapes.items()
    ]
    c, beta = params.c, params.beta
    proved = row_counts.proved_rows_for_point(pairs, cells, c, beta)
    largest = row_counts.proved_rows_for_largest(pairs, cells, c, beta)
    scale = row_counts.proved_rows_for_scale(share.pair_noise(), c, beta)
    middle = row_counts.proved_rows_for_median(
        *counted.stage_noise(None, sliced=True), c, beta, float(params.alpha)
    )
    notes = (
        "planned rows: about 95 % of the releases answer (measured); the median's number supposes continuous data",
        f"proved for every distribution of normalised variance {c:.3g}, failure {beta:g}: interior point {proved}, with rule "
        f"largest {largest}, first moment within (1/8, {46 * c:.0f}) times {scale}",
        f"proved for the median, if the middle {float(2 * params.alpha):g} of the distribution has that variance: {middle}",
    )
    return Sheet(
        ("distribution", "interior point", "median"),
        tuple(rows),
        notes,
    )


def show_truncated_noise(params: NoiseParams) -> Sheet:
    """The radius of truncated Laplace noise, exact and as formulas in circulation have it.

    One row per formula: its radius, and the share of delta that it spends.
    """
    e, d, k = params.epsilon, params.delta, params.rows
    noise = count_noise(e, d, k, exchange=params.exchange)
    moved = Fraction(k * (2 if params.exchange else 1))
    exact = pair_radius(e, d, k) if params.exchange else scalar_radius(e, d, moved)

    def delta_of_vector(radius: float) -> float:
        """Delta that a radius spends on a vector, in units of delta."""
        return math.expm1(float(e)) / (2 * math.expm1(float(e) * radius / float(moved))) / float(d)

    vectors = {
        "vector of that L1 sensitivity, continuous": scalar_radius(e, d, moved),
        "D (1 + ln(1/(2 delta))/epsilon), sufficient": simple_radius(e, d, moved),
        "D ln(1/(2 delta))/epsilon, in circulation": float(moved / e) * math.log(1 / (2 * d)),
        "D ln(1/delta)/epsilon, in circulation": float(moved / e) * math.log(1 / d),
    }
    rows = [
        (
            "histogram, integer noise (used)",
            float(noise.radius),
            round(_spent_delta_share(noise, k, params.exchange) / float(d), 3),
        ),
        ("histogram, continuous", round(exact, 3), 1.0),
        *(
            (name, round(radius, 3), round(delta_of_vector(radius), 3))
            for name, radius in vectors.items()
        ),
    ]
    notes = (
        "the last column is what the radius spends on what it is for, in units of delta; above 1 it is wrong",
        f"scale {float(noise.scale):g}; one unit changes counts by {float(moved):g} in all",
    )
    return Sheet(("noise", "radius", "delta spent / delta"), tuple(rows), notes)


def _spent_delta_share(noise: TruncatedNoiseLaw, rows: int, exchange: bool) -> float:
    """Delta that integer noise spends on a histogram: the mass that a shift by ``rows`` leaves out,
    in one count or two.
    """
    a = 1 / float(noise.scale)
    outside = math.exp(-a * (noise.radius + 1)) * math.expm1(a * rows)
    lost = outside / (1 + math.exp(-a) - 2 * math.exp(-a * (noise.radius + 1)))
    # Two counts move independently: 1 - (1 - lost)^2.
    return lost * (2 - lost) if exchange else lost


class PublicColumnParams(Params):
    """``values``: a public column, a list of finite numbers."""

    values: Values


def show_normalized_variance(params: PublicColumnParams) -> Sheet:
    """Mean absolute deviation, variance and normalised variance of public values (not private).

    Deviation, variance and their ratio. Raises `InvalidInput` on infinite values.
    """
    spread = public_columns.normalized_variance(params.values)
    rows = (
        ("E|X - mean|", spread.deviation),
        ("variance", spread.variance),
        ("normalised variance", spread.normalized),
    )
    return Sheet(
        ("measure", "value"),
        rows,
        ("never call this with rows that somebody protects: it adds no noise",),
    )


class CheckPointParams(PublicColumnParams):
    """``values``: a public column. ``point``: what to check. ``alpha``: for the median, strictly
    between 0 and 1/2.
    """

    point: FiniteFloat
    alpha: Exact = Fraction(1, 4)


def show_check_point(params: CheckPointParams) -> Sheet:
    """Whether a point is an interior point or an approximate median of public values (not private).

    Yes or no for both definitions, and the shares of values on either side.
    """
    x, z, n = params.values, params.point, len(params.values)
    rows = (
        ("interior point", public_columns.is_interior_point(x, z)),
        (
            f"{float(params.alpha):g}-approximate median",
            public_columns.is_approximate_median(x, z, params.alpha),
        ),
        ("share of values at or below", sum(v <= z for v in x) / n),
        ("share of values at or above", sum(v >= z for v in x) / n),
    )
    return Sheet(("question", "answer"), rows)


class HardInstanceParams(Params):
    """``kind``: log_spread, random_bits or hard_median (whose middle is a log_spread). ``rows``:
    how many values. ``alpha``: the accuracy that the hard median defeats; its share at each end is
    1/2 - alpha.
    """

    kind: Literal["log_spread", "random_bits", "hard_median"] = "hard_median"
    rows: Annotated[int, Field(ge=1, le=10**6)] = 20
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.25


def show_hard_instance(params: HardInstanceParams) -> Sheet:
    """A column on which private interior points or medians must fail, drawn afresh.

    One row per value, from fresh randomness; the note says what is hard.
    """
    # no private rows: the randomness only makes a fresh example
    source = SystemSource()
    note = "every value has a scale of its own: neither interior points nor medians can be answered on few rows"
    if params.kind == "random_bits":
        values = public_columns.random_bits(params.rows, source)
    elif params.kind == "log_spread":
        values = public_columns.log_spread(params.rows, source)
    else:
        share = 0.5 - params.alpha
        values = public_columns.hard_median(
            public_columns.log_spread(params.rows, source, high=0), share, source
        )
        note = f"normalised variance at most {1 / (2 * share) ** 2:.3g}: interior points are easy, medians are not"
    return Sheet(("value",), tuple((float(v),) for v in values), (note,))


CALCULATORS = list_calculators(
    {
        show_interior_rows: CITATION + ", Theorems 3.1 and 4.1 with constants derived here",
        show_truncated_noise: CITATION + ", Lemma 2.3, whose condition is derived here",
        show_normalized_variance: CITATION + ", Definition 2.5",
        show_check_point: CITATION + ", conditions (1) and (2), atoms included",
        show_hard_instance: CITATION + ", Section 1.1",
    }
)
