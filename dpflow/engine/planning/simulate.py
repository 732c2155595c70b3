"""The privacy cost of a whole schedule before it runs: what each task costs, and when which scope
cannot pay any more.

A `Job` is a DAG or a release file on a calendar; it says which requests each of its runs makes.
`forecast` plays the runs in the order of their dates against copies of the budgets. It charges
nothing, reads no private row, and knows what the ledger knows: which runs have paid already, and
what every budget has spent. It is a forecast of this schedule alone; what others spend meanwhile
comes on top.
"""

from __future__ import annotations

import datetime as dt
import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NamedTuple

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.events import Event
from dpflow.core.accounting.periods import name_account, name_period
from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.engine.releases.execute import check_protection, find_certifiers
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest, load_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import UNKNOWN_FILTERS, ScopeFilters
from dpflow.errors import DpflowError, InvalidInput, PlanRefused
from dpflow.ledger import Ledger, Scope, make_slot
from dpflow.registry import Registry
from dpflow.yaml_files import load_yaml

#: How far beyond every job's first run a forecast looks, unless told.
HORIZON: Final = dt.timedelta(days=3653)
#: No forecast plays more.
MOST_RUNS: Final = 100_000
_CACHE_SIZE: Final = 4096


class PlannedRelease(NamedTuple):
    """A request, the blocks it names in this run, and its number among equal releases of one task.

    ``name_in_run``: where one request stands for those of many runs, whose names have their blocks.
    """

    request: ReleaseRequest
    blocks: tuple[str, ...]
    ordinal: int = 0
    name_in_run: str = ""


@dataclass(frozen=True)
class Run:
    """One occurrence of a job: when it starts, and the name in its run identity."""

    when: dt.datetime
    occurrence: str
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Task:
    """What one task asks for in a run. Asks that repeat should return the same request object: it
    is planned once.

    ``note`` says what cannot be known before a run, such as the number of mapped instances.
    """

    name: str
    asks: Callable[[Run], Sequence[PlannedRelease]]
    note: str = ""


@dataclass(frozen=True)
class Job:
    """A DAG (``dag_id``) or a release file on a calendar. ``runs`` starts at the first one at every
    call and may have no end. ``catchup``: whether dates before it was switched on run, too. ``zone``: that of its days.
    """

    name: str
    dag_id: str
    cadence: str
    tasks: tuple[Task, ...]
    runs: Callable[[], Iterator[Run]]
    catchup: bool = True
    zone: dt.tzinfo = dt.UTC


@dataclass(frozen=True, eq=False)
class Line:
    """One release of one task and its privacy cost.

    ``once``: a session, charged whole by the first run that opens it. ``at_epsilon``: the plan of the
    same request at another epsilon. ``also``: other names under which the same task asks for
    the same thing: equal releases of one task and run are one release.
    """

    job: Job
    task: Task
    plan: Plan
    once: bool
    at_epsilon: Callable[[Fraction], Plan]
    also: tuple[str, ...] = ()

    @property
    def scope_path(self) -> tuple[str, ...]:
        """Every scope that pays, the widest first."""
        parts = self.plan.request.scope.split("/")
        return tuple("/".join(parts[: n + 1]) for n in range(len(parts)))

    def to_json(self) -> dict[str, Any]:
        """The privacy cost, and the half-width of the noise interval."""
        epsilon, delta = self.plan.privacy_cost()
        return {
            "job": self.job.name,
            "task": self.task.name,
            "release": self.plan.request.name,
            "mechanism": self.plan.mechanism.name,
            "scope": self.plan.request.scope,
            "protects": self.plan.table.protection_text,
            "charged": "once" if self.once else "every run",
            "epsilon": epsilon,
            "delta": delta,
            "half_width_95": (self.plan.error_bound and dict(self.plan.error_bound.half_width))
            or None,
            "also": list(self.also),
            "note": self.task.note,
        }


@dataclass
class Outlook:
    """What becomes of one scope.

    Attributes:
        scope: its grant.
        runs: runs that this scope pays for, up to the refused one or the end of the forecast.
        runs_paid_before: of those, how many had paid before.
        runs_changed: runs of the past whose task released something else for the same interval: it is
            refused there unless it says ``spend_again``.
        refused: when the first run starts that it cannot pay, in which block, and the ledger's
        reason; None if it lasts.
        last: the start of the last run that was played.
        burn: (when, largest share used by any of its budgets) after each run.
        charged: what the forecast charged to its fullest budget, as events and how often.
    """

    scope: Scope
    runs: int = 0
    runs_paid_before: int = 0
    runs_changed: set[str] = field(default_factory=set)
    refused: dt.datetime | None = None
    block: str = ""
    last: dt.datetime | None = None
    burn: list[tuple[dt.datetime, float]] = field(default_factory=list)
    charged: tuple[tuple[Event, int], ...] = ()


@dataclass(frozen=True)
class Forecast:
    """What a schedule costs and how long it lasts.

    Attributes:
        lines: in the order of jobs and tasks.
        outlooks: by scope, for granted scopes.
        ungranted: scopes that have no grant, so that nothing can be said about them.
        until: the date up to which runs were played; None if none were.
        spent: what every budget of a granted scope has spent today.
        opened: lines whose session the ledger has open already.
    """

    jobs: tuple[Job, ...]
    lines: tuple[Line, ...]
    outlooks: Mapping[str, Outlook]
    ungranted: tuple[str, ...]
    until: dt.datetime | None
    spent: Mapping[str, Mapping[str, Cost]]
    open_sessions: frozenset[Line]


class PlanCache:
    """Plans of requests, each made once as long as its object is asked for again; declarations are
    read once.
    """

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger | None = None,
        filters: ScopeFilters = UNKNOWN_FILTERS,
    ) -> None:
        self._registry, self._ledger, self._filters = registry, ledger, filters
        self._plans: dict[int, tuple[ReleaseRequest, Plan]] = {}
        self._tables: dict[Path, Table] = {}

    def plan_once(self, request: ReleaseRequest, blocks: tuple[str, ...]) -> Plan:
        """A plan of this request, with the blocks of its first run: good for cost and error, not
        for a digest.
        """
        cached = self._plans.get(id(request))
        # An id may be that of an object that is gone, so the object is compared, too.
        if cached is None or cached[0] is not request:
            # A calendar without end must not fill the memory.
            if len(self._plans) >= _CACHE_SIZE:
                self._plans.clear()
            cached = self._plans[id(request)] = request, self.plan_exactly(request, blocks)
        return cached[1]

    def plan_at(self, request: ReleaseRequest, blocks: tuple[str, ...], epsilon: Fraction) -> Plan:
        """The plan of this request at another epsilon, for its cost and error: no veto is heard."""
        params = {**request.params, "epsilon": exact_text(epsilon)}
        return self.plan_exactly(
            request.model_copy(update={"params": params}), blocks, is_supposed=True
        )

    def plan_exactly(
        self, request: ReleaseRequest, blocks: tuple[str, ...], is_supposed: bool = False
    ) -> Plan:
        """The plan of this request with exactly these blocks."""
        table = request.table
        if not isinstance(table, Table):
            if table not in self._tables:
                self._tables[table] = request.load_declaration()
            table = self._tables[table]
        exact_request = request.model_copy(update={"blocks": blocks, "table": table})
        return make_plan(
            exact_request,
            self._registry,
            self._ledger,
            assume_bounds=True,
            is_supposed=is_supposed,
            filters=self._filters,
        )


@functools.lru_cache(maxsize=_CACHE_SIZE)
def event_cost(filter: Filter, event: Event) -> Cost:
    """An event's cost in a filter."""
    return filter.event_cost(event)


class BudgetCopies:
    """Copies of budgets to play with; the ledger's own are read once and never written."""

    def __init__(
        self, granted: Mapping[str, Scope], spent: Mapping[str, Mapping[str, Cost]]
    ) -> None:
        self.granted = granted
        today = dt.datetime.now(dt.UTC).date()
        self._spent = {
            name: {
                name_account(scope.filter.period, block, today): cost
                for block, cost in spent.get(name, {}).items()
            }
            for name, scope in granted.items()
        }
        self._events: dict[tuple[str, str], Counter[Event]] = {}

    def list_accounts(self, scope: str, blocks: Iterable[str], day: dt.date) -> list[str]:
        """What a scope's accounts of these blocks are called on a day."""
        granted = self.granted[scope]
        period, named = granted.filter.period, blocks if granted.blocks else ("",)
        return [name_account(period, block, day) for block in named]

    def charge_line(
        self, line: Line, blocks: tuple[str, ...], day: dt.date
    ) -> tuple[str, str] | None:
        """Debit all budgets that a line touches on a day, or none; returns scope and account of the
        first that cannot pay.
        """
        due = []
        for name in line.scope_path:
            if scope := self.granted.get(name):
                cost = event_cost(scope.filter, line.plan.event)
                for block in self.list_accounts(name, blocks, day):
                    used = self._spent[name].get(block, Cost())
                    if not Filter.admits(scope.capacity, used + cost):
                        return name, block
                    due.append((name, block, used + cost))
        # Only when all of them can pay: a release is charged everywhere or nowhere.
        for name, block, total in due:
            self._spent[name][block] = total
            self._events.setdefault((name, block), Counter())[line.plan.event] += 1
        return None

    def events_charged_to(self, scope: str) -> tuple[tuple[Event, int], ...]:
        """What was charged here to the scope's fullest budget, or to the first of them."""
        budgets = [block for name, block in self._events if name == scope]
        fullest = max(budgets, key=lambda block: self.largest_share(scope, [block]), default=None)
        return () if fullest is None else tuple(self._events[scope, fullest].items())

    def largest_share(self, scope: str, blocks: Iterable[str]) -> float:
        """The largest share used of these budgets, from 0 to 1."""
        spent = self._spent[scope]
        return max(
            (self.granted[scope].used_share(spent[block]) for block in blocks if block in spent),
            default=0.0,
        )


def forecast_schedule(
    jobs: Sequence[Job],
    registry: Registry,
    ledger: Ledger | None,
    *,
    supposed_grants: Mapping[str, Scope] | None = None,
    until: dt.datetime | None = None,
) -> Forecast:
    """Plan every task and play the schedule.

    Args:
        ledger: whose grants and budgets are used; None to compute costs only.
        supposed_grants: grants that are not in the ledger, or instead of the ledger's.
        until: look no further than this date; by default ten years after the first run.

    Raises:
        PlanRefused: a scope granted to protect something else.
        InvalidInput: a request that no ledger would take.
    """
    supposed = {name: scope.filter for name, scope in (supposed_grants or {}).items()}
    plans = PlanCache(registry, ledger, ScopeFilters(ledger, supposed))
    lines = _first_lines(jobs, plans)
    scopes = dict.fromkeys(name for line in lines for name in line.scope_path)
    ledger_scopes = {s.scope: s for s in ledger.scopes()} if ledger else {}
    # Supposed grants come last, for they stand in for the ledger's.
    granted = {
        name: scope
        for name, scope in (ledger_scopes | dict(supposed_grants or {})).items()
        if name in scopes
    }
    for line in lines:
        for name in line.scope_path:
            if name in granted:
                check_protection(line.plan, granted[name])
                find_certifiers(line.plan, granted[name], ledger)
    spent = {
        name: dict(ledger.remaining(name).spent)
        for name in granted
        if ledger and name in ledger_scopes
    }
    player = _Player(plans, BudgetCopies(granted, spent), ledger)
    open_sessions = frozenset(line for line in lines if line.once and player.opened_before(line))
    last = player.play_calendar(jobs, until)
    for name, seen in player.outlooks.items():
        seen.charged = player.budgets.events_charged_to(name)
    ungranted = tuple(name for name in scopes if name not in granted)
    return Forecast(
        tuple(jobs), tuple(lines), player.outlooks, ungranted, last, spent, open_sessions
    )


def _first_lines(jobs: Sequence[Job], cache: PlanCache) -> list[Line]:
    """What each job's first run asks for, with its cost; equal releases of one task together."""
    lines = []
    for job in jobs:
        first = next(job.runs(), None)
        for task in job.tasks if first else ():
            assert first is not None
            same: dict[Any, list[tuple[Plan, PlannedRelease]]] = {}
            for ask in task.asks(first):
                plan = cache.plan_once(ask.request, ask.blocks)
                same.setdefault(_release_identity(plan, ask), []).append((plan, ask))
            for equal in same.values():
                plans = [plan for plan, _ in equal]
                _refuse_twins(plans)
                also = tuple(dict.fromkeys(p.request.name for p in plans[1:]))
                lines.append(_make_line(job, task, *equal[0], cache, also))
    return lines


def _refuse_twins(plans: Sequence[Plan]) -> None:
    """Equal releases of one task must read one file."""
    first = plans[0]
    for plan in plans[1:]:
        if plan.table.place != first.table.place:
            # A database's path is in no digest.
            raise PlanRefused(
                f"{plan.request.name!r} would get the result of {first.request.name!r}: their "
                f"declarations differ only in the database; give the tables two names"
            )


def _make_line(
    job: Job,
    task: Task,
    plan: Plan,
    ask: PlannedRelease,
    cache: PlanCache,
    also: tuple[str, ...] = (),
) -> Line:
    is_session = isinstance(plan.mechanism, InteractiveMechanism)
    at_epsilon = functools.partial(cache.plan_at, ask.request, ask.blocks)
    return Line(job, task, plan, is_session, at_epsilon, also)


def _release_identity(plan: Plan, ask: PlannedRelease) -> tuple[str, tuple[str, ...], int]:
    """What makes two asks of one task and run the same release."""
    return plan.version_independent_digest, ask.blocks, ask.ordinal


class _Player:
    """Plays runs in the order of their dates until every scope has refused one or the calendar
    ends.
    """

    def __init__(self, plans: PlanCache, budgets: BudgetCopies, ledger: Ledger | None) -> None:
        self._plans, self.budgets, self._ledger = plans, budgets, ledger
        self._opened: set[tuple[str, str, int]] = set()
        self._refused_in: dict[str, str] = {}
        self._now = dt.datetime.now(dt.UTC)
        self.outlooks = {name: Outlook(scope) for name, scope in budgets.granted.items()}

    def play_calendar(self, jobs: Sequence[Job], until: dt.datetime | None) -> dt.datetime | None:
        """Returns the date up to which runs were played; None when no scope has a grant or no job
        runs.
        """
        if not self.outlooks:
            return until
        # Merged lazily: a job may have no end.
        calendar = heapq.merge(
            *(_run_dates(number, job) for number, job in enumerate(jobs)),
            key=lambda dated: dated[:2],
        )
        if until is None:
            # A calendar without end needs a horizon, counted from the last job's first run.
            firsts = [run.when for job in jobs for run in itertools.islice(job.runs(), 1)]
            until = max(firsts) + HORIZON if firsts else None
        played = until
        for count, (when, number, run) in enumerate(calendar):
            if (until and when > until) or all(seen.refused for seen in self.outlooks.values()):
                return until
            if count == MOST_RUNS:
                return played
            self._play_run(jobs[number], run)
            played = when
        return until

    def _play_run(self, job: Job, run: Run) -> None:
        touched: dict[str, dict[str, bool]] = {}
        # A run of the past is charged now.
        day = max(run.when, self._now).astimezone(dt.UTC).date()
        seen_before: set[tuple[str, Any]] = set()
        for task in job.tasks:
            for ask in task.asks(run):
                request, blocks = ask.request, ask.blocks
                plan = self._plans.plan_once(request, blocks)
                same = task.name, _release_identity(plan, ask)
                # The same release twice in one run is a replay, which costs nothing.
                if same in seen_before:
                    continue
                seen_before.add(same)
                line = _make_line(job, task, plan, ask, self._plans)
                charged = blocks if plan.table.protects == "unit-block" else ()
                scopes = [name for name in line.scope_path if name in self.outlooks]
                if any(self._is_closed(name, day) for name in scopes):
                    continue
                free = self._is_free(job, run, line, ask)
                for name in scopes:
                    accounts = self.budgets.list_accounts(name, charged, day)
                    touched.setdefault(name, {}).update(dict.fromkeys(accounts, free))
                refusal = None if free else self.budgets.charge_line(line, charged, day)
                if refusal is not None:
                    self._note_refusal(run, *refusal, day)
        for name, blocks_of in touched.items():
            seen = self.outlooks[name]
            if seen.refused is None:
                seen.runs, seen.last = seen.runs + 1, run.when
                seen.runs_paid_before += all(blocks_of.values())
            seen.burn.append((run.when, self.budgets.largest_share(name, blocks_of)))

    def _note_refusal(self, run: Run, name: str, account: str, day: dt.date) -> None:
        self._refused_in[name] = self._name_period(name, day)
        seen = self.outlooks[name]
        if seen.refused is None:
            seen.refused, seen.block = run.when, account

    def _is_closed(self, name: str, day: dt.date) -> bool:
        """Whether a scope refused before, though a cheaper release might still fit; of a quota that
        refreshes, in this period.
        """
        return self._refused_in.get(name) == self._name_period(name, day)

    def _name_period(self, name: str, day: dt.date) -> str:
        period = self.outlooks[name].scope.filter.period
        return "" if period is None else name_period(period, day)

    def opened_before(self, line: Line) -> bool:
        """Whether the ledger has this session."""
        if self._ledger is None or line.plan.request.scope not in self.outlooks:
            return False
        return (
            self._ledger.find(RunIdentity.of_request(line.plan.request).key(line.plan)) is not None
        )

    def _is_free(self, job: Job, run: Run, line: Line, ask: PlannedRelease) -> bool:
        """Whether this ask is free: a session that is open, or a run that the ledger has
        seen.
        """
        request = ask.request
        if line.once:
            name = request.scope, request.name, request.revision
            if name in self._opened:
                return True
            self._opened.add(name)
            # Its first opening in the schedule costs nothing if the ledger has it already.
            return self.opened_before(line)
        # A run of the future has no entry, so its exact plan is not made.
        if self._ledger is None or request.scope not in self.outlooks or run.when > self._now:
            return False
        run_identity = RunIdentity(
            job.dag_id,
            line.task.name,
            run.occurrence,
            make_slot(job.dag_id, run.occurrence, line.task.name),
            "",
            ask.ordinal,
        )
        if not job.dag_id:
            run_identity = RunIdentity.of_request(
                request.model_copy(update={"revision": int(run.occurrence)})
            )
        key = run_identity.key(self._plans.plan_exactly(request, ask.blocks))
        if self._ledger.find(key) is not None:
            return True
        if self._ledger.has_paid(run_identity.slot.run):
            for scope in line.scope_path:
                if scope in self.outlooks:
                    self.outlooks[scope].runs_changed.add(run.occurrence)
        return False


def _run_dates(number: int, job: Job) -> Iterator[tuple[dt.datetime, int, Run]]:
    return ((run.when, number, run) for run in job.runs())


# --- release files ----------------------------------------------------------------------------------------------------


def file_job(path: Path, start: dt.datetime, every: dt.timedelta | None) -> Job:
    """A release file: one run, or with ``every`` a new revision, which is a new paid release, each
    time.
    """
    request = load_request(path)

    def runs() -> Iterator[Run]:
        for number in itertools.count() if every else (0,):
            yield Run(start + number * (every or dt.timedelta()), str(request.revision + number))

    task = Task(path.name, lambda run: [PlannedRelease(request, request.blocks)])
    return Job(str(path), "", f"every {span_text(every)}" if every else "once", (task,), runs)


def span_text(every: dt.timedelta) -> str:
    """A span of time in words: 1 day, 14 days, 12:00:00."""
    return str(every).removesuffix(", 0:00:00")


def release_files(folder: Path) -> list[Path]:
    """The YAML files below a folder that hold a release: they name a mechanism. Hidden folders are
    skipped.
    """
    files = []
    for path in sorted((*folder.rglob("*.yml"), *folder.rglob("*.yaml"))):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            try:
                if "mechanism" in load_yaml(path, "release file"):
                    files.append(path)
            except DpflowError:
                # Some other tool's YAML.
                continue
    if not folder.is_dir():
        raise InvalidInput(
            f"there is no folder {folder}; give a release file, a DAG file, or a folder of them"
        )
    return files
