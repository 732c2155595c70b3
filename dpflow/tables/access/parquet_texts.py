"""How Spark compares texts of Parquet files that it wrote, which their types do not say: it notes that at
the end of each file, and other readers take the texts for plain ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb

from dpflow.errors import InvalidInput

_NOTE = b"org.apache.spark.sql.parquet.row.metadata"
_QUERY = "SELECT DISTINCT value FROM parquet_kv_metadata({}) WHERE key = $1"


def name_text_type(metadata: Mapping[str, Any]) -> str:
    """``char(n)`` of a text of which Spark does not compare blanks at the end, ``collated string`` of one
    that it does not compare as bytes, "" of a plain one.

    Args:
        metadata: what Spark notes of a column.
    """
    declared = str(metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
    if declared.startswith("char("):
        return declared
    return "collated string" if metadata.get("__COLLATIONS") else ""


def read_text_types(connection: duckdb.DuckDBPyConnection, files: str) -> dict[str, str]:
    """The columns of files that are no plain texts to Spark, by `name_text_type`; reads no row.

    Args:
        files: SQL of their list.

    Raises:
        InvalidInput: a note that says nothing.
    """
    return parse_text_types(
        value for (value,) in connection.execute(_QUERY.format(files), [_NOTE]).fetchall()
    )


def parse_text_types(notes: Iterable[bytes]) -> dict[str, str]:
    """The same from the notes. Raises `InvalidInput` for one that says nothing."""
    types: dict[str, str] = {}
    for note in notes:
        try:
            fields = json.loads(note)["fields"]
            types |= {
                one["name"]: kind for one in fields if (kind := name_text_type(one["metadata"]))
            }
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise InvalidInput(
                "a file's note on how Spark compares its texts cannot be read; write the file again"
            ) from None
    return types


def find_note(metadata: Mapping[bytes, bytes] | None) -> Sequence[bytes]:
    """The note in the metadata of an Arrow schema, as a list of none or one."""
    return [metadata[_NOTE]] if metadata and _NOTE in metadata else []


def trim_blanks(value: str) -> str:
    """A padded text as Spark compares it."""
    return f"rtrim({value}, ' ')"


def refuse_collated(what: str, columns: Mapping[str, str], types: Mapping[str, str]) -> None:
    """Raises `InvalidInput` where a column that is to be a text is compared by a collation."""
    for name, kind in columns.items():
        if kind == "VARCHAR" and types.get(name, "").startswith("collated"):
            raise InvalidInput(
                f"{what}: column {name!r} has a collation in Spark, which takes different texts for equal, and dpflow "
                f"compares texts as bytes; write the files with one text for each value"
            )
