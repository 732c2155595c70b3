"""The main job in its quick form, through a real scheduler: everything the demo claims."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from rich.console import Console

from dpflow.airflow.dag_jobs import read_dags
from dpflow.demo import job
from dpflow.demo.job import Seen
from dpflow.engine.planning.report import describe
from dpflow.engine.planning.simulate import forecast
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import read_published

DAYS = 2
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the example DAGs; its demo folder takes all state."""
    place = tmp_path_factory.mktemp("clone")
    shutil.copytree(
        REPOSITORY / "dpflow" / "example_dags", place / "dags", ignore=shutil.ignore_patterns("__pycache__")
    )
    yield place


@pytest.fixture(scope="module")
def seen(root: Path) -> Seen:
    """The demo, run once for all tests of this module."""
    return job.run(root, DAYS, Console())


def test_every_day_succeeds_through_the_scheduler(seen: Seen) -> None:
    """The backfilled runs end well."""
    assert seen.runs == {"2013-01-01": "success", "2013-01-02": "success"}


def test_each_day_pays_four_releases_and_no_more(seen: Seen, root: Path) -> None:
    """Every block has spent exactly its grant, the crash day included."""
    rows = Ledger(root / "demo" / "ledger.sqlite").remaining("flights").rows()
    assert [row["block"] for row in rows] == ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert all(
        Fraction(row["epsilon_spent"]) == 2 and Fraction(row["epsilon_left"]) == 0 for row in rows
    )


def test_published_rows_say_what_they_cost(seen: Seen, root: Path) -> None:
    """Each row has a value, a price, a block and a release that the ledger knows."""
    rows = read_published(root / "demo" / "published.duckdb", "flights_daily")
    known = {r.release_id for r in Ledger(root / "demo" / "ledger.sqlite").releases("flights")}
    assert {row["release"] for row in rows} >= {
        "flights by carrier",
        "mean arrival delay by carrier",
        "median air time",
    }
    assert all(
        row["release_id"] in known and row["epsilon"] > 0 and row["value"] is not None
        for row in rows
    )
    carriers = [
        row
        for row in rows
        if row["release"] == "flights by carrier" and row["block"] == "2013-01-01"
    ]
    assert len(carriers) == 16


def test_a_cleared_day_changes_nothing(seen: Seen) -> None:
    """Same results bit for bit, zero charge."""
    assert seen.rerun_same and not seen.rerun_charged


def test_a_killed_task_is_charged_once(seen: Seen) -> None:
    """SIGKILL between draw and settle: a second attempt at the same reservation, four releases that
    day.
    """
    assert seen.crash_fired
    assert (seen.crash_attempts, seen.crash_releases) == (2, 4)


def test_the_gate_tells_honest_from_overfitted(seen: Seen) -> None:
    """At least thirty candidates, one answer each; honest claims pass and Freedman's do not.

    The gate's noise crosses the nearest margin (186 groups, at scales 10 and 20) once in 22,000
    runs.
    """
    assert len(seen.verdicts) >= 30
    assert len({v["candidate"] for v in seen.verdicts}) == len(seen.verdicts)
    assert {v["verdict"] for v in seen.verdicts if v["kind"] == "honest"} == {"yes"}
    assert {v["verdict"] for v in seen.verdicts if v["kind"] == "freedman"} == {"no"}
    assert {v["guarantee"] for v in seen.verdicts} == {"heuristic"}


def test_the_verdicts_branch_the_run(seen: Seen) -> None:
    """Some candidate passed: the run notes it and deploys, and goes neither of the other ways."""
    assert {name for name, state in seen.branches.items() if state == "success"} == {
        "train",
        "gate",
        "note",
        "deploy",
    }
    assert {name for name, state in seen.branches.items() if state == "skipped"} == {
        "rethink",
        "collect_fresh_data",
    }


def test_the_best_honest_claim_is_promoted(seen: Seen) -> None:
    """The alias points at the accepted candidate with the highest claim."""
    best = max(
        (v for v in seen.verdicts if v["verdict"] == "yes"),
        key=lambda v: (Fraction(v["claim"]), v["promoted"]),
    )
    assert seen.champion == best["name"]


def test_the_forecast_is_what_was_charged(seen: Seen, root: Path) -> None:
    """`dpflow plan dags` prices a day at what each block paid, and knows which days and which
    session are paid.
    """
    jobs, _ = read_dags(root / "dags")
    ledger = Ledger(root / "demo" / "ledger.sqlite")
    flights, holdout = describe(forecast(jobs, Registry.load(), ledger))["scopes"]
    assert (
        {row["epsilon_spent"] for row in ledger.remaining("flights").rows()}
        == {flights["round"]["epsilon"]}
        == {"2"}
    )
    assert (flights["runs"], flights["runs_paid_before"], flights["exhausted"]) == (
        90,
        DAYS + 1,
        None,
    )
    assert [account["rounds_left"] for account in flights["accounts"]] == [0] * (DAYS + 1)
    assert holdout["once"]["epsilon"] == "0" and holdout["accounts"][0]["used"] == 1


def test_no_gate_detects_a_stolen_holdout(seen: Seen) -> None:
    """The control passes the gate although it is worse on fresh data by more than ten points."""
    assert seen.naive["verdict"] == "yes"
    assert float(Fraction(seen.naive["claim"])) - seen.naive["fresh"] > 0.1


def test_one_release_too_many_is_refused(seen: Seen) -> None:
    """The refusal names scope, block and what is left, and tells what to do."""
    assert "scope 'flights', block '2013-01-01' cannot pay" in seen.refusal
    assert "0 of 2 is left" in seen.refusal


def test_the_ledger_verifies(seen: Seen, root: Path) -> None:
    """Chain, anchor and sums hold after all of it."""
    assert Ledger(root / "demo" / "ledger.sqlite").verify().ok


def test_the_report_has_its_plots_and_says_what_is_protected(seen: Seen, root: Path) -> None:
    """One page, no script, no address of another host."""
    page = (root / "demo" / "report.html").read_text()
    assert page.count("<svg") >= 5
    assert "all rows of one tailnum in one day" in page
    assert "<script" not in page and "src=" not in page


def test_nothing_is_left_running(seen: Seen, root: Path) -> None:
    """No process of the demo's Airflow survives it."""
    home = f"AIRFLOW_HOME={root / 'demo' / 'airflow'}".encode()
    left = []
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            if home in process.read_bytes().split(b"\0"):
                left.append(process.parent.name)
        except OSError:
            continue
    assert not left


def test_a_folder_that_is_not_ours_is_never_deleted(tmp_path: Path) -> None:
    """Only a demo folder with dpflow's marker is cleared."""
    precious = tmp_path / "demo" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("keep")
    with pytest.raises(InvalidInput, match="was not made by dpflow demo"):
        job.fresh(tmp_path)
    assert precious.read_text() == "keep"
