"""Where a table's rows are stored, to tell without reading them that they have not changed.

DuckDB keeps rows in row groups, each column of a row group in segments, and segments in blocks of
the file. What is written is never changed in place: an update, or a checkpoint that compacts,
writes other blocks and frees the old ones, which may be used again. The catalog says for each
segment in which block it lies, and where; a block begins with the checksum that DuckDB wrote with
it and verifies when it reads it. So a row group whose segments are in the same places of blocks
with the same checksums holds the rows that it held, less those that were deleted since, which are
looked at as well.

This relies on DuckDB's file format, and on no two contents of one block that were both written
having one checksum of 64 bits. That is no keyed digest: who can write the database's blocks bit by
bit, and knows all that is in one, could make another that is taken for it. Rows, and who adds rows
through DuckDB, cannot: they do not choose a block's bytes.

Where that description does not determine rows there is no state: rows that are only in the
write-ahead log, updates not yet written out, texts of 4,096 bytes and more, which are stored
elsewhere, and relations that are no tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpflow.errors import TableError
from dpflow.tables.access import sandbox, sql

#: Types whose least and greatest value in a row group compare with a block's; blocks of others may
#: be in any row group.
_ORDERED = {
    "date",
    "tinyint",
    "smallint",
    "integer",
    "bigint",
    "utinyint",
    "usmallint",
    "uinteger",
    "varchar",
}
#: Texts from this length on are stored outside their segment.
_LONG = 4096
#: Rows that are looked at to find the places of blocks that do not lie in one piece, in multiples
#: of the table.
_SPANS = 4

_SEGMENTS = """
SELECT row_group_id, column_name, count, segment_type, compression, CAST(stats AS VARCHAR), stats, persistent, has_updates,
       block_id, coalesce(additional_block_ids, []), column_path || ' ' || start || ' ' || coalesce(block_offset, -1)
FROM pragma_storage_info({}) WHERE list_contains(?, column_name) ORDER BY row_group_id, column_name, column_path, start
"""


@dataclass
class _RowGroup:
    """One row group: its rows, a digest of where its columns are (None: undetermined), and the
    block column's ranges.
    """

    rows: int
    mark: str | None
    ranges: list[Mapping[str, Any]]

    def may_hold(self, value: Any) -> bool:
        """Whether the block may have rows here."""
        return any(_within(value, stats) for stats in self.ranges)


def states(
    connection: sandbox.Connection,
    relation: sandbox.Relation,
    columns: Collection[str],
    block: sql.Field,
    blocks: Sequence[str],
) -> dict[str, str | None]:
    """For each block what determines the named columns of its rows; None where that cannot be told."""
    groups = _row_groups(connection, relation, columns, block.name)
    if groups is None:
        return dict.fromkeys(blocks)
    left = (
        _left(connection, relation, block, blocks)
        if _has_gaps(connection, relation, groups)
        else {}
    )
    values: Sequence[Any] = [None] * len(blocks)
    if block.kind in _ORDERED:
        query = f"SELECT TRY_CAST(unnest(CAST(? AS VARCHAR[])) AS {block.type})"
        values = [value for (value,) in connection.rows(query, [list(blocks)])]
    found = {}
    for text, value in zip(blocks, values, strict=True):
        where = _together(group for group in groups if value is None or group.may_hold(value))
        there = left.get(text, "all")
        found[text] = None if where is None or there is None else f"{where} {there}"
    return found


def state(
    connection: sandbox.Connection, relation: sandbox.Relation, columns: Collection[str]
) -> str | None:
    """What determines the named columns of all rows of a relation; None where that cannot be told."""
    groups = _row_groups(connection, relation, columns, min(columns))
    return None if groups is None or _has_gaps(connection, relation, groups) else _together(groups)


def _together(groups: Any) -> str | None:
    marks = [group.mark for group in groups]
    return None if None in marks else _digest(marks)


def _digest(what: Any) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _within(value: Any, stats: Mapping[str, Any]) -> bool:
    """Whether a value may lie in a segment with these statistics. Those of texts are their first
    characters.
    """
    least: Any = stats.get("min")
    most: Any = stats.get("max")
    if type(least) is not type(value) or type(most) is not type(value):
        return True
    if not isinstance(value, str):
        return bool(least <= value <= most)
    plain = not stats.get("has_unicode", True) and all(
        t.isprintable() and "\\" not in t for t in (least, most)
    )
    return not plain or (least <= value and value[: len(most)] <= most)


def _row_groups(
    connection: sandbox.Connection, relation: sandbox.Relation, columns: Collection[str], block: str
) -> list[_RowGroup] | None:
    """The row groups in their order; None if the relation is not stored as such."""
    if connection.rows_of(relation) is None:
        return None
    try:
        found = connection.rows(_SEGMENTS.format(sql.literal(relation.quoted)), [list(columns)])
        ids = sorted(
            {
                number
                for row in found
                if row[9] is not None
                for number in (row[9], *row[10])
                if number >= 0
            }
        )
        sums = dict(zip(ids, connection.checksums(ids), strict=True))
        groups: dict[int, _RowGroup] = {}
        segments: dict[int, list[Any]] = {}
        for (
            number,
            name,
            count,
            kind,
            compression,
            text,
            stats,
            written,
            updated,
            first,
            more,
            place,
        ) in found:
            group = groups.setdefault(number, _RowGroup(0, "", []))
            if name == block and kind != "VALIDITY":
                group.rows += count
                group.ranges.append({} if updated else stats)
            if updated or not written or not _determined(kind, compression, stats, first):
                group.mark = None
            where = (
                [(number, sums.get(number)) for number in (first, *more)]
                if first is not None
                else None
            )
            segments.setdefault(number, []).append(
                (name, kind, count, compression, text, place, where)
            )
        if any(
            len({name for name, *_ in listed}) < len(set(columns)) for listed in segments.values()
        ):
            return None  # a column that is computed, not stored
    except TableError:
        return None
    for number, group in groups.items():
        group.mark = None if group.mark is None else _digest(segments[number])
    return list(groups.values())


def _determined(kind: str, compression: str, stats: Mapping[str, Any], block: int | None) -> bool:
    """Whether a segment's place and statistics leave no doubt about its values."""
    if block is not None and block >= 0:
        return kind != "VARCHAR" or (
            compression != "ZSTD" and stats.get("max_string_length", _LONG) < _LONG
        )
    if kind == "VALIDITY":
        return compression == "Empty Validity" or stats["has_null"] != stats["has_no_null"]
    one = "min" in stats and stats["min"] == stats.get("max") and kind != "VARCHAR"
    return compression == "Constant" and (one or not stats["has_no_null"])


def _has_gaps(
    connection: sandbox.Connection, relation: sandbox.Relation, groups: Sequence[_RowGroup]
) -> bool:
    """Whether rows were deleted that are still stored."""
    return sum(group.rows for group in groups) != connection.rows_of(relation)


def _left(
    connection: sandbox.Connection,
    relation: sandbox.Relation,
    block: sql.Field,
    blocks: Sequence[str],
) -> dict[str, str | None]:
    """For each block in a table with deleted rows which places its rows have; None where saying it
    would take too long.
    """
    key = sql.key(block, "block")
    query = (
        f"SELECT {key} AS k, min(rowid) AS low, max(rowid) AS high, count(*) AS n FROM {relation.quoted} AS t "
        f"WHERE {key} IN ({sql.listed(block, blocks)}) GROUP BY 1"
    )
    found: dict[str, str | None] = dict.fromkeys(blocks, "nowhere")
    most = _SPANS * max(1, connection.rows_of(relation) or 0)
    for text, low, high, n in connection.rows(
        f"SELECT {sql.to_text(block, 'k')}, low, high, n FROM ({query})"
    ):
        places = ""
        if n < high - low + 1:
            most -= high - low
            if most < 0:
                found[text] = None
                continue
            bits = f"SELECT sha256(CAST(CAST(bitstring_agg(rowid, {low}, {high}) AS VARCHAR) AS BLOB)) FROM {relation.quoted} AS t"
            places = connection.rows(f"{bits} WHERE {key} IN ({sql.listed(block, [text])})")[0][0]
        found[text] = f"{low} {high} {places}"
    return found
