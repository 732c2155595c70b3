"""Every mechanism through the whole engine on tables that are awkward: empty, one row, one label,
one value, any domain size.
"""

from __future__ import annotations

import datetime as dt
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from dpflow_private_learning import plugin
from dpflow_private_learning.building_blocks.classifier import PrivateClassifier
from dpflow_private_learning.building_blocks.hypotheses import ColumnScale

import dpflow
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import SortedValues
from dpflow.engine.releases.request import Publish
from dpflow.errors import DpflowError, InvalidInput, PlanRefused
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable

NUMBER, REGISTRY = count(), dpflow.Registry.load()
ONE: dict[str, Any] = {"column": "x", "epsilon": "1"}
LABELLED = ONE | {"label": "late", "rows": 1000}
SEVERAL = {"columns": ["x"], "label": "late", "epsilon": "1", "rows": 1000}
PARAMS: dict[str, dict[str, Any]] = {
    "mode": ONE,
    "unimodal_mode": ONE | {"promise": 10},
    "learn_class": SEVERAL,
    "learn_points": LABELLED | {"delta": "1e-6", "allow_zero": True},
    "learn_thresholds": LABELLED | {"delta": "1e-6", "levels": 2},
    "learn_thresholds_by_search": LABELLED | {"delta": "1e-6"},
    "learn_rectangles": SEVERAL | {"columns": ["x", "other"]},
    "learn_semi_private": SEVERAL | {"public": [["0"], ["2"]]},
    "learn_label_private": SEVERAL | {"alpha": "9/10", "beta": "1/2"},
    "sanitize_points": ONE | {"rows": 1000},
    "sanitize_thresholds": ONE | {"rows": 1000},
    "sanitize_small": {"column": "other", "epsilon": "1", "rows": 1000, "size": 6},
    "sanitize_union": ONE | {"rows": 1000, "parts": [{"rules": "points"}, {"rules": "thresholds"}]},
    "sanitize_blocks": ONE | {"rows": 1000, "shards": 3},
    "sanitize_labelled": LABELLED,
    "learn_from_sanitizer": LABELLED | {"rules": "points"},
}
ROWS = {
    "no rows": "SELECT 0 AS id, 0 AS x, 0 AS other, 0 AS late WHERE false",
    "one row": "SELECT 0 AS id, 1 AS x, 1 AS other, 1 AS late",
    "one label": "SELECT i AS id, i % 7 AS x, i % 3 AS other, 1 AS late FROM range(300) t(i)",
    "one value": "SELECT i AS id, 2 AS x, 2 AS other, i % 2 AS late FROM range(300) t(i)",
    "unsorted, twice, missing, wild": """
        SELECT (i * 7919) % 200 AS id, CASE i % 7 WHEN 0 THEN NULL WHEN 1 THEN 1e300 WHEN 2 THEN 'nan'::DOUBLE WHEN 3 THEN 'inf'
               WHEN 4 THEN '-inf' WHEN 5 THEN 5e-324 ELSE -i END AS x,
               i % 5 AS other, CASE WHEN i % 3 = 0 THEN NULL ELSE i % 4 END AS late FROM range(400) t(i)""",
}
DOMAINS = {"one": (0, 0.5), "three": (0, 2), "2^62": (-(2**61), 2**61)}


class World:
    """A private table, a ledger that can pay for everything, and a place to publish."""

    def __init__(self, folder: Path, rows: str, domain: str) -> None:
        low, high = DOMAINS[domain]
        columns = {
            "x": {"lower": low, "upper": high, "step": 1, "missing": 0, "public": True},
            "other": {"lower": 0, "upper": 2, "missing": 0, "public": True},
            "late": {"lower": 0, "upper": 1, "missing": 0},
        }
        declared = {
            "name": "t",
            "privacy_unit": {"column": "id"},
            "contribution_bounds": {"rows": 1},
            "neighbours": "replace",
        }
        self.table = Table.model_validate(
            declared | {"database": folder / "t.duckdb", "columns": columns}
        )
        with duckdb.connect(str(folder / "t.duckdb")) as connection:
            connection.execute(f"CREATE TABLE t AS {ROWS[rows]}")
        self.out = folder / "out.duckdb"
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        self.ledger.grant(
            "all",
            1000,
            "1e-2",
            filter="basic",
            table=self.table,
            principal="owner",
            confirm_large=True,
        )

    def release(self, mechanism: str, params: dict[str, Any]) -> Any:
        """One release, published."""
        place = Publish(database=self.out, table=f"r{next(NUMBER)}")
        made = dpflow.plan(
            mechanism,
            self.table,
            name=place.table,
            scope="all",
            publish=place,
            registry=REGISTRY,
            **params,
        )
        return dpflow.release(made, self.ledger, registry=REGISTRY), place.table


#: Worlds in which mechanisms take turns; all of them answer in each world in slow runs.
QUICK = [
    ("no rows", "one"),
    ("one row", "three"),
    ("one label", "2^62"),
    ("unsorted, twice, missing, wild", "2^62"),
]
WORLDS = [
    *((rows, domain, slice(turn % 3, None, 3)) for turn, (rows, domain) in enumerate(QUICK)),
    *(
        pytest.param(rows, domain, slice(None), marks=pytest.mark.slow)
        for rows in ROWS
        for domain in DOMAINS
    ),
]


@pytest.mark.parametrize(("rows", "domain", "turns"), WORLDS)
def test_awkward_tables_are_answered(tmp_path: Path, rows: str, domain: str, turns: slice) -> None:
    """No error, a charge, a result in DuckDB; a rule predicts; an artificial table stands beside
    it.
    """
    world = World(tmp_path, rows, domain)
    for mechanism in [*Registry({"learning": plugin}).mechanisms.values()][turns]:
        receipt, name = world.release(mechanism.name, PARAMS[mechanism.name])
        # Of fewer rows than a method asks for there is no rule, which follows from the noisy count.
        is_none = receipt.result.document["method"] == "none"
        assert not receipt.replayed and (receipt.result.rows[0].measure == "none") == is_none
        assert not is_none or mechanism.name == "learn_label_private"
        with duckdb.connect(str(world.out), read_only=True) as connection:
            assert connection.execute(f"SELECT count(*) FROM {name}").fetchone() is not None
        if "hypothesis" in receipt.result.document:
            model = PrivateClassifier.from_document(receipt.result.document)
            assert set(model.predict([[0] * model.n_features_in_, [2] * model.n_features_in_])) <= {
                0,
                1,
            }
            with duckdb.connect(str(world.table.database), read_only=True) as connection:
                connection.execute(
                    f"SELECT count(*) FROM t WHERE {receipt.result.document['sql']}"
                ).fetchone()


ODD_TYPES = {
    "x": ["VARCHAR 'a'", "UUID '00000000-0000-0000-0000-000000000000'", "BLOB 'a'", "[1]"],
    "late": ["VARCHAR 'yes'", "INTERVAL 1 DAY", "DATE '2013-01-01'"],
}


@pytest.mark.parametrize("column", ODD_TYPES)
def test_columns_of_another_type_than_declared_are_refused_free_of_charge(
    tmp_path: Path, column: str
) -> None:
    """By every mechanism that reads them, with the column's name and its type."""
    world = World(tmp_path, "one row", "three")
    refused = 0
    for value in ODD_TYPES[column]:
        with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
            query = f"SELECT * REPLACE ({value} AS {column}) FROM ({ROWS['one row']})"
            connection.execute(f"CREATE OR REPLACE TABLE t AS {query}")
        for mechanism, params in PARAMS.items():
            if column not in (
                params.get("column"),
                params.get("label"),
                *params.get("columns", ()),
            ):
                continue
            with pytest.raises(DpflowError, match=f"column '?{column}'?(,| is)"):
                world.release(mechanism, params)
            refused += 1
    assert refused >= 3 * 9
    assert world.ledger.remaining("all").rows()[0]["epsilon_left"] == "1000"


def test_a_gate_is_checked_before_any_table_is_opened() -> None:
    """The private file does not exist: the number of rows that the plan declares is what refuses,
    under either relation.
    """
    columns = {"x": {"lower": 0, "upper": 100}}
    for relation in ("replace", "add-remove"):
        declared = {
            "name": "t",
            "database": "/nowhere/t.duckdb",
            "privacy_unit": {"column": "id"},
            "contribution_bounds": {"rows": 1},
        }
        table = Table.model_validate(declared | {"columns": columns, "neighbours": relation})
        given = {"column": "x", "epsilon": "1", "delta": "1e-6", "alpha": "1/10"}
        for mechanism, method in (
            ("mode", "choosing"),
            ("sanitize_points", "san-points"),
            ("sanitize_thresholds", "san-thresholds"),
        ):
            with pytest.raises(PlanRefused, match=r"private only from \d+ rows, and rows says 100"):
                dpflow.plan(
                    mechanism,
                    table,
                    name="a",
                    scope="all",
                    registry=REGISTRY,
                    method=method,
                    rows=100,
                    **given,
                )
        # Left out, rows are counted or read within the release.
        dpflow.plan(
            "mode", table, name="a", scope="all", method="choosing", registry=REGISTRY, **given
        )


def test_rows_are_counted_within_the_release_where_they_are_private(tmp_path: Path) -> None:
    """One charge pays for count and choice; a table below the gate is charged too, and gives none.
    Chances are below e^-40.
    """
    world = World(tmp_path, "no rows", "three")
    columns = {
        name: column.model_copy(update={"public": False})
        for name, column in world.table.columns.items()
    }
    world.table = world.table.model_copy(update={"neighbours": "add-remove", "columns": columns})
    world.ledger.grant("coming", 10, "1e-3", filter="basic", table=world.table, principal="owner")
    given = {"column": "x", "method": "choosing", "epsilon": "1", "delta": "1e-6"}
    for n, value in ((50_000, 2), (10, None)):
        with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
            connection.execute(
                f"CREATE OR REPLACE TABLE t AS SELECT i AS id, 2 AS x, 2 AS other, 1 AS late FROM range({n}) t(i)"
            )
        made = dpflow.plan(
            "mode", world.table, name=f"of {n}", scope="coming", registry=REGISTRY, **given
        )
        assert made.privacy_cost() == ("1", "0.000001")
        result = dpflow.release(made, world.ledger, registry=REGISTRY).result
        assert [(row.measure, row.value) for row in result.rows] == [
            ("none" if value is None else "mode", value)
        ]
        assert abs(result.document["rows"] - n) < 1000
    assert world.ledger.remaining("coming").rows()[0]["epsilon_left"] == "8"


@pytest.mark.parametrize("mechanism", sorted(PARAMS))
@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": "0"},
        {"epsilon": "nan"},
        {"epsilon": "-1"},
        {"alpha": "0"},
        {"alpha": "1"},
        {"beta": "2"},
        {"rows": -5},
    ]
    + [
        {"delta": "1.5"},
        {"alpha": "inf"},
        {"label": "x", "column": "nobody", "columns": ["nobody"]},
        {"surprise": 1},
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(mechanism: str, wrong: dict[str, Any]) -> None:
    """Whatever a field may not be, in every mechanism that has the field; and fields that it does
    not have.
    """
    columns = {
        "x": {"lower": 0, "upper": 2, "public": True},
        "other": {"lower": 0, "upper": 2, "public": True},
    }
    declared = {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "id"},
        "contribution_bounds": {"rows": 1},
        "neighbours": "replace",
    }
    late = {"late": {"lower": 0, "upper": 1, "missing": 0}}
    table = Table.model_validate(declared | {"columns": columns | late})
    with pytest.raises(InvalidInput):
        dpflow.plan(
            mechanism,
            table,
            name="a",
            scope="all",
            registry=REGISTRY,
            **(PARAMS[mechanism] | wrong),
        )


def test_a_column_of_dates_is_answered_in_dates(tmp_path: Path) -> None:
    """A cut, its predicate on dates and on timestamps, predictions for both, and artificial rows:
    dates all through.
    """
    world = World(tmp_path, "no rows", "three")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        day = "DATE '2000-01-01' + CAST(i % 4000 AS INTEGER)"
        connection.execute(
            f"CREATE OR REPLACE TABLE t AS SELECT i AS id, {day} AS x, i % 4000 < 1000 AS late FROM range(20000) t(i)"
        )
    bounds = {"lower": dt.date(2000, 1, 1), "upper": dt.date(2012, 12, 31), "public": True}
    columns = world.table.columns | {"x": Column.model_validate(bounds)}
    world.table = world.table.model_copy(update={"columns": columns})
    receipt, _ = world.release("learn_thresholds", LABELLED | {"epsilon": "5"})
    cut = dt.date.fromisoformat(receipt.result.rows[0].value)
    assert abs(cut - dt.date(2002, 9, 27)) < dt.timedelta(
        days=100
    )  # 500 rows worse, at odds of e^-1250
    model = PrivateClassifier.from_document(receipt.result.document)
    days = [cut - dt.timedelta(days=1), cut, None]
    assert model.predict([[day] for day in days]).tolist() == [1, 0, 0]
    for kind in ("DATE", "TIMESTAMP"):
        with duckdb.connect() as connection:
            connection.execute(f"CREATE TABLE s AS SELECT CAST(unnest(?) AS {kind}) AS x", [days])
            assert connection.execute(f"SELECT {model.sql_} FROM s").fetchall() == [
                (True,),
                (False,),
                (None,),
            ]
            assert model.predict(connection.execute("FROM s").df()).tolist() == [1, 0, 0]
    _, name = world.release("sanitize_thresholds", ONE | {"rows": 20000})
    with duckdb.connect(str(world.out)) as connection:
        made = connection.execute(
            f"SELECT typeof(x), x >= DATE '2000-01-01' FROM {name}_synthetic"
        ).fetchall()
    assert made and set(made) == {("DATE", True)}


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"])
def test_no_date_is_too_far_for_the_predicate(tmp_path: Path, kind: str) -> None:
    """Every date of the type has the grid integer that the mechanism gives it; DuckDB's own cast to
    a timestamp would fail on some.
    """
    far = {
        "DATE": ("5881580-07-10", "5877642-06-25 (BC)"),
        "TIMESTAMP": ("290309-12-22 (BC) 00:00:00", "294247-01-10"),
    }
    moments = [
        "infinity",
        "-infinity",
        "1999-12-31 18:00:00",
        "2000-01-01",
        "2012-12-31 18:00:00",
        "2013-01-01",
        "2005-05-05",
    ]
    near = [
        "2005-05-05 11:59:59",
        "2005-05-05 12:00:00",
        *far.get(kind, ("2262-04-11 23:47:16", "1677-09-22")),
    ]
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE TABLE t (id INTEGER, x {kind})")
        rows = [*enumerate([*moments, *near]), (99, None)]
        connection.executemany(
            f"INSERT INTO t VALUES (?, CAST(CAST(? AS VARCHAR) AS {kind}))", rows
        )
    column = Column.model_validate({"lower": dt.date(2000, 1, 1), "upper": dt.date(2012, 12, 31)})
    declared = {
        "name": "t",
        "database": tmp_path / "t.duckdb",
        "privacy_unit": {"column": "id"},
        "contribution_bounds": {"rows": 1},
    }
    table = Table.model_validate(declared | {"columns": {"x": {}}}).model_copy(
        update={"columns": {"x": column}}
    )
    found = PrivateTable(table).answer(SortedValues("x", 1), ())
    wanted = [None, *np.repeat(found.values, found.counts).tolist()]
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        values = connection.execute(
            f"SELECT {ColumnScale.from_column('x', column).sql_expression()} AS d FROM t ORDER BY d NULLS FIRST"
        ).fetchall()
    assert [value for (value,) in values] == wanted and len(wanted) == len(rows)


KINDS = (
    *(
        "BOOLEAN",
        "TINYINT",
        "BIGINT",
        "HUGEINT",
        "UTINYINT",
        "UBIGINT",
        "FLOAT",
        "DOUBLE",
    ),
    *("DECIMAL(5,2)", "DECIMAL(38,0)", "DECIMAL(38,37)"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", ["1", "0.25"])
def test_the_predicate_reads_every_type_of_number(tmp_path: Path, kind: str, step: str) -> None:
    """As the mechanism does, in steps of 1 and of fractions."""
    path = tmp_path / "t.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            f"CREATE TABLE t AS SELECT row_number() OVER () AS id, TRY_CAST(v AS {kind}) AS x "
            "FROM unnest(['true', 'false', '0', '1', '0.49', '0.5', '1.5', '2', '9', NULL]) s(v)"
        )
        (rows,) = connection.execute("SELECT count(x) FROM t").fetchone() or (0,)
    column = Column.model_validate({"lower": 0, "upper": 1, "step": step})
    declared = {
        "name": "t",
        "database": path,
        "privacy_unit": {"column": "id"},
        "contribution_bounds": {"rows": 1},
    }
    table = Table.model_validate(declared | {"columns": {"x": {}}}).model_copy(
        update={"columns": {"x": column}}
    )
    found = PrivateTable(table).answer(SortedValues("x", 1), ())
    with duckdb.connect(str(path)) as connection:
        values = connection.execute(
            f"SELECT {ColumnScale.from_column('x', column).sql_expression()} AS d FROM t WHERE x IS NOT NULL ORDER BY d"
        ).fetchall()
    assert [value for (value,) in values] == np.repeat(found.values, found.counts).tolist()
    assert len(values) == rows > 1


@pytest.mark.parametrize(
    ("mechanism", "params"),
    [
        ("sanitize_points", {"k": 999, "alpha": "1/1000000"}),
        ("sanitize_points", {"alpha": "1/100000", "method": "san-points", "delta": "1e-6"}),
        (
            "sanitize_union",
            {"alpha": "1/100000", "parts": [{"rules": "points"}, {"rules": "thresholds"}]},
        ),
        ("sanitize_blocks", {"rules": "points", "shards": 10_000, "alpha": "1/10"}),
        ("sanitize_labelled", {"rules": "points", "label": "y", "alpha": "1/100000"}),
    ],
)
def test_rounds_that_would_not_end_are_refused_before_the_charge(
    mechanism: str, params: dict[str, Any]
) -> None:
    """Two billion rounds were planned, and would have been charged and never answered."""
    columns = {"x": {"lower": 0, "upper": 9}, "y": {"lower": 0, "upper": 1}}
    table = Table(
        name="t",
        database=Path("t.duckdb"),
        privacy_unit={"column": "id"},
        contribution_bounds={"rows": 1},
        columns=columns,
    )
    asked = {"column": "x", "epsilon": "100", "rows": 10**9} | params
    with pytest.raises(PlanRefused, match="rounds, each of which looks at all values"):
        dpflow.plan(mechanism, table, name="a", scope="all", registry=REGISTRY, **asked)
