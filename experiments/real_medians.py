"""Medians without a range of real data: of flights and of doctor's visits."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
from dpflow_interior_point.mechanisms.interior_point import (
    ApproximateMedian,
)
from dpflow_interior_point.theory import public_columns

from dpflow.core.contract.declaration import Table
from dpflow.core.sampling.randomness import SystemSource
from dpflow.demo.data import extract_flights
from dpflow.tables.private import PrivateTable
from experiments.report import Bound, Experiment, Found, bound

DATA = Path(__file__).parent / "data"
CARRIERS = (
    "9E",
    "AA",
    "AS",
    "B6",
    "DL",
    "EV",
    "F9",
    "FL",
    "HA",
    "MQ",
    "OO",
    "UA",
    "US",
    "VX",
    "WN",
    "YV",
)


def flights(runs: int) -> Found:
    """Median air time and arrival delay per carrier of the flights of 2013, an aircraft's day
    protected, without bounds.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "flights.duckdb"
        csv = extract_flights(Path(folder))
        with duckdb.connect(str(path)) as connection:
            connection.execute(
                "CREATE TABLE flights AS SELECT carrier, tailnum, make_date(year, month, day) AS day, "
                "TRY_CAST(air_time AS INTEGER) AS air_time, TRY_CAST(arr_delay AS INTEGER) AS arr_delay "
                f"FROM read_csv('{csv}', nullstr='NA') WHERE tailnum IS NOT NULL"
            )
        table = Table.model_validate(
            {
                "name": "flights",
                "database": path,
                "privacy_unit": {"column": "tailnum"},
                "block": "day",
                "protects": "unit-block",
                "contribution_bounds": {"rows": 3},
                "columns": {
                    "carrier": {"public_keys": list(CARRIERS), "groups": 1},
                    "air_time": {},
                    "arr_delay": {},
                },
            }
        )
        return _medians(table, ("air_time", "arr_delay"), "carrier", runs)


def insurance(runs: int) -> Found:
    """Median visits and dollars of the RAND health insurance experiment, a person's years
    protected, without bounds.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "randhie.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"CREATE TABLE years AS FROM read_csv('{DATA / 'randhie.csv.gz'}')")
        table = Table.model_validate(
            {
                "name": "years",
                "database": path,
                "privacy_unit": {"column": "person"},
                "contribution_bounds": {"rows": 3},
                "columns": {"visits": {}, "dollars": {}},
            }
        )
        return _medians(table, ("visits", "dollars"), None, runs)


def _medians(table: Table, columns: tuple[str, ...], by: str | None, runs: int) -> Found:
    """Private medians of columns by key beside the true ones, and the share of rows on either side
    of them.
    """
    mechanism, private = ApproximateMedian(), PrivateTable(table)
    rows, curves, answers, right = [], {}, 0, 0
    with duckdb.connect(str(table.database), read_only=True) as connection:
        for column in columns:
            params = mechanism.Params.model_validate(
                {"column": column, "by": by, "epsilon": 1, "delta": "1e-6"}
            )
            given: dict[str, list[float | None]] = {}
            for _ in range(runs):
                with private.open_answer(mechanism.data_request(params, table), ()) as asked:
                    for row in mechanism.draw(params, table, asked, SystemSource()).rows:
                        if row.measure == "median":
                            given.setdefault(row.key, []).append(
                                None if row.value is None else float(row.value)
                            )
            ranks: list[tuple[float, float]] = []
            for key, found in given.items():
                where = "true" if by is None else f"{by} = '{key}'"
                query = f"SELECT {column} FROM {table.name} WHERE {where} AND {column} IS NOT NULL"
                values = np.array([v for (v,) in connection.execute(query).fetchall()], dtype=float)
                said = [z for z in found if z is not None]
                answers += len(said)
                right += sum(
                    public_columns.is_approximate_median(values, z, Fraction(3, 10)) for z in said
                )
                shown = None if not said else float(np.median(said))
                low = None if shown is None else float(np.mean(values <= shown))
                rows.append(
                    (
                        column,
                        key or "all",
                        len(values),
                        float(np.median(values)),
                        shown,
                        low,
                        len(said) / runs,
                    )
                )
                if low is not None:
                    ranks.append((float(len(values)), low))
            curves[column] = sorted(ranks)
    large = [row[-1] for row in rows if row[2] > 15_000]
    bounds = (
        Bound(
            "answers within 0.3 of the middle rank of all rows (0.25 of those read)",
            f"{right} of {answers}",
            right >= 0.98 * answers,
        ),
        bound("least share of answers where there are 15,000 rows", min(large), least=0.95),
    )
    return Found(
        (
            "column",
            "group",
            "rows",
            "true median",
            "private median",
            "rows at or below",
            "answered",
        ),
        tuple(rows),
        curves,
        bounds,
    )


EXPERIMENTS = (
    Experiment(
        23,
        "interior-flights",
        "Flights of 2013 by carrier, without bounds",
        "`approximate_median` with `by: carrier`, epsilon 1, delta 1e-6, protecting what one aircraft does on one day (3 flights at "
        "most). No column has a declared range. The private median is the middle one of the runs; *rows at or below* is its rank.",
        ("rows of the carrier", "share of rows at or below the answer"),
        flights,
        runs=5,
        small=1,
        logarithmic="x",
    ),
    Experiment(
        24,
        "interior-insurance",
        "Doctor's visits and expenses in the RAND health insurance experiment, without bounds",
        "20,190 person-years of 5,912 persons; a person with all years is protected, 3 of them are read. Visits have a large atom at "
        "0, dollars a long tail and one. Data: RAND Corporation, Health Insurance Experiment, in the public domain.",
        ("rows", "share of rows at or below the answer"),
        insurance,
        runs=20,
        small=2,
        logarithmic="x",
    ),
)
