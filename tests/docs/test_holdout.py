"""docs/how-to/gate-models.md says what is true."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from dpflow import Session, plan
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import SqlEstimator, Subject
from dpflow.engine.sessions.candidate import Submission
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.ledger import Ledger
from dpflow.mechanisms.holdout_params import HoldoutParams
from dpflow.mechanisms.reusable_holdout import proven_sizes
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.tables.language import expressions

if TYPE_CHECKING:
    from smallworld import Tiny

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "gate-models.md").read_text()


def test_the_sizes_are_the_planners() -> None:
    found = {
        name: int(n.replace(",", "")) for name, n in re.findall(r"\| `(\w+)` \| ([\d,]+) \|", PAGE)
    }
    planned = proven_sizes(HoldoutParams(epsilon=1, groups=2, queries=1000, failures=10))
    assert found == {name: planned[name] for name in found} and len(found) == 4


def test_the_python_estimator_is_registered_and_right() -> None:
    """The plugin on the page loads beside the others, passes the check across groups, and computes
    what it says.
    """
    (block,) = [
        text for text in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "hookimpl" in text
    ]
    found: dict[str, Any] = {}
    exec(compile(block, "holdout.md", "exec"), found)  # noqa: S102  our own page
    plugin = SimpleNamespace(dpflow_register_estimators=found["dpflow_register_estimators"])
    made = Registry({"page": plugin}).find_estimator("pinball")
    asked = Subject(("x",), {}, "label", lambda rows: rows["x"])
    assert (
        made.estimate_group({"x": np.array([1.0, 3.0]), "label": np.array([2.0, 1.0])}, asked)
        == -(0.9 + 0.2) / 2
    )
    assert made.estimate_group({"label": np.array([2.0])}, asked) == -1000


def test_every_method_is_on_the_page() -> None:
    methods = HoldoutParams.model_fields["method"].annotation.__args__
    assert all(f"| `{name}` | " in PAGE for name in methods)


def test_the_examples_of_estimators_are_candidates() -> None:
    """Every candidate on the page validates, and its SQL is in the language, over columns with
    bounds.
    """
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml[^\n]*\n(.*?)```", PAGE, re.S)]
    candidates = [
        Submission.model_validate({"name": "query"} | one)
        for block in shown
        if isinstance(block, list)
        for one in block
        if "claim" in one
    ]
    assert len(candidates) == 4
    columns = {
        name: {"lower": 0, "upper": 1}
        for name in ("label", "late", "prediction", "delay", "x", "y")
    }
    base = {
        "name": "t",
        "database": "x",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
    }
    table = Table.model_validate(base | {"columns": columns})
    in_sql = [one.estimator for one in candidates if isinstance(one.estimator, SqlEstimator)]
    assert len(in_sql) == 2
    for estimator in in_sql:
        assert str(expressions.parse_expression(estimator.sql, table))
    assert (
        str(expressions.parse_expression("avg(least(greatest(x / y, 0), 10))", table))
        and "`avg(least(greatest(x / y, 0), 10))`" in PAGE
    )


def test_the_pages_gates_score_the_candidate(tiny: Tiny) -> None:
    """Each metric on the page that names no column calls the model, and the champion gate of the page
    keeps a good model where a bad one challenges it.
    """
    import duckdb
    import skops.io
    from holdout_gates import MemoryRegistry
    from sklearn.tree import DecisionTreeClassifier

    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml[^\n]*\n(.*?)```", PAGE, re.S)]
    gates = [one.get("params", one.get("gate", {})) for one in shown if isinstance(one, dict)]
    metrics = [gate["metric"] for gate in gates if "metric" in gate]
    assert len(metrics) == 3 and set(metrics) == {"accuracy"}
    (champion,) = [
        one for one in shown if isinstance(one, dict) and one.get("name") == "champion gate"
    ]

    for name, depth, label in (("good", 2, "y"), ("bad", 1, "1 - y")):
        rows = duckdb.sql(
            f"SELECT (i % 2) AS y, i % 2 AS x, {label} AS z FROM range(100) t(i)"
        ).fetchnumpy()
        model = DecisionTreeClassifier(max_depth=depth).fit(rows["x"].reshape(-1, 1), rows["z"])
        skops.io.dump(model, tiny.folder / f"{name}.skops")
    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS late, i % 2 AS x FROM range(3000) t(i)"
    )
    bit = {"lower": 0, "upper": 1}
    path = tiny.declare(
        protects="unit",
        contribution_bounds={"rows": 1},
        columns={"late": bit, "x": bit},
        block=None,
        holdout=True,
    )
    ledger = Ledger(tiny.ledger)
    ledger.grant("gate", 2, "1e-6", filter="basic", table=load_table(path), principal="owner")
    planned = plan(champion["mechanism"], path, name="page", scope="gate", **champion["params"])
    session, registry = Session.open(planned, ledger, Registry.load()), MemoryRegistry()
    said = [
        judge(
            session,
            {"name": n, "file": tiny.folder / f"{n}.skops", "label": "late", "features": ["x"]},
            registry,
        )
        for n in ("good", "bad")
    ]
    assert [one["promoted"] for one in said] == [True, False]
