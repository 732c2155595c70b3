"""The queues: one per source, bounded, fair, and the same request is the same job."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dpflow.errors import LedgerUnavailable, QueryStopped, TableUnreadable
from dpflow.server.job_queue import MAX_ENDED, Job, Jobs
from dpflow.server.refusals import Refused, make_refusal


def job(name: str, principal: str = "ann", source: str = "s", work: Any = dict) -> Job:
    return Job(name, principal, source, work)


class Blocked:
    """Queues of which one is busy until it is let go."""

    def __init__(self, max_waiting: int = 100) -> None:
        self.jobs, self.gate, self.order = Jobs(max_waiting), threading.Event(), list[str]()
        self.first = self.jobs.submit(job("first", "zoe", work=lambda: {"ok": self.gate.wait(30)}))
        while self.first.stage != "running":
            pass

    def note(self, name: str) -> Callable[[], dict[str, Any]]:
        return lambda: self.order.append(name) or {}

    def finish(self) -> None:
        self.gate.set()
        for one in list(self.jobs._jobs.values()):
            one.done.result(30)
        self.jobs.close()


def test_principals_take_turns() -> None:
    """Who sent five requests waits for one of somebody else, not the other way round."""
    blocked = Blocked()
    for i in range(5):
        blocked.jobs.submit(job(f"a{i}", "ann", work=blocked.note(f"a{i}")), 10)
    for i in range(2):
        blocked.jobs.submit(job(f"b{i}", "bob", work=blocked.note(f"b{i}")), 10)
    blocked.finish()
    assert blocked.order == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


def test_sources_wait_for_nobody_else() -> None:
    blocked = Blocked()
    assert blocked.jobs.submit(job("x", source="other"), 10).done.result(30) == {}
    blocked.finish()


def test_the_excess_is_refused() -> None:
    """By principal and by queue, as what passes; what was charged before is always let in."""
    blocked = Blocked(max_waiting=2)
    blocked.jobs.submit(job("a0", "ann"), 2)
    same = blocked.jobs.submit(job("a1", "ann"), 2)
    assert blocked.jobs.submit(job("a1", "ann"), 2) is same
    for refused in (job("a2", "ann"), job("b0", "bob")):
        with pytest.raises(Refused) as error:
            blocked.jobs.submit(refused, 2)
        assert error.value.status == 429 and error.value.headers["Retry-After"] == "1"
    assert blocked.jobs.submit(job("charged", "ann")).stage == "queued"
    blocked.finish()


def test_a_job_is_its_principals_alone_and_forgotten_in_the_end() -> None:
    jobs = Jobs(10**6)
    done = jobs.submit(job("mine"))
    assert done.done.result(30) == {} and done.stage == "done"
    assert jobs.find("mine", "ann") is done
    assert jobs.find("mine", "bob") is None and jobs.find("other", "ann") is None
    for i in range(MAX_ENDED + 20):
        jobs.submit(job(str(i))).done.result(30)
    assert jobs.find("mine", "ann") is None and len(jobs._jobs) <= MAX_ENDED + 1
    jobs.close()


def test_an_error_loses_its_text_and_the_thread_lives_on() -> None:
    jobs = Jobs(10)

    def fail(error: BaseException) -> Any:
        raise error

    for error in (
        RuntimeError("row 4711"),
        TableUnreadable("/secret/4711"),
        KeyboardInterrupt("4711"),
    ):
        with pytest.raises(Refused) as refused:
            jobs.submit(job("x", work=lambda error=error: fail(error))).done.result(30)
        assert "4711" not in str(refused.value.make_response().body)
    assert jobs.submit(job("y")).done.result(30) == {}
    jobs.close()


def test_a_query_that_was_stopped_says_what_to_change() -> None:
    """No ledger and no table is away, and the same query would be stopped again."""
    refused = make_refusal(
        QueryStopped("it took longer than 20 s; a query that computes less is free")
    )
    assert (refused.status, refused.error) == (503, "try_again")
    assert "computes less" in refused.message and "cannot be used" not in refused.message


def test_a_service_that_stops_lets_go_of_what_waits() -> None:
    """What runs is finished; what waits was not charged, and is sent again."""
    blocked = Blocked()
    waiting = blocked.jobs.submit(job("a"), 2)
    closing = threading.Thread(target=blocked.jobs.close)
    closing.start()
    with pytest.raises(Refused, match="send the request again"):
        waiting.done.result(30)
    with pytest.raises(Refused, match="stops"):
        blocked.jobs.submit(job("b"), 2)
    blocked.gate.set()
    closing.join(30)
    assert blocked.first.done.result(1) == {"ok": True}


def test_only_what_waits_and_was_not_charged_is_taken_back() -> None:
    """The same request is a new job afterwards; what runs, and what a charge is there for, goes on."""
    blocked = Blocked()
    kept = blocked.jobs.submit(Job("c", "ann", "s", blocked.note("c"), is_charged=True), 10)
    taken = blocked.jobs.submit(job("a", "ann", work=blocked.note("a")), 10)
    for one in (blocked.first, kept, taken):
        blocked.jobs.cancel(one)
    assert (taken.stage, kept.stage, blocked.first.stage) == ("cancelled", "queued", "running")
    with pytest.raises(Refused) as refused:
        taken.done.result(0)
    assert refused.value.status == 404 and blocked.jobs.find("a", "ann") is None
    again = blocked.jobs.submit(job("a", "ann", work=blocked.note("again")), 10)
    assert again is not taken
    blocked.finish()
    assert blocked.order == ["c", "again"]


def test_how_a_job_ended_is_no_answer_of_a_service_that_is_not_ready() -> None:
    """Of a job that was let go of when the service stopped, the next process may know more."""

    def fail() -> dict[str, Any]:
        raise LedgerUnavailable("locked")

    def show(one: Job) -> tuple[int, Any]:
        error = one.done.exception(30)
        assert isinstance(error, Refused)
        response = error.make_response()
        return response.status_code, json.loads(bytes(response.body))["details"]

    blocked = Blocked()
    failed = blocked.jobs.submit(job("fails", source="other", work=fail))
    assert show(failed) == (503, {"is_outcome": True})
    waiting = blocked.jobs.submit(job("waits"))
    blocked.jobs.close(0)
    assert show(waiting) == (503, {})
    blocked.gate.set()
