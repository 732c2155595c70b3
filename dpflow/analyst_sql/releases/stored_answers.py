"""What may be answered from a stored release, at no cost: exactly these.

- another spelling, other columns of its answer, another order, HAVING, LIMIT;
- conditions on grouping columns, which keep or drop whole groups;
- counts and sums over public keys that hold all rows (`find_incomplete`), added up over one release's cells;
- means where the same release has the sum and the number of values.

Such an answer has the error and the truncation of the release that it comes from. COUNT(DISTINCT),
quantiles, variances, and anything over privately selected keys do not add up: `explain_payment`
says so.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import count
from typing import Any

from dpflow.analyst_sql.parse.select_query import ADDITIVE, SelectQuery, SqlAggregate
from dpflow.analyst_sql.parse.value_columns import declare_computed
from dpflow.analyst_sql.releases.cells import (
    Cells,
    add_up,
    error_sizes,
    find_excess,
    make_width,
    read_cells,
)
from dpflow.analyst_sql.releases.complete_keys import find_incomplete
from dpflow.analyst_sql.releases.query_parts import (
    PartPlan,
    QueryPart,
    is_private_node,
    release_name,
)
from dpflow.analyst_sql.releases.row_states import group_by_rows
from dpflow.analyst_sql.releases.settings import Settings, Target
from dpflow.analyst_sql.releases.target_errors import error_share
from dpflow.core.contract.contribution import RequestedBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result, Row
from dpflow.engine.planning.precheck import find_snapshot
from dpflow.engine.releases.choose_bounds import follow_request
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.own_histogram import follow_result
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import UNKNOWN_FILTERS
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.ledger import Ledger, ReleaseRecord, SettledRequest, make_slot
from dpflow.registry import Registry
from dpflow.tables import declare_groups
from dpflow.tables.language.conditions import keep_parsed, parse_condition
from dpflow.tables.language.grouping import parse_groups, parse_row_expression
from dpflow.tables.language.key_tests import (
    COMPARED,
    list_block_conditions,
    make_key_filter,
    make_key_test,
    split_nodes,
)
from dpflow.tables.language.nodes import Node


@dataclass(frozen=True)
class Stored:
    """A settled release of an earlier query.

    Attributes:
        part: what of it answers, with the labels that it has in the release.
        groups: its own grouping.
        conditions: its own conditions, as texts.
    """

    record: ReleaseRecord
    plan: Plan
    part: QueryPart
    groups: tuple[Node, ...]
    conditions: frozenset[str]
    at: dt.datetime
    run: str

    @property
    def result(self) -> Result:
        """What was released."""
        result = Result.from_json(self.record.result or {})
        return result.follow_declaration(self.plan.table.largest_text)


def identify_query(plan: Plan, principal: str | None = None) -> RunIdentity:
    """The run of an ad-hoc query: its revision. Each plan has a slot of its own, since a better
    price is another release and no changed retry.
    """
    run = RunIdentity.of_request(plan.request, principal)
    slot = make_slot(plan.request.scope, run.name, plan.version_independent_digest)
    return RunIdentity("", "", run.name, slot, run.principal)


class StoredReleases:
    """The settled releases of one asker's queries in a scope, the newest first.

    They are chosen by their requests alone; only what may answer is read, and proved, one by one.
    """

    def __init__(self, ledger: Ledger, settings: Settings, registry: Registry) -> None:
        self._ledger, self._settings, self._registry = ledger, settings, registry
        self._plans: dict[str, Plan | None] = {}
        self._list_settled = cache(partial(ledger.settled_requests, settings.scope))

    def _list(self, query: SelectQuery) -> list[SettledRequest]:
        """Those of the same rows: of the table, or of the same ones by privacy unit."""
        units = query.table.unit_rows
        made = units and units.to_json()
        settled = self._list_settled(release_name(query.table, self._settings.asker))
        return [one for one in settled if one.request.get("unit_rows") == made]

    def find_all(self, parts: Sequence[PartPlan]) -> list[Stored | None]:
        """What answers each part; of parts that read the same rows releases of one state of them, the newest of which
        all are stored. Where there is none, they are of several states, or missing.
        """
        found: list[Stored | None] = [None] * len(parts)
        for group in group_by_rows(parts):
            for position, stored in zip(group, self._find_group([parts[n] for n in group])):
                found[position] = stored
        return found

    def _find_group(self, parts: Sequence[PartPlan]) -> list[Stored | None]:
        found = [self._choose(part, self._list_serving(part)) for part in parts]
        if None in found or have_one_state(found):
            return found
        serving = [[*self._list_serving(part)] for part in parts]
        for state in dict.fromkeys(one.record.snapshot for one in serving[0]):
            of_state = [
                self._choose(part, (one for one in some if one.record.snapshot == state))
                for part, some in zip(parts, serving)
            ]
            if None not in of_state:
                return of_state
        return found

    def _list_serving(self, asked: PartPlan) -> Iterator[Stored]:
        """Releases that answer a part within the target, or else with an error that is not above the asked one; where
        nothing may be spent with whatever error.
        """
        for settled in self._list(asked.part.queries[0]):
            stored = self._read(settled, asked.part)
            if stored is None or not _has_same_keys(stored, asked):
                continue
            if self._settings.is_free or _is_as_exact(stored, asked, self._settings.target):
                yield stored

    def _choose(self, asked: PartPlan, serving: Iterator[Stored]) -> Stored | None:
        """The newest; where nothing may be spent the newest than which no other is more exact."""
        best = next(serving, None)
        for stored in serving if self._settings.is_free else ():
            if best is None or _is_more_exact(stored, best, asked):
                best = stored
        return best

    def renew(
        self, parts: Sequence[PartPlan], found: Sequence[Stored | None]
    ) -> tuple[list[PartPlan], list[Stored | None], list[str]]:
        """Parts, what answers them, and why some are paid although they are stored: beside parts that read the same rows
        and are drawn now, only releases of the rows as they are now serve. A retry takes what it was charged with.

        Raises `PlanRefused` where a revision that was asked for has some of them, of rows before they changed.
        """
        renewed, kept, reasons = [*parts], [*found], list[str]()
        for group in group_by_rows(parts):
            if len(group) == 1 or have_one_state([found[n] for n in group]):
                continue
            is_stored = all(found[n] is not None for n in group)
            if self._settings.is_free:
                if is_stored:
                    reasons.append("what is stored of its parts is of several states of the rows")
                    kept = [None if n in group else one for n, one in enumerate(kept)]
                continue
            records = {
                n: self._find_own(parts[n]) if (one := found[n]) is None else one.record
                for n in group
            }
            states = {
                n: find_snapshot(parts[n].plan, self._ledger)
                for n, record in records.items()
                if record is not None and record.settled
            }
            old = {
                n: f"release {record.release_id} is of an earlier state of the file"
                for n, record in records.items()
                if record is not None and states.get(n, "") not in ("", record.snapshot)
            }
            if not old:
                continue
            is_charged = any(one is not None and not one.settled for one in records.values())
            if self._settings.revision is None:
                fresh = {n: self._take_revision(parts[n], states[n]) for n in old}
                if not is_charged or any(map(self._find_own, fresh.values())):
                    for n, part in fresh.items():
                        serving = self._list_serving(parts[n])
                        of_now = (one for one in serving if one.record.snapshot == states[n])
                        kept[n] = self._choose(parts[n], of_now)
                        if kept[n] is None:
                            renewed[n] = part
                            reasons.append(f"{old[n]}, so this is new, as the rest of the query")
                    continue
            elif not is_charged and not is_stored:
                raise PlanRefused(
                    f"{'; '.join(old.values())}, and the rest of revision {self._settings.revision} would be of the rows as they "
                    f"are now; ask for an unused revision"
                )
            reasons += [f"{one}, so this answer has no intervals" for one in old.values()]
        return renewed, kept, reasons

    def _find_own(self, part: PartPlan) -> ReleaseRecord | None:
        """What was charged for a part at its own price and revision."""
        return self._ledger.find(identify_query(part.plan).key(part.plan))

    def _take_revision(self, part: PartPlan, state: str) -> PartPlan:
        """A part in the first revision that has no result of other rows than those of a state."""
        request = part.plan.request
        for revision in count(1):
            changed = request.model_copy(update={"revision": revision})
            part = replace(part, plan=replace(part.plan, request=changed))
            record = self._find_own(part)
            if record is None or not record.settled or record.snapshot == state:
                break
        return part

    def has_rows(self, query: SelectQuery) -> bool:
        """Whether some release may have read the rows of a SELECT, whatever it was asked of them."""
        filters = [one.condition for one in query.aggregates if one.condition is not None]
        asked = {str(one) for node in (*query.conditions, *filters) for one in split_nodes(node)}
        known = (_read_conditions(one.request, query) for one in self._list(query))
        return any(one is not None and one <= asked for one in known)

    def has_any(self, part: QueryPart) -> bool:
        """Whether some release answers a part, at whatever price."""
        return any(self._read(one, part) is not None for one in self._list(part.queries[0]))

    def explain_payment(self, part: QueryPart) -> str | None:
        """Why a part is paid although a finer release of the same rows is there; None without one."""
        query = part.queries[0]
        asked = set(list_conditions(part, query.table))
        for settled in self._list(query):
            request, release_id = settled.request, settled.release_id
            groups = _read_groups(request, query)
            if groups is None or not set(query.groups) < set(groups):
                continue
            conditions = _read_conditions(request, query)
            if conditions is None or not conditions <= asked:
                continue
            rest = [one for one in part.measures if one.kind not in ADDITIVE]
            if rest:
                return f"{rest[0]} does not add up over the groups of release {release_id}, so it is new"
            if any(is_private_node(query.table, one) for one in groups):
                return (
                    f"the keys of release {release_id} were selected privately, and what was not selected is "
                    f"missing in its sums, so this is new"
                )
            if incomplete := find_incomplete(query, groups):
                return f"rows without a key of {incomplete} are in no group of release {release_id}, so this is new"
        return None

    def _read(self, settled: SettledRequest, part: QueryPart) -> Stored | None:
        """A stored release as the answer of a part; None if it is none."""
        request, query = settled.request, part.queries[0]
        params: Mapping[str, Any] = request.get("params", {})
        if request.get("mechanism") != part.mechanism or sorted(
            request.get("blocks", ())
        ) != sorted(query.blocks):
            return None
        # Bounds that a query fixes are part of its question.
        searches = tuple(request.get("bounds", ()))
        if (self._settings.bounds, part.searches) != (_read_bounds(request), searches):
            return None
        if (measures := find_labels(part, params)) is None:
            return None
        groups, conditions = _read_groups(request, query), _read_conditions(request, query)
        if groups is None or conditions is None or not _covers(part, groups, conditions):
            return None
        # The plan of today's declaration must be the one that was paid: its key says so.
        plan = self._make_plan(request, part, params)
        if plan is None or plan.digest != settled.digest:
            return None
        settlement = self._ledger.settlement(settled.release_id)
        _, _, revision = settlement.run.rpartition("#")
        if not revision.isdecimal() or self._settings.revision not in (None, int(revision)):
            return None
        request_then = plan.request.model_copy(update={"revision": int(revision)})
        record = self._ledger.find(RunIdentity.of_request(request_then).key(plan))
        if record is None or record.release_id != settled.release_id or not record.settled:
            return None
        plan = follow_result(plan, Result.from_json(record.result or {"rows": []}))
        answered = replace(part, table=plan.table, measures=measures)
        return Stored(record, plan, answered, groups, conditions, settlement.at, settlement.run)

    def _make_plan(
        self, request: Mapping[str, Any], part: QueryPart, params: Mapping[str, Any]
    ) -> Plan | None:
        """The plan of a stored release under the declaration of now; None if it has no such columns."""
        # Revisions of one query have one plan.
        names = (
            "name",
            "unit_rows",
            "where",
            "blocks",
            "bounds",
            "contribution_bounds",
            "chosen_bounds",
            "own_histogram",
        )
        terms = [part.mechanism, params, *map(request.get, names)]
        text = json.dumps(terms, sort_keys=True)
        if text not in self._plans:
            self._plans[text] = self._plan_again(request, part, params)
        return self._plans[text]

    def _plan_again(
        self, stored: Mapping[str, Any], part: QueryPart, params: Mapping[str, Any]
    ) -> Plan | None:
        declared = table = part.queries[0].table
        try:
            if (by := params.get("by")) is not None and by not in table.columns:
                table, _ = declare_groups(table, by)
            for name in _columns_of(params):
                if name not in declared.columns:
                    table, _ = declare_computed(table, parse_row_expression(name, declared))
            request = ReleaseRequest(
                name=release_name(declared, self._settings.asker),
                mechanism=part.mechanism,
                table=table,
                scope=self._settings.scope,
                params={name: value for name, value in params.items() if value is not None},
                blocks=tuple(stored.get("blocks", ())),
                where=stored.get("where"),
                bounds=tuple(stored.get("bounds", ())),
                contribution_bounds=_read_bounds(stored),
            )
            ledger = self._ledger if request.bounds else None
            plan = make_plan(request, self._registry, ledger, filters=UNKNOWN_FILTERS)
            return follow_request(plan, stored)
        except InvalidInput:
            return None


def have_one_state(stored: Sequence[Stored | None]) -> bool:
    """Whether all is stored, and of one state of the rows."""
    return len({one and one.record.snapshot for one in stored}) == 1 and None not in stored


def has_one_state(parts: Sequence[PartPlan], stored: Sequence[Stored | None]) -> bool:
    """Whether all of a query is stored, and parts that read the same rows are of one state of them."""
    return all(have_one_state([stored[n] for n in group]) for group in group_by_rows(parts))


def _covers(part: QueryPart, groups: tuple[Node, ...], conditions: frozenset[str]) -> bool:
    """Whether rows and groups of a stored release are enough for a part."""
    query = part.queries[0]
    asked = list_conditions(part, query.table)
    extra = set(asked) - conditions
    if not conditions <= set(asked) or not set(query.groups) <= set(groups):
        return False
    on_groups = {str(node) for node in list_group_conditions(query)}
    tests = [make_key_test(asked[text], groups, query.table) for text in extra]
    if not extra <= on_groups or any(test is None or not test.is_exact for test in tests):
        return False
    if set(query.groups) == set(groups):
        return True
    table = query.table
    return (
        part.mechanism == "aggregates"
        and all(one.kind in ADDITIVE for one in part.measures)
        and not any(is_private_node(table, node) for node in groups)
        and not find_incomplete(query, groups)
    )


def _read_groups(request: Mapping[str, Any], query: SelectQuery) -> tuple[Node, ...] | None:
    """The groups of a stored request; None where the table has no such columns."""
    by = request.get("params", {}).get("by")
    if request.get("mechanism") in ("arg_max", "histogram") or by is None:
        return ()
    return _read_stored_groups(by, query.table)


def _read_conditions(request: Mapping[str, Any], query: SelectQuery) -> frozenset[str] | None:
    """The parts of its condition, as texts."""
    where = request.get("where")
    return frozenset() if where is None else _read_stored_condition(where, query.table)


@keep_parsed
def _read_stored_groups(by: str, table: Table) -> tuple[Node, ...] | None:
    """The groups that a release was asked for; None where the table has no such columns."""
    if by in table.columns:
        return (Node("column", (table.split_name(by),)),)
    try:
        return parse_groups(by, table)
    except InvalidInput:
        return None


@keep_parsed
def _read_stored_condition(where: str, table: Table) -> frozenset[str] | None:
    """The parts of a release's condition, as texts; None where the table has no such columns."""
    try:
        return frozenset(map(str, split_nodes(parse_condition(where, table))))
    except InvalidInput:
        return None


def _read_bounds(request: Mapping[str, Any]) -> RequestedBounds | None:
    requested = request.get("contribution_bounds")
    return None if requested is None else RequestedBounds.model_validate(requested)


def find_cells(stored: Stored, query: SelectQuery) -> Cells:
    """The answer of a stored release: its groups, those that conditions drop left out, or their
    sums.
    """
    cells = read_cells(stored.part, stored.plan, stored.result, stored.groups)
    # Those that the release had itself, too: it has a number for every declared key.
    cells = keep_cells(cells, query, stored.groups)
    return cells if stored.groups == query.groups else add_up(cells, stored.groups, query.groups)


def list_group_conditions(query: SelectQuery) -> list[Node]:
    """What WHERE demands, each part by itself. A FILTER drops no group, so none is in it."""
    return [part for node in query.conditions for part in split_nodes(node)]


def keep_cells(cells: Cells, query: SelectQuery, groups: Sequence[Node]) -> Cells:
    """The groups whose keys fulfil all conditions of WHERE that are ones on keys."""
    conditions = [*list_group_conditions(query), *_conditions_below(query.table)]
    conditions += list_block_conditions(query.table, query.blocks or ())
    may_pass = make_key_filter(conditions, groups, query.table)
    return {key: cell for key, cell in cells.items() if may_pass(key)}


def _conditions_below(table: Table) -> list[Node]:
    """Of rows by privacy unit, what the rows below fulfil, with keys under their names above."""
    units = table.unit_rows
    if units is None:
        return []
    names = {text: Node("column", ((name,),)) for name, text in units.keys}
    where = units.where and parse_condition(units.where, units.rows)
    below = split_nodes(where or None)
    renamed = (_rename_keys(one, names) for one in [*below, *_conditions_below(units.rows)])
    return [node for node in renamed if node is not None]


def _rename_keys(node: Node, names: Mapping[str, Node]) -> Node | None:
    """A condition on keys alone by their new names; None for any other."""
    if node.op in ("AND", "OR", "NOT"):
        parts = [_rename_keys(arg, names) for arg in node.args]
        return None if None in parts else Node(node.op, tuple(parts))
    if node.op not in (*COMPARED, "IN") or (key := names.get(str(node.args[0]))) is None:
        return None
    return Node(node.op, (key, *node.args[1:]))


def list_conditions(part: QueryPart, table: Table) -> dict[str, Node]:
    """What a part demands of rows, by text."""
    node = None if part.where is None else parse_condition(part.where, table)
    return {str(one): one for one in split_nodes(node)}


def _columns_of(params: Mapping[str, Any]) -> Iterator[str]:
    """Columns that a stored release's parameters name, but for the grouping."""
    names = [measure.get("column") for measure in params.get("measures", ())]
    yield from (name for name in [*names, params.get("column")] if name)


def find_labels(part: QueryPart, params: Mapping[str, Any]) -> dict[SqlAggregate, str] | None:
    """What a stored release calls a part's aggregates; None if it lacks one."""
    if part.mechanism in ("aggregates", "private_aggregates"):
        names = {
            (m["measure"] if m.get("column") is None else f"{m['measure']}({m['column']})")
            for m in params.get("measures", ())
        }
    elif part.mechanism == "quantiles":
        if params.get("column") != part.params["column"]:
            return None
        names = {f"quantile {Fraction(share)}" for share in params.get("quantiles", ())}
    else:
        if params.get("by") != part.params["by"]:
            return None
        names = set(part.measures.values())
    return dict(part.measures) if set(part.measures.values()) <= names else None


def _has_same_keys(stored: Stored, asked: PartPlan) -> bool:
    """Whether private keys were selected as they are asked for: those that more units must have are other keys."""
    if not asked.part.private:
        return True
    plans = (stored.plan.question or stored.plan, asked.plan.question or asked.plan)
    drawn, wanted = (plan.params.min_units for plan in plans)  # type: ignore[attr-defined]
    return bool(drawn == wanted)


def _is_as_exact(stored: Stored, asked: PartPlan, target: Target | None) -> bool:
    """Whether what was drawn is within the target; without one, whether no error of the stored release is
    above the asked one, by the bounds of the question: what a profile chose for one of them is not compared.
    """
    if target is not None:
        drawn = PartPlan(stored.part, stored.plan, _count_added(stored, asked) * asked.cells)
        return error_share(target, drawn) <= 1
    wanted = error_sizes(asked.part, asked.plan.question or asked.plan)
    got = _find_errors(stored, asked)
    return all(label in got and got[label] <= size for label, size in wanted.items())


def _is_more_exact(stored: Stored, other: Stored, asked: PartPlan) -> bool:
    """Whether no error of a stored release is above that of another one, and some is below."""
    errors, others = _find_errors(stored, asked), _find_errors(other, asked)
    return errors != others and all(
        size <= others.get(label, math.inf) for label, size in errors.items()
    )


def _count_added(stored: Stored, asked: PartPlan) -> int:
    """How many numbers of a stored release are added up for one that is asked for."""
    plan, asked_plan = (one.question or one for one in (stored.plan, asked.plan))
    # A method without groups has no field for them.
    by: Any = getattr(plan.params, "by", None)
    coarser: Any = getattr(asked_plan.params, "by", None)
    if by == coarser or asked.part.mechanism != "aggregates":
        return 1
    groups = 1 if coarser is None else len(asked_plan.table.public_keys(coarser))
    return len(plan.table.public_keys(by)) // groups


def _find_errors(stored: Stored, asked: PartPlan) -> dict[str, float]:
    """Errors of a part's aggregates where a stored release answers it, by label."""
    plan, cells = stored.plan.question or stored.plan, _count_added(stored, asked)
    sizes = dict(error_sizes(stored.part, plan))
    # The errors are those of sums of as many noises.
    for label in sizes if cells > 1 else ():
        width = make_width(plan, Row("", label, None), cells)(1)
        sizes[label] = math.inf if width is None else width + find_excess(plan, label)
    return sizes
