"""Total intervals of sums and means of values that lie within their bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from duckdb_files import duckdb_file
from orders_world import LARGEST, World, declare
from pydantic import ValidationError

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.totals import MeanTotal
from dpflow.engine import fail_closed
from dpflow.testing.harness import StreamSource

BY = "date_trunc('month', day)"
#: Orders by month.
ORDERS = np.array([1100, 1100, *[200] * 10])


def test_sums_of_values_within_their_bounds_have_one(tmp_path: Path) -> None:
    """Two-sided, as values are; no other column's sum has one, for clamping may have moved it."""
    world = World(tmp_path)
    raw = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    gain = {"expression": "month(day) - 5", "lower": -4, "upper": 7}
    raw["columns"] |= {"gain": gain | {"missing": 2}, "same": gain}
    raw["max_contributions"] |= {"within_bounds": ["gain"]}
    world.table = Table.model_validate(raw)
    bounds = "groups=12, rows_per_group=2, rows_per_unit=24"
    text = f"-- dp: {bounds}\nSELECT {BY} AS m, SUM(gain) AS g, SUM(same) AS s FROM orders GROUP BY ALL ORDER BY m"
    answer = world.ask(text, epsilon="20")
    frame = answer.to_pandas(intervals=True)
    assert not frame["g_low"].isna().all() and frame["s_low"].isna().all()
    words = "no gain is beyond its bounds or off its grid, where a missing gain counts as 2"
    assert any(words in note for note in answer.notes)
    truth = ORDERS * (np.arange(1, 13) - 5)
    assert ((frame["g_low"] <= truth) & (truth <= frame["g_high"])).sum() >= 8
    world.release("contributions")
    cut = world.release(
        "sum", params={"column": "gain", "by": BY}, contribution_bounds={"groups": 6, "rows": 6}
    )
    below, above = np.array([-1, 1]) * cut.result.totals.ends["sum"].find_span(0, 0)
    # Some 100 customers in more than six months, with two rows in each: of -4 at least, and 7 at most.
    lacking = (above - below) / (7 - 4)
    assert 100 <= lacking <= 1000 and below - 4 * lacking == pytest.approx(above - 7 * lacking)
    table = cut.to_pandas()
    assert ((table["low"] <= truth) & (truth <= table["high"])).sum() >= 8
    with pytest.raises(ValidationError, match="declares no bounds"):
        Table.model_validate(raw | {"max_contributions": {"rows": 2, "within_bounds": ["state"]}})


def test_sums_that_take_one_of_such_values_have_one(tmp_path: Path) -> None:
    """Under a FILTER, of flags, CASE and linear forms; not of other arithmetic, or where bounds of another column decide."""
    world = World(tmp_path)
    raw = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["contribution_bounds"] = {"rows": 24}
    raw["max_contributions"] |= {"within_bounds": ["gain"]}
    raw["columns"] |= {"gain": {"lower": -2, "upper": 3}, "other": {"lower": 0, "upper": 3}}
    with duckdb_file(world.table.database) as connection:
        connection.execute(
            "ALTER TABLE orders ADD COLUMN gain INTEGER; ALTER TABLE orders ADD COLUMN other INTEGER"
        )
        connection.execute("UPDATE orders SET gain = customer % 6 - 2, other = customer % 30")
    world.table = Table.model_validate(raw)
    warm = "state = 'A'"
    stated = {
        f"COUNT(*) FILTER (WHERE {warm})": None,
        "COUNT(other)": None,
        f"SUM(CASE WHEN {warm} THEN 1 ELSE 0 END)": None,
        f"SUM(gain) FILTER (WHERE {warm})": "gain",
        f"SUM(CASE WHEN {warm} THEN gain WHEN other > 5 THEN -1 + 2 ELSE 0 END)": "gain",
        f"SUM(CASE WHEN {warm} THEN gain ELSE 2 END)": "gain",
        "SUM(least(gain, 1))": "gain",
        "SUM(greatest(gain, 0))": "gain",
        f"AVG(gain) FILTER (WHERE {warm})": "gain",
        "SUM(gain * 2)": "gain",
        "SUM(3 - 0.1 * gain)": "gain",
        "AVG(2 * gain + 1) FILTER (WHERE other > 5)": "gain",
        "SUM(gain * gain)": "",
        "SUM(gain / 2)": "",
        "SUM(gain + other)": "",
        "SUM(least(other, 3))": "",
        f"SUM(other) FILTER (WHERE {warm})": "",
    }
    for value, names in stated.items():
        text = f"SELECT {value} AS x FROM orders"
        answer = world.ask(text, epsilon="50")
        ((cell,),) = answer.values
        assert answer.columns[0].total == ("no interval" if names == "" else "stated"), value
        note = " ".join(answer.notes)
        assert (f"no {names} is beyond its bounds" in note) == bool(names), value
        if cell.total is not None:
            truth = world.read(text)["x"][0]
            # Five times as wide: that it misses has a probability below 1e-6.
            slack = 2 * (cell.total[1] - cell.total[0])
            assert cell.total[0] - slack <= truth <= cell.total[1] + slack, value


def test_linear_forms_have_one_that_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that are cut, too, where noise intervals miss the truth. What is missing in an expression stays so."""
    world = World(tmp_path)
    raw = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["max_contributions"] |= {"within_bounds": ["gain", "loss"]}
    gain = {"lower": -2, "upper": 3, "step": "0.25", "missing": 1}
    raw["columns"] |= {"gain": gain, "loss": {"lower": 0, "upper": 8}}
    with duckdb_file(world.table.database) as connection:
        connection.execute(
            "ALTER TABLE orders ADD COLUMN gain DOUBLE; ALTER TABLE orders ADD COLUMN loss INTEGER"
        )
        connection.execute("UPDATE orders SET gain = customer % 11 / 4, loss = 8 - customer % 3")
        connection.execute("UPDATE orders SET gain = NULL WHERE customer % 7 = 0")
    world.table = Table.model_validate(raw)
    world.release("contributions")
    values = ["SUM(2 * gain)", "SUM(loss - 3 * gain + 1)", "SUM(-loss)", "SUM(0.3 * (gain + loss))"]
    items = ", ".join(f"{value} AS x{n}" for n, value in enumerate(values))
    text = f"SELECT {items} FROM orders"
    truths = world.read(text).iloc[0].tolist()
    held, of_noise, draws = 0, 0, 12
    for seed in range(draws):
        monkeypatch.setattr(fail_closed, "SystemSource", lambda seed=seed: StreamSource(seed))
        answer = world.ask(f"-- dp: rows_per_unit=6\n{text}", epsilon="20", revision=seed + 1)
        assert not any("a missing gain counts" in note for note in answer.notes)
        for cell, truth in zip(answer.values[0], truths, strict=True):
            assert cell.total is not None
            held += cell.total[0] <= truth <= cell.total[1]
            of_noise += cell.low <= truth <= cell.high
    # Below 40 of 48 with a probability of 1e-4, were each 95 %.
    assert held >= 40 and of_noise <= 24


def test_means_have_one_that_holds(tmp_path: Path) -> None:
    """Heavy customers spend more, so bounds move the mean: noise intervals miss the truth, total ones
    hold it, and say so in frames, SQL and types. A variance has none.
    """
    world = World(tmp_path)
    with duckdb.connect(str(tmp_path / "orders.duckdb")) as connection:
        amount = "CASE WHEN customer % 10 = 0 THEN 9.5 ELSE 0.5 END AS amount"
        connection.execute(f"CREATE OR REPLACE TABLE orders AS SELECT *, {amount} FROM orders")
        truths = connection.execute(
            f"SELECT {BY} AS k, avg(amount) AS n FROM orders GROUP BY ALL ORDER BY k"
        ).df()["n"]
    raw = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["columns"] |= {"amount": {"lower": 0, "upper": 10, "step": "0.5"}}
    raw["max_contributions"] |= {"within_bounds": ["amount"]}
    world.table = Table.model_validate(raw)
    world.release("contributions", params={"epsilon": "20"})
    bounds = "-- dp: groups=2, rows_per_group=2, rows_per_unit=2"
    text = f"{bounds}\nSELECT {BY} AS m, AVG(amount) AS a, VARIANCE(amount) AS v FROM orders GROUP BY ALL ORDER BY m"
    answer = world.ask(text, epsilon="50")
    frame = answer.to_pandas(intervals=True)
    assert [column.total for column in answer.columns] == ["exact", "stated", "no interval"]
    held = (frame["a_low"] <= truths) & (truths <= frame["a_high"])
    of_noise = (frame["a_noise_low"] <= truths) & (truths <= frame["a_noise_high"])
    # January and February; later months have heavy customers alone.
    assert held[:2].all() and not of_noise[:2].any()
    assert (frame["a_high"] - frame["a_low"])[:2].max() < 8
    assert any("mean(amount)" in note and "hold with 95 %" in note for note in answer.notes)
    fixed = {"groups": 2, "rows_per_group": 2, "rows": 2}
    fields: dict[str, Any] = {"params": {"column": "amount", "by": BY, "epsilon": "50"}}
    table = world.release("mean", contribution_bounds=fixed, **fields).to_pandas()
    assert ((table["low"] <= truths) & (truths <= table["high"]))[:2].all()
    # Nothing is cut: one interval.
    world.table = Table.model_validate(raw | {"contribution_bounds": {"rows": 24}})
    whole = {"groups": 12, "rows_per_group": 2, "rows": 24}
    table = world.release("mean", contribution_bounds=whole, name="all", **fields).to_pandas()
    assert np.allclose(table["low"], table["noise_low"]) and table["low"].notna().all()
    assert np.allclose(table["high"], table["noise_high"])


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SUM(gain)", "where a missing gain counts as 2,"),
        ("SUM(gain), SUM(2 * gain)", "where a missing gain counts as 2 in "),
        ("SUM(coalesce(gain, 2))", "where a missing gain counts as 2,"),
        ("SUM(coalesce(gain, 0))", ""),
        ("SUM(2 * gain)", ""),
    ],
)
def test_what_is_missing_is_said_of_the_sums_that_count_it(
    tmp_path: Path, query: str, told: str
) -> None:
    """A coalesce of the query's own is another number; and one sentence is not about all sums of a query."""
    world = World(tmp_path)
    raw = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["max_contributions"] |= {"within_bounds": ["gain"]}
    raw["columns"] |= {"gain": {"lower": 0, "upper": 3, "missing": 2}}
    with duckdb_file(world.table.database) as connection:
        connection.execute("ALTER TABLE orders ADD COLUMN gain INTEGER")
    world.table = Table.model_validate(raw)
    answer = world.ask(f"-- dp: rows_per_unit=24\nSELECT {query} FROM orders", epsilon="20")
    notes = "; ".join(answer.notes)
    assert "total intervals of" in notes and (
        told in f"{notes};" if told else "counts as" not in notes
    )
    if " in " in told:
        assert "counts as 2 in sum(gain)" in notes or "counts as 2 in gain" in notes, notes


@pytest.mark.parametrize("query", ["AVG(a - b)", "AVG(a * 0)", "AVG(b)", "AVG(2 * a - 1)"])
def test_a_mean_without_visible_noise_has_an_answer(tmp_path: Path, query: str) -> None:
    """At the centre of its grid no noise tells how many values there are; rows must not decide whether there is an answer."""
    world = World(tmp_path)
    raw = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["max_contributions"] |= {"within_bounds": ["a", "b"]}
    raw["columns"] |= {name: {"lower": 0, "upper": 1, "step": 1} for name in ("a", "b")}
    with duckdb_file(world.table.database) as connection:
        connection.execute(
            "ALTER TABLE orders ADD COLUMN a INTEGER DEFAULT 0; ALTER TABLE orders ADD COLUMN b INTEGER DEFAULT 0"
        )
    world.table = Table.model_validate(raw)
    answer = world.ask(f"-- dp: rows_per_unit=24\nSELECT {query} AS x FROM orders", epsilon="1000")
    truth = world.read(f"SELECT {query} AS x FROM orders").iloc[0, 0]
    (cell,) = answer.values[0]
    assert cell.total is not None and cell.total[0] <= truth <= cell.total[1]
    # What lacks rows may be anything: nobody knows of how many.
    total = MeanTotal(-2, 2, 0, 1, (0, 0), (0, 0), cut=3, is_limited=False)
    assert total.find_span(0, 0) == (-2, 2)
