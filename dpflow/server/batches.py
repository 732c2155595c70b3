"""Requests that wait together are answered together: one ledger transaction for all of a session's points.

One thread answers. While it works, requests queue up, and the next batch takes all of them: the busier the service, the
larger the batches, and nobody waits for a clock. An answer is handed out after its transaction has committed.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpflow.core.points import Codes
from dpflow.engine.prediction import BATCH, PredictionSession
from dpflow.errors import InvalidInput, SessionClosed


class KeyConflict(InvalidInput):
    """An idempotency key that came with other points before."""


@dataclass(frozen=True)
class Waiting:
    """One request: encoded points, and the note that ties its idempotency key to them."""

    session: PredictionSession
    codes: Codes = field(repr=False)
    key: str | None = None
    done: Future[list[Any]] = field(default_factory=Future)

    def note(self) -> dict[str, str]:
        """The idempotency key's name and the digest of the points it came with."""
        if self.key is None:
            return {}
        digest = hashlib.sha256(str(self.codes.shape).encode() + self.codes.tobytes()).hexdigest()
        return {"key:" + hashlib.sha256(self.key.encode()).hexdigest(): digest}


class Batches:
    """The queue and its thread. Counts batches and new points for the metrics."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dpflow-batches", daemon=True)
        self.batches = self.points = 0
        self._thread.start()

    def submit(self, session: PredictionSession, codes: Codes, key: str | None = None) -> Future[list[Any]]:
        """Queue a request; the future gets its answers, or the error that it alone caused."""
        waiting = Waiting(session, codes, key)
        self._queue.put(waiting)
        return waiting.done

    def close(self) -> None:
        """Answer what is queued, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            taken, going = self._take()
            for session in {waiting.session.id: waiting.session for waiting in taken}.values():
                self._answer(session, [waiting for waiting in taken if waiting.session.id == session.id])

    def _take(self) -> tuple[list[Waiting], bool]:
        """Everything that waits, up to one batch; at least one request."""
        taken: list[Waiting] = []
        points = 0
        while points < BATCH:
            try:
                waiting = self._queue.get(block=not taken)
            except queue.Empty:
                break
            if waiting is None:
                return taken, False
            taken.append(waiting)
            points += len(waiting.codes)
        return taken, True

    def _answer(self, session: PredictionSession, group: list[Waiting]) -> None:
        """All together; each by itself if together they are more than the session can answer."""
        try:
            group = self._without_conflicts(session, group)
            if not group:
                return
            notes = {name: digest for waiting in group for name, digest in waiting.note().items()}
            said = session.predict_encoded(np.concatenate([waiting.codes for waiting in group]), notes)
        except SessionClosed as error:
            if len(group) == 1:
                return group[0].done.set_exception(error)
            for waiting in group:
                self._answer(session, [waiting])
            return
        except Exception as error:  # noqa: BLE001  the thread lives on; the app decides what a client hears
            for waiting in group:
                if not waiting.done.done():
                    waiting.done.set_exception(error)
            return
        self.batches += 1
        self.points += len(said)
        start = 0
        for waiting in group:
            waiting.done.set_result(said[start : start + len(waiting.codes)])
            start += len(waiting.codes)

    def _without_conflicts(self, session: PredictionSession, group: Iterable[Waiting]) -> list[Waiting]:
        """The requests whose idempotency key, if any, is new or came with these points."""
        kept: list[Waiting] = []
        seen: dict[str, str] = {}
        group = list(group)
        stored = session.noted([name for waiting in group for name in waiting.note()])
        for waiting in group:
            for name, digest in waiting.note().items():
                if seen.setdefault(name, stored.get(name, digest)) != digest:
                    waiting.done.set_exception(
                        KeyConflict("this idempotency key came with other points; use a new key")
                    )
                    break
            else:
                kept.append(waiting)
        return kept
