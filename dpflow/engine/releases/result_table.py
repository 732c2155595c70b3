"""A released result as a table with named columns: for notebooks, frames and files. All of it left
the ledger already; nothing here reads a private row.
"""

from __future__ import annotations

import csv
import datetime as dt
import html
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.core.contract.printed_numbers import print_interval, print_number
from dpflow.core.contract.published_release import PublishedRelease
from dpflow.core.contract.result_fields import FIELDS, clip_row, list_row_fields, utc_time
from dpflow.core.contract.results import Result, finite_json
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.output_files import write_whole

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_INT64 = 2**63


@dataclass(frozen=True)
class ResultTable:
    """Rows of one release, one line each.

    Attributes:
        about: what is the same in every line, such as the release's id and its cost: texts, and a
        time with its zone.
        result: the rows.

    Its columns are those of a published table (`result_fields.FIELDS`), of which ``about`` gives
    some. ``value`` is a number, and with its noise interval clipped to the measure's public range, of
    which ``clipped`` is the mark; ``raw_value`` and ``half_width_95`` are for sums over rows. ``text``
    is the answer where it is no number, or one that no double writes. Amounts of privacy are exact
    texts. Times of frames are in UTC and have no zone; those of CSV and JSON end in Z. A release that
    selected nothing has no line.
    """

    about: Mapping[str, str | dt.datetime | None]
    result: Result

    @property
    def has_integers(self) -> bool:
        """Whether every number is an integer of 64 bits: then ``value`` holds integers."""
        return _holds_integers(list_row_fields(self.result)["value"])

    def columns(self) -> dict[str, list[Any]]:
        """Values by column."""
        columns = list_row_fields(self.result)
        for name, value in self.about.items():
            columns[name] = [_without_zone(value)] * len(self.result.rows)
        if not _holds_integers(columns["value"]):
            columns["value"] = [None if v is None else float(v) for v in columns["value"]]
        return {name: columns[name] for name in FIELDS if name in columns}

    def records(self) -> list[dict[str, Any]]:
        """One mapping with named fields for each line; dates and times are texts."""
        columns = self.columns()
        for name in ("released_at", "key_date", "key_timestamp"):
            if name in columns:
                mark = "Z" if name == "released_at" else ""
                columns[name] = [v and v.isoformat() + mark for v in columns[name]]
        return [dict(zip(columns, line)) for line in zip(*columns.values())]

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas frame. Raises `MissingExtra` without pandas."""
        with require_extra("frames", "a result as a pandas frame"):
            import pandas

        frame = pandas.DataFrame(self.columns(), dtype=object)
        kinds = _PANDAS | ({"value": "Int64"} if self.has_integers else {})
        for name in frame.columns:
            # Dates of pandas are times; as they are, they stay dates.
            if name != "key_date":
                frame[name] = frame[name].astype(
                    pandas.api.types.pandas_dtype(kinds.get(name, "string"))
                )
        return frame

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table. Raises `MissingExtra` without pyarrow."""
        with require_extra("frames", "a result as an Arrow table"):
            import pyarrow

        numbers = {
            **dict.fromkeys(_NUMBERS, pyarrow.float64()),
            **dict.fromkeys(_TRUTHS, pyarrow.bool_()),
            "released_at": pyarrow.timestamp("us"),
            "key_integer": pyarrow.int64(),
            "key_date": pyarrow.date32(),
            "key_timestamp": pyarrow.timestamp("us"),
        }
        if self.has_integers:
            numbers["value"] = pyarrow.int64()
        columns = self.columns()
        schema = [(name, numbers.get(name, pyarrow.string())) for name in columns]
        return pyarrow.table(columns, schema=pyarrow.schema(schema))

    def to_polars(self) -> polars.DataFrame:
        """A polars frame. Raises `MissingExtra` without polars."""
        with require_extra("frames", "a result as a polars frame"):
            import polars

        numbers: dict[str, Any] = {
            **dict.fromkeys(_NUMBERS, polars.Float64),
            **dict.fromkeys(_TRUTHS, polars.Boolean),
            "released_at": polars.Datetime("us"),
            "key_integer": polars.Int64,
            "key_date": polars.Date,
            "key_timestamp": polars.Datetime("us"),
        }
        if self.has_integers:
            numbers["value"] = polars.Int64
        columns = self.columns()
        return polars.DataFrame(
            columns, schema={name: numbers.get(name, polars.String) for name in columns}
        )

    def write(self, file: Path | str) -> None:
        """Write a file: CSV, JSON with named fields, or Parquet, by its name.

        Raises:
            InvalidInput: another kind of file.
            NotPublished: it cannot be written.
            MissingExtra: Parquet without pyarrow.
        """
        write_tables([self], Path(file))

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self, title: str = "") -> str:
        """A table for notebooks, with the 95 % noise interval of each number."""
        lines = list_printed_rows(self.result)
        note = "" if lines else "<p>nothing was selected</p>"
        if self.result.totals is not None:
            note += f"<p>{html.escape(self.result.totals.statement)}</p>"
        return write_html(title, list_printed_columns(self.result), lines) + note


#: The columns of a printed result.
PRINTED = ("key", "measure", "value", "95 % noise interval", "clipped", "remark")


def list_printed_columns(result: Result) -> tuple[str, ...]:
    """`PRINTED`, and the total interval where one is known."""
    has_totals = result.totals is not None and bool(result.totals.ends)
    return (*PRINTED, "95 % total interval") if has_totals else PRINTED


def list_printed_rows(result: Result) -> list[tuple[Any, ...]]:
    """A result's rows for people, by the columns of `list_printed_columns`."""
    numbers = [clip_row(row, result) for row in result.rows]
    has_totals = len(list_printed_columns(result)) > len(PRINTED)
    return [
        (
            row.key,
            row.measure,
            print_number(number.value, number.noise_low, number.noise_high),
            print_interval(number.noise_low, number.noise_high, number.value),
            "clipped" if number.clipped else "",
            row.remark,
            *([print_interval(number.low, number.high, number.value)] if has_totals else []),
        )
        for row, number in zip(result.rows, numbers)
    ]


def make_table(release: PublishedRelease) -> ResultTable:
    """The result of a release with all fields that a published table has."""
    about = {
        "release_id": release.release_id,
        "release": release.release,
        "block": release.block,
        "mechanism": release.mechanism,
        "epsilon": release.epsilon,
        "delta": release.delta,
        "scope": release.scope,
        "run": release.run,
        "released_at": release.released_at,
        "protects": release.protects,
    }
    return ResultTable(about, release.result)


#: Columns of doubles.
_NUMBERS = ("value", "noise_low", "noise_high", "low", "high", "raw_value", "half_width_95")
#: Columns of truth values.
_TRUTHS = ("clipped", "only_a_bound")
#: Kinds of pandas' columns that hold no text.
_PANDAS = {
    **dict.fromkeys(_NUMBERS, "Float64"),
    **dict.fromkeys(_TRUTHS, "boolean"),
    "released_at": "datetime64[us]",
    "key_integer": "Int64",
    "key_timestamp": "datetime64[us]",
}


def _without_zone(value: str | dt.datetime | None) -> str | dt.datetime | None:
    return utc_time(value) if isinstance(value, dt.datetime) else value


def _holds_integers(values: Sequence[float | int | None]) -> bool:
    numbers = [value for value in values if value is not None]
    return bool(numbers) and all(isinstance(v, int) and -_INT64 <= v < _INT64 for v in numbers)


def write_html(title: str, heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """An HTML table; every text is escaped, because names and keys are whatever people wrote."""

    def cells(tag: str, values: Iterable[Any]) -> str:
        texts = ("" if value is None else html.escape(str(value)) for value in values)
        return "".join(f'<{tag} style="text-align:left">{text}</{tag}>' for text in texts)

    body = "".join(f"<tr>{cells('td', line)}</tr>" for line in lines)
    caption = f"<p><b>{html.escape(title)}</b></p>" if title else ""
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>" if any(heads) else ""
    return f"{caption}<table>{head}<tbody>{body}</tbody></table>"


def require_file_kind(file: Path) -> None:
    """Raises `InvalidInput` for a file whose name is of no kind that results are written as."""
    if file.suffix.lower() not in _WRITERS:
        raise InvalidInput(
            f"{file} does not say by its name what it is; end it in {', '.join(_WRITERS)}"
        )


def write_tables(tables: Sequence[ResultTable], file: Path) -> None:
    """Write the lines of several results into one file, whole or not at all. See
    `ResultTable.write`.
    """
    require_file_kind(file)
    write_whole(file, encode_tables(tables, file.suffix.lower()))


def encode_tables(tables: Sequence[ResultTable], kind: str) -> bytes:
    """The lines of one or more results as a file's content: ``.csv``, ``.json``, ``.parquet`` or ``.arrow``."""
    return _WRITERS[kind](tables)


def _csv_bytes(tables: Sequence[ResultTable]) -> bytes:
    stream = io.StringIO()
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow(tables[0].columns())
    for table in tables:
        lines.writerows(map(_csv_value, record.values()) for record in table.records())
    return stream.getvalue().encode()


def _csv_value(value: Any) -> Any:
    """A value as DuckDB's CSV has it: truth is true or false."""
    return str(value).lower() if isinstance(value, bool) else value


def _json_bytes(tables: Sequence[ResultTable]) -> bytes:
    records = [finite_json(record) for table in tables for record in table.records()]
    return (json.dumps(records, indent=1, ensure_ascii=False) + "\n").encode()


def _join_arrow(tables: Sequence[ResultTable]) -> pyarrow.Table:
    arrow = [table.to_arrow() for table in tables]
    import pyarrow

    joined = pyarrow.concat_tables(arrow, promote_options="permissive")
    # As in a published table, whatever was drawn: integers that are no doubles are in ``text``, too.
    value = joined.schema.get_field_index("value")
    return joined.set_column(value, "value", joined["value"].cast("double", safe=False))


def _parquet_bytes(tables: Sequence[ResultTable]) -> bytes:
    joined = _join_arrow(tables)
    import pyarrow
    import pyarrow.parquet

    stream = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(joined, stream)
    return bytes(stream.getvalue())


def _arrow_bytes(tables: Sequence[ResultTable]) -> bytes:
    joined = _join_arrow(tables)
    import pyarrow

    stream = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(stream, joined.schema) as writer:
        writer.write_table(joined)
    return bytes(stream.getvalue())


_WRITERS: dict[str, Callable[[Sequence[ResultTable]], bytes]] = {
    ".csv": _csv_bytes,
    ".json": _json_bytes,
    ".parquet": _parquet_bytes,
    ".arrow": _arrow_bytes,
}
