"""DB-API 2.0 and SQLAlchemy: a real engine in a fresh process, against a real service and in one process."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas
import pytest
import sqlalchemy as sa
import yaml
from service_world import RELEASE, TOKENS, Server, ServiceWorld, settle, task
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.client import connect, dbapi
from dpflow.errors import BudgetExceeded, InvalidInput, PlanRefused
from dpflow.tables.public.named_tables import AnswerRun, publish_view

DAILY = "visits/ann/today"


def make_world(folder: Path) -> ServiceWorld:
    """Ann pays from a quota per day; bob from one without; both read what ann's DAG released."""
    world = ServiceWorld(folder)
    world.ledger.quota(DAILY, 10, "0.001", period="day", principal="owner")
    service = yaml.safe_load(world.file.read_text())
    service["published"] = {"daily": {"release": "daily", "scope": DAILY}}
    for name in ("ann", "bob"):
        terms = service["principals"][name]
        terms |= {"doors": ["sql", "release", "read"], "published": ["daily"]}
    service["principals"]["ann"] |= {"scope": DAILY}
    world.file.write_text(yaml.safe_dump(service))
    catalogue = {
        "ledger": "ledger.sqlite",
        "scope": DAILY,
        "tables": {"visits": "visits.yml"},
        "public": {"towns": "towns.csv"},
        "output": {"database": "published.duckdb"},
    }
    (folder / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    return make_world(tmp_path_factory.mktemp("dialect"))


@pytest.fixture(scope="module")
def server(world: ServiceWorld) -> Iterator[Server]:
    server = Server(world.file)
    with server.client("ann") as client:
        body = task(day=1) | {"releases": [RELEASE | {"scope": DAILY}]}
        assert settle(client, "tasks/release", body).status_code == 200
    yield server
    server.stop()


def url_of(server: Server, name: str = "ann", options: str = "") -> str:
    return f"dpflow://:{TOKENS[name][0]}@127.0.0.1:{server.port}/{options}"


@pytest.fixture
def local(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.Engine]:
    monkeypatch.chdir(world.folder)
    yield sa.create_engine("dpflow:///?epsilon=0.25")


FRESH = """
import json, sys
import pandas, sqlalchemy as sa
engine = sa.create_engine(sys.argv[1] + "?epsilon=0.25")
free = sa.create_engine(sys.argv[1])
look = sa.inspect(engine)
visits = sa.Table("visits", sa.MetaData(), autoload_with=engine, schema="main")
by_city = (
    sa.select(visits.c.city, sa.func.count().label("n"), sa.func.avg(visits.c.age).label("age"))
    .where(visits.c.age >= sa.bindparam("low")).group_by(visits.c.city).order_by(visits.c.city).limit(2)
)
with engine.connect() as paid, free.connect() as stored:
    drawn = pandas.read_sql(by_city, paid, params={"low": 3})
    again = pandas.read_sql(by_city, stored, params={"low": 3})
    plan = pandas.read_sql("EXPLAIN SELECT city, count(*) FROM visits GROUP BY city", paid)
    published = pandas.read_sql("SELECT group_key, value FROM daily_latest ORDER BY group_key", stored)
    paid.commit()
    refused = []
    for text in ("SELECT sum(cost) FROM visits", "SELECT * FROM visits", "DELETE FROM visits", "SELECT count(*) FROM secret"):
        try:
            stored.exec_driver_sql(text)
        except sa.exc.DBAPIError as error:
            refused.append([type(error.orig).__name__, str(error.orig).split(";")[0]])
print(json.dumps([
    look.get_table_names(), look.get_view_names(), {c["name"]: str(c["type"]) for c in look.get_columns("visits")},
    drawn.equals(again), list(map(str, drawn.dtypes)), list(drawn["city"]), plan["part"].tolist()[-1],
    published["group_key"].tolist(), refused,
]))
"""


def test_an_engine_of_another_process_asks_a_service(world: ServiceWorld, server: Server) -> None:
    """Reflection, a built query, pandas, EXPLAIN, published results and refusals; one charge of 0.25."""
    before = world.spent("visits/ann")
    environment = {n: text for n, text in os.environ.items() if not n.startswith("DPFLOW")}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, url_of(server)], env=environment, cwd="/", capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables, views, columns, same, kinds, cities, last, keys, refused = json.loads(done.stdout)
    assert (tables, views) == (["visits"], ["daily", "daily_latest"])
    assert columns["age"] == "INTEGER" and columns["day"] == "DATE" and columns["cost"] == "DOUBLE"
    assert same and kinds[1:] == ["int64", "float64"] and cities == ["Bern", "Oslo"]
    assert last == "forecast" and keys == ["Bern", "Oslo", "Rome"]
    assert [kind for kind, _ in refused] == ["ProgrammingError"] * 4
    assert refused[0][1] == "no stored answer serves, and epsilon 0 pays for none"
    assert "'no-star'" in refused[1][1] and "'select-only'" in refused[2][1]
    assert "declared table 'secret'" in refused[3][1]
    assert (Decimal(world.spent("visits/ann")) - Decimal(before)) == Decimal("0.25")


def test_spending_needs_a_limit_per_day(world: ServiceWorld, server: Server) -> None:
    """Bob's scope has none: what is stored is his, and nothing new; ann's is refused when it is spent."""
    with sa.create_engine(url_of(server, "bob", "?epsilon=0.25")).connect() as bob:
        with pytest.raises(sa.exc.ProgrammingError, match="no limit per day") as error:
            bob.exec_driver_sql("SELECT count(*) FROM visits")
        assert isinstance(error.value.orig.__cause__, PlanRefused)
        assert world.spent("visits/bob") == "0"
        plan = bob.exec_driver_sql("EXPLAIN SELECT count(*) FROM visits").all()
        assert plan[-1][0] == "forecast" and str(error.value.orig) in plan[-1][1]
        assert bob.exec_driver_sql("SELECT sum(value) FROM daily").scalar() is not None
        assert bob.exec_driver_sql("EXPLAIN SELECT * FROM daily").all() == [
            ("forecast", "free: published results answer it")
        ]
    with sa.create_engine(url_of(server, "ann", "?epsilon=11")).connect() as ann:
        with pytest.raises(sa.exc.OperationalError) as spending:
            ann.exec_driver_sql("SELECT min(age) FROM visits")
        assert isinstance(spending.value.orig.__cause__, BudgetExceeded)


def test_a_declared_table_comes_before_an_answer_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any case, also where it was declared after the answer was published."""
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("VISITS", "other"):
        publish_view(tmp_path / "published.duckdb", name, [("n", "BIGINT", [1])], AnswerRun())
    names = ["VISITS_latest", "other", "other_latest", "towns"]
    assert connect().published() == names
    with pytest.raises(dbapi.ProgrammingError, match="no stored answer serves"):
        dbapi.connect().cursor().execute("SELECT count(*) FROM visits")


@pytest.mark.own_session
def test_the_limit_is_looked_up_for_the_scope_that_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each new charge: dpflow.yml may name another scope by then. What the refusal advises works."""
    world = make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    cursor = dbapi.connect(epsilon="0.25").cursor()
    cursor.execute("SELECT count(*) FROM visits")
    # A target is an explicit wish to pay, too, and held by the same limit.
    free = dbapi.connect().cursor()
    free.execute("-- dp: error=100\nSELECT count(*) FROM visits WHERE age > 30")
    file = tmp_path / "dpflow.yml"
    text = file.read_text()
    file.write_text(text.replace(DAILY, "visits/bob"))
    for asking, query in ((cursor, ""), (free, "-- dp: error=100\n")):
        with pytest.raises(dbapi.ProgrammingError, match="no limit per day"):
            asking.execute(f"{query}SELECT count(*) FROM visits WHERE age > 40")
    assert world.spent("visits/bob") == "0"
    for scope in ("visits/bob", "visits"):
        file.write_text(text.replace(DAILY, scope))
        with pytest.raises(dbapi.ProgrammingError, match="no limit per day") as refused:
            cursor.execute("SELECT sum(cost) FROM visits")
        command = str(refused.value).partition("dpflow ledger ")[2]
        done = CliRunner().invoke(app, ["ledger", *command.split()])
        assert done.exit_code == 0, done.output
        paid = dbapi.connect(epsilon="0.25", scope=f"{scope}/board").cursor()
        assert paid.execute("SELECT sum(cost) FROM visits").fetchall()


#: As the tools send them, with what becomes of them: "" is answered.
RECORDED = {
    # Superset: a chart, a time series, a virtual dataset, SQL Lab's limit and its comment.
    "SELECT city AS city, COUNT(*) AS count \nFROM main.visits GROUP BY city ORDER BY count DESC \n LIMIT 10000": "",
    "SELECT DATE_TRUNC('month', day) AS __timestamp, SUM(cost) AS \"SUM(cost)\" \nFROM visits \nWHERE day >= '2020-01-01' "
    "AND day < '2020-02-01' GROUP BY DATE_TRUNC('month', day) ORDER BY \"SUM(cost)\" DESC \n LIMIT 50000": "private-keys",
    "SELECT avg(age) AS \"AVG(age)\" \nFROM (SELECT * FROM visits\n) AS virtual_table \n LIMIT 50000": "",
    "SELECT city, count(*) AS n\nFROM visits\nGROUP BY city\nLIMIT 1001\n\n-- 6dcd92a04feb50f14bbcf07c661680ba": "",
    "SELECT * FROM main.visits LIMIT 101": "no-star",
    "SELECT city AS city \nFROM main.visits GROUP BY city \n LIMIT 1000": "aggregates",
    "SELECT 1": "",
    "SELECT SUM(people) AS \"SUM(people)\" \nFROM main.towns ORDER BY \"SUM(people)\" DESC \n LIMIT 50000": "",
    # Metabase: qualified names throughout, a filter, a sample of rows, a nested question.
    'SELECT "main"."visits"."city" AS "city", COUNT(*) AS "count" FROM "main"."visits" GROUP BY "main"."visits"."city" '
    'ORDER BY "main"."visits"."city" ASC': "",
    'SELECT AVG("main"."visits"."age") AS "avg" FROM "main"."visits" WHERE "main"."visits"."city" = \'Oslo\'': "",
    'SELECT "main"."visits"."age" AS "age" FROM "main"."visits" LIMIT 2000': "grouped-columns",
    'SELECT "source"."city" AS "city", SUM("source"."n") AS "sum" FROM (SELECT "main"."visits"."city" AS "city", COUNT(*) '
    'AS "n" FROM "main"."visits" GROUP BY "main"."visits"."city") AS "source" GROUP BY "source"."city" ORDER BY '
    '"source"."city" ASC': "",
    'SELECT "main"."towns"."city" AS "city", "main"."towns"."people" AS "people" FROM "main"."towns" LIMIT 1048575': "",
}  # fmt: skip


def test_queries_as_superset_and_metabase_send_them(local: sa.Engine) -> None:
    with local.connect() as connection:
        for text, rule in RECORDED.items():
            if not rule:
                assert connection.exec_driver_sql(text).all(), text
                continue
            with pytest.raises(sa.exc.ProgrammingError, match=f"'{rule}'"):
                connection.exec_driver_sql(text)


def test_the_schema_is_dropped_and_nothing_else() -> None:
    from dpflow.analyst_sql.answer.published_query import drop_schema

    kept = ["SELECT main.x FROM visits AS main", "SELECT 'FROM main.v' FROM visits", "SELECT '"]
    for text in kept:
        assert drop_schema(text) == text
    assert drop_schema('SELECT main.v.c, "main.d" FROM main.v') == (
        'SELECT      v.c, "main.d" FROM      v'
    )


def test_the_module_is_one_of_pep_249(local: sa.Engine, world: ServiceWorld) -> None:
    connection = dbapi.connect(epsilon="0.25")
    cursor = connection.cursor()
    assert cursor.description is None and cursor.rowcount == -1
    before = Decimal(world.spent("visits/ann"))
    text = "SELECT city, count(*) AS n, avg(cost) AS c, DATE '2020-01-01' AS d FROM visits WHERE day >= ? AND age < ? GROUP BY city"
    cursor.execute(text, [dt.date(2020, 1, 3), Decimal("30.5")])
    kinds = [column[1] for column in cursor.description or ()]
    assert kinds == ["VARCHAR", "BIGINT", "DOUBLE", "DATE"]
    assert kinds == [dbapi.STRING, dbapi.NUMBER, dbapi.NUMBER, dbapi.DATETIME]
    assert cursor.rowcount == 3 and cursor.fetchone()[0] == "Oslo"
    assert [row[0] for row in cursor.fetchmany(2)] == ["Rome", "Bern"] and cursor.fetchall() == []
    assert cursor.answer is not None and cursor.answer.columns[1].interval == "stated"
    assert cursor.messages and all(kind is dbapi.Warning for kind, _ in cursor.messages)
    # The comment goes before the connection, and a stored answer needs neither.
    cursor.execute("-- dp: epsilon=0.5\nSELECT sum(age) AS s FROM visits")
    assert Decimal(world.spent("visits/ann")) - before == Decimal("0.75")
    connection.commit()
    with pytest.raises(dbapi.NotSupportedError, match="stays paid"):
        connection.rollback()
    with pytest.raises(dbapi.NotSupportedError):
        cursor.executemany("SELECT 1", [[]])
    for wrong in ("SELECT count(*) FROM visits WHERE age > ?", "SELECT nothing FROM towns"):
        with pytest.raises(dbapi.DatabaseError):
            cursor.execute(wrong)
        with pytest.raises(dbapi.InterfaceError, match="call execute"):
            cursor.fetchall()
    cursor.close()
    with pytest.raises(dbapi.InterfaceError, match="closed"):
        cursor.execute("SELECT 1")
    connection.close()
    with pytest.raises(dbapi.InterfaceError, match="closed"):
        connection.cursor()


def test_a_value_stays_one_literal(local: sa.Engine) -> None:
    """Also of a query over published results."""
    hostile = "x' OR 1 = 1 --"
    with local.connect() as connection:
        text = sa.text("SELECT count(*) FROM towns WHERE city = :city")
        assert connection.execute(text, {"city": hostile}).scalar() == 0
        text = sa.text("SELECT count(*) AS n FROM visits WHERE city = :city")
        hostile_count = connection.execute(text, {"city": hostile}).scalar()
        assert hostile_count is not None and hostile_count < 1000


@pytest.mark.parametrize("place", ["", "service"])
@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("Oslo", "type str"),
        (None, "type NoneType"),
        ({"city": "Oslo"}, "a list or tuple"),
        ({"Oslo"}, "type set"),
        (("Oslo", "Rome"), "'2' has a value and stands nowhere"),
        ((), "has no value"),
        ((b"Oslo",), "give a plain number"),
        ((dt.time(1),), "give a plain number"),
        (({"Oslo"},), "give a plain number"),
        ((None,), "give a plain number"),
        ((pandas.NaT,), "give a plain number"),
        ((float("nan"),), "no query can hold"),
        ((10**5000,), "more digits than"),
        ((Fraction(10**400),), "more digits than"),
        ((dt.datetime(2020, 1, 1, tzinfo=dt.UTC),), "time zone"),
    ],
)
def test_parameters_that_are_none_are_refused(
    local: sa.Engine, world: ServiceWorld, server: Server, place: str, parameters: Any, problem: str
) -> None:
    """Of private tables, where they would be charged, and of published results, here and at a service."""
    where = {"server": server.url, "token": TOKENS["ann"][0]} if place else {}
    cursor = dbapi.connect(epsilon="0.25", **where).cursor()
    before = world.spent("visits/ann")
    for text in ("SELECT count(*) FROM visits WHERE city = ?", "SELECT ? AS city"):
        with pytest.raises(dbapi.ProgrammingError, match=problem):
            cursor.execute(text, parameters)
        with pytest.raises(dbapi.NotSupportedError):
            cursor.executemany(text, [parameters])
    assert world.spent("visits/ann") == before


def test_other_ways_to_ask_refuse_them_too(local: sa.Engine, server: Server) -> None:
    query = "SELECT count(*) FROM visits WHERE city = $1"
    ann = connect(server.url, token=TOKENS["ann"][0])
    for client, parameters in itertools.product(
        (connect(), ann), ("O", ("O", "R"), {"1": "O", "b": 1})
    ):
        with pytest.raises(InvalidInput, match="parameter"):
            client.sql(query, parameters=parameters, epsilon="0.25")


def test_values_of_published_queries_have_their_types(local: sa.Engine) -> None:
    cursor = dbapi.connect().cursor()
    values = (dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 3), 5, True, "x")
    assert cursor.execute("SELECT ?, ?, ?, ?, ?", values).fetchone() == values
    cursor.execute("SELECT DATE '2020-01-05' - ? AS days", values[:1])
    assert cursor.fetchone() == (4,)
    huge = "SELECT 170141183460469231731687303715884105727::HUGEINT AS h, 'a\\x00'::BLOB AS b"
    assert [type(value) for value in cursor.execute(huge).fetchone() or ()] == [float, str]
    cursor.execute("SELECT 'a\\x00'::BLOB AS b")
    assert cursor.fetchone() == ("a\\x00",)
    kinds = [dbapi.STRING, dbapi.BINARY, dbapi.NUMBER, dbapi.DATETIME, dbapi.ROWID]
    for one, other in itertools.product(kinds, kinds):
        assert (one == other) == (one is other)


def test_a_name_of_two_things_is_refused(
    world: ServiceWorld, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a service whose file is older than its check: published rows are not counted for a private table's."""
    cursor = dbapi.connect(server.url, token=TOKENS["ann"][0], epsilon="0.25").cursor()
    before = world.spent("visits/ann")
    for listed, text in (
        (["daily", "Visits"], "SELECT count(*) FROM visits"),
        (["daily", "daily_latest", "daily_latest"], "SELECT count(*) FROM daily_latest"),
    ):
        monkeypatch.setattr(cursor.connection.client, "published", lambda: listed)
        with pytest.raises(dbapi.ProgrammingError, match="name of two"):
            cursor.execute(text)
    assert world.spent("visits/ann") == before


def test_published_results_are_read_in_a_locked_process(local: sa.Engine) -> None:
    """No file, no function of the moment, no relation beside those that may be read."""
    with local.connect() as connection:
        for text in (
            "SELECT * FROM read_csv('/etc/passwd')",
            "SELECT now() FROM towns",
            "SELECT * FROM duckdb_settings()",
            "SELECT * FROM information_schema.tables",
            "SELECT * FROM '/etc/passwd'",
        ):
            with pytest.raises(sa.exc.DBAPIError):
                connection.exec_driver_sql(text)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("dpflow://h/visits?scope=visits", "once"),
        ("dpflow://h/visits?epsilom=1", "no option"),
        ("dpflow://SECRET@h/visits", "user name"),
        ("dpflow://ann:SECRET@h/visits", "user name"),
        ("dpflow://:SECRET@/visits", "no host"),
        ("dpflow://:SECRET@/?scope=visits", "no host"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(sa.exc.ArgumentError, match=problem) as error:
        sa.create_engine(url)
    assert "SECRET" not in str(error.value)


def test_a_host_elsewhere_is_asked_by_https() -> None:
    dialect = sa.make_url("dpflow://:t@dp.example.org:8443/a/b?delta=1e-6").get_dialect()()
    url = sa.make_url("dpflow://:t@dp.example.org:8443/a/b?delta=1e-6")
    server, options = dialect.create_connect_args(url)
    assert server == ["https://dp.example.org:8443"]
    assert options == {"scope": "a/b", "delta": "1e-6", "token": "t"}
    assert "secret" not in str(sa.make_url("dpflow://:secret@h/"))


#: SQLAlchemy's own suite. What creates or fills a table is skipped when it is refused; of the rest,
#: these: tables with odd names, created in a way that is no SQL of DuckDB's, and quotients of 38 digits,
#: which are doubles here.
SUITE = {
    "conftest.py": """
import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.testing.provision import generate_driver_url
from sqlalchemy.testing.plugin.pytestplugin import *

@generate_driver_url.for_db("dpflow")
def keep_url(url, driver, query_str):
    return url

def skip_writes():
    try:
        return (yield)
    except DBAPIError as error:
        if "'select-only'" in str(error):
            pytest.skip("it creates or fills a table")
        raise

@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    return (yield from skip_writes())

@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    return (yield from skip_writes())
""",
    "requirements.py": "from sqlalchemy.testing.requirements import SuiteRequirements as Requirements\n",
    "setup.cfg": "[sqla_testing]\nrequirement_cls=requirements:Requirements\nprofile_file=profiles.txt\n",
    "test_suite.py": """
from sqlalchemy.testing import fixtures as _fixtures
from sqlalchemy.testing.suite import *

for _name, _kind in list(globals().items()):
    if isinstance(_kind, type) and issubclass(_kind, _fixtures.TablesTest):
        del globals()[_name]
""",
}


@pytest.mark.slow
def test_the_parts_of_sqlalchemys_suite_that_apply(local: sa.Engine, tmp_path: Path) -> None:
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    catalogue = (Path() / "dpflow.yml").resolve()
    (tmp_path / "dpflow.yml").symlink_to(catalogue)
    for file in ("ledger.sqlite", "visits.yml", "visits.duckdb", "towns.csv"):
        (tmp_path / file).symlink_to(catalogue.parent / file)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-W", "ignore", "--tb=line", "test_suite.py",
            "--dburi", "dpflow:///", "--maxfail", "1000", "-k", "not Bizarro and not numeric_38_digit_divisor",
        ],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) >= 60, done.stdout[-3000:]


def test_frames_have_the_answers_types(local: sa.Engine) -> None:
    text = "SELECT city, count(*) AS n, avg(cost) AS c FROM visits GROUP BY city"
    with local.connect() as connection:
        frame = pandas.read_sql(sa.text(text), connection)
    assert pandas.api.types.is_integer_dtype(frame["n"]) and frame["c"].dtype == "float64"
