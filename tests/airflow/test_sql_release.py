"""`SqlReleaseOperator`: one draw a run, retries for nothing, no number in what it returns."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from sql_world import World


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    (tmp_path / "dpflow.yml").write_text(
        "ledger: ledger.sqlite\nscope: visits\ntables: {visits: visits.yml}\noutput: {database: out.duckdb}\n"
    )
    return made


def context(folder: Path, day: int = 1) -> dict[str, Any]:
    run = f"scheduled__{day}"
    return {
        "dag": SimpleNamespace(fileloc=str(folder / "dag.py")),
        "ti": SimpleNamespace(dag_id="d", task_id="t", run_id=run, map_index=-1),
        "dag_run": SimpleNamespace(partition_key=None),
        "logical_date": dt.datetime(2026, 1, day, tzinfo=dt.UTC),
    }


def operator(**changes: Any) -> Any:
    from dpflow.airflow import SqlReleaseOperator

    text = "SELECT city, COUNT(*) AS n, MEDIAN(age) AS middle FROM visits GROUP BY city"
    options = {"sql": text, "epsilon": "1", "output_table": "cities"}
    return SqlReleaseOperator(task_id="t", **(options | changes))


def test_a_run_pays_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry is free, another run is a draw of its own; the answer is a typed table."""
    monkeypatch.setattr(
        "dpflow.airflow.sql_release.open_ledger", lambda conn_id, folder: world.ledger
    )
    first = operator().execute(context(world.folder))
    assert first["rows"] == 3 and world.spent() == "1" and first["published"] == "out.duckdb:cities"
    again = operator().execute(context(world.folder))
    assert world.spent() == "1" and all(one["stored"] for one in again["releases"])
    assert "values" not in str(first) and set(first) == {
        "releases",
        "protects",
        "rows",
        "published",
    }
    second = operator().execute(context(world.folder, day=2))
    assert world.spent() == "2"
    with duckdb.connect(str(world.folder / "out.duckdb"), read_only=True) as connection:
        columns = connection.execute(
            "SELECT column_name, column_type FROM (DESCRIBE cities)"
        ).fetchall()
        assert len(connection.execute("SELECT * FROM cities").fetchall()) == 6
        assert len(connection.execute("SELECT * FROM cities_latest").fetchall()) == 3
        listed = connection.execute("SELECT DISTINCT releases FROM cities").fetchall()
    paid = [",".join(one["release_id"] for one in day["releases"]) for day in (first, second)]
    assert sorted(ids for (ids,) in listed) == sorted(paid)
    assert columns == [
        ("city", "VARCHAR"),
        ("n", "BIGINT"),
        ("n_noise_low", "DOUBLE"),
        ("n_noise_high", "DOUBLE"),
        ("n_low", "DOUBLE"),
        ("n_high", "DOUBLE"),
        ("n_raw_value", "DOUBLE"),
        ("middle", "BIGINT"),
        # No rule covers a median, and what stands beside a number is the same for all.
        *(
            (f"middle_{end}", "DOUBLE")
            for end in ("noise_low", "noise_high", "low", "high", "raw_value")
        ),
        ("block", "VARCHAR"),
        ("run", "VARCHAR"),
        ("interval_start", "TIMESTAMP"),
        ("released_at", "TIMESTAMP"),
        ("releases", "VARCHAR"),
    ]


def test_a_day_without_a_value_keeps_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns and types are the query's, whatever a day's answer holds, also after a clear of an old day; and a query of
    other columns is refused before its charge.
    """
    from airflow_names import AirflowFailException

    monkeypatch.setattr(
        "dpflow.airflow.sql_release.open_ledger", lambda conn_id, folder: world.ledger
    )
    # The same query to what is published, but for who is in it.
    kept = (
        "SELECT city, COUNT(*) AS n, MEDIAN(age) AS middle FROM visits GROUP BY city HAVING n > {}"
    )
    some, none = kept.format(-1000), kept.format(10**9)
    shapes = []
    for day, text in ((1, some), (2, none), (3, some), (2, none)):
        operator(sql=text).execute(context(world.folder, day))
        with duckdb.connect(str(world.folder / "out.duckdb"), read_only=True) as connection:
            shapes.append(connection.execute("DESCRIBE cities").fetchall())
    with duckdb.connect(str(world.folder / "out.duckdb"), read_only=True) as connection:
        counted = connection.execute("SELECT day(interval_start), count(*) FROM cities GROUP BY 1")
        assert sorted(counted.fetchall()) == [(1, 3), (3, 3)]
        latest = connection.execute("SELECT DISTINCT day(interval_start) FROM cities_latest")
        assert latest.fetchall() == [(3,)]
    assert all(shape == shapes[0] for shape in shapes) and world.spent() == "3"
    with pytest.raises(AirflowFailException, match="other columns as 'cities'.*nothing was"):
        operator(sql=some.replace("AS middle", "AS half")).execute(context(world.folder, 4))
    assert world.spent() == "3"


def test_each_mapped_answer_has_a_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As each ordinal has; another task is refused before its charge, in whatever run. Where the name was taken only after
    it, the answer is free under another one.
    """
    from airflow_names import AirflowFailException

    monkeypatch.setattr(
        "dpflow.airflow.sql_release.open_ledger", lambda conn_id, folder: world.ledger
    )
    mapped = {"sql": "SELECT COUNT(*) AS n FROM visits WHERE city = $city"}
    for index, city in enumerate(("Oslo", "Rome")):
        place = context(world.folder)
        place["ti"].map_index = index
        for _ in range(2):
            operator(**mapped, parameters={"city": city}).execute(place)
    operator(**mapped, parameters={"city": "Rome"}, ordinal=1).execute(context(world.folder))
    read = "SELECT run, CAST(interval_start AS VARCHAR) FROM cities ORDER BY 1"
    with duckdb.connect(str(world.folder / "out.duckdb"), read_only=True) as connection:
        day = "2026-01-01T00:00:00+00:00"
        assert connection.execute(read).fetchall() == [
            (f"{place}/{day}", "2026-01-01 00:00:00") for place in ("map 0", "map 1", "ordinal 1")
        ]
    operator(**mapped, parameters={"city": "Rome"}).execute(context(world.folder))
    other = context(world.folder, day=2)
    other["ti"].task_id = "u"
    asked = mapped | {"parameters": {"city": "Oslo"}}
    with pytest.raises(
        AirflowFailException, match="answers of d.t as 'cities'.*nothing was charged"
    ):
        operator(**asked).execute(other)
    assert world.spent() == "3"
    with monkeypatch.context() as patch:
        patch.setattr(
            "dpflow.analyst_sql.answer.publish_answer.check_name",
            lambda *_: world.folder / "out.duckdb",
        )
        with pytest.raises(AirflowFailException, match="is stored, and free under another name"):
            operator(**asked).execute(other)
    assert operator(**asked, output_table="of_u").execute(other)["published"] == "out.duckdb:of_u"
    assert world.spent() == "4"


def test_a_changed_retry_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for every release: the same run asks for something else."""
    from airflow_names import AirflowFailException

    monkeypatch.setattr(
        "dpflow.airflow.sql_release.open_ledger", lambda conn_id, folder: world.ledger
    )
    operator().execute(context(world.folder))
    with pytest.raises(AirflowFailException, match="RetryConflict"):
        operator(epsilon="2").execute(context(world.folder))
    with pytest.raises(AirflowFailException, match="SqlRefused"):
        operator(sql="SELECT * FROM visits").execute(context(world.folder))
    with pytest.raises(AirflowFailException, match="no name of a table"):
        operator(output_table="a b").execute(context(world.folder, day=3))
    assert world.spent() == "1"


def test_explain_pays_for_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task answers; who asks for a plan is told so before a charge, and EXPLAIN ANALYZE answers."""
    from airflow_names import AirflowFailException

    monkeypatch.setattr(
        "dpflow.airflow.sql_release.open_ledger", lambda conn_id, folder: world.ledger
    )
    with pytest.raises(AirflowFailException, match="EXPLAIN"):
        operator(sql="EXPLAIN SELECT COUNT(*) FROM visits").execute(context(world.folder))
    with pytest.raises(AirflowFailException, match="each run draws for itself"):
        operator(sql="-- dp: revision=2\nSELECT COUNT(*) FROM visits").execute(
            context(world.folder)
        )
    with pytest.raises(AirflowFailException, match="ask for the sum by ReleaseOperator"):
        operator(sql="-- dp: bounds=look\nSELECT SUM(age) FROM visits").execute(
            context(world.folder)
        )
    assert world.spent() == "0"
    analyze = operator(sql="EXPLAIN ANALYZE SELECT COUNT(*) FROM visits", output_table=None)
    assert analyze.execute(context(world.folder))["rows"] == 1 and world.spent() == "1"


def test_fields_are_templated(tmp_path: Path) -> None:
    """Files by their extension, and hostile values as parameters only."""
    from dpflow.airflow import SqlReleaseOperator

    assert SqlReleaseOperator.template_ext == (".sql",)
    assert {"sql", "parameters", "blocks", "plan_only"} == set(SqlReleaseOperator.template_fields)
    task = operator(
        sql="SELECT COUNT(*) FROM visits WHERE city = $city", parameters={"city": "{{ x }}"}
    )
    task.render_template_fields({"x": "a' OR TRUE; DROP TABLE visits --"})
    assert task.parameters == {"city": "a' OR TRUE; DROP TABLE visits --"}


def test_another_table_is_never_replaced(world: World) -> None:
    """Only what is an answer of a query gives way to the next one."""
    from dpflow.errors import TableUnreadable
    from dpflow.tables.public.named_tables import AnswerRun, publish_view

    with duckdb.connect(str(world.folder / "out.duckdb")) as connection:
        connection.execute("CREATE TABLE Cities AS SELECT 1 AS mine")
    with pytest.raises(TableUnreadable, match="another name"):
        publish_view(world.folder / "out.duckdb", "cities", [("n", "BIGINT", [1])], AnswerRun())
    for number in (1, 2):
        publish_view(
            world.folder / "out.duckdb",
            "ours",
            [("Größe", "BIGINT", [number]), ("b", "DATE", [None])],
            AnswerRun(),
        )
    with duckdb.connect(str(world.folder / "out.duckdb"), read_only=True) as connection:
        assert connection.execute('SELECT "Größe", b FROM ours').fetchall() == [(2, None)]
        views = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal")
        assert sorted(views.fetchall()) == [("ours",), ("ours_latest",)]
        assert connection.execute("FROM Cities").fetchall() == [(1,)]


def test_a_clear_of_an_older_day_rolls_nothing_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run has rows of its own, and the latest answer is that of the latest interval: after a clear
    of day 1, and a backfill of a day that was never run and is paid last.
    """
    monkeypatch.setattr(
        "dpflow.airflow.sql_release.open_ledger", lambda conn_id, folder: world.ledger
    )

    def latest() -> Any:
        with duckdb.connect(str(world.folder / "out.duckdb"), read_only=True) as connection:
            days = "SELECT DISTINCT CAST(interval_start AS DATE) FROM cities"
            return (
                sorted(day.day for (day,) in connection.execute(days).fetchall()),
                connection.execute("FROM cities_latest ORDER BY ALL").fetchall(),
            )

    for day in (2, 3):
        operator().execute(context(world.folder, day))
    before = latest()
    assert before[0] == [2, 3] and {row[-3].day for row in before[1]} == {3}
    operator().execute(context(world.folder, day=2))
    assert latest() == before and world.spent() == "2"
    operator().execute(context(world.folder, day=1))
    assert latest() == ([1, 2, 3], before[1]) and world.spent() == "3"


def test_a_query_says_what_it_paid(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each release, with its cost and never a number of the answer; the task links to their receipts."""
    lines: list[str] = []
    task, key = operator(), SimpleNamespace(dag_id="d", run_id="r", task_id="t")
    assert [link.get_link(task, ti_key=key) for link in task.operator_extra_links][0] == ""
    monkeypatch.setattr(
        "dpflow.airflow.sql_release.open_ledger", lambda conn_id, folder: world.ledger
    )
    monkeypatch.setattr(
        type(task),
        "log",
        SimpleNamespace(info=lambda text, *parts: lines.append(text % parts), warning=print),
    )
    task.execute(context(world.folder))
    asks = [line.partition("(")[2] for line in lines[:2]]
    assert asks == [
        "aggregates): asks scope visits for epsilon 0.5, delta 0",
        "quantiles): asks scope visits for epsilon 0.5, delta 0",
    ]
    assert [line.partition("; release")[0] for line in lines[2:4]] == [
        "aggregates: charged epsilon 0.5, delta 0 to scope visits",
        "quantiles: charged epsilon 0.5, delta 0 to scope visits",
    ]
    assert lines[4] == "3 rows; published in out.duckdb:cities"
    assert lines[5].startswith("left in visits: epsilon ") and len(lines) == 6
    receipts = [link.get_link(task, ti_key=key) for link in task.operator_extra_links][0]
    assert receipts.endswith("/dpflow/releases?dag_id=d&run_id=r&task_id=t")


def test_no_forecast_takes_a_query_for_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dpflow plan` counts what a query's task charges, and a budget check above it takes or refuses
    it.
    """
    from airflow_names import AirflowFailException

    from dpflow.airflow import BudgetCheckOperator
    from dpflow.airflow.dag_jobs import read_dags

    file = world.folder / "dag.py"
    file.write_text(
        "import datetime as dt\n"
        "from airflow.sdk import DAG\n"
        "from dpflow.airflow import BudgetCheckOperator, SqlReleaseOperator\n"
        "with DAG('d', schedule='@daily', start_date=dt.datetime(2026, 1, 1)) as dag:\n"
        "    BudgetCheckOperator(task_id='check') >> SqlReleaseOperator(\n"
        "        task_id='t', sql='SELECT COUNT(*) FROM visits', epsilon='0.5')\n"
    )
    # By a relative path, too: a declaration was looked for in visits/visits/.
    monkeypatch.chdir(world.folder.parent)
    own = file.read_text().replace("epsilon='0.5'", "epsilon='0.5', tables=['visits.yml']")
    (world.folder / "own.py").write_text(own.replace("DAG('d'", "DAG('own'"))
    (job,) = read_dags(Path(world.folder.name) / "own.py")[0]
    assert len(job.tasks[0].asks(next(job.runs()))) == 1
    (job,) = read_dags(file)[0]
    (task,) = job.tasks
    assert task.name == "t" and not task.note and len(task.asks(next(job.runs()))) == 1
    monkeypatch.setattr(
        "dpflow.airflow.budget_check.open_ledger", lambda conn_id, folder: world.ledger
    )
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    check = names["dag"].get_task("check")
    assert isinstance(check, BudgetCheckOperator)
    running = context(world.folder) | {"dag": names["dag"]}
    names["dag"].fileloc = str(file)
    assert check.execute(running) == {"planned": 1, "to_pay": 1}
    # Another ledger pays for what a service answers, so nobody here can tell.
    names["dag"].get_task("t").service_conn_id = "elsewhere"
    with pytest.raises(AirflowFailException, match=r"cannot tell.*'t': it asks a service"):
        check.execute(running)
    names["dag"].get_task("t").service_conn_id = None
    world.ledger.grant(
        "visits",
        "0.25",
        "0.1",
        filter="basic",
        table=world.table,
        principal="owner",
        confirm_large=True,
    )
    with pytest.raises(AirflowFailException, match="BudgetExceeded"):
        check.execute(running)
    assert world.spent() == "0"
