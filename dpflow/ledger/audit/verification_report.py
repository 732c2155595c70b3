"""What a verification found, and which checkpoints kept elsewhere it was held against."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from dpflow.counted import counted
from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.audit.witness import open_place, read_newest
from dpflow.ledger.audit.witness_stores import name_note
from dpflow.ledger.books.witnesses import stated_keys
from dpflow.ledger.history.anchor import Seen
from dpflow.ledger.history.checkpoint import Checkpoint, StoredCheckpoint, parse_public_key

_PLACE = "DPFLOW_LEDGER_WITNESS"


@dataclass(frozen=True)
class WitnessLook:
    """What is at the place of a ledger's witnesses, read before the ledger is.

    Attributes:
        newest: the newest checkpoint there by each trusted verifier key.
        unreachable: why nothing could be read there; "" if it could.
        problem: what was changed or taken away there; "" if nothing was.
        strangers: of each other key that a checkpoint says is a witness's, if there is none by a trusted one. Anybody may have
            written these.
        is_named: whether a place is named at all.
        is_signed_by_others: whether checkpoints of this ledger lie there, and none by a trusted key.
        is_own: whether this user could write there.
    """

    newest: Mapping[str, StoredCheckpoint] = field(default_factory=dict)
    strangers: Mapping[str, StoredCheckpoint] = field(default_factory=dict)
    unreachable: str = ""
    problem: str = ""
    is_named: bool = False
    is_own: bool = False
    is_signed_by_others: bool = False

    @property
    def points(self) -> list[tuple[Checkpoint, str]]:
        """The checkpoints, each with the name of who signed it."""
        return [(stored.point, parse_public_key(key)[0]) for key, stored in self.newest.items()]

    def find_strange(self, has_entry: Callable[[Seen], bool]) -> list[str]:
        """Those of strangers that the history does not extend, each as a sentence."""
        return [
            f"this history does not extend {name_note(stored.number)}, a checkpoint of entry {stored.point.size} that says "
            f"itself that {key} is a witness: if it is yours (--key KEY), an old copy was restored; else somebody added it"
            for key, stored in self.strangers.items()
            if not has_entry((stored.point.size, stored.point.head))
        ]

    @property
    def warnings(self) -> list[str]:
        """What these checkpoints do not prove."""
        own = f"this user could write at the place that {_PLACE} names: evidence against accidents only"
        return [own] if self.is_own else []

    @property
    def required(self) -> WitnessLook:
        """This, for what must not be done without it. Raises `LedgerUnavailable`, `LedgerCorrupt` and `InvalidInput`."""
        if self.unreachable:
            raise LedgerUnavailable(
                f"{self.unreachable}. Nothing was written or signed: retry when {_PLACE} is in reach, or unset it to go on "
                f"without what the witness saw"
            )
        if self.problem:
            raise LedgerCorrupt(f"nothing was written or signed: {self.problem}")
        if self.is_signed_by_others:
            raise InvalidInput(
                f"nothing was written or signed: checkpoints of this ledger lie at the place that {_PLACE} names, and none by a key "
                f"that is trusted here; name who signs there (--key KEY), or unset {_PLACE} to go on without what the witness saw"
            )
        return self

    def require_none_ahead(
        self, explain: Callable[[Checkpoint], str], taken: Checkpoint | None = None
    ) -> None:
        """Raises `InvalidInput` where a checkpoint there knows of entries that are gone, but for the one that is ``taken`` over.

        Args:
            explain: why the history does not vouch for a checkpoint.
        """
        for stored in self.newest.values():
            if explain(stored.point) and (taken is None or stored.point.text != taken.text):
                raise InvalidInput(
                    f"{name_note(stored.number)} at the place that {_PLACE} names is a checkpoint of entry {stored.point.size}, "
                    f"which this history does not extend: recover with it (--lost database --checkpoint FILE), or unset "
                    f"{_PLACE} to go on without it"
                )

    def list_gaps(
        self,
        demands: Mapping[str, str],
        compared: Set[str],
        strange: Sequence[str] = (),
    ) -> list[str]:
        """Why the ledger is held against fewer witnesses than it should be.

        Args:
            demands: scopes by the verifier key of the witness that each demands.
            compared: verifier keys of checkpoints that the caller brought.
            strange: what `find_strange` says.
        """
        if self.unreachable:
            return [self.unreachable]
        missing = {k: scope for k, scope in demands.items() if k not in {*self.newest, *compared}}
        where = (
            f"is at the place that {_PLACE} names"
            if self.is_named
            else f"is known ({_PLACE} names no place)"
        )
        gaps = [
            f"no checkpoint by {parse_public_key(key)[0]}, the witness of scope {scope!r}, {where}"
            for key, scope in missing.items()
        ]
        if self.is_named and not (self.newest or gaps or self.problem):
            gaps.append(
                f"no checkpoint of this ledger by a trusted key {where}; name the verifier key of who signs there (--key KEY)"
            )
        return [*gaps, *strange]


def look_at_witness(ledger_id: str, demanded: Set[str], trusted: Set[str]) -> WitnessLook:
    """Read the place that DPFLOW_LEDGER_WITNESS names, if it names one.

    Args:
        demanded: verifier keys that scopes demand or the caller named. A checkpoint by one of them may state others: a copy of
            the ledger may be older than the grant that demands them.
        trusted: those that count where nobody demands any.
    """
    name = os.environ.get(_PLACE)
    if not name:
        return WitnessLook()

    points = list[Checkpoint]()

    def find_keys(point: Checkpoint) -> Set[str]:
        points.append(point)
        return (demanded or trusted) | _list_stated(point)

    is_own, found = False, dict[str, StoredCheckpoint]()
    try:
        place = open_place(name)
        found = read_newest(place, ledger_id, find_keys)
        with contextlib.suppress(LedgerUnavailable):
            is_own = bool(found) and place.may_be_written()
    except LedgerUnavailable as error:
        return WitnessLook(unreachable=str(error), is_named=True)
    except LedgerCorrupt as error:
        return WitnessLook(problem=str(error), is_named=True)
    known, before = set(demanded or trusted), set[str]()
    while known != before:
        before = {*known}
        known |= {k for one in known & found.keys() for k in _list_stated(found[one].point)}
    newest = {key: stored for key, stored in found.items() if key in known}
    return WitnessLook(
        newest,
        strangers={} if newest else found,
        is_named=True,
        is_own=is_own,
        is_signed_by_others=bool(points) and not newest,
    )


def _list_stated(point: Checkpoint) -> Set[str]:
    """The keys that a checkpoint says are of witnesses of its scopes."""
    return stated_keys(point, {scope for scope, *_ in point.scopes})


@dataclass(frozen=True)
class Compared:
    """A checkpoint that the history extends.

    Attributes:
        size: number of the last entry that it covers.
        signer: the name of who signed it.
        file: which one it is of those at the witness's place; "" for one that the caller brought.
    """

    size: int
    signer: str
    file: str = ""

    def __str__(self) -> str:
        found = f" by {self.signer}, {self.file} at {_PLACE}" if self.file else ""
        return f"the checkpoint of entry {self.size}{found}"


@dataclass(frozen=True)
class VerificationReport:
    """Outcome of a verification.

    Attributes:
        entries: how many were verified.
        problems: everything that does not hold.
        compared_with: checkpoints kept elsewhere that the history extends.
        gaps: why it was not held against a witness that is configured or that a scope demands.
        warnings: what changes no sum and may mislead people, such as clocks that went back.
        checked_after: entries up to this one were not checked again: the checkpoint was trusted.
        self_declared: checked grants, proposals and approvals that nobody signed: their principal is what
            a login called itself. So are recoveries that state other terms of a scope than the history.
    """

    entries: int
    problems: tuple[str, ...]
    compared_with: tuple[Compared, ...] = ()
    gaps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    checked_after: int = 0
    self_declared: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was changed, dropped, reordered or restored, by everything that was to be compared."""
        return not self.problems and not self.gaps

    def to_json(self) -> dict[str, Any]:
        """JSON for programs."""
        return {"ok": self.ok, **asdict(self)}

    @property
    def comparison(self) -> str:
        """With what it was compared, as the end of a sentence."""
        parts = []
        if self.compared_with:
            parts.append("compared with " + " and ".join(map(str, self.compared_with)))
        if self.gaps:
            parts.append(f"NOT compared with a witness: {'; '.join(self.gaps)}")
        return "; ".join(parts) or "compared with no checkpoint kept elsewhere"

    def __str__(self) -> str:
        if self.problems:
            return f"{counted(self.entries, 'entry', 'entries')}, NOT verified: " + "; ".join(
                [*self.problems, *self.gaps]
            )
        number, rest = self.entries - self.checked_after, ""
        if not (self.compared_with or self.gaps):
            rest = " (--since FILE), so a database and an anchor that were restored together would not be noticed"
        if self.checked_after:
            rest += f"; entries before {self.checked_after + 1} not rechecked, nor rows that none since has touched"
        lines = [
            f"{counted(number, 'entry', 'entries')} verified: chain, anchor and sums hold; {self.comparison}{rest}"
        ]
        return "\n".join([*lines, *self.remarks])

    @property
    def remarks(self) -> tuple[str, ...]:
        """What whoever relies on the outcome must know beside it, in sentences: what nobody signed, and the warnings."""
        warnings = [f"warning: {warning}" for warning in self.warnings]
        if not self.self_declared:
            return tuple(warnings)
        first = ", ".join(map(str, self.self_declared[:5]))
        more = len(self.self_declared) - 5
        unsigned = (
            f"self-declared, not signed: the decisions about grants in "
            f"{'entry' if len(self.self_declared) == 1 else 'entries'} {first}"
            f"{f' and {more} more' if more > 0 else ''}"
        )
        return unsigned, *warnings


def list_compared(
    points: Iterable[tuple[Checkpoint, str]], look: WitnessLook, extended: Set[str]
) -> tuple[Compared, ...]:
    """Those of the checkpoints whose text is among ``extended``: the caller's, then those of a witness's place."""
    brought = [Compared(p.size, signer) for p, signer in points if p.text in extended]
    found = [
        Compared(stored.point.size, parse_public_key(key)[0], name_note(stored.number))
        for key, stored in look.newest.items()
        if stored.point.text in extended
    ]
    return (*brought, *found)
