"""One day of the demo and the day of its crash, without its models, through a real scheduler. The whole demo is
in test_demo.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
from rich.console import Console

from dpflow.core.contract.results import NO_RANK, NO_VALUE
from dpflow.demo import job
from dpflow.demo.facts import DemoFacts
from dpflow.demo.supervisor import list_processes
from dpflow.demo.workspace import Workspace
from dpflow.tables import read_published

DAYS = 1
MODELS = {"submit_models", "submit_stolen_fit"}

# The first test waits for the whole demo.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The demo's folder."""
    return Workspace(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def facts(workspace: Workspace) -> Iterator[DemoFacts]:
    """The days of the demo, run once for all tests of this module."""
    with pytest.MonkeyPatch.context() as patch:
        steps = tuple(step for step in job.STEPS if step[1].__name__ not in MODELS)
        patch.setattr(job, "STEPS", steps)
        yield job.run_demo(workspace.root, DAYS, Console())


def test_every_day_succeeds_through_the_scheduler(facts: DemoFacts) -> None:
    """The backfilled run ends well."""
    assert facts.runs == {"2013-01-01": "success"}


def test_each_day_pays_four_releases_and_no_more(facts: DemoFacts, workspace: Workspace) -> None:
    """Every block has spent exactly its grant, the crash day included."""
    rows = workspace.open_ledger().remaining("flights").rows()
    assert [row["block"] for row in rows] == ["2013-01-01", "2013-01-02"]
    assert all(
        Fraction(row["epsilon_spent"]) == 2 and Fraction(row["epsilon_left"]) == 0 for row in rows
    )


def test_published_rows_say_what_they_cost(facts: DemoFacts, workspace: Workspace) -> None:
    """Each row has a value, a price, a block and a release that the ledger knows."""
    rows = read_published(workspace.published_database, "flights_daily")
    known = {r.release_id for r in workspace.open_ledger().releases("flights")}
    assert {row["release"] for row in rows} >= {
        "flights by carrier",
        "mean arrival delay by carrier",
        "median air time",
    }
    assert all(row["release_id"] in known and row["epsilon"] > 0 for row in rows)
    # Noise hides means of small carriers, and on a few days of a hundred the rank of the median.
    assert all((row["value"] is None) == (row["remark"] in (NO_VALUE, NO_RANK)) for row in rows)
    carriers = [
        row
        for row in rows
        if row["release"] == "flights by carrier" and row["block"] == "2013-01-01"
    ]
    assert len(carriers) == 16


def test_a_cleared_day_changes_nothing(facts: DemoFacts) -> None:
    """Same results bit for bit, zero charge."""
    assert facts.rerun_same and not facts.rerun_charged


def test_a_killed_task_is_charged_once(facts: DemoFacts) -> None:
    """SIGKILL between draw and settle: a second attempt at the same reservation, four releases that
    day.
    """
    assert facts.crash_fired
    assert (facts.crash_attempts, facts.crash_releases) == (2, 4)


def test_one_release_too_many_is_refused(facts: DemoFacts) -> None:
    """The refusal names scope, block and what is left, and tells what to do."""
    assert "scope 'flights', block '2013-01-01' cannot pay" in facts.refusal
    assert "0 of 2 is left" in facts.refusal


def test_the_ledger_verifies(facts: DemoFacts, workspace: Workspace) -> None:
    """Chain, anchor and sums hold after all of it."""
    assert workspace.open_ledger().verify().ok


def test_nothing_is_left_running(facts: DemoFacts, workspace: Workspace) -> None:
    """No process of the demo's Airflow survives it."""
    assert not list_processes(f"DPFLOW_DEMO={workspace.root}")


def test_the_progress_is_complete_so_resuming_does_nothing(
    facts: DemoFacts, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step is noted; the facts that were saved are the facts."""
    assert facts.steps == [action.__name__ for _, action, _ in job.STEPS]
    resumed = job.run_demo(workspace.root, DAYS, Console(), resume=True)
    assert resumed == facts and "start Airflow" not in capsys.readouterr().out


def test_the_report_has_the_days_and_says_what_is_missing(
    facts: DemoFacts, workspace: Workspace
) -> None:
    """A plot of the spending and one for each release that noise left a value; no gate."""
    page = workspace.report.read_text()
    rows = read_published(workspace.published_database, "flights_daily")
    shown = {row["release"] for row in rows if row["value"] is not None}
    assert page.count("<svg") == 1 + len(shown) >= 4 and "not reached" in page
    assert "all rows of one tailnum in one day" in page and "The gate</h2>" not in page
