"""`dpflow plan` on schedules: tables, JSON, a plot, and one sentence for what cannot be planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.errors import DpflowError

if TYPE_CHECKING:
    from smallworld import Tiny

Run = Callable[..., Any]


@pytest.fixture
def plan(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process; a refusal is raised, `--json` output is parsed."""
    for name in ("DPFLOW_LEDGER", "DPFLOW_LEDGER_ANCHOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.chdir(tiny.folder)
    tiny.file(params={"epsilon": "0.3"})

    def runs(*words: object) -> Any:
        done = CliRunner().invoke(app, ["plan", *map(str, words)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return runs


DAILY = ("--start", "2020-01-01", "--every", "1d")


def test_a_folder_of_release_files(tiny: Tiny, plan: Run) -> None:
    """The ledger's grant of 1 holds three runs of 0.3: the fourth day is refused. Nothing is
    charged.
    """
    seen = plan(".", *DAILY, "--ledger", tiny.ledger, "--json")
    (task,), (scope,) = seen["tasks"], seen["scopes"]
    assert (task["epsilon"], task["half_width_95"], task["charged"]) == (
        "0.3",
        {"count": 20},
        "every run",
    )
    assert (scope["rounds_that_fit"], scope["runs"], scope["exhausted"]) == (
        3,
        3,
        "2020-01-04T00:00:00+00:00",
    )
    assert scope["budgets"] == [{"block": "", "used": 0.0, "rounds_left": 3}]
    assert {found["filter"]: found["rounds"] for found in scope["filters"]}["basic"] == 3
    shown = plan(".", *DAILY, "--ledger", tiny.ledger)
    assert (
        "2020-01-04T00:00, block 2020-01-01" in shown
        and "only each reservation is authoritative" in shown
    )


def test_a_last_date_is_its_whole_day(tiny: Tiny, plan: Run) -> None:
    """A day has two runs; with a time only what is before it counts."""
    half = ("--start", "2020-01-01", "--every", "12h", "--ledger", tiny.ledger, "--json")
    counts = [
        plan(".", *half, "--until", last)["scopes"][0]["runs"]
        for last in ("2020-01-01", "2020-01-01T06:00")
    ]
    assert counts == [2, 1]


def test_a_narrow_terminal_loses_nothing(
    tiny: Tiny, plan: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells are broken, never cut: no amount and no date ends in an ellipsis."""
    monkeypatch.setenv("COLUMNS", "60")
    shown = plan(".", *DAILY, "--ledger", tiny.ledger)
    assert "…" not in shown and "2020-01-04T00:00, block" in shown


def test_without_a_grant_only_prices(plan: Run) -> None:
    """It says what to name, and how to suppose a grant."""
    assert plan("release.yml", "--every", "1d", "--json")["ungranted"] == ["visits"]
    assert "suppose one with --grant visits=1,1e-6" in plan(".")


def test_the_solver_and_the_plot(tiny: Tiny, plan: Run) -> None:
    """Ten runs of one release share a grant of 1; the picture is a picture."""
    seen = plan(
        "release.yml", "--grant", "visits=1", "--runs", "10", "--plot", "left.svg", "--json", *DAILY
    )
    (one,) = seen["fitted"]["tasks"]
    assert (one["epsilon_now"], one["epsilon"]) == ("0.3", "0.1") and one["half_width_95"][
        "count"
    ] > 20
    assert "<svg" in (tiny.folder / "left.svg").read_text()
    shown = plan("release.yml", "--grant", "visits=1", "--runs", "2", "--error", "visits=20")
    assert "by its error" in shown and "noise that makes 2 runs fit" in shown


def test_a_supposed_grant_says_which_noise_is_forecast(tiny: Tiny, plan: Run) -> None:
    """Of a release file and of a query: Laplace under basic, whose delta stays 0; Gaussian under renyi."""
    tiny.declare(
        columns={
            "city": {
                "groups": 60,
                "rows_per_group": 1,
                "public_keys": [f"c{n}" for n in range(60)],
            },
            "age": {"lower": 0, "upper": 120},
        },
        contribution_bounds={"rows": 60},
    )
    chosen = {"by": "city", "epsilon": "0.1", "delta": "1e-7"}
    tiny.file(mechanism="histogram", params=chosen)
    dag = """
from datetime import datetime
from airflow.sdk import DAG
from dpflow.airflow import SqlReleaseOperator
with DAG("q", start_date=datetime(2020, 1, 1), schedule="@daily"):
    SqlReleaseOperator(task_id="t", tables=["visits.yml"], scope="visits", epsilon="0.1", delta="1e-7",
        blocks=["2020-01-01"], sql="SELECT city, COUNT(*), SUM(age) FROM visits GROUP BY city")
"""
    (tiny.folder / "q.py").write_text(dag)
    for place in ("release.yml", "q.py"):
        deltas = [
            plan(place, "--grant", f"visits=1,1e-6,{name}", "--json", *DAILY)["tasks"][0]["delta"]
            for name in ("basic", "renyi")
        ]
        assert deltas == ["0", "1e-7"]


def test_the_report_for_a_fixed_schedule(plan: Run) -> None:
    """One line below the table, labelled; nothing where the grant has no delta."""
    shown = plan("release.yml", "--grant", "visits=1,1e-6", *DAILY)
    assert "3 releases cost epsilon 0.9 at delta 0.000001" in shown
    assert "a report for a schedule fixed in advance, not a filter" in shown
    assert "fixed in advance" not in plan("release.yml", "--grant", "visits=1", *DAILY)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", *DAILY], "there is nothing at nowhere"),
        (["empty"], "nothing in empty charges a budget"),
        (["release.yml", "--share", "visits=1"], "add --runs N"),
        (["release.yml", "--every", "often"], "write it as 1d"),
        (["release.yml", "--every", "0d"], "write it as 1d"),
        (["release.yml", "--start", "1 January"], "is no date"),
        (["release.yml", "--runs", "3"], "has no grant to fit"),
        (["release.yml", "--grant", "visits"], "has no NAME=VALUE"),
        (["release.yml", "--grant", "vists=1"], "no task charges scope 'vists'"),
        (["release.yml", "--grant", "visits=1,0,pld"], "no filter 'pld'"),
        (["release.yml", "--grant", "visits=nan"], "epsilon is 'nan'"),
        (["release.yml", "--grant", "visits=1,0,basic,1,1"], "more than EPSILON"),
        (["release.yml", "--grant", "visits=1", "--plot", "no/such/x.svg"], "cannot be drawn"),
        (["release.yml", "--grant", "visits=1", "--plot", "x.doc"], "cannot be drawn"),
    ],
)
def test_what_cannot_be_planned_is_said(
    tiny: Tiny, plan: Run, words: list[str], message: str
) -> None:
    """A refusal names the option and what to write."""
    (tiny.folder / "empty").mkdir()
    with pytest.raises(DpflowError, match=message):
        plan(*words)
