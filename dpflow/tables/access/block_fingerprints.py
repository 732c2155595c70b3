"""Where a table's rows are stored, to tell without decoding them that they have not changed.

DuckDB keeps rows in row groups, each column of a row group in segments, and segments in blocks of
the file. What is written is never changed in place: an update, or a checkpoint that compacts,
writes other blocks and frees the old ones, which may be used again. The catalog says for each
segment in which block it lies, and where. So a row group whose segments are in the same places of
blocks with the same SHA-256 holds the rows that it held, less those that were deleted since, which
are looked at as well.

The checksum that DuckDB writes with a block would not do. It is the exclusive or of each word of 8
bytes times one odd number. So it stays the same if two words change places, if two equal words
become two other equal ones, or if the first bits of two words are turned. Two rows of one person
that are corrected together are enough.

The catalog's statistics of segments are never read. DuckDB cannot write a least value that is no
date, raises an internal error instead and takes the whole database with it: one row would decide
whether there is a release. What they were read for is asked of the rows, in expressions that no row
can make fail, and no change that they showed is missed:

- Which row groups hold rows of a block: a query of the block column finds their numbers, and which
  numbers are a row group's follows from those that rows have (`_Layout._place_groups`).
- A segment without a block of the file has one value, or says of all its rows whether they are
  NULL. DuckDB keeps that value in the statistics; here any row of the segment that is left tells
  it (`dpflow.tables.access.sql.exact_text`), and if none is left there is nothing to tell.
- Texts too long for a segment: DuckDB answers a condition on their length from the same statistics.
- Of segments in a block the statistics repeat what is in the block, and its digest covers that.

This relies on DuckDB's file format, and on nobody knowing two contents of one SHA-256.

Where that description does not determine rows there is no fingerprint: rows that are only in the
write-ahead log, updates not yet written out, row groups whose numbers deletions leave open, texts of 4,096 bytes and more, which are stored
elsewhere, relations that are no tables, and tables with an ENUM: DuckDB writes the least and
greatest value of one whenever it lists segments, and ends the session if files brought a code that
is no value. Of types that no release reads (lists, structs) it
determines which rows are NULL, the only thing that a condition can ask of them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dpflow.errors import TableError, TableUnreadable
from dpflow.tables.access import isolated_database, sql

#: Texts from this length on are stored outside their segment.
_LONG = 4096
#: Rows that are looked at to find the places of blocks that do not lie in one piece, in multiples
#: of the table.
_SPANS = 4


@dataclass
class _Segment:
    """A piece of one column in one row group.

    Attributes:
        first, rows: numbers of its first row and of its rows.
        is_validity: whether it says which rows of a column are NULL.
        constant: whether it has no block of the file, but one value for all its rows.
        facts: what else the catalog says.
        blocks: the blocks of the file that it lies in.
        nulls_vary: whether some of its rows may be NULL and others not.
    """

    column: str
    first: int
    rows: int
    is_validity: bool
    constant: bool
    facts: tuple[Any, ...]
    blocks: tuple[int, ...]
    nulls_vary: bool = False


@dataclass
class _RowGroup:
    """One row group: the number of its first row, its rows, and whether its segments determine them."""

    first: int
    rows: int = 0
    determined: bool = True
    segments: list[_Segment] = field(default_factory=list)


class _Layout:
    """The row groups of a stored table, as far as some of its columns go."""

    def __init__(
        self,
        connection: isolated_database.Connection,
        relation: isolated_database.Relation,
        columns: Collection[str],
    ) -> None:
        self.connection, self.relation = connection, relation
        self.fields = {name: relation.fields[name] for name in columns}
        self.groups: list[_RowGroup] = []
        self._constants: dict[int, Any] = {}
        self._blocks: dict[int, bytes] = {}
        self._digests: dict[int, bytes | None] = {}
        self.rows = connection.count_stored_rows(relation)

    def read_catalog(self, counted: str) -> bool:
        """Read where segments are; false if the relation is not stored as such.

        Args:
            counted: the column whose segments say how many rows a row group has.
        """
        if self.rows is None or self._has_enum():
            return False
        listed = self.connection.fetch_rows(
            sql.storage_query(self.relation.quoted), [list(self.fields)]
        )
        by_number: dict[int, list[Any]] = {}
        for number, *row in listed:
            by_number.setdefault(number, []).append(row)
        for rows in by_number.values():
            before = self.groups[-1].first + self.groups[-1].rows if self.groups else 0
            self.groups.append(self._read_group(_RowGroup(before), rows, counted))
        self._place_groups()
        # A column without segments is computed, not stored.
        return all({s.column for s in g.segments} == set(self.fields) for g in self.groups)

    def _has_enum(self) -> bool:
        """Whether any column of the table, read or not, has an ENUM in its type."""
        return any("ENUM(" in field.type for field in self.relation.fields.values())

    def _read_group(self, group: _RowGroup, rows: list[Any], counted: str) -> _RowGroup:
        offsets: dict[str, int] = {}
        for column, path, kind, count, compression, written, updated, offset, numbers in rows:
            depth, in_file = path.count(","), numbers[0] >= 0
            is_validity = kind == "VALIDITY" and depth == 1
            is_inner = depth > 0 and not is_validity  # of a list or struct
            # Inner and compressed texts may lie outside the segment's blocks.
            outside = kind == "VARCHAR" and (is_inner or compression == "ZSTD")
            constant = not in_file and compression == "Constant"
            complete = in_file or constant or compression == "Empty Validity"
            if updated or not written or outside or not complete:
                group.determined = False
            first = group.first + (0 if is_inner else offsets.get(path, 0))
            offsets[path] = offsets.get(path, 0) + count
            if column == counted and depth == 0:
                group.rows += count
            facts = (column, path, kind, count, compression, offset)
            blocks = tuple(number for number in numbers if number >= 0)
            group.segments.append(
                _Segment(column, first, count, is_validity, constant, facts, blocks)
            )
        for column in self.fields:
            data = [s for s in group.segments if s.column == column and not s.is_validity]
            marks = [s for s in group.segments if s.column == column and s.is_validity]
            for s in data:
                s.nulls_vary = len(marks) != 1 or not marks[0].constant
            # One value, and NULLs that lie nowhere: no compression is known to do that.
            if any(s.constant for s in data) and any("Empty Validity" in s.facts for s in marks):
                group.determined = False
        return group

    def _place_groups(self) -> None:
        """Find the number of each row group's first row, which the catalog does not tell.

        Groups are numbered in their order. Once all rows of one are deleted it is dropped, and the
        numbers of those behind it stay. What was dropped is nobody's: where there is a row of the number that
        follows a group's last one, the next group begins there. Elsewhere, as long as no stored row is
        deleted, the rows' own numbers tell. If some are, no group from there on is determined.
        """
        firsts = [group.first for group in self.groups]
        query = f"SELECT rowid FROM {self.relation.quoted} WHERE rowid IN (SELECT unnest(?))"
        there = {number for (number,) in self.connection.fetch_rows(query, [firsts])}
        if there.issuperset(firsts):
            return
        if self.has_gaps():
            start = next(i for i, first in enumerate(firsts) if first not in there)
            for group in self.groups[start:]:
                group.determined = False
            return
        query = sql.rows_at_query(self.relation.quoted)
        for group, (number,) in zip(
            self.groups, self.connection.fetch_rows(query, [firsts]), strict=True
        ):
            for segment in group.segments:
                segment.first += number - group.first
            group.first = number

    def has_gaps(self) -> bool:
        """Whether rows were deleted that are still stored."""
        return sum(group.rows for group in self.groups) != self.rows

    def groups_between(self, low: int, high: int) -> range:
        """Places of the row groups that hold the rows of these numbers."""
        firsts = [group.first for group in self.groups]
        return range(bisect_right(firsts, low) - 1, bisect_right(firsts, high))

    def mark_long_texts(self) -> None:
        """Row groups with a text that its segment may not hold are not determined."""
        long = [f"strlen({f.sql}) >= {_LONG}" for f in self.fields.values() if f.kind == "varchar"]
        if long:
            width = max((group.rows for group in self.groups), default=1)
            query = sql.row_spans_query(self.relation.quoted, width, " OR ".join(long))
            for _, low, high, _ in self.connection.fetch_rows(query):
                for index in self.groups_between(low, high):
                    self.groups[index].determined = False

    def digest_groups(self, indexes: Iterable[int]) -> str | None:
        """A digest of these row groups in their order; None if one of them is not determined."""
        indexes = sorted(set(indexes))
        if not all(self.groups[index].determined for index in indexes):
            return None
        self.read_groups(indexes)
        whole = hashlib.sha256()
        for index in indexes:
            digest = self._digest_group(index)
            if digest is None:
                return None
            whole.update(digest)
        return whole.hexdigest()

    def _digest_group(self, index: int) -> bytes | None:
        """A digest of one determined row group that was read; None if its blocks could not be."""
        if index not in self._digests:
            group, digest = self.groups[index], None
            blocks = {number for segment in group.segments for number in segment.blocks}
            if blocks <= self._blocks.keys():
                marks = [
                    (s.facts, [(n, self._blocks[n]) for n in s.blocks], self._constants.get(id(s)))
                    for s in group.segments
                ]
                digest = hashlib.sha256(repr((group.first, marks)).encode()).digest()
            self._digests[index] = digest
        return self._digests[index]

    def read_groups(self, indexes: Iterable[int]) -> None:
        """Read the blocks of the file and the constant segments' values of these row groups, as far
        as they were not read yet, all at once; a group that is not determined needs none.
        """
        segments = [
            s
            for index in sorted(set(indexes))
            for s in self.groups[index].segments
            if self.groups[index].determined
        ]
        constants = [s for s in segments if s.constant and id(s) not in self._constants]
        self._constants |= zip(map(id, constants), self._constant_values(constants), strict=True)
        blocks = sorted({number for s in segments for number in s.blocks} - self._blocks.keys())
        with suppress(TableUnreadable):
            self._blocks |= zip(blocks, self.connection.digest_blocks(blocks), strict=True)

    def _constant_values(self, segments: Sequence[_Segment]) -> list[Any]:
        """The value of each constant segment, or of a validity segment whether it is of NULLs."""
        texts = {s.column: sql.exact_text(self.fields[s.column]) for s in segments}
        if not texts:
            return []
        query = f"SELECT rowid, {', '.join(texts.values())} FROM {self.relation.quoted} AS t"
        numbers = sorted({s.first for s in segments})
        rows = self.connection.fetch_rows(f"{query} WHERE rowid IN (SELECT unnest(?))", [numbers])
        first_rows = {number: dict(zip(texts, values, strict=True)) for number, *values in rows}
        answer: list[Any] = []
        for s in segments:
            row = first_rows.get(s.first)
            value = None if row is None else row[s.column]
            # Its first row was deleted, or is NULL and others are not: then all its rows are asked.
            if row is None or (value is None and s.nulls_vary):
                query = sql.least_between(self.relation.quoted, texts[s.column], s.first, s.rows)
                value = self.connection.fetch_rows(query)[0][0]
            answer.append(value is None if s.is_validity else value)
        return answer


def _read_layout(
    connection: isolated_database.Connection,
    relation: isolated_database.Relation,
    columns: Collection[str],
    counted: str,
) -> _Layout | None:
    """The layout of a table; None if the relation is not stored as one, or cannot be looked at."""
    layout = _Layout(connection, relation, columns)
    try:
        if not layout.read_catalog(counted):
            return None
    except TableError:
        return None
    layout.mark_long_texts()
    return layout


def fingerprint_blocks(
    connection: isolated_database.Connection,
    relation: isolated_database.Relation,
    columns: Collection[str],
    block: sql.Field,
    blocks: Sequence[str],
) -> dict[str, str | None]:
    """For each block what determines the named columns of its rows; None where that cannot be told.

    Args:
        columns: names as in the catalog; the block's column is one of them.
    """
    layout = _read_layout(connection, relation, columns, block.name)
    if layout is None:
        return dict.fromkeys(blocks)
    key = sql.key(block, "block")
    width = max((group.rows for group in layout.groups), default=1)
    condition = f"{key} IN ({sql.write_keys(block, blocks)})"
    query = sql.row_spans_query(relation.quoted, width, condition, key)
    spans: dict[str, list[tuple[int, int, int]]] = {text: [] for text in blocks}
    for text, *span in connection.fetch_rows(sql.with_text_key(query, block)):
        spans[text].append((span[0], span[1], span[2]))
    steps = _SPANS * max(1, layout.rows or 0)  # rows that may be looked at for places
    gaps = layout.has_gaps()
    answer: dict[str, str | None] = dict.fromkeys(blocks, "nowhere")
    indexes = {
        text: {i for low, high, _ in pieces for i in layout.groups_between(low, high)}
        for text, pieces in spans.items()
    }
    layout.read_groups(set().union(*indexes.values()))
    for text, pieces in spans.items():
        if not pieces:
            continue
        content = layout.digest_groups(indexes[text])
        low, high = min(piece[0] for piece in pieces), max(piece[1] for piece in pieces)
        rows: str | None = "all"
        if gaps:  # of rows that are still stored, those that were not deleted
            rows = f"{low} {high}"
            if sum(piece[2] for piece in pieces) < high - low + 1:
                steps -= high - low
                condition = f"{key} IN ({sql.write_keys(block, [text])})"
                query = sql.row_places_query(relation.quoted, low, high, condition)
                rows = f"{rows} {connection.fetch_rows(query)[0][0]}" if steps >= 0 else None
        answer[text] = None if content is None or rows is None else f"{content} {rows}"
    return answer


def fingerprint_relation(
    connection: isolated_database.Connection,
    relation: isolated_database.Relation,
    columns: Collection[str],
) -> str | None:
    """What determines the named columns of all rows of a relation; None where that cannot be told."""
    layout = _read_layout(connection, relation, columns, min(columns))
    if layout is None or layout.has_gaps():
        return None
    return layout.digest_groups(range(len(layout.groups)))
