"""What passes before and behind every endpoint: size limits, JSON without repeated keys, headers, the access log."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.routing import Match

from dpflow.server.principals import admit
from dpflow.server.refusals import Refused, make_refusal, refuse_excess, refuse_for_now
from dpflow.yaml_files import parse_json

#: A line for each request, of what anybody at the socket sees: no point and no answer.
access_log = logging.getLogger("dpflow.access")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
#: Of every response that does not say otherwise: nothing of it is kept by a proxy, run by a browser, or shown inside a page.
SECURITY_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


#: Below this every place needs a token.
PRIVATE = "/v1/"
#: Bytes of a body elsewhere, where strangers may send one: the largest is a login's.
MAX_STRANGE_BYTES = 16 * 1024
#: Bodies of one principal that arrive or are being answered have at most so many times the bytes that one may have.
MAX_BODIES = 4
#: What programs read that send no header but a URL's user and password.
FILES = "/v1/published/"


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
    """Endpoints that get a `DistinctKeysRequest`, and take the query parameters that they describe and no other: one
    that is misspelt would be left out unseen.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As the base class, of the stricter request."""
        handle = super().get_route_handler()
        known = {field.alias for field in self.dependant.query_params}

        async def handle_request(request: Request) -> Response:
            if unknown := sorted(request.query_params.keys() - known):
                raise Refused(
                    422,
                    "invalid_input",
                    f"there is no query parameter {unknown[0][:40]!r} here; known: {', '.join(sorted(known)) or '(none)'}",
                )
            return await handle(DistinctKeysRequest(request.scope, request.receive))

        return handle_request


class Gate:
    """Admits who asks, then takes the body whole before the app sees it, and refuses one above the limits while it
    arrives: of one request, and of all of a principal. Counts and logs what was answered, adds `SECURITY_HEADERS`, and
    answers whatever is raised behind it.
    """

    def __init__(self, app: Any, most: int, of: FastAPI) -> None:
        self._app, self._most, self._of = app, most, of
        self._held: Counter[str] = Counter()

    async def __call__(
        self, scope: Message, receive: Receive, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)  # type: ignore[no-any-return]
        begun, has_answer = time.perf_counter(), False

        async def send_counted(message: Message) -> None:
            nonlocal has_answer
            if message["type"] == "http.response.start":
                has_answer = True
                own = list(message.get("headers", ()))
                names = {name.lower() for name, _ in own}
                added = [header for header in SECURITY_HEADERS if header[0] not in names]
                message["headers"] = [*own, *added]
                self._note_answer(scope, message["status"], time.perf_counter() - begun)
            await send(message)

        if (refusal := self._find_refusal(scope)) is not None:
            return await refusal.make_response()(scope, receive, send_counted)
        try:
            async with self._hold_body(scope, receive) as body:
                whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

                async def receive_whole() -> Message:
                    return whole.pop() if whole else await receive()

                await self._app(scope, receive_whole, send_counted)
        # The server does so to requests that do not end while it stops.
        except asyncio.CancelledError:
            refused = refuse_for_now("the service stops; send the request again later")
            if not has_answer:
                await refused.make_response()(scope, receive, send_counted)
        # Here and not behind: the server would write its text, which may hold a row, into its log.
        except Exception as error:  # noqa: BLE001  whatever it is, a client hears no text of it
            refused = make_refusal(error)
            if not has_answer:
                await refused.make_response()(scope, receive, send_counted)

    @asynccontextmanager
    async def _hold_body(self, scope: Message, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, or what arrived of it; counted until it is answered. Raises `Refused` above a limit."""
        caller, most = scope["state"].get("caller"), self._find_limit(scope)
        name = "" if caller is None else caller.name
        # Counted while it arrives, so that a body that states no length is bounded, too.
        arrived, has_more = bytearray(), True
        try:
            while has_more:
                message = await receive()
                part = message.get("body", b"")
                arrived += part
                self._held[name] += len(part)
                has_more = message["type"] == "http.request" and message.get("more_body", False)
                if len(arrived) > most:
                    raise _refuse_size(most)
                if caller is not None and self._held[name] > MAX_BODIES * most:
                    raise refuse_excess(
                        f"requests of this principal that are being sent or answered have more than {MAX_BODIES * most} bytes"
                    )
            yield bytes(arrived)
        finally:
            self._held[name] -= len(arrived)

    def _find_limit(self, scope: Message) -> int:
        return self._most if scope["path"].startswith(PRIVATE) else MAX_STRANGE_BYTES

    def _find_refusal(self, scope: Message) -> Refused | None:
        """What is refused by its headers, before the body is read: a stranger fills no memory."""
        headers, state = Headers(scope=scope), scope.setdefault("state", {})
        try:
            if scope["path"].startswith(PRIVATE):
                may_be_basic = scope["method"] in ("GET", "HEAD") and scope["path"].startswith(
                    FILES
                )
                state["caller"] = admit(
                    self._of.state.principals, headers.get("authorization"), basic=may_be_basic
                )
        except Exception as error:  # noqa: BLE001  whatever it is, a client hears no text of it
            return make_refusal(error)
        length, most = headers.get("content-length", ""), self._find_limit(scope)
        return _refuse_size(most) if length.isdigit() and int(length) > most else None

    def _note_answer(self, scope: Message, status: int, seconds: float) -> None:
        # What was asked for by a name of ours: a stranger's path could forge lines, or be a secret.
        endpoint = self._find_endpoint(scope)
        caller = scope["state"].get("caller")
        principal = "nobody" if caller is None else caller.name
        self._of.state.metrics.count_request(endpoint, status, seconds)
        access_log.info("%s %s %d %d ms", principal, endpoint, status, math.ceil(1000 * seconds))

    def _find_endpoint(self, scope: Message) -> str:
        """The path of the route, also of a request that was answered before it was routed."""
        if "route" not in scope:
            for route in self._of.routes:
                if isinstance(route, APIRoute) and route.matches(scope)[0] is Match.FULL:
                    return route.path
        return str(getattr(scope.get("route"), "path", "other"))


def _refuse_size(most: int) -> Refused:
    return Refused(413, "too_large", f"a request has at most {most} bytes; split it")
