"""The tables' rows, each proved to be current before anything that was decided on it is committed.

A row alone proves nothing: whoever writes the database can edit it, delete it, or put an earlier
one back. So every entry of the history holds the root of a hash trie over all rows as its
transaction left them. An *item* of the trie is a table and an identity, such as a scope and a
block; its digest is that of the rows which have this identity. The newest entry is sealed and
checked against the anchor, so its root is the truth. What a transaction reads is compared with the
items below that root, absence included, in one statement before the commit; what it writes makes
the root of its own entries.

The trie's shape depends on its items alone: a node with more than `BUCKET` items is a branch of 16,
by the next hexadecimal digit of the item's path, and one with fewer lists them. So whoever has all
rows can compute its root without the nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import (
    Prepared,
    Transaction,
    match_columns,
    prepare_insert,
)

BUCKET = 16
_HEX = "0123456789abcdef"
_ABSENT = "0" * 64  # a branch's child without items
_LEAF, _BRANCH = "L", "B"  # what a node's text begins with
_ITEM = 128  # hexadecimal digits of an item in a leaf: its path and its digest
_FEW = 8  # further levels that are read when the trie is deeper than expected

_NODES = {
    "sqlite": "SELECT prefix, body FROM dpflow_node WHERE prefix IN (SELECT value FROM json_each(?))",
    "postgresql": "SELECT prefix, body FROM dpflow_node WHERE prefix = ANY(%s)",
}
_new = upsert(schema.node).values(
    prefix=sa.bindparam("prefix", type_=sa.Text), body=sa.bindparam("body", type_=sa.Text)
)
STORE_NODE = Prepared(
    _new.on_conflict_do_update(index_elements=["prefix"], set_={"body": _new.excluded.body})
)
_encode = json.JSONEncoder(separators=(",", ":")).encode


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_rows(rows: Sequence[Sequence[Any]]) -> str | None:
    """A digest of rows in any order; None of none."""
    try:
        return _digest_text(_encode(sorted(rows))) if rows else None
    except (
        TypeError
    ):  # SQLite holds any type in any column: what no ledger wrote agrees with no item
        return ""


EMPTY_ROOT = _digest_text(_LEAF)


class RowIndex:
    """How the rows of one table become items: what identifies a group of rows, and what of them is
    digested.
    """

    def __init__(self, table: sa.Table) -> None:
        self.table = table
        self.identity: tuple[str, ...] = table.info["identity"]
        #: A column by which all rows can be listed with nothing left out; None if nobody asks.
        self.listed: str | None = table.info.get("listed")
        apart = table.info.get("apart", ())
        self.columns = [column for column in table.columns if column.name not in apart]
        self.names = tuple(column.name for column in self.columns)
        self.places = [self.names.index(name) for name in self.identity]
        #: Whether an identity has one row at most.
        self.single = not table.info.get("group")
        select = sa.select(*self.columns)
        self.select = Prepared(select.where(match_columns(*(table.c[n] for n in self.identity))))
        self.select_all = Prepared(select)
        self.insert = prepare_insert(table)
        if "handle" in table.info:
            handle = table.c[table.info["handle"]]
            self.by_handle = Prepared(select.where(handle == sa.bindparam("value", type_=sa.Text)))
        if self.listed:
            self.list_all = Prepared(select.where(match_columns(table.c[self.listed])))

    def name_item(self, identity: Sequence[Any]) -> str:
        """The path of the item of a group of rows."""
        return _digest_text(_encode([self.table.name, *identity]))

    def name_list(self, value: Any) -> str:
        """The path of the item that lists what identifies the rows of a column's value."""
        # A list where items have names: no name reads like that, whatever it is called.
        return _digest_text(_encode([self.table.name, [value]]))

    def digest_rows(self, rows: Sequence[Sequence[Any]]) -> str | None:
        """What the item says of its rows; None if there are none."""
        return _digest_rows(rows)

    def digest_list(self, rows: Iterable[Sequence[Any]]) -> str | None:
        """What a list says: the identities of its rows."""
        names = [[row[place] for place in self.places] for row in rows]
        return _digest_rows(names)

    @cache  # noqa: B019
    def update(self, names: tuple[str, ...]) -> Prepared:
        """A change of some columns of one row, found by its primary key."""
        key = [
            column == sa.bindparam("old_" + column.name, type_=column.type)
            for column in self.table.primary_key
        ]
        values = {n: sa.bindparam("new_" + n, type_=self.table.c[n].type) for n in names}
        return Prepared(self.table.update().where(*key).values(values))


TABLES = {
    table.name: RowIndex(table)
    for table in schema.metadata.sorted_tables
    if "identity" in table.info
}


class LedgerState:
    """Rows of one transaction. Reads are believed until `prove_reads`, which must pass before
    anything leaves; writes are collected for `store_root`.

    Args:
        root: that of the newest entry.
    """

    _depth = 2  # of the deepest leaf that this process met: so many levels are read at once

    def __init__(self, transaction: Transaction, root: str) -> None:
        self.root = root
        self.transaction = transaction
        # Groups of rows by table and identity, as they are in the database now.
        self._rows: dict[tuple[str, tuple[Any, ...]], list[Any]] = {}
        self._lists: dict[tuple[str, Any], list[Any]] = {}
        self._grown: set[tuple[str, Any]] = set()  # lists to be digested once, however many rows
        # Items as they were read, not proved so far; and as they are to be.
        self._reads: dict[str, tuple[str | None, str]] = {}
        self._writes: dict[str, str | None] = {}
        self._bodies: dict[str, str] = {}

    # --- rows ---------------------------------------------------------------------------------

    def rows(self, table: sa.Table, **identity: Any) -> list[Any]:
        """All rows with this identity."""
        form = TABLES[table.name]
        key = tuple(identity[name] for name in form.identity)
        known = self._rows.get((table.name, key))
        if known is None:
            known = self.transaction.rows(form.select, **identity)
            self._note_rows(form, key, known)
        return known

    def find(self, table: sa.Table, **identity: Any) -> Any:
        """The row with this identity, or None."""
        rows = self.rows(table, **identity)
        return rows[0] if rows else None

    def find_handle(self, table: sa.Table, value: str) -> Any:
        """The row that has this handle, or None, which proves nothing: it may have been deleted."""
        row = self.transaction.first(TABLES[table.name].by_handle, value=value)
        return None if row is None else self.take(table, row)

    def take(self, table: sa.Table, row: Any) -> Any:
        """A row that another statement found: the same, to be proved as those of `find`."""
        form = TABLES[table.name]
        key = tuple(getattr(row, name) for name in form.identity)
        known = self._rows.get((table.name, key))
        found = form.select.row._make([getattr(row, name) for name in form.names])
        if known is None:
            self._note_rows(form, key, [found])
        # Two rows of one identity: only where somebody has dropped an index of the database.
        elif found not in known:
            raise LedgerCorrupt(_explain_row(table.name))
        return found

    def list_rows(self, table: sa.Table, value: Any) -> list[Any]:
        """All rows whose `RowIndex.listed` column has this value, with none left out."""
        form = TABLES[table.name]
        rows = self._lists.get((table.name, value))
        if rows is None:
            rows = self.transaction.rows(form.list_all, **{str(form.listed): value})
            for row in rows:
                self.take(table, row)
            self._lists[table.name, value] = rows
            self._note(form, form.name_list(value), form.digest_list(rows))
        return rows

    def insert(self, table: sa.Table, **row: Any) -> None:
        """Add a row, which is proved not to be there."""
        form = TABLES[table.name]
        key = tuple(row[name] for name in form.identity)
        rows = self.rows(table, **{name: row[name] for name in form.identity})
        others = self.list_rows(table, row[form.listed]) if form.listed else []
        self.transaction.run(form.insert, **row)
        added = form.select.row._make([row[name] for name in form.names])
        self._put_rows(form, key, [*rows, added])
        if form.listed:
            others.append(added)
            self._grown.add((table.name, row[form.listed]))

    def update(self, table: sa.Table, row: Any, **changes: Any) -> Any:
        """Change columns of a row that was read; returns it as it is now."""
        form = TABLES[table.name]
        key = tuple(getattr(row, name) for name in form.identity)
        old = {"old_" + c.name: getattr(row, c.name) for c in table.primary_key}
        new = {"new_" + name: value for name, value in changes.items()}
        self.transaction.run(form.update(tuple(changes)), **old, **new)
        seen = {name: value for name, value in changes.items() if name in form.names}
        changed = row._replace(**seen)
        rows = [changed if other == row else other for other in self._rows[table.name, key]]
        self._put_rows(form, key, rows)
        return changed

    def _put_rows(self, form: RowIndex, key: tuple[Any, ...], rows: list[Any]) -> None:
        self._rows[form.table.name, key] = rows
        self._writes[form.name_item(key)] = form.digest_rows(rows)

    def _note_rows(self, form: RowIndex, key: tuple[Any, ...], rows: list[Any]) -> None:
        self._rows[form.table.name, key] = rows
        self._note(form, form.name_item(key), form.digest_rows(rows))

    def _note(self, form: RowIndex, path: str, digest: str | None) -> None:
        self._reads[path] = digest, form.table.name

    # --- proofs -------------------------------------------------------------------------------

    def prove_reads(self) -> None:
        """Raises `LedgerCorrupt` unless every row that was read, or found absent, is what the
        newest entry says.
        """
        if not self._reads:
            return
        reads, self._reads = self._reads, {}
        leaves = self._load_paths([*reads, *self._writes])
        for path, (digest, name) in reads.items():
            if leaves[path].get(path) != digest:
                raise LedgerCorrupt(_explain_row(name))

    def store_root(self) -> str:
        """The root with all changes, which are written to the nodes."""
        self.prove_reads()
        for name, value in self._grown:
            rows = self._lists[name, value]
            self._writes[TABLES[name].name_list(value)] = TABLES[name].digest_list(rows)
        self._grown.clear()
        if self._writes:
            changes, self._writes = self._writes, {}
            items = [(path, digest) for path, digest in changes.items() if digest is not None]
            changed: dict[str, str] = {}
            self.root = self._change_node("", self.root, sorted(items), changed)
            self._bodies |= changed
            self.transaction.many(
                STORE_NODE, [{"prefix": prefix, "body": body} for prefix, body in changed.items()]
            )
        return self.root

    def _load_paths(self, paths: Sequence[str]) -> dict[str, dict[str, str]]:
        """By path: the items of the leaf where it belongs."""
        levels, leaves = range(LedgerState._depth + 1), {}
        self._read_nodes({path[:level] for path in paths for level in levels})
        for path in paths:
            prefix, body = "", self._proved_body("", self.root)
            while body[0] == _BRANCH:
                child = _child(body, path[len(prefix)])
                prefix = path[: len(prefix) + 1]
                if child == _ABSENT:
                    body = _LEAF
                else:
                    if prefix not in self._bodies:
                        deeper = range(len(prefix), len(prefix) + _FEW)
                        self._read_nodes({path[:level] for level in deeper})
                    body = self._proved_body(prefix, child)
            LedgerState._depth = max(LedgerState._depth, len(prefix))
            leaves[path] = _leaf_items(body)
        return leaves

    def _read_nodes(self, prefixes: set[str]) -> None:
        missing = sorted(prefixes - self._bodies.keys())
        dialect = self.transaction.dialect
        asked: Any = _encode(missing) if dialect == "sqlite" else missing
        found = dict(self.transaction.text(_NODES[dialect], (asked,)))
        # What is not there is remembered, too: an empty text has no valid hash.
        self._bodies |= {prefix: str(found.get(prefix, "")) for prefix in missing}

    def _proved_body(self, prefix: str, expected: str) -> str:
        body = self._bodies.get(prefix, "") or (_LEAF if expected == EMPTY_ROOT else "")
        if _digest_text(body) != expected:
            raise LedgerCorrupt(_explain_row("dpflow_node"))
        return body

    def _change_node(
        self, prefix: str, expected: str, items: list[tuple[str, str]], changed: dict[str, str]
    ) -> str:
        """The hash of a node with these items put in; what was written is added to ``changed``."""
        body = _LEAF if expected == _ABSENT else self._proved_body(prefix, expected)
        if body[0] == _LEAF:
            merged = sorted({**_leaf_items(body), **dict(items)}.items())
            return build_nodes(
                [path + digest for path, digest in merged], changed.__setitem__, prefix
            )
        children = [body[at : at + 64] for at in range(1, 1 + 16 * 64, 64)]
        for place, digit in enumerate(_HEX):
            of_child = [item for item in items if item[0][len(prefix)] == digit]
            if of_child:
                children[place] = self._change_node(
                    prefix + digit, children[place], of_child, changed
                )
        return _write_node(prefix, _BRANCH + "".join(children), changed.__setitem__)


def build_nodes(items: Sequence[str], store: Callable[[str, str], object], prefix: str = "") -> str:
    """The hash of the trie below a prefix.

    Args:
        items: path and digest of each item in one text, sorted.
        store: takes the prefix and the text of every node.
    """
    if len(items) <= BUCKET:
        return _write_node(prefix, _LEAF + "".join(items), store)
    children, start, level = [], 0, len(prefix)
    for digit in _HEX:
        end = start
        while end < len(items) and items[end][level] == digit:
            end += 1
        children.append(
            build_nodes(items[start:end], store, prefix + digit) if end > start else _ABSENT
        )
        start = end
    return _write_node(prefix, _BRANCH + "".join(children), store)


def list_items(rows_of: Callable[[sa.Table], Iterable[Any]]) -> Iterator[str]:
    """All items of a database: path and digest in one text, in no order."""
    for form in TABLES.values():
        lists: dict[Any, list[Any]] = {}
        groups: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows_of(form.table):
            key = tuple([row[place] for place in form.places])
            if form.listed:
                lists.setdefault(getattr(row, form.listed), []).append(row)
            if form.single:
                yield form.name_item(key) + str(form.digest_rows([row]))
            else:
                groups.setdefault(key, []).append(row)
        for key, rows in groups.items():
            yield form.name_item(key) + str(form.digest_rows(rows))
        for value, rows in lists.items():
            yield form.name_list(value) + str(form.digest_list(rows))


def _write_node(prefix: str, body: str, store: Callable[[str, str], object]) -> str:
    store(prefix, body)
    return _digest_text(body)


def _leaf_items(body: str) -> dict[str, str]:
    return {body[at : at + 64]: body[at + 64 : at + _ITEM] for at in range(1, len(body), _ITEM)}


def _child(body: str, digit: str) -> str:
    at = 1 + 64 * _HEX.index(digit)
    return body[at : at + 64]


def _explain_row(table: str) -> str:
    return (
        f"a row of {table} is not what the newest entry of the history left: it was changed, put back or deleted by "
        f"hand, so nothing was charged or given out. Run dpflow ledger verify, and bring the newest copy back"
    )
