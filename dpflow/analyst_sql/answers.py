"""The answer of a query: typed columns named as in the query, with noise intervals beside them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.analyst_sql.cells import Cells
from dpflow.analyst_sql.outputs import NULL, Released, as_truth, evaluate, sort_key, write_text
from dpflow.analyst_sql.select_query import OutputExpression, SelectQuery, SqlAggregate
from dpflow.analyst_sql.typed_keys import type_keys
from dpflow.engine.releases.result_table import write_html
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


@dataclass(frozen=True)
class AnswerColumn:
    """One column.

    Attributes:
        kind: ``BIGINT``, ``DOUBLE``, ``VARCHAR``, ``BOOLEAN``, ``DATE`` or ``TIMESTAMP``.
        confidence: per cent with which all noise of one value stays in its interval; None where
            there is no noise, or no interval.
    """

    name: str
    kind: str
    confidence: int | None = None


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

    def list_columns(self, intervals: bool = False) -> list[tuple[str, str, list[Any]]]:
        """Names, types and values; with ``_low`` and ``_high`` beside each column that has an
        interval, if asked for.
        """
        listed = []
        for position, column in enumerate(self.columns):
            cells = [row[position] for row in self.values]
            values = [cell.value for cell in cells]
            if column.kind == "DOUBLE":
                values = [None if value is None else float(value) for value in values]
            listed.append((column.name, column.kind, values))
            if intervals and column.confidence is not None:
                listed.append((f"{column.name}_low", "DOUBLE", [cell.low for cell in cells]))
                listed.append((f"{column.name}_high", "DOUBLE", [cell.high for cell in cells]))
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


def _plain_values(values: Sequence[Any]) -> list[Any]:
    """Values as frames take them: HISTOGRAM's are JSON."""
    return [json.dumps(v, ensure_ascii=False) if isinstance(v, dict) else v for v in values]


def _json_value(value: Any) -> Any:
    return write_text(value) if isinstance(value, dt.date) else value


def compute_answer(
    query: SelectQuery, cells: Cells, origins: Sequence[Origin], notes: Sequence[str]
) -> SqlAnswer:
    """Columns, HAVING, ORDER BY and LIMIT, all over released numbers."""
    keys = list(cells)
    typed = type_keys([[key[position] for key in keys] for position in range(len(query.groups))])
    groups = [
        ([typed[position][text] for position, text in enumerate(key)], cells[key]) for key in keys
    ]
    outputs = [output for _, output in query.columns]
    kept: list[tuple[list[Any], Any]] = []
    remarks: set[str] = set()
    for values, cell in groups:
        if query.having is not None:
            point = {aggregate: Released(number.value) for aggregate, number in cell.items()}
            if not as_truth(evaluate(query.having, values, point).value):
                continue
        kept.append((values, cell))
        remarks |= {number.remark for number in cell.values() if number.remark}
    for order in reversed(query.order):
        kept.sort(key=lambda group, order=order: _order_key(order, *group))  # type: ignore[misc]
    # Among equals, and without ORDER BY, the order of keys: that of rows would tell of them.
    last = None if query.limit is None else query.offset + query.limit
    kept = kept[query.offset : last]
    columns: list[AnswerColumn] = []
    computed: list[list[Released]] = []
    for (name, _), output in zip(query.columns, outputs):
        confidence, column = _compute_column(output, kept)
        columns.append(AnswerColumn(name, _find_kind([one.value for one in column]), confidence))
        computed.append(column)
    rows = tuple(zip(*computed)) if kept else ()
    marked = [
        f"{column.name}: at least {column.confidence} % noise interval"
        for column in columns
        if column.confidence not in (None, 95)
    ]
    return SqlAnswer(
        tuple(columns),
        rows,
        tuple(origins),
        query.table.protection_text,
        (*notes, *marked, *sorted(remarks)),
    )


def _order_key(order: Any, keys: Sequence[Any], cell: Mapping[SqlAggregate, Any]) -> Any:
    value = evaluate(
        order.by, keys, {aggregate: Released(number.value) for aggregate, number in cell.items()}
    ).value
    if value is None:
        return (0 if order.nulls_first else 2, _Reverse(()) if order.descending else ())
    key = sort_key(value)
    return (1, _Reverse(key) if order.descending else key)


@dataclass(frozen=True)
class _Reverse:
    """Orders the other way round."""

    key: Any

    def __lt__(self, other: _Reverse) -> bool:
        return bool(other.key < self.key)


def count_noises(output: OutputExpression) -> int:
    """How many different released numbers an expression is computed from."""
    return len(set(output.aggregates()))


def _compute_column(
    output: OutputExpression, groups: Sequence[tuple[list[Any], Any]]
) -> tuple[int | None, list[Released]]:
    """One column, and the confidence of its intervals.

    An interval of several released numbers holds when all of theirs do. So each is taken at a
    smaller failure probability, or, where that is not known, the failures are added.
    """
    together = count_noises(output)
    if together == 0:
        return None, [evaluate(output, keys, {}) for keys, _ in groups]
    used = set(output.aggregates())
    widened = all(
        cell[one].width(together) is not None for _, cell in groups for one in used if one in cell
    )
    taken = together if widened else 1
    column = []
    for keys, cell in groups:
        released = {}
        for one in used:
            number = cell.get(one)
            if number is None or number.value is None:
                released[one] = NULL
                continue
            width = number.width(taken)
            if width is None or not isinstance(number.value, int | float):
                released[one] = Released(number.value)
            else:
                released[one] = Released(number.value, number.value - width, number.value + width)
        column.append(evaluate(output, keys, released))
    if not any(one.bounded for one in column):
        return None, column
    confidence = 95 if widened else 100 - 5 * together
    # What hardly says anything is no interval.
    if confidence < 50:
        return None, [Released(one.value) for one in column]
    return confidence, column


_KINDS = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    dt.date: "DATE",
    dt.datetime: "TIMESTAMP",
}


def _find_kind(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return "DOUBLE"
    if kinds == {int} and any(not -(2**63) <= v < 2**63 for v in values if v is not None):
        return "DOUBLE"
    return _KINDS.get(next(iter(kinds)), "VARCHAR") if len(kinds) == 1 else "VARCHAR"
