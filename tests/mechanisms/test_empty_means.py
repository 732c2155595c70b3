"""A mean, variance or standard deviation of a group that may be empty is no number: not where it is
drawn, published, or answered by SQL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml

import dpflow
from dpflow.core.contract.results import NO_VALUE
from dpflow.core.toolbox.aggregate import Release
from dpflow.core.toolbox.moments import Measure, Query
from dpflow.engine import fail_closed
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.testing.harness import StreamSource

SHRINKING = ("mean", "variance", "standard_deviation")


@pytest.fixture(autouse=True)
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run draws the same: the 95 % interval of a count of 0 leaves out 0 in one of forty draws at most, and then a
    value is shown.
    """
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(SEED))


#: Of a stream in which no count of 0 has that rare draw.
SEED = 1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Ledger]:
    """2,000 people in Oslo, none in Bern."""
    folder = tmp_path_factory.mktemp("empty")
    with duckdb.connect(str(folder / "people.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE people AS SELECT i AS person, 'Oslo' AS city, i % 61 AS age, NULL::INTEGER AS pay "
            "FROM range(2000) t(i)"
        )
    declaration = {
        "name": "people",
        "database": "people.duckdb",
        "privacy_unit": {"column": "person"},
        "contribution_bounds": {"rows": 1},
        "columns": {
            "city": {"public_keys": ["Oslo", "Bern"]},
            "age": {"lower": 0, "upper": 60},
            "pay": {"lower": 0, "upper": 60},
        },
    }
    (folder / "people.yml").write_text(yaml.safe_dump(declaration))
    table = load_table(folder / "people.yml")
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    ledger.grant(
        "people", 10**5, "0.1", table=table, filter="basic", principal="owner", confirm_large=True
    )
    return folder, table, ledger


@pytest.mark.parametrize("epsilon", ["0.5", "16", "64", "900"])
@pytest.mark.parametrize("mechanism", [*SHRINKING, "aggregates"])
def test_an_empty_group_has_no_value(
    world: tuple[Path, Any, Ledger], mechanism: str, epsilon: str
) -> None:
    """Whatever the noise is: at epsilon 16 and above there was none, and 30 +- 28 was shown."""
    folder, table, ledger = world
    measures = [{"measure": kind, "column": "age"} for kind in SHRINKING]
    params: dict[str, Any] = (
        {"measures": measures} if mechanism == "aggregates" else {"column": "age"}
    )
    plan = dpflow.plan(
        mechanism, table, name=f"{mechanism} {epsilon}", scope="people", by="city", epsilon=epsilon, **params,
        publish={"database": folder / "out.duckdb", "table": "shown"},
    )  # fmt: skip
    receipt = dpflow.release(plan, ledger=ledger)
    of = {
        city: [row for row in receipt.result.rows if row.key == city] for city in ("Oslo", "Bern")
    }
    for row in of["Bern"]:
        assert (row.value, row.half_width_95, row.remark) == (None, None, NO_VALUE)
    for row in of["Oslo"]:
        assert isinstance(row.value, float) and row.half_width_95 is not None
        assert row.remark != NO_VALUE
    with duckdb.connect(str(folder / "out.duckdb"), read_only=True) as connection:
        shown = connection.execute(
            "SELECT count(*), count(value), count(half_width_95), count(DISTINCT remark) FROM shown "
            "WHERE release_id = ? AND group_key = 'Bern'",
            [receipt.release_id],
        ).fetchone()
    assert shown == (len(of["Bern"]), 0, 0, 1)


@pytest.mark.parametrize("epsilon", ["1", "40", "900"])
@pytest.mark.parametrize("function", ["AVG", "VAR_POP", "STDDEV_POP"])
def test_sql_shows_none(world: tuple[Path, Any, Ledger], function: str, epsilon: str) -> None:
    """AVG of a group without rows, and of a column without values, is NULL, and the answer says why."""
    _, table, ledger = world
    options = {"scope": "people", "tables": [table], "ledger": ledger, "epsilon": epsilon}
    answer = dpflow.sql(
        f"SELECT city, {function}(age) AS x FROM people GROUP BY city ORDER BY city", **options
    )
    values = dict(answer.rows)
    assert values["Bern"] is None and values["Oslo"] is not None
    (bern,) = [row[1] for row in answer.values if row[0].value == "Bern"]
    assert (bern.low, bern.high) == (None, None) and NO_VALUE in answer.notes
    answer = dpflow.sql(f"SELECT {function}(pay) FROM people", **options)
    assert answer.rows == [(None,)]


@pytest.mark.parametrize("epsilon", ["1", "40", "900"])
def test_a_mean_from_stored_numbers_has_none(world: tuple[Path, Any, Ledger], epsilon: str) -> None:
    """AVG that a stored SUM and COUNT answer is NULL by the same rule, and says so; by group, in total, and
    beside the number itself.
    """
    _, table, ledger = world
    # A condition of its own, so that no other release answers.
    where = f"WHERE age > -{len(epsilon)}"
    options = {"scope": "people", "tables": [table], "ledger": ledger, "epsilon": epsilon}
    dpflow.sql(
        f"SELECT city, COUNT(age), SUM(age), COUNT(pay), SUM(pay) FROM people {where} GROUP BY city",
        **options,
    )
    text = f"SELECT city, AVG(age) AS x, COUNT(age) AS n, AVG(pay) FROM people {where} GROUP BY city ORDER BY city"
    answer = dpflow.sql(text, **options)
    assert answer.free and NO_VALUE in answer.notes
    (_, bern, _, pay), (_, oslo, number, other) = answer.values
    for cell in (bern, pay, other):
        assert (cell.value, cell.low, cell.high) == (None, None, None)
    assert abs(oslo.value - 30) < 10 and oslo.low < oslo.value < oslo.high and number.low > 0
    # Sums over groups have more noise than the same epsilon would give.
    options["epsilon"] = "0.1"
    answer = dpflow.sql(f"SELECT AVG(pay) FROM people {where}", **options)
    assert answer.free and answer.rows == [(None,)] and NO_VALUE in answer.notes
    answer = dpflow.sql(f"SELECT AVG(age) FROM people {where}", **options)
    assert answer.free and answer.rows[0][0] is not None and NO_VALUE not in answer.notes


@pytest.mark.parametrize(
    "query",
    [
        "SELECT MAX(x) AS y FROM (SELECT city, AVG(age) AS x FROM people GROUP BY city)",
        "SELECT AVG(x) AS y FROM (SELECT city, AVG(age) AS x FROM people GROUP BY city)",
        "SELECT COUNT(x) AS y FROM (SELECT city, AVG(age) AS x FROM people GROUP BY city)",
        "SELECT COALESCE(x, 0) AS y FROM (SELECT city, AVG(age) AS x FROM people GROUP BY city)",
        "WITH t AS (SELECT city, AVG(age) AS x FROM people GROUP BY city) "
        "SELECT (SELECT x FROM t ORDER BY x DESC LIMIT 1) AS y FROM t",
    ],
)
def test_what_leaves_out_a_hidden_mean_has_no_interval(
    world: tuple[Path, Any, Ledger], query: str
) -> None:
    """A group that noise hides may have any mean, so an extreme of those shown bounds nothing."""
    _, table, ledger = world
    answer = dpflow.sql(query, scope="people", tables=[table], ledger=ledger, epsilon=40)
    assert answer.columns[0].interval == "no interval"
    assert all((cell.low, cell.high) == (None, None) for row in answer.values for cell in row)


def test_the_interval_of_the_number_decides() -> None:
    """From released numbers alone: no value up to the half-width of their number, a value above."""
    from dpflow.core.contract.declaration import Table

    table = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 1},
            "columns": {"age": {"lower": 0, "upper": 60}},
        }
    )
    measure = Measure.model_validate({"measure": "mean", "column": "age"})
    query = Query(table, None, (measure,))
    release = Release(query, "laplace", (1, 1))  # type: ignore[arg-type]
    tails = release.tails(measure)
    edge = int(tails["values", "age"])
    numbers = np.arange(-3, edge + 4)
    noisy = {("values", "age"): numbers, ("sum", "age"): np.zeros_like(numbers)}
    values, errors = query.read_measure(measure, noisy, tails)
    assert [value is None for value in values] == [n <= edge for n in numbers.tolist()]
    assert [error is None for error in errors] == [value is None for value in values]
    # Little above the edge the interval still holds everything, so that a remark says it; far above it does not.
    assert query.spans_range(measure, values[-3], errors[-3])
    far = {("values", "age"): np.array([1000 * edge]), ("sum", "age"): np.array([0])}
    ((value,), (error,)) = query.read_measure(measure, far, tails)
    assert error is not None and not query.spans_range(measure, value, error)
