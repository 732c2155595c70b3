"""Export and import: JSON lines that a third party can add up, and from which another database can
go on.

The first line is a header, then all entries, then what entries name only by digest: results,
requests' order and answers' text. Secret state is not exported. So an imported ledger has its
sessions closed: their charge and answers stay.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit import verify
from dpflow.ledger.audit.recheck import Recheck, recheck_entries
from dpflow.ledger.audit.release_state import name_fixed, read_body, read_fixed
from dpflow.ledger.books.sessions import answer_digest
from dpflow.ledger.history import chain
from dpflow.ledger.history.cipher import Cipher, DataKey
from dpflow.ledger.history.state import STORE_NODE, TABLES, build_root, list_items
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction, prepare_insert

FORMAT = "dpflow-ledger"
_INSERTS = {table: prepare_insert(table) for table in schema.metadata.sorted_tables}
_SET_RESULT = TABLES["dpflow_release"].update(("result",))
_LINES = ("entry", "result", "answer")
_CHARGES = ("reserve", "session")
_AT_ONCE = 1_000_000  # characters in memory


def make_header(ledger_id: str) -> dict[str, Any]:
    """The first line of an export."""
    return {"line": "header", "format": FORMAT, "schema": schema.VERSION, "ledger": ledger_id}


def write_export(transaction: Transaction, stream: TextIO, cipher: Cipher) -> int:
    """Write everything but secrets, as it comes from the database; returns the number of entries."""
    number = 0
    write_line(stream, make_header(cipher.anchor.ledger_id))
    for entry in transaction.stream(verify.ENTRIES):
        write_line(stream, {"line": "entry", **entry._asdict()})
        number += 1
    # In the clear, because it was released; with the salt that its digest covers.
    for name, query, text in verify.list_salted(transaction, cipher):
        write_text(stream, name, query, text)
    return number


def write_text(stream: TextIO, name: str, query: str, text: str) -> None:
    """Write the line of a result, or of the answer to a query, with its salt."""
    line = {"line": "answer", "session_id": name, "query": query, "answer": text}
    result = {"line": "result", "release_id": name, "result": text}
    write_line(stream, line if query else result)


def write_line(stream: TextIO, line: dict[str, Any]) -> None:
    """Write a line of an export. What no ledger wrote is written as a text, and does not verify."""
    stream.write(json.dumps(line, separators=(",", ":"), default=str) + "\n")


class ExportFile:
    """The content of a file that `write_export` wrote for a ledger of this id. It is read as often as
    asked and never held, unless it is a pipe.

    Raises:
        LedgerCorrupt: from each of its iterators, for a file that is none, or another ledger's.
    """

    def __init__(self, stream: TextIO, ledger_id: str) -> None:
        self._ledger_id = ledger_id
        self._stream = stream if stream.seekable() else io.StringIO(stream.read())
        self._start = self._stream.tell()

    def read_entries(self) -> Iterator[dict[str, Any]]:
        """All entries, in order."""
        names = (*chain.FIELDS, "hash", "seal")
        return (dict(zip(names, values)) for values in self._read_lines("entry", *names))

    def read_results(self) -> Iterator[tuple[str, str]]:
        """Release and text of each result."""
        return ((name, text) for name, text in self._read_lines("result", "release_id", "result"))

    def read_answers(self) -> Iterator[tuple[str, str, str]]:
        """Session, query and text of each answer."""
        fields = "session_id", "query", "answer"
        return ((name, query, text) for name, query, text in self._read_lines("answer", *fields))

    def _read_lines(self, kind: str, *fields: str) -> Iterator[list[Any]]:
        """These fields of all lines of a kind; each line must be one of the kinds."""
        # An export is a file from elsewhere: whatever its lines hold, the answer is one refusal.
        try:
            self._stream.seek(self._start)
            # Line by line, not by iteration: a file cannot be asked where it stands meanwhile.
            header = json.loads(self._stream.readline())
            if header != make_header(header["ledger"]):
                raise LedgerCorrupt(
                    f"this is no ledger export of schema version {schema.VERSION}; export it with the same dpflow"
                )
            if header["ledger"] != self._ledger_id:
                raise LedgerCorrupt(
                    "the export does not verify under this anchor: it names another ledger; give that one's: "
                    "DPFLOW_LEDGER_ANCHOR=DIR"
                )
            for line in map(json.loads, self._stream):
                if line["line"] not in _LINES:
                    raise ValueError
                if line["line"] == kind:
                    values = [line[name] for name in fields]
                    if kind != "entry" and {*map(type, values)} != {str}:
                        raise ValueError
                    yield values
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise LedgerCorrupt(
                "the export has a line that cannot be read; export it again"
            ) from None


def restore_tables(
    transaction: Transaction, cipher: Cipher, exported: ExportFile
) -> tuple[int, list[str], str]:
    """Fill the empty tables; returns the number of entries, the sessions that could not be kept
    open, and the root of what is there now.

    Raises:
        LedgerCorrupt: chain, seals or mark do not hold under this anchor, or an entry was illegal.
    """
    # The tables are rebuilt from entries, never copied: no export can carry sums of its own.
    auditor = chain.Auditor(cipher.anchor)
    rows = (verify.ENTRIES.row(**entry) for entry in exported.read_entries())
    expected = recheck_entries(auditor.pass_entries(rows))
    if wrong := [*auditor.problems, *expected.problems]:
        raise LedgerCorrupt(f"the export does not verify under this anchor: {wrong[0]}")
    unsettled = expected.releases.unsettled().items()
    closed = sorted(name for name, row in unsettled if row.state == "open")
    expected.close_sessions()
    return expected.entries, closed, fill_tables(transaction, cipher, expected, exported, {})


def fill_tables(
    transaction: Transaction,
    cipher: Cipher,
    expected: Recheck,
    exported: ExportFile,
    secrets: Mapping[str, str],
) -> str:
    """Write all rows, encrypted, with these secret states of sessions, and the nodes above them;
    returns their root. Raises `LedgerCorrupt` if a result or answer is not the one that the history
    names.
    """
    settled = {(n, 0) for n, row in expected.releases.items() if row.state == "settled"}
    keys = {name: cipher.make_key(*name) for name in sorted(expected.keys | settled)}
    # Grants before entries: a trigger holds every later one against the newest entry.
    for table in verify.KEPT:
        names = TABLES[table.name].names
        rows = (dict(zip(names, row)) for row in verify.kept_rows(table, expected))
        _write_rows(transaction, _INSERTS[table], rows)
    for some in _in_batches(_pass_again(cipher, expected, exported)):
        transaction.many(_INSERTS[schema.entry], some)
        charged = [_release_row(e, expected, keys, secrets) for e in some if e["kind"] in _CHARGES]
        transaction.many(_INSERTS[schema.release], charged)
        transaction.many(_INSERTS[schema.slot], [*_slot_rows(some)])
        transaction.send_changes()
    _write_rows(transaction, _SET_RESULT, _result_rows(expected, exported, keys))
    _write_rows(transaction, _INSERTS[schema.answer], _answer_rows(expected, exported, keys))
    cipher.store_keys(transaction, keys.values())
    items = list_items(lambda table: transaction.stream(TABLES[table.name].select_all))
    nodes: list[dict[str, Any]] = []
    root = build_root(items, lambda prefix, body: nodes.append({"prefix": prefix, "body": body}))
    transaction.many(STORE_NODE, nodes)
    return root


def _in_batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    some, size = [], 0
    for row in rows:
        some.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if size > _AT_ONCE:
            yield some
            some, size = [], 0
    yield some


def _write_rows(
    transaction: Transaction, statement: Prepared, rows: Iterable[dict[str, Any]]
) -> None:
    for some in _in_batches(rows):
        transaction.many(statement, some)
        transaction.send_changes()


def _slot_rows(entries: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of the task instances that asked by these entries."""
    for entry in entries:
        if entry["kind"] in (*_CHARGES, "join"):
            slot = json.loads(entry["body"])["slot"]
            if slot is not None:
                run, instance = slot
                yield {"run": run, "instance": instance, "release_id": entry["release_id"]}


def _pass_again(
    cipher: Cipher, expected: Recheck, exported: ExportFile
) -> Iterator[dict[str, Any]]:
    """The entries a second time. Raises `LedgerCorrupt` unless they are those that were checked."""
    auditor, last = chain.Auditor(cipher.anchor), ""
    rows = (verify.ENTRIES.row(**entry) for entry in exported.read_entries())
    for row in auditor.pass_entries(rows):
        last = row.hash
        yield row._asdict()
    if auditor.problems or last != expected.head:
        raise LedgerCorrupt("the export changed while it was read; import it again")


def _release_row(
    entry: Mapping[str, Any],
    expected: Recheck,
    keys: Mapping[tuple[str, int], DataKey],
    secrets: Mapping[str, str],
) -> dict[str, Any]:
    """The row of what an entry charged, without its result."""
    row = verify.ENTRIES.row(**entry)
    name = row.release_id
    release, secret = expected.releases[name], secrets.get(name)
    sealed = None if secret is None else keys[name, release.version].encrypt(secret, "state")
    fixed = name_fixed(read_fixed(row, read_body(row)))
    return {**fixed, **release.changing(), "result": None, "secret": sealed}


def _result_rows(
    expected: Recheck, exported: ExportFile, keys: Mapping[tuple[str, int], DataKey]
) -> Iterator[dict[str, Any]]:
    settled = {n: r.result_digest for n, r in expected.releases.items() if r.result_digest}
    for name, text in exported.read_results():
        # The chain seals only the digest of a result; the text beside it must match.
        if settled.pop(name, None) != chain.digest_json(text):
            raise LedgerCorrupt(_explain_result(name))
        yield {"old_id": name, "new_result": keys[name, 0].encrypt(text, "result")}
    for name in settled:
        raise LedgerCorrupt(_explain_result(name))


def _explain_result(name: str) -> str:
    return f"the stored result of release {name} is not the one that was settled"


def _answer_rows(
    expected: Recheck, exported: ExportFile, keys: Mapping[tuple[str, int], DataKey]
) -> Iterator[dict[str, Any]]:
    given = dict(expected.answers)
    for name, query, text in exported.read_answers():
        if (name, query) not in expected.answers:
            raise LedgerCorrupt("the export has an answer that was never given")
        version, digest = given.pop((name, query), (0, ""))
        if answer_digest(query, text) != digest:
            raise LedgerCorrupt(_explain_answer(name))
        sealed = keys[name, version].encrypt(text, "answer")
        row = {"session_id": name, "query": query, "version": version}
        yield {**row, "answer": sealed, "answer_digest": digest}
    for name, _ in given:
        raise LedgerCorrupt(_explain_answer(name))


def _explain_answer(name: str) -> str:
    return f"the stored answers of session {name} are not those that were given"
