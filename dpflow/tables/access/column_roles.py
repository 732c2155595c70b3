"""What a file's catalogue says to whoever declares a table: names of relations and columns, and what
their types can be used for. No row is read, and neither the values of an ENUM nor those of a block
are shown.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpflow.errors import TableUnreadable
from dpflow.tables.access import file_list, sql

#: The schema in which a private file keeps what `dpflow load` notes about it.
OWN_SCHEMA = "dpflow"


@dataclass(frozen=True)
class ColumnRoles:
    """A column by its type.

    Attributes:
        kind: the type's name, such as ``"DECIMAL"`` or ``"ENUM"``, without more.
        is_key: values can be compared exactly: it may name the privacy unit, a group or a block.
        is_number: it can be summed, once it has bounds.
        is_date: it is a date or a time.
        is_real: its values may be fractions.
    """

    name: str
    kind: str
    is_key: bool
    is_number: bool
    is_date: bool
    is_real: bool = False


def list_tables(database: Path) -> list[str]:
    """Names of the tables and views of a DuckDB file.

    Raises:
        TableUnreadable: no such file, or not a DuckDB file of this version.
        TableBusy: another process is writing it.
    """
    with file_list.open_source(database, str(database)) as connection:
        names = connection.list_relations()
    return sorted(name for name in names if not name.startswith(f"{OWN_SCHEMA}."))


def list_columns(database: Path, relation: str) -> list[ColumnRoles]:
    """The columns of a table or view, in its order. Raises like `list_tables`."""
    with file_list.open_source(database, str(database)) as connection:
        # Names and types only: whether its SQL can be read is said where it is.
        fields = connection.find_relation(relation, trusted=True).fields
    return [_describe_roles(field) for field in fields.values()]


def _describe_roles(field: sql.Field) -> ColumnRoles:
    is_key = is_number = False
    with suppress(TableUnreadable):
        sql.key(field, "key")
        is_key = True
    with suppress(TableUnreadable):
        sql.check_value(field)
        is_number = field.kind != "boolean"
    return ColumnRoles(
        field.name,
        field.kind.upper(),
        is_key,
        is_number,
        field.kind == "date" or sql.is_time(field),
        field.is_float or field.scale > 0,
    )
