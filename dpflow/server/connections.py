"""Connections of clients: a stranger who sends nothing, or a head without end, keeps nobody else out."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

#: In which the head of a request arrives, from the connection's start or the answer before.
HEAD_SECONDS = 30
#: Of a request's line and headers.
MAX_HEAD_BYTES = 64 * 1024
#: Whatever the system allows.
_MAX_CONNECTIONS = 5000


def limit_connections() -> int:
    """How many clients may be connected: each takes a file descriptor, and half of them are left to sources and ledger."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if soft < 0 else min(_MAX_CONNECTIONS, soft // 2)


class BoundedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed when no head of a request arrives in time, or one that is too long. Where there are too
    many, the one that keeps the service waiting longest makes room for the next.
    """

    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Make room, and begin to wait."""
        super().connection_made(transport)
        self._head_bytes, self._waits_since = 0, self.loop.time()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close_late)
        if len(self.connections) > limit_connections():
            waiting = [c for c in self.connections if isinstance(c, BoundedConnection)]
            longest = min((c for c in waiting if c._waits), key=lambda c: c._waits_since)
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; nothing bounds what that keeps of a head."""
        super().data_received(data)
        has_half_head = self.scope is not (None if self.cycle is None else self.cycle.scope)
        self._head_bytes = self._head_bytes + len(data) if has_half_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _waits_for_head(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def _waits(self) -> bool:
        return self._waits_for_head or bool(self.cycle.more_body)

    def _close_late(self) -> None:
        left = self._waits_since + HEAD_SECONDS - self.loop.time()
        if self._waits_for_head and left <= 0:
            self.transport.abort()
            return
        self._timer = self.loop.call_later(left if left > 0 else HEAD_SECONDS, self._close_late)
