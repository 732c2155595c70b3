"""Files of facts that are nobody's data, such as populations and names of codes: queries join them."""

from __future__ import annotations

import glob
from pathlib import Path

from dpflow.errors import InvalidInput
from dpflow.tables.public.query_process import RowTable

#: A query carries its public tables with it.
MAX_ROWS = 50_000
#: DuckDB's readers, by the end of a file's name.
_READERS = {
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".parquet": "read_parquet",
}
#: Columns for intervals are called like that.
_RESERVED = " #"


def load_public_table(file: Path) -> RowTable:
    """Columns with the types that DuckDB finds, and rows; lists and structs are texts.

    Args:
        file: CSV, TSV, JSON, JSON lines or Parquet, by its suffix; at most `MAX_ROWS` rows.

    Raises:
        InvalidInput: the file cannot be read, has no such suffix, or too many rows.
    """
    # Most queries join no public table.
    import duckdb

    # DuckDB would read all files of a pattern or folder.
    if not file.is_file():
        raise InvalidInput(
            f"the public table {file} cannot be read (it is no file); correct its line under public: in dpflow.yml"
        )
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InvalidInput(
            f"{file} does not say by its name what it is; a public table ends in {', '.join(_READERS)}"
        )
    try:
        with duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False}) as db:
            db.execute(
                f"CREATE TABLE facts AS FROM {reader}(?) LIMIT {MAX_ROWS + 1}",
                [glob.escape(str(file))],
            )
            columns = [
                (str(n), str(kind)) for n, kind, *_ in db.execute("DESCRIBE facts").fetchall()
            ]
            # Every type is read back from its text as it is.
            texts = db.execute("SELECT CAST(COLUMNS(*) AS VARCHAR) FROM facts").fetchall()
    except duckdb.Error as error:
        raise InvalidInput(
            f"the public table {file} cannot be read ({type(error).__name__}); correct the file, or its line under "
            f"public: in dpflow.yml"
        ) from None
    if len(texts) > MAX_ROWS:
        raise InvalidInput(
            f"the public table {file} has more than {MAX_ROWS:,} rows; keep those that queries need"
        )
    if reserved := [name for name, _ in columns if _RESERVED in name]:
        raise InvalidInput(
            f"the public table {file} has a column {reserved[0]!r}; rename it without {_RESERVED!r}"
        )
    kinds = [(name, _plain_kind(kind)) for name, kind in columns]
    return RowTable(
        file.stem, kinds, [list(column) for column in zip(*texts)] or [[] for _ in kinds]
    )


def _plain_kind(kind: str) -> str:
    nested = kind.endswith("]") or kind.startswith(
        ("STRUCT", "MAP", "UNION", "ENUM", "JSON", "BLOB")
    )
    return "VARCHAR" if nested else kind
