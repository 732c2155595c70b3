"""A private table: answers declarative requests with exact, bounded integers, and checks beforehand that it can."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dpflow.core.declaration import Join, Table, load_table
from dpflow.core.statistics import (
    Answer,
    GroupedSums,
    GroupEstimates,
    GroupMoments,
    Groups,
    GroupValues,
    Histogram,
    KeySets,
    OpenColumn,
    RecordArrays,
    Records,
    Sets,
    SortedValues,
    Statistic,
    UnboundedValues,
)
from dpflow.errors import PlanRefused
from dpflow.tables import expressions, filters, sandbox, sql
from dpflow.tables.bounding import (
    KEY_BITS,
    MOST_ROWS,
    PART_ROWS,
    Cut,
    Value,
    added,
    cut_grouped_values,
    cut_rows,
    cut_values,
    numbered,
    parts_of,
)
from dpflow.tables.joins import Joined
from dpflow.tables.partials import Partials, Seal, together
from dpflow.tables.unbounded import TableColumn, keep
from dpflow.tables.words import BYTES_PER_WORD, CODE_BITS, ROW_BITS, Numbered, Words

#: The largest grid integer whose products, added up and multiplied by a number of rows, stay within 128 bits.
MOST_SQUARED = 2**30

#: Measures of `GroupMoments`, in grid steps. The difference of products is exact before it becomes a double.
_MEASURES = {
    "n": "count(*)",
    "x": "sum(x)",
    "equal": "count_if(x = y)",
    "xx": "CAST(count(*) AS HUGEINT) * sum(x * x) - sum(x) * sum(x)",
    "yy": "CAST(count(*) AS HUGEINT) * sum(y * y) - sum(y) * sum(y)",
    "xy": "CAST(count(*) AS HUGEINT) * sum(x * y) - sum(x) * sum(y)",
}


class PrivateTable:
    """A declared table. Every call opens the file read-only, sandboxed, and closes it; `held` opens it for several.

    Calls raise `TableUnreadable` or `TableBusy`; what they raise is decided by file, catalog and request, or says no more
    than DuckDB's error class. Rows are mapped by the declared rules and cause no error.
    """

    def __init__(self, declaration: Table, where: str | None = None, seal: Seal | None = None) -> None:
        """A table, or those of its rows that fulfil a condition of the language of `dpflow.tables.filters`.

        Args:
            seal: a keyed digest; with it, sums of blocks are kept where the declaration says so (`dpflow.tables.partials`).

        Raises `PlanRefused` or `UnknownName` if the condition is not in the language.
        """
        self.declaration = declaration
        kept = seal is not None and declaration.partials is not None and declaration.protects == "unit-block"
        self._partials = Partials(declaration.database, seal) if seal is not None and kept else None
        self._where = None if where is None else filters.parse(where, declaration)
        self._what = f"table {declaration.name!r}"
        self._held: sandbox.Connection | None = None

    @classmethod
    def load(cls, path: Path | str) -> PrivateTable:
        """The table that a YAML declaration describes. Raises `InvalidDeclaration`."""
        return cls(load_table(path))

    @property
    def where(self) -> str | None:
        """The condition in its canonical form: conditions that differ in spaces or brackets only are one."""
        return None if self._where is None else str(self._where)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the file open for the calls inside, in one thread: they see one state of it, and nobody can write it meanwhile.

        Raises `TableUnreadable` or `TableBusy`.
        """
        with sandbox.opened(self.declaration.database, self._what) as self._held:
            try:
                yield
            finally:
                self._held = None

    @contextmanager
    def _reading(self, blocks: Sequence[str]) -> Iterator[_Reading]:
        if self._held is not None:
            yield _Reading(self.declaration, self._held, blocks, self._where)
            return
        with sandbox.opened(self.declaration.database, self._what) as connection:
            yield _Reading(self.declaration, connection, blocks, self._where)

    def snapshot(self) -> bytes:
        """Identity of the data as it is now. Private: it leaves only as the ledger's keyed digest."""
        return sandbox.identity(self.declaration.database, self._what) + b"/" + self.declaration.source.encode()

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
                elif column.keys is not None:
                    sql.key(reading.column(name), "group key")
                else:
                    reading.column(name)

    def check(self, statistic: Statistic | GroupMoments | GroupEstimates, blocks: Sequence[str] = ()) -> None:
        """Check one request against the catalog, before anything is charged; reads no row.

        Raises:
            TableUnreadable, TableBusy: as `check_schema`.
            PlanRefused: no bounds, integers that would not fit, or a key or block its column cannot hold.
            UnknownName: a column that the declaration does not have.
        """
        with self._reading(blocks) as reading:
            if isinstance(statistic, GroupedSums):
                reading.check_keys(statistic)
                reading.cut(statistic).check()
            elif isinstance(statistic, SortedValues):
                reading.check_keys(statistic)
                reading.values(statistic)
            elif isinstance(statistic, KeySets):
                reading.key_rows(statistic)
            elif isinstance(statistic, Records):
                reading.records(statistic)
            elif isinstance(statistic, UnboundedValues):
                reading.check_keys(statistic)
                reading.unbounded(statistic)
            elif isinstance(statistic, GroupMoments):
                reading.moments(statistic, b"")
            elif isinstance(statistic, GroupEstimates):
                reading.estimates(statistic, b"")
            else:
                reading.grouped(statistic, b"")

    @overload
    def answer(self, statistic: GroupedSums, blocks: Sequence[str]) -> Groups: ...
    @overload
    def answer(self, statistic: SortedValues, blocks: Sequence[str]) -> Histogram: ...
    @overload
    def answer(self, statistic: KeySets, blocks: Sequence[str]) -> Sets: ...
    @overload
    def answer(self, statistic: Records, blocks: Sequence[str]) -> RecordArrays: ...
    @overload
    def answer(self, statistic: Statistic, blocks: Sequence[str]) -> Groups | Histogram | Sets | RecordArrays: ...
    def answer(self, statistic: Statistic, blocks: Sequence[str]) -> Groups | Histogram | Sets | RecordArrays:
        """Execute a request on the named blocks, or on the whole table if none is named."""
        with self._reading(blocks) as reading:
            if isinstance(statistic, GroupedSums | SortedValues):
                if self._partials is not None and len(blocks) > 1 and reading.is_own(statistic):
                    return self._from_parts(statistic, blocks, reading, self._partials)
                return reading.sums(statistic)
            if isinstance(statistic, KeySets):
                return reading.key_sets(statistic)
            if isinstance(statistic, Records):
                found = reading.arrays(reading.records(statistic))
                names = enumerate(statistic.columns)
                return RecordArrays(_int64(found["number"]), {name: _int64(found[f"x{i}"]) for i, name in names})
        if isinstance(statistic, UnboundedValues):
            raise PlanRefused("a column without bounds is answered in rounds, during a release; release its mechanism")
        raise PlanRefused("values per holdout group need an estimator; ask for them through a gate session")

    def _from_parts(
        self, statistic: GroupedSums | SortedValues, blocks: Sequence[str], reading: _Reading, partials: Partials
    ) -> Groups | Histogram:
        """The sums of blocks added up, of which those are read that are not kept or whose rows have changed."""
        states = reading.states(blocks, partials.salt)
        parts = []
        for block in blocks:
            name = partials.name((self.declaration.public(), self.where, reading.types(), statistic, block))
            part = partials.get(name, states[block])
            if part is None:
                one = _Reading(self.declaration, reading.connection, [block], self._where, partials.salt)
                part = one.sums(statistic)
                partials.put(name, states[block], part)
            parts.append(part)
        partials.tidy()
        return together(parts)

    @contextmanager
    def answering(self, statistic: Statistic, blocks: Sequence[str]) -> Iterator[Answer]:
        """The answer to a request, while whoever draws from it may ask it further questions."""
        if not isinstance(statistic, UnboundedValues):
            yield self.answer(statistic, blocks)
            return
        with self._reading(blocks) as reading:
            yield reading.open_column(statistic)

    def grouped_rows(
        self, request: GroupValues, secret: bytes, blocks: Sequence[str]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
        """Rows of the named blocks (or all) for holdout estimators: the group of each row, the requested columns as arrays.

        A unit's group, 0 to groups-1, is a keyed hash of the unit: its rows are all in one group, and who shares a group is
        unknown without the secret. No row is cut: a unit may change its whole group. Numbers, dates and truth values come as
        float64 within their declared bounds (missing: the declared number, or NaN), text as str or None.
        """
        with self._reading(blocks) as reading:
            found = reading.arrays(reading.grouped(request, secret))
        columns = {name: _plain(found[f"x{i}"]) for i, name in enumerate(request.columns)}
        return _int64(found["bucket"]), columns

    def sums_exactly(self, request: GroupMoments) -> bool:
        """Whether the declared bounds let every sum be an exact integer; columns that are compared need one grid."""
        columns = [self.declaration.column(name) for name in request.columns]
        if any(column.lower is None or max(map(abs, column.grid())) > MOST_SQUARED for column in columns):
            return False
        return "equal" not in request.measures or len({column.step for column in columns}) == 1

    def group_moments(
        self, request: GroupMoments, secret: bytes, blocks: Sequence[str]
    ) -> dict[str, NDArray[np.float64]]:
        """Each measure of each holdout group; groups are those of `grouped_rows`. For requests that `sums_exactly`."""
        with self._reading(blocks) as reading:
            found = reading.arrays(reading.moments(request, secret))
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
            answer[name][_int64(found["bucket"])] = unit[name] * np.asarray(found[f"m_{name}"], dtype=np.float64)
        return answer

    def expression(self, text: str) -> str:
        """A user's expression in its canonical form. Raises `PlanRefused` or `UnknownName` if it is not in the language."""
        return str(expressions.parse(text, self.declaration))

    def group_estimates(self, request: GroupEstimates, secret: bytes, blocks: Sequence[str]) -> NDArray[np.float64]:
        """An expression's number for each holdout group, NaN where it has none; groups are those of `grouped_rows`."""
        with self._reading(blocks) as reading:
            found = reading.arrays(reading.estimates(request, secret))
        answer = np.full(request.groups, np.nan)
        answer[_int64(found["bucket"])] = np.ma.filled(np.ma.asarray(found["value"], dtype=np.float64), np.nan)
        return answer


class _Reading:
    """One open file, the request's blocks and its condition, turned into queries."""

    def __init__(
        self,
        table: Table,
        connection: sandbox.Connection,
        blocks: Sequence[str],
        where: filters.Node | None,
        salt: int | None = None,
    ) -> None:
        self._table, self._connection, self._salt = table, connection, salt
        self._read: dict[str, sql.Field] = {}  # own columns that the request reads
        self._source = connection.relation(table.source)
        self._relation, self._fields = self._source.quoted, self._source.fields
        self._joined = {join.name: self._join(n, join) for n, join in enumerate(table.joins)}
        self._cut: set[str] = set()  # joined relations that are cut for this request
        unit = self._own(table.unit.column)
        self._unit = sql.key(unit, "unit")
        self.parameters: list[Any] = []
        self._where = [] if table.unit.missing == "one-unit" else [f"{unit.sql} IS NOT NULL"]
        self._part = "0"
        if table.block is not None:
            block = self._own(table.block)
            inside = sql.key(block, "block")
            if table.protects == "unit-block":
                self._part = inside
            if blocks:
                self._check_texts(block, blocks, "block")
                marks = ", ".join(sql.from_text(block, f"CAST({sql.literal(text)} AS VARCHAR)") for text in blocks)
                self._where.append(f"{inside} IN ({marks})")
        elif blocks:
            raise PlanRefused(f"table {table.name!r} declares no block column, so no blocks can be read")
        if where is not None:
            self._where.append(filters.to_sql(where, self.column))

    def _join(self, number: int, join: Join) -> Joined:
        relation = self._connection.relation(join.relation)
        joined = Joined(join, f"j{number}", relation.quoted, relation.fields, self._own(join.left))
        joined.check()
        return joined

    def _cut_joined(self) -> None:
        """Cut the private relations that a finished query joins, once."""
        for joined in self._joined.values():
            if joined.needed() and joined.join.kind == "unit" and joined.table not in self._cut:
                self._connection.run(f"CREATE OR REPLACE TEMP TABLE {joined.table} AS {joined.cut()}")
                self._cut.add(joined.table)

    def arrays(self, query: str) -> dict[str, Any]:
        """Run a finished query; the only thing here that reads rows, beside what makes temporary tables."""
        self._cut_joined()
        return self._connection.arrays(query, self.parameters)

    def column(self, name: str) -> sql.Field:
        """The column in the catalog, or `TableUnreadable` with close matches."""
        parts = self._table.split(name)
        return self._own(name) if len(parts) == 1 else self._joined[parts[0]].column(parts[1])

    def _own(self, name: str) -> sql.Field:
        """A column of the table itself."""
        own = self._fields[sql.match(name, self._fields, f"column in table {self._table.name!r}")]
        self._read[own.name] = own
        return own

    def _check_texts(self, column: sql.Field, texts: Sequence[str], role: str) -> None:
        """Refuse a public key or block that the column's type cannot hold, or that DuckDB writes differently."""
        listed = "SELECT unnest(CAST(? AS VARCHAR[])) AS t"
        query = f"SELECT t FROM ({listed}) WHERE {sql.from_text(column, 't')} IS NULL"
        if bad := self._connection.rows(query, [list(texts)]):
            raise PlanRefused(
                f"{role} {bad[0][0]!r} is not how a {column.kind.upper()} is written, so column {column.name!r} cannot hold it; "
                f"write it as DuckDB prints it"
            )

    def check_keys(self, request: GroupedSums | SortedValues | UnboundedValues) -> None:
        """Public keys must fit the column's type; reads the catalog only."""
        if request.by is not None and request.keys is not None:
            by = self.column(request.by)
            sql.key(by, "group key")
            self._check_texts(by, request.keys, "key")

    def _select(self, outputs: list[str], where: Sequence[str] = (), join: str = "") -> str:
        """Rows of the named blocks with their unit and part."""
        conditions = " AND ".join([*self._where, *where]) or "true"
        columns = ", ".join([f"{self._unit} AS unit", f"{self._part} AS part", *outputs])
        joins = "".join(joined.clause() for joined in self._joined.values() if joined.needed())
        return f"SELECT {columns} FROM {self._relation} AS t{joins}{join} WHERE {conditions}"

    def cut(self, request: GroupedSums) -> Cut:
        """The bounded query of a request; reads nothing."""
        outputs, values = [], []
        for i, (name, centre) in enumerate(request.values):
            declared = self._table.bounded(name)
            outputs.append(f"{sql.grid(self.column(name), declared)} AS v{i}")
            values.append(Value(*declared.grid(), centre, declared.missing == "skip"))
        for name, centre, half in request.squares:
            declared = self._table.bounded(name)
            away = f"({sql.grid(self.column(name), declared)} - {sql.integer(centre)})"
            outputs.append(f"{away} * {away} AS v{len(values)}")
            largest = max((end - centre) ** 2 for end in declared.grid())
            values.append(Value(0, largest, half, declared.missing == "skip"))
        if request.by is None:
            rows = self._select(outputs)
            return Cut(rows, tuple(values), request.rows_per_group, None, 1, self._protected, salt=self._salt)
        by = self.column(request.by)
        size = None if request.keys is None else len(request.keys)
        if size is None and (number := sql.small_integer(by)):
            rows = self._select([f"{number} AS code", *outputs], where=[f"{by.sql} IS NOT NULL"])
        else:
            on = f" JOIN keys ON {sql.key(by, 'group key')} = keys.key"
            rows = self._select(["keys.code AS code", *outputs], join=on)
        groups = None if size is not None and size <= request.groups else request.groups
        return Cut(rows, tuple(values), request.rows_per_group, groups, size, self._protected, salt=self._salt)

    @property
    def connection(self) -> sandbox.Connection:
        """The open file."""
        return self._connection

    def sums(self, request: GroupedSums | SortedValues) -> Groups | Histogram:
        """The answer to a request for sums or values."""
        return self.groups(request) if isinstance(request, GroupedSums) else self.histogram(request)

    def is_own(self, request: GroupedSums | SortedValues) -> bool:
        """Whether the table's own columns decide the answer and number its groups; finds out which columns these are.

        Then `states` notices every change, and nobody's groups are numbered by what others have.
        """
        if isinstance(request, GroupedSums):
            self.cut(request)
        else:
            self.values(request)
        numbered = (
            request.by is None or request.keys is not None or sql.small_integer(self.column(request.by)) is not None
        )
        return numbered and not any(joined.needed() for joined in self._joined.values())

    def types(self) -> list[tuple[str, str]]:
        """The columns that the request reads, with their types."""
        return sorted((own.name, own.type) for own in self._read.values())

    def states(self, blocks: Sequence[str], salt: int) -> dict[str, str]:
        """For each block the number of its rows and a fingerprint of what the request reads of them, in any order of rows.

        It is the sum of keyed digests of the rows. DuckDB's own ``hash`` would not do: who writes rows could make others that
        have the same sum, whatever the salt. Of sealed blocks, which do not change by the declaration's promise, rows are
        only counted.
        """
        assert self._table.block is not None
        block = self._own(self._table.block)
        key = sql.key(block, "block")
        texts = [f"CAST({own.sql} AS VARCHAR)" for _, own in sorted(self._read.items())]
        row = " || ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)
        digest = f"md5_number_lower('{salt} ' || {row})"
        hashed = "0" if self._table.partials == "sealed" else f"sum(CAST({digest} AS HUGEINT))"
        marks = ", ".join(sql.from_text(block, f"CAST({sql.literal(text)} AS VARCHAR)") for text in blocks)
        query = f"SELECT {key} AS k, count(*) AS n, {hashed} AS h FROM {self._relation} AS t WHERE {key} IN ({marks}) GROUP BY 1"
        query = f"SELECT {sql.to_text(block, 'k')}, n, h FROM ({query})"
        found = {text: f"{n} {h}" for text, n, h in self._connection.rows(query)}
        return {text: found.get(text, "0 0") for text in blocks}

    def _most_rows(self) -> int:
        """A bound on the rows of a finished query."""
        multiplied = [joined.join.rows or 1 for joined in self._joined.values() if joined.needed()]
        rows = self._connection.rows_of(self._source)
        return MOST_ROWS if rows is None else min(max(1, rows) * math.prod(multiplied), MOST_ROWS)

    @property
    def _protected(self) -> str:
        """The columns of a rows query that say whose rows they are."""
        return "unit" if self._table.protects == "unit" else "unit, part"

    def groups(self, request: GroupedSums) -> Groups:
        """Number the keys, cut, add up."""
        cut = replace(self.cut(request), most_rows=self._most_rows())
        cut.check()
        self._cut_joined()
        keys: tuple[str, ...] = ("",)
        if request.by is not None:
            by = self.column(request.by)
            if request.keys is not None:
                keys = request.keys
                self._number_keys(by, keys)
            elif not sql.small_integer(by):
                self._collect_keys(by)
        words = self._words(cut, self._codes(request, len(keys)))
        found = self._sums(cut) if words is None else self._word_sums(words)
        codes = found["code"]
        places = np.arange(len(codes))
        if request.by is not None and request.keys is None:
            keys, places = self._private_keys(by, codes)
            codes = np.arange(len(keys))

        def spread(name: str) -> NDArray[np.int64]:
            whole = np.zeros(len(keys), dtype=np.int64)
            whole[codes] = found[name][places]
            return whole

        names = [name for name, _ in request.values]
        return Groups(
            keys,
            spread("row_count"),
            spread("unit_count"),
            {name: spread(f"s{i}") for i, name in enumerate(names)},
            {name: spread(f"c{i}") for i, name in enumerate(names)},
            {name: spread(f"s{i}") for i, (name, _, _) in enumerate(request.squares, len(names))},
        )

    def _sums(self, cut: Cut) -> dict[str, NDArray[np.int64]]:
        """The columns of `Cut.query`, by DuckDB alone."""
        query = self._in_parts(
            cut.rows, cut.most_rows, lambda rows, whole: replace(cut, rows=rows).query(whole), ["code"]
        )
        return {name: _int64(column) for name, column in self.arrays(query).items()}

    def _word_sums(self, words: Words) -> dict[str, NDArray[np.int64]]:
        """The same by numpy."""
        return self._connection.scrubbed(lambda: words.sums(self._parts(words)).columns(words.cut))

    def _words(self, cut: Cut, codes: Numbered | None) -> Words | None:
        """The rows of a cut as words, if they fit; None if DuckDB has to aggregate them, as where draws are hashes of units."""
        if cut.most_rows >= 1 << ROW_BITS or codes is None or cut.salt is not None or not Words(cut, (), codes).fits():
            return None
        units = [self._numbered(self._own(self._table.unit.column), "unit")]
        if self._table.block is not None and "part" in cut.unit:
            units.append(self._numbered(self._own(self._table.block), "part"))
        whole = tuple(number for number in units if number is not None)
        if len(whole) < len(units):
            return None
        words = Words(cut, whole, codes)
        if words.direct():
            return words
        numbered = f"SELECT *, dense_rank() OVER (ORDER BY {cut.unit}) - 1 AS number FROM ({cut.rows})"
        return Words(replace(cut, rows=numbered), (Numbered("number", 0, cut.most_rows),), codes)

    def _codes(self, request: GroupedSums, keys: int) -> Numbered | None:
        """The codes of a request's groups."""
        if request.by is None or request.keys is not None:
            return Numbered("code", 0, keys)
        by = self.column(request.by)
        if sql.small_integer(by) is None:
            size = self._connection.rows("SELECT count(*) FROM keys")[0][0]
            return Numbered("code", 0, size, private=True) if size < 1 << CODE_BITS else None
        found = None if by.place or not sql.tiny(by) else self._numbered(by, "code")
        return None if found is None else replace(found, low=found.low + sql.SMALL_OFFSET, private=True)

    def _numbered(self, column: sql.Field, name: str) -> Numbered | None:
        """A column of the table, which a rows query calls by a name, as numbers; None for types that have too many values."""
        if (number := sql.ordinal(column.kind)) is None:
            return None
        ends = f"SELECT min({column.sql}) AS low, max({column.sql}) AS high FROM {self._relation} AS t"
        low, high = self._connection.rows(f"SELECT {number('low')}, {number('high')} FROM ({ends})")[0]
        return Numbered(number(name), 0, 0) if low is None else Numbered(number(name), low, high - low + 1)

    def _parts(self, words: Words) -> Iterator[NDArray[np.int64]]:
        """The words of all rows, as many at once as memory allows."""
        size = sandbox.memory_bytes() // BYTES_PER_WORD
        for part in parts_of(words.cut.rows, words.cut.most_rows, size):
            yield _int64(self.arrays(words.query(part))["word"])

    def _private_keys(self, by: sql.Field, codes: NDArray[np.int64]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The keys that these codes mean, in their order, and where in the codes each is."""
        if sql.small_integer(by):
            texts = (codes - sql.SMALL_OFFSET).astype(np.bytes_)
            order = np.argsort(texts)
            return tuple(text.decode() for text in texts[order].tolist()), order
        listed = self.arrays("SELECT code, text FROM keys ORDER BY text")
        places = np.full(len(listed["code"]), -1)
        places[codes] = np.arange(len(codes))
        places = places[_int64(listed["code"])]
        return tuple(map(str, listed["text"][places >= 0])), places[places >= 0]

    def _in_parts(self, rows: str, most_rows: int, query: Callable[[str, bool], str], keys: Sequence[str]) -> str:
        """The sums of a query over rows that are too many to be aggregated at once, added up by their keys.

        Args:
            query: of a rows query, and whether that is the whole of the rows.
        """
        parts = parts_of(rows, most_rows, PART_ROWS)
        if len(parts) == 1:
            return query(rows, True)
        for number, part in enumerate(parts):
            into = "INSERT INTO sums" if number else "CREATE OR REPLACE TEMP TABLE sums AS"
            self._connection.run(f"{into} {query(part, False)}", self.parameters)
        return added("sums", keys, self._connection.fields("sums"))

    def _number_keys(self, by: sql.Field, keys: tuple[str, ...]) -> None:
        """Fill the in-memory table ``keys`` with the public ones in their order."""
        listed = "SELECT unnest(CAST(? AS VARCHAR[])) AS text, unnest(range(?)) AS code"
        query = f"SELECT * FROM (SELECT {sql.from_text(by, 'text')} AS key, code FROM ({listed})) WHERE key IS NOT NULL"
        self._connection.run(f"CREATE OR REPLACE TEMP TABLE keys AS {query}", [list(keys), len(keys)])

    def _collect_keys(self, by: sql.Field) -> None:
        """Fill ``keys`` with all that the rows have, numbered in no order that means anything."""
        key = sql.key(by, "group key")
        rows = self._select([f"{key} AS key"], where=[f"{by.sql} IS NOT NULL"])
        query = f"SELECT key, (row_number() OVER () - 1) & {2**KEY_BITS - 1} AS code FROM (SELECT DISTINCT key FROM ({rows}))"
        query = f"SELECT key, {sql.to_text(by, 'key')} AS text, code FROM ({query})"
        self._connection.run(f"CREATE OR REPLACE TEMP TABLE keys AS {query}", self.parameters)

    def key_rows(self, request: KeySets) -> str:
        """The query of each unit's distinct keys, of which it keeps some; reads nothing."""
        by = self.column(request.by)
        if number := sql.small_integer(by):
            rows = self._select([f"{number} AS code"], where=[f"{by.sql} IS NOT NULL"])
        else:
            rows = self._select(["keys.code AS code"], join=f" JOIN keys ON {sql.key(by, 'group key')} = keys.key")
        return numbered(cut_rows(f"SELECT DISTINCT unit, part, code FROM ({rows})", request.groups))

    def key_sets(self, request: KeySets) -> Sets:
        """Number the keys, cut."""
        query, by = self.key_rows(request), self.column(request.by)
        self._cut_joined()
        if not sql.small_integer(by):
            self._collect_keys(by)
        found = self.arrays(query)
        codes, places = np.unique(_int64(found["code"]), return_inverse=True)
        if sql.small_integer(by):
            keys = tuple(str(code - sql.SMALL_OFFSET) for code in codes.tolist())
        else:
            listed = dict(self._connection.rows("SELECT code, text FROM keys"))
            keys = tuple(listed[code] for code in codes.tolist())
        return Sets(keys, _int64(found["number"]), places.astype(np.int64))

    def values(self, request: SortedValues) -> tuple[Cut, Value]:
        """How the values of a column are cut, and what they can be; reads nothing."""
        declared = self._table.bounded(request.column)
        value = Value(*declared.grid(), 0)
        output = f"{sql.grid(self.column(request.column), declared)} AS v0"
        rows, groups = self._in_groups(request, [output])
        size, unit = len(request.keys), self._protected
        return Cut(rows, (value,), request.rows_per_group, groups, size, unit, salt=self._salt), value

    def _in_groups(self, request: SortedValues | UnboundedValues, outputs: list[str]) -> tuple[str, int | None]:
        """Rows with the code of their group, and how many groups a unit keeps; None if by plan there are no more."""
        if request.by is None:
            return self._select(["0 AS code", *outputs]), None
        key = sql.key(self.column(request.by), "group key")
        rows = self._select(["keys.code AS code", *outputs], join=f" JOIN keys ON {key} = keys.key")
        return rows, None if len(request.keys) <= request.groups else request.groups

    def histogram(self, request: SortedValues) -> Histogram:
        """Cut, count equal values."""
        cut, value = self.values(request)
        cut = replace(cut, most_rows=self._most_rows())
        self._cut_joined()
        if request.by is not None:
            self._number_keys(self.column(request.by), request.keys)
        words = self._words(cut, Numbered("code", 0, len(request.keys)))
        if words is not None:
            codes, values, counts = self._connection.scrubbed(lambda: words.histogram(self._parts(words)))
        else:
            codes, values, counts = self._counted(cut, value)
        return Histogram(values, counts, None if request.by is None else codes)

    def _counted(self, cut: Cut, value: Value) -> tuple[NDArray[np.int64], ...]:
        """Codes, values and multiplicities, by DuckDB alone."""
        single = cut.keys == 1 and cut.salt is None

        def query(rows: str, _: bool) -> str:
            return cut_values(rows, value, cut.per_group, cut.unit) if single else cut_grouped_values(rows, cut)

        found = self.arrays(self._in_parts(cut.rows, cut.most_rows, query, ["v"] if single else ["code", "v"]))
        values = _int64(found["v"])
        return np.zeros(len(values), np.int64) if single else _int64(found["code"]), values, _int64(found["n"])

    def unbounded(self, request: UnboundedValues) -> str:
        """The statement that makes the table ``kept`` of a request; reads nothing."""
        rows, groups = self._in_groups(request, [f"{sql.real(self.column(request.column))} AS v0"])
        return keep(rows, request.rows_per_group, groups, self._has_unique_units())

    def _has_unique_units(self) -> bool:
        """Whether DuckDB itself sees to it that no two rows of the query have the same unit."""
        if any(joined.needed() for joined in self._joined.values()) or self._table.unit.missing == "one-unit":
            return False
        query = (
            "SELECT schema_name, table_name FROM duckdb_constraints() WHERE database_name = ? AND constraint_column_names = [?] "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
        )
        unit = self._own(self._table.unit.column).name
        found = self._connection.rows(query, [sandbox.PRIVATE, unit])
        return any(sql.qualified(sandbox.PRIVATE, *names) == self._relation for names in found)

    def open_column(self, request: UnboundedValues) -> OpenColumn:
        """Number the keys, cut, and stay open for questions."""
        if request.by is not None:
            self._number_keys(self.column(request.by), request.keys)
        statement = self.unbounded(request)
        self._cut_joined()
        self._connection.run(statement, self.parameters)
        unit = self.column(self._table.unit.column).sql
        units = f"SELECT DISTINCT {self._unit} AS unit FROM {self._relation} AS t"
        if self._table.unit.missing == "drop":
            units += f" WHERE {unit} IS NOT NULL"
        column = self.column(request.column)
        return TableColumn(self._connection, column, len(request.keys), request.rows_per_group, units)

    def records(self, request: Records) -> str:
        """The query of whole rows; each unit and part draws one number, by which the units are put in order."""
        outputs, present = [], []
        for i, name in enumerate(request.columns):
            declared = self._table.column(name)
            if declared.keys is not None:
                column = self.column(name)
                self._check_texts(column, declared.keys, "key")
                listed = ", ".join(sql.literal(text) for text in declared.keys)
                place = f"list_position([{listed}], {sql.to_text(column, sql.key(column, 'group key'))})"
                outputs.append(f"CAST(coalesce({place}, 0) - 1 AS BIGINT) AS x{i}")
            else:
                outputs.append(f"{sql.grid(self.column(name), self._table.bounded(name))} AS x{i}")
                present.append(f"x{i} IS NOT NULL")
        whole = f"SELECT * FROM ({self._select(outputs)}) WHERE {' AND '.join(present) or 'true'}"
        return numbered(cut_rows(whole, request.rows))

    def grouped(self, request: GroupValues, secret: bytes) -> str:
        """The query of rows by holdout group."""
        outputs = [self._bucket(request.groups, secret)]
        for i, name in enumerate(request.columns):
            outputs.append(f"{sql.number(self.column(name), self._table.column(name))} AS x{i}")
        return f"SELECT * EXCLUDE (unit, part) FROM ({self._select(outputs)})"

    def moments(self, request: GroupMoments, secret: bytes) -> str:
        """The query of sums by holdout group: one GROUP BY."""
        outputs = [self._bucket(request.groups, secret)]
        for name, column in zip("xy", request.columns):
            outputs.append(f"{sql.grid(self.column(column), self._table.bounded(column))} AS {name}")
        present = " AND ".join(f"{name} IS NOT NULL" for name, _ in zip("xy", request.columns))
        measures = ", ".join(f"CAST({_MEASURES[name]} AS DOUBLE) AS m_{name}" for name in request.measures)
        return f"SELECT bucket, {measures} FROM ({self._select(outputs)}) WHERE {present} GROUP BY bucket"

    def estimates(self, request: GroupEstimates, secret: bytes) -> str:
        """The query of a user's expression by holdout group: one GROUP BY."""
        written = expressions.to_sql(expressions.parse(request.sql, self._table), self._table, self.column)
        outputs = [self._bucket(request.groups, secret), *(f"{row} AS r{i}" for i, row in enumerate(written.rows))]
        return f"SELECT bucket, {written.value} AS value FROM ({self._select(outputs)}) GROUP BY bucket"

    def _bucket(self, groups: int, secret: bytes) -> str:
        """The holdout group of a row: a keyed hash of its unit."""
        unit = self.column(self._table.unit.column)
        text = sql.to_text(unit, sql.key(unit, "unit"))
        self.parameters = [secret.hex()]
        return f"CAST(md5_number_lower(? || coalesce('=' || {text}, '')) % {groups} AS BIGINT) AS bucket"


def _int64(array: Any) -> NDArray[np.int64]:
    return np.asarray(array, dtype=np.int64)


def _plain(array: Any) -> NDArray[Any]:
    """Without numpy's mask: a missing text is None."""
    if np.ma.isMaskedArray(array):
        whole = np.asarray(array.data, dtype=object)
        whole[np.ma.getmaskarray(array)] = None
        return whole
    return np.asarray(array)
