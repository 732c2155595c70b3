"""The pages on gates say what is true."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import skops.io
import yaml
from made_once import make_registry
from mlflow import MlflowClient
from page_runner import examples, inside, run_main
from sklearn.linear_model import LogisticRegression

from dpflow import plan
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import SqlEstimator, Subject
from dpflow.engine import make_plan
from dpflow.engine.planning.gate_design import load_gate_file
from dpflow.engine.sessions.candidate import Submission
from dpflow.engine.sessions.holdout_gate import check_submissions
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger
from dpflow.mechanisms.holdout_params import HoldoutParams
from dpflow.mechanisms.reusable_holdout import proven_sizes
from dpflow.registry import Registry
from dpflow.tables.language import expressions

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guides" / "gates.md").read_text()
HOW_TO = DOCS / "how-to" / "gate-models.md"
FILES = {block.title: block.text for block in examples(HOW_TO) if block.title}


def test_the_how_to_is_short() -> None:
    """At most 900 words of prose, and it has each file from training to promotion."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", HOW_TO.read_text(), flags=re.S)
    text = re.sub(r"^[|#].*$", "", text, flags=re.M)
    assert 300 < len(re.findall(r"\S*\w\S*", text)) <= 900
    titles = {block.title for block in examples(HOW_TO) if block.title}
    assert titles >= {"train.py", "arrivals.yml", "candidates.yml", "gate.yml"}


def test_the_grid_of_widths_is_the_programs() -> None:
    from experiments.gate_attacks import list_widths

    page = (DOCS / "research" / "gate-widths.md").read_text()
    assert all(line in page for line in list_widths())


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


@pytest.fixture(scope="module")
def page_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The how-to's own files, with what its training leaves."""
    folder = tmp_path_factory.mktemp("page")
    with inside(folder):
        for name in ("arrivals.yml", "gate.yml", "candidates.yml"):
            Path(name).write_text(FILES[name])
        exec(compile(FILES["train.py"], "train.py", "exec"), {})  # noqa: S102  our own page
        wrong = LogisticRegression().fit([[0.0], [23.0]], [1, 0])
        skops.io.dump(wrong, "wrong.skops")
        Path("wrong.yml").write_text(
            "- {name: wrong, file: wrong.skops, label: late, features: [hour]}"
        )
    return folder


@pytest.fixture
def granted(page_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the folder of the how-to's files, with a ledger of its own that paid no gate yet."""
    monkeypatch.setenv("DPFLOW_LEDGER", str(tmp_path / "ledger.sqlite"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with inside(page_files):
        grant = "ledger grant arrivals --epsilon 1 --delta 1e-6 --table arrivals.yml"
        assert run_main(grant.split())[0] == 0
        yield tmp_path


def test_the_pages_gates_score_the_candidate(granted: Path) -> None:
    """Each gate on the page scores models, and the page's own files promote as the page says. The same
    gate keeps its champion where one that is always wrong, by the same rows, challenges it.
    """
    blocks = [block for page in (HOW_TO, DOCS / "guides" / "gates.md") for block in examples(page)]
    shown = [yaml.safe_load(block.text) for block in blocks if block.language == "yaml"]
    gates = [one.get("params", one.get("gate", {})) for one in shown if isinstance(one, dict)]
    metrics = [gate["metric"] for gate in gates if "metric" in gate]
    assert metrics == ["accuracy", "accuracy", {"estimator": "auc", "label": "late"}]

    Path("less.yml").write_text(FILES["gate.yml"].replace("units: 6000", "units: 4000"))
    refusal = run_main(["gate", "plan", "less.yml"])[2]
    assert "nearest" in refusal and " ".join(refusal.split()) in " ".join(
        HOW_TO.read_text().split()
    )

    def submit(candidates: str) -> tuple[int, list[str]]:
        words = f"gate submit gate.yml {candidates} --champion {granted}/champion.json --json"
        status, output, errors = run_main(words.split())
        assert output, errors
        return status, [one["outcome"] for one in json.loads(output)["verdicts"]]

    assert submit("candidates.yml") == (0, ["promoted", "promoted", "not_better"])
    assert submit("wrong.yml") == (1, ["not_better"])


def test_the_workflow_of_the_page_runs(granted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands on the page's own gate and candidates, with the environment that it sets: the job
    passes when a candidate is promoted, and fails for one that is not.
    """
    job = yaml.safe_load(FILES[".github/workflows/model-gate.yml"])["jobs"]["gate"]
    uri = make_registry(granted)
    assert set(job["env"]) == {"DPFLOW_LEDGER", "MLFLOW_TRACKING_URI"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    steps = [shlex.split(step["run"]) for step in job["steps"] if "dpflow " in step.get("run", "")]
    assert [step[:4] for step in steps] == [
        ["dpflow", "gate", "status", "gate.yml"], ["dpflow", "gate", "submit", "gate.yml"],
    ]  # fmt: skip
    assert [run_main(step[1:])[0] for step in steps] == [0, 0]
    champion = MlflowClient(uri, uri).get_model_version_by_alias("late_arrivals", "champion")
    assert champion.tags["dpflow.name.champion"] == "tree"
    other = ["wrong.yml" if word == "candidates.yml" else word for word in steps[1][1:]]
    assert run_main(other)[0] == 1


def test_each_form_of_a_candidate_is_taken(granted: Path) -> None:
    """The four on the page, by a gate on accuracy and, for the language model's scores, by the grades of
    the other page.
    """
    (forms,) = (
        yaml.safe_load(block.text)
        for block in examples(HOW_TO)
        if block.language == "yaml" and "language model" in block.text
    )
    names = [form["name"] for form in forms]
    assert names == ["file", "table", "registry", "language model"]
    registry, ledger = Registry.load(), Ledger(granted / "ledger.sqlite")
    accuracy = make_plan(load_gate_file(Path("gate.yml"), registry)[0], registry, ledger)
    check_submissions([accuracy], ledger, forms[:3])
    with pytest.raises(PlanRefused, match="names no label"):
        check_submissions([accuracy], ledger, forms[3:])
    page_names: dict[str, Any] = {}
    (block,) = (b.text for b in examples(DOCS / "guides" / "gates.md") if "grade = {" in b.text)
    exec(block[block.index("grade = {") : block.index("ledger = ")], page_names)  # noqa: S102  our own page
    table = Path("prompts.yml")
    (text,) = re.findall(r'"""\n(name: prompts.*?)"""', block, re.S)
    table.write_text(text)
    params = {"metric": {"estimator": page_names["grade"]}, "question": "champion", "epsilon": "10"}
    graded = plan("gate", table, name="prompts", scope="prompts", **params)
    check_submissions([graded], ledger, forms[3:])
    with pytest.raises(PlanRefused):
        check_submissions([graded], ledger, forms[:1])


def test_the_dag_of_the_page_is_the_examples() -> None:
    """Line by line what the example DAG does, with tasks that it has."""
    lines = (DOCS.parent / "dags" / "flights_model.py").read_text().split("\n")
    start, end = (lines.index(f"    # [{word} branches]") for word in ("START", "END"))
    (block,) = (b.text for b in examples(HOW_TO) if "ReusableHoldoutOperator(" in b.text)
    assert block == textwrap.dedent("\n".join(lines[start + 1 : end])) + "\n"
