"""Export and import: JSON lines that a third party can add up, and from which another database can
go on.

The first line is a header, then all entries, then what entries name only by digest: results,
requests' order and answers' text. Secret state is not exported. So an imported ledger has its
sessions closed: their charge and answers stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit import verify
from dpflow.ledger.audit.recheck import Recheck, recheck_entries
from dpflow.ledger.books.sessions import ANSWERS_WITH_KEYS, answer_digest, open_answer
from dpflow.ledger.history import chain
from dpflow.ledger.history.cipher import Cipher, DataKey
from dpflow.ledger.history.state import STORE_NODE, TABLES, build_nodes, list_items
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Transaction, prepare_insert

FORMAT = "dpflow-ledger"
_INSERTS = {table: prepare_insert(table) for table in schema.metadata.sorted_tables}


def make_header(ledger_id: str) -> dict[str, Any]:
    """The first line of an export."""
    return {"line": "header", "format": FORMAT, "schema": schema.VERSION, "ledger": ledger_id}


def write_export(transaction: Transaction, stream: TextIO, cipher: Cipher) -> int:
    """Write everything but secrets, as it comes from the database; returns the number of entries."""
    number = 0
    _write_line(stream, make_header(cipher.anchor.ledger_id))
    for entry in transaction.stream(verify.ENTRIES):
        _write_line(stream, {"line": "entry", **entry._asdict()})
        number += 1
    # In the clear, because it was released; with the salt that its digest covers.
    for row in transaction.stream(verify.RELEASES):
        if row.result is not None:
            text = cipher.open_key(row.id, 0, row.wrapped).decrypt(row.result, "result")
            _write_line(stream, {"line": "result", "release_id": row.id, "result": text})
    for row in transaction.stream(ANSWERS_WITH_KEYS):
        answer = {"session_id": row.session_id, "query": row.query}
        _write_line(stream, {"line": "answer", **answer, "answer": open_answer(cipher, row)})
    return number


def _write_line(stream: TextIO, line: dict[str, Any]) -> None:
    stream.write(json.dumps(line, separators=(",", ":")) + "\n")


@dataclass(frozen=True)
class Exported:
    """What `read_export` reads: entries in order, results by release, answers by session and query,
    both with their salt.
    """

    entries: list[dict[str, Any]]
    results: dict[str, str]
    answers: dict[tuple[str, str], str]


def read_export(stream: TextIO) -> Exported:
    """An export, as it is written there. Raises `LedgerCorrupt` for a file that is none."""
    exported = Exported([], {}, {})
    try:
        header = json.loads(stream.readline())
        if header != make_header(header["ledger"]):
            raise LedgerCorrupt(
                f"this is no ledger export of schema version {schema.VERSION}; export it with the same dpflow"
            )
        for line in map(json.loads, stream):
            if line["line"] == "entry":
                exported.entries.append(
                    {name: line[name] for name in (*chain.FIELDS, "hash", "seal")}
                )
            elif line["line"] == "answer":
                exported.answers[line["session_id"], line["query"]] = line["answer"]
            else:
                exported.results[line["release_id"]] = line["result"]
    # An export is a file from elsewhere: whatever its lines hold, the answer is one refusal.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise LedgerCorrupt("the export has a line that cannot be read; export it again") from None
    return exported


def restore_tables(
    transaction: Transaction, cipher: Cipher, exported: Exported
) -> tuple[list[str], str]:
    """Fill the empty tables; returns the sessions that could not be kept open, and the root of what
    is there now.

    Raises:
        LedgerCorrupt: chain, seals or mark do not hold under this anchor, or an entry was illegal.
    """
    # The tables are rebuilt from entries, never copied: no export can carry sums of its own.
    auditor = chain.Auditor(cipher.anchor)
    rows = (verify.ENTRIES.row(**entry) for entry in exported.entries)
    expected = recheck_entries(auditor.pass_entries(rows), whole=True)
    if wrong := [*auditor.problems, *expected.problems]:
        raise LedgerCorrupt(f"the export does not verify under this anchor: {wrong[0]}")
    closed = sorted(name for name, row in expected.releases.items() if row.state == "open")
    expected.close_sessions()
    return closed, fill_tables(transaction, cipher, expected, exported, {})


def fill_tables(
    transaction: Transaction,
    cipher: Cipher,
    expected: Recheck,
    exported: Exported,
    secrets: Mapping[str, str],
) -> str:
    """Write all rows, encrypted, with these secret states of sessions, and the nodes above them;
    returns their root. Raises `LedgerCorrupt` if a result or answer is not the one that the history
    names.
    """
    keys = {name: cipher.make_key(*name) for name in sorted(expected.keys)}
    for table, values in _table_rows(expected, exported, secrets, keys):
        transaction.many(_INSERTS[table], values)
    transaction.many(_INSERTS[schema.entry], exported.entries)
    cipher.store_keys(transaction, keys.values())
    items = sorted(list_items(lambda table: transaction.stream(TABLES[table.name].select_all)))
    nodes: list[dict[str, Any]] = []
    root = build_nodes(items, lambda prefix, body: nodes.append({"prefix": prefix, "body": body}))
    transaction.many(STORE_NODE, nodes)
    return root


def _table_rows(
    expected: Recheck,
    exported: Exported,
    secrets: Mapping[str, str],
    keys: Mapping[tuple[str, int], DataKey],
) -> Iterator[tuple[sa.Table, list[dict[str, Any]]]]:
    yield schema.scope, [{"name": name, **row} for name, row in expected.scopes.items()]
    yield schema.proposal, [{"scope": name, **row} for name, row in expected.proposals.items()]
    yield (
        schema.account,
        [
            {
                "scope": scope,
                "block": block,
                "epsilon": c.epsilon,
                "delta": c.delta,
                "renyi": c.renyi,
            }
            for scope, block, c in expected.account_rows()
        ],
    )
    releases = []
    for name, row in expected.releases.items():
        result = exported.results.get(name)
        # The chain seals only the digest of a result; the text beside it must match.
        if (None if result is None else chain.digest_json(result)) != row.result_digest:
            raise LedgerCorrupt(
                f"the stored result of release {name} is not the one that was settled"
            )
        secret = secrets.get(name)
        apart = {
            "result": None if result is None else keys[name, 0].encrypt(result, "result"),
            "secret": None if secret is None else keys[name, row.version].encrypt(secret, "state"),
        }
        releases.append({**row.fixed, **row.changing(), **apart})
    yield schema.release, releases
    yield schema.data, [{"name": name, **row} for name, row in expected.data.items()]
    names = ("run", "instance", "release_id")
    yield schema.slot, [dict(zip(names, slot)) for slot in sorted(expected.slots)]
    if exported.answers.keys() - expected.answers.keys():
        raise LedgerCorrupt("the export has an answer that was never given")
    answers = []
    for (name, query), (version, digest) in expected.answers.items():
        text = exported.answers.get((name, query), "")
        if answer_digest(query, text) != digest:
            raise LedgerCorrupt(
                f"the stored answers of session {name} are not those that were given"
            )
        sealed = keys[name, version].encrypt(text, "answer")
        row_of = {"session_id": name, "query": query, "version": version}
        answers.append({**row_of, "answer": sealed, "answer_digest": digest})
    yield schema.answer, answers
