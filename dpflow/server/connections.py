"""Connections of clients: a stranger who sends nothing, or a head without end, keeps nobody else out."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

#: In which the head of a request arrives, from the connection's start or the answer before.
HEAD_SECONDS = 30
#: Of a request's line and headers.
MAX_HEAD_BYTES = 64 * 1024
#: Whatever the system allows.
_MAX_CONNECTIONS = 5000
#: In one turn of the loop: those of three turns are above the limit before the first of them makes room.
ACCEPTED_AT_ONCE = 8


def limit_connections() -> int:
    """How many clients may be connected: each takes a file descriptor, and half of them are left to sources and ledger."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if soft < 0 else min(_MAX_CONNECTIONS, soft // 2)


class QueueingServer(uvicorn.Server):
    """A server that accepts a few connections in each turn, while others wait in the system's queue."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with a queue of its own length: asyncio takes one number for both."""
        await super().startup(sockets)
        for listening in (one for server in self.servers for one in server.sockets):
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(_MAX_CONNECTIONS)


def _make_room(connections: set[Any]) -> None:
    """End the connection that keeps the service waiting longest, where there are too many."""
    if len(connections) > limit_connections():
        longest = min((c for c in connections if c.waits), key=lambda c: c.waits_since)
        # At once: its end is told later, and the next one who comes ends another.
        connections.discard(longest)
        longest.transport.abort()


class BoundedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed when no head of a request arrives in time, or one that is too long. Where there are too
    many, the one that keeps the service waiting longest makes room for the next.
    """

    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Make room, and begin to wait."""
        super().connection_made(transport)
        self._head_bytes, self.waits_since = 0, self.loop.time()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close_late)
        _make_room(self.connections)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; nothing bounds what that keeps of a head."""
        super().data_received(data)
        has_half_head = self.scope is not (None if self.cycle is None else self.cycle.scope)
        self._head_bytes = self._head_bytes + len(data) if has_half_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _waits_for_head(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def waits(self) -> bool:
        """Whether the client has to send something next."""
        return self._waits_for_head or bool(self.cycle.more_body)

    def _close_late(self) -> None:
        left = self.waits_since + HEAD_SECONDS - self.loop.time()
        if self._waits_for_head and left <= 0:
            self.transport.abort()
            return
        self._timer = self.loop.call_later(left if left > 0 else HEAD_SECONDS, self._close_late)


class TlsConnection(asyncio.Protocol):
    """A connection while its client and the service agree on keys: counted, and closed in time, as any other. Behind that it
    is a `BoundedConnection`. Works in asyncio's own event loop.

    Args:
        context: has the certificate.
        terms: uvicorn's arguments of a connection.
    """

    #: Whether the client has to send something next.
    waits = True
    transport: Any

    def __init__(self, context: ssl.SSLContext, **terms: Any) -> None:
        self._context, self._inner = context, BoundedConnection(**terms)
        self._early, self._is_agreed, self._is_lost = b"", False, False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait."""
        # All that arrives is for the handshake, which reads on.
        transport.pause_reading()
        self.transport, self.waits_since = transport, self._inner.loop.time()
        self._inner.connections.add(self)
        _make_room(self._inner.connections)
        self._task = self._inner.loop.create_task(self._agree())

    async def _agree(self) -> None:
        # Others may have come in the same turn.
        if self._is_lost or self.transport.is_closing():
            return
        try:
            inside = await self._inner.loop.start_tls(
                self.transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=HEAD_SECONDS,
            )
        # A time-out, an end, or no TLS at all.
        except OSError:
            inside = None
        self._inner.connections.discard(self)
        if inside is None or self._is_lost:
            self.transport.abort()
            return
        self._is_agreed = True
        inside.set_protocol(self._inner)
        self._inner.connection_made(inside)
        if self._early:
            self._inner.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        """Keep what comes together with the handshake's end."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._is_lost = True
        self._inner.connections.discard(self)
        if self._is_agreed:
            self._inner.connection_lost(exc)

    def shutdown(self) -> None:
        """The service stops."""
        self.transport.abort()
