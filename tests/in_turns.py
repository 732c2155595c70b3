"""Products of parameters, of which cases that take turns are in ``make test``, and all in ``make slow``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def in_turns(*factors: Sequence[Any], every: int) -> list[Any]:
    """All combinations; slow are those whose places do not add up to a multiple of ``every``.

    Two values are together in one that is not slow if a third factor has at least ``every`` values.
    """
    cases = product(*(enumerate(values) for values in factors))
    return [
        pytest.param(
            *(value for _, value in case),
            marks=pytest.mark.slow if sum(place for place, _ in case) % every else (),
        )
        for case in cases
    ]
