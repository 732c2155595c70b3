"""Spark as a query backend: every call opens a session through Spark Connect, and ends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

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
from dpflow.core.contract.spark_source import SparkSource
from dpflow.errors import PlanRefused, TableBusy
from dpflow.tables.backends.contract import BlockSeal, QueryBackend
from dpflow.tables.backends.spark_backend.hash_bounding import cell_fraction
from dpflow.tables.backends.spark_backend.spark_columns import grid_steps, key_text
from dpflow.tables.backends.spark_backend.spark_queries import SparkQuery, find_handler, refuse
from dpflow.tables.backends.spark_backend.spark_session import SparkConnection, open_session
from dpflow.tables.language.nodes import Node


@dataclass(frozen=True)
class _OpenSource:
    """A session with the folder's rows, and the listing of its files when it was opened."""

    connection: SparkConnection
    rows: Any
    listing: bytes


class SparkBackend(QueryBackend):
    """Answers over a folder of Parquet files, by a server of Spark Connect.

    One state is one listing of the folder: names, sizes and times of its files. It is compared before
    and after each answer, and what was computed meanwhile is thrown away if it changed.
    """

    name = "spark"

    def __init__(self, table: Table, where: Node | None, seal: BlockSeal | None = None) -> None:
        super().__init__(table, where, seal)
        self._what = f"table {table.name!r}"
        self._held: _OpenSource | None = None
        # Whatever is open now, for `cancel`.
        self._open: SparkConnection | None = None

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        with self._open_source() as self._held:
            try:
                yield
            finally:
                self._held = None

    @contextmanager
    def _open_source(self) -> Iterator[_OpenSource]:
        if self._held is not None:
            yield self._held
            return
        source = self._source
        with open_session(source, self._what) as connection:
            self._open = connection
            try:
                connection.check_folder(source.table)
                listing = connection.list_files(source.table)
                yield _OpenSource(connection, connection.read_files(source.table), listing)
            finally:
                self._open = None

    @property
    def _source(self) -> SparkSource:
        if self.table.source is None:
            raise PlanRefused(
                f"{self._what} has no source on Spark; write one, or take backend out"
            )
        return self.table.source

    @contextmanager
    def _open_query(self, blocks: Sequence[str], nonce: int | None = None) -> Iterator[SparkQuery]:
        with self._open_source() as source:
            yield SparkQuery(self.table, source.connection, source.rows, blocks, self.where, nonce)

    def cancel(self) -> None:
        # Read once: the query's own thread may close it at any moment.
        connection = self._open
        if connection is not None:
            connection.cancel()

    def snapshot_identity(self) -> bytes:
        with self._open_source() as source:
            return source.listing

    def column_types(self) -> Mapping[str, str]:
        with self._open_query(()) as reading:
            return {name: reading.column(name).type for name in self.table.columns}

    def check_schema(self) -> None:
        with self._open_query(()) as reading:
            for name, column in self.table.columns.items():
                if column.parts is not None:
                    continue  # refused where somebody groups by it
                if column.lower is not None:
                    grid_steps(reading.column(name), column)
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
        handler = find_handler(request)
        with self._open_source() as source:
            reading = SparkQuery(
                self.table, source.connection, source.rows, blocks, self.where, nonce
            )
            with source.connection.make_interruptible():
                answer = handler.answer(reading, request)
                listing = source.connection.list_files(self._source.table)
            if listing != source.listing:
                raise TableBusy(
                    f"the files of {self._what} changed while they were read, so nothing of it is used; try again when "
                    f"they are written"
                )
            return answer

    @contextmanager
    def open_answer(
        self, request: DataRequest, blocks: Sequence[str], nonce: int | None = None
    ) -> Iterator[Answer]:
        yield self.answer(request, blocks, nonce)

    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        self._refuse_groups()

    def group_moments(
        self, request: GroupMoments, secret: bytes, blocks: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        self._refuse_groups()

    def group_estimates(
        self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]
    ) -> NDArray[np.float64]:
        self._refuse_groups()

    def _refuse_groups(self) -> NoReturn:
        refuse("holdout groups")

    def keyed_fractions(
        self, nonce: int, cells: Sequence[tuple[str, str]], *words: str
    ) -> NDArray[np.float64]:
        # In Python, not on the server: what it draws by is what it ought to.
        parts = [] if self.table.protects == "unit" else ["0"]
        return np.array(
            [cell_fraction(nonce, [unit, *parts], code, *words) for unit, code in cells]
        )
