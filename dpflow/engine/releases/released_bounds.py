"""Bounds that a search found, put into a declaration: how a plan refers to a settled release of the
mechanism `bounds`.

``bounds`` of a request names searches. A name means the search of the same run, if that made one
(an upstream task of the same DAG run), else the first one of this name that was charged to the
release's scope or one above it. The first, so that a retry or the next day finds the same numbers,
whatever is searched later; a new search takes a new name. Only an owner who fences the first one
gives way to the next. What it found is public, so clamping to it costs nothing more. Sessions,
which outlive a run, take the first search of the name; a gate takes none, because nothing but the
gate reads its holdout. The numbers enter the declaration, and with it the plan's digest: other
bounds are another release.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from pydantic import ValidationError

from dpflow.core.accounting.events import Composed, Event, from_json
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.strict_models import describe_problems, parse_exact, read_quoted_date
from dpflow.engine.releases.choose_bounds import list_read_columns
from dpflow.engine.releases.plan import Plan, digest_column
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import NotSettled, PlanRefused, UnknownName
from dpflow.ledger import Ledger
from dpflow.ledger.books.records import ReleaseRecord, path_of

#: Name of the mechanism.
SEARCH = "bounds"
#: Steps to each side of 0, where a forecast does not know the bounds yet.
ASSUMED = 2**20
_DAY = 86_400_000_000  # microseconds


def insert_bounds(
    request: ReleaseRequest,
    ledger: Ledger | None,
    run_identity: RunIdentity | None = None,
    *,
    assume_missing: bool = False,
) -> tuple[Table, dict[str, ReleaseRecord]]:
    """The declaration of a request, with the bounds of the searches that it names; and by column the searches of those
    whose declared range holds all values, as everybody knows, inside which bounds may be chosen.

    Args:
        assume_missing: take a search that is not settled to have found very wide bounds of every column
            without any. Good for a privacy cost, which hardly depends on them; not for an error or a
            digest.

    Raises:
        NotSettled: a search was charged and has no result yet; try again later.
        UnknownName: no search of this name was charged.
        PlanRefused: no ledger, a release of something else, one that found nothing, or bounds that
        do not fit the column.
    """
    table, inside = request.load_declaration(), dict[str, ReleaseRecord]()
    for name in request.bounds:
        if table.holdout:
            raise PlanRefused(
                f"{request.name} takes bounds from {name!r}, but table {table.name!r} is a holdout, which no search may read beside "
                f"its gate; write bounds into its declaration, such as those found on the table that candidates are fitted on"
            )
        if ledger is None and not assume_missing:
            raise PlanRefused(
                f"{request.name} takes bounds from {name!r}, a release in the ledger; name the ledger"
            )
        try:
            if ledger is None:
                raise NotSettled(f"no ledger has {name!r}")
            search = find_search(ledger, request.scope, name, run_identity)
            column = search.request["params"]["column"]
            largest = table.max_contributions
            # Without them it was settled by group, or without a result.
            is_inside = "excess" in (search.result or {}).get("document", {})
            if is_inside and largest is not None and column in largest.within_bounds:
                _require_same_table(table, name, search, request.name)
                inside[column] = search
                continue
            table = _apply_search(table, name, search, request.name)
        except (NotSettled, UnknownName):
            # A forecast goes on where a release has to wait.
            if not assume_missing:
                raise
            table = _widen_columns(table)
    return table, inside


def compose_event(plan: Plan, ledger: Ledger, run_identity: RunIdentity | None = None) -> Event:
    """The guarantee of what a plan makes, together with the releases that its bounds were taken from: what shows
    the bounds, too, as a model that was fitted on clamped points, is no better protected than by both.
    """
    request = plan.request
    found = [find_search(ledger, request.scope, name, run_identity) for name in request.bounds]
    if plan.chosen is not None:
        found.append(ledger.release(plan.chosen.profile))
    others = {one.release_id: from_json(one.event) for one in found}
    return Composed((plan.event, *others.values())) if others else plan.event


def _widen_columns(table: Table) -> Table:
    columns = {}
    for name, column in table.columns.items():
        if column.lower is None and column.public_keys is None:
            column = column.model_copy(
                update={"lower": -ASSUMED * column.step, "upper": ASSUMED * column.step}
            )
        columns[name] = column
    return table.model_copy(update={"columns": columns})


def find_search(
    ledger: Ledger, scope: str, name: str, run_identity: RunIdentity | None = None
) -> ReleaseRecord:
    """The search that a name means. Raises `UnknownName`, and `PlanRefused` for a release of something else."""
    candidates: list[ReleaseRecord] = []
    # A search upstream in the same run comes before the first one of this name.
    if run_identity is not None and run_identity.dag_id:
        candidates = ledger.releases_by_name(scope, name, (run_identity.dag_id, run_identity.name))
    candidates += ledger.releases_by_name(scope, name)
    # What its owner closed gives no bounds any more.
    candidates = [one for one in candidates if one.state != "fenced"]
    for one in candidates:
        if one.request.get("mechanism") == SEARCH:
            return one
    if candidates:
        what = candidates[0].request.get("mechanism")
        raise PlanRefused(
            f"bounds are taken from {name!r}, which is a release of {what}; name one of the mechanism {SEARCH}"
        )
    # Only to suggest close names.
    requests = (one.request for at in path_of(scope) for one in ledger.releases(at))
    searches = {request["name"] for request in requests if request.get("mechanism") == SEARCH}
    raise UnknownName(f"release of {SEARCH} charged to scope {scope!r} named", name, searches)


def _apply_search(table: Table, name: str, search: ReleaseRecord, asker: str) -> Table:
    """The declaration with what one search found."""
    if not search.settled or search.result is None:
        raise NotSettled(
            f"{asker} takes its bounds from {name!r}, which is {search.state} and has no result yet; run that release to its end"
        )
    _require_same_table(table, name, search, asker)
    document = search.result.get("document", {})
    if "keys" in document:
        raise PlanRefused(
            f"{name!r} searched by group, and a declaration has one pair of bounds a column; search without by"
        )
    if "columns" not in document:
        raise PlanRefused(
            f"{name!r} found no bounds; search again under another name, with more rows or a larger epsilon"
        )
    return _apply_bounds(table, name, search, document, asker)


def _require_same_table(table: Table, name: str, search: ReleaseRecord, asker: str) -> None:
    if search.request.get("table") != table.name:
        raise PlanRefused(
            f"{asker} takes its bounds from {name!r}, which searched table {search.request.get('table')!r}, not {table.name!r}"
        )


def _describe_outside(name: str, search: ReleaseRecord, column: str, table: Table) -> str:
    """How many rows a search found beyond its bounds of a column; of one that is declared otherwise today, it
    counted other values.
    """
    form, stored = table.stored_form()["columns"], search.request["declared"]["columns"]
    if any(
        stored.get(one) != digest_column(form[one]) for one in list_read_columns([column], table)
    ):
        return f"{name!r} counted other values: how many are clamped is not known"
    assert search.result is not None
    outside = search.result["document"]["outside"]
    return f"at most {outside['at_most_95']} of about {outside['of']} rows that {name!r} counted are clamped (95 %)"


def _apply_bounds(
    table: Table, name: str, search: ReleaseRecord, document: Mapping[str, Any], asker: str
) -> Table:
    columns = dict(table.columns)
    for column, ends in document["columns"].items():
        declared_column = table.column(column)
        if declared_column.lower is not None:
            raise PlanRefused(
                f"{asker} takes the bounds of {column!r} from {name!r}, but table {table.name!r} declares some; leave one out"
            )
        try:
            wide = {
                "lower": _widen(ends["lower"], declared_column.step, math.floor),
                "upper": _widen(ends["upper"], declared_column.step, math.ceil),
            }
            # Validated like a declared column: a search may find bounds that do not fit a step.
            columns[column] = Column.model_validate(
                declared_column.model_dump(exclude_unset=True) | wide
            )
            columns[column].note_clamping(_describe_outside(name, search, column, table))
        except ValidationError as error:
            raise PlanRefused(
                f"{name!r} found bounds that column {column!r} cannot have: {describe_problems(error)}"
            ) from None
        # Such as a day after the year 9999.
        except (ValueError, OverflowError):
            raise PlanRefused(
                f"{name!r} found bounds that column {column!r} cannot have; declare its bounds, or leave such values out with where"
            ) from None
    return table.model_copy(update={"columns": columns})


def _widen(value: Any, step: Fraction, round_to: Callable[[Fraction], int]) -> Fraction | dt.date:
    """An end that a search found, moved outwards to a multiple of the step: what lies between the two
    would be clamped, and the search did not count it. Dates and times, which are texts, stay such.
    """
    exact = round_to(parse_exact(value) / step) * step
    found = read_quoted_date(value)
    if not isinstance(found, dt.date):
        return exact
    moved = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=round_to(exact * _DAY))
    return moved if isinstance(found, dt.datetime) or exact.denominator > 1 else moved.date()
