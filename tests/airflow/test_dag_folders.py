"""`dpflow plan FOLDER`: DAG files, release files and everything else that lies in a folder of DAGs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from page_runner import examples
from typer.testing import CliRunner

from dpflow import airflow
from dpflow.cli import app
from dpflow.errors import DpflowError, InvalidInput

if TYPE_CHECKING:
    from smallworld import Tiny

DAG = """
from datetime import datetime
from airflow.sdk import DAG
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
from dpflow.airflow import ReleaseOperator

with DAG("{name}", schedule=CronDataIntervalTimetable("{cron}", timezone="UTC"), start_date=datetime(2020, 1, 1)):
    ReleaseOperator(task_id="release", release={release}, blocks=["2020-01-01"])
"""


VOTE: dict[str, Any] = {"epsilon": "0.01", "label": "city", "features": ["age"], "predictions": 10}


def wanted(name: str, epsilon: str, scope: str = "visits") -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": "count",
        "table": "visits.yml",
        "scope": scope,
        "params": {"epsilon": epsilon},
    }


def dag(name: str, epsilon: str, cron: str = "0 0 * * *", **changes: Any) -> str:
    """A DAG file with one release."""
    return DAG.format(
        name=name, cron=cron, release=changes.get("release") or repr(wanted(f"of {name}", epsilon))
    )


@pytest.fixture
def plan(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """Plan the tiny folder; a refusal is raised."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)
    monkeypatch.chdir(tiny.folder)

    def runs(place: str = ".", *words: object) -> dict[str, Any]:
        done = CliRunner().invoke(
            app, ["plan", place, "--json", "--start", "2020-01-01", *map(str, words)]
        )
        if isinstance(done.exception, DpflowError):
            raise done.exception
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return runs


def test_dags_and_release_files_share_one_forecast(tiny: Tiny, plan: Any) -> None:
    """Two DAGs, one in a folder below, a release file of its own, one that a DAG reads, and other
    YAML: all in one calendar.
    """
    (tiny.folder / "daily.py").write_text(dag("daily", "0.02"))
    (tiny.folder / "team").mkdir()
    weekly = dag("weekly", "0", "0 0 * * 1", release=repr("../release.yml"))
    (tiny.folder / "team" / "weekly.py").write_text(weekly)
    release = tiny.file(params={"epsilon": "0.3"})
    (tiny.folder / "alone.yml").write_text(
        release.read_text().replace("name: visits", "name: alone")
    )
    (tiny.folder / "compose.yml").write_text("services: {db: {image: postgres}}")
    seen = plan(".", "--ledger", tiny.ledger, "--every", "2w")
    assert [(task["job"], task["release"], task["epsilon"]) for task in seen["tasks"]] == [
        ("daily", "of daily", "0.02"),
        ("weekly", "visits", "0.3"),
        ("alone.yml", "alone", "0.3"),
    ]
    assert [job["runs"] for job in seen["jobs"]] == ["0 0 * * *", "0 0 * * 1", "every 14 days"]
    # alone on 1 January; weekly on the 13th (its week began on the 6th), before alone again on the
    # 15th; 13 x 0.02 by then
    (scope,) = seen["scopes"]
    assert (scope["exhausted"], scope["exhausted_block"]) == (
        "2020-01-15T00:00:00+00:00",
        "2020-01-01",
    )


def test_every_scope_has_a_date_of_its_own(tiny: Tiny, plan: Any) -> None:
    """Two scopes and a quota: each is exhausted when its own account is, or lasts until the
    forecast ends.
    """
    (tiny.folder / "a.py").write_text(dag("a", "", release=repr(wanted("r", "0.1", "visits/team"))))
    (tiny.folder / "b.py").write_text(dag("b", "", release=repr(wanted("r", "0.2", "other"))))
    grants = ("--grant", "visits=1", "--grant", "visits/team=0.35", "--grant", "other=10")
    seen = {row["scope"]: row for row in plan(".", *grants, "--until", "2020-02-10")["scopes"]}
    assert {name: row["exhausted"] and row["exhausted"][:10] for name, row in seen.items()} == {
        "visits": None, "visits/team": "2020-01-05", "other": None,
    }  # fmt: skip
    assert (seen["visits/team"]["runs"], seen["other"]["runs"]) == (3, 40)


def test_every_operator_that_charges_is_counted(tiny: Tiny, plan: Any) -> None:
    """Releases, gates, sessions, predictions; the others charge nothing. One that is forgotten here
    would be forgotten there.
    """

    def session(name: str, mechanism: str = "above_threshold", **params: Any) -> str:
        place = {"table": "visits.yml", "scope": "visits", "blocks": ["2020-01-01"]}
        return "session=" + repr(place | {"name": name, "mechanism": mechanism, "params": params})

    contract = {"table": "visits.yml", "scope": "visits", "mode": "watch", "period": "run",
                "epsilon": "0.4", "checks": [{"name": "some", "check": "rows", "at_least": 1}]}  # fmt: skip
    asks = {
        "DataContractOperator": f"contract={contract!r}, blocks='2020-01-01'",
        "ReleaseOperator": f"release={wanted('a release', '0.1') | {'blocks': ['2020-01-01']}!r}",
        "ReusableHoldoutOperator": session("a gate", epsilon="0.2") + ", candidates=[]",
        "SessionOperator": session("a session", epsilon="0.3") + ", queries=[]",
        "PrivatePredictionOperator": session("a vote", "predict_vote", **VOTE)
        + ", points={}, answers={}",
        "SqlReleaseOperator": "sql='SELECT COUNT(*) FROM visits', epsilon='0.05', scope='visits', "
        "tables=['visits.yml'], blocks='2020-01-01'",
    }
    free = {f"Budget{verb}Operator" for verb in ("Branch", "Check", "Grant", "Report")}
    free |= {"BudgetSensor", "LoadOperator"}
    assert set(airflow.__all__) == {*asks, *free}, "a new operator: does it charge?"
    head = "from airflow.sdk import DAG\nfrom dpflow.airflow import *\nwith DAG('all', schedule=None):\n"
    body = "".join(
        f"    {name}(task_id={name!r}, {arguments})\n" for name, arguments in asks.items()
    )
    (tiny.folder / "d.py").write_text(head + body)
    seen = plan(".", "--grant", "visits=9")
    assert [(task["task"], task["charged"]) for task in seen["tasks"]] == [
        (name, "every run" if name in ("ReleaseOperator", "SqlReleaseOperator") else "once")
        for name in asks
    ]
    assert (
        seen["scopes"][0]["round"]["epsilon"] == "0.15"
        and float(seen["scopes"][0]["once"]["epsilon"]) > 0.5
    )


def test_neighbours_are_importable_and_ignored_files_are_not_read(tiny: Tiny, plan: Any) -> None:
    """A DAG may import a module beside it; what .airflowignore names is not read, as in Airflow."""
    (tiny.folder / "shared_terms.py").write_text(f"RELEASE = {wanted('shared', '0.25')!r}")
    (tiny.folder / "d.py").write_text(
        "import shared_terms\n" + dag("d", "", release="shared_terms.RELEASE")
    )
    (tiny.folder / "old.py").write_text("raise RuntimeError('this DAG is from last year: airflow')")
    with pytest.raises(InvalidInput, match="old.py cannot be read as a DAG file: RuntimeError"):
        plan()
    (tiny.folder / ".airflowignore").write_text("old.py\n")
    assert [task["release"] for task in plan()["tasks"]] == ["shared"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "from airflow.sdk import DAG\nwith DAG(",
            "bad.py cannot be read as a DAG file: SyntaxError",
        ),
        (
            "from airflow.sdk import DAG\nimport nowhere_at_all",
            "bad.py cannot be read as a DAG file: ModuleNotFound",
        ),
        ("from airflow.sdk import DAG\nraise SystemExit(3)", "bad.py cannot be read as a DAG file"),
        (dag("good", "0.1"), "cannot be read as a DAG file: .*good"),
        (dag("bad", "nan"), "epsilon"),
        (dag("bad", "0", release=repr("nowhere.yml")), "nowhere.yml"),
    ],
    ids=["syntax", "import", "exit", "the same DAG twice", "nan", "no such release file"],
)
def test_one_bad_file_is_named_and_nothing_is_promised(
    tiny: Tiny, plan: Any, text: str, message: str
) -> None:
    """A forecast without one of the DAGs would say that the budget lasts longer than it does."""
    (tiny.folder / "a_good.py").write_text(dag("good", "0.1"))
    (tiny.folder / "bad.py").write_text(text)
    with pytest.raises(DpflowError, match=message):
        plan(".", "--grant", "visits=1")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"helper.py": "LIMIT = 3"},
        {"d.py": 'from airflow.sdk import DAG\nwith DAG("d", schedule=None): pass'},
        {"compose.yml": "services: {}", "notes.yml": "- one\n- two"},
    ],
    ids=["empty", "no DAG", "a DAG that charges nothing", "other YAML"],
)
def test_a_folder_that_charges_nothing(tiny: Tiny, plan: Any, files: dict[str, str]) -> None:
    """It says so, whatever else is in it."""
    (tiny.folder / "sub").mkdir()
    for name, text in files.items():
        (tiny.folder / "sub" / name).write_text(text)
    with pytest.raises(
        InvalidInput, match="nothing in sub charges a budget: no release file, and no DAG"
    ):
        plan("sub")


def test_planning_leaves_no_trace(tiny: Tiny, plan: Any) -> None:
    """No entry in the ledger, no file in the folder, nothing left on the import path."""
    import sys

    from dpflow.ledger import Ledger

    def files() -> set[str]:
        """All but compiled modules and SQLite's own, which come and go with its connections."""
        return {
            str(p)
            for p in tiny.folder.rglob("*")
            if "__pycache__" not in p.parts and p.name[-4:] not in ("-wal", "-shm")
        }

    (tiny.folder / "d.py").write_text(dag("d", "0.1"))
    before, path = files(), list(sys.path)
    plan(".", "--ledger", tiny.ledger)
    assert files() == before and sys.path == path
    assert len(Ledger(Path(tiny.ledger)).history()) == 1


@pytest.mark.parametrize(
    ("grant", "limit", "fault"),
    [
        ("visits=1", "0.8", None),
        ("visits=1", "0.59", "scope visits comes to 0.60 of its grant at 2020-01-31"),
        ("visits=0.5", "1", "scope visits is exhausted at 2020-01-2"),
        ("other=1", "0.8", None),
        (None, "0.8", "scope visits has no grant here, so nobody can tell"),
    ],
)
def test_a_pipeline_stops_dags_that_spend_too_much(
    tiny: Tiny, plan: Any, grant: str | None, limit: str, fault: str | None
) -> None:
    """The command of the workflow in docs/guides/planning.md: 31 runs of 0.02 within the horizon."""
    del plan  # for its folder
    scope = (grant or "visits").partition("=")[0]
    release = repr(wanted("r", "0.02", scope))
    (tiny.folder / "dags").mkdir()
    (tiny.folder / "dags" / "daily.py").write_text(dag("daily", "", release=release))
    declared = (tiny.folder / "visits.yml").read_text().replace("visits.duckdb", "../visits.duckdb")
    (tiny.folder / "dags" / "visits.yml").write_text(declared)
    # What the workflow of the page runs.
    page = Path(__file__).parents[2] / "docs" / "guides" / "planning.md"
    (text,) = (one.text for one in examples(page) if "privacy-budget.yml" in (one.title or ""))
    steps = yaml.safe_load(text)["jobs"]["plan"]["steps"]
    command = shlex.split(steps[-1]["run"])
    words = command[: command.index("--grant")] + (["--grant", grant] if grant else [])
    words += ["--start", "2020-01-01", "--until", "2020-02-01", "--fail-over", limit]
    done = CliRunner().invoke(app, words[1:])
    # Airflow's own lines stand there, too, once a test has set up its log.
    said = [line for line in done.stderr.splitlines() if "airflow." not in line]
    assert (done.exit_code, bool(said)) == ((1, True) if fault else (0, False)), done.output
    assert fault is None or fault in done.stderr


def test_a_pipeline_stops_where_only_a_run_knows(tiny: Tiny, plan: Any) -> None:
    """A task that maps over what another task returns may ask for anything."""
    del plan
    (tiny.folder / "daily.py").write_text(
        dag("daily", "", release="[]")
        .replace(
            'ReleaseOperator(task_id="release", release=[], blocks=["2020-01-01"])',
            'ReleaseOperator.partial(task_id="release").expand(release=find())',
        )
        .replace(
            "with DAG",
            "from airflow.sdk import task\n\n@task\ndef find():\n    return []\n\nwith DAG",
        )
    )
    done = CliRunner().invoke(app, ["plan", "daily.py", "--fail-over", "1", "--grant", "visits=1"])
    assert done.exit_code == 1, done.output
    for share in ("0", "1.5", "nan"):
        refused = CliRunner().invoke(app, ["plan", "daily.py", "--fail-over", share])
        assert isinstance(refused.exception, InvalidInput)
