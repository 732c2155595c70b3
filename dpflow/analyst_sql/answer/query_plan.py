"""A query from its text to its answer: parse, plan, look for stored releases, charge, compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.answer.answers import compute_answer
from dpflow.analyst_sql.answer.guarded_query import guard_query
from dpflow.analyst_sql.answer.sql_answer import Origin, SqlAnswer
from dpflow.analyst_sql.answer.sql_plan import CHOSEN_KEYS, SqlPlan, describe_min_units
from dpflow.analyst_sql.noise.released_tables import expect_tables, fill_extremes, fill_samples
from dpflow.analyst_sql.parse.query_reader import read_query
from dpflow.analyst_sql.parse.select_query import SplitQuery, write_sql
from dpflow.analyst_sql.parse.text_and_options import Refusal, SourceText, read_source, refusal_of
from dpflow.analyst_sql.parse.value_columns import describe_missing
from dpflow.analyst_sql.releases.cells import Cells, find_cells_by_query, read_cells
from dpflow.analyst_sql.releases.grouping_levels import (
    PlannedParts,
    add_levels,
    plan_levels,
)
from dpflow.analyst_sql.releases.own_charges import IdentifyPart, OwnCharges, identify_asker
from dpflow.analyst_sql.releases.query_parts import (
    PartPlan,
    QueryPart,
    find_misfit,
    list_parts,
    name_searches,
    price_parts,
)
from dpflow.analyst_sql.releases.row_states import group_by_rows
from dpflow.analyst_sql.releases.settings import (
    Settings,
    Target,
    find_public_table,
    make_finder,
    merge_options,
    read_settings,
)
from dpflow.analyst_sql.releases.spellings import list_sums, move_filters, replace_means
from dpflow.analyst_sql.releases.stored_answers import (
    Stored,
    StoredReleases,
    find_cells,
    has_one_state,
    identify_query,
    keep_cells,
    list_conditions,
)
from dpflow.analyst_sql.releases.target_errors import find_epsilon, require_target
from dpflow.analyst_sql.releases.typed_keys import KeyReader
from dpflow.core.accounting.events import DiscreteGaussian
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.question_text import shorten_question
from dpflow.core.contract.results import NONE
from dpflow.engine.planning.precheck import find_source_fault
from dpflow.engine.releases.choose_bounds import BoundsChooser
from dpflow.engine.releases.execute import TYPES, release_all
from dpflow.engine.releases.own_histogram import follow_result
from dpflow.engine.releases.receipt import Receipt
from dpflow.engine.releases.release_list import follow_receipt
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.engine.releases.total_intervals import describe_unmeasured
from dpflow.error_boundary import errors_end_here
from dpflow.errors import InvalidInput, PlanRefused, QueryStopped, UnknownName
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.kept_sources import close_sources, keep_sources_open
from dpflow.tables.public.query_process import PROCESS, QueryRejected, RowTable

IdentifyRun = Callable[[int], RunIdentity]


@keep_sources_open()
def plan_sql(
    text: str,
    options: Mapping[str, Any],
    tables: Sequence[Table | Path | str] = (),
    parameters: Mapping[str, Any] | Sequence[Any] = (),
    ledger: Ledger | None = None,
    registry: Registry | None = None,
    folder: Path | None = None,
    look_up: bool = True,
    asker: str = "",
    filters: ScopeFilters | None = None,
    find_public: Callable[[str], RowTable | None] | None = None,
    identify_part: IdentifyPart | None = None,
) -> SqlPlan:
    """Parse and plan a query, and check what is to pay against the types of its sources; reads no row
    and charges nothing. EXPLAIN and the answer go by this plan.

    Args:
        look_up: look for stored releases that answer it.
        asker: who asks again and again, such as a dbt model: it pays for draws of its own, and only
            its own stored answers serve. Empty: people, who share theirs.
        filters: say which noise the scope can hold; by default those of the ledger.
        find_public: finds a public table by its name; by default those of ``dpflow.yml``.
        identify_part: the run identity of a part, where an orchestrator knows it: what that run was charged keeps
            its price.

    Raises:
        SqlRefused: it is outside of what can be answered.
        InvalidInput: options that are no options, or a query that is no text.
    """
    source = read_source(text, options.get("dialect"))
    settings = replace(read_settings(merge_options(source.options, options), folder), asker=asker)
    settings = _fit_noise(settings, filters or ScopeFilters(ledger))
    find_table = make_finder(tables, folder)
    find_public = find_public or partial(find_public_table, tables=tables, folder=folder)
    registry = registry or Registry.load()
    keys = KeyReader()
    chooser = BoundsChooser(ledger, takes_histograms=settings.target is None)
    charges = (
        None
        if ledger is None
        else OwnCharges(ledger, registry, identify_part or identify_asker, settings.revision)
    )
    read = source, settings, find_table, find_public, parameters, registry, chooser, charges
    written, query, planned = source.answer(partial(_read_query, *read))
    if settings.is_free and (ledger is None or not look_up):
        raise PlanRefused(
            "epsilon 0 asks for a stored answer, and here each run draws for itself; give an epsilon"
        )
    stored: list[Stored | None] = [None] * len(planned.parts)
    releases, renewals = None, list[str]()
    if ledger is not None and charges is not None and look_up:
        releases = StoredReleases(ledger, settings, registry)
        stored, waiting = releases.find_all(planned.parts), list[PartPlan | None]()
        # The charge of this very question comes before answers of others: else nobody would complete it.
        if not settings.is_free:
            waiting = charges.find_waiting(planned.parts)
            stored = [None if own else one for one, own in zip(stored, waiting)]
            parts = [own or part for own, part in zip(waiting, planned.parts)]
            planned = replace(planned, parts=parts)
        if not has_one_state(planned.parts, stored):
            for other in () if any(waiting) else _spell_otherwise(query, written):
                if found := _find_all(*other, settings, releases, registry, chooser):
                    query, planned, stored = found
                    break
            else:
                parts, stored, renewals = releases.renew(planned.parts, stored)
                planned = replace(planned, parts=parts)
    to_pay = [part for part, one in zip(planned.parts, stored) if one is None]
    _recall_types(planned.parts, stored, keys)
    columns = source.answer(partial(describe_columns, query, source, keys))
    unpaid: list[str] = []
    if ledger is not None and releases is not None:
        reasons = (releases.explain_payment(part.part) for part in to_pay)
        unpaid = [reason for reason in dict.fromkeys([*renewals, *reasons]) if reason]
        if settings.is_free and to_pay:
            raise PlanRefused(
                "; ".join(["no stored answer serves, and epsilon 0 pays for none", *unpaid])
                + "; to pay for a new one, give an epsilon, such as -- dp: epsilon=0.1"
            )
        if settings.target is not None:
            require_target(
                settings.target, [(one, identify_query(one.plan)) for one in to_pay], ledger
            )
    problem = source.answer(partial(_check_sources, to_pay))
    plan = SqlPlan(
        query,
        settings,
        tuple(planned.parts),
        tuple(stored),
        source,
        keys,
        tuple(name for name, _ in columns),
        tuple(kind for _, kind in columns),
        planned.added,
        planned.levels,
        tuple(unpaid),
        problem,
        ledger,
    )
    if settings.target is not None and plan.to_pay:
        source.answer(partial(_require_column_errors, plan, settings.target))
    return plan


def _recall_types(
    parts: Sequence[PartPlan], stored: Sequence[Stored | None], keys: KeyReader
) -> None:
    """Say of which types keys are: those of stored releases as they were kept, others as sources have them now."""
    for one, answer in zip(parts, stored):
        query = one.part.queries[0]
        values = (aggregate.value for select in one.part.queries for aggregate in select.aggregates)
        expressions = set(map(str, filter(None, (*query.groups, *values))))
        if answer is None:
            keys.expect_draw(query.table, expressions)
            continue
        cells = find_cells(answer, query)
        texts = {str(group): [key[n] for key in cells] for n, group in enumerate(query.groups)}
        for cell in cells.values():
            for aggregate, number in cell.items():
                if aggregate.kind == "mode" and number.value is not None:
                    texts.setdefault(str(aggregate.value), []).append(number.value)
        types = answer.record.request.get(TYPES, {})
        keys.recall(query.table, {text: types[text] for text in expressions & types.keys()}, texts)


def _require_column_errors(plan: SqlPlan, target: Target) -> None:
    """Raise `Refusal` where a column that is computed from released numbers may be further off than what is asked for:
    the target is of these numbers.
    """
    width, forecasts = len(plan.columns), plan.forecast_noise()
    for n in range(width):
        is_released = plan.query.find_number(n, width) is not None
        forecast = None if forecasts is None else forecasts[n]
        # Keys that noise chose are none of its numbers.
        if forecast is not None and not (forecast.intervals.noisy and forecast.intervals.sources):
            continue
        known = None if forecast is None or target.relative else forecast.widest_95
        if (known is None and not is_released) or (known or 0) > float(target.size) * (1 + 1e-9):
            would = "depends on what is released" if known is None else f"would be {known:.3g}"
            raise Refusal(
                "target",
                f"error is of each number that is released, and column {plan.columns[n]} is computed from such numbers, or "
                f"has those that noise chose: its own error {would}; give an epsilon, and EXPLAIN shows the noise of each column",
            )


def _fit_noise(settings: Settings, filters: ScopeFilters) -> Settings:
    """What the scope's filters say, and noise that they can hold where nobody asked for one."""
    if not settings.delta:
        return settings
    settings = replace(settings, filters=filters.keep(settings.scope))
    if settings.noise != "auto":
        return settings
    is_held = settings.filters.hold(settings.scope, DiscreteGaussian(Fraction(1)))
    return settings if is_held else replace(settings, noise="laplace")


def _check_sources(parts: Sequence[PartPlan]) -> str:
    """Types against the sources' catalogues, as the releases check them before a charge: what keeps a
    source from being opened now, or "". Raises `Refusal` at the part of the text that does not fit.
    """
    for part in parts:
        try:
            problem = find_source_fault(part.plan)
        except (PlanRefused, UnknownName) as error:
            raise refusal_of(error, find_misfit(part.part, part.plan.request.blocks)) from None
        if problem:
            return problem
    return ""


def _read_query(
    source: SourceText,
    settings: Settings,
    find_table: Callable[[str], Table],
    find_public: Callable[[str], RowTable | None],
    parameters: Mapping[str, Any] | Sequence[Any],
    registry: Registry,
    chooser: BoundsChooser,
    charges: OwnCharges | None,
) -> tuple[SplitQuery, SplitQuery, PlannedParts]:
    """The query as it is written, the one that is planned, and its plans. Raises `Refusal`."""
    written = read_query(source.parse(parameters), find_table, find_public)
    for one in written.releases if source.privacy_unit is not None else ():
        unit = one.table.privacy_unit.column
        if str(source.privacy_unit).casefold() != unit.casefold():
            raise Refusal(
                "declared-columns",
                f"privacy_unit_column is {source.privacy_unit}, and the declaration of {one.table.name!r} protects each {unit}; "
                f"name that column, or leave the option out",
            )
    if any(
        one.table.unit_rows is not None and one.table.unit_rows.keys for one in written.releases
    ):
        asked = settings.bounds.model_dump(exclude_none=True) if settings.bounds else {}
        if asked.keys() - {"groups"}:
            raise Refusal(
                "unit-groups",
                "rows of a person that are made one for each group are not bounded by rows_per_unit or rows_per_group "
                "(max_rows_contributed); say groups=N (max_groups_contributed), and clamp in the query",
            )
    if settings.blocks:
        if any(one.blocks for one in written.releases):
            raise Refusal("blocks", "WHERE names blocks, and so do the options; name them once")
        written = written.replace_releases(lambda one: replace(one, blocks=settings.blocks))
    try:
        query = written.replace_releases(move_filters)
    except InvalidInput as error:
        raise refusal_of(error, None) from None
    return written, query, plan_parts(query, settings, registry, chooser, charges)


#: What DuckDB's checks of a query are called here, and what is true where one fails.
_REJECTED = {
    "function": (
        "volatile",
        "{name} is no deterministic function of released rows, so the same query could have two answers, or read something "
        "else; leave it out, or give its value as a parameter",
    ),
    "relation": ("declared-table", "{name} is no table that the query may read"),
    "sample": ("volatile", "a sample is another one each time; take LIMIT with an order"),
    "statement": (
        "select-only",
        "DuckDB makes several statements of it; write one SELECT, PIVOT with its values in IN (...)",
    ),
    "syntax": ("syntax", "this is not SQL as DuckDB has it"),
}


def describe_columns(
    query: SplitQuery, source: SourceText, keys: KeyReader
) -> list[tuple[str, str]]:
    """Names and DuckDB's types of the answer's columns. DuckDB runs the query over made-up rows, so what it cannot compute, not even
    with NULL where an expression fails, is refused before anything is charged. Raises `Refusal`.
    """
    rejected: QueryRejected | None = None
    tables = expect_tables(query, keys)
    try:
        columns = describe_samples(query, fill_samples(tables))
        try:
            if query.public or any(map(_matches_rows, query.tree.walk())):
                describe_samples(query, fill_extremes(query, tables))
            return columns
        except QueryRejected:
            pass
        raise Refusal(
            "binding",
            "a key may have a value for which the type of what it is matched with has no room, and then DuckDB fails; write "
            "JOIN ... ON in place of USING, or TRY_CAST one of both to the type of the other",
        )
    except QueryRejected as error:
        rejected = error
    if rejected.kind == "query":
        # No released row is there, so DuckDB quotes the query alone.
        what = " ".join(query.describe_error(rejected.text.partition("\n\nLINE")[0]).split())
        raise Refusal("binding", f"DuckDB cannot compute it from released rows: {what[:400]}")
    rule, what = _REJECTED[rejected.kind]
    raise Refusal(rule, what.format(name=rejected.name[:60]), start=source.find_word(rejected.name))


def _matches_rows(part: Any) -> bool:
    """Whether a part of a query brings columns of several relations to one type."""
    is_set = isinstance(part, exp.In | exp.Any | exp.All) and part.find(exp.Query) is not None
    # What a function in FROM makes is matched with nothing.
    is_join = isinstance(part, exp.Join) and not (
        isinstance(part.this, exp.Unnest | exp.Func) or isinstance(part.this.this, exp.Func)
    )
    return is_set or is_join or isinstance(part, exp.SetOperation)


def describe_samples(query: SplitQuery, samples: Sequence[RowTable]) -> list[tuple[str, str]]:
    """Names and types of a query's columns, over made-up rows. Raises `QueryRejected`."""
    try:
        with suppress(QueryStopped):
            # Of these rows it may have no end.
            return PROCESS.run(samples, query.sql, _SAMPLE_SECONDS).columns
        return PROCESS.describe(samples, query.sql).columns
    except QueryRejected as error:
        if error.kind != "query":
            raise
        failure = error
    columns = PROCESS.describe(samples, query.sql).columns
    for tries_joins in (False, True):
        # What it says of a guarded query is of no text that anybody wrote.
        with suppress(QueryRejected):
            with suppress(QueryStopped):
                tree = guard_query(query.tree, PROCESS.list_aggregates(), tries_joins)
                PROCESS.run(samples, write_sql(tree), _SAMPLE_SECONDS)
            return columns
    raise failure


#: Most time of a run over made-up rows.
_SAMPLE_SECONDS = 1.0


def plan_parts(
    query: SplitQuery,
    settings: Settings,
    registry: Registry,
    chooser: BoundsChooser,
    charges: OwnCharges | None = None,
) -> PlannedParts:
    """Its releases at the price or target that is asked for, or that was charged for the target. Raises `Refusal`."""
    parts = list_parts(query.list_releases())
    parts = name_searches(parts, settings.searches, settings.scope, chooser.ledger)
    if settings.is_free:
        # Any price: what is stored has its own. Keys may have been selected with a delta.
        delta = settings.delta or Fraction(1, 10**6)
        settings = replace(settings, epsilon=Fraction(1), delta=delta)

    def plan_at(epsilon: Fraction) -> PlannedParts:
        priced = replace(settings, epsilon=epsilon)
        return plan_levels(parts, lambda some: price_parts(some, priced, registry, chooser))

    if settings.target is not None:
        find = find_epsilon if charges is None else charges.find_price
        return find(settings.target, plan_at)
    if settings.epsilon is None:
        raise InvalidInput(
            "nothing says what may be spent; give an epsilon (--epsilon 0.5, or -- dp: epsilon=0.5), or a target such as "
            "-- dp: error=100"
        )
    return plan_at(settings.epsilon)


def _spell_otherwise(
    query: SplitQuery, written: SplitQuery
) -> Iterator[tuple[SplitQuery, SplitQuery]]:
    """Other spellings that stored releases may answer: with each FILTER where it stands in the text, beside
    which a release may have more, and with means as sums by numbers of values. Each is a query, and the same with
    these releases.
    """
    tried = [query.releases]
    for one, has_means in ((written, True), (query, False), (written, False)):
        spelled = one if has_means else one.replace_releases(list_sums)
        if spelled.releases not in tried:
            tried.append(spelled.releases)
            yield one, spelled


def _find_all(
    query: SplitQuery,
    spelled: SplitQuery,
    settings: Settings,
    releases: StoredReleases,
    registry: Registry,
    chooser: BoundsChooser,
) -> tuple[SplitQuery, PlannedParts, list[Stored | None]] | None:
    """A query as it is spelled, with its plans, if stored releases answer all of it."""
    selects = spelled.list_releases()
    if not all(map(releases.has_rows, selects)):
        return None
    try:
        if not all(map(releases.has_any, list_parts(selects))):
            return None
        if spelled is not query:
            query = replace_means(query)
        planned = plan_parts(query, settings, registry, chooser)
    except Refusal:
        return None
    stored = releases.find_all(planned.parts)
    return (query, planned, stored) if has_one_state(planned.parts, stored) else None


@errors_end_here
def answer_sql(
    plan: SqlPlan,
    ledger: Ledger,
    registry: Registry,
    identify_run: IdentifyRun | None = None,
    spend_again: bool = False,
) -> SqlAnswer:
    """Charge what no stored release answers, draw it, and compute the answer.

    Args:
        identify_run: the run identity of the n-th part, where an orchestrator knows it.

    Raises:
        PlanRefused: a part was charged before with an error above the target.
        DpflowError: as `dpflow.engine.releases.execute.release`; nothing is charged twice.
    """
    planned = [
        (part, identify_query(part.plan) if identify_run is None else identify_run(position))
        for position, (part, stored) in enumerate(zip(plan.parts, plan.stored))
        if stored is None
    ]
    if plan.settings.target is not None:
        require_target(plan.settings.target, planned, ledger)
    with keep_sources_open():
        for one, _ in planned:
            for query in one.part.queries:
                plan.keys.require_types(query)
        question = shorten_question(plan.source.asked)
        runs = [
            (one.plan, replace(run, question=question, types=plan.keys.list_kept(query)))
            for one, run in planned
            for query in one.part.queries[:1]
        ]
        receipts = iter([*release_all(runs, ledger, registry, spend_again=spend_again)])
    close_sources()
    answered: list[tuple[QueryPart, Cells]] = []
    origins: list[Origin] = []
    notes = [*plan.unpaid, *describe_missing(plan.query.list_releases())]
    notes += filter(None, [describe_min_units(plan)])
    of_totals: set[str] = set()
    statements: set[str] = set()
    for part, stored in zip(plan.parts, plan.stored):
        query = part.part.queries[0]
        if stored is not None:
            result, part_cells = stored.result, find_cells(stored, query)
            origins.append(_origin_of_stored(stored))
            notes += _describe_stored(stored, part.part)
        else:
            receipt = next(receipts)
            result = receipt.result
            # A histogram of its own chose groups after the charge.
            drawn = follow_result(follow_receipt(part.plan, receipt, ledger), result)
            part_cells = read_cells(part.part, drawn, result, query.groups)
            # Groups that WHERE leaves no row hold noise alone, and SQL shows none of them.
            part_cells = keep_cells(part_cells, query, query.groups)
            origins.append(_origin_of_receipt(receipt))
            if note := drawn.undeclared_groups():
                notes.append(f"{note}: -- dp: groups=N")
        answering = drawn if stored is None else stored.plan
        if note := answering.describe_clamped_features():
            notes.append(note)
        if note := answering.describe_last_group():
            notes.append(note)
        searches = {column.search for column in answering.table.columns.values()} - {""}
        # The statement of total intervals says it, too.
        if searches and (result.totals is None or result.totals.premise not in searches):
            notes.append(f"bounds of {answering.describe_clamping()}")
        if result.totals is None and (unmeasured := describe_unmeasured(answering)):
            notes.append(unmeasured)
        elif answering.chosen is not None or answering.chosen_groups:
            notes.append(answering.describe_contributions())
        if result.totals is not None:
            notes.append(result.totals.statement)
            statements.add(result.totals.statement)
            if answering.chosen_groups:
                of_totals.add(result.totals.statement)
        if part.part.private:
            notes.append(CHOSEN_KEYS)
        if result == NONE:
            notes.append(
                f"release {origins[-1].release_id} failed after it was charged and has no numbers; it stays paid, and "
                f"another revision pays for a new draw"
            )
        answered.append((part.part, part_cells))
    notes += [
        f"level {level.name} is added up from release {origins[level.source].release_id}; rows without declared keys "
        f"are not in it"
        for level in plan.added
    ]
    if states := _describe_states(plan, origins, ledger):
        notes, of_totals = [states, *(one for one in notes if one not in statements)], set()
    notes = list(dict.fromkeys(notes))
    cells_of = find_cells_by_query(add_levels(answered, plan.added))
    answer = compute_answer(plan, cells_of, origins, notes, has_intervals=not states)
    if not any(column.total == "stated" for column in answer.columns):
        # Of numbers that are computed of others no total interval is known.
        answer = replace(
            answer, notes=tuple(note for note in answer.notes if note not in of_totals)
        )
    return answer


def _describe_states(plan: SqlPlan, origins: Sequence[Origin], ledger: Ledger) -> str:
    """What to say of parts that read the same rows in several states of them; "" where there are none."""
    mixed: list[Origin] = []
    for group in group_by_rows(plan.parts):
        ids = {origins[n].release_id for n in group}
        states = {
            stored.record.snapshot
            if (stored := plan.stored[n]) is not None
            else ledger.release(origins[n].release_id).snapshot
            for n in group
            if len(ids) > 1
        }
        mixed += [origins[n] for n in group if len(states) > 1]
    dates = sorted({one.released_at.isoformat(sep=" ") for one in mixed})
    return (
        ""
        if not mixed
        else (
            f"its numbers are of several states of the rows, released at {', '.join(dates)}, so no interval is stated; an unused "
            f"--revision (in a task, ordinal) pays for all of them anew"
        )
    )


def _describe_stored(stored: Stored, part: QueryPart) -> Iterator[str]:
    """What a stored release says of other rows or groups than it was asked for."""
    query = part.queries[0]
    if stored.groups != query.groups or stored.conditions != set(
        list_conditions(part, query.table)
    ):
        yield f"computed from release {stored.record.release_id}, with its error and the truncation of its groups"
    for group in stored.groups:
        if group not in query.groups and group.op == "column":
            yield f"rows that have none of the declared keys of {group} are not in it"


def _origin_of_receipt(receipt: Receipt) -> Origin:
    cost = ("0", "0") if receipt.replayed else (receipt.epsilon, receipt.delta)
    return Origin(
        receipt.release_id, receipt.mechanism, *cost, receipt.released_at, receipt.replayed
    )


def _origin_of_stored(stored: Stored) -> Origin:
    return Origin(stored.record.release_id, stored.plan.mechanism.name, "0", "0", stored.at, True)
