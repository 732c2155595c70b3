"""What the pages show is what the ledger says, and nothing that nobody may see."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.core.accounting.amounts import EPSILON_UNIT, exact_text
from dpflow.ledger import BudgetView, Ledger
from dpflow.ledger.books.records import Remaining
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note
from dpflow.ledger.storage import schema
from dpflow.ui.pages import PAGES

if TYPE_CHECKING:
    from budget_books import Books
    from smallworld import Tiny


def test_scopes_are_the_ledgers(books: Books, visit: Any) -> None:
    """Granted, spent with reserved, remaining and used of each scope are those of `dpflow ledger
    show`, whatever its filter.
    """
    shown = {row["Scope"]: row for row in visit().read_tables("")["Scopes"]}
    assert [*shown] == ["flights", "survey", "visits", "visits/team-a"]
    for scope, row in shown.items():
        budgets = books.ledger.remaining(scope).rows()
        fullest = max(budgets, key=lambda budget: budget["used"])
        path = "epsilon" if row["Of"] == "epsilon" else "renyi"
        assert row["Remaining"] == fullest[f"{path}_left"]
        assert row["Delta left"] == fullest["delta_left"]
        assert row["Used"] == f"{round(10**4 * fullest['used']) // 100} %"
        if path == "epsilon":
            assert row["Granted"] == fullest["epsilon_granted"]
    assert shown["flights"] | {"Used": ""} == {
        "Scope": "flights", "Used": "", "Granted": "2", "Spent": "0.5", "Reserved": "0.25", "Remaining": "1.25",
        "Of": "epsilon", "Delta left": "0.000001", "Blocks": "2 charged, fullest 2026-01-02", "Protects": "rows of flights",
    }  # fmt: skip
    assert shown["survey"]["Of"].startswith("Renyi divergence, order ")


def test_blocks_are_the_ledgers(books: Books, visit: Any) -> None:
    """Each block with its own amounts, the last first; its page says the same."""
    shown = visit().read_tables("scope?name=flights")["Blocks"]
    stored = {row["block"]: row for row in books.ledger.remaining("flights").rows()}
    assert [row["Block"] for row in shown] == sorted(stored, reverse=True)
    assert [row["Remaining"] for row in shown] == [
        stored[row["Block"]]["epsilon_left"] for row in shown
    ]
    assert [(row["Spent"], row["Reserved"]) for row in shown] == [("0.5", "0.25"), ("0.5", "0")]
    assert "<dt>Reserved</dt><dd>0.25</dd>" in visit().get("scope?name=flights&block=2026-01-02")
    assert "Nothing was charged yet." in visit().get("scope?name=flights&block=2026-01-03")


def test_a_quota_that_refreshes_is_shown_by_its_period(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list and the forecast are about this period; earlier ones stay in the quota's table."""
    from dpflow.ledger.books import charges
    from dpflow.ledger.history import chain

    def set_clock(day: str) -> None:
        now = dt.datetime.fromisoformat(f"{day}T12:00:00+00:00")
        monkeypatch.setattr(chain.time, "time", now.timestamp)
        monkeypatch.setattr(charges, "today", now.date)

    books.ledger.quota("visits/team-b", "0.5", 0, period="month", principal="owner")
    set_clock("2026-10-20")
    books.release("visits/team-b", "october", "0.45")
    set_clock("2026-11-20")
    books.release("visits/team-b", "november", "0.1")
    visitor = visit()
    (row,) = (r for r in visitor.read_tables("")["Scopes"] if r["Scope"] == "visits/team-b")
    assert (row["Remaining"], row["Used"]) == ("0.4", "20 %")
    assert row["Blocks"] == "refreshes each month"
    assert "team-b" not in visitor.get("alarms"), "last month is over"
    page = visitor.get("scope?name=visits/team-b")
    assert "each month (UTC), next on " in page and "the scope above never does" in page
    shown = visitor.read_tables("scope?name=visits/team-b")["Periods"]
    assert [(r["Period"], r["Remaining"]) for r in shown] == [
        ("2026-11", "0.4"),
        ("2026-10", "0.05"),
    ]
    assert "Its period is over." in visitor.get("scope?name=visits/team-b&block=2026-10")
    assert "each month" in visitor.get("history?scope=visits/team-b")
    set_clock("2026-12-01")
    (row,) = (r for r in visitor.read_tables("")["Scopes"] if r["Scope"] == "visits/team-b")
    assert row["Remaining"] == "0.5"


def test_releases_and_receipts_are_the_ledgers(books: Books, visit: Any) -> None:
    """Every release with its cost and state; a receipt has what each budget paid."""
    visitor = visit()
    shown = visitor.read_tables("releases")["Releases and sessions, the newest first"]
    assert len(shown) == len(books.ledger.releases()) == 8
    assert [row["Release"] for row in shown][::-1][:3] == ["departures", "departures", "delays"]
    assert shown[-3]["State"] == "reserved" and shown[-3]["Cost"] == "epsilon 0.25, delta 0"
    assert shown[-3]["Task"] == "daily.task_delays" and shown[-3]["Run"] == "scheduled__2026-01-02"
    (team,) = [r for r in books.ledger.releases() if r.scope == "visits/team-a"]
    paid = visitor.read_tables(f"release?id={team.release_id}")["What each budget paid"]
    assert [(row["Scope"], row["Epsilon"]) for row in paid] == [
        ("visits", "0.85"),
        ("visits/team-a", "0.85"),
    ]
    assert "Settled</dt><dd>20" in visitor.get(f"release?id={team.release_id}")
    assert "Settled</dt><dd>no" in visitor.get(f"release?id={books.orphan}")


def test_a_receipt_says_how_wide_the_noise_is(tiny: Tiny) -> None:
    """As it was planned, before a row was read; and where the values are. Never a value."""
    from budget_books import Visitor

    from dpflow.engine import make_plan, release
    from dpflow.engine.releases.request import load_request
    from dpflow.registry import Registry
    from dpflow.ui.application import create_app
    from dpflow.ui.visit import Audience

    ledger, registry = Ledger(tiny.ledger), Registry.load()
    ids = []
    for params in ({"epsilon": "0.5"}, {"epsilon": "0.25", "by": "city"}):
        file = tiny.file(
            name=str(params), params=params, publish={"database": "out.duckdb", "table": "daily"}
        )
        plan = make_plan(load_request(file), registry)
        assert plan.error_bound is not None
        ids.append((release(plan, ledger, registry).release_id, plan.error_bound.half_width))
    view = BudgetView(tiny.ledger)
    visitor = Visitor(create_app(lambda: view, audience=lambda: Audience(None)))
    for release_id, widths in ids:
        page = visitor.get(f"release?id={release_id}")
        (measure, width), *_ = widths.items()
        assert f"{measure}: value ± {width:.6g}" in page and "out.duckdb:daily" in page
    with closing(sqlite3.connect(tiny.ledger)) as connection:
        requests = [
            json.loads(text) for (text,) in connection.execute("SELECT request FROM dpflow_release")
        ]
    assert [r["half_width_95"] for r in requests] == [widths for _, widths in ids]
    assert Ledger(tiny.ledger).verify().ok


def test_sessions_show_looks_and_no_state(visit: Any) -> None:
    """How often a gate answered, what is left of its looks and failures, and what it was told of them."""
    tables = visit().read_tables("sessions")
    (gate,), (other,) = tables["Gates"], tables["Sessions"]
    assert (gate["Looks taken"], gate["Looks left"], gate["Failures left"]) == ("3", "17", "2")
    assert gate["Verdicts"] == "1 yes, 1 no, 1 not told"
    assert (other["Answers stored"], other["Asked for at most"]) == ("3", "1000")


def test_a_gate_on_means_is_among_the_gates(books: Books, visit: Any) -> None:
    """It was listed with the predictions, without the looks that it has left."""
    books.session("means", "gate", {"queries": 5, "failures": 2}, is_gate=True)
    rows = {row["Session"]: row for row in visit().read_tables("sessions")["Gates"]}
    assert set(rows) == {"means", "holdout"}
    assert (rows["means"]["Looks left"], rows["means"]["Failures left"]) == ("2", "2")


def test_a_gate_shows_each_verdict(books: Books, visit: Any) -> None:
    """Look by look, the newest first, in pages; one that is not told yet is none."""
    told = visit().read_tables(f"release?id={books.gate}")["Verdicts"]
    assert [tuple(row.values()) for row in told] == [
        ("3", "not told", ""),
        ("2", "no", "2"),
        ("1", "yes", "3"),
    ]
    earlier = visit().read_tables(f"release?id={books.gate}&before=2")["Verdicts"]
    assert [row["Look"] for row in earlier] == ["1"]


def test_a_run_and_a_task_have_their_releases(visit: Any) -> None:
    """As the page stands beside a run or task of Airflow's."""
    visitor, caption = visit(), "Releases and sessions, the newest first"
    of_run = visitor.read_tables("releases?dag_id=daily&run_id=scheduled__2026-01-02")[caption]
    assert [row["Release"] for row in of_run] == ["delays", "departures"]
    of_task = visitor.read_tables(
        "releases?dag_id=daily&run_id=scheduled__2026-01-02&task_id=task_delays"
    )[caption]
    assert [row["Release"] for row in of_task] == ["delays"]
    assert visitor.read_tables("releases?dag_id=daily&task_id=task_delays")[caption] == of_task
    assert "None." in visitor.get("releases?dag_id=daily&run_id=manual__never")


@pytest.mark.parametrize(
    ("cost", "near"), [("0.79999", False), ("0.799999999", False), ("0.8", True), ("0.99999", True)]
)
def test_bar_alarm_and_report_count_exactly(
    books: Books, visit: Any, cost: str, near: bool
) -> None:
    """Four fifths, by the same amounts: no rounding takes a budget across in one place only."""
    from dpflow.airflow.budget_report import summarise_budgets

    books.ledger.grant("edge", 1, 0, table=None, filter="basic", principal="owner")
    books.release("edge", "one", cost)
    visitor = visit()
    assert ("edge</a> is used by" in visitor.get("alarms")) == near
    assert ('class="bar near"' in visitor.get("scope?name=edge")) == near
    assert ("80 % used" in visitor.get("scope?name=edge")) == (cost == "0.8")
    report = summarise_budgets(books.ledger.remaining("edge"))
    assert (report["nearly_exhausted"], report["exhausted"]) == (int(near), 0)


def test_the_history_says_which_suites_may_run(books: Books, visit: Any) -> None:
    for registered in (True, False):
        books.ledger.register_suite(
            "d" * 64, ["place"], None, table="visits", registered=registered, principal="owner"
        )
    page = visit().get("history")
    assert f"suite {'d' * 12} of table visits: registered" in page and ": withdrawn" in page


def test_a_run_with_many_releases_is_paged(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped task of a backfill charges often: all of it is shown, and nothing is left out in silence."""
    monkeypatch.setattr("dpflow.ui.pages.PAGE", 3)
    for number in range(7):
        books.release("visits", f"mapped{number}", "0.001", dag="daily", run_id="scheduled__many")
    visitor, address, names = visit(), "releases?dag_id=daily&run_id=scheduled__many", []
    while address:
        rows = visitor.read_tables(address)["Releases and sessions, the newest first"]
        names += [row["Release"] for row in rows]
        older = re.search(r'href="(releases[^"]*before=[0-9]+)"', visitor.get(address))
        address = older[1].replace("&amp;", "&") if older else ""
    assert names == [f"mapped{number}" for number in reversed(range(7))]


@pytest.mark.parametrize("query", ["before=x", "before=-1", "before=" + "9" * 30, "before=²"])
def test_a_number_that_is_none_is_refused(visit: Any, query: str) -> None:
    assert "is no number of an entry" in visit().get(f"history?{query}", 422)


def test_lists_are_paged(books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once, however many pages there are."""
    monkeypatch.setattr("dpflow.ui.pages.PAGE", 3)
    for number in range(7):
        books.ledger.grant(f"s{number}", 1, 0, table=None, filter="basic", principal="owner")
        books.release("flights", f"r{number}", "0.01", block=f"2026-02-0{number + 1}", dag="daily")
    visitor, entries = visit(), len(books.ledger.history(limit=1000))
    for address, label, caption, head, number in (
        ("", "More scopes", "Scopes", "Scope", 11),
        (
            "releases",
            "Older releases",
            "Releases and sessions, the newest first",
            "Charged (UTC)",
            15,
        ),
        ("scope?name=flights", "Earlier blocks", "Blocks", "Block", 9),
        ("history", "Older entries", "Entries, the newest first", "Entry", entries),
    ):
        pages = [
            visitor.read_tables(page).get(caption, []) for page in visitor.follow(address, label)
        ]
        rows = [row[head] for page in pages for row in page]
        assert len(rows) == number and all(len(page) <= 3 for page in pages), address
        if head != "Charged (UTC)":
            assert len({*rows}) == number


def test_nothing_but_the_file_is_needed(books: Books, visit: Any) -> None:
    """No anchor, and no right to write. What is opened so cannot write."""
    shutil.rmtree(books.ledger.anchor_folder)
    books.place.chmod(0o400)
    assert "flights" in visit().get("")
    with closing(BudgetView(books.place)._database._make_engine().connect()) as connection:
        with pytest.raises(Exception, match="readonly"):
            connection.exec_driver_sql("DELETE FROM dpflow_account")


def test_an_index_goes_on_where_it_was(books: Books, visit: Any) -> None:
    """What is charged while the page is open is on it the next time."""
    visitor = visit()
    assert "later" not in visitor.get("releases")
    books.release("visits", "later", "0.1")
    assert "later" in visitor.get("releases")
    books.ledger.resolve(books.orphan, reason="lost", principal="owner")
    shown = {row["Scope"]: row for row in visitor.read_tables("")["Scopes"]}
    assert shown["flights"]["Reserved"] == "0" and shown["flights"]["Spent"] == "0.75"


def test_a_long_history_is_read_behind_the_page(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page says how far it is and loads itself again; budgets are there at once."""
    monkeypatch.setattr("dpflow.ledger.audit.budget_view._CHUNK", 1)
    monkeypatch.setattr("dpflow.ledger.audit.budget_view._PATIENCE", 0)
    monkeypatch.setattr(
        "dpflow.ledger.audit.budget_view.BudgetView._read_in_background", lambda self: None
    )
    visitor = visit()
    first = visitor.get("")
    assert "The history is being read: 1 of " in first and 'http-equiv="refresh"' in first
    assert visitor.read_tables("")["Scopes"][0]["Remaining"] == "1.25"
    monkeypatch.undo()
    assert "being read" not in visitor.get("")


def test_alarms(books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near its end, an orphan, a grant that waits."""
    monkeypatch.setattr("dpflow.ledger.audit.budget_view.ORPHAN_AGE", -5)
    books.ledger.grant(
        "survey",
        2,
        "1e-6",
        table=None,
        filter="renyi",
        protects="rows of survey",
        approvals=2,
        principal="owner",
    )
    page = visit().get("alarms")
    assert f"dpflow ledger resolve {books.orphan}" in page and "never settled" in page
    assert re.search("visits/team-a</a> is used by 85 %", page)
    assert "A grant for survey by owner waits" in page
    assert "3 alarms" in visit().get("")
    assert "never settled" not in visit({"team_a"}).get("alarms")


def test_checkpoints_say_what_they_vouch_for(books: Books, visit: Any) -> None:
    """A good one; one whose signer nobody named; one of another ledger; a file that is none."""
    folder = books.folder / "notes"
    folder.mkdir()
    (folder / "good.txt").write_text(books.ledger.checkpoint())
    key = books.ledger.signer.public_text
    other = Ledger(books.folder / "other.sqlite", anchor=books.folder / "other", create=True)
    other.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    (folder / "other.txt").write_text(other.checkpoint())
    (folder / "none.txt").write_text("hello")

    def read(**options: Any) -> dict[str, str]:
        rows = visit(view={"checkpoints": folder, **options}).read_tables("checkpoints")[
            "Checkpoints"
        ]
        return {row["File"]: f"{row['Signed by']}; {row['State']}" for row in rows}

    signed = read(keys=[key])
    assert signed["good.txt"].startswith("dpflow.ledger/") and signed["good.txt"].endswith(
        "holds what was signed"
    )
    assert "no trusted key signed" in signed["other.txt"] and "no checkpoint" in signed["none.txt"]
    unsigned = read()
    assert (
        unsigned["good.txt"] == "not checked: no key was named; the history holds what was signed"
    )
    assert "does not hold the entry" in unsigned["other.txt"]
    assert "other.txt" in visit(view={"checkpoints": folder}).get("alarms")
    assert "No checkpoints are known" in visit().get("checkpoints")
    lost = visit(view={"checkpoints": folder / "nowhere"})
    assert "cannot be read" in lost.get("checkpoints") and "cannot be read" in lost.get("alarms")


def test_the_page_looks_at_the_witness_by_itself(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scope that demands one is an alarm while there is none to compare with, or its place is out of reach."""
    nightly, folder = Signer.create("nightly"), books.folder / "witness"
    demand = {"witness": nightly.public_text, "witness_every": 9}
    books.ledger.grant("watched", 1, 0, table=None, filter="basic", principal="o", **demand)
    assert "watched demands checkpoints of a witness" in visit().get("alarms")
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", str(folder))
    assert "cannot be read" in visit().get("alarms")
    folder.mkdir()
    assert "watched demands checkpoints of a witness" in visit().get("alarms")
    books.ledger.witness(folder)  # the owner's, whom this scope does not trust
    assert "no trusted key signed" in visit().get("alarms")
    books.ledger.record("note", {}, principal="o")
    books.ledger.witness(folder, nightly)
    (folder / "000000000001.txt").unlink()
    (folder / "000000000002.txt").rename(folder / "000000000001.txt")
    page = visit()
    assert not re.search("<strong>(checkpoint|witness)", page.get("alarms"))
    assert "nightly" in page.get("checkpoints")
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", "http://127.0.0.1:1/w")
    assert "place http://127.0.0.1:1/w cannot be read" in visit().get("alarms")


def test_a_checkpoint_that_a_recovery_names_is_no_alarm(books: Books, visit: Any) -> None:
    """Nor is it confirmed: whether all of it was taken over, only `verify --since` says."""
    folder = books.folder / "notes"
    folder.mkdir()
    signer = books.ledger.signer
    point = Checkpoint.parse(open_note(books.ledger.checkpoint(), [signer.public_text])[0])
    lost = signer.sign(replace(point, size=point.size + 9, head="1" * 64).text)
    (folder / "lost.txt").write_text(lost)
    assert "does not hold the entry" in visit(view={"checkpoints": folder}).get("alarms")
    books.ledger.recover(reason="host lost", principal="owner", checkpoint=lost)
    assert "does not hold the entry" not in visit(view={"checkpoints": folder}).get("alarms")
    shown = visit(view={"checkpoints": folder}).get("checkpoints")
    assert "went on from it after a loss; run dpflow ledger verify --since lost.txt" in shown


@pytest.mark.parametrize(
    "change",
    ["body = replace(body, '1', '2')", "principal = 'me'", "at = '2020-01-01T00:00:00+00:00'"],
)
def test_a_changed_entry_is_an_alarm(books: Books, visit: Any, change: str) -> None:
    """Its hash tells it, without a key."""
    assert "was changed" not in visit().get("alarms")
    with closing(sqlite3.connect(books.place)) as connection:
        connection.execute("DROP TRIGGER dpflow_entry_no_update")
        connection.execute(f"UPDATE dpflow_entry SET {change} WHERE seq = 3")
        connection.commit()
    assert "Entry 3 was changed, does not follow" in visit().get("alarms")


def test_a_cut_history_is_an_alarm(books: Books, visit: Any) -> None:
    """Somebody dropped an entry by hand: the checkpoint and the next entry both tell."""
    folder = books.folder / "notes"
    folder.mkdir()
    (folder / "good.txt").write_text(books.ledger.checkpoint())
    with closing(sqlite3.connect(books.place)) as connection:
        connection.execute("DROP TRIGGER dpflow_entry_no_delete")
        (size,) = connection.execute("SELECT max(seq) FROM dpflow_entry").fetchone()
        connection.execute("DELETE FROM dpflow_entry WHERE seq IN (3, ?)", (size,))
        connection.commit()
    page = visit(view={"checkpoints": folder}).get("alarms")
    assert "Entry 4 was changed, does not follow the one before it" in page
    assert f"does not hold the entry {size}" in page


def test_a_ledger_out_of_reach_comes_back(books: Books, visit: Any) -> None:
    """The page says what is wrong, and shows the ledger when it is there again; one that another took
    the place of is read from its beginning.
    """
    visitor = visit()
    away = books.folder / "away"
    away.mkdir()
    # A SQLite file with its log.
    for file in books.folder.glob("ledger.sqlite*"):
        file.rename(away / file.name)
    assert "There is no ledger at" in visitor.get("", 422)
    books.place.write_text("not a database, and long enough to be looked at by SQLite" * 20)
    assert "is not a ledger" in visitor.get("", 500)
    books.place.unlink()
    for file in away.glob("ledger.sqlite*"):
        file.rename(books.folder / file.name)
    assert "departures" in visitor.get("releases")
    for file in books.folder.glob("ledger.sqlite*"):
        file.unlink()
    other = Ledger(books.place, anchor=books.folder / "other", create=True)
    other.grant("other", 1, 0, table=None, filter="basic", principal="owner")
    assert "departures" not in visitor.get("releases") and "other" in visitor.get("")
    assert "No alarms" in visitor.get("alarms")


@pytest.mark.parametrize(("version", "status"), [("6", 503), ("99", 503), ("0", 500)])
def test_a_ledger_of_another_version_is_not_read(
    books: Books, visit: Any, version: str, status: int
) -> None:
    with closing(sqlite3.connect(books.place)) as connection:
        connection.execute("UPDATE dpflow_meta SET value = ? WHERE name = 'schema'", (version,))
        connection.commit()
    assert "use the dpflow that made it" in visit().get("", status)


def test_a_ledger_of_the_version_before_is_upgraded_first(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the next version names the command."""
    monkeypatch.setattr(schema, "UPGRADABLE", (*schema.UPGRADABLE, schema.VERSION))
    monkeypatch.setattr(schema, "VERSION", str(int(schema.VERSION) + 1))
    assert "dpflow ledger upgrade" in visit().get("", 503)


def test_a_scope_that_is_gone(visit: Any) -> None:
    """An old link: the page says which scopes there are."""
    assert "did you mean &#x27;flights&#x27;" in visit().get("scope?name=flight", 404)
    assert "There is no granted scope" in visit().get("history?scope=gone", 404)


@pytest.mark.parametrize("prefix", ["/budget", "budget/", "//budget//", "/a/b"])
def test_any_prefix(visit: Any, prefix: str) -> None:
    """Behind a proxy that takes the prefix away and behind one that does not; a slash too many leads
    to the same page, and links stay below the prefix.
    """
    visitor = visit(prefix=prefix)
    below = "/" + prefix.strip("/")
    for address in ("", "releases", "scope?name=flights"):
        page = visitor.get(address)
        assert visitor.get(f"{below.lstrip('/')}/{address}") == page
        assert visitor.client.get(f"{below}//{address}").text == page
        assert not re.search(r'(href|action)="/', page)
    bare = visitor.client.get(below, follow_redirects=False)
    assert bare.headers["location"] == f"{below.rpartition('/')[2]}/"
    slash = visitor.client.get(f"{below}/history/?scope=flights", follow_redirects=False)
    assert slash.headers["location"] == "../history?scope=flights"
    assert visitor.client.get(f"{below}x/releases").status_code == 404


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_found_by_its_name(books: Books, visit: Any, name: str) -> None:
    query = {
        "scope": "?name=flights",
        "statement": "?name=flights",
        "release": f"?id={books.orphan}",
    }.get(name, "")
    response = visit().client.get(f"/{name}{query}")
    assert response.status_code == 200 and response.headers["server-timing"].startswith("page;dur=")


def test_capacity_is_shown_as_it_is_compared(books: Books, visit: Any) -> None:
    """Under Renyi accounting what is granted is the capacity that the ledger compares with."""
    (row,) = [r for r in visit().read_tables("")["Scopes"] if r["Scope"] == "survey"]
    left = books.ledger.remaining("survey")
    assert isinstance(left, Remaining)
    assert row["Granted"] == exact_text(left.scope.capacity.renyi * EPSILON_UNIT)
