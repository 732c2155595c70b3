"""Views of a published file that have a name of their own, such as answers of queries: rows are in a
schema of ours, by block and run, and views are what BI tools read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from dpflow.core.contract.published_release import find_interval
from dpflow.errors import TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.public.public_file import check_file, write_file
from dpflow.tables.public.table_names import VIEW, has_table

#: Where the file notes which names are ours: no other is ever replaced.
_NOTES = "dpflow_named_tables"
#: The schema of the rows.
_ROWS = "dpflow_answers"
#: What a view says beside the answer's own columns, which are stored as c0, c1, ...: a query may call its
#: columns anything.
_ABOUT = ("block", "run", "interval_start", "released_at", "releases")
#: Ends of the names of columns beside a query's own.
_BESIDE = (
    "noise_low",
    "noise_high",
    "low",
    "high",
    "raw_value",
    "at_least",
    "at_most",
    "only_a_bound",
)
#: Rows of the latest interval, or of the last release where none has an interval: an answer that somebody asked by hand has
#: none, and takes no run's place. Of two answers for one interval, such as those of two blocks, both are the latest.
_LATEST = "interval_start IS NOT DISTINCT FROM (SELECT max(interval_start) FROM {runs}) AND (interval_start IS NOT NULL OR "
#: Of published releases. Times are whole seconds: of two releases of one name in a second, one is the last.
LATEST = (
    f"{_LATEST}released_at = (SELECT max(released_at) FROM {{runs}}) AND release_id = (SELECT max(other.release_id) "
    f"FROM {{runs}} AS other WHERE other.release = {{runs}}.release AND other.released_at = {{runs}}.released_at))"
)
#: Of named answers, which are counted as they are written.
_LATEST_ANSWER = f"{_LATEST}position = (SELECT position FROM {{runs}} ORDER BY released_at DESC, position DESC LIMIT 1))"
_TYPES = (*("BIGINT", "HUGEINT", "DOUBLE", "DECIMAL", "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP"),)


def name_dataset(database: Path, table: str) -> tuple[str, str]:
    """Namespace and name of a published table for lineage, as dbt's own lineage has them for DuckDB."""
    file = database.resolve()
    return f"duckdb://{file}", f"{file.stem}.main.{table}"


@dataclass(frozen=True)
class AnswerRun:
    """Which answer of a name it is: one of each block and run is kept.

    Attributes:
        block: the blocks that it read, with commas between them.
        run: the name of the run, which may begin with its interval; "" outside of Airflow.
        released_at: when its releases were settled, in UTC and without a zone.
        confidences: for each column per cent with which a value's interval holds, whose ends are the next two
            columns; 100 without noise, 0 where nothing bounds it.
        chosen: noise chose which rows there are.
        source: DAG and task that asked; "" outside of Airflow.
        releases: ids of the releases that it was computed from, by which the ledger says what they cost.
    """

    block: str = ""
    run: str = ""
    released_at: dt.datetime = dt.datetime.min
    confidences: tuple[int, ...] = ()
    chosen: bool = True
    source: str = ""
    releases: tuple[str, ...] = ()

    @property
    def interval(self) -> dt.datetime | None:
        """The start of its run's interval; None for a run of none."""
        return find_interval(self.run, self.released_at)


def publish_view(
    database: Path,
    name: str,
    columns: Sequence[tuple[str, str, Sequence[Any]]],
    about: AnswerRun,
    *,
    deadline: float = 30.0,
) -> None:
    """Write the rows of one answer and two views in one step: ``name`` with the answers of all blocks and
    runs, and ``name_latest`` with that of the latest interval, or the one released last where runs have
    none.

    So a run of an older day that is repeated changes its own rows alone. Rows of other runs stay, whatever the columns:
    what one of both has not is NULL, and a type holds the values of both.

    Args:
        columns: names, types and values; at least one column.

    Raises:
        NotPublished: the file is held by another process, or cannot be written.
        TableUnreadable: a table or view of one of these names is somebody else's or another answer's, it has answers
            of another source, or the file is not DuckDB.
    """
    assert all(kind.partition("(")[0] in _TYPES for _, kind, _ in columns)
    names = (name, f"{name}_latest")
    rows, runs = _name_tables(name)

    def write(connection: duckdb.DuckDBPyConnection) -> bool:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {_NOTES} (name VARCHAR PRIMARY KEY)")
        for view in names:
            _require_own(connection, database, name, view)
            connection.execute(f"INSERT OR IGNORE INTO {_NOTES} VALUES (lower(?))", [view])
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_ROWS}")
        before = _read_columns(connection, name)
        stored = merge_columns(before, columns)
        if not before:
            connection.execute(f"CREATE OR REPLACE TABLE {rows} (block VARCHAR, run VARCHAR)")
            connection.execute(
                f"CREATE OR REPLACE TABLE {runs} (block VARCHAR, run VARCHAR, interval_start TIMESTAMP, "
                "released_at TIMESTAMP, confidences INTEGER[], chosen BOOLEAN, source VARCHAR, position BIGINT, releases VARCHAR)"
            )
        _require_source(connection, database, name, about)
        if stored != before:
            listed = [
                f"CAST({f'c{i}' if i < len(before) else 'NULL'} AS {kind}) AS c{i}"
                for i, (_, kind) in enumerate(stored)
            ]
            listed += ["block", "run"]
            connection.execute(
                f"CREATE OR REPLACE TABLE {rows} AS SELECT {', '.join(listed)} FROM {rows}"
            )
            added = [0] * (len(stored) - len(before))
            connection.execute(f"UPDATE {runs} SET confidences = confidences || ?", [added])
            _create_views(connection, names, rows, runs, [column for column, _ in stored])
        key = [about.block, about.run]
        places = {column.casefold(): place for place, (column, _) in enumerate(stored)}
        taken = [places[column.casefold()] for column, _, _ in columns]
        held = dict(zip(taken, about.confidences))
        confidences = [held.get(place, 0) for place in range(len(stored))]
        # Also by a stored answer that is older: what stands there may be another query's.
        (position,) = connection.execute(
            f"SELECT coalesce(max(position) FILTER (block = ? AND run = ? AND released_at = ?), max(position) + 1, 1) FROM {runs}",
            [*key, about.released_at],
        ).fetchall()[0]
        for table in (rows, runs):
            connection.execute(f"DELETE FROM {table} WHERE block = ? AND run = ?", key)
        connection.execute(
            f"INSERT INTO {runs} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                *key,
                about.interval,
                about.released_at,
                confidences,
                about.chosen,
                about.source,
                position,
                ",".join(about.releases),
            ],
        )
        if columns[0][2]:
            listed = [
                f"unnest(CAST(? AS {kind}[])) AS c{i}" for i, (_, kind, _) in zip(taken, columns)
            ]
            values = [list(values) for _, _, values in columns]
            connection.execute(
                f"INSERT INTO {rows} BY NAME SELECT {', '.join(listed)}, ? AS block, ? AS run",
                [*values, *key],
            )
        return True

    write_file(database, deadline, write)


def require_free_name(
    database: Path,
    name: str,
    columns: Sequence[str] = (),
    about: AnswerRun | None = None,
    *,
    deadline: float = 5.0,
) -> None:
    """Check, before anything is charged, that `publish_view` may take a name in a file, which need not exist.

    Args:
        columns: names of the query's own columns, without those beside them.

    Raises:
        NotPublished: another process holds the file until the deadline, in seconds.
        TableUnreadable: as `publish_view`; or the answers of this name have other columns.
    """

    def check(connection: duckdb.DuckDBPyConnection) -> None:
        for view in (name, f"{name}_latest"):
            _require_own(connection, database, name, view)
        stored = [column for column, _ in _read_columns(connection, name)]
        if stored and columns and not fits_columns(stored, columns):
            raise TableUnreadable(
                f"{database.name} has answers of other columns as {name!r}; give the query another name, or drop that view, "
                "with all answers in it"
            )
        if stored and about is not None:
            _require_source(connection, database, name, about)

    check_file(database, check, deadline=deadline)


def fits_columns(stored: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether a table of answers has all columns of a query and, but for those beside them, no others."""
    own = {column.casefold() for column in columns}
    rest = {column.casefold() for column in stored}
    beside = tuple(f"{column}_{end}" for column in own for end in _BESIDE)
    return own <= rest and all(column.startswith(beside) for column in rest - own)


def merge_columns(
    stored: Sequence[tuple[str, str]], columns: Sequence[tuple[str, str, Any]]
) -> list[tuple[str, str]]:
    """The columns of stored answers and of one more, each with a type that holds the values of both."""
    merged = {name.casefold(): (name, kind) for name, kind in stored}
    for name, kind, _ in columns:
        first, before = merged.get(name.casefold(), (name, kind))
        merged[name.casefold()] = (first, _widen_kind(before, kind))
    return list(merged.values())


def _widen_kind(*kinds: str) -> str:
    if len(set(kinds)) == 1:
        return kinds[0]
    for order in (("BIGINT", "HUGEINT", "DOUBLE"), ("DATE", "TIMESTAMP")):
        if set(kinds) <= set(order):
            return max(kinds, key=order.index)
    is_number = all(
        kind.partition("(")[0] in ("BIGINT", "HUGEINT", "DOUBLE", "DECIMAL") for kind in kinds
    )
    return "DOUBLE" if is_number else "VARCHAR"


def _require_source(
    connection: duckdb.DuckDBPyConnection, database: Path, name: str, about: AnswerRun
) -> None:
    """Raises `TableUnreadable` where another task's answers, or answers by hand, have this name: no column tells them apart."""
    query = f"SELECT source FROM {_name_tables(name)[1]} WHERE source <> ? LIMIT 1"
    found = connection.execute(query, [about.source]).fetchone()
    if found is not None:
        raise TableUnreadable(
            f"{database.name} has answers of {found[0] or 'a query by hand'} as {name!r}; give this query another name "
            "(output_table of a task), or drop that view, with all answers in it"
        )


def _name_tables(name: str) -> tuple[str, str]:
    """The tables of an answer's rows and of its runs."""
    # A space, which no query's name has: another answer's rows are called otherwise.
    rows, runs = (f"{_ROWS}.{sql.quote_name(table)}" for table in (name, f"{name} runs"))
    return rows, runs


@dataclass(frozen=True)
class StoredAnswer:
    """What a view of a published file shows.

    Attributes:
        columns: for each column where it is stored, its name and its type.
        source: a FROM and WHERE of its rows.
        confidences: of the answer's own columns, of all its runs the least.
        chosen: noise chose the rows of some run.
    """

    columns: list[tuple[str, str, str]]
    source: str
    confidences: list[int]
    chosen: bool


def list_answers(connection: duckdb.DuckDBPyConnection, but: str = "") -> list[str]:
    """Names of the views of all answers that dpflow published, but for those of one."""
    query = "SELECT table_name FROM duckdb_tables() WHERE schema_name = ? ORDER BY table_name"
    tables = [str(name) for (name,) in connection.execute(query, [_ROWS]).fetchall()]
    names = [
        name for name in tables if f"{name} runs" in tables and name.casefold() != but.casefold()
    ]
    return [view for name in names for view in (name, f"{name}_latest")]


def find_answer(connection: duckdb.DuckDBPyConnection, view: str) -> StoredAnswer | None:
    """An answer by the name of one of its two views, in any case; None where dpflow published none."""
    name = _find_name(connection, view)
    if name is None:
        return None
    rows, runs = _name_tables(name)
    own = _read_columns(connection, name)
    if not own:
        return None
    columns = [(f"c{i}", column, kind) for i, (column, kind) in enumerate(own)]
    taken = {column.casefold() for column, _ in own}
    kinds = dict.fromkeys(_ABOUT, "VARCHAR") | dict.fromkeys(_ABOUT[2:4], "TIMESTAMP")
    columns += [(column, column, kind) for column, kind in kinds.items() if column not in taken]
    source = f"{rows} AS own JOIN {runs} USING (block, run)"
    if name.casefold() != view.casefold():
        source += f" WHERE {_LATEST_ANSWER.format(runs=runs)}"
    about = connection.execute(f"SELECT confidences, chosen FROM {runs}").fetchall()
    listed = [list(one) if _are_confidences(one, len(own)) else [0] * len(own) for one, _ in about]
    chosen = not all(chosen is False for _, chosen in about)
    return StoredAnswer(columns, source, list(map(min, zip(*listed))) or [0] * len(own), chosen)


def strip_latest(view: str) -> str:
    """The name of the whole table or answer that a view shows the latest of."""
    return view[: -len("_latest")] if view.lower().endswith("_latest") else view


def _find_name(connection: duckdb.DuckDBPyConnection, view: str) -> str | None:
    """The name of the answer that one of its two views shows."""
    # Of both tables: a view in the place of one could read any file.
    query = "SELECT table_name FROM duckdb_tables() WHERE schema_name = ?"
    tables = {
        str(name).casefold(): str(name) for (name,) in connection.execute(query, [_ROWS]).fetchall()
    }
    stored = {name: own for name, own in tables.items() if f"{name} runs" in tables}
    # The longer name first: an answer may be called so.
    return stored.get(view.casefold(), stored.get(strip_latest(view).casefold()))


def answer_ids(connection: duckdb.DuckDBPyConnection, view: str) -> set[str] | None:
    """Ids of the releases behind all answers of a view's name; None where dpflow published none of this name."""
    name = _find_name(connection, view)
    if name is None:
        return None
    query = f"SELECT DISTINCT unnest(string_split(releases, ',')) FROM {_name_tables(name)[1]}"
    return {str(release_id) for (release_id,) in connection.execute(query).fetchall() if release_id}


def _are_confidences(values: Sequence[int | None] | None, columns: int) -> bool:
    """Whether a file, which its users may edit, says per cent for each column."""
    return len(values or ()) == columns and all(
        value is not None and 0 <= value <= 100 for value in values or ()
    )


def _require_own(
    connection: duckdb.DuckDBPyConnection, database: Path, name: str, view: str
) -> None:
    """Raises `TableUnreadable` where the name of an answer's view is taken."""
    if view.casefold() in map(str.casefold, list_answers(connection, but=name)):
        raise TableUnreadable(
            f"{database.name} has the answers of another query as {view!r}; give the query another name"
        )
    # A file that dpflow has not written has no notes. A table is nobody's answer, though an answer had its name before.
    has_notes = has_table(connection, _NOTES)
    ours = connection.execute(f"FROM {_NOTES}").fetchall() if has_notes else []
    is_other_view = (view.lower(),) not in ours and connection.execute(VIEW, [view]).fetchone()
    if is_other_view or has_table(connection, view):
        raise TableUnreadable(
            f"{database.name} has a table {view!r} that is no answer of a query; give the query another name"
        )


def _read_columns(connection: duckdb.DuckDBPyConnection, name: str) -> list[tuple[str, str]]:
    """Names and types of the answer's own columns in its view; empty if there is none."""
    query = (
        "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = ? "
        "AND lower(table_name) = lower(?) ORDER BY column_index"
    )
    view, stored = (
        connection.execute(query, [schema, name]).fetchall() for schema in ("main", _ROWS)
    )
    # Behind them are block and run.
    return [(column, kind) for column, kind in view[: max(len(stored) - 2, 0)]]


def _create_views(
    connection: duckdb.DuckDBPyConnection,
    names: Sequence[str],
    rows: str,
    runs: str,
    columns: Sequence[str],
) -> None:
    taken = set(map(str.casefold, columns))
    listed = [f"c{i} AS {sql.quote_name(column)}" for i, column in enumerate(columns)]
    # A column of the query's own has its name.
    listed += [column for column in _ABOUT if column not in taken]
    for view, condition in zip(names, ("TRUE", _LATEST_ANSWER.format(runs=runs)), strict=True):
        connection.execute(
            f"CREATE OR REPLACE VIEW {sql.quote_name(view)} AS SELECT {', '.join(listed)} "
            f"FROM {rows} JOIN {runs} USING (block, run) WHERE {condition}"
        )
