"""A release before it is paid for: frozen, hashable, made without touching data."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ValidationError

from dpflow.core.accounting.amounts import exact_text, to_units_up
from dpflow.core.accounting.events import (
    Approximate,
    Event,
    Pure,
    SparseVector,
    Unprotected,
    to_json,
)
from dpflow.core.contract.columns import Column, default_step
from dpflow.core.contract.contribution import RequestedBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import DataRequest, Records, UnboundedValues
from dpflow.core.contract.results import ErrorBound
from dpflow.core.contract.strict_models import describe_problems
from dpflow.engine.releases.certificates import require_certificate
from dpflow.engine.releases.request import ReleaseRequest, require_public
from dpflow.engine.releases.result_table import write_html
from dpflow.engine.releases.scope_filters import UNKNOWN_FILTERS, ScopeFilters
from dpflow.errors import InvalidDeclaration, PlanRefused, PluginError
from dpflow.registry import Registry
from dpflow.tables import declare_columns, declare_groups
from dpflow.tables.private import PrivateTable

#: Where a plan has no number for the error.
IN_RESULT = "depends on the rows; part of the result"
#: A value column of fewer grid points is likely one of fractions, rounded to whole numbers.
FEW_POINTS = 50
#: Of an epsilon that is computed for a report; rounded up, so it never promises too much.
EPSILON_STEP = Fraction(1, 10**6)


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON: of public things only."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


@dataclass(frozen=True, repr=False)
class Plan:
    """A validated release or session.

    Attributes:
        event: its privacy guarantee for one declared privacy unit.
        error_bound: the half-width of its noise interval, or None if that depends on the rows.
        version_independent_digest: digest of everything but the mechanism's version. Of the
            declaration it holds what the plan depends on (`_used_form`).
        digest: the same with the mechanism's version; part of the exactly-once key.
    """

    request: ReleaseRequest
    table: Table
    mechanism: Mechanism[Any] | InteractiveMechanism[Any, Any] = field(compare=False)
    params: BaseModel = field(compare=False)
    event: Event = field(compare=False)
    error_bound: ErrorBound | None = field(compare=False)
    version_independent_digest: str
    digest: str

    def __repr__(self) -> str:
        epsilon, delta = self.privacy_cost()
        return (
            f"Plan({self.request.name!r}: {self.mechanism.name} of {self.table.name}, epsilon {epsilon}, "
            f"delta {delta}, from scope {self.request.scope!r})"
        )

    def _repr_html_(self) -> str:
        epsilon, delta = self.privacy_cost()
        about = {
            "mechanism": self.mechanism.name,
            "table": self.table.name,
            "protects": self.table.protection_text,
            "scope": self.request.scope,
            "blocks": ", ".join(self.request.blocks),
            "where": self.request.where or "",
            "cost": f"epsilon {epsilon}, delta {delta}",
        }
        widths = self.error_bound.half_width if self.error_bound else {}
        noise = ", ".join(f"{measure} +- {width:g}" for measure, width in widths.items())
        about["95 % noise interval"] = noise or IN_RESULT
        lines = [(name, text) for name, text in about.items() if text]
        return write_html(f"plan {self.request.name}", (), lines)

    @property
    def charged_blocks(self) -> tuple[str, ...]:
        """The blocks whose budgets pay: those it reads if the declaration protects per block, else
        none by name.
        """
        return self.request.blocks if self.table.protects == "unit-block" else ()

    def privacy_cost(self) -> tuple[str, str]:
        """Epsilon and delta as exact text: at the delta it asks for where that proves less, or
        needs one (else at 1e-9).
        """
        exact, own_delta = self.event.epsilon_delta(), getattr(self.params, "delta", None)
        if exact is None or (own_delta and not exact[1]):
            delta = own_delta or Fraction(1, 10**9)
            proved = (
                to_units_up(self.event.epsilon_at(delta) or Fraction(0), EPSILON_STEP)
                * EPSILON_STEP
            )
            if exact is None or proved < exact[0]:
                exact = (proved, delta)
        return exact_text(exact[0]), exact_text(exact[1])

    def describe(self) -> dict[str, Any]:
        """What a person wants to know before spending."""
        epsilon, delta = self.privacy_cost()
        return {
            "mechanism": f"{self.mechanism.name} (version {self.mechanism.version})",
            "table": self.table.name,
            "protects": self.table.protection_text,
            "scope": self.request.scope,
            "blocks": ", ".join(self.request.blocks) or "(none)",
            "where": self.request.where or "(all rows)",
            "bounds": self._describe_bounds(),
            "contributions": "; ".join(
                filter(None, (self.describe_contributions(), self.undeclared_groups()))
            ),
            "epsilon": epsilon,
            "delta": delta,
            "guarantee": to_json(self.event),
            "half_width_95": (self.error_bound and self.error_bound.half_width)
            or ("none proven; see the note" if self.error_bound else IN_RESULT),
            "note": self.error_bound.note if self.error_bound else self._session_note(),
            "digest": self.digest,
        }

    def _describe_bounds(self) -> str:
        """The searches that find them, or the declared bounds of the columns that the request
        names.
        """
        if self.request.bounds:
            return ", ".join(map(repr, self.request.bounds))
        coarse = self.coarse_grids()
        used_columns = set(_iterate_texts(self.params.model_dump(mode="json")))
        ranges = [
            f"{name} from {column.grid_value(low)} to {column.grid_value(high)}{coarse.get(name, '')}"
            for name, column in self.table.columns.items()
            if name in used_columns and column.lower is not None
            for low, high in [column.grid_bounds()]
        ]
        return ", ".join(ranges) or "(none needed)"

    def describe_contributions(self) -> str:
        """How much one unit counts, and which words of the declaration say so."""
        by = getattr(self.params, "by", None)
        bounds = self.table.bounds_for(by if by in self.table.columns else None)
        unit = self.table.privacy_unit.column
        if by not in self.table.columns:
            return f"one {unit} counts with {bounds.rows} rows at most"
        groups, rows = self.table.limits_for(by)
        sources = dict.fromkeys((groups.source, rows.source))
        return f"one {unit} counts in at most {bounds.describe()} ({'; '.join(sources)})"

    def undeclared_groups(self) -> str:
        """What to declare where noise is made for as many groups as a unit has rows, because nobody said
        in how many it can be; "" where fewer groups would not mean less noise.
        """
        by, table, mechanism = getattr(self.params, "by", None), self.table, self.mechanism
        if by not in table.columns or not isinstance(mechanism, Mechanism):
            return ""
        groups, _ = table.limits_for(by)
        if groups.number == 1 or groups.source != "contribution_bounds.rows":
            return ""
        one_group = mechanism.error_bound(
            self.params, table.with_bounds(by, RequestedBounds(groups=1))
        )
        if one_group == self.error_bound:
            return ""
        unit = table.privacy_unit.column
        return (
            f"nobody declared how many groups of {by} one {unit} can be in, so noise is made for {groups.number}; "
            f"for less noise declare groups of the column (contribution_bounds.groups for several), or fix groups for "
            f"this release"
        )

    def bounded_columns(self, leave_out: str = "") -> dict[str, Column]:
        """The columns with bounds that the parameters name, but for one of them, unless the mechanism
        reads values as they are.
        """
        if isinstance(self.mechanism, Mechanism) and isinstance(
            self.mechanism.data_request(self.params, self.table), UnboundedValues
        ):
            return {}
        values = self.params.model_dump(mode="json", exclude={leave_out})
        used, columns = set(_iterate_texts(values)), self.table.columns.items()
        return {
            name: column for name, column in columns if name in used and column.lower is not None
        }

    def coarse_grids(self) -> dict[str, str]:
        """For value columns of few grid points whose step nobody declared, a warning that values are
        rounded to them; labels are left out, and values that are read as they are.
        """
        warnings = {}
        for name, column in self.bounded_columns(leave_out="label").items():
            if column.lower is None or column.holds_dates:
                continue
            low, high = column.grid_bounds()
            if high - low + 1 < FEW_POINTS and "step" not in column.model_fields_set:
                step = default_step(column.lower, column.upper or Fraction(0))
                warnings[name] = (
                    f" ({high - low + 1} grid points, to which values are rounded; declare step: "
                    f"{exact_text(step)}, or step: 1 for whole numbers)"
                )
        return warnings

    def _session_note(self) -> str:
        if isinstance(self.mechanism, InteractiveMechanism):
            return str(self.mechanism.note(self.params, self.table))
        return ""

    def ledger_entry(self) -> dict[str, Any]:
        """What the ledger's history keeps of the request; all of it was known before a row was read."""
        sealed = self.table.cached_partials == "sealed"
        place, widths = (
            self.request.publish,
            self.error_bound.half_width if self.error_bound else {},
        )
        finite = {measure: width for measure, width in widths.items() if math.isfinite(width)}
        return {
            "name": self.request.name,
            "mechanism": self.mechanism.name,
            "version": self.mechanism.version,
            "params": self.params.model_dump(mode="json"),
            "table": self.table.name,
            "protects": self.table.protection_text,
            "blocks": list(self.request.blocks),
            "where": self.request.where,
            "bounds": list(self.request.bounds),
            **(
                {"contribution_bounds": requested.model_dump(exclude_none=True)}
                if (requested := self.request.contribution_bounds)
                else {}
            ),
            "epsilon": self.privacy_cost()[0],
            "delta": self.privacy_cost()[1],
            # Of sealed blocks, so that who audits sees which version of them was read.
            **({"sealed_version": self.table.sealed_version} if sealed else {}),
            # For who reads receipts without a key: how wide the noise is, and where the values are.
            **({"half_width_95": finite} if finite else {}),
            **({"publish": f"{place.database.name}:{place.table}"} if place else {}),
        }


def make_plan(
    request: ReleaseRequest,
    registry: Registry,
    table: Table | None = None,
    filters: ScopeFilters = UNKNOWN_FILTERS,
) -> Plan:
    """Check everything that can be checked without rows, and compute the privacy cost.

    Args:
        table: the declaration, if not the one that the request names; where that takes bounds from
            a release, with these bounds in it (`dpflow.engine.releases.released_bounds`).
        filters: of the scopes that pay. Noise that is left to choose, by ``noise: auto`` or a delta that allows
            another, is such as they hold.

    Raises:
        UnknownName: mechanism, column or key that nobody declared.
        InvalidDeclaration: parameters that do not validate.
        PlanRefused: no bounds, a holdout read without a gate, a veto, blocks that do not fit the
        declaration.
    """
    if table is None and request.bounds:
        raise PlanRefused(
            f"{request.name} takes bounds from {', '.join(map(repr, request.bounds))}, which are in a "
            f"ledger; plan with dpflow.engine.plan_request, which reads them there"
        )
    table = table or request.load_declaration()
    mechanism = registry.find_mechanism(request.mechanism)
    request, table = _declare_groups(request, table)
    if request.contribution_bounds is not None:
        by = request.params.get("by")
        by = by if isinstance(by, str) and by in table.columns else None
        table = table.with_bounds(by, request.contribution_bounds)
    try:
        params = mechanism.Params.model_validate(request.params)
    except ValidationError as error:
        raise InvalidDeclaration(
            f"{request.name}: parameters of {mechanism.name}: {describe_problems(error)}; dpflow mechanisms {mechanism.name} explains them"
        ) from None
    table = declare_columns(table, mechanism.computed_columns(params, table))
    # Some mechanisms hand a request to a better one, such as one that a plugin brings.
    if isinstance(mechanism, Mechanism) and (other := mechanism.delegate_to(params, table)):
        if other.mechanism not in registry.mechanisms:
            raise PlanRefused(
                f"{request.name}: {other.why}, but no installed distribution has it; install its plugin"
            )
        plan = make_plan(
            request.model_copy(update={"mechanism": other.mechanism, "params": other.params}),
            registry,
            table,
            filters,
        )
        note = f"{other.why}; {plan.error_bound.note}" if plan.error_bound else other.why
        return replace(
            plan,
            error_bound=ErrorBound(plan.error_bound.half_width if plan.error_bound else {}, note),
        )
    _check_blocks(request, table)
    if request.publish is not None:
        require_public(request.publish.database, table, "published results")
    # In canonical form, so that spaces make no other release of it.
    request = request.model_copy(update={"where": PrivateTable(table, request.where).where})
    # A gate's proofs hold for rows that nothing else has read.
    if table.holdout and not (
        isinstance(mechanism, InteractiveMechanism) and mechanism.locks_dataset
    ):
        raise PlanRefused(
            f"table {table.name!r} is a holdout, readable only through a gate session; "
            f"{mechanism.name} would read it, too, so declare another table for it"
        )
    request, params, event = _choose_noise(request, mechanism, params, table, filters)
    if isinstance(event, Unprotected) and not table.generalisation_only:
        raise PlanRefused(
            f"{mechanism.name} makes no privacy guarantee with these parameters, and table {table.name!r} protects "
            f"{table.protection_text}; choose a private method, or let its owner declare generalisation_only"
        )
    # Independent answers are charged one by one, so any event will do for them.
    session = isinstance(mechanism, InteractiveMechanism) and not mechanism.independent_answers
    if session and not isinstance(event, Pure | Approximate | SparseVector | Unprotected):
        raise PluginError(
            f"session {mechanism.name} states {to_json(event)['kind']}, and the filters are proven for sessions that state "
            f"pure.v1, approximate.v1 or sparse-vector.v1; its author must state one of those"
        )
    # A session may be asked about any column, so it depends on all of them.
    bound, declared = None, table.stored_form()
    if isinstance(mechanism, Mechanism):
        bound = mechanism.error_bound(params, table)
        statistic = mechanism.data_request(params, table)
        _check_public_columns(statistic, request, table)
        declared = _used_form(table, params, request.where, statistic)
    content = {
        "mechanism": mechanism.name,
        "params": params.model_dump(mode="json"),
        "table": declared,
        "scope": request.scope,
        "blocks": sorted(request.blocks),
        "where": request.where,
        "event": to_json(event),
    }
    plan = Plan(
        request,
        table,
        mechanism,
        params,
        event,
        bound,
        digest(content),
        digest([content, mechanism.version]),
    )
    # Whoever delegates draws nothing: the certificate is about who does.
    require_certificate(table, mechanism)
    # Vetoes see the finished plan and run last: a refusal for a fault comes first.
    if reasons := registry.collect_vetoes(plan):
        raise PlanRefused(f"{request.name} was refused: " + "; ".join(reasons))
    return plan


def fit_plan(plan: Plan, registry: Registry, filters: ScopeFilters) -> Plan:
    """A plan that was made without its scope's filter, with noise that this holds. Raises like
    `make_plan`.
    """
    if filters.hold(plan.request.scope, plan.event):
        return plan
    return make_plan(plan.request, registry, plan.table, filters)


def _choose_noise(
    request: ReleaseRequest,
    mechanism: Mechanism[Any] | InteractiveMechanism[Any, Any],
    params: BaseModel,
    table: Table,
    filters: ScopeFilters,
) -> tuple[ReleaseRequest, BaseModel, Event]:
    """Request, parameters and event; without what a delta allows where that is left to choose and no
    filter holds it, such as Gaussian noise in a basic scope.
    """
    event = mechanism.event(params, table)
    is_open = isinstance(mechanism, Mechanism) and getattr(params, "noise", "auto") == "auto"
    if not is_open or filters.hold(request.scope, event):
        return request, params, event
    words = dict(request.params) | ({"noise": "laplace"} if hasattr(params, "noise") else {})
    # Without its delta first: for public keys Laplace noise takes none.
    for fields in ({k: v for k, v in words.items() if k != "delta"}, words):
        try:
            changed = mechanism.Params.model_validate(fields)
        except ValidationError:
            continue
        changed_event = mechanism.event(changed, table)
        if filters.hold(request.scope, changed_event):
            return request.model_copy(update={"params": fields}), changed, changed_event
    return request, params, event


def _used_form(
    table: Table, params: BaseModel, where: str | None, statistic: DataRequest
) -> dict[str, Any]:
    """What statistic and guarantee depend on: the declaration without columns that nothing names.

    A column counts as used if its name is a word of the parameters, the condition or the data
    request: rather one too many, which only makes a new release of an edit that changes nothing.
    """
    # What a column is computed of is used where the column may be.
    computed = [
        text
        for column in table.columns.values()
        for text in (column.expression or "", *(column.parts or ()))
    ]
    words = "\n".join(
        [*_iterate_texts(params.model_dump(mode="json")), where or "", repr(statistic), *computed]
    )
    form = table.stored_form()
    form["columns"] = {
        name: column
        for name, column in form["columns"].items()
        # What is known of each row is part of what is protected.
        if name in table.public_columns
        or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words, re.IGNORECASE)
    }
    return form


def _check_public_columns(statistic: DataRequest, request: ReleaseRequest, table: Table) -> None:
    """A guarantee that rests on public columns is one about whole tables: what chooses rows may
    read what is protected.
    """
    if (
        isinstance(statistic, Records)
        and statistic.known
        and (request.where or request.blocks or table.joins)
    ):
        raise PlanRefused(
            f"{request.name} rests on public columns, so it must read the whole table: leave out where, blocks and joins, "
            f"or take a mechanism that protects whole rows"
        )


def _declare_groups(request: ReleaseRequest, table: Table) -> tuple[ReleaseRequest, Table]:
    """The request by one column, and the declaration with it, where ``by`` lists several or
    computes one.
    """
    by = request.params.get("by")
    if isinstance(by, list) and all(isinstance(one, str) for one in by):
        by = ", ".join(by)
    # A plain name that nobody declared gets the mechanism's own answer.
    if not isinstance(by, str) or not (by in table.columns or re.search(r"[^\w.]", by)):
        return request, table
    table, name = declare_groups(table, by)
    return request.model_copy(update={"params": {**request.params, "by": name}}), table


def _check_blocks(request: ReleaseRequest, table: Table) -> None:
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
        raise PlanRefused(
            f"table {table.name!r} protects {table.protection_text}, so {request.name} must name the blocks it reads; "
            f"add blocks, such as blocks: [2013-01-01]"
        )


def _iterate_texts(value: Any) -> Iterator[str]:
    """Every text in JSON, names of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _iterate_texts(inner)
