"""Scopes that demand a witness: no charge goes further than it was told to, whoever charges."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import signal
import subprocess
import traceback
from dataclasses import replace
from types import SimpleNamespace

import pytest
from audit_program import export_text, run_audit
from typer.testing import CliRunner

from dpflow import fault_points
from dpflow.cli.ledger import app
from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable, WitnessBehind
from dpflow.ledger import ReleaseCharge
from dpflow.ledger import ledger as ledger_module
from dpflow.ledger.audit.witness import open_place
from dpflow.ledger.books import witnesses
from dpflow.ledger.history.checkpoint import Signer, parse_note

NIGHTLY, OTHER, EVE = map(Signer.create, ("nightly", "other", "eve"))
TERMS = {"table": None, "filter": "basic", "principal": "owner"}
DEMAND = {"witness": NIGHTLY.public_text, "witness_every": 3}


@pytest.fixture(params=["folder", "git", "http", "s3", "table"])
def keep(request, make_keep):
    """A place of a witness of each kind, that those who charge know."""
    return make_keep(request.param, NIGHTLY.public_text, OTHER.public_text)


@pytest.fixture
def watched(place):
    """A ledger with a scope that demands a witness after three charges, and one that does not."""
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ledger.grant("free", 9, 0, **TERMS)
    return ledger


def charge(ask, name):
    return ReleaseCharge(ask.key(name), **ask.terms())


def state_of(ledger):
    (state,) = ledger.witness_states()
    return state.size, state.charges


def agree(ledger, tmp_path, early=None):
    """Full and forward verification and the audit program hold."""
    assert ledger.verify().ok, ledger.verify()
    alone = run_audit(export_text(ledger), tmp_path)
    assert "all within the rules" in alone.stderr and alone.returncode == 1
    assert "NOT compared with a witness: name the newest checkpoint by nightly" in alone.stderr
    note = ledger.checkpoint(NIGHTLY)
    assert run_audit(export_text(ledger), tmp_path, note).returncode == 0
    origin, size, rest = note.split("\n", 2)
    other = "\n".join([origin, str(int(size) - 1), rest])
    assert "does not extend note-1" in run_audit(export_text(ledger), tmp_path, note, other).stderr
    if early is not None:
        report = ledger.verify(since=early, new_only=True)
        assert report.ok and report.checked_after, report


def test_a_charge_waits_for_the_witness(watched, keep, ask, tmp_path):
    """The fourth is refused and may be retried; the witness's next checkpoint lets it pass by itself."""
    early = watched.checkpoint()
    for number in range(3):
        ask.reserve(watched, f"d{number}")
    with pytest.raises(
        WitnessBehind, match="witness nightly is at entry 1, 3 of 3 charges"
    ) as late:
        ask.reserve(watched, "d3")
    assert late.value.retryable
    assert ask.spent(watched) == {"": "0.3"}
    ask.reserve(watched, "d0")  # paid before: no charge
    ask.reserve(watched, "x", scope="free")
    assert watched.witness(keep, NIGHTLY).size == 7
    ask.reserve(watched, "d3")
    assert state_of(watched) == (7, 1)
    with pytest.raises(WitnessBehind):
        watched.reserve_many([charge(ask, name) for name in ("d3", "e0", "e1", "e2")])
    with pytest.raises(InvalidInput, match="more than 3 releases are charged at once"):
        watched.witness(keep, NIGHTLY)
        watched.reserve_many([charge(ask, name) for name in ("e0", "e1", "e2", "e3")])
    agree(watched, tmp_path, early)
    assert ask.spent(watched) == {"": "0.4"}
    report = watched.verify()
    assert "evidence against accidents only" in str(report)


def test_a_session_waits_too_and_a_quota_for_the_scope_above(watched, keep, ask):
    """Whatever charges a scope that demands it."""
    watched.quota("flights/a", 5, 0, principal="owner", witness=OTHER.public_text, witness_every=2)
    ask.reserve(watched, "d0", scope="flights/a")
    ask.answer_once(watched)
    ask.reserve(watched, "d1", scope="flights/a")
    states = {state.scope: (state.charges, state.every) for state in watched.witness_states()}
    assert states == {"flights": (3, 3), "flights/a": (2, 2)}
    with pytest.raises(WitnessBehind, match="'flights'"):
        watched.open_session(ask.key("g2"), **ask.terms(), state={"left": 1}, exclusive=False)
    watched.witness(keep, NIGHTLY)
    with pytest.raises(WitnessBehind, match="'flights/a'"):
        ask.reserve(watched, "d2", scope="flights/a")
    watched.open_session(ask.key("g2"), **ask.terms(), state={"left": 1}, exclusive=False)
    report = watched.verify()
    assert not report.problems and [point.signer for point in report.compared_with] == ["nightly"]
    assert "no checkpoint by other, the witness of scope 'flights/a', is at" in str(report)
    assert not report.ok


def test_only_the_named_key_and_this_history_count(watched, keep, ask, make_place, tmp_path):
    """Another's checkpoint, one of an earlier entry, and one of another ledger bring nothing."""
    for number in range(3):
        ask.reserve(watched, f"d{number}")
    watched.witness(keep, OTHER)
    with pytest.raises(WitnessBehind):
        ask.reserve(watched, "d3")
    other = make_place(str(tmp_path / "other.sqlite"), tmp_path / "other").open()
    for number in range(9):
        other.grant(f"s{number}", 1, 0, **TERMS)
    place = witnesses_place(keep)
    if keep.startswith("http"):  # the server lets none of it in
        with pytest.raises(LedgerCorrupt, match="another ledger's"):
            place.add(2, other.checkpoint(NIGHTLY))
        return
    place.add(2, other.checkpoint(NIGHTLY))
    with pytest.raises(WitnessBehind):
        ask.reserve(watched, "d3")
    report = watched.verify()
    assert not report.problems and not report.compared_with and state_of(watched) == (1, 3)
    assert "NOT compared with a witness: no checkpoint by nightly" in str(report)


def witnesses_place(name):
    return open_place(name)


@pytest.mark.parametrize(
    "kind", ["no place", "nothing there", "gone", "no Git", "no server", "no database"]
)
def test_a_witness_that_is_late_or_out_of_reach_is_retryable(
    watched, ask, monkeypatch, tmp_path, kind
):
    """Nothing is charged, and the message says what to do."""
    (tmp_path / "empty").mkdir()
    places = {"nothing there": "empty", "gone": "none", "no Git": "empty"}
    if kind in places:
        prefix = "git+" if kind == "no Git" else ""
        monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", f"{prefix}{tmp_path / places[kind]}")
    if kind in ("no server", "no database"):
        name = "http://127.0.0.1:1/w" if kind == "no server" else "sqlite:////nowhere/n.sqlite"
        monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", name)
    for number in range(3):
        ask.reserve(watched, f"d{number}")
    with pytest.raises(LedgerUnavailable, match="witness|no checkpoint can be read") as late:
        ask.reserve(watched, "d3")
    assert late.value.retryable
    assert ask.spent(watched) == {"": "0.3"}
    for report in (
        watched.verify(),
        watched.verify(since=watched._sign(None, None), new_only=True),
    ):
        assert not report.problems and not report.ok and len(report.gaps) == 1, report
        assert "chain, anchor and sums hold; " in str(report)
        assert "NOT compared with a witness: " in str(report)
    brought = watched.verify(since=watched._sign(NIGHTLY, None), keys=[NIGHTLY.public_text])
    assert brought.ok == (kind == "no place") and brought.compared_with, brought
    page = watched.report("flights")
    assert "NOT compared with a witness: " in page
    assert "NOT compared with a witness: " in watched.statement("flights").summary


def test_terms_of_a_witness(place):
    """It is kept, changed, and ended by a grant; its charges are counted from the grant that names it."""
    ledger = place.open()
    for wrong in ({"witness": NIGHTLY.public_text}, {"witness_every": 2}, {"witness": "x"}):
        with pytest.raises(InvalidInput, match="--witness|verifier key"):
            ledger.grant("s", 1, 0, **TERMS, **wrong)
    ledger.grant("s", 1, 0, **TERMS, **DEMAND)
    ledger.grant("s", 2, 0, **TERMS)
    assert ledger.scope("s").filter.witness.every == 3
    ledger.grant("s", 2, 0, **TERMS, witness_every=5)
    assert [(state.size, state.every) for state in ledger.witness_states()] == [(1, 5)]
    ledger.grant("s", 2, 0, **TERMS, witness=OTHER.public_text, witness_every=5)
    assert [(state.size, state.witness) for state in ledger.witness_states()] == [(4, "other")]
    ledger.grant("s", 2, 0, **TERMS, witness_every=0)
    assert ledger.witness_states() == [] and ledger.verify().ok


# --- adversaries ----------------------------------------------------------------------------------


def test_whoever_skips_the_rule_is_found(watched, ask, tmp_path, monkeypatch):
    """By verification from the first entry on, from a checkpoint, and by the audit program."""
    early = watched.checkpoint()
    monkeypatch.setattr(witnesses, "count_charges", lambda *_: None)
    for number in range(4):
        ask.reserve(watched, f"d{number}")
    for report in (watched.verify(), watched.verify(since=early, new_only=True)):
        assert any("further than its witness" in problem for problem in report.problems), report
    assert "further than its witness" in run_audit(export_text(watched), tmp_path).stderr


@pytest.mark.parametrize(
    ("signer", "change", "word"),
    [
        (OTHER, lambda note: note, "of no witness"),
        (NIGHTLY, lambda note: note.replace("\n6\n", "\n5\n"), "of no witness"),
        (None, lambda note: note, "another history or an older entry"),
    ],
)
def test_a_forged_checkpoint_is_found(watched, ask, tmp_path, signer, change, word):
    """A holder of the ledger's key writes any entry and row, and signs nothing for a witness."""
    for number in range(3):
        ask.reserve(watched, f"d{number}")
    ask.reserve(watched, "x", scope="free")
    note = watched.checkpoint(signer or NIGHTLY)
    with watched._begin_writing() as writer:
        row = writer.state.find(witnesses.schema.witness, scope="flights")
        if signer is None:  # it was brought before
            assert witnesses.take_checkpoint(writer, note, False, "p")
        else:
            writer.state.update(witnesses.schema.witness, row, size=6, charges=0)
            writer.add_entry("witness", "", "", "p", {"note": change(note), "own": False})
    if signer is None:
        with watched._begin_writing() as writer:
            assert not witnesses.take_checkpoint(writer, note, False, "p")
            writer.add_entry("witness", "", "", "p", {"note": note, "own": False})
    assert any(word in problem for problem in watched.verify().problems), watched.verify()
    assert run_audit(export_text(watched), tmp_path).returncode != 0


@pytest.fixture
def live():
    """Of what `restored` is a copy: its ledger, and the first checkpoint that its witness signed."""
    return SimpleNamespace()


@pytest.fixture
def restored(make_place, keep, ask, tmp_path, live):
    """Opens a copy, put back with its anchor, whose witness has signed a later entry: nothing inside shows it."""
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ledger.grant("free", 9, 0, **TERMS)
    live.ledger = ledger
    ledger.witness(keep, NIGHTLY)
    live.first = witnesses_place(keep).newest()[1]
    ask.reserve(ledger, "d0")
    place.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(place.anchor, tmp_path / "copy-anchor")
    shutil.copy(place.target, tmp_path / "copy.sqlite")
    ask.reserve(ledger, "lost")
    ledger.witness(keep, NIGHTLY)
    return make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open


def test_a_restored_copy_is_found_at_its_first_charge(restored, keep, ask):
    """By every charge of a scope that demands the witness, a session's and a replay, too."""
    for name in ("d1", "d0"):
        with pytest.raises(LedgerCorrupt, match="does not extend the checkpoint of entry 4"):
            ask.reserve(restored(), name)
    ledger = restored()
    report = ledger.verify()
    assert "does not extend the checkpoint of entry 4" in str(report) and not report.ok
    assert "does NOT extend every checkpoint below" in ledger.report("flights")
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


def test_a_copy_older_than_the_grant_is_found_too(
    make_place, make_keep, ask, tmp_path, monkeypatch
):
    """Nothing in it demands the witness: the checkpoint of this ledger says that its scope does."""
    keep = make_keep("folder")
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS)
    ledger.grant("free", 9, 0, **TERMS)
    place.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(place.anchor, tmp_path / "copy-anchor")
    shutil.copy(place.target, tmp_path / "copy.sqlite")
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ask.reserve(ledger, "lost")
    ledger.witness(keep, NIGHTLY)
    copy = make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open()
    assert copy.witness_states() == []
    with pytest.raises(LedgerCorrupt, match="does not extend the checkpoint of entry 4"):
        ask.reserve(copy, "d1")
    ask.reserve(copy, "x", scope="free")
    assert ask.spent(copy) == {"": "0"}
    assert "does not extend the checkpoint of entry 4" in str(copy.verify())
    # Of another ledger, or signed by a key that it does not name, a note stops nobody.
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", str(tmp_path / "other"))
    _, note = witnesses_place(keep).newest()
    other = make_place(str(tmp_path / "o.sqlite"), tmp_path / "o").open()
    other.grant("flights", 9, 0, **TERMS, **DEMAND)
    texts = (OTHER.sign(note.rpartition("\n\n")[0] + "\n"), other.checkpoint(NIGHTLY), "x")
    for number, forged in enumerate(texts, 1):
        witnesses_place(str(tmp_path / "other")).add(number, forged)
        copy = make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open()
        ask.reserve(copy, f"d{number}")


def test_a_look_that_failed_is_made_again(make_place, make_keep, ask, tmp_path, monkeypatch):
    """A place that was out of reach at the first charge finds the copy once it is back; slow failures are not repeated at once."""
    keep = make_keep("folder")
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS)
    place.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(place.anchor, tmp_path / "copy-anchor")
    shutil.copy(place.target, tmp_path / "copy.sqlite")
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


def test_a_demand_that_ended_stops_nobody(watched, make_keep, ask):
    """The place's newest checkpoint is from before: the history extends it."""
    keep = make_keep("folder")
    watched.witness(keep, NIGHTLY)
    watched.grant("flights", 9, 0, **TERMS, witness_every=0)
    ask.reserve(watched, "d0")
    assert watched.verify().ok


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
    note, keys = witnesses_place(keep).newest()[1], [NIGHTLY.public_text]
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
    place = witnesses_place(keep)
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


def test_a_witness_fails_aloud_where_others_added(watched, make_keep, ask, tmp_path, monkeypatch):
    """The command signs all the same, and ends with an error each time."""
    keep = make_keep("folder")
    key = tmp_path / "nightly.key"
    key.write_text(NIGHTLY.private_text)
    watched.witness(keep, NIGHTLY)
    witnesses_place(keep).add(2, witnesses_place(keep).newest()[1])
    ask.reserve(watched, "d0")
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(watched.anchor_folder))
    words = ["checkpoint", "--key", str(key), "--into", keep, "--ledger", watched.location]
    for said in ("000000000003.txt was added", "nothing was written since 000000000003.txt"):
        done = CliRunner().invoke(app, words)
        assert said in done.output.replace("\n", " ")
        assert isinstance(done.exception, LedgerCorrupt)
        assert "000000000002.txt is not newer than what was there before it" in str(done.exception)


def test_a_git_repository_is_added_to_and_never_rewritten(watched, ask, tmp_path):
    """Whatever its history did other than add the next file is an alarm."""
    bare, work = tmp_path / "w.git", tmp_path / "work"
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(bare)], check=True)
    name = f"git+{bare}"
    for number in range(3):
        ask.reserve(watched, f"d{number}", scope="free")
        assert watched.witness(name, NIGHTLY).is_new
    assert not watched.witness(name, NIGHTLY).is_new
    note = witnesses_place(name).newest()[1]

    def git(*words):
        who = ["-c", "user.name=eve", "-c", "user.email=eve@localhost"]
        subprocess.run(["git", *who, *words], cwd=work, check=True, capture_output=True)

    for change in ("edit", "remove", "skip", "cut"):
        subprocess.run(["git", "clone", "--quiet", str(bare), str(work)], check=True)
        if change == "edit":
            (work / "000000000001.txt").write_text(note)
        elif change == "remove":
            git("rm", "--quiet", "000000000001.txt")
        elif change == "skip":
            (work / "000000000009.txt").write_text(note)
        if change == "cut":
            git("reset", "--quiet", "--hard", "HEAD~1")
        else:
            git("add", "-A")
            git("commit", "--quiet", "-m", "x")
        git("push", "--quiet", "--force", "origin", "HEAD:main")
        if change == "cut":  # a cut end: the ledger's own entry knows, and so does the next reader
            assert witnesses_place(name).newest()[0] == 2
        else:
            with pytest.raises(LedgerCorrupt, match="was changed, left out or taken away"):
                watched.witness(name, NIGHTLY)
            git("push", "--quiet", "--force", "origin", "HEAD~1:main")
        shutil.rmtree(work)


# --- deaths and others at the same time -----------------------------------------------------------


def in_child(work):
    """Do it in a child; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except LedgerUnavailable:
            os._exit(75)
        except BaseException:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def test_a_death_at_any_statement_charges_once(watched, ask, tmp_path, monkeypatch):
    """While a charge brings a checkpoint: the retry completes, and all verifies."""
    folder = tmp_path / "witness"
    folder.mkdir()
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", str(folder))
    for number in range(3):
        ask.reserve(watched, f"d{number}")
    watched.witness(str(folder), NIGHTLY)
    deaths = 0
    for at in range(1, 60):
        left = itertools.count(1)

        def die(left=left, at=at):
            if next(left) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(die=die, at=at):
            fault_points.after_statement = die
            ask.reserve(watched, "d3")

        code = in_child(work)
        assert code in (0, -signal.SIGKILL), code
        if code == 0:
            break
        deaths += 1
    assert deaths > 5
    ask.reserve(watched, "d3")
    assert ask.spent(watched) == {"": "0.4"} and state_of(watched) == (5, 1)
    assert watched.verify().ok


@pytest.mark.parametrize("kind", ["folder", "http", "table"])
def test_two_processes_that_sign_for_themselves(
    watched, make_keep, ask, tmp_path, monkeypatch, kind
):
    """Each charge is at most three behind; all go through, and the history says whose witness it was."""
    make_keep(kind, NIGHTLY.public_text)
    key = tmp_path / "nightly.key"
    key.write_text(NIGHTLY.private_text)
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS_KEY", str(key))

    def work(who):
        for number in range(5):
            for _ in range(50):
                try:
                    ask.reserve(watched, f"{who}{number}", "0.01")
                    break
                except LedgerUnavailable:
                    continue
            else:
                raise AssertionError("never served")

    children = []
    for who in "ab":
        child = os.fork()
        if child == 0:
            try:
                work(who)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert ask.spent(watched) == {"": "0.1"}
    report = watched.verify()
    assert report.ok and "accidents only" in report.warnings[0]
    assert run_audit(export_text(watched), tmp_path, watched.checkpoint(NIGHTLY)).returncode == 0


def test_what_another_process_brought_first_counts(watched, keep, ask, monkeypatch):
    """A charge that finds nothing to bring any more is tried again all the same."""
    for number in range(3):
        ask.reserve(watched, f"d{number}")
    watched.witness(keep, NIGHTLY)
    take = witnesses.take_checkpoint

    def come_second(*words):
        assert take(*words)
        return take(*words)

    monkeypatch.setattr(witnesses, "take_checkpoint", come_second)
    ask.reserve(watched, "d3")
    assert [entry.kind for entry in watched.history()].count("witness") == 1
    assert watched.verify().ok


def test_a_ledger_moves_with_its_witness(watched, keep, ask, place, make_place, new_target):
    """An import counts on."""
    for number in range(2):
        ask.reserve(watched, f"d{number}")
    watched.witness(keep, NIGHTLY)
    ask.reserve(watched, "d2")
    with watched._begin_writing() as writer:
        assert witnesses.take_checkpoint(writer, witnesses_place(keep).newest()[1], True, "p")
    stream = io.StringIO()
    watched.export(stream)
    stream.seek(0)
    moved = make_place(new_target(), place.anchor).open()
    moved.import_(stream, principal="owner")
    assert state_of(moved) == (4, 1) and moved.verify().ok
    ask.reserve(moved, "d3")
    assert state_of(moved) == (4, 2)
