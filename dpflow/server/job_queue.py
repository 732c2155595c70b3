"""Requests that read private rows, one queue per source: bounded, and fair between principals. What another process needs to
finish one is sealed in the ledger (`dpflow.server.data_service`).

A job is a handle, nothing more: what was charged is in the ledger with the request, where every process of the
service finds it. A job that was not charged and that this process does not know is sent again. Its stage is ``queued``, ``running`` or
``done``, or ``cancelled`` where it was taken back before it was charged, and says nothing of rows.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.server.refusals import Refused, make_refusal, refuse_excess, refuse_for_now

Reply = dict[str, Any]
Planned = tuple[Plan, RunIdentity]
Stage = Literal["queued", "running", "done", "cancelled"]
#: Jobs that ended are kept for who polls next; an older one is sent again and answered from the ledger.
MAX_ENDED = 200


@dataclass(frozen=True)
class Query:
    """A request that was planned; nothing was charged.

    Attributes:
        source: where the rows are that it reads or writes: names its queue, and is shown to nobody.
        planned: the releases that answer it, with their runs; of a shared query those that no stored one answers.
        answer: charges what is to pay, and settles.
        always_job: whether it is a job although nothing is to pay.
        rows: that its reply has at most, where plan and declaration say so.
    """

    source: str
    planned: Sequence[Planned]
    answer: Callable[[], Reply]
    always_job: bool = False
    rows: int | None = None


@dataclass(eq=False)
class Job:
    """One request of one principal; ``done`` gets its reply, or a `Refused`.

    Attributes:
        is_charged: whether the ledger had a charge for it when it was queued.
        is_elsewhere: whether only the ledger knows it here: another process has it, or had.
    """

    id: str
    principal: str
    source: str
    work: Callable[[], Reply] = field(repr=False)
    done: Future[Reply] = field(default_factory=Future, repr=False)
    is_charged: bool = False
    is_running: bool = False
    is_cancelled: bool = False
    is_elsewhere: bool = False

    @property
    def stage(self) -> Stage:
        """What may be said of its progress."""
        if self.is_cancelled:
            return "cancelled"
        is_started = self.is_running or self.is_elsewhere
        return "done" if self.done.done() else "running" if is_started else "queued"

    def run(self) -> None:
        """Do the work, and keep what a client may hear of it."""
        self.is_running = True
        try:
            self.done.set_result(self.work())
        except BaseException as error:  # noqa: BLE001  the thread lives on; the app says what a client hears
            refused = make_refusal(error)
            refused.is_outcome = True
            self.done.set_exception(refused)


class Jobs:
    """The queues and their threads: one job of a source runs at a time.

    Args:
        max_waiting: jobs that may wait for one source.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._waiting: dict[str, OrderedDict[str, deque[Job]]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._is_closed = False

    def submit(self, job: Job, max_concurrent: int | None = None) -> Job:
        """Queue a job, or find the same one that waits or runs.

        Args:
            max_concurrent: jobs of this principal that may wait or run at once; any number if left out.

        Raises:
            Refused: the principal has too many, the queue is full, or the service stops.
        """
        with self._changed:
            known = self._jobs.get(job.id)
            if known is not None and not known.done.done():
                return known
            if self._is_closed:
                raise refuse_for_now("the service stops; send the request again later")
            active = [one for one in self._jobs.values() if not one.done.done()]
            mine = sum(one.principal == job.principal for one in active)
            if max_concurrent is not None and mine >= max_concurrent:
                raise refuse_excess(f"{mine} requests of this principal wait or run, its limit")
            queue = self._waiting.setdefault(job.source, OrderedDict())
            if max_concurrent is not None and sum(map(len, queue.values())) >= self._max_waiting:
                raise refuse_excess("as many requests wait for this table as may")
            self._jobs[job.id] = job
            self._jobs.move_to_end(job.id)
            queue.setdefault(job.principal, deque()).append(job)
            self._forget_ended()
            if job.source not in self._threads:
                thread = threading.Thread(
                    target=self._run_queue, args=(job.source,), name="dpflow-jobs", daemon=True
                )
                self._threads[job.source] = thread
                thread.start()
            self._changed.notify_all()
        return job

    def find(self, job_id: str, principal: str) -> Job | None:
        """A principal's own job; None for one of another principal as for an unknown one."""
        with self._changed:
            job = self._jobs.get(job_id)
        return job if job is not None and job.principal == principal else None

    def cancel(self, job: Job) -> None:
        """Take a job back that waits and was not charged; any other goes on."""
        with self._changed:
            queue = self._waiting.get(job.source, OrderedDict())
            mine = queue.get(job.principal, deque())
            if job.is_charged or job not in mine:
                return
            mine.remove(job)
            if not mine:
                del queue[job.principal]
            # Forgotten: the same request is a new job.
            del self._jobs[job.id]
            job.is_cancelled = True
        job.done.set_exception(refuse_unknown_job())

    def close(self, seconds: float | None = None) -> None:
        """Let go of what waits, finish what runs, stop.

        Args:
            seconds: for what runs; as long as it takes if left out. What then still runs and was charged is settled
                by the next process that starts.
        """
        with self._changed:
            self._is_closed = True
            waiting = [
                job for queue in self._waiting.values() for jobs in queue.values() for job in jobs
            ]
            self._waiting.clear()
            self._changed.notify_all()
        for job in waiting:
            job.done.set_exception(
                refuse_for_now("the service stops; send the request again later")
            )
        deadline = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads.values():
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _run_queue(self, source: str) -> None:
        while (job := self._take_job(source)) is not None:
            job.run()

    def _take_job(self, source: str) -> Job | None:
        """The next principal's oldest job; None when the service stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._waiting.get(source))
            if self._is_closed:
                return None
            queue = self._waiting[source]
            principal, jobs = next(iter(queue.items()))
            job = jobs.popleft()
            # Behind all others, however many jobs it has.
            queue.move_to_end(principal)
            if not jobs:
                del queue[principal]
            job.is_running = True
            return job

    def _forget_ended(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.done.done()]
        for job_id in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self._jobs[job_id]


def refuse_unknown_job() -> Refused:
    """There is no such job, also where it is another principal's or was cancelled."""
    return Refused(
        404,
        "not_found",
        "there is no such job of this principal; send the request again, which charges nothing twice",
    )
