"""What the history says of a release: the columns that its charge fixed, and those that later entries change."""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping, Sequence
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
