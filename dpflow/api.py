"""The Python entry points. All take declarations; what reads rows is opened inside, after the charge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from dpflow.catalogue import locate_ledger
from dpflow.core.accounting.amounts import Amount
from dpflow.core.contract.declaration import Table
from dpflow.engine.prediction.session import PredictionSession
from dpflow.engine.releases.execute import release as run
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.receipt import Receipt
from dpflow.engine.releases.request import Publish, parse_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
    from dpflow.analyst_sql.answer.sql_plan import SqlPlan

#: An open ledger, its file or URL, or None for DPFLOW_LEDGER or that of ``dpflow.yml``.
LedgerPlace = Ledger | Path | str | None


def plan(
    mechanism: str,
    table: Table | Path | str,
    *,
    name: str,
    scope: str | None = None,
    blocks: Sequence[str] | None = None,
    where: str | None = None,
    bounds: Sequence[str] | None = None,
    contribution_bounds: Mapping[str, int] | None = None,
    ledger: LedgerPlace = None,
    revision: int = 1,
    publish: Publish | None = None,
    registry: Registry | None = None,
    **params: Any,
) -> Plan:
    """Plan a release and compute its privacy cost, without touching data.

    Args:
        mechanism: a registered name, e.g. ``"histogram"``.
        table: a declaration, its name in ``dpflow.yml``, or the path of its file.
        name: which release this is; the same name, revision and content again is free.
        scope: which budget pays; that of ``dpflow.yml`` if left out.
        blocks: the blocks it reads, for a table that protects per block; never an empty list.
        where: a condition on declared columns, e.g. ``"age >= 18 AND city = 'Oslo'"``; only rows
        that fulfil it are read.
        bounds: names of settled searches for bounds, which the plan takes from the ledger
        (`dpflow.engine.releases.released_bounds`).
        contribution_bounds: how much one unit contributes to this release, where that differs from
        the declaration, e.g. ``{"groups": 12, "rows_per_group": 3}``.
        ledger: where these searches are, and whose grants say which noise is held; nothing else is
        read from it. Without it the release chooses noise that its scope holds.
        publish: where the result is copied to; the output of ``dpflow.yml`` if left out.
        params: the mechanism's parameters, e.g. ``by="carrier", epsilon="0.5"``.

    Raises:
        InvalidInput: anything that can be known to be wrong without data.
    """
    if not isinstance(table, Table):
        table = load_table(table)
    fields: dict[str, Any] = {
        "name": name,
        "mechanism": mechanism,
        "table": table,
        "where": where,
        "bounds": bounds,
        "contribution_bounds": contribution_bounds,
        "revision": revision,
        "params": params,
        "blocks": [blocks] if isinstance(blocks, str) else blocks,
        "scope": scope,
        "publish": publish,
    }
    fields = {field: value for field, value in fields.items() if value is not None}
    # Paths are taken from the working directory.
    request = parse_request(fields, Path())
    book = open_ledger(ledger) if bounds or ledger is not None else None
    return make_plan(request, registry or Registry.load(), book)


def open_ledger(ledger: LedgerPlace = None) -> Ledger:
    """An open ledger, or the one at a place: DPFLOW_LEDGER or that of ``dpflow.yml`` if left out.

    Raises:
        InvalidInput: no place is named, or no ledger is there.
    """
    if isinstance(ledger, Ledger):
        return ledger
    location, anchor = locate_ledger(None if ledger is None else str(ledger))
    return Ledger(location, anchor=anchor)


def _check_type(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} is of type {type(value).__name__}; give one that dpflow made")


def release(
    plan: Plan,
    ledger: LedgerPlace = None,
    *,
    run_identity: RunIdentity | None = None,
    spend_again: bool = False,
    registry: Registry | None = None,
) -> Receipt:
    """Charge, draw, settle and publish a plan, exactly once for each run identity; see
    `dpflow.engine.releases.execute.release`.

    Args:
        ledger: where its scope has a grant; DPFLOW_LEDGER or that of ``dpflow.yml`` if left out.
    """
    _check_type("plan", plan, Plan)
    _check_type("run_identity", run_identity, RunIdentity | None)
    return run(
        plan,
        open_ledger(ledger),
        registry or Registry.load(),
        run_identity=run_identity,
        spend_again=spend_again,
    )


def open_session(
    plan: Plan,
    ledger: LedgerPlace = None,
    *,
    run_identity: RunIdentity | None = None,
    registry: Registry | None = None,
) -> Session:
    """Charge a whole session, or resume it; ask it with `Session.ask`, or candidates with `ModelGate`.

    Args:
        ledger: where its scope has a grant; DPFLOW_LEDGER or that of ``dpflow.yml`` if left out.

    Raises:
        BudgetExceeded: the scope cannot pay; nothing was read.
        PlanRefused: the plan is a one-shot release, or partitions its data into other groups than the
            first session did.
        DatasetLocked: another session on the same data is open.
    """
    _check_type("plan", plan, Plan)
    _check_type("run_identity", run_identity, RunIdentity | None)
    return Session.open(
        plan, open_ledger(ledger), registry or Registry.load(), run_identity=run_identity
    )


def open_predictions(
    plan: Plan, ledger: LedgerPlace = None, *, run_identity: RunIdentity | None = None
) -> PredictionSession:
    """Charge all predictions of a plan, or resume their session; ask it with
    `PredictionSession.predict`.

    Args:
        ledger: where its scope has a grant; DPFLOW_LEDGER or that of ``dpflow.yml`` if left out.

    Raises:
        BudgetExceeded: the scope cannot pay for all predictions; nothing was read.
        PlanRefused: the plan is for something else.
    """
    return PredictionSession.open(plan, open_ledger(ledger), run_identity=run_identity)


class SqlOptions(TypedDict, total=False):
    """Options of a query, which its leading comment may give instead: ``-- dp: epsilon=0.5``."""

    epsilon: Amount | None
    delta: Amount | None
    error: str | None
    rows: int | None
    scope: str | None
    blocks: Sequence[str] | None
    revision: int | None
    min_units: int | None
    noise: str | None
    groups: int | None
    rows_per_group: int | None
    rows_per_unit: int | None
    bounds: str | Sequence[str] | None
    dialect: str | None
    name: str | None


def sql(
    text: str,
    *,
    tables: Sequence[Table | Path | str] = (),
    parameters: Mapping[str, Any] | Sequence[Any] = (),
    ledger: LedgerPlace = None,
    registry: Registry | None = None,
    **options: Unpack[SqlOptions],
) -> SqlAnswer:
    """Answer a SELECT over declared tables: charge, draw, settle, and compute the answer from what
    was released. The same query again is free, also in another spelling.

    Options may also stand in a leading comment of the query, such as ``-- dp: epsilon=0.5``; one
    that is given twice is an error.

    Args:
        tables: declarations, or their files; those of ``dpflow.yml`` if left out.
        parameters: values of ``$name``, ``$1`` or ``?``; each stays one literal.
        ledger: where the scope has a grant; DPFLOW_LEDGER or that of ``dpflow.yml`` if left out.
        epsilon, delta: what may be spent; with epsilon 0 stored answers alone serve, whatever their errors are.
        error: instead of epsilon: the half-width at 95 % that every number may have, ``"100"`` or
            ``"5%"``.
        rows: with ``error``: assumed rows per group.
        scope: which budget pays; that of ``dpflow.yml`` if left out.
        blocks: the blocks that are read; WHERE may name them, too.
        revision: an unused number pays for a new draw; if left out, the newest stored answer whose
            errors are small enough is taken.
        min_units: units that a private key needs to be shown.
        noise: ``"laplace"``, which a scope with filter ``basic`` can pay, or ``"gaussian"``; what makes
            errors smaller if left out.
        bounds: names of settled releases of `bounds`, whose clamping bounds sums of their columns take.
        name: also publish the answer as this view in the output of ``dpflow.yml``.

    Raises:
        SqlRefused: outside of what can be answered; it has the rule, the place and the nearest query.
        BudgetExceeded: the scope cannot pay; nothing was read.
        InvalidInput: the query begins with EXPLAIN, which `plan_sql` answers; or an option is wrong.
        NotPublished: somebody holds the published file; the releases are settled and paid.
    """
    # It brings a parser, which nobody else needs to wait for.
    from dpflow.analyst_sql.answer.answer_cache import KeptAnswer
    from dpflow.analyst_sql.answer.publish_answer import check_name, publish_answer
    from dpflow.analyst_sql.answer.query_plan import answer_sql
    from dpflow.tables.access.kept_sources import keep_sources_open

    book, registry = open_ledger(ledger), registry or Registry.load()
    kept = KeptAnswer(text, options, tables, parameters, book, registry)
    if (known := kept.find()) is not None:
        return known
    with keep_sources_open():
        planned = plan_sql(
            text, tables=tables, parameters=parameters, ledger=book, registry=registry, **options
        )
        if planned.source.explain:
            raise InvalidInput(
                "EXPLAIN asks for a plan, and sql answers; call plan_sql, or drop EXPLAIN"
            )
        if planned.settings.name is not None:
            # Before anything is charged: a name that is none or is taken should cost nothing.
            check_name(planned, planned.settings.name)
        answer = answer_sql(planned, book, registry)
    kept.keep(planned, answer)
    publish_answer(planned, answer)
    return answer


def plan_sql(
    text: str,
    *,
    tables: Sequence[Table | Path | str] = (),
    parameters: Mapping[str, Any] | Sequence[Any] = (),
    ledger: LedgerPlace = None,
    registry: Registry | None = None,
    **options: Unpack[SqlOptions],
) -> SqlPlan:
    """Plan what `sql` would answer, with its cost and errors; reads no row and charges nothing. EXPLAIN
    before the query may stay.

    Takes the arguments of `sql` and raises the same, without `BudgetExceeded`.
    """
    from dpflow.analyst_sql.answer.query_plan import plan_sql as plan_query

    return plan_query(
        text, options, tables, parameters, open_ledger(ledger), registry or Registry.load()
    )
