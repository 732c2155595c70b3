"""The whole demo, through a real scheduler beside two busy loops a core: everything it claims about
days, gate and models. Its days on a quiet machine are in test_demo_days.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

import pytest
from rich.console import Console

from dpflow.airflow.dag_jobs import read_dags
from dpflow.demo import job
from dpflow.demo.facts import DemoFacts
from dpflow.demo.workspace import Workspace
from dpflow.engine.planning.report import describe_forecast
from dpflow.engine.planning.simulate import forecast_schedule
from dpflow.registry import Registry

pytestmark = pytest.mark.slow

DAYS = 2


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The demo's folder."""
    return Workspace(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def busy_cores() -> Iterator[None]:
    """Two busy loops a core, for as long as the demo runs."""
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop) for _ in range(2 * len(os.sched_getaffinity(0)))]
    yield
    were_busy = all(process.poll() is None for process in loops)
    for process in loops:
        process.kill()
        process.wait()
    assert were_busy


@pytest.fixture(scope="module")
def facts(workspace: Workspace, busy_cores: None) -> DemoFacts:
    """The demo, run once for all tests of this module: it ends well, only later."""
    return job.run_demo(workspace.root, DAYS, Console())


def test_every_day_succeeds_through_the_scheduler(facts: DemoFacts) -> None:
    """The backfilled runs end well."""
    assert facts.runs == {"2013-01-01": "success", "2013-01-02": "success"}


def test_each_day_pays_four_releases_and_no_more(facts: DemoFacts, workspace: Workspace) -> None:
    """Every block has spent exactly its grant, the crash day included."""
    rows = workspace.open_ledger().remaining("flights").rows()
    assert [row["block"] for row in rows] == ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert all(
        Fraction(row["epsilon_spent"]) == 2 and Fraction(row["epsilon_left"]) == 0 for row in rows
    )


def test_a_cleared_day_changes_nothing(facts: DemoFacts) -> None:
    """Same results bit for bit, zero charge."""
    assert facts.rerun_same and not facts.rerun_charged


def test_a_killed_task_is_charged_once(facts: DemoFacts) -> None:
    """SIGKILL between draw and settle: a second attempt at the same reservation, four releases that
    day.
    """
    assert facts.crash_fired
    assert (facts.crash_attempts, facts.crash_releases) == (2, 4)


def test_the_gate_tells_honest_from_overfitted(facts: DemoFacts) -> None:
    """At least thirty candidates, one answer each; honest claims pass and Freedman's do not.

    The nearest of Freedman's claims is .07 beyond the threshold, which noise crosses in less than one of
    1,000 runs.
    """
    assert len(facts.verdicts) >= 30
    assert len({v["candidate"] for v in facts.verdicts}) == len(facts.verdicts)
    assert {v["verdict"] for v in facts.verdicts if v["kind"] == "honest"} == {"yes"}
    assert {v["verdict"] for v in facts.verdicts if v["kind"] == "freedman"} == {"no"}
    assert {v["guarantee"] for v in facts.verdicts} == {"proven"}


def test_the_verdicts_branch_the_run(facts: DemoFacts) -> None:
    """Some candidate passed: the run notes it and deploys, and goes neither of the other ways."""
    assert {name for name, state in facts.branches.items() if state == "success"} == {
        "train",
        "gate",
        "note",
        "deploy",
    }
    assert {name for name, state in facts.branches.items() if state == "skipped"} == {
        "rethink",
        "collect_fresh_data",
    }


def test_whoever_beats_the_champion_is_promoted(facts: DemoFacts) -> None:
    """The first that passes is champion, and the alias moves only to one that is better on the
    holdout: no overfit one, and none that is worse on fresh data by more than the noise.
    """
    promoted = [v for v in facts.verdicts if v["outcome"] == "promoted"]
    assert promoted[0]["promotion"] == "first"
    assert {v["kind"] for v in promoted} == {"honest"}
    assert all(v["promotion"].startswith("better than version") for v in promoted[1:])
    assert facts.champion == promoted[-1]["name"]
    assert promoted[-1]["fresh"] >= promoted[0]["fresh"] - 0.05


def test_the_forecast_is_what_was_charged(facts: DemoFacts, workspace: Workspace) -> None:
    """`dpflow plan dags` prices a day at what each block paid, and knows which days and which
    session are paid.
    """
    jobs, _ = read_dags(workspace.dags)
    ledger = workspace.open_ledger()
    flights, holdout = describe_forecast(forecast_schedule(jobs, Registry.load(), ledger))["scopes"]
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
    assert [account["rounds_left"] for account in flights["budgets"]] == [0] * (DAYS + 1)
    assert holdout["once"]["epsilon"] == "0" and holdout["budgets"][0]["used"] == 1


def test_no_gate_detects_a_stolen_holdout(facts: DemoFacts) -> None:
    """The control passes the gate although it is worse on fresh data by more than ten points."""
    assert facts.naive["verdict"] == "yes"
    assert float(Fraction(facts.naive["claim"])) - facts.naive["fresh"] > 0.1


def test_the_ledger_verifies(facts: DemoFacts, workspace: Workspace) -> None:
    """Chain, anchor and sums hold after all of it."""
    assert workspace.open_ledger().verify().ok


def test_the_report_has_its_plots_and_says_what_is_protected(
    facts: DemoFacts, workspace: Workspace
) -> None:
    """One page, no script, no address of another host."""
    page = workspace.report.read_text()
    assert page.count("<svg") == 6
    assert "all rows of one tailnum in one day" in page
    assert "<script" not in page and "src=" not in page


def test_the_progress_is_complete_so_resuming_does_nothing(
    facts: DemoFacts, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step is noted; the facts that were saved are the facts."""
    assert facts.steps == [action.__name__ for _, action, _ in job.STEPS]
    resumed = job.run_demo(workspace.root, DAYS, Console(), resume=True)
    assert resumed == facts and "start Airflow" not in capsys.readouterr().out


def test_the_gates_log_has_a_line_for_each_candidate(
    facts: DemoFacts, workspace: Workspace
) -> None:
    """And no warning: libraries that look into every module meet deprecated names elsewhere."""
    folder = workspace.airflow_home / "logs" / "dag_id=flights_model" / "run_id=demo"
    (log,) = folder.glob("task_id=gate/**/*.log")
    text = log.read_text()
    assert text.count("claims ") == len(facts.verdicts)
    assert "eprecat" not in text and len(text.splitlines()) < len(facts.verdicts) + 20
