"""The budget page of a service: the pages of `dpflow ui`, for principals who may see every scope.

A browser gives the principal's token, or one of an OpenID issuer, once in a form, or logs in by the issuer's page. A cookie
then says so for an hour, sealed by the ledger's key: no script and no other site's page can use it. Each request is checked by
the service file as it is then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from dpflow.errors import LedgerCorrupt
from dpflow.ledger import BudgetView, Ledger
from dpflow.loopback import is_loopback
from dpflow.server.login import Logins
from dpflow.server.principals import Caller, Principals, admit, require_caller
from dpflow.server.refusals import Refused
from dpflow.server.service import Claim, Issuer
from dpflow.ui.application import create_app, respond
from dpflow.ui.markup import Markup, element, page
from dpflow.ui.visit import Audience

#: Where it is.
PLACE = "/budgets"
#: The cookies of who reads and of a login that has begun, with the seconds that each is good for.
_SESSION, _LOGIN = ("dpflow_budgets", 3600), ("dpflow_login", 600)


class _Cookies:
    """Cookies that only the ledger's key opens."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def put(
        self, response: Response, kind: tuple[str, int], content: Any, request: Request
    ) -> None:
        """Keep a JSON value in the browser."""
        name, seconds = kind
        text = json.dumps([time.time() + seconds, content])
        sealed = self._ledger.seal(text, name).replace("/", "_").replace("=", "-")
        is_local = is_loopback(request.url.hostname or "") and request.url.scheme == "http"
        # Who comes back from an issuer's page would bring no strict one; nothing is changed by a cookie.
        same_site: Literal["strict", "lax"] = (
            "strict" if isinstance(content, Mapping) and "header" in content else "lax"
        )
        response.set_cookie(
            name,
            sealed,
            seconds,
            httponly=True,
            samesite=same_site,
            secure=not is_local,
            path=PLACE,
        )

    def get(self, request: Request, kind: tuple[str, int]) -> Any:
        """What a browser kept; None for nothing, for what is too old, and for anything that was not sealed here."""
        name, _ = kind
        sealed = request.cookies.get(name, "").replace("_", "/").replace("-", "=")
        try:
            until, content = json.loads(self._ledger.unseal(sealed, name))
        except LedgerCorrupt:
            return None
        return content if time.time() < until else None


def make_budget_page(
    principals: Principals, ledger: Ledger, issuers: Mapping[str, Issuer]
) -> FastAPI:
    """The page as an application, to be mounted at `PLACE`.

    Args:
        ledger: whose budgets are shown; it seals cookies.
        issuers: those of the service file.
    """
    cookies, logins = _Cookies(ledger), Logins(issuers, principals.issuers)

    def find_audience(request: Request) -> Audience:
        header = request.headers.get("authorization")
        session = {"header": header} if header else cookies.get(request, _SESSION)
        try:
            request.state.caller = _admit_reader(principals, session or {})
        except HTTPException as error:
            if header is None and error.status_code == 401:
                raise HTTPException(303, headers={"Location": f"{PLACE}/login"}) from None
            raise
        return Audience()

    def begin_session(request: Request, session: Mapping[str, Any]) -> Response:
        """A reader's session, if it is one. Raises `HTTPException`."""
        request.state.caller = _admit_reader(principals, session)
        response = RedirectResponse(f"{PLACE}/", 303, {"Cache-Control": "no-store"})
        cookies.put(response, _SESSION, session, request)
        return response

    def show_form(problem: str = "", status: int = 200) -> Response:
        links = [
            element("p", element("a", f"Log in at {name}", href=f"{PLACE}/login/{name}"))
            for name in logins.names
        ]
        form = element(
            "form",
            element("label", "Token ", Markup('<input type="password" name="token" required>')),
            " ",
            element("button", "Log in"),
            method="post",
            action=f"{PLACE}/login",
        )
        return respond(
            page("Log in", "none", [problem] * bool(problem), *links, form, wait=False), status
        )

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/login")
    def ask_token() -> Response:
        return show_form()

    @app.post("/login")
    async def take_token(request: Request) -> Response:
        # A form of another site would log its reader in as somebody else.
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return show_form("Send the form of this page.", 403)
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        token = form.get("token", [""])[0].strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            return show_form("This is no token of a service; copy it whole.", 401)
        try:
            return begin_session(request, {"header": f"Bearer {token}"})
        except HTTPException as error:
            return show_form(_sentence(error.detail), error.status_code)

    @app.get("/login/{issuer}")
    def go_to_issuer(request: Request, issuer: str) -> Response:
        try:
            address, begun = logins.begin(issuer)
        except Refused as refusal:
            return show_form(_sentence(refusal.message), refusal.status)
        response = RedirectResponse(address, 303, {"Cache-Control": "no-store"})
        cookies.put(response, _LOGIN, begun, request)
        return response

    @app.get("/callback")
    def come_back(request: Request) -> Response:
        begun = cookies.get(request, _LOGIN)
        query = parse_qs(request.url.query, keep_blank_values=True)
        try:
            if begun is None:
                raise Refused(401, "unauthorized", "this browser began no login; log in again")
            claim = principals.match_claims(*logins.end(begun, query))
            if claim is None:
                raise Refused(403, "forbidden", "these claims are those of no principal, or of two")
            response = begin_session(request, {"claim": claim.model_dump()})
        except Refused as refusal:
            response = show_form(_sentence(refusal.message), refusal.status)
        except HTTPException as error:
            response = show_form(_sentence(error.detail), error.status_code)
        # It is good for one answer, whatever that was.
        response.delete_cookie(_LOGIN[0], path=PLACE)
        return response

    @app.post("/logout")
    def forget_session() -> Response:
        response = RedirectResponse(f"{PLACE}/login", 303, {"Cache-Control": "no-store"})
        response.delete_cookie(_SESSION[0], path=PLACE)
        return response

    app.mount("/", create_app(lambda: BudgetView(ledger.location), audience=find_audience))
    return app


def _admit_reader(principals: Principals, session: Mapping[str, Any]) -> Caller:
    """Who reads. Raises `HTTPException` for who is nobody now, and for who may not see every scope.

    Args:
        session: ``header``, as ``Authorization`` has it, or the ``claim`` that an issuer proved.
    """
    try:
        if "claim" in session:
            claimed = principals.find_by_claim(Claim.model_validate(session["claim"]))
            caller = require_caller(principals, claimed)
        else:
            caller = admit(principals, session.get("header"))
    except Refused as refusal:
        raise HTTPException(refusal.status, refusal.message, refusal.headers) from None
    if not caller.terms.sees_every_scope:
        raise HTTPException(
            403, "this page shows every scope, and is for the roles auditor and owner"
        )
    return caller


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
