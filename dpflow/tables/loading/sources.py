"""Where rows come from: JSON and Parquet files, Arrow tables, pandas frames; CSV files are in
`dpflow.tables.loading.csv_files`. DuckDB's own readers read them, and each value is cast.

A source writes a query of typed columns, and counts the rows that it left out.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import duckdb

from dpflow.errors import InvalidInput, TableBusy
from dpflow.extras import require_extra
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.local_files import require_plain_files
from dpflow.tables.access.parquet_texts import (
    find_note,
    parse_text_types,
    read_text_types,
    refuse_collated,
    trim_blanks,
)
from dpflow.tables.loading.column_types import normalize_type, normalize_types
from dpflow.tables.loading.exact_values import TypedValue
from dpflow.tables.loading.report import Rejects

#: Digits of DuckDB's widest DECIMAL.
MOST_DIGITS = 38
_DECIMAL = re.compile(r"DECIMAL\((\d+),")


@dataclass(frozen=True)
class FileStates:
    """What files were when they were first looked at: a file that changes meanwhile is refused."""

    files: tuple[Path, ...]
    states: tuple[tuple[int, ...], ...]

    @classmethod
    def note(cls, files: Sequence[Path]) -> FileStates:
        """Look at the files. Raises `InvalidInput` for one that is missing, named as a pattern, or of a table with a log, and
        for two that are one.
        """
        require_plain_files(files)
        states = tuple(map(find_state, files))
        require_once(files, states)
        return cls(tuple(files), states)

    def require_unchanged(self) -> None:
        """Raises `TableBusy` if one was written or replaced since."""
        for file, state in zip(self.files, self.states):
            if find_state(file) != state:
                raise TableBusy(
                    f"{file} was written while it was read; load it when it is complete"
                )

    def digest(self) -> str:
        """SHA-256 over the contents, in order."""
        whole = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as stream:
                whole.update(hashlib.file_digest(stream, "sha256").digest())
        return whole.hexdigest()


def find_state(file: Path) -> tuple[int, ...]:
    """What changes when a file is written or replaced. Raises `InvalidInput` if there is none."""
    try:
        state = file.stat()
    except OSError:
        raise InvalidInput(
            f"there is no file {file}; give the path of one that you may read"
        ) from None
    if not file.is_file():
        raise InvalidInput(f"{file} is no file; give files, such as visits/*.csv")
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def require_once(files: Sequence[object], states: Sequence[tuple[object, ...]]) -> None:
    """Raises `InvalidInput` for a file that is given twice, also under two names: its rows would count twice.

    Args:
        states: of the files, each beginning with device and inode.
    """
    known: dict[tuple[object, ...], object] = {}
    for file, state in zip(files, states):
        if known.setdefault(state[:2], file) is not file:
            raise InvalidInput(f"{file} and {known[state[:2]]} are one file; give it once")


class LoadSource(ABC):
    """Rows to be loaded, of which each column is cast to its declared type; a value that is not exactly of
    it is counted (`dpflow.tables.loading.exact_values`). A source says what it reads, and what its columns
    are in that.

    Attributes:
        name: what messages and the file's own book of loads call it.
        columns: declared types by name, in the order of the table.
        ignored_columns: columns that it has and nobody declared.
        canonical_columns: columns whose texts a database wrote from values of their declared types.
    """

    name: str
    columns: Mapping[str, str]
    ignored_columns: tuple[str, ...] = ()
    canonical_columns: frozenset[str] = frozenset()

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of the content and of how it is read: the same again is not loaded twice."""

    @abstractmethod
    def _relation(self) -> str:
        """What the rows are read from."""

    @abstractmethod
    def _value(self, column: str) -> tuple[str, str]:
        """A declared column in the relation, NULL where it has no value, and its type there."""

    def _time_format(self, kind: str) -> str | None:
        """How texts of this type are written, if not as in ISO 8601."""
        return None

    def _altered_value(self, column: str) -> str | None:
        """Where the reader itself gives another value than the source holds."""
        return None

    def _broken_row(self) -> str | None:
        """Where a whole row cannot be read."""
        return None

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        yield

    def _read_casts(self, relation: str) -> tuple[str, dict[str, str]]:
        """A query of every row with a cast for each column, c0, c1, ..., and conditions in it of rows
        that cannot be taken, by column. None of them is NULL.
        """
        values, casts, faults = [], ["random() AS chance"], {}
        broken = self._broken_row()
        if broken:
            values.append(f"{broken} AS broken")
            casts.append("broken")
            faults[""] = "coalesce(broken, FALSE)"
        for place, (column, kind) in enumerate(self.columns.items()):
            value, stored = self._value(column)
            if stored.startswith("ENUM"):
                value, stored = f"CAST({value} AS VARCHAR)", "VARCHAR"
            canonical = column in self.canonical_columns
            typed = TypedValue(f"v{place}", stored, kind, self._time_format(kind), canonical)
            values.append(f"{value} AS v{place}")
            casts += [f"v{place}", f"{typed.cast()} AS c{place}"]
            exact = typed.is_exact(f"c{place}")
            altered = self._altered_value(column)
            if altered:
                values.append(f"coalesce({altered}, FALSE) AS a{place}")
                casts.append(f"a{place}")
                exact = f"NOT a{place} AND {exact}"
            faults[column] = f"(v{place} IS NOT NULL AND NOT ({exact}))"
        inner = f"SELECT {', '.join(values)} FROM {relation}"
        return f"SELECT {', '.join(casts)} FROM ({inner})", faults

    @contextmanager
    def open_query(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        """A query of the declared columns in their types, for as long as the source is open."""
        with self._attach(connection):
            query, faults = self._read_casts(self._relation())
            listed = ", ".join(
                f"c{place} AS {sql.quote_name(name)}" for place, name in enumerate(self.columns)
            )
            # A condition on chance stays above the casts; DuckDB would do each of them twice.
            yield (
                f"SELECT {listed} FROM ({query}) WHERE CASE WHEN chance < 2 THEN NOT ({' OR '.join(faults.values())}) END"
            )

    def count_rejects(
        self, connection: duckdb.DuckDBPyConnection, rows: int
    ) -> tuple[int, tuple[Rejects, ...]]:
        """How many rows the query left out, and why; ``rows`` were taken.

        Raises:
            TableUnreadable: rows are neither taken nor left out, so they were read wrongly.
        """
        total, counts = self._count_faults(connection, self._relation())
        return total - rows, tuple(
            Rejects(self.name, column, self._describe_fault(column), count)
            for column, count in counts.items()
        )

    def _count_faults(
        self, connection: duckdb.DuckDBPyConnection, relation: str
    ) -> tuple[int, dict[str, int]]:
        """How many rows there are, and the faults by column, where there are any."""
        query, faults = self._read_casts(relation)
        counts = ", ".join(f"count(*) FILTER (WHERE {fault})" for fault in faults.values())
        total, *by_column = connection.execute(
            f"SELECT count(*), {counts} FROM ({query})"
        ).fetchone() or (0,)
        return total, {column: count for column, count in zip(faults, by_column) if count}

    def _describe_fault(self, column: str) -> str:
        return f"not {self.columns[column]}" if column else "not JSON"


class FileSource(LoadSource):
    """Files, which must stay as they are while they are read."""

    def __init__(self, files: Sequence[Path], columns: Mapping[str, str]) -> None:
        self._states = FileStates.note(files)
        self.files, self.columns = files, normalize_types(columns)
        self.name = ", ".join(map(str, files))

    def fingerprint(self) -> str:
        return self._states.digest()

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        yield
        self._states.require_unchanged()


class JsonSource(FileSource):
    """JSON files: one object a line, or one array of objects. Fields that nobody declared are left
    out, and a missing field has no value.
    """

    def __init__(self, files: Sequence[Path], columns: Mapping[str, str]) -> None:
        super().__init__(files, columns)
        self._format = "array" if all(map(_starts_array, files)) else "newline_delimited"

    def _relation(self) -> str:
        # Lines that are no JSON come as NULL.
        return (
            f"read_json_objects({write_list(map(str, self.files))}, format = '{self._format}', "
            f"ignore_errors = {str(self._format != 'array').lower()})"
        )

    def _value(self, column: str) -> tuple[str, str]:
        return f"json_extract_string(json, {_point_at(column)})", "VARCHAR"

    def _altered_value(self, column: str) -> str | None:
        if self.columns[column] in ("FLOAT", "DOUBLE"):
            return None
        # DuckDB reads a number with a point or an exponent as a double. That keeps 15 digits; where
        # the object has longer numbers, this one must stand in it as it was read.
        text, _ = self._value(column)
        name = sql.quote_text(json.dumps(column, ensure_ascii=False))
        written = rf"regexp_escape({name}) || '\s*:\s*' || regexp_escape({text}) || '0*\s*[,}}]'"
        return (
            rf"CASE WHEN regexp_matches(json, '\d[\d.]{{15}}|[eE]-\d{{3}}') "
            f"AND json_type(json, {_point_at(column)}) = 'DOUBLE' AND {text} LIKE '%.%' "
            f"THEN NOT regexp_matches(json, {written}) END"
        )

    def _broken_row(self) -> str:
        return "(json IS NULL OR json_type(json) <> 'OBJECT')"


class ParquetSource(FileSource):
    """Parquet files; their own types, unless others are declared."""

    def __init__(self, files: Sequence[Path], columns: Mapping[str, str]) -> None:
        super().__init__(files, columns)
        self._stored: dict[str, str] = {}
        self._text_types: dict[str, str] = {}
        self._parts: list[str] = []

    def _relation(self) -> str:
        return f"({' UNION ALL '.join(self._parts)})"

    def _value(self, column: str) -> tuple[str, str]:
        quoted = sql.quote_name(column)
        is_padded = self._text_types.get(column, "").startswith("char")
        return trim_blanks(quoted) if is_padded else quoted, self._stored[column]

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        self._text_types = read_text_types(connection, write_list(map(str, self.files)))
        refuse_collated(self.name, self.columns, self._text_types)
        groups = group_files(connection, self.files)
        for files, types in groups:
            require_columns(self.columns, list(types), str(files[0]))
            refuse_wide({name: types[name] for name in self.columns}, str(files[0]))
        # DuckDB would cast all files to the types of the first one.
        kinds = {name: {types[name] for _, types in groups} for name in self.columns}
        self.canonical_columns = frozenset(name for name, found in kinds.items() if len(found) > 1)
        self._stored = {
            name: "VARCHAR" if name in self.canonical_columns else min(found)
            for name, found in kinds.items()
        }
        self._parts = []
        for files, types in groups:
            values = [
                _write_exactly(name, types[name], kind)
                if name in self.canonical_columns
                else sql.quote_name(name)
                for name, kind in self.columns.items()
            ]
            self._parts.append(f"SELECT {', '.join(values)} FROM {_read_files(files)}")
        known = dict.fromkeys(name for _, types in groups for name in types)
        self.ignored_columns = tuple(name for name in known if name not in self.columns)
        with super()._attach(connection):
            yield


class ObjectSource(LoadSource):
    """An Arrow table or a pandas frame in this process."""

    def __init__(self, rows: Any, columns: Mapping[str, str]) -> None:
        self._rows, self.columns = rows, normalize_types(columns)
        self._frame = hasattr(rows, "iloc")
        self._stored: dict[str, str] = {}
        self.name = "a pandas frame" if self._frame else "an Arrow table"
        notes = () if self._frame else find_note(rows.schema.metadata)
        self._text_types = parse_text_types(notes)
        refuse_collated(self.name, self.columns, self._text_types)
        names = list(map(str, rows.columns if self._frame else rows.column_names))
        require_columns(columns, names, self.name)
        self.ignored_columns = tuple(name for name in names if name not in columns)

    def fingerprint(self) -> str:
        whole = hashlib.sha256()
        if self._frame:
            with require_extra("frames", "a frame to be loaded"):
                import pandas

            picked = self._rows[list(self.columns)]
            whole.update(repr(list(self.columns)).encode())
            whole.update(pandas.util.hash_pandas_object(picked, index=False).to_numpy().tobytes())
        else:
            with require_extra("frames", "an Arrow table to be loaded"):
                import pyarrow

            with pyarrow.BufferOutputStream() as stream:
                with pyarrow.ipc.new_stream(stream, self._rows.schema) as writer:
                    writer.write_table(self._rows)
                whole.update(stream.getvalue())
        return whole.hexdigest()

    def _relation(self) -> str:
        return "loaded_object"

    def _value(self, column: str) -> tuple[str, str]:
        quoted, stored = sql.quote_name(column), self._stored[column]
        # pandas has NaN where a number is missing; in a column of floats that is a value, too.
        if (
            self._frame
            and self._rows[column].dtype.kind == "f"
            and self.columns[column] not in ("FLOAT", "DOUBLE")
        ):
            quoted = f"CASE WHEN NOT isnan({quoted}) THEN {quoted} END"
        if self._text_types.get(column, "").startswith("char"):
            quoted = trim_blanks(quoted)
        return quoted, stored

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        # Objects are texts: DuckDB would infer a type from some of them.
        connection.execute("SET pandas_analyze_sample = 0")
        connection.register("loaded_object", self._rows)
        bound = connection.sql("SELECT * FROM loaded_object LIMIT 0")
        self._stored = dict(zip(bound.columns, map(str, bound.types)))
        yield


def require_columns(columns: Mapping[str, str], names: Sequence[str], where: str) -> None:
    """Raises `InvalidInput` for declared columns that a source does not have.

    What it has is for the owner alone: the names of a file without a header are a row.
    """
    if not (missing := [name for name in columns if name not in names]):
        return
    error = InvalidInput(
        f"{where} has no column called {' or '.join(map(repr, missing))}; correct the declared names, or give the source a header"
    )
    error.owner_hint = f"\nit has: {', '.join(names)}"
    raise error


def open_unpacked(file: Path) -> BinaryIO:
    """The bytes of a file, unpacked if its name ends in .gz."""
    return cast(BinaryIO, gzip.open(file)) if file.suffix == ".gz" else file.open("rb")


def _point_at(column: str) -> str:
    """A field of a JSON object, as SQL names it."""
    return sql.quote_text("/" + column.replace("~", "~0").replace("/", "~1"))


def _starts_array(file: Path) -> bool:
    try:
        with open_unpacked(file) as stream:
            return stream.read(1024).lstrip()[:1] == b"["
    except (OSError, EOFError):
        raise InvalidInput(f"{file} cannot be read as JSON; give .json or .json.gz") from None


def write_list(texts: Any) -> str:
    """Texts as a list in SQL."""
    return "[" + ", ".join(map(sql.quote_text, texts)) + "]"


def expand_files(pattern: str) -> list[Path]:
    """The files that a path or glob names, sorted. Raises `InvalidInput` for none."""
    if not any(sign in pattern for sign in "*?["):
        return [Path(pattern)]
    root = Path(pattern).anchor
    base, parts = Path(root) if root else Path(), Path(pattern).parts[1 if root else 0 :]
    files = sorted(path for path in base.glob(os.path.join(*parts)) if path.is_file())
    if not files:
        raise InvalidInput(f"no file matches {pattern!r}; check the folder and the pattern")
    return files


def find_root(patterns: Sequence[str]) -> Path:
    """The folder that all of these files and globs are in: up to the first sign of a pattern."""
    roots = []
    for pattern in patterns:
        parts = Path(pattern).parts
        plain = list(itertools.takewhile(lambda p: not any(s in p for s in "*?["), parts))
        # The last part of a path without signs is the file itself.
        roots.append(os.path.join("", *(plain if len(plain) < len(parts) else plain[:-1])) or ".")
    return Path(os.path.commonpath([os.path.abspath(root) for root in roots]))


#: What of a Parquet file decides what DuckDB makes of it, by file.
SCHEMAS = """
SELECT file_name, list(struct_pack(name, type, type_length, converted_type, logical_type, precision, scale, num_children)
  ORDER BY column_id)
FROM parquet_schema({}) GROUP BY file_name
"""


def group_files(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path]
) -> list[tuple[list[Path], dict[str, str]]]:
    """Files of the same columns and types, with DuckDB's names of these types."""
    found = connection.execute(SCHEMAS.format(write_list(map(str, files)))).fetchall()
    schemas = {name: repr(schema) for name, schema in found}
    groups: dict[str, list[Path]] = {}
    for file in files:
        groups.setdefault(schemas[str(file)], []).append(file)
    wide = dict(itertools.starmap(_find_wide_decimals, found))
    listed = []
    for alike in groups.values():
        bound = connection.sql(f"SELECT * FROM {_read_files(alike[:1])} LIMIT 0")
        types = dict(zip(bound.columns, map(str, bound.types)))
        listed.append((alike, types | wide[str(alike[0])]))
    return listed


def _find_wide_decimals(
    file: str, schema: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, str]]:
    """A file's decimals of more digits than DuckDB has, which it reads as the nearest DOUBLE."""
    return file, {
        column["name"]: f"DECIMAL({column['precision']},{column['scale']})"
        for column in schema
        if (column["precision"] or 0) > MOST_DIGITS
    }


def refuse_wide(types: Mapping[str, str], file: str) -> None:
    """Raises `InvalidInput` for decimals of more digits than DuckDB has."""
    for name, kind in types.items():
        if (digits := _DECIMAL.match(kind)) and int(digits[1]) > MOST_DIGITS:
            raise InvalidInput(
                f"{file}: column {name!r} is a {kind}, and DuckDB would round what has more than {MOST_DIGITS} digits; write it "
                f"as text, or leave it out"
            )


def _read_files(files: Sequence[Path]) -> str:
    return f"read_parquet({write_list(map(str, files))}, hive_partitioning = false)"


def _write_exactly(column: str, stored: str, declared: str) -> str:
    """A column's values as texts of its declared type, and a text of none for one that is not exactly of it."""
    quoted = sql.quote_name(column)
    typed = TypedValue(quoted, stored, declared)
    text = f"CAST({typed.cast()} AS VARCHAR)"
    if declared != "VARCHAR":
        text = f"CASE WHEN {quoted} IS NULL THEN NULL WHEN {typed.is_exact(typed.cast())} THEN {text} ELSE 'none' END"
    return f"{text} AS {quoted}"


def parquet_columns(files: Sequence[Path]) -> dict[str, str]:
    """Columns of Parquet files with the types that they say themselves, without those that no
    declaration can use.

    Raises:
        InvalidInput: files of different columns or types.
        TableUnreadable: no Parquet files.
    """
    FileStates.note(files)

    def read_types() -> list[tuple[str, str]]:
        with duckdb.connect(":memory:") as connection:
            texts = read_text_types(connection, write_list(map(str, files)))
            groups = group_files(connection, files)
        (first, columns), *others = groups
        for alike, types in others:
            if types != columns:
                raise InvalidInput(
                    f"{alike[0]} has other columns or types than {first[0]}, and none is guessed; say which are loaded, and as "
                    f"what (--columns 'person VARCHAR, age DOUBLE')"
                )
        return [
            (name, kind)
            for name, kind in columns.items()
            if not texts.get(name, "").startswith("collated")
        ]

    columns = {}
    for name, kind in isolated_database.scrub_errors(read_types, str(files[0])):
        with contextlib.suppress(InvalidInput):
            columns[name] = normalize_type(name, kind)
    return columns
