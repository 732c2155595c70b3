"""Signed checkpoints, in files or at a witness's place, held against a history without its anchor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpflow.errors import InvalidInput, LedgerCorrupt
from dpflow.ledger.audit.witness import open_place
from dpflow.ledger.audit.witness_stores import MAX_BYTES, name_note
from dpflow.ledger.history.checkpoint import open_note, parse_note

Recovered = tuple[str, int, str]  # a checkpoint's ledger, size and head
_MOST_FILES = 100  # of a folder, the newest


@dataclass(frozen=True)
class SignedNote:
    """A checkpoint in a file.

    Attributes:
        file: its name, without its folder.
        signer: whose trusted key signed it; None if no verifier key was named.
        problem: why it does not vouch for the history here; "" if it does.
        recovered_at: the recovery that went on from it after a loss; None if there was none. Whether that
            one took over all of it, only `dpflow.ledger.Ledger.verify` says.
    """

    file: str
    size: int
    at: str
    head: str
    signer: str | None
    problem: str
    recovered_at: int | None = None


def read_texts(place: str) -> list[tuple[str, str]]:
    """Name and text of the newest checkpoints of a folder, of one file, or of another place of a witness.

    Raises:
        LedgerUnavailable, LedgerCorrupt, InvalidInput: the place cannot be read, or something was taken away there.
    """
    folder = Path(place)
    if "://" in place or place.startswith("git+"):
        newest = itertools.islice(open_place(place).notes(), _MOST_FILES)
        return [(name_note(number), text) for number, text in newest]
    try:
        files = [f for f in folder.iterdir() if f.is_file()] if folder.is_dir() else [folder]
        files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        return [
            (file.name, file.read_text(encoding="utf-8", errors="replace"))
            for file in files[:_MOST_FILES]
            if file.stat().st_size <= MAX_BYTES
        ]
    except OSError as error:
        raise InvalidInput(
            f"the checkpoints in {place} cannot be read ({error.strerror}); name a folder of signed notes"
        ) from None


def hold_notes(
    texts: Iterable[tuple[str, str]],
    keys: Collection[str],
    hash_at: Callable[[int], str | None],
    recoveries: Mapping[Recovered, int],
) -> list[SignedNote]:
    """Checkpoints as the history says of them: that of most entries first.

    Args:
        keys: verifier keys that are trusted; without one no signature is checked.
        hash_at: the hash of an entry by its number, None if there is none.
        recoveries: ledger, size and head of checkpoints that recoveries name, with their entries' numbers.
    """
    notes = [_read_note(name, text, keys, hash_at, recoveries) for name, text in texts]
    return sorted(notes, key=lambda note: -note.size)


def _read_note(
    name: str,
    note: str,
    keys: Collection[str],
    hash_at: Callable[[int], str | None],
    recoveries: Mapping[Recovered, int],
) -> SignedNote:
    signer, problem, recovered_at = None, "", None
    try:
        point = parse_note(note)
    except InvalidInput:
        return SignedNote(name, 0, "", "", None, "this file is no checkpoint of a ledger")
    if keys:
        try:
            _, signer = open_note(note, [*keys])
        except (LedgerCorrupt, InvalidInput) as error:
            problem = str(error)
    if not problem and hash_at(point.size) != point.head:
        recovered_at = recoveries.get((point.ledger_id, point.size, point.head))
        problem = (
            ""
            if recovered_at
            else (
                f"the history does not hold the entry {point.size} that was signed: entries were dropped or replaced, "
                f"or this is another ledger's checkpoint"
            )
        )
    return SignedNote(name, point.size, point.at, point.head, signer, problem, recovered_at)
