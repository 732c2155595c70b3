"""Sizes of proven verdicts, against the tables of the stable-median specification."""

from __future__ import annotations

import pytest

from dpflow.core.toolbox.generalisation_bounds import (
    Promise,
    balance_threshold,
    description_length_groups,
    one_query_groups,
    sparse_vector_groups,
    splitting_groups,
    tight_groups,
    tight_threshold,
)
from dpflow.errors import InvalidInput


def promise(queries: int, failures: int = 10, rho: float = 0.2, alpha: float = 0.1) -> Promise:
    return Promise(queries, failures, 0.05, rho, alpha)


@pytest.mark.parametrize(
    ("queries", "rho", "alpha", "groups", "generalisation"),
    [
        (10, 0.24, 0.2, 377_698, 78_192),
        (1_000, 0.24, 0.2, 539_951, 122_807),
        (1_000_000, 0.24, 0.2, 783_331, 189_730),
        (1_000, 0.2, 0.1, 1_821_222, None),
        (10_000, 0.2, 0.1, 2_094_857, None),
    ],
)
def test_sparse_vector_sizes_are_the_papers(
    queries: int, rho: float, alpha: float, groups: int, generalisation: int | None
) -> None:
    """m0 and m1 of Theorem 5.1 come out to the digit."""
    m0, m1, *_ = sparse_vector_groups(promise(queries, rho=rho, alpha=alpha))
    assert m0 == groups
    assert generalisation in (None, m1)


@pytest.mark.parametrize(
    ("queries", "failures", "rho", "alpha", "groups"),
    [
        (1_000, 10, 0.2, 0.1, 5_692),
        (10, 10, 0.24, 0.2, 214),
        (10_000, 1, 0.2, 0.1, 1_275),
        (10_000, 1_000, 0.2, 0.1, 321_035),
    ],
)
def test_description_length_sizes_are_the_papers(
    queries: int, failures: int, rho: float, alpha: float, groups: int
) -> None:
    """The noise-free verifier needs the tabulated number of groups."""
    assert description_length_groups(promise(queries, failures, rho, alpha)) == groups


def test_the_balanced_threshold_is_the_papers() -> None:
    """theta = .145244 and d = .0101245 for rho .2, alpha .1."""
    theta, distance = balance_threshold(0.1, 0.2)
    assert theta == pytest.approx(0.145244, abs=1e-6)
    assert distance == pytest.approx(0.0101245, abs=1e-7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rho": 0.3, "alpha": 0.1}, "0 < alpha < rho < 1/4"),
        ({"rho": 0.1, "alpha": 0.1}, "0 < alpha < rho < 1/4"),
        ({"rho": float("nan"), "alpha": 0.1}, "0 < alpha < rho < 1/4"),
    ],
)
def test_promises_outside_the_theorem_are_refused(fields: dict[str, float], message: str) -> None:
    """Ranges are checked in the positive form."""
    with pytest.raises(InvalidInput, match=message):
        promise(10, **fields)


def test_beta_and_failures_are_checked() -> None:
    """A failure probability above 1/2 and more failures than queries mean nothing."""
    with pytest.raises(InvalidInput, match="beta"):
        Promise(10, 1, 0.6, 0.2, 0.1)
    with pytest.raises(InvalidInput, match="failures"):
        Promise(10, 11, 0.1, 0.2, 0.1)


def test_other_sizes_are_the_papers() -> None:
    """Splitting, corrected values in the description length, and the tight calibration."""
    assert [splitting_groups(promise(k)) for k in (10, 1_000, 100_000)] == [
        5_920,
        1_047_000,
        150_200_000,
    ]
    assert description_length_groups(promise(1_000), 10**6) == 17_972
    assert description_length_groups(promise(10, rho=0.24, alpha=0.2), 10**6) == 2_569
    assert tight_groups(promise(1_000)).groups == 823_221
    assert one_query_groups(promise(1_000))[0] < sparse_vector_groups(promise(1_000))[0]


def test_the_tight_threshold_needs_its_groups() -> None:
    """It exists at the planned size and a little for rounding, not below; it lies between the two
    rates.
    """
    plan = tight_groups(promise(1_000))
    threshold = tight_threshold(
        promise(1_000), plan.epsilon, plan.delta, plan.each, plan.groups + 300
    )
    assert threshold is not None and 0.1 < threshold < 0.2
    assert (
        tight_threshold(promise(1_000), plan.epsilon, plan.delta, plan.each, plan.groups - 100)
        is None
    )
    assert tight_threshold(promise(1_000), 1.0, plan.delta, plan.each, 10**12) is None
