"""Copies of a ledger that were put back with their anchors: only a witness's place shows it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from watched_scopes import DEMAND, EVE, NIGHTLY, OTHER, TERMS, charge, copy_aside

from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import ReleaseCharge
from dpflow.ledger import ledger as ledger_module
from dpflow.ledger.audit.witness import open_place
from dpflow.ledger.history.checkpoint import parse_note


def test_a_restored_copy_is_found_at_its_first_charge(restored, keep, ask):
    """By every charge of a scope that demands the witness, a session's and a replay, too."""
    for name in ("d1", "d0"):
        with pytest.raises(LedgerCorrupt, match="does not extend the checkpoint of entry 4"):
            ask.reserve(restored(), name)
    ledger = restored()
    report = ledger.verify()
    assert "does not extend the checkpoint of entry 4" in str(report) and not report.ok
    assert "does NOT extend every checkpoint below" in ledger.report("flights")[0]
    with pytest.raises(LedgerCorrupt, match="nothing is stated"):
        ledger.statement("flights")
    with pytest.raises(LedgerCorrupt, match="does not extend"):
        ask.answer_once(ledger)
    with pytest.raises(LedgerCorrupt, match="does not extend"):
        ledger.reserve_many(
            [ReleaseCharge(ask.key("f", scope="free"), **ask.terms()), charge(ask, "d1")]
        )
    ask.reserve(ledger, "d1", scope="free")
    assert ask.spent(ledger) == {"": "0.1"}


def test_a_restored_copy_is_neither_signed_nor_accepted(restored, keep, make_keep, monkeypatch):
    """By its own rules it verifies; each door that signs or goes on after a loss asks the witness first."""
    ledger = restored()
    for signer in (None, NIGHTLY):
        with pytest.raises(LedgerCorrupt, match="nothing is signed.*checkpoint of entry 4"):
            ledger.checkpoint(signer)
    (ledger._anchor.folder / "mark").unlink()
    with pytest.raises(InvalidInput, match="recover with it"):
        ledger.reanchor(reason="disk", principal="owner")
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", "/nowhere")
    for door in (ledger.checkpoint, lambda: ledger.reanchor(reason="disk", principal="owner")):
        with pytest.raises(LedgerUnavailable, match="Nothing was written or signed"):
            door()
    monkeypatch.delenv("DPFLOW_LEDGER_WITNESS")
    ledger.reanchor(reason="disk", principal="owner")
    assert "entry 4" not in ledger.checkpoint()


@pytest.mark.parametrize("kind", ["folder", "http"])
def test_checkpoints_by_keys_that_nobody_demands_count_too(
    make_place, make_keep, ask, tmp_path, kind
):
    """The ledger does not know who signs there, so nothing is signed or accepted before somebody says it."""
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS)
    copy_aside(place, tmp_path)
    keep = make_keep(kind, NIGHTLY.public_text)
    ask.reserve(ledger, "lost")
    ledger.witness(keep, NIGHTLY)
    copy = make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open()
    wanted = {"reason": "disk", "principal": "owner"}
    for door in (copy.checkpoint, lambda: copy.reanchor(**wanted), lambda: copy.recover(**wanted)):
        with pytest.raises(InvalidInput, match="none by a key that is trusted here"):
            door()
    with pytest.raises(LedgerCorrupt, match="does not extend the checkpoint of entry 2"):
        copy.checkpoint(NIGHTLY)
    (copy._anchor.folder / "mark").unlink()
    for door in (copy.reanchor, copy.recover):
        with pytest.raises(InvalidInput, match="recover with it"):
            door(**wanted, keys=[NIGHTLY.public_text])
    assert (
        "entry" in str(ledger.checkpoint(NIGHTLY)) or ledger.verify(keys=[NIGHTLY.public_text]).ok
    )


def test_a_copy_older_than_the_grant_is_found_too(
    make_place, make_keep, ask, tmp_path, monkeypatch
):
    """Nothing in it demands the witness: the checkpoint of this ledger says that its scope does."""
    keep = make_keep("folder")
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS)
    ledger.grant("free", 9, 0, **TERMS)
    copy_aside(place, tmp_path)
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ask.reserve(ledger, "lost")
    ledger.witness(keep, NIGHTLY)
    copy = make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open()
    assert copy.witness_states() == []
    with pytest.raises(LedgerCorrupt, match="does not extend the checkpoint of entry 4"):
        ask.reserve(copy, "d1")
    ask.reserve(copy, "x", scope="free")
    assert ask.spent(copy) == {"": "0"}
    report = copy.verify()
    assert not report.ok and "000000000001.txt, a checkpoint of entry 4 that says itself" in str(
        report
    )
    # By somebody who knows the key it is a fault.
    assert "does not extend the checkpoint of entry 4" in str(
        copy.verify(keys=[NIGHTLY.public_text])
    )
    # Of another ledger, or signed by a key that it does not name, a note stops nobody.
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", str(tmp_path / "other"))
    _, note = open_place(keep).newest()
    other = make_place(str(tmp_path / "o.sqlite"), tmp_path / "o").open()
    other.grant("flights", 9, 0, **TERMS, **DEMAND)
    texts = (OTHER.sign(note.rpartition("\n\n")[0] + "\n"), other.checkpoint(NIGHTLY), "x")
    for number, forged in enumerate(texts, 1):
        open_place(str(tmp_path / "other")).add(number, forged)
        copy = make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open()
        ask.reserve(copy, f"d{number}")


def make_false(note, demand, size=None):
    """A note by a stranger's key, which says that a scope of the ledger demands that key."""
    lines = note.rpartition("\n\n")[0].split("\n")
    at, line = next((n, one) for n, one in enumerate(lines) if one.startswith("scope "))
    name, rule, *rest = json.loads(line.removeprefix("scope "))
    rule = json.dumps(json.loads(rule) | demand, sort_keys=True, separators=(",", ":"))
    lines[at] = "scope " + json.dumps([name, rule, *rest], separators=(",", ":"))
    if size is not None:
        lines[1] = str(size)
    return OTHER.sign("\n".join(lines) + "\n")


def test_a_checkpoint_names_no_witness_by_itself(make_place, make_keep, ask, tmp_path):
    """Anybody who may add to the place can write one: it is no evidence, and beside a trusted one nothing at all."""
    keep = make_keep("folder")
    ledger = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor").open()
    ledger.grant("flights", 9, 0, **TERMS)
    ask.reserve(ledger, "d0")
    demand, note = {"witness": [OTHER.public_text, 5]}, ledger.checkpoint()
    open_place(keep).add(1, make_false(note, demand))
    for keys in ([NIGHTLY.public_text], []):
        report = ledger.verify(keys=keys)
        assert not report.ok and not report.compared_with and "NOT compared" in str(report)
    open_place(keep).add(2, make_false(note, demand, size=99))
    report = ledger.verify()
    assert not report.ok and not report.problems and "says itself that" in str(report)
    with pytest.raises(LedgerCorrupt, match="else somebody added a false note"):
        ask.reserve(make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor").open(), "d1")
    # Where a scope demands a witness, a stranger's note stops nothing, before and after the witness signs.
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ask.reserve(make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor").open(), "d2")
    ledger.witness(keep, NIGHTLY)
    report = ledger.verify()
    assert report.ok and [one.signer for one in report.compared_with] == [NIGHTLY.name]
    ask.reserve(make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor").open(), "d3")


def test_a_look_that_failed_is_made_again(make_place, make_keep, ask, tmp_path, monkeypatch):
    """A place that was out of reach at the first charge finds the copy once it is back; slow failures are not repeated at once."""
    keep = make_keep("folder")
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS)
    copy_aside(place, tmp_path)
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ledger.witness(keep, NIGHTLY)
    copy = make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open()
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", "/nowhere")
    monkeypatch.setattr(ledger_module, "_REST", 0)
    ask.reserve(copy, "x1")
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", keep)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="does not extend the checkpoint of entry 2"):
            ask.reserve(copy, "x2")
    assert ask.spent(copy) == {"": "0.1"}
    looks = []

    def fail(_):
        looks.append(1)
        raise LedgerUnavailable("out of reach")

    monkeypatch.setattr(ledger_module, "open_place", fail)
    monkeypatch.setattr(ledger_module, "_REST", 10**9)
    for number in range(3):
        ask.reserve(copy, f"y{number}")
    assert len(looks) == 1


def test_a_restored_copy_pays_no_more_than_the_demand(restored, keep, ask, monkeypatch):
    """Where the witness is out of reach; it is found by who reaches it again."""
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", "/nowhere")
    ledger = restored()
    ask.reserve(ledger, "d1")
    ask.reserve(ledger, "d2")
    with pytest.raises(LedgerUnavailable):
        ask.reserve(ledger, "d3")
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", keep)
    for opened in (ledger, restored()):
        with pytest.raises(LedgerCorrupt, match="does not extend"):
            ask.reserve(opened, "d3")
    with pytest.raises(LedgerCorrupt, match="nothing is signed"):
        ledger.witness(keep, NIGHTLY)
    assert ask.spent(ledger) == {"": "0.3"}


@pytest.mark.parametrize("is_known", [True, False])
def test_after_a_recovery_the_witness_signs_before_the_next_charge(
    make_place, keep, ask, tmp_path, monkeypatch, is_known
):
    """The newest checkpoint is of entries that were lost: who took it over shows the witness first; else it has a new place."""
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ask.reserve(ledger, "d0")
    place.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(place.target, tmp_path / "copy.sqlite")
    left = make_place(str(tmp_path / "copy.sqlite"), place.anchor)
    ask.reserve(ledger, "lost")
    ledger.witness(keep, NIGHTLY)
    note, keys = open_place(keep).newest()[1], [NIGHTLY.public_text]
    ledger = left.open()
    taken = {"checkpoint": note, "keys": keys} if is_known else {}
    if not is_known:
        with pytest.raises(InvalidInput, match="a checkpoint of entry 3, which this history does"):
            ledger.recover(reason="disk", principal="owner")
        assert ledger.history(limit=1)[-1].kind != "recover"
        monkeypatch.delenv("DPFLOW_LEDGER_WITNESS")
    ledger.recover(reason="disk", principal="owner", **taken)
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", keep)
    if not is_known:
        ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    with pytest.raises(LedgerCorrupt, match="does not extend"):
        ask.reserve(ledger, "d1")
    if not is_known:
        with pytest.raises(LedgerCorrupt, match="nothing is signed"):
            ledger.witness(keep, NIGHTLY)
        keep = str(tmp_path / "new")
        (tmp_path / "new").mkdir()
        monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", keep)
    assert ledger.witness(keep, NIGHTLY).is_new
    ask.reserve(ledger, "d1")
    spent = "0.3" if is_known else "0.2"
    assert ask.spent(ledger) == {"": spent} and ledger.verify().ok


def test_who_may_only_add_hides_no_checkpoint(restored, keep, ask, live):
    """A replay, text that is none, another key's note, and one of this history by a key of their own, which they add without
    a witness's key: the copy is still refused, the true ledger charges, and its witness goes on and says what it found.
    """
    place = open_place(keep)
    number, note = place.newest()
    text = note.rpartition("\n\n")[0] + "\n"
    # Of the copy's own history, behind a recovery, and it demands its own signer's key.
    point = parse_note(restored()._sign(EVE, None))
    scopes = [
        (name, rule.replace(NIGHTLY.public_text, EVE.public_text), *rest)
        for name, rule, *rest in point.scopes
    ]
    fork = replace(point, scopes=tuple(scopes), recoveries=("00",))
    nested = text.replace("\nscope [", "\nscope " + "[" * 10**5, 1)
    behind = (EVE.sign(fork.text), OTHER.sign(text), EVE.sign(nested), "no checkpoint")
    junk = [live.first, *behind, live.first]
    added = 0
    for entry in junk:
        try:
            place.add(number + added + 1, entry)
            added += 1
        except (LedgerCorrupt, LedgerUnavailable):
            assert keep.startswith("http")  # the server checks what it takes
    # A server takes what extends its last, by any key that it knows.
    assert added == (1 if keep.startswith("http") else len(junk))
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="does not extend the checkpoint of entry 4"):
            ask.reserve(restored(), "d1")
    ask.reserve(live.ledger, "d2")
    result = live.ledger.witness(keep, NIGHTLY)
    assert result.is_new and len(result.problems) == (0 if keep.startswith("http") else added)
    for name in ("d3", "d4", "d5"):  # its newest is brought: no junk stands before it
        ask.reserve(live.ledger, name)
    assert live.ledger.verify().ok
