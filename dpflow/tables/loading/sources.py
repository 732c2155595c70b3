"""Where rows come from: CSV, JSON and Parquet files, Arrow tables, pandas frames. Each is read by
DuckDB's own reader with the declared types.

A source writes a query of typed columns, and counts the rows that it left out.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import duckdb

from dpflow.errors import InvalidInput, TableBusy, TableUnreadable, UnknownName
from dpflow.extras import require_extra
from dpflow.tables.access import sandbox, sql
from dpflow.tables.loading.column_types import normalize_type
from dpflow.tables.loading.report import Rejects

_MOST_LINES = 20  # of one kind of reject that are named


class LoadSource(Protocol):
    """Rows to be loaded.

    Attributes:
        name: what messages and the file's own book of loads call it.
        columns: declared types by name, in the order of the table.
        ignored_columns: columns that it has and nobody declared.
    """

    name: str
    columns: Mapping[str, str]
    ignored_columns: tuple[str, ...]

    def fingerprint(self) -> str:
        """A digest of the content: the same again is not loaded twice."""

    @contextmanager
    def open_query(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        """A query of the declared columns in their types, for as long as the source is open."""

    def count_rejects(
        self, connection: duckdb.DuckDBPyConnection, rows: int
    ) -> tuple[int, tuple[Rejects, ...]]:
        """How many rows the query left out, and why; ``rows`` were taken.

        Raises:
            TableUnreadable: rows are neither taken nor left out, so they were read wrongly.
        """


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written. Nothing of it is guessed.

    Attributes:
        delimiter, quote: one character each.
        missing: texts that stand for no value.
        date_format, timestamp_format: as for strptime; ISO 8601 if left out.
        quoted_missing: whether such a text in quotes has no value, too.
        multiline: quoted values may hold line ends. Then a stray quote can swallow the lines up to
            the next one, so say it only of files that a program wrote.
    """

    delimiter: str = ","
    quote: str = '"'
    missing: tuple[str, ...] = ("",)
    date_format: str | None = None
    timestamp_format: str | None = None
    quoted_missing: bool = True
    multiline: bool = False

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or len(self.quote) != 1 or self.delimiter == self.quote:
            raise InvalidInput(
                "a CSV file has one character between values and another one around them; give such as "
                "delimiter ';' and quote '\"'"
            )


@dataclass(frozen=True)
class FileStates:
    """What files were when they were first looked at: a file that changes meanwhile is refused."""

    files: tuple[Path, ...]
    states: tuple[tuple[int, ...], ...]

    @classmethod
    def note(cls, files: Sequence[Path]) -> FileStates:
        """Look at the files. Raises `InvalidInput` for one that is missing."""
        return cls(tuple(files), tuple(map(_file_state, files)))

    def require_unchanged(self) -> None:
        """Raises `TableBusy` if one was written or replaced since."""
        for file, state in zip(self.files, self.states):
            if _file_state(file) != state:
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


def _file_state(file: Path) -> tuple[int, ...]:
    try:
        state = file.stat()
    except OSError:
        raise InvalidInput(
            f"there is no file {file}; give the path of one that you may read"
        ) from None
    if not file.is_file():
        raise InvalidInput(f"{file} is no file; give files, such as visits/*.csv")
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def read_header(file: Path, form: CsvFormat) -> list[str]:
    """The names in a CSV file's first line; no other line is looked at.

    Raises:
        InvalidInput: no file, no names, or a name twice.
    """
    _file_state(file)
    try:
        with _open_unpacked(file) as raw:
            first = raw.readline(1 << 20).decode("utf-8-sig")
            names = next(csv.reader([first], delimiter=form.delimiter, quotechar=form.quote), [])
    except (OSError, EOFError, UnicodeDecodeError, csv.Error):
        raise InvalidInput(
            f"{file} has no first line of names in UTF-8; give a CSV file (.csv or .csv.gz) with a header"
        ) from None
    if not names or not all(names) or len(set(map(str.casefold, names))) < len(names):
        raise InvalidInput(
            f"the first line of {file} is no list of different names; give it one, with {form.delimiter!r} between them"
        )
    return names


@dataclass
class CsvSource:
    """CSV files of one header, gzipped or not."""

    files: Sequence[Path]
    columns: Mapping[str, str]
    form: CsvFormat = CsvFormat()
    ignored_columns: tuple[str, ...] = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self._states = FileStates.note(self.files)
        self._header = read_header(self.files[0], self.form)
        for other in self.files[1:]:
            if read_header(other, self.form) != self._header:
                raise InvalidInput(
                    f"{other} has other names in its first line than {self.files[0]}; load them one by one"
                )
        require_columns(self.columns, self._header, str(self.files[0]))
        self.ignored_columns = tuple(n for n in self._header if n not in self.columns)
        self.name = ", ".join(map(str, self.files))

    def fingerprint(self) -> str:
        return self._states.digest()

    @contextmanager
    def open_query(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        kinds = {name: self.columns.get(name, "VARCHAR") for name in self._header}
        listed = ", ".join(map(sql.quote_name, self.columns))
        yield f"SELECT {listed} FROM {self._read(kinds, 'reject', self.form.quote, True)}"
        self._states.require_unchanged()

    def count_rejects(
        self, connection: duckdb.DuckDBPyConnection, rows: int
    ) -> tuple[int, tuple[Rejects, ...]]:
        counted = connection.execute(
            "SELECT s.file_path, coalesce(e.column_name, ''), CAST(e.error_type AS VARCHAR), count(*), "
            f"list_sort(list(e.line))[:{_MOST_LINES}] "
            "FROM reject_errors e JOIN reject_scans s USING (scan_id, file_id) GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        (rejected,) = connection.execute(
            "SELECT count(*) FROM (SELECT DISTINCT file_id, line FROM reject_errors)"
        ).fetchone() or (0,)
        if not self.form.multiline and self._count_lines(connection) != rows + rejected:
            raise TableUnreadable(
                f"quoted values of {self.name} run over line ends, so a stray quote may have swallowed rows, and "
                f"nothing was loaded; correct the quotes, or say multiline if values do hold line ends"
            )
        return rejected, tuple(
            Rejects(file, column, self._describe_kind(column, kind), count, tuple(lines))
            for file, column, kind, count, lines in counted
        )

    def _describe_kind(self, column: str, kind: str) -> str:
        if kind == "CAST":
            return f"not {self.columns.get(column, 'VARCHAR')}"
        return {"UNQUOTED VALUE": "a quote without its end"}.get(kind, kind.lower())

    def _count_lines(self, connection: duckdb.DuckDBPyConnection) -> int:
        """Lines after the headers, read without any quotes; those that are empty are no rows unless
        there is one column only.
        """
        lines = self._read({"line": "VARCHAR"}, "lines", "", False, delimiter="\x1f")
        empty = "TRUE" if len(self._header) == 1 else "line IS NOT NULL"
        (count,) = connection.execute(f"SELECT count(*) FROM {lines} WHERE {empty}").fetchone() or (
            0,
        )
        # Lines that are no text, or too long, are left out here, too.
        (others,) = connection.execute(
            "SELECT count(*) FROM (SELECT DISTINCT file_id, line FROM lines_errors)"
        ).fetchone() or (0,)
        return int(count + others - len(self.files))

    def _read(
        self,
        kinds: Mapping[str, str],
        rejects: str,
        quote: str,
        header: bool,
        delimiter: str | None = None,
    ) -> str:
        form = self.form
        options = {
            "columns": "{"
            + ", ".join(f"{sql.quote_text(n)}: '{k}'" for n, k in kinds.items())
            + "}",
            "auto_detect": "false",
            "header": str(header).lower(),
            "delim": sql.quote_text(delimiter or form.delimiter),
            "quote": sql.quote_text(quote),
            "escape": sql.quote_text(quote),
            "strict_mode": "true",
            "store_rejects": "true",
            "rejects_table": f"'{rejects}_errors'",
            "rejects_scan": f"'{rejects}_scans'",
            "allow_quoted_nulls": str(form.quoted_missing).lower(),
            "nullstr": _write_list(form.missing) if header else "['']",
        }
        for option, value in (
            ("dateformat", form.date_format),
            ("timestampformat", form.timestamp_format),
        ):
            if value and header:
                options[option] = sql.quote_text(value)
        listed = ", ".join(f"{option} = {value}" for option, value in options.items())
        return f"read_csv({_write_list(map(str, self.files))}, {listed})"


class CastSource:
    """Rows of which each column is cast to its declared type; a value that cannot be is counted.
    A source says what it reads, and what its columns are in that.
    """

    name: str
    columns: Mapping[str, str]
    ignored_columns: tuple[str, ...] = ()

    def _relation(self) -> str:
        """What the rows are read from."""
        raise NotImplementedError

    def _value(self, column: str) -> str:
        """A declared column in the relation, NULL where it has no value."""
        return sql.quote_name(column)

    def _broken_row(self) -> str | None:
        """Where a whole row cannot be read."""
        return None

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        yield

    def _casts(self) -> dict[str, str]:
        return {n: f"TRY_CAST({self._value(n)} AS {kind})" for n, kind in self.columns.items()}

    def _faults(self) -> dict[str, str]:
        """Conditions of rows that cannot be taken, by column."""
        faults = {
            name: f"({self._value(name)} IS NOT NULL AND {cast} IS NULL)"
            for name, cast in self._casts().items()
        }
        broken = self._broken_row()
        return ({"": broken} if broken else {}) | faults

    @contextmanager
    def open_query(self, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
        with self._attach(connection):
            listed = ", ".join(
                f"{cast} AS {sql.quote_name(n)}" for n, cast in self._casts().items()
            )
            # Without a fault: NULL of a fault's condition is none.
            faulty = " OR ".join(f"coalesce({fault}, FALSE)" for fault in self._faults().values())
            yield f"SELECT {listed} FROM {self._relation()} WHERE NOT ({faulty})"

    def count_rejects(
        self, connection: duckdb.DuckDBPyConnection, rows: int
    ) -> tuple[int, tuple[Rejects, ...]]:
        faults = self._faults()
        counts = ", ".join(f"count(*) FILTER (WHERE {fault})" for fault in faults.values())
        counted = connection.execute(
            f"SELECT count(*), {counts} FROM {self._relation()}"
        ).fetchone()
        total, *by_column = counted or (rows,)
        kinds = {name: f"not {kind}" for name, kind in self.columns.items()} | {"": "not JSON"}
        return total - rows, tuple(
            Rejects(self.name, column, kinds[column], count)
            for column, count in zip(faults, by_column)
            if count
        )


class JsonSource(CastSource):
    """JSON files: one object a line, or one array of objects. Fields that nobody declared are left
    out, and a missing field has no value.
    """

    def __init__(self, files: Sequence[Path], columns: Mapping[str, str]) -> None:
        self._states = FileStates.note(files)
        self.files, self.columns = files, columns
        self.name = ", ".join(map(str, files))
        self._format = "array" if all(map(_starts_array, files)) else "newline_delimited"

    def fingerprint(self) -> str:
        return self._states.digest()

    def _relation(self) -> str:
        # Lines that are no JSON come as NULL.
        return (
            f"read_json_objects({_write_list(map(str, self.files))}, format = '{self._format}', "
            f"ignore_errors = {str(self._format != 'array').lower()})"
        )

    def _value(self, column: str) -> str:
        pointer = "/" + column.replace("~", "~0").replace("/", "~1")
        return f"json_extract_string(json, {sql.quote_text(pointer)})"

    def _broken_row(self) -> str:
        return "(json IS NULL OR json_type(json) <> 'OBJECT')"

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        yield
        self._states.require_unchanged()


class ParquetSource(CastSource):
    """Parquet files; their own types, unless others are declared."""

    def __init__(self, files: Sequence[Path], columns: Mapping[str, str]) -> None:
        self._states = FileStates.note(files)
        self.files, self.columns = files, columns
        self.name = ", ".join(map(str, files))

    def fingerprint(self) -> str:
        return self._states.digest()

    def _relation(self) -> str:
        return f"read_parquet({_write_list(map(str, self.files))}, hive_partitioning = false)"

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        names = connection.sql(f"SELECT * FROM {self._relation()} LIMIT 0").columns
        require_columns(self.columns, names, self.name)
        self.ignored_columns = tuple(name for name in names if name not in self.columns)
        yield
        self._states.require_unchanged()


class ObjectSource(CastSource):
    """An Arrow table or a pandas frame in this process."""

    def __init__(self, rows: Any, columns: Mapping[str, str]) -> None:
        self._rows, self.columns = rows, columns
        self._frame = hasattr(rows, "iloc")
        self.name = "a pandas frame" if self._frame else "an Arrow table"
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

    def _value(self, column: str) -> str:
        quoted = sql.quote_name(column)
        # pandas has NaN where a number is missing; in a column of floats that is a value, too.
        if (
            self._frame
            and self._rows[column].dtype.kind == "f"
            and self.columns[column] not in ("FLOAT", "DOUBLE")
        ):
            return f"CASE WHEN NOT isnan({quoted}) THEN {quoted} END"
        return quoted

    @contextmanager
    def _attach(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        # Objects are texts: DuckDB would infer a type from some of them.
        connection.execute("SET pandas_analyze_sample = 0")
        connection.register("loaded_object", self._rows)
        yield


def require_columns(columns: Mapping[str, str], names: Sequence[str], where: str) -> None:
    """Raises `InvalidInput` for declared columns that a source does not have."""
    for name in columns:
        if name not in names:
            raise InvalidInput(f"{where}: " + str(UnknownName("column called", name, names)))


def _open_unpacked(file: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file)) if file.suffix == ".gz" else file.open("rb")


def _starts_array(file: Path) -> bool:
    try:
        with _open_unpacked(file) as stream:
            return stream.read(1024).lstrip()[:1] == b"["
    except (OSError, EOFError):
        raise InvalidInput(f"{file} cannot be read as JSON; give .json or .json.gz") from None


def _write_list(texts: Any) -> str:
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


def parquet_columns(files: Sequence[Path]) -> dict[str, str]:
    """Columns of Parquet files with the types that they say themselves, without those that no
    declaration can use.

    Raises:
        TableUnreadable: no Parquet files, or of different columns.
    """
    FileStates.note(files)

    def read_types() -> list[tuple[str, str]]:
        listed = _write_list(map(str, files))
        with duckdb.connect(":memory:") as connection:
            bound = connection.sql(
                f"SELECT * FROM read_parquet({listed}, hive_partitioning = false)"
            )
            return list(zip(bound.columns, map(str, bound.types)))

    columns = {}
    for name, kind in sandbox.scrub_errors(read_types, str(files[0])):
        with contextlib.suppress(InvalidInput):
            columns[name] = normalize_type(name, kind)
    return columns
