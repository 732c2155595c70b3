"""docs/holdout.md says what is true."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from dpflow.core.declaration import Table
from dpflow.core.estimators import SqlEstimator
from dpflow.engine.candidate import Submission
from dpflow.mechanisms.reusable_holdout import HoldoutParams, sizes
from dpflow.tables import expressions

PAGE = (Path(__file__).parents[2] / "docs" / "holdout.md").read_text()


def test_the_sizes_are_the_planners() -> None:
    found = {name: int(n.replace(",", "")) for name, n in re.findall(r"\| `(\w+)` \| ([\d,]+) \|", PAGE)}
    planned = sizes(HoldoutParams(epsilon=1, groups=2, queries=1000, failures=10))
    assert found == {name: planned[name] for name in found} and len(found) == 4


def test_every_method_is_on_the_page() -> None:
    methods = HoldoutParams.model_fields["method"].annotation.__args__
    assert all(f"| `{name}` | " in PAGE for name in methods)


def test_the_examples_of_estimators_are_candidates() -> None:
    """Every candidate on the page validates, and its SQL is in the language, over columns with bounds."""
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
    candidates = [
        Submission.model_validate(one) for block in shown if isinstance(block, list) for one in block if "claim" in one
    ]
    assert len(candidates) == 2
    columns = {name: {"lower": 0, "upper": 1} for name in ("label", "prediction", "delay", "x", "y")}
    base = {"name": "t", "database": "x", "unit": {"column": "u"}, "limits": {"rows": 1}}
    table = Table.model_validate(base | {"columns": columns})
    for candidate in candidates:
        assert isinstance(candidate.estimator, SqlEstimator)
        assert str(expressions.parse(candidate.estimator.sql, table))
    assert (
        str(expressions.parse("avg(least(greatest(x / y, 0), 10))", table))
        and "`avg(least(greatest(x / y, 0), 10))`" in PAGE
    )
