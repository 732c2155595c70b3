"""A private table: answers declarative requests with exact, bounded integers, and checks beforehand
that it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedSums,
    GroupEstimates,
    GroupMoments,
    Groups,
    GroupValues,
    ValueCounts,
    KeySets,
    RecordArrays,
    Records,
    Sets,
    SortedValues,
    UnboundedValues,
)
from dpflow.errors import PlanRefused
from dpflow.tables.access import sandbox, sql
from dpflow.tables.access.declarations import load_table
from dpflow.tables.language import conditions, expressions
from dpflow.tables.requests import cached_blocks, records, sums, unbounded_values
from dpflow.tables.requests.partial_cache import Partials, Seal
from dpflow.tables.requests.query import Reading, int64

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
            seal: a keyed digest; with it, sums of blocks are kept where the declaration says so
            (`dpflow.tables.requests.partial_cache`).

        Raises `PlanRefused` or `UnknownName` if the condition is not in the language.
        """
        self.declaration = declaration
        kept = (
            seal is not None
            and declaration.cached_partials is not None
            and declaration.protects == "unit-block"
        )
        self._partials = Partials(declaration.database, seal) if seal is not None and kept else None
        self._where = None if where is None else conditions.parse(where, declaration)
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
    def held(self) -> Iterator[None]:
        """Keep the file open for the calls inside, in one thread: they see one state of it, and
        nobody can write it meanwhile.

        Raises `TableUnreadable` or `TableBusy`.
        """
        with sandbox.opened(self.declaration.database, self._what) as self._held:
            try:
                yield
            finally:
                self._held = None

    @contextmanager
    def _reading(self, blocks: Sequence[str]) -> Iterator[Reading]:
        if self._held is not None:
            yield Reading(self.declaration, self._held, blocks, self._where)
            return
        with sandbox.opened(self.declaration.database, self._what) as connection:
            yield Reading(self.declaration, connection, blocks, self._where)

    def snapshot(self) -> bytes:
        """Identity of the data as it is now. Private: it leaves only as the ledger's keyed digest."""
        return (
            sandbox.identity(self.declaration.database, self._what)
            + b"/"
            + self.declaration.relation_name.encode()
        )

    def check_schema(self) -> None:
        """Check every declared column against the catalog; reads no row.

        Raises:
            TableUnreadable: file, relation or column missing, or a type that cannot be used.
            TableBusy: another process is writing the file.
        """
        with self._reading(()) as reading:
            for name, column in self.declaration.columns.items():
                if column.lower is not None:
                    sql.grid(reading.column(name), column)
                elif column.public_keys is not None:
                    sql.key(reading.column(name), "group key")
                else:
                    reading.column(name)

    def check(
        self, statistic: DataRequest | GroupMoments | GroupEstimates, blocks: Sequence[str] = ()
    ) -> None:
        """Check one request against the catalog, before anything is charged; reads no row.

        Raises:
            TableUnreadable, TableBusy: as `check_schema`.
            PlanRefused: no bounds, integers that would not fit, or a key or block its column cannot
            hold.
            UnknownName: a column that the declaration does not have.
        """
        with self._reading(blocks) as reading:
            if isinstance(statistic, GroupedSums):
                reading.check_keys(statistic)
                sums.sums_cut(reading, statistic).check()
            elif isinstance(statistic, SortedValues):
                reading.check_keys(statistic)
                sums.values_cut(reading, statistic)
            elif isinstance(statistic, KeySets):
                records.key_rows(reading, statistic)
            elif isinstance(statistic, Records):
                records.records(reading, statistic)
            elif isinstance(statistic, UnboundedValues):
                reading.check_keys(statistic)
                unbounded_values.statement(reading, statistic)
            elif isinstance(statistic, GroupMoments):
                records.moments(reading, statistic, b"")
            elif isinstance(statistic, GroupEstimates):
                records.check_estimates(reading, statistic)
            else:
                records.grouped(reading, statistic, b"")

    @overload
    def answer(self, statistic: GroupedSums, blocks: Sequence[str]) -> Groups: ...
    @overload
    def answer(self, statistic: SortedValues, blocks: Sequence[str]) -> ValueCounts: ...
    @overload
    def answer(self, statistic: KeySets, blocks: Sequence[str]) -> Sets: ...
    @overload
    def answer(self, statistic: Records, blocks: Sequence[str]) -> RecordArrays: ...
    @overload
    def answer(
        self, statistic: DataRequest, blocks: Sequence[str]
    ) -> Groups | ValueCounts | Sets | RecordArrays: ...
    def answer(
        self, statistic: DataRequest, blocks: Sequence[str]
    ) -> Groups | ValueCounts | Sets | RecordArrays:
        """Execute a request on the named blocks, each once, or on the whole table if none is named."""
        blocks = tuple(dict.fromkeys(blocks))
        with self._reading(blocks) as reading:
            if isinstance(statistic, GroupedSums | SortedValues):
                if (
                    self._partials is not None
                    and len(blocks) > 1
                    and cached_blocks.can_be_kept(reading, statistic)
                ):
                    return cached_blocks.from_blocks(reading, statistic, blocks, self._partials)
                return sums.answer(reading, statistic)
            if isinstance(statistic, KeySets):
                return records.key_sets(reading, statistic)
            if isinstance(statistic, Records):
                found = reading.arrays(records.records(reading, statistic))
                names = enumerate(statistic.columns)
                return RecordArrays(
                    int64(found["number"]), {name: int64(found[f"x{i}"]) for i, name in names}
                )
        if isinstance(statistic, UnboundedValues):
            raise PlanRefused(
                "a column without bounds is answered in rounds, during a release; release its mechanism"
            )
        raise PlanRefused(
            "values per holdout group need an estimator; ask for them through a gate session"
        )

    @contextmanager
    def answering(self, statistic: DataRequest, blocks: Sequence[str]) -> Iterator[Answer]:
        """The answer to a request, while whoever draws from it may ask it further questions."""
        if not isinstance(statistic, UnboundedValues):
            yield self.answer(statistic, blocks)
            return
        with self._reading(blocks) as reading:
            yield unbounded_values.open_column(reading, statistic)

    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Rows of the named blocks (or all) for holdout estimators: the group of each row, the
        requested columns as arrays.

        A unit's group, 0 to groups-1, is a keyed hash of the unit: its rows are all in one group,
        and who shares a group is unknown without the secret. No row is cut: a unit may change its
        whole group. Numbers, dates and truth values come as float64 within their declared bounds
        (missing: the declared number, or NaN), text as str or None.
        """
        with self._reading(blocks) as reading:
            found = reading.arrays(records.grouped(reading, request, secret))
        columns = {name: _plain(found[f"x{i}"]) for i, name in enumerate(request.columns)}
        return int64(found["bucket"]), columns

    def sums_exactly(self, request: GroupMoments) -> bool:
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
        with self._reading(blocks) as reading:
            found = reading.arrays(records.moments(reading, request, secret))
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
            answer[name] = np.zeros(request.groups)
            answer[name][int64(found["bucket"])] = unit[name] * np.asarray(
                found[f"m_{name}"], dtype=np.float64
            )
        return answer

    def expression(self, text: str) -> str:
        """A user's expression in its canonical form. Raises `PlanRefused` or `UnknownName` if it is
        not in the language.
        """
        return str(expressions.parse(text, self.declaration))

    def expression_columns(self, text: str) -> tuple[list[str], list[str]]:
        """Names of the columns that an expression reads of the table, and of a candidate."""
        node = expressions.parse(text, self.declaration)
        theirs = expressions.predicted(node, self.declaration)
        return sorted(node.columns() - theirs), sorted(theirs)

    def group_estimates(
        self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]
    ) -> NDArray[np.float64]:
        """An expression's number for each holdout group, NaN where it has none; groups are those of
        `grouped_rows`.
        """
        with self._reading(blocks) as reading:
            return _by_group(
                request.groups, reading.arrays(records.estimates(reading, request, secret))
            )

    def estimates_over(
        self,
        request: GroupEstimates,
        groups: NDArray[np.int64],
        columns: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float64]:
        """The same, computed over rows of `grouped_rows` with a candidate's columns beside them."""
        node = expressions.parse(request.sql, self.declaration)
        kinds = {
            name: "varchar" if values.dtype == object else "double"
            for name, values in columns.items()
        }
        query = expressions.over(node, self.declaration, kinds)
        with sandbox.over([groups, *columns.values()], self._what) as connection:
            return _by_group(request.groups, connection.arrays(query))


def _by_group(groups: int, found: Mapping[str, Any]) -> NDArray[np.float64]:
    """Values by their group's number, NaN for groups that have none."""
    answer = np.full(groups, np.nan)
    answer[int64(found["bucket"])] = np.ma.filled(
        np.ma.asarray(found["value"], dtype=np.float64), np.nan
    )
    return answer


def _plain(array: Any) -> NDArray[Any]:
    """Without numpy's mask and without negative zeros: a missing text is None."""
    if np.ma.isMaskedArray(array):
        whole = np.asarray(array.data, dtype=object)
        whole[np.ma.getmaskarray(array)] = None
        return whole
    plain = np.asarray(array)
    return plain + 0.0 if plain.dtype.kind == "f" else plain
