"""From a CSV file that nobody here made to a first private number, by commands alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_runner import show_in

from dpflow.demo.data import extract_flights

#: What a person reads in the package's documentation, not in the rows.
COLUMNS = (
    "day INTEGER, month INTEGER, carrier VARCHAR, tailnum VARCHAR, origin VARCHAR, arr_delay DOUBLE, "
    "distance INTEGER, time_hour TIMESTAMP WITH TIME ZONE"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the flights of 2013: 336,776 rows, with NA where a value is missing."""
    folder = tmp_path_factory.mktemp("walk")
    extract_flights(folder)
    return folder


def test_from_a_csv_file_to_a_first_private_number(folder: Path) -> None:
    """load, init, plan, release, and no YAML by hand. A flight is public, so the answer is known."""
    load = ("load", "flights.csv", "--missing", "NA", "--columns", COLUMNS)
    show_in(folder, *load)
    assert "nothing changed" in show_in(folder, *load)
    airports = (
        "--keys",
        "origin=EWR,JFK,LGA",
        "--groups",
        "origin=3",
        "--bounds",
        "arr_delay=-60..180",
    )
    answers = ("--unit", "tailnum", "--rows", "600", "--epsilon", "2", "--delta", "1e-6")
    show_in(folder, "init", "flights.duckdb", *answers, *airports)
    plan = json.loads(show_in(folder, "plan", "flights_first.yml", "--json"))
    assert (plan["epsilon"], plan["forecast"]) == ("0.2", "the ledger would accept it now")
    released = json.loads(show_in(folder, "release", "flights_first.yml", "--json"))
    assert (
        not released["replayed"] and released["protects"] == "all rows of one tailnum (add-remove)"
    )
    counts = {row[0]: row[2] for row in released["rows"]}
    # 120,835, 111,279 and 104,662 flights; half-width of the noise, and what 600 rows each truncate.
    noise = plan["half_width_95"]["count"]
    for airport, flights in {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662}.items():
        assert flights - 40_000 - 4 * noise <= counts[airport] <= flights + 4 * noise
    assert json.loads(show_in(folder, "release", "flights_first.yml", "--json"))["replayed"]
    described = json.loads(show_in(folder, "describe", "flights", "--json"))
    assert [budget["epsilon_left"] for budget in described["budgets"]] == ["1.8"]
    made = {path.name for path in folder.iterdir() if not path.name.startswith("ledger.sqlite")}
    written = {"flights.yml", "flights_first.yml", "dpflow.yml", "declaration.schema.json"}
    assert made == written | {"flights.csv", "flights.duckdb"}
