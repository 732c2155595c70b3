"""What the history says of a release: the columns that its charge fixed, and those that later entries change."""

from __future__ import annotations

import json
import marshal
import struct
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Any

from dpflow.ledger.books.records import name_in_request
from dpflow.ledger.history.state import TABLES

#: Columns of a release that change after its charge.
_CHANGING = ("state", "attempts", "fenced_below", "result_digest", "snapshot", "version", "secret_digest")  # fmt: skip
_FIXED = tuple(n for n in TABLES["dpflow_release"].names if n not in _CHANGING)
_take_fixed = itemgetter(*_FIXED)
_fixed_of_row, _changing_of_row = (
    itemgetter(*map(TABLES["dpflow_release"].names.index, names)) for names in (_FIXED, _CHANGING)
)
_take_changing = attrgetter(*_CHANGING)


def digest_values(values: Any) -> bytes:
    """A short digest for comparing, with no meaning outside this process."""
    # Of version 2: later ones write the same text in one of several ways.
    return blake2b(marshal.dumps(values, 2), digest_size=16).digest()


def read_body(entry: Any) -> dict[str, Any]:
    """What an entry of the ledger's own kinds says."""
    body: dict[str, Any] = json.loads(entry.body)
    return body


def read_fixed(entry: Any, body: Mapping[str, Any]) -> tuple[Any, ...]:
    """The columns of a release that never change, by the entry that charged it: see
    `name_fixed`.
    """
    name = name_in_request(body["request"])
    own = {"id": entry.release_id, "principal": entry.principal, "name": name, "seq": entry.seq}
    values: tuple[Any, ...] = _take_fixed({**body, **own})
    return values


def name_fixed(values: tuple[Any, ...]) -> dict[str, Any]:
    """The same by column."""
    return dict(zip(_FIXED, values))


class ReleaseState:
    """What the history says of a release or session."""

    __slots__ = ("fixed", "kind", "scope", "seq", *_CHANGING)

    def __init__(
        self, fixed: bytes, seq: int, scope: str, kind: str, state: str, secret: str | None
    ) -> None:
        self.fixed, self.seq = fixed, seq
        self.scope, self.kind, self.state = scope, kind, state
        self.attempts, self.fenced_below, self.version = 1, 0, 0
        self.secret_digest = secret
        self.result_digest: str | None = None
        self.snapshot: str | None = None

    @classmethod
    def from_entry(cls, entry: Any, body: Mapping[str, Any]) -> ReleaseState:
        """As the entry that charged it left it."""
        fixed = digest_values(read_fixed(entry, body))
        state = "open" if entry.kind == "session" else "reserved"
        return cls(fixed, entry.seq, entry.scope, entry.kind, state, body["state"])

    @classmethod
    def from_row(cls, row: Any) -> ReleaseState:
        """As a row says, in the order of the table's columns."""
        kind = "session" if row.state in ("open", "closed") else "reserve"
        release = cls(digest_values(_fixed_of_row(row)), row.seq, row.scope, kind, row.state, None)
        for name, value in zip(_CHANGING, _changing_of_row(row)):
            setattr(release, name, value)
        return release

    def changing(self) -> dict[str, Any]:
        """The columns that change."""
        return dict(zip(_CHANGING, _take_changing(self)))

    def is_same(self, row: Sequence[Any]) -> bool:
        """Whether a stored row, in the order of the table's columns, says the same."""
        same: bool = _changing_of_row(row) == _take_changing(self)
        return same and self.is_asked(row)

    def is_asked(self, row: Sequence[Any]) -> bool:
        """Whether what was asked is what a stored row says."""
        return self.fixed == digest_values(_fixed_of_row(row))


#: Digest of what was asked, entry, attempts, fence, scope, whether there is a snapshot, result's digest, snapshot.
_PACKED = struct.Struct("<16sQIII?32s32s")
_NO_SNAPSHOT = "0" * 64


class ReleaseStates:
    """States by release. What is settled changes no more, and is kept as a hundred bytes."""

    def __init__(self) -> None:
        self._states: dict[str, ReleaseState | bytes] = {}
        self._scopes: list[str] = []
        self._numbers: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __setitem__(self, name: str, state: ReleaseState) -> None:
        self._states[name] = state

    def __delitem__(self, name: str) -> None:
        del self._states[name]

    def __getitem__(self, name: str) -> ReleaseState:
        state = self._states[name]
        return self._unpack(state) if isinstance(state, bytes) else state

    def get(self, name: str) -> ReleaseState | None:
        """The state of a release; None for one that was never charged."""
        return self[name] if name in self._states else None

    def items(self) -> Iterator[tuple[str, ReleaseState]]:
        """Every release with its state, in the order they were charged. Changing one that is settled has no effect."""
        return ((name, self[name]) for name in self._states)

    def unsettled(self) -> dict[str, ReleaseState]:
        """Those that are reserved or open."""
        pairs = [(n, s) for n, s in self._states.items() if not isinstance(s, bytes)]
        return {name: state for name, state in pairs if state.state in ("reserved", "open")}

    def pack(self, name: str) -> None:
        """Keep a settled release in less room, if all of it is what a ledger writes."""
        state = self._states[name]
        assert isinstance(state, ReleaseState)
        number = self._numbers.setdefault(state.scope, len(self._numbers))
        if number == len(self._scopes):
            self._scopes.append(state.scope)
        snapshot = _NO_SNAPSHOT if state.snapshot is None else state.snapshot
        try:
            texts = [bytes.fromhex(text) for text in (state.result_digest or "", snapshot)]
            numbers = state.seq, state.attempts, state.fenced_below, number
            packed = _PACKED.pack(state.fixed, *numbers, state.snapshot is not None, *texts)
            is_whole = self._unpack(packed).changing() == state.changing()
        except (ValueError, TypeError, struct.error):
            return
        if is_whole:
            self._states[name] = packed

    def _unpack(self, packed: bytes) -> ReleaseState:
        fixed, seq, attempts, fence, scope, has_snapshot, *texts = _PACKED.unpack(packed)
        state = ReleaseState(fixed, seq, self._scopes[scope], "reserve", "settled", None)
        state.attempts, state.fenced_below = attempts, fence
        state.result_digest, snapshot = (text.hex() for text in texts)
        state.snapshot = snapshot if has_snapshot else None
        return state
