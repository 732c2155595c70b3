"""The anchor's directory fails, is not there, or is read while it is written: nothing is charged
for nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import sqlite3
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dpflow import fault_points
from dpflow.errors import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import Ledger
from dpflow.ledger.books.releases import ReleaseCharge
from dpflow.ledger.history import anchor as marks
from dpflow.ledger.history.anchor import Anchor, Mark


def failing(call: Callable[..., Any], name: str, code: int) -> Callable[..., Any]:
    """A system call that does its work on an open file, and then fails if that has this name."""

    def fails(descriptor: int, *arguments: Any) -> Any:
        hit = os.readlink(f"/proc/self/fd/{descriptor}").endswith(name)
        result = call(descriptor, *arguments)
        if hit:
            raise OSError(code, os.strerror(code))
        return result

    return fails


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    names = {name: getattr(fcntl, name) for name in ("LOCK_SH", "LOCK_EX", "LOCK_UN")}
    monkeypatch.setattr(marks, "fcntl", SimpleNamespace(flock=flock, **names))


def test_where_nothing_can_be_locked_nothing_is_charged(ledger, place, ask, monkeypatch):
    """The mark could not be raised afterwards, so each try would charge and give nothing."""
    other = place.open()
    without_locks(monkeypatch)
    for n in range(3):
        with pytest.raises(LedgerUnavailable, match="No locks available"):
            ask.reserve(other, str(n))
    assert ask.spent(ledger) == {"": "0"}


def test_locks_that_cease_cost_one_charge(ledger, ask, monkeypatch):
    """A process that had a lock notices at its next one, and goes on before a charge only when it
    has one again.
    """
    ask.reserve(ledger, "before")
    with monkeypatch.context() as patch:
        without_locks(patch)
        for n in range(3):
            with pytest.raises(LedgerUnavailable, match="No locks available"):
                ask.reserve(ledger, str(n))
    assert ask.spent(ledger) == {"": "0.2"}
    ask.reserve(ledger, "0")
    assert ask.spent(ledger) == {"": "0.2"} and ledger.verify().ok


@pytest.mark.parametrize("call", ["pread", "pwrite", "close"])
def test_a_disk_that_fails_the_mark_is_unavailable(ledger, ask, monkeypatch, call):
    """Whichever call the disk complains in, the same call again completes, at one charge."""
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(getattr(os, call), "/mark", errno.EDQUOT))
        with pytest.raises(LedgerUnavailable, match="Disk quota exceeded.*never charged twice"):
            ask.reserve(ledger)
    ask.reserve(ledger)
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


def test_a_directory_that_is_not_mounted_is_not_restarted(ledger, place, ask):
    """A process that holds the key does not take the empty place below the mount for an
    anchor without a mark.
    """
    ask.reserve(ledger, "before")
    away = place.anchor.with_name("away")
    place.anchor.rename(away)
    place.anchor.mkdir()
    with pytest.raises(LedgerCorrupt, match="key is not in"):
        ask.reserve(ledger, "meanwhile")
    for litter in place.anchor.iterdir():
        assert litter.read_bytes() == b""
        litter.unlink()
    place.anchor.rmdir()
    away.rename(place.anchor)
    ask.reserve(ledger, "after")
    assert ask.spent(ledger) == {"": "0.2"} and ledger.verify().ok


def test_a_key_that_cannot_be_read_now_is_not_called_missing(place, monkeypatch):
    """No descriptor left, no permission: that passes, and a retry is told so."""
    place.open()

    def fails(*_: object) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(marks.Path, "read_bytes", fails)
    with pytest.raises(LedgerUnavailable, match="Too many open files"):
        place.open()


def test_a_mark_is_read_whole_while_others_write(tmp_path, monkeypatch):
    """Written byte by byte, it is still an old or a new one to whoever reads without a lock, and
    never goes back.
    """
    anchor = Anchor(tmp_path / "anchor")
    anchor.create()
    write = os.pwrite

    def slowly(descriptor: int, data: bytes, offset: int) -> int:
        for n in range(0, len(data), 7):
            write(descriptor, data[n : n + 7], offset + n)
        return len(data)

    monkeypatch.setattr(os, "pwrite", slowly)
    hashes = [f"{n:064x}" for n in range(301)]
    done = threading.Event()

    def writes() -> None:
        mark = Mark(anchor)
        for n in range(1, 301):
            assert mark.advance((n, hashes[n]), {(n - 1, hashes[n - 1])}) is None
        mark.close()
        done.set()

    writer = threading.Thread(target=writes)
    writer.start()
    reader, seen, last = Anchor(tmp_path / "anchor"), 0, None
    while not done.is_set() or last is None:
        found = reader.read_mark()
        if found is not None:
            assert found[1] == hashes[found[0]] and found[0] >= (last or 0)
            seen, last = seen + 1, found[0]
    writer.join()
    assert seen and reader.read_mark() == (300, hashes[300])


def test_nobody_makes_a_mark_from_an_export(ledger, place, ask):
    """An entry's own seal stands in every export, and is none for the mark."""
    ask.reserve(ledger)
    export = io.StringIO()
    ledger.export(export)
    entries = [
        row for line in export.getvalue().splitlines() if "seal" in (row := json.loads(line))
    ]
    first = min(entries, key=lambda row: row["seq"])
    mark = place.anchor / "mark"
    record = mark.read_bytes()
    mark.write_text(f"{first['seq']:020d} {first['hash']} {first['seal']}\n")
    with pytest.raises(LedgerCorrupt, match="was not written under this ledger's key"):
        ask.reserve(ledger, "another")
    with pytest.raises(LedgerCorrupt, match="was not written under this ledger's key"):
        ledger.remaining("flights")
    mark.write_bytes(record)
    assert ask.spent(ledger) == {"": "0.1"}


@pytest.mark.parametrize("loss", ["deleted", "empty"])
def test_a_mark_that_is_missing_is_refused(ledger, place, ask, loss):
    """Without it an old copy of the database would pass, so nothing is charged or shown; a ledger
    that has no entry yet has a mark, too.
    """
    ask.reserve(ledger)
    mark = place.anchor / "mark"
    record = mark.read_bytes()
    mark.unlink() if loss == "deleted" else mark.write_bytes(b"")
    for opened in (ledger, place.open()):
        with pytest.raises(
            LedgerCorrupt, match="mark is missing.*dpflow ledger recover --lost mark"
        ):
            ask.reserve(opened, "another")
        with pytest.raises(
            LedgerCorrupt, match="mark is missing.*dpflow ledger recover --lost mark"
        ):
            opened.remaining("flights")
    assert not ledger.verify().ok
    mark.write_bytes(record)
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


def test_the_anchor_of_a_sqlite_ledger_is_in_the_state_directory(tmp_path, monkeypatch):
    """By the ledger's id, so that a copy of its folder brings no mark along and a moved file is
    still found; elsewhere the error names the variable.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ledger = Ledger(tmp_path / "l" / "ledger.sqlite", create=True)
    (folder,) = (tmp_path / "state" / "dpflow").iterdir()
    assert ledger.anchor_folder == folder
    assert {file.name for file in folder.iterdir()} == {"key", "wrap", "sign", "notes", "mark"}
    assert folder.stat().st_mode & 0o077 == 0 and [*(tmp_path / "l").glob("*anchor*")] == []
    del ledger
    (tmp_path / "l").rename(tmp_path / "moved")
    assert Ledger(tmp_path / "moved" / "ledger.sqlite").anchor_folder == folder
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    with pytest.raises(LedgerCorrupt, match="DPFLOW_LEDGER_ANCHOR=DIR"):
        Ledger(tmp_path / "moved" / "ledger.sqlite")


def test_an_anchor_that_was_half_made_is_made_again(tmp_path, monkeypatch):
    """A death while it is made leaves no key, and what is made then is whole."""
    names = []
    for stop in range(1, 7):
        folder, left = tmp_path / str(stop), iter([False] * (stop - 1) + [True])

        def dies(*arguments: Any, left=left) -> None:
            if next(left, False):
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(marks.os, "fsync", dies)
            with contextlib.suppress(KeyboardInterrupt):
                Anchor(folder).create()
        names.append((folder / "key").exists())
        Anchor(folder).create()
        assert Anchor(folder).read_mark() == marks.NOTHING
    assert names == [False, False, False, False, False, True]


def test_two_copies_at_once_do_not_both_pay(tmp_path, ask, monkeypatch):
    """A writer that read the mark before another copy raised it, and commits more entries than
    that one: it raised the mark over the other's entry, and 2 of 1 were paid.
    """
    path, copied = tmp_path / "ledger.sqlite", tmp_path / "copy.sqlite"
    ledger = Ledger(path, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    with contextlib.closing(sqlite3.connect(path)) as source:
        with contextlib.closing(sqlite3.connect(copied)) as target:
            source.backup(target)
    copy = Ledger(copied, anchor=tmp_path / "anchor")

    def pays_meanwhile(name: str) -> None:
        monkeypatch.undo()
        ask.reserve(ledger, "all", "1")

    monkeypatch.setattr(fault_points, "pass_point", pays_meanwhile)
    halves = [ReleaseCharge(ask.key(f"half {n}"), **ask.terms("0.5")) for n in (1, 2)]
    with pytest.raises(LedgerCorrupt, match="another copy is in use"):
        copy.reserve_many(halves)
    with pytest.raises(LedgerCorrupt, match="another copy is in use"):
        ask.reserve(copy, "half 1", "0.5")
    assert ledger.verify().ok and not copy.verify().ok
