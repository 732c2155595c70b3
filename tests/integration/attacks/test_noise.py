"""Attacks on released numbers: their low bits, their precision, their grid, the time they took; and
that naive noise falls to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy.stats import spearmanr

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.sampling.samplers import discrete_gaussian, discrete_laplace
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable

Make = Callable[..., PrivateTable]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Tables of one DOUBLE column from lists of values, one unit each."""

    def build(values: list[float], **column: Any) -> PrivateTable:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(
                "CREATE TABLE data AS SELECT * FROM (SELECT unnest(range(?)) AS u, unnest(?) AS v)",
                [len(values), values],
            )
        declared = {
            "name": "data",
            "database": path,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"v": column},
        }
        return PrivateTable(Table.model_validate(declared))

    return build


def drawn(private: PrivateTable, times: int, name: str = "sum", **params: Any) -> list[float | int]:
    """Released numbers of one exact answer."""
    mechanism = Registry.load().mechanisms[name]
    assert isinstance(mechanism, Mechanism)
    made = mechanism.Params.model_validate(params)
    answer = private.answer(mechanism.data_request(made, private.declaration), ())
    source = SystemSource()
    results = (
        mechanism.draw(made, private.declaration, answer, source).rows[0].value
        for _ in range(times)
    )
    return [value for value in results if isinstance(value, float | int)]


def naive(exact: float, scale: float, words: range) -> set[float]:
    """Every number that the textbook's Laplace noise of doubles makes of these uniform words of 12
    bits.
    """
    uniform = (np.asarray(words) + 0.5) / 2**12
    return set(
        (exact - scale * np.sign(uniform - 0.5) * np.log1p(-2 * np.abs(uniform - 0.5))).tolist()
    )


def test_low_bits_tell_nothing(make: Make) -> None:
    """Mironov 2012: sums of 0.1 and 0.3 on doubles reach different numbers; ours reach the same
    ones, all on the step's grid.
    """
    assert (
        len(naive(0.1, 1.0, range(2**12)) & naive(0.4, 1.0, range(2**12))) < 2**12 / 4
    )  # the control
    tables = [
        make([0.1], lower=0, upper=1, step="0.1"),
        make([0.1, 0.3], lower=0, upper=1, step="0.1"),
    ]
    seen = [set(drawn(table, 3000, column="v", epsilon="2")) for table in tables]
    grid = {float(Fraction(n, 10)) for n in range(-1000, 1000)}
    assert seen[0] | seen[1] <= grid
    middle = {float(Fraction(n, 10)) for n in range(-5, 11)}
    assert middle <= seen[0] and middle <= seen[1]


def test_precision_tells_nothing(make: Make) -> None:
    """Haney and others 2022: a double near 2^52 has no fraction, so naive noise shows that a large
    value is there; ours has one grid.
    """
    noise = 2.0**46 * np.log(np.random.default_rng(0).random(64))
    assert np.any(np.mod(0 + noise, 0.5)) and not np.any(
        np.mod(2.0**52 + noise, 0.5)
    )  # the control
    for values in ([0.0], [2.0**52]):
        results = drawn(make(values, lower=0, upper=2**52), 300, column="v", epsilon="64")
        assert not np.any(np.mod(results, 1))
        assert (
            90 < np.sum(np.mod(results, 2)) < 210
        )  # odd ones: 150 expected, and 60 are 7 standard deviations


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_neighbours_share_one_grid(law: str) -> None:
    """Noise on n and on n + 1 reaches the same integers: nothing near either centre is impossible
    under the other.
    """
    source = SystemSource()
    noise = (
        discrete_laplace(Fraction(3), 200_000, source)
        if law == "laplace"
        else discrete_gaussian(Fraction(9), 200_000, source)
    )
    reached = set(noise.tolist())
    assert set(range(-9, 10)) <= reached
    assert set(range(-8, 10)) <= {value + 1 for value in reached}


@pytest.mark.slow
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_time_does_not_follow_the_value(law: str) -> None:
    """The rank correlation of a draw's duration with its size is below 0.05.

    What remains: a draw beyond the sampler's table or within 2^-64 of a cut takes longer, at odds
    below 2^-40 by draw; and large vectors are drawn in chunks whose few unlucky words are resolved
    one by one.
    """
    source = SystemSource()
    draw = discrete_laplace if law == "laplace" else discrete_gaussian
    parameter = Fraction(10) if law == "laplace" else Fraction(100)
    draw(parameter, 1000, source)
    taken, values = np.empty(30_000), np.empty(30_000)
    for i in range(len(taken)):
        start = time.perf_counter_ns()
        value = draw(parameter, 1, source)
        taken[i], values[i] = time.perf_counter_ns() - start, abs(int(value[0]))
    correlation = spearmanr(taken, values).statistic
    assert abs(correlation) < 0.05, correlation
