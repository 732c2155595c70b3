"""The analyst of the model DAG, its tables, and a gate whose margins its noise cannot cross."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import copy_flights
from rich.console import Console

from dpflow.core.contract.requests import PerUnit
from dpflow.core.sampling.randomness import SystemSource
from dpflow.demo import job
from dpflow.demo.facts import DemoFacts
from dpflow.demo.job import load_analyst, prepare_workspace
from dpflow.demo.workspace import Workspace, create_workspace
from dpflow.engine import RunIdentity, make_plan, release
from dpflow.engine.releases.request import parse_request
from dpflow.engine.sessions.candidate import Submission, load_candidate
from dpflow.engine.sessions.holdout_gate import judge_all
from dpflow.engine.sessions.session import Session
from dpflow.errors import PlanRefused
from dpflow.mechanisms.mean_gate import MeanGate, MeanGateParams
from dpflow.registry import Registry
from dpflow.tables import open_rows
from dpflow.tables.access.declarations import load_table
from dpflow.tables.private import PrivateTable

DAGS = Path(__file__).parents[2] / "dags"
TABLES = ("flights", "flights_training", "flights_holdout")
RUNS = 200


@dataclass(frozen=True)
class World:
    """The demo's private file, what the analyst made of it, and how right every candidate is on
    every holdout row.
    """

    workspace: Workspace
    analyst: Any
    candidates: list[dict[str, Any]]
    rows: dict[str, Any]
    right: Any

    def table(self, name: str) -> Path:
        """The declaration of one table."""
        return self.workspace.dags / "tables" / f"{name}.yml"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """All flights, built by the owner's script; the holdout is read here as no analyst could."""
    import duckdb

    workspace = create_workspace(tmp_path_factory.mktemp("demo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "load_demo_tables", copy_flights)
        prepare_workspace(workspace)
    analyst = load_analyst(workspace)
    training = open_rows(workspace.dags / "tables" / "flights_training.yml")
    candidates = analyst.fit_candidates(training, workspace.models)
    with duckdb.connect(str(workspace.private_database), read_only=True) as connection:
        rows = connection.sql("SELECT * FROM flights_holdout").fetchnumpy()
    right = np.array([loaded(c).predict(rows) == rows["late"] for c in candidates])
    yield World(workspace, analyst, candidates, rows, right)


def loaded(candidate: dict[str, Any]) -> Any:
    """The candidate as the gate loads it."""
    return load_candidate(
        Submission(**{k: v for k, v in candidate.items() if k in Submission.model_fields})
    )


def gate_request() -> dict[str, Any]:
    """The session of the DAG's gate, read without importing Airflow."""
    for node in ast.parse((DAGS / "flights_model.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GATE":
            return dict(ast.literal_eval(node.value))
    raise AssertionError("the DAG defines no GATE")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_what_its_declaration_says(world: World, name: str) -> None:
    """Declared columns exist in the built file, with types that can be used."""
    PrivateTable(load_table(world.table(name))).check_schema()


def test_only_the_training_table_is_open(world: World) -> None:
    """The holdout's rows are handed to nobody, and its declaration says holdout."""
    assert load_table(world.table("flights_holdout")).holdout
    for name in ("flights", "flights_holdout"):
        with pytest.raises(PlanRefused):
            open_rows(world.table(name))


def test_training_and_holdout_share_no_week(world: World) -> None:
    """A week is for training or for the gate, never for both."""
    import duckdb

    with duckdb.connect(str(world.workspace.private_database), read_only=True) as connection:
        weeks = [
            {
                week
                for (week,) in connection.sql(
                    f"SELECT DISTINCT week_of_year FROM {name}"
                ).fetchall()
            }
            for name in ("flights_training", "flights_holdout")
        ]
    assert all(weeks) and weeks[0].isdisjoint(weeks[1])


def test_limits_cut_no_aircraft_of_the_holdout(world: World) -> None:
    """A cut would drop rows at random, so the declared limit leaves room."""
    units = np.unique(world.rows["tailnum"].astype(str), return_counts=True)[1]
    assert units.max() <= load_table(world.table("flights_holdout")).contribution_bounds.rows


def test_there_are_thirty_different_candidates_of_both_kinds(world: World) -> None:
    """At least thirty, at least five of them Freedman's, and no two that the gate would take for
    one.
    """
    kinds = [c["notes"]["kind"] for c in world.candidates]
    assert len(kinds) >= 30 and kinds.count("freedman") >= 5
    assert kinds.count("honest") + kinds.count("freedman") == len(kinds)
    assert (
        len({c["name"] for c in world.candidates})
        == len({loaded(c).digest for c in world.candidates})
        == len(kinds)
    )


def test_a_prediction_depends_on_its_own_row_only(world: World) -> None:
    """Predicting the holdout at once, shuffled in parts, or row by row gives the same, so one unit
    moves one group.
    """
    count = 3000
    order = np.random.default_rng(1).permutation(count)
    for candidate in world.candidates:
        model, rows = (
            loaded(candidate),
            {name: world.rows[name][:count] for name in candidate["features"]},
        )
        whole, parts = model.predict(rows), np.empty(count)
        for part in [*np.array_split(order[20:], 7), *order[:20, None]]:
            parts[part] = model.predict({name: values[part] for name, values in rows.items()})
        assert (whole == parts).all(), candidate["name"]


def test_models_never_meet_a_missing_value(world: World) -> None:
    """Every feature has a number for NULL and NaN: one missing value would make a model fail on the
    whole batch.
    """
    table = load_table(world.table("flights_holdout"))
    used = {name for c in world.candidates for name in c["features"]}
    assert used <= set(table.columns)
    for name in used:
        assert table.column(name).missing != "skip", name


def test_the_same_training_rows_give_the_same_claims(world: World, tmp_path: Path) -> None:
    """A retried training task submits what the first one did."""
    again = world.analyst.fit_candidates(open_rows(world.table("flights_training")), tmp_path)
    assert [(c["name"], c["claim"]) for c in again] == [
        (c["name"], c["claim"]) for c in world.candidates
    ]


def test_honest_claims_are_near_the_truth_and_freedmans_are_not(world: World) -> None:
    """Junk seems to predict only on the rows it was picked on."""
    for candidate, right in zip(world.candidates, world.right, strict=True):
        excess = float(candidate["claim"]) - right.mean()
        assert excess < 0.03 if candidate["notes"]["kind"] == "honest" else excess > 0.08, (
            candidate["name"]
        )


def test_the_reports_truth_is_the_accuracy_on_the_holdout(world: World) -> None:
    scores = world.analyst.score_on_holdout(world.workspace.private_database, world.candidates)
    assert np.allclose(scores, [right.mean() for right in world.right], atol=1e-3)


def test_the_best_honest_candidate_is_a_real_improvement(world: World) -> None:
    """It beats the guess that no flight is late by ten points, on rows nobody fitted."""
    best = max(
        r.mean()
        for c, r in zip(world.candidates, world.right, strict=True)
        if c["notes"]["kind"] == "honest"
    )
    assert best > 1 - world.rows["late"].mean() + 0.1


def test_the_gate_is_right_about_every_candidate_in_99_of_100_runs(world: World) -> None:
    """Exact noise each time: honest yes, Freedman no, and not exhausted before the last."""
    params = MeanGateParams.model_validate(gate_request()["params"])
    mechanism, source = MeanGate(), SystemSource()
    table = load_table(world.table("flights_holdout"))
    assert params.epsilon is not None and params.epsilon <= 2 and params.side == "over"
    unit = np.unique(world.rows["tailnum"].astype(str), return_inverse=True)[1]
    size = np.bincount(unit)
    claims = [
        (
            mechanism.Query.model_validate(
                {"estimator": "accuracy", "columns": c["features"], "claim": c["claim"]}
            ),
            PerUnit(np.bincount(unit, weights=right) / size),
        )
        for c, right in zip(world.candidates, world.right, strict=True)
    ]
    words = {"yes": "honest", "no": "freedman"}
    wrong = 0
    for _ in range(RUNS):
        state, told = mechanism.open(params, table, source), []
        for query, answer in claims:
            verdict, state = mechanism.answer(params, table, state, query, answer, source)
            told.append(words.get(verdict.body["verdict"]))
        wrong += told != [c["notes"]["kind"] for c in world.candidates]
    assert wrong <= RUNS // 100


def test_a_stolen_holdout_is_worth_nothing_on_fresh_rows(world: World, tmp_path: Path) -> None:
    """The naive control claims a fine score that most groups confirm, and is worse than chance
    elsewhere.
    """
    stolen, fresh = world.analyst.fit_stolen_holdout(world.workspace.private_database, tmp_path)
    right = loaded(stolen).predict(world.rows) == world.rows["late"]
    assert right.mean() >= float(stolen["claim"]) > fresh + 0.1
    assert fresh < 1 - world.rows["late"].mean()


def test_a_climber_goes_on_from_what_passed(world: World, tmp_path: Path) -> None:
    """A retry submits the same; nothing is tried twice; other verdicts lead elsewhere; every 25th
    step is Freedman's.
    """
    climber = world.analyst.Climber(open_rows(world.table("flights_training")), tmp_path, rows=2000)

    def told(*words: str) -> list[Any]:
        world.analyst.write_notebook(
            tmp_path, "first", first, [{"verdict": word} for word in words]
        )
        return [
            (one["features"], one["notes"]["depth"])
            for one in climber.make_submissions("second", 4)
        ]

    first = climber.make_submissions("first", 3)
    assert climber.make_submissions("first", 3) == first
    after = told("no", "yes", "no")
    assert told("no", "yes", "no") == after and told("no", "no", "yes") != after
    assert not {str(one) for one in after} & {
        str((one["features"], one["notes"]["depth"])) for one in first
    }
    kinds = [one["notes"]["kind"] for one in climber.make_submissions("third", 24)]
    assert kinds.index("freedman") == 21 and kinds.count("honest") == 23


def test_the_demo_ends_on_what_its_dags_left(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its steps after Airflow, on a day that is paid and a session with verdicts: the stored session is opened
    again and not charged, one release more is refused, the ledger verifies, and report and table show the gate.
    """
    workspace, registry, day = world.workspace, Registry.load(), str(job.FIRST_DAY)
    ledger = workspace.open_ledger()
    session = Session.open(
        make_plan(parse_request(gate_request(), workspace.dags), registry), ledger, registry
    )
    chosen = world.candidates[-2:]
    assert [one["notes"]["kind"] for one in chosen] == ["honest", "freedman"]
    verdicts = judge_all([lambda: session], chosen)
    fresh = world.analyst.score_on_holdout(workspace.private_database, chosen)
    request = parse_request(
        {"name": "a day", "mechanism": "count", "table": "tables/flights.yml", "scope": "flights"}
        | {"blocks": [day], "params": {"epsilon": job.DAILY[0]}},
        workspace.dags,
    )
    release(
        make_plan(request, registry), ledger, registry, run_identity=RunIdentity.of_request(request)
    )
    before = ledger.remaining("flights_holdout").rows()
    steps = [name.__name__ for _, name, _ in job.STEPS]
    facts = DemoFacts(days=[day], steps=steps[: steps.index("submit_stolen_fit")])
    facts.verdicts = [
        verdict | {"kind": one["notes"]["kind"], "fresh": score}
        for verdict, one, score in zip(verdicts, chosen, fresh, strict=True)
    ]
    job.Demo(workspace, facts).save_facts()
    ended = job.run_demo(workspace.root, 1, Console(width=200), resume=True)
    assert ended.steps == steps and ledger.remaining("flights_holdout").rows() == before
    assert ended.naive["session"] == session.id and ended.naive["verdict"] == "yes"
    assert "0 of 2 is left" in ended.refusal and "entries verified" in ended.verified
    assert "The gate</h2>" in workspace.report.read_text()
    shown = capsys.readouterr().out
    assert "gate verdicts" in shown and all(one["name"] in shown for one in chosen)
