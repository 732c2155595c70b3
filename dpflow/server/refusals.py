"""What a client hears instead of an answer: an HTTP status, a word for programs, a sentence for
people. Never what a body, a row or another library's error holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dpflow.errors import (
    AccessRefused,
    BudgetExceeded,
    DatasetLocked,
    DpflowError,
    GrantConflict,
    InvalidInput,
    LedgerCorrupt,
    QueryFailed,
    QueryStopped,
    RetryConflict,
    RuleBroken,
    ServiceUnavailable,
    SessionClosed,
    SignatureRequired,
    SqlRefused,
    TableError,
    UnexpectedFailure,
    UnknownName,
)
from dpflow.server.batches import KeyConflict

log = logging.getLogger("dpflow")

Word = Literal[
    "unauthorized",
    "forbidden",
    "not_found",
    "key_conflict",
    "retry_conflict",
    "unsigned_decision",
    "data_locked",
    "too_large",
    "invalid_input",
    "quota_exhausted",
    "too_many_requests",
    "query_failed",
    "internal_error",
    "try_again",
]
#: The class of an error that is no exception of dpflow's.
_CLASSES: dict[Word, type[DpflowError]] = {
    "unauthorized": AccessRefused,
    "forbidden": AccessRefused,
    "not_found": UnknownName,
    "too_many_requests": ServiceUnavailable,
    "internal_error": UnexpectedFailure,
    "try_again": ServiceUnavailable,
}
#: What else of an error is public, by its class.
_DETAILS: dict[type[DpflowError], tuple[str, ...]] = {
    SqlRefused: ("rule", "line", "column", "nearest"),
    RuleBroken: ("rule", "what"),
    BudgetExceeded: ("scope", "block"),
    SignatureRequired: ("text",),
}


class ErrorModel(BaseModel):
    """Why there is no answer."""

    error: Annotated[Word, Field(description="For programs.")]
    message: Annotated[str, Field(description="For people: what is wrong, and what to do.")]
    type: Annotated[str, Field(description="The class that dpflow's Python client raises.")]
    retryable: Annotated[
        bool, Field(description="Whether the same request can succeed later with nothing changed.")
    ]
    details: Annotated[
        dict[str, Any], Field(description="Such as the rule that a query breaks, and where.")
    ] = {}


_WHEN = {
    401: "No valid bearer token.",
    403: "The principal has no such door, or may not see this.",
    404: "No such job of this principal: send the request again, which charges nothing twice.",
    409: "The idempotency key, or the release's name and revision, came with something else before, or an open "
    "session keeps these rows from others; or a decision is signed by nobody as the ledger stands now. Nothing was charged.",
    413: "More points or bytes than one request may have.",
    422: "The request is not what this page describes, or cannot be planned; nothing was charged.",
    429: "The principal's budget or predictions are used up, or it asks too often or too much at once: then "
    "`Retry-After` says when to ask again. Nothing was charged.",
    500: "A failure inside. Where `retryable` is true the request may be repeated, which charges nothing twice; else the "
    "service's owner must act first.",
    503: "Not ready, or the ledger or the table cannot be used now; repeat the request after `Retry-After`.",
}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error answers of an endpoint, for its description."""
    return {status: {"model": ErrorModel, "description": _WHEN[status]} for status in statuses}


class Refused(Exception):
    """A request that is answered with an error: HTTP status, error word, sentence.

    Args:
        cause: the error that it stands for, whose class and public attributes are shown.

    Attributes:
        is_outcome: whether a job ended so, and not the request that asked for it.
    """

    is_outcome = False

    def __init__(
        self,
        status: int,
        error: Word,
        message: str,
        *,
        cause: type[DpflowError] | DpflowError | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.error, self.message = status, error, message
        self.headers = dict(headers or {})
        self.cause = cause or _CLASSES.get(error, InvalidInput)
        super().__init__(message)

    def make_response(self) -> JSONResponse:
        """The error as JSON."""
        shown = self.cause if isinstance(self.cause, type) else type(self.cause)
        names = _DETAILS.get(shown, ()) if isinstance(self.cause, DpflowError) else ()
        # A subclass that only a server knows is its nearest public class.
        public = next(
            base
            for base in shown.__mro__
            if issubclass(base, DpflowError) and base.__module__ == "dpflow.errors"
        )
        details = {name: getattr(self.cause, name) for name in names}
        if self.is_outcome:
            details["is_outcome"] = True
        body = {
            "error": self.error,
            "message": self.message,
            "type": public.__name__,
            "retryable": public.retryable,
            "details": details,
        }
        return JSONResponse(body, self.status, self.headers)


def refuse_for_now(
    message: str, *, seconds: int = 1, cause: type[DpflowError] | None = None
) -> Refused:
    """What passes: the client should repeat its request."""
    return Refused(503, "try_again", message, cause=cause, headers={"Retry-After": str(seconds)})


def refuse_excess(what: str) -> Refused:
    """More of something than a principal or table may have at once."""
    return Refused(
        429,
        "too_many_requests",
        f"{what}; nothing was charged, so send the request again later",
        headers={"Retry-After": "1"},
    )


#: Errors whose own text a client gets, with status and word. It holds nothing private and no place of the
#: owner's: what a request says, names of the declaration, and budgets.
_OWN_TEXTS: tuple[tuple[type[DpflowError], int, Word], ...] = (
    (KeyConflict, 409, "key_conflict"),
    (RetryConflict, 409, "retry_conflict"),
    (SignatureRequired, 409, "unsigned_decision"),
    (GrantConflict, 422, "invalid_input"),
    (InvalidInput, 422, "invalid_input"),
    (QueryFailed, 422, "query_failed"),
    (SessionClosed, 429, "quota_exhausted"),
    (BudgetExceeded, 429, "quota_exhausted"),
)

#: Errors that end when the owner acts, and no sooner.
_OWNERS_FAULTS: tuple[tuple[type[DpflowError], str], ...] = (
    (TableError, "the table cannot be read"),
    (LedgerCorrupt, "the ledger does not verify, so it charges and gives out nothing"),
)


def make_refusal(error: BaseException) -> Refused:
    """What a client hears of an error. The text of any error but those of `_OWN_TEXTS` stays inside: it
    may name places of the owner's, or quote a row.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, DatasetLocked):
        log.warning(
            "session %s keeps its rows from a request; dpflow ledger resolve closes it",
            error.session_id,
        )
        # Its own text names the scope of another principal.
        return Refused(
            409,
            "data_locked",
            "a session is open on this data, and nobody else reads it until that is used up or the service's owner, whose log names "
            "it, closes it; nothing was charged twice",
            cause=DatasetLocked,
        )
    for kind, status, word in _OWN_TEXTS:
        if isinstance(error, kind):
            return Refused(status, word, str(error), cause=error)
    known = isinstance(error, DpflowError) and not isinstance(error, UnexpectedFailure)
    # Of others the type only: the text may hold a row.
    is_ours = isinstance(error, DpflowError)
    log.error("a request failed (%s)", error if is_ours else type(error).__name__)
    if isinstance(error, DpflowError) and error.retryable and known:
        away = "the ledger or the table cannot be used now; repeat the request"
        # Its text says what is public: the limits of a query over released rows.
        message = str(error) if isinstance(error, QueryStopped) else away
        return refuse_for_now(message, cause=type(error))
    for kind, fault in _OWNERS_FAULTS:
        if isinstance(error, kind):
            message = f"{fault} until its owner repairs it; nothing is charged twice"
            return Refused(500, "internal_error", message, cause=type(error))
    return Refused(
        500,
        "internal_error",
        "the request failed; nothing of it was charged twice, so it may be repeated",
    )


async def refuse_invalid(_: Request, error: Exception) -> JSONResponse:
    """A body that does not validate: where, and never what it holds."""
    errors = error.errors() if isinstance(error, RequestValidationError) else ()
    if any(item["type"] == "json_invalid" for item in errors):
        return Refused(
            422, "invalid_input", "the body is no JSON, or has a key twice; see /openapi.json"
        ).make_response()
    # Where only: what a body holds may be somebody's data.
    locations = sorted({".".join(map(str, item["loc"][:4])) for item in errors})[:5]
    return Refused(
        422,
        "invalid_input",
        f"the request does not validate at {', '.join(locations)}; see /openapi.json",
    ).make_response()


async def refuse_unknown(_: Request, error: Exception) -> JSONResponse:
    """No such place or method, or a body that is no JSON."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    word: Word = "not_found" if status == 404 else "invalid_input"
    return Refused(
        422 if status == 400 else status,
        word,
        "this is no request of this service; see /openapi.json",
        headers=headers,
    ).make_response()


async def refuse_error(_: Request, error: Exception) -> JSONResponse:
    """Any other error."""
    return make_refusal(error).make_response()
