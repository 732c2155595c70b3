"""The door ``predict``: a session for each principal, charged whole when the service first starts, to
the scope that is the principal's quota.

All scopes lie below one budget, which so bounds what all principals learn together, however they pool
their answers, and no count is kept outside the ledger. A file may say that principals do not share
answers; then each may have a budget of its own, and each budget bounds what its principal learns alone
(Dwork and Feldman 2018, section 7).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from dpflow.engine.prediction.session import PredictionSession, require_same_models
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import load_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import DatasetLocked, InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.server.bodies import DistinctKeysRoute
from dpflow.server.principals import Caller, Who
from dpflow.server.refusals import Refused, describe_errors, refuse_for_now
from dpflow.server.service import Service

log = logging.getLogger("dpflow")
#: Before it is tried again to open sessions on rows that another session locks.
LOCKED_SECONDS = 5
Sessions = Mapping[str, PredictionSession]


class Opening(Future[Sessions]):
    """Sessions, once they are open.

    Attributes:
        locked_by: what keeps them from opening now: a session that locks their rows. All else is served meanwhile.
    """

    locked_by: DatasetLocked | None = None

    def wait_unlocked(self, error: DatasetLocked) -> None:
        """Say in the log what is waited for, and wait a little."""
        known, self.locked_by = self.locked_by, error
        if known is None or known.session_id != error.session_id:
            log.warning(
                "all is served but predictions: session %s locks their rows till it is used up, or closed "
                "(dpflow ledger resolve %s)",
                error.session_id,
                error.session_id,
            )
        time.sleep(LOCKED_SECONDS)


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
    name: str
    features: list[dict[str, Any]]
    guarantee: dict[str, Any]
    protects: str
    predictions_left: int


def is_ready(sessions: Opening) -> bool:
    """Whether sessions are open."""
    return sessions.done() and not sessions.cancelled() and sessions.exception() is None


def open_now(state: Any) -> Sessions:
    """All sessions. Raises `Refused` while models are learned, and if they could not be; `DatasetLocked`."""
    sessions: Opening = state.sessions
    if not sessions.done():
        if sessions.locked_by is not None:
            raise sessions.locked_by
        raise refuse_for_now("models are being learned; repeat the request later", seconds=5)
    # The command ends with the error itself.
    if not is_ready(sessions):
        raise refuse_for_now("the service could not start; its owner hears why", seconds=60)
    return sessions.result()


def find_session(state: Any, caller: Caller) -> PredictionSession:
    """The principal's session. Raises `Refused`."""
    caller.require_door("predict")
    return open_now(state)[caller.name]


Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
router = APIRouter(route_class=DistinctKeysRoute)


@router.post(
    "/v1/predictions",
    response_model=Answers,
    responses=describe_errors(401, 403, 409, 413, 422, 429, 500, 503),
)
async def answer_points(
    request: Request, ask: PredictionRequest, caller: Who, key: Key = None
) -> JSONResponse:
    """Answer points. A point that was answered before costs nothing and gets the same answer, and
    so does a repeated request.
    """
    state = request.app.state
    session = find_session(state, caller)
    # Before it is queued: others wait for the batch that it would fill.
    most = state.service.predict.max_points
    if len(ask.points) > most:
        raise Refused(413, "too_large", f"one request holds at most {most} points; split it")
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


@router.get("/v1/session", responses=describe_errors(401, 403, 409, 422, 429, 500, 503))
def view_session(request: Request, caller: Who) -> SessionView:
    """What may be asked, what a prediction costs and how many are left."""
    return SessionView(**find_session(request.app.state, caller).describe())


def open_sessions(
    service: Service, ledger: Ledger, registry: Registry, opening: Opening | None = None
) -> Sessions:
    """Every principal's session, charged or resumed; all answer from one set of models.

    Args:
        opening: what waits where another session locks the rows.

    Raises:
        BudgetExceeded: a scope cannot pay; the sessions before it are open and will be resumed.
        DatasetLocked: another session locks the rows, and nothing waits.
        InvalidInput: the session file does not plan.
        PlanRefused: two principals would not learn the same models; nothing was charged.
    """
    if service.predict is None:
        return {}
    request = load_request(service.predict.session)
    plans: dict[str, Plan] = {}
    for name, principal in service.list_predictors().items():
        changes: dict[str, Any] = {"scope": principal.scope, "name": f"{request.name}/{name}"}
        if principal.predictions is not None:
            changes["params"] = request.params | {"predictions": principal.predictions}
        # The ledger's bound on names, told in the words of the service file.
        if len(changes["name"]) > 200:
            raise InvalidInput(
                f"the session's name and the principal's are too long together: {changes['name'][:40]}..."
            )
        request_of_principal = request.model_copy(update=changes)
        plans[name] = make_plan(request_of_principal, registry, ledger)
        # Before any session is charged.
        require_same_models(plans[name], next(iter(plans.values())))
    sessions: dict[str, PredictionSession] = {}
    while len(sessions) < len(plans):
        name = list(plans)[len(sessions)]
        run = RunIdentity.of_request(plans[name].request, name)
        try:
            sessions[name] = PredictionSession.open(plans[name], ledger, run_identity=run)
        except DatasetLocked as error:
            if opening is None:
                raise
            opening.wait_unlocked(error)
    if opening is not None:
        opening.locked_by = None
    first, *others = sessions.values()
    # Once for all sessions: what was learned depends on rows, not on who asks.
    first.learn_models()
    for session in others:
        session.share_models(first)
    return sessions


def open_in_background(opening: Callable[[Opening], Sessions]) -> Opening:
    """Sessions that another thread opens: a server says meanwhile that it is not ready."""
    opened = Opening()

    def run() -> None:
        try:
            opened.set_result(opening(opened))
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            opened.set_exception(error)

    # A daemon: a service that is stopped does not learn on. What was charged is resumed.
    threading.Thread(target=run, name="dpflow-learning", daemon=True).start()
    return opened
