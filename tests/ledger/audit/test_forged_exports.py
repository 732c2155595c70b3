"""Forged exports: whatever is changed in one, it is refused whole."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from dpflow.errors import (
    DpflowError,
    InvalidInput,
    LedgerCorrupt,
)
from dpflow.ledger import GrantProposal, Ledger
from dpflow.ledger.books.witnesses import take_checkpoint
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import Signer
from dpflow.ledger.storage import schema


@pytest.fixture
def books(tmp_path) -> Ledger:
    """A ledger in a file: an export says the same wherever it was written."""
    ledger = Ledger(tmp_path / "books.sqlite", anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    return ledger


@pytest.fixture
def papers(
    books, ask, tmp_path
) -> tuple[list[dict[str, Any]], Callable[[list[dict[str, Any]]], Ledger]]:
    """The lines of an export, and what imports lines into a fresh ledger under the same anchor."""
    ledger = books
    ledger.settle(ask.reserve(ledger, "done", slot="run/0"), {"value": 7})
    ask.reserve(ledger, "orphan")
    nightly = Signer.create("nightly")
    demand = {"witness": nightly.public_text, "witness_every": 9}
    ledger.grant("w", 1, 0, table=None, filter="basic", principal="owner", **demand)
    ask.reserve(ledger, "watched", scope="w")
    note = ledger.checkpoint(nightly)
    ask.reserve(ledger, "behind", scope="w")
    with ledger._begin_writing() as writer:
        assert take_checkpoint(writer, note, False, "p")
    told = ledger.grant("s", 1, 0, table=None, approvals=2, filter="basic", principal="owner")
    assert isinstance(told, GrantProposal)
    held = ask.answer_once(ledger)
    ledger.answer_batch(
        held.session_id, {"a": 1, "b": 2}, expected_version=1, state={"threshold": 4713}
    )
    ledger.answer(
        held.session_id,
        query="v",
        expected_version=2,
        state={"threshold": 4714},
        answer={"verdict": "no"},
    )
    ledger.tell_verdict(held.session_id, "v")
    stream = io.StringIO()
    ledger.export(stream)

    def taken(lines: list[dict[str, Any]]) -> Ledger:
        fresh = Ledger(tmp_path / "fresh.sqlite", anchor=tmp_path / "anchor", create=True)
        try:
            fresh.import_(
                io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), principal="owner"
            )
        except DpflowError:
            assert fresh.scopes() == [] and fresh.releases() == [] and fresh.history() == []
            raise
        return fresh

    return [json.loads(line) for line in stream.getvalue().splitlines()], taken


def entries(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["line"] == "entry"]


def cheaper(lines: list[dict[str, Any]]) -> None:
    """All charges at half price, with every hash recomputed; only the key is missing."""
    previous = chain.first_link(lines[0]["ledger"])
    for line in entries(lines):
        body = json.loads(line["body"])
        for charge in body.get("charges", ()):
            charge[2] //= 2
        line |= {"body": chain.canonical_json(body), "previous": previous}
        previous = line["hash"] = chain.hash_entry(line)


def appended(lines: list[dict[str, Any]]) -> None:
    """One more grant at the end, well hashed, under the seal of the entry before."""
    last = entries(lines)[-1]
    grant = json.loads(json.dumps(entries(lines)[0])) | {
        "seq": last["seq"] + 1,
        "previous": last["hash"],
    }
    lines.append(grant | {"hash": chain.hash_entry(grant), "seal": last["seal"]})


def swapped(lines: list[dict[str, Any]]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def result_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [line for line in lines if line["line"] == "result"]
    return found


def batch_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return next(line for line in lines if line["line"] == "answer")


FORGERIES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "half price": cheaper,
    "one grant more": appended,
    "another order": swapped,
    "an entry twice": lambda lines: lines.insert(3, dict(lines[2])),
    "the last entry gone": lambda lines: lines.remove(entries(lines)[-1]),
    "another result": lambda lines: result_of(lines).update(result='{"value":8}'),
    "the result spelled otherwise": lambda lines: result_of(lines).update(result='{"value": 7}'),
    "a result for the orphan": lambda lines: lines.append(
        {
            "line": "result",
            "release_id": json.loads(json.dumps(entries(lines)[3]["release_id"])),
            "result": "{}",
        }
    ),
    "no result": lambda lines: lines.remove(result_of(lines)),
    "another answer": lambda lines: batch_of(lines).update(answer='{"y":2}'),
    "one answer more": lambda lines: lines.append(batch_of(lines) | {"query": "c"}),
    "no answers": lambda lines: lines.remove(batch_of(lines)),
    "another version": lambda lines: lines[0].update(schema="2"),
    "no header": lambda lines: lines.pop(0),
    "another ledger's header": lambda lines: lines[0].update(ledger="0" * 16),
    "an unknown label": lambda lines: result_of(lines).update(line="outcome"),
    "an unknown label too many": lambda lines: lines.append({"line": "note"}),
    "two headers": lambda lines: lines.insert(1, dict(lines[0])),
    "a list for a line": lambda lines: lines.append([]),  # type: ignore[arg-type]
    "a number for a text": lambda lines: lines[2].update(hash=7),
    "a text for a number": lambda lines: lines[2].update(seq="2"),
    "a true for a number": lambda lines: lines[1].update(seq=True),
    "an unprintable key": lambda lines: result_of(lines).update(release_id={}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_export_is_refused(papers, forgery):
    """Whatever is changed in an export, it is refused whole, and the new ledger stays empty."""
    lines, taken = papers
    FORGERIES[forgery](lines)
    with pytest.raises(LedgerCorrupt):
        taken(lines)


def test_the_genuine_export_is_taken(papers):
    """The control of the test above."""
    lines, taken = papers
    report = taken(lines).verify()
    assert not report.problems and "no checkpoint by nightly" in str(report)


def test_another_banks_export_is_refused(papers, tmp_path, ask):
    """A whole and honest export of another ledger does not carry this anchor's seals."""
    other = Ledger(tmp_path / "other.sqlite", create=True)
    other.grant("flights", 9, 0, table=None, filter="basic", principal="owner")
    stream = io.StringIO()
    other.export(stream)
    with pytest.raises(LedgerCorrupt, match="does not verify under this anchor"):
        papers[1]([json.loads(line) for line in stream.getvalue().splitlines()])


@pytest.mark.parametrize(
    "text", ["", "\n", "[" * 200_000, '{"line":"header"}', "\x00", "NaN", '"' + "x" * 10_000]
)
def test_a_corrupt_export_is_refused(tmp_path, text):
    """No header, endless nesting, garbage: a clear refusal and an empty ledger."""
    fresh = Ledger(tmp_path / "l", create=True)
    with pytest.raises(LedgerCorrupt, match="no ledger export|cannot be read"):
        fresh.import_(io.StringIO(text), principal="owner")
    assert fresh.scopes() == [] and fresh.verify().ok


def test_an_export_that_was_overtaken_is_refused(papers, books, ask):
    """Charges after the export are not forgotten by importing it."""
    lines, taken = papers
    ask.reserve(books, "later")
    with pytest.raises(LedgerCorrupt, match="does not verify"):
        taken(lines)


def test_nothing_is_imported_over_books_that_exist(books, ask):
    """An export is taken by an empty ledger only: its own maker keeps what it has."""
    ask.reserve(books)
    stream = io.StringIO()
    books.export(stream)
    stream.seek(0)
    with pytest.raises(InvalidInput, match="is not empty"):
        books.import_(stream, principal="owner")
    assert ask.spent(books) == {"": "0.1"} and books.verify().ok


def test_every_table_has_rows_in_these_tests(papers, books):
    """A control: the forged exports came from a ledger that uses every table."""
    with books._database.begin_reading() as transaction:
        assert all(
            transaction.text(f"SELECT 1 FROM {table.name} LIMIT 1")
            for table in schema.metadata.sorted_tables
        )
