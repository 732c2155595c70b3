"""Verification: the history through the rules, and every row of every table against what they
leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from dpflow.ledger.audit.recheck import Recheck, batch_digest, digest_values, fixed_part
from dpflow.ledger.history import chain
from dpflow.ledger.history.state import EMPTY_ROOT, TABLES, build_nodes, list_items
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction

ENTRIES = Prepared(sa.select(schema.entry).order_by(schema.entry.c.seq))
_RELEASES = Prepared(sa.select(schema.release))
_META = Prepared(sa.select(schema.meta))
_NODES = Prepared(sa.select(schema.node))
_CHANGED = {
    "result_digest": "the result of release {id} is not the one that was settled",
    "secret_digest": "the state of session {id} is not the one its last answer left",
}


class TableCheck:
    """Compares rows with what the rules left, table by table, and computes the root they give.

    Args:
        seal: the commitment to a session's secret state.
    """

    def __init__(
        self, transaction: Transaction, expected: Recheck, seal: Callable[[str], str]
    ) -> None:
        self.problems: list[str] = []
        self._transaction, self._expected, self._seal = transaction, expected, seal
        self._batches: dict[tuple[str, int], dict[str, str]] = {k: {} for k in expected.batches}

    def find_problems(self, meta: Mapping[str, str]) -> list[str]:
        """Every difference between the tables and what the history says."""
        # An index may be damaged while every row of its table still reads right.
        if self._transaction.dialect == "sqlite" and self._transaction.text(
            "PRAGMA integrity_check(1)"
        ) != [("ok",)]:
            self.problems.append(
                "the file is damaged, though its history may be whole: export it and import that, or bring the newest copy back"
            )
        stored = {row.name: row.value for row in self._transaction.rows(_META)}
        for name in sorted(meta.keys() | stored.keys(), key=repr):
            if meta.get(name) != stored.get(name):
                self.problems.append(f"{name} in dpflow_meta is not this ledger's")
        try:
            items = sorted(list_items(self._rows_of))
        # Values of a type that no ledger writes: the comparison has told which row holds them.
        except TypeError:
            items = []
        for key, batch in self._batches.items():
            if batch_digest(batch) != self._expected.batches[key]:
                self.problems.append(
                    f"the answers of batch {key[0]}/{key[1]} are not those that were given"
                )
        if not self.problems:
            self._compare_nodes(items)
        return self.problems

    def _rows_of(self, table: sa.Table) -> Any:
        """The rows of a table as they come, each compared."""
        compare: Any = getattr(self, "_compare_" + table.name.removeprefix("dpflow_"))
        if table is schema.release:
            return compare(self._transaction.stream(_RELEASES))
        return compare(self._transaction.stream(TABLES[table.name].select_all))

    def _compare_scope(self, rows: Iterator[Any]) -> Iterator[Any]:
        expected = {
            name: (name, row["filter"], row["protects"], row["blocks"])
            for name, row in self._expected.scopes.items()
        }
        return self._compare_simple(rows, expected, 1, "scope {} is not what was granted")

    def _compare_account(self, rows: Iterator[Any]) -> Iterator[Any]:
        expected = {
            (scope, block): (scope, block, cost.epsilon, cost.delta, cost.renyi)
            for scope, block, cost in self._expected.account_rows()
        }
        sentence = "account {} does not hold what its charges add up to"
        return self._compare_simple(rows, expected, 2, sentence)

    def _compare_data(self, rows: Iterator[Any]) -> Iterator[Any]:
        expected = {
            name: (name, row["first"], row["gate"], row["partition"])
            for name, row in self._expected.data.items()
        }
        sentence = "what is known of {} is not what its releases left"
        return self._compare_simple(rows, expected, 1, sentence)

    def _compare_slot(self, rows: Iterator[Any]) -> Iterator[Any]:
        expected = {tuple(slot): tuple(slot) for slot in self._expected.slots}
        return self._compare_simple(rows, expected, 3, "task instance {} did not ask for that")

    def _compare_answer(self, rows: Iterator[Any]) -> Iterator[Any]:
        expected = self._expected.answers
        for row in rows:
            batch = self._batches.get((row.session_id, row.version))
            key = row.session_id, row.query
            if batch is not None:
                batch[row.query] = row.answer
            # An answer is there once, so what is taken out cannot be found a second time.
            elif expected.pop(key, None) != (row.version, row.answer):
                self._tell("answer {} is not the one that was given", key)
            yield row
        for key in sorted(expected):
            self._tell("answer {} is not the one that was given", key)

    def _compare_release(self, rows: Iterator[Any]) -> Iterator[Any]:
        missing = dict.fromkeys(self._expected.releases)
        visible = TABLES["dpflow_release"].select.row
        for row in rows:
            values = row._asdict()
            result, secret = values.pop("result"), values.pop("secret")
            missing.pop(row.id, None)
            self._compare_one_release(values, result, secret)
            yield visible(**values)
        self.problems += [f"release {name} was charged and is gone" for name in missing]

    def _compare_one_release(self, row: Mapping[str, Any], result: Any, secret: Any) -> None:
        name = row["id"]
        expected = self._expected.releases.get(name)
        if expected is None:
            self.problems.append(f"release {name} was never charged")
            return
        if fixed_part(row) != expected.fixed:
            self.problems.append(f"what was asked of release {name} is not what the history says")
        # The history holds digests and commitments, so what it names is brought to that form.
        digest = None if result is None else chain.digest_json(str(result))
        commitment = None if secret is None else self._seal(str(secret))
        for column, value in expected.changing().items():
            apart = {"result_digest": digest, "secret_digest": commitment}.get(column, value)
            if row[column] != value or apart != value:
                sentence = "the {name} of release {id} is not what the history says"
                self.problems.append(_CHANGED.get(column, sentence).format(name=column, id=name))

    def _compare_simple(
        self, rows: Iterator[Any], expected: dict[Any, tuple[Any, ...]], width: int, sentence: str
    ) -> Iterator[Any]:
        for row in rows:
            key = row[:width] if width > 1 else row[0]
            # A key is there once, so what is taken out cannot be found a second time.
            if expected.pop(key, None) != tuple(row):
                self._tell(sentence, key)
            yield row
        for key in sorted(expected, key=repr):
            self._tell(sentence, key)

    def _tell(self, sentence: str, key: Any) -> None:
        shown = "/".join(map(str, filter(None, key))) if isinstance(key, tuple) else key
        self.problems.append(sentence.format(shown))

    def _compare_nodes(self, items: list[str]) -> None:
        """The rows are right here, so a root or node that they do not give was changed."""
        nodes: dict[str, bytes] = {}
        root = build_nodes(
            items, lambda prefix, body: nodes.__setitem__(prefix, digest_values(body))
        )
        if root != (self._expected.root or EMPTY_ROOT):
            self.problems.append("the newest entry's root is not that of the tables")
        stored = 0
        for row in self._transaction.stream(_NODES):
            stored += 1
            if nodes.get(row.prefix) != digest_values(row.body):
                self.problems.append(
                    f"node {row.prefix!r} of dpflow_node is not what the rows give"
                )
        if stored < len(nodes) and items:
            self.problems.append("dpflow_node lacks nodes of its rows")
