"""What somebody hands to a ledger: exports, checkpoints, signed notes and keys, of any text.

Each ends in what it says, or in a typed refusal that repeats nothing of the text; an import that is
refused leaves nothing.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt
from dpflow.ledger import Ledger
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note, parse_public_key

CANARY = "C4N4RY"
SHARED = settings(max_examples=30, suppress_health_check=list(HealthCheck))
#: JSON of all kinds, some of it larger than any reader expects.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(CANARY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def lines_of(text: str) -> st.SearchStrategy[str]:
    """A text with one line left out, doubled, cut or written over."""
    lines = text.splitlines(keepends=True)
    place = st.integers(0, len(lines) - 1)
    junk = st.text(max_size=40).map(lambda some: some + CANARY)

    def change(at: int, how: str, some: str) -> str:
        changed = {
            "drop": [],
            "double": [lines[at], lines[at]],
            "cut": [lines[at][: len(lines[at]) // 2]],
            "write": [some + "\n"],
            "append": [lines[at].rstrip("\n") + some + "\n"],
        }[how]
        return "".join([*lines[:at], *changed, *lines[at + 1 :]])

    return st.builds(
        change, place, st.sampled_from(["drop", "double", "cut", "write", "append"]), junk
    )


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    folder = tmp_path_factory.mktemp("books")
    ledger = Ledger(folder / "books.sqlite", anchor=folder / "anchor", create=True)
    for epsilon in (1, 2):
        ledger.grant("flights", epsilon, 0, table=None, filter="basic", principal="owner")
    return ledger


@SHARED
@given(text=st.text() | VALUES.map(json.dumps), data=st.data())
@example(text="", data=None)
@example(text="[" * 5000, data=None)
@example(text='{"seq": 1e999}\n', data=None)
def test_no_text_is_an_export_but_one(books: Ledger, text: str, data: Any) -> None:
    """A fresh ledger takes the export as it was written, and nothing of any other text."""
    stream = io.StringIO()
    books.export(stream)
    written = stream.getvalue()
    if data is not None and data.draw(st.booleans()):
        text = data.draw(lines_of(written))
    folder = books.anchor_folder.parent
    place = folder / "fresh.sqlite"
    for file in folder.glob("fresh.sqlite*"):
        file.unlink()
    fresh = Ledger(place, anchor=books.anchor_folder, create=True)
    try:
        fresh.import_(io.StringIO(text), principal="owner")
    except DpflowError as refusal:
        assert isinstance(refusal, LedgerCorrupt | InvalidInput)
        assert CANARY not in str(refusal) and fresh.scopes() == [] and fresh.history() == []
    else:
        # An export may end in empty lines; whatever else is taken is what was written.
        assert text.split() == written.split()


@SHARED
@given(text=st.text(), data=st.data())
def test_no_text_is_a_checkpoint_but_what_was_signed(books: Ledger, text: str, data: Any) -> None:
    """Notes, checkpoints and keys of any text are refused; one changed line ends a signature."""
    note, key = books.checkpoint(), books.signer.public_text
    changed = data.draw(lines_of(note))
    for one in (text, changed):
        try:
            opened, _ = open_note(one, [key])
        except LedgerCorrupt as refusal:
            assert CANARY not in str(refusal)
        else:
            assert opened == note.rpartition("\n\n")[0] + "\n"
    for parse in (Checkpoint.parse, parse_public_key, Signer.parse):
        try:
            parse(text)
        except InvalidInput as refusal:
            assert CANARY not in str(refusal)


@SHARED
@given(data=st.data())
def test_a_checkpoint_reads_as_it_was_written(books: Ledger, data: Any) -> None:
    """Whatever is read from a text writes that same text; all others are refused."""
    text = books.checkpoint().rpartition("\n\n")[0] + "\n"
    assert Checkpoint.parse(text).text == text
    changed = data.draw(lines_of(text))
    try:
        assert Checkpoint.parse(changed).text == changed
    except InvalidInput as refusal:
        assert CANARY not in str(refusal)
