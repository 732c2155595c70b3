"""The endpoints. Everything but health and metrics needs a bearer token; no answer leaves before it
was charged and stored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from dpflow.engine.prediction.session import PredictionSession
from dpflow.errors import DpflowError, LedgerUnavailable
from dpflow.ledger import Ledger
from dpflow.server.batches import Batches
from dpflow.server.metrics import CONTENT_TYPE, Metrics
from dpflow.server.principals import Principals
from dpflow.server.refusals import (
    Refused,
    describe_errors,
    refuse_error,
    refuse_for_now,
    refuse_invalid,
    refuse_unknown,
)
from dpflow.server.service import Service
from dpflow.yaml_files import parse_json

#: A line for each request, of what anybody at the socket sees: no point and no answer.
access_log = logging.getLogger("dpflow.access")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Sessions = Mapping[str, PredictionSession]


class PredictionRequest(BaseModel):
    """Points to answer."""

    model_config = ConfigDict(extra="forbid")

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
    clamped: Annotated[
        list[int],
        Field(
            description="Places of points with a value beyond the declared range; the end of the range stood for it."
        ),
    ]
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


class Status(BaseModel):
    """Whether the service works."""

    status: str


def open_now(state: Any) -> Sessions:
    """All sessions. Raises `Refused` while models are learned, and if they could not be."""
    sessions: Future[Sessions] = state.sessions
    if not sessions.done():
        raise refuse_for_now("models are being learned; repeat the request later", seconds=5)
    # The command ends with the error itself.
    if not is_ready(sessions):
        raise refuse_for_now("the service could not start; its owner hears why", seconds=60)
    return sessions.result()


bearer = HTTPBearer(auto_error=False)


# Resolved for every request that is not public; FastAPI calls it before the endpoint.
async def require_principal(
    request: Request, token: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
) -> str:
    """Who asks, by the bearer token, and not too often."""
    principals: Principals = request.app.state.principals
    name = None if token is None else principals.find_by_token(token.credentials)
    if name is None:
        raise Refused(
            401, "unauthorized", "give a valid bearer token", **{"WWW-Authenticate": "Bearer"}
        )
    request.state.principal = name
    if seconds := principals.count_request(name):
        raise Refused(
            429,
            "too_many_requests",
            f"this principal asks too often; ask again in {seconds} seconds",
            **{"Retry-After": str(seconds)},
        )
    return name


Who = Annotated[str, Depends(require_principal)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


class DistinctKeysRequest(Request):
    """A request whose JSON body has each key once, as dpflow's files have: never the last one wins."""

    async def json(self) -> Any:
        """The body. Raises `json.JSONDecodeError`, also where an object has a key twice."""
        problem = ""
        try:
            return parse_json(await self.body())
        except (ValueError, RecursionError) as error:
            problem = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise json.JSONDecodeError(problem, "", 0)


class DistinctKeysRoute(APIRoute):
    """Endpoints that get a `DistinctKeysRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As the base class, of the stricter request."""
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(DistinctKeysRequest(request.scope, request.receive))

        return handle_request


router = APIRouter(route_class=DistinctKeysRoute)


@router.post(
    "/v1/predictions",
    response_model=Answers,
    responses=describe_errors(401, 409, 413, 422, 429, 500, 503),
)
async def answer_points(
    request: Request, ask: PredictionRequest, who: Who, key: Key = None
) -> JSONResponse:
    """Answer points. A point that was answered before costs nothing and gets the same answer, and
    so does a repeated request.
    """
    state = request.app.state
    session = open_now(state)[who]
    # Before it is queued: others wait for the batch that it would fill.
    if len(ask.points) > state.service.most_points:
        raise Refused(
            413,
            "too_large",
            f"one request holds at most {state.service.most_points} points; split it",
        )
    require_numbers(session.features, ask.points)
    # The batching thread answers; the event loop stays free meanwhile.
    done = await asyncio.wrap_future(state.batches.submit(session, ask.points, key))
    return JSONResponse(
        {
            "session_id": session.id,
            "answers": done.answers,
            "clamped": done.clamped,
            "predictions_left": session.cached_left,
        }
    )


def require_numbers(features: Sequence[Mapping[str, Any]], points: Sequence[Sequence[Any]]) -> None:
    """Raises `Refused` for true and false where a number belongs: Python takes them for 1 and 0."""
    numbers = [i for i, feature in enumerate(features) if feature.get("public_keys") is None]
    for number, point in enumerate(points):
        for i in numbers:
            if i < len(point) and isinstance(point[i], bool):
                raise Refused(
                    422,
                    "invalid_input",
                    f"point {number}: {features[i]['name']} is a number or a date, not true or false; correct it",
                )


@router.get("/v1/session", responses=describe_errors(401, 422, 429, 500, 503))
def view_session(request: Request, who: Who) -> SessionView:
    """What may be asked, what a prediction costs and how many are left."""
    return SessionView(**open_now(request.app.state)[who].describe())


@router.get("/healthz", responses=describe_errors(500))
async def check_health() -> Status:
    """That the process answers: whoever asks this starts it again if it does not."""
    return Status(status="ok")


@router.get("/readyz", responses=describe_errors(500, 503))
def check_readiness(request: Request) -> Status:
    """Whether points are answered now: models are learned, and the ledger can be read."""
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


def create_app(
    service: Service, principals: Principals, sessions: Future[Sessions], ledger: Ledger
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        service: limits.
        principals: who may ask.
        sessions: every principal's open session, once models are learned. Until then requests are
            answered with 503.
        ledger: asked whether the service is ready.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batches = Batches(refuse_outside=service.outside == "refuse")
        app.state.metrics = Metrics(app.state.batches, lambda: is_ready(sessions))
        yield
        # In a thread: to join the batching thread here would block the event loop.
        await asyncio.to_thread(app.state.batches.close)

    app = FastAPI(
        title="dpflow predictions", version="1", lifespan=lifespan, docs_url="/docs", redoc_url=None
    )
    app.state.service, app.state.principals = service, principals
    app.state.sessions, app.state.ledger = sessions, ledger
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, refuse_invalid)
    app.add_exception_handler(HTTPException, refuse_unknown)
    # The last one catches whatever is left, so that no traceback becomes a response.
    for kind in (Refused, DpflowError, Exception):
        app.add_exception_handler(kind, refuse_error)
    app.add_middleware(Gate, most=service.most_bytes, of=app)
    describe_wire = app.openapi

    def describe_points() -> dict[str, Any]:
        """The description, with a point as the sessions want it once they are open."""
        described = describe_wire()
        if is_ready(sessions):
            first = next(iter(sessions.result().values()))
            fields = described["components"]["schemas"]["PredictionRequest"]["properties"]
            fields["points"]["items"] = describe_point(first.features, service.outside == "refuse")
            fields["points"]["maxItems"] = service.most_points
        return described

    app.openapi = describe_points  # type: ignore[method-assign]
    return app


def is_ready(sessions: Future[Sessions]) -> bool:
    """Whether sessions are open."""
    return sessions.done() and not sessions.cancelled() and sessions.exception() is None


def describe_point(features: Sequence[Mapping[str, Any]], refuses_outside: bool) -> dict[str, Any]:
    """The JSON schema of a point."""
    items = [_describe_value(feature, refuses_outside) for feature in features]
    return {
        "type": "array",
        "prefixItems": items,
        "minItems": len(items),
        "maxItems": len(items),
        "description": ", ".join(feature["name"] for feature in features),
    }


def _describe_value(feature: Mapping[str, Any], refuses_outside: bool) -> dict[str, Any]:
    title = {"title": feature["name"]}
    if feature.get("public_keys") is not None:
        return title | {"enum": [*feature["public_keys"], None]}
    number: dict[str, Any] = {"type": "number"}
    if refuses_outside:
        number |= {name: float(feature[bound]) for name, bound in _BOUNDS.items()}
    kinds = [number, {"type": "string", "format": "date"}]
    if feature["missing"] != "skip":
        kinds.append({"type": "null"})
    return title | {"anyOf": kinds}


_BOUNDS = {"minimum": "lower", "maximum": "upper"}


class Gate:
    """Takes a body whole before the app sees it, refuses one above the limit while it arrives;
    counts and logs what was answered.
    """

    def __init__(self, app: Any, most: int, of: FastAPI) -> None:
        self._app, self._most, self._of = app, most, of

    async def __call__(
        self, scope: Message, receive: Receive, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)  # type: ignore[no-any-return]
        begun = time.perf_counter()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note_answer(scope, message["status"], time.perf_counter() - begun)
            await send(message)

        # Counted while it arrives, so that a body that states no length is bounded, too.
        arrived, message = bytearray(), await receive()
        while message["type"] == "http.request":
            arrived += message.get("body", b"")
            if len(arrived) > self._most:
                refused = Refused(
                    413, "too_large", f"a request has at most {self._most} bytes; split it"
                )
                return await refused.make_response()(scope, receive, send_counted)
            if not message.get("more_body"):
                break
            message = await receive()
        whole: list[Message] = [
            {"type": "http.request", "body": bytes(arrived), "more_body": False}
        ]

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_whole, send_counted)

    def _note_answer(self, scope: Message, status: int, seconds: float) -> None:
        # What was asked for by a name of ours: a stranger's path could forge lines, or be a secret.
        endpoint = getattr(scope.get("route"), "path", "other")
        principal = scope.get("state", {}).get("principal", "nobody")
        self._of.state.metrics.count_request(endpoint, status, seconds)
        access_log.info("%s %s %d %d ms", principal, endpoint, status, math.ceil(1000 * seconds))
