"""Contribution bounding as SQL: each unit is cut at random to its limits, then exact integer sums.

The cut orders a unit's rows (and then its groups) by a fresh ``random()`` each, and keeps the first ones. The numbers are
independent of everything in the rows, so every subset of the allowed size is equally likely: no bias towards early rows,
small values or some keys, which a hash of values or a row number would bring. A unit's choice depends on its own rows
only, so another unit's presence changes nothing of it. The guarantee needs only that the limits hold, whatever the random
numbers are; they therefore need no seed and no secrecy.

Two forms of the same query. `packed` (fast): a row is one BIGINT word of bit fields, wide enough for the sum of the rows
a unit may keep, so that adding words adds all fields at once and the cut is one hash aggregate, ``arg_min(word, random(), n)``.
`plain` (any width): ``row_number()`` windows. The plan chooses between them, never the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpflow.core.declaration import MAX_MAGNITUDE
from dpflow.errors import PlanRefused

#: The most rows or groups for which an aggregate per unit is used; DuckDB's ``arg_min`` allows less than 1,000,000.
MOST_PACKED = 1000

#: Bits of a word: a BIGINT's, without its sign and one more for safety.
WORD = 62

#: Bits reserved for the number of a private key, of which there is no public bound.
KEY_BITS = 32


@dataclass(frozen=True)
class Value:
    """A value column of the rows query: its grid bounds and its centre, in steps."""

    low: int
    high: int
    centre: int

    @property
    def reach(self) -> int:
        """The most that one row can move a sum."""
        return max(abs(self.low - self.centre), abs(self.high - self.centre))


@dataclass(frozen=True)
class Cut:
    """A bounded grouping over a rows query with the columns ``unit``, ``part``, ``code`` and ``v0``, ``v1``, ...

    Attributes:
        rows: text of the rows query.
        values: its value columns.
        per_group: rows a unit keeps in one group.
        groups: groups a unit keeps, or None if by plan there are no more.
        keys: how many public keys there are, or None for private ones.
    """

    rows: str
    values: tuple[Value, ...]
    per_group: int
    groups: int | None
    keys: int | None

    def check(self) -> None:
        """Raises `PlanRefused` if one unit could move a sum by 2^62 steps, beyond which integers would not be exact."""
        for value in self.values:
            if value.reach * self.per_group > MAX_MAGNITUDE:
                raise PlanRefused(
                    "the declared bounds and limits let one unit move a sum by more than 2^62 steps; "
                    "take a coarser step, tighter bounds or lower limits"
                )

    def query(self) -> str:
        """One row per group that any unit reaches: ``code``, ``row_count``, ``unit_count``, and per value ``s0``, ``c0``, ..."""
        return self.packed() if self.fits() else self.plain()

    def _widths(self) -> list[int]:
        """Bits of the fields of a word, lowest first: rows, then per value its count and its sum above ``low``."""
        sizes = [self.per_group]
        for value in self.values:
            sizes += [self.per_group, self.per_group * (value.high - value.low)]
        return [max(1, size.bit_length()) for size in sizes]

    def fits(self) -> bool:
        """Whether the packed form can be used."""
        bits = KEY_BITS if self.keys is None else self.keys.bit_length()
        picked = max(self.per_group if self.values else 1, self.groups or 1)
        return picked <= MOST_PACKED and sum(self._widths()) + bits <= WORD

    def packed(self) -> str:
        """The query on words: a cell is the sum of a unit's words in one group, with the group's code above it."""
        widths = self._widths()
        shifts = [sum(widths[:i]) for i in range(len(widths) + 1)]
        code = f"code * {1 << shifts[-1]}"
        if self.values:
            words = f"SELECT unit, part, code, {self._word(shifts)} AS word, random() AS r FROM ({self.rows})"
            cell = f"{_pick_sum(self.per_group)} + {code}"
        else:
            words, cell = self.rows, f"least(count(*), {self.per_group}) + {code}"
        cells = f"SELECT unit, part, CAST({cell} AS BIGINT) AS cell FROM ({words}) GROUP BY unit, part, code"
        if self.groups is not None:
            cells = f"SELECT unnest(arg_min(cell, random(), {self.groups})) AS cell FROM ({cells}) GROUP BY unit, part"
        fields = [f"sum((cell >> {shift}) & {(1 << width) - 1})" for shift, width in zip(shifts, widths)]
        measures = [f"CAST({fields[0]} AS BIGINT) AS row_count", "count(*) AS unit_count"]
        for i, value in enumerate(self.values):
            count, total = fields[2 * i + 1], fields[2 * i + 2]
            centred = f"{total} + CAST('{value.low - value.centre}' AS HUGEINT) * {count}"
            measures += [f"{_saturate(centred)} AS s{i}", f"CAST({count} AS BIGINT) AS c{i}"]
        return f"SELECT cell >> {shifts[-1]} AS code, {', '.join(measures)} FROM ({cells}) GROUP BY 1 ORDER BY 1"

    def _word(self, shifts: list[int]) -> str:
        """One row as a word: 1 in the first field, and for each value that is there 1 and its distance from ``low``."""
        word = "1"
        for i, value in enumerate(self.values):
            one, unit = 1 << shifts[2 * i + 1], 1 << shifts[2 * i + 2]
            word += f" + CASE WHEN v{i} IS NULL THEN 0 ELSE (v{i} - ({value.low})) * {unit} + {one} END"
        return f"CAST({word} AS BIGINT)"

    def plain(self) -> str:
        """The query with windows."""
        cells = ["count(*) AS n"]
        measures = ["CAST(sum(n) AS BIGINT) AS row_count", "count(*) AS unit_count"]
        for i, value in enumerate(self.values):
            centre = f"CAST('{value.centre}' AS HUGEINT)"
            cells += [f"coalesce(sum(CAST(v{i} AS HUGEINT) - {centre}), 0) AS t{i}", f"count(v{i}) AS m{i}"]
            measures += [f"{_saturate(f'sum(t{i})')} AS s{i}", f"CAST(sum(m{i}) AS BIGINT) AS c{i}"]
        kept = _first(self.rows, "unit, part, code", self.per_group)
        kept = f"SELECT unit, part, code, {', '.join(cells)} FROM ({kept}) GROUP BY unit, part, code"
        if self.groups is not None:
            kept = _first(kept, "unit, part", self.groups)
        return f"SELECT code, {', '.join(measures)} FROM ({kept}) GROUP BY code ORDER BY code"


def cut_values(rows: str, most: int) -> str:
    """Distinct values ``v0`` of a rows query without NULLs, ascending as ``v``, with multiplicity ``n``."""
    if most <= MOST_PACKED:
        kept = f"SELECT unnest(arg_min(v0, random(), {most})) AS v0 FROM ({rows}) GROUP BY unit, part"
    else:
        kept = _first(rows, "unit, part", most)
    return f"SELECT v0 AS v, count(*) AS n FROM ({kept}) GROUP BY v0 ORDER BY v0"


def cut_rows(rows: str, most: int, within: str = "unit, part") -> str:
    """The rows query with at most so many rows of each unit, or of each unit within a group."""
    return _first(rows, within, most)


def numbered(rows: str) -> str:
    """A rows query with its units and parts numbered from 0 in a random order instead of named, sorted by that number."""
    units = "SELECT unit, part, random() AS r FROM (SELECT DISTINCT unit, part FROM kept)"
    units = f"SELECT unit, part, row_number() OVER (ORDER BY r) - 1 AS number FROM ({units})"
    same = " AND ".join(f"kept.{name} IS NOT DISTINCT FROM units.{name}" for name in ("unit", "part"))
    return (
        f"WITH kept AS MATERIALIZED ({rows}), units AS ({units}) "
        f"SELECT kept.* EXCLUDE (unit, part), number FROM kept JOIN units ON {same} ORDER BY number"
    )


def _first(query: str, partition: str, most: int) -> str:
    """At most so many rows of each partition, at random."""
    drawn = f"SELECT *, random() AS r FROM ({query})"
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {partition} ORDER BY r) AS rank FROM ({drawn})"
    return f"SELECT * EXCLUDE (r, rank) FROM ({ranked}) WHERE rank <= {most}"


def _pick_sum(most: int) -> str:
    """Sum of so many random words of a group. Of two, the ones with the least and the greatest number are random too."""
    if most == 1:
        return "arg_min(word, r)"
    if most == 2:
        return "arg_min(word, r) + CASE WHEN count(*) > 1 THEN arg_max(word, r) ELSE 0 END"
    return f"list_sum(arg_min(word, r, {most}))"


def _saturate(total: str) -> str:
    """A sum within +-2^62: what is above is cut, which moves no two sums further apart than they were."""
    return f"CAST(least(greatest({total}, CAST('{-MAX_MAGNITUDE}' AS HUGEINT)), CAST('{MAX_MAGNITUDE}' AS HUGEINT)) AS BIGINT)"
