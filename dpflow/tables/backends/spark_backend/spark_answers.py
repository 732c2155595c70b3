"""Spark as a query backend: every call opens a session through Spark Connect, and ends it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

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
from dpflow.errors import TableBusy
from dpflow.tables.backends.contract import BlockSeal, QueryBackend
from dpflow.tables.backends.spark_backend import spark_groups
from dpflow.tables.backends.spark_backend.hash_bounding import find_cell_fraction
from dpflow.tables.backends.spark_backend.spark_columns import key_text, write_grid_steps
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.backends.spark_backend.spark_handlers import find_handler
from dpflow.tables.backends.spark_backend.spark_joins import check_places
from dpflow.tables.backends.spark_backend.spark_queries import SparkQuery
from dpflow.tables.backends.spark_backend.spark_session import open_session
from dpflow.tables.backends.spark_backend.spark_sources import (
    SourceState,
    open_state,
    require_source,
)
from dpflow.tables.backends.spark_source import SparkSource, is_folder
from dpflow.tables.language.nodes import Node

T = TypeVar("T")


@dataclass(frozen=True)
class OpenSource:
    """A session, and the states of the rows when it was opened: of each joined relation by the join's
    name, and of the table itself by "".
    """

    connection: SparkConnection
    states: Mapping[str, SourceState]

    @property
    def rows(self) -> Any:
        """The table's own rows."""
        return self.states[""].rows

    @property
    def identity(self) -> bytes:
        """What differs when any of these rows differ."""
        listed = [state.identity for state in self.states.values()]
        return listed[0] if len(listed) == 1 else hashlib.sha256(b"".join(listed)).digest()


class SparkBackend(QueryBackend):
    """Answers over a folder or a catalogue's table, by a server of Spark Connect.

    One state of Parquet files is their listing: names, sizes and times. It is compared before and after
    each answer, and what was computed meanwhile is thrown away if it changed. Of Delta and Iceberg it
    is a version, which answers name (`spark_sources`).
    """

    name = "spark"
    has_unit_rows = True

    def __init__(self, table: Table, where: Node | None, seal: BlockSeal | None = None) -> None:
        super().__init__(table, where, seal)
        self.what = f"table {table.name!r}"
        self._held: OpenSource | None = None
        # Whatever is open now, for `cancel`.
        self._open: SparkConnection | None = None

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        with self.open_source() as self._held:
            try:
                yield
            finally:
                self._held = None

    @contextmanager
    def open_source(self) -> Iterator[OpenSource]:
        """The source that is held open, or one that is open for this block."""
        if self._held is not None:
            yield self._held
            return
        source = require_source(self.table.source, self.what)
        with open_session(source, self.what) as connection:
            self._open = connection
            try:
                sources = self.name_sources(source).items()
                states = {name: open_state(connection, one) for name, one in sources}
                check_places(self.table, states)
                yield OpenSource(connection, states)
            finally:
                self._open = None

    def name_sources(self, source: SparkSource) -> dict[str, SparkSource]:
        """The table's source by "", and those of joined relations by the joins' names."""
        joined = {one.name: source.find_relation(one.relation) for one in self.table.joins}
        return {"": source, **joined}

    def find_sources(self) -> Mapping[str, Sequence[str]]:
        sources = self.name_sources(require_source(self.table.source, self.what))
        names = [name for name, one in sources.items() if not is_folder(one.table)]
        if not names:
            return {}
        with self.open_source() as source:
            return {name: [source.states[name].location] for name in names}

    def require_unchanged(self, source: OpenSource) -> None:
        """Raises `TableBusy` if files changed since the source was opened."""
        if any(state.find_identity() != state.identity for state in source.states.values()):
            raise TableBusy(
                f"the files of {self.what} changed while they were read, so nothing of it is used; try again when "
                f"they are written"
            )

    @contextmanager
    def _open_query(self, blocks: Sequence[str], nonce: int | None = None) -> Iterator[SparkQuery]:
        with self.open_source() as source:
            yield self._make_query(source, blocks, nonce)

    def _make_query(
        self, source: OpenSource, blocks: Sequence[str], nonce: int | None
    ) -> SparkQuery:
        return SparkQuery(self.table, source.connection, source.states, blocks, self.where, nonce)

    def cancel(self) -> None:
        # Read once: the query's own thread may close it at any moment.
        connection = self._open
        if connection is not None:
            connection.cancel()

    def snapshot_identity(self) -> bytes:
        with self.open_source() as source:
            return source.identity

    def column_types(self, names: Collection[str]) -> Mapping[str, str]:
        with self._open_query(()) as reading:
            return {name: reading.column(name).type for name in names}

    def check_schema(self, blocks: Sequence[str] = ()) -> None:
        with self._open_query(blocks) as reading:
            for name, column in self.table.columns.items():
                if column.parts is not None:
                    reading.key_parts(name)
                elif column.lower is not None:
                    write_grid_steps(reading.column(name), column)
                elif column.public_keys is not None:
                    key_text(reading.column(name), "group key")
                else:
                    reading.column(name)

    def check_request(
        self, request: DataRequest | GroupMoments | GroupEstimates, blocks: Sequence[str]
    ) -> None:
        handler = find_handler(request)
        with self._open_query(blocks) as reading:
            handler.check(reading, request)

    def answer(
        self, request: DataRequest, blocks: Sequence[str], nonce: int | None = None
    ) -> Answer:
        answer = find_handler(request).answer
        assert answer is not None, "asked by a method of its own"
        with self.open_source() as source:
            reading = self._make_query(source, blocks, nonce)
            return self._read_once(source, lambda: answer(reading, request))

    def _read_once(self, source: OpenSource, read: Callable[[], T]) -> T:
        """What is read of one state, unless another thread cancels it."""
        with source.connection.make_interruptible():
            answer = read()
            self.require_unchanged(source)
        return answer

    @contextmanager
    def open_answer(
        self, request: DataRequest, blocks: Sequence[str], nonce: int | None = None
    ) -> Iterator[Answer]:
        handler = find_handler(request)
        if handler.open is None:
            yield self.answer(request, blocks, nonce)
            return
        answer, open_request = handler.answer, handler.open
        assert answer is not None
        with self.open_source() as source:
            reading = self._make_query(source, blocks, nonce)
            kept = self._read_once(source, lambda: answer(reading, request))
            with open_request(reading, request, kept) as opened:
                yield opened

    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        return self._read_groups(blocks, lambda one: spark_groups.group_rows(one, request, secret))

    def unit_rows(
        self, columns: Sequence[str], blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        return self._read_groups(blocks, lambda one: spark_groups.unit_rows(one, columns))

    def group_moments(
        self, request: GroupMoments, secret: bytes, blocks: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        return self._read_groups(blocks, lambda one: spark_groups.add_moments(one, request, secret))

    def group_estimates(
        self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]
    ) -> NDArray[np.float64]:
        return self._read_groups(
            blocks, lambda one: spark_groups.estimate_groups(one, request, secret)
        )

    def _read_groups(self, blocks: Sequence[str], read: Callable[[SparkQuery], T]) -> T:
        with self.open_source() as source:
            reading = self._make_query(source, blocks, None)
            return self._read_once(source, lambda: read(reading))

    def keyed_fractions(
        self, nonce: int, cells: Sequence[tuple[str, str]], *words: str
    ) -> NDArray[np.float64]:
        # In Python, not on the server: what it draws by is what it ought to.
        parts = [] if self.table.protects == "unit" else ["0"]
        return np.array(
            [
                find_cell_fraction(nonce, [unit, *parts], int(code), *map(int, words))
                for unit, code in cells
            ]
        )
