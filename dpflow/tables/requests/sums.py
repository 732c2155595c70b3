"""Requests for sums and for values: numbered keys, the cut, and which of its two programs answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import GroupedSums, Groups, ValueCounts, SortedValues
from dpflow.tables.access import sandbox, sql
from dpflow.tables.bounding.sort_bounding import (
    BYTES_PER_WORD,
    CODE_BITS,
    ROW_BITS,
    Numbered,
    Words,
)
from dpflow.tables.bounding.sql_bounding import (
    PART_ROWS,
    Cut,
    Value,
    added,
    cut_grouped_values,
    cut_values,
    parts_of,
)
from dpflow.tables.requests.query import Reading, int64


def sums_cut(reading: Reading, request: GroupedSums) -> Cut:
    """The bounded query of a request; reads nothing."""
    outputs, values = [], []
    for i, (name, centre) in enumerate(request.values):
        declared = reading.table.bounded_column(name)
        outputs.append(f"{sql.grid(reading.column(name), declared)} AS v{i}")
        values.append(Value(*declared.grid_bounds(), centre, declared.missing == "skip"))
    for name, centre, half in request.squares:
        declared = reading.table.bounded_column(name)
        away = f"({sql.grid(reading.column(name), declared)} - {sql.integer(centre)})"
        outputs.append(f"{away} * {away} AS v{len(values)}")
        largest = max((end - centre) ** 2 for end in declared.grid_bounds())
        values.append(Value(0, largest, half, declared.missing == "skip"))
    if request.by is None:
        rows = reading.select(outputs)
        return Cut(
            rows,
            tuple(values),
            request.rows_per_group,
            None,
            1,
            reading.protected,
            salt=reading.salt,
        )
    by = reading.column(request.by)
    size = None if request.keys is None else len(request.keys)
    if size is None and (number := sql.small_integer(by)):
        rows = reading.select([f"{number} AS code", *outputs], where=[f"{by.sql} IS NOT NULL"])
    else:
        on = f" JOIN keys ON {sql.key(by, 'group key')} = keys.key"
        rows = reading.select(["keys.code AS code", *outputs], join=on)
    groups = None if size is not None and size <= request.groups else request.groups
    return Cut(
        rows,
        tuple(values),
        request.rows_per_group,
        groups,
        size,
        reading.protected,
        salt=reading.salt,
    )


def values_cut(reading: Reading, request: SortedValues) -> tuple[Cut, Value]:
    """How the values of a column are cut, and what they can be; reads nothing."""
    declared = reading.table.bounded_column(request.column)
    value = Value(*declared.grid_bounds(), 0)
    output = f"{sql.grid(reading.column(request.column), declared)} AS v0"
    rows, groups = reading.in_groups(request, [output])
    size, unit = len(request.keys), reading.protected
    return Cut(rows, (value,), request.rows_per_group, groups, size, unit, salt=reading.salt), value


def groups(reading: Reading, request: GroupedSums) -> Groups:
    """Number the keys, cut, add up."""
    cut = replace(sums_cut(reading, request), most_rows=reading.most_rows())
    cut.check()
    reading.cut_joined()
    keys: tuple[str, ...] = ("",)
    if request.by is not None:
        by = reading.column(request.by)
        if request.keys is not None:
            keys = request.keys
            reading.number_keys(by, keys)
        elif not sql.small_integer(by):
            reading.collect_keys(by)
    words = _words(reading, cut, _codes(reading, request, len(keys)))
    found = _sums(reading, cut) if words is None else _word_sums(reading, words)
    codes = found["code"]
    places = np.arange(len(codes))
    if request.by is not None and request.keys is None:
        keys, places = _private_keys(reading, by, codes)
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


def histogram(reading: Reading, request: SortedValues) -> ValueCounts:
    """Cut, count equal values."""
    cut, value = values_cut(reading, request)
    cut = replace(cut, most_rows=reading.most_rows())
    reading.cut_joined()
    if request.by is not None:
        reading.number_keys(reading.column(request.by), request.keys)
    words = _words(reading, cut, Numbered("code", 0, len(request.keys)))
    if words is not None:
        codes, values, counts = reading.connection.scrubbed(
            lambda: words.histogram(_parts(reading, words))
        )
    else:
        codes, values, counts = _counted(reading, cut, value)
    return ValueCounts(values, counts, None if request.by is None else codes)


def _sums(reading: Reading, cut: Cut) -> dict[str, NDArray[np.int64]]:
    """The columns of `Cut.query`, by DuckDB alone."""
    query = _in_parts(
        reading,
        cut.rows,
        cut.most_rows,
        lambda rows, whole: replace(cut, rows=rows).query(whole),
        ["code"],
    )
    return {name: int64(column) for name, column in reading.arrays(query).items()}


def _word_sums(reading: Reading, words: Words) -> dict[str, NDArray[np.int64]]:
    """The same by numpy."""
    return reading.connection.scrubbed(
        lambda: words.sums(_parts(reading, words)).columns(words.cut)
    )


def _counted(reading: Reading, cut: Cut, value: Value) -> tuple[NDArray[np.int64], ...]:
    """Codes, values and multiplicities, by DuckDB alone."""
    single = cut.keys == 1 and cut.salt is None

    def query(rows: str, _: bool) -> str:
        return (
            cut_values(rows, value, cut.per_group, cut.unit)
            if single
            else cut_grouped_values(rows, cut)
        )

    found = reading.arrays(
        _in_parts(reading, cut.rows, cut.most_rows, query, ["v"] if single else ["code", "v"])
    )
    values = int64(found["v"])
    return (
        np.zeros(len(values), np.int64) if single else int64(found["code"]),
        values,
        int64(found["n"]),
    )


def _words(reading: Reading, cut: Cut, codes: Numbered | None) -> Words | None:
    """The rows of a cut as words, if they fit; None if DuckDB has to aggregate them, as where draws
    are hashes of units.
    """
    if (
        cut.most_rows >= 1 << ROW_BITS
        or codes is None
        or cut.salt is not None
        or not Words(cut, (), codes).fits()
    ):
        return None
    units = [_numbered(reading, reading.own(reading.table.privacy_unit.column), "unit")]
    if reading.table.block is not None and "part" in cut.unit:
        units.append(_numbered(reading, reading.own(reading.table.block), "part"))
    whole = tuple(number for number in units if number is not None)
    if len(whole) < len(units):
        return None
    words = Words(cut, whole, codes)
    if words.direct():
        return words
    numbered = f"SELECT *, dense_rank() OVER (ORDER BY {cut.unit}) - 1 AS number FROM ({cut.rows})"
    return Words(replace(cut, rows=numbered), (Numbered("number", 0, cut.most_rows),), codes)


def _codes(reading: Reading, request: GroupedSums, keys: int) -> Numbered | None:
    """The codes of a request's groups."""
    if request.by is None or request.keys is not None:
        return Numbered("code", 0, keys)
    by = reading.column(request.by)
    if sql.small_integer(by) is None:
        size = reading.connection.rows("SELECT count(*) FROM keys")[0][0]
        return Numbered("code", 0, size, private=True) if size < 1 << CODE_BITS else None
    found = None if by.place or not sql.tiny(by) else _numbered(reading, by, "code")
    return None if found is None else replace(found, low=found.low + sql.SMALL_OFFSET, private=True)


def _numbered(reading: Reading, column: sql.Field, name: str) -> Numbered | None:
    """A column of the table, which a rows query calls by a name, as numbers; None for types that
    have too many values.
    """
    if (number := sql.ordinal(column.kind)) is None:
        return None
    ends = (
        f"SELECT min({column.sql}) AS low, max({column.sql}) AS high FROM {reading.relation} AS t"
    )
    low, high = reading.connection.rows(f"SELECT {number('low')}, {number('high')} FROM ({ends})")[
        0
    ]
    return (
        Numbered(number(name), 0, 0) if low is None else Numbered(number(name), low, high - low + 1)
    )


def _parts(reading: Reading, words: Words) -> Iterator[NDArray[np.int64]]:
    """The words of all rows, as many at once as memory allows."""
    size = sandbox.memory_bytes() // BYTES_PER_WORD
    for part in parts_of(words.cut.rows, words.cut.most_rows, size):
        yield int64(reading.arrays(words.query(part))["word"])


def _private_keys(
    reading: Reading, by: sql.Field, codes: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The keys that these codes mean, in their order, and where in the codes each is."""
    if sql.small_integer(by):
        texts = (codes - sql.SMALL_OFFSET).astype(np.bytes_)
        order = np.argsort(texts)
        return tuple(text.decode() for text in texts[order].tolist()), order
    listed = reading.arrays("SELECT code, text FROM keys ORDER BY text")
    places = np.full(len(listed["code"]), -1)
    places[codes] = np.arange(len(codes))
    places = places[int64(listed["code"])]
    return tuple(map(str, listed["text"][places >= 0])), places[places >= 0]


def _in_parts(
    reading: Reading,
    rows: str,
    most_rows: int,
    query: Callable[[str, bool], str],
    keys: Sequence[str],
) -> str:
    """The sums of a query over rows that are too many to be aggregated at once, added up by their
    keys.

    Args:
        query: of a rows query, and whether that is the whole of the rows.
    """
    parts = parts_of(rows, most_rows, PART_ROWS)
    if len(parts) == 1:
        return query(rows, True)
    for number, part in enumerate(parts):
        into = "INSERT INTO sums" if number else "CREATE OR REPLACE TEMP TABLE sums AS"
        reading.connection.run(f"{into} {query(part, False)}", reading.parameters)
    return added("sums", keys, reading.connection.fields("sums"))


def answer(reading: Reading, request: GroupedSums | SortedValues) -> Groups | ValueCounts:
    """The answer to a request for sums or values."""
    return (
        groups(reading, request)
        if isinstance(request, GroupedSums)
        else histogram(reading, request)
    )
