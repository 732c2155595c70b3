"""From a query to releases of existing mechanisms: which, of what, and at which part of the privacy
cost.

Counts, sums, means and variances of all columns and filters are one release of `aggregates`, or of
`private_aggregates` where a key is private: one scan, one truncation. Quantiles of one column are
one more, units under a FILTER another. All of them are charged together, or none is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from dpflow.analyst_sql.parse.select_query import SelectQuery, SqlAggregate, join_conditions
from dpflow.analyst_sql.parse.text_and_options import Refusal, refusal_of
from dpflow.analyst_sql.parse.value_columns import declare_value
from dpflow.analyst_sql.releases.settings import Settings
from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.engine.releases.choose_bounds import BoundsChooser
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.released_bounds import find_search
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import InvalidInput, PlanRefused, TableError, UnknownName
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import check_request, declare_groups
from dpflow.tables.language.nodes import Node

#: Measures of `aggregates` by kind.
_MEASURES = {
    "count": "count",
    "units": "count_distinct",
    "values": "sum",
    "sum": "sum",
    "mean": "mean",
    "variance": "variance",
}
#: Parts of epsilon and of delta are whole numbers of these.
_EPSILON_STEP, _DELTA_STEP = Fraction(1, 10**9), Fraction(1, 10**15)


@dataclass(frozen=True)
class QueryPart:
    """One release of a query before it has a price.

    Attributes:
        queries: the SELECTs that it is for: all read the same rows in the same groups.
        table: the declaration with all columns that it needs.
        params: the mechanism's parameters but for the privacy cost.
        measures: for each aggregate, what the release calls it.
        where: the condition on rows.
        private: keys are selected privately, so it needs a delta.
        searches: names of the searches whose clamping bounds its sums take.
    """

    queries: tuple[SelectQuery, ...]
    mechanism: str
    table: Table
    params: Mapping[str, Any]
    measures: Mapping[SqlAggregate, str]
    where: str | None
    private: bool = False
    searches: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartPlan:
    """A part with the plan that answers it.

    Attributes:
        cells: the most numbers of it that are added up for another part.
    """

    part: QueryPart
    plan: Plan = field(repr=False)
    cells: int = 1


def release_name(table: Table, asker: str = "") -> str:
    """What all queries of a table are called in the ledger, so that they are found again: those of
    people, or of one ``asker`` such as a dbt model.
    """
    return f"sql {table.name} for {asker}" if asker else f"sql {table.name}"


def find_grouping(query: SelectQuery) -> tuple[Table, str | None, bool]:
    """The declaration with the grouping as a column, its name, and whether some key is private."""
    if not query.groups:
        return query.table, None, False
    table, by = declare_groups(query.table, ", ".join(map(str, query.groups)))
    column = table.columns[by]
    names = column.parts if column.parts is not None and len(query.groups) > 1 else (by,)
    return table, by, any(is_private(table, name) for name in names)


def is_private(table: Table, name: str) -> bool:
    """Whether a grouping column's keys are in the rows alone."""
    column = table.columns[name]
    if column.parts is not None:
        return any(is_private(table, part) for part in column.parts)
    return column.public_keys is None


def is_private_node(table: Table, node: Node) -> bool:
    """Whether a grouping expression's keys are in the rows alone."""
    declared, name = declare_groups(table, str(node))
    return is_private(declared, name)


def list_parts(queries: Sequence[SelectQuery]) -> list[QueryPart]:
    """The releases that SELECTs need: those that read the same rows in the same groups share theirs.
    Raises `Refusal`.
    """
    sharing: list[list[SelectQuery]] = []
    for query in queries:
        same = next((one for one in sharing if _read_the_same(one[0], query)), None)
        if same is None:
            sharing.append([query])
        else:
            same.append(query)
    try:
        return [part for one in sharing for part in _list_parts(tuple(one))]
    except InvalidInput as error:
        raise refusal_of(error, None) from None


def _read_the_same(one: SelectQuery, other: SelectQuery) -> bool:
    rows = [(q.table, q.conditions, q.blocks, q.groups) for q in (one, other)]
    return rows[0] == rows[1]


def _list_parts(queries: tuple[SelectQuery, ...]) -> list[QueryPart]:
    query = queries[0]
    table, by, private = find_grouping(query)
    if by is not None and not private:
        # Raises where there are too many cells.
        table.public_keys(by)
    where = join_conditions(query.conditions)
    moments: dict[SqlAggregate, str] = {}
    quantiles: dict[str, dict[SqlAggregate, str]] = {}
    parts: list[QueryPart] = []
    names: list[Any] = []
    columns = table
    for aggregate in dict.fromkeys(one for query in queries for one in query.aggregates):
        kind = aggregate.kind
        if kind == "quantile":
            with_column, name = declare_value(table, aggregate)
            labels = quantiles.setdefault(name, {})
            labels[aggregate] = f"quantile {aggregate.share}"
        elif kind in ("mode", "histogram") or (kind == "units" and aggregate.condition):
            _add_part(parts, _single_part(queries, aggregate, table, by))
        elif kind in ("count", "units") and aggregate.condition is None:
            moments[aggregate] = _MEASURES[kind]
            names.append({"measure": _MEASURES[kind]})
        else:
            columns, name = declare_value(columns, aggregate)
            # Rows under a FILTER are counted by a sum of ones and zeros.
            measure = "sum" if kind == "count" else _MEASURES[kind]
            moments[aggregate] = f"{measure}({name})"
            names.append({"measure": measure, "column": name})
    if moments:
        distinct = {str(one): one for one in names}
        params = {"by": by, "measures": [distinct[text] for text in sorted(distinct)]}
        mechanism = "private_aggregates" if private else "aggregates"
        parts.insert(0, QueryPart(queries, mechanism, columns, params, moments, where, private))
    for labels in quantiles.values():
        with_column, name = declare_value(table, next(iter(labels)))
        shares = sorted({aggregate.share for aggregate in labels if aggregate.share})
        params = {"column": name, "by": by, "quantiles": [exact_text(one) for one in shares]}
        parts.append(QueryPart(queries, "quantiles", with_column, params, labels, where))
    for part in parts if private else ():
        if not part.private:
            aggregate = next(iter(part.measures))
            part_of_text = query.parsed.get(aggregate)
            raise Refusal(
                "public-keys",
                "quantiles, MODE, HISTOGRAM and filtered units are released for public keys only, and "
                f"{', '.join(map(str, query.groups))} has private ones; declare its public_keys, or leave these out",
                part_of_text,
            )
    return parts


def _add_part(parts: list[QueryPart], part: QueryPart) -> None:
    """Add a release, or what it measures where another one is the same: it is drawn once."""
    for position, one in enumerate(parts):
        if (one.mechanism, one.params, one.where) == (part.mechanism, part.params, part.where):
            parts[position] = replace(one, measures={**one.measures, **part.measures})
            return
    parts.append(part)


def _single_part(
    queries: tuple[SelectQuery, ...], aggregate: SqlAggregate, table: Table, by: str | None
) -> QueryPart:
    """MODE, HISTOGRAM, and units under a FILTER, which becomes a part of WHERE."""
    conditions = {str(one): one for one in queries[0].conditions}
    if aggregate.condition is not None:
        conditions[str(aggregate.condition)] = aggregate.condition
    where = join_conditions(tuple(conditions[text] for text in sorted(conditions)))
    if aggregate.kind == "units":
        counts = {aggregate: "count_distinct"}
        return QueryPart(queries, "count_distinct", table, {"by": by}, counts, where)
    if by is not None:
        raise Refusal(
            "grouped-mode",
            f"{aggregate.kind.upper()} is of the whole table; to have it by group, group by its column, too, and count",
            queries[0].parsed.get(aggregate),
        )
    assert aggregate.value is not None
    name = ".".join(aggregate.value.args[0])
    if aggregate.kind == "mode":
        return QueryPart(queries, "arg_max", table, {"by": name}, {aggregate: "rank"}, where)
    return QueryPart(queries, "histogram", table, {"by": name}, {aggregate: "count"}, where)


def name_searches(
    parts: Sequence[QueryPart], names: Sequence[str], scope: str, ledger: Ledger | None
) -> list[QueryPart]:
    """The parts with the searches for clamping bounds that their sums take. Raises `Refusal` for one that no sum takes."""
    for name in names:
        if ledger is None:
            raise PlanRefused(
                f"bounds are taken from {name!r}, a release in the ledger; name the ledger"
            )
        column = find_search(ledger, scope, name).request["params"]["column"]
        summed = {"measure": "sum", "column": column}
        taking = [summed in part.params.get("measures", ()) for part in parts]
        if not any(taking) or any(part.table.unit_rows for part in parts):
            raise Refusal(
                "bounds",
                f"bounds names {name!r}, which searched {column}, and only SUM({column}) of the table's own rows takes what it "
                f"found; leave bounds out, or write the numbers that it found, such as SUM(least({column}, 100))",
            )
        parts = [
            replace(part, searches=(*part.searches, name)) if takes else part
            for part, takes in zip(parts, taking)
        ]
    return list(parts)


def price_parts(
    parts: Sequence[QueryPart], settings: Settings, registry: Registry, chooser: BoundsChooser
) -> list[PartPlan]:
    """Plans of all parts, which divide epsilon and delta by how many aggregates each has. Raises `Refusal`.

    Args:
        chooser: chooses contribution bounds by released profiles where nobody asks for some.
    """
    assert settings.epsilon is not None
    weights = [len(part.measures) for part in parts]
    # Laplace noise for public keys is pure: it has no use for a delta.
    pure = {"histogram", "count_distinct"} | (
        {"aggregates"} if settings.noise == "laplace" else set()
    )
    takers = [weight * (part.mechanism not in pure) for part, weight in zip(parts, weights)]
    shares = _divide_amount(settings.epsilon, weights, _EPSILON_STEP)
    plans = []
    for part, epsilon, delta in zip(
        parts, shares, _divide_amount(settings.delta, takers, _DELTA_STEP)
    ):
        query = part.queries[0]
        if part.private and not delta:
            raise Refusal(
                "private-keys",
                f"{', '.join(map(str, query.groups))} has private keys, and selecting them needs a delta: the chance that "
                f"a key of one unit shows; add -- dp: delta=1e-6, or declare public_keys",
                _find_private_part(part),
                option=("delta", "1e-6"),
            )
        cost: dict[str, Any] = {"epsilon": exact_text(epsilon)}
        if delta:
            cost["delta"] = exact_text(delta)
        if part.private:
            cost["min_units"] = settings.min_units
        if settings.noise != "auto" and part.mechanism in ("aggregates", "private_aggregates"):
            cost["noise"] = settings.noise
        try:
            request = ReleaseRequest(
                name=release_name(query.table, settings.asker),
                mechanism=part.mechanism,
                table=part.table,
                scope=settings.scope,
                params={**part.params, **cost},
                blocks=query.blocks,
                where=part.where,
                bounds=part.searches,
                contribution_bounds=settings.bounds,
                revision=settings.revision or 1,
            )
            # It has the searches that the part names.
            ledger = chooser.ledger if part.searches else None
            plan = make_plan(request, registry, ledger, filters=settings.filters)
        except PlanRefused as error:
            names_none = query.table.protects == "unit-block" and not query.blocks
            raise refusal_of(error, None, "blocks" if names_none else "plan") from None
        plans.append(PartPlan(part, plan if part.searches else chooser.fit(plan)))
    return plans


def _find_private_part(part: QueryPart) -> Any:
    """Where the text groups by a key that is in the rows alone."""
    query = part.queries[0]
    private = (node for node in query.groups if is_private_node(query.table, node))
    return next((query.parsed.get(node) for node in private), None)


def find_misfit(part: QueryPart, blocks: Sequence[str]) -> Any:
    """The part of the text whose types do not fit the source; None where it is none by itself."""
    for query in part.queries:
        for read, parsed in query.parsed.items():
            nodes = [read] if isinstance(read, Node) else [read.condition, read.value]
            for node in filter(None, nodes):
                # Of anything it is a condition, and looks at the types inside.
                condition = str(Node("IS NULL", (node,)))
                try:
                    check_request(query.table, condition, GroupedSums(), blocks)
                except (PlanRefused, UnknownName):
                    return parsed
                except TableError:
                    return None
    return None


def _divide_amount(amount: Fraction, weights: Sequence[int], step: Fraction) -> list[Fraction]:
    """Parts of an amount by weight, in whole steps; together they are no more than it."""
    total = sum(weights)
    if not total:
        return [Fraction(0)] * len(weights)
    parts = [amount * weight / total // step * step for weight in weights]
    # What rounding left goes to the first that has a weight.
    first = next(i for i, weight in enumerate(weights) if weight)
    parts[first] += amount - sum(parts)
    return parts


def split_key(key: str, groups: Sequence[Node]) -> list[str]:
    """A released key as the keys of the single groups."""
    if not groups:
        return []
    return [str(one) for one in json.loads(key)] if len(groups) > 1 else [key]
