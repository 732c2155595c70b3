"""OpenLineage through Airflow's provider: what its events say of releases, and what none of them may say."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from airflow_runs import run_dag
from airflow_tasks import context, make_release

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

pytest.importorskip("airflow.providers.openlineage")
pytestmark = pytest.mark.usefixtures("airflow_home")


def extract(operator: Any, state: str = "success") -> Any:
    """As the provider's listener does when a task has ended."""
    from airflow.providers.openlineage.extractors.manager import ExtractorManager
    from airflow.utils.state import TaskInstanceState

    run = SimpleNamespace(run_id="r")
    found = ExtractorManager().extract_metadata(run, operator, TaskInstanceState(state), None)
    assert found is not None
    return found


def test_the_provider_extracts_tables_and_costs(tiny: Tiny) -> None:
    """The declared table in, the published one out; a second try tells of a replay, and of one release."""
    from dpflow.airflow import ReleaseOperator

    publish = {"database": "out.duckdb", "table": "daily"}
    operator = ReleaseOperator(task_id="t", release=make_release(publish=publish))
    assert not extract(operator, "running").run_facets, "nothing is paid before a task begins"
    for number, replayed in enumerate([False, True]):
        operator.pre_execute({})
        operator.execute(context(tiny, try_number=number + 1))
        lineage = extract(operator)
        (source,), (output,) = lineage.inputs, lineage.outputs
        assert (source.namespace, source.name) == ("dpflow", "visits")
        assert len(source.facets["dpflow_declaration"].declaration_digest) == 64
        assert output.namespace == f"duckdb://{tiny.folder / 'out.duckdb'}"
        assert output.name == "out.main.daily"
        (cost,) = lineage.run_facets["dpflow_privacyCost"].releases
        assert (cost["scope"], cost["epsilon"], cost["replayed"]) == ("visits", "0.5", replayed)
    (stored,) = Ledger(tiny.ledger).releases()
    (release,) = lineage.run_facets["dpflow_privacyCost"].releases
    assert (release["release_id"], release["epsilon"]) == (stored.release_id, "0.5")


def test_contracts_and_loads_have_datasets(tiny: Tiny) -> None:
    """A contract's checks are assertions on its table; a load has a source, without its folder or host, and the table."""
    from dpflow.airflow import DataContractOperator, LoadOperator

    checks = [{"name": "old", "check": "quantile", "column": "age", "p": "0.5", "at_most": 1}]
    contract = {
        "table": "visits.yml",
        "mode": "metered",
        "scope": "visits",
        "epsilon": "0.9",
        "checks": checks,
    }
    operator = DataContractOperator(task_id="c", contract=contract, blocks="2020-01-01")
    with pytest.raises(Exception, match="ContractViolated"):
        operator.execute(context(tiny, xcom_push=lambda **_: None))
    (source,) = extract(operator, "failed").inputs
    assert {"person", "city", "age"} <= {field.name for field in source.facets["schema"].fields}
    (one,) = source.inputFacets["dataQualityAssertions"].assertions
    assert (one.assertion, one.column, one.success) == ("quantile", "age", False)
    assert one.description == "quantile 1/2 of age at most 1, of rows with a unit"
    assert one.actual is None
    (tiny.folder / "day.csv").write_text("person\np1\n")
    load = LoadOperator(
        task_id="l", source="day.csv", into="raw.duckdb:raw", columns="person VARCHAR"
    )
    load.execute(context(tiny))
    lineage = extract(load)
    assert [(d.namespace, d.name) for d in lineage.inputs] == [("file", "day.csv")]
    assert [(d.namespace, d.name) for d in lineage.outputs] == [("dpflow", "raw")]


def test_a_changed_declaration_has_another_digest(tiny: Tiny) -> None:
    """And one that only moved has the same."""
    from dpflow.airflow.lineage import make_lineage
    from dpflow.airflow.release_note import ReleaseNote
    from dpflow.tables.access.declarations import load_table

    table = load_table("visits.yml", tiny.folder)
    moved = table.model_copy(update={"database": tiny.folder / "elsewhere.duckdb"})
    other = table.model_copy(update={"name": "others"})
    told = [make_lineage([ReleaseNote((t,), {})]).inputs[0] for t in (table, moved, other)]
    digests = [dataset.facets["dpflow_declaration"].declaration_digest for dataset in told]
    assert digests[0] == digests[1] != digests[2]


def test_a_failed_task_tells_only_what_was_released(tiny: Tiny) -> None:
    """A refused release costs nothing, so nothing is told of it."""
    from dpflow.airflow import ReleaseOperator

    asked = make_release(params={"epsilon": "1000"})
    operator = ReleaseOperator(task_id="t", release=asked)
    with pytest.raises(Exception, match="BudgetExceeded"):
        operator.execute(context(tiny))
    lineage = extract(operator, "failed")
    assert not lineage.inputs and not lineage.run_facets


def test_lineage_that_fails_fails_no_task(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    """Its kind is logged, its words are not: they may be about anything."""
    from dpflow.airflow import ReleaseOperator

    class Broken:
        def stored_form(self) -> Any:
            raise ValueError("CANARY")

    operator = ReleaseOperator(task_id="t", release=make_release())
    operator.note_release([Broken()], {})  # type: ignore[list-item]
    lineage = extract(operator)
    assert not lineage.inputs and not lineage.run_facets
    assert "no lineage is told: ValueError" in caplog.text and "CANARY" not in caplog.text


DAG = """
from datetime import datetime
from airflow.sdk import DAG
from dpflow.airflow import LoadOperator, ReleaseOperator, SessionOperator, SqlReleaseOperator

with DAG("d", schedule=None, start_date=datetime(2020, 1, 1), catchup=False):
    ReleaseOperator(task_id="daily", release={daily!r})
    SqlReleaseOperator(
        task_id="sql", sql="SELECT COUNT(*) FROM visits WHERE day = '2020-01-02'", epsilon="0.25", scope="visits",
        tables=["visits.yml"],
    )
    ReleaseOperator(task_id="refused", release={refused!r})
    ReleaseOperator(task_id="lost", release={lost!r})
    LoadOperator(task_id="load", source="raw.csv", into="raw.duckdb:raw", columns="age BIGINT")
    LoadOperator(task_id="server", source_table="raw", into="raw.duckdb:raw", postgres_conn_id="other")
"""


def test_no_value_noise_or_credential_reaches_an_event(tiny: Tiny, airflow_database: Path) -> None:
    """Events as the provider writes them under Airflow's task runner, all keys and texts searched."""
    import jsonschema

    import dpflow

    publish = {"database": "out.duckdb", "table": "daily"}
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("UPDATE visits SET note = 'CANARY-ROW', person = 'CANARY-' || person")
    # Sums of nine digits and more: a number in an event cannot be one by chance.
    declared = yaml.safe_load(tiny.declare().read_text())
    wide = {"lower": 0, "upper": 2 * 10**14, "step": 1}
    tiny.declare(columns=declared["columns"] | {"age": wide})
    params = {"epsilon": "0.5", "column": "age"}
    daily = make_release(name="daily", mechanism="sum", params=params, publish=publish)
    refused = make_release(name="refused", params={"epsilon": "1000"})
    lost = declared | {"name": "lost", "database": "private-place/visits.duckdb"}
    (tiny.folder / "lost.yml").write_text(yaml.safe_dump(lost))
    (tiny.folder / "raw.csv").write_text("age\n1\nCANARY-CELL\n")
    file = tiny.folder / "events.json"
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    (_,) = run_dag(
        tiny,
        airflow_database,
        DAG.format(daily=daily, refused=refused, lost=make_release(name="lost", table="lost.yml")),
        "run(1)\n",
        AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps(transport),
        AIRFLOW__OPENLINEAGE__INCLUDE_FULL_TASK_INFO="True",
        AIRFLOW_CONN_OTHER=json.dumps(
            {
                "conn_type": "postgres",
                "host": "127.0.0.1",
                "port": 1,
                "login": "ann",
                "password": "CANARY-PASSWORD",
            }
        ),
        CANARY_VARIABLE="CANARY-ENVIRONMENT",
    )
    events = [json.loads(line) for line in file.read_text().splitlines()]
    ended = {
        event["job"]["name"].removeprefix("d."): event
        for event in events
        if event["eventType"] in ("COMPLETE", "FAIL") and "." in event["job"]["name"]
    }
    assert set(ended) == {"daily", "sql", "refused", "lost", "load", "server"}
    (told,) = ended["daily"]["run"]["facets"]["dpflow_privacyCost"]["releases"]
    assert (told["scope"], told["epsilon"], told["delta"]) == ("visits", "0.5", "0")
    assert [d["name"] for d in ended["daily"]["inputs"]] == ["visits"]
    assert [d["name"] for d in ended["daily"]["outputs"]] == ["out.main.daily"]
    (sql,) = ended["sql"]["run"]["facets"]["dpflow_privacyCost"]["releases"]
    assert sql["epsilon"] == "0.25" and ended["sql"]["inputs"][0]["name"] == "visits"
    assert "dpflow_privacyCost" not in ended["refused"]["run"]["facets"]
    checked = set()
    for event in ended.values():
        facets = [*event["run"]["facets"].items()]
        facets += [item for dataset in event["inputs"] for item in dataset["facets"].items()]
        for facet in (facet for name, facet in facets if name.startswith("dpflow_")):
            # Each of our own against the schema that it names: a file of this repository.
            place, _, pointer = (
                facet["_schemaURL"].removeprefix("urn:dpflow:").partition("#/$defs/")
            )
            schema = json.loads((Path(dpflow.__file__).parents[1] / place).read_text())
            assert schema["$id"] == f"urn:dpflow:{place}" and "-1-0-0" in place
            jsonschema.validate(facet, schema["$defs"][pointer])
            checked.add(pointer)
    assert checked == {"DeclarationDatasetFacet", "PrivacyCostRunFacet"}
    text = file.read_text()
    # What Airflow adds is its log's line, and that says what to mend and where.
    said = {name: event["run"]["facets"].pop("errorMessage", {}) for name, event in ended.items()}
    assert "private-place" in said["lost"]["message"] and "raw.csv" in said["load"]["message"]
    assert "127.0.0.1:1" in said["server"]["message"]
    assert "private-place" not in json.dumps(ended)
    full = ended["daily"]["run"]["facets"]["airflow"]["task"]
    assert full["release"]["name"] == "daily", "all attributes are told"
    assert "'" not in full["_release_notes"], "private attributes, too: so they say nothing"
    with duckdb.connect(str(tiny.folder / "out.duckdb")) as connection:
        released = connection.execute("SELECT raw_value FROM daily").fetchall()
    # Noise of scale 8e14 is below once in 8 million runs; what is shorter may be in a text by chance.
    assert released and all(abs(int(value)) >= 10**8 for (value,) in released)
    for word in ("CANARY", str(tiny.database), *(str(abs(int(value))) for (value,) in released)):
        assert word not in text
    assert set(told) == {
        "release_id", "name", "mechanism", "scope", "blocks", "epsilon", "delta", "protects", "replayed", "published",
    }, "a new field must be public"  # fmt: skip
