"""Values with more digits than a double has stay exact through SQL: in comparisons after the noise, in the answer,
and in all that is written of it. The types of released columns are known before anything is charged.
"""

from __future__ import annotations

import csv
import json
import random
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow import Ledger, plan_sql, sql
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.core.contract.declaration import Table

#: Steps of the grid that a column's bounds may hold, and how far these are from its only value.
MAX_STEPS, REACH = 2**63, 50


def write_digits(value: Fraction) -> str:
    """A decimal with all of its digits."""
    scale = next(n for n in range(40) if value * 10**n % 1 == 0)
    return f"{Decimal(int(value * 10**scale)).scaleb(-scale, _WIDE):f}"


_WIDE = Context(prec=80)


class World:
    """A table of 60 units; each of its columns holds one value everywhere."""

    def __init__(self, folder: Path, columns: dict[str, tuple[str, Fraction, Fraction]]) -> None:
        listed = ", ".join(
            f"CAST('{write_digits(value)}' AS {kind}) AS {name}"
            for name, (kind, value, _) in columns.items()
        )
        with duckdb.connect(str(folder / "data.duckdb")) as connection:
            connection.execute(f"CREATE TABLE data AS SELECT i AS u, {listed} FROM range(60) t(i)")
        declared = {
            name: {
                "lower": write_digits(value - REACH * step),
                "upper": write_digits(value + REACH * step),
                "step": write_digits(step),
            }
            for name, (_, value, step) in columns.items()
        }
        self.table = Table.model_validate(
            {
                "name": "data",
                "database": folder / "data.duckdb",
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 1},
                "columns": declared,
            }
        )
        self.ledger = Ledger(folder / "ledger.sqlite", create=True, anchor=folder / "anchor")
        self.ledger.grant(
            "data", 10**6, "1e-3", filter="basic", table=self.table, principal="o", confirm_large=True
        )  # fmt: skip

    def ask(self, query: str, **options: Any) -> SqlAnswer:
        options = {"epsilon": 10**5, "scope": "data"} | options
        return sql(query, tables=[self.table], ledger=self.ledger, **options)


@pytest.fixture(scope="module")
def columns() -> dict[str, tuple[str, Fraction, Fraction]]:
    """Of every scale and wide integer type, each with a value of up to 63 bits of steps."""
    rng = random.Random(7)
    columns = {}
    for scale in range(39):
        step = Fraction(1, 10**scale)
        digits = rng.choice(
            [2**53 + 1, MAX_STEPS - 2 * REACH, rng.randrange(2**53, MAX_STEPS // 2)]
        )
        columns[f"d{scale}"] = (f"DECIMAL(38,{scale})", digits * step, step)
    for kind, value in (
        ("UBIGINT", 2**63 + 1),
        ("UBIGINT", 2**64 - 1 - REACH),
        ("HUGEINT", 2**64 - 2 - REACH),
        ("BIGINT", 2**62 + 73),
    ):
        columns[f"i{len(columns)}"] = (kind, Fraction(value), Fraction(1))
    return columns


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, tuple[str, Fraction, Fraction]]
) -> World:
    return World(tmp_path_factory.mktemp("exact"), columns)


def test_quantiles_of_every_scale_are_exact(
    world: World, columns: dict[str, tuple[str, Fraction, Fraction]], tmp_path: Path
) -> None:
    """As numbers, as operands of comparisons and sums, and in every form that an answer is written in."""
    medians = ", ".join(f"QUANTILE_DISC({name}, 0.5) AS {name}" for name in columns)
    answer = world.ask(f"SELECT {medians} FROM data")
    (row,) = answer.rows
    for column, value, (_, exact, _) in zip(answer.columns, row, columns.values(), strict=True):
        assert Fraction(value) == exact and not isinstance(value, float), column
    assert SqlAnswer.from_wire(json.loads(json.dumps(answer.to_wire()))).rows == answer.rows
    assert [Fraction(v) for v in answer.to_json()["rows"][0].values()] == [
        exact for _, exact, _ in columns.values()
    ]
    for file in (tmp_path / "a.csv", tmp_path / "a.parquet"):
        answer.write(file)
    with open(tmp_path / "a.csv") as lines:
        (line,) = csv.DictReader(lines)
    assert [Fraction(line[name]) for name in columns] == [*map(Fraction, row)]
    with duckdb.connect() as connection:
        read = connection.execute(
            f"SELECT {', '.join(columns)} FROM '{tmp_path / 'a.parquet'}'"
        ).fetchone()
        assert read is not None and [*map(Fraction, read)] == [*map(Fraction, row)]
    inner = f"WITH r AS (SELECT {medians} FROM data)"
    tests = ", ".join(
        f"{name} = {write_digits(value)} AND {name} > {write_digits(value - step)}"
        for name, (_, value, step) in columns.items()
        # DuckDB reads a literal of 38 decimals as a double.
        if name != "d38"
    )
    # The same releases: nothing is charged.
    compared = world.ask(f"{inner} SELECT {tests} FROM r")
    assert compared.free and compared.rows == [(True,) * (len(columns) - 1)]


def test_a_type_does_not_depend_on_what_was_drawn(world: World) -> None:
    """It was text where a double did not write the value drawn, and the query failed after the charge."""
    plan = plan_sql(
        "SELECT MEDIAN(d4) + 1 AS x FROM data",
        tables=[world.table],
        ledger=world.ledger,
        epsilon=10**5,
        scope="data",
    )
    assert plan.columns == ("x",)
    ordered = world.ask("SELECT MEDIAN(d4) > MEDIAN(d6) AS x, MEDIAN(d4) + 1 > 0 AS y FROM data")
    assert ordered.rows == [(True, True)]


def test_keys_of_many_digits_stay_apart(tmp_path: Path) -> None:
    """Two keys that one double stands for are two, and are compared as numbers."""
    keys = {"DECIMAL(38,4)": ("99999999999999.0001", "100000000000000.0001", "100000000000000.0002"),
            "UBIGINT": ("9223372036854775807", "9223372036854775809", "9223372036854775810"),
            "DECIMAL(10,2)": ("9.50", "10.25", "10.50")}  # fmt: skip
    for number, (kind, (first, low, high)) in enumerate(keys.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, {"v": ("DECIMAL(5,2)", Fraction(1), Fraction(1, 100))})
        with duckdb.connect(str(folder / "data.duckdb")) as connection:
            texts = f"['{first}', '{low}', '{high}']"
            connection.execute(
                f"CREATE OR REPLACE TABLE data AS SELECT i AS u, CAST({texts}[1 + i % 3] AS {kind}) AS k, 1.00 AS v "
                "FROM range(180) t(i)"
            )
        columns = world.table.columns | {"k": {}}
        world.table = Table.model_validate(world.table.model_dump() | {"columns": columns})
        options = {"epsilon": 100, "delta": "1e-6"}
        asked = "SELECT k, COUNT(*) AS n FROM data GROUP BY k"
        found = world.ask(f"{asked} ORDER BY k", **options)
        assert [Fraction(k) for k, _ in found.rows] == [*map(Fraction, (first, low, high))], kind
        beyond = world.ask(f"{asked} HAVING k > {low} ORDER BY k", **options)
        assert [Fraction(k) for k, _ in beyond.rows] == [Fraction(high)], kind


def test_an_interval_of_a_far_mean_holds_it(tmp_path: Path) -> None:
    """Doubles are a quarter apart there: the interval was one double beside the mean."""
    value, step = Fraction(142857142857142857, 100), Fraction(1, 100)
    world = World(tmp_path, {"v": ("DECIMAL(18,2)", value, step)})
    (cell,) = world.ask("SELECT AVG(v) AS x FROM data").values[0]
    assert cell.low is not None and cell.high is not None
    assert Fraction(cell.low) <= value <= Fraction(cell.high) and cell.high - cell.low < 8


def test_conditions_and_orders_of_rows_see_all_digits(tmp_path: Path) -> None:
    """Values one double apart: WHERE, COUNT_IF and CASE part them, and a unit's first value is of the least."""
    low, high = "123456789012345678.25", "123456789012345678.26"
    world = World(tmp_path, {"v": ("DECIMAL(5,2)", Fraction(1), Fraction(1, 100))})
    with duckdb.connect(str(tmp_path / "data.duckdb")) as connection:
        connection.execute(
            f"CREATE OR REPLACE TABLE data AS SELECT i // 2 AS u, (i % 2)::DECIMAL(5,2) AS v, "
            f"(CASE WHEN i % 2 = 0 THEN '{high}' ELSE '{low}' END)::DECIMAL(38,2) AS w FROM range(400) t(i)"
        )
    fields = world.table.model_dump() | {"contribution_bounds": {"rows": 2}}
    columns = {"w": {}, "v": {"lower": 0, "upper": 2, "step": "0.01"}}
    world.table = Table.model_validate(fields | {"columns": columns})
    options = {"epsilon": 100_000}
    for where, rows in (
        (f"w > {low}", 200),
        (f"w < {high}", 200),
        (f"w = {high}", 200),
        (f"{low} < w", 200),
    ):
        assert world.ask(f"SELECT COUNT(*) AS n FROM data WHERE {where}", **options).rows == [
            (rows,)
        ]
    listed = f"SELECT COUNT_IF(w > {low}) AS a, SUM(CASE WHEN w <= {low} THEN 1 ELSE 0 END) AS b FROM data"
    assert world.ask(listed, **options).rows == [(200, 200)]
    calls = ("ARG_MIN(v, w)", "ARG_MAX(v, w)", "FIRST(v ORDER BY w)", "LAST(v ORDER BY w)")
    for call, value in zip(calls, (1, 0, 1, 0)):
        people = f"WITH p AS (SELECT u, {call} AS x FROM data GROUP BY u)"
        ((mean,),) = world.ask(f"{people} SELECT AVG(x) AS m FROM p", **options).rows
        assert abs(mean - value) < 0.05, call
