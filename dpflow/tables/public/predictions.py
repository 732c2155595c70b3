"""Predictions that were made beforehand: a DuckDB table of an analyst's, read whole and looked up
by row id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import Rows
from dpflow.errors import InvalidInput, TableUnreadable
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.file_list import find_states


@dataclass(frozen=True)
class PredictionTable:
    """One prediction, and perhaps one score, per row id. ``digest`` covers all of it."""

    id: str
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
        InvalidInput: an id that occurs twice, is missing or no whole number, or no row at all; a view.
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
        # An unqualified name might be that of another output, and a table has a column rowid that nobody made.
        id_column, *numbers = [f'"a table".{sql.quote_name(name)}' for name in names]
        columns = [f"{id_column} AS id"]
        columns += [f"CAST({c} AS DOUBLE) AS {n}" for c, n in zip(numbers, ("prediction", "score"))]
        if "rowid" in map(str.casefold, names):
            _require_columns(connection, what, relation, names)
        try:
            arrays = connection.fetch_arrays(
                f'SELECT {", ".join(columns)} FROM {relation} AS "a table"'
            )
        except TableUnreadable:
            _require_columns(connection, what, relation, names)
            raise
    if not len(arrays["id"]) or (
        np.ma.isMaskedArray(arrays["id"]) and np.ma.getmaskarray(arrays["id"]).any()
    ):
        raise InvalidInput(f"{what} has no rows, or rows without an id; give every row of it an id")
    raw = np.asarray(arrays["id"])
    ids = _comparable_ids(raw, np.dtype("U") if raw.dtype == object else np.dtype(np.float64))
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    # Numbers that are equal as DOUBLEs count as one id, too: a row could not tell them apart.
    if (ids[1:] == ids[:-1]).any():
        raise InvalidInput(f"{what} holds an id twice; keep one prediction per row")
    values = _fill_numbers(arrays["prediction"])[order]
    scores = _fill_numbers(arrays["score"])[order] if score else None
    # What follows the shape has one reading: where the ids end, and whether scores are read.
    shape = repr((ids.dtype.str, len(ids), score is not None)).encode()
    content = ids.tobytes() + values.tobytes() + (b"" if scores is None else scores.tobytes())
    return PredictionTable(id, hashlib.sha256(shape + content).digest(), ids, values, scores)


def _require_columns(
    connection: isolated_database.Connection, what: str, relation: str, names: Sequence[str]
) -> None:
    fields = sorted(connection.bind_fields(relation))
    known = set(map(str.casefold, fields))
    for name in names:
        if name.casefold() not in known:
            raise InvalidInput(
                f"{what} has no column {name!r}; it has {', '.join(fields[:20])}"
            ) from None


def _comparable_ids(values: Any, kind: np.dtype[Any]) -> NDArray[Any]:
    """Row ids that can be compared: texts as texts, anything else as a number."""
    if kind.kind == "U":
        return np.array(["" if v is None else str(v) for v in values], dtype=str)
    return np.asarray(values, dtype=np.float64)


def _fill_numbers(values: Any) -> NDArray[np.float64]:
    """Numbers, missing ones as NaN."""
    return np.asarray(np.ma.filled(np.ma.asarray(values, dtype=float), np.nan), dtype=np.float64)
