"""The ASGI application of ``dpflow serve``: its doors, and what is said without a token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from dpflow.errors import DpflowError, LedgerUnavailable
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.server import decisions, predictions, queries
from dpflow.server.batches import Batches
from dpflow.server.bodies import Gate
from dpflow.server.budget_page import PLACE, make_budget_page
from dpflow.server.data_service import Charged, DataService
from dpflow.server.decisions import Decisions
from dpflow.server.job_queue import Jobs
from dpflow.server.metrics import CONTENT_TYPE, Metrics
from dpflow.server.predictions import Opening, is_ready, open_now
from dpflow.server.principals import Principals
from dpflow.server.refusals import (
    Refused,
    describe_errors,
    refuse_error,
    refuse_for_now,
    refuse_invalid,
    refuse_unknown,
)
from dpflow.server.served_tables import load_tables
from dpflow.server.service import Service


class Status(BaseModel):
    """Whether the service works."""

    status: str


log = logging.getLogger("dpflow")
#: When the service stops: for clients to send and take what they began, and then for jobs that run. What was charged
#: and does not end by then is settled by the next start.
STOP_SECONDS = 5
#: Between two looks at what was settled since it was copied.
COPY_SECONDS = 5
router = APIRouter()


@router.get("/healthz", responses=describe_errors(500))
async def check_health() -> Status:
    """Liveness probe: 200 while the process can serve requests."""
    return Status(status="ok")


@router.get("/readyz", responses=describe_errors(500, 503))
def check_readiness(request: Request) -> Status:
    """Readiness probe: 200 once models are learned and while the ledger can be read. A session that keeps models from their
    rows keeps nothing else.
    """
    if request.app.state.sessions.locked_by is None:
        open_now(request.app.state)
    try:
        request.app.state.ledger.scopes()
    except LedgerUnavailable:
        raise refuse_for_now("the ledger cannot be read now; repeat the request later") from None
    return Status(status="ready")


@router.get(
    "/metrics",
    response_class=Response,
    responses=describe_errors(500)
    | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def show_metrics(request: Request) -> Response:
    """Counts and times for Prometheus. Nothing about rows, models, points or principals."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE)


async def watch_leases(data: DataService, seconds: float, held: Charged) -> None:
    """Finish what other processes have charged and let lie: what has the same releases, attempts and answers in the
    ledger at the end of a lease as at its beginning.

    Args:
        seconds: the length of a lease.
        held: what was charged at the beginning.
    """
    while True:
        await asyncio.sleep(seconds)
        try:
            charged = await asyncio.to_thread(data.list_charged)
            lapsed = {text: state for text, state in charged.items() if held.get(text) == state}
            await asyncio.to_thread(data.resume_charged, lapsed, are_lapsed=True)
        # The ledger is away; what is there then is looked at again.
        except DpflowError as error:
            log.warning("charged requests cannot be looked at now: %s", type(error).__name__)
            continue
        held = charged


async def watch_copies(data: DataService) -> None:
    """Bring copies of what is published up to what is settled, again and again."""
    while True:
        try:
            await asyncio.to_thread(data.publications.copy_changed)
        except DpflowError as error:
            log.warning("nothing is copied now: %s", type(error).__name__)
        await asyncio.sleep(COPY_SECONDS)


def create_app(
    service: Service,
    principals: Principals,
    sessions: Opening,
    ledger: Ledger,
    registry: Registry,
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        service: tables and limits.
        principals: who may ask.
        sessions: every principal's open session, once models are learned. Until then points are answered
            with 503.
        ledger: where all scopes are.
        registry: the mechanisms.

    Raises:
        InvalidInput: a declaration that cannot be read, or calls itself otherwise.
    """
    jobs = Jobs(service.max_waiting)
    tables = load_tables(service)
    data = DataService(service, tables, ledger, registry, jobs)
    predict = service.predict

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batches = Batches(
            refuse_outside=predict is not None and predict.outside == "refuse"
        )
        app.state.metrics = Metrics(app.state.batches, lambda: is_ready(sessions))
        # Before the first request: what was charged by a process that died is settled.
        charged = await asyncio.to_thread(data.list_charged)
        await asyncio.to_thread(data.resume_charged, charged)
        watching = [asyncio.create_task(watch_leases(data, service.lease_seconds, charged))]
        if any(terms.copies for terms in service.published.values()):
            watching.append(asyncio.create_task(watch_copies(data)))
        yield
        for task in watching:
            task.cancel()
        # In threads: to join theirs here would block the event loop.
        await asyncio.to_thread(jobs.close, STOP_SECONDS)
        await asyncio.to_thread(app.state.batches.close, STOP_SECONDS)

    # The page /docs of FastAPI loads scripts from elsewhere; /openapi.json says the same.
    app = FastAPI(
        title="dpflow",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service, app.state.principals, app.state.data = service, principals, data
    app.state.sessions, app.state.ledger = sessions, ledger
    app.state.decisions = Decisions(tables, ledger)
    for door in (router, predictions.router, queries.router, decisions.router):
        app.include_router(door)
    app.mount(PLACE, make_budget_page(principals, ledger, service.issuers))
    app.add_exception_handler(RequestValidationError, refuse_invalid)
    app.add_exception_handler(HTTPException, refuse_unknown)
    # Whatever else is raised ends at the gate.
    for kind in (Refused, DpflowError):
        app.add_exception_handler(kind, refuse_error)
    app.add_middleware(Gate, most=service.max_bytes, of=app)
    return app
