"""Settled results copied to where clients read them: a DuckDB file, a Parquet file here or in a store, or a table of
PostgreSQL. The ledger is the truth. A Parquet file and a table are brought up to it in one step, a DuckDB file release by
release.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dpflow.core.contract.published_release import PublishedRelease, find_interval
from dpflow.core.contract.result_fields import FIELD_KINDS, FIELDS, utc_time
from dpflow.core.contract.results import Result
from dpflow.engine.releases.republish import (
    FindLargest,
    find_largest,
    list_withdrawn,
    publish_settled,
    read_settled,
)
from dpflow.engine.releases.result_table import encode_tables, make_table
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.tables.public.copies import MOMENT, add_rows, is_server, replace_file, show_place

#: Columns of a table of PostgreSQL: amounts of privacy are exact texts, as in files.
_KINDS = {name: FIELD_KINDS.get(name, "VARCHAR") for name in FIELDS}
_KINDS |= {"epsilon": "VARCHAR", "delta": "VARCHAR", MOMENT: "TIMESTAMP"}
#: A file without results has the columns of one all the same.
_EMPTY = PublishedRelease("", "", "", "", "0", "0", Result(()))


def check_place(place: str) -> None:
    """Raises `InvalidInput` for a place that no copy can be in."""
    if not is_server(place) and not place.lower().endswith((".parquet", ".duckdb")):
        shown = show_place(place)
        raise InvalidInput(
            f"{shown!r} is no place of a copy; name a .parquet or .duckdb file, s3://BUCKET/NAME.parquet or postgresql://HOST/DATABASE"
        )


def list_files(place: str) -> list[str]:
    """The files that a copy writes: beside a ``.parquet`` file that of the latest interval, and none of a server."""
    if is_server(place):
        return []
    if not place.lower().endswith(".parquet"):
        return [place]
    return [f"{place[: -len('.parquet')]}_latest.parquet", place]


def copy_settled(
    ledger: Ledger,
    settled: Sequence[ReleaseRecord],
    place: str,
    table: str,
    largest: FindLargest = find_largest,
) -> int:
    """Bring a copy up to these settled results, without total intervals that rest on a maximum that is not declared now.

    Args:
        place: a ``.duckdb`` or ``.parquet`` file, ``s3://BUCKET/NAME.parquet``, or a URL of PostgreSQL.
        table: its name in a database. The rows of the latest interval are in ``TABLE_latest``, or beside
            ``NAME.parquet`` in ``NAME_latest.parquet``; not in a DuckDB file.

    Returns: how many results were added; of a Parquet file, which is written whole, how many it has.

    Raises:
        InvalidInput: the place is none of these.
        MissingExtra: what writes there is not installed.
        NotPublished, TableUnreadable: it cannot be written, or what is there is no copy, and what was there stays.
    """
    check_place(place)
    largest = cache(largest)
    if is_server(place):
        records = {record.release_id: record for record in settled}

        def read(release_id: str) -> list[tuple[Any, ...]]:
            release = read_settled(ledger, records[release_id], largest)
            columns = make_table(release).columns()
            start = _find_interval(release)
            values = [columns[name] for name in FIELDS]
            return [(*row, start) for row in zip(*values, strict=True)]

        return add_rows(place, table, _KINDS, list(records), read, list_withdrawn(settled, largest))
    if place.lower().endswith(".duckdb"):
        return publish_settled(ledger, settled, Path(place), table, largest)
    releases = [read_settled(ledger, record, largest) for record in settled]
    # First the latest: who reads both finds each of its rows in the other sooner or later.
    for file, rows in zip(list_files(place), (find_latest(releases), releases), strict=True):
        replace_file(file, encode_results(rows, "parquet"))
    return len(releases)


def encode_results(releases: Sequence[PublishedRelease], kind: str) -> bytes:
    """Results as the content of one file: csv, json, parquet or arrow."""
    return encode_tables([make_table(release) for release in releases or [_EMPTY]], f".{kind}")


def find_latest(releases: Sequence[PublishedRelease]) -> list[PublishedRelease]:
    """The results of the latest interval, or the one settled last where runs have none.

    Args:
        releases: in the order of their charges: of two of one name that were settled in one second the later one counts.
    """
    if not releases:
        return []
    newest = max(map(_find_moment, releases))
    found = [release for release in releases if _find_moment(release) == newest]
    return found if newest[0] else [*{one.release: one for one in found}.values()]


def _find_moment(release: PublishedRelease) -> tuple[bool, dt.datetime]:
    """When a result is of: the start of its run's interval, before all others when it was settled; in UTC and without a zone."""
    interval, settled = _find_interval(release), utc_time(release.released_at)
    assert settled is not None
    return interval is not None, interval or settled


def _find_interval(release: PublishedRelease) -> dt.datetime | None:
    settled = utc_time(release.released_at)
    assert settled is not None
    return find_interval(release.run, settled)
