"""A private table that is read once for as long as its rows are the same.

A session asks hundreds of questions about the same rows, and opening a file costs more than most
answers. What was read stays in memory, and so does what was computed of it, until the identity of the
data changes (`PrivateTable.data_identity`). All of it is exact and private, as rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedUnits,
    GroupEstimates,
    GroupMoments,
    GroupValues,
)
from dpflow.errors import TableBusy
from dpflow.tables.private import PrivateTable

T = TypeVar("T")

#: Bytes of a text and of any other object, about; an array of them holds addresses only.
_OBJECT_BYTES = 100


class SnapshotTable(PrivateTable):
    """A private table whose rows are those of the last snapshot, for one thread.

    Reads raise `TableBusy`, which is retryable, where the rows are no longer those of the snapshot.
    What draws truncations (`answer`) is computed each time.
    """

    most_bytes = 2**28  #: of memory; what is larger alone is read each time

    _identity: bytes | None = None

    def take_snapshot(self) -> bytes:
        """The identity of the data as it is now; what is known of other data is forgotten."""
        now = self.data_identity()
        if now != self._identity:
            self._identity = now
            # By name, the newest last, with its bytes; and the bytes of all.
            self._memory: dict[Any, tuple[Any, int]] = {}
            self._used = 0
        return now

    def remember(self, name: Any, compute: Callable[[], T]) -> T:
        """What ``compute`` returns, or returned under the same name for these rows. Nobody may write
        into it.
        """
        if self._identity is None:
            self.take_snapshot()
        if name in self._memory:
            self._memory[name] = self._memory.pop(name)
            value: T = self._memory[name][0]
            return value
        value = compute()
        _lock_arrays(value)
        size = _count_bytes(value)
        if size > self.most_bytes:
            return value
        while self._used + size > self.most_bytes:
            self._used -= self._memory.pop(next(iter(self._memory)))[1]
        self._memory[name] = value, size
        self._used += size
        return value

    def _read_once(self, name: Any, read: Callable[[], T]) -> T:
        def read_snapshot() -> T:
            with self._hold_snapshot():
                return read()

        return self.remember(name, read_snapshot)

    @contextmanager
    def _hold_snapshot(self) -> Iterator[None]:
        # Nobody can write the file while it is open.
        with self.hold_open():
            if self._identity not in (None, self.data_identity()):
                raise TableBusy(
                    f"table {self.declaration.name!r} was written between two reads of one answer; ask again"
                )
            yield

    def _read_answer(self, statistic: DataRequest, blocks: Sequence[str]) -> Answer:
        with self._hold_snapshot():
            return super()._read_answer(statistic, blocks)

    def check_request(
        self, statistic: DataRequest | GroupMoments | GroupEstimates, blocks: Sequence[str] = ()
    ) -> None:
        """As `PrivateTable.check_request`, once for these rows."""
        check = super().check_request
        self.remember(("check", repr(statistic), tuple(blocks)), lambda: check(statistic, blocks))

    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """As `PrivateTable.grouped_rows`, once for these rows."""
        read = super().grouped_rows
        # Whether units are counted as well is no part of the rows.
        name = ("grouped rows", request.groups, request.columns, secret, tuple(blocks))
        return self._read_once(name, lambda: read(request, secret, blocks))

    def unit_rows(
        self, columns: Sequence[str], blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """As `PrivateTable.unit_rows`, once for these rows."""
        read = super().unit_rows
        name = ("unit rows", tuple(columns), tuple(blocks))
        return self._read_once(name, lambda: read(columns, blocks))

    def grouped_units(
        self, columns: Sequence[str], blocks: Sequence[str], *, skips_missing: bool
    ) -> GroupedUnits:
        """As `PrivateTable.grouped_units`, once for these rows."""
        count = super().grouped_units
        name = ("units", tuple(columns), tuple(blocks), skips_missing)
        return self._read_once(name, lambda: count(columns, blocks, skips_missing=skips_missing))

    def group_moments(
        self, request: GroupMoments, secret: bytes, blocks: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        """As `PrivateTable.group_moments`, once for these rows."""
        read = super().group_moments
        name = ("moments", repr(request), secret, tuple(blocks))
        return self._read_once(name, lambda: read(request, secret, blocks))

    def group_estimates(
        self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]
    ) -> NDArray[np.float64]:
        """As `PrivateTable.group_estimates`, once for these rows."""
        read = super().group_estimates
        name = ("estimates", repr(request), secret, tuple(blocks))
        return self._read_once(name, lambda: read(request, secret, blocks))


def _lock_arrays(value: Any) -> None:
    """What an estimator wrote into these rows, the next one would read."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, Mapping):
        _lock_arrays(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            _lock_arrays(part)


def _count_bytes(value: Any) -> int:
    """About how much memory arrays take, in whatever they are packed."""
    if isinstance(value, np.ndarray):
        return value.nbytes + (_OBJECT_BYTES * value.size if value.dtype == object else 0)
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    return _OBJECT_BYTES
