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
from dpflow.ledger.audit.recheck import Recheck, batch_digest, recheck_entries
from dpflow.ledger.books.records import stored_json
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.history.state import STORE_NODE, TABLES, build_nodes, list_items
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction, prepare_insert

FORMAT = "dpflow-ledger"
# Without an order in SQL: a broken index is not asked.
_RELEASES = Prepared(sa.select(schema.release.c.id, schema.release.c.result))
_ANSWERS = Prepared(sa.select(schema.answer))
_INSERTS = {table: prepare_insert(table) for table in schema.metadata.sorted_tables}


def make_header(ledger_id: str) -> dict[str, Any]:
    """The first line of an export."""
    return {"line": "header", "format": FORMAT, "schema": schema.VERSION, "ledger": ledger_id}


def write_export(transaction: Transaction, stream: TextIO, ledger_id: str) -> int:
    """Write everything but secrets, as it comes from the database; returns the number of entries."""
    number, batches = 0, set[tuple[str, int]]()
    _write_line(stream, make_header(ledger_id))
    for entry in transaction.stream(verify.ENTRIES):
        _write_line(stream, {"line": "entry", **entry._asdict()})
        number += 1
        if entry.kind == "answer" and "answers" in (body := stored_json(entry.body)):
            batches.add((entry.release_id, body["version"]))
    for release in transaction.stream(_RELEASES):
        if release.result is not None:
            line = {"line": "result", "release_id": release.id, "result": release.result}
            _write_line(stream, line)
    # Most ledgers have no batches: then the answers, which may be many, are not read.
    answers: dict[tuple[str, int], dict[str, str]] = {key: {} for key in sorted(batches)}
    for row in transaction.stream(_ANSWERS) if batches else ():
        if (row.session_id, row.version) in answers:
            answers[row.session_id, row.version][row.query] = row.answer
    for (session, version), batch in answers.items():
        line = {"line": "answers", "session_id": session, "version": version, "answers": batch}
        _write_line(stream, line)
    return number


def _write_line(stream: TextIO, line: dict[str, Any]) -> None:
    stream.write(json.dumps(line, separators=(",", ":")) + "\n")


@dataclass(frozen=True)
class Exported:
    """What `read_export` reads: entries in order, results by release, batches of answers by session and
    version.
    """

    entries: list[dict[str, Any]]
    results: dict[str, str]
    batches: dict[tuple[str, int], dict[str, str]]


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
            elif line["line"] == "answers":
                exported.batches[line["session_id"], line["version"]] = line["answers"]
            else:
                exported.results[line["release_id"]] = line["result"]
    # An export is a file from elsewhere: whatever its lines hold, the answer is one refusal.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise LedgerCorrupt("the export has a line that cannot be read; export it again") from None
    return exported


def restore_tables(
    transaction: Transaction, anchor: Anchor, exported: Exported
) -> tuple[list[str], str]:
    """Fill the empty tables; returns the sessions that could not be kept open, and the root of what
    is there now.

    Raises:
        LedgerCorrupt: chain, seals or mark do not hold under this anchor, or an entry was illegal.
    """
    # The tables are rebuilt from entries, never copied: no export can carry sums of its own.
    auditor = chain.Auditor(anchor)
    rows = (verify.ENTRIES.row(**entry) for entry in exported.entries)
    expected = recheck_entries(auditor.pass_entries(rows), whole=True)
    if wrong := [*auditor.problems, *expected.problems]:
        raise LedgerCorrupt(f"the export does not verify under this anchor: {wrong[0]}")
    closed = sorted(name for name, row in expected.releases.items() if row.state == "open")
    expected.close_sessions()
    return closed, fill_tables(transaction, expected, exported, {})


def fill_tables(
    transaction: Transaction, expected: Recheck, exported: Exported, secrets: Mapping[str, str]
) -> str:
    """Write all rows, with these secret states of sessions, and the nodes above them; returns their
    root. Raises `LedgerCorrupt` if a result or batch is not the one that the history names.
    """
    for table, values in _table_rows(expected, exported, secrets):
        transaction.many(_INSERTS[table], values)
    transaction.many(_INSERTS[schema.entry], exported.entries)
    items = sorted(list_items(lambda table: transaction.stream(TABLES[table.name].select_all)))
    nodes: list[dict[str, Any]] = []
    root = build_nodes(items, lambda prefix, body: nodes.append({"prefix": prefix, "body": body}))
    transaction.many(STORE_NODE, nodes)
    return root


def _table_rows(
    expected: Recheck, exported: Exported, secrets: Mapping[str, str]
) -> Iterator[tuple[sa.Table, list[dict[str, Any]]]]:
    yield schema.scope, [{"name": name, **row} for name, row in expected.scopes.items()]
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
        apart = {"result": result, "secret": secrets.get(name)}
        releases.append({**row.fixed, **row.changing(), **apart})
    yield schema.release, releases
    yield schema.data, [{"name": name, **row} for name, row in expected.data.items()]
    names = ("run", "instance", "release_id")
    yield schema.slot, [dict(zip(names, slot)) for slot in sorted(expected.slots)]
    answers = dict(expected.answers)
    for (name, version), digest in expected.batches.items():
        batch = exported.batches.get((name, version), {})
        if batch_digest(batch) != digest:
            raise LedgerCorrupt(
                f"the stored answers of session {name} are not those that were given"
            )
        answers |= {(name, query): (version, text) for query, text in batch.items()}
    yield (
        schema.answer,
        [
            {"session_id": name, "query": query, "version": version, "answer": text}
            for (name, query), (version, text) in answers.items()
        ],
    )
