"""The contract of a query backend: what it is asked, and what it must keep.

A backend computes answers over one declared table. The guarantee of every mechanism rests on five
promises, which `dpflow.testing.backend_checks` holds each backend to:

- **Exact.** Answers are integers. Values are clamped to the declared bounds and rounded to the grid,
  half away from zero, before anything is added up; no order of rows or tasks can change a sum.
- **Bounded.** No unit contributes more than the request says, whatever its rows are, also when a task
  is run again in the middle. A unit's draws depend on nothing but the unit and fresh randomness (or
  the ``nonce``).
- **Total.** No row makes a query fail: what a type cannot hold is missing. So errors follow from
  declaration, catalogue and request, and their texts hold no value.
- **Checked first.** The ``check_*`` methods read no row and refuse whatever could fail for another
  reason than the source being out of reach.
- **One state.** Inside `hold_open` every call sees the same rows, those of `snapshot_identity`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedUnits,
    GroupEstimates,
    GroupMoments,
    GroupValues,
)
from dpflow.errors import PlanRefused
from dpflow.late_numpy import NDArray, np
from dpflow.tables.language.nodes import Node

#: A keyed digest, for what is cached of private rows; a backend that caches nothing ignores it.
BlockSeal = Callable[[bytes], str]


def require_blocks(table: Table, blocks: Sequence[str]) -> None:
    """Of rows by privacy unit, named blocks are those that the rows are made of. Raises `PlanRefused`."""
    units = table.unit_rows
    made_of = units.blocks if units is not None and table.protects == "unit-block" else ()
    if blocks and sorted(blocks) != sorted(made_of):
        raise PlanRefused(
            f"rows by {table.privacy_unit.column} of table {table.name!r} are made of the blocks that their query names, and of no others; "
            f"name them in its WHERE, such as {table.block} = '2013-01-31', and not as an option"
        )


class QueryBackend(ABC):
    """Answers requests over one declared table, or over its rows that fulfil a condition.

    Class attributes:
        name: the word of declarations (``backend: duckdb``), unique among what is installed.
        has_unit_rows: whether it computes rows by privacy unit (`Table.unit_rows`).

    Constructing one opens nothing. Calls raise `TableUnreadable` where declaration and source do not
    fit, `TableBusy` or `TableInterrupted` where a retry helps, and `PlanRefused` or `UnknownName` for
    requests that the catalogue rules out.

    Args:
        table: the declaration.
        where: the condition, in the declared language.
        seal: a keyed digest for cached partial aggregates.
    """

    name: ClassVar[str]
    has_unit_rows: ClassVar[bool] = False

    def __init__(self, table: Table, where: Node | None, seal: BlockSeal | None = None) -> None:
        if table.unit_rows is not None and not self.has_unit_rows:
            raise PlanRefused(
                f"rows by {table.privacy_unit.column} are computed on DuckDB only, and table {table.name!r} is read by {self.name}"
            )
        self.table, self.where, self.seal = table, where, seal

    @abstractmethod
    def hold_open(self) -> AbstractContextManager[None]:
        """Keep one state of the rows open for the calls inside, which are made in one thread."""

    @abstractmethod
    def column_types(self, names: Collection[str]) -> Mapping[str, str]:
        """The types of these declared columns, as the source names them, from the catalogue alone."""

    @abstractmethod
    def check_schema(self, blocks: Sequence[str] = ()) -> None:
        """Refuse declared columns that are missing, or of types that cannot be used so, and blocks that
        their column cannot hold.
        """

    @abstractmethod
    def check_request(
        self, request: DataRequest | GroupMoments | GroupEstimates, blocks: Sequence[str]
    ) -> None:
        """Refuse a request that the catalogue rules out: no bounds, integers that would not fit, a
        key or block that its column cannot hold.
        """

    @abstractmethod
    def answer(
        self, request: DataRequest, blocks: Sequence[str], nonce: int | None = None
    ) -> Answer:
        """Execute a request on the named blocks, or on the whole table if none is named.

        Args:
            nonce: makes every draw of the truncation a function of it, the unit, its block and its
                group, by the numbers of `keyed_fractions`; None for fresh draws.
        """

    @abstractmethod
    def open_answer(
        self, request: DataRequest, blocks: Sequence[str], nonce: int | None = None
    ) -> AbstractContextManager[Answer]:
        """The answer to a request, while whoever draws from it may ask it further questions; ``nonce``
        as in `answer`.
        """

    @abstractmethod
    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Rows for holdout estimators: the group of each row, the requested columns as arrays.

        A unit's group, 0 to groups-1, is a hash of the unit that nobody can compute without the
        secret. Rows are not truncated.
        """

    @abstractmethod
    def group_moments(
        self, request: GroupMoments, secret: bytes, blocks: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        """Each measure of each group of `grouped_rows`, as exact integers that became floats."""

    @abstractmethod
    def group_estimates(
        self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]
    ) -> NDArray[np.float64]:
        """An expression's number for each group of `grouped_rows`, NaN where it has none."""

    def unit_rows(
        self, columns: Sequence[str], blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Rows for scores of units: the number of each row's unit, from 0 and dense, and the columns
        as in `grouped_rows`. A backend without it refuses `UnitScores` in `check_request`.
        """
        raise PlanRefused(f"the backend {self.name} does not read rows by unit")

    def grouped_units(
        self, columns: Sequence[str], blocks: Sequence[str], *, skips_missing: bool
    ) -> GroupedUnits:
        """The units of the rows that groups are made of, and whether their number is public
        (`dpflow.tables.backends.duckdb_backend.requests.grouped_units`). A backend that counts none proves nothing.
        """
        return GroupedUnits(0, False, doubt=f"the backend {self.name} does not count units")

    @abstractmethod
    def snapshot_identity(self) -> bytes:
        """What differs when the rows may differ. Private: it leaves only as a keyed digest."""

    def find_sources(self) -> Mapping[str, Sequence[str]]:
        """Where else the rows are that a declaration names: the folder of a catalogue's table, or the relations of the file that a
        view reads; by the name of the join, of the table itself by "". So one data set under two names is still one.
        """
        return {}

    @abstractmethod
    def cancel(self) -> None:
        """Stop what is running, from another thread: it raises `TableInterrupted`. Where nothing
        runs, nothing happens.
        """

    def keyed_fractions(
        self, nonce: int, cells: Sequence[tuple[str, str]], *words: str
    ) -> NDArray[np.float64] | None:
        """The numbers in [0, 1) by which a nonce chooses among cells, each a unit and a group's
        place, both as text; None if only the law of draws is stated.

        The least numbers are kept. Of a unit's groups, a cell's number decides. Of the values in a
        cell, that of the cell and the value's place from 1 in their order, as further word. Of a
        unit's whole rows, and of its rows in a joined relation, the same in the group 0. The sum of
        value column i, where rows count as their mean, is rounded by the word i from 0.

        For tests alone: with them the suite expects exact answers where bounds bind.
        """
        return None
