"""Runs that a schedule planned and that released nothing, or less than planned: what a green run in
Airflow does not tell. Charges nothing and reads no row.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.engine.planning.simulate import MOST_RUNS, Job, Run
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry

#: ``whole``: every planned release has a result; ``part``: some have; ``unsettled``: none has, and at
#: least one was charged; ``nothing``: none was charged.
RunState = Literal["whole", "part", "unsettled", "nothing"]

_MOST_NAMED = 10


@dataclass(frozen=True)
class CheckedRun:
    """One run that was due: when it starts, its run identity, and what the ledger has of it."""

    when: dt.datetime
    occurrence: str
    state: RunState


@dataclass(frozen=True)
class CheckedJob:
    """The runs of one job that were due, in order, without those that plan no release.

    Attributes:
        unknown: tasks whose releases only a run knows; they were not looked for.
    """

    job: Job
    runs: tuple[CheckedRun, ...]
    unknown: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[CheckedRun, ...]:
        """Runs that are not whole."""
        return tuple(run for run in self.runs if run.state != "whole")


def check_job_runs(
    job: Job,
    registry: Registry,
    ledger: Ledger,
    *,
    now: dt.datetime,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> CheckedJob:
    """Hold a job's runs that were due against the ledger.

    A release counts by its scope, name, blocks, DAG and run identity: one whose parameters were
    changed since is still that day's release. Sessions belong to no run and are left out.

    Args:
        now: runs that start later are not due.
        since: runs of an earlier date, by the start of their data interval, are left out. By default a job that runs
            earlier dates (catchup) counts from its start date, and any other from its first run that charged.
        until: runs of a later date are left out.

    Raises:
        InvalidInput: more runs than `MOST_RUNS`.
    """
    due = itertools.takewhile(
        lambda run: run.when <= now and (until is None or _date_of(run) <= until), job.runs()
    )
    dated = itertools.dropwhile(lambda run: since is not None and _date_of(run) < since, due)
    checked = []
    for number, run in enumerate(dated):
        if number == MOST_RUNS:
            raise InvalidInput(
                f"{job.name} has more than {MOST_RUNS:,} runs to look at; name a later first date with --since"
            )
        if state := _check_run(job, run, registry, ledger):
            checked.append(CheckedRun(run.when, run.occurrence, state))
    if since is None and not job.catchup:
        charged = (n for n, run in enumerate(checked) if run.state != "nothing")
        checked = checked[next(charged, 0) :]
    return CheckedJob(job, tuple(checked), tuple(task.name for task in job.tasks if task.note))


def _date_of(run: Run) -> dt.datetime:
    start: dt.datetime = run.variables.get("data_interval_start", run.when)
    return start


def _check_run(job: Job, run: Run, registry: Registry, ledger: Ledger) -> RunState | None:
    """What the ledger has of a run; None if it plans no release."""
    # Equal ones of a task share one charge.
    asks = {
        (task.name, ask.request.model_dump_json(), ask.blocks, ask.ordinal): ask
        for task in job.tasks
        if not task.note
        for ask in task.asks(run)
        if not isinstance(registry.find_mechanism(ask.request.mechanism), InteractiveMechanism)
    }
    if not asks:
        return None
    planned = Counter(
        (ask.request.scope, ask.name_in_run or ask.request.name, frozenset(ask.blocks))
        for ask in asks.values()
    )
    stored = [
        ((scope, name, frozenset(record.request.get("blocks", ()))), record.settled)
        for scope, name in {key[:2] for key in planned}
        for record in ledger.releases_by_name(scope, name, (job.dag_id, run.occurrence))
    ]
    settled = (planned & Counter(key for key, has_result in stored if has_result)).total()
    charged = any(key in planned for key, _ in stored)
    if settled == planned.total():
        return "whole"
    if settled:
        return "part"
    return "unsettled" if charged else "nothing"


def describe_runs(runs: Sequence[CheckedRun], zone: dt.tzinfo = dt.UTC) -> str:
    """The dates of runs in words, those of one state together, in the time zone of their schedule."""
    words = {
        "nothing": "nothing was released",
        "part": "a part was released",
        "unsettled": "charged and without a result",
    }
    parts = []
    for state, text in words.items():
        names = [_name_start(run.occurrence, zone) for run in runs if run.state == state]
        rest = len(names) - _MOST_NAMED
        more = f" and {rest} more up to {names[-1]}" if rest > 0 else ""
        shown = ", ".join(names[:_MOST_NAMED])
        if names:
            parts.append(f"{text}: {shown}{more}")
    return "; ".join(parts)


def _name_start(occurrence: str, zone: dt.tzinfo) -> str:
    """A data interval by its start, and midnight by its date."""
    start = occurrence.partition("/")[0]
    with contextlib.suppress(ValueError):
        # A partition key may read as a time without a zone.
        if (date := dt.datetime.fromisoformat(start)).tzinfo is not None:
            start = date.astimezone(zone).isoformat()
    return re.sub(r"T00:00:00[+-]\d\d:\d\d$", "", start)
