"""What the catalogue of a source refuses of a plan, checked before the plan is charged. No row is read."""

from __future__ import annotations

from dpflow.core.contract.estimators import SqlEstimator
from dpflow.core.contract.gate import Gate
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import GroupEstimates
from dpflow.engine.releases.grid_check import GridReader
from dpflow.engine.releases.own_histogram import histogram_request
from dpflow.engine.releases.plan import Plan
from dpflow.errors import PlanRefused, UnfitColumn
from dpflow.tables.private import PrivateTable


def check_source(plan: Plan, private: PrivateTable) -> None:
    """Check a release's request, or of a session all that its questions may read.

    Raises:
        TableUnreadable: file, relation or column missing, or a type that cannot be used by anyone.
        TableBusy: the source cannot be opened now.
        PlanRefused, UnknownName: the plan does not fit the declaration or the types.
        NotSealed: blocks are sealed, and the place for them cannot be used.
    """
    try:
        _check_requests(plan, private)
    except UnfitColumn as error:
        problem = str(error)
    else:
        return
    raise PlanRefused(problem)


def _check_requests(plan: Plan, private: PrivateTable) -> None:
    mechanism, blocks = plan.mechanism, plan.request.blocks
    if isinstance(mechanism, Mechanism):
        _check_grids(plan, private)
        if (sizes := histogram_request(plan)) is not None:
            private.check_request(sizes, blocks)
        private.check_request(mechanism.data_request(plan.params, plan.table), blocks)
        return
    requests = mechanism.fixed_requests(plan.params, plan.table)
    if requests is None:
        private.check_schema(blocks)
    else:
        _check_grids(plan, private)
    for request in requests or ():
        private.check_request(request, blocks)
    metric = mechanism.find_metric(plan.params) if isinstance(mechanism, Gate) else None
    if metric is not None and isinstance(metric.estimator, SqlEstimator):
        private.check_request(GroupEstimates(2, metric.estimator.sql), blocks)


def _check_grids(plan: Plan, private: PrivateTable) -> None:
    """Raises `PlanRefused` where bounds do not fit a column's type: dates bounded by numbers, numbers
    by dates, fractions that would be rounded to few whole numbers because nobody declared their step.
    The types are public; a plan is made without them.
    """
    bounded = plan.bounded_columns()
    # Only these: what else is declared need not be there. A computed column has no type of its own.
    stored = [name for name, column in bounded.items() if column.expression is None]
    types = private.column_types(stored) if stored else {}
    for name, kind in types.items():
        holds_times, declared = kind.upper().startswith(("DATE", "TIMESTAMP")), bounded[name]
        if holds_times != declared.bounds_are_times:
            advice = (
                "write them as dates, such as lower: 2013-01-01"
                if holds_times
                else "write them as numbers, in the column's own unit"
            )
            raise PlanRefused(
                f"{plan.request.name} reads column {name}, which holds {kind}, and its bounds are "
                f"{'numbers' if holds_times else 'dates'}; {advice}"
            )
    # Labels of releases are keys; sessions that predict numbers read them as values.
    keys, grids = (
        ("label", "by") if isinstance(plan.mechanism, Mechanism) else ("by",),
        GridReader(private),
    )
    for name in plan.bounded_columns(*keys):
        if rounded := grids.find_rounded(name, plan.table):
            raise PlanRefused(f"{plan.request.name} {rounded}")
