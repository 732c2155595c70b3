"""The application: one address for each page, errors as pages, and nothing that writes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from dpflow.errors import (
    DpflowError,
    InvalidInput,
    LedgerUnavailable,
    UnexpectedFailure,
    UnknownName,
)
from dpflow.ledger import BudgetView
from dpflow.ui import markup
from dpflow.ui.pages import PAGES
from dpflow.ui.visit import Audience, Host, Missing, Visit

log = logging.getLogger("dpflow")

_HEADERS = {
    # Said in the page, too; frames can only be forbidden here. Airflow shows the page in one.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class LazyView:
    """Opens the ledger at the first request, and again as long as that fails: the web process
    starts without it.
    """

    def __init__(self, open_view: Callable[[], BudgetView]) -> None:
        self._open, self._lock = open_view, threading.Lock()
        self._view: BudgetView | None = None

    def get(self) -> BudgetView:
        """The view. Raises whatever opening it raises."""
        with self._lock:
            if self._view is None:
                self._view = self._open()
            return self._view


def create_app(
    open_view: Callable[[], BudgetView],
    *,
    audience: Callable[..., Audience],
    guards: Sequence[Callable[..., Any]] = (),
    prefix: str = "",
    host: Host | None = None,
) -> FastAPI:
    """The page as an ASGI application.

    Args:
        open_view: opens the ledger, to be read.
        audience: a dependency (FastAPI's) that says who asks, and raises for who may not.
        guards: further dependencies that only raise.
        prefix: below which a proxy passes requests on without taking it away; see `clean_prefix`.
        host: what the page stands in; by default nothing.
    """
    lazy, below = LazyView(open_view), clean_prefix(prefix)
    app = FastAPI(
        title="dpflow budgets",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(guard) for guard in guards],
    )

    asker = Depends(audience)

    # A plain function: it runs in a thread, and the event loop stays free.
    def show(request: Request, path: str, who: Any = asker) -> Response:
        started = time.perf_counter()
        # Mounted below another application, the path says the whole address.
        inner = f"/{path}"
        if below and f"{inner}/".startswith(f"{below}/"):
            inner = inner[len(below) :]
            if not inner:
                # Without a slash behind the prefix, relative links would lead beside it.
                return RedirectResponse(f"{below.rpartition('/')[2]}/")
        name = inner.strip("/")
        if name not in PAGES:
            raise HTTPException(404)
        if name and inner.endswith("/"):
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"../{name}{query}")
        visit = Visit(lazy.get(), who, request.query_params, host or Host())
        response = _render(name, visit)
        response.headers["Server-Timing"] = f"page;dur={1000 * (time.perf_counter() - started):.1f}"
        return response

    app.add_api_route("/{path:path}", show, methods=["GET", "HEAD"], response_class=HTMLResponse)
    app.add_exception_handler(HTTPException, _explain_http)
    for kind in (DpflowError, Exception):
        app.add_exception_handler(kind, _explain_error)
    return app


def clean_prefix(prefix: str) -> str:
    """A prefix with one slash before each part and none at its end; "" for none."""
    return "".join(f"/{part}" for part in prefix.split("/") if part)


def _render(name: str, visit: Visit) -> HTMLResponse:
    view = visit.view
    # Each time: it may have been upgraded, or another one be in its place.
    view.check()
    progress = view.catch_up()
    shown = PAGES[name](visit)
    notices = []
    if not progress.complete:
        notices.append(
            f"The history is being read: {progress.seq} of {progress.newest} entries so far. Budgets are complete; "
            f"releases, sessions, alarms and burn-downs are not yet."
        )
    html = markup.page(shown.title, shown.menu, notices, *shown.parts, wait=not progress.complete)
    return respond(html)


def _explain_error(_: Request, error: Exception) -> Response:
    """An error as a page: our own sentences, of any other only that it happened."""
    message, status, title = str(error), 500, "This page cannot be shown"
    if isinstance(error, Missing | UnknownName):
        status, title = 404, "Not found"
    elif isinstance(error, InvalidInput):
        status = 422
    elif isinstance(error, LedgerUnavailable):
        status = 503
    if not isinstance(error, DpflowError) or isinstance(error, UnexpectedFailure):
        log.error("a page failed (%s)", type(error).__name__)
        message = "the page failed; the log of the web process says with which kind of error"
    sentence = markup.element("p", f"{message[:1].upper()}{message[1:].rstrip('.')}.")
    html = markup.page(title, "none", (), sentence, wait=False)
    return respond(html, status)


def respond(html: str, status: int = 200) -> HTMLResponse:
    """A page with the headers of all pages."""
    # A name may hold half of a character: JSON can write it, and UTF-8 cannot.
    return HTMLResponse(html.encode(errors="replace"), status, headers=_HEADERS)


def _explain_http(request: Request, error: Exception) -> Response:
    """No such page, or a request that may not be answered."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return _explain_error(
            request, Missing("there is no such page; follow the links of the menu")
        )
    detail = str(error.detail) if isinstance(error, HTTPException) else ""
    headers = getattr(error, "headers", None)
    return PlainTextResponse(detail, status, headers=headers)
