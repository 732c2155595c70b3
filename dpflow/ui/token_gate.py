"""A token before the page where it is served alone: in a bearer header, or once in the address, from
which a cookie takes it over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response

_COOKIE = "dpflow_ui"
_Message = MutableMapping[str, Any]


class TokenGate:
    """Passes on what brings the token.

    Args:
        app: an ASGI application.
        is_token: whether a text is the token, in constant time.
    """

    def __init__(self, app: Any, is_token: Callable[[str], bool]) -> None:
        self._app, self._is_token = app, is_token

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)  # type: ignore[no-any-return]
        response = self._answer(scope)
        await (self._app if response is None else response)(scope, receive, send)

    def _answer(self, scope: _Message) -> Response | None:
        """What is answered here; None for who may pass."""
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token")
        if token is not None and self._is_token(token):
            # Out of the address, so that it stays in no history and on no screen.
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            page = scope["path"].rpartition("/")[2] or "./"
            response = RedirectResponse(f"{page}?{rest}" if rest else page, 303)
            response.set_cookie(_COOKIE, token, httponly=True, samesite="lax", path="/")
            return response
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        cookie = _read_cookie(headers.get("cookie", ""))
        if self._is_token(bearer.strip() if scheme.lower() == "bearer" else cookie):
            return None
        return PlainTextResponse(
            "give the token: open the address that dpflow ui printed\n",
            401,
            {"WWW-Authenticate": "Bearer", "Cache-Control": "no-store"},
        )


def _read_cookie(header: str) -> str:
    try:
        cookie = SimpleCookie(header).get(_COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
