"""Contribution bounding as SQL: each unit is brought within its bounds, then exact integer sums.

Rows: a unit with m > L values in a group contributes L times their mean, rounded up or down at
random with the odds that keep its expectation. That is the expectation of taking L of them at
random, without that draw's variance, and lies where every choice of L values lies: between L times
the lowest and the highest value that the declaration allows. Counts are min(m, L). Groups: of its
groups a unit keeps a uniform choice, by a fresh ``random()`` each.

Neither favours early rows, small values or some keys, which a hash of values or a row number would.
What a unit contributes depends on its own rows and draws only, so another unit's presence changes
nothing of it. (Whether this form or that of `dpflow.tables.backends.duckdb_backend.bounding.sort_bounding` answers is
decided by types and declaration: their laws differ where draws are equal.) The guarantee needs only
that the bounds hold, whatever the random numbers are; they therefore need no seed and no secrecy.
Cached partial aggregates are the exception: their draws are a keyed hash of unit, block and group
(`Truncation.salt`), so that an answer is one function of the rows. With fresh draws, sums that are
taken again because a row was added would move in all other units too.

Two hash aggregates: rows to cells (one unit, one group), cells to units. For the second a cell is
one BIGINT of bit fields, lowest first: its counts and sums, its group's code, and a random number
on top, so that the least few words are a random choice. Where there is no room for that number it
stands beside the word, and where there is none for the word the choice is made by windows. Among
these three the plan decides, never the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from dpflow.core.contract.declaration import MAX_MAGNITUDE
from dpflow.errors import PlanRefused
from dpflow.tables.access.arithmetic import (
    BIGINT,
    DUCKDB,
    HUGEINT,
    MAX_ROWS,
    Whole,
    choose,
    coalesce,
    greatest,
    hash_fraction,
    hash_remainder,
    least,
    place_from_zero,
)

#: The most rows or groups for which an aggregate per unit is used; DuckDB's ``min(x, n)`` allows
#: less than 1,000,000.
MOST_PACKED = 1000

#: Bits of a word: a BIGINT's, without its sign and one more for safety.
WORD = 62

#: A column of words.
BITS = DUCKDB.column("word", 0, (1 << WORD) - 1)

#: Rows that are aggregated at once. Larger tables are read in parts of all units' rows, each within
#: the memory limit: reading again is quicker than spilling.
PART_ROWS = 25_000_000

#: Bits reserved for the number of a private key, of which there is no public bound.
KEY_BITS = 32

#: Bits of a word's random number, at least and at most. Two of a unit's groups draw the same one at
#: odds of 2^-bits, and then the one with the lower code comes first: a bias far below any noise,
#: the same for whoever else is in the table, as codes are in the order of keys.
LEAST_RANDOM, MOST_RANDOM = 20, 30


@dataclass(frozen=True)
class Value:
    """A value column of the rows query: its grid bounds and its centre, in steps, and whether a row
    may have none.
    """

    low: int
    high: int
    centre: int
    optional: bool = True

    @property
    def reach(self) -> int:
        """The most that one row can move a sum."""
        return max(abs(self.low - self.centre), abs(self.high - self.centre))

    @property
    def span(self) -> int:
        """The most that a value is above ``low``."""
        return self.high - self.low

    def above_low(self, column: str) -> Whole:
        """A column of its values, counted from ``low``."""
        return DUCKDB.column(column, self.low, self.high) - self.low


@dataclass(frozen=True)
class Truncation:
    """A bounded grouping over a rows query with the columns ``unit``, ``part``, ``code`` and
    ``v0``, ``v1``, ...

    Attributes:
        rows: text of the rows query.
        values: its value columns.
        per_group: rows a unit keeps in one group.
        groups: groups a unit keeps, or None if by plan there are no more.
        total: rows a unit keeps in all groups together, or None if its other bounds allow no more.
        keys: how many public keys there are (1 without grouping), or None for private ones.
        unit: what a contribution belongs to: ``unit``, or ``unit, part`` where each block is
        protected by itself.
        most_rows: a bound on the rows of the query, which says how much room sums need while they
        are taken.
        salt: a secret that makes the draws a function of unit, part and code; None for fresh ones.
    """

    rows: str
    values: tuple[Value, ...]
    per_group: int
    groups: int | None
    keys: int | None
    unit: str = "unit, part"
    most_rows: int = MAX_ROWS
    salt: int | None = None
    total: int | None = None

    def random_number(self, *columns: str) -> str:
        """A number from [0, 1) for each unit and part, and each value of further columns."""
        return "random()" if self.salt is None else keyed_fraction(self.salt, self.unit, *columns)

    def check_magnitude(self) -> None:
        """Raises `PlanRefused` if one unit could move a sum by 2^62 steps, beyond which integers
        would not be exact.
        """
        for value in self.values:
            if max(value.reach * self.per_group, value.high) > MAX_MAGNITUDE:
                raise PlanRefused(
                    "the declared bounds let one unit move a sum by more than 2^62 steps; "
                    "take a coarser step, or tighter bounds on values or contributions"
                )

    def query(self, whole: bool = True) -> str:
        """One row per group that any unit reaches: ``code``, ``row_count``, ``unit_count``, and per
        value ``s0``, ``c0``, ...

        Args:
            whole: false for one of several parts that `add_parts` adds up: then sums are clamped to
                +-2^62 there, once. Clamped twice, the parts' sum would differ from the whole's, and a row that
                makes parts out of a whole would move it.
        """
        if self.total is not None:
            sums = self.limit_total(self.sums_query(), self._bound_count("n", self.per_group))
            cells = self._bound_cells(sums, DUCKDB.column("kept", 1, self.per_group))
        elif self.groups is None:
            cells = self.cells_query()
        elif self.fit_in_words():
            cells = self.choose_least_words()
        else:
            cells = self.choose_by_windows()
        rows = DUCKDB.sum_counts("n").to(BIGINT)
        measures = [f"{rows} AS row_count", "count(*) AS unit_count"]
        for i, value in enumerate(self.values):
            # Cells count from low, without a sign; centre and sign come back once per group.
            count = DUCKDB.sum_counts(self._count_column(i))
            total = DUCKDB.sum_rows(DUCKDB.column(f"s{i}", 0, self.per_group * value.span))
            centred = total + count * (value.low - value.centre)
            total = _saturate(centred) if whole else centred.to(HUGEINT)
            measures += [f"{total} AS s{i}", f"{count.to(BIGINT)} AS c{i}"]
        return f"SELECT code, {', '.join(measures)} FROM ({cells}) GROUP BY code"

    def _count_column(self, i: int) -> str:
        """The column of a cell with the number of a value's occurrences."""
        return f"m{i}" if self.values[i].optional else "n"

    def cells_query(self) -> str:
        """One row per unit and group within the bound on its rows: ``code``, ``n`` rows, per value
        ``m0`` and ``s0`` (above low).
        """
        return self._bound_cells(self.sums_query(), DUCKDB.number(self.per_group))

    def limit_total(self, cells: str, size: Whole) -> str:
        """Cells of the groups that each unit keeps, and as ``kept`` how many of its rows count in each:
        one, and then the groups are filled up in a random order until ``total`` rows are used.

        Args:
            cells: one row per unit and group.
            size: how many rows may count in a cell; at least 1.
        """
        assert self.total is not None
        window = f"PARTITION BY {self.unit}"
        ranked = (
            f"SELECT *, row_number() OVER ({window} ORDER BY r, code) AS rank "
            f"FROM (SELECT *, {self.random_number('code')} AS r FROM ({cells}))"
        )
        if self.groups is not None:
            ranked = f"SELECT * FROM ({ranked}) WHERE rank <= {self.groups}"
        further = size - 1
        earlier = f"{window} ORDER BY rank ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
        earlier_rows = DUCKDB.sum_rows(further)
        used = replace(earlier_rows, sql=f"{earlier_rows} OVER ({earlier})")
        reached = DUCKDB.column(f"count(*) OVER ({window})", 0, MAX_ROWS)
        spare = DUCKDB.number(self.total) - reached - coalesce(used, 0)
        kept = (greatest(least(spare, further), 0) + 1).to(BIGINT)
        return f"SELECT * EXCLUDE (r, rank), {kept} AS kept FROM ({ranked})"

    def _bound_cells(self, cells: str, most: Whole) -> str:
        """Cells of unbounded sums, each within a bound on its rows."""
        bounded = [f"{self._bound_count('n', most)} AS n"]
        for i, value in enumerate(self.values):
            if value.optional:
                bounded.append(f"{self._bound_count(f'm{i}', most)} AS m{i}")
            total = self._pack_value(i).total(f"s{i}", self.most_rows)
            count = DUCKDB.column(self._count_column(i), 0, self.most_rows)
            random = self.random_number("code", str(i))
            scaled = _rescale_sum(total, count, value.span, most, random)
            bounded.append(f"{scaled} AS s{i}")
        return f"SELECT {self.unit}, code, {', '.join(bounded)} FROM ({cells})"

    def _bound_count(self, column: str, most: Whole | int) -> Whole:
        return least(DUCKDB.column(column, 0, self.most_rows), most)

    def sums_query(self) -> str:
        """The same before it is bounded: all rows of each unit and group."""
        packings = [self._pack_value(i) for i in range(len(self.values))]
        raw = [] if any(packing.carries_rows for packing in packings) else ["count(*) AS n"]
        split = ["n"] if raw else []
        for i, packing in enumerate(packings):
            raw.append(f"{packing.sum_expression(i, self.most_rows)} AS w{i}")
            split += packing.split_word(i, self.most_rows)
            if packing.value.optional and packing.shift is None:
                raw.append(f"count(v{i}) AS m{i}")
        # A constant code need not be grouped by.
        by, code = (self.unit, "0 AS code") if self.keys == 1 else (f"{self.unit}, code", "code")
        summed = f"SELECT {self.unit}, {code}, {', '.join(raw)} FROM ({self.rows}) GROUP BY {by}"
        if not self.values:
            return summed
        return f"SELECT {self.unit}, code, {', '.join(split)} FROM ({summed})"

    def _pack_value(self, i: int) -> _Packing:
        """How the sums of a value are taken."""
        value = self.values[i]
        shift, rows = bit_length(value.span * self.most_rows), bit_length(self.most_rows)
        if shift > WORD:
            return _Packing(value, None, None)
        # The first value's word counts the cell's rows, too, where they fit: an aggregate less.
        top = shift + rows if value.optional else shift
        return _Packing(value, shift, top if i == 0 and top <= WORD else None)

    def _word_fields(self) -> list[tuple[str, int]]:
        """Columns of a cell and their largest values."""
        fields = [("n", self.per_group)]
        for i, value in enumerate(self.values):
            fields += [(f"m{i}", self.per_group)] if value.optional else []
            fields.append((f"s{i}", self.per_group * value.span))
        return fields

    def _word_bits(self) -> int:
        """Bits of a word that are not random."""
        codes = KEY_BITS if self.keys is None else self.keys.bit_length()
        return codes + sum(bit_length(most) for _, most in self._word_fields())

    def fit_in_words(self) -> bool:
        """Whether a unit's groups can be chosen among words."""
        return (self.groups or 1) <= MOST_PACKED and self._word_bits() <= WORD

    def choose_least_words(self) -> str:
        """Cells that each unit keeps, chosen as the least words."""
        used = self._word_bits()
        fields = self._word_fields()
        shift = sum(bit_length(most) for _, most in fields)
        fields.append(("code", (1 << (used - shift)) - 1))
        terms, columns, shift = [], [], 0
        for name, most in fields:
            terms.append(DUCKDB.column(name, 0, most) * (1 << shift))
            columns.append(f"{(BITS >> shift) & ((1 << bit_length(most)) - 1)} AS {name}")
            shift += bit_length(most)
        # On top, the random number alone decides which words are least.
        spare = min(WORD - used, MOST_RANDOM)
        pick = f"min(word, {self.groups})"
        if spare >= LEAST_RANDOM:
            terms.append(DUCKDB.random_bits(self.random_number("code"), spare) * (1 << used))
        else:
            # Too few bits for a fair choice: the number stands beside the word.
            order = f"{{'random': {self.random_number('word')}, 'word': word}}"
            pick = f"arg_min(word, {order}, {self.groups})"
        word = reduce(add, terms).to(BIGINT)
        words = f"SELECT {self.unit}, {word} AS word FROM ({self.cells_query()})"
        least = f"SELECT unnest({pick}) AS word FROM ({words}) GROUP BY {self.unit}"
        return f"SELECT {', '.join(columns)} FROM ({least})"

    def choose_by_windows(self) -> str:
        """Cells that each unit keeps, chosen by windows: any width."""
        random = self.random_number("code")
        return _limit_rows(self.cells_query(), self.unit, self.groups or 1, random, "code")


def bit_length(most: int) -> int:
    """Bits of a field whose largest number is ``most``."""
    return max(1, most.bit_length())


@dataclass(frozen=True)
class _Packing:
    """How a cell adds up a value over its rows: in a HUGEINT, or with its counts in one sum of
    BIGINT words.

    Attributes:
        shift: where in a word the number of values is counted, above their sum; None for a HUGEINT.
        top: where the number of rows is counted, if it is.
    """

    value: Value
    shift: int | None
    top: int | None

    @property
    def carries_rows(self) -> bool:
        """Whether the number of rows is in the word."""
        return self.top is not None

    def _row_word(self, i: int) -> tuple[Whole, Whole]:
        """What a row with a value adds to the word, and what a row without one adds."""
        row = 0 if self.top is None else 1 << self.top
        present = row + (1 << (self.shift or 0) if self.value.optional else 0)
        return self.value.above_low(f"v{i}") + present, DUCKDB.number(row)

    def _word_sum(self, i: int, rows: int) -> Whole:
        if self.shift is None:
            return DUCKDB.sum_rows(self.value.above_low(f"v{i}"), rows)
        word, row = self._row_word(i)
        # A row without a value still counts as a row.
        return DUCKDB.sum_rows(
            choose([(f"v{i} IS NULL", row)], word) if self.value.optional else word, rows
        )

    def sum_expression(self, i: int, rows: int) -> Whole:
        """The sum over a cell's rows."""
        total = self._word_sum(i, rows)
        return coalesce(total, 0) if self.shift is None else total

    def total(self, column: str, rows: int) -> Whole:
        """A column of the sums that `split_word` gives."""
        low, high = 0, self.value.span * rows
        return Whole(DUCKDB, column, low, high, HUGEINT if self.shift is None else BIGINT)

    def split_word(self, i: int, rows: int) -> list[str]:
        """The columns ``s``, and where they are wanted ``m`` and ``n``, out of a cell's ``w``."""
        if self.shift is None:
            return [f"m{i}"] * self.value.optional + [f"w{i} AS s{i}"]
        word = replace(self._word_sum(i, rows), sql=f"w{i}")
        mask = (1 << self.shift) - 1
        if self.top is None:
            counts = [f"{(word >> self.shift).to(BIGINT)} AS m{i}"] * self.value.optional
            return [*counts, f"{(word & mask).to(BIGINT)} AS s{i}"]
        low = (word & ((1 << self.top) - 1)).to(BIGINT)
        counts = [f"{low >> self.shift} AS m{i}"] * self.value.optional
        return [f"{(word >> self.top).to(BIGINT)} AS n", *counts, f"{low & mask} AS s{i}"]


def _rescale_sum(total: Whole, count: Whole, span: int, most: Whole, random: str) -> Whole:
    """At most ``most`` times the mean of a cell's values, rounded at random without bias; the bound
    holds in any case.
    """
    size, draw = greatest(count, 1), DUCKDB.random_below(random, count)
    if total.high * most.high <= MAX_MAGNITUDE:
        scaled = (total * most + draw) // size
    else:
        # The same with quotient and rest apart. No mean is above the largest value.
        scaled = least(total // size, span) * most + ((total % size) * most + draw) // size
    cell_sum = choose([(f"{count} <= {most}", total)], scaled)
    # The random number may be rounded up to the count, so the bound is stated once more.
    bounded = least(cell_sum, most.high * span)
    if most.low < most.high:
        bounded = least(bounded, most * span)
    return bounded.to(DUCKDB.type_of(bounded.low, bounded.high))


def split_rows(rows: str, most_rows: int, size: int) -> list[str]:
    """A rows query in parts of about ``size`` rows, which are worked on at once. All rows of a unit
    are in one part.
    """
    # Parts by unit: bounds hold in each part, so a unit in two would contribute twice.
    parts = 1 if most_rows == MAX_ROWS else -(-most_rows // size)
    if parts == 1:
        return [rows]
    number = hash_remainder("hash(unit)", parts)
    return [f"SELECT * FROM ({rows}) WHERE {number} = {part}" for part in range(parts)]


def add_parts(relation: str, keys: Sequence[str], columns: Iterable[str]) -> str:
    """The sums of several parts added up by their keys, in the keys' order, within +-2^62."""
    key = ", ".join(keys)
    # A part's sums, each over rows of its own, and fewer parts than this.
    end, parts = MAX_MAGNITUDE * MAX_ROWS, 2**20
    columns = [name for name in columns if name not in keys]
    totals = [DUCKDB.sum_rows(Whole(DUCKDB, n, -end, end, HUGEINT), parts) for n in columns]
    sums = ", ".join(f"{_saturate(total)} AS {name}" for name, total in zip(columns, totals))
    return f"SELECT {key}, {sums} FROM {relation} GROUP BY {key} ORDER BY {key}"


def truncate_values(rows: str, value: Value, most: int, unit: str = "unit, part") -> str:
    """Distinct values of ``v0`` of a rows query, ascending as ``v``, with multiplicity ``n``; NULLs
    are left out.
    """
    present = f"SELECT * FROM ({rows}) WHERE v0 IS NOT NULL"
    if most > MOST_PACKED:
        values = _limit_rows(present, unit, most, "random()", "v0")
    elif (word := _draw_word(value)) is not None:
        values = f"SELECT {_read_words(f'min({word}, {most})', value)} AS v FROM ({present}) GROUP BY {unit}"
        return f"SELECT v, count(*) AS n FROM ({values}) GROUP BY v ORDER BY v"
    else:
        values = f"SELECT unnest({choose_values(most)}) AS v0 FROM ({present}) GROUP BY {unit}"
    return f"SELECT v0 AS v, count(*) AS n FROM ({values}) GROUP BY v0 ORDER BY v0"


def truncate_grouped_values(rows: str, truncation: Truncation) -> str:
    """As `truncate_values` within groups: ``code``, ``v`` and ``n`` of a rows query with ``code``
    and ``v0``, by code and value.

    ``truncation`` says how: a unit keeps ``per_group`` values of a group and ``groups`` groups in
    which it
    has any.
    """
    present = f"SELECT * FROM ({rows}) WHERE v0 IS NOT NULL"
    is_packed = truncation.salt is None and truncation.per_group <= MOST_PACKED
    value = truncation.values[0]
    word = _draw_word(value) if is_packed else None
    number = "unnest(vs)" if word is None else _read_words("vs", value)
    values = f"SELECT code, {number} AS v FROM ({collect_values(present, truncation, word=word)})"
    return f"SELECT code, v, count(*) AS n FROM ({values}) GROUP BY code, v ORDER BY code, v"


def _draw_word(value: Value) -> Whole | None:
    """A value of ``v0`` with random bits above it, so that the least words are a random choice; None where there is no
    room for enough of them.
    """
    width = bit_length(value.span)
    spare = min(WORD - width, MOST_RANDOM)
    if spare < LEAST_RANDOM:
        return None
    random = DUCKDB.random_bits("random()", spare) * (1 << width)
    return (random + value.above_low("v0")).to(BIGINT)


def _read_words(words: str, value: Value) -> Whole:
    """Rows of the values in a list of such words."""
    bits = replace(BITS, sql=f"unnest({words})") & ((1 << bit_length(value.span)) - 1)
    return (replace(bits, high=value.span) + value.low).to(BIGINT)


def collect_values(
    present: str, truncation: Truncation, *outputs: str, word: Whole | None = None
) -> str:
    """One row per unit and group that a unit keeps: ``code``, and the list ``vs`` of the values ``v0``
    that it keeps there.

    Args:
        present: a rows query without NULLs.
        truncation: what a unit keeps.
        outputs: further columns, of unit and code.
        word: what is listed in place of a value, of which the least are a random choice.
    """
    unit, most = truncation.unit, truncation.per_group
    # Equal values have to draw numbers of their own, or all or none of them would stay.
    if truncation.salt is not None:
        present = place_rows(present, f"{unit}, code", "v0")
    if truncation.salt is not None or most > MOST_PACKED:
        random = truncation.random_number("code", "place")
        present = _limit_rows(present, f"{unit}, code", most, random, "v0", "drawn")
        picked = "list(v0 ORDER BY drawn)" if truncation.total else "list(v0)"
    else:
        picked = choose_values(most) if word is None else f"min({word}, {most})"
    # Groups are chosen last: one in which a unit has no value takes no place.
    columns = ", ".join([unit, "code", *outputs, f"{picked} AS vs"])
    cells = f"SELECT {columns} FROM ({present}) GROUP BY {unit}, code"
    if truncation.total is not None:
        # The lists are in the order of their draws, so that each beginning is a random choice.
        cells = truncation.limit_total(cells, DUCKDB.column("len(vs)", 1, most))
        return f"SELECT * REPLACE (vs[:kept] AS vs) FROM ({cells})"
    if truncation.groups is None:
        return cells
    random = truncation.random_number("code")
    return _limit_rows(cells, unit, truncation.groups, random, "code")


def place_rows(rows: str, within: str, order: str) -> str:
    """A rows query with the place of each row, from 1, within its unit or cell: what keyed draws tell
    rows apart by. Rows with one order are equal.
    """
    place = f"row_number() OVER (PARTITION BY {within} ORDER BY {order}) AS place"
    return f"SELECT *, {place} FROM ({rows})"


def keyed_fraction(salt: int, *columns: str) -> str:
    """A number from [0, 1) that follows from the columns and the salt.

    DuckDB's hash of several values combines theirs by xor, so that among three the least is no
    uniform choice; the hash of that hash mixes it. No guarantee rests on these numbers, only that
    choices are fair.
    """
    values = ", ".join([f"CAST({salt} AS UBIGINT)", *columns])
    return hash_fraction(f"hash(hash({values}))")


def choose_values(most: int) -> str:
    """An aggregate of at most so many values of ``v0``, at random; where draws are equal the lower
    value is chosen, for the order of rows is not one unit's alone.
    """
    return f"arg_min(v0, {{'random': random(), 'value': v0}}, {most})"


def truncate_rows(
    rows: str, most: int, then: str | None, within: str = "unit, part", random: str | None = None
) -> str:
    """The rows query with at most so many rows of each unit, or of each unit within a group.

    Args:
        then: columns that decide where random numbers are equal: of one unit, rows that are equal
            in them are equal. None where no columns can be compared: twice the random bits then.
        random: the number of a row that decides; fresh ones if it is left out.
    """
    if random is not None:
        return _limit_rows(rows, within, most, random, then or within)
    if then is None:
        return _limit_rows(rows, within, most, "{'first': random(), 'second': random()}", "r")
    return _limit_rows(rows, within, most, "random()", then)


def number_units(rows: str) -> str:
    """A rows query with its units and parts numbered from 0 in a random order instead of named,
    sorted by that number.
    """
    units = "SELECT unit, part, random() AS r FROM (SELECT DISTINCT unit, part FROM kept)"
    number = place_from_zero("row_number() OVER (ORDER BY r)")
    units = f"SELECT unit, part, {number} AS number FROM ({units})"
    # A unit may be NULL, which equals nothing.
    same = " AND ".join(
        f"kept.{name} IS NOT DISTINCT FROM units.{name}" for name in ("unit", "part")
    )
    return (
        # Materialised, for it is read twice and draws at random.
        f"WITH kept AS MATERIALIZED ({rows}), units AS ({units}) "
        f"SELECT kept.* EXCLUDE (unit, part), number FROM kept JOIN units ON {same} ORDER BY number"
    )


def _limit_rows(
    query: str, partition: str, most: int, random: str, then: str, place: str = ""
) -> str:
    """At most so many rows of each partition, at random.

    Args:
        place: name of a column with the place of each row in the order of the draws; none if empty.
        then: columns that decide where random numbers are equal. Without them the order of rows
            would, which other units' rows have a part in, and a keyed draw were no function of rows.
    """
    randomized = f"SELECT *, {random} AS r FROM ({query})"
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {partition} ORDER BY r, {then}) AS rank FROM ({randomized})"
    kept = f", rank AS {place}" if place else ""
    return f"SELECT * EXCLUDE (r, rank){kept} FROM ({ranked}) WHERE rank <= {most}"


def _saturate(total: Whole) -> Whole:
    """A sum within +-2^62: what is beyond is clamped, which moves no two sums further apart
    than they were.
    """
    if total.low >= -MAX_MAGNITUDE and total.high <= MAX_MAGNITUDE:
        return total.to(BIGINT)
    return least(greatest(total, -MAX_MAGNITUDE), MAX_MAGNITUDE).to(BIGINT)
