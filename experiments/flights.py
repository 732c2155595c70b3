"""Real data: 200 adaptive submissions to the flights model DAG's gate, run by Airflow's scheduler;
honest ones pass, boosted ones fail.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dpflow.demo import job
from dpflow.demo.airflow_stage import Stage, running_stage
from dpflow.demo.workspace import Workspace, create_workspace
from dpflow.engine.sessions.candidate import Submission, load_candidate
from dpflow.engine.sessions.holdout_gate import join_outcomes
from experiments.report import Experiment, Found, bound

RUNS, STEPS = (
    10,
    20,
)  #: DAG runs, and the submissions of each, which build on the verdicts of the runs before
BRANCHES = {"promoted": "deploy", "exhausted": "collect_fresh_data"}
ENDS = {*BRANCHES.values(), "rethink"}


def submissions(runs: int) -> Found:
    """One gate for every repetition, all through a real scheduler with its LocalExecutor."""
    said: list[dict[str, Any]] = []
    followed: list[bool] = []
    truths: list[float] = []
    charged = set()
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            workspace = create_workspace(Path(folder))
            ledger = job.prepare_workspace(workspace)
            with running_stage(workspace) as stage:
                for number in range(RUNS):
                    followed.append(_climb(stage, f"climb-{number:02d}", said))
            holdout = _holdout(workspace)
            truths += [_truth(one, holdout) for one in said[len(truths) :]]
            spent = ledger.remaining("flights_holdout").rows()[0]["epsilon_spent"]
            charged.add((len(ledger.releases("flights_holdout")), spent, ledger.verify().ok))
    honest = [one for one in said if one["notes"]["kind"] == "honest"]
    boosted = [one for one in said if one["notes"]["kind"] != "honest"]
    gaps = [
        float(one["claim"]) - truth
        for one, truth in zip(said, truths)
        if one["notes"]["kind"] == "honest"
    ]
    words = ("yes", "no", "exhausted")
    rows = [
        (n, len(of), *(_count(of, word) for word in words))
        for n, of in (("honest", honest), ("boosted", boosted))
    ]
    first = list(zip(range(1, RUNS * STEPS + 1), said, truths))
    curves = {
        "honest claim": [
            (n, float(one["claim"])) for n, one, _ in first if one["notes"]["kind"] == "honest"
        ],
        "its truth": [(n, truth) for n, one, truth in first if one["notes"]["kind"] == "honest"],
        "boosted claim": [
            (n, float(one["claim"])) for n, one, _ in first if one["notes"]["kind"] != "honest"
        ],
    }
    return Found(
        ("submissions", "number", *words),
        tuple(rows),
        curves,
        (
            bound("honest submissions that pass", _count(honest, "yes") / len(honest), least=0.99),
            bound("boosted submissions that fail", _count(boosted, "no") / len(boosted), least=1.0),
            bound("submissions without an answer", float(_count(said, "exhausted")), most=0.0),
            bound("largest honest claim above its truth", max(gaps), most=0.05),
            bound(
                "DAG runs that took the branch of their outcome",
                sum(followed) / len(followed),
                least=1.0,
            ),
            bound(
                "ledgers that charged the session once and verify",
                float(charged == {(1, "2", True)}),
                least=1.0,
            ),
        ),
    )


def _climb(stage: Stage, run: str, said: list[dict[str, Any]]) -> bool:
    """One DAG run to its end: what it submitted with what the gate said, and whether the branch is that of
    the outcome.
    """
    job.run_model_dag(stage, run, steps=STEPS)
    submitted, verdicts = (
        stage.client.read_result(job.MODEL_DAG, run, task) for task in ("train", "gate")
    )
    said += [verdict | one for one, verdict in zip(submitted, verdicts, strict=True)]
    taken = [
        t["task_id"] for t in stage.client.list_tasks(job.MODEL_DAG, run) if t["state"] == "success"
    ]
    outcome = join_outcomes(verdicts)
    return ENDS & set(taken) == {BRANCHES.get(outcome, "rethink")}


def _holdout(workspace: Workspace) -> dict[str, Any]:
    """All rows of the holdout, as no analyst could read them: the truth of this experiment."""
    import duckdb

    with duckdb.connect(str(workspace.private_database), read_only=True) as connection:
        return dict(connection.sql("SELECT * FROM flights_holdout").fetchnumpy())


def _truth(given: dict[str, Any], rows: dict[str, Any]) -> float:
    """A submission's accuracy on all of the holdout."""
    fields = {name: value for name, value in given.items() if name in Submission.model_fields}
    predict = load_candidate(Submission(**fields)).predict
    assert predict is not None
    return float(np.mean(predict(rows) == rows["late"]))


def _count(said: list[dict[str, Any]], word: str) -> int:
    return sum(one["verdict"] == word for one in said)


EXPERIMENTS = (
    Experiment(
        7,
        "flights-gate",
        "Two hundred submissions about real flights",
        f"{RUNS} runs of the flights model DAG, one after the other through Airflow's scheduler, and its one gate (14 paid "
        f"answers, epsilon 2) on the flights of 2013. In every run an analyst submits {STEPS} models: decision trees that "
        "change the best one that passed in the runs before by a feature or their depth; every 25th is a model of noise columns that were "
        "picked on the rows whose score it claims.",
        ("submission", "accuracy"),
        submissions,
        runs=1,
        small=1,
    ),
)
