"""Readers get numbers that are possible, at every door; what is stored and combined is as it was drawn."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
import yaml
from duckdb_files import query_file
from typer.testing import CliRunner

import dpflow
from dpflow import Ledger
from dpflow.cli import app
from dpflow.core.contract.result_fields import clip_row
from dpflow.core.contract.results import Result, Row, ValueRange
from dpflow.engine.releases.result_table import ResultTable
from dpflow.tables.access.declarations import load_table

KEYS = [f"k{n}" for n in range(1000)]
#: Nobody has a key of ``empty``; ages are at their upper bound.
ROWS = "CREATE TABLE visits AS SELECT i AS person, 'none' AS empty, 'c' || (i % 20) AS city, 90 AS age FROM range(20_000) t(i)"
DECLARATION = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {
        "empty": {"public_keys": KEYS},
        "city": {"public_keys": [f"c{n}" for n in range(20)]},
        "age": {"lower": 10, "upper": 90},
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Counts of 1,000 keys without a row, released from a file, with the output's table."""
    folder = tmp_path_factory.mktemp("clipped")
    with duckdb.connect(str(folder / "visits.duckdb")) as connection:
        connection.execute(ROWS)
    (folder / "visits.yml").write_text(yaml.safe_dump(DECLARATION))
    release = {
        "name": "empty",
        "mechanism": "histogram",
        "table": "visits.yml",
        "scope": "visits",
        "params": {"by": "empty", "epsilon": "0.1"},
        "publish": {"database": "out.duckdb", "table": "releases"},
    }
    (folder / "release.yml").write_text(yaml.safe_dump(release))
    catalogue = {"output": {"database": "out.duckdb"}, "tables": {"visits": "visits.yml"}}
    (folder / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
    table = load_table(folder / "visits.yml")
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    ledger.grant("visits", 10, 0, filter="basic", table=table, principal="owner")
    command = ["release", str(folder / "release.yml"), "--ledger", str(folder / "ledger.sqlite")]
    printed = CliRunner().invoke(app, command, catch_exceptions=False)
    assert printed.exit_code == 0, printed.output
    return SimpleNamespace(folder=folder, table=table, ledger=ledger, printed=printed.output)


def ask(world: Any, text: str, **options: Any) -> Any:
    options = {"scope": "visits", "tables": [world.table], "ledger": world.ledger} | options
    return dpflow.sql(text, **options)


def test_every_door_of_a_release_shows_possible_counts(world: Any) -> None:
    """Printed, in each frame, in files and in the published table; the ledger keeps what was drawn."""
    (record,) = [one for one in world.ledger.releases() if one.request.get("name") == "empty"]
    result = Result.from_json(record.result)
    assert min(row.value for row in result.rows) < 0
    assert result.ranges == {"count": ValueRange(0)}
    table = ResultTable({"release_id": "1"}, result)
    table.write(world.folder / "r.csv")
    frames = [table.to_pandas(), table.to_polars().to_pandas(), table.to_arrow().to_pandas()]
    frames.append(duckdb.sql(f"FROM '{world.folder}/r.csv'").df())
    with duckdb.connect(str(world.folder / "out.duckdb"), read_only=True) as connection:
        frames.append(connection.execute("FROM releases").df())
    for frame in frames:
        assert (frame["value"] >= 0).all() and (frame["value"] % 1 == 0).all()
        assert (frame["noise_low"] >= 0).all() and (frame["noise_low"] <= frame["noise_high"]).all()
        assert list(frame["clipped"]) == [row.value < row.half_width_95 for row in result.rows]
        assert list(frame["raw_value"]) == [row.value for row in result.rows]
        assert list(frame["half_width_95"]) == [row.half_width_95 for row in result.rows]
    assert str(frames[0]["value"].dtype) == "Int64"
    for shown in (world.printed, table.to_html()):
        assert "clipped" in shown and "0 to " in shown
        assert not any(f" {mark}" in shown or f">{mark}" in shown for mark in ("-1", "-2", "-3"))


def test_a_sum_over_published_rows_is_unbiased(world: Any) -> None:
    """That of the raw column: 0 within 6.7 standard deviations. Control: clipped values add up to 7 more
    than that."""
    ((raw, clipped, width),) = query_file(
        world.folder / "out.duckdb",
        "SELECT sum(raw_value), sum(value), any_value(half_width_95) FROM releases",
    )
    assert abs(raw) < 100 * width < clipped


def test_an_sql_answer_is_clipped_and_its_sums_are_not(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values, intervals and published rows; a sum in the query is that of the numbers drawn."""
    text = "SELECT empty, COUNT(*) AS n FROM visits GROUP BY empty"
    answer = ask(world, text, epsilon="0.1")
    stored = Result.from_json(world.ledger.release(answer.origins[0].release_id).result)
    drawn = {row.key: row.value for row in stored.rows}
    assert min(drawn.values()) < 0
    for (key, n), (_, cell) in zip(answer.rows, answer.values):
        assert n == max(0, drawn[key]) and 0 <= cell.low <= cell.high and cell.low <= n <= cell.high
        assert cell.clipped == (drawn[key] < stored.rows[0].half_width_95)
    clipped = answer.columns[1].clipped
    assert clipped > 0 and any(f"n: {clipped} of 1000" in note for note in answer.notes)
    frame = answer.to_pandas(intervals=True)
    assert (frame["n"] >= 0).all() and (frame["n_noise_low"] >= 0).all()
    assert "n: 95 % noise interval" in answer._repr_html_() and ">-" not in answer._repr_html_()

    monkeypatch.chdir(world.folder)
    command = ["sql", text, "--epsilon", "0.1", "--scope", "visits", "--name", "counted", "--json"]
    printed = CliRunner().invoke(
        app, [*command, "--ledger", "ledger.sqlite"], catch_exceptions=False
    )
    shown = json.loads(printed.output)
    assert shown["free"] and min(row["n"] for row in shown["rows"]) == 0
    assert [column["clipped"] for column in shown["columns"]] == [0, clipped]
    assert query_file(
        world.folder / "out.duckdb", "SELECT min(n), min(n_noise_low) FROM counted"
    ) == [(0, 0)]

    combined = ask(
        world,
        f"WITH t AS ({text}) SELECT SUM(n), MIN(n), COUNT(*) FILTER (n < 0), SUM(2 * n + 5) FROM t",
        epsilon="0.1",
    )
    ((total, least, negative, twice),) = combined.rows
    exact = sum(drawn.values())
    assert combined.free and (total, twice) == (max(0, exact), max(5000, 2 * exact + 5000))
    assert least == 0 and negative == sum(value < 0 for value in drawn.values())


def test_means_from_stored_sums_are_within_their_bounds(world: Any) -> None:
    """A quotient of noisy numbers leaves them; the mean that is shown does not. So does a share."""
    ask(world, "SELECT city, SUM(age), COUNT(age) FROM visits GROUP BY city", epsilon="0.5")
    text = "SELECT city, AVG(age) AS a, SUM(age) / COUNT(age) AS q, -SUM(age) / COUNT(age) AS m FROM visits GROUP BY city"
    answer = ask(world, text, epsilon="0.5")
    assert answer.free and answer.columns[1].clipped > 0
    means, quotients = zip(*((a, q) for _, a, q, _ in answer.rows))
    assert max(quotients) > 90 and max(means) == 90
    assert means == tuple(min(q, 90) for q in quotients)
    assert all(a.high == 90 for _, a, _, _ in answer.values)


@pytest.mark.parametrize(
    "value, width, limits, expected",
    [
        (-30, 20.0, (0, None), (0, 0, 0, True)),
        (-3, 20.0, (0, None), (0, 0, 17.0, True)),
        (30, 20.0, (0, None), (30, 10.0, 50.0, False)),
        (7, None, (0, None), (7, None, None, False)),
        (-7, None, (0, None), (0, None, None, True)),
        (95.0, 2.0, (10, 90), (90, 90, 90, True)),
        (89.0, 2.0, (10, 90), (89, 87, 90, True)),
        (-4.0, 2.0, (None, 0), (-4, -6, -2, False)),
        (-4, 2.0, (None, None), (-4, -6, -2, False)),
        ("2020-01-01", 2.0, (0, None), ("2020-01-01", None, None, False)),
        (None, None, (0, None), (None, None, None, False)),
    ],
)
def test_an_interval_is_never_inverted(value: Any, width: Any, limits: Any, expected: Any) -> None:
    """One that lies outside is the nearest end; types stay."""
    number = clip_row(Row("", "m", value, width), Result((), ranges={"m": ValueRange(*limits)}))
    assert (number.value, number.noise_low, number.noise_high, number.clipped) == expected
    assert type(number.value) is type(value)
