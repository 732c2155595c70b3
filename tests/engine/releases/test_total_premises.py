"""What total intervals rest on: whose rows, of which blocks, and what is declared of them now."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from duckdb_files import duckdb_file
from orders_world import LARGEST, REGISTRY, World, declare
from scipy.stats import binom

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.toolbox.contribution_profile import (
    SizeHistogram,
    size_bins,
)
from dpflow.core.toolbox.noise import laplace_noise
from dpflow.engine import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.total_intervals import _Limits
from dpflow.errors import PlanRefused
from dpflow.testing.harness import StreamSource

CLIMATES = """
UPDATE orders SET state = CASE WHEN month(day) = 1 THEN 'A' ELSE 'B' END;
ALTER TABLE orders ADD COLUMN other VARCHAR; UPDATE orders SET other = chr(131 - ascii(state));
ALTER TABLE orders ADD COLUMN zone VARCHAR DEFAULT 'Z';
CREATE TABLE north AS SELECT * FROM (VALUES ('A', 'yes'), ('B', 'no')) v(state, warm);
CREATE TABLE south AS SELECT * FROM (VALUES ('A', 'no'), ('B', 'yes')) v(state, warm);
CREATE TABLE nowhere AS SELECT state, 'no' AS warm FROM north
"""


@pytest.mark.parametrize("reading", ["blocks", "condition", "parts", "groups"])
def test_a_profile_under_another_declaration_supports_none(tmp_path: Path, reading: str) -> None:
    """Blocks of another column, a column of other parts, or what another relation says that is joined, also where
    a computed column reads it, have the same names and the same snapshot.
    """
    world = World(tmp_path)
    with duckdb_file(world.table.database) as connection:
        connection.execute(CLIMATES)
    base = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    columns: dict[str, Any] = base["columns"] | {
        "other": {},
        "zone": {},
        "climate.warm": {"public_keys": ["yes", "no"]},
        "hot": {"expression": "climate.warm = 'yes'"},
    }

    def declare_rows(relation: str, block: str) -> Table:
        columns["pair"] = {"parts": ["zone", block]}
        join = {"relation": relation, "name": "climate", "kind": "dimension"}
        joins = [join | {"on": {"state": "state"}}]
        return Table.model_validate(base | {"joins": joins, "block": block, "columns": columns})

    fields: dict[str, Any] = {}
    params, by = {"epsilon": "20"}, "climate.warm"
    if reading == "groups":
        world.table = declare_rows("nowhere", "state")
        world.release("contributions", params=params | {"groupings": [by]})
        fields = {"params": params | {"by": by}, "contribution_bounds": {"groups": 1, "rows": 24}}
    else:
        where = "hot = TRUE" if reading == "condition" else """pair = '["Z","A"]'"""
        rows = {"blocks": ("A",)} if reading == "blocks" else {"where": where}
        world.table = declare_rows("north", "state")
        world.release("contributions", params=params, **rows)
        fields = {"params": params, "contribution_bounds": {"rows": 2}, **rows}
    world.table = declare_rows("south", "other")
    result = world.release(
        "count_distinct" if "by" in fields["params"] else "count", **fields
    ).result
    ends = result.totals.ends if result.totals else {}
    # Everybody has one or two orders in state A; a tenth has 22 in B, and all others one.
    exact = {"yes": 1000, "no": 1000, "": 3100}
    for row in result.rows:
        low, high = ends[row.measure].find_span(row.value, 0) if ends else (0, math.inf)
        assert low <= exact[row.key] <= high


def test_units_are_counted_in_one_block_or_by_block(tmp_path: Path) -> None:
    """Where a unit is protected in each block it is bounded in each, so over two of them it would count twice: 100 was
    stated of 50, with an interval. SQL counts rows of a subquery by unit, which is one each.
    """
    with duckdb.connect(str(tmp_path / "seen.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE seen AS SELECT d AS day, u AS unit FROM range(2) a(d), range(50) b(u)"
        )
    declared: dict[str, Any] = {
        "name": "seen",
        "database": tmp_path / "seen.duckdb",
        "privacy_unit": {"column": "unit"},
        "protects": "unit-block",
        "block": "day",
        "contribution_bounds": {"rows": 1},
        "max_contributions": {"rows": 1},
        "columns": {
            "day": {"public_keys": ["0", "1"]},
            "even": {"expression": "day % 2", "public_keys": ["0", "1"]},
        },
    }
    table = Table.model_validate(declared)
    ledger = dpflow.Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("seen", "1000", 0, table=table, principal="owner", confirm_large=True)

    def plan(mechanism: str, *blocks: str, **params: Any) -> Plan:
        request = ReleaseRequest(
            name=f"{mechanism} {blocks}", mechanism=mechanism, table=table, scope="seen", blocks=blocks,
            params={"epsilon": "100"} | params,
        )  # fmt: skip
        return make_plan(request, REGISTRY)

    both = ["count", "count_distinct"]
    result = dpflow.release(plan("aggregates", "0", measures=both), ledger=ledger).result
    assert result.totals is not None and set(result.totals.ends) == set(both)
    result = dpflow.release(
        plan("aggregates", "0", "1", by="day", measures=both), ledger=ledger
    ).result
    assert [row.value for row in result.rows] == [50] * 4
    units = {"of": "units"}
    for mechanism, params in (
        ("aggregates", {"measures": both}),
        ("count_distinct", {}),
        ("count_distinct", {"by": "even"}),
        ("top_k", {"by": "even", "k": 1} | units),
        ("private_histogram", {"by": "even", "delta": "1e-6"} | units),
        ("check_rows", {"checks": [{"name": "n", "check": "units", "at_least": 60}]}),
    ):
        with pytest.raises(PlanRefused, match="each would count once in every day"):
            plan(mechanism, "0", "1", **params)
    answer = dpflow.sql(
        "SELECT COUNT(*) AS n FROM (SELECT unit FROM seen WHERE day IN ('0', '1') GROUP BY unit)",
        tables=[table], ledger=ledger, scope="seen", epsilon="100",
    )  # fmt: skip
    assert answer.rows == [(50,)]


def test_limits_hold_for_the_size_that_noise_makes_worst() -> None:
    """Bounds are chosen by the same noise, which may be that size whose limit is furthest below the truth. Limits of
    single sizes fail together more often; their own slack hides how much.
    """
    noise, starts = laplace_noise(Sensitivity(2, 2), Fraction(1, 10)), size_bins(60)
    exact = np.full(len(starts), 500)
    true, source = np.cumsum(exact[::-1])[::-1], StreamSource(5)
    sizes, failure, runs = [start - 1 for start in starts[1:]], 0.2, 300
    failed = {"each": 0, "any": 0}
    for _ in range(runs):
        histogram = SizeHistogram(starts, tuple(noise.add_noise(exact, source).tolist()), noise)
        limits = _Limits([histogram], failure / len(starts))
        each = [histogram.limit_above(size, failure) for size in sizes]
        together = [limits.count_above(size) for size in sizes]
        failed["each"] += bool((each < true[1:]).any())
        failed["any"] += bool((together < true[1:]).any())
    assert failed["any"] <= binom.ppf(0.999, runs, failure)
    assert failed["any"] < failed["each"] / 4


def test_the_premise_names_rows_without_a_unit(tmp_path: Path) -> None:
    """Together they are one unit: 2,505 was stated of 3,000 rows, and no word of them."""
    declared: dict[str, Any] = {
        "name": "seen",
        "database": tmp_path / "seen.duckdb",
        "privacy_unit": {"column": "unit", "missing": "one-unit"},
        "contribution_bounds": {"rows": 5},
        "max_contributions": {"rows": 5},
        "columns": {},
    }
    with duckdb.connect(str(declared["database"])) as connection:
        connection.execute("CREATE TABLE seen AS SELECT NULL::INTEGER AS unit FROM range(9)")
    table = Table.model_validate(declared)
    ledger = dpflow.Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("seen", "9", 0, table=table, principal="owner")
    answer = dpflow.sql(
        "SELECT COUNT(*) AS n FROM seen", tables=[table], ledger=ledger, scope="seen", epsilon=1
    )
    assert any("nor all rows without one, has more than 5 rows" in note for note in answer.notes), (
        answer.notes
    )


def test_a_withdrawn_maximum_states_no_more(tmp_path: Path) -> None:
    """300 to 300 was stated of 3,000 rows, as declared, long after the declaration was mended."""
    file = tmp_path / "seen.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE seen AS SELECT i % 60 AS unit FROM range(3000) r(i)")
    declared: dict[str, Any] = {"name": "seen", "database": file, "privacy_unit": {"column": "unit"},
                                "contribution_bounds": {"rows": 5}, "columns": {}}  # fmt: skip
    ledger = dpflow.Ledger(tmp_path / "ledger.sqlite", create=True)
    made = [
        Table.model_validate(declared | more) for more in ({"max_contributions": {"rows": 5}}, {})
    ]
    made.append(Table.model_validate(declared | {"max_contributions": {"rows": 50}}))
    ledger.grant("seen", "9", 0, table=made[0], principal="owner")

    def ask(table: Table) -> Any:
        return dpflow.sql(
            "SELECT COUNT(*) AS n FROM seen", tables=[table], ledger=ledger, scope="seen", epsilon=1
        )

    assert "n_low" in ask(made[0]).to_pandas(intervals=True)
    for table in made[1:]:
        later = ask(table)
        assert later.free and later.to_pandas(intervals=True)["n_low"].isna().all()
        assert not any("as declared" in note for note in later.notes)
    assert "n_low" in ask(made[0]).to_pandas(intervals=True)
