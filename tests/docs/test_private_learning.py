"""The code on docs/guides/private-learning.md runs as it stands, and the thirty-line mechanism keeps
dpflow's contract.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpflow_private_learning.plugin import dpflow_register_calculators, dpflow_register_mechanisms
from page_runner import inside, run_page

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import ValueCounts
from dpflow.testing.conformance import conformance_checks
from dpflow.testing.examples import Example

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "private-learning.md").read_text()
BLOCKS = re.findall(r"```python[^\n]*\n(.*?)```", PAGE, re.S)
README = (ROOT / "plugins" / "dpflow-private-learning" / "README.md").read_text()


def test_a_rule_from_a_release_as_the_page_has_it(tmp_path: Path) -> None:
    """The declaration, the classifier and the predicate, against a table of 2,000 persons who are
    late below 300 km; released again, the same rule is replayed.
    """
    names = run_page(ROOT / "docs" / "guides" / "private-learning.md", tmp_path)
    assert names["model"].predict([[10], [900]]).tolist() == [1, 0]
    assert abs(names["count"][0] - 600) <= 100
    with inside(tmp_path):
        again = names["release"]("learn_thresholds", names["TABLE"], **names["params"])
    assert again.replayed and again.result.document["sql"] == names["model"].sql_


def middle() -> Any:
    names: dict[str, Any] = {}
    exec(BLOCKS[-1], names)
    return names["Middle"]()


def test_the_mechanism_of_ones_own_is_short() -> None:
    assert len(BLOCKS) == 5 and len(BLOCKS[-1].splitlines()) <= 30


def test_its_score_is_the_depth_and_moves_by_one() -> None:
    """Brute force over all points; neighbours; no rows."""
    rng = np.random.default_rng(0)

    def depth(rows: np.ndarray) -> list[int]:
        return [int(min((rows <= p).sum(), (rows >= p).sum())) for p in range(-5, 15)]

    def scored(rows: np.ndarray) -> list[int]:
        values, counts = np.unique(rows.astype(np.int64), return_counts=True)
        score = middle().score(ValueCounts(values, counts.astype(np.int64)), -5, 19)
        return [score.value_at(p) for p in range(20)]

    for _ in range(60):
        rows = rng.integers(-5, 15, rng.integers(0, 12))
        assert scored(rows) == depth(rows)
        other = np.append(rows[1:], rng.integers(-5, 15))
        assert max(abs(a - b) for a, b in zip(scored(rows), scored(other))) <= 1


CASES = [
    check
    for check in conformance_checks(
        middle(),
        [
            Example(
                Table.model_validate(
                    {
                        "name": "t",
                        "database": "t.duckdb",
                        "privacy_unit": {"column": "u"},
                        "contribution_bounds": {"rows": 1},
                        "neighbours": relation,
                        "columns": {"amount": {"lower": -10, "upper": 30}, "u": {}},
                    }
                ),
                {"column": "amount", "epsilon": "1", "delta": "1e-3", "promise": 20} | more,
            )
            for relation, more in (("replace", {}), ("add-remove", {"levels": 2}))
        ],
    )
    if "audit" not in check.name and "bound_holds" not in check.name
]


@pytest.mark.parametrize("check", CASES, ids=lambda check: check.name)
def test_it_keeps_the_contract(check: Any) -> None:
    """The same checks as for built-in mechanisms."""
    check.run()


def test_the_pages_name_what_is_installed() -> None:
    """Every mechanism and calculator of the distribution is on its README, and nothing else; the
    guide names no other.
    """
    installed = {*dpflow_register_mechanisms(), *dpflow_register_calculators()}
    listed = set(re.findall(r"`([a-z_]+)`", README))
    assert listed - {"dpflow"} == installed
    said = set(re.findall(r"`((?:learn|sanitize)_[a-z_]+)`", PAGE))
    assert said <= installed and dpflow.__version__
