"""The answer of a query: typed columns named as in the query, with noise intervals beside them."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.analyst_sql.cells import Cells, Number
from dpflow.analyst_sql.outputs import Released, write_text
from dpflow.analyst_sql.released_query import Query, list_queries
from dpflow.analyst_sql.released_rows import RowComputer, Rows
from dpflow.analyst_sql.select_query import SelectQuery
from dpflow.analyst_sql.typed_keys import KeyReader
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


@dataclass(frozen=True)
class NoiseCount:
    """The released numbers that must be within their widths for a column's intervals to hold.

    Attributes:
        numbers: those that its values are computed from.
        together: how many a value needs, with those that chose the rows.
        taken: at as many each width is taken.
        confidence: per cent with which all of them hold then; None where that says hardly anything.
    """

    numbers: frozenset[Number]
    together: int
    taken: int
    confidence: int | None


def count_noises(released: Rows, position: int) -> NoiseCount:
    """What a column's intervals hang on."""
    chosen_by = released.chosen_by
    noises = [row[position].noises for row in released.cells]
    numbers = frozenset[Number]().union(*noises)
    together = max((len(chosen_by) + len(one - chosen_by) for one in noises if one), default=0)
    widened = all(n.width(together) is not None for n in numbers if n.value is not None)
    held = 95 if widened else 100 - 5 * together
    taken = together if widened and together else 1
    return NoiseCount(numbers, together, taken, held if together and held >= 50 else None)


def compute_answer(
    query: Query,
    cells: Callable[[SelectQuery], Cells],
    origins: Sequence[Origin],
    notes: Sequence[str],
) -> SqlAnswer:
    """All that is computed from released numbers.

    An interval of several released numbers holds when all of theirs do. So each is taken at a smaller
    failure probability, or, where that is not known, the failures are added. Where noise chose the rows, as
    HAVING or LIMIT do, it is taken so that those of all that might have been chosen hold: the largest of
    many numbers is the one whose noise is likely to be large.
    """
    keys = KeyReader()
    released = RowComputer(cells, None, keys).compute(query)
    points = released.cells
    by_number = {1: RowComputer(cells, 1, keys).compute(query).cells}
    columns: list[AnswerColumn] = []
    computed: list[list[Released]] = []
    used: frozenset[Number] = frozenset()
    for position, (name, _) in enumerate(query.columns):
        count = count_noises(released, position)
        taken = count.taken
        if taken not in by_number:
            by_number[taken] = RowComputer(cells, taken, keys).compute(query).cells
        column = [row[position].value for row in by_number[taken]]
        known = count.confidence is not None and any(one.bounded for one in column)
        if not known:
            column = [Released(one.value) for one in column]
        kind = _find_kind([one.value for one in column])
        columns.append(AnswerColumn(name, kind, count.confidence if known else None))
        computed.append(column)
        used |= count.numbers
    rows = tuple(zip(*computed)) if points else ()
    marked = [
        f"{column.name}: at least {column.confidence} % noise interval"
        for column in columns
        if column.confidence is not None and column.confidence != 95
    ]
    protected = dict.fromkeys(one.table.protection_text for one in list_queries(query))
    return SqlAnswer(
        tuple(columns),
        rows,
        tuple(origins),
        "; ".join(protected),
        (*notes, *marked, *sorted({number.remark for number in used if number.remark})),
    )


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
