"""Predictions that were made beforehand: a DuckDB table of an analyst's, read whole and looked up
by row id.

Ids are compared by the types of both columns (`PredictionTable.match_type`): texts, whole numbers, and dates and
times are each read by one expression from both tables. Other pairs are refused: they would match no row, or another one.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.columns import Column
from dpflow.core.contract.requests import Rows
from dpflow.core.contract.result_fields import read_key
from dpflow.errors import InvalidInput
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.file_list import find_states

_TEXT, _WHOLE, _DAYS, _ZONED = "text", "a whole number", "a date or time", "a time with time zone"
#: How values of a type are compared as ids, by the names that DuckDB and Spark give it.
_FAMILIES = {
    **dict.fromkeys(("VARCHAR", "STRING", "ENUM"), _TEXT),
    **dict.fromkeys(
        ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "HUGEINT"), _WHOLE
    ),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE"), _WHOLE),
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NTZ"), _DAYS),
    **dict.fromkeys(("TIMESTAMP WITH TIME ZONE", "timestamp"), _ZONED),
}
#: Ids below are DOUBLEs of their own: whole numbers, and days since 1970 to the microsecond.
_ENDS = {_WHOLE: 2.0**53, _DAYS: 2.0**16, _ZONED: 2.0**16}
_EPOCH = dt.datetime(1970, 1, 1)
_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True)
class PredictionTable:
    """One prediction, and perhaps one score, per row id. ``digest`` covers all of it.

    Attributes:
        kind: the type of the ids.
    """

    name: str
    id: str
    kind: str
    digest: bytes
    ids: NDArray[Any] = field(repr=False)
    predictions: NDArray[np.float64] = field(repr=False)
    scores: NDArray[np.float64] | None = field(repr=False)

    def predict(self, rows: Rows) -> NDArray[np.float64]:
        """The prediction of each row, NaN for a row that has none."""
        return self._look_up(rows, self.predictions)

    def score(self, rows: Rows) -> NDArray[np.float64]:
        """The score of each row, or its prediction if the table has no scores."""
        return self._look_up(rows, self.predictions if self.scores is None else self.scores)

    def match_type(self, kind: str, declared: Column) -> PredictionTable:
        """The same for rows whose ids have a type, as `column_types` names it: ids are values of it.

        Raises `InvalidInput` for types that have no common form, a text that writes no value of the rows' type, and an id
        that rows are read as which have another: an end of the declared bounds, or the number for missing values.
        """
        mine, theirs = _find_family(self.kind), _find_family(kind)
        if not theirs or mine not in (theirs, _TEXT):
            known = "text, a whole number, DATE, TIMESTAMP or TIMESTAMP WITH TIME ZONE"
            raise InvalidInput(
                f"{self.name} has ids of type {self.kind}, and column {self.id!r} of the private table is {kind}, so no id could be "
                f"matched; store the same type in both: {known}"
            )
        ids = self.ids if mine == theirs else self._read_texts(theirs, kind)
        if kind.upper() == "DATE" and (ids != np.floor(ids)).any():
            raise InvalidInput(
                f"{self.name} has ids with a time of day, and column {self.id!r} of the private table is a DATE; store dates"
            )
        if theirs != _TEXT and _has_other_rows(ids, declared).any():
            raise InvalidInput(
                f"{self.name} has an id that is not within the bounds of column {self.id!r}, or is one of them or its missing, which "
                f"rows of other ids are read as; declare wider bounds and missing: skip, or none"
            )
        order = _order_ids(ids, self.name)
        scores = None if self.scores is None else self.scores[order]
        return replace(self, ids=ids[order], predictions=self.predictions[order], scores=scores)

    def _read_texts(self, family: str, kind: str) -> NDArray[np.float64]:
        ids = np.array([_read_number(text, family) for text in self.ids.tolist()])
        _require_exact(ids, family, f"{self.name}, beside {kind} ids in the private table,")
        return ids

    def list_ids(self) -> list[float] | list[str]:
        """Ids as JSON has them: numbers, or texts that `match_type` reads."""
        if (family := _find_family(self.kind)) not in (_DAYS, _ZONED):
            ids: list[float] | list[str] = self.ids.tolist()
            return ids
        times = [_EPOCH + dt.timedelta(microseconds=round(day * _DAY)) for day in self.ids.tolist()]
        return [
            str(time).rstrip("0" if time.microsecond else "") + "+00" * (family == _ZONED)
            for time in times
        ]

    def _look_up(self, rows: Rows, values: NDArray[np.float64]) -> NDArray[np.float64]:
        ids, matchable = self._matchable_ids(rows[self.id])
        # An id above all of ours has its place behind the last, which is compared instead.
        index = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(matchable & (self.ids[index] == ids), values[index], np.nan)

    def _matchable_ids(self, values: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Ids of rows as ours are kept, and which of them can be one of ours.

        A text that is longer than ours is none of them. An array of texts has room for the longest
        in every place: kept whole, one row's text would decide how much memory and time everything
        takes.
        """
        kind = self.ids.dtype
        if kind.kind != "U":
            return _comparable_ids(values, kind), np.ones(len(values), bool)
        longest = kind.itemsize // 4
        texts = [None if v is None else str(v) for v in values]
        # numpy drops NULs at a text's end, which would make it another id.
        matchable = [
            text is not None and len(text) <= longest and not text.endswith("\0") for text in texts
        ]
        return np.array(
            [text if one else "" for text, one in zip(texts, matchable)], kind
        ), np.array(matchable, bool)


#: What opens the files of `read_together`, and these files.
_TOGETHER: ContextVar[tuple[Callable[..., Any], frozenset[Path]] | None] = ContextVar(
    "together", default=None
)


@contextmanager
def read_together(databases: Sequence[Path]) -> Iterator[None]:
    """Until it ends, `read_predictions` reads these files by one DuckDB: to start one takes longer than to
    read a small table. No file stays open between two tables. DuckDB may open each of them all the time, so nothing
    of an analyst's runs in it: views are refused.

    Args:
        databases: one for each table.
    """
    if len(databases) < 2:
        yield
        return
    files = list(dict.fromkeys(database.absolute() for database in databases))
    with isolated_database.open_files(files, "predictions") as open_next:
        token = _TOGETHER.set((open_next, frozenset(files)))
        try:
            yield
        finally:
            _TOGETHER.reset(token)


def read_predictions(
    database: Path, table: str, id: str, prediction: str = "prediction", score: str | None = None
) -> PredictionTable:
    """Read a table of predictions. It is the analyst's own, not private. A file that is as it was when
    one of the last tables was read is not read again: a champion meets every challenger.

    Raises:
        TableUnreadable, TableBusy: no such file, table or column, or a type that is no number.
        InvalidInput: an id that occurs twice, is missing or beyond what a DOUBLE tells apart, or of a type that is no
            id; no row at all; a view.
    """
    # The state before it is read: what is written meanwhile is read again the next time.
    state = find_states([str(database)]).get(str(database))
    return _read_state(state, database, table, id, prediction, score)


def write_predictions(
    database: Path,
    id: str,
    ids: Sequence[float] | Sequence[str],
    predictions: Sequence[float | None],
    scores: Sequence[float | None] | None,
) -> None:
    """Make a file with the table ``predictions`` for `read_predictions`: columns ``id`` names, prediction, score."""
    kind = "VARCHAR" if ids and isinstance(ids[0], str) else "DOUBLE"
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            f"CREATE TABLE predictions AS SELECT unnest(CAST(? AS {kind}[])) AS {sql.quote_name(id)}, "
            "unnest(CAST(? AS DOUBLE[])) AS prediction, unnest(CAST(? AS DOUBLE[])) AS score",
            [list(ids), list(predictions), list(scores or [None] * len(ids))],
        )


@lru_cache(maxsize=4)
def _read_state(
    state: object, database: Path, table: str, id: str, prediction: str, score: str | None
) -> PredictionTable:
    what = f"predictions {table!r}"
    open_next, files = _TOGETHER.get() or (isolated_database.open_file, frozenset())
    open_file = open_next if database.absolute() in files else isolated_database.open_file
    names = [id, prediction, *([score] if score else [])]
    with open_file(database, what) as connection:
        relation = f"{isolated_database.PRIVATE}.{sql.quote_name(table)}"
        if not connection.is_table(table):
            raise InvalidInput(
                f"{what} is a view, whose SQL may read other files; store it as a table: CREATE TABLE ... AS FROM ..."
            )
        # Bound first: a table has a column rowid that nobody made.
        fields = {name.casefold(): one for name, one in connection.bind_fields(relation).items()}
        for name in names:
            if name.casefold() not in fields:
                known = ", ".join(sorted(one.name for one in fields.values())[:20])
                raise InvalidInput(f"{what} has no column {name!r}; it has {known}")
        # An unqualified name might be that of another output.
        id_column, *numbers = [f"t.{sql.quote_name(name)}" for name in names]
        id_field = fields[id.casefold()]
        kind = sql.describe_type(id_field.type)
        if not (family := _find_family(kind)):
            raise InvalidInput(
                f"{what} has ids of type {kind}, which are not compared; store text, a whole number, DATE or TIMESTAMP"
            )
        # As rows of the private table are read.
        columns = [
            f"{sql.bounded_number(id_field, Column())} AS id",
            f"{id_column} IS NULL AS absent",
        ]
        columns += [f"CAST({c} AS DOUBLE) AS {n}" for c, n in zip(numbers, ("prediction", "score"))]
        arrays = connection.fetch_arrays(f"SELECT {', '.join(columns)} FROM {relation} AS t")
    if not len(arrays["absent"]) or arrays["absent"].any():
        raise InvalidInput(f"{what} has no rows, or rows without an id; give every row of it an id")
    if family == _TEXT:
        ids = _comparable_ids(np.asarray(arrays["id"]), np.dtype("U"))
    else:
        ids = _fill_numbers(arrays["id"])
        _require_exact(ids, family, what)
    order = _order_ids(ids, what)
    ids = ids[order]
    values = _fill_numbers(arrays["prediction"])[order]
    scores = _fill_numbers(arrays["score"])[order] if score else None
    # What follows the shape has one reading: what ids are, where they end, and whether scores are read.
    shape = repr((family, ids.dtype.str, len(ids), score is not None)).encode()
    content = ids.tobytes() + values.tobytes() + (b"" if scores is None else scores.tobytes())
    digest = hashlib.sha256(shape + content).digest()
    return PredictionTable(what, id, kind, digest, ids, values, scores)


def _find_family(kind: str) -> str:
    """How ids of a type are compared; "" for a type that is no id."""
    base, _, sizes = kind.partition("(")
    if base.upper() == "DECIMAL":
        return _WHOLE if sizes.replace(" ", "").endswith(",0)") else ""
    # Spark's name of a time with a zone is DuckDB's of one without, but for the case.
    return _FAMILIES.get(base, _FAMILIES.get(base.upper(), ""))


def _read_number(text: str, family: str) -> float:
    """What a text writes as DuckDB would, in the form of `bounded_number`; NaN if it writes something else."""
    if family == _ZONED:
        text = text.removesuffix("+00") if text.endswith("+00") else ""
    key = read_key(text)
    if family == _WHOLE:
        return np.nan if key.integer is None else float(key.integer)
    time = key.timestamp
    if key.date is not None and family == _DAYS:
        time = dt.datetime.combine(key.date, dt.time())
    return np.nan if time is None else (time - _EPOCH) // dt.timedelta(microseconds=1) / _DAY


def _require_exact(ids: NDArray[np.float64], family: str, what: str) -> None:
    """Raises `InvalidInput` for ids that are none of a family, or beyond what a DOUBLE tells apart."""
    exact = np.abs(ids) < _ENDS[family]
    if family == _WHOLE:
        exact &= ids == np.floor(ids)
    if not exact.all():
        within = "below 2^53" if family == _WHOLE else "of the years 1791 to 2149"
        raise InvalidInput(
            f"{what} has an id that is not {family} {within}; store such ids, or texts in both tables"
        )


def _has_other_rows(ids: NDArray[np.float64], declared: Column) -> NDArray[np.bool_]:
    """Whether each id is none that a row has exactly where its own is it: rows are clamped to bounds."""
    odd = np.zeros(len(ids), bool)
    if declared.lower is not None and declared.upper is not None:
        odd = (ids <= float(declared.lower)) | (ids >= float(declared.upper))
    return odd if declared.missing == "skip" else odd | (ids == float(declared.missing))


def _order_ids(ids: NDArray[Any], what: str) -> NDArray[np.intp]:
    """The order of ids. Raises `InvalidInput` for one that occurs twice: a row could not tell the two apart."""
    order = np.argsort(ids, kind="stable")
    if (ids[order][1:] == ids[order][:-1]).any():
        raise InvalidInput(f"{what} holds an id twice; keep one prediction per row")
    return order


def _comparable_ids(values: Any, kind: np.dtype[Any]) -> NDArray[Any]:
    """Row ids that can be compared: texts as texts, anything else as a number."""
    if kind.kind == "U":
        return np.array(["" if v is None else str(v) for v in values], dtype=str)
    return np.asarray(values, dtype=np.float64)


def _fill_numbers(values: Any) -> NDArray[np.float64]:
    """Numbers, missing ones as NaN."""
    return np.asarray(np.ma.filled(np.ma.asarray(values, dtype=float), np.nan), dtype=np.float64)
