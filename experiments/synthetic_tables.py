"""Synthetic tables of real flights: how far their pairs of columns are from the true ones."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import RecordArrays
from dpflow.core.sampling.randomness import SystemSource
from dpflow.demo.data import extract_flights
from dpflow.mechanisms.synthesize import Cells, Synthesize
from experiments.real_medians import CARRIERS
from experiments.report import Bound, Experiment, Found, bound

Ints = NDArray[np.int64]
TABLE = Table.model_validate(
    {
        "name": "flights",
        "database": "flights.duckdb",
        "privacy_unit": {"column": "flight"},
        "contribution_bounds": {"rows": 1},
        "columns": {
            "flight": {},
            "carrier": {"public_keys": list(CARRIERS)},
            "origin": {"public_keys": ["EWR", "JFK", "LGA"]},
            "month": {"lower": 1, "upper": 12},
            "hour": {"lower": 0, "upper": 23},
            "distance": {"lower": 0, "upper": 5000},
            "dep_delay": {"lower": -60, "upper": 600},
        },
    }
)
NAMES = tuple(TABLE.columns)[1:]
EPSILONS = ("0.1", "0.3", "1", "3", "10")


def flights(runs: int) -> Found:
    """Distances in total variation over all 15 pairs of six columns, by cells as `synthesize` has
    them.
    """
    cells = {name: Cells.of_column(TABLE.column(name), 64) for name in NAMES}
    columns = _read_flights()
    true = {name: cells[name].number_cells(columns[name]) for name in NAMES}
    pairs = list(itertools.combinations(NAMES, 2))
    exact = {pair: _share_cells(true, pair, cells) for pair in pairs}
    rows, held, stated_marginals = [], 0, 0
    curves: dict[str, list[tuple[float, float]]] = {"mean": [], "worst": [], "columns": []}
    independent = [
        _distance(exact[pair], np.outer(exact[pair].sum(axis=1), exact[pair].sum(axis=0)))
        for pair in pairs
    ]
    for epsilon in EPSILONS:
        means, worst, singles, bounds = [], [], [], []
        for _ in range(runs):
            made, stated = _synthesize(epsilon, columns, cells)
            errors = [_distance(exact[pair], _share_cells(made, pair, cells)) for pair in pairs]
            means.append(float(np.mean(errors)))
            worst.append(max(errors))
            for name in NAMES:
                sides = [
                    np.bincount(side[name], minlength=cells[name].size) for side in (true, made)
                ]
                error = _distance(*(side / side.sum() for side in sides))
                singles.append(error)
                bounds.append(stated[name])
                held += error <= stated[name]
                stated_marginals += 1
        found = [float(np.mean(part)) for part in (means, worst, singles, bounds)]
        rows.append((epsilon, *found))
        for label, value in zip(curves, found):
            curves[label].append((float(epsilon), value))
    curves["predicted, exact columns without pairs"] = [
        (float(epsilon), float(np.mean(independent))) for epsilon in EPSILONS
    ]
    at_one = curves["mean"][EPSILONS.index("1")][1]
    return Found(
        ("epsilon", "mean of pairs", "worst pair", "mean of columns", "stated of columns"),
        tuple(rows),
        curves,
        (
            Bound(
                "columns within the bound that their result states",
                f"{held} of {stated_marginals}",
                held == stated_marginals,
            ),
            bound(
                "mean of pairs at epsilon 1, as a part of that of exact columns without pairs",
                at_one / float(np.mean(independent)),
                most=0.5,
            ),
        ),
    )


def _read_flights() -> dict[str, Ints]:
    """Every flight with a departure, in grid steps and places of keys."""
    with TemporaryDirectory() as folder:
        csv = extract_flights(Path(folder))
        with duckdb.connect() as connection:
            fetched = connection.execute(
                f"SELECT {', '.join(NAMES)} FROM read_csv('{csv}', nullstr='NA') WHERE dep_delay IS NOT NULL"
            ).fetchnumpy()
    columns = {}
    for name in NAMES:
        column = TABLE.column(name)
        if column.public_keys is None:
            columns[name] = np.asarray(fetched[name], np.int64).clip(*column.grid_bounds())
        else:
            places = {key: i for i, key in enumerate(column.public_keys)}
            columns[name] = np.array([places[key] for key in fetched[name]], np.int64)
    return columns


def _synthesize(
    epsilon: str, columns: dict[str, Ints], cells: dict[str, Cells]
) -> tuple[dict[str, Ints], dict[str, float]]:
    """Cells of synthetic rows, and the bounds that the result states."""
    mechanism = Synthesize()
    params = mechanism.Params.model_validate(
        {"columns": NAMES, "epsilon": epsilon, "delta": "1e-7"}
    )
    answer = RecordArrays(np.arange(len(columns[NAMES[0]])), columns)
    result = mechanism.draw(params, TABLE, answer, SystemSource())
    assert result.synthetic is not None
    made = {}
    for name, values in zip(NAMES, zip(*result.synthetic.rows, strict=True)):
        keys = cells[name].keys
        numbers = [keys.index(value) for value in values] if keys else [int(v) for v in values]
        made[name] = cells[name].number_cells(np.array(numbers, np.int64))
    return made, {row.key: float(row.value or 0) for row in result.rows}


def _share_cells(
    columns: dict[str, Ints], pair: tuple[str, str], cells: dict[str, Cells]
) -> NDArray[np.float64]:
    """Shares of rows in every pair of cells."""
    shape = tuple(cells[name].size for name in pair)
    flat = columns[pair[0]] * shape[1] + columns[pair[1]]
    return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape) / len(flat)


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """In total variation."""
    return 0.5 * float(np.abs(one - other).sum())


EXPERIMENTS = (
    Experiment(
        65,
        "synthetic-flights",
        "Synthetic flights",
        "`synthesize` on the 328,521 flights of 2013 that departed: carrier, origin, month, hour, distance and delay, in 16, 3, 12, 24, "
        "64 and 64 cells; a flight is protected, delta 1e-7, 20,000 synthetic rows. The distance in total variation of a pair is the "
        "share of rows that are in a wrong pair of cells. *Predicted* are independent columns without any noise.",
        ("epsilon", "distance in total variation"),
        flights,
        runs=2,
        small=1,
        logarithmic="xy",
    ),
)
