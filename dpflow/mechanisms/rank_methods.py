"""Which method answers a question about ranks: the one rule behind `quantile`, `quantiles`, `median`,
`minimum` and `maximum`, and so behind SQL, release files, operators and the command line.

The rule, from declaration and parameters alone, never from rows:

1. A median that must be certain: `approximate_median`.
2. A column without bounds: `cdf`; by groups, which `cdf` does not take, a median with a delta by
   `approximate_median`, and else a refusal.
3. By groups, or where a fraction stands in for missing values, which not every column can store: the exponential
   mechanism.
4. Else the exponential mechanism or `cdf`: the one that states the smaller rank error of ``size`` rows,
   their public number, or left out, of `SPARE` times as many as its numbers need to be shown
   (`supports_value`). The first one's error grows with the quantiles asked for and not with the rows,
   the other's with the rows alone.

Methods keep their names: `cdf` and `approximate_median` are asked by them, too. A method whose answer may be wrong
without notice is never taken, however near it is on other columns (`NEVER_TAKEN`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Protocol

from pydantic import ValidationError

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.distribution import MAX_RANK_ERROR
from dpflow.core.contract.mechanism import Delegation, Mechanism
from dpflow.errors import PlanRefused
from dpflow.mechanisms.cdf import Cdf, CdfParams
from dpflow.mechanisms.rank_params import MedianParams, RankParams

#: Times the rows that the exponential mechanism needs, where nobody says how many there are.
SPARE = 10
#: Methods that are nearer on some columns and that the rule leaves out, with the reason.
NEVER_TAKEN = {
    "seeded_median": "the rank that it states is of rounded values, and for values of several scales the rounding may be far "
    "too coarse, which nothing tells; equal values have no answer; it needs a delta"
}
#: Questions in words: whether the column has bounds, and what else is asked for.
_QUESTIONS: dict[str, tuple[bool, dict[str, Any]]] = {
    "a column with bounds": (True, {}),
    "a column with bounds, nine deciles": (True, {"quantiles": [f"0.{i}" for i in range(1, 10)]}),
    "a column without bounds": (False, {}),
    "a column without bounds, by groups": (False, {"by": "kind"}),
    "certain: true": (True, {"certain": True}),
}
_ASKED: dict[str, Any] = {"column": "x", "epsilon": "1", "delta": "1e-6"}


class RankMechanism(Protocol):
    """What is asked by rank, and how far its own draws may be off."""

    def list_quantiles(self, params: Any) -> Mapping[str, Fraction]:
        """Measures with their p."""

    def rank_error(self, params: Any, table: Table) -> float:
        """In rows, at 95 % or more, for all answers together."""


def choose_method(mechanism: RankMechanism, params: RankParams, table: Table) -> Delegation | None:
    """Who answers in place of the exponential mechanism, and why; None if it does.

    Raises:
        PlanRefused: no method answers such a question.
    """
    column = table.column(params.column)
    is_bounded = column.lower is not None
    quantiles = tuple(mechanism.list_quantiles(params).values())
    if isinstance(params, MedianParams) and params.certain:
        return _take_certain(params, "certain: true was asked for")
    named = f"column {params.column!r} declares no bounds"
    if not is_bounded and params.by is not None:
        if isinstance(params, MedianParams):
            return _take_certain(params, f"{named}, and cdf takes no groups")
        raise PlanRefused(
            f"{named}, and quantiles without them are not taken by group; declare lower and upper, leave by out, "
            f"or release once for each group, with where"
        )
    if not is_bounded:
        return _take_cdf(params, quantiles, f"{named}, so cdf is taken, which needs none")
    is_fraction = column.missing != "skip" and column.missing.denominator != 1
    if params.by is not None or is_fraction:
        return None
    drawn = mechanism.rank_error(params, table)
    limit = min(MAX_RANK_ERROR, *(float(min(p, 1 - p)) for p in quantiles))
    size = params.size or math.ceil(SPARE * drawn / limit)
    cdf = CdfParams.model_validate(_cdf_params(params, quantiles))
    # Without noise it still tells no two rows of a cell apart.
    counted = max(1.0, Cdf().rank_error(cdf, table, size))
    if drawn <= counted:
        return None
    why = (
        f"cdf is taken, whose ranks of {size:,} rows are within about {counted:,.0f} rows, and those of the "
        f"exponential mechanism within {drawn:,.0f}"
    )
    return _take_cdf(params, quantiles, why)


def list_choices(door: Mechanism[Any]) -> dict[str, list[str]]:
    """The methods that a mechanism takes in its place, each with the questions, in words; found by
    asking it.
    """
    choices: dict[str, list[str]] = {}
    for words, (is_bounded, more) in _QUESTIONS.items():
        bounds = {"lower": 0, "upper": 100_000} if is_bounded else {}
        table = Table.model_validate(
            {
                "name": "t",
                "database": "t.duckdb",
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 1},
                "columns": {"x": bounds, "kind": {"public_keys": ["a", "b"]}},
            }
        )
        fields = _ASKED | more
        if "quantiles" in door.Params.model_fields:
            fields = {"quantiles": ["1/4", "1/2", "3/4"]} | fields
        try:
            delegation = door.delegate_to(door.Params.model_validate(fields), table)
        except (ValidationError, PlanRefused):
            continue
        if delegation is not None:
            choices.setdefault(delegation.mechanism, []).append(words)
    return choices


def _cdf_params(params: RankParams, quantiles: tuple[Fraction, ...]) -> dict[str, Any]:
    epsilon = params.model_dump(mode="json")["epsilon"]
    return {
        "column": params.column,
        "epsilon": epsilon,
        "quantiles": [str(p) for p in sorted(quantiles)],
    }


def _take_cdf(params: RankParams, quantiles: tuple[Fraction, ...], why: str) -> Delegation:
    spare = "; delta is not used" if params.delta else ""
    return Delegation("cdf", _cdf_params(params, quantiles), f"{why}{spare}")


def _take_certain(params: RankParams, need: str) -> Delegation:
    # Only approximate privacy makes an interior point possible.
    if not params.delta:
        raise PlanRefused(
            f"{need}, which takes approximate_median; add delta to the parameters, such as 1e-6"
        )
    names = params.model_dump(mode="json", exclude={"certain", "size"})
    return Delegation("approximate_median", names, f"{need}, so approximate_median is taken")
