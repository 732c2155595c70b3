"""The answer of a query: typed columns named as in the query, with noise intervals beside them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpflow.analyst_sql.cells import Cells
from dpflow.analyst_sql.noise_intervals import ColumnIntervals, find_intervals, find_ranges
from dpflow.analyst_sql.released_tables import ReleasedTable, make_tables
from dpflow.analyst_sql.select_query import SelectQuery, SplitQuery, SqlAggregate
from dpflow.analyst_sql.typed_keys import KeyReader
from dpflow.core.contract.result_fields import clip_number
from dpflow.core.contract.results import NO_VALUE, ValueRange
from dpflow.engine.releases.result_table import write_html
from dpflow.errors import InvalidInput, QueryFailed
from dpflow.extras import require_extra
from dpflow.tables.public.query_process import PROCESS, QueryRejected, QueryResult

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
    ``total``: the 95 % total interval, of noise and truncation, where it is known.
    """

    value: Any
    low: float | None = None
    high: float | None = None
    noisy: bool = False
    clipped: bool = False
    raw_value: Any = None
    raw_span: tuple[float, float] | None = None
    total: tuple[float, float] | None = None


#: What is said of a column's noise: it has none, intervals hold it, or no sound rule covers it.
IntervalKind = Literal["exact", "stated", "no interval"]


@dataclass(frozen=True)
class AnswerColumn:
    """One column.

    Attributes:
        kind: ``BIGINT``, ``DOUBLE``, ``VARCHAR``, ``BOOLEAN``, ``DATE`` or ``TIMESTAMP``.
        confidence: per cent with which all noise of one value stays in its interval; None where
            there is no noise, or no interval.
        interval: ``exact`` without noise; ``stated``; ``no interval`` where no sound rule covers the noise.
        clipped: how many values, or intervals, reached outside their public range.
    """

    name: str
    kind: str
    confidence: int | None = None
    interval: IntervalKind = "exact"
    clipped: int = 0


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
    """

    columns: tuple[AnswerColumn, ...]
    values: tuple[tuple[Released, ...], ...] = field(repr=False)
    origins: tuple[Origin, ...]
    protects: str
    notes: tuple[str, ...] = ()

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
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows without intervals."""
        return [tuple(cell.value for cell in row) for row in self.values]

    def list_columns(
        self, intervals: bool = False, raw: bool = False
    ) -> list[tuple[str, str, list[Any]]]:
        """Names, types and values; if asked for with ``_noise_low`` and ``_noise_high`` beside each
        column that has an interval, ``_low`` and ``_high`` where a total interval is known, and
        ``_raw_value`` beside these.
        """
        listed = []
        for position, column in enumerate(self.columns):
            cells = [row[position] for row in self.values]
            values = [cell.value for cell in cells]
            if column.kind == "DOUBLE":
                values = list(map(_as_float, values))
            listed.append((column.name, column.kind, values))
            if not intervals or column.confidence is None:
                continue
            beside = {
                "noise_low": [cell.low for cell in cells],
                "noise_high": [cell.high for cell in cells],
            }
            if any(cell.total is not None for cell in cells):
                totals = [cell.total or (None, None) for cell in cells]
                beside |= {"low": [low for low, _ in totals], "high": [high for _, high in totals]}
            if raw:
                beside["raw_value"] = [_as_float(cell.raw_value) for cell in cells]
            listed += [(f"{column.name}_{end}", "DOUBLE", ends) for end, ends in beside.items()]
        return listed

    def to_pandas(self, intervals: bool = False) -> pandas.DataFrame:
        """A pandas frame. Raises `MissingExtra` without pandas."""
        with require_extra("frames", "an answer as a pandas frame"):
            import pandas
        kinds = {"BIGINT": "Int64", "DOUBLE": "Float64", "BOOLEAN": "boolean"}
        kinds |= {"TIMESTAMP": "datetime64[us]", "DATE": "object"}
        return pandas.DataFrame(
            {
                name: pandas.Series(values, dtype=kinds.get(kind, "object"))
                for name, kind, values in self.list_columns(intervals)
            }
        )

    def to_arrow(self, intervals: bool = False) -> pyarrow.Table:
        """An Arrow table. Raises `MissingExtra` without pyarrow."""
        with require_extra("frames", "an answer as an Arrow table"):
            import pyarrow
        kinds = {
            "BIGINT": pyarrow.int64(),
            "DOUBLE": pyarrow.float64(),
            "BOOLEAN": pyarrow.bool_(),
            "DATE": pyarrow.date32(),
            "TIMESTAMP": pyarrow.timestamp("us"),
        }
        columns = self.list_columns(intervals)
        schema = [(name, kinds.get(kind, pyarrow.string())) for name, kind, _ in columns]
        return pyarrow.table(
            {name: _plain_values(values) for name, _, values in columns},
            schema=pyarrow.schema(schema),
        )

    def to_polars(self, intervals: bool = False) -> polars.DataFrame:
        """A polars frame. Raises `MissingExtra` without polars."""
        with require_extra("frames", "an answer as a polars frame"):
            import polars
        frame = polars.from_arrow(self.to_arrow(intervals))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_json(self, intervals: bool = False) -> dict[str, Any]:
        """The answer and what it cost, for programs."""
        columns = self.list_columns(intervals)
        names = [name for name, _, _ in columns]
        lines = zip(*(_plain_values(values) for _, _, values in columns))
        return {
            "rows": [dict(zip(names, map(_json_value, line))) for line in lines],
            "columns": [
                {
                    "name": one.name,
                    "type": one.kind,
                    "interval": one.interval,
                    "confidence": one.confidence,
                    "clipped": one.clipped,
                }
                for one in self.columns
            ],
            "free": self.free,
            "protects": self.protects,
            "releases": [
                {
                    "release_id": one.release_id,
                    "mechanism": one.mechanism,
                    "epsilon": one.epsilon,
                    "delta": one.delta,
                    "released_at": one.released_at.isoformat(),
                    "stored": one.stored,
                }
                for one in self.origins
            ],
            "notes": list(self.notes),
        }

    def write(self, file: Path | str, intervals: bool = True) -> None:
        """Write the rows as CSV, JSON or Parquet, by the file's name. Raises `InvalidInput`."""
        file = Path(file)
        kind = check_suffix(file)
        if kind == ".csv":
            content = self._csv_text(intervals).encode()
        elif kind == ".json":
            content = (json.dumps(self.to_json(intervals)["rows"], indent=1) + "\n").encode()
        else:
            arrow = self.to_arrow(intervals)
            import pyarrow
            import pyarrow.parquet

            stream = pyarrow.BufferOutputStream()
            pyarrow.parquet.write_table(arrow, stream)
            content = bytes(stream.getvalue())
        try:
            file.write_bytes(content)
        except OSError:
            raise InvalidInput(f"{file} cannot be written; give another file") from None

    def _csv_text(self, intervals: bool) -> str:
        columns = self.list_columns(intervals)
        stream = io.StringIO()
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(name for name, _, _ in columns)
        lines.writerows(zip(*(_plain_values(values) for _, _, values in columns)))
        return stream.getvalue()

    def describe(self) -> str:
        """Where it comes from and what it cost, in a sentence."""
        dates = sorted({one.released_at.isoformat(sep=" ") for one in self.origins})
        ids = ", ".join(one.release_id for one in self.origins)
        if self.free:
            return f"stored, nothing charged; of {', '.join(dates)}; releases {ids}"
        paid = [
            f"epsilon {one.epsilon}, delta {one.delta} ({one.mechanism})"
            for one in self.origins
            if not one.stored
        ]
        return f"charged {'; '.join(paid)}; releases {ids}"

    def _repr_html_(self) -> str:
        columns = self.list_columns(intervals=True)
        lines = list(zip(*(values for _, _, values in columns)))
        heads = [name for name, _, _ in columns]
        return write_html(f"{self.describe()}; protects {self.protects}", heads, lines)


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _plain_values(values: Sequence[Any]) -> list[Any]:
    """Values as frames take them: maps and lists are JSON."""
    return [json.dumps(v, ensure_ascii=False) if isinstance(v, dict | list) else v for v in values]


def _json_value(value: Any) -> Any:
    return write_text(value) if isinstance(value, dt.date) else value


def write_text(value: Any) -> str:
    """A value as DuckDB writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def compute_answer(
    query: SplitQuery,
    cells: Callable[[SelectQuery], Cells],
    origins: Sequence[Origin],
    notes: Sequence[str],
    keys: KeyReader,
    totals: Mapping[tuple[SelectQuery, SqlAggregate], tuple[float, float]] | None = None,
) -> SqlAnswer:
    """All that is computed from released numbers, in DuckDB; with intervals where a rule covers them.

    An interval of several released numbers holds when all of theirs do. So each is taken at a smaller
    failure probability, or, where that is not known, the failures are added. Where noise chose the rows, as
    HAVING or LIMIT do, it is taken so that those of all that might have been chosen hold: the largest of
    many numbers is the one whose noise is likely to be large.

    A column that is one released number, whatever its noise, has the total interval of that number.

    All of it is computed from numbers as they were drawn; only the answer's own are clipped to their
    public ranges.

    Raises:
        QueryFailed: DuckDB cannot compute it from these numbers.
        QueryStopped: it took too long, or too much memory.
    """
    tables = make_tables(query, cells, keys)
    result = run_query(tables, query)
    intervals = find_intervals(query, tables, result.rows)
    if intervals is None:
        everything = frozenset(
            (n, j) for n, table in enumerate(tables) for j in range(len(table.numbers))
        )
        intervals = [ColumnIntervals(True, everything) for _ in result.columns]
    columns: list[AnswerColumn] = []
    computed: list[list[Released]] = []
    ranges = find_ranges(query, tables, result.rows)
    for position, ((name, kind), one) in enumerate(zip(result.columns, intervals)):
        kind, values = read_values(kind, [row[position] for row in result.rows])
        known = one.confidence is not None
        spans = one.spans if known else [None] * len(values)
        interval: IntervalKind = "stated" if known else "no interval" if one.noisy else "exact"
        limits = ranges[position] if result.rows else []
        cells_of = [_clip_value(*cell, one.noisy) for cell in zip(values, spans, limits)]
        if one.together == 1 and (aggregate := query.find_number(position)) in (totals or {}):
            assert totals is not None and aggregate is not None
            ends = totals[aggregate]
            cells_of = [_add_total(cell, ends, range) for cell, range in zip(cells_of, limits)]
        clipped = sum(cell.clipped for cell in cells_of)
        columns.append(
            AnswerColumn(_number_name(columns, name), kind, one.confidence, interval, clipped)
        )
        computed.append(cells_of)
    marked = [
        f"{column.name}: at least {column.confidence} % noise interval"
        for column in columns
        if column.confidence not in (None, 95)
    ]
    marked += [
        f"{column.name}: {column.clipped} of {len(result.rows)} values or intervals clipped to what is possible"
        for column in columns
        if column.clipped
    ]
    sources = frozenset[tuple[int, int]]().union(*(one.sources for one in intervals))
    remarks = {number.remark for n, j in sources for number in tables[n].numbers[j]}
    if not all(known for table in tables for filled in table.filled.values() for known in filled):
        remarks.add(NO_VALUE)
    protected = dict.fromkeys(one.table.protection_text for one in query.list_releases())
    return SqlAnswer(
        tuple(columns),
        tuple(zip(*computed)) if result.rows else (),
        tuple(origins),
        "; ".join(protected),
        (*notes, *marked, *sorted(filter(None, remarks))),
    )


def _clip_value(
    value: Any, span: tuple[float, float] | None, limits: ValueRange, noisy: bool
) -> Released:
    number = clip_number(value, span, limits) if isinstance(value, int | float) else None
    if number is None:
        return Released(value, None, None, noisy, False, value)
    low, high = number.noise_low, number.noise_high
    return Released(number.value, low, high, noisy, number.clipped, value, span)


def _add_total(cell: Released, ends: tuple[float, float], limits: ValueRange) -> Released:
    """A value with the total interval of the released number that it is."""
    if isinstance(cell.raw_value, bool) or not isinstance(cell.raw_value, int | float):
        return cell
    low, high = cell.raw_value - ends[0], cell.raw_value + ends[1]
    return replace(cell, total=(limits.clip(float(low)), limits.clip(float(high))))


def run_query(tables: Sequence[ReleasedTable], query: SplitQuery) -> QueryResult:
    """A query's rows. Raises `QueryFailed` or `QueryStopped`."""
    failure = ""
    try:
        return PROCESS.run([table.write_rows() for table in tables], query.sql)
    except QueryRejected as error:
        # Its text may quote released values.
        failure = error.name or error.kind
    raise QueryFailed(
        f"DuckDB cannot compute the query from what was released ({failure}); that is settled and stored, so a query that "
        f"guards the expression, such as TRY(...), is free"
    )


def _number_name(columns: Sequence[AnswerColumn], name: str) -> str:
    """A name, or where it is taken, it with a number, as DuckDB does."""
    position, first = 1, name
    taken = {column.name.casefold() for column in columns}
    while name.casefold() in taken:
        name, position = f"{first}_{position}", position + 1
    return name


def read_values(kind: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """A column of DuckDB's as one of an answer: its type, and its values."""
    base = kind.partition("(")[0]
    if kind.endswith("]") or base in ("MAP", "STRUCT", "UNION"):
        return "VARCHAR", list(values)
    if base == "BOOLEAN":
        return "BOOLEAN", list(values)
    if base.endswith("INT") or base in ("INTEGER", "BIGNUM"):
        whole = all(value is None or -(2**63) <= value < 2**63 for value in values)
        return ("BIGINT" if whole else "DOUBLE"), list(values)
    if base in ("DOUBLE", "FLOAT", "DECIMAL"):
        return "DOUBLE", list(values)
    if base == "DATE" or base.startswith("TIMESTAMP"):
        read = dt.date.fromisoformat if base == "DATE" else dt.datetime.fromisoformat
        try:
            times = [None if value is None else read(value) for value in values]
        except ValueError:
            # Beyond the years that Python has.
            return "VARCHAR", list(values)
        return ("DATE" if base == "DATE" else "TIMESTAMP"), times
    return "VARCHAR", list(values)
