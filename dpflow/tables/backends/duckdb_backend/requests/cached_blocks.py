"""A request over named blocks, answered by adding up what single blocks give. Those that are not
cached are read and truncated.

A block's answer is one function of its rows, of the public dimensions and of a secret salt: units,
blocks and groups draw by a keyed hash, and no draw looks at another unit. `add_blocks` takes an
answer from the cache or computes that function, for one block as for many, and whether or not an
answer can be cached. Requests for which blocks do not add up (`can_cache`) never see the cache, and
draw freshly. Types, request and declaration decide that.

With ``cached_partials: sealed`` the cached answer is of older rows, so what chooses it must be
public. It is used if there is one of this name and of the declaration's ``sealed_version``; the name is
of what the request reads, so nothing else that is declared makes an owner's block be read again. An
answer is cached for each named block, however many rows it has. Rows, where they are stored, and
rows of dimensions are never compared. A release that cannot store a block's answer fails, so that
no later one reads other rows of that block.

With ``cached_partials: checked`` private rows do decide between cached and computed:

- Whether there is an entry at all. None is written for a block whose rows its places do not
  determine (a text of 4,096 bytes, an update not yet written out), and the oldest entries go.
- Whether the places and digests of the block's row groups are those of the entry. Row groups
  hold rows of several blocks, so a unit in another block changes them as well.
- Which of the stored rows were deleted, and whether telling that takes too long.
- Whether the places of a public dimension are the same. Which blocks of the file were free when it
  was written depends on the private tables beside it.

A neighbour can turn each of these. It changes nothing, because both sides of the choice are the
same number: what determines an entry determines the rows that it was computed from, and the
function of these rows is what is computed otherwise. So a release changes by what a unit's rows
move in the blocks that hold them, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from dpflow.core.contract.columns import may_name
from dpflow.core.contract.declaration import MAX_MAGNITUDE, Table
from dpflow.core.contract.requests import Groups, SortedValues, ValueCounts
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import block_fingerprints, sql
from dpflow.tables.backends.duckdb_backend.requests.handlers import HANDLERS
from dpflow.tables.backends.duckdb_backend.requests.partial_cache import (
    MOST_RESERVED,
    Part,
    PartialCache,
)
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery
from dpflow.tables.backends.duckdb_backend.requests.sorted_values import offset_of


def can_cache(reading: RequestQuery, request: Any) -> bool:
    """Whether a block's rows and public dimensions decide its sums; finds out which columns are
    read.

    Where private keys are numbered by what others' rows hold, or another private relation is
    truncated by fresh draws, they do not.
    """
    truncate = HANDLERS[type(request)].truncate
    if truncate is None:
        return False
    truncate(reading, request)
    # The cache stores BIGINTs.
    if isinstance(request, SortedValues) and offset_of(
        reading.table.bounded_column(request.column)
    ):
        return False
    by = request.by
    numbered = (
        by is None or request.keys is not None or sql.small_integer(reading.column(by)) is not None
    )
    return numbered and all(
        joined.join.kind == "dimension" for joined in reading.joined.values() if joined.is_needed()
    )


def add_blocks(
    reading: RequestQuery,
    request: Any,
    blocks: Sequence[str],
    partials: PartialCache,
) -> Groups | ValueCounts:
    """The sums of the blocks; those that are not cached in this state are read and truncated."""
    partials.prepare_folder()
    states = _block_states(reading, blocks)
    table = reading.table
    what: tuple[Any, ...] = (reading.canonical_condition, request)
    if partials.sealed:
        what = (_form_of_sealed(reading, request), table.sealed_version, *what)
    else:
        what = (duckdb.__version__, table.stored_form(), reading.column_types(), *what)
    names = {block: partials.entry_name((*what, block)) for block in blocks}

    def read_entries(blocks: Sequence[str]) -> dict[str, Part | None]:
        return {block: partials.read_entry(names[block], states[block]) for block in blocks}

    def missing_blocks() -> list[str]:
        return [block for block in blocks if parts[block] is None]

    parts = read_entries(blocks)
    if missing_blocks():
        with partials.lock_entries():
            if partials.sealed:
                # Somebody else may have sealed them before the lock was ours.
                parts |= read_entries(missing_blocks())
                needed = [names[block] for block in missing_blocks()]
                partials.reserve_space(needed, _most_bytes(table, request))
            for block in missing_blocks():
                part = HANDLERS[type(request)].answer(
                    reading.of_block(block, partials.draw_salt), request
                )
                partials.write_entry(names[block], states[block], part)
                parts[block] = part
    partials.remove_old()
    return merge_parts([part for part in parts.values() if part is not None])


#: What a declaration says that decides no sum of a block.
_UNREAD = ("holdout", "generalisation_only", "trusted_sql", "trusted_server", "neighbours")


def _form_of_sealed(reading: RequestQuery, request: Any) -> dict[str, Any]:
    """What decides a block's sums in the declaration: of columns and joins those that are read. Neither
    another column nor types unseal a block, and no other version of DuckDB does.
    """
    table, form = reading.table, reading.table.stored_form()
    words, used = f"{request!r} {reading.canonical_condition}", set[str]()
    while new := {name for name in table.columns.keys() - used if may_name(words, name)}:
        used |= new
        for column in (table.columns[name] for name in new):
            words += " ".join(["", column.expression or "", *(column.parts or ())])
    joined = {name for name, one in reading.joined.items() if one.is_needed()}
    form["columns"] = {name: form["columns"][name] for name in sorted(used)}
    form["joins"] = [one for one in form["joins"] if one["name"] in joined]
    return {name: value for name, value in form.items() if name not in _UNREAD}


def _most_bytes(table: Table, request: Any) -> int:
    """The most that an entry takes, told from the request; above `MOST_RESERVED` no bound matters."""
    if isinstance(request, SortedValues):
        low, high = table.bounded_column(request.column).grid_bounds()
        numbers = 3 * len(request.keys) * (high - low + 1)
    elif request.by is not None and request.keys is None:
        return MOST_RESERVED
    else:
        columns = 2 + 2 * len(request.values) + len(request.squares)
        numbers = columns * len(request.keys or ("",))
    # Keys and names stand in the header as JSON, 12 bytes for a character at most.
    return 4096 + 12 * len(repr(request)) + 8 * numbers


def _block_states(reading: RequestQuery, blocks: Sequence[str]) -> dict[str, str | None]:
    """For each block what tells whether its sums would be others now; None if nothing does.

    Of sealed blocks nothing does: the owner's version is in their names.
    """
    if reading.table.cached_partials == "sealed":
        return dict.fromkeys(blocks, "sealed")
    assert reading.table.block is not None
    block = reading.own_column(reading.table.block)
    dimensions = [
        joined.fingerprint(reading.connection)
        for joined in reading.joined.values()
        if joined.is_needed()
    ]
    if None in dimensions:
        return dict.fromkeys(blocks)
    fingerprints = block_fingerprints.fingerprint_blocks(
        reading.connection, reading.source, reading.read.keys(), block, blocks
    )
    return {
        text: None if fingerprint is None else " ".join([fingerprint, *map(str, dimensions)])
        for text, fingerprint in fingerprints.items()
    }


def merge_parts(parts: Sequence[Part]) -> Part:
    """The sums of several blocks: groups by their key, values by group and value."""
    first = parts[0]
    if isinstance(first, Groups):
        return _merge_groups([part for part in parts if isinstance(part, Groups)])
    histograms = [part for part in parts if isinstance(part, ValueCounts)]
    values = np.concatenate([part.values for part in histograms])
    grouped = first.codes is not None
    codes = np.concatenate(
        [
            part.codes if part.codes is not None else np.zeros(len(part.values), np.int64)
            for part in histograms
        ]
    )
    order = np.lexsort((values, codes))
    values, codes = values[order], codes[order]
    starts = (
        np.flatnonzero(np.r_[True, (np.diff(values) != 0) | (np.diff(codes) != 0)])
        if len(values)
        else order
    )
    counts = np.concatenate([part.counts for part in histograms])[order]
    totals = np.add.reduceat(counts, starts) if len(values) else counts
    return ValueCounts(values[starts], totals, codes[starts] if grouped else None)


def _merge_groups(parts: Sequence[Groups]) -> Groups:
    """Each block's sums stop at +-2^62, and so do theirs: the number of blocks is public, so one
    unit moves both by no more.
    """
    keys = parts[0].keys
    if any(part.keys != keys for part in parts):
        keys = tuple(sorted({key for part in parts for key in part.keys}))
    index = {key: i for i, key in enumerate(keys)}
    indexes = [
        slice(None) if part.keys == keys else np.array([index[k] for k in part.keys], np.intp)
        for part in parts
    ]

    def total(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        small = max(
            (int(np.abs(array).max()) for array in arrays if len(array)), default=0
        ) < MAX_MAGNITUDE // len(arrays)
        whole = np.zeros(len(keys), np.int64 if small else object)
        for at, array in zip(indexes, arrays, strict=True):
            whole[at] += array if small else array.astype(object)
        return np.clip(whole, -MAX_MAGNITUDE, MAX_MAGNITUDE).astype(np.int64)

    def by_column(named: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
        return {column: total([one[column] for one in named]) for column in named[0]}

    return Groups(
        keys,
        total([part.rows for part in parts]),
        total([part.units for part in parts]),
        by_column([part.sums for part in parts]),
        by_column([part.counts for part in parts]),
        by_column([part.squares for part in parts]),
    )
