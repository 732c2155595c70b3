"""Parameters of the mechanisms that answer questions about ranks."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, Field

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.strict_models import Exact


def _check_share(value: Fraction) -> Fraction:
    if not 0 < value < 1 or value.denominator > 10**6:
        raise ValueError("p must lie strictly between 0 and 1, with at most six decimals")
    return value


def check_distinct(values: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """The quantiles themselves; raises ValueError if one is named twice."""
    if len(set(values)) != len(values):
        raise ValueError("name each quantile once")
    return values


Share = Annotated[Exact, AfterValidator(_check_share)]


class RankParams(Params):
    """``column``: a number, date or timestamp column. ``by``: a column with public keys, or nothing. ``epsilon``: the
    privacy cost of everything. ``delta``: lets many answers be drawn at a higher rate. ``size``: how
    many rows there are at least, as everybody may know; it decides between methods, and nothing else.
    """

    column: str
    epsilon: Epsilon
    by: str | None = None
    delta: Delta = Fraction(0)
    size: Annotated[int, Field(ge=1)] | None = None


class QuantileParams(RankParams):
    """As `RankParams`. ``p``: strictly between 0 and 1, 1/2 for the median."""

    p: Share = Fraction(1, 2)


class QuantilesParams(RankParams):
    """As `RankParams`. ``quantiles``: up to 100, strictly between 0 and 1."""

    quantiles: Annotated[
        tuple[Share, ...], Field(min_length=1, max_length=100), AfterValidator(check_distinct)
    ]


class ExtremeParams(RankParams):
    """As `RankParams`. ``tail``: the part of the rows that may lie beyond the answer."""

    tail: Share = Fraction(1, 100)


class MedianParams(RankParams):
    """As `RankParams`. ``certain``: an answer near the middle rank for certain, or none, in place of the
    most accurate one with an interval; it needs a ``delta``, as a median by groups of a column
    without bounds does.
    """

    certain: bool = False
