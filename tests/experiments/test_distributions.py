"""The comparison of distributions in a small form, and its measure."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from experiments import distributions, interior
from experiments.distributions import (
    DECILES,
    OWN,
    ask_peers,
    beside_others,
    by_rows,
    rank_error,
)


def test_rank_error_is_zero_at_the_quantiles_alone() -> None:
    """Also within a value that many rows share; beyond all rows it is the distance to the end."""
    values = np.arange(100.0)
    assert rank_error(values, DECILES, [10.0 * i - 0.5 for i in range(1, 10)]) == 0
    assert rank_error(np.zeros(100), DECILES, [0.0] * 9) == 0
    assert rank_error(values, DECILES, [1e9] * 9) == pytest.approx(0.5)


def test_small_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound holds on some of the laws."""
    some = {name: interior.LAWS[name] for name in ("Gaussian", "Poisson 4")}
    monkeypatch.setattr(interior, "LAWS", some)
    assert by_rows(1).broken == []
    assert beside_others(1).broken == []


def test_libraries_that_nobody_has_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails without them."""
    monkeypatch.setattr(distributions, "PEERS", {"no_such_library": "None"})
    assert ask_peers([np.arange(9.0)], Fraction(1)) == {}
    assert set(OWN) == {"cdf", "halving", "guessed bounds", "cdf, range"}
