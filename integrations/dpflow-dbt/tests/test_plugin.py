"""The plugin as dbt-duckdb calls it, without dbt: a stand-in for its base class, and a real DuckDB file."""

from __future__ import annotations

import datetime as dt
import importlib
import re
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import duckdb
import pytest

from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.public.named_tables import AnswerRun

DECLARATION = """
name: visits
database: private.duckdb
privacy_unit: {column: person}
contribution_bounds: {rows: 20}
columns: {city: {public_keys: [Oslo, Rome]}, age: {lower: 0, upper: 100}}
"""
MODEL = 'SELECT city, COUNT(*) AS n, AVG(age) AS "Mean ""age" FROM visits GROUP BY city ORDER BY n'


class BasePlugin:
    """What dbt-duckdb 1.11 does with a plugin: a name, its configuration, then one connection."""

    def __init__(self, name: str, plugin_config: dict[str, Any], credentials: Any = None) -> None:
        self.name, self.creds = name, credentials
        self.initialize(plugin_config)


class DbtRuntimeError(RuntimeError):
    pass


class Project:
    """A private table, its budget, and the plugin on a connection to the file of results."""

    def __init__(self, folder: Path, plugin: Any) -> None:
        self.folder = folder
        with duckdb.connect(str(folder / "private.duckdb")) as connection:
            connection.execute(
                "CREATE TABLE visits AS SELECT i % 400 AS person, ['Oslo', 'Rome'][1 + i % 2] AS city, "
                "i % 90 AS age FROM range(8000) t(i)"
            )
        (folder / "visits.yml").write_text(DECLARATION)
        (folder / "dpflow.yml").write_text(
            "{ledger: ledger.sqlite, scope: visits, tables: {visits: visits.yml}}"
        )
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        self.ledger.grant(
            "visits",
            "10",
            "0",
            filter="basic",
            table=load_table(folder / "visits.yml"),
            principal="owner",
        )
        self.published = duckdb.connect(str(folder / "published.duckdb"))
        self.plugin = plugin.Plugin("dpflow_dbt", {"folder": str(folder)})
        self.plugin.configure_connection(self.published)

    def store(self, sql: str = MODEL, model: str = "model.p.a", **options: Any) -> list[Any]:
        config = {"id": model, "sql": sql, "options": {"epsilon": 0.5} | options}
        self.plugin.store(SimpleNamespace(relation='"main"."a b"', config=config))
        return self.published.execute('FROM main."a b" ORDER BY ALL').fetchall()

    def spent(self) -> str:
        return str(self.ledger.remaining("visits").rows()[0]["epsilon_spent"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    def log(name: str) -> Any:
        return SimpleNamespace(info=lambda text: None)

    for name, words in (
        ("dbt.adapters.duckdb.plugins", {"BasePlugin": BasePlugin}),
        ("dbt.adapters.events.logging", {"AdapterLogger": log}),
        ("dbt_common.exceptions", {"DbtRuntimeError": DbtRuntimeError}),
    ):
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        stand_in = ModuleType(name)
        stand_in.__dict__.update(words)
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    for name in ("dpflow_dbt", "dpflow_dbt.plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    plugin = importlib.import_module("dpflow_dbt.plugin")
    yield Project(tmp_path, plugin)
    for name in ("dpflow_dbt", "dpflow_dbt.plugin"):
        sys.modules.pop(name, None)


def test_a_model_is_charged_once_for_its_id_and_its_query(project: Project) -> None:
    """Not again for another spelling, order or a lower price; but for another query, another model,
    less noise and a new revision.
    """
    first = project.store()
    assert [row[0] for row in first] == ["Oslo", "Rome"]
    names = [one[0] for one in project.published.execute('FROM main."a b" LIMIT 0').description]
    ends = ("noise_low", "noise_high", "low", "high", "raw_value")
    assert names[:8] == ["city", "n", *(f"n_{end}" for end in ends), 'Mean "age']
    assert names[-5:] == ["block", "run", "interval_start", "released_at", "releases"]
    spelling = MODEL.lower().replace('"mean ""age"', '"Mean ""age"') + " limit 2"
    for sql, options in ((MODEL, {}), (spelling, {}), (MODEL, {"epsilon": "0.25"})):
        assert project.store(sql, **options) == first
    assert project.spent() == "0.5"
    assert project.store(epsilon="0.75") != first
    assert project.spent() == "1.25"
    project.store(MODEL.replace("GROUP", "WHERE age > 30 GROUP"))
    assert project.spent() == "1.75"
    project.store(model="model.p.b")
    assert project.spent() == "2.25"
    assert project.store(revision=2) != first
    assert project.spent() == "2.75"
    (releases,) = {
        ids for (ids,) in project.published.execute('SELECT releases FROM main."a b"').fetchall()
    }
    assert all(re.fullmatch("[0-9a-f]{16}", release_id) for release_id in releases.split(","))


def test_a_service_answers_where_dpflow_yml_names_one(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the connection of the folder: no declaration, ledger or row is beside dbt, and building again is free."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tests"))
    from service_world import TOKENS, ServiceWorld, serve_here

    world = ServiceWorld(tmp_path_factory.mktemp("owner"))
    with serve_here(world) as server:
        (project.folder / "dpflow.yml").write_text(f"server: {server}")
        monkeypatch.setenv("DPFLOW_SERVER", server)
        monkeypatch.setenv("DPFLOW_TOKEN", TOKENS["ann"][0])
        first = project.store("SELECT city, COUNT(*) AS n FROM visits GROUP BY city")
        assert [row[0] for row in first] == ["Bern", "Oslo", "Rome"]
        again = project.store("select city, count(*) n from VISITS group by city")
        (spent,) = world.ledger.remaining("visits/ann").rows()
        assert again == first and spent["epsilon_spent"] == "0.5" and project.spent() == "0"
        for sql, problem in (
            ("SELECT city AS block, COUNT(*) AS n FROM visits GROUP BY city", "one of its own"),
            ("EXPLAIN SELECT COUNT(*) FROM visits", "EXPLAIN"),
            ("SELECT * FROM visits", "no-star"),
        ):
            with pytest.raises(Exception, match=problem):
                project.store(sql)
        with pytest.raises(Exception, match="what another run asked"):
            project.store("SELECT city, COUNT(*) AS n FROM visits GROUP BY city", run="2020-01-01")
        (spent,) = world.ledger.remaining("visits/ann").rows()
        assert spent["epsilon_spent"] == "0.5"


def test_the_log_says_what_a_service_left_out(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows above the principal's limit, which its table lacks; built again it has the same rows."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tests"))
    from service_world import TOKENS, ServiceWorld, asker, serve_here

    principals = {"ann": asker("ann", max_rows=2)}
    world = ServiceWorld(tmp_path_factory.mktemp("owner"), principals=principals)
    said: list[str] = []
    monkeypatch.setattr("dpflow_dbt.plugin.log.warning", said.append, raising=False)
    with serve_here(world) as server:
        (project.folder / "dpflow.yml").write_text(f"server: {server}")
        monkeypatch.setenv("DPFLOW_SERVER", server)
        monkeypatch.setenv("DPFLOW_TOKEN", TOKENS["ann"][0])
        query, options = (
            "SELECT clinic, COUNT(*) AS n FROM visits GROUP BY clinic",
            {"delta": "1e-6"},
        )
        first = project.store(query, epsilon="10", **options)
        assert project.store(query, epsilon="10", **options) == first and len(first) == 2
    assert said == ["model.p.a: 1 row left out: more than the service sends to this principal"] * 2


def test_people_and_models_do_not_share_answers(project: Project) -> None:
    """A model's key has its id in it: what a person asked is no answer of it, nor the other way."""
    import dpflow

    given = {"epsilon": "0.5", "ledger": project.ledger, "scope": "visits"}
    tables = [project.folder / "visits.yml"]
    for _ in range(2):
        dpflow.sql(MODEL, tables=tables, **given)
        project.store()
    assert project.spent() == "1"


@pytest.mark.parametrize(
    ("sql", "options", "reason"),
    [
        ("SELECT * FROM visits", {}, "no-star"),
        ("EXPLAIN " + MODEL, {}, "EXPLAIN"),
        (MODEL, {"epsilon": "100"}, "exhausted|left"),
        (MODEL, {"price": 1}, "price, which is no option"),
        ("-- dp: epsilon=1\n" + MODEL, {}, "given twice"),
        ("-- dp: name=x\n" + MODEL, {}, "take name out"),
        ('SELECT COUNT(*) FROM "published"."main"."visits"', {}, "allow-list"),
    ],
)
def test_what_is_refused_costs_nothing_and_leaves_the_table(
    project: Project, sql: str, options: dict[str, Any], reason: str
) -> None:
    """dbt gets dpflow's message, without a cause that would be printed as a traceback."""
    project.published.execute('CREATE TABLE "a b" AS SELECT 1 AS x')
    with pytest.raises(DbtRuntimeError, match=reason) as caught:
        project.store(sql, **options)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert project.spent() == "0"
    assert project.published.execute('FROM "a b"').fetchall() == [(1,)]


def test_an_answer_is_written_whole_or_not_at_all(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure at any statement of writing leaves the earlier table; it left an empty one between two."""
    first = project.store()
    cursor_of = type(project.published).cursor

    class Failing:
        """A cursor whose connection ends after some statements."""

        def __init__(self, statements: int) -> None:
            self.left, self.cursor = statements, cursor_of(project.published)

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            self.cursor.close()

        def execute(self, *arguments: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise duckdb.IOException("the disk is full")
            self.cursor.execute(*arguments)

    write_answer = sys.modules["dpflow_dbt.plugin"].write_answer
    answer = [("city", "VARCHAR", ["x"])]
    for statements in (0, 1):
        try:
            write_answer(Failing(statements), '"main"."a b"', answer, AnswerRun())
        except duckdb.IOException:
            assert project.published.execute('FROM main."a b" ORDER BY ALL').fetchall() == first
    assert project.published.execute('FROM main."a b"').fetchall() == [
        ("x", "", "", None, dt.datetime.min, "")
    ]


DAILY = "SELECT city, COUNT(*) AS n FROM visits GROUP BY city"


def build(project: Project, run: str = "", sql: str = DAILY, **options: Any) -> None:
    """One build of a model, with the swap that dbt makes of its tables."""
    tables = {name for (name,) in project.published.execute("SHOW TABLES").fetchall()}
    config = {"id": "m", "sql": sql, "options": {"epsilon": 0.5, "run": run} | options}
    config["existing"] = '"main"."m"' if "m" in tables else None
    project.plugin.store(SimpleNamespace(relation='"main"."answer"', config=config))
    project.published.execute("DROP TABLE IF EXISTS m")
    project.published.execute("ALTER TABLE answer RENAME TO m")


def test_a_backfill_changes_the_rows_of_its_own_run(project: Project) -> None:
    """A newer day stays, and a repeated one is replaced; a query of other columns is refused before its charge."""
    latest = (
        "SELECT DISTINCT run FROM m WHERE coalesce(interval_start, released_at) = "
        "(SELECT max(coalesce(interval_start, released_at)) FROM m)"
    )
    read = "SELECT run, city, n, released_at FROM m ORDER BY ALL"
    build(project, "2020-01-02", revision=2)
    second = project.published.execute(read).fetchall()
    build(project, "2020-01-01", revision=1)
    both = project.published.execute(read).fetchall()
    assert len(both) == 4 and both[2:] == second
    assert project.published.execute(latest).fetchall() == [("2020-01-02",)]
    # Built again from what is stored: nothing changes, and nothing is charged.
    build(project, "2020-01-01", revision=1)
    assert project.published.execute(read).fetchall() == both and project.spent() == "1"
    # Whatever was built last takes the place of its day, also a stored answer that is older. Times are whole seconds.
    time.sleep(1.1)
    build(project, "2020-01-02", revision=3)
    newer = project.published.execute(read).fetchall()
    assert len(newer) == 4 and newer[:2] == both[:2] and newer[2:] != second
    build(project, "2020-01-02", revision=2)
    assert project.published.execute(read).fetchall() == both
    spent = project.spent()
    with pytest.raises(DbtRuntimeError, match="answers of other columns; nothing was charged"):
        build(project, sql=DAILY.replace("AS n", "AS m"))
    assert project.published.execute(read).fetchall() == both and project.spent() == spent
    # A table that dpflow did not write is not added to.
    project.published.execute("CREATE TABLE made_up AS SELECT 'Bonn' AS city, 7 AS n")
    config = {"id": "m", "sql": f"{DAILY} LIMIT 1", "options": {"epsilon": 2}, "existing": "made_up"}  # fmt: skip
    with pytest.raises(DbtRuntimeError, match="no column 'block' VARCHAR, so it holds no answers"):
        project.plugin.store(SimpleNamespace(relation='"main"."answer"', config=config))
    assert project.spent() == spent
    # A day without a row has the same columns, and takes no other's place.
    described = project.published.execute("DESCRIBE m").fetchall()
    build(project, "2020-01-03", sql=f"{DAILY} HAVING n > 1000000")
    assert project.published.execute(read).fetchall() == both
    assert project.published.execute("DESCRIBE m").fetchall() == described


@pytest.mark.parametrize(
    "rows", ["visits", "(SELECT person, COUNT(*) AS n FROM visits {} GROUP BY 1)"]
)
@pytest.mark.parametrize("protects", ["unit", "unit-block"])
def test_a_build_of_a_block_changes_the_rows_of_that_block(
    project: Project, protects: str, rows: str
) -> None:
    """Also where no block has a budget of its own, or rows are made for each unit: answers of two days had none, and each
    replaced the other.
    """
    declared = (project.folder / "visits.yml").read_text()
    (project.folder / "visits.yml").write_text(f"block: day\nprotects: {protects}\n{declared}")
    if protects == "unit-block":
        table = load_table(project.folder / "visits.yml")
        project.ledger.grant("days", "10", "0", filter="basic", table=table, principal="o")
        (project.folder / "dpflow.yml").write_text(
            "{ledger: ledger.sqlite, scope: days, tables: {visits: visits.yml}}"
        )
    with duckdb.connect(str(project.folder / "private.duckdb")) as connection:
        connection.execute(
            "ALTER TABLE visits ADD COLUMN day DATE; UPDATE visits SET day = DATE '2020-01-01' + (person % 2)::INTEGER"
        )
    where = "WHERE day = '{}'"
    query = f"SELECT COUNT(*) AS n FROM {rows.format(where)} {where if rows == 'visits' else ''}"
    for day in ("2020-01-01", "2020-01-02", "2020-01-01"):
        build(project, sql=query.format(day))
    found = project.published.execute("SELECT DISTINCT block FROM m ORDER BY ALL").fetchall()
    assert found == [("2020-01-01",), ("2020-01-02",)]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("hour", "city", "VARCHAR"),
        ("city", "late", "VARCHAR"),
        ("day", "hour", "VARCHAR"),
        ("late", "day", "VARCHAR"),
        ("hour", "sum(age)", "DOUBLE"),
        ("avg(age)", "hour", "DOUBLE"),
    ],
)
def test_a_column_may_change_its_type(project: Project, first: str, second: str, kind: str) -> None:
    """Rows of other runs stay. It was charged, and DuckDB could not write it beside them, at no build."""
    declared = (project.folder / "visits.yml").read_text()
    more = "day: {public_keys: ['2020-01-01']}, hour: {public_keys: ['1', '2']}, late: {public_keys: ['true', 'false']}"
    (project.folder / "visits.yml").write_text(declared.replace("age:", f"{more}, age:"))
    with duckdb.connect(str(project.folder / "private.duckdb")) as connection:
        connection.execute(
            "CREATE OR REPLACE TABLE visits AS SELECT *, DATE '2020-01-01' AS day, 1 + age % 2 AS hour, age > 50 AS late FROM visits"
        )

    def query(column: str) -> str:
        text = f"SELECT {column} AS k, COUNT(*) AS n FROM visits"
        return text if "(" in column else f"{text} GROUP BY {column}"

    build(project, "2020-01-01", query(first))
    rows = project.published.execute("SELECT count(*), sum(n) FROM m").fetchall()
    build(project, "2020-01-02", query(second))
    read = "SELECT count(*), sum(n) FROM m WHERE run = '2020-01-01'"
    assert project.published.execute(read).fetchall() == rows and project.spent() == "1"
    assert project.published.execute("SELECT any_value(typeof(k)) FROM m").fetchone() == (kind,)
    build(project, "2020-01-02", query(second))
    assert project.spent() == "1"


def test_an_answer_that_cannot_be_written_is_said_in_our_words(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building again writes the stored answer, and charges nothing."""

    def fail(*_: Any) -> None:
        raise duckdb.IOException("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["dpflow_dbt.plugin"], "write_answer", fail)
        with pytest.raises(
            DbtRuntimeError, match="stored in the ledger.*IOException.*build again"
        ) as caught:
            project.store()
    assert caught.value.__context__ is None and project.spent() == "0.5"
    assert len(project.store()) == 2 and project.spent() == "0.5"


def test_a_run_is_answered_by_itself(project: Project) -> None:
    """Another day's run draws of the rows of then, and pays; a repeated one is what it was."""
    read = "SELECT run, sum(n) AS n, min(releases) FROM m GROUP BY run ORDER BY run"
    for number, day in enumerate(("2020-01-01", "2020-01-02"), start=1):
        build(project, day)
        assert project.spent() == ("0.5", "1")[number - 1]
        with duckdb.connect(str(project.folder / "private.duckdb")) as connection:
            connection.execute("INSERT INTO visits SELECT person + 1000, city, age FROM visits")
    runs = project.published.execute(read).fetchall()
    # 8,000 rows, then twice as many, each with noise of a few.
    assert [round(n / 4000) for _, n, _ in runs] == [2, 4] and runs[0][2] != runs[1][2]
    build(project, "2020-01-01")
    assert project.published.execute(read).fetchall() == runs and project.spent() == "1"


def test_a_column_of_the_tables_own_is_refused_before_the_charge(project: Project) -> None:
    with pytest.raises(DbtRuntimeError, match="calls a column 'run'"):
        project.store("SELECT city AS run, COUNT(*) AS n FROM visits GROUP BY city")
    assert project.spent() == "0"


def test_an_empty_answer_is_an_empty_table(project: Project) -> None:
    """With the query's columns and types."""
    project.store("SELECT city, COUNT(*) AS n FROM visits GROUP BY city HAVING n < -10000")
    table = project.published.execute('FROM main."a b"')
    assert [one[0] for one in table.description][:2] == ["city", "n"] and not table.fetchall()


def test_the_option_noise_is_the_query_s(project: Project) -> None:
    """As `dpflow sql` has it; another noise that is no more exact is the same query."""
    project.store(noise="laplace")
    with pytest.raises(DbtRuntimeError, match="noise"):
        project.store(noise="none")
    assert project.spent() == "0.5"


def test_a_value_stays_one_literal(project: Project) -> None:
    text = "SELECT COUNT(*) AS n FROM visits WHERE city = $city"
    rows = project.store(text, parameters={"city": "Oslo' OR 'a' = 'a"})
    assert abs(rows[0][0]) < 1000


def test_the_private_file_is_neither_attached_nor_written(project: Project, tmp_path: Path) -> None:
    """Not by the plugin; and where somebody attached it, nothing is charged. Under another name, too."""
    project.store()
    paths = project.published.execute("SELECT path FROM duckdb_databases()").fetchall()
    assert [path for (path,) in paths if path] == [str(tmp_path / "published.duckdb")]
    (tmp_path / "other.duckdb").symlink_to(tmp_path / "private.duckdb")
    project.published.execute(f"ATTACH '{tmp_path / 'other.duckdb'}' AS p (READ_ONLY)")
    with pytest.raises(DbtRuntimeError, match="private table's file"):
        project.store(revision=2)
    assert project.spent() == "0.5"
