"""The one table of request kinds: what checks a request, and what answers it.

A new kind is a module with `check_request` and `answer_request`, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from dpflow.core.contract.requests import (
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
from dpflow.errors import PlanRefused
from dpflow.tables.backends.duckdb_backend.requests import (
    holdout_groups,
    key_sets,
    records,
    sorted_values,
    sums,
    unbounded_values,
    unit_sizes,
)
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery

Answerer = Callable[[RequestQuery, Any], Any]


def _refuse_groups(reading: RequestQuery, request: Any) -> NoReturn:
    raise PlanRefused(
        "values per holdout group need an estimator; ask for them through a gate session"
    )


def _refuse_rounds(reading: RequestQuery, request: Any) -> NoReturn:
    raise PlanRefused(
        "a column without bounds is answered in rounds, during a release; release its mechanism"
    )


@dataclass(frozen=True)
class RequestHandler:
    """What is done with requests of one class.

    Attributes:
        check: refuses a request by the catalog alone.
        answer: executes it.
        open: opens an answer that takes further questions while the file is open; None if `answer`
        says all.
        truncate: builds the bounded query, for requests whose answers over single blocks add up.
    """

    check: Callable[[RequestQuery, Any], None]
    answer: Answerer = _refuse_groups
    open: Answerer | None = None
    truncate: Answerer | None = None


HANDLERS: dict[type, RequestHandler] = {
    GroupedSums: RequestHandler(
        sums.check_request, sums.answer_request, truncate=sums.truncate_request
    ),
    SortedValues: RequestHandler(
        sorted_values.check_request,
        sorted_values.answer_request,
        truncate=sorted_values.truncate_request,
    ),
    KeySets: RequestHandler(key_sets.check_request, key_sets.answer_request),
    UnitSizes: RequestHandler(unit_sizes.check_request, unit_sizes.answer_request),
    Records: RequestHandler(records.check_request, records.answer_request),
    UnboundedValues: RequestHandler(
        unbounded_values.check_request, _refuse_rounds, unbounded_values.open_column
    ),
    # Without an answer: a gate's session reads these through `PrivateTable`, no release does.
    GroupValues: RequestHandler(holdout_groups.check_values),
    UnitScores: RequestHandler(holdout_groups.check_scores),
    GroupMoments: RequestHandler(holdout_groups.check_moments),
    GroupEstimates: RequestHandler(holdout_groups.check_estimates),
}
