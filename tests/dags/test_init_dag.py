"""`dpflow init --dag` writes a DAG over the user's own table that runs as it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from airflow_runs import airflow_database, run_dag
from page_runner import inside, run_main

from dpflow.ledger import Ledger

__all__ = ["airflow_database"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a private file of one table."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, 'Oslo' AS city FROM range(40) t(i)"
        )
    return tmp_path


def init(folder: Path, *words: str) -> tuple[int, str, str]:
    options = ("--unit", "person", "--rows", "1", "--epsilon", "1", "--keys", "city=Oslo,Rome")
    with inside(folder):
        return run_main(["init", "visits.duckdb", *options, "--dag", *words])


@pytest.mark.parametrize("block", ["day", None])
def test_the_written_dag_runs(folder: Path, airflow_database: Path, block: str | None) -> None:
    """With a budget for each day the run's interval names the day; else a run is one release."""
    status, output, errors = init(folder, *(("--block", block) if block else ()))
    assert status == 0 and "visits_dag.py" in output, errors
    written = (folder / "visits_dag.py").read_text()
    assert "max_active_runs=1,\n" in written
    text = written.replace("2026, 1, 1", "2020, 1, 1")
    text = text.replace(f"'visits{'_daily' if block else ''}',\n    schedule", "'d',\n    schedule")
    world = SimpleNamespace(folder=folder, ledger=folder / "ledger.sqlite")
    (seen,) = run_dag(world, airflow_database, text, "run(3)\n")
    states = {task: state for task, _, state, _ in seen["tasks"]}
    assert states == dict.fromkeys(("budget", "contract", "release"), "success"), seen
    (row,) = Ledger(folder / "ledger.sqlite").remaining("visits").rows()
    assert row["epsilon_spent"] == "0.1" and (row["block"] or None) == (block and "2020-01-01")


@pytest.mark.parametrize(
    ("kind", "block"), [("VARCHAR", "2020-W01"), ("TIMESTAMP", "2020-01-01 05:00:00"), ("BIGINT", "7")]
)  # fmt: skip
def test_blocks_that_are_no_days_are_named_by_hand(
    folder: Path, airflow_database: Path, kind: str, block: str
) -> None:
    """No interval is such a block: a daily run would pay for blocks without rows, and end well."""
    with duckdb.connect(str(folder / "visits.duckdb")) as connection:
        connection.execute(f"ALTER TABLE visits ADD COLUMN part {kind} DEFAULT '{block}'")
    status, output, errors = init(folder, "--block", "part", "--column", "city")
    assert status == 0, errors
    text = (folder / "visits_dag.py").read_text()
    assert "schedule=None" in text and "interval" not in text
    world = SimpleNamespace(folder=folder, ledger=folder / "ledger.sqlite")
    runs = f"""
done = dag.test(run_conf={{"block": {block!r}}})
seen.append({{"state": str(done.state)}})
"""
    (seen,) = run_dag(world, airflow_database, text.replace("'visits',\n    sched", "'d',\n    sched"), runs)  # fmt: skip
    assert seen == {"state": "success"}
    (row,) = Ledger(folder / "ledger.sqlite").remaining("visits").rows()
    assert (row["block"], row["epsilon_spent"]) == (block, "0.1")


def test_a_file_of_that_name_stays(folder: Path) -> None:
    """Nothing is written over."""
    (folder / "visits_dag.py").write_text("mine")
    status, _, errors = init(folder)
    assert status == 1 and "leave out --dag" in errors
    assert {path.name for path in folder.iterdir()} == {"visits.duckdb", "visits_dag.py"}
