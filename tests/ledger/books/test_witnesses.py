"""Scopes that demand a witness: no charge goes further than it was told to, whoever charges."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import signal
import subprocess
import traceback
from pathlib import Path

import pytest
from audit_program import export_text, run_audit
from crashes import run_forked_work
from typer.testing import CliRunner
from watched_scopes import DEMAND, NIGHTLY, OTHER, TERMS, charge, state_of

from dpflow import fault_points
from dpflow.cli.ledger import app
from dpflow.client.remote import check_server
from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable, WitnessBehind
from dpflow.ledger.audit.witness import open_place
from dpflow.ledger.books import witnesses


def test_a_charge_waits_for_the_witness(watched, keep, ask, tmp_path):
    """The fourth is refused and may be retried; the witness's next checkpoint lets it pass by itself."""
    early = watched.checkpoint()
    for number in range(3):
        ask.reserve(watched, f"d{number}")
    with pytest.raises(
        WitnessBehind, match="for witness nightly, charges count from entry 1, and 3 of 3"
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
    if Path(keep).is_dir():  # what is audited is the history, wherever its witness is
        assert watched.verify().ok, watched.verify()
        alone = run_audit(export_text(watched), tmp_path)
        assert "all within the rules" in alone.stderr and alone.returncode == 1
        assert "NOT compared with a witness: name the newest checkpoint by nightly" in alone.stderr
        note = watched.checkpoint(NIGHTLY)
        assert run_audit(export_text(watched), tmp_path, note).returncode == 0
        origin, size, rest = note.split("\n", 2)
        text = "\n".join([origin, str(int(size) - 1), rest]).rpartition("\n\n")[0] + "\n"
        other = NIGHTLY.sign(text)
        assert (
            "does not extend note-1"
            in run_audit(export_text(watched), tmp_path, note, other).stderr
        )
        report = watched.verify(since=early, new_only=True)
        assert report.ok and report.checked_after, report
    assert watched.verify().ok
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
    place = open_place(keep)
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
    page = watched.report("flights")[0]
    assert "NOT compared with a witness: " in page
    assert "NOT compared with a witness: " in watched.statement("flights").summary


def test_a_token_in_a_repositorys_address_is_never_shown():
    """Whoever reads it writes the witness, and messages stand in statements, reports and logs."""
    address = "http://nightly:s3cretpassword@127.0.0.1:1/w.git"
    repository = open_place(f"git+{address}")
    with pytest.raises(LedgerUnavailable, match=r"repository http://127.0.0.1:1/w.git cannot") as e:
        repository.newest()
    with pytest.raises(InvalidInput, match="'http://h.example/x'") as other:
        check_server(address.replace("127.0.0.1:1/w.git", "h.example/x?sig=s3cretpassword"))
    for text in (str(e.value), str(other.value), repr(repository), str(repository)):
        assert "s3cret" not in text and "nightly" not in text


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


def test_a_demand_that_ended_stops_nobody(watched, make_keep, ask):
    """The place's newest checkpoint is from before: the history extends it."""
    keep = make_keep("folder")
    watched.witness(keep, NIGHTLY)
    watched.grant("flights", 9, 0, **TERMS, witness_every=0)
    ask.reserve(watched, "d0")
    report = watched.verify(keys=[NIGHTLY.public_text])
    assert report.ok and [one.signer for one in report.compared_with] == [NIGHTLY.name]
    # What nothing demands any more is no evidence for whoever does not know the key.
    assert "name the verifier key of who signs there" in str(watched.verify())


def test_a_witness_fails_aloud_where_others_added(watched, make_keep, ask, tmp_path, monkeypatch):
    """The command signs all the same, and ends with an error each time."""
    keep = make_keep("folder")
    key = tmp_path / "nightly.key"
    key.write_text(NIGHTLY.private_text)
    watched.witness(keep, NIGHTLY)
    open_place(keep).add(2, open_place(keep).newest()[1])
    ask.reserve(watched, "d0")
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(watched.anchor_folder))
    words = ["checkpoint", "--key", str(key), "--into", keep, "--ledger", watched.location]
    for said in ("000000000003.txt was added", "nothing was written since 000000000003.txt"):
        done = CliRunner().invoke(app, words)
        assert said in done.output.replace("\n", " ")
        assert isinstance(done.exception, LedgerCorrupt)
        assert "000000000002.txt is not newer than what was there before it" in str(done.exception)


def test_what_is_no_file_in_a_git_repository_is_passed_over(watched, ask, tmp_path):
    """Who may only add commits a submodule under the next name: the witness signs on, and says what was added."""
    bare, work = tmp_path / "w.git", tmp_path / "work"
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(bare)], check=True)
    name = f"git+{bare}"
    watched.witness(name, NIGHTLY)
    subprocess.run(["git", "clone", "--quiet", str(bare), str(work)], check=True)
    entry = f"160000,{'1' * 40},000000000002.txt"
    who = ["-c", "user.name=eve", "-c", "user.email=eve@localhost"]
    for words in (
        ["update-index", "--add", "--cacheinfo", entry],
        ["commit", "--quiet", "-m", "x"],
        ["push", "--quiet"],
    ):
        subprocess.run(["git", *who, *words], cwd=work, check=True, capture_output=True)
    ask.reserve(watched, "d0", scope="free")
    added = watched.witness(name, NIGHTLY)
    assert added.is_new and open_place(name).newest()[0] == 3


def test_a_git_repository_is_added_to_and_never_rewritten(watched, ask, tmp_path):
    """Whatever its history did other than add the next file is an alarm."""
    bare, work = tmp_path / "w.git", tmp_path / "work"
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(bare)], check=True)
    name = f"git+{bare}"
    for number in range(3):
        ask.reserve(watched, f"d{number}", scope="free")
        assert watched.witness(name, NIGHTLY).is_new
    assert not watched.witness(name, NIGHTLY).is_new
    note = open_place(name).newest()[1]

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
            assert open_place(name).newest()[0] == 2
        else:
            with pytest.raises(LedgerCorrupt, match="was changed, left out or taken away"):
                watched.witness(name, NIGHTLY)
            git("push", "--quiet", "--force", "origin", "HEAD~1:main")
        shutil.rmtree(work)


# --- deaths and others at the same time -----------------------------------------------------------


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

        code, _ = run_forked_work(work)
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
        assert witnesses.take_checkpoint(writer, open_place(keep).newest()[1], True, "p")
    stream = io.StringIO()
    watched.export(stream)
    stream.seek(0)
    moved = make_place(new_target(), place.anchor).open()
    moved.import_(stream, principal="owner")
    assert state_of(moved) == (4, 1) and moved.verify().ok
    ask.reserve(moved, "d3")
    assert state_of(moved) == (4, 2)
