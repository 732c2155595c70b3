"""What is served and to whom: one prediction session per principal, in the scope that is the
principal's quota.

A principal's session is opened, and charged whole, when the service starts; all scopes lie below
one budget, which so bounds what all principals learn together, however they pool their answers, and
no count is kept outside the ledger. A file may say that principals do not share answers; then each
may have a budget of its own, and each budget bounds what its principal learns alone (Dwork and
Feldman 2018, section 7). A bearer token is 32 random bytes, shown once; the file keeps its SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dpflow.core.contract.strict_models import Strict, describe_problems
from dpflow.engine.prediction.session import PredictionSession, require_same_models
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import load_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.ledger import Ledger
from dpflow.private_files import UntrustedPlace, forbid_public_writing
from dpflow.registry import Registry
from dpflow.yaml_files import load_yaml

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Rate = Annotated[int, Field(ge=1, le=10**6)]


class Principal(Strict):
    """Who may ask: the SHA-256 of the token, or of several while one replaces another, the scope
    that pays, and how many predictions and requests a minute (by default the service's).
    """

    token_sha256: Digest | Annotated[list[Digest], Field(min_length=1, max_length=10)]
    scope: Annotated[str, Field(min_length=1, max_length=200)]
    predictions: Annotated[int, Field(ge=1, le=10**9)] | None = None
    requests_per_minute: Rate | None = None

    @property
    def digests(self) -> Sequence[str]:
        """Of all tokens that are valid."""
        tokens = self.token_sha256
        return [tokens] if isinstance(tokens, str) else tokens


class Service(Strict):
    """The file of ``dpflow serve``. ``session`` is a release file with a prediction mechanism,
    relative to this file.

    ``pooled``: whether principals may share answers; false lets their scopes lie below different
    budgets. ``outside``: what becomes of a value beyond the declared range: ``clamp`` takes the
    range's end for it and says so, ``refuse`` refuses the request. ``most_points`` and
    ``most_bytes`` bound one request, ``requests_per_minute`` those of each principal.
    """

    session: Path
    principals: Annotated[dict[str, Principal], Field(min_length=1)]
    pooled: bool = True
    outside: Literal["clamp", "refuse"] = "clamp"
    requests_per_minute: Rate | None = None
    most_points: Annotated[int, Field(ge=1, le=10**6)] = 10_000
    most_bytes: Annotated[int, Field(ge=100, le=10**9)] = 2_000_000

    def without_tokens(self) -> Mapping[str, Any]:
        """All that a running service cannot change."""
        fields = self.model_dump()
        for principal in fields["principals"].values():
            del principal["token_sha256"]
        return fields


def load_service(path: Path) -> Service:
    """Read a service file, which says whose tokens are valid.

    Raises:
        InvalidDeclaration: it is none, naming the field; or every user of the machine may change it.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            forbid_public_writing(path)
    except UntrustedPlace as error:
        raise InvalidDeclaration(f"no service starts from this file: {error.strerror}") from None
    try:
        service = Service.model_validate(load_yaml(path, "service file"))
    except ValidationError as error:
        raise InvalidDeclaration(f"{path} is not a service: {describe_problems(error)}") from None
    digests = [digest for one in service.principals.values() for digest in one.digests]
    if len(set(digests)) != len(digests):
        raise InvalidDeclaration(f"{path}: two principals have the same token; give each its own")
    budgets = sorted(
        {principal.scope.partition("/")[0] for principal in service.principals.values()}
    )
    if service.pooled and len(budgets) > 1:
        raise InvalidDeclaration(
            f"{path}: the principals' scopes lie below different budgets ({', '.join(budgets[:5])}), so none bounds what they learn "
            f"together; put all below one, or write pooled: false if they share no answers"
        )
    return service.model_copy(update={"session": (path.parent / service.session).resolve()})


def new_token() -> tuple[str, str]:
    """A fresh bearer token, and what the service file keeps of it."""
    token = secrets.token_urlsafe(32)
    # The token itself is stored nowhere.
    return token, token_digest(token)


def token_digest(token: str) -> str:
    """SHA-256 of a token; tokens have 256 bits, so it needs no salt."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def open_sessions(
    service: Service, ledger: Ledger, registry: Registry
) -> Mapping[str, PredictionSession]:
    """Every principal's session, charged or resumed; all answer from one set of models.

    Raises:
        BudgetExceeded: a scope cannot pay; the sessions before it are open and will be resumed.
        InvalidInput: the session file does not plan.
        PlanRefused: two principals would not learn the same models; nothing was charged.
    """
    request = load_request(service.session)
    plans: dict[str, Plan] = {}
    for name, principal in service.principals.items():
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
    sessions = {
        name: PredictionSession.open(
            plan, ledger, run_identity=RunIdentity.of_request(plan.request, name)
        )
        for name, plan in plans.items()
    }
    first, *others = sessions.values()
    # Once for all sessions: what was learned depends on rows, not on who asks.
    first.learn_models()
    for session in others:
        session.share_models(first)
    return sessions


def open_in_background(
    opening: Callable[[], Mapping[str, PredictionSession]],
) -> Future[Mapping[str, PredictionSession]]:
    """Sessions that another thread opens: a server says meanwhile that it is not ready."""
    opened: Future[Mapping[str, PredictionSession]] = Future()

    def run() -> None:
        try:
            opened.set_result(opening())
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            opened.set_exception(error)

    # A daemon: a service that is stopped does not learn on. What was charged is resumed.
    threading.Thread(target=run, name="dpflow-learning", daemon=True).start()
    return opened
