"""The budget page of a service: the pages of `dpflow ui`, for principals who may see every scope.

A browser gives the principal's token, or one of an OpenID issuer, once in a form. A cookie then holds it, which no script
and no other site's page can use. Each request is checked by the service file as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from dpflow.client.remote import is_loopback
from dpflow.ledger import BudgetView
from dpflow.server.principals import Caller, Principals, admit
from dpflow.server.refusals import Refused
from dpflow.ui.application import create_app, respond
from dpflow.ui.markup import Markup, element, page
from dpflow.ui.visit import Audience

#: Where it is.
PLACE = "/budgets"
_COOKIE = "dpflow_budgets"


def make_budget_page(principals: Principals, open_view: Callable[[], BudgetView]) -> FastAPI:
    """The page as an application, to be mounted at `PLACE`."""

    def find_audience(request: Request) -> Audience:
        header = request.headers.get("authorization")
        token = request.cookies.get(_COOKIE, "")
        try:
            request.state.caller = _admit_reader(principals, header or f"Bearer {token}")
        except HTTPException as error:
            if header is None and error.status_code == 401:
                raise HTTPException(303, headers={"Location": f"{PLACE}/login"}) from None
            raise
        return Audience()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/login")
    def ask_token() -> Response:
        return _show_form("")

    @app.post("/login")
    async def take_token(request: Request) -> Response:
        # A form of another site would log its reader in as somebody else.
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return _show_form("Send the form of this page.", 403)
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        token = form.get("token", [""])[0].strip()
        if not token.isascii() or not token.isprintable() or set(token) & set(' ;,"\\'):
            return _show_form("This is no token of a service; copy it whole.", 401)
        try:
            request.state.caller = _admit_reader(principals, f"Bearer {token}")
        except HTTPException as error:
            return _show_form(f"{error.detail[:1].upper()}{error.detail[1:]}.", error.status_code)
        response = RedirectResponse(f"{PLACE}/", 303, {"Cache-Control": "no-store"})
        is_local = is_loopback(request.url.hostname or "")
        response.set_cookie(
            _COOKIE, token, httponly=True, samesite="strict", secure=not is_local, path=PLACE
        )
        return response

    @app.post("/logout")
    def forget_token() -> Response:
        response = RedirectResponse(f"{PLACE}/login", 303, {"Cache-Control": "no-store"})
        response.delete_cookie(_COOKIE, path=PLACE)
        return response

    app.mount("/", create_app(open_view, audience=find_audience))
    return app


def _admit_reader(principals: Principals, authorization: str) -> Caller:
    """Who reads. Raises `HTTPException` for a token that is none now, and for who may not see every scope."""
    try:
        caller = admit(principals, authorization)
    except Refused as refusal:
        raise HTTPException(refusal.status, refusal.message, refusal.headers) from None
    if not caller.terms.sees_every_scope:
        raise HTTPException(
            403, "this page shows every scope, and is for the roles auditor and owner"
        )
    return caller


def _show_form(problem: str, status: int = 200) -> Response:
    form = element(
        "form",
        element("label", "Token ", Markup('<input type="password" name="token" required>')),
        " ",
        element("button", "Log in"),
        method="post",
        action=f"{PLACE}/login",
    )
    return respond(page("Log in", "none", [problem] * bool(problem), form, wait=False), status)
