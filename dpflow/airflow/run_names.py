"""What makes a run of a DAG the same run again, and the runs of its schedule.

Every DAG file imports this module, so it imports no engine.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.engine.planning.simulate import Run

#: Where an asset event's extra holds what this package wrote; other keys are the author's.
EVENT_KEY = "dpflow"
#: What Airflow's context says of a run's dates, in UTC, and the texts that it makes of the logical date.
_DATES = ("logical_date", "data_interval_start", "data_interval_end")
_DATE_TEXTS = {
    "ds": "%Y-%m-%d",
    "ds_nodash": "%Y%m%d",
    "ts": "%Y-%m-%dT%H:%M:%S%z",
    "ts_nodash": "%Y%m%dT%H%M%S",
}
#: A day or month in a text, without a time of day behind it.
_DAY = re.compile(
    r"(?<!\d)(?:19|20)\d\d-?(?:0[1-9]|1[0-2])(?:-?(?:0[1-9]|[12]\d|3[01]))?(?![\w:-]| \d\d:)"
)
#: Arguments of tasks that may name blocks, or days in conditions.
DATED_FIELDS = (
    *("blocks", "release", "releases", "session", "sql", "parameters"),
    *("contract", "queries"),
)
_WITH_DAYS = (
    *("blocks", "where", "sql", "parameters"),
    *("condition", "among", "since", "queries", "op_args"),
)
#: Types of runs that Airflow makes by itself; somebody, or another DAG, triggers the others and may say for which day.
BY_ITSELF = ("scheduled", "backfill", "asset_triggered")


@dataclass(frozen=True, order=True)
class Load:
    """A load's event, as far as it names the runs that it triggers.

    Attributes:
        run: the run identity of the load's own run.
        task: its DAG and task, and the index of a mapped one.
        blocks: what it loaded; empty where its DAG names none.
    """

    run: str
    task: str
    blocks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run identity of what reads its blocks."""
        return f"{self.task}/{self.run}"


def name_run(
    context: Mapping[str, Any],
    partition_key: str | None,
    run_id: str,
    blocks: Collection[str] | None = (),
) -> str:
    """What makes a run the same run again, from whatever it has; for a task of a run that loads triggered, by the
    blocks that it reads, as `name_load` has them and raises.
    """
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    logical = context.get("logical_date")
    kind = getattr(context.get("dag_run"), "run_type", None)
    is_manual = logical is None if kind is None else getattr(kind, "value", kind) not in BY_ITSELF
    if is_manual and not partition_key and (name := name_day(context)):
        return name
    if logical is None:
        return partition_key or name_load(context, blocks) or run_id
    # An interval of no length says no more than the date.
    if start is None or end is None or start == end:
        return str(logical.isoformat())
    return f"{start.isoformat()}/{end.isoformat()}"


def name_day(context: Mapping[str, Any]) -> str:
    """What `name_run` says of the schedule's run of a day, for a run by hand whose param ``day`` names it as
    an ISO date: so the two are one run, and pay once. "" where no param does, or the DAG has no schedule.

    A run is of the day on which its data interval starts, in the schedule's time zone. Blanks around the text say
    nothing, as in blocks. Raises `InvalidInput` where the DAG's schedule has no run of that day, or
    several, or counts from its first run, and for a text that begins with a digit and is no ISO date.
    """
    given = (context.get("params") or {}).get("day")
    text = given.strip() if isinstance(given, str) else ""
    if not text[:1].isdigit():
        return ""
    dag = context["dag"]
    timetable = core_timetable(dag)
    if not timetable.periodic:
        return ""
    try:
        zone, day = find_zone(dag), dt.datetime.strptime(text, "%Y-%m-%d")
        first = day.replace(tzinfo=zone).astimezone(dt.UTC)
        last = first + dt.timedelta(days=41)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"params.day is {text[:40]!r}; write a date such as '2026-01-31'"
        ) from None
    if _counts_from_start(dag, first):
        raise InvalidInput(
            f"params.day is {text!r}, and the schedule {timetable.summary} counts from its first run, so the day's run is "
            "unknown; write the schedule as cron, such as '0 3 * * *'"
        )
    names = []
    for run in _timetable_runs(dag, first):
        start = run.variables.get("data_interval_start")
        started = start and start.astimezone(zone).date()
        if run.when >= last or (started and started > day.date()):
            break
        names += [run.occurrence] if started == day.date() else []
    if len(names) != 1:
        raise InvalidInput(
            f"params.day is {text!r}, and the schedule {timetable.summary} has {len(names)} runs of that day; name "
            "a day with one run, or write blocks by data_interval_start and run a backfill"
        )
    return names[0]


def name_load(context: Mapping[str, Any], blocks: Collection[str] | None) -> str:
    """The loads that brought a task's blocks; all loads of its run, for a task of other blocks or all rows. A load that
    is cleared triggers another run: the same loads have the same name there, and others another one. "" where no load
    triggered this run, and where another producer's event did, too, which may be of rows that those loads have not.

    Args:
        blocks: empty for all rows; None where they are unknown.

    Raises:
        InvalidInput: the blocks are of different loads, or unknown where that matters.
    """
    loads = list_loads(context)
    by_block = _group_loads(loads)
    names = {
        by_block[block] for block in (by_block if blocks is None else blocks) if block in by_block
    }
    if blocks is None or not names:
        if not all(isinstance(written, Mapping) for written in _list_events(context)):
            return ""
        names.add(_name_loads(loads))
    if len(names) > 1:
        raise InvalidInput(
            f"{len(loads)} loads triggered this run, and each charge is for the loads of one block; map the task over "
            "its blocks, such as ReleaseOperator.partial(...).expand(blocks=...)"
        )
    return names.pop()


def list_load_names(context: Mapping[str, Any]) -> set[str]:
    """What `name_load` can say in a run."""
    loads = list_loads(context)
    return {_name_loads(loads), *_group_loads(loads).values()} - {""}


def _group_loads(loads: Sequence[Load]) -> dict[str, str]:
    """Each block that loads name, with the name of those that brought it."""
    blocks = sorted({block for load in loads for block in load.blocks})
    return {
        block: _name_loads([load for load in loads if block in load.blocks]) for block in blocks
    }


def _name_loads(loads: Iterable[Load]) -> str:
    """One load by its own name, several by their digest."""
    names = sorted({load.name for load in loads})
    if len(names) < 2:
        return "".join(names)
    return f"{len(names)} loads {hashlib.sha256(json.dumps(names).encode()).hexdigest()[:32]}"


def number_instance(
    map_index: int, context: Mapping[str, Any], name: str, blocks: Collection[str]
) -> int:
    """The map index that a task mapped over `read_loaded_blocks` has for these blocks where their loads alone trigger
    its run.

    Args:
        name: the run identity, by `name_run`.
    """
    loads = list_loads(context)
    by_block = _group_loads(loads)
    first = next((block for block in blocks if by_block.get(block) == name), None)
    if first is None:
        return map_index
    own = _group_loads([load for load in loads if first in load.blocks])
    before = list(by_block).index(first) - list(own).index(first)
    return map_index - before if map_index >= before else map_index


def list_loads(context: Mapping[str, Any]) -> list[Load]:
    """The loads among the events that triggered a run, sorted. Events that people made by hand may hold anything, and
    are left out where they do not say which load they are of.
    """
    loads = set()
    for written in _list_events(context):
        match written:
            case {
                "load": {"blocks": list(blocks)},
                "run": str(run),
                "dag": str(dag),
                "task": str(task),
                "map_index": int(index),
            } if all(isinstance(block, str) for block in blocks):
                name = f"{dag}/{task}" + f"[{index}]" * (index >= 0)
                loads.add(Load(run, name, tuple(blocks)))
    return sorted(loads)


def _list_events(context: Mapping[str, Any]) -> Iterator[Any]:
    """What this package wrote into each event that triggered a run; None for another producer's."""
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            extra = getattr(event, "extra", None)
            yield extra.get(EVENT_KEY) if isinstance(extra, Mapping) else None


def core_timetable(dag: Any) -> Any:
    """The scheduler's timetable of a DAG."""
    # In Airflow 3.1 a DAG's own is that.
    with contextlib.suppress(ModuleNotFoundError):
        from airflow.serialization.encoders import coerce_to_core_timetable

        return coerce_to_core_timetable(dag.timetable)
    return dag.timetable


def find_zone(dag: Any) -> dt.tzinfo:
    """The time zone of a DAG's schedule; UTC where that has none."""
    import pendulum

    timetable = getattr(dag.timetable, "timetable", dag.timetable)
    several = getattr(timetable, "timetables", None) or getattr(timetable, "_timetables", None)
    timetable = several[0] if several else timetable
    zone = getattr(timetable, "timezone", None) or getattr(timetable, "_timezone", None) or dt.UTC
    return pendulum.timezone(zone) if isinstance(zone, str) else zone


def require_zone(
    context: Mapping[str, Any], fill: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> None:
    """Refuse blocks whose template leaves open in which time zone a day is: Airflow's dates are of UTC, whose days a
    schedule of another zone has twice, or never, when its clocks change.

    Args:
        fill: renders a task's arguments by a context.

    Raises:
        InvalidInput: the schedule's dates make other days of them in its own zone.
    """
    import pendulum

    dates = {name: context[name] for name in _DATES if context.get(name) is not None}
    zone = find_zone(context["dag"]) if dates else dt.UTC
    local = {name: pendulum.instance(date).astimezone(zone) for name, date in dates.items()}
    if not any(date.utcoffset() for date in local.values()):
        return
    local |= {
        name: local["logical_date"].strftime(form)
        for name, form in _DATE_TEXTS.items()
        if name in context and "logical_date" in local
    }
    if (run := context.get("dag_run")) is not None:
        local["dag_run"] = _LocalRun(run, zone)
    days, own = (list(_list_days(fill(dict(context) | one))) for one in ({}, local))
    if wrong := next(((day, other) for day, other in zip(days, own) if day != other), None):
        name = getattr(zone, "name", zone)
        raise InvalidInput(
            f"{wrong[0]} is a day of UTC, and {wrong[1]} in {name}, the time zone of the schedule; say of which zone the days "
            f"are, such as {{{{ data_interval_start.in_timezone('{name}') | ds }}}}"
        )


class _LocalRun:
    """A DAG run whose dates are of a time zone."""

    def __init__(self, run: Any, zone: dt.tzinfo) -> None:
        self._run, self._zone = run, zone

    def __getattr__(self, name: str) -> Any:
        import pendulum

        value = getattr(self._run, name)
        is_time = isinstance(value, dt.datetime) and value.tzinfo
        return pendulum.instance(value).astimezone(self._zone) if is_time else value


def _list_days(value: Any, is_dated: bool = False) -> Iterator[str]:
    """The days in blocks and queries among a task's arguments."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _list_days(inner, is_dated or name in _WITH_DAYS)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_days(inner, is_dated)
    elif is_dated:
        yield from _DAY.findall(str(value))


def list_runs(
    dag: Any, start: dt.datetime | None, every: dt.timedelta | None
) -> tuple[Callable[[], Iterator[Run]], str]:
    """The runs of a DAG from ``start`` on, by default its own start date, and, in words, when they happen."""
    import pendulum

    from dpflow.engine.planning.simulate import span_text

    first = pendulum.instance(start or dag.start_date or dt.datetime.now(dt.UTC))

    def timetable_runs() -> Iterator[Run]:
        # A later start leaves runs out, and moves none.
        if start and dag.start_date and dag.start_date < start and _counts_from_start(dag, start):
            runs = _timetable_runs(dag, dag.start_date)
            return itertools.dropwhile(
                lambda run: run.variables.get("data_interval_start", run.when) < start, runs
            )
        return _timetable_runs(dag, first)

    def manual_runs() -> Iterator[Run]:
        for number in itertools.count() if every else (0,):
            yield _make_run(dag, first + number * (every or dt.timedelta()), None, None)

    # A timetable without runs belongs to a DAG that people start.
    if next(timetable_runs(), None) is not None:
        return timetable_runs, str(core_timetable(dag).summary)
    return manual_runs, f"every {span_text(every)} (assumed)" if every else "by hand"


def _timetable_runs(dag: Any, start: dt.datetime, *, ends: bool = True) -> Iterator[Run]:
    """The runs that a DAG's timetable has from a date on, past its end date unless it ``ends``."""
    import pendulum
    from airflow.timetables.base import TimeRestriction

    timetable = core_timetable(dag)
    last = pendulum.instance(dag.end_date) if dag.end_date and ends else None
    # As if nothing had been skipped: catchup gives every interval since the start.
    restriction = TimeRestriction(earliest=pendulum.instance(start), latest=last, catchup=True)
    info = None
    while True:
        if hasattr(timetable, "next_dagrun_info_v2"):
            following = timetable.next_dagrun_info_v2(
                last_dagrun_info=info, restriction=restriction
            )
        else:  # Airflow 3.1
            following = timetable.next_dagrun_info(
                last_automated_data_interval=info and info.data_interval, restriction=restriction
            )
        # A timetable that does not move on would never end.
        if following is None or (info is not None and following.run_after <= info.run_after):
            return
        info = following
        yield _make_run(
            dag, info.run_after, info.data_interval, getattr(info, "partition_key", None)
        )


def _counts_from_start(dag: Any, start: dt.datetime) -> bool:
    """Whether a DAG's runs count from a first one, such as those of a `timedelta`, so that another start moves them:
    which run was first depends on edits, pauses and backfills, and no DAG file says it.
    """
    odd = start + dt.timedelta(hours=7, minutes=11, seconds=13)
    moved = next(_timetable_runs(dag, odd, ends=False), None)
    if moved is None:
        return False
    runs = itertools.dropwhile(
        lambda run: run.when < moved.when, _timetable_runs(dag, start, ends=False)
    )
    return next(runs, moved).when != moved.when


def _make_run(dag: Any, when: Any, interval: Any, partition_key: str | None) -> Run:
    """One run with what templates may use. A run without a logical date has no dates in its
    context, as in Airflow.
    """
    from dpflow.engine.planning.simulate import Run

    kind = "manual" if interval is None and partition_key is None else "scheduled"
    run_id = f"{kind}__{when.isoformat()}"
    context: dict[str, Any] = {
        "dag": dag,
        "run_id": run_id,
        "params": dict(dag.params),
        "dag_run": SimpleNamespace(run_id=run_id, partition_key=partition_key, conf={}),
    }
    if interval is not None:
        context |= {
            "logical_date": interval.start,
            "data_interval_start": interval.start,
            "data_interval_end": interval.end,
            "ds": interval.start.strftime("%Y-%m-%d"),
            "ds_nodash": interval.start.strftime("%Y%m%d"),
            "ts": interval.start.isoformat(),
        }
    return Run(when, name_run(context, partition_key, run_id), context)
