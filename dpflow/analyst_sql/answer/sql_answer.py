"""The answer of a query: typed columns named as in the query, with noise intervals beside them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpflow.core.contract.printed_numbers import print_interval, print_number
from dpflow.core.contract.results import finite_json
from dpflow.engine.releases.result_table import write_html
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.output_files import write_whole

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


@dataclass(frozen=True)
class Released:
    """A value of an answer and its noise interval, None where there is none, both in the public range of
    what the query computes.

    ``noisy``: it, or the choice of its row, depends on noise. ``clipped``: value or interval reached
    outside the range. ``raw_value`` and ``raw_span``: both as they were computed, for sums over rows.
    ``total``: the 95 % total interval, of noise and truncation, where it is known. ``bounds``: of a quantile
    whose release states them, the values between which it lies, None where nothing bounds it.
    ``only_a_bound``: it has no value, and a bound.
    """

    value: Any
    low: float | None = None
    high: float | None = None
    noisy: bool = False
    clipped: bool = False
    raw_value: Any = None
    raw_span: tuple[float, float] | None = None
    total: tuple[float, float] | None = None
    bounds: tuple[Any, Any] | None = None
    only_a_bound: bool = False


#: What is said of a column's noise: it has none, intervals hold it, or no sound rule covers it.
IntervalKind = Literal["exact", "stated", "no interval"]


@dataclass(frozen=True)
class AnswerColumn:
    """One column.

    Attributes:
        kind: ``BIGINT``, ``DOUBLE``, ``VARCHAR``, ``BOOLEAN``, ``DATE`` or ``TIMESTAMP``; ``HUGEINT`` or
            ``DECIMAL(38,4)`` where values have digits that none of these holds. It follows from the query alone, but
            for numbers that DuckDB's type of the query has no room for.
        confidence: per cent with which all noise of one value stays in its interval; None where
            there is no noise, or no interval.
        interval: ``exact`` without noise; ``stated``; ``no interval`` where no sound rule covers the noise.
        clipped: how many values, or intervals, reached outside their public range.
        total: the same as ``interval``, of noise and truncation together.
        bounded: its values are quantiles with bounds, all of which hold with 95 % together.
        has_noise: by the query alone noise may be in it: whatever is drawn, frames and files have the same columns.
    """

    name: str
    kind: str
    confidence: int | None = None
    interval: IntervalKind = "exact"
    clipped: int = 0
    total: IntervalKind = "exact"
    bounded: bool = False
    has_noise: bool = False


@dataclass(frozen=True)
class Origin:
    """A release that an answer comes from.

    Attributes:
        cost: epsilon and delta that were paid for it now; "0" if it was stored.
        released_at: when it was settled: the date of the snapshot that it is about.
    """

    release_id: str
    mechanism: str
    epsilon: str
    delta: str
    released_at: dt.datetime
    stored: bool


def check_suffix(file: Path) -> str:
    """What a file is by its name: .csv, .json or .parquet. Raises `InvalidInput`."""
    kind = file.suffix.lower()
    if kind not in (".csv", ".json", ".parquet"):
        raise InvalidInput(
            f"{file} does not say by its name what it is; end it in .csv, .json, .parquet"
        )
    return kind


@dataclass(frozen=True)
class SqlAnswer:
    """Rows of an answer; ``values`` have the columns' order.

    Attributes:
        origins: the releases that it was computed from.
        protects: whom the guarantee protects.
        notes: what a reader must know.
        chosen: noise chose which rows there are.
        rows_left_out: above what a service sends to its principal.
    """

    columns: tuple[AnswerColumn, ...]
    values: tuple[tuple[Released, ...], ...] = field(repr=False)
    origins: tuple[Origin, ...]
    protects: str
    notes: tuple[str, ...] = ()
    chosen: bool = True
    rows_left_out: int = 0

    @property
    def free(self) -> bool:
        """Whether nothing was charged."""
        return all(one.stored for one in self.origins)

    @property
    def released_at(self) -> dt.datetime:
        """When the oldest of its releases was settled, in UTC and without a zone."""
        oldest = min(one.released_at for one in self.origins)
        return oldest.astimezone(dt.UTC).replace(tzinfo=None)

    @property
    def release_ids(self) -> tuple[str, ...]:
        """Ids of its releases, each once."""
        return tuple(dict.fromkeys(one.release_id for one in self.origins))

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows without intervals."""
        return [tuple(cell.value for cell in row) for row in self.values]

    def list_columns(self, intervals: bool = False) -> list[tuple[str, str, list[Any]]]:
        """Names, types and values, as frames, files and JSON have them. The query alone says which columns there are,
        whatever was drawn: if intervals are asked for, both ends of both intervals and ``_raw_value`` stand beside every
        number that noise may be in, and ``_at_least``, ``_at_most`` and ``_only_a_bound`` beside quantiles with
        bounds; NULL where there is none. A name that a column of the answer has gets a number.
        """
        return [column[:3] for column in self._list_columns(intervals)]

    def list_published(self) -> list[tuple[str, str, list[Any], int]]:
        """The same with intervals, and per cent with which they hold: 100 without noise, 0 without an interval."""
        return list(self._list_columns(True))

    def _list_columns(self, intervals: bool) -> Iterator[tuple[str, str, list[Any], int]]:
        taken = {column.name.casefold() for column in self.columns}
        for position, column in enumerate(self.columns):
            cells = [row[position] for row in self.values]
            values = [cell.value for cell in cells]
            if column.kind == "DOUBLE":
                values = list(map(_as_float, values))
            # Where there is no value, such as in an answer without rows, any interval holds.
            is_empty = all(value is None for value in values)
            held = 100 if column.interval == "exact" else column.confidence or 99 * is_empty
            yield column.name, column.kind, values, held
            beside: list[tuple[str, str, list[Any]]] = []
            if column.bounded:
                bounds = list(zip(*(cell.bounds or (None, None) for cell in cells))) or [(), ()]
                beside += zip(("at_least", "at_most"), (column.kind,) * 2, map(list, bounds))
                beside.append(("only_a_bound", "BOOLEAN", [cell.only_a_bound for cell in cells]))
            if column.has_noise and _is_number(column.kind):
                spans = [(cell.low, cell.high, *(cell.total or (None, None))) for cell in cells]
                ends = list(zip(*spans)) or [()] * 4
                names = ("noise_low", "noise_high", "low", "high")
                beside += [(name, "DOUBLE", list(one)) for name, one in zip(names, ends)]
                raw_values = [_as_float(cell.raw_value) for cell in cells]
                beside.append(("raw_value", "DOUBLE", raw_values))
            for end, kind, values in beside if intervals else ():
                name = number_name(taken, f"{column.name}_{end}")
                taken.add(name.casefold())
                yield name, kind, values, 0

    def list_printed(self, intervals: bool = True) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Heads and lines for people: numbers rounded to their noise, their intervals beside them as texts."""
        heads, columns = list[str](), list[list[Any]]()
        for position, column in enumerate(self.columns):
            cells = [row[position] for row in self.values]
            heads.append(column.name)
            numbers = [print_number(cell.value, cell.low, cell.high) for cell in cells]
            # An empty column is left out, and this one was asked for.
            is_null = all(cell.value is None for cell in cells)
            columns.append(["NULL"] * len(cells) if is_null else numbers)
            if intervals and column.bounded:
                heads.append(f"{column.name}: 95 % bounds")
                columns.append([_print_bounds(cell.bounds) for cell in cells])
            if not intervals or column.confidence is None:
                continue
            heads.append(f"{column.name}: {column.confidence} % noise interval")
            columns.append([print_interval(cell.low, cell.high, cell.value) for cell in cells])
            if column.total == "stated":
                heads.append(f"{column.name}: 95 % total interval")
                totals = [(*(cell.total or (None, None)), cell.value) for cell in cells]
                columns.append([print_interval(*total) for total in totals])
        return heads, list(zip(*columns))

    def to_pandas(self, intervals: bool = False) -> pandas.DataFrame:
        """A pandas frame. Raises `MissingExtra` without pandas."""
        with require_extra("frames", "an answer as a pandas frame"):
            import pandas
        kinds = {"BIGINT": "Int64", "DOUBLE": "Float64", "BOOLEAN": "boolean"}
        kinds |= {"TIMESTAMP": "datetime64[us]"}
        listed = self.list_columns(intervals)
        texts = _find_texts(listed)
        return pandas.DataFrame(
            {
                name: pandas.Series(
                    values, dtype="object" if name in texts else kinds.get(kind, "object")
                )
                for name, kind, values in listed
            }
        )

    def to_arrow(self, intervals: bool = False) -> pyarrow.Table:
        """An Arrow table. Raises `MissingExtra` without pyarrow."""
        return _make_arrow(self.list_columns(intervals))

    def to_polars(self, intervals: bool = False) -> polars.DataFrame:
        """A polars frame. Raises `MissingExtra` without polars."""
        with require_extra("frames", "an answer as a polars frame"):
            import polars
        frame = polars.from_arrow(self.to_arrow(intervals))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_json(self, intervals: bool = False) -> dict[str, Any]:
        """The answer and what it cost, for programs."""
        return {
            "rows": _list_records(self.list_columns(intervals)),
            "columns": [
                {("type" if name == "kind" else name): value for name, value in vars(one).items()}
                for one in self.columns
            ],
            "free": self.free,
            "protects": self.protects,
            "releases": self._list_origins(),
            "notes": list(self.notes),
        }

    def _list_origins(self) -> list[dict[str, Any]]:
        return [vars(one) | {"released_at": one.released_at.isoformat()} for one in self.origins]

    def to_wire(self) -> dict[str, Any]:
        """All of it as JSON, from which `from_wire` makes an equal answer."""
        return {
            "columns": [dict(vars(column)) for column in self.columns],
            "values": [[_cell_to_wire(cell) for cell in row] for row in self.values],
            "origins": self._list_origins(),
            "protects": self.protects,
            "notes": list(self.notes),
            "chosen": self.chosen,
            **({"rows_left_out": self.rows_left_out} if self.rows_left_out else {}),
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> SqlAnswer:
        """The inverse of `to_wire`."""
        columns = tuple(AnswerColumn(**column) for column in data["columns"])
        return cls(
            columns,
            tuple(
                tuple(_cell_from_wire(column.kind, cell) for column, cell in zip(columns, row))
                for row in data["values"]
            ),
            tuple(
                Origin(**one | {"released_at": dt.datetime.fromisoformat(one["released_at"])})
                for one in data["origins"]
            ),
            data["protects"],
            tuple(data["notes"]),
            data["chosen"],
            data.get("rows_left_out", 0),
        )

    def write(self, file: Path | str, intervals: bool = True) -> None:
        """Write the rows as CSV, JSON or Parquet, by the file's name, in the columns of `list_columns`. Raises `InvalidInput`
        or `NotPublished`.
        """
        file = Path(file)
        kind = check_suffix(file)
        columns = self.list_columns(intervals)
        if kind == ".csv":
            content = _csv_text(columns).encode()
        elif kind == ".json":
            content = (json.dumps(_list_records(columns), indent=1) + "\n").encode()
        else:
            arrow = _make_arrow(columns)
            import pyarrow
            import pyarrow.parquet

            stream = pyarrow.BufferOutputStream()
            pyarrow.parquet.write_table(arrow, stream)
            content = bytes(stream.getvalue())
        write_whole(file, content)

    def describe(self) -> str:
        """Where it comes from and what it cost, in a sentence."""
        stored = (one.released_at.isoformat(sep=" ") for one in self.origins if one.stored)
        dates = ", ".join(sorted(set(stored)))
        ids = ", ".join(one.release_id for one in self.origins)
        if self.free:
            return f"stored, nothing charged; of {dates}; releases {ids}"
        paid = [
            f"epsilon {one.epsilon}, delta {one.delta} ({one.mechanism})"
            for one in self.origins
            if not one.stored
        ]
        also = f"; in part stored, of {dates}" if dates else ""
        return f"charged {'; '.join(paid)}{also}; releases {ids}"

    def _repr_html_(self) -> str:
        heads, lines = self.list_printed()
        return write_html(f"{self.describe()}; protects {self.protects}", heads, lines)


def _csv_text(columns: Sequence[tuple[str, str, list[Any]]]) -> str:
    stream = io.StringIO()
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow(name for name, _, _ in columns)
    lines.writerows(zip(*(map(_csv_value, _plain_values(v)) for _, _, v in columns)))
    return stream.getvalue()


def _find_texts(columns: Sequence[tuple[str, str, list[Any]]]) -> set[str]:
    """Columns that hold a text, as those of times do where Python does not have one."""
    return {name for name, _, values in columns if any(isinstance(one, str) for one in values)}


def _list_records(columns: Sequence[tuple[str, str, list[Any]]]) -> list[dict[str, Any]]:
    names = [name for name, _, _ in columns]
    lines = zip(*(map(_json_value, _plain_values(values)) for _, _, values in columns))
    return [dict(zip(names, line)) for line in lines]


def _make_arrow(columns: Sequence[tuple[str, str, list[Any]]]) -> pyarrow.Table:
    """Names, types and values as an Arrow table. Raises `MissingExtra` without pyarrow."""
    with require_extra("frames", "an answer as an Arrow table"):
        import pyarrow
    kinds = {
        "BIGINT": pyarrow.int64(),
        "DOUBLE": pyarrow.float64(),
        "BOOLEAN": pyarrow.bool_(),
        "DATE": pyarrow.date32(),
        "TIMESTAMP": pyarrow.timestamp("us"),
    }
    for _, kind, _ in columns:
        if kind.startswith("DECIMAL") or kind == "HUGEINT":
            width, scale = map(int, kind[8:-1].split(",")) if kind != "HUGEINT" else (38, 0)
            kinds[kind] = pyarrow.decimal128(width, scale)
    texts = _find_texts(columns)
    schema = [
        (name, pyarrow.string() if name in texts else kinds.get(kind, pyarrow.string()))
        for name, kind, _ in columns
    ]
    return pyarrow.table(
        {name: _plain_values(values) for name, _, values in columns},
        schema=pyarrow.schema(schema),
    )


def number_name(taken: Collection[str], name: str) -> str:
    """A name, or where its folded form is taken, it with a number, as DuckDB does."""
    position, first = 1, name
    while name.casefold() in taken:
        name, position = f"{first}_{position}", position + 1
    return name


def _is_number(kind: str) -> bool:
    return kind in ("BIGINT", "HUGEINT", "DOUBLE") or kind.startswith("DECIMAL")


def plan_kind(planned: str, drawn: str, computed: str) -> str:
    """The type of a column: the planned one in types of answers. Only numbers that it cannot hold, such as integers of more
    than 38 digits, have another, and keys that older releases have as texts.

    Args:
        drawn: the type of its values.
        computed: DuckDB's type of them.
    """
    base = planned.partition("(")[0]
    if base.startswith("TIMESTAMP") and drawn == "DATE":
        return "TIMESTAMP"
    if drawn == "VARCHAR" and base in ("DATE", "TIMESTAMP") and computed.startswith(base):
        # Times that Python does not have are texts, as DuckDB writes them.
        return base
    if base in ("DOUBLE", "FLOAT", "DECIMAL") and drawn in ("BIGINT", "HUGEINT"):
        return "DOUBLE"
    is_wide = base in ("UBIGINT", "HUGEINT", "UHUGEINT", "BIGNUM")
    return "HUGEINT" if is_wide and drawn == "BIGINT" else drawn


def _print_bounds(bounds: tuple[Any, Any] | None) -> str:
    """The values between which a quantile lies; empty where nothing bounds it."""
    low, high = bounds or (None, None)
    if None not in (low, high):
        return f"{write_text(low)} to {write_text(high)}"
    ends = (("at least", low), ("at most", high))
    return "".join(f"{word} {write_text(end)}" for word, end in ends if end is not None)


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _plain_values(values: Sequence[Any]) -> list[Any]:
    """Values as frames take them: maps and lists are JSON."""
    return [json.dumps(v, ensure_ascii=False) if isinstance(v, dict | list) else v for v in values]


def _json_value(value: Any) -> Any:
    return write_text(value) if isinstance(value, dt.date | Decimal) else finite_json(value)


def _csv_value(value: Any) -> Any:
    return write_text(value) if isinstance(value, bool) else _json_value(value)


def write_text(value: Any) -> str:
    """A value as DuckDB writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _cell_to_wire(cell: Released) -> list[Any]:
    """Its fields as JSON: times and infinities are texts, which the column's type tells apart."""
    values = [cell.value, cell.low, cell.high, cell.noisy, cell.clipped, cell.raw_value]
    bounds = None if cell.bounds is None else [*map(_json_value, cell.bounds)]
    return finite_json(  # type: ignore[no-any-return]
        [*map(_json_value, values), cell.raw_span, cell.total, bounds, cell.only_a_bound]
    )


def _cell_from_wire(kind: str, cell: Sequence[Any]) -> Released:
    value, low, high, noisy, clipped, raw_value, raw_span, total, bounds, only_a_bound = cell
    read = _READERS.get(kind.partition("(")[0], lambda one: one)
    value, raw_value, at_least, at_most = (
        one if one is None else read(one) for one in (value, raw_value, *(bounds or (None, None)))
    )
    span, total = (one and tuple(map(_read_number, one)) for one in (raw_span, total))
    ends = (at_least, at_most) if bounds else None
    low, high = _read_number(low), _read_number(high)
    return Released(value, low, high, noisy, clipped, raw_value, span, total, ends, only_a_bound)


def _read_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _read_time(text: str) -> dt.date | str:
    """A date or time; its text where Python does not have it."""
    try:
        return (dt.date if len(text) == 10 else dt.datetime).fromisoformat(text)
    except ValueError:
        return text


#: How a value of a column's type is read from JSON.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "DATE": _read_time,
    "TIMESTAMP": _read_time,
    "DOUBLE": _read_number,
    "DECIMAL": Decimal,
}
