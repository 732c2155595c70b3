"""Half-widths of means and variances: at most what a plan says of a group's size, and around the truth."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.moments import Measure, Query


@pytest.mark.parametrize("measure", ["mean", "variance"])
@pytest.mark.parametrize("upper", [1, 2, 3, 120])
@pytest.mark.parametrize(("size", "tail"), [(2000, 200), (60, 25), (9, 1)])
def test_no_noise_within_its_tails_gives_a_wider_interval(
    measure: str, size: int, tail: int, upper: int
) -> None:
    """The noisy size that a release divides by is lower than the size by up to its tail; and each interval holds the truth."""
    columns = {"x": {"lower": 0, "upper": upper, "step": 1}}
    table = Table.model_validate(
        {"name": "t", "database": "t", "privacy_unit": {"column": "u"}, "columns": columns}
        | {"contribution_bounds": {"rows": 1}}
    )
    asked = Measure.model_validate({"measure": measure, "column": "x", "error": 1, "size": size})
    query = Query(table, None, (asked,))
    column = query.columns["x"]
    reach = {"sum": upper, "square": upper**2}
    tails = {moment: float(tail * reach.get(moment[0], 1)) for moment in query.moments}
    bound, widest = query.error_bound(asked, tails), 0.0
    # So many values at the upper bound, the others at the lower one.
    for low, middle, high, above in product(
        (-1, 0, 1), (-1, 0, 1), (-1, 0, 1), (0, size // 2, size)
    ):
        values = [0] * (size - above) + [upper] * above
        exact = {
            "sum": sum(value - column.centre for value in values),
            "square": sum(
                column.square.round_square(value) - column.square.half for value in values
            ),
        }
        shifts = {"sum": middle, "square": high}
        noisy = {
            moment: np.array(
                [round(exact.get(moment[0], size) + shifts.get(moment[0], low) * tails[moment])]
            )
            for moment in query.moments
        }
        (value,), (width,) = query.read_measure(asked, noisy, tails)
        share = above / size
        truth = upper * share if measure == "mean" else upper**2 * share * (1 - share)
        assert width is not None and width <= bound * (1 + 1e-9)
        assert abs(value - truth) <= width * (1 + 1e-9)
        widest = max(widest, width)
    assert widest >= (0.8 if measure == "mean" else 0.4) * min(bound, query.widest_error(asked))
