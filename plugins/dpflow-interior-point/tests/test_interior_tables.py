"""From release files to DuckDB and back: every mechanism by name, every type, any rows; and answers
that are never wrong.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml
from dpflow_interior_point.building_blocks.row_counts import LARGEST_ALPHA
from dpflow_interior_point.building_blocks.stage_costs import RowCounts
from dpflow_interior_point.mechanisms.interior_point import (
    ApproximateMedian,
    ApproximateMedianParams,
    InteriorPointParams,
    Method,
)

from dpflow import Ledger, api
from dpflow.core.contract.declaration import Table
from dpflow.core.sampling.randomness import SystemSource
from dpflow.engine.releases.request import load_request
from dpflow.errors import InvalidDeclaration, InvalidInput, PlanRefused, UnknownName
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.testing.column_in_memory import ArrayColumn

DECLARATION: dict[str, Any] = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {"cost": {}, "city": {"public_keys": ["Rome", "Oslo", "Nowhere"]}, "word": {}},
}
ROWS = """
CREATE TABLE visits AS
SELECT i AS person, 1e6 + 1000 * sin(i * 0.7) + i % 17 AS cost, CASE WHEN i % 3 = 0 THEN 'Rome' ELSE 'Oslo' END AS city,
       'w' || (i % 3) AS word
FROM range(6000) t(i)
"""


class World:
    """A folder with a table, its declaration and a rich ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fill(ROWS)
        table = self.declare()
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        self.ledger.grant(
            "visits",
            1000,
            "1e-2",
            filter="basic",
            table=table,
            principal="owner",
            confirm_large=True,
        )

    def fill(self, sql: str) -> None:
        (self.folder / "visits.duckdb").unlink(missing_ok=True)
        with duckdb.connect(str(self.folder / "visits.duckdb")) as connection:
            connection.execute(sql)

    def declare(self, **changes: Any) -> Table:
        path = self.folder / "visits.yml"
        path.write_text(yaml.safe_dump(DECLARATION | changes))
        return load_table(path)

    def release(self, mechanism: str, name: str = "", **params: Any) -> dict[tuple[str, str], Any]:
        """Through a release file; the rows by key and measure."""
        column = {} if mechanism == "truncated_count" else {"column": "cost"}
        content = {
            "name": name or f"{mechanism} {params}",
            "mechanism": mechanism,
            "table": "visits.yml",
            "scope": "visits",
            "params": {"epsilon": 2, "delta": "1e-6"} | column | params,
        }
        path = self.folder / "release.yml"
        path.write_text(yaml.safe_dump(content))
        request = load_request(path)
        plan = api.plan(
            request.mechanism, request.table, name=request.name, scope="visits", **request.params
        )
        self.receipt = api.release(plan, self.ledger)
        return {(row.key, row.measure): row.value for row in self.receipt.result.rows}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_private_system_answers_by_name(world: World) -> None:
    """On a table whose range nobody declared; the medians lie in the middle, the rest between the
    ends.
    """
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        low, q1, q3, high = connection.execute(
            "SELECT min(cost), quantile_disc(cost, 0.25), quantile_disc(cost, 0.75), max(cost) FROM visits"
        ).fetchall()[0]
    assert low < world.release("interior_point")["", "interior point"] <= high
    assert q1 <= world.release("approximate_median")["", "median"] <= q3
    assert q1 <= world.release("seeded_median")["", "median"] <= q3
    assert world.release("estimate_first_moment")["", "scale"] in (512, 1024, 2048)
    assert low < world.release("find_interior_point", exponent=9)["", "interior point"] <= high
    cells = world.release("stability_histogram", exponent=9)
    assert all(low - 512 <= float(key) <= high for key, _ in cells)
    assert abs(sum(cells.values()) - 6000) < 500
    words = world.release("stability_histogram", column="word")
    assert {key for key, _ in words} == {"w0", "w1", "w2"}
    counts = world.release("truncated_count", by="city")
    assert abs(counts["Oslo", "count"] - 4000) < 30
    assert abs(counts["Nowhere", "count"]) < 30


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DOUBLE", "i"),
        ("DATE", "DATE '2013-01-01' + CAST(i % 300 AS INTEGER)"),
        ("INTEGER", "i % 2"),
    ],
)
def test_the_front_door_finds_the_median_without_bounds(
    world: World, kind: str, value: str
) -> None:
    """`median` that must be certain plans approximate_median, says why and how many rows it needs, and
    answers as it does.
    """
    world.fill(
        f"CREATE TABLE visits AS SELECT i AS person, CAST({value} AS {kind}) AS cost FROM range(6000) t(i)"
    )
    table = world.declare(columns={"cost": {}})
    plan = api.plan(
        "median",
        table,
        name="m",
        scope="visits",
        column="cost",
        epsilon=2,
        delta="1e-6",
        certain=True,
    )
    described = plan.describe()
    assert described["mechanism"].startswith("approximate_median")
    assert "certain: true was asked for" in described["note"]
    assert re.search(r"about \d+ rows are needed", described["note"])
    found = world.release("median", certain=True)
    assert found["", "status"] in ("ok", "ok_atom")
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        inside = f"CAST('{found['', 'median']}' AS {kind}) BETWEEN quantile_disc(cost, 0.25) AND quantile_disc(cost, 0.75)"
        assert connection.execute(f"SELECT {inside} FROM visits").fetchall() == [(True,)]


@pytest.mark.parametrize("mechanism", ["median", "approximate_median", "seeded_median"])
def test_a_result_states_how_far_its_rank_may_be(world: World, mechanism: str) -> None:
    """In rows or as a share of them; a bounded column's median, too. The answer is as near as that."""
    if mechanism == "median":
        world.declare(columns={"cost": {"lower": 998_000, "upper": 1_002_000}})
    delta = "0" if mechanism == "median" else "1e-6"
    value = world.release(mechanism, delta=delta)["", "median"]
    (row,) = (row for row in world.receipt.result.rows if row.measure == "median")
    stated = float(re.search(r"is within ([\d.,]+)", row.remark)[1].replace(",", ""))  # type: ignore[index]
    # Rows, a share of them, or percent.
    is_percent = re.search(r"within [\d.]+ %", row.remark) is not None
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        query = f"SELECT count(*) FILTER (cost <= {value!r}) FROM visits"
        below = connection.execute(query).fetchall()[0][0]
    within = 60 * stated if is_percent else stated
    if "as a share of the rows" in row.remark:
        within = 6000 * stated
    table = load_table(world.folder / "visits.yml")
    planned = api.plan(
        mechanism, table, name="m", scope="visits", column="cost", epsilon=2, delta=delta
    )
    assert planned.error_bound is not None
    if "(rows)" in (unit := next(iter(planned.error_bound.half_width))):
        rows = math.ceil(planned.error_bound.half_width[unit])
        # The number of rows is noisy, and percents have two decimals.
        assert 0.99 * rows <= within <= 1.05 * rows if is_percent else stated == rows
    # A failure of probability 1/20 is left room: twice the bound fails once in 400 or less.
    assert abs(below - 3000) <= 2 * within < 6000
    assert "remark" in world.receipt.table.columns()


@pytest.mark.parametrize("alpha", [None, "1/4", "1/100"])
def test_a_noisy_number_of_rows_is_within_the_stated_rank(alpha: str | None) -> None:
    """Whatever is left out at each end by a noisy number, of as many more rows as the noise may hide.
    The control: alpha itself would be stated too small.
    """
    table = Table.model_validate(DECLARATION)
    given = {"column": "cost", "epsilon": "1/10", "delta": "1e-6", "alpha": alpha}
    if alpha is not None:
        given["gamma"] = "0"
    params = ApproximateMedianParams.model_validate(given)
    method = Method.from_params(params, table, size_is_public=False)
    assert method.sizes is not None and method.sizes.half_width > 0
    beyond = 0
    for size in (0, 1, 10, 999, 10**4, 10**5, 10**7):
        remark = ApproximateMedian().describe_place(params, method, size, "rows")
        stated = Fraction(re.search(r"within ([\d.]+) of", remark)[1])  # type: ignore[index]
        rows = max(1, size + method.sizes.half_width)
        worst = Fraction(1, 2) - Fraction(int(method.trim_at(size) * size), rows)
        assert worst <= stated <= worst + Fraction(1, 4) and remark.endswith("(95 %)")
        beyond += worst > (method.alpha_for(size) if alpha is None else Fraction(alpha))
    assert beyond >= 2


def test_an_answer_of_none_states_no_rank(world: World) -> None:
    """There is nothing that it could be of."""
    world.fill("CREATE TABLE visits AS SELECT 1 AS person, 5.0 AS cost, 'Rome' AS city")
    for mechanism in ("interior_point", "approximate_median", "seeded_median"):
        world.release(mechanism)
        assert {row.remark for row in world.receipt.result.rows} == {""}


def test_groups_are_answered_in_their_order(world: World) -> None:
    """One answer per public key, none for a key without rows, each with a status."""
    found = world.release("approximate_median", by="city")
    assert [key for key, _ in found] == ["Rome", "Rome", "Oslo", "Oslo", "Nowhere", "Nowhere"]
    assert found["Oslo", "status"] == "ok"
    assert (found["Nowhere", "median"], found["Nowhere", "status"]) == (None, "no_scale")
    assert set(world.receipt.result.document) == {"Rome", "Oslo", "Nowhere"}


def test_an_answer_of_none_is_charged_and_kept(world: World) -> None:
    """Bottom costs what an answer costs, and a second run of the same release is free and the same."""
    world.fill("CREATE TABLE visits AS SELECT 1 AS person, 5.0 AS cost, 'Rome' AS city")
    before = world.ledger.remaining("visits")
    first = world.release("approximate_median", name="one")
    assert first == {("", "median"): None, ("", "status"): "no_scale"}
    spent = world.ledger.remaining("visits")
    assert spent != before
    assert world.release("approximate_median", name="one") == first
    assert world.receipt.replayed
    assert world.ledger.remaining("visits") == spent


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("DATE", "DATE '2013-01-01' + CAST(i % 300 AS INTEGER)", dt.date),
        ("TIMESTAMP", "TIMESTAMP '2013-01-01' + to_seconds(i)", dt.datetime),
        ("DECIMAL(12,2)", "(i % 997) / 100.0", float),
        ("DECIMAL(30,0)", "i", int),
        ("BIGINT", "9007199254740993 + i", int),
        ("INTEGER", "i % 50", int),
        ("FLOAT", "i / 7.0", float),
        ("BOOLEAN", "i % 3 = 0", int),
    ],
)
@pytest.mark.parametrize("mechanism", ["interior_point", "approximate_median"])
def test_answers_have_the_type_of_the_column_and_lie_within(
    world: World, kind: str, value: str, expected: type, mechanism: str
) -> None:
    """The answer, compared by DuckDB with the column itself, lies between its ends, or between its
    cut ends.
    """
    world.fill(
        f"CREATE TABLE visits AS SELECT i AS person, CAST({value} AS {kind}) AS cost FROM range(5000) t(i)"
    )
    world.declare(columns={"cost": {}})
    measure = "median" if mechanism == "approximate_median" else "interior point"
    found = world.release(mechanism)["", measure]
    if expected in (dt.date, dt.datetime):
        assert isinstance(expected.fromisoformat(found), dt.date)
    else:
        assert type(found) is expected
    ends = (0.25, 0.75) if mechanism == "approximate_median" else (0, 1)
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        (inside,) = connection.execute(
            f"SELECT CAST('{found}' AS {kind}) BETWEEN quantile_disc(cost, {ends[0]}) AND quantile_disc(cost, {ends[1]}) FROM visits"
        ).fetchall()[0]
    assert inside


@pytest.mark.parametrize(
    "rows",
    [
        "SELECT 1 AS person, NULL::DOUBLE AS cost WHERE false",
        "SELECT i AS person, NULL::DOUBLE AS cost FROM range(500) t(i)",
        "SELECT i AS person, 'nan'::DOUBLE AS cost FROM range(500) t(i)",
        "SELECT i AS person, 'inf'::DOUBLE AS cost FROM range(500) t(i)",
        "SELECT NULL::INTEGER AS person, i::DOUBLE AS cost FROM range(500) t(i)",
        "SELECT i AS person, CASE WHEN i % 2 = 0 THEN 1.7e308 ELSE -1.7e308 END AS cost FROM range(900) t(i)",
        "SELECT i AS person, i * 5e-324 AS cost FROM range(900) t(i)",
        "SELECT 7 AS person, i::DOUBLE AS cost FROM range(100000) t(i)",
    ],
)
def test_rows_never_cause_an_error(world: World, rows: str) -> None:
    """Empty, NULL, NaN, infinite, extreme and lone rows: a result with a status, never an error."""
    world.fill(f"CREATE TABLE visits AS {rows}")
    world.declare(columns={"cost": {}})
    for mechanism in ("interior_point", "approximate_median", "seeded_median"):
        assert world.release(mechanism)["", "status"] in ("ok", "ok_atom", "no_scale", "no_bins")
    world.release("estimate_first_moment")
    world.release("find_interior_point", exponent=1000)
    world.release("stability_histogram", exponent=-1000)
    json.dumps(world.receipt.to_json())


@pytest.mark.parametrize(
    ("value", "where"),
    [("i + 0.5", "person < 2400"), ("CASE WHEN i < 2400 THEN i + 0.5 END", None)],
)
def test_rows_that_are_left_out_are_not_counted(
    world: World, value: str, where: str | None
) -> None:
    """Under replace the units are public, and how many of their rows a condition or NULL leaves is
    not: 40 % of the rows have a median, and the count of all of them would trim every row.
    """
    world.fill(f"CREATE TABLE visits AS SELECT i AS person, {value} AS cost FROM range(6000) t(i)")
    table = world.declare(
        columns={"cost": {}, "person": {"lower": 0, "upper": 6000}}, neighbours="replace"
    )
    ledger = Ledger(world.folder / "replace.sqlite", create=True)
    ledger.grant(
        "replace", 100, "1e-2", filter="basic", table=table, principal="owner", confirm_large=True
    )
    for mechanism, more in (("median", {"certain": True}), ("approximate_median", {})):
        params = {"column": "cost", "epsilon": 2, "delta": "1e-6"} | more
        plan = api.plan(mechanism, table, name=mechanism, scope="replace", where=where, **params)
        found = {row.measure: row.value for row in api.release(plan, ledger).result.rows}
        assert 600 <= found["median"] <= 1800


LAWS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "lognormal": lambda rng, n: rng.lognormal(0, 2, n),
    "two humps": lambda rng, n: rng.normal(np.where(rng.random(n) < 0.5, -5, 5), 1),
    "prices": lambda rng, n: np.round(rng.lognormal(7.5, 1, n)),
    "zeros": lambda rng, n: np.where(rng.random(n) < 0.6, 0.0, rng.exponential(size=n)),
}


@pytest.mark.parametrize("law", LAWS)
def test_alpha_is_chosen_from_the_rows(law: str) -> None:
    """Without an alpha the answer comes as surely, and its rank is within the alpha that is chosen:
    .008 of 54,000 rows, where .25 was promised and .045 was the error.
    """
    table = Table.model_validate(DECLARATION)
    params = {"column": "cost", "epsilon": "1", "delta": "1e-6"}
    method = Method.from_params(
        ApproximateMedianParams.model_validate(params), table, size_is_public=False
    )
    rng, alphas = np.random.default_rng(8), []
    for n in (900, 6000, 54_000):
        alphas.append(float(method.alpha_for(n)))
        for _ in range(4):
            values = LAWS[law](rng, n)
            point = method.find_points(ArrayColumn.from_groups(values), SystemSource())[0][1]
            if n == 900:
                continue  # too few for a median that is likely
            assert point.value is not None
            low, high = (values < point.value).mean(), (values <= point.value).mean()
            assert max(low - 0.5, 0.5 - high) <= 1.1 * alphas[-1] + 0.001
    assert alphas[0] == 0.25 and alphas == sorted(alphas, reverse=True) and alphas[-1] < 0.01


def test_a_constant_column_is_its_atom(world: World) -> None:
    """With atoms the constant is answered, without them nothing is."""
    world.fill("CREATE TABLE visits AS SELECT i AS person, -0.25 AS cost FROM range(900) t(i)")
    world.declare(columns={"cost": {}})
    assert world.release("interior_point")["", "interior point"] == -0.25
    assert world.release("interior_point", atoms=False) == {
        ("", "interior point"): None,
        ("", "status"): "no_scale",
    }


def test_the_operator_releases_a_median_without_bounds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Airflow by the mechanism's name: charged once, and repeated when the interval runs
    again.
    """
    monkeypatch.setenv("AIRFLOW_HOME", str(world.folder / "airflow"))
    connection = {"conn_type": "dpflow_ledger", "host": str(world.folder / "ledger.sqlite")}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))
    from dpflow.airflow import ReleaseOperator

    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    release = {
        "name": "median cost",
        "mechanism": "approximate_median",
        "table": "visits.yml",
        "scope": "visits",
        "params": {"column": "cost", "by": "city", "epsilon": 2, "delta": "1e-6"},
    }
    found = []
    for number in (1, 2):
        given = {
            "dag_id": "d",
            "task_id": "t",
            "run_id": "r",
            "map_index": -1,
            "try_number": number,
            "id": str(number),
        }
        context = {
            "ti": SimpleNamespace(**given),
            "dag_run": SimpleNamespace(partition_key=None, run_type="scheduled", clear_number=0),
            "dag": SimpleNamespace(fileloc=str(world.folder / "dag.py")),
            "logical_date": day,
            "data_interval_start": day,
            "data_interval_end": day + dt.timedelta(days=1),
        }
        found.append(ReleaseOperator(task_id="t", release=release).execute(context))
    assert [run["replayed"] for run in found] == [False, True]
    assert found[0]["release_id"] == found[1]["release_id"]
    (row,) = world.ledger.remaining("visits").rows()
    assert str(row["epsilon_spent"]) == "2"


# --- answers are right or none ----------------------------------------------------------------------------------------


def tables(count: int) -> list[np.ndarray]:
    """Random bits, subnormals, ties, huge values, mixtures of scales, infinities."""
    rng = np.random.default_rng(9)
    pool = [
        0.0,
        -0.0,
        5e-324,
        -5e-324,
        1.0,
        1.0 + 2**-52,
        -1e308,
        1.7e308,
        2.0**62,
        math.inf,
        -math.inf,
        0.1,
        3.0,
        3.0,
    ]
    found = []
    for i in range(count):
        n = int(rng.integers(0, 60))
        bits = np.frombuffer(rng.bytes(8 * n), np.float64)
        few = rng.choice(pool, n)
        scaled = rng.normal(size=n) * 2.0 ** rng.integers(-900, 900)
        values = [
            bits,
            few,
            scaled,
            np.where(rng.random(n) < 0.5, few, scaled),
            np.round(rng.normal(size=n)),
        ][i % 5]
        found.append(values[~np.isnan(values)])
    return found


@pytest.mark.parametrize("median", [False, True])
def test_an_answer_is_never_outside(median: bool) -> None:
    """On thousands of odd tables with little noise: min <= z <= max, and x_(t+1) <= z <= x_(v-t)
    for the median.
    """
    table = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "neighbours": "replace",
            "columns": {"v": {}},
        }
    )
    params = {"column": "v", "epsilon": "20", "delta": "0.2"}
    model = ApproximateMedianParams if median else InteriorPointParams
    method = Method.from_params(model.model_validate(params), table, size_is_public=True)
    assert method.sizes == (RowCounts(None) if median else None)
    source, answers = SystemSource(), 0
    for values in tables(4000):
        ordered = np.sort(values)
        point = method.find_points(ArrayColumn.from_groups(values, size_is_public=True), source)[0][
            1
        ]
        if point.value is None:
            continue
        answers += 1
        trim = int(method.trim_share * len(values))
        kept = ordered[trim : len(ordered) - trim]
        finite = kept[np.isfinite(kept)]
        assert finite[0] <= point.value <= finite[-1]
        assert math.copysign(1, point.value) == 1 or point.value < 0
        if point.status == "ok_atom":
            assert struct.pack("d", point.value) in {struct.pack("d", x + 0.0) for x in kept}
    assert answers > 300


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "params", "message"),
    [
        ("interior_point", {"epsilon": 0}, "epsilon"),
        ("interior_point", {"delta": 0}, "delta must be above 0"),
        ("interior_point", {"delta": "0.6"}, "at most 1/2"),
        ("interior_point", {"split": 1}, "strictly between 0 and 1"),
        ("interior_point", {"tau": "1/8"}, "tau belongs to rule: largest"),
        ("interior_point", {"rule": "smallest"}, "rule"),
        ("interior_point", {"column": "costs"}, "cost"),
        ("interior_point", {"by": "word"}, "no public keys"),
        ("approximate_median", {"alpha": "0.5"}, "strictly between 0 and 1/2"),
        ("approximate_median", {"alpha": "0.1", "gamma": "0.1"}, "below alpha"),
        ("find_interior_point", {"exponent": 1001}, "exponent"),
        ("find_interior_point", {}, "exponent"),
        ("stability_histogram", {"column": "nothing"}, "nothing"),
    ],
)
def test_refusals_come_before_rows(
    world: World, mechanism: str, params: dict[str, Any], message: str
) -> None:
    """Wrong parameters are refused from plan and declaration alone, and nothing is spent."""
    before = world.ledger.remaining("visits")
    with pytest.raises((InvalidInput, InvalidDeclaration, UnknownName, PlanRefused), match=message):
        world.release(mechanism, **params)
    assert world.ledger.remaining("visits") == before


def test_the_plan_says_how_many_rows_it_needs() -> None:
    """The note of a plan for the default price names the rows that an answer needs."""
    table = Table.model_validate(DECLARATION | {"neighbours": "replace"})
    plan = api.plan(
        "approximate_median", table, name="m", scope="s", column="cost", epsilon=1, delta="1e-6"
    )
    described = plan.describe()
    assert described["half_width_95"] == {"rank (share of rows)": 0.25}
    rows = int(str(described["note"]).split()[1])
    assert 900 < rows < 1300
    assert Fraction(plan.privacy_cost()[0]) == 1
    assert isinstance(Registry.load().find_mechanism("approximate_median").citation, str)


def test_why_an_alpha_is_what_it_is() -> None:
    """What is said of it is true: at a larger number of rows it is smaller only if the rows decide."""
    table = Table.model_validate(
        {
            "name": "visits",
            "database": "visits.duckdb",
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 1},
            "columns": {"person": {}, "cost": {}},
        }
    )
    for epsilon in ("0.1", "1", "10"):
        params = ApproximateMedianParams.model_validate(
            {"column": "cost", "epsilon": epsilon, "delta": "1e-6"}
        )
        method = Method.from_params(params, table, size_is_public=True)
        for size in (100, 72_000, 719_500):
            alpha, why = method.alpha_for(size), method.explain_alpha(size)
            assert ("at any number of rows" in why) == (
                alpha < LARGEST_ALPHA and method.alpha_for(10**9) == alpha
            )
            assert why.startswith("the largest") == (alpha == LARGEST_ALPHA)
            assert (str(size) in why) == ("at any number" not in why)
