"""The same through Airflow's own task runner (`dag.test()` on a throw-away database), in a process
of its own.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from airflow_runs import run_dag
from page_runner import examples

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

DAG_FILE = """
from datetime import datetime, timedelta
from airflow.sdk import DAG
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import BranchPythonOperator, PythonOperator
from dpflow.airflow import BudgetBranchOperator, ReleaseOperator

def wanted(name, epsilon):
    return {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": epsilon}}

with DAG("d", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), start_date=datetime(2020, 1, 1), catchup=False,
         default_args={"retries": 2, "retry_delay": timedelta(0)}):
    branch = BudgetBranchOperator(task_id="branch", otherwise="tell")
    tell = EmptyOperator(task_id="tell")
    mapped = ReleaseOperator.partial(task_id="release", blocks="{{ data_interval_start | ds }}").expand(
        release=[wanted("a", "0.2"), wanted("b", "0.4")])
    branch >> [mapped, tell]
    BranchPythonOperator(task_id="other_branch", python_callable=list) >> PythonOperator.partial(
        task_id="other", python_callable=print).expand(op_args=[["a"], ["b"]])
"""
RUNS = """
run(2)                                   # the first try of one task fails after its draw
run(2)                                   # cleared and run again
with create_session() as session:
    session.query(DagRun).delete()
run(2)                                   # deleted, and triggered again
run(3)                                   # another interval
os.environ["AIRFLOW_CONN_DPFLOW_LEDGER"] = json.dumps({"conn_type": "dpflow_ledger", "host": str(folder / "poor.sqlite")})
run(4)                                   # a ledger that can pay one of the two: the branch takes the other way
run(2)                                   # the same of an interval that the first ledger has paid
"""


def test_airflow_itself_pays_once(tiny: Tiny, airflow_database: Path) -> None:
    """Retried after a draw, cleared, deleted and run again: one charge per release and interval; a
    branch that really skips, where Airflow's own branch does.
    """
    from dpflow.tables.access.declarations import load_table

    poor = Ledger(tiny.folder / "poor.sqlite", create=True)
    poor.grant(
        "visits",
        "0.5",
        0,
        filter="basic",
        table=load_table(tiny.folder / "visits.yml"),
        principal="owner",
    )
    seen = run_dag(
        tiny,
        airflow_database,
        DAG_FILE,
        RUNS,
        DPFLOW_FAULT=f"draw.after:fail:{tiny.folder / 'fired'}",
    )
    states = [
        {(task, index): (state, tries) for task, index, state, tries in run["tasks"]}
        for run in seen
    ]
    assert (tiny.folder / "fired").exists() and max(tries for _, tries in states[0].values()) == 2
    for number in range(4):
        assert states[number]["release", 0][0] == states[number]["release", 1][0] == "success", (
            seen[number]
        )
        assert states[number]["tell", -1][0] == "skipped"
    labels = [seen[0]["labels"][f"release {index}"] for index in (0, 1)]
    assert labels == ["a 2020-01-01", "b 2020-01-01"]
    assert seen[3]["labels"]["release 1"] == "b 2020-01-02"
    # Airflow 3.1 runs mapped tasks that a branch skipped, behind its own branch as behind ours. Its
    # NotPreviouslySkippedDep looks for the branch's XCom under the mapped task's index.
    skips = metadata.version("apache-airflow-core") >= "3.2"
    for run in states:
        assert sorted(state for (task, _), (state, _) in run.items() if task == "other") == (
            ["skipped"] * 2 if skips else ["success"] * 2
        )
    # There the ledger still pays what fits, and refuses the rest.
    unpaid = ["skipped", "skipped"] if skips else ["failed", "success"]
    for number in (4, 5):
        assert (states[number]["tell", -1][0], states[number]["branch", -1][0]) == (
            "success",
            "success",
        ), seen[number]
        assert (
            sorted(state for (task, _), (state, _) in states[number].items() if task == "release")
            == unpaid
        ), seen[number]
    ledger = Ledger(tiny.ledger)
    assert {row["block"]: row["epsilon_spent"] for row in ledger.remaining("visits").rows()} == {
        "2020-01-01": "0.6",
        "2020-01-02": "0.6",
    }
    assert sorted(stored.attempts for stored in ledger.releases()) == [1, 1, 1, 2]
    assert [entry.kind for entry in ledger.history()].count("settle") == 4 and ledger.verify().ok
    assert len(Ledger(tiny.folder / "poor.sqlite").releases()) == (0 if skips else 2)


def test_a_search_upstream_gives_the_next_task_its_bounds(
    tiny: Tiny, airflow_database: Path
) -> None:
    """The DAG of docs/how-to/choose-a-mechanism.md: each run clamps to what its own search found,
    and run again costs nothing.
    """
    page = Path(__file__).parents[2] / "docs" / "how-to" / "choose-a-mechanism.md"
    (text,) = (one.text for one in examples(page) if one.title == "dags/ages.py")
    try:
        from airflow.sdk import CronDataIntervalTimetable  # noqa: F401
    except ImportError:  # Airflow 3.1 has it elsewhere, as the how-to page on scheduling says
        text = text.replace("DAG, CronDataIntervalTimetable", "DAG").replace(
            "from dpflow.airflow",
            "from airflow.timetables.interval import CronDataIntervalTimetable\nfrom dpflow.airflow",
            1,
        )
    sure = "from dpflow.mechanisms import bounds\nbounds.FAILURE = 1e-12  # no empty bin is taken\n"
    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' + CAST(i % 2 AS INTEGER) AS day, "
        "CASE WHEN i % 2 = 0 THEN 20 + i % 40 ELSE 1200 + i % 700 END AS age FROM range(8000) t(i)"
    )
    tiny.declare(columns={"age": {}})
    seen = run_dag(
        tiny,
        airflow_database,
        sure + text.replace('"ages",', '"d",'),
        "run(2)\nrun(3)\nrun(2)",
    )
    assert [run["state"] for run in seen] == ["success"] * 3, seen
    ledger = Ledger(tiny.ledger)
    assert {row["epsilon_spent"] for row in ledger.remaining("visits").rows()} == {"0.6"}
    found = {(one.request["name"], *one.request["blocks"]): one.result for one in ledger.releases()}
    assert len(found) == 4
    for day, lower, upper in (("2020-01-01", 16, 64), ("2020-01-02", 1024, 2048)):
        search, total = found["age range", day], found["total age", day]
        assert search is not None and total is not None
        assert search["document"]["columns"]["age"] == {"lower": lower, "upper": upper}
        assert len(total["rows"]) == 1


ANALYST = """
from pathlib import Path

Climber = None  # nobody climbs here

def fit_candidates(training, models):
    kinds = {"good": ["0"], "bad": [str(15 + n / 2) for n in range(14)], "late": ["23"]}
    claims = kinds[(Path(__file__).parent / "kind").read_text()]
    return [{"name": c, "estimator": "column_mean", "features": ["hour"], "claim": c} for c in claims]

def write_notebook(folder, run, submissions, verdicts):
    assert len(submissions) == len(verdicts)
"""


def test_a_gates_verdicts_branch_the_example_dag(tiny: Tiny, airflow_database: Path) -> None:
    """Yes, no and exhausted each run their tasks of `flights_model` and skip the others; run again,
    the same way and for nothing.
    """
    from dpflow.tables.access.declarations import load_table

    dags, tables = Path(__file__).parents[2] / "dags", tiny.folder / "tables"
    tables.mkdir()
    for name in ("flights_training", "flights_holdout"):
        declared = yaml.safe_load((dags / "tables" / f"{name}.yml").read_text()) | {
            "database": "../visits.duckdb"
        }
        declared["columns"] = {"hour": declared["columns"]["hour"]}
        (tables / f"{name}.yml").write_text(yaml.safe_dump(declared))
    rows = "SELECT 'p' || i AS tailnum, i % 24 AS hour FROM range(4000) t(i)"
    tiny.fill(f"CREATE TABLE flights_holdout AS {rows}; CREATE TABLE flights_training AS {rows}")
    holdout = load_table(tables / "flights_holdout.yml")
    Ledger(tiny.ledger).grant(
        "flights_holdout", 2, 0, filter="basic", table=holdout, principal="owner"
    )
    (tiny.folder / "analyst.py").write_text(ANALYST)
    text = (dags / "flights_model.py").read_text().replace('"flights_model",', '"d",')
    text = text.replace('"metric": "accuracy"', '"metric": "column_mean"')
    submitted = (("good", 2), ("bad", 3), ("late", 4), ("good", 2))
    runs = [f"(folder / 'kind').write_text('{kind}'); run({day})" for kind, day in submitted]
    seen = run_dag(
        tiny,
        airflow_database,
        text,
        "\n".join(runs),
        AIRFLOW_VAR_MLFLOW_URI=f"sqlite:///{tiny.folder / 'mlflow.db'}",
    )
    taken = [
        {task for task, _, state, _ in run["tasks"] if state == "success"} - {"train", "gate"}
        for run in seen
    ]
    expected: list[set[str]] = [{"deploy"}, {"rethink"}, {"collect_fresh_data"}, {"deploy"}]
    assert taken == [branch | {"note"} for branch in expected], seen
    assert len(Ledger(tiny.ledger).releases()) == 1 and Ledger(tiny.ledger).verify().ok


FAILING_DAG = """
from datetime import datetime
from airflow.sdk import DAG
from dpflow.airflow import DataContractOperator, ReleaseOperator

with DAG("d", schedule=None, start_date=datetime(2020, 1, 1), catchup=False):
    DataContractOperator(task_id="contract", table="visits.yml", blocks="{{ '2020-01-01' }}")
    ReleaseOperator(task_id="release", release={"name": "a", "mechanism": "sum", "table": "visits.yml", "scope": "trusted",
        "blocks": ["2020-01-01"], "params": {"column": "age", "epsilon": "0.2"}})
    ReleaseOperator(task_id="refused", release={"name": "b", "mechanism": "histogram", "table": "visits.yml", "scope": "trusted",
        "blocks": ["2020-01-01"], "params": {"by": "clinic", "epsilon": "0.2"}})
"""


@pytest.mark.slow
def test_no_row_is_in_a_tasks_log(tiny: Tiny, airflow_database: Path) -> None:
    """A relation whose own SQL fails on every row, with DuckDB's text that quotes it: neither the
    logs nor the database of Airflow, with XComs and rendered templates, hold a word of it.
    """
    from dpflow.tables.access.declarations import load_table

    secret = "QX7canary7XQ"
    tiny.declare(trusted_sql=["visits"])
    tiny.fill(
        f"""CREATE TABLE base AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, 'Oslo' AS city,
            '{secret}' AS clinic, '{secret}' || i AS note FROM range(80) t(i);
            CREATE VIEW visits AS SELECT *, CAST(note AS INTEGER) AS age FROM base"""
    )
    trusting = load_table(tiny.folder / "visits.yml")
    Ledger(tiny.ledger).grant("trusted", 1, 0, filter="basic", table=trusting, principal="owner")
    output: list[str] = []
    (run,) = run_dag(tiny, airflow_database, FAILING_DAG, "run(2)\n", output)
    states = {task: state for task, _, state, _ in run["tasks"]}
    # What fails on rows is the result none, and stands; the contract cannot be checked.
    assert states == {"contract": "failed", "release": "success", "refused": "failed"}
    assert "TableUnreadable: the contract of table" in "".join(output)
    places = [path for path in (tiny.folder / "airflow").rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in places)
    texts = [*output, tiny.ledger.read_bytes().decode("latin-1")]
    texts += [path.read_bytes().decode("latin-1") for path in places]
    assert not any(word in text for text in texts for word in (secret, "Conversion Error"))
