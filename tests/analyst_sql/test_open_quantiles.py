"""Quantiles of columns without bounds, of every type: each question that is charged has its answer, of the type
that was planned.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow import Ledger, sql
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, InvalidInput

AT = "TIMESTAMP '2020-01-01' + to_minutes(i::BIGINT)"
COLUMNS = {
    "day": "DATE '2020-01-01' + (i % 40)::INTEGER",
    "at": AT,
    "zoned": f"({AT})::TIMESTAMPTZ",
    "seconds": f"({AT})::TIMESTAMP_S",
    "nanoseconds": f"({AT})::TIMESTAMP_NS",
    "amount": "(i % 7)::DECIMAL(9, 2)",
    "wide": "i::HUGEINT * 100000000000000000000",
    "tiny": "(i % 100)::UTINYINT",
    "share": "i / 7",
    "flag": "i % 2 = 0",
}
TIMES = ("day", "at", "zoned", "seconds", "nanoseconds")


class World:
    """A table of 2,000 units, one row each, whose columns have no bounds."""

    def __init__(self, folder: Path) -> None:
        listed = ", ".join(f"{text} AS {name}" for name, text in COLUMNS.items())
        with duckdb.connect(str(folder / "data.duckdb")) as connection:
            connection.execute(
                f"CREATE TABLE data AS SELECT i AS u, {listed} FROM range(2000) t(i)"
            )
        self.table = Table.model_validate(
            {
                "name": "data",
                "database": folder / "data.duckdb",
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 1},
                "columns": {name: {} for name in COLUMNS},
            }
        )
        self.ledger = Ledger(folder / "ledger.sqlite", create=True, anchor=folder / "anchor")
        self.ledger.grant(
            "data", 10**4, "1e-3", filter="basic", table=self.table, principal="o", confirm_large=True
        )  # fmt: skip

    def ask(self, query: str, **options: Any) -> SqlAnswer:
        asked: dict[str, Any] = {
            "tables": [self.table],
            "ledger": self.ledger,
            "epsilon": 10,
            "scope": "data",
        }
        return sql(query, **asked | options)

    def spent(self) -> object:
        return self.ledger.remaining("data").rows()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("open"))


@pytest.mark.parametrize("name", COLUMNS)
def test_what_is_charged_is_answered(world: World, name: str) -> None:
    """Numbers in the middle, and ends, of which a bound alone is released."""
    answer = world.ask(f"SELECT MEDIAN({name}) AS m, QUANTILE_DISC({name}, 0.9) AS q FROM data")
    assert all(value is not None for value in answer.rows[0])
    assert name not in TIMES or str(answer.rows[0][0]).startswith("2020-0")
    (end,) = world.ask(f"SELECT MAX({name}) AS e FROM data").rows
    assert len(end) == 1


def check_types(answer: SqlAnswer, kind: str) -> None:
    """Values and bounds have the type in every form of an answer."""
    value = answer.rows[0][0]
    assert type(value) is {"DATE": dt.date, "TIMESTAMP": dt.datetime}[kind]
    assert {column.kind for column in answer.columns} == {kind}
    for name, listed, values in answer.list_columns(intervals=True):
        assert listed == ("BOOLEAN" if name.endswith("only_a_bound") else kind)
        assert all(type(one) in (type(value), bool, type(None)) for one in values)
    assert SqlAnswer.from_wire(json.loads(json.dumps(answer.to_wire()))) == answer
    arrow = {"DATE": "date32[day]", "TIMESTAMP": "timestamp[us]"}[kind]
    assert str(answer.to_arrow().schema.field(0).type) == arrow
    assert answer.to_pandas().iloc[0, 0] == value
    text = answer.list_printed()[1][0][0]
    assert text == str(value) or text == value


@pytest.mark.parametrize("name", TIMES)
def test_quantiles_of_times_are_times(world: World, name: str) -> None:
    """As DuckDB's are: the median of dates a date, that of all kinds of timestamps a timestamp."""
    query = f"SELECT MEDIAN({name}) AS m, MIN({name}) AS first, QUANTILE_DISC({name}, 0.9) AS q FROM data"
    check_types(world.ask(query), "DATE" if name == "day" else "TIMESTAMP")
    days = f"SELECT date_diff('day', DATE '2020-01-01', MEDIAN({name})) AS days, MEDIAN({name}) + INTERVAL 1 DAY FROM data"
    ((number, later),) = world.ask(days).rows
    assert 0 <= number <= 40 and isinstance(later, dt.datetime)
    with pytest.raises(DpflowError, match="binding"):
        world.ask(f"SELECT ln(MEDIAN({name})) AS m FROM data")


#: Bounds of a column of times, and the type of its quantiles.
BOUNDS: list[tuple[dict[str, str], str]] = [
    ({"lower": "2020-01-01", "upper": "2020-12-31"}, "DATE"),
    ({"lower": "2020-01-01 00:00:00", "upper": "2020-02-29 12:00:00"}, "TIMESTAMP"),
    ({"lower": "2020-01-01", "upper": "2020-12-31", "step": "1/86400"}, "TIMESTAMP"),
    ({"lower": "2020-01-01", "upper": "2020-12-31", "step": "1/86400000000"}, "TIMESTAMP"),
]


@pytest.mark.parametrize("name", ["day", "at", "zoned"])
@pytest.mark.parametrize(("bounds", "kind"), BOUNDS)
def test_quantiles_within_bounds_are_times(
    world: World, name: str, bounds: dict[str, str], kind: str
) -> None:
    """Of a grid of days dates, of a finer one timestamps."""
    fields = world.table.model_dump() | {"columns": {name: bounds}}
    table = Table.model_validate(fields)
    query = f"SELECT MEDIAN({name}) AS m, MAX({name}) AS last FROM data"
    answer = sql(query, tables=[table], ledger=world.ledger, epsilon=10, scope="data")
    check_types(answer, kind)
    middle = dt.datetime(2020, 1, 20) if name == "day" else dt.datetime(2020, 1, 1, 16, 40)
    found = dt.datetime.fromisoformat(str(answer.rows[0][0]))
    assert abs(found - middle) < dt.timedelta(days=2)


def test_the_most_frequent_key_has_its_columns_type(world: World) -> None:
    keys = ["2020-01-01", "2020-01-02"]
    fields = world.table.model_dump() | {
        "columns": {"day": {"public_keys": keys}, "tiny": {"public_keys": ["1", "2"]}}
    }
    table = Table.model_validate(fields)
    for name, kind in (("day", dt.date), ("tiny", int)):
        query = f"SELECT MODE({name}) AS m FROM data"
        answer = sql(query, tables=[table], ledger=world.ledger, epsilon=10, scope="data")
        assert type(answer.rows[0][0]) is kind


def test_a_named_answer_is_published_with_its_types(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dpflow.sql` publishes under a name as the command does; a wrong name costs nothing."""
    query = "SELECT MEDIAN(day) AS m, MEDIAN(at) AS t FROM data"
    monkeypatch.chdir(tmp_path)
    before = world.spent()
    for written, name in (("", "medians"), ("output: {database: published.duckdb}", "no name")):
        (tmp_path / "dpflow.yml").write_text(written or "scope: data")
        with pytest.raises(InvalidInput):
            world.ask(query, revision=2, name=name)
        assert world.spent() == before
    for text, options in ((query, {"name": "medians"}), (f"-- dp: name=again\n{query}", {})):
        answer = world.ask(text, **options)
        name = options.get("name", "again")
        with duckdb.connect(str(tmp_path / "published.duckdb"), read_only=True) as connection:
            assert connection.execute(f"SELECT m, t FROM {name}").fetchall() == answer.rows
            kinds = connection.execute(f"SELECT typeof(m), typeof(t) FROM {name}").fetchone()
        assert kinds == ("DATE", "TIMESTAMP")
