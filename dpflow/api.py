"""The Python entry points: plan and release in two calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.catalogue import locate_ledger
from dpflow.core.contract.declaration import Table
from dpflow.engine.prediction.session import PredictionSession
from dpflow.engine.releases.execute import Receipt
from dpflow.engine.releases.execute import release as run
from dpflow.engine.releases.plan import Plan, make_plan
from dpflow.engine.releases.released_bounds import insert_bounds
from dpflow.engine.releases.request import Publish, parse_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import PrivateTable
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from dpflow.analyst_sql.answers import SqlAnswer
    from dpflow.analyst_sql.sql_plan import SqlPlan


def plan(
    mechanism: str,
    table: PrivateTable | Table | Path | str,
    *,
    name: str,
    scope: str | None = None,
    blocks: Sequence[str] = (),
    where: str | None = None,
    bounds: Sequence[str] = (),
    ledger: Ledger | None = None,
    revision: int = 1,
    publish: Publish | None = None,
    registry: Registry | None = None,
    **params: Any,
) -> Plan:
    """Plan a release and compute its privacy cost, without touching data.

    Args:
        mechanism: a registered name, e.g. ``"histogram"``.
        table: a private table, a declaration, or a declaration's name in ``dpflow.yml`` or its
            path.
        name: which release this is; the same name, revision and content again is free.
        scope: which budget pays; that of ``dpflow.yml`` if left out.
        blocks: the blocks it reads, for a table that protects per block.
        where: a condition on declared columns, e.g. ``"age >= 18 AND city = 'Oslo'"``; only rows
        that fulfil it are read.
        bounds: names of settled searches for bounds, which the plan takes from the ledger
        (`dpflow.engine.releases.released_bounds`).
        ledger: where these searches are; nothing else is read from it.
        publish: where the result is copied to; the output of ``dpflow.yml`` if left out.
        params: the mechanism's parameters, e.g. ``by="carrier", epsilon="0.5"``.

    Raises:
        InvalidInput: anything that can be known to be wrong without data.
    """
    if isinstance(table, PrivateTable):
        table = table.declaration
    if not isinstance(table, Table):
        table = load_table(table)
    fields: dict[str, Any] = {
        "name": name,
        "mechanism": mechanism,
        # Never looked up: the declaration is here.
        "table": Path(table.name),
        "blocks": [blocks] if isinstance(blocks, str) else blocks,
        "where": where,
        "bounds": tuple(bounds),
        "revision": revision,
        "params": params,
    }
    fields |= {} if scope is None else {"scope": scope}
    fields |= {} if publish is None else {"publish": publish}
    # Paths are taken from the working directory.
    request = parse_request(fields, Path())
    return make_plan(
        request, registry or Registry.load(), insert_bounds(request, ledger, table=table)
    )


def open_ledger(ledger: Ledger | Path | str | None = None) -> Ledger:
    """The ledger that is given, or DPFLOW_LEDGER, or that of ``dpflow.yml``; it must exist.

    Raises:
        InvalidInput: nobody says where the ledger is, or there is none.
    """
    if isinstance(ledger, Ledger):
        return ledger
    location, anchor = locate_ledger(None if ledger is None else str(ledger))
    return Ledger(location, anchor=anchor)


def predictions(
    plan: Plan, ledger: Ledger | None = None, *, run_identity: RunIdentity | None = None
) -> PredictionSession:
    """Open (and charge, whole) or resume the session of predictions that a plan describes; ask it
    with ``predict``.

    Raises:
        BudgetExceeded: the scope cannot pay for all of its predictions; nothing was read.
        PlanRefused: the plan is for something else.
    """
    return PredictionSession.open(plan, open_ledger(ledger), run_identity=run_identity)


def release(
    plan: Plan,
    ledger: Ledger | None = None,
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
    return run(
        plan,
        open_ledger(ledger),
        registry or Registry.load(),
        run_identity=run_identity,
        spend_again=spend_again,
    )


def sql(
    text: str,
    *,
    epsilon: object | None = None,
    delta: object | None = None,
    error: str | None = None,
    rows: int | None = None,
    scope: str | None = None,
    blocks: Sequence[str] | None = None,
    revision: int | None = None,
    min_units: int | None = None,
    noise: str | None = None,
    tables: Sequence[PrivateTable | Table | Path | str] = (),
    parameters: Mapping[str, Any] | Sequence[Any] = (),
    ledger: Ledger | Path | str | None = None,
    registry: Registry | None = None,
) -> SqlAnswer | SqlPlan:
    """Answer a SELECT over a declared table: charge, draw, settle, and compute the answer from what
    was released. The same query again is free, also in another spelling; with EXPLAIN before it
    only its plan is made.

    Options may also stand in a leading comment of the query, such as ``-- dp: epsilon=0.5``; one
    that is given twice is an error.

    Args:
        epsilon, delta: what may be spent.
        error: instead of epsilon: the half-width at 95 % that every number may have, ``"100"`` or
            ``"5%"``.
        rows: with ``error``: how many rows a group is taken to have.
        scope: which budget pays; that of ``dpflow.yml`` if left out.
        blocks: the blocks that are read; WHERE may name them, too.
        revision: a number that nobody used pays for a new draw; if left out, the newest stored
            answer whose errors are small enough is taken.
        min_units: units that a private key needs to be shown.
        noise: ``"laplace"``, which a scope with filter ``basic`` can pay, or ``"gaussian"``; what makes
            errors smaller if left out.
        tables: declarations, or their files; those of ``dpflow.yml`` if left out.
        parameters: values of ``$name``, ``$1`` or ``?``; each stays one literal.
        ledger: as `open_ledger` takes it.

    Raises:
        SqlRefused: outside of what can be answered; it has the rule, the place and the nearest query.
        BudgetExceeded: the scope cannot pay; nothing was read.
    """
    # It brings a parser, which nobody else needs to wait for.
    from dpflow.analyst_sql.query_plan import answer_sql, plan_sql

    options = {
        "epsilon": epsilon,
        "delta": delta,
        "error": error,
        "rows": rows,
        "scope": scope,
        "blocks": [blocks] if isinstance(blocks, str) else blocks,
        "revision": revision,
        "min_units": min_units,
        "noise": noise,
    }
    registry, book = registry or Registry.load(), open_ledger(ledger)
    plan = plan_sql(text, options, tables, parameters, book, registry)
    return plan if plan.source.explain else answer_sql(plan, book, registry)
