"""`dpflow ledger`: every verb, for people and for programs, with its exit code."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import json
import os
import sqlite3
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.core.accounting.events import DiscreteLaplace, Pure
from dpflow.core.contract.declaration import NOBODY
from dpflow.errors import (
    BudgetExceeded,
    DpflowError,
    GrantConflict,
    InvalidAmount,
    InvalidInput,
    LedgerCorrupt,
    UnknownName,
)
from dpflow.ledger import Ledger, ReleaseKey
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note

if TYPE_CHECKING:
    from smallworld import Tiny

Run = Callable[..., Any]


@pytest.fixture
def run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a verb in this process; a refusal is raised, `--json` output is parsed."""
    monkeypatch.setenv("DPFLOW_LEDGER", str(tiny.ledger))
    monkeypatch.setenv("DPFLOW_PRINCIPAL", "tester")
    monkeypatch.delenv("DPFLOW_LEDGER_ANCHOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tiny.folder)

    def runs(*words: object) -> Any:
        done = CliRunner().invoke(app, ["ledger", *map(str, words)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return runs


def charge(
    tiny: Tiny, name: str, scope: str = "visits", epsilon: str = "0.1", block: str = "2020-01-01"
) -> str:
    """Reserve without settling: an orphan."""
    from dpflow.core.accounting.events import Pure

    return (
        Ledger(tiny.ledger)
        .reserve(
            ReleaseKey(scope, "", "", name, "d"),
            event=Pure(Fraction(epsilon)),
            blocks=[block],
            family="f",
            slot=None,
            principal="spender",
            request={"name": name},
        )
        .release_id
    )


@pytest.mark.parametrize("name", ["basic", "renyi", "hybrid"])
def test_a_grant_says_how_many_releases_each_filter_holds(tiny: Tiny, run: Run, name: str) -> None:
    """And the ledger pays for just so many: every count is spent to its end."""
    words = ["grant", name, "--epsilon", "1", "--delta", "1e-6", "--no-table", "--filter", name]
    shown = run(*words)
    assert "releases of epsilon 0.01 each (discrete Laplace) that it holds by filter" in shown
    count = run(*words, "--json")["typical_releases"][name]
    assert f"{name} {count:,}" in shown
    ledger = Ledger(tiny.ledger)
    noise = DiscreteLaplace(Fraction(100))
    assert ledger.check(name, [noise] * count, ()) is None
    assert ledger.check(name, [noise] * (count + 1), ()) is not None
    assert "renyi" not in run("grant", "pure", "--epsilon", "1", "--no-table", "--json")["typical_releases"]  # fmt: skip


@pytest.mark.parametrize(("delta", "name"), [("0", "basic"), ("1e-6", "hybrid")])
def test_both_doors_choose_one_filter(tiny: Tiny, run: Run, delta: str, name: str) -> None:
    """What a grant without a filter gets, here and in Python; a scope keeps its filter when it is
    granted again.
    """
    words = ["grant", "shell", "--epsilon", "1", "--delta", delta, "--no-table"]
    assert f"({name})" in run(*words)
    ledger = Ledger(tiny.ledger)
    ledger.grant("python", 1, delta, table=None, principal="owner")
    assert ledger.scope("shell").filter == ledger.scope("python").filter
    run("grant", "shell", "--epsilon", "2", "--delta", "1e-5", "--no-table")
    assert ledger.scope("shell").filter.name == name
    ledger.grant("nobody", 1, "1e-6", table=None, protects=NOBODY, principal="owner")
    assert ledger.scope("nobody").filter.name == "basic"


def test_grants_that_people_sign(tiny: Tiny, run: Run, tmp_path: Path) -> None:
    """Keys of two people, each in a file of its own; what nobody signed is named."""
    keys = [run("key", str(tmp_path / name), "--name", name).strip() for name in ("ann", "bob")]
    who = [word for key in keys for word in ("--signer", key)]
    words = ["grant", "signed", "--epsilon", "1", "--no-table", "--approvals", "2"]
    seq = run(*words, *who, "--sign", str(tmp_path / "ann"), "--json")["proposal"]
    with pytest.raises(InvalidInput, match="must be signed by one of ann, bob"):
        run("approve", "signed", str(seq))
    run("approve", "signed", str(seq), "--sign", str(tmp_path / "bob"))
    report = run("verify", "--json")
    assert report["ok"] and report["self_declared"] == [1]
    assert "self-declared, not signed" in run("verify")


def test_a_scope_demands_a_witness(tiny: Tiny, run: Run, tmp_path: Path) -> None:
    """The grant names key and number, and show says how far the witness is."""
    key = run("key", str(tmp_path / "nightly"), "--name", "nightly").strip()
    words = ["grant", "w", "--epsilon", "1", "--no-table", "--witness"]
    with pytest.raises(InvalidInput, match="--witness-every N"):
        run(*words, key)
    run(*words, key, "--witness-every", "5")
    seq = Ledger(tiny.ledger).history()[-1].seq
    said = f"scope 'w': witness nightly is at entry {seq}, 0 of 5 charges came behind it"
    assert said in run("show")
    (tmp_path / "outside").mkdir()
    place = str(tmp_path / "outside")
    added = run("checkpoint", "--key", str(tmp_path / "nightly"), "--into", place)
    assert "000000000001.txt was added" in added


def test_a_statement_in_each_form(tiny: Tiny, run: Run) -> None:
    """On the screen, as CSV, as JSON, and as a page in a file."""
    charge(tiny, "one")
    shown = run("statement", "visits")
    assert "one" in shown and "A unit with rows in all blocks has paid epsilon 0.1" in shown
    (row,) = [r for r in csv.DictReader(run("statement", "visits", "--format", "csv").splitlines()) if r["name"] == "one"]  # fmt: skip
    assert (row["epsilon"], row["state"], row["blocks"]) == ("0.1", "reserved", "2020-01-01")
    stated = run("statement", "visits", "--by", "principal", "--json")
    assert stated["totals"][0] | {"epsilon": "0.1"} == stated["totals"][0]
    assert "is in page.html" in run("statement", "visits", "page.html", "--format", "html")
    assert Path("page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(InvalidInput, match="until is 'soon'"):
        run("statement", "visits", "--until", "soon")


def test_a_ledger_is_reconciled_with_what_is_published(tiny: Tiny, run: Run) -> None:
    """Orphans, results that are in no table, and rows that no ledger settled, each by name."""
    from dpflow.engine.releases.execute import release
    from dpflow.engine.releases.make_plan import make_plan
    from dpflow.engine.releases.request import parse_request
    from dpflow.registry import Registry

    file = tiny.folder / "out.duckdb"
    fields = {"name": "n", "mechanism": "count", "table": "visits.yml", "scope": "visits", "blocks": ["2020-01-01"],
        "params": {"epsilon": "0.1"}, "publish": {"database": str(file)}}  # fmt: skip
    plan = make_plan(parse_request(fields, tiny.folder, "test"), Registry.load())
    done = release(plan, Ledger(tiny.ledger), Registry.load())
    result = run("reconcile", "--published", file, "--json")
    assert result["ok"] and (result["charged"], result["settled"], result["published"]) == (1, 1, 1)
    assert "1 of 1 published" in run("reconcile", "--published", f"{file}:releases")
    assert "no published table was compared" in run("reconcile")
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


def test_two_owners_agree_to_a_grant(tiny: Tiny, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is told what the second one runs; the table shows what waits."""
    raised = ["grant", "visits", "--epsilon", "7", "--delta", "1e-5", "--table", "visits.yml"]
    raised += ["--approvals", "2"]
    assert "another owner runs dpflow ledger approve visits 2" in run(*raised)
    waiting = run("proposals", "--json")
    assert [(w["scope"], w["proposed_by"], w["proposal"]) for w in waiting] == [
        ("visits", "tester", 2)
    ]
    table = run("proposals")
    assert "visits" in table and "tester" in table and " 7 " in table
    with pytest.raises(InvalidInput, match="somebody else approves it"):
        run("approve", "visits", "2")
    assert Ledger(tiny.ledger).scope("visits").epsilon == 1
    monkeypatch.setenv("DPFLOW_PRINCIPAL", "second")
    assert run("approve", "visits", "2", "--json")["approvals"] == 2
    assert Ledger(tiny.ledger).scope("visits").epsilon == 7 and run("proposals", "--json") == []
    told = run("quota", "visits/a", "--epsilon", "1", "--approvals", "2", "--json")
    assert (told["proposal"], told["proposed_by"]) == (4, "second")


def test_a_quota_is_inside_its_scope(tiny: Tiny, run: Run) -> None:
    """It protects what the scope above protects, by the same blocks and filter; both pay; either
    refuses.
    """
    made = run("quota", "visits/a", "--epsilon", "0.4", "--json")
    assert made["protects"] == "all rows of one person in one day (add-remove)" and made["blocks"]
    assert made["filter"]["name"] == "basic"
    charge(tiny, "one", "visits/a", "0.3")
    rows = {row["scope"]: row for row in run("show", "--json")}
    assert (rows["visits"]["epsilon_left"], rows["visits/a"]["epsilon_left"]) == ("0.7", "0.1")
    assert (rows["visits"]["used"], rows["visits/a"]["used"]) == (0.3, 0.75)
    with pytest.raises(
        DpflowError,
        match="scope 'visits/a', block '2020-01-01' cannot pay.*dpflow ledger quota visits/a",
    ):
        charge(tiny, "two", "visits/a", "0.2")
    assert "epsilon 0.5" in run("quota", "visits/a", "--epsilon", "0.5")
    with pytest.raises(GrantConflict, match="already spent more"):
        run("quota", "visits/a", "--epsilon", "0.2")


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


def test_the_division_of_delta_is_fixed_once_something_is_spent(tiny: Tiny, run: Run) -> None:
    """A tail_share below 1 leaves the rest to mechanisms; a raise keeps it; another one is refused
    after a charge.
    """
    words = [
        "grant",
        "s",
        "--delta",
        "1e-6",
        "--filter",
        "hybrid",
        "--table",
        tiny.folder / "visits.yml",
    ]
    made = run(*words, "--epsilon", "1", "--tail-share", "0.25", "--json")["filter"]
    assert made["tail_delta"] == "2.5e-7"
    (row,) = run("show", "s", "--json")
    assert (row["delta_granted"], row["delta_left"]) == ("0.000001", "7.5e-7")
    assert run(*words, "--epsilon", "2", "--json")["filter"]["tail_delta"] == "2.5e-7"
    charge(tiny, "n", "s")
    with pytest.raises(GrantConflict, match="tail_share 0.25, which stays"):
        run(*words, "--epsilon", "3", "--tail-share", "1/2")
    assert (
        run(*words, "--epsilon", "3", "--tail-share", "1/4", "--json")["filter"]["order"]
        is not None
    )


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


def test_a_grant_says_when_it_makes_a_ledger_and_when_another_scope_protects_the_same(
    tiny: Tiny, run: Run
) -> None:
    """In a wrong folder a grant would make a second ledger, and a second scope spends beside the
    first: neither in silence.
    """
    said: list[str] = []
    for words in (
        ("other", "--ledger", tiny.ledger),
        ("visits", "--ledger", "new.sqlite"),
        ("visits", "--ledger", "new.sqlite"),
    ):
        grant = ["ledger", "grant", *map(str, words), "--epsilon", "1", "--table", "visits.yml"]
        said.append(CliRunner().invoke(app, grant).stderr)
    assert (
        said[0].startswith("note: visits protects the same") and "made a new ledger" not in said[0]
    )
    made = f"made a new ledger at {tiny.folder / 'new.sqlite'}; its keys and mark are in "
    assert said[1].startswith(made + os.environ["XDG_STATE_HOME"]) and said[2] == ""


def test_a_first_grant_without_a_table_is_no_trap(tiny: Tiny, run: Run) -> None:
    """It must be said, and the table may be named later, until something is charged."""
    assert "protecting" not in run("grant", "s", "--epsilon", "1", "--no-table")
    with pytest.raises(InvalidInput, match="has no blocks, so name none"):
        charge(tiny, "one", "s")
    terms = ["grant", "s", "--epsilon", "1"]
    assert "in every block" in run(*terms, "--table", "visits.yml")
    charge(tiny, "one", "s")
    with pytest.raises(GrantConflict, match="granted to protect"):
        run(*terms, "--no-table")
    assert [entry["kind"] for entry in run("history", "--scope", "s", "--json")] == [
        "grant",
        "grant",
        "reserve",
    ]


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
    assert numbers("--principal", "spender") == [4] and numbers("--principal", "nobody") == []
    assert numbers("--since", 3) == [3, 4] and numbers("--since", "9" * 30) == []
    assert numbers("--since", 2, "--scope", "visits", "--limit", 1) == [4]
    assert numbers("--since", entries[0]["at"]) == [1, 2, 3, 4]
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
    run("grant", "elsewhere", "--epsilon", "1", "--table", "visits.yml")
    charge(tiny, "one", odd)
    charge(tiny, "two", epsilon="0.2", block="2020-01-02")
    charge(tiny, "three", "elsewhere", "0.7")
    closed = charge(tiny, "four", epsilon="0.05")
    orphan = charge(tiny, "five", epsilon="0.05")
    run("resolve", closed, "--reason", "<script>lost</script>")
    page = run("report", "visits")
    assert "<script" not in page and "<img" not in page and "://" not in page
    assert "&lt;script&gt;lost" in page and "&lt;img src=x&gt;&amp;&#x27;&quot;" in page
    assert "prefers-color-scheme: dark" in page and "default-src 'none'" in page
    assert "elsewhere" not in page and "0.7" not in page
    # By principal: four releases, and no block paid more than the 0.2 of one and the 0.2 of three.
    assert "<td>spender</td><td>4</td><td>0.2</td>" in page
    assert "<td>outside Airflow</td><td>4</td><td>0.2</td>" in page
    assert "<td>2020-01-01</td><td>0.2</td>" in page and "<td>2020-01-02</td><td>0.2</td>" in page
    pending = page.partition("not settled")[2].partition("</table>")[0]
    assert orphan in pending and closed not in pending and "orphan" in pending
    assert run("history", "--json")[-1]["hash"] in page
    # A quota's page holds its own charges; a period holds what was charged in it, and the sum.
    assert "<td>spender</td><td>1</td><td>0.1</td>" in run("report", odd)
    later = run("report", "visits", "--since", 8, "--until", 9)
    assert "<td>spender</td><td>1</td><td>0.05</td>" in later
    # The decision came after the period.
    assert closed in later.partition("not settled")[2].partition("Decisions")[0]
    assert "script" not in later
    assert "<td>2020-01-01</td><td>0.05</td>" in later and "From entry 8 to before entry 9" in later
    empty = run("report", "visits", "--since", "9990-01-01")
    assert "<td>spender</td>" not in empty.partition("Spend by block")[0].partition("by DAG")[2]
    assert "is in page.html" in run("report", "visits", "page.html", "--since", 1)
    assert Path("page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UnknownName, match="did you mean 'visits'"):
        run("report", "vists")
    with pytest.raises(InvalidInput, match="until is 'soon'"):
        run("report", "visits", "--until", "soon")


def test_a_report_shows_refusals_and_checkpoints(tiny: Tiny, run: Run) -> None:
    """What a budget refused in the period, and whether the history extends what was signed."""
    with pytest.raises(BudgetExceeded):
        charge(tiny, "too <much>", epsilon="99")
    charge(tiny, "one")
    page = run("report", "visits")
    refused = page.partition("a budget refused")[2].partition("</table>")[0]
    assert "too &lt;much&gt;" in refused and "&quot;epsilon&quot;:&quot;99&quot;" in refused
    assert "<td>visits, block 2020-01-01</td><td>spender</td>" in refused
    number = run("history", "--json")[-2]["seq"]
    later = run("report", "visits", "--since", number + 1)
    assert "None." in later.partition("a budget refused")[2].partition("<h2>")[0]
    assert "None." in page.partition("Checkpoints")[2].partition("<h2>")[0]
    public = run("key", "nightly.key", "--name", "example.org/nightly").strip().splitlines()[-1]
    Path("owner.txt").write_text(run("checkpoint"))
    Path("witness.txt").write_text(run("checkpoint", "--key", "nightly.key"))
    charge(tiny, "two")
    words = ["report", "visits", "--checkpoint", "owner.txt", "--checkpoint", "witness.txt"]
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
        page = run("report", name)
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
    with pytest.raises(LedgerCorrupt, match="nothing is reported that does not verify"):
        run("report", "visits", "page.html")
    assert not Path("page.html").exists() and "reserve" in run("history")


@pytest.mark.parametrize(
    ("grant", "scope", "changed"),
    [
        (("grant", "plain", "--epsilon", 1, "--delta", "1e-7", "--no-table"), "plain", {}),
        (("quota", "visits/team", "--epsilon", "0.3"), "visits/team", {}),
        ((), "visits", {"DECLARATION": "visits.yml"}),
    ],
)
def test_a_refusal_names_the_grant_that_would_pay(
    run: Run, tiny: Tiny, grant: tuple[object, ...], scope: str, changed: dict[str, str]
) -> None:
    """Its command said no epsilon, and would have set delta to 0. Run as it stands, the same charge
    passes and nothing else of the scope changes.
    """
    if grant:
        run(*grant)
    book, block = Ledger(tiny.ledger), "" if scope == "plain" else "2020-01-01"
    before = book.scope(scope)

    def spend() -> None:
        book.reserve(
            ReleaseKey(scope, "", "", "r", "big"), event=Pure(Fraction(5, 4) * before.epsilon), slot=None,
            blocks=[block] if block else [], family="f", principal="ann", request={"name": "big"},
        )  # fmt: skip

    with pytest.raises(BudgetExceeded) as refused:
        spend()
    words = str(refused.value).partition("dpflow ledger ")[2].split()
    if scope == "visits/team":  # the scope above pays it, too
        run("grant", "visits", "--epsilon", 2, "--delta", "1e-6", "--table", "visits.yml")
    run(*[changed.get(word, word) for word in words])
    spend()
    after = book.scope(scope)
    assert after.epsilon == Fraction(5, 4) * before.epsilon
    assert (after.filter.delta, after.filter.name, after.protects) == (
        before.filter.delta, before.filter.name, before.protects,
    )  # fmt: skip


def test_a_large_grant_needs_its_flag(tiny: Tiny, run: Run) -> None:
    """Neither `ledger grant` nor `init` gives one by a slip, and no ledger is left behind."""
    words = ["grant", "new", "--epsilon", "21", "--no-table", "--ledger", "other.sqlite"]
    with pytest.raises(InvalidInput, match="--confirm-large"):
        run(*words)
    assert not Path("other.sqlite").exists()
    assert "21" in run(*words, "--confirm-large")


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
