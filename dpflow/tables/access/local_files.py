"""What a private source is not: a place elsewhere, or files of which a log says whether they count; and which content a file has."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dpflow.errors import InvalidInput, TableUnreadable

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SERVERS = ("postgres", "postgresql")
#: In the folder of a table that keeps files of deleted rows beside the others.
LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata/*.metadata.json": "Iceberg"}
#: Statements that write a table's newest state, in DuckDB's own client.
_COPIES = {
    "Delta": "INSTALL delta; COPY (FROM delta_scan('FOLDER')) TO 'state.parquet'",
    "Iceberg": "INSTALL iceberg; COPY (FROM iceberg_scan('FOLDER')) TO 'state.parquet'",
}


def require_local_place(place: str, what: str) -> None:
    """Raises `InvalidInput` for a URL, with the way to bring its rows here. The URL is not repeated:
    it may hold a password.
    """
    found = _SCHEME.match(place)
    if found is None:
        return
    scheme = found[1].lower()
    way = (
        "copy the rows with: dpflow load postgresql://user@host/name --from TABLE"
        if scheme.partition("+")[0] in _SERVERS
        else "read Parquet files of an S3 store with: dpflow load FILES --in-place; load others with: dpflow load FILES"
        if scheme == "s3"
        else "copy the files to this machine, then: dpflow load FILES, or dpflow load FILES --in-place"
    )
    raise InvalidInput(
        f"{what} names a {scheme}:// place, and that is no file of this machine; {way}"
    )


def require_plain_names(paths: Sequence[str]) -> None:
    """Raises `InvalidInput` for a path or URL that DuckDB takes for a pattern: it would read other
    files.
    """
    for path in paths:
        if any(sign in path for sign in "*?["):
            raise InvalidInput(
                f"{path!r} has one of * ? [ in its name, and files are read by name as patterns; rename it"
            )


def require_plain_files(files: Sequence[Path]) -> None:
    """Raises `InvalidInput` for files whose names are patterns, and for those of a table whose log
    says which of them count: others hold rows that were deleted.
    """
    require_plain_names([str(file.absolute()) for file in files])
    for folder in {parent for file in files for parent in file.absolute().parents}:
        for log, kind in LOGS.items():
            if any(folder.glob(log)):
                raise describe_logged_table(str(folder), kind)


def describe_logged_table(folder: str, kind: str) -> InvalidInput:
    """That a folder is a table of this kind, and how its rows come here."""
    copy = f", or in DuckDB's own client ({_COPIES[kind]})" if kind in _COPIES else ""
    return InvalidInput(
        f"{folder} is a table of the format {kind}, whose log says which of its files count, and dpflow reads no such log; "
        f"write its newest state to Parquet files with Spark{copy}, then: dpflow load FILES"
    )


def file_identity(database: Path, what: str) -> bytes:
    """Identity of the file's content without opening it: device, inode, size and time of file and
    write-ahead log.

    The file is not opened because closing any handle of it drops this process's own locks.
    """
    parts = []
    # A committed change may still be in the write-ahead log only, which stands beside the file that a link names.
    real = Path(os.path.realpath(database))
    for path in (real, real.with_name(real.name + ".wal")):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        except OSError:
            raise TableUnreadable(
                f"{what}: {path} cannot be looked at; check its permissions"
            ) from None
        # The time of the last change, beside that of the content, is one that no program sets.
        times = f"{stat.st_mtime_ns}:{stat.st_ctime_ns}"
        parts.append(f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{times}")
    if not parts:
        raise TableUnreadable(
            f"{what}: there is no file {database}; correct the declaration's database, or load the data"
        )
    return "/".join(parts).encode()
