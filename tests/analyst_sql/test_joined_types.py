"""Keys that are matched with columns of other types, at the ends of both: what is charged is answered."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
import sqlglot
import yaml

import dpflow
from dpflow.analyst_sql.answer.answers import GUARDED, run_query
from dpflow.analyst_sql.answer.guarded_query import guard_query
from dpflow.analyst_sql.noise.released_tables import ReleasedTable
from dpflow.analyst_sql.parse.select_query import SplitQuery, write_sql
from dpflow.analyst_sql.releases.cells import Number, no_width
from dpflow.errors import SqlRefused
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.public.query_process import PROCESS, QueryRejected, RowTable

#: A key's type and value, and type and value of what it is compared with, between which DuckDB has no common type that
#: holds both.
PAIRS = [
    ("BIGINT", "9223372036854775807", "DECIMAL(38,38)", "0.5"),
    ("BIGINT", "7", "VARCHAR", "seven"),
    ("HUGEINT", str(2**127 - 1), "DECIMAL(38,10)", "7.5"),
    ("DECIMAL(38,0)", "9" * 38, "DECIMAL(38,10)", "7"),
    ("VARCHAR", "a", "BIGINT", "7"),
    ("VARCHAR", "a", "DATE", "2020-01-01"),
    ("DATE", "5881580-07-10", "TIMESTAMP", "2020-01-01 00:00:00"),
    ("DATE", "9999-12-31", "TIMESTAMP_NS", "2020-01-01 00:00:00"),
    ("TIMESTAMP", "9999-12-31 00:00:00", "TIMESTAMP_NS", "2020-01-01 00:00:00"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]}-{pair[2]}")
def test_a_join_of_types_without_a_common_one_is_answered(pair: tuple[str, str, str, str]) -> None:
    """By pairs of rows, where DuckDB fails on a hash of both; what no type holds has no partner."""
    kind, key, other, value = pair
    released = ReleasedTable(
        "r0", [("k0", kind, [key])], ["BIGINT"], [[Number(3, no_width)]], selected=False
    )
    public = RowTable("p0", [("k", other)], [[value]])
    for side, rows in (("", []), ("LEFT", [[3, None]])):
        tree = sqlglot.parse_one(
            f"SELECT r.n0, CAST(p.k AS VARCHAR) FROM released.r0 AS r {side} JOIN released.p0 AS p ON r.k0 = p.k",
            read="duckdb",
        )
        assert run_query([released], SplitQuery(tree, (), (public,)))[2].rows == rows
        with pytest.raises(QueryRejected):
            text = write_sql(guard_query(tree, PROCESS.list_aggregates()))
            PROCESS.run([public, released.write_rows()], text)


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """2,000 units with days that a TIMESTAMP_NS does not have, and a public file of such moments."""
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("rows.duckdb") as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS unit, CASE i % 2 WHEN 0 THEN DATE '9999-12-31' ELSE DATE '2020-01-01' END "
            "AS day, DATE '2020-01-01' AS known FROM range(2000) r(i)"
        )
        connection.execute(
            "COPY (SELECT TIMESTAMP_NS '2020-01-01 00:00:00' AS day, 'first' AS label) TO 'moments.parquet'"
        )
    declared = {
        "name": "visits",
        "database": "rows.duckdb",
        "privacy_unit": {"column": "unit"},
        "contribution_bounds": {"rows": 1},
        "columns": {"day": {}, "known": {"public_keys": ["2020-01-01"]}},
    }
    Path("visits.yml").write_text(yaml.safe_dump(declared))
    catalogue = {"tables": {"visits": "visits.yml"}, "scope": "s", "public": {"moments": "moments.parquet"}}  # fmt: skip
    Path("dpflow.yml").write_text(yaml.safe_dump(catalogue))
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("s", 100, "0.1", table=load_table("visits"), principal="o", confirm_large=True)
    return tmp_path / "ledger.sqlite"


BY_DAY = "WITH v AS (SELECT {} AS day, COUNT(*) AS n FROM visits GROUP BY 1) SELECT "


@pytest.mark.parametrize(
    "rest",
    [
        "label, n FROM v JOIN moments USING (day)",
        "label, n FROM v NATURAL JOIN moments",
        "n FROM v WHERE day IN (SELECT day FROM moments)",
        "day FROM v UNION ALL SELECT day FROM moments",
    ],
)
def test_what_a_key_could_make_fail_is_refused_before_the_charge(visits: Path, rest: str) -> None:
    """Where keys are public, their values decide."""
    price = {"ledger": visits, "epsilon": "10", "delta": "1e-6"}
    with pytest.raises(SqlRefused, match="no room") as caught:
        dpflow.sql(BY_DAY.format("day") + rest, **price)
    assert caught.value.rule == "binding" and not Ledger(visits).releases("s")
    assert len(dpflow.sql(BY_DAY.format("known") + rest, **price).values) > 0


@pytest.mark.parametrize(
    ("key", "rest"),
    [
        ("date_trunc('month', day)", "label, n FROM v JOIN moments USING (day)"),
        ("CAST(day AS TIMESTAMP)", "day FROM v UNION ALL SELECT day FROM moments"),
        (
            "CASE WHEN known = DATE '2020-01-01' THEN day END",
            "n FROM v WHERE day IN (SELECT day FROM moments)",
        ),
        ("day", "sum(n) OVER (PARTITION BY greatest(day, (SELECT max(day) FROM moments))) FROM v"),
    ],
)
def test_a_computed_key_may_have_all_values_of_its_type(visits: Path, key: str, rest: str) -> None:
    """It was tried with two days of 2020 and 2021; charged, it was never answered."""
    with pytest.raises(SqlRefused, match="no room"):
        dpflow.sql(BY_DAY.format(key) + rest, ledger=visits, epsilon="10", delta="1e-6")
    assert not Ledger(visits).releases("s")


def test_a_join_on_a_key_without_a_partner_is_answered(visits: Path) -> None:
    """A day beyond the other type matches nothing; the other one does."""
    query = BY_DAY.format("day") + "v.day, label FROM v LEFT JOIN moments m ON v.day = m.day"
    answer = dpflow.sql(query, ledger=visits, epsilon="10", delta="1e-6")
    assert [(str(day), label) for day, label in answer.rows] == [
        ("2020-01-01", "first"),
        ("9999-12-31", None),
    ]
    assert GUARDED in answer.notes
