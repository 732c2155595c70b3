"""docs/holdout.md says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from dpflow.mechanisms.reusable_holdout import HoldoutParams, sizes

PAGE = (Path(__file__).parents[2] / "docs" / "holdout.md").read_text()


def test_the_sizes_are_the_planners() -> None:
    found = {name: int(n.replace(",", "")) for name, n in re.findall(r"\| `(\w+)` \| ([\d,]+) \|", PAGE)}
    planned = sizes(HoldoutParams(epsilon=1, groups=2, queries=1000, failures=10))
    assert found == {name: planned[name] for name in found} and len(found) == 4


def test_every_method_is_on_the_page() -> None:
    methods = HoldoutParams.model_fields["method"].annotation.__args__
    assert all(f"| `{name}` | " in PAGE for name in methods)
