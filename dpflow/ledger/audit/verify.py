"""Verification: the history through the rules, and every row of every table against what they
leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import sqlalchemy as sa

from dpflow.counted import counted
from dpflow.errors import InvalidInput, LedgerCorrupt
from dpflow.ledger.audit.recheck import Recheck
from dpflow.ledger.audit.release_state import ReleaseState, digest_values
from dpflow.ledger.books.records import stored_json
from dpflow.ledger.books.releases import WITH_KEY, open_result
from dpflow.ledger.books.sessions import ANSWERS_WITH_KEYS, open_answer, read_verdict
from dpflow.ledger.history.anchor import WrapKeyMissing
from dpflow.ledger.history.cipher import Cipher, strip_salt
from dpflow.ledger.history.state import (
    EMPTY_ROOT,
    TABLES,
    LedgerState,
    build_root,
    list_items,
)
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction

ENTRIES = Prepared(sa.select(schema.entry).order_by(schema.entry.c.seq))
_RELEASE = TABLES["dpflow_release"]
#: The columns that are proved, in their order, then what is encrypted and its key.
RELEASES = Prepared(
    sa.select(
        *_RELEASE.columns, schema.release.c.result, schema.release.c.secret, schema.key.c.wrapped
    ).outerjoin(schema.key, WITH_KEY)
)
_META = Prepared(sa.select(schema.meta))
_KEYS = Prepared(sa.select(schema.key))
_NODES = Prepared(sa.select(schema.node))
#: Tables that the rules keep whole, with what is said of a row that is another.
KEPT = {
    schema.scope: "scope {} is not what was granted",
    schema.proposal: "the grant that waits for {} is not what was proposed",
    schema.account: "account {} does not hold what its charges add up to",
    schema.witness: "what the witness of {} has seen is not what the history says",
    schema.data: "what is known of {} is not what its releases left",
    schema.verdict: "verdict {} is not the one that was told",
}
_CHANGED = {
    "result_digest": "the result of release {id} is not the one that was settled",
    "secret_digest": "the state of session {id} is not the one its last answer left",
}


def _open_key(cipher: Cipher, row: Any) -> object:
    return cipher.open_key(*row)


def _open_result(cipher: Cipher, row: Any) -> str:
    return open_result(cipher, row, row.result, row.wrapped)


def kept_rows(table: sa.Table, expected: Recheck) -> Iterable[tuple[Any, ...]]:
    """The rows that the rules leave of a table that they keep whole, by its columns."""
    if table is schema.account:
        return (
            (scope, block, *vars(cost).values()) for scope, block, cost in expected.account_rows()
        )
    if table is schema.witness:
        return ((name, size, len(seqs)) for name, (size, seqs) in expected.watched.items())
    if table is schema.verdict:
        return ((*key, *words) for key, words in expected.verdicts.items())
    by_name = {schema.scope: expected.scopes, schema.proposal: expected.proposals}
    columns = TABLES[table.name].names[1:]
    rows = by_name.get(table, expected.data).items()
    return ((name, *(row[column] for column in columns)) for name, row in rows)


def list_salted(transaction: Transaction, cipher: Cipher) -> Iterator[tuple[str, str, str]]:
    """Release or session, query ("" of a result) and salted text of everything that was settled or answered."""
    for row in transaction.stream(RELEASES):
        if row.result is not None:
            text = cipher.open_key(row.id, 0, row.wrapped).decrypt(row.result, "result")
            yield row.id, "", text
    for row in transaction.stream(ANSWERS_WITH_KEYS):
        yield row.session_id, row.query, open_answer(cipher, row)


class TouchedRows(Protocol):
    """The rows that a part of the history touched."""

    def rows_of(self, table: sa.Table, expected: Recheck) -> Iterable[Any]:
        """Those of a table, as `TableCheck` compares them."""

    def key_rows(self) -> Iterable[Any]:
        """Those of the table of keys."""


class TableCheck:
    """Compares rows with what the rules left, table by table, and computes the root they give.

    Args:
        cipher: opens results, answers and states.
        seal: the commitment to a session's secret state.
        touched: the rows to compare; None for every row.
    """

    def __init__(
        self,
        transaction: Transaction,
        expected: Recheck,
        cipher: Cipher,
        seal: Callable[[str], str],
        touched: TouchedRows | None = None,
    ) -> None:
        self.problems: list[str] = []
        self._touched = touched
        self._transaction, self._expected, self._seal = transaction, expected, seal
        self._cipher = cipher.read_many()

    def find_problems(self, meta: Mapping[str, str]) -> list[str]:
        """Every difference between the tables and what the history says."""
        # An index may be damaged while every row of its table still reads right.
        if (
            self._touched is None
            and self._transaction.dialect == "sqlite"
            and self._transaction.text("PRAGMA integrity_check(1)") != [("ok",)]
        ):
            self.problems.append(
                "the file is damaged, though its history may be whole: export it and import that, or bring the newest copy back"
            )
        stored = {row.name: row.value for row in self._transaction.rows(_META)}
        for name in sorted(meta.keys() | stored.keys(), key=repr):
            if meta.get(name) != stored.get(name):
                self.problems.append(f"{name} in dpflow_meta is not this ledger's")
        items, nodes, root = list_items(self._rows_of), set[bytes](), ""
        try:
            if self._touched is not None:
                self._prove_items([*items])
            else:
                root = build_root(items, lambda *node: nodes.add(digest_values(node)))
        except TypeError:
            self.problems.append("a row holds a value of a type that no ledger writes")
        self._compare_keys()
        if self._touched is None and not self.problems:
            self._compare_nodes(root, nodes)
        return self.problems

    def _prove_items(self, items: list[str]) -> None:
        """What was compared is below the newest entry's root."""
        try:
            LedgerState(self._transaction, self._expected.root or EMPTY_ROOT).prove_items(items)
        except LedgerCorrupt as error:
            self.problems.append(str(error))

    def _rows_of(self, table: sa.Table) -> Any:
        """The rows of a table as they come, each compared."""
        rows = self._stored_rows(table)
        if table in KEPT:
            return self._compare_kept(table, rows)
        compare: Any = getattr(self, "_compare_" + table.name.removeprefix("dpflow_"))
        return compare(rows)

    def _stored_rows(self, table: sa.Table) -> Iterator[Any]:
        if self._touched is not None:
            return iter(self._touched.rows_of(table, self._expected))
        statements = {schema.release: RELEASES, schema.answer: ANSWERS_WITH_KEYS}
        return self._transaction.stream(statements.get(table, TABLES[table.name].select_all))

    def _compare_kept(self, table: sa.Table, rows: Iterator[Any]) -> Iterator[Any]:
        width, sentence = len(table.primary_key), KEPT[table]
        expected = {row[:width]: row for row in kept_rows(table, self._expected)}
        for row in rows:
            # A key is there once, so what is taken out cannot be found a second time.
            if expected.pop(row[:width], None) != tuple(row):
                self._tell(sentence, row[:width])
            yield row
        for key in sorted(expected, key=repr):
            self._tell(sentence, key)

    def _compare_slot(self, rows: Iterator[Any]) -> Iterator[Any]:
        expected = self._expected.slots
        for row in rows:
            slot = digest_values(tuple(row))
            if slot not in expected:
                self._tell("task instance {} did not ask for that", tuple(row))
            # A slot is there once, so what is taken out cannot be found a second time.
            expected.discard(slot)
            yield row
        if expected:
            gone = counted(len(expected), "task instance")
            self.problems.append(f"{gone} asked for a release, and the row is gone")

    def _compare_answer(self, rows: Iterator[Any]) -> Iterator[Any]:
        expected, visible = self._expected.answers, TABLES["dpflow_answer"].select.row
        for row in rows:
            key = row.session_id, row.query
            # An answer is there once, so what is taken out cannot be found a second time.
            given = expected.pop(key, None)
            if given != (row.version, row.answer_digest) or self._is_other(self._open_told, row):
                self._tell("answer {} is not the one that was given", key)
            yield visible(*[getattr(row, name) for name in visible._fields])
        for key in sorted(expected, key=repr):
            self._tell("answer {} is not the one that was given", key)

    def _open_told(self, cipher: Cipher, row: Any) -> None:
        """Open an answer. Raises `LedgerCorrupt` if what the history tells of it is something else."""
        text = open_answer(cipher, row)
        told = self._expected.verdicts.get((row.session_id, row.version))
        if told is not None and told != read_verdict(stored_json(strip_salt(text))):
            raise LedgerCorrupt(
                f"session {row.session_id} gave another verdict than it tells; run dpflow ledger verify"
            )

    def _compare_release(self, rows: Iterator[Any]) -> Iterator[Any]:
        releases, n_known = self._expected.releases, 0
        visible, width = _RELEASE.select.row._make, len(_RELEASE.names)
        for row in rows:
            expected, shown = releases.get(row.id), visible(row[:width])
            n_known += expected is not None
            if expected is None:
                self.problems.append(f"release {row.id} was never charged")
            elif (
                not expected.is_same(shown)
                or (row.result is None) != (row.result_digest is None)
                or (row.secret is None) != (row.secret_digest is None)
                or (row.result is not None and self._is_other(_open_result, row))
                or (row.secret is not None and self._is_other(self._open_state, row))
            ):
                self._explain_release(shown, row, expected)
            yield shown
        # One that is there twice makes another root; where no root is made, names are compared.
        if n_known < len(releases) or self._touched is not None:
            stored = {row.id for row in self._stored_rows(schema.release)}
            gone = [name for name in releases if name not in stored]
            self.problems += [f"release {name} was charged and is gone" for name in gone]

    def _is_other(self, open_text: Callable[[Cipher, Any], object], row: Any) -> bool:
        try:
            open_text(self._cipher, row)
        except WrapKeyMissing as error:  # what is stored may be whole: nobody can tell
            self.problems += [] if str(error) in self.problems else [str(error)]
        except (LedgerCorrupt, InvalidInput):
            return True
        return False

    def _open_state(self, cipher: Cipher, row: Any) -> None:
        key = cipher.open_key(row.id, row.version, row.wrapped)
        if self._seal(key.decrypt(row.secret, "state")) != row.secret_digest:
            raise LedgerCorrupt(
                f"the state of session {row.id} is another; run dpflow ledger verify"
            )

    def _explain_release(self, shown: Any, stored: Any, expected: ReleaseState) -> None:
        """Say what differs."""
        name, row = shown.id, shown._asdict()
        if not expected.is_asked(shown):
            self.problems.append(f"what was asked of release {name} is not what the history says")
        texts: dict[str, tuple[Any, Callable[[Cipher, Any], object]]] = {
            "result_digest": (stored.result, _open_result),
            "secret_digest": (stored.secret, self._open_state),
        }
        for column, value in expected.changing().items():
            sealed, open_text = texts.get(column, (None, _open_result))
            # The history holds digests and commitments: what they are of is opened and compared.
            wrong = row[column] != value or (
                column in texts and (sealed is None) != (value is None)
            )
            if wrong or (sealed is not None and self._is_other(open_text, stored)):
                sentence = "the {name} of release {id} is not what the history says"
                self.problems.append(_CHANGED.get(column, sentence).format(name=column, id=name))

    def _tell(self, sentence: str, key: Any) -> None:
        shown = "/".join(map(str, filter(None, key))) if isinstance(key, tuple) else key
        self.problems.append(sentence.format(shown))

    def _compare_keys(self) -> None:
        """Every key opens something or did. What is stored was opened with its own."""
        expected, releases = self._expected.keys, self._expected.releases
        touched = self._touched
        for row in self._transaction.stream(_KEYS) if touched is None else touched.key_rows():
            name, release = (row.release_id, row.version), releases.get(row.release_id)
            # That of a settled release is there, as its result was opened.
            known = name in expected or (
                row.version == 0 and release is not None and release.state == "settled"
            )
            expected.discard(name)
            # The first state of a session is gone with the first answer; its key is still there.
            if known and row.version == 0 and release is not None and release.version:
                known = not self._is_other(_open_key, row)
            if not known:
                self._tell("the key of {} is not one that this ledger made", name)
        for name in sorted(expected, key=repr):
            self._tell("the key of {} is gone", name)

    def _compare_nodes(self, root: str, nodes: set[bytes]) -> None:
        """The rows are right here, so a root or node that they do not give was changed.

        Args:
            nodes: digests of prefix and text of the nodes that the rows give.
        """
        if root != (self._expected.root or EMPTY_ROOT):
            self.problems.append("the newest entry's root is not that of the tables")
        stored, has_items = 0, len(nodes) > 1 or root != EMPTY_ROOT
        for row in self._transaction.stream(_NODES):
            stored += 1
            if digest_values((row.prefix, row.body)) not in nodes:
                self.problems.append(
                    f"node {row.prefix!r} of dpflow_node is not what the rows give"
                )
        if stored < len(nodes) and has_items:
            self.problems.append("dpflow_node lacks nodes of its rows")
