"""The example project under dbt itself, beside Airflow, in the environment that ``make dbt`` builds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import duckdb
import pytest

from dpflow.ledger import Ledger

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / ".venv-dbt" / "bin"
EXAMPLE = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def run(folder: Path, *words: str, fails: bool = False) -> str:
    path = f"{PROGRAMS}:{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which(words[0], path=path) or words[0], *words[1:]], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": path, "DBT_SEND_ANONYMOUS_USAGE_STATS": "0", "NO_COLOR": "1"},
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout


def spent(folder: Path) -> str:
    (row,) = Ledger(folder / "ledger.sqlite").remaining("flights").rows()
    return f"{row['epsilon_spent']}, {row['releases']}" if "releases" in row else str(row)


def read(folder: Path, query: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(folder / "published.duckdb"), read_only=True) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (PROGRAMS / "dbt").exists():
        pytest.fail("there is no environment with dbt; build it and run this test with: make dbt")
    folder = tmp_path_factory.mktemp("project") / "dpflow-dbt"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    run(folder / "example", "python", "load_flights.py")
    run(folder / "example", "dbt", "deps")
    return folder / "example"


def test_these_versions_stand_in_one_environment(project: Path) -> None:
    names = ("dbt-core", "dbt-duckdb", "apache-airflow", "duckdb")
    program = (
        f"import importlib.metadata as m; print([m.version(n) for n in {names}]); import airflow"
    )
    versions = run(project, "python", "-c", program).splitlines()
    assert "['1.12.6', '1.11.1', '3.3.2', '2.0.1']" in versions


def test_only_building_charges_and_only_once(project: Path) -> None:
    """From the first compile to the last full refresh: two models are paid, each once."""
    nothing = spent(project)
    run(project, "dbt", "compile")
    run(project, "dbt", "docs", "generate", "--empty-catalog")
    assert spent(project) == nothing
    run(project, "dbt", "build", "--empty", fails=True)
    assert spent(project) == nothing
    run(project, "dbt", "build")
    paid, rows = spent(project), read(project, "FROM delays ORDER BY ALL")
    assert paid != nothing and len(rows) == 48
    assert len(read(project, "FROM worst_carriers")) == 5
    # Of destinations, whose options stand in its first line.
    requests = [
        one.request
        for one in Ledger(project / "ledger.sqlite").releases_by_name(
            "flights", "sql flights for model.flights_dp.destinations"
        )
    ]
    assert [one["params"]["noise"] for one in requests] == ["laplace"]
    run(project, "dbt", "build")
    run(project, "dbt", "build", "--full-refresh")
    run(project, "dbt", "test")
    run(project, "dbt", "docs", "generate")
    run(project, "dbt", "compile")
    assert (spent(project), read(project, "FROM delays ORDER BY ALL")) == (paid, rows)
    # Beside the answers, nothing of ours stays in dbt's file.
    names = {name for (name,) in read(project, "SELECT table_name FROM information_schema.tables")}
    assert names == {
        *("delays", "delays_latest", "destinations", "destinations_latest", "worst_carriers")
    }
    # The table is read from a file that dbt knows nothing of.
    manifest = json.loads((project / "target" / "manifest.json").read_text())
    assert "source.flights_dp.private.flights" in manifest["sources"]
    assert "private.duckdb" not in (project / "logs" / "dbt.log").read_text()
    run(project, "dbt", "show", "--select", "delays", fails=True)
    assert spent(project) == paid
    # A changed query pays: the ledger is what answers were kept by.
    model = project / "models" / "delays.sql"
    model.write_text(model.read_text().replace("dep_delay > 0", "dep_delay > 15"))
    run(project, "dbt", "build", "--select", "delays")
    assert spent(project) != paid


def test_a_view_of_another_model_is_not_replaced(project: Path) -> None:
    """Of another project, or of somebody: it was replaced, and rows of two models were in one table."""
    run(project, "dbt", "build", "--select", "delays")
    paid, view = spent(project), "CREATE OR REPLACE VIEW delays_latest AS SELECT 42 AS x"
    other = "COMMENT ON VIEW delays_latest IS 'rows of the latest interval of model.other.delays'"
    for statements in (view, f"{view}; {other}"):
        with duckdb.connect(str(project / "published.duckdb")) as connection:
            connection.execute(statements)
        model = project / "models" / "delays.sql"
        kept = model.read_text()
        model.write_text(kept.replace("'0.5'", "'0.6'"))
        output = run(project, "dbt", "build", "--select", "delays", fails=True)
        model.write_text(kept)
        assert "is not of this model" in output and spent(project) == paid
        assert read(project, "FROM delays_latest") == [(42,)]
    with duckdb.connect(str(project / "published.duckdb")) as connection:
        # What a build that was killed leaves goes with the next one.
        connection.execute(
            "DROP VIEW delays_latest; CREATE TABLE delays__dpflow_answer AS SELECT 1"
        )
    run(project, "dbt", "build", "--select", "delays")
    assert len(read(project, "FROM delays_latest")) == 48 and spent(project) == paid
    assert not read(project, "FROM duckdb_tables() WHERE table_name LIKE '%__dpflow_answer%'")


def test_the_example_dag_builds_the_project(project: Path) -> None:
    """The command and the folder of ``dags/visits_dbt.py`` under dbt itself: the catalogue beside the project says who
    pays, answers are in the project's own file, and building again is free.
    """
    text = (ROOT / "dags" / "visits_dbt.py").read_text()
    (command,) = re.findall(r'bash_command="(.*)"', text)
    (folder,) = re.findall(r'cwd="(.*?)"', text)
    rendered = Path(folder.replace("{{ var.value.dbt_project }}", str(project)))
    model = project / "models" / "delays.sql"
    model.write_text(re.sub(r"dep_delay > \d+", "dep_delay > 30", model.read_text()))
    spendings, answers = [spent(project)], []
    for _ in range(2):
        run(rendered, "bash", "-c", command)
        spendings.append(spent(project))
        answers.append(read(project, "FROM delays ORDER BY ALL"))
    assert spendings[0] != spendings[1] == spendings[2]
    assert len(answers[0]) == 48 and answers[0] == answers[1]
