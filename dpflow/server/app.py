"""The endpoints. Everything but health and metrics needs a bearer token; no answer leaves before it
was charged and stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dpflow.engine.prediction.session import PredictionSession
from dpflow.errors import (
    BudgetExceeded,
    DpflowError,
    InvalidInput,
    LedgerUnavailable,
    SessionClosed,
    UnexpectedFailure,
)
from dpflow.ledger import Ledger
from dpflow.server.batches import Batches, KeyConflict
from dpflow.server.service import Service

log = logging.getLogger("dpflow")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class PredictionRequest(BaseModel):
    """Points to answer."""

    points: Annotated[
        list[list[int | float | str | bool | None]],
        Field(
            description="One list per point: a value for each feature, in order; null where it is missing."
        ),
    ]


class Answers(BaseModel):
    """Private answers, in the order of the points."""

    session_id: str
    answers: list[int | float | str | None]
    predictions_left: Annotated[
        int, Field(description="How many new points this principal may still ask.")
    ]


class SessionView(BaseModel):
    """The public side of a session."""

    session_id: str
    features: list[dict[str, Any]]
    guarantee: dict[str, Any]
    protects: str
    predictions_left: int


class Refused(Exception):
    """A request that is answered with an error: HTTP status, error word, sentence."""

    def __init__(self, status: int, error: str, message: str, **headers: str) -> None:
        self.status, self.error, self.message, self.headers = status, error, message, headers
        super().__init__(message)

    def response(self) -> JSONResponse:
        """The error as JSON."""
        return JSONResponse(
            {"error": self.error, "message": self.message}, self.status, self.headers
        )


def make_refusal(error: Exception) -> Refused:
    """What a client hears of an error. Our own messages hold nothing private; the text of any other
    stays inside.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, KeyConflict):
        return Refused(409, "key_conflict", str(error))
    if isinstance(error, InvalidInput):
        return Refused(422, "invalid_input", str(error))
    if isinstance(error, SessionClosed | BudgetExceeded):
        return Refused(429, "quota_exhausted", str(error))
    unexpected = isinstance(error, UnexpectedFailure)
    if isinstance(error, DpflowError) and error.retryable and not unexpected:
        return Refused(
            503,
            "try_again",
            "the ledger or the table cannot be used now; repeat the request",
            **{"Retry-After": "1"},
        )
    # Of others the type only: the text may hold a row.
    log.error("a request failed (%s)", error if unexpected else type(error).__name__)
    return Refused(
        500,
        "internal_error",
        "the request failed; nothing of it was charged twice, so it may be repeated",
    )


bearer = HTTPBearer(auto_error=False)


# Resolved for every request that is not public; FastAPI calls it before the endpoint.
async def require_principal(
    request: Request, token: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str:
    """Who asks, by the bearer token."""
    name = None if token is None else request.app.state.service.who(token.credentials)
    if name is None:
        raise Refused(
            401, "unauthorized", "give a valid bearer token", **{"WWW-Authenticate": "Bearer"}
        )
    return str(name)


Who = Annotated[str, Depends(require_principal)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
router = APIRouter()


@router.post("/v1/predictions", response_model=Answers)
async def answer_points(
    request: Request, ask: PredictionRequest, who: Who, key: Key = None
) -> JSONResponse:
    """Answer points. A point that was answered before costs nothing and gets the same answer, and
    so does a repeated request.
    """
    state = request.app.state
    session: PredictionSession = state.sessions[who]
    # Before it is queued: others wait for the batch that it would fill.
    if len(ask.points) > state.service.most_points:
        raise Refused(
            413,
            "too_large",
            f"one request holds at most {state.service.most_points} points; split it",
        )
    # The batching thread answers; the event loop stays free meanwhile.
    answers = await asyncio.wrap_future(state.batches.submit(session, ask.points, key))
    return JSONResponse(
        {"session_id": session.id, "answers": answers, "predictions_left": session.cached_left}
    )


@router.get("/v1/session")
def view_session(request: Request, who: Who) -> SessionView:
    """What may be asked, what a prediction costs and how many are left."""
    return SessionView(**request.app.state.sessions[who].describe())


@router.get("/healthz")
def check_health(request: Request) -> JSONResponse:
    """Whether the ledger can be read."""
    try:
        request.app.state.ledger.scopes()
    except LedgerUnavailable:
        return JSONResponse({"status": "ledger unavailable"}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request) -> str:
    """Counts for Prometheus: requests by status, batches, answered points. Nothing about rows,
    models or principals.
    """
    batches, statuses = request.app.state.batches, request.app.state.statuses
    lines = [
        f'dpflow_requests_total{{status="{code}"}} {number}'
        for code, number in sorted(statuses.items())
    ]
    lines += [
        f"dpflow_batches_total {batches.batches}",
        f"dpflow_answered_points_total {batches.points}",
    ]
    return "\n".join(lines) + "\n"


async def refuse_invalid(_: Request, error: Exception) -> JSONResponse:
    """A body that does not validate: where, and never what it holds."""
    errors = error.errors() if isinstance(error, RequestValidationError) else ()
    if any(item["type"] == "json_invalid" for item in errors):
        return Refused(422, "invalid_input", "the body is no JSON; see /docs").response()
    # Where only: what a body holds may be somebody's data.
    locations = sorted({".".join(map(str, item["loc"][:4])) for item in errors})[:5]
    return Refused(
        422, "invalid_input", f"the request does not validate at {', '.join(locations)}; see /docs"
    ).response()


async def refuse_unknown(_: Request, error: Exception) -> JSONResponse:
    """No such place or method, or a body that is no JSON."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    return Refused(
        422 if status == 400 else status,
        "invalid_input",
        "this is no request of this service; see /docs",
    ).response()


async def refuse_error(_: Request, error: Exception) -> JSONResponse:
    """Any other error."""
    return make_refusal(error).response()


def create_app(
    service: Service, sessions: Mapping[str, PredictionSession], ledger: Ledger
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        service: tokens and limits.
        sessions: every principal's open session.
        ledger: asked by the health check.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batches = Batches()
        yield
        # In a thread: to join the batching thread here would block the event loop.
        await asyncio.to_thread(app.state.batches.close)

    app = FastAPI(
        title="dpflow predictions", version="1", lifespan=lifespan, docs_url="/docs", redoc_url=None
    )
    statuses = Counter[int]()
    app.state.service, app.state.sessions, app.state.ledger, app.state.statuses = (
        service,
        sessions,
        ledger,
        statuses,
    )
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, refuse_invalid)
    app.add_exception_handler(HTTPException, refuse_unknown)
    # The last one catches whatever is left, so that no traceback becomes a response.
    for kind in (Refused, DpflowError, Exception):
        app.add_exception_handler(kind, refuse_error)
    app.add_middleware(Gate, most=service.most_bytes, statuses=statuses)
    return app


class Gate:
    """Takes a body whole before the app sees it, refuses one above the limit while it arrives, and
    counts responses.
    """

    def __init__(self, app: Any, most: int, statuses: Counter[int]) -> None:
        self._app, self._most, self._statuses = app, most, statuses

    async def __call__(
        self, scope: Message, receive: Receive, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)  # type: ignore[no-any-return]

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._statuses[message["status"]] += 1
            await send(message)

        # Counted while it arrives, so that a body that states no length is bounded, too.
        arrived, message = bytearray(), await receive()
        while message["type"] == "http.request":
            arrived += message.get("body", b"")
            if len(arrived) > self._most:
                refused = Refused(
                    413, "too_large", f"a request has at most {self._most} bytes; split it"
                )
                return await refused.response()(scope, receive, send_counted)
            if not message.get("more_body"):
                break
            message = await receive()
        whole: list[Message] = [
            {"type": "http.request", "body": bytes(arrived), "more_body": False}
        ]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_whole, send_counted)
