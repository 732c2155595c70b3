"""A SQLite file that lost bytes: every verb answers rightly or refuses in one sentence, and what
can be saved is saved.
"""

from __future__ import annotations

import io
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dpflow.errors import DpflowError, LedgerCorrupt
from dpflow.ledger import Ledger

PAGE = 8192
_ROUNDS = 25


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory, ask: Any) -> Path:
    """A ledger of five settled releases and an open session, all in one file beside its anchor."""
    path = tmp_path_factory.mktemp("healthy") / "ledger.sqlite"
    ledger = Ledger(path, anchor=f"{path}.anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    for n in range(5):
        ledger.settle(ask.reserve(ledger, str(n), request={"name": "n" * 200}), {"rows": [n] * 200})
    ledger.open_session(ask.key("gate"), **ask.terms(), state={"noise": 7}, exclusive=False)
    del ledger
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def shortened(data: bytes, luck: random.Random) -> bytes:
    """A copy that was cut off."""
    return data[: luck.randrange(1, len(data))]


def flipped(data: bytes, luck: random.Random) -> bytes:
    """Some bytes are others."""
    changed = bytearray(data)
    for _ in range(luck.choice([1, 10, 300])):
        changed[luck.randrange(len(data))] = luck.randrange(256)
    return bytes(changed)


def erased(data: bytes, luck: random.Random) -> bytes:
    """A page of zeros."""
    page = luck.randrange(len(data) // PAGE) * PAGE
    return data[:page] + bytes(PAGE) + data[page + PAGE :]


@pytest.mark.parametrize("damage", [shortened, flipped, erased])
def test_a_damaged_file_is_refused_or_right(
    healthy: Path, tmp_path: Path, ask: Any, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    """No verb fails in the database's words. What still opens and verifies holds exactly what was
    charged.
    """
    refused = 0
    # The same copies in every test run, each with an anchor of its own.
    data, luck = healthy.read_bytes(), random.Random(7)
    for n in range(_ROUNDS):
        path = tmp_path / f"{n}.sqlite"
        path.write_bytes(damage(data, luck))
        shutil.copytree(f"{healthy}.anchor", f"{path}.anchor")
        seen: dict[str, Any] = {}
        verbs: dict[str, Callable[[Ledger], Any]] = {
            "verify": lambda ledger: ledger.verify().ok,
            "spent": lambda ledger: ask.spent(ledger),
            "history": lambda ledger: len(ledger.history()),
            "releases": lambda ledger: len(ledger.releases()),
            "replay": lambda ledger: ask.reserve(ledger, "3", request={"name": "n" * 200}).result,
            "charge": lambda ledger: ask.reserve(ledger, "new").attempt,
        }
        for name, verb in verbs.items():
            try:
                seen[name] = verb(Ledger(path))
            except DpflowError as refusal:
                assert isinstance(refusal, LedgerCorrupt), (name, refusal)
                assert "noise" not in str(refusal) and "nnn" not in str(refusal)
        refused += "verify" not in seen or not seen["verify"]
        if seen.get("verify"):
            whole = {
                "spent": {"": "0.6"},
                "history": 12,
                "releases": 6,
                "replay": {"rows": [3] * 200},
                "charge": 1,
            }
            assert seen == {"verify": True} | whole
    assert 0 < refused <= _ROUNDS


def test_an_index_that_broke_is_found_and_its_ledger_saved(
    healthy: Path, tmp_path: Path, ask: Any
) -> None:
    """The rows are whole, so the history is: verify names the file, and an export makes a ledger
    that goes on.
    """
    path = tmp_path / "ledger.sqlite"
    shutil.copy(healthy, path)
    shutil.copytree(f"{healthy}.anchor", tmp_path / "anchor")
    with closing(sqlite3.connect(path)) as connection:
        find = "SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'dpflow_release'"
        pages = [page for (page,) in connection.execute(find)]
    data = bytearray(path.read_bytes())
    for page in pages:
        data[(page - 1) * PAGE : page * PAGE] = bytes(PAGE)
    path.write_bytes(data)
    broken = Ledger(path, anchor=tmp_path / "anchor")
    report = broken.verify()
    assert (
        not report.ok
        and "the file is damaged, though its history may be whole: export it" in str(report)
    )
    with pytest.raises(LedgerCorrupt):
        ask.reserve(broken, "new")
    text = io.StringIO()
    broken.export(text)
    saved = Ledger(tmp_path / "saved.sqlite", anchor=tmp_path / "anchor", create=True)
    saved.import_(io.StringIO(text.getvalue()), principal="owner")
    assert saved.verify().ok and ask.spent(saved) == {"": "0.6"}
    assert ask.reserve(saved, "3", request={"name": "n" * 200}).result == {"rows": [3] * 200}
    ask.reserve(saved, "new")
