"""The endpoints of tables, plans, releases and SQL: each is one call of `DataService`.

What reads private rows is answered with 202 and a job; stored answers and refusals come at once. Whether
a request is a job follows from the ledger and never from a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from concurrent.futures import Future
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from dpflow.catalogue import TableName
from dpflow.core.contract.results import finite_json
from dpflow.engine.releases.receipt import ROWS_LEFT_OUT
from dpflow.server.bodies import DistinctKeysRoute
from dpflow.server.data_service import DataService
from dpflow.server.job_queue import Job, Reply
from dpflow.server.principals import Who
from dpflow.server.public_facts import MAX_ENTRIES
from dpflow.server.publications import MEDIA_TYPES, FileKind
from dpflow.server.refusals import describe_errors

#: Seconds for which a poll may wait for its job.
MAX_WAIT = 30
#: Seconds after which the ledger is asked again for a job of another process.
LOOK_AGAIN = 0.25
router = APIRouter(route_class=DistinctKeysRoute)
Option = str | int | float | list[str] | None
Parameter = str | int | float | bool | None
Name = Annotated[str, Field(min_length=1, max_length=200)]

#: Without a slash, which ends a principal's name in run identities.
AirflowId = Annotated[str, Field(pattern=r"^[^/\s]+$", max_length=250)]


class SqlRequest(BaseModel):
    """A query, with the options of `dpflow.sql` but tables and ledger."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[str, Field(max_length=100_000)]
    options: dict[str, Option] = {}
    parameters: list[Parameter] | dict[str, Parameter] = []


class TaskRun(BaseModel):
    """A task instance in a DAG's run, as far as a retry has the same.

    Attributes:
        name: what makes the run the same again, such as its data interval.
    """

    model_config = ConfigDict(extra="forbid")

    dag_id: AirflowId
    task_id: AirflowId
    name: Name
    map_index: Annotated[int, Field(ge=-1, le=10**6)] = -1


class Task(BaseModel):
    """What requests of tasks have in common.

    Attributes:
        ordinal: number among equal requests of one run.
        spend_again: pay although this task released something else in this run before.
        plan_only: say what it would cost; charges nothing.
    """

    model_config = ConfigDict(extra="forbid")

    run: TaskRun
    ordinal: Annotated[int, Field(ge=0, le=10**6)] = 0
    spend_again: bool = False
    plan_only: bool = False


class ReleaseTask(Task):
    """Releases of one task, charged together; each has the body of ``/v1/plan``."""

    releases: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]


class SqlTask(Task, SqlRequest):
    """A query of one task, which draws for its run."""


#: No part of a path and no pattern: it becomes a part of a file's name.
Block = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_=][A-Za-z0-9_=-]*([.:+][A-Za-z0-9_=-]+)*$", max_length=100)
]


class BlockLoad(BaseModel):
    """A load: its name in the service file, and blocks."""

    model_config = ConfigDict(extra="forbid")

    load: Name
    blocks: Annotated[list[Block], Field(min_length=1, max_length=1000)]


class LoadTask(BlockLoad):
    """A load of one task."""

    run: TaskRun


class ContractCheck(BaseModel):
    """A data contract: its name in the service file, and blocks."""

    model_config = ConfigDict(extra="forbid")

    contract: Name
    blocks: Annotated[list[Name], Field(max_length=1000)] = []
    plan_only: bool = False


class ContractTask(ContractCheck):
    """A data contract of one task."""

    run: TaskRun


class PredictionRows(BaseModel):
    """Predictions made beforehand, by the row ids of the private table's column ``column``."""

    model_config = ConfigDict(extra="forbid")

    column: Name
    ids: Annotated[list[Annotated[float, Field(allow_inf_nan=False)] | str], Field(min_length=1)]
    predictions: list[float | None]
    scores: list[float | None] | None = None


class SessionQuestions(BaseModel):
    """Questions to a session, in order.

    Attributes:
        session: the body of ``/v1/plan`` with a mechanism that is a session.
        plan_only: say what opening it would cost; charges nothing.
    """

    model_config = ConfigDict(extra="forbid")

    session: dict[str, Any]
    queries: Annotated[list[dict[str, Any]], Field(max_length=1000)] = []
    plan_only: bool = False


class GateCandidate(BaseModel):
    """A candidate for a gate: the fields of `dpflow.engine.sessions.candidate.Submission`, its files in base64 and its
    predictions as rows.
    """

    model_config = ConfigDict(extra="forbid")

    name: Name
    claim: str | None = None
    label: str = ""
    features: Annotated[list[Name], Field(max_length=10_000)] = []
    estimator: str | dict[str, Any] | None = None
    options: dict[str, str | float] = {}
    default: str | float | None = None
    file: str | None = None
    rival: str | None = None
    predictions: PredictionRows | None = None


class JobView(BaseModel):
    """A request that waits or runs: ask for it again at ``/v1/jobs/{job}``."""

    job: str
    stage: str


_ERRORS = describe_errors(401, 403, 422, 429, 500, 503)
_JOB_ERRORS = describe_errors(401, 403, 404, 409, 413, 422, 429, 500, 503)
_JOB: dict[int | str, dict[str, Any]] = {
    202: {"model": JobView, "description": "A new private read: poll its job."}
}


def _service(request: Request) -> DataService:
    service: DataService = request.app.state.data
    return service


@router.get("/v1/tables", responses=_ERRORS)
def list_tables(request: Request, caller: Who) -> list[Reply]:
    """The principal's tables: what is protected, and which scope pays."""
    return _service(request).facts.list_tables(caller)


@router.get("/v1/tables/{name}", responses=_ERRORS)
def describe_table(request: Request, caller: Who, name: Annotated[Name, Path()]) -> Reply:
    """One table: whom it protects, its columns and bounds, and what is left of its budgets."""
    return _service(request).facts.describe(caller, name)


@router.get("/v1/remaining", responses=_ERRORS)
def list_remaining(
    request: Request, caller: Who, scope: Annotated[Name | None, Query()] = None
) -> list[Reply]:
    """What is left, one mapping per budget."""
    return _service(request).facts.list_remaining(caller, scope)


@router.get("/v1/history", responses=_ERRORS)
def list_history(
    request: Request,
    caller: Who,
    scope: Annotated[Name | None, Query()] = None,
    since: Annotated[Name | None, Query()] = None,
    principal: Annotated[Name | None, Query()] = None,
    before: Annotated[int, Query(ge=1, le=2**62)] = 2**62,
    limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 50,
) -> list[Reply]:
    """The newest entries of the ledger's history below number ``before``, the oldest of them first."""
    return _service(request).facts.list_history(caller, scope, since, principal, before, limit)


@router.post("/v1/plan", responses=_ERRORS)
def plan_release(request: Request, caller: Who, release: dict[str, Any]) -> Reply:
    """What a release would cost and how exact it would be; charges nothing. The body has the fields of a
    release file, its table by name.
    """
    return dict(finite_json(_service(request).plan(caller, release)))


@router.post("/v1/explain", responses=_ERRORS)
def explain_query(request: Request, caller: Who, query: SqlRequest) -> Reply:
    """How a query would be answered and what it would cost; charges nothing."""
    return dict(finite_json(_service(request).explain(caller, query.model_dump())))


@router.post("/v1/release", responses=_JOB_ERRORS | _JOB)
def make_release(request: Request, caller: Who, release: dict[str, Any]) -> JSONResponse:
    """Charge and draw a release, once for its name and revision. The body is that of ``/v1/plan``."""
    return _show(_service(request).submit(caller, "release", release))


@router.post("/v1/sessions", responses=_JOB_ERRORS | _JOB)
def ask_session(request: Request, caller: Who, questions: SessionQuestions) -> JSONResponse:
    """Ask a session, which is charged whole and once for its name and revision. Always a job; the same question again
    is free.
    """
    return _show(_service(request).submit(caller, "session", questions.model_dump()))


@router.post("/v1/sql", responses=_JOB_ERRORS | _JOB)
def answer_query(request: Request, caller: Who, query: SqlRequest) -> JSONResponse:
    """Answer a SELECT: from stored releases at once, else by a job."""
    return _show(_service(request).submit(caller, "sql", query.model_dump()))


@router.post("/v1/contract", responses=_JOB_ERRORS | _JOB)
def run_contract(request: Request, caller: Who, check: ContractCheck) -> JSONResponse:
    """Check a data contract, paid once for its name, revision and blocks: verdicts of noisy numbers."""
    return _show(_service(request).submit(caller, "contract", check.model_dump()))


@router.post("/v1/tasks/release", responses=_JOB_ERRORS | _JOB)
def make_task_releases(request: Request, caller: Who, task: ReleaseTask) -> JSONResponse:
    """Releases of a scheduler's task, once for each run: receipts without results."""
    return _show(_service(request).submit(caller, "release task", task.model_dump()))


@router.post("/v1/tasks/sql", responses=_JOB_ERRORS | _JOB)
def answer_task_query(request: Request, caller: Who, task: SqlTask) -> JSONResponse:
    """A query of a scheduler's task, once for each run: its cost without its numbers."""
    return _show(_service(request).submit(caller, "sql task", task.model_dump()))


@router.post("/v1/load", responses=_JOB_ERRORS | _JOB)
def load_blocks(request: Request, caller: Who, load: BlockLoad) -> JSONResponse:
    """Load blocks from where the owner has them, in place of what was there of them. Always a job; its answer has no
    number of rows.
    """
    return _show(_service(request).submit(caller, "load", load.model_dump()))


@router.post("/v1/tasks/load", responses=_JOB_ERRORS | _JOB)
def load_task_blocks(request: Request, caller: Who, task: LoadTask) -> JSONResponse:
    """The same for a run of a scheduler's task."""
    return _show(_service(request).submit(caller, "load task", task.model_dump()))


@router.post("/v1/tasks/contract", responses=_JOB_ERRORS | _JOB)
def check_contract(request: Request, caller: Who, task: ContractTask) -> JSONResponse:
    """Check a data contract, paid once for each run: verdicts of noisy numbers."""
    return _show(_service(request).submit(caller, "contract task", task.model_dump()))


@router.get("/v1/published", responses=_ERRORS)
def list_published(request: Request, caller: Who) -> list[Reply]:
    """What the principal may read by URL."""
    return _service(request).publications.list_names(caller)


@router.get(
    "/v1/published/{name}.{kind}",
    response_class=Response,
    responses=_ERRORS
    | {
        200: {"content": {media: {} for media in MEDIA_TYPES.values()}},
        304: {"description": "The reader has this content."},
    },
)
@router.head("/v1/published/{name}.{kind}", include_in_schema=False)
def read_published(
    request: Request,
    caller: Who,
    name: Annotated[TableName, Path()],
    kind: FileKind,
    latest: bool = False,
    if_none_match: Annotated[str | None, Header(max_length=10_000)] = None,
) -> Response:
    """Settled results as a file, of all blocks and runs or of the latest interval. The token may also be the password of
    HTTP Basic, whose user is anything. The header ``Rows-Left-Out`` counts rows above the principal's ``max_rows``.
    """
    publications = _service(request).publications
    file = publications.read(caller, name, kind, if_none_match, latest=latest)
    headers = {"ETag": file.tag, "Cache-Control": "private, no-cache"}
    if file.content is None:
        return Response(status_code=304, headers=headers)
    if file.rows_left_out:
        headers[ROWS_LEFT_OUT] = str(file.rows_left_out)
    return Response(file.content, headers=headers, media_type=MEDIA_TYPES[file.kind])


@router.get("/v1/gates", responses=_ERRORS)
def list_gates(request: Request, caller: Who) -> list[Reply]:
    """The gates that the principal may name, what each costs, proves and refuses."""
    return list(finite_json(_service(request).gates.list_names(caller)))


@router.get("/v1/gates/{gate}", responses=_ERRORS)
def show_gate(request: Request, caller: Who, gate: Annotated[Name, Path()]) -> Reply:
    """One gate, and what is left of it; opens and charges nothing."""
    return dict(finite_json(_service(request).gates.show_status(caller, gate)))


@router.post("/v1/gates/{gate}/candidates", responses=_JOB_ERRORS | _JOB)
def submit_candidate(
    request: Request, caller: Who, gate: Annotated[Name, Path()], candidate: GateCandidate
) -> JSONResponse:
    """The gate's verdict on a candidate, always by a job; the same one again is free. The first one charges the gate."""
    body = {"gate": gate, "candidate": candidate.model_dump()}
    return _show(_service(request).submit(caller, "gate", body))


@router.delete("/v1/jobs/{job}", responses=_JOB_ERRORS)
def cancel_job(request: Request, caller: Who, job: Annotated[str, Path(max_length=64)]) -> JobView:
    """Take back a job that waits and that nothing was charged for. Any other goes on to its end, so that
    nobody chooses among draws by time.
    """
    cancelled = _service(request).cancel_job(caller, job)
    return JobView(job=cancelled.id, stage=cancelled.stage)


@router.get("/v1/jobs/{job}", responses=_JOB_ERRORS | _JOB)
async def poll_job(
    request: Request,
    caller: Who,
    job: Annotated[str, Path(max_length=64)],
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT)] = 0,
) -> Response:
    """The answer of a job, or 202 while there is none. ``wait`` delays this reply alone."""
    service, loop = _service(request), asyncio.get_running_loop()
    deadline = loop.time() + wait
    waiting = await asyncio.to_thread(service.find_job, caller, job)
    while not waiting.done.done() and (left := deadline - loop.time()) > 0:
        if waiting.is_elsewhere:
            await asyncio.sleep(min(left, LOOK_AGAIN))
            waiting = await asyncio.to_thread(service.find_job, caller, job)
            continue
        ended = asyncio.Event()
        # Not the future itself: who stops waiting ends no job, and asyncio would log a refusal that nobody took.
        waiting.done.add_done_callback(functools.partial(_wake, loop, ended))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), left)
    return _show(waiting.done.result() if waiting.done.done() else waiting)


def _wake(loop: asyncio.AbstractEventLoop, ended: asyncio.Event, _: Future[Reply]) -> None:
    loop.call_soon_threadsafe(ended.set)


def _show(answer: Reply | Job) -> JSONResponse:
    if not isinstance(answer, Job):
        return JSONResponse(answer)
    if answer.done.done():
        return JSONResponse(answer.done.result())
    place = {"Location": f"/v1/jobs/{answer.id}", "Retry-After": "1"}
    return JSONResponse({"job": answer.id, "stage": answer.stage}, 202, place)
