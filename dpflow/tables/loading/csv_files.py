"""CSV files as a source: every value is read as the text it is, and then cast."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpflow.errors import InvalidInput, TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.loading.report import Rejects
from dpflow.tables.loading.sources import (
    FileSource,
    find_state,
    open_unpacked,
    require_columns,
    write_list,
)

_MOST_LINES = 20  # of one kind of reject that are named


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


def read_header(file: Path, form: CsvFormat) -> list[str]:
    """The names in a CSV file's first line; no other line is looked at.

    Raises:
        InvalidInput: no file, no names, or a name twice.
    """
    find_state(file)
    try:
        with open_unpacked(file) as raw:
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


class CsvSource(FileSource):
    """CSV files of one header, gzipped or not."""

    def __init__(
        self, files: Sequence[Path], columns: Mapping[str, str], form: CsvFormat = CsvFormat()
    ) -> None:
        super().__init__(files, columns)
        self.form, self._header = form, read_header(files[0], form)
        for other in files[1:]:
            if read_header(other, form) != self._header:
                raise InvalidInput(
                    f"{other} has other names in its first line than {files[0]}; load them one by one"
                )
        require_columns(columns, self._header, f"the first line of {files[0]}")
        self.ignored_columns = tuple(n for n in self._header if n not in columns)

    def fingerprint(self) -> str:
        # Another delimiter or text for a missing value makes other rows of the same bytes.
        return hashlib.sha256(repr((super().fingerprint(), self.form)).encode()).hexdigest()

    def _value(self, column: str) -> tuple[str, str]:
        return sql.quote_name(column), "VARCHAR"

    def _time_format(self, kind: str) -> str | None:
        if kind == "DATE":
            return self.form.date_format
        return self.form.timestamp_format if kind.startswith("TIMESTAMP") else None

    def _relation(self) -> str:
        return self._read_files(self.files, "reject")

    def count_rejects(
        self, connection: duckdb.DuckDBPyConnection, rows: int
    ) -> tuple[int, tuple[Rejects, ...]]:
        unread, rejects = self._count_unread(connection)
        lines = None if self.form.multiline else self._count_lines(connection)
        if lines == rows + unread:
            return unread, rejects
        # Values are at fault, or quotes: the rows are read once more.
        total = 0
        for file in self.files:
            seen, counts = self._count_faults(connection, self._read_files([file], "again"))
            total += seen
            rejects += self._describe_faults(connection, file, counts)
        if lines is not None and lines != total + unread:
            raise TableUnreadable(
                f"quoted values of {self.name} run over line ends, so a stray quote may have swallowed rows, and "
                f"nothing was loaded; correct the quotes, or say multiline if values do hold line ends"
            )
        return unread + total - rows, rejects

    def _count_unread(
        self, connection: duckdb.DuckDBPyConnection
    ) -> tuple[int, tuple[Rejects, ...]]:
        """Rows that DuckDB could not split into values."""
        counted = connection.execute(
            "SELECT s.file_path, coalesce(e.column_name, ''), CAST(e.error_type AS VARCHAR), count(*), "
            f"list_sort(list(e.line))[:{_MOST_LINES}] "
            "FROM reject_errors e JOIN reject_scans s USING (scan_id, file_id) GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        (unread,) = connection.execute(
            "SELECT count(*) FROM (SELECT DISTINCT file_id, line FROM reject_errors)"
        ).fetchone() or (0,)
        kinds = {"UNQUOTED VALUE": "a quote without its end"}
        return unread, tuple(
            Rejects(file, column, kinds.get(kind, kind.lower()), count, tuple(lines))
            for file, column, kind, count, lines in counted
        )

    def _describe_faults(
        self, connection: duckdb.DuckDBPyConnection, file: Path, counts: Mapping[str, int]
    ) -> tuple[Rejects, ...]:
        """What was counted in a file, with the first of the lines."""
        relation = self._read_files([file], "again")
        query, faults = self._read_casts(relation)
        places = {name: place for place, name in enumerate(self.columns)}
        texts = {}
        for column in counts:
            # The first ones of the file: their lines are among those that hold these texts.
            connection.execute("SET preserve_insertion_order = true")
            found = connection.execute(
                f"SELECT v{places[column]} FROM ({query}) WHERE {faults[column]} LIMIT {_MOST_LINES}"
            ).fetchall()
            connection.execute("SET preserve_insertion_order = false")
            texts[column] = {text for (text,) in found}
        lines = self._find_lines(file, texts)
        return tuple(
            Rejects(str(file), column, self._describe_fault(column), count, tuple(lines[column]))
            for column, count in counts.items()
        )

    def _find_lines(self, file: Path, texts: Mapping[str, set[str]]) -> dict[str, list[int]]:
        """The first lines with one of these texts in a column."""
        lines: dict[str, list[int]] = {column: [] for column in texts}
        if not texts:
            return lines
        form, before = self.form, 0
        with io.TextIOWrapper(
            open_unpacked(file), encoding="utf-8", errors="surrogateescape", newline=""
        ) as stream:
            rows = csv.reader(stream, delimiter=form.delimiter, quotechar=form.quote)
            while any(len(found) < _MOST_LINES for found in lines.values()):
                try:
                    row = next(rows)
                except StopIteration:
                    break
                except csv.Error:
                    # A line that is too long; DuckDB left it out.
                    row = []
                values = dict(zip(self._header, row)) if len(row) == len(self._header) else {}
                for column, found in lines.items():
                    if values.get(column) in texts[column] and len(found) < _MOST_LINES:
                        found.append(before + 1)
                before = rows.line_num
        return lines

    def _count_lines(self, connection: duckdb.DuckDBPyConnection) -> int:
        """Lines after the headers, read without any quotes; those that are empty are no rows unless
        there is one column only.
        """
        lines = self._read(self.files, ["line"], "lines", "", False, delimiter="\x1f")
        empty = "TRUE" if len(self._header) == 1 else "line IS NOT NULL"
        (count,) = connection.execute(f"SELECT count(*) FROM {lines} WHERE {empty}").fetchone() or (
            0,
        )
        # Lines that are no text, or too long, are left out here, too.
        (others,) = connection.execute(
            "SELECT count(*) FROM (SELECT DISTINCT file_id, line FROM lines_errors)"
        ).fetchone() or (0,)
        return int(count + others - len(self.files))

    def _read_files(self, files: Sequence[Path], rejects: str) -> str:
        return self._read(files, self._header, rejects, self.form.quote, True)

    def _read(
        self,
        files: Sequence[Path],
        names: Sequence[str],
        rejects: str,
        quote: str,
        header: bool,
        delimiter: str | None = None,
    ) -> str:
        form = self.form
        options = {
            "columns": "{" + ", ".join(f"{sql.quote_text(n)}: 'VARCHAR'" for n in names) + "}",
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
            "nullstr": write_list(form.missing) if header else "['']",
        }
        listed = ", ".join(f"{option} = {value}" for option, value in options.items())
        return f"read_csv({write_list(map(str, files))}, {listed})"
