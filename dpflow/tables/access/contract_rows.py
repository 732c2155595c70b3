"""The rows that a data contract looks at, as a view in the sandbox that no row can make fail.

SQLAlchemy asks in the sandbox's own connection for `dpflow.quality`; how is said here alone. No
text of the rows is in the view: the library that judges it may write what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from duckdb_sqlalchemy import ConnectionWrapper

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import TableUnreadable
from dpflow.tables.access import file_list, isolated_database, sql

#: SQLAlchemy's name of an engine over DuckDB.
ENGINE = "duckdb://"

#: The view. A name of ours only: SQLAlchemy takes a colon in a query for a parameter.
ROWS_QUERY = "SELECT * FROM contract_rows"


@contextmanager
def _open_relation(
    table: Table,
) -> Iterator[tuple[isolated_database.Connection, isolated_database.Relation]]:
    with file_list.open_source(table.database, f"table {table.name!r}") as connection:
        name = table.relation_name
        try:
            yield connection, connection.find_relation(name, table.trusts_sql(name))
        finally:
            # Who is lent the connection reads past its own check.
            connection.require_unchanged()


@contextmanager
def open_rows(
    table: Table, blocks: Sequence[str], columns: Mapping[str, str], fewest_units: int
) -> Iterator[Callable[[], Any]]:
    """Open the file and make the view that `ROWS_QUERY` reads. Other arguments as in `contract_query`.

    Yields what makes a connection for SQLAlchemy, always the same one: it is `PrivateTable`'s
    sandbox, and closed at the end.

    Raises:
        TableUnreadable: no such file or relation, or no DuckDB file.
        TableBusy: another process is writing it.
        PlanRefused: a block that its column cannot hold.
    """
    with _open_relation(table) as (connection, relation):
        query = contract_query(
            table,
            relation,
            _select_blocks(table, connection, relation, blocks),
            columns,
            fewest_units,
        )
        connection.execute(f"CREATE TEMP VIEW contract_rows AS {query}")
        yield lambda: connection.lend(ConnectionWrapper)


@contextmanager
def open_all_columns(table: Table, blocks: Sequence[str]) -> Iterator[Callable[[], Any]]:
    """The same view with the relation's columns and values as they are, for suites of the table's owner.

    Raises as `open_rows`, and `TableUnreadable` for blocks of a relation without a usable block column.
    """
    with _open_relation(table) as (connection, relation):
        rows = _select_blocks(table, connection, relation, blocks)
        if rows is None:
            raise TableUnreadable(f"table {table.name!r} has no usable column {table.block!r}")
        connection.execute(
            f"CREATE TEMP VIEW contract_rows AS SELECT * FROM {relation.quoted} AS t WHERE {rows}"
        )
        yield lambda: connection.lend(ConnectionWrapper)


@contextmanager
def open_arrays(
    arrays: Sequence[Any], outputs: Sequence[str], what: str
) -> Iterator[Callable[[], Any]]:
    """The same view over arrays, as the columns c0, c1, ... of which ``outputs`` are expressions."""
    with isolated_database.open_arrays(arrays, what) as connection:
        listed = ", ".join(outputs) or "NULL AS nothing"
        connection.execute(f"CREATE TEMP VIEW contract_rows AS SELECT {listed} FROM given")
        yield lambda: connection.lend(ConnectionWrapper)


def usable_columns(table: Table, names: Sequence[str]) -> list[str]:
    """Those of the named columns that the relation has, with a type that a release can use: what the
    file's catalogue says, and no row is read.

    Raises:
        TableUnreadable: no such file or relation, or no DuckDB file.
        TableBusy: another process is writing it.
    """
    with _open_relation(table) as (_, relation):
        folded = _fold_fields(relation)
    usable = []
    for name in names:
        with suppress(TableUnreadable, KeyError):
            _write_outputs(folded[name.casefold()], table, name)
            usable.append(name)
    return usable


def _fold_fields(relation: isolated_database.Relation) -> dict[str, sql.Field]:
    return {name.casefold(): field for name, field in relation.fields.items()}


def _select_blocks(
    table: Table,
    connection: isolated_database.Connection,
    relation: isolated_database.Relation,
    blocks: Sequence[str],
) -> str | None:
    """The condition of the named blocks; None where no column of a usable type tells them apart. Raises `PlanRefused`
    for a text that is no value of its type, which would pass for an empty block.
    """
    if table.block is None or not blocks:
        return "true"
    with suppress(TableUnreadable, KeyError):
        block = _fold_fields(relation)[table.block.casefold()]
        key = sql.key(block, "block")
        sql.check_texts(connection.fetch_rows, block, blocks, "block")
        return f"{key} IN ({sql.write_keys(block, blocks)})"
    return None


def contract_query(
    table: Table,
    relation: isolated_database.Relation,
    rows: str | None,
    columns: Mapping[str, str],
    fewest_units: int,
) -> str:
    """The declared columns of some rows, in a form expectations can compare.

    Bounded columns become doubles, as releases read them: dates are days since 1970-01-01, and what
    has no value is NULL. Columns with keys are there as text, too: every key that is not declared
    as one other text. Of all other columns it is only said whether there is a value. A column that
    is missing, or whose type a release cannot use, is left out, and so fails its expectation to
    exist. Fewer than ``fewest_units`` units give no rows; a row without a unit counts as a unit
    here.

    Args:
        rows: which; None where their blocks cannot be told apart: then no row is shown, instead of all.
        columns: the columns that are judged, and what each is called as text.
    """
    folded = _fold_fields(relation)
    outputs = []
    for name, text_name in columns.items():
        with suppress(TableUnreadable, KeyError):
            value, text = _write_outputs(folded[name.casefold()], table, name)
            outputs.append(f"{value} AS {sql.quote_name(name)}")
            if text is not None:
                outputs.append(f"{text} AS {sql.quote_name(text_name)}")
    # count(DISTINCT) passes over NULL, so rows without a unit are added one by one. Without the
    # unit's column nobody can be counted, which must not pass for enough units.
    units, unit = "count(NULL)", folded.get(table.privacy_unit.column.casefold())
    with suppress(TableUnreadable):
        if unit is not None:
            key = sql.key(unit, "unit")
            units = f"count(DISTINCT {key}) + count(*) - count({key})"
    source = f"{relation.quoted} AS t WHERE {rows or 'false'}"
    return (
        f"SELECT {', '.join(outputs) or 'NULL AS nothing'} FROM {source} "
        f"AND (SELECT {units} FROM {source}) >= {fewest_units}"
    )


def _write_outputs(field: sql.Field, table: Table, name: str) -> tuple[str, str | None]:
    """A judged column as a value, and as text if it has public keys. Raises `TableUnreadable` for a type that a release
    cannot use so, also as the unit or block.
    """
    declared = table.columns.get(name, Column())
    for role, column in (("unit", table.privacy_unit.column), ("block", table.block)):
        if column is not None and column.casefold() == name.casefold():
            sql.key(field, role)
    text = None if declared.public_keys is None else _key_text(field, declared.public_keys)
    return _value(field, declared), text


def _value(field: sql.Field, declared: Column) -> str:
    """The column's number, or where no bounds are declared 1 where it has a value. Raises
    `TableUnreadable` for bounds on what is no number.
    """
    if declared.lower is None:
        return f"CASE WHEN {field.sql} IS NOT NULL THEN 1 END"
    sql.check_value(field)
    return f"nullif({sql.bounded_number(field, Column())}, CAST('nan' AS DOUBLE))"


def _key_text(field: sql.Field, keys: Sequence[str]) -> str:
    """The key, if it is one of these, or a text that is none of them. Raises `TableUnreadable` for
    a type that has no keys.
    """
    key, other = sql.key(field, "group key"), "another key"
    while other in keys:
        other += "?"
    known = f"{key} IN ({sql.write_keys(field, keys)})"
    return (
        f"CASE WHEN {known} THEN {sql.key_as_text(field, key)} "
        f"WHEN {key} IS NOT NULL THEN {sql.quote_text(other)} END"
    )
