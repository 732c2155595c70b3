"""Expressions over columns whose step nobody declared: refused before a charge where a grid would round fractions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow import Ledger, api, sql
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.grid_check import GridReader
from dpflow.errors import PlanRefused
from dpflow.tables.language.grouping import declare_columns
from dpflow.tables.private import PrivateTable

KINDS = ("DOUBLE", "FLOAT", "DECIMAL(5,2)", "DECIMAL(5,0)", "INTEGER")
FRACTIONS = KINDS[:3]
#: Rounded to whole numbers, or to multiples of them, where ``y`` has fractions.
ROUNDED = (
    "coalesce(y, 0)",
    "2 * y",
    "y * 0.5",
    "y + 1",
    "-y",
    "y * y",
    "y + v",
    "1000 * y + v",
    "least(y, 1)",
    "least(w, 2)",
    "CASE WHEN v > 2 THEN y ELSE 0 END",
    "abs(y)",
    "CAST(y AS DOUBLE)",
)
#: On a grid that holds them, or on a fine one whose rounding the interval includes.
HELD = (
    "y / 2",
    "y + 0.5",
    "y % 1",
    "round(y)",
    "100 * round(y, 2)",
    "2 * round(y, 2) + v",
    "CASE WHEN y > 0.5 THEN 1 ELSE 0 END",
    "v * 2",
    "v * 0.5",
    "v / 2",
    "v + 0.5",
    "least(v, 2)",
    "CAST(v AS DOUBLE) + v",
    "hour(a)",
    "date_diff('hour', a, b)",
)
TWO_OF_V = {"v + 1": "v + 1", "v + y": "v + y"}
BELOW = "FROM (SELECT u, {} AS f FROM t GROUP BY u)"


class World:
    """Tables of one row a unit, with ``y`` and ``w`` of a type, and ``v`` of whole numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.granted = folder, set[str]()
        self.ledger = Ledger(folder / "ledger.sqlite", create=True, anchor=folder / "anchor")

    def open_table(self, kind: str, step: str | None = None, **columns: Any) -> Table:
        file = self.folder / f"{KINDS.index(kind)}.duckdb"
        if not file.exists():
            with duckdb.connect(str(file)) as connection:
                part = "* 0.29 + 0.13" if kind in FRACTIONS else ""
                connection.execute(
                    f"CREATE TABLE t AS SELECT i AS u, CAST((i % 4) {part} AS {kind}) AS y, CAST((i % 90) {part} AS {kind}) AS w, "
                    f"CAST(i % 5 AS INTEGER) AS v, TIMESTAMP '2020-01-01 06:00:00' + INTERVAL (i % 50) HOUR AS a, "
                    f"TIMESTAMP '2020-02-01' AS b FROM range(2000) r(i)"
                )
        declared = {} if step is None else {"step": step}
        days = {"lower": "2020-01-01", "upper": "2020-03-01"}
        table = Table.model_validate(
            {
                "name": "t",
                "database": file,
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 1},
                "columns": {
                    "y": {"lower": 0, "upper": 3, **declared},
                    "w": {"lower": 0, "upper": 100, **declared},
                    "v": {"lower": 0, "upper": 4},
                    "a": days,
                    "b": days,
                    **columns,
                },
            }
        )
        scope = f"s{KINDS.index(kind)}"
        if scope not in self.granted:
            self.granted.add(scope)
            self.ledger.grant(
                scope, 10**6, 0, filter="basic", table=table, principal="o", confirm_large=True
            )
        return table

    def refuse(self, text: str, kind: str, match: str) -> None:
        table = self.open_table(kind)
        scope = f"s{KINDS.index(kind)}"
        left = self.ledger.remaining(scope).rows()
        with pytest.raises(PlanRefused, match=match):
            sql(text, tables=[table], ledger=self.ledger, scope=scope, epsilon=1)
        assert self.ledger.remaining(scope).rows() == left

    def hold(self, values: tuple[str, ...], kind: str, step: str | None = None) -> None:
        """Require that intervals of means hold the truth, where noise is far below a step."""
        table = self.open_table(kind, step)
        text = f"SELECT {', '.join(f'{value} AS m{n}' for n, value in enumerate(values))} FROM t"
        with duckdb.connect(str(table.database), read_only=True) as connection:
            truths = connection.execute(text).fetchall()[0]
        scope = f"s{KINDS.index(kind)}"
        answer = sql(text, tables=[table], ledger=self.ledger, scope=scope, epsilon=100_000)
        (row,) = answer.to_pandas(intervals=True).to_dict("records")
        for n, (value, truth) in enumerate(zip(values, truths)):
            low, high = row[f"m{n}_noise_low"], row[f"m{n}_noise_high"]
            # The single values of FLOAT differ from their doubles by less.
            assert low - 1e-6 <= float(truth) <= high + 1e-6, (kind, value, truth, low, high)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("grids"))


@pytest.mark.parametrize("kind", FRACTIONS)
@pytest.mark.parametrize("value", ROUNDED)
def test_an_expression_of_fractions_is_not_rounded(world: World, kind: str, value: str) -> None:
    """As the column itself is not: it is refused before a charge, and told what to declare or write."""
    if kind == "DECIMAL(5,2)" and value == "1000 * y + v":
        # Its values are whole numbers.
        return world.hold((f"AVG({value})",), kind)
    column = "w" if "w" in value else "y"
    match = (
        rf"of column {column}, which holds .*declare step: 0\.0*1 of {column}.*round\({column}, 2"
    )
    world.refuse(f"SELECT AVG({value}) FROM t", kind, match)
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_other_expressions_have_true_intervals(world: World, kind: str) -> None:
    """Whole numbers have a grid, whatever they are computed of; so do quotients and rounded values."""
    rounded = () if kind in FRACTIONS else ROUNDED
    world.hold(tuple(f"AVG({value})" for value in (*HELD, *rounded)), kind)


@pytest.mark.parametrize("kind", FRACTIONS)
def test_a_declared_step_is_a_grid(world: World, kind: str) -> None:
    world.hold(tuple(f"AVG({value})" for value in (*HELD, *ROUNDED)), kind, "0.01")


@pytest.mark.parametrize(
    "feature", ["MAX(y)", "SUM(2 * y)", "ARG_MIN(y, v)", "MIN(y) FILTER (WHERE v > 0)"]
)
def test_numbers_of_a_units_rows_are_not_rounded(world: World, feature: str) -> None:
    """A query by unit has columns of its own, whose steps are those of the rows' columns."""
    for value in ("f", "least(f, 1)"):
        text = f"SELECT AVG({value}) {BELOW.format(feature)}"
        world.refuse(text, "DOUBLE", "of column y, which holds DOUBLE")
        for kind, step in (("INTEGER", None), ("DOUBLE", "0.01")):
            table = world.open_table(kind, step)
            api.plan_sql(
                text, tables=[table], ledger=world.ledger, scope=f"s{KINDS.index(kind)}", epsilon=1
            )


def test_a_declared_expression_of_a_units_rows_has_the_grid_of_its_columns(world: World) -> None:
    """Its type in the source is none, and that of the language tells nothing."""
    of_rows = {"whole": "v + 1", "odd": "v % 2", "part": "y + 1"}
    columns = {
        name: {"expression": text, "lower": 0, "upper": 10} for name, text in of_rows.items()
    }
    table = world.open_table("DOUBLE", **columns)
    common: dict[str, Any] = {"ledger": world.ledger, "scope": "s0", "epsilon": 1}
    for feature in ("MAX(whole)", "SUM(odd)", "SUM(whole + odd)"):
        assert sql(f"SELECT AVG(f) {BELOW.format(feature)}", tables=[table], **common)
    with pytest.raises(PlanRefused, match="of column y, which holds DOUBLE"):
        sql(f"SELECT AVG(f) {BELOW.format('MAX(part)')}", tables=[table], **common)


@pytest.mark.parametrize("mechanism", ["predict_value", "predict_linear"])
def test_a_predicted_number_is_not_rounded(world: World, mechanism: str) -> None:
    """A session that learns it reads it as a value, not as a key."""
    table = world.open_table("DOUBLE")
    more = {"shards": 10} if mechanism == "predict_value" else {"size": 2000}
    plan = api.plan(
        mechanism, table, name=mechanism, scope="s0", epsilon=40, label="y", features=["v"],
        predictions=3, **more,
    )  # fmt: skip
    left = world.ledger.remaining("s0").rows()
    with pytest.raises(PlanRefused, match="reads column y, which holds DOUBLE .*declare step: 0"):
        api.open_session(plan, world.ledger)
    assert world.ledger.remaining("s0").rows() == left


def test_each_type_is_asked_for_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection each would be dear on a server."""
    asked, read = list[str](), PrivateTable.column_types

    def note(private: PrivateTable, names: Any) -> Any:
        asked.extend(names)
        return read(private, names)

    monkeypatch.setattr(PrivateTable, "column_types", note)
    table = world.open_table("INTEGER")
    columns = {name: Column(expression=text, lower=0, upper=9) for name, text in TWO_OF_V.items()}
    grids, declared = GridReader(PrivateTable(table)), declare_columns(table, columns)
    assert not any(grids.find_rounded(name, declared) for name in (*TWO_OF_V, "v", "y"))
    assert sorted(asked) == ["v", "y"]


@pytest.mark.parametrize(
    ("expression", "declared", "refused"),
    [
        ("y + 0", {}, True),
        ("v / 2", {}, True),
        ("round(y, 2)", {}, True),
        ("y + 0", {"step": "0.01"}, False),
        ("y + 0", {"step": 1}, False),
        ("v + 1", {}, False),
        ("v % 2", {}, False),
        ("round(y)", {}, False),
        ("round(v, 2)", {}, False),
        ("CASE WHEN y > 0.5 THEN 1 ELSE 0 END", {}, False),
        ("hour(a)", {}, False),
    ],
)
def test_a_declared_expression_needs_a_step_where_it_has_fractions(
    world: World, expression: str, declared: dict[str, Any], refused: bool
) -> None:
    """In a release, a contract's check and a session that watches one."""
    column = {"expression": expression, "lower": 0, "upper": 20, **declared}
    table = world.open_table("DOUBLE", c=column)
    checks = [{"name": "k", "check": "mean", "column": "c", "at_most": 1}]
    name, common = f"{expression} {declared}", {"scope": "s0", "epsilon": 1}
    plans = [
        api.plan("mean", table, name=name, column="c", **common),
        api.plan("check_rows", table, name=f"check {name}", checks=checks, **common),
    ]
    watch = api.plan(
        "watch_rows", table, name=f"watch {name}", checks=checks, questions=1, **common
    )
    left = world.ledger.remaining("s0").rows()
    if not refused:
        assert all(api.release(plan, world.ledger) for plan in plans)
        assert api.open_session(watch, world.ledger)
        return
    for plan in plans:
        with pytest.raises(PlanRefused, match="reads column c, which is .*declare step: 0"):
            api.release(plan, world.ledger)
    with pytest.raises(PlanRefused, match="reads column c, which is .*declare step: 0"):
        api.open_session(watch, world.ledger)
    assert world.ledger.remaining("s0").rows() == left


@pytest.mark.parametrize(("column", "kind"), [("y", "DOUBLE"), ("c", "FLOAT")])
def test_a_holdouts_means_are_not_rounded(world: World, column: str, kind: str) -> None:
    """Questions of a session name columns after its charge, so what no grid holds is read as it is."""
    declared = world.open_table(kind, c={"expression": "y * 0.5", "lower": 0, "upper": 2})
    table = declared.model_copy(update={"name": column, "relation": "t", "holdout": True})
    world.ledger.grant(
        column, 100, 0, filter="basic", table=table, principal="o", confirm_large=True
    )
    plan = api.plan(
        "stable_median",
        table,
        name="a",
        scope=column,
        epsilon="90",
        groups=40,
        queries=1,
        range_size=301,
        interval="simple",
    )
    grid = {"kind": "grid", "lower": 0, "upper": 3, "step": "0.01"}
    answer = api.open_session(plan, world.ledger).ask("column_mean", columns=[column], range=grid)
    assert abs(answer["value"] - 0.565 * (1 if column == "y" else 0.5)) < 0.04
