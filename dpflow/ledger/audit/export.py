"""Export and import: JSON lines that a third party can add up, and from which another database can
go on.

The first line is a header, then all entries, then what entries name only by digest: results,
requests' order and answers' text. Secret state is not exported. So an imported ledger has its
sessions closed: their charge and answers stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit import verify
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
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
    """Write everything but secrets; returns the number of entries."""
    lines = [make_header(ledger_id)]
    number = 0
    for entry in transaction.rows(verify.ENTRIES):
        lines.append({"line": "entry", **entry._asdict()})
        number += 1
    for release in sorted(transaction.rows(_RELEASES)):
        if release.result is not None:
            lines.append({"line": "result", "release_id": release.id, "result": release.result})
    for (session, version), answers in _read_batches(transaction).items():
        lines.append(
            {"line": "answers", "session_id": session, "version": version, "answers": answers}
        )
    for line in lines:
        stream.write(json.dumps(line, separators=(",", ":")) + "\n")
    return number


def _read_batches(transaction: Transaction) -> dict[tuple[str, int], dict[str, str]]:
    """The answers that the history names by digest: those of every batch."""
    expected = verify.Expected({})
    for entry in transaction.rows(verify.ENTRIES):
        if entry.kind == "answer":
            expected.releases.setdefault(entry.release_id, {})
            expected.apply_entry(entry._asdict())
    # Most ledgers have no batches: then the answers, which may be many, are not read.
    batches: dict[tuple[str, int], dict[str, str]] = {key: {} for key in expected.batches}
    for row in transaction.rows(_ANSWERS) if batches else ():
        if (batch := batches.get((row.session_id, row.version))) is not None:
            batch[row.query] = row.answer
    return batches


@dataclass(frozen=True)
class Exported:
    """What `read_export` reads: entries in order, results by release, batches of answers by session and
    version.
    """

    entries: list[dict[str, Any]]
    results: dict[str, str]
    batches: dict[tuple[str, int], dict[str, str]]


def read_export(stream: TextIO, anchor: Anchor) -> Exported:
    """An export. Raises `LedgerCorrupt` unless chain, seals and mark hold under this anchor."""
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
    # Nothing is written before the whole export is known to be this anchor's.
    wrong = list(
        chain.Auditor(anchor).find_problems(
            [verify.ENTRIES.row(**entry) for entry in exported.entries]
        )
    )
    if wrong:
        raise LedgerCorrupt(f"the export does not verify under this anchor: {wrong[0]}")
    return exported


def restore_tables(transaction: Transaction, exported: Exported) -> list[str]:
    """Fill the empty tables; returns the sessions that could not be kept open."""
    # The tables are rebuilt from entries, never copied: no export can carry sums of its own.
    expected = verify.Expected({})
    for entry in exported.entries:
        expected.apply_entry(entry)
    if expected.illegal:
        raise LedgerCorrupt(f"the export does not verify: {expected.illegal[0]}")
    closed = sorted(name for name, row in expected.releases.items() if row["state"] == "open")
    for table, rows in _table_rows(expected, exported, closed):
        transaction.many(_INSERTS[table], rows)
    transaction.many(_INSERTS[schema.entry], exported.entries)
    return closed


def _table_rows(
    expected: verify.Expected, exported: Exported, closed: list[str]
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
            for (scope, block), c in expected.accounts.items()
        ],
    )
    releases = []
    for name, row in expected.releases.items():
        result = exported.results.get(name)
        # The chain seals only the digest of a result; the text beside it must match.
        if (None if result is None else chain.digest_json(result)) != row["result"]:
            raise LedgerCorrupt(
                f"the export's result of release {name} is not the one that was settled"
            )
        state = "closed" if name in closed else row["state"]
        releases.append({**row, "id": name, "result": result, "state": state, "secret": None})
    yield schema.release, releases
    yield schema.data, [{"name": name, **row} for name, row in expected.data.items()]
    names = ("run", "instance", "release_id")
    yield schema.slot, [dict(zip(names, slot)) for slot in sorted(expected.slots)]
    answers = dict(expected.answers)
    for (name, version), digest in expected.batches.items():
        batch = exported.batches.get((name, version), {})
        if chain.digest_json(batch) != digest:
            raise LedgerCorrupt(
                f"the export's answers of session {name} are not those that were given"
            )
        answers |= {(name, query): (version, text) for query, text in batch.items()}
    yield (
        schema.answer,
        [
            {"session_id": name, "query": query, "version": version, "answer": text}
            for (name, query), (version, text) in answers.items()
        ],
    )
