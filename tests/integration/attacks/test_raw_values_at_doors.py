"""The raw values of `raw_values` at the doors of the engine: releases, learners, sessions, gates,
predictions, contracts. What each door shows, charges and writes is as without their rows.

The exact answers are held against each other in tests/tables; here noise is drawn, and what is
compared is everything but the numbers.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from raw_matrix import KINDS, Case, World
from raw_outcomes import Outcome, observe

from dpflow import Ledger, Session, api, plan, quality, release
from dpflow.core.contract.declaration import Table
from dpflow.engine.prediction.batch import Points, label_points
from dpflow.engine.prediction.student import parse_student
from dpflow.engine.releases.request import Publish
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.errors import DpflowError
from dpflow.registry import Registry
from dpflow.tables.public.query_points import read_points

REGISTRY = Registry.load()
LABEL = {"lower": 0, "upper": 1}


@dataclass(frozen=True)
class Visit:
    """A door's call over one of two tables: with raw values, or without.

    Attributes:
        x: what the declaration calls the raw column.
        folder: everything that the call may write is here.
    """

    table: Table
    x: str
    folder: Path
    blocks: tuple[str, ...]
    role: tuple[str, ...]

    def plan(self, mechanism: str, **params: Any) -> Any:
        """A plan of the only name."""
        where = f'"{self.x}" IS NOT NULL'.replace(".", '"."')
        publish = Publish(database=self.folder / "out.duckdb", table="out")
        return plan(
            mechanism,
            self.table,
            name="raw",
            scope="all",
            registry=REGISTRY,
            blocks=self.blocks or None,
            where=where if self.role[-1] == "condition" else None,
            **({} if mechanism in SESSIONS else {"publish": publish}),
            **params,
        )

    @property
    def ledger(self) -> Ledger:
        """A ledger that has paid for nothing yet."""
        path = self.folder / "ledger.sqlite"
        if path.exists():
            return Ledger(path)
        ledger = Ledger(path, create=True)
        ledger.grant(
            "all",
            100,
            "1e-3",
            filter="basic",
            table=self.table,
            principal="owner",
            confirm_large=True,
        )
        return ledger


SESSIONS = ("reusable_holdout", "stable_median", "predict_vote", "predict_linear")


def released(mechanism: str, **params: Any) -> Callable[[Visit], Any]:
    """A release; what its receipt says, and whether there is a result."""

    def call(visit: Visit) -> Any:
        own = {"'{x}'": visit.x, "['{x}']": [visit.x]}
        given = {n: own.get(repr(v), v) for n, v in params.items()}
        receipt = release(visit.plan(mechanism, **given), visit.ledger)
        said = receipt.to_json()
        # Keys that rows have are found or not by noise.
        for name in ("release_id", "rows"):
            said.pop(name)
        again = release(visit.plan(mechanism, **given), visit.ledger)
        assert again.replayed and again.result == receipt.result
        return said, any(row.measure == "none" for row in receipt.result.rows)

    return call


#: Of a candidate, within known bounds whatever it predicts.
MISTAKES = "avg(least(greatest(abs(y - candidate.prediction), 0), 1))"


def ask_gate(visit: Visit) -> Any:
    """A gate: estimators in SQL and by name, and a candidate whose predictions are by row id."""
    params = {"groups": 64, "queries": 9, "failures": 9, "rho": "0.24", "alpha": "0.2"}
    session = Session.open(
        visit.plan("reusable_holdout", **params, epsilon="20"), visit.ledger, REGISTRY
    )
    x = visit.x if visit.x in visit.table.columns else "v"
    name, said = f'"{x}"'.replace(".", '"."'), []
    share = {"range": [0, 1], "default": 0, "better": "higher"}
    said.append(_try(session.ask, share | {"sql": f"count({name}) / count(*)"}, claim="0.5"))
    said.append(_try(session.ask, share | {"sql": f"avg({name})"}, claim="0.5"))
    said.append(_try(session.ask, "column_mean", columns=[x], claim="0.5"))
    predictions = {"database": visit.folder / "said.duckdb", "table": "said", "id": x}
    with duckdb.connect(str(predictions["database"])) as connection:
        connection.execute("CREATE TABLE said AS SELECT 1 AS k, 0.5 AS prediction")
        connection.execute(f'ALTER TABLE said RENAME k TO "{x}"')
    submission = {"name": "c", "predictions": predictions, "label": "y", "claim": "0.5"}
    for estimator in ("accuracy", share | {"sql": MISTAKES}):
        given = submission | {"estimator": estimator}
        said.append(_try(judge, session, given))
    return said, session.remaining()["answered"]


def ask_medians(visit: Visit) -> Any:
    """A session of stable medians: an estimator by name, one in SQL, and the first a second time."""
    params = {"groups": 64, "queries": 3, "range_size": 101, "epsilon": "5"}
    session = Session.open(visit.plan("stable_median", **params), visit.ledger, REGISTRY)
    x = visit.x if visit.x in visit.table.columns else "v"
    name = f'"{x}"'.replace(".", '"."')
    grid = {"kind": "grid", "lower": 0, "upper": 1, "step": "0.01"}
    own = {"sql": f"avg(v) FILTER (WHERE {name} IS NOT NULL)", "range": [0, 1], "default": 0}
    of_column = {"estimator": "column_mean", "columns": [x], "range": grid}
    queries = [of_column, {"estimator": own | {"better": "higher"}, "range": grid}, of_column]
    said = [_try(session.ask, query) for query in queries]
    return said, session.remaining()["answered"]


def judge_candidates(visit: Visit) -> Any:
    """A gate's candidates whose table of predictions holds raw values itself: as ids of rows that
    the private table has or has not, as predictions, and as scores.
    """
    params = {"groups": 64, "queries": 9, "failures": 9, "rho": "0.24", "alpha": "0.2"}
    session = Session.open(
        visit.plan("reusable_holdout", **params, epsilon="20"), visit.ledger, REGISTRY
    )
    database = visit.folder / "said.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(f"ATTACH '{visit.table.database}' AS private (READ_ONLY)")
        connection.execute("CREATE TABLE said AS SELECT x AS prediction, n FROM private.source")
        # Two rows each, for some raw values are one number as DOUBLEs, and an id is there once.
        raws = connection.execute("SELECT count(*) - 4 FROM private.source").fetchall()[0][0]
        for end, number in (("first", 3), ("last", 2 + raws)):
            connection.execute(
                f'CREATE TABLE {end} AS SELECT x AS "{visit.x}", n FROM private.source '
                f"WHERE n IN (1, {number})"
            )
        connection.execute("DETACH private")
    share = {"range": [0, 1], "default": 0, "better": "higher"}
    tables = (
        {"table": "said", "id": "n"},
        {"table": "said", "id": "n", "prediction": "n", "score": "prediction"},
        {"table": "first", "id": visit.x, "prediction": "n"},
        {"table": "last", "id": visit.x, "prediction": "n"},
    )
    said = []
    for number, table in enumerate(tables):
        submission = {"name": f"c{number}", "label": "y", "claim": "0.5"}
        submission["predictions"] = {"database": database} | table
        for estimator in ("accuracy", share | {"sql": MISTAKES}):
            said.append(_try(judge, session, submission | {"estimator": estimator}))
    return said, session.remaining()["answered"]


def learned(visit: Visit) -> Any:
    """A session of predictions, of which the raw column is a feature."""
    params = {"features": [visit.x, "v"], "label": "y", "predictions": 5, "shards": 5}
    session = api.open_predictions(visit.plan("predict_vote", **params, epsilon="5"), visit.ledger)
    point = [visit.table.column(visit.x).public_keys or (1,)][0][0]
    session.learn_models()
    return len(session.predict([[point, 0.5]])), session.predictions_left


def teach(visit: Visit) -> Any:
    """A student that learns from a pool of plain points, and one whose pool holds raw values."""
    params = {"features": [visit.x, "v"], "label": "y", "predictions": 40, "shards": 5}
    planned = visit.plan("predict_vote", **params, epsilon="1")
    # Also where all answers are equal, this one learns: the answers are drawn.
    student = parse_student(
        {"folder": "students", "learner": "DecisionTreeClassifier"}, visit.folder
    )
    pool = visit.folder / "pool.duckdb"
    with duckdb.connect(str(pool)) as connection:
        connection.execute(f"ATTACH '{visit.table.database}' AS private (READ_ONLY)")
        rows = f'SELECT n AS id, x AS "{visit.x}", n / 30 AS v FROM private.source'
        connection.execute(f"CREATE TABLE plain AS {rows} WHERE n < 3")
        connection.execute(f"CREATE TABLE raw AS {rows} WHERE x IS NOT NULL")
        connection.execute("DETACH private")
    said = []
    for table in ("plain", "raw", "plain"):
        points = Points(database=pool, table=table, key="id")
        answers = Publish(database=visit.folder / "answers.duckdb", table=table)
        try:
            report = label_points(planned, points, answers, visit.ledger, REGISTRY, student=student)
        except DpflowError as error:
            said.append((type(error).__name__, str(error)))
            continue
        # Named by answers, which are drawn.
        taught = Path(report["student"].pop("file"))
        assert taught.is_file()
        report.pop("session_id")
        said.append(report)
        shutil.rmtree(taught.parent)
    return said


def check_contract(visit: Visit) -> Any:
    """A data contract: its one bit, which one row more does not turn here."""
    return quality.check(visit.table)


def pay_checks(visit: Visit) -> Any:
    """Checks of the raw column, of every kind that its declaration allows."""
    column = visit.table.columns[visit.x]
    checks = [{"check": "nulls", "at_most": "0.5"}]
    if column.public_keys is not None:
        checks.append({"check": "unknown_keys", "at_most": "0.5"})
    if column.lower is not None:
        checks += [
            {"check": "mean", "at_most": 0},
            {"check": "quantile", "p": "0.5", "at_least": 0},
            {"check": "freshness", "since": 0, "at_least": 1},
        ]
    named = [one | {"name": one["check"], "column": visit.x} for one in checks]
    return released("check_rows", checks=named, epsilon="1")(visit)


def _try(action: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    """The fields of an answer and which are empty, or the words of a refusal."""
    try:
        return sorted((name, value is None) for name, value in action(*args, **fields).items())
    except DpflowError as error:
        return type(error).__name__, str(error)


ONE = {"column": "{x}", "epsilon": "1"}
BY = {"by": "{x}", "epsilon": "5", "delta": "1e-3"}
OWN = [("own", use) for use in ("value", "value with missing", "public key", "private key")]
#: By door: what the raw column is there, and the call.
DOORS: dict[str, tuple[list[tuple[str, ...]], Callable[[Visit], Any]]] = {
    "count": (
        [(role,) for role in ("unit", "one unit", "block", "dimension key", "unit of a join")]
        + [(place, "condition") for place in ("own", "dimension", "unit join")],
        released("count", epsilon="1"),
    ),
    "mean": ([("own", "value"), ("dimension", "value")], released("mean", **ONE)),
    "variance": ([("own", "value with missing")], released("variance", **ONE)),
    "quantile": ([("own", "value"), ("unit join", "value")], released("quantile", **ONE)),
    "histogram": ([("own", "public key")], released("histogram", by="{x}", epsilon="1")),
    "private histogram": ([("own", "private key")], released("private_histogram", **BY)),
    "key union": ([("own", "private key")], released("key_union", **BY)),
    "bounds": ([("own", "number")], released("bounds", **ONE)),
    "approximate median": (
        [("own", "number"), ("dimension", "number")],
        released("approximate_median", **ONE, delta="1e-6"),
    ),
    "mode": ([("own", "value")], released("mode", **ONE)),
    "sanitizer": ([("own", "value")], released("sanitize_points", **ONE, rows=1000)),
    "learner": (
        [("own", "value")],
        released("learn_class", columns=["{x}"], label="y", epsilon="1", rows=1000),
    ),
    "gate": ([("own", "value"), ("own", "number"), ("unit",), ("unit join", "number")], ask_gate),
    "median session": (
        [("own", "value"), ("own", "number"), ("unit",), ("dimension", "number")],
        ask_medians,
    ),
    "candidate": ([("own", "value"), ("own", "number"), ("unit join", "number")], judge_candidates),
    "prediction": ([("own", "value"), ("own", "public key")], learned),
    "student": ([("own", "value"), ("own", "public key")], teach),
    "contract": ([*OWN, ("unit",), ("block",)], check_contract),
    "paid contract": ([("own", "value"), ("own", "public key")], pay_checks),
}
VISITS = [(door, role) for door, (roles, _) in DOORS.items() for role in roles]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """Each type's file, made once."""
    made: dict[str, World] = {}

    def world(kind: str) -> World:
        if kind not in made:
            made[kind] = World(KINDS[kind], tmp_path_factory.mktemp("world"))
        return made[kind]

    yield world
    for one in made.values():
        one.__exit__()


def visit_door(
    world: World, door: str, role: tuple[str, ...], relation: str, home: Path
) -> Outcome:
    """What a door shows over one of the world's relations, copied to a file of one name."""
    folder = home / relation
    folder.mkdir()
    database = folder / "raw.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(f"ATTACH '{world.database}' AS world (READ_ONLY)")
        for name, source in (("every", relation), ("other_every", f"other_{relation}")):
            columns = "*" if name != "every" else "*, CAST(u % 2 AS SMALLINT) AS y"
            connection.execute(f"CREATE TABLE {name} AS SELECT {columns} FROM world.{source}")
        # So many that the raw rows are no tenth of them: a contract forgives that.
        plain = "SELECT *, CAST(u % 2 AS SMALLINT) FROM world.plain, range(4)"
        connection.execute(f"INSERT INTO every {plain.replace('*', 'plain.*')}")
        connection.execute("CREATE TABLE source AS FROM world.source")
    case = Case(role, "", "", "off", "sorted")
    table = world.table(case, "every")
    declared = table.model_dump() | {"database": database, "generalisation_only": False}
    declared["columns"] = {**declared["columns"], "y": LABEL, "v": LABEL | {"step": "0.01"}}
    # By which candidates say which row they mean.
    declared["columns"].setdefault("n", {})
    declared["columns"]["k"] = {"public_keys": ["a", "b", "c", "z"]}
    changed = Table.model_validate(declared)
    visit = Visit(changed, world.name(case), folder, world.blocks(case), role)

    def open_door() -> Any:
        try:
            return DOORS[door][1](visit)
        finally:
            # SQLite's log is there until its connection is collected, at whatever moment that is.
            gc.collect()

    seen = observe(folder, open_door)
    shown = repr((seen.shown, seen.answer)).replace(str(folder), "")
    return Outcome((shown,))


def compare_doors(world: World, door: str, role: tuple[str, ...], home: Path) -> None:
    """A door shows the same over rows with raw values and without."""
    plain, raw = (visit_door(world, door, role, name, home) for name in ("plain", "every"))
    # Two equal refusals compare nothing.
    assert "InvalidDeclaration" not in str(plain), plain
    assert raw == plain, f"{world.kind.name} at {door} as {role}: {raw} is not {plain}"


#: A type for each door that may do there what raw values do worst.
PART = {
    "count": ("ENUM", ("block",)),
    "mean": ("DECIMAL(18,18)", ("own", "value")),
    "variance": ("BOOLEAN", ("own", "value with missing")),
    "quantile": ("TIMESTAMP", ("unit join", "value")),
    "histogram": ("TIME", ("own", "public key")),
    "private histogram": ("TIME", ("own", "private key")),
    "key union": ("DECIMAL(38,0)", ("own", "private key")),
    "bounds": ("DECIMAL(38,10)", ("own", "number")),
    "approximate median": ("DOUBLE", ("dimension", "number")),
    "mode": ("DATE", ("own", "value")),
    "sanitizer": ("HUGEINT", ("own", "value")),
    "learner": ("TIMESTAMP_S", ("own", "value")),
    "gate": ("DECIMAL(38,38)", ("own", "number")),
    "median session": ("TIMESTAMP_NS", ("own", "value")),
    "candidate": ("DECIMAL(18,18)", ("own", "number")),
    "prediction": ("ENUM", ("own", "public key")),
    "student": ("TIME", ("own", "public key")),
    "contract": ("TIMESTAMP_MS", ("own", "value")),
    "paid contract": ("DOUBLE", ("own", "value")),
}


@pytest.mark.parametrize("door", DOORS)
def test_part(door: str, worlds: Any, tmp_path: Path) -> None:
    """Each door with one type."""
    kind, role = PART[door]
    assert role in DOORS[door][0]
    compare_doors(worlds(kind), door, role, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("door", "role"), VISITS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_door(
    kind: str, door: str, role: tuple[str, ...], worlds: Any, tmp_path: Path
) -> None:
    """Each type at each door, in each role."""
    compare_doors(worlds(kind), door, role, tmp_path)


@pytest.mark.parametrize("kind", ["TIME", "DECIMAL(38,0)", "TIMESTAMP", "VARCHAR", "BIT", "MAP"])
def test_points_are_read_or_refused(kind: str, worlds: Any) -> None:
    """A public table of points may hold raw values, too: they are read, or refused in words."""
    seen = observe(
        worlds(kind).folder, lambda: read_points(worlds(kind).database, "source", ["x"], "n")
    )
    assert seen.shown[0] in ("answer", "TableUnreadable", "InvalidInput")


def test_a_bad_handler_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time beyond 24 hours that is written as text makes a release "none", and that is seen."""
    monkeypatch.setattr("dpflow.tables.access.sql.Field._is_genuine", lambda self, value: None)
    (tmp_path / "world").mkdir()
    with World(KINDS["TIME"], tmp_path / "world") as world:
        with pytest.raises(AssertionError, match="is not"):
            compare_doors(world, "private histogram", ("own", "private key"), tmp_path)
