"""The internal reader of private rows: answers declarative requests with exact, bounded integers, and
checks beforehand that it can. Only this package and the engine, which charges first, may use it.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    Answer,
    CountedSums,
    DataRequest,
    GroupedSums,
    GroupedUnits,
    GroupEstimates,
    GroupMoments,
    GroupValues,
)
from dpflow.late_numpy import NDArray, np
from dpflow.tables.backends import BUILT_IN_BACKENDS, BlockSeal, QueryBackend, find_backend
from dpflow.tables.language import conditions, expressions

#: The largest grid integer whose products, added up and multiplied by a number of rows, stay within
#: 128 bits.
MOST_SQUARED = 2**30

#: All that there are in this process, for who ends it.
_TABLES: weakref.WeakSet[PrivateTable] = weakref.WeakSet()


class PrivateTable:
    """A declared table, whose answers a query backend computes (`dpflow.tables.backends`). Every call
    opens its source and closes it; `hold_open` opens it for several.

    Calls raise `TableUnreadable`, `TableBusy` or `TableInterrupted`; what they raise is decided by file, catalog and
    request, or says no more than the database's error class. Rows are mapped by the declared rules and
    cause no error.
    """

    def __init__(
        self, declaration: Table, where: str | None = None, seal: BlockSeal | None = None
    ) -> None:
        """A table, or those of its rows that fulfil a condition of the language of
        `dpflow.tables.language.conditions`.

        Args:
            seal: a keyed digest; with it, partial aggregates are cached where the declaration says
            so
            (`dpflow.tables.backends.duckdb_backend.requests.partial_cache`).

        Raises `PlanRefused` or `UnknownName` if the condition is not in the language, or no such backend
        is installed.
        """
        self.declaration = declaration
        # Parsed before any file is opened: what is refused does not depend on the data.
        self._where = None if where is None else conditions.parse_condition(where, declaration)
        self._seal = seal
        # The code of the built-in ones waits for the first call: plans and stored answers need none.
        if declaration.backend not in BUILT_IN_BACKENDS:
            find_backend(declaration.backend)
        _TABLES.add(self)

    @cached_property
    def _backend(self) -> QueryBackend:
        table = self.declaration
        return find_backend(table.backend)(table, self._where, self._seal)

    def __repr__(self) -> str:
        return "internal reader of private rows; use dpflow.release or dpflow.sql"

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
        with self._backend.hold_open():
            yield

    def data_identity(self) -> bytes:
        """Identity of the data as it is now. Private: it leaves only as the ledger's keyed digest."""
        return self._backend.snapshot_identity()

    def find_sources(self) -> Mapping[str, Sequence[str]]:
        """Where else the rows are; see `QueryBackend.find_sources`. Reads no row."""
        return self._backend.find_sources()

    def cancel(self) -> None:
        """Stop what is running, from another thread: it raises `TableInterrupted`, which is
        retryable.
        """
        # Another thread makes no backend: where there is none, nothing runs.
        if (backend := self.__dict__.get("_backend")) is not None:
            backend.cancel()

    def column_types(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """The types of these declared columns (all if left out), as the source names them; reads no
        row.
        """
        return self._backend.column_types(self.declaration.columns if names is None else names)

    def check_schema(self, blocks: Sequence[str] = ()) -> None:
        """Check every declared column, the condition and these blocks against the catalog; reads no row.

        Raises:
            TableUnreadable: file, relation or column missing, or a type that cannot be used.
            TableBusy: another process is writing the file.
            PlanRefused: a block that its column cannot hold.
        """
        self._backend.check_schema(blocks)

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
        # Backends count units when they are asked to, and know no such request.
        counted = isinstance(statistic, CountedSums)
        plain = GroupedSums(**vars(statistic)) if counted else statistic
        self._backend.check_request(plain, blocks)

    def answer(self, statistic: DataRequest, blocks: Sequence[str]) -> Answer:
        """Execute a request on the named blocks, each once, or on the whole table if none is named."""
        # A block named twice must not count twice where cached aggregates of blocks are added up.
        blocks = tuple(dict.fromkeys(blocks))
        if not isinstance(statistic, CountedSums):
            return self._read_answer(statistic, blocks)
        groups = self._read_answer(GroupedSums(**vars(statistic)), blocks)
        return replace(groups, whole=self.grouped_units((), blocks, skips_missing=True))

    def _read_answer(self, statistic: DataRequest, blocks: Sequence[str]) -> Answer:
        return self._backend.answer(statistic, blocks)

    @contextmanager
    def open_answer(self, statistic: DataRequest, blocks: Sequence[str]) -> Iterator[Answer]:
        """The answer to a request, while whoever draws from it may ask it further questions."""
        with self._backend.open_answer(statistic, tuple(dict.fromkeys(blocks))) as answer:
            yield answer

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
        return self._backend.grouped_rows(request, secret, blocks)

    def unit_rows(
        self, columns: Sequence[str], blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Rows of the named blocks (or all) for scores of units: the number of each row's unit, and
        the columns as in `grouped_rows`. Units are numbered from 0 without gaps, and rows are not
        truncated.
        """
        return self._backend.unit_rows(columns, blocks)

    def grouped_units(
        self, columns: Sequence[str], blocks: Sequence[str], *, skips_missing: bool
    ) -> GroupedUnits:
        """The units that holdout groups are made of, and whether their number is public
        (`dpflow.tables.backends.duckdb_backend.requests.grouped_units`).
        """
        return self._backend.grouped_units(columns, blocks, skips_missing=skips_missing)

    def mean_range(self, text: str) -> tuple[float, float] | None:
        """[low, high] of the score that an expression is the mean of, if it is ``avg`` of a bounded
        one, times and plus constants; None if it is anything else.
        """
        return expressions.mean_range(
            expressions.parse_expression(text, self.declaration), self.declaration
        )

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
        `can_sum_exactly` accepts.
        """
        return self._backend.group_moments(request, secret, blocks)

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
        return self._backend.group_estimates(request, secret, blocks)

    def estimates_over(
        self,
        request: GroupEstimates,
        groups: NDArray[np.int64],
        columns: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float64]:
        """The same, computed over rows of `grouped_rows` with a candidate's columns beside them."""
        # Only candidates' columns need it.
        from dpflow.tables.backends.duckdb_backend.requests import holdout_groups

        return holdout_groups.estimate_arrays(request, self.declaration, groups, columns)


def cancel_reads() -> None:
    """Stop every read of a private table in this process: each raises `TableInterrupted`, which is
    retryable.
    """
    for table in list(_TABLES):
        table.cancel()
