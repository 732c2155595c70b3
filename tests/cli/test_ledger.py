"""`dpflow ledger`: every verb, for people and for programs, with its exit code."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime as dt
import json
import os
import sqlite3
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from ledger_verbs import Run, charge
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.core.accounting import events
from dpflow.core.accounting.privacy_filters import Guarantee
from dpflow.engine.releases.execute import release
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import parse_request
from dpflow.errors import (
    BudgetExceeded,
    DpflowError,
    GrantConflict,
    InvalidAmount,
    InvalidInput,
    LedgerCorrupt,
    TableError,
    UnknownName,
)
from dpflow.ledger import Ledger
from dpflow.ledger.books.records import Scope
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note
from dpflow.registry import Registry
from dpflow.tables.public.named_tables import AnswerRun, publish_view
from dpflow.ui.burn_down import describe_event

if TYPE_CHECKING:
    from smallworld import Tiny


def test_an_export_replaces_no_pipe_and_no_link(tiny: Tiny, run: Run) -> None:
    """Written by root it took the place of /dev/null and /dev/stdout."""
    pipe, link = tiny.folder / "pipe", tiny.folder / "link"
    os.mkfifo(pipe)
    link.symlink_to("export.jsonl")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run("export", "pipe")
    assert pipe.is_fifo()
    run("export", "link")
    assert link.is_symlink()
    with open(reader, "rb") as stream:
        assert stream.read() == (tiny.folder / "export.jsonl").read_bytes() != b""


def test_a_statement_in_each_form(tiny: Tiny, run: Run) -> None:
    """On the screen, as CSV, as JSON, and as a page in a file."""
    charge(tiny, "one")
    shown = run("statement", "visits")
    assert "one" in shown and "A unit with rows in all blocks has paid epsilon 0.1" in shown
    (row,) = [r for r in csv.DictReader(run("statement", "visits", "--format", "csv").splitlines()) if r["name"] == "one"]  # fmt: skip
    assert (row["epsilon"], row["state"], row["blocks"]) == ("0.1", "reserved", "2020-01-01")
    charge(tiny, "two", block="2020-01-02")
    stated = run("statement", "visits", "--by", "principal", "--json")
    assert stated["totals"][0] | {"epsilon": "0.1", "sum_epsilon": "0.2"} == stated["totals"][0]
    assert "in all blocks" in run("statement", "visits") and "in all blocks:" not in shown
    assert "is in page.html" in run("statement", "visits", "page.html", "--format", "html")
    assert Path("page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(InvalidInput, match="until is 'soon'"):
        run("statement", "visits", "--until", "soon")


def test_a_ledger_is_reconciled_with_what_is_published(tiny: Tiny, run: Run) -> None:
    """Orphans, results that are in no table, and rows that no ledger settled, each by name."""
    file = tiny.folder / "out.duckdb"
    fields = {"name": "n", "mechanism": "count", "table": "visits.yml", "scope": "visits", "blocks": ["2020-01-01"],
        "params": {"epsilon": "0.1"}, "publish": {"database": str(file)}}  # fmt: skip
    plan = make_plan(parse_request(fields, tiny.folder, "test"), Registry.load())
    done = release(plan, Ledger(tiny.ledger), Registry.load())
    result = run("reconcile", "--published", file, "--json")
    assert result["ok"] and (result["charged"], result["settled"], result["published"]) == (1, 1, 1)
    shown = run("reconcile", "--published", f"{file}:releases")
    assert "1 of 1 published, 1 compared with the stored result\n" in shown
    assert "with no table" not in shown
    assert run("reconcile", "--published", f"{file}:releases_latest") == shown
    with contextlib.closing(duckdb.connect(str(file))) as connection:
        connection.execute("CREATE VIEW ages AS SELECT 1 AS value")
    with pytest.raises(TableError, match="a view whose rows name no release"):
        run("reconcile", "--published", f"{file}:ages")
    assert "no published table was compared" in run("reconcile")
    asked = make_plan(
        parse_request(fields | {"name": "m", "publish": None}, tiny.folder, "test"), Registry.load()
    )
    alone = release(asked, Ledger(tiny.ledger), Registry.load()).release_id
    assert f"1 settled, with no table to publish in: {alone}" in run(
        "reconcile", "--published", file
    )
    about = AnswerRun(releases=(alone, "x"))
    publish_view(file, "answer", [("releases", "BIGINT", [1])], about)
    result = run("reconcile", "--published", file, "--published", f"{file}:answer", "--json")
    assert not result["ok"] and (result["no_table"], result["unknown"]) == ([], ["x"])
    assert (result["compared"], result["by_id"], result["altered"]) == (1, 1, [])
    latest = run("reconcile", "--published", file, "--published", f"{file}:answer_latest", "--json")
    assert latest == result
    orphan = charge(tiny, "orphan")
    file.rename(tiny.folder / "away.duckdb")
    result = run("reconcile", "--published", file, "--json")
    assert not result["ok"] and result["orphans"] == [orphan]
    assert result["unpublished"] == [done.release_id]
    assert "1 settled and not published" in run("reconcile", "--published", file)
    run("resolve", orphan, "--reason", "lost")
    other = Ledger(tiny.folder / "other.sqlite", anchor=tiny.folder / "other", create=True)
    other.grant("visits", 1, 0, table=None, filter="basic", principal="owner")
    place = ["--published", tiny.folder / "away.duckdb", "--ledger", tiny.folder / "other.sqlite"]
    os.environ["DPFLOW_LEDGER_ANCHOR"] = str(tiny.folder / "other")
    try:
        assert run("reconcile", *place, "--json")["unknown"] == [done.release_id]
    finally:
        del os.environ["DPFLOW_LEDGER_ANCHOR"]


@pytest.mark.parametrize(
    "change",
    ["UPDATE releases SET value = value + 1", "UPDATE releases SET epsilon = 0.01", "UPDATE releases SET run = 'x'",
        "UPDATE releases SET low = 0, high = 1", "UPDATE releases SET group_key = 'k'",
        "INSERT INTO releases SELECT * FROM releases", "UPDATE releases SET released_at = '2020-01-01'",
        "UPDATE releases SET noise_low = NULL", ""],
)  # fmt: skip
def test_a_published_number_that_was_edited_is_found(tiny: Tiny, run: Run, change: str) -> None:
    """Whatever column or row of it; a view in the file is never read, and no release beside it is blamed."""
    done = {}
    for name in ("n", "m"):
        fields = {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "blocks": ["2020-01-01"],
            "params": {"epsilon": "0.1"}, "publish": {"database": str(tiny.folder / "out.duckdb")}}  # fmt: skip
        plan = make_plan(parse_request(fields, tiny.folder, "test"), Registry.load())
        done[name] = release(plan, Ledger(tiny.ledger), Registry.load()).release_id
    with contextlib.closing(duckdb.connect(str(tiny.folder / "out.duckdb"))) as connection:
        assert connection.execute("SELECT count(*) FROM releases").fetchone() == (2,)
        if change:
            only = "" if " FROM " in change else " WHERE release = 'n'"
            connection.execute(change.replace(" FROM releases", " FROM releases WHERE release = 'n'") + only)  # fmt: skip
    result = run("reconcile", "--published", tiny.folder / "out.duckdb", "--json")
    assert result["altered"] == ([done["n"]] if change else [])
    assert (result["ok"], result["compared"]) == (not change, 2)
    shown = run("reconcile", "--published", tiny.folder / "out.duckdb")
    assert (f"1 published with other rows than what was settled: {done['n']}" in shown) == bool(
        change
    )


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["quota", "visits", "--epsilon", "1"], InvalidInput, "below no other scope; name a quota as in visits/team-a"),
        (["quota", "vists/a", "--epsilon", "1"], GrantConflict, "grant 'vists' first"),
        (["quota", "visits/a", "--epsilon", "2"], GrantConflict, "more than 'visits' was granted"),
        (["quota", "visits/a", "--epsilon", "1", "--delta", "1e-5"], GrantConflict, "more than 'visits' was granted"),
        (["quota", "visits/a", "--epsilon", "nan"], InvalidAmount, "epsilon is 'nan'"),
        (["quota", "visits//a", "--epsilon", "1"], InvalidInput, "no empty part"),
        (
            ["grant", "n", "--epsilon", "1", "--delta", "1e-6", "--filter", "renyi", "--tail-share", "0", "--no-table"],
            InvalidAmount, "tail_share",
        ),
        (["grant", "visits", "--epsilon", "1", "--no-table"], GrantConflict, "granted to protect"),
        (["show", "vists"], UnknownName, "did you mean 'visits'"),
        (["odometer", "vists"], UnknownName, "did you mean 'visits'"),
        (["odometer", "--delta", "2"], InvalidAmount, "delta is '2'"),
        (["resolve", "feed", "--reason", "x"], InvalidInput, "feed is unknown"),
        (["grant", "new", "--epsilon", "1"], InvalidInput, "--table FILE, or --no-table"),
        (["grant", "new", "--epsilon", "1", "--no-table", "--table", "visits.yml"], InvalidInput, "--table FILE, or --no-table"),
        (["import", "nothing.jsonl"], InvalidInput, "there is no export at nothing.jsonl"),
        (["import", "visits.yml"], InvalidInput, "is no ledger export"),
        (["import", "visits.yml", "--anchor", "nowhere"], InvalidInput, "--anchor DIR"),
        (["import", "nothing.jsonl", "--anchor", "anchor"], InvalidInput, "there is no export"),
        (["export", "no/such/folder/x.jsonl"], InvalidInput, "cannot be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(
    run: Run, words: list[str], kind: type[DpflowError], message: str
) -> None:
    """Each refusal names what was asked and what to do; the ledger keeps its one entry."""
    with pytest.raises(kind, match=message):
        run(*words)
    assert len(run("history", "--json")) == 1


def test_a_renyi_scope_shows_its_own_path(tiny: Tiny, run: Run) -> None:
    """It has no epsilon to subtract from; a refusal speaks of divergence at its order."""
    run(
        "grant",
        "r",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--filter",
        "renyi",
        "--table",
        tiny.folder / "visits.yml",
    )
    charge(tiny, "n", "r")
    (row,) = run("show", "r", "--json")
    assert row["epsilon_left"] is None and row["delta_left"] == "0"
    assert float(row["renyi_left"]) < 1 and 0 < row["used"] < 1
    with pytest.raises(
        DpflowError, match=r"cannot pay: Renyi divergence .* at order 21.98 is asked, .* is left"
    ):
        charge(tiny, "m", "r", "0.9")


def test_spent_is_rounded_up_and_used_down(
    tiny: Tiny, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six digits to nearest were less than was spent, and a share to nearest was 100 % with budget left."""
    spent = {"": Guarantee(Fraction("0.79560004"), Fraction("0.0000001234561"), "basic")}
    monkeypatch.setattr(Ledger, "odometer", lambda *_, **__: spent)
    shown = run("odometer", "visits")
    assert "0.795601" in shown and "0.000000123457" in shown
    monkeypatch.setattr(Scope, "used_share", lambda *_: 0.9956)
    assert "99%" in run("show", "visits")
    assert (
        describe_event(events.to_json(events.Pure(Fraction("0.79560004001"))))
        == "epsilon 0.795601, delta 0"
    )


def test_the_odometer_is_a_report_per_scope_and_block(tiny: Tiny, run: Run) -> None:
    """Sums per block, and the whole-unit line over all blocks; at a chosen delta, or nothing
    finite.
    """
    charge(tiny, "one", epsilon="0.1")
    charge(tiny, "two", epsilon="0.2", block="2020-01-02")
    seen = run("odometer", "visits", "--json")
    assert [(row["block"], row["epsilon"], row["proved_by"]) for row in seen["budgets"]] == [
        ("2020-01-01", "0.1", "basic"),
        ("2020-01-02", "0.2", "basic"),
        ("*", "0.3", "basic"),
    ]
    assert "the promise is the grant" in seen["report"]
    shown = run("odometer")
    assert "a report" in shown and "rows in every block" in shown
    run(
        "grant",
        "r",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--filter",
        "renyi",
        "--table",
        tiny.folder / "visits.yml",
    )
    charge(tiny, "n", "r")
    (finite,) = run("odometer", "r", "--delta", "1e-3", "--json")["budgets"]
    assert finite["delta"] == "0.001" and finite["proved_by"] == "renyi"
    assert run("odometer", "r", "--delta", "0", "--json")["budgets"][0]["epsilon"] is None
    assert "that is left of delta 1e-3, by a statement" in run("odometer", "r", "--delta", "1e-3")
    assert "by a statement" in run("odometer") and "by a statement" not in shown
    assert "nothing finite" in run("odometer", "r", "--delta", "0")


def test_orphans_are_resolved_either_way(tiny: Tiny, run: Run) -> None:
    """`retry` leaves the reservation to a new try, `close` ends it; the charge stays, the reason is
    kept.
    """
    orphan = charge(tiny, "one")
    assert (
        run("resolve", orphan, "--reason", "zombie", "--decision", "retry", "--json")["state"]
        == "reserved"
    )
    assert "stays closed" in run("resolve", orphan, "--reason", "host lost")
    newest = run("history", "--scope", "visits", "--limit", "1", "--json")[0]
    assert (newest["kind"], newest["principal"], newest["body"]["reason"]) == (
        "resolve",
        "tester",
        "host lost",
    )
    assert run("show", "--json")[0]["epsilon_spent"] == "0.1" and run("verify", "--json")["ok"]
    assert "resolve" in run("history") and "entries verified" in run("verify")


def test_a_ledger_moves_and_the_old_one_is_refused(
    tiny: Tiny, run: Run, postgres: Callable[[], str]
) -> None:
    """SQLite to PostgreSQL and back, verified; a damaged export restores nothing."""
    charge(tiny, "one")
    before = run("show", "--json")
    assert "2 entries written" in run("export", "out.jsonl")
    text = Path("out.jsonl").read_text()
    assert CliRunner().invoke(app, ["ledger", "export"]).stdout == text
    server = postgres()
    anchor = Ledger(tiny.ledger).anchor_folder
    place = ["--anchor", anchor]
    Path("bad.jsonl").write_text(text.replace('"principal":"spender"', '"principal":"nobody"'))
    with pytest.raises(LedgerCorrupt, match="does not verify"):
        run("import", "bad.jsonl", *place, "--ledger", tiny.folder / "bad.sqlite")
    assert run("import", "out.jsonl", *place, "--ledger", server, "--json")["ok"]
    with pytest.raises(LedgerCorrupt, match="old copy was restored"):
        charge(tiny, "two")
    moved = Ledger(server, anchor=anchor)
    with Path("back.jsonl").open("w") as stream:
        moved.export(stream)
    assert "entries verified" in run(
        "import", "back.jsonl", "--ledger", tiny.folder / "back.sqlite"
    )
    back = Ledger(tiny.folder / "back.sqlite")
    assert [row for s in back.scopes() for row in back.remaining(s.scope).rows()] == before
    with pytest.raises(InvalidInput, match="is not empty"):
        run("import", "back.jsonl", *place, "--ledger", tiny.folder / "back.sqlite")


def test_a_filter_that_fits_nothing_is_no_empty_answer(tiny: Tiny, run: Run) -> None:
    """A kind that the ledger does not write, and a date that would be read as a number; names that are one principal are one."""
    with pytest.raises(UnknownName, match="no kind of entry 'restored'"):
        run("history", "--kind", "grant", "--kind", "restored")
    with pytest.raises(
        InvalidInput, match="dpflow ledger approve writes a grant; use --kind grant"
    ):
        run("history", "--kind", "approve")
    with pytest.raises(UnknownName, match="no kind of entry 'recovery'; did you mean 'recover'"):
        run("history", "--kind", "recovery")
    assert run("history", "--kind", "refuse", "--json") == []
    with pytest.raises(InvalidInput, match="an entry's number, or a date"):
        run("history", "--since", "20261130")
    for words in (
        ["history"],
        ["statement", "visits"],
        ["statement", "visits", "--format", "html"],
    ):
        with pytest.raises(InvalidInput, match="the history ends at entry"):
            run(*words, "--since", "9" * 30)
    assert run("history", "--since", str(len(run("history", "--json")) + 1), "--json") == []
    granted = run("history", "--kind", "grant", "--json")
    who = granted[0]["principal"]
    assert run("history", "--kind", "grant", "--principal", who.upper(), "--json") == granted
    Ledger(tiny.ledger).record("note", {}, principal="ann")
    with pytest.raises(UnknownName, match="no principal in the history 'anne'; did you mean 'ann'"):
        run("history", "--principal", "anne")
    assert run("history", "--principal", who, "--kind", "note", "--json") == []
    assert len(run("history", "--principal", "ann", "--kind", "note", "--json")) == 1


def test_an_auditor_filters_the_history(tiny: Tiny, run: Run) -> None:
    """By scope with its quotas, principal, entry number and time; as a table, JSON or CSV."""
    run("grant", "other", "--epsilon", "1", "--table", "visits.yml")
    run("quota", "visits/a", "--epsilon", "0.5")
    charge(tiny, "one", "visits/a")
    entries = run("history", "--json")
    assert [entry["kind"] for entry in entries] == ["grant"] * 3 + ["reserve"]
    assert json.loads(run("history", "--format", "json")) == entries

    def numbers(*words: object) -> list[int]:
        return [entry["seq"] for entry in run("history", *words, "--json")]

    assert numbers("--scope", "visits") == [1, 3, 4] and numbers("--scope", "visits/a") == [3, 4]
    assert numbers("--principal", "spender") == [4]
    assert numbers("--since", 3) == [3, 4] and numbers("--since", 5) == []
    assert numbers("--since", 2, "--scope", "visits", "--limit", 1) == [4]
    assert numbers("--since", entries[0]["at"]) == [1, 2, 3, 4]
    assert numbers("--until", 4) == [1, 2, 3] and numbers("--until", 4, "--limit", 1) == [3]
    assert numbers("--since", 2, "--until", 4, "--scope", "visits") == [3]
    assert numbers("--until", 4, "--kind", "grant", "--principal", "tester") == [2, 3]
    assert numbers("--until", "2020-01-01") == numbers("--until", entries[0]["at"]) == []
    assert numbers("--since", "2020-01-01") == [1, 2, 3, 4]
    first, last = (dt.datetime.fromisoformat(entries[n]["at"]) for n in (0, -1))
    for hours in (-12, 14):
        zone = dt.timezone(dt.timedelta(hours=hours))
        assert numbers("--since", first.astimezone(zone).isoformat()) == [1, 2, 3, 4]
        after = last + dt.timedelta(seconds=1)
        assert numbers("--since", after.astimezone(zone).isoformat()) == []
    rows = list(csv.DictReader(run("history", "--format", "csv").splitlines()))
    assert [row | {"seq": int(row["seq"]), "body": json.loads(row["body"])} for row in rows] == (
        entries
    )
    assert "spender" in run("history", "--since", 4) and "other" not in run("history", "--since", 4)
    for wrong in ("yesterday", "-1", "2026-13-01", "0001-01-01T00:00+10:00", "9" * 5000):
        with pytest.raises(InvalidInput, match="give an entry's number"):
            run("history", "--since", wrong)
        with pytest.raises(InvalidInput, match="until is"):
            run("history", "--until", wrong)
    with pytest.raises(UnknownName, match="did you mean 'visits'"):
        run("history", "--scope", "vists", "--json")


def test_a_million_entries_need_no_memory(tiny: Tiny) -> None:
    """The history is read as it is asked for, and an abandoned reading keeps nobody waiting."""
    book = Ledger(tiny.ledger)
    entries = book.stream_history()
    assert next(entries).kind == "grant"
    charge(tiny, "one")
    entries.close()
    assert [entry.kind for entry in book.stream_history(since=2)] == ["reserve"]


def test_a_report_is_one_page_for_an_auditor(tiny: Tiny, run: Run) -> None:
    """Grants, spend, orphans and decisions of one scope and period; every text escaped, nothing
    loaded, and nothing of another scope.
    """
    odd = "visits/<img src=x>&'\""
    run("quota", odd, "--epsilon", "0.5")
    run("grant", "garden", "--epsilon", "1", "--table", "visits.yml")
    charge(tiny, "one", odd)
    charge(tiny, "two", epsilon="0.2", block="2020-01-02")
    charge(tiny, "three", "garden", "0.7")
    closed = charge(tiny, "four", epsilon="0.05")
    orphan = charge(tiny, "five", epsilon="0.05")
    run("resolve", closed, "--reason", "<script>lost</script>")
    page = run("statement", "--format", "html", "visits")
    assert "<script" not in page and "<img" not in page and "://" not in page
    assert "&lt;script&gt;lost" in page and "&lt;img src=x&gt;&amp;&#x27;&quot;" in page
    assert "prefers-color-scheme: dark" in page and "default-src 'none'" in page
    assert "garden" not in page and "0.7" not in page
    # By principal: four releases, and no block paid more than the 0.2 of one and the 0.2 of three.
    assert "<td>spender</td><td>4</td><td>0.2</td>" in page
    assert "<td>outside Airflow</td><td>4</td><td>0.2</td>" in page
    assert "<td>2020-01-01</td><td>0.2</td>" in page and "<td>2020-01-02</td><td>0.2</td>" in page
    pending = page.partition("not settled")[2].partition("</table>")[0]
    assert orphan in pending and closed not in pending and "orphan" in pending
    assert run("history", "--json")[-1]["hash"] in page
    # A quota's page holds its own charges; a period holds what was charged in it, and the sum.
    assert "<td>spender</td><td>1</td><td>0.1</td>" in run("statement", "--format", "html", odd)
    later = run("statement", "--format", "html", "visits", "--since", 8, "--until", 9)
    assert "<td>spender</td><td>1</td><td>0.05</td>" in later
    # The decision came after the period.
    assert closed in later.partition("not settled")[2].partition("Decisions")[0]
    assert "script" not in later
    assert "<td>2020-01-01</td><td>0.05</td>" in later and "From entry 8 to before entry 9" in later
    empty = run("statement", "--format", "html", "visits", "--since", "9990-01-01")
    assert "<td>spender</td>" not in empty.partition("Spend by block")[0].partition("by DAG")[2]
    assert "is in page.html" in run(
        "statement", "--format", "html", "visits", "page.html", "--since", 1
    )
    assert Path("page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UnknownName, match="did you mean 'visits'"):
        run("statement", "--format", "html", "vists")
    with pytest.raises(InvalidInput, match="until is 'soon'"):
        run("statement", "--format", "html", "visits", "--until", "soon")


def test_a_report_shows_refusals_and_checkpoints(tiny: Tiny, run: Run) -> None:
    """What a budget refused in the period, and whether the history extends what was signed."""
    with pytest.raises(BudgetExceeded):
        charge(tiny, "too <much>", epsilon="99")
    charge(tiny, "one")
    page = run("statement", "--format", "html", "visits")
    refused = page.partition("a budget refused")[2].partition("</table>")[0]
    assert "too &lt;much&gt;" in refused and "&quot;epsilon&quot;:&quot;99&quot;" in refused
    assert "<td>visits, block 2020-01-01</td><td>spender</td>" in refused
    number = run("history", "--json")[-2]["seq"]
    later = run("statement", "--format", "html", "visits", "--since", number + 1)
    assert "None." in later.partition("a budget refused")[2].partition("<h2>")[0]
    assert "None." in page.partition("Checkpoints")[2].partition("<h2>")[0]
    public = run("key", "nightly.key", "--name", "example.org/nightly").strip().splitlines()[-1]
    Path("owner.txt").write_text(run("checkpoint"))
    Path("witness.txt").write_text(run("checkpoint", "--key", "nightly.key"))
    charge(tiny, "two")
    words = [
        "statement",
        "visits",
        "--format",
        "html",
        "--checkpoint",
        "owner.txt",
        "--checkpoint",
        "witness.txt",
    ]
    with pytest.raises(LedgerCorrupt, match="no trusted key"):
        run(*words)
    table = run(*words, "--key", public).partition("Checkpoints")[2].partition("</table>")[0]
    assert table.count("<td>yes</td>") == 2 and "<td>example.org/nightly</td>" in table
    # Of a history that this one is not: an entry was replaced.
    witness = Signer.parse(Path("nightly.key").read_text())
    text = open_note(Path("witness.txt").read_text(), [public])[0]
    point = Checkpoint.parse(text)
    forged = dataclasses.replace(point, head="0" * 64)
    Path("witness.txt").write_text(witness.sign(forged.text))
    table = run(*words, "--key", public).partition("Checkpoints")[2].partition("</table>")[0]
    assert table.count("<td>yes</td>") == 1 and "<td>NO: the history does not extend" in table


def test_a_report_shows_the_paths_that_count(tiny: Tiny, run: Run) -> None:
    """Under basic no divergence is counted, under renyi no sum of epsilons, under hybrid both; zero
    would be a claim.
    """
    amounts = {}
    for name in ("basic", "renyi", "hybrid"):
        words = ["grant", name, "--epsilon", "1", "--delta", "1e-6", "--table", "visits.yml"]
        run(*words, "--filter", name)
        charge(tiny, name, name)
        page = run("statement", "--format", "html", name)
        row = page.partition("<td>spender</td>")[2].partition("</tr>")[0]
        amounts[name] = [cell.removeprefix("<td>") for cell in row.split("</td>")[1:4]]
    assert amounts["basic"] == ["0.1", "0", "not counted"]
    assert amounts["renyi"][0] == "not counted" and float(amounts["renyi"][2]) > 0
    assert amounts["hybrid"] == ["0.1", "0", amounts["hybrid"][2]]
    assert float(amounts["hybrid"][2]) > 0


def test_no_report_of_a_changed_ledger(tiny: Tiny, run: Run) -> None:
    """A page that an auditor believes is made of what verifies, or not at all."""
    charge(tiny, "one")
    with sqlite3.connect(tiny.ledger) as connection:
        connection.execute("UPDATE dpflow_account SET epsilon = 0")
    with pytest.raises(LedgerCorrupt, match="nothing is stated that does not verify"):
        run("statement", "--format", "html", "visits", "page.html")
    assert not Path("page.html").exists() and "reserve" in run("history")


def test_an_owner_says_what_was_lost(tiny: Tiny, run: Run) -> None:
    """One verb for a lost mark and for lost entries; without the answer nothing happens."""
    charge(tiny, "one")
    mark = Ledger(tiny.ledger).anchor_folder / "mark"
    with pytest.raises(InvalidInput, match="say what was lost: --lost mark or --lost database"):
        run("recover", "--reason", "r")
    with pytest.raises(InvalidInput, match="mark is there"):
        run("recover", "--lost", "mark", "--reason", "r")
    with pytest.raises(InvalidInput, match="nothing is missing"):
        run("recover", "--lost", "database", "--reason", "r")
    mark.unlink()
    with pytest.raises(InvalidInput, match="use --lost database"):
        run("recover", "--lost", "mark", "--checkpoint", tiny.ledger, "--reason", "r")
    assert run("recover", "--lost", "mark", "--reason", "r", "--json") == {
        "lost": "mark",
        "closed": [],
    }
    assert "recover" not in run("verify")


def test_a_spreadsheet_runs_no_text_of_the_history(
    tiny: Tiny, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is anybody's words: as a cell it stays text."""
    monkeypatch.setenv("DPFLOW_PRINCIPAL", "=1+1")
    run("resolve", charge(tiny, "=2+2"), "--reason", "r")
    for words in (["history", "--format", "csv"], ["statement", "visits", "--format", "csv"]):
        cells = [cell for row in csv.reader(run(*words).splitlines()) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
        assert {"'=1+1", "'=2+2"} & set(cells)
