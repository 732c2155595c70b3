"""Contribution bounding on Spark: first sums per unit and group, then one hash chooses.

Spark computes a lost partition again, and a random number would then be another one. So nothing here
draws: every choice is a function of the rows and of a nonce, and so is what a repeated stage gives. The
number of a cell is XXH64 of nonce, privacy unit and group, one after the other, and NULL apart. It is the
same on every server and in Python. A group is its place among public keys, and of private keys the key
itself: their places follow from other units' rows. The nonce stands in Spark's plans; that one unit moves
only what is its own does not rest on it, nor on the hash. Where two inputs must not have one hash, as units'
names, or where the input has a secret, it is SHA-256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpflow.core.contract.declaration import MAX_MAGNITUDE
from dpflow.errors import PlanRefused
from dpflow.tables.access.arithmetic import (
    BIGINT,
    MAX_ROWS,
    SPARK,
    Whole,
    bits_fraction,
    choose,
    coalesce,
    greatest,
    least,
)

#: More groups than a declaration allows a unit.
MAX_GROUPS = 2**20
#: Bits of a cell's number: a double holds it exactly.
_BITS = 52
#: Of XXH64, as Spark's function has it.
_SEED = 42
#: Where a sum is split, so that each half times a count fits 64 bits.
_HALF = 31
_MOST_COUNT = 2**31 - 1
#: Up to here 64 bits hold a sum of 2^42 such numbers, more than any table has rows; others are decimals.
_SMALL = 2**20


def tag_text(text: str | None) -> str:
    """A text with its length in bytes, or a sign that there is none: no two lists of these are one text."""
    return "n" if text is None else f"t{len(text.encode())}:{text}"


def read_tags(text: str) -> list[str] | None:
    """The texts whose tags were put together by semicolons; None if one is missing."""
    rest, texts = text.encode(), list[str]()
    while rest:
        if rest.startswith(b"n"):
            return None
        size, rest = rest[1:].split(b":", 1)
        texts.append(rest[: int(size)].decode())
        rest = rest[int(size) + 1 :]
    return texts


def write_tag(column: str) -> str:
    """The same of a column of texts or integers, as an expression."""
    column = f"CAST({column} AS STRING)"
    return f"CASE WHEN {column} IS NULL THEN 'n' ELSE concat('t', CAST(octet_length({column}) AS STRING), ':', {column}) END"


def hash_text(nonce: int, owners: Sequence[str], *words: str) -> str:
    """The hash of a nonce, whose rows they are, and further expressions of texts, in hexadecimal."""
    parts = [f"'{nonce}'", *map(write_tag, owners), *words]
    return f"sha2({_join(parts)}, 256)"


def _join(parts: Sequence[str]) -> str:
    return "concat(" + ", ';', ".join(parts) + ")"


def write_cell_number(nonce: int, owners: Sequence[str], *words: str) -> str:
    """A number of `_BITS` bits for a nonce, whose rows they are, and further expressions of texts or
    BIGINTs. Each is hashed with the hash of those before it as seed, which is cheaper than one text of all.
    """
    inputs = [f"'{nonce}'"]
    for owner in owners:
        # Spark's hash passes over NULL.
        inputs += [f"CASE WHEN {owner} IS NULL THEN 0L ELSE 1L END", f"CAST({owner} AS STRING)"]
    return f"shiftrightunsigned(xxhash64({', '.join([*inputs, *words])}), {64 - _BITS})"


def write_group_number(secret: str, unit: str) -> str:
    """A number of `_BITS` bits for a column with a secret, and a unit's text."""
    digest = f"sha2({_join([secret, write_tag(unit)])}, 256)"
    return f"CAST(conv(substr({digest}, 1, {_BITS // 4}), 16, 10) AS BIGINT)"


def find_cell_fraction(nonce: int, owners: Sequence[str | None], *words: str | int) -> float:
    """`write_cell_number` in Python, as a number in [0, 1). Words that are numbers are BIGINTs."""
    # Here alone: it is installed with the client of Spark.
    from xxhash import xxh64_intdigest

    inputs: list[str | int] = [str(nonce)]
    for owner in owners:
        inputs += [0] if owner is None else [1, owner]
    seed = _SEED
    for one in [*inputs, *words]:
        encoded = one.encode() if isinstance(one, str) else one.to_bytes(8, "little", signed=True)
        seed = xxh64_intdigest(encoded, seed=seed)
    return (seed >> (64 - _BITS)) / 2.0**_BITS


@dataclass(frozen=True)
class SummedColumn:
    """What is added up: an expression of integers in [low, high], less ``centre`` for each value."""

    steps: str
    low: int
    high: int
    centre: int

    @property
    def reach(self) -> int:
        """The largest value above the lower bound."""
        return self.high - self.low

    @property
    def farthest(self) -> int:
        """How far a value may be from the centre."""
        return max(abs(self.low - self.centre), abs(self.high - self.centre))

    def check_magnitude(self, rows: int) -> None:
        """Raises `PlanRefused` if one unit could move a sum by 2^62 steps."""
        if max(self.farthest * rows, self.high, rows * self.reach) > MAX_MAGNITUDE:
            raise PlanRefused(
                "the declared bounds let one unit move a sum by more than 2^62 steps; "
                "take a coarser step, or tighter bounds on values or contributions"
            )


@dataclass(frozen=True)
class UnitBounds:
    """How a unit's rows are truncated.

    Attributes:
        owners: columns of texts that say whose rows they are.
        groups: groups that a unit keeps; None where there are no more.
        rows: rows R that it keeps in each.
        nonce: what the choice is a function of.
        by: the column of the group: ``code``, its place among listed keys, or ``group_key``, the key itself
            as a text or BIGINT, where places would depend on other units' rows.
        total: rows that it keeps in all groups together; None where the other bounds allow no more.
    """

    owners: tuple[str, ...]
    groups: int | None
    rows: int
    nonce: int
    by: str = "code"
    total: int | None = None

    def gather(self, rows: Any) -> Any:
        """The rows with all of a unit in one partition. So Spark moves rows once: by cells, each cell's sums would
        move again to their unit. Sums before the move cost more than they save where a unit's rows are in many files.
        """
        return rows.repartition(*self.owners)

    def keep_groups(self, rows: Any) -> Any:
        """Rows of the groups that their unit keeps: those with the least numbers.

        Args:
            rows: with the columns ``owners`` and ``by``, as `gather` puts them.
        """
        if self.groups is None and self.total is None:
            return rows
        number = write_cell_number(self.nonce, self.owners, self.by)
        window = f"PARTITION BY {', '.join(self.owners)} ORDER BY chosen_by, {self.by}"
        ranked = rows.selectExpr("*", f"{number} AS chosen_by")
        ranked = ranked.selectExpr("*", f"dense_rank() OVER ({window}) AS chosen_as")
        return ranked if self.groups is None else ranked.where(f"chosen_as <= {self.groups}")

    def limit_cells(self, cells: Any) -> Any:
        """Cells with ``kept``, how many of their rows count where a unit's rows in all groups are bounded:
        one, and then its groups are filled up in the order in which they are kept.
        """
        if self.total is None:
            return cells
        further = least(SPARK.column("n", 1, MAX_ROWS), self.rows) - 1
        window = f"PARTITION BY {', '.join(self.owners)}"
        earlier = f"{window} ORDER BY chosen_as ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
        earlier_rows = SPARK.sum_rows(further, MAX_GROUPS)
        used = replace(earlier_rows, sql=f"{earlier_rows} OVER ({earlier})")
        reached = SPARK.column(f"count(*) OVER ({window})", 0, MAX_ROWS)
        spare = SPARK.number(self.total) - reached - coalesce(used, 0)
        return cells.selectExpr("*", f"{greatest(least(spare, further), 0) + 1} AS kept")

    def keep_rows(self, rows: Any, order: Sequence[str]) -> Any:
        """At most R rows of each group that their unit keeps; ``order`` as for `keep_places`."""
        places = self.keep_places(self.keep_groups(self.gather(rows)), order)
        if self.total is None:
            return places
        # Of each group the first row, before any second one.
        turns = "CASE WHEN drawn_as = 1 THEN 0 ELSE 1 END, chosen_as, drawn_as"
        window = f"PARTITION BY {', '.join(self.owners)} ORDER BY {turns}"
        ranked = places.selectExpr("*", f"row_number() OVER ({window}) AS kept_as")
        return ranked.where(f"kept_as <= {self.total}")

    def keep_places(self, rows: Any, order: Sequence[str]) -> Any:
        """At most R rows of each unit and group. Rows have no identity on Spark: a row is its values
        and its place among those of its cell in their order, and equal rows are one another's.
        """
        cell = f"PARTITION BY {', '.join([*self.owners, self.by])}"
        places = rows.selectExpr(
            "*", f"row_number() OVER ({cell} ORDER BY {', '.join(order)}) AS place"
        )
        number = write_cell_number(self.nonce, self.owners, self.by, "CAST(place AS BIGINT)")
        ranked = places.selectExpr("*", f"{number} AS drawn_by")
        ranked = ranked.selectExpr(
            "*", f"row_number() OVER ({cell} ORDER BY drawn_by, place) AS drawn_as"
        )
        return ranked.where(f"drawn_as <= {self.rows}")

    def add_up(self, rows: Any, columns: Sequence[SummedColumn]) -> Any:
        """Per group ``row_count``, ``unit_count``, and for each column the sum ``s0`` and the number
        of values ``c0``.

        Args:
            rows: with the columns ``owners``, ``by``, and ``v0``, ``v1``, ... of integers or NULL.
        """
        grouped = self.gather(rows).groupBy(*self.owners, self.by)
        cells = grouped.agg(*_cell_sums(columns))
        kept = self.limit_cells(self.keep_groups(cells))
        bounded = kept.selectExpr(self.by, *self.bounded_columns(columns))
        return bounded.groupBy(self.by).agg(*self._group_sums(columns))

    def bounded_columns(self, columns: Sequence[SummedColumn]) -> list[str]:
        """Of a cell's sums, what its unit may contribute: ``kept_rows``, and for each column the number
        of values ``kept0`` and their sum around the centre ``total0``.

        Raises:
            PlanRefused: the bound on rows is beyond what 64 bits compute.
        """
        outputs = [f"{self._keep('n')} AS kept_rows"]
        for i, column in enumerate(columns):
            count = self._keep(f"n{i}")
            total = self._mean_sum(i, column) + count * (column.low - column.centre)
            if max(-total.low, total.high) > MAX_MAGNITUDE:
                # No farther by plan: the range does not know that few values have a small sum.
                total = least(greatest(total, -MAX_MAGNITUDE), MAX_MAGNITUDE).to(BIGINT)
            outputs += [f"{count} AS kept{i}", f"{total} AS total{i}"]
        return outputs

    @property
    def _most(self) -> Whole:
        """Rows that count in a cell."""
        return SPARK.number(self.rows) if self.total is None else SPARK.column("kept", 1, self.rows)

    def _keep(self, count: str) -> Whole:
        limits = [self.rows] if self.total is None else [self._most, self.rows]
        return least(SPARK.column(count, 0, MAX_ROWS), *limits)

    def _mean_sum(self, i: int, column: SummedColumn) -> Whole:
        """The sum of a cell's values above the lower bound, or of more than R values R times their
        mean, rounded at random.

        With R or fewer the same arithmetic gives the sum itself. For a unit with 2^31 rows or more in a
        group it is bounded, but no exact mean.
        """
        count = SPARK.column(f"n{i}", 0, MAX_ROWS)
        size, bounded = least(greatest(count, 1), _MOST_COUNT), self._keep(f"n{i}")
        # Where the bound is said again, numbers are within it: a mean is no larger than the largest value.
        if column.reach <= _SMALL:
            total = coalesce(SPARK.column(f"t{i}", 0, column.reach * MAX_ROWS), 0)
            quotient, rest = total // size, total % size
        else:
            # Long division by the size, half by half.
            high, low = (SPARK.column(f"{half}{i}", 0, MAX_MAGNITUDE) for half in "hl")
            rest = (high % size) * 2**_HALF + low
            halves = least(high // size, column.reach >> _HALF) * 2**_HALF
            quotient = halves + least(rest // size, 2 ** (_HALF + 1))
            rest = rest % size
        number = write_cell_number(self.nonce, self.owners, self.by, f"{i}L")
        extra = least(SPARK.random_below(bits_fraction(number, _BITS), size), size - 1)
        # Of no more than R values nothing is rounded.
        extra = choose([(f"{count} > {self._most}", extra)], SPARK.number(0))
        rounded = least((rest * bounded + extra) // size, self.rows)
        return least(least(quotient, column.reach) * bounded + rounded, bounded * column.reach)

    def _group_sums(self, columns: Sequence[SummedColumn]) -> list[Any]:
        functions = _functions()
        rows = SPARK.sum_counts("kept_rows").to(BIGINT)
        sums = [
            functions.expr(str(rows)).alias("row_count"),
            functions.expr("count(*)").alias("unit_count"),
        ]
        for i, column in enumerate(columns):
            end = column.farthest * self.rows
            total = _sum_exactly(SPARK.column(f"total{i}", -end, end))
            count = SPARK.sum_counts(f"kept{i}").to(BIGINT)
            sums += [functions.expr(str(count)).alias(f"c{i}"), total.alias(f"s{i}")]
        return sums


def _cell_sums(columns: Sequence[SummedColumn]) -> list[Any]:
    functions = _functions()
    sums = [functions.expr("count(*)").alias("n")]
    for i, column in enumerate(columns):
        # From the lower bound: never negative.
        above = SPARK.column(f"v{i}", column.low, column.high) - column.low
        sums.append(functions.expr(f"count(v{i})").alias(f"n{i}"))
        if column.reach <= _SMALL:
            sums.append(functions.expr(str(SPARK.sum_rows(above))).alias(f"t{i}"))
            continue
        # In two halves, so that a unit's rows may be many.
        sums += [
            _sum_exactly(above >> _HALF).alias(f"h{i}"),
            _sum_exactly(above & (2**_HALF - 1)).alias(f"l{i}"),
        ]
    return sums


def count_and_first(rows: Any, key: str, names: Sequence[str], size: str) -> Any:
    """Of each key how many rows there are, and the columns' values in one of them."""
    functions = _functions()
    outputs = [functions.expr(f"first({name})").alias(name.strip("`")) for name in names]
    return rows.groupBy(key).agg(functions.expr("count(*)").alias(size.strip("`")), *outputs)


def _sum_exactly(value: Whole) -> Any:
    """A sum of 64-bit integers that saturates at +-2^62 in place of wrapping or failing; of no values 0."""
    total = coalesce(SPARK.sum_rows(value), 0)
    saturated = greatest(least(total, MAX_MAGNITUDE), -MAX_MAGNITUDE).to(BIGINT)
    return _functions().expr(str(saturated))


def _functions() -> Any:
    from pyspark.sql.connect import functions

    return functions
