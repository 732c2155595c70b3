"""`dpflow gate` in a pipeline: what it can tell, one charge, exit codes, and what is left."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from gate_commands import run_gate
from made_once import make_registry

from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.gate_power import refusal_probability, share_above
from dpflow.core.toolbox.sparse_vector import Engine
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """CREATE TABLE visits AS SELECT 'p' || i AS person, 0.7 + (i % 7) / 1000 AS good, 0.3 AS bad
          FROM range(4000) t(i)"""
GATE: dict[str, Any] = {
    "name": "scores",
    "mechanism": "reusable_holdout",
    "table": "visits.yml",
    "scope": "gate",
    "params": {
        "metric": "column_mean",
        "epsilon": "40",
        "groups": 400,
        "queries": 20,
        "failures": 2,
        "rho": "0.24",
        "alpha": "0.2",
    },
}


@pytest.fixture
def file(tiny: Tiny) -> Path:
    """A gate on 4,000 people whose scores are in two columns."""
    tiny.fill(ROWS)
    score = {"lower": 0, "upper": 1, "step": "0.001", "missing": 0}
    columns = {"good": score, "bad": score}
    table = tiny.declare(
        block=None, protects="unit", contribution_bounds={"rows": 1}, columns=columns, holdout=True
    )
    Ledger(tiny.ledger).grant(
        "gate", 40, 0, filter="basic", table=load_table(table), principal="o", confirm_large=True
    )
    path = tiny.folder / "gate.yml"
    path.write_text(yaml.safe_dump(GATE))
    return path


def candidates(tiny: Tiny, *claims: tuple[str, str]) -> Path:
    path = tiny.folder / "candidates.yml"
    listed = [{"name": f"{c} {n}", "features": [c], "claim": n} for c, n in claims]
    path.write_text(yaml.safe_dump(listed))
    return path


def test_a_pipeline_branches_on_the_exit_code(tiny: Tiny, file: Path) -> None:
    """0 if one passed, 1 if none did, 3 if nothing is left; a retry says the same and is free."""
    assert json.loads(run_gate(tiny, "status", file).stdout)["left"] == {"state": "not opened"}
    assert Ledger(tiny.ledger).remaining("gate").rows()[0]["epsilon_spent"] == "0"
    assert json.loads(run_gate(tiny, "open", file).stdout)["left"]["queries_left"] == 20
    assert run_gate(tiny, "submit", file, candidates(tiny, ("good", "0.7"))).exit_code == 0
    poor = candidates(tiny, ("bad", "0.7"))
    first = run_gate(tiny, "submit", file, poor)
    assert first.exit_code == 1 and json.loads(first.stdout)["verdicts"][0]["verdict"] == "no"
    assert json.loads(run_gate(tiny, "submit", file, poor).stdout) == json.loads(first.stdout)
    assert run_gate(tiny, "submit", file, candidates(tiny, ("bad", "0.8"))).exit_code == 1
    assert run_gate(tiny, "submit", file, candidates(tiny, ("bad", "0.9"))).exit_code == 3
    # What was answered before is answered still.
    assert run_gate(tiny, "submit", file, candidates(tiny, ("good", "0.7"))).exit_code == 0
    left = json.loads(run_gate(tiny, "status", file).stdout)["left"]
    assert left["state"] == "closed" and left["failures_left"] == 0
    assert len(Ledger(tiny.ledger).releases()) == 1


def test_the_status_of_another_revision_opens_nothing(tiny: Tiny, file: Path) -> None:
    run_gate(tiny, "open", file)
    file.write_text(yaml.safe_dump(GATE | {"revision": 2}))
    assert json.loads(run_gate(tiny, "status", file).stdout)["left"] == {"state": "not opened"}
    assert len(Ledger(tiny.ledger).releases()) == 1


def test_the_alias_moves_from_a_pipeline(tiny: Tiny, file: Path) -> None:
    from mlflow import MlflowClient

    uri = make_registry(tiny.folder)
    moves = ("--model", "scores", "--tracking-uri", uri, "--better-by", "0.1")
    both = candidates(tiny, ("bad", "0.3"), ("good", "0.7"))
    done = run_gate(tiny, "submit", file, both, *moves)
    assert done.exit_code == 0, done.output
    assert [v["outcome"] == "promoted" for v in json.loads(done.stdout)["verdicts"]] == [True, True]
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    version = client.get_model_version_by_alias("scores", "champion")
    assert version.tags["dpflow.name.champion"] == "good 0.7"
    # Plausible claims of what is worse promote nothing, so nothing is deployed.
    worse = candidates(tiny, ("bad", "0.29"))
    done = run_gate(tiny, "submit", file, worse, *moves)
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert (verdict["verdict"], verdict["outcome"], done.exit_code) == ("yes", "no", 1)
    assert run_gate(tiny, "submit", file, worse, *moves, "--require", "plausible").exit_code == 0
    with pytest.raises(InvalidInput, match="say where the model is registered"):
        run_gate(tiny, "submit", file, both, "--model", "scores", "--tracking-uri", "")


def test_a_champion_in_a_file(tiny: Tiny, file: Path) -> None:
    """The same without a registry: who is better, exit codes, a retry, and a review that rolls back."""
    mean = {
        "metric": "column_mean",
        "threshold": "0.02",
        "epsilon": "10",
        "queries": 9,
        "failures": 1,
    }
    duel = mean | {"question": "champion", "threshold": 0, "better_by": "0.05"}
    file.write_text(yaml.safe_dump(GATE | {"mechanism": "gate", "params": duel}))
    champion, listed = tiny.folder / "champion.json", tiny.folder / "candidates.yml"

    def submit(*columns: str) -> tuple[int, list[str]]:
        listed.write_text(yaml.safe_dump([{"name": c, "features": [c]} for c in columns]))
        done = run_gate(tiny, "submit", file, listed, "--champion", champion)
        return done.exit_code, [one["outcome"] for one in json.loads(done.stdout)["verdicts"]]

    assert submit("bad") == (0, ["promoted"]) and submit("bad", "good") == (0, ["promoted"] * 2)
    assert submit("good") == (0, ["promoted"]) and submit("bad") == (1, ["no"])
    content = json.loads(champion.read_text())
    assert content["champion"] == "2" and content["versions"]["2"]["replaced"] == "1"
    fresh = tiny.folder / "fresh.yml"
    fresh.write_text(yaml.safe_dump(GATE | {"name": "fresh", "mechanism": "gate", "params": duel}))
    with pytest.raises(InvalidInput, match="leave --require out"):
        run_gate(tiny, "submit", file, listed, "--champion", champion, "--require", "plausible")
    # On rows where the version that it replaced is better, that one comes back, and replaced none.
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("UPDATE visits SET good = 0.3, bad = 0.7")
    done = run_gate(tiny, "review", fresh, "--champion", champion)
    fallen = json.loads(done.stdout)
    assert (done.exit_code, fallen["verdict"], fallen["rolled_back"]) == (1, "no", "1")
    content = json.loads(champion.read_text())
    assert content["champion"] == "1"
    assert content["versions"]["2"]["rolled_back"] == fallen["session"]
    with pytest.raises(InvalidInput, match="version 1 replaced none"):
        run_gate(tiny, "review", fresh, "--champion", champion)


VERSION = {"candidate": "c", "submission": "{}", "sessions": []}


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"champion": "1"},
        {"champion": "1", "versions": []},
        {"champion": ["1"], "versions": {}},
        {"champion": "1", "versions": {"1": {"candidate": "c"}}},
        {"champion": "1", "versions": {"1": VERSION | {"submission": None}}},
        {"champion": "1", "versions": {"1": VERSION | {"sessions": "s"}}},
        # Nothing to compare with, so whoever comes next would be the first champion.
        {"champion": "1", "versions": {}},
        {"champion": "2", "versions": {"1": VERSION}},
        {"champion": None, "versions": {"1": VERSION}},
        {"champion": "2", "versions": {"2": VERSION | {"replaced": "1"}}},
        {"champion": "one", "versions": {"one": VERSION}},
    ],
)
def test_a_damaged_champion_file_opens_no_gate(tiny: Tiny, file: Path, content: Any) -> None:
    champion = tiny.folder / "champion.json"
    champion.write_text(json.dumps(content))
    for words in (("submit", file, candidates(tiny, ("good", "0.7"))), ("review", file)):
        with pytest.raises(InvalidInput, match="holds no champion of a gate, or it was damaged"):
            run_gate(tiny, *words, "--champion", champion)
    assert Ledger(tiny.ledger).releases() == [] and json.loads(champion.read_text()) == content


def test_a_review_without_a_champion_opens_no_gate(tiny: Tiny, file: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no .*champion.json"):
        run_gate(tiny, "review", file, "--champion", tiny.folder / "champion.json")
    assert Ledger(tiny.ledger).releases() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--alias", "champion"), "name it by --model"),
        (("--better-by", "0.1"), "is about a champion"),
        (("--require", "promoted"), "without a champion"),
        (("--model", "m", "--champion", "c.json"), "in one place"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tiny: Tiny, file: Path, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_gate(tiny, "submit", file, candidates(tiny, ("good", "0.7")), *options)
    assert Ledger(tiny.ledger).remaining("gate").rows()[0]["epsilon_spent"] == "0"


def test_a_written_gate_names_its_table_from_its_own_folder(
    tiny: Tiny, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that both can be committed, and moved together."""
    monkeypatch.chdir(tiny.folder)
    (tiny.folder / "gates").mkdir()
    for place, table in (("written.yml", "visits.yml"), ("gates/written.yml", "../visits.yml")):
        run_gate(tiny, "plan", file, "--write", place)
        assert yaml.safe_load(Path(place).read_text())["table"] == table
        assert json.loads(run_gate(tiny, "plan", place).stdout)["looks"] == 20


def test_mistakes_are_sentences_and_charge_nothing(tiny: Tiny, file: Path) -> None:
    path = tiny.folder / "candidates.yml"
    path.write_text("- {claim: 0.5}")
    with pytest.raises(InvalidInput, match="not every entry of .* is a candidate \\(1 of "):
        run_gate(tiny, "submit", file, path)
    path.write_text("name: x")
    with pytest.raises(InvalidInput, match="holds no list"):
        run_gate(tiny, "submit", file, path)
    no_metric = {name: value for name, value in GATE["params"].items() if name != "metric"}
    file.write_text(yaml.safe_dump(GATE | {"params": no_metric}))
    with pytest.raises(PlanRefused, match="fixes no metric"):
        run_gate(tiny, "submit", file, candidates(tiny, ("good", "0.7")), "--model", "m", "--tracking-uri", "x")  # fmt: skip
    other = {"epsilon": "1", "groups": 10}
    file.write_text(yaml.safe_dump(GATE | {"mechanism": "stable_median", "params": other}))
    with pytest.raises(PlanRefused, match="a gate is reusable_holdout or gate"):
        run_gate(tiny, "status", file)
    assert Ledger(tiny.ledger).remaining("gate").rows()[0]["epsilon_spent"] == "0"


def test_a_plan_draws_the_power_curve(tiny: Tiny, file: Path) -> None:
    """It rises, from the few refusals of an honest claim to those of an absurd one."""
    about = json.loads(run_gate(tiny, "plan", file, "--units", 4000, "--deviation", "0.4").stdout)
    refused = [row["refused"] for row in about["power"]]
    assert refused == sorted(refused) and refused[0] < 0.01 and refused[-1] > 0.9
    assert about["looks"] == 20 and about["paid answers"] == 2
    assert json.loads(run_gate(tiny, "plan", file).stdout)["power"] == []


@pytest.mark.parametrize("excess", [0.1, 0.15, 0.2, 0.3])
def test_the_curve_is_what_is_measured(excess: float) -> None:
    """2,000 simulated claims about groups of ten normal scores, through the very sparse vector."""
    import numpy as np

    rng, engine, m = np.random.default_rng(1), Engine(Fraction(1), 1, 1), 400
    threshold, refused = 0.15 * m, 0
    for _ in range(2000):
        reach = int((rng.normal(0, 0.4 / 10**0.5, size=m) >= excess).sum())
        refused += engine.compare_value(
            engine.start_session(SystemSource()), reach, int(threshold), SystemSource()
        )[0]
    scales = (engine.query_scale, engine.threshold_scale)
    stated = refusal_probability(share_above(excess, 10, 0.4), m, threshold, scales)
    assert abs(refused / 2000 - stated) < 0.04


def test_errors_are_no_answers(tiny: Tiny, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error ends with 2, since 1 is the gate's no; other commands' errors stay 1."""
    from dpflow.cli.commands import run_app

    def code(*words: object) -> Any:
        monkeypatch.setattr("sys.argv", ["dpflow", *map(str, words), "--ledger", str(tiny.ledger)])
        with pytest.raises(SystemExit) as ended:
            run_app()
        return ended.value.code

    missing = tiny.folder / "missing.yml"
    assert code("gate", "submit", file, missing) == 2
    assert code("gate", "plan", missing) == code("gate", "submit", file) == 2
    assert code("ask", missing) == 1
    poor = candidates(tiny, ("bad", "0.7"))
    assert code("gate", "submit", file, poor) == 1


def test_what_a_retry_helps_ends_with_75(
    tiny: Tiny, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A champion's file that cannot be written: the verdict is stored, and the same command promotes
    once it can, for nothing.
    """
    from dpflow.cli.commands import run_app

    folder = tiny.folder / "champions"
    listed = candidates(tiny, ("good", "0.7"))
    words = ("gate", "submit", file, listed, "--champion", folder / "champion.json")

    def code() -> Any:
        monkeypatch.setattr("sys.argv", ["dpflow", *map(str, words), "--ledger", str(tiny.ledger)])
        with pytest.raises(SystemExit) as ended:
            run_app()
        return ended.value.code

    assert code() == 75 and "submit the same again" in " ".join(capsys.readouterr().err.split())
    left = json.loads(run_gate(tiny, "status", file).stdout)["left"]
    assert left["queries_left"] == 19
    folder.mkdir()
    assert code() == 0
    assert json.loads(run_gate(tiny, "status", file).stdout)["left"] == left


def test_a_gate_on_means_in_a_pipeline(tiny: Tiny, file: Path) -> None:
    """The same commands, with a power curve of its own and intervals."""
    params = {
        "metric": "column_mean",
        "epsilon": "40",
        "count_epsilon": "1",
        "threshold": "0.02",
        "queries": 20,
        "failures": 2,
    }
    file.write_text(yaml.safe_dump(GATE | {"mechanism": "gate", "params": params}))
    about = json.loads(run_gate(tiny, "plan", file, "--units", 4000, "--deviation", "0.1").stdout)
    refused = [row["refused"] for row in about["power"]]
    assert refused == sorted(refused) and refused[0] < 0.01 and refused[3] > 0.95
    done = run_gate(tiny, "submit", file, candidates(tiny, ("good", "0.703")))
    verdict = json.loads(done.stdout)["verdicts"][0]
    assert done.exit_code == 0 and verdict["interval"][0] < 0.703 < verdict["interval"][1]
    assert run_gate(tiny, "submit", file, candidates(tiny, ("bad", "0.4"))).exit_code == 1


def test_a_candidate_that_no_gate_takes_costs_nothing(tiny: Tiny, file: Path) -> None:
    """Also behind good ones: the file is checked as a whole before the gate is charged."""
    candidates = tiny.folder / "candidates.yml"
    good = {"name": "a", "features": ["good"], "claim": "0.7"}
    no_claim = {"name": "b", "features": ["good"]}
    for bad in (
        no_claim,
        {**good, "label": "bad"},
        {**good, "odd": 1},
        {**good, "file": "a.skops"},
    ):
        candidates.write_text(yaml.safe_dump([good, bad]))
        with pytest.raises((InvalidInput, PlanRefused)):
            run_gate(tiny, "submit", file, candidates)
        assert json.loads(run_gate(tiny, "status", file).stdout)["left"]["state"] == "not opened"
    candidates.write_text(yaml.safe_dump([good]))
    assert run_gate(tiny, "submit", file, candidates).exit_code == 0
