"""Published tables as assets: what their events say, and what a DAG that they trigger reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow_names import AirflowFailException
from airflow_runs import run_dag
from airflow_tasks import context, make_release

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")


#: What every event says of the run that wrote it.
ABOUT = ("dag", "task", "map_index", "run", "data_interval")


class Events(dict[Any, Any]):
    """What Airflow gives a task to write into, by names: Airflow 3.1 cannot hash an asset."""

    def __getitem__(self, asset: Any) -> Any:
        name = getattr(asset, "name", asset)
        return self.setdefault(name, SimpleNamespace(extra={"author": 1}))


def test_an_event_says_what_was_released_and_no_number(tiny: Tiny) -> None:
    """An asset named as a table gets its releases, any other all of the task; a retry says the same."""
    from dpflow.airflow import ReleaseOperator

    (tiny.folder / "other.yml").write_text((tiny.folder / "visits.yml").read_text())
    asked = [
        make_release(name=name, publish={"database": "out.duckdb", "table": table})
        for name, table in (("a", "first"), ("b", "second"))
    ]
    asked[0]["params"] = {"epsilon": "0.25"}
    outlets = [Asset("first"), Asset("all of it"), AssetAlias("alias")]
    operator = ReleaseOperator(task_id="t", release=asked, outlets=outlets)
    seen = [Events(), Events()]
    for number, events in enumerate(seen):
        operator.execute(context(tiny, try_number=number + 1) | {"outlet_events": events})
    assert set(seen[0]) == {"first", "all of it"}
    extra = seen[0]["first"].extra
    assert extra["author"] == 1 and set(extra["dpflow"]) == {*ABOUT, "releases"}
    assert extra["dpflow"]["data_interval"] == [
        "2020-01-01T00:00:00+00:00", "2020-01-02T00:00:00+00:00",
    ]  # fmt: skip
    (release,) = extra["dpflow"]["releases"]
    assert (release["epsilon"], release["blocks"], release["table"]) == (
        "0.25", ["2020-01-01"], "first",
    )  # fmt: skip
    assert release["half_width_95"] and release["release_id"]
    both = seen[0]["all of it"].extra["dpflow"]["releases"]
    assert [one["name"] for one in both] == ["a", "b"]
    # The one difference of a retry.
    again = seen[1]["first"].extra["dpflow"]["releases"][0]
    assert again == release | {"replayed": True}
    text = json.dumps([seen[0]["first"].extra, both])
    with duckdb.connect(str(tiny.folder / "out.duckdb")) as connection:
        values = connection.execute(
            "SELECT value FROM first UNION ALL SELECT value FROM second"
        ).fetchall()
    assert len(values) == 2 and str(tiny.database) not in text
    assert set(release) == {
        "release_id", "name", "mechanism", "scope", "blocks", "epsilon", "delta", "protects", "replayed", "published",
        "table", "half_width_95",
    }, "a new field must be public"  # fmt: skip


def test_a_load_tells_of_its_blocks(tiny: Tiny) -> None:
    """As the DAG names them, and not how many rows; the run that they trigger reads them, each once."""
    from dpflow.airflow import LoadOperator
    from dpflow.airflow.asset_events import read_loaded_blocks

    (tiny.folder / "day.csv").write_text("person,day\np1,2020-01-01\n")
    outlet = Asset("visits")
    load = LoadOperator(
        task_id="load", source="day.csv", into="raw.duckdb:raw", columns="person VARCHAR, day DATE",
        by="day", blocks="2020-01-01", outlets=[outlet],
    )  # fmt: skip
    seen = [Events(), Events()]
    for events in seen:
        load.execute(context(tiny, task_id="load") | {"outlet_events": events})
    told = seen[0]["visits"].extra["dpflow"]
    assert told["load"] == {"table": "raw", "blocks": ["2020-01-01"]}
    assert set(told) == {*ABOUT, "load"}
    triggered = {
        "visits": [
            SimpleNamespace(extra=None),
            *(SimpleNamespace(extra=one["visits"].extra) for one in seen),
        ]
    }
    assert read_loaded_blocks({"triggering_asset_events": triggered}) == ["2020-01-01"]
    with pytest.raises(AirflowFailException, match="which blocks were loaded"):
        read_loaded_blocks({"triggering_asset_events": {"visits": [SimpleNamespace(extra={})]}})


@pytest.mark.parametrize(
    "extra",
    [
        None, {}, [], "text", {"dpflow": None}, {"dpflow": []}, {"dpflow": {}}, {"dpflow": {"releases": "all"}},
        {"dpflow": {"releases": ["a"]}}, {"dpflow": {"releases": [{"release_id": 7}]}},
    ],
)  # fmt: skip
def test_an_event_without_metadata(extra: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Left out beside others, with a warning; alone it ends the task at once."""
    from dpflow.airflow.asset_events import read_releases

    triggered = {
        "t": [
            SimpleNamespace(extra=extra),
            *(
                SimpleNamespace(
                    extra={
                        "dpflow": {
                            "run": "2020-01-01",
                            "data_interval": None,
                            "releases": [{"release_id": one} for one in ids],
                        }
                    }
                )
                for ids in ("ab", "bc")
            ),
        ]
    }
    releases = read_releases({"triggering_asset_events": triggered})
    assert [release["release_id"] for release in releases] == ["a", "b", "c"]
    assert releases[0]["run"] == "2020-01-01"
    assert "1 asset events do not say what was released" in caplog.text
    with pytest.raises(AirflowFailException, match="no asset event of this run says"):
        read_releases({"triggering_asset_events": {"t": [SimpleNamespace(extra=extra)]}})
    with pytest.raises(AirflowFailException, match="no asset event"):
        read_releases({})


RUNS = """
import sqlalchemy as sa
from airflow.models.asset import AssetEvent
run(2)
with create_session() as session:
    extras = [event.extra for event in session.scalars(sa.select(AssetEvent))]
seen.append(extras)
"""


def test_airflow_stores_the_event(tiny: Tiny, airflow_database: Path) -> None:
    """Under Airflow's own task runner: one event, with what the ledger has, and without a number."""
    daily = make_release(name="a", publish={"database": "out.duckdb", "table": "daily"})
    dag = f"""
from datetime import datetime
from airflow.sdk import DAG, Asset
from dpflow.airflow import ReleaseOperator

with DAG("d", schedule=None, start_date=datetime(2020, 1, 1), catchup=False):
    ReleaseOperator(task_id="t", release={daily!r}, outlets=[Asset("daily")])
with DAG("consumer", schedule=[Asset("daily")]):
    pass
"""
    (run, extras) = run_dag(tiny, airflow_database, dag, RUNS)
    assert run["state"] == "success", run
    (extra,) = extras
    (stored,) = Ledger(tiny.ledger).releases()
    (release,) = extra["dpflow"]["releases"]  # type: ignore[index]
    assert (release["release_id"], release["epsilon"]) == (stored.release_id, "0.5")
