"""Files that a result is written to, beside the ledger that keeps it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dpflow.errors import InvalidInput, NotPublished


def require_writable(file: Path) -> None:
    """Raises `InvalidInput` for a file that `write_whole` could not write: before anything is charged."""
    try:
        if file.is_dir():
            raise IsADirectoryError
        handle, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        os.close(handle)
        os.unlink(part)
    except OSError:
        raise InvalidInput(
            f"{file} cannot be written; give another file, in a folder of yours"
        ) from None


def write_whole(file: Path, content: bytes) -> None:
    """Write a result's file whole or not at all. Raises `NotPublished`."""
    # Beside it and moved: nobody ever reads half of it.
    part = file.with_name(f".{file.name}.part")
    try:
        part.write_bytes(content)
        part.replace(file)
    except OSError as error:
        raise NotPublished(
            f"{file} cannot be written ({error.strerror}); the result is stored, so the same again with another file costs nothing"
        ) from None
    finally:
        part.unlink(missing_ok=True)
