"""What a client hears instead of an answer: an HTTP status, a word for programs, a sentence for
people. Never what a body, a row or another library's error holds.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dpflow.errors import (
    BudgetExceeded,
    DpflowError,
    InvalidInput,
    SessionClosed,
    UnexpectedFailure,
)
from dpflow.server.batches import KeyConflict

log = logging.getLogger("dpflow")

Word = Literal[
    "unauthorized",
    "not_found",
    "key_conflict",
    "too_large",
    "invalid_input",
    "quota_exhausted",
    "too_many_requests",
    "internal_error",
    "try_again",
]


class ErrorModel(BaseModel):
    """Why there is no answer."""

    error: Annotated[Word, Field(description="For programs.")]
    message: Annotated[str, Field(description="For people: what is wrong, and what to do.")]


_WHEN = {
    401: "No valid bearer token.",
    409: "The idempotency key came with other points before; nothing was charged.",
    413: "More points or bytes than one request may have.",
    422: "The request is not what this page describes; nothing was charged.",
    429: "The principal's predictions are used up, or it asks too often: then `Retry-After` says when to ask again.",
    500: "A failure inside; the request may be repeated, which charges nothing twice.",
    503: "Not ready, or the ledger or the table cannot be used now; repeat the request after `Retry-After`.",
}


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error answers of an endpoint, for its description."""
    return {status: {"model": ErrorModel, "description": _WHEN[status]} for status in statuses}


class Refused(Exception):
    """A request that is answered with an error: HTTP status, error word, sentence."""

    def __init__(self, status: int, error: Word, message: str, **headers: str) -> None:
        self.status, self.error, self.message, self.headers = status, error, message, headers
        super().__init__(message)

    def make_response(self) -> JSONResponse:
        """The error as JSON."""
        return JSONResponse(
            {"error": self.error, "message": self.message}, self.status, self.headers
        )


def refuse_for_now(message: str, *, seconds: int = 1) -> Refused:
    """What passes: the client should repeat its request."""
    return Refused(503, "try_again", message, **{"Retry-After": str(seconds)})


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
        return refuse_for_now("the ledger or the table cannot be used now; repeat the request")
    # Of others the type only: the text may hold a row.
    log.error("a request failed (%s)", error if unexpected else type(error).__name__)
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
            422, "invalid_input", "the body is no JSON, or has a key twice; see /docs"
        ).make_response()
    # Where only: what a body holds may be somebody's data.
    locations = sorted({".".join(map(str, item["loc"][:4])) for item in errors})[:5]
    return Refused(
        422, "invalid_input", f"the request does not validate at {', '.join(locations)}; see /docs"
    ).make_response()


async def refuse_unknown(_: Request, error: Exception) -> JSONResponse:
    """No such place or method, or a body that is no JSON."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    word: Word = "not_found" if status == 404 else "invalid_input"
    return Refused(
        422 if status == 400 else status,
        word,
        "this is no request of this service; see /docs",
        **headers,
    ).make_response()


async def refuse_error(_: Request, error: Exception) -> JSONResponse:
    """Any other error."""
    return make_refusal(error).make_response()
