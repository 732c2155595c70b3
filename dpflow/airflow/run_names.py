"""What makes a run of a DAG the same run again, and the runs of its schedule.

Every DAG file imports this module, so it imports no engine.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.engine.planning.simulate import Run

#: Where an asset event's extra holds what this package wrote; other keys are the author's.
EVENT_KEY = "dpflow"


def name_run(context: Mapping[str, Any], partition_key: str | None, run_id: str) -> str:
    """What makes a run the same run again, from whatever it has."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    logical = context.get("logical_date")
    kind = getattr(context.get("dag_run"), "run_type", None)
    is_manual = logical is None if kind is None else getattr(kind, "value", kind) == "manual"
    if is_manual and not partition_key and (name := name_day(context)):
        return name
    if logical is None:
        return partition_key or name_load(context) or run_id
    # An interval of no length says no more than the date.
    if start is None or end is None or start == end:
        return str(logical.isoformat())
    return f"{start.isoformat()}/{end.isoformat()}"


def name_day(context: Mapping[str, Any]) -> str:
    """What `name_run` says of the schedule's run of a day, for a run by hand whose param ``day`` names it as
    an ISO date: so the two are one run, and pay once. "" where no param does, or the DAG has no schedule.

    Raises `InvalidInput` where the DAG's schedule has no run of that day, or several.
    """
    given = (context.get("params") or {}).get("day")
    try:
        day = dt.date.fromisoformat(given) if isinstance(given, str) else None
    except ValueError:
        day = None
    if day is None:
        return ""
    dag = context["dag"]
    timetable = core_timetable(dag)
    if not timetable.periodic:
        return ""
    names = []
    runs, _ = list_runs(dag, dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC), None)
    for run in runs():
        start = run.variables.get("data_interval_start")
        if run.when.date() > day + dt.timedelta(days=40) or (start and start.date() > day):
            break
        names += [run.occurrence] if start and start.date() == day else []
    if len(names) != 1:
        raise InvalidInput(
            f"params.day is {str(day)!r}, and the schedule {timetable.summary} has {len(names)} runs of that day; name "
            "a day with one run, or write blocks by data_interval_start and run a backfill"
        )
    return names[0]


def name_load(context: Mapping[str, Any]) -> str:
    """The tasks' runs of the loads that triggered this run: a load that is cleared triggers another run, which asks for the
    same again. "" where events of loads of several intervals, or of none, did.
    """
    loads = set()
    for written in list_loads(context):
        run, dag, task, index = (written.get(name) for name in ("run", "dag", "task", "map_index"))
        if not (isinstance(index, int) and all(isinstance(name, str) for name in (run, dag, task))):
            return ""
        loads.add((run, f"{dag}/{task}" + f"[{index}]" * (index >= 0)))
    if len({run for run, _ in loads}) != 1:
        return ""
    tasks = sorted(task for _, task in loads)
    if len(tasks) > 1:
        digest = hashlib.sha256("\n".join(tasks).encode()).hexdigest()[:16]
        return f"{len(tasks)} loads {digest}/{run}"
    return f"{tasks[0]}/{run}"


def list_loads(context: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What events of loads among those that triggered a run say; who may make events by hand writes what they like."""
    loads = []
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            extra = getattr(event, "extra", None)
            written = extra.get(EVENT_KEY) if isinstance(extra, Mapping) else None
            if isinstance(written, Mapping) and isinstance(written.get("load"), Mapping):
                loads.append(written)
    return loads


def core_timetable(dag: Any) -> Any:
    """The scheduler's timetable of a DAG."""
    # In Airflow 3.1 a DAG's own is that.
    with contextlib.suppress(ModuleNotFoundError):
        from airflow.serialization.encoders import coerce_to_core_timetable

        return coerce_to_core_timetable(dag.timetable)
    return dag.timetable


def list_runs(
    dag: Any, start: dt.datetime | None, every: dt.timedelta | None
) -> tuple[Callable[[], Iterator[Run]], str]:
    """The runs of a DAG and, in words, when they happen."""
    import pendulum
    from airflow.timetables.base import TimeRestriction

    from dpflow.engine.planning.simulate import span_text

    timetable = core_timetable(dag)
    first = pendulum.instance(start or dag.start_date or dt.datetime.now(dt.UTC))
    last = pendulum.instance(dag.end_date) if dag.end_date else None
    # As if nothing had been skipped: catchup gives every interval since the start.
    restriction = TimeRestriction(earliest=first, latest=last, catchup=True)

    def next_run(info: Any) -> Any:
        if hasattr(timetable, "next_dagrun_info_v2"):
            return timetable.next_dagrun_info_v2(last_dagrun_info=info, restriction=restriction)
        # Airflow 3.1
        return timetable.next_dagrun_info(
            last_automated_data_interval=info and info.data_interval, restriction=restriction
        )

    def timetable_runs() -> Iterator[Run]:
        info = None
        while True:
            following = next_run(info)
            # A timetable that does not move on would never end.
            if following is None or (info is not None and following.run_after <= info.run_after):
                return
            info = following
            yield _make_run(
                dag, info.run_after, info.data_interval, getattr(info, "partition_key", None)
            )

    def manual_runs() -> Iterator[Run]:
        for number in itertools.count() if every else (0,):
            yield _make_run(dag, first + number * (every or dt.timedelta()), None, None)

    # A timetable without runs belongs to a DAG that people start.
    if next(timetable_runs(), None) is not None:
        return timetable_runs, str(timetable.summary)
    return manual_runs, f"every {span_text(every)} (assumed)" if every else "by hand"


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
