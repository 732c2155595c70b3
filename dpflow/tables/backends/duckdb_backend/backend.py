"""DuckDB as a query backend: every call opens the file read-only, sandboxed, and closes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.joins import plain_relation
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedUnits,
    GroupEstimates,
    GroupMoments,
    GroupValues,
)
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import file_list, isolated_database, kept_sources, sql
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.contract import BlockSeal, QueryBackend
from dpflow.tables.backends.duckdb_backend.requests import (
    cached_blocks,
    holdout_groups,
    sorted_values,
)
from dpflow.tables.backends.duckdb_backend.requests.grouped_units import count_grouped_units
from dpflow.tables.backends.duckdb_backend.requests.handlers import HANDLERS
from dpflow.tables.backends.duckdb_backend.requests.partial_cache import PartialCache
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery
from dpflow.tables.language.nodes import Node


class DuckDBBackend(QueryBackend):
    """Answers over a table or view of a DuckDB file."""

    name = "duckdb"
    has_unit_rows = True

    def __init__(self, table: Table, where: Node | None, seal: BlockSeal | None = None) -> None:
        super().__init__(table, where, seal)
        # Sums of blocks add up only where each block of a unit is bounded by itself.
        caches = table.cached_partials is not None and table.protects == "unit-block"
        self._partials = (
            PartialCache(table.database, seal, table.cached_partials == "sealed")
            if seal is not None and caches
            else None
        )
        self._what = f"table {table.name!r}"
        self._held: isolated_database.Connection | None = None
        # A file that takes its place holds other rows.
        self._held_identity: bytes | None = None
        # Whatever is open now, for `cancel`.
        self._open: isolated_database.Connection | None = None

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        if self._held is not None:
            yield
            return
        while True:
            identity = self.snapshot_identity()
            with self._open_connection() as held:
                # One that was exchanged meanwhile may have been opened before or after it.
                if self.snapshot_identity() != identity:
                    continue
                self._held, self._held_identity = held, identity
                try:
                    yield
                finally:
                    self._held = self._held_identity = None
                return

    @contextmanager
    def _open_connection(self) -> Iterator[isolated_database.Connection]:
        with kept_sources.open_source(self.table.database, self._what) as connection:
            self._open = connection
            try:
                yield connection
            finally:
                self._open = None

    @contextmanager
    def _open_query(
        self, blocks: Sequence[str], nonce: int | None = None, *, reads_rows: bool = True
    ) -> Iterator[RequestQuery]:
        where = self.where if reads_rows else None
        if self._held is not None:
            yield RequestQuery(self.table, self._held, blocks, where, nonce)
            return
        with self._open_connection() as connection:
            yield RequestQuery(self.table, connection, blocks, where, nonce)

    def cancel(self) -> None:
        # Read once: the query's own thread may close it at any moment.
        connection = self._open
        if connection is not None:
            connection.interrupt()

    def snapshot_identity(self) -> bytes:
        return self._held_identity or (
            # One file may hold several tables: the relation's name keeps their identities apart.
            file_list.source_identity(self.table.database, self._what)
            + b"/"
            + plain_relation(self.table.relation_name).encode()
        )

    def find_sources(self) -> Mapping[str, Sequence[str]]:
        relations = {"": self.table.relation_name}
        relations |= {join.name: join.relation for join in self.table.joins}
        with self._open_query((), reads_rows=False) as reading:
            return {name: reading.connection.list_below(one) for name, one in relations.items()}

    def column_types(self, names: Collection[str]) -> Mapping[str, str]:
        with self._open_query((), reads_rows=False) as reading:
            return {name: sql.describe_type(reading.column(name).type) for name in names}

    def check_schema(self, blocks: Sequence[str] = ()) -> None:
        with self._open_query(blocks) as reading:
            for name, column in self.table.columns.items():
                # Only what each call refuses matters here: its SQL is not run.
                if column.lower is not None:
                    sql.write_grid_steps(
                        reading.column(name), column, above=sorted_values.offset_of(column)
                    )
                elif column.public_keys is not None:
                    sql.key(reading.column(name), "group key")
                else:
                    reading.column(name)

    def check_request(
        self, request: DataRequest | GroupMoments | GroupEstimates, blocks: Sequence[str]
    ) -> None:
        """As the contract says; `NotSealed` where blocks are sealed, and the place for them cannot
        be used.
        """
        if self._partials and self._partials.sealed:
            self._partials.prepare_folder()
        question = (self.table, self.where, request, blocks)
        if self._held is not None and question in self._held.checked:
            return
        with self._open_query(blocks) as reading:
            HANDLERS[type(request)].check(reading, request)
            reading.connection.checked.append(question)

    def answer(
        self, request: DataRequest, blocks: Sequence[str], nonce: int | None = None
    ) -> Answer:
        with self._open_query(blocks, nonce) as reading:
            cache = self._partials
            if nonce is None and cache and blocks and cached_blocks.can_cache(reading, request):
                return cached_blocks.add_blocks(reading, request, blocks, cache)
            return HANDLERS[type(request)].answer(reading, request)

    @contextmanager
    def open_answer(
        self, request: DataRequest, blocks: Sequence[str], nonce: int | None = None
    ) -> Iterator[Answer]:
        open_request = HANDLERS[type(request)].open
        if open_request is None:
            yield self.answer(request, blocks, nonce)
            return
        # The bounded rows are a temporary table of this connection: it stays open between rounds.
        with self._open_query(blocks, nonce) as reading:
            yield open_request(reading, request)

    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        with self._open_query(blocks) as reading:
            arrays = reading.fetch_arrays(holdout_groups.rows_query(reading, request, secret))
        # Numbered outputs: a declared column may itself be called bucket.
        columns = {name: _plain_array(arrays[f"x{i}"]) for i, name in enumerate(request.columns)}
        return as_int64(arrays["bucket"]), columns

    def unit_rows(
        self, columns: Sequence[str], blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        with self._open_query(blocks) as reading:
            arrays = reading.fetch_arrays(holdout_groups.unit_rows_query(reading, columns))
        named = {name: _plain_array(arrays[f"x{i}"]) for i, name in enumerate(columns)}
        return as_int64(arrays["bucket"]), named

    def grouped_units(
        self, columns: Sequence[str], blocks: Sequence[str], *, skips_missing: bool
    ) -> GroupedUnits:
        with self._open_query(blocks) as reading:
            return count_grouped_units(reading, columns, skips_missing=skips_missing)

    def group_moments(
        self, request: GroupMoments, secret: bytes, blocks: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        with self._open_query(blocks) as reading:
            arrays = reading.fetch_arrays(holdout_groups.moments_query(reading, request, secret))
        buckets = as_int64(arrays.pop("bucket"))
        return holdout_groups.spread_moments(request, self.table, buckets, arrays)

    def group_estimates(
        self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]
    ) -> NDArray[np.float64]:
        with self._open_query(blocks) as reading:
            query = holdout_groups.estimates_query(reading, request, secret)
            return holdout_groups.spread_groups(request.groups, reading.fetch_arrays(query))

    def keyed_fractions(
        self, nonce: int, cells: Sequence[tuple[str, str]], *words: str
    ) -> NDArray[np.float64]:
        with self._open_query(()) as reading:
            return reading.keyed_fractions(nonce, cells, words)


def _plain_array(array: Any) -> NDArray[Any]:
    """Without numpy's mask and without negative zeros: a missing text is None."""
    if np.ma.isMaskedArray(array):
        whole = np.asarray(array.data, dtype=object)
        whole[np.ma.getmaskarray(array)] = None
        return whole
    plain = np.asarray(array)
    # SQL takes -0 and 0 for one value; an estimator that divides by it would not.
    return plain + 0.0 if plain.dtype.kind == "f" else plain
