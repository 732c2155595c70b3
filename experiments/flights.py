"""Real data: 200 adaptive submissions to the gate of the flights model DAG, in one scope; honest ones pass, boosted ones fail."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dpflow.cli.demo import data
from dpflow.core.declaration import load_table
from dpflow.engine import make_plan
from dpflow.engine.candidate import Submission, load_candidate
from dpflow.engine.gate import judge
from dpflow.engine.request import parse_request
from dpflow.engine.session import Session
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import build, open_rows
from experiments.report import Experiment, Found, bound

DAGS = Path(__file__).parent.parent / "dags"
SUBMISSIONS, BOOSTED = 200, 8
FIT = 20_000


class World:
    """The demo's files in a folder of their own, a ledger with the holdout's grant, and the gate that the DAG opens."""

    def __init__(self, root: Path) -> None:
        shutil.copytree(DAGS, root / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        private = root / "demo" / "private"
        private.mkdir(parents=True)
        self.root, self.database = root, private / "flights.duckdb"
        build(self.database, (root / "dags" / "flights.sql").read_text(), {"raw_flights": data.extract(private)})
        ledger, registry = Ledger(root / "ledger.sqlite", create=True), Registry.load()
        holdout = load_table(root / "dags" / "tables" / "flights_holdout.yml")
        ledger.grant("flights_holdout", 2, 0, filter="basic", table=holdout, principal="owner")
        request = parse_request(_gate(root / "dags" / "flights_model.py"), root / "dags")
        self.session = Session.open(make_plan(request, registry), ledger, registry)

    def analyst(self) -> ModuleType:
        """The analyst's own module."""
        spec = importlib.util.spec_from_file_location("analyst", self.root / "dags" / "analyst.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def holdout(self) -> dict[str, Any]:
        """All rows of the holdout, as no analyst could read them: the truth of this experiment."""
        import duckdb

        with duckdb.connect(str(self.database), read_only=True) as connection:
            return dict(connection.sql("SELECT * FROM flights_holdout").fetchnumpy())


def _gate(dag: Path) -> dict[str, Any]:
    """The session that the DAG's gate opens, read without importing Airflow."""
    for node in ast.parse(dag.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GATE":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("the DAG defines no GATE")


class Climber:
    """An analyst who changes the model a little, claims its score on weeks he did not fit, and keeps what passes and improves."""

    def __init__(self, analyst: ModuleType, training: Any, folder: Path, seed: int) -> None:
        self._analyst, self._folder, self._rng = analyst, folder, np.random.default_rng(seed)
        shuffled = training.sample(frac=1.0, random_state=seed)
        held = shuffled["week_of_year"] % 4 == 3
        self._fit, self._check, self._all = shuffled[~held].iloc[:FIT], shuffled[held], shuffled
        self._best: tuple[float, frozenset[str], int] = (0.0, frozenset({"distance"}), 2)
        self._seen: set[Any] = set()
        self._trying = self._best

    def honest(self, number: int) -> dict[str, Any]:
        """The next model: one feature more or less, or another depth, that was not tried yet."""
        from sklearn.tree import DecisionTreeClassifier

        features, depth = self._best[1], self._best[2]
        while (features, depth) in self._seen or not features:
            features = features ^ {self._analyst.USEFUL[self._rng.integers(len(self._analyst.USEFUL))]}
            depth = int(self._rng.integers(2, 9))
        self._seen.add((features, depth))
        names = tuple(sorted(features))
        model = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=50, random_state=0)
        model.fit(self._fit[list(names)].to_numpy(float), self._fit["late"].to_numpy(int))
        claim = float(model.score(self._check[list(names)].to_numpy(float), self._check["late"].to_numpy(int)))
        self._trying = (claim, features, depth)
        return dict(self._analyst._saved(self._folder, number, f"tree {number}", model, names, claim, "honest"))

    def boosted(self, number: int) -> dict[str, Any]:
        """Noise columns that fit a small sample best, with the score on that sample as the claim."""
        name, model, names, claim, kind = self._analyst._freedman(self._all, number)
        return dict(self._analyst._saved(self._folder, number, f"{name} {number}", model, names, claim, kind))

    def told(self, verdict: str) -> None:
        """What passed and is better becomes the model to change."""
        if verdict == "yes" and self._trying[0] > self._best[0]:
            self._best = self._trying


def submissions(runs: int) -> Found:
    """One gate for every run; boosted submissions come in between."""
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, list[tuple[float, float]]] = {"honest claim": [], "its truth": [], "boosted claim": []}
    passed = refused = exhausted = 0
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder))
            training = open_rows(world.root / "dags" / "tables" / "flights_training.yml")
            climber, truth = Climber(world.analyst(), training, world.root / "models", seed), world.holdout()
            at = set(range(SUBMISSIONS // BOOSTED - 1, SUBMISSIONS, SUBMISSIONS // BOOSTED))
            for number in range(SUBMISSIONS):
                given = climber.boosted(number) if number in at else climber.honest(number)
                verdict = judge(world.session, given)["verdict"]
                exhausted += verdict == "exhausted"
                claim = float(given["claim"])
                if number in at:
                    refused += verdict == "no"
                    curves["boosted claim"].append((number + 1, claim))
                else:
                    passed += verdict == "yes"
                    climber.told(verdict)
                    curves["honest claim"].append((number + 1, claim))
                    predict = load_candidate(Submission(**_fields(given))).predict
                    assert predict is not None
                    curves["its truth"].append((number + 1, float(np.mean(predict(truth) == truth["late"]))))
    honest = runs * (SUBMISSIONS - BOOSTED)
    for kind, count, found in (("honest", honest, passed), ("boosted", runs * BOOSTED, refused)):
        rows.append(
            (kind, count, found if kind == "honest" else count - found, found if kind == "boosted" else count - found)
        )
    gaps = [c[1] - t[1] for c, t in zip(curves["honest claim"], curves["its truth"])]
    return Found(
        ("submissions", "number", "yes", "no"),
        tuple(rows),
        curves,
        (
            bound("honest submissions that pass", passed / honest, least=0.99),
            bound("boosted submissions that fail", refused / (runs * BOOSTED), least=1.0),
            bound("submissions without an answer", float(exhausted), most=0.0),
            bound("largest honest claim above its truth", max(gaps), most=0.05),
        ),
    )


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in Submission.model_fields}


EXPERIMENTS = (
    Experiment(
        7,
        "flights-gate",
        "Two hundred submissions about real flights",
        "The gate of the flights model DAG (2,000 groups of aircraft, 10 failures, heuristic) in a ledger, on the flights of 2013. "
        f"An analyst climbs through {SUBMISSIONS - BOOSTED} decision trees: the next one changes the best that passed. In between come "
        f"{BOOSTED} models of noise columns that were picked on the rows whose score they claim.",
        ("submission", "accuracy"),
        submissions,
        runs=1,
        small=1,
    ),
)
