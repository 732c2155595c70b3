"""A private table: answers declarative requests with exact, bounded integers, and checks beforehand
that it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupEstimates,
    GroupMoments,
    GroupValues,
)
from dpflow.tables.access import sandbox, sql
from dpflow.tables.access.declarations import load_table
from dpflow.tables.access.sandbox import as_int64
from dpflow.tables.language import aggregate_rendering, conditions, expressions
from dpflow.tables.requests import cached_blocks, holdout_groups
from dpflow.tables.requests.handlers import HANDLERS
from dpflow.tables.requests.partial_cache import PartialCache, Seal
from dpflow.tables.requests.query import RequestQuery

#: The largest grid integer whose products, added up and multiplied by a number of rows, stay within
#: 128 bits.
MOST_SQUARED = 2**30


class PrivateTable:
    """A declared table. Every call opens the file read-only, sandboxed, and closes it; `held` opens
    it for several.

    Calls raise `TableUnreadable` or `TableBusy`; what they raise is decided by file, catalog and
    request, or says no more than DuckDB's error class. Rows are mapped by the declared rules and
    cause no error.
    """

    def __init__(
        self, declaration: Table, where: str | None = None, seal: Seal | None = None
    ) -> None:
        """A table, or those of its rows that fulfil a condition of the language of
        `dpflow.tables.language.conditions`.

        Args:
            seal: a keyed digest; with it, partial aggregates are cached where the declaration says
            so
            (`dpflow.tables.requests.partial_cache`).

        Raises `PlanRefused` or `UnknownName` if the condition is not in the language.
        """
        self.declaration = declaration
        # Sums of blocks add up only where each block of a unit is bounded by itself.
        caches = (
            seal is not None
            and declaration.cached_partials is not None
            and declaration.protects == "unit-block"
        )
        self._partials = (
            PartialCache(declaration.database, seal, declaration.cached_partials == "sealed")
            if seal is not None and caches
            else None
        )
        # Parsed before any file is opened: what is refused does not depend on the data.
        self._where = None if where is None else conditions.parse_condition(where, declaration)
        self._what = f"table {declaration.name!r}"
        self._held: sandbox.Connection | None = None

    @classmethod
    def load(cls, path: Path | str) -> PrivateTable:
        """The table that a YAML declaration describes. Raises `InvalidDeclaration`."""
        return cls(load_table(path))

    @property
    def where(self) -> str | None:
        """The condition in its canonical form: conditions that differ in spaces or brackets only
        are one.
        """
        return None if self._where is None else str(self._where)

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        """Keep the file open for the calls inside, in one thread: they see one state of it, and
        nobody can write it meanwhile.

        Raises `TableUnreadable` or `TableBusy`.
        """
        with sandbox.open_file(self.declaration.database, self._what) as self._held:
            try:
                yield
            finally:
                self._held = None

    @contextmanager
    def _open_query(self, blocks: Sequence[str]) -> Iterator[RequestQuery]:
        if self._held is not None:
            yield RequestQuery(self.declaration, self._held, blocks, self._where)
            return
        with sandbox.open_file(self.declaration.database, self._what) as connection:
            yield RequestQuery(self.declaration, connection, blocks, self._where)

    def data_identity(self) -> bytes:
        """Identity of the data as it is now. Private: it leaves only as the ledger's keyed digest."""
        return (
            # One file may hold several tables: the relation's name keeps their identities apart.
            sandbox.file_identity(self.declaration.database, self._what)
            + b"/"
            + self.declaration.relation_name.encode()
        )

    def check_schema(self) -> None:
        """Check every declared column against the catalog; reads no row.

        Raises:
            TableUnreadable: file, relation or column missing, or a type that cannot be used.
            TableBusy: another process is writing the file.
        """
        with self._open_query(()) as reading:
            for name, column in self.declaration.columns.items():
                # Only what each call refuses matters here: its SQL is not run.
                if column.lower is not None:
                    sql.grid_steps(reading.column(name), column)
                elif column.public_keys is not None:
                    sql.key(reading.column(name), "group key")
                else:
                    reading.column(name)

    def check_request(
        self, statistic: DataRequest | GroupMoments | GroupEstimates, blocks: Sequence[str] = ()
    ) -> None:
        """Check one request against the catalog, before anything is charged; reads no row.

        Raises:
            TableUnreadable, TableBusy: as `check_schema`.
            PlanRefused: no bounds, integers that would not fit, or a key or block its column cannot
            hold.
            UnknownName: a column that the declaration does not have.
            NotSealed: blocks are sealed, and the place for them cannot be used.
        """
        if self._partials and self._partials.sealed:
            self._partials.prepare_folder()
        with self._open_query(blocks) as reading:
            HANDLERS[type(statistic)].check(reading, statistic)

    def answer(self, statistic: DataRequest, blocks: Sequence[str]) -> Answer:
        """Execute a request on the named blocks, each once, or on the whole table if none is named."""
        # A block named twice must not count twice where cached aggregates of blocks are added up.
        blocks = tuple(dict.fromkeys(blocks))
        with self._open_query(blocks) as reading:
            cache = self._partials
            if cache and blocks and cached_blocks.can_cache(reading, statistic):
                return cached_blocks.add_blocks(reading, statistic, blocks, cache)
            return HANDLERS[type(statistic)].answer(reading, statistic)

    @contextmanager
    def open_answer(self, statistic: DataRequest, blocks: Sequence[str]) -> Iterator[Answer]:
        """The answer to a request, while whoever draws from it may ask it further questions."""
        open_request = HANDLERS[type(statistic)].open
        if open_request is None:
            yield self.answer(statistic, blocks)
            return
        # The bounded rows are a temporary table of this connection: it stays open between rounds.
        with self._open_query(blocks) as reading:
            yield open_request(reading, statistic)

    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Rows of the named blocks (or all) for holdout estimators: the group of each row, the
        requested columns as arrays.

        A unit's group, 0 to groups-1, is a keyed hash of the unit: its rows are all in one group,
        and who shares a group is unknown without the secret. Rows are not truncated: a unit may
        change its whole group. Numbers, dates and truth values come as float64 within their
        declared bounds (missing: the declared number, or NaN), text as str or None.
        """
        with self._open_query(blocks) as reading:
            arrays = reading.fetch_arrays(holdout_groups.rows_query(reading, request, secret))
        # Numbered outputs: a declared column may itself be called bucket.
        columns = {name: _plain_array(arrays[f"x{i}"]) for i, name in enumerate(request.columns)}
        return as_int64(arrays["bucket"]), columns

    def can_sum_exactly(self, request: GroupMoments) -> bool:
        """Whether the declared bounds let every sum be an exact integer; columns that are compared
        need one grid.
        """
        columns = [self.declaration.column(name) for name in request.columns]
        if any(
            column.lower is None or max(map(abs, column.grid_bounds())) > MOST_SQUARED
            for column in columns
        ):
            return False
        return "equal" not in request.measures or len({column.step for column in columns}) == 1

    def group_moments(
        self, request: GroupMoments, secret: bytes, blocks: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        """Each measure of each holdout group; groups are those of `grouped_rows`. For requests that
        `sums_exactly`.
        """
        with self._open_query(blocks) as reading:
            arrays = reading.fetch_arrays(holdout_groups.moments_query(reading, request, secret))
        # The query counts in grid steps, its products in their squares.
        steps = [float(self.declaration.column(name).step) for name in request.columns]
        unit = {
            "n": 1.0,
            "equal": 1.0,
            "x": steps[0],
            "xx": steps[0] ** 2,
            "yy": steps[-1] ** 2,
            "xy": steps[0] * steps[-1],
        }
        answer = {}
        for name in request.measures:
            # A group without rows is missing in the result; its measures are 0.
            answer[name] = np.zeros(request.groups)
            answer[name][as_int64(arrays["bucket"])] = unit[name] * np.asarray(
                arrays[f"m_{name}"], dtype=np.float64
            )
        return answer

    def canonical_expression(self, text: str) -> str:
        """A user's expression in its canonical form. Raises `PlanRefused` or `UnknownName` if it is
        not in the language.
        """
        return str(expressions.parse_expression(text, self.declaration))

    def expression_columns(self, text: str) -> tuple[list[str], list[str]]:
        """Names of the columns that an expression reads of the table, and of a candidate."""
        node = expressions.parse_expression(text, self.declaration)
        theirs = expressions.candidate_columns(node, self.declaration)
        return sorted(node.column_names() - theirs), sorted(theirs)

    def group_estimates(
        self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]
    ) -> NDArray[np.float64]:
        """An expression's number for each holdout group, NaN where it has none; groups are those of
        `grouped_rows`.
        """
        with self._open_query(blocks) as reading:
            return _by_group(
                request.groups,
                reading.fetch_arrays(holdout_groups.estimates_query(reading, request, secret)),
            )

    def estimates_over(
        self,
        request: GroupEstimates,
        groups: NDArray[np.int64],
        columns: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float64]:
        """The same, computed over rows of `grouped_rows` with a candidate's columns beside them."""
        node = expressions.parse_expression(request.sql, self.declaration)
        # `grouped_rows` gives numbers as float64 and texts as objects.
        kinds = {
            name: "varchar" if values.dtype == object else "double"
            for name, values in columns.items()
        }
        query = aggregate_rendering.query_arrays(node, self.declaration, kinds)
        with sandbox.open_arrays([groups, *columns.values()], self._what) as connection:
            return _by_group(request.groups, connection.fetch_arrays(query))


def _by_group(groups: int, arrays: Mapping[str, Any]) -> NDArray[np.float64]:
    """Values by their group's number, NaN for groups that have none."""
    answer = np.full(groups, np.nan)
    # NULL comes masked; NaN is what the estimator's declared default stands in for.
    answer[as_int64(arrays["bucket"])] = np.ma.filled(
        np.ma.asarray(arrays["value"], dtype=np.float64), np.nan
    )
    return answer


def _plain_array(array: Any) -> NDArray[Any]:
    """Without numpy's mask and without negative zeros: a missing text is None."""
    if np.ma.isMaskedArray(array):
        whole = np.asarray(array.data, dtype=object)
        whole[np.ma.getmaskarray(array)] = None
        return whole
    plain = np.asarray(array)
    # SQL takes -0 and 0 for one value; an estimator that divides by it would not.
    return plain + 0.0 if plain.dtype.kind == "f" else plain
