"""Database and anchor that are put back together under a program that runs: it has seen more than both hold."""

from __future__ import annotations

import shutil

import pytest

from dpflow.errors import LedgerCorrupt

TERMS = {"table": None, "filter": "basic", "principal": "owner"}


def _list_tables(place):
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if "://" in place.target:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    return [name for (name,) in place.sql(query) if name.startswith("dpflow_")]


def keep_copy(place, folder):
    """Copy all rows and the anchor."""
    place.sql(
        *(f"CREATE TABLE kept_{name} AS SELECT * FROM {name}" for name in _list_tables(place))
    )
    shutil.copytree(place.anchor, folder)


def put_back(place, folder):
    """Put rows and anchor back, as restores of a server's database do, without a new file."""
    for name in _list_tables(place):
        place.sql(f"DELETE FROM {name}", f"INSERT INTO {name} SELECT * FROM kept_{name}")
    shutil.copy2(folder / "mark", place.anchor / "mark")


@pytest.fixture
def restored(place, ask, tmp_path):
    """A ledger object that charged, and whose database and anchor were then put back to before that."""
    running = place.open()
    running.grant("flights", 9, 0, **TERMS)
    keep_copy(place, tmp_path / "kept")
    ask.reserve(running, "d0")
    ask.reserve(running, "d1")
    put_back(place, tmp_path / "kept")
    return running


def test_who_charged_before_refuses_a_restored_ledger(restored, place, ask):
    """Every charge, look and verification does; control: a new process cannot tell, and charges."""
    for _ in range(3):
        with pytest.raises(LedgerCorrupt, match="this program saw entry 3, which is gone"):
            ask.reserve(restored, "d2")
    with pytest.raises(LedgerCorrupt, match="this program saw entry 3"):
        restored.remaining("flights")
    assert not restored.verify().ok
    ask.reserve(place.open(), "d2")


def test_another_branch_that_went_further_is_refused_too(restored, place, ask):
    """A new process charged the restored copy past the number that this one saw."""
    other = place.open()
    for number in range(5):
        ask.reserve(other, f"x{number}")
    with pytest.raises(LedgerCorrupt, match="this program saw entry 3"):
        ask.reserve(restored, "d2")


def test_who_only_read_remembers_too(place, ask, tmp_path):
    """What the anchor's mark said was proved by the read."""
    writer = place.open()
    writer.grant("flights", 9, 0, **TERMS)
    keep_copy(place, tmp_path / "kept")
    ask.reserve(writer, "d0")
    reader = place.open()
    reader.remaining("flights")
    put_back(place, tmp_path / "kept")
    with pytest.raises(LedgerCorrupt, match="this program saw entry 2"):
        reader.remaining("flights")


def test_an_emptied_ledger_is_refused(place, ask, tmp_path):
    """No rows, and the anchor of before the first grant."""
    running = place.open()
    keep_copy(place, tmp_path / "kept")
    running.grant("flights", 9, 0, **TERMS)
    put_back(place, tmp_path / "kept")
    with pytest.raises(LedgerCorrupt, match="this program saw entry 1"):
        running.scopes()


def test_a_mark_that_lags_alone_stops_nobody(place, ask, tmp_path):
    """As after a power cut at the anchor's disk: the database has all that this program saw."""
    running = place.open()
    running.grant("flights", 9, 0, **TERMS)
    shutil.copytree(place.anchor, tmp_path / "kept")
    ask.reserve(running, "d0")
    shutil.copy2(tmp_path / "kept" / "mark", place.anchor / "mark")
    ask.reserve(running, "d1")
    assert running.verify().ok and ask.spent(running) == {"": "0.2"}


def test_a_recovery_ends_the_refusal(restored, place, ask):
    """For who recovers, and for programs that are started after it; others must be started again."""
    bystander = place.open()
    bystander._anchor.known = restored._anchor.known
    checkpoint_free = {"reason": "disk", "principal": "owner"}
    place.anchor.joinpath("mark").write_bytes(restored._anchor.mark_record(*restored._anchor.known))
    restored.recover(**checkpoint_free)
    restored.grant("flights", 9, 0, **TERMS)
    ask.reserve(restored, "d2")
    ask.reserve(place.open(), "d3")
    with pytest.raises(LedgerCorrupt, match="start this program again"):
        ask.reserve(bystander, "d4")
    assert restored.verify().ok
