"""Contribution bounding by sorting: what `dpflow.tables.backends.duckdb_backend.bounding.sql_bounding` does in SQL, for
rows that fit in one word each.

DuckDB makes an integer of every row: its unit's number, its group's code and its values, highest first. Once these
words are sorted a unit's rows lie side by side, and all that is left are passes over arrays in order, a piece that
fits in the processor's cache at a time. A hash table of a million units goes to memory for every row instead, twice.
Where cells (one unit, one group) are few beside the rows, they need no sorting either: their sums are kept in an
array by their number. Where the numbers of a table's units and private keys are so wide that its words would not fit,
DuckDB sums the cells. Several values may need several words a row. What is drawn is drawn from the cells, so which of
these ways made them changes no law.

The truncation is the same: values above a cell's bound count as their mean, rounded at random without bias; groups
and rows above a bound are left out by a uniform choice, here the first places of a shuffle. Sums are integers of 64
bits that cannot overflow for the number of rows read. Where the words of some table would not fit, however its rows
are numbered, the SQL form answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import chain
from operator import add
from threading import Lock
from typing import Any

from dpflow.core.contract.declaration import MAX_MAGNITUDE
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access.arithmetic import BIGINT, DUCKDB, Whole, coalesce, place_from_zero
from dpflow.tables.backends.duckdb_backend.bounding import sorted_runs
from dpflow.tables.backends.duckdb_backend.bounding.sorted_runs import (
    Integers,
    choose_members,
    limit_total,
    merge_counts,
    number_runs,
    rescale_sums,
    run_starts,
    run_threads,
    sort_words,
    split_runs,
)
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import WORD, Truncation, bit_length

#: Chunks in one run of words (a unit's, or a cell's) from which on it is worked on in pieces: arrays beside it would take
#: several times its memory.
LARGE = 4

#: Bits reserved for a unit's number, and for a private key's, where types decide on the form.
#: Tables with more of them are read in parts, or as cells.
ROW_BITS, CODE_BITS = 33, 20

#: Bytes for each word of a part: DuckDB's copy, numpy's, and room for what is kept of them.
BYTES_PER_WORD = 24


@dataclass(frozen=True)
class NumberedColumn:
    """A column of the rows query as numbers 0, 1, ...: ``sql`` less ``low`` is below ``size``, which itself stands for
    NULL. ``private``: rows decide how many there are.
    """

    sql: str
    low: int
    size: int
    private: bool = False

    @property
    def number(self) -> Whole:
        """The number in SQL."""
        last = self.low + max(self.size - 1, 0)
        value = DUCKDB.column(f"CAST({self.sql} AS BIGINT)", self.low, last)
        return coalesce(value - self.low, self.size)

    @property
    def bit_length(self) -> int:
        """Bits of the largest number."""
        return bit_length(self.size)


@dataclass(frozen=True)
class UnitGroupCells:
    """Cells of whole units, in the order of units: per cell its unit, its code, its rows, and each
    value's number and sum.
    """

    unit: Integers
    code: Integers
    rows: Integers
    counts: tuple[Integers, ...]
    sums: tuple[Integers, ...]

    @classmethod
    def merge_parts(cls, parts: Sequence[UnitGroupCells]) -> UnitGroupCells:
        """Those of neighbouring parts, of which a cell may reach from one into the next."""
        unit, code, rows = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("unit", "code", "rows")
        )
        new = np.ones(len(unit), bool)
        new[1:] = (unit[1:] != unit[:-1]) | (code[1:] != code[:-1])
        # A cell that reaches over a seam is in two parts: its halves are added.
        starts = np.flatnonzero(new)
        counts, sums = (
            tuple(
                np.add.reduceat(np.concatenate(columns), starts)
                for columns in zip(*columns_of, strict=True)
            )
            for columns_of in ([part.counts for part in parts], [part.sums for part in parts])
        )
        return cls(unit[starts], code[starts], np.add.reduceat(rows, starts), counts, sums)

    @classmethod
    def join_values(cls, pieces: Sequence[Callable[[], UnitGroupCells]]) -> UnitGroupCells:
        """The same cells, each time with other values, as one."""
        parts = [piece() for piece in pieces]
        counts, sums = (
            tuple(chain.from_iterable(columns))
            for columns in ([part.counts for part in parts], [part.sums for part in parts])
        )
        return cls(parts[0].unit, parts[0].code, parts[0].rows, counts, sums)

    def split_units(self) -> list[Callable[[], UnitGroupCells]]:
        """Pieces with whole units."""
        pieces: list[Callable[[], UnitGroupCells]] = []
        start = 0
        for units in split_runs(self.unit, 0):
            end = start + len(units)
            pieces.append(partial(self._take_cells, slice(start, end)))
            start = end
        return pieces

    def _take_cells(self, places: slice) -> UnitGroupCells:
        return UnitGroupCells(
            self.unit[places],
            self.code[places],
            self.rows[places],
            tuple(count[places] for count in self.counts),
            tuple(total[places] for total in self.sums),
        )

    def truncate_cells(self, truncation: Truncation) -> UnitGroupCells:
        """The cells that the units keep, each within the bound on its rows."""
        # The guarantee needs only that the bounds hold, so the draws need no secrecy.
        draws = np.random.default_rng()
        selection: slice | Integers = slice(None)
        if truncation.groups is not None:
            starts = run_starts(self.unit)
            selection = choose_members(starts, len(self.unit), truncation.groups, draws)
        unit = self.unit[selection]
        rows: Integers = np.minimum(self.rows[selection], truncation.per_group)
        most: Integers | int = truncation.per_group
        if truncation.total is not None:
            rows = most = limit_total(unit, rows, truncation.total, draws)
        counts, sums = [], []
        for count, total in zip(self.counts, self.sums, strict=True):
            counts.append(np.minimum(count[selection], most))
            sums.append(rescale_sums(total[selection], count[selection], most, draws))
        return UnitGroupCells(unit, self.code[selection], rows, tuple(counts), tuple(sums))


@dataclass(frozen=True)
class PackedRows:
    """How the rows of a truncation become words.

    Attributes:
        truncation: one whose ``most_rows`` is known.
        units: what a contribution belongs to, as numbers.
        codes: codes of its groups, as numbers.
        ranked: whether units are numbered one after the other within the rows of a query.
        first: the place of its first value among those of the rows query.
    """

    truncation: Truncation
    units: tuple[NumberedColumn, ...]
    codes: NumberedColumn
    ranked: bool = False
    first: int = 0

    def rank_units(self) -> PackedRows:
        """The same with units numbered one after the other."""
        size = min(self.truncation.most_rows, (1 << ROW_BITS) - 1)
        return replace(self, units=(NumberedColumn("number", 0, size),), ranked=True)

    def fit_in_words(self) -> bool:
        """Whether every row of any table fits in a word, and every sum over a part in 64 bits.

        Types and the declaration decide, not the rows: the two implementations have different laws
        where draws are equal, so a row more must not change the form. Units have room for a number
        each.
        """
        # Private codes have a fixed room, because how many there are is up to the rows.
        codes = CODE_BITS if self.codes.private else self._code_bits
        sums = [
            max(value.span, value.reach, self.truncation.per_group) << ROW_BITS
            for value in self.truncation.values
        ]
        return ROW_BITS + codes + self._widest <= WORD and all(
            bit_length(most) <= WORD for most in sums
        )

    def units_fit(self) -> bool:
        """Whether a word has room for any of the values below these numbers of units and codes."""
        return self._widest <= self._room

    @property
    def layouts(self) -> tuple[PackedRows, ...]:
        """A layout for each word of a row: as many values as have room in it, in their order."""
        layouts, first, used = [], 0, 0
        for i, largest in enumerate(self._spans):
            if used and used + bit_length(largest) > self._room:
                layouts.append(self._take_values(first, i))
                first, used = i, 0
            used += bit_length(largest)
        return (*layouts, self._take_values(first, len(self._spans)))

    def _take_values(self, first: int, end: int) -> PackedRows:
        values = self.truncation.values[first:end]
        return replace(self, truncation=replace(self.truncation, values=values), first=first)

    @property
    def _room(self) -> int:
        """Bits of a word for values."""
        return WORD - self._code_bits - sum(number.bit_length for number in self.units)

    @property
    def _widest(self) -> int:
        return max(map(bit_length, self._spans), default=0)

    @property
    def _spans(self) -> list[int]:
        """The largest number of each value: above those of its span stands the one for none."""
        return [value.span + value.optional for value in self.truncation.values]

    @property
    def _cell_shift(self) -> int:
        return sum(map(bit_length, self._spans))

    @property
    def _code_bits(self) -> int:
        return 0 if self.codes.size == 1 else self.codes.bit_length

    @property
    def _unit_shift(self) -> int:
        return self._cell_shift + self._code_bits

    def query(self, rows: str) -> str:
        """The words of a rows query, a column for each layout: ``word``, ``word1``, ..."""
        if self.ranked:
            rank = place_from_zero(f"dense_rank() OVER (ORDER BY {self.truncation.unit})")
            rows = f"SELECT *, {rank} AS number FROM ({rows})"
        words = [f"{layout._word()} AS word{i or ''}" for i, layout in enumerate(self.layouts)]
        return f"SELECT {', '.join(words)} FROM ({rows})"

    def read_words(self, arrays: Mapping[str, Any]) -> tuple[Integers, ...]:
        """The words of what `query` gave."""
        return tuple(
            np.asarray(arrays[f"word{i or ''}"], np.int64) for i in range(len(self.layouts))
        )

    def _word(self) -> str:
        """The word of a row."""
        # Units above codes above values: one sort brings a unit's rows together, by group.
        fields = [(number.number, number.bit_length) for number in self.units]
        if self._code_bits:
            fields.append((self.codes.number, self.codes.bit_length))
        for i, (value, largest) in enumerate(zip(self.truncation.values, self._spans, strict=True)):
            above = value.above_low(f"v{self.first + i}")
            fields.append(
                (coalesce(above, largest) if value.optional else above, bit_length(largest))
            )
        terms, shift = [], 0
        for number, width in reversed(fields):
            terms.append(number * (1 << shift))
            shift += width
        return str(reduce(add, reversed(terms)).to(BIGINT))

    @property
    def _groups_matter(self) -> bool:
        """Whether a choice is made among all of a unit's cells, so that these have to lie side by side."""
        return self.truncation.groups is not None or self.truncation.total is not None

    def cells_query(self, rows: str) -> str:
        """The cells of a rows query, with the numbers of units as they are, in no order."""
        columns = [f"{self.codes.number} AS number"] if self._code_bits else []
        columns.append("n")
        if self._groups_matter:
            columns += [f"{number.sql} AS unit{i}" for i, number in enumerate(self.units)]
        for i, value in enumerate(self.truncation.values):
            columns += [f"m{i}"] if value.optional else []
            columns.append(f"CAST(s{i} AS BIGINT) AS s{i}")
        cells = replace(self.truncation, rows=rows).sums_query()
        return f"SELECT {', '.join(columns)} FROM ({cells})"

    def read_cells(self, arrays: Mapping[str, Any]) -> UnitGroupCells:
        """The cells of what `cells_query` gave, by unit and code as those of sorted words."""
        rows = np.asarray(arrays["n"], np.int64)
        code = np.asarray(arrays["number"], np.int64) if self._code_bits else np.zeros_like(rows)
        if not self._groups_matter:
            # Any numbers of units will do, so each cell has its own.
            counts, sums = self._read_sums(arrays, rows, slice(None))
            return UnitGroupCells(np.arange(len(rows)), code, rows, counts, sums)
        units = [np.ma.asarray(arrays[f"unit{i}"]) for i in range(len(self.units))]
        # No unit comes last, as in words.
        keys = [key for unit in units for key in (np.ma.getmaskarray(unit), unit.filled(0))]
        keys = [key for key in (*keys, code) if key.any()]
        order = np.argsort(keys[0]) if len(keys) == 1 else np.lexsort([code, *keys[::-1]])
        new = np.zeros(len(order), bool)
        for key in keys[: len(keys) - bool(code.any())]:
            new[1:] |= key[order[1:]] != key[order[:-1]]
        counts, sums = self._read_sums(arrays, rows, order)
        return UnitGroupCells(np.cumsum(new), code[order], rows[order], counts, sums)

    def _read_sums(
        self, arrays: Mapping[str, Any], rows: Integers, order: Integers | slice
    ) -> tuple[tuple[Integers, ...], tuple[Integers, ...]]:
        """Each value's numbers and sums, by cell."""
        counts, sums = [], []
        for i, value in enumerate(self.truncation.values):
            counts.append(np.asarray(arrays[f"m{i}"], np.int64) if value.optional else rows)
            sums.append(np.asarray(arrays[f"s{i}"], np.int64))
        return tuple(c[order] for c in counts), tuple(s[order] for s in sums)

    def sums(self, parts: Iterable[Integers | tuple[Integers, ...] | UnitGroupCells]) -> Totals:
        """The bounded sums of parts with all rows of a unit in one of them: words, those of each
        layout, or cells. Words are overwritten.
        """
        totals = Totals(self.codes, self.truncation)
        for part in parts:
            pieces = self._cell_pieces(part)
            run_threads(lambda piece: totals.add(piece().truncate_cells(self.truncation)), pieces)
        return totals

    def _cell_pieces(
        self, part: Integers | tuple[Integers, ...] | UnitGroupCells
    ) -> list[Callable[[], UnitGroupCells]]:
        """The cells of a part in pieces with whole units.

        All ways give the same cells, so here the rows may decide.
        """
        if isinstance(part, UnitGroupCells):
            return part.split_units()
        columns = part if isinstance(part, tuple) else (part,)
        cells = 1 + self.units[0].size << self._code_bits
        # At most 16 bytes a word.
        room = cells * (1 + len(self.truncation.values)) <= 2 * len(columns[0])
        dense = len(self.units) == 1 and room and max(self._sum_widths()) <= WORD
        # Every word of a row has its unit and code, so the layouts' cells and pieces are the same.
        pieces = [
            layout._sum_cells(words, cells) if dense else layout._sort_cells(words)
            for layout, words in zip(self.layouts, columns, strict=True)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return [partial(UnitGroupCells.join_values, same) for same in zip(*pieces, strict=True)]

    def histogram(self, parts: Iterable[Integers]) -> tuple[Integers, Integers, Integers]:
        """Codes, values and multiplicities of the only value, by code and value; parts as in
        `sums`.
        """
        parts_counts: list[tuple[Integers, Integers]] = []
        for words in parts:
            sort_words(words)
            run_threads(
                lambda chunk: parts_counts.append(self._truncate_chunk(chunk)),
                split_runs(words, self._unit_shift),
            )
        numbers, counts = merge_counts(parts_counts)
        width, low = self._cell_shift, self.truncation.values[0].low
        return numbers >> width, (numbers & (1 << width) - 1) + low, counts

    def _truncate_chunk(self, words: Integers) -> tuple[Integers, Integers]:
        """Codes and values of what the units of a chunk keep, in one word, and their
        multiplicities.

        First each unit's choice of groups in which it has any value, then of values in each.
        """
        draws = np.random.default_rng()
        # A group in which a unit has no value must not take the place of one in which it has.
        selection: Integers | None = None
        if self.truncation.groups is not None:
            cells = np.concatenate(
                [
                    piece[run_starts(piece)]
                    for piece in map(self._of_cells, self._split_chunk(words))
                ]
            )
            selection = cells[
                choose_members(
                    run_starts(cells >> self._code_bits), len(cells), self.truncation.groups, draws
                )
            ]
        return merge_counts(
            [self._truncate_piece(piece, selection, draws) for piece in self._split_chunk(words)]
        )

    def _split_chunk(self, words: Integers) -> Iterator[Integers]:
        """A chunk's words that have a value: as one array, or as several with whole cells each, the
        large ones alone.
        """
        width, value = self._cell_shift, self.truncation.values[0]
        for piece in split_runs(words, width) if _is_large(words) else [words]:
            if not _is_large(piece):
                yield piece[piece & (1 << width) - 1 <= value.span] if value.optional else piece
                continue
            # Chunks end with a whole run, so of all cells a large one is the last.
            cell = int(piece[-1]) >> width
            start = int(np.searchsorted(piece, cell << width))
            if start:
                yield from self._split_chunk(piece[:start])
            yield piece[start : int(np.searchsorted(piece, cell << width | value.span, "right"))]

    def _of_cells(self, piece: Integers) -> Integers:
        """The cells of a piece's words, or of its only cell."""
        return (piece[:1] if _is_large(piece) else piece) >> self._cell_shift

    def _truncate_piece(
        self, piece: Integers, selection: Integers | None, draws: np.random.Generator
    ) -> tuple[Integers, Integers]:
        """The numbers of a piece's rows that are kept, and their multiplicities."""
        large, most = _is_large(piece), self.truncation.per_group
        if selection is not None and len(piece):
            cells = self._of_cells(piece)
            starts = run_starts(cells)
            selected = np.isin(cells[starts], selection, assume_unique=True)
            piece = (
                piece[: len(piece) * bool(selected[0])]
                if large
                else piece[selected[number_runs(starts, len(piece))]]
            )
        if not large:
            starts = run_starts(piece >> self._cell_shift)
            piece = piece[choose_members(starts, len(piece), most, draws)]
        # A large piece is one cell: it is drawn from as it is, without arrays of its runs.
        elif len(piece) > most:
            piece = piece[draws.choice(len(piece), most, replace=False, shuffle=False)]
        size = LARGE * sorted_runs.CHUNK
        return merge_counts(
            [self._count_numbers(piece[at : at + size]) for at in range(0, len(piece), size)]
        )

    def _count_numbers(self, words: Integers) -> tuple[Integers, Integers]:
        numbers = words & (1 << self._unit_shift) - 1
        # A counter for every number is quicker than sorting while they are few.
        if self._unit_shift > 17:
            return np.unique(numbers, return_counts=True)
        counts = np.bincount(numbers)
        return np.flatnonzero(counts), counts[counts > 0]

    def _sort_cells(self, words: Integers) -> list[Callable[[], UnitGroupCells]]:
        """Cells of each chunk, after sorting."""
        sort_words(words)
        return [partial(self._chunk_cells, chunk) for chunk in split_runs(words, self._unit_shift)]

    def _chunk_cells(self, words: Integers) -> UnitGroupCells:
        """The cells of a chunk of sorted words."""
        if _is_large(words):
            return UnitGroupCells.merge_parts(
                [
                    self._chunk_cells(words[at : at + sorted_runs.CHUNK])
                    for at in range(0, len(words), sorted_runs.CHUNK)
                ]
            )
        cell = words >> self._cell_shift
        starts = run_starts(cell)
        rows, cell = np.diff(starts, append=len(words)), cell[starts]
        counts, sums = [], []
        for i in range(len(self.truncation.values)):
            number, present = self._read_value(words, i)
            counts.append(
                rows if present is None else np.add.reduceat(present.astype(np.int64), starts)
            )
            sums.append(np.add.reduceat(number, starts))
        return self._as_cells(cell, rows, counts, sums)

    def _read_value(self, words: Integers, i: int) -> tuple[Integers, NDArray[np.bool_] | None]:
        """A value of each word, 0 where there is none, and where there is one, or None if that is
        everywhere.
        """
        shift, largest = sum(map(bit_length, self._spans[i + 1 :])), self._spans[i]
        number = (words >> shift) & (1 << bit_length(largest)) - 1
        if not self.truncation.values[i].optional:
            return number, None
        present = number < largest
        if present.all():
            return number, None
        return np.where(present, number, 0), present

    def _as_cells(
        self, cell: Integers, rows: Integers, counts: Sequence[Integers], sums: Sequence[Integers]
    ) -> UnitGroupCells:
        code = cell & (1 << self._code_bits) - 1
        return UnitGroupCells(cell >> self._code_bits, code, rows, tuple(counts), tuple(sums))

    def _sum_widths(self) -> list[int]:
        """Bits of a cell's number of rows, and of each value's sum over all rows."""
        most = self.truncation.most_rows
        return [bit_length(most), *(bit_length(v.span * most) for v in self.truncation.values)]

    def _sum_cells(self, words: Integers, cells: int) -> list[Callable[[], UnitGroupCells]]:
        """Cells of runs of units, from sums of every possible cell."""
        # Sums side by side in one integer: one addition for all of them, each of which goes to memory.
        widths, places, used = self._sum_widths(), list[tuple[int, int]](), list[int]()
        for width in widths:
            if not used or used[-1] + width > WORD:
                used.append(0)
            places.append((len(used) - 1, used[-1]))
            used[-1] += width
        packed = [np.zeros(cells, np.int64) for _ in used]
        missing: dict[int, Integers] = {}
        for start in range(0, len(words), sorted_runs.CHUNK):
            chunk = words[start : start + sorted_runs.CHUNK]
            cell = chunk >> self._cell_shift
            terms: dict[int, Integers | int] = {0: 1}
            for i, (into, shift) in enumerate(places[1:]):
                number, present = self._read_value(chunk, i)
                if present is not None:
                    np.add.at(missing.setdefault(i, np.zeros(cells, np.int64)), cell[~present], 1)
                number <<= shift
                number += terms.get(into, 0)
                terms[into] = number
            for into, term in terms.items():
                np.add.at(packed[into], cell, term)

        def read(field: int, cell: Integers | slice) -> Integers:
            into, shift = places[field]
            return (packed[into][cell] >> shift) & (1 << widths[field]) - 1

        def piece(start: int, end: int) -> UnitGroupCells:
            cell = start + np.flatnonzero(read(0, slice(start, end)))
            rows, sums = read(0, cell), [read(1 + i, cell) for i in range(len(widths) - 1)]
            counts = [rows - missing[i][cell] if i in missing else rows for i in range(len(sums))]
            return self._as_cells(cell, rows, counts, sums)

        # Both are powers of two, so no unit's cells are in two pieces.
        step = max(sorted_runs.CHUNK, 1 << self._code_bits)
        return [partial(piece, start, start + step) for start in range(0, cells, step)]


@dataclass
class Totals:
    """Sums of bounded cells by the number of their code. Sums of values are above each value's
    ``low``.
    """

    codes: NumberedColumn
    truncation: Truncation
    rows: Integers = field(init=False)
    units: Integers = field(init=False)
    counts: list[Integers] = field(init=False)
    sums: list[Integers] = field(init=False)

    def __post_init__(self) -> None:
        """Start with zeros."""
        self._lock, size, values = Lock(), self.codes.size, self.truncation.values
        self.rows, self.units = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.counts = [np.zeros(size, np.int64) for _ in values]
        # Sums of one part fit in 64 bits; those of a table with more rows are Python's integers.
        kind = np.int64 if self.truncation.most_rows < 1 << ROW_BITS else object
        self.sums = [np.zeros(size, kind) for _ in values]

    def centred_columns(self) -> dict[str, Integers]:
        """The columns of `Truncation.query`: codes that any unit reaches, and their sums around the
        centres.
        """
        code = np.flatnonzero(self.units)
        columns = {
            "code": code + self.codes.low,
            "row_count": self.rows[code],
            "unit_count": self.units[code],
        }
        for i, (value, count, total) in enumerate(
            zip(self.truncation.values, self.counts, self.sums, strict=True)
        ):
            columns[f"c{i}"] = count[code]
            centred = total[code] + (value.low - value.centre) * count[code].astype(total.dtype)
            columns[f"s{i}"] = np.clip(centred, -MAX_MAGNITUDE, MAX_MAGNITUDE).astype(np.int64)
        return columns

    def add(self, cells: UnitGroupCells) -> None:
        """Add cells; any thread may."""
        # Threads have cells of different units, but of the same codes.
        with self._lock:
            np.add.at(self.units, cells.code, 1)
            for into, numbers in zip(
                [self.rows, *self.counts, *self.sums],
                [cells.rows, *cells.counts, *cells.sums],
                strict=True,
            ):
                np.add.at(into, cells.code, numbers)


def _is_large(words: Integers) -> bool:
    return len(words) > LARGE * sorted_runs.CHUNK
