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
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.history.anchor import Seen
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.compact_json import encode_json
from dpflow.ledger.storage.statements import (
    Prepared,
    Read,
    Transaction,
    match_columns,
    pick_values,
    prepare_insert,
    prepare_lookup,
)

BUCKET = 16
_HEX = "0123456789abcdef"
_ABSENT = "0" * 64  # a branch's child without items
_LEAF, _BRANCH = "L", "B"  # what a node's text begins with
_ITEM = 128  # hexadecimal digits of an item in a leaf: its path and its digest
_FEW = 8  # further levels that are read when the trie is deeper than expected

_NODES = prepare_lookup(list(schema.node.columns), [schema.node.c.prefix])
STORE_NODE = prepare_insert(schema.node, replace=True)


def digest_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_rows(rows: Sequence[Sequence[Any]]) -> str | None:
    """A digest of rows in any order; None of none."""
    try:
        return digest_text(encode_json(sorted(rows))) if rows else None
    except (
        TypeError
    ):  # SQLite holds any type in any column: what no ledger wrote agrees with no item
        return ""


EMPTY_ROOT = digest_text(_LEAF)


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
        self.primary = tuple(column.name for column in table.primary_key)
        # What takes identity and primary key out of a row, and out of a mapping.
        self.identify_row = pick_values(self.places)
        self.identify = pick_values(self.identity)
        self.primary_of_row = pick_values([self.names.index(name) for name in self.primary])
        self.primary_of = pick_values(self.primary)
        self.take_columns = pick_values(self.names)
        #: Whether an identity has one row at most.
        self.single = not table.info.get("group")
        select = sa.select(*self.columns)
        self.select = Prepared(select.where(match_columns(*(table.c[n] for n in self.identity))))
        order = () if self.single else [table.c[name] for name in self.identity]
        #: All rows, those of a group one after the other.
        self.select_all = Prepared(select.order_by(*order))
        self.lookup = prepare_lookup(self.columns, [table.c[name] for name in self.identity])
        self.insert = prepare_insert(table)
        self.handle = table.info.get("handle")
        if self.handle is not None:
            handle = table.c[self.handle]
            self.by_handle = Prepared(select.where(handle == sa.bindparam("value", type_=sa.Text)))
        if self.listed:
            self.list_all = Prepared(select.where(match_columns(table.c[self.listed])))

    def name_item(self, identity: Sequence[Any]) -> str:
        """The path of the item of a group of rows."""
        return digest_text(encode_json([self.table.name, *identity]))

    def name_list(self, value: Any) -> str:
        """The path of the item that lists what identifies the rows of a column's value."""
        # A list where items have names: no name reads like that, whatever it is called.
        return digest_text(encode_json([self.table.name, [value]]))

    def digest_rows(self, rows: Sequence[Sequence[Any]]) -> str | None:
        """What the item says of its rows; None if there are none."""
        return _digest_rows(rows)

    def digest_list(self, rows: Iterable[Sequence[Any]]) -> str | None:
        """What a list says: the identities of its rows."""
        names = [[row[index] for index in self.places] for row in rows]
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


Key = tuple[str, tuple[Any, ...]]  # a table, and what identifies rows of it


class ReadAhead:
    """Rows that a transaction will ask for, and the nodes above them, to be read with its beginning:
    one statement a table.

    Args:
        wants: tables, and identities of their rows.
    """

    def __init__(self, wants: Iterable[tuple[sa.Table, Mapping[str, Any]]] = ()) -> None:
        #: By table and identity: the path of its item.
        self.paths: dict[Key, str] = {}
        for table, identity in wants:
            form = TABLES[table.name]
            key = form.identify(identity)
            if (table.name, key) not in self.paths:
                self.paths[table.name, key] = form.name_item(key)
        self.prefixes = _name_prefixes(self.paths.values())
        self._tables = list(dict.fromkeys(name for name, _ in self.paths))

    @property
    def reads(self) -> list[Read]:
        """What reads them: first the nodes, then the tables."""
        if not self.paths:
            return []
        named: dict[str, list[dict[str, Any]]] = {name: [] for name in self._tables}
        for name, key in self.paths:
            named[name].append(dict(zip(TABLES[name].identity, key)))
        tables = [(TABLES[name].lookup, {"rows": named[name]}) for name in self._tables]
        return [_read_nodes(self.prefixes), *tables]

    def group_rows(self, results: Sequence[Sequence[Any]]) -> dict[Key, list[Any]]:
        """The rows that the tables' reads found, by table and identity."""
        groups: dict[Key, list[Any]] = {key: [] for key in self.paths}
        for name, rows in zip(self._tables, results):
            for row in rows:
                key = tuple([row[index] for index in TABLES[name].places])
                groups.setdefault((name, key), []).append(row)
        return groups


class LedgerState:
    """Rows of one transaction. Reads are believed until `prove_reads`, which must pass before
    anything leaves. Changes wait until something else is read, or for `store_root`.

    Args:
        root: that of the newest entry.
    """

    #: The entry that left these rows, once the transaction ended: where it is still the newest, the next
    #: transaction can go on from them (`carry_on`). None while one runs, and after one that failed.
    newest: Seen | None = None

    _depth = 2  # of the deepest leaf that this process met: so many levels are read at once

    def __init__(self, transaction: Transaction, root: str) -> None:
        self.root = root
        self.transaction = transaction
        transaction.before_reading = self._send_changes
        # Groups of rows by table and identity, as this transaction leaves them.
        self._rows: dict[Key, list[Any]] = {}
        self._handles: dict[tuple[str, Any], tuple[Any, ...]] = {}
        self._paths: dict[Key, str] = {}
        self._lists: dict[tuple[str, Any], list[Any]] = {}
        # Changes that are not in the database so far, by table and primary key.
        self._inserts: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        self._updates: dict[Key, dict[str, Any]] = {}
        # What changed since the last root: groups of rows, and lists. Each is digested once,
        # however often it changed.
        self._changed: set[Key] = set()
        self._grown: set[tuple[str, Any]] = set()
        # Items as they were read, not proved so far; and as they are to be.
        self._reads: dict[str, tuple[str | None, str]] = {}
        self._writes: dict[str, str | None] = {}
        self._bodies: dict[str, str] = {}
        self._proved: dict[str, str] = {}  # hashes of bodies that were computed before

    def carry_on(self, transaction: Transaction) -> None:
        """Go on in a transaction that found `newest` to be the newest entry."""
        self.newest, self.transaction = None, transaction
        transaction.before_reading = self._send_changes

    # --- rows ---------------------------------------------------------------------------------

    def take_ahead(self, ahead: ReadAhead, results: Sequence[Sequence[Any]]) -> None:
        """Take what `ReadAhead.reads` found; what they did not find is absent."""
        if results:
            self._paths |= ahead.paths
            self._take_nodes(ahead.prefixes, results[0])
            for (name, key), rows in ahead.group_rows(results[1:]).items():
                self._note_rows(TABLES[name], key, rows)

    def rows(self, table: sa.Table, **identity: Any) -> list[Any]:
        """All rows with this identity."""
        return self._read_group(TABLES[table.name], identity)[1]

    def find(self, table: sa.Table, **identity: Any) -> Any:
        """The row with this identity, or None."""
        rows = self._read_group(TABLES[table.name], identity)[1]
        return rows[0] if rows else None

    def _read_group(
        self, form: RowIndex, values: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """What identifies rows among the values of columns, and these rows."""
        key = form.identify(values)
        rows = self._rows.get((form.table.name, key))
        if rows is None:
            rows = self.transaction.rows(form.select, **dict(zip(form.identity, key)))
            self._note_rows(form, key, rows)
        return key, rows

    def find_handle(self, table: sa.Table, value: str) -> Any:
        """The row that has this handle, or None, which proves nothing: it may have been deleted."""
        key = self._handles.get((table.name, value))
        if key is not None:
            return self._rows[table.name, key][0]
        row = self.transaction.first(TABLES[table.name].by_handle, value=value)
        return None if row is None else self.take(table, row)

    def take(self, table: sa.Table, row: Any) -> Any:
        """A row that another statement found: the same, to be proved as those of `find`."""
        form = TABLES[table.name]
        key = tuple([getattr(row, name) for name in form.identity])
        rows = self._rows.get((table.name, key))
        taken = form.select.row._make([getattr(row, name) for name in form.names])
        if rows is None:
            self._note_rows(form, key, [taken])
        # Two rows of one identity: only where somebody has dropped an index of the database.
        elif taken not in rows:
            raise LedgerCorrupt(_explain_row(table.name))
        return taken

    def list_rows(self, table: sa.Table, value: Any) -> list[Any]:
        """All rows whose `RowIndex.listed` column has this value, with none left out, as this
        transaction leaves them.
        """
        form, rows = TABLES[table.name], []
        for row in self._load_list(form, value):
            key = form.table.name, tuple([row[i] for i in form.places])
            # A list is of who is in it: a row that changed since it was read is in `_rows` only.
            if key not in self._rows:
                self.take(table, row)
            rows += self._rows[key]
        return rows

    def _load_list(self, form: RowIndex, value: Any) -> list[Any]:
        name, rows = form.table.name, self._lists.get((form.table.name, value))
        if rows is None:
            rows = self.transaction.rows(form.list_all, **{str(form.listed): value})
            self._lists[name, value] = rows
            # Who is in it is proved by one item; whoever wants what a row says takes the row.
            self._reads[form.name_list(value)] = form.digest_list(rows), name
        return rows

    def insert(self, table: sa.Table, **row: Any) -> None:
        """Add a row, which is proved not to be there."""
        form = TABLES[table.name]
        key, rows = self._read_group(form, row)
        others = self._load_list(form, row[form.listed]) if form.listed else []
        added = form.select.row._make(form.take_columns(row))
        self._inserts.setdefault(table.name, {})[form.primary_of(row)] = row
        self._rows[table.name, key] = [*rows, added]
        self._changed.add((table.name, key))
        if form.listed:
            others.append(added)
            self._grown.add((table.name, row[form.listed]))

    def put(self, table: sa.Table, identity: Mapping[str, Any], **columns: Any) -> None:
        """Change columns of the row with this identity, which is added where there is none."""
        row = self.find(table, **identity)
        if row is None:
            self.insert(table, **identity, **columns)
        else:
            self.update(table, row, **columns)

    def update(self, table: sa.Table, row: Any, **changes: Any) -> Any:
        """Change columns of a row that was read; returns it as it is now."""
        form = TABLES[table.name]
        key, primary = form.identify_row(row), form.primary_of_row(row)
        inserted = self._inserts.get(table.name, {}).get(primary)
        waiting = self._updates.setdefault((table.name, primary), {})
        (waiting if inserted is None else inserted).update(changes)
        changed = row._replace(**{n: v for n, v in changes.items() if n in form.names})
        rows = self._rows[table.name, key]
        self._rows[table.name, key] = (
            [changed] if form.single else [changed if other == row else other for other in rows]
        )
        self._changed.add((table.name, key))
        return changed

    def _note_rows(self, form: RowIndex, key: tuple[Any, ...], rows: list[Any]) -> None:
        self._rows[form.table.name, key] = rows
        self._reads[self._name_item(form, key)] = form.digest_rows(rows), form.table.name
        if form.handle is not None and rows:
            self._handles[form.table.name, getattr(rows[0], form.handle)] = key

    def _name_item(self, form: RowIndex, key: tuple[Any, ...]) -> str:
        path = self._paths.get((form.table.name, key))
        if path is None:
            try:
                path = self._paths[form.table.name, key] = form.name_item(key)
            except TypeError:  # SQLite holds any type in any column
                raise LedgerCorrupt(_explain_row(form.table.name)) from None
        return path

    def _send_changes(self) -> None:
        """Write the rows that were inserted and changed."""
        inserts, self._inserts = self._inserts, {}
        updates, self._updates = self._updates, {}
        for name, rows in inserts.items():
            self.transaction.many(TABLES[name].insert, list(rows.values()))
        for (name, primary), changes in updates.items():
            if changes:
                form = TABLES[name]
                old = {"old_" + column: value for column, value in zip(form.primary, primary)}
                new = {"new_" + column: value for column, value in changes.items()}
                self.transaction.run(form.update(tuple(changes)), **old, **new)

    # --- proofs -------------------------------------------------------------------------------

    def prove_reads(self) -> None:
        """Raises `LedgerCorrupt` unless every row that was read, or found absent, is what the
        newest entry says.
        """
        if not self._reads:
            return
        reads, self._reads = self._reads, {}
        leaves = self._load_paths(reads)
        for path, (digest, name) in reads.items():
            if find_digest(leaves[path], path) != digest:
                raise LedgerCorrupt(_explain_row(name))

    def prove_items(self, items: Sequence[str]) -> None:
        """Raises `LedgerCorrupt` unless the newest entry's root holds these items of `list_items`."""
        leaves = self._load_paths(item[:64] for item in items)
        if any(find_digest(leaves[item[:64]], item[:64]) != item[64:] for item in items):
            raise LedgerCorrupt(
                "a row that new entries left is not what the newest entry's root says; run dpflow ledger verify"
            )

    def store_root(self) -> str:
        """The root with all changes, which are written to the rows and nodes."""
        self.prove_reads()
        self._send_changes()
        for name, key in self._changed:
            rows = self._rows[name, key]
            self._writes[self._name_item(TABLES[name], key)] = TABLES[name].digest_rows(rows)
        for name, value in self._grown:
            rows = self._lists[name, value]
            self._writes[TABLES[name].name_list(value)] = TABLES[name].digest_list(rows)
        self._changed.clear()
        self._grown.clear()
        if self._writes:
            changes, self._writes = self._writes, {}
            # The nodes above them are there: what is written was read before.
            items = [(path, digest) for path, digest in changes.items() if digest is not None]
            changed: dict[str, str] = {}
            self.root = self._change_node("", self.root, sorted(items), changed)
            self._bodies |= changed
            nodes = [{"prefix": prefix, "body": body} for prefix, body in changed.items()]
            self.transaction.many(STORE_NODE, nodes)
        return self.root

    def _load_paths(self, paths: Iterable[str]) -> dict[str, str]:
        """By path: the leaf where it belongs, proved from the root down."""
        paths, leaves = sorted(paths), dict[str, str]()
        self._load_nodes(_name_prefixes(paths))
        self._collect_leaves("", self.root, paths, leaves)
        return leaves

    def _collect_leaves(
        self, prefix: str, expected: str, paths: list[str], leaves: dict[str, str]
    ) -> None:
        """Add the leaves of sorted paths below a node."""
        if expected != _ABSENT and prefix not in self._bodies:
            self._load_nodes(_name_prefixes(paths, len(prefix)))
        body = _LEAF if expected == _ABSENT else self._proved_body(prefix, expected)
        if body[0] == _LEAF:
            LedgerState._depth = max(LedgerState._depth, len(prefix))
            leaves |= dict.fromkeys(paths, body)
            return
        for digit, below in itertools.groupby(paths, itemgetter(len(prefix))):
            self._collect_leaves(prefix + digit, _child(body, digit), list(below), leaves)

    def _load_nodes(self, prefixes: set[str]) -> None:
        missing = prefixes - self._bodies.keys()
        if missing:
            statement, parameters = _read_nodes(missing)
            self._take_nodes(missing, self.transaction.rows(statement, **parameters))

    def _take_nodes(self, prefixes: set[str], rows: Iterable[Any]) -> None:
        # What is not there is remembered, too: an empty text has no valid hash.
        self._bodies |= dict.fromkeys(prefixes, "")
        self._bodies |= {row.prefix: str(row.body) for row in rows}

    def _proved_body(self, prefix: str, expected: str) -> str:
        body = self._bodies.get(prefix, "") or (_LEAF if expected == EMPTY_ROOT else "")
        if self._proved.get(prefix) != expected:
            if digest_text(body) != expected:
                raise LedgerCorrupt(_explain_row("dpflow_node"))
            self._proved[prefix] = expected
        return body

    def _change_node(
        self, prefix: str, expected: str, items: list[tuple[str, str]], changed: dict[str, str]
    ) -> str:
        """The hash of a node with these items put in; what was written is added to ``changed``."""
        body = _LEAF if expected == _ABSENT else self._proved_body(prefix, expected)
        if body[0] == _LEAF:
            for path, digest in items:
                at = 1
                while at < len(body) and body[at : at + 64] < path:
                    at += _ITEM
                after = at + _ITEM if body.startswith(path, at) else at
                body = body[:at] + path + digest + body[after:]
            if len(body) <= 1 + BUCKET * _ITEM:
                return _write_node(prefix, body, changed.__setitem__)
            whole = [body[at : at + _ITEM] for at in range(1, len(body), _ITEM)]
            return build_nodes(whole, changed.__setitem__, prefix)
        level = len(prefix)
        for digit, of_child in itertools.groupby(items, lambda item: item[0][level]):
            at = 1 + 64 * _HEX.index(digit)
            child = self._change_node(prefix + digit, body[at : at + 64], list(of_child), changed)
            body = body[:at] + child + body[at + 64 :]
        return _write_node(prefix, body, changed.__setitem__)


def _name_prefixes(paths: Iterable[str], start: int = 0) -> set[str]:
    """The nodes above these items from a level on, as far down as the trie is expected to go."""
    levels = range(start, LedgerState._depth + 1) or range(start, start + _FEW)
    return {path[:level] for path in paths for level in levels}


def _read_nodes(prefixes: Iterable[str]) -> Read:
    return _NODES, {"rows": [{"prefix": prefix} for prefix in prefixes]}


def find_digest(leaf: str, path: str) -> str | None:
    """What a leaf says of an item, or None."""
    at = leaf.find(path, 1)
    # Not across two items, nor in a digest.
    while at >= 0 and (at - 1) % _ITEM:
        at = leaf.find(path, at + 1)
    return leaf[at + 64 : at + _ITEM] if at >= 0 else None


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


def build_root(items: Iterable[str], store: Callable[[str, str], object]) -> str:
    """The root of all items, in whatever order. Each is kept as the 64 bytes that it is.

    Args:
        store: as of `build_nodes`.

    Raises:
        TypeError: an item of a row that no ledger wrote.
    """
    buckets = [bytearray() for _ in range(256)]
    for item in items:
        if len(item) != _ITEM:
            raise TypeError
        packed = bytes.fromhex(item)
        buckets[packed[0]] += packed
    return _build_packed(buckets, store, "")


def _build_packed(
    buckets: Sequence[bytearray], store: Callable[[str, str], object], prefix: str
) -> str:
    size, step = _ITEM // 2, len(buckets) // 16
    if not step or sum(map(len, buckets)) <= BUCKET * size:
        packed = b"".join(buckets)
        items = sorted(packed[at : at + size] for at in range(0, len(packed), size))
        return build_nodes([item.hex() for item in items], store, prefix)
    parts = [buckets[at : at + step] for at in range(0, len(buckets), step)]
    children = [
        _build_packed(part, store, prefix + digit) if any(part) else _ABSENT
        for digit, part in zip(_HEX, parts, strict=True)
    ]
    return _write_node(prefix, _BRANCH + "".join(children), store)


def list_items(rows_of: Callable[[sa.Table], Iterable[Any]]) -> Iterator[str]:
    """All items of a database: path and digest in one text, in no order.

    Args:
        rows_of: the rows of a table, those of a group one after the other.
    """
    for form in TABLES.values():
        lists: dict[Any, list[Any]] = {}
        rows: Iterable[Any] = rows_of(form.table)
        if not form.single:
            for key, group in itertools.groupby(rows, form.identify_row):
                yield form.name_item(key) + str(form.digest_rows([*group]))
            continue
        for row in rows:
            if form.listed:
                lists.setdefault(getattr(row, form.listed), []).append(row)
            yield form.name_item(form.identify_row(row)) + str(form.digest_rows([row]))
        for value, listed in lists.items():
            yield form.name_list(value) + str(form.digest_list(listed))


def _write_node(prefix: str, body: str, store: Callable[[str, str], object]) -> str:
    store(prefix, body)
    return digest_text(body)


def _child(body: str, digit: str) -> str:
    at = 1 + 64 * _HEX.index(digit)
    return body[at : at + 64]


def _explain_row(table: str) -> str:
    return (
        f"a row of {table} is not what the newest entry of the history left: it was changed, put back or deleted by "
        f"hand, so nothing was charged or given out. Run dpflow ledger verify, and bring the newest copy back"
    )
