"""A released result as a table with named columns: for notebooks, frames and files. All of it left
the ledger already; nothing here reads a private row.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.core.contract.results import Result
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_INT64 = 2**63


@dataclass(frozen=True)
class ResultTable:
    """Rows of one release, one line each.

    Attributes:
        about: what is the same in every line, such as the release's id and its cost, as texts.
        result: the rows.

    Its columns are those of ``about``, then ``key``, ``measure``, ``value`` (a number), ``text``
    (the answer where it is no number, or one that no double writes) and ``half_width_95``. A
    release that selected nothing has no line.
    """

    about: Mapping[str, str]
    result: Result

    @property
    def has_integers(self) -> bool:
        """Whether every number is an integer of 64 bits: then ``value`` holds integers."""
        values = [row.value for row in self.result.rows if not isinstance(row.value, str)]
        return all(
            isinstance(v, int) and -_INT64 <= v < _INT64 for v in values if v is not None
        ) and any(v is not None for v in values)

    def columns(self) -> dict[str, list[Any]]:
        """Values by column."""
        rows, integers = self.result.rows, self.has_integers
        numbers, texts = [], []
        for row in rows:
            number, text = _split_value(row.value, integers)
            numbers.append(number)
            texts.append(text)
        shared = {name: [value] * len(rows) for name, value in self.about.items()}
        return shared | {
            "key": [row.key for row in rows],
            "measure": [row.measure for row in rows],
            "value": numbers,
            "text": texts,
            "half_width_95": [_as_float(row.half_width_95) for row in rows],
            "remark": [row.remark or None for row in rows],
        }

    def records(self) -> list[dict[str, Any]]:
        """One mapping with named fields for each line."""
        columns = self.columns()
        return [dict(zip(columns, line)) for line in zip(*columns.values())]

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas frame. Raises `MissingExtra` without pandas."""
        with require_extra("frames", "a result as a pandas frame"):
            import pandas

        frame = pandas.DataFrame(self.columns(), dtype=object)
        numbers = {"value": "Int64" if self.has_integers else "Float64", "half_width_95": "Float64"}
        return frame.astype({name: numbers.get(str(name), "string") for name in frame.columns})

    def to_arrow(self) -> pyarrow.Table:
        """An Arrow table. Raises `MissingExtra` without pyarrow."""
        with require_extra("frames", "a result as an Arrow table"):
            import pyarrow

        numbers = {
            "value": pyarrow.int64() if self.has_integers else pyarrow.float64(),
            "half_width_95": pyarrow.float64(),
        }
        columns = self.columns()
        schema = [(name, numbers.get(name, pyarrow.string())) for name in columns]
        return pyarrow.table(columns, schema=pyarrow.schema(schema))

    def to_polars(self) -> polars.DataFrame:
        """A polars frame. Raises `MissingExtra` without polars."""
        with require_extra("frames", "a result as a polars frame"):
            import polars

        numbers = {
            "value": polars.Int64 if self.has_integers else polars.Float64,
            "half_width_95": polars.Float64,
        }
        columns = self.columns()
        return polars.DataFrame(
            columns, schema={name: numbers.get(name, polars.String) for name in columns}
        )

    def write(self, file: Path | str) -> None:
        """Write a file: CSV, JSON with named fields, or Parquet, by its name.

        Raises:
            InvalidInput: another kind of file, or a place that cannot be written.
            MissingExtra: Parquet without pyarrow.
        """
        write_tables([self], Path(file))

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self, title: str = "") -> str:
        """A table for notebooks, with the 95 % noise interval of each number."""
        lines = [
            (
                row.key,
                row.measure,
                row.value,
                _interval_text(row.value, row.half_width_95),
                row.remark,
            )
            for row in self.result.rows
        ]
        heads = ("key", "measure", "value", "95 % noise interval", "remark")
        note = "" if lines else "<p>nothing was selected</p>"
        return write_html(title, heads, lines) + note


def _split_value(
    value: float | int | str | None, integers: bool
) -> tuple[float | None, str | None]:
    """The number of a value, and its text where the number is not exactly the value."""
    if value is None:
        return None, None
    if isinstance(value, str):
        return None, value
    if integers:
        return value, None
    exact = isinstance(value, float) or abs(value) <= 2**53
    return float(value), None if exact else str(value)


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _interval_text(value: Any, half_width: float | None) -> str:
    if half_width is None or value is None or isinstance(value, str):
        return ""
    return f"{value - half_width:g} to {value + half_width:g}"


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
    content = _WRITERS[file.suffix.lower()](tables)
    # Beside it and moved: nobody ever reads half of it.
    part = file.with_name(f".{file.name}.part")
    try:
        part.write_bytes(content)
        part.replace(file)
    except OSError:
        raise InvalidInput(
            f"{file} cannot be written; give another file, in a folder of yours"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _csv_bytes(tables: Sequence[ResultTable]) -> bytes:
    stream = io.StringIO()
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow(tables[0].columns())
    for table in tables:
        lines.writerows(zip(*table.columns().values()))
    return stream.getvalue().encode()


def _json_bytes(tables: Sequence[ResultTable]) -> bytes:
    records = [record for table in tables for record in table.records()]
    return (json.dumps(records, indent=1, ensure_ascii=False) + "\n").encode()


def _parquet_bytes(tables: Sequence[ResultTable]) -> bytes:
    arrow = [table.to_arrow() for table in tables]
    import pyarrow
    import pyarrow.parquet

    # Integers become doubles where another of the results has some.
    whole = pyarrow.concat_tables(arrow, promote_options="permissive")
    stream = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(whole, stream)
    return bytes(stream.getvalue())


_WRITERS: dict[str, Callable[[Sequence[ResultTable]], bytes]] = {
    ".csv": _csv_bytes,
    ".json": _json_bytes,
    ".parquet": _parquet_bytes,
}
