"""Copies of published results for clients that read no DuckDB file: a file, here or in an S3-compatible store, and a table
of PostgreSQL.

Each is changed in one step. A reader sees what was there or what is there now, and one that stays connected holds nothing
up: files are put in the place of others, and of a table only rows are added, in one transaction.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from dpflow.core.contract.result_fields import FIELDS
from dpflow.error_boundary import contain_errors
from dpflow.errors import DpflowError, NotPublished
from dpflow.extras import require_extra
from dpflow.tables.access.object_stores import ObjectStore, is_object
from dpflow.tables.public.named_tables import LATEST

_SERVER = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://", re.IGNORECASE)
_TYPES = {"DOUBLE": "double precision", "VARCHAR": "text"}
#: When a row's interval begins, beside the columns of a result.
MOMENT = "interval_start"
#: For a server, and for a table that somebody has locked.
WAIT_SECONDS = 10


def is_server(place: str) -> bool:
    """Whether a place is a URL of PostgreSQL."""
    return _SERVER.match(place) is not None


def show_place(place: str) -> str:
    """A place as messages name it: of a URL no user, password or parameter."""
    match = re.match(r"[\w+.-]*:/+", place)
    scheme = match[0] if match else ""
    user, _, rest = place[len(scheme) :].rpartition("@")
    # Behind a question mark, that sign may be part of a parameter, which a password may be.
    return f"{scheme}..." if "?" in user else scheme + rest.partition("?")[0][:200]


def replace_file(place: str, content: bytes) -> None:
    """Put a Parquet file of results in the place of an earlier one: written beside it and renamed, or an object of a store,
    which appears whole.

    Args:
        place: a path, or ``s3://bucket/...`` with the login in the environment.

    Raises:
        InvalidInput: a login in a URL.
        MissingExtra: the store's package is not installed.
        NotPublished: it cannot be written, or a file is there that is no copy of results; what was there stays.
    """

    def describe_error(error: Exception) -> DpflowError:
        # A store's own text may quote the request.
        return NotPublished(
            f"{show_place(place)} could not be written ({type(error).__name__}); what was there stays, so try again"
        )

    if is_object(place):
        files = ObjectStore.open([place]).files

        def replace_object() -> None:
            _require_copy(place, lambda: files.open(place, "rb"))
            files.pipe_file(place, content)

        contain_errors(replace_object, describe_error)
    else:
        contain_errors(lambda: _replace_here(Path(place), content), describe_error)


def _require_copy(place: str, open_file: Callable[[], IO[bytes]]) -> None:
    """Raises `NotPublished` if what is there has other columns than results: it could be rows that exist nowhere else."""
    with require_extra("frames", "a Parquet copy"):
        import pyarrow
        import pyarrow.parquet

    names: list[str] = []
    try:
        with open_file() as file, suppress(pyarrow.ArrowInvalid):
            names = pyarrow.parquet.read_schema(file).names
    except FileNotFoundError:
        return
    if tuple(names) != FIELDS:
        raise NotPublished(
            f"{show_place(place)} is there and is no copy of published results, so it was left as it is; name another place, "
            "or move it away"
        )


def _replace_here(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    _require_copy(str(file), lambda: file.open("rb"))
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def add_rows(
    url: str,
    table: str,
    kinds: Mapping[str, str],
    ids: Sequence[str],
    read: Callable[[str], Sequence[Sequence[Any]]],
    withdrawn: Sequence[str] = (),
) -> int:
    """Add the rows of those releases that a table of PostgreSQL lacks, and make table and view if they are missing: the
    view ``TABLE_latest`` has the `dpflow.tables.public.named_tables.LATEST` ones.

    Args:
        url: as libpq takes it; a password may be where libpq looks for one.
        kinds: columns with their types, as DuckDB names them; ``release_id`` is one of them.
        ids: of releases.
        read: the rows of one, with a value for each column.
        withdrawn: releases whose total intervals are taken out.

    Returns: how many releases were added.

    Raises:
        MissingExtra: psycopg is not installed.
        NotPublished: the server cannot be reached, or refuses; nothing was changed.
    """
    with require_extra("postgres", "a copy in PostgreSQL"):
        import psycopg
        from psycopg import sql

    def describe_error(error: Exception) -> DpflowError:
        return NotPublished(
            f"table {table!r} of {show_place(url)} could not be written ({type(error).__name__}); what was there stays. Check that "
            "this login may write it, that no other table has its name, and try again"
        )

    name, latest = sql.Identifier(table), sql.Identifier(f"{table}_latest")
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(_TYPES.get(kind, kind)))
        for column, kind in kinds.items()
    ]

    def add() -> int:
        named = psycopg.conninfo.conninfo_to_dict(_SERVER.sub("postgresql://", url, count=1))
        place: dict[str, Any] = {"connect_timeout": WAIT_SECONDS, **named}
        with psycopg.connect(**place) as connection:
            # A server that hangs, or a table that somebody locked, keeps no other copy waiting.
            connection.execute(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
            # Of two that copy at once, the second finds what the first has added.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('dpflow ' || %s))", [table])
            if connection.execute("SELECT to_regclass(%s)", [f'"{table}"']).fetchone() == (None,):
                connection.execute(
                    sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(columns))
                )
                condition = sql.SQL(LATEST).format(runs=name)
                connection.execute(
                    sql.SQL("CREATE VIEW {} AS SELECT * FROM {} WHERE {}").format(
                        latest, name, condition
                    )
                )
            query = sql.SQL("SELECT DISTINCT release_id FROM {}").format(name)
            present = {row[0] for row in connection.execute(query)}
            missing = [release_id for release_id in ids if release_id not in present]
            if withdrawn:
                update = (
                    "UPDATE {} SET low = NULL, high = NULL "
                    "WHERE coalesce(low, high) IS NOT NULL AND release_id = ANY(%s)"
                )
                connection.execute(sql.SQL(update).format(name), [list(withdrawn)])
            fields = sql.SQL(", ").join(map(sql.Identifier, kinds))
            copy = sql.SQL("COPY {} ({}) FROM STDIN").format(name, fields)
            if missing:
                with connection.cursor().copy(copy) as target:
                    for release_id in missing:
                        for row in read(release_id):
                            target.write_row(row)
            return len(missing)

    return contain_errors(add, describe_error)
