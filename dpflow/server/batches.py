"""Requests that wait together are answered together: one ledger transaction for all of a session's
points.

One thread answers. While it works, requests queue up, and the next batch takes all of them: the
busier the service, the larger the batches, and nobody waits for a clock. An answer is handed out
after its transaction has committed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpflow.core.contract.point_encoding import Codes
from dpflow.engine.prediction.session import BATCH, NoteConflict, PredictionSession
from dpflow.errors import InvalidInput, SessionClosed


class KeyConflict(InvalidInput):
    """An idempotency key that came with other points before."""


@dataclass(frozen=True)
class PointAnswers:
    """Answers, and the places of points of which a value lies beyond the declared range: the
    range's end stood for it.
    """

    answers: list[Any]
    clamped: list[int]


@dataclass
class Waiting:
    """One request: points, encoded when their turn comes, and the note that ties its idempotency
    key to them.

    The note holds keyed digests: an export does not show who was asked about.
    """

    session: PredictionSession
    points: Sequence[Sequence[Any]] = field(repr=False)
    key: str | None = None
    done: Future[PointAnswers] = field(default_factory=Future)
    codes: Codes | None = field(default=None, repr=False)
    clamped: list[int] = field(default_factory=list, repr=False)

    def note(self) -> dict[str, str]:
        """The idempotency key's name and the digest of the points it came with."""
        if self.key is None:
            return {}
        assert self.codes is not None
        # Shape and bytes: in another shape the same bytes are other points.
        digest = self.session.keyed_digest(str(self.codes.shape).encode() + self.codes.tobytes())
        return {"key:" + self.session.keyed_digest(self.key.encode()): digest}


class Batches:
    """The queue and its thread. Counts batches and answered points for the metrics.

    Args:
        refuse_outside: whether a value beyond the declared range is refused instead of clamped.
    """

    def __init__(self, *, refuse_outside: bool = False) -> None:
        self._refuse_outside = refuse_outside
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._answer_queue, name="dpflow-batches", daemon=True
        )
        self.batches = self.points = 0
        self._thread.start()

    def submit(
        self, session: PredictionSession, points: Sequence[Sequence[Any]], key: str | None = None
    ) -> Future[PointAnswers]:
        """Queue a request; the future gets its answers, or the error that it alone caused."""
        waiting = Waiting(session, points, key)
        self._queue.put(waiting)
        return waiting.done

    def close(self, seconds: float | None = None) -> None:
        """Answer what is queued, then stop; wait for that at most these seconds."""
        self._queue.put(None)
        # What is queued was accepted, so it is answered before the process ends.
        self._thread.join(seconds)

    def _answer_queue(self) -> None:
        going = True
        while going:
            taken, going = self._take_batch()
            for session in {waiting.session.id: waiting.session for waiting in taken}.values():
                group = [waiting for waiting in taken if waiting.session.id == session.id]
                encoded = encode_group(session, group)
                if self._refuse_outside:
                    encoded = list(filter(_lies_within, encoded))
                self._answer_group(session, encoded)

    def _take_batch(self) -> tuple[list[Waiting], bool]:
        """Everything that waits, up to one batch; at least one request."""
        taken: list[Waiting] = []
        points = 0
        while points < BATCH:
            try:
                waiting = self._queue.get(block=not taken)
            except queue.Empty:
                break
            # `close` queued it.
            if waiting is None:
                return taken, False
            # From here on its answers are charged, whoever still listens.
            if waiting.done.set_running_or_notify_cancel():
                taken.append(waiting)
                points += len(waiting.points)
        return taken, True

    def _answer_group(self, session: PredictionSession, group: list[Waiting]) -> None:
        """All together; each by itself if together they are more than the session can answer."""
        if not group:
            return
        try:
            group = self._without_conflicts(session, group)
            if not group:
                return
            notes = {name: digest for waiting in group for name, digest in waiting.note().items()}
            answers = session.predict_batch(
                np.concatenate([waiting.codes for waiting in group if waiting.codes is not None]),
                notes,
            )
        # Another server took one of these keys since we looked.
        except NoteConflict:
            return self._answer_group(session, group)
        except SessionClosed as error:
            # Together they are more than the session can answer; some alone may not be.
            if len(group) == 1:
                return group[0].done.set_exception(error)
            for waiting in group:
                self._answer_group(session, [waiting])
            return
        except Exception as error:  # noqa: BLE001  the thread lives on; the app decides what a client hears
            for waiting in group:
                if not waiting.done.done():
                    waiting.done.set_exception(error)
            return
        self.batches += 1
        self.points += len(answers)
        start = 0
        for waiting in group:
            part = answers[start : start + len(waiting.points)]
            waiting.done.set_result(PointAnswers(part, waiting.clamped))
            start += len(waiting.points)

    def _without_conflicts(
        self, session: PredictionSession, group: Iterable[Waiting]
    ) -> list[Waiting]:
        """The requests whose idempotency key, if any, is new or came with these points."""
        accepted: list[Waiting] = []
        seen: dict[str, str] = {}
        group = list(group)
        stored = session.find_notes([name for waiting in group for name in waiting.note()])
        for waiting in group:
            for name, digest in waiting.note().items():
                # Two requests of one batch may bring one key: the first of them counts as stored.
                if seen.setdefault(name, stored.get(name, digest)) != digest:
                    waiting.done.set_exception(
                        KeyConflict("this idempotency key came with other points; use a new key")
                    )
                    break
            else:
                accepted.append(waiting)
        return accepted


def encode_group(session: PredictionSession, group: Sequence[Waiting]) -> list[Waiting]:
    """The requests whose points fit the declaration, with their codes: all in one go, and one by
    one if some do not fit.
    """
    try:
        together = session.encode([point for waiting in group for point in waiting.points])
    except Exception as error:  # noqa: BLE001  the thread lives on; the app decides what a client hears
        if len(group) > 1:
            return [
                encodable for waiting in group for encodable in encode_group(session, [waiting])
            ]
        group[0].done.set_exception(error)
        return []
    start = 0
    for waiting in group:
        end = start + len(waiting.points)
        waiting.codes = together.codes[start:end]
        waiting.clamped = np.flatnonzero(together.clamped[start:end]).tolist()
        start = end
    return list(group)


def _lies_within(waiting: Waiting) -> bool:
    """Whether all values lie within the declared range; whoever asked of others hears of it."""
    if waiting.clamped:
        waiting.done.set_exception(
            InvalidInput(
                f"point {waiting.clamped[0]} has a value beyond the range that the table declares; "
                f"see GET /v1/session for the range"
            )
        )
    return not waiting.clamped
