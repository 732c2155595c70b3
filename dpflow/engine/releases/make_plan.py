"""`make_plan`: from a request to a plan, by every check that needs no rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from dpflow.core.accounting.events import (
    Approximate,
    Event,
    Pure,
    SparseVector,
    Unprotected,
    to_json,
)
from dpflow.core.contract.columns import may_name
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.gate import Gate
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Delegation, Mechanism
from dpflow.core.contract.requests import DataRequest, Records
from dpflow.core.contract.results import ErrorBound
from dpflow.core.contract.strict_models import describe_problems
from dpflow.engine.releases.certificates import require_certificate
from dpflow.engine.releases.choose_bounds import BoundsChooser, apply_bounds
from dpflow.engine.releases.narrower_bounds import choose_ends
from dpflow.engine.releases.own_histogram import apply_histogram
from dpflow.engine.releases.plan import Plan, digest, digest_declaration, iterate_texts
from dpflow.engine.releases.released_bounds import insert_bounds
from dpflow.engine.releases.request import ReleaseRequest, require_public
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.errors import InvalidDeclaration, PlanRefused, PluginError
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import declare_columns, declare_groups
from dpflow.tables.language.key_tests import narrow_keys
from dpflow.tables.private import PrivateTable

AnyMechanism = Mechanism[Any] | InteractiveMechanism[Any, Any]


def make_plan(
    request: ReleaseRequest,
    registry: Registry,
    ledger: Ledger | None = None,
    run_identity: RunIdentity | None = None,
    *,
    assume_bounds: bool = False,
    is_supposed: bool = False,
    filters: ScopeFilters | None = None,
) -> Plan:
    """Check everything that can be checked without rows, and compute the privacy cost.

    Args:
        ledger: has the searches whose bounds the request takes, and the grants that say which noise is held.
        run_identity: the run, whose own searches come before others of the same name.
        assume_bounds: plan with very wide bounds where a search is not settled: for forecasts of costs.
        is_supposed: only cost and error are asked, at parameters that nobody wrote: no certificate is asked for, and
            no veto is heard.
        filters: of the scopes that pay; those of the ledger if left out. Noise that is left to choose, by
            ``noise: auto`` or a delta that allows another, is such as they hold.

    Raises:
        UnknownName: mechanism, column or key that nobody declared, or a search that nobody made.
        InvalidDeclaration: parameters that do not validate.
        NotSettled: a search for bounds has no result yet.
        PlanRefused: no bounds, a holdout read without a gate, a veto, blocks that do not fit the
        declaration.
    """
    table, searches = insert_bounds(request, ledger, run_identity, assume_missing=assume_bounds)
    filters = filters or ScopeFilters(ledger)
    plan = _plan_table(request, table, registry, filters, is_supposed=is_supposed)
    if searches:
        chosen = choose_ends(plan, table, searches)
        plan = _plan_table(request, chosen, registry, filters, is_supposed=is_supposed)
    return BoundsChooser(ledger).fit(plan)


def fit_plan(plan: Plan, registry: Registry, filters: ScopeFilters) -> Plan:
    """A plan that was made without its scope's filter, with noise that this holds. Raises like
    `make_plan`.
    """
    scope = plan.request.scope
    is_priced = not plan.has_delta or plan.sums_epsilons == filters.sum_epsilons(scope)
    if is_priced and filters.hold(scope, plan.event):
        return plan
    question = plan.question or plan
    fitted = _plan_table(question.request, question.table, registry, filters)
    if plan.chosen is not None:
        fitted = replace(apply_bounds(fitted, plan.chosen), candidates=plan.candidates)
    if plan.histogram is not None:
        # The law of its numbers is fixed anew, as the filter holds it.
        fitted = apply_histogram(fitted, plan.histogram.epsilon, plan.histogram.starts)
    return fitted


def _plan_table(
    request: ReleaseRequest,
    table: Table,
    registry: Registry,
    filters: ScopeFilters,
    *,
    is_supposed: bool = False,
) -> Plan:
    """The plan of a request for a table whose bounds are known."""
    mechanism = registry.find_mechanism(request.mechanism)
    request, table = _declare_groups(request, table)
    if request.contribution_bounds is not None:
        by = request.params.get("by")
        by = by if isinstance(by, str) and by in table.columns else None
        table = table.with_bounds(by, request.contribution_bounds)
    params = _read_params(request, mechanism)
    table = declare_columns(table, mechanism.computed_columns(params, table))
    if isinstance(mechanism, Mechanism) and (other := mechanism.delegate_to(params, table)):
        return _plan_delegate(request, table, other, registry, filters, is_supposed)
    _require_blocks(request, table)
    if request.publish is not None:
        require_public(request.publish.database, table, "published results")
    # In canonical form, so that spaces make no other release of it.
    request = request.model_copy(update={"where": PrivateTable(table, request.where).where})
    by = request.params.get("by")
    by = by if isinstance(by, str) else ""
    table, key_share = narrow_keys(table, by, request.where, request.blocks)
    _require_gate(mechanism, table)
    _require_metric(mechanism, params, registry)
    sums_epsilons = bool(getattr(params, "delta", None)) and filters.sum_epsilons(request.scope)
    request, params, event = _choose_noise(request, mechanism, params, table, filters)
    _require_guarantee(event, mechanism, table)
    # A session may be asked about any column, so it depends on all of them.
    error_bound, table_form, declared = None, table.stored_form(), dict[str, Any]()
    if isinstance(mechanism, Mechanism):
        bound = mechanism.error_bound(params, table)
        data_request = mechanism.data_request(params, table)
        _require_whole_table(data_request, request, table)
        _require_one_block(mechanism, params, request, table)
        table_form = _used_form(table, params, request.where, data_request)
        bounds = table.bounds_for(by if by in table.columns else None)
        declared = digest_declaration(table_form, bounds)
        if bound and sums_epsilons and not getattr(params, "delta", None):
            note = f"{bound.note}; the delta is left out: a filter of its scope adds up epsilons, so it buys nothing"
            bound = replace(bound, note=note.removeprefix("; "))
        error_bound = bound
    content = {
        "mechanism": mechanism.name,
        "params": params.model_dump(mode="json"),
        "table": table_form,
        "scope": request.scope,
        "blocks": sorted(request.blocks),
        "where": request.where,
        "event": to_json(event),
    }
    digests = digest(content), digest([content, mechanism.version])
    plan = Plan(
        request, table, mechanism, params, event, error_bound, *digests, key_share=key_share,
        declared=declared, sums_epsilons=sums_epsilons,
    )  # fmt: skip
    if is_supposed:
        return plan
    # The certificate is about who draws, not about who delegates.
    require_certificate(table, mechanism, params)
    # Vetoes see the finished plan and run last: a refusal for a fault comes first.
    if reasons := registry.collect_vetoes(plan):
        raise PlanRefused(f"{request.name} was refused: " + "; ".join(reasons))
    return plan


def _read_params(request: ReleaseRequest, mechanism: AnyMechanism) -> BaseModel:
    try:
        params: BaseModel = mechanism.Params.model_validate(request.params)
    except ValidationError as error:
        raise InvalidDeclaration(
            f"{request.name}: parameters of {mechanism.name}: {describe_problems(error)}; dpflow reference {mechanism.name} explains them"
        ) from None
    return params


def _plan_delegate(
    request: ReleaseRequest,
    table: Table,
    other: Delegation,
    registry: Registry,
    filters: ScopeFilters,
    is_supposed: bool,
) -> Plan:
    """The plan of the better mechanism that one hands its request to, such as one that a plugin brings."""
    if other.mechanism not in registry.mechanisms:
        raise PlanRefused(
            f"{request.name}: {other.why}, but no installed distribution has it; install its plugin"
        )
    changes = {"mechanism": other.mechanism, "params": other.params}
    delegated = request.model_copy(update=changes)
    plan = _plan_table(delegated, table, registry, filters, is_supposed=is_supposed)
    bound = plan.error_bound or ErrorBound({}, "")
    note = "; ".join(filter(None, [other.why, bound.note]))
    return replace(plan, error_bound=ErrorBound(bound.half_width, note))


def _choose_noise(
    request: ReleaseRequest,
    mechanism: AnyMechanism,
    params: BaseModel,
    table: Table,
    filters: ScopeFilters,
) -> tuple[ReleaseRequest, BaseModel, Event]:
    """Request, parameters and event; without what a delta allows where that is left to choose and no
    filter holds it, such as Gaussian noise in a basic scope, or where it costs more than its epsilon there.
    """
    event, scope = mechanism.event(params, table), request.scope
    is_open = isinstance(mechanism, Mechanism) and getattr(params, "noise", "auto") == "auto"
    has_delta, words, limit = bool(getattr(params, "delta", None)), dict(request.params), None
    if not is_open and not has_delta:
        return request, params, event
    is_held = filters.hold(scope, event)
    if not is_held and is_open:
        words |= {"noise": "laplace"} if hasattr(params, "noise") else {}
    elif is_held and has_delta and filters.sum_epsilons(scope):
        limit = event.epsilon_delta()
    else:
        return request, params, event
    # Without its delta first: for public keys Laplace noise takes none.
    for fields in ({k: v for k, v in words.items() if k != "delta"}, words):
        try:
            changed = mechanism.Params.model_validate(fields)
            changed_event = mechanism.event(changed, table)
        except (ValidationError, PlanRefused):
            continue
        cost = changed_event.epsilon_delta()
        is_cheaper = limit is None or (cost and cost[0] < limit[0] and cost[1] <= limit[1])
        if is_cheaper and filters.hold(scope, changed_event):
            return request.model_copy(update={"params": fields}), changed, changed_event
    return request, params, event


def _require_gate(mechanism: AnyMechanism, table: Table) -> None:
    """A gate's proofs hold for rows that nothing else has read."""
    if table.holdout and not (
        isinstance(mechanism, InteractiveMechanism) and mechanism.locks_dataset
    ):
        raise PlanRefused(
            f"table {table.name!r} is a holdout, readable only through a gate session; "
            f"{mechanism.name} would read it, too, so declare another table for it"
        )


def _require_metric(mechanism: AnyMechanism, params: BaseModel, registry: Registry) -> None:
    """A session whose metric nobody knows, or not with these options, would be charged and answer nothing."""
    metric = mechanism.find_metric(params) if isinstance(mechanism, Gate) else None
    if metric is not None and isinstance(metric.estimator, str):
        registry.find_estimator(metric.estimator).check_options(metric.options)


def _require_guarantee(event: Event, mechanism: AnyMechanism, table: Table) -> None:
    """A guarantee that the declaration asks for, and that the filters of a session are proven for."""
    if isinstance(event, Unprotected) and not table.generalisation_only:
        raise PlanRefused(
            f"{mechanism.name} makes no privacy guarantee with these parameters, and table {table.name!r} protects "
            f"{table.protection_text}; choose a private method, or let its owner declare generalisation_only"
        )
    # Independent answers are charged one by one, so any event will do for them.
    is_session = isinstance(mechanism, InteractiveMechanism) and not mechanism.independent_answers
    if is_session and not isinstance(event, Pure | Approximate | SparseVector | Unprotected):
        raise PluginError(
            f"session {mechanism.name} states {to_json(event)['kind']}, and the filters are proven for sessions that state "
            f"pure.v1, approximate.v1 or sparse-vector.v1; its author must state one of those"
        )


def _used_form(
    table: Table, params: BaseModel, where: str | None, data_request: DataRequest
) -> dict[str, Any]:
    """What statistic and guarantee depend on: the declaration without columns that nothing names.

    A column counts as used if parameters, condition or data request may name it: rather one too many, which only makes a new
    release of an edit that changes nothing.
    """
    # What a column is computed of is used where the column may be.
    computed = [
        text
        for column in table.columns.values()
        for text in (column.expression or "", *(column.parts or ()))
    ]
    words = "\n".join(
        [*iterate_texts(params.model_dump(mode="json")), where or "", repr(data_request), *computed]
    )
    form = table.stored_form()
    form["columns"] = {
        name: column
        for name, column in form["columns"].items()
        # What is known of each row is part of what is protected.
        if name in table.public_columns or may_name(words, name)
    }
    return form


def _require_whole_table(data_request: DataRequest, request: ReleaseRequest, table: Table) -> None:
    """A guarantee that rests on public columns is one about whole tables: what chooses rows may
    read what is protected.
    """
    if (
        isinstance(data_request, Records)
        and data_request.known
        and (request.where or request.blocks or table.joins)
    ):
        raise PlanRefused(
            f"{request.name} rests on public columns, so it must read the whole table: leave out where, blocks and joins, "
            f"or take a mechanism that protects whole rows"
        )


def _require_one_block(
    mechanism: Mechanism[Any], params: Any, request: ReleaseRequest, table: Table
) -> None:
    """Bounding keeps rows of a unit in each block apart, so over several blocks a unit would count more than once; not
    by the block itself, and not where one row stands for each unit.
    """
    if table.protects != "unit-block" or len(request.blocks) < 2 or table.unit_rows is not None:
        return
    by = getattr(params, "by", None)
    if not mechanism.counts_units(params) or (
        by is not None and table.block in (table.column(by).parts or (by,))
    ):
        return
    unit, block = table.privacy_unit.column, table.block
    in_sql = "" if by else f"; in SQL, count the rows of a subquery that groups by {unit}"
    raise PlanRefused(
        f"{request.name} counts units of {len(request.blocks)} blocks together, and table {table.name!r} protects "
        f"{table.protection_text}, so each would count once in every {block}; ask by {block}, or for one block{in_sql}"
    )


def _declare_groups(request: ReleaseRequest, table: Table) -> tuple[ReleaseRequest, Table]:
    """The request by one column, and the declaration with it, where ``by`` lists several or
    computes one.
    """
    by = request.params.get("by")
    if isinstance(by, list) and all(isinstance(part, str) for part in by):
        by = ", ".join(by)
    # A plain name that nobody declared gets the mechanism's own answer.
    if not isinstance(by, str) or not (by in table.columns or re.search(r"[^\w.]", by)):
        return request, table
    table, name = declare_groups(table, by)
    return request.model_copy(update={"params": {**request.params, "by": name}}), table


def _require_blocks(request: ReleaseRequest, table: Table) -> None:
    """A budget per block needs to know the blocks; blocks of a table without a block column mean
    nothing.
    """
    if len(set(request.blocks)) != len(request.blocks):
        raise PlanRefused(f"{request.name} names a block twice; name each block once")
    if request.blocks and table.block is None:
        raise PlanRefused(
            f"{request.name} names blocks, but table {table.name!r} declares no block column"
        )
    if table.protects == "unit-block" and not request.blocks:
        advice = "add blocks, such as blocks: [2013-01-01]"
        if table.unit_rows is not None:
            advice = f"in SQL name them in the WHERE of the query by {table.privacy_unit.column}, such as {table.block} = '2013-01-31'"
        raise PlanRefused(
            f"table {table.name!r} protects {table.protection_text}, so {request.name} must name the blocks it reads; {advice}"
        )
