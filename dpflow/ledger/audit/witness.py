"""Checkpoints in a folder outside the ledger, each a file that is only added: `dpflow ledger checkpoint --into`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpflow.errors import InvalidInput
from dpflow.ledger.history.checkpoint import Checkpoint

_NAME = re.compile(r"[0-9]{12,}\.txt")


@dataclass(frozen=True)
class Witnessed:
    """A checkpoint that is in a folder.

    Attributes:
        file: where it is.
        size: number of the last entry that it covers.
        is_new: false if nothing was written since the one before.
    """

    file: Path
    size: int
    is_new: bool


def add_checkpoint(folder: Path, sign: Callable[[str | None], str]) -> Witnessed:
    """Sign how far the history goes, behind the newest checkpoint of a folder, and add a file.

    Args:
        sign: makes a checkpoint, given an earlier one that the history must extend, or None.

    Raises:
        InvalidInput: the folder cannot be read or written.
        LedgerCorrupt: the history does not extend the newest checkpoint there, or does not verify.
    """
    try:
        files = [file for file in folder.iterdir() if _NAME.fullmatch(file.name)]
        newest = max(files, key=lambda file: int(file.stem), default=None)
        note = sign(None if newest is None else newest.read_text(encoding="utf-8"))
        size = Checkpoint.parse(note.rpartition("\n\n")[0] + "\n").size
        file = folder / f"{size:012}.txt"
        if file == newest:
            return Witnessed(file, size, False)
        create = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
        with open(os.open(file, create, 0o444), "w", encoding="utf-8") as stream:
            stream.write(note)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise InvalidInput(
            f"no checkpoint can be kept in {folder} ({error.strerror}); name a folder that this user may add files to"
        ) from None
    return Witnessed(file, size, True)
