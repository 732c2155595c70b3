"""DAGs in a versioned bundle: what lasts is nowhere in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from airflow_names import AirflowFailException
from airflow_runs import run_dag
from airflow_tasks import context, make_release
from git_bundle import commit_all

from dpflow.airflow.task_context import open_ledger
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny


def write_catalogue(folder: Path, **fields: Any) -> None:
    (folder / "dpflow.yml").write_text(yaml.safe_dump(fields))


@pytest.fixture
def bundle(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a version, where Airflow keeps bundles; it has the declaration of the tiny table."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "bundles"))
    folder = tmp_path / "bundles" / "team" / "versions" / "abc" / "dags"
    folder.mkdir(parents=True)
    declaration = yaml.safe_load((tiny.folder / "visits.yml").read_text())
    declaration["database"] = str(tiny.database)
    (folder / "visits.yml").write_text(yaml.safe_dump(declaration))
    return folder


def test_a_ledger_is_in_no_version(tiny: Tiny, bundle: Path) -> None:
    """Relative to the checkout it would be another empty ledger in the next one; relative to ``root`` it lasts."""
    write_catalogue(bundle, ledger="ledger.sqlite")
    with pytest.raises(InvalidInput, match="root: FOLDER in dpflow.yml"):
        open_ledger(None, bundle)
    write_catalogue(bundle, ledger=str(tiny.ledger), anchor="anchor")
    with pytest.raises(InvalidInput, match="the anchor anchor would be in a bundle"):
        open_ledger(None, bundle)
    write_catalogue(bundle, ledger="ledger.sqlite", root=str(tiny.folder))
    assert open_ledger(None, bundle).scopes()
    assert not list(bundle.rglob("*.sqlite"))


def test_nothing_is_written_into_a_version(tiny: Tiny, bundle: Path) -> None:
    """A release that would be published there is not charged, and rows are not loaded; with ``root`` it is published."""
    from dpflow.airflow import (
        DataContractOperator,
        LoadOperator,
        PrivatePredictionOperator,
        ReleaseOperator,
    )

    write_catalogue(bundle, ledger=str(tiny.ledger))
    running = context(tiny)
    running["dag"].fileloc = str(bundle / "dag.py")
    publish = {"database": "out.duckdb", "table": "daily"}
    task = ReleaseOperator(task_id="t", release=make_release(publish=publish))
    with pytest.raises(
        AirflowFailException, match="published file out.duckdb would be in a bundle"
    ):
        task.execute(running)
    assert not Ledger(tiny.ledger).releases()
    (bundle / "day.csv").write_text("person\np1\n")
    load = LoadOperator(
        task_id="l", source="day.csv", into="raw.duckdb:raw", columns="person VARCHAR"
    )
    with pytest.raises(AirflowFailException, match="private file raw.duckdb would be in a bundle"):
        load.execute(running)
    docs = DataContractOperator(task_id="c", table="visits.yml", project="gx")
    with pytest.raises(AirflowFailException, match="project of Great Expectations gx would be in"):
        docs.execute(running)
    session = make_release(mechanism="private_knn", params={"epsilon": "0.5"})
    predictions = PrivatePredictionOperator(
        task_id="p",
        session=session,
        points={"database": "in.duckdb", "table": "p", "key": "id"},
        answers={"database": "out.duckdb", "table": "a"},
    )
    with pytest.raises(
        AirflowFailException, match="published file out.duckdb would be in a bundle"
    ):
        predictions.execute(running)
    assert not list(bundle.rglob("*.duckdb"))
    write_catalogue(
        bundle, ledger="ledger.sqlite", root=str(tiny.folder), output={"database": "out.duckdb"}
    )
    receipt = ReleaseOperator(task_id="t", release=make_release()).execute(running)
    assert receipt["published"] == "out.duckdb:releases" and (tiny.folder / "out.duckdb").exists()


GIT_RUNS = """
import contextlib
from airflow.dag_processing.bundles.base import BundleUsageTrackingManager, BundleVersionLock
from airflow.dag_processing.bundles.manager import DagBundlesManager

os.environ.pop("AIRFLOW_CONN_DPFLOW_LEDGER", None)
DagBundlesManager().sync_bundles_to_db()
paths = []
for version in os.environ["VERSIONS"].split():
    bundle = DagBundlesManager().get_bundle("team", version=version)
    with BundleVersionLock(bundle_name="team", bundle_version=version):
        bundle.initialize()
        named = {"bundle_name": "team"} if "bundle_name" in names else {}
        bag = DagBag(bundle.path / "d.py", load_op_links=False, bundle_path=bundle.path, **named)
        sync_bag_to_db(bag, "team", version)
        dag = bag.dags["d"]
        run(2)
        if len(paths) == 1:
            run(3)
    paths.append(bundle.path)
    seen[-1]["file"] = dag.fileloc
    # It may remember a version that it removed before.
    with contextlib.suppress(FileNotFoundError):
        BundleUsageTrackingManager().remove_stale_bundle_versions()
    seen[-1]["left"] = bundle.path.exists()
"""
GIT_DAG = """
from datetime import datetime
from airflow.sdk import DAG
from dpflow.airflow import BudgetCheckOperator, DataContractOperator, ReleaseOperator

with DAG("d", schedule=None, start_date=datetime(2020, 1, 1), max_active_runs=1):
    budget = BudgetCheckOperator(task_id="budget")
    contract = DataContractOperator(task_id="contract", table="visits", blocks="2020-01-01")
    budget >> contract >> ReleaseOperator(task_id="release", release="daily.yml", blocks="2020-01-01")
"""


def test_a_git_bundle_keeps_no_state(tiny: Tiny, airflow_database: Path) -> None:
    """DAG, release, declaration and dpflow.yml come from a checkout of each version, which Airflow's own clean-up takes
    away after the run. Ledger, anchor and published file are where ``root`` is: a later version's run of the same
    interval pays nothing.
    """
    repository, home = tiny.folder / "repository", tiny.folder / "bundles"
    repository.mkdir()
    declaration = yaml.safe_load((tiny.folder / "visits.yml").read_text())
    (repository / "visits.yml").write_text(
        yaml.safe_dump(declaration | {"database": str(tiny.database)})
    )
    write_catalogue(
        repository, root=str(tiny.folder), ledger="ledger.sqlite", scope="visits",
        output={"database": "out.duckdb"}, tables={"visits": "visits.yml"},
    )  # fmt: skip
    release = make_release(table="visits", params={"epsilon": "0.25"})
    del release["blocks"], release["scope"]
    (repository / "daily.yml").write_text(yaml.safe_dump(release))
    (repository / "d.py").write_text(GIT_DAG)
    versions = []
    for text in ("", "# another version\n"):
        (repository / "d.py").write_text(text + GIT_DAG)
        versions.append(commit_all(repository))
    bundles = [
        {
            "name": "team",
            "classpath": "git_bundle.GitBundle",
            "kwargs": {"repository": str(repository)},
        }
    ]
    output: list[str] = []
    first, again, other = run_dag(
        tiny, airflow_database, GIT_DAG, GIT_RUNS, output, VERSIONS=" ".join(versions),
        PYTHONPATH=str(Path(__file__).parents[1]), AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH=str(home),
        AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps(bundles),
        AIRFLOW__DAG_PROCESSOR__STALE_BUNDLE_CLEANUP_MIN_VERSIONS="0",
        AIRFLOW__DAG_PROCESSOR__STALE_BUNDLE_CLEANUP_AGE_THRESHOLD="0",
    )  # fmt: skip
    for run in (first, again, other):
        assert run["state"] == "success", "".join(output)[-3000:]
    assert [(run["file"].startswith(str(home)), run["left"]) for run in (first, other)] == [
        (True, False)
    ] * 2
    assert first["file"] != other["file"]
    # Of the same interval once, and once of another.
    releases = Ledger(tiny.ledger).releases()
    assert len(releases) == 2 and all(one.settled for one in releases)
    assert (tiny.folder / "out.duckdb").exists()
    assert not [file for file in home.rglob("*") if file.suffix in (".sqlite", ".duckdb")]
