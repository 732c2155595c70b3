"""The plan of a task's query."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.analyst_sql.answer.sql_plan import SqlPlan
    from dpflow.analyst_sql.releases.own_charges import IdentifyPart
    from dpflow.engine.releases.scope_filters import ScopeFilters
    from dpflow.ledger import Ledger
    from dpflow.registry import Registry

#: Arguments of the operator that decide what it charges.
QUERY_FIELDS = (
    *("sql", "parameters", "blocks", "epsilon", "delta", "scope", "tables", "output_table"),
    "ordinal",
)


def plan_query(
    arguments: Mapping[str, Any],
    folder: Path,
    registry: Registry,
    ledger: Ledger | None = None,
    filters: ScopeFilters | None = None,
    identify: IdentifyPart | None = None,
) -> SqlPlan:
    """The plan of one task's query in one run, which draws for itself: stored answers of others are
    not looked for.

    Args:
        arguments: `QUERY_FIELDS` of the operator, with their templates filled in; ``blocks`` only if
            the operator names some.
        ledger: whose grants say which noise the scope can hold, unless ``filters`` does.
        identify: the run identity of a part: what the run was charged for an error keeps its price.

    Raises:
        InvalidInput: a query that is refused, or that no task may ask.
    """
    from dpflow.analyst_sql.answer.publish_answer import find_output
    from dpflow.analyst_sql.answer.query_plan import plan_sql
    from dpflow.analyst_sql.parse.text_and_options import read_source

    if "bounds" in read_source(arguments["sql"]).options:
        raise InvalidInput(
            "the query names a search in bounds, and in a task that would be the search of its own run, which SQL does not "
            "look for; ask for the sum by ReleaseOperator, which does"
        )
    output = arguments.get("output_table")
    options = {name: arguments.get(name) for name in ("epsilon", "delta", "scope")}
    options |= {"blocks": arguments.get("blocks"), "name": output}
    plan = plan_sql(
        arguments["sql"],
        options,
        [folder / table for table in arguments.get("tables") or ()],
        () if arguments.get("parameters") is None else arguments["parameters"],
        ledger,
        registry,
        folder,
        look_up=False,
        filters=filters,
        identify_part=identify,
    )
    if plan.source.explain:
        raise InvalidInput(
            "the query begins with EXPLAIN, which charges nothing, and this task pays for an answer; take "
            "EXPLAIN out, or ask with dpflow sql what it would cost"
        )
    if plan.settings.revision is not None:
        raise InvalidInput(
            "the query names a revision, and in a task each run draws for itself; leave revision out, and "
            "use ordinal for a second draw in one run"
        )
    if output is not None:
        find_output(plan, output, folder)
    return plan
