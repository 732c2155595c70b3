"""Checkpoints that go into a folder by themselves: files are added, and a loss is an alarm."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpflow.cli.ledger import app
from dpflow.errors import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.audit.witness import open_place
from dpflow.ledger.history.checkpoint import Checkpoint, Signer


def test_files_are_added_and_each_goes_on_from_the_last(ledger, ask, tmp_path):
    """The first covers all entries, the next those behind it, and an idle night adds none."""
    folder, witness = tmp_path / "witness", Signer.create("example.org/nightly")
    folder.mkdir()
    first = ledger.witness(folder, witness)
    assert (
        first.size,
        first.is_new,
        Checkpoint.parse(Path(first.file).read_text().rpartition("\n\n")[0] + "\n").checked_after,
    ) == (1, True, 0)
    assert not ledger.witness(folder, witness).is_new
    ledger.settle(ask.reserve(ledger, "one"), {"rows": []})
    second = ledger.witness(folder, witness)
    assert (
        second.size,
        Checkpoint.parse(Path(second.file).read_text().rpartition("\n\n")[0] + "\n").checked_after,
    ) == (3, 1)
    assert sorted(map(str, folder.iterdir())) == [first.file, second.file]
    assert not os.stat(second.file).st_mode & 0o222
    assert ledger.verify(since=Path(second.file).read_text(), keys=[witness.public_text]).ok


def test_a_folder_without_links_keeps_checkpoints(ledger, ask, tmp_path, monkeypatch):
    """As a mounted bucket; what is there is not written over, and no draft stays."""

    def refuse(*_):
        raise PermissionError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    folder = tmp_path / "witness"
    folder.mkdir()
    ledger.witness(folder)
    ask.reserve(ledger, "one")
    with pytest.raises(LedgerUnavailable, match="File exists"):
        open_place(str(folder)).add(1, "another")
    assert ledger.witness(folder).is_new
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["000000000001.txt", "000000000002.txt"]


def test_a_restored_copy_is_an_alarm(make_place, tmp_path, ask):
    """Database and anchor were put back together: only the folder outside knows."""
    place = make_place(str(tmp_path / "ledger.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    folder = tmp_path / "witness"
    folder.mkdir()
    place.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    copies = tmp_path / "copies"
    copies.mkdir()
    shutil.copy(place.target, copies)
    shutil.copytree(place.anchor, copies / "anchor")
    ask.reserve(ledger, "lost")
    ledger.witness(folder)
    before = sorted(folder.iterdir())
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"ledger.sqlite{suffix}").unlink(missing_ok=True)
    shutil.copy(copies / "ledger.sqlite", place.target)
    shutil.copy(copies / "anchor" / "mark", place.anchor)
    restored = place.open()
    assert restored.verify().ok
    with pytest.raises(LedgerCorrupt, match="nothing is signed"):
        restored.witness(folder)
    ask.reserve(restored, "other")
    ask.reserve(restored, "third")
    with pytest.raises(LedgerCorrupt, match="nothing is signed"):
        restored.witness(folder)
    assert sorted(folder.iterdir()) == before


def test_who_can_write_the_ledger_is_told(ledger, place, tmp_path, monkeypatch):
    """Their checkpoints are evidence against accidents only."""
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(place.anchor))
    words = ["checkpoint", "--into", str(tmp_path / "none"), "--ledger", place.target]
    with pytest.raises(LedgerUnavailable, match="no checkpoint can be read or kept"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    (tmp_path / "none").mkdir()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "accidents only" in done.output
    monkeypatch.setattr(type(ledger), "may_be_written", lambda _: False)
    assert "accidents" not in CliRunner().invoke(app, words).output
