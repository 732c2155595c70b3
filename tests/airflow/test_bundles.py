"""DAGs in a versioned bundle: what lasts is nowhere in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from airflow_names import AirflowFailException
from airflow_tasks import context, make_release

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
    write_catalogue(bundle, ledger="ledger.sqlite", root=str(tiny.folder))
    assert open_ledger(None, bundle).scopes()
    assert not list(bundle.rglob("*.sqlite"))


def test_nothing_is_written_into_a_version(tiny: Tiny, bundle: Path) -> None:
    """A release that would be published there is not charged, and rows are not loaded; with ``root`` it is published."""
    from dpflow.airflow import LoadOperator, ReleaseOperator

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
    assert not list(bundle.rglob("*.duckdb"))
    write_catalogue(
        bundle, ledger="ledger.sqlite", root=str(tiny.folder), output={"database": "out.duckdb"}
    )
    receipt = ReleaseOperator(task_id="t", release=make_release()).execute(running)
    assert receipt["published"] == "out.duckdb:releases" and (tiny.folder / "out.duckdb").exists()
