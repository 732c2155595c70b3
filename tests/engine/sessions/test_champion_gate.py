"""Gates that ask for champions: who replaces whom, what a registry hears, rollback, and `dpflow.ModelGate`."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from holdout_gates import MemoryRegistry, open_session
from made_once import make_registry
from typer.testing import CliRunner

from dpflow import ModelGate, Session, plan
from dpflow.cli import app
from dpflow.engine.sessions.champion_file import ChampionFile
from dpflow.engine.sessions.holdout_gate import (
    Champion,
    check_candidates,
    judge,
    judge_all,
    parse_submission,
    review_champion,
)
from dpflow.errors import InvalidInput, NotPublished, PlanRefused
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from pathlib import Path

    from smallworld import Tiny

#: 2,000 people; b is right more often than a, and c less; in the second table it is the other way.
ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick,
       CASE WHEN i % 10 < {a} THEN i % 2 ELSE 1 - i % 2 END AS a,
       CASE WHEN i % 10 < {b} THEN i % 2 ELSE 1 - i % 2 END AS b,
       CASE WHEN i % 10 < 2 THEN i % 2 ELSE 1 - i % 2 END AS c, i AS id
FROM range(2000) t(i)
"""
BIT = {"lower": 0, "upper": 1}
PARAMS: dict[str, Any] = {
    "metric": {"estimator": "column_agreement"},
    "threshold": "0.05",
    "epsilon": "40",
    "queries": 20,
    "failures": 4,
}
DUEL = PARAMS | {"question": "champion", "threshold": 0, "better_by": "0.05"}


@pytest.fixture
def table(tiny: Tiny) -> Path:
    tiny.fill(ROWS.format(a=6, b=8))
    columns = {"sick": BIT, "a": BIT, "b": BIT, "c": BIT, "id": {}}
    path = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns=columns, block=None, holdout=True
    )
    declared = load_table(path)
    Ledger(tiny.ledger).grant(
        "gate", 200, 0, filter="basic", table=declared, principal="owner", confirm_large=True
    )
    return path


def about(column: str, **more: Any) -> dict[str, Any]:
    return {"name": column, "features": ["sick", column], **more}


def test_only_the_better_one_replaces_the_champion(tiny: Tiny, table: Path) -> None:
    """The first becomes champion, a worse and an equal one do not, a better one does; a retry moves
    nothing, and only a yes is paid for.
    """
    session, registry = open_session(tiny, "gate", **DUEL), MemoryRegistry()
    asked = [about("a"), about("c"), about("b"), about("a")]
    said = judge_all([lambda: session], asked, registry)
    assert [v["verdict"] for v in said] == ["yes", "no", "yes", "no"]
    assert [v["promotion"] for v in said] == [
        "first", "not better than version 1", "better than version 1", "it was promoted, and then replaced",
    ]  # fmt: skip
    assert "claim" not in said[0] and said[2]["failures_left"] == 3
    again = [judge(session, one, registry) for one in asked]
    # It never met version 2.
    assert again[1]["outcome"] == "not_better"
    assert again[1]["promotion"].startswith("it challenged once already, against another champion")
    assert again[2]["promotion"] == "it is the champion"
    assert len(registry.records) == 2 and registry.records[1]["replaced"] == "1"
    with pytest.raises(InvalidInput, match="name the registered model"):
        judge(session, about("a"))


def test_another_better_by_is_no_second_challenge(tiny: Tiny, table: Path) -> None:
    """The stored answer stands and spends nothing: a yes by more than .05 moves no alias that asks for
    more, and a no stays one.
    """
    session, registry = open_session(tiny, "gate", **DUEL), MemoryRegistry()
    judge_all([lambda: session], [about("a"), about("c")], registry)
    left = session.remaining()["queries_left"]
    champion = registry.champion
    registry.better_by = Fraction(3, 10)
    lost = judge(session, about("c"), registry)
    assert (lost["verdict"], lost["outcome"]) == ("no", "not_better")
    assert "with better_by 0.05 instead of 0.3, and was not better" in lost["promotion"]
    assert session.remaining()["queries_left"] == left
    registry.better_by, moves = Fraction(0), registry.promote
    registry.promote = lambda *_: None  # type: ignore[method-assign]  # it dies before the alias moves
    judge(session, about("b"), registry)
    registry.promote, registry.better_by = moves, Fraction(3, 10)  # type: ignore[method-assign]
    won = judge(session, about("b"), registry)
    assert (won["verdict"], won["outcome"], registry.champion) == ("yes", "no", champion)
    assert "with better_by 0.05 instead of 0.3, and was better" in won["promotion"]
    assert session.remaining()["queries_left"] == left - 1


def test_a_model_that_lost_is_no_new_challenger_under_another_claim(
    tiny: Tiny, table: Path
) -> None:
    """Each claim is a question, and the comparison is the one that it lost: no second draw."""
    session, registry = open_session(tiny, "gate", **PARAMS), MemoryRegistry()
    judge(session, about("a", claim="0.6"), registry)
    left = [session.remaining()["queries_left"]]
    for claim in ("0.2", "0.19", "0.18", "0.17"):
        lost = judge(session, about("c", claim=claim), registry)
        assert (lost["verdict"], lost["outcome"]) == ("yes", "not_better")
        left.append(session.remaining()["queries_left"])
    assert [before - after for before, after in pairwise(left)] == [2, 1, 1, 1]
    assert len(registry.records) == 1


def test_a_review_is_no_answer_about_another_champion(tiny: Tiny, table: Path) -> None:
    """In the session in which the former version won against a third one, its stored yes says nothing
    about the champion of now, and rolls nothing back.
    """
    tiny.fill(ROWS.format(a=6, b=9))
    session, registry = open_session(tiny, "gate", **DUEL), MemoryRegistry()
    said = judge_all([lambda: session], [about("c"), about("a"), about("b")], registry)
    assert [verdict["outcome"] for verdict in said] == ["promoted"] * 3
    champion = registry.champion
    with pytest.raises(InvalidInput, match="against another champion; review with another session"):
        review_champion(session, registry)
    assert registry.champion == champion


@pytest.mark.parametrize(("first", "outcome"), [("a", "promoted"), ("b", "not_better")])
def test_who_loses_the_race_to_be_first_is_compared(
    tiny: Tiny, table: Path, monkeypatch: pytest.MonkeyPatch, first: str, outcome: str
) -> None:
    """Of two that saw no champion both became the first, compared with nothing: 6 of 15 tries by two commands."""
    file, session = tiny.folder / "champion.json", open_session(tiny, "gate", **DUEL)
    found, looks = ChampionFile.find_champion, list[str]()

    def find_late(self: ChampionFile) -> Champion | None:
        seen = found(self)
        if not looks:
            looks.append("between a look and a move")
            (said,) = judge_all([lambda: session], [about(first)], ChampionFile(file, "0.05"))
            assert said["outcome"] == "promoted"
        return seen

    monkeypatch.setattr(ChampionFile, "find_champion", find_late)
    second = "b" if first == "a" else "a"
    (said,) = judge_all([lambda: session], [about(second)], ChampionFile(file, "0.05"))
    assert said["outcome"] == outcome and said.get("promotion") != "first"
    assert len(json.loads(file.read_text())["versions"]) == (2 if outcome == "promoted" else 1)


def test_fresh_rows_roll_back(tiny: Tiny, table: Path) -> None:
    """A champion that its predecessor beats on fresh rows falls; one that stays better stays."""
    registry = MemoryRegistry()
    judge_all([lambda: open_session(tiny, "gate", **DUEL | {"queries": 2, "failures": 1})], [about("a"), about("b")], registry)  # fmt: skip
    champion = registry.champion
    stays = review_champion(
        open_session(tiny, "gate", name="second", **DUEL | {"queries": 1, "failures": 1}), registry
    )
    assert (stays["verdict"], stays["rolled_back"], registry.champion) == ("yes", None, champion)
    tiny.fill(ROWS.format(a=8, b=5))
    falls = review_champion(
        open_session(tiny, "gate", name="third", **DUEL | {"queries": 1, "failures": 1}), registry
    )
    assert (falls["verdict"], falls["rolled_back"]) == ("no", "1")
    assert registry.champion is not None and registry.champion.version == "1"


@pytest.mark.parametrize("tag", ["", "[]", "null", "[" * 100_000, '{"name": 3}'])
def test_a_champion_with_an_edited_tag_is_not_where_it_was(
    tiny: Tiny, table: Path, tag: str
) -> None:
    """Whoever may tag in the registry neither promotes by it nor stops the gate."""
    session, registry = open_session(tiny, "gate", **DUEL), MemoryRegistry()
    registry.champion = Champion("1", "0" * 64, tag)
    said = judge(session, about("b"), registry)
    assert (said["outcome"], registry.records) == ("no", [])
    assert "is not where it was" in said["promotion"]


def test_a_version_after_one_that_was_taken_out_gets_a_number_of_its_own(
    tiny: Tiny, table: Path
) -> None:
    session, file = open_session(tiny, "gate", **DUEL), tiny.folder / "champion.json"
    judge_all([lambda: session], [about("c"), about("a")], ChampionFile(file))
    content = json.loads(file.read_text())
    del content["versions"]["1"], content["versions"]["2"]["replaced"]
    file.write_text(json.dumps(content))
    judge(session, about("b"), ChampionFile(file))
    assert list(json.loads(file.read_text())["versions"]) == ["2", "3"]


@pytest.mark.parametrize("params", [DUEL, PARAMS])
def test_a_champion_whose_file_is_gone_is_not_replaced_by_the_next(
    tiny: Tiny, table: Path, params: dict[str, Any]
) -> None:
    """Of c the session says that it is not better; without the file it became the first, as did one of which
    nothing was asked yet. The file brings all back.
    """
    session, file = open_session(tiny, "gate", **params), tiny.folder / "champion.json"
    claims = {} if params is DUEL else {"claim": "0.1"}
    asked = [about("a", **claims), about("c", **claims)]
    judge_all([lambda: session], asked, ChampionFile(file))
    kept, left = file.read_text(), session.remaining()
    file.unlink()
    for column in "cb":
        with pytest.raises(InvalidInput, match=r"champion.json is missing; restore the file, or"):
            judge_all([lambda: session], [about(column, **claims)], ChampionFile(file))
    assert session.remaining() == left and not file.exists()
    file.write_text(kept)
    outcomes = [judge(session, about(c, **claims), ChampionFile(file))["outcome"] for c in "cb"]
    assert outcomes == ["not_better", "promoted"]
    # Beginning anew is said, and never happens by itself.
    file.write_text('{"champion": null, "versions": {}}')
    assert judge(session, about("c", **claims), ChampionFile(file))["promotion"] == "first"


def test_a_champion_whose_file_goes_while_it_is_challenged(
    tiny: Tiny, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The yes is paid: it was said that another champion was promoted meanwhile, which was not so."""
    session, file = open_session(tiny, "gate", **DUEL), tiny.folder / "champion.json"
    judge(session, about("a"), ChampionFile(file))
    kept, challenge = file.read_text(), Session.challenge

    def challenge_and_delete(*args: Any) -> dict[str, Any]:
        answer = challenge(*args)
        file.unlink()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Session, "challenge", challenge_and_delete)
        with pytest.raises(NotPublished, match="restore the file and submit the same again"):
            judge(session, about("b"), ChampionFile(file))
    left = session.remaining()
    assert left["failures_left"] == 3
    with pytest.raises(InvalidInput, match="restore the file, or"):
        judge(session, about("b"), ChampionFile(file))
    file.write_text(kept)
    said = judge(session, about("b"), ChampionFile(file))
    assert (said["outcome"], said["promotion"]) == ("promoted", "better than version 1")
    assert session.remaining() == left


def test_a_claim_that_fails_on_fresh_rows_rolls_back(tiny: Tiny, table: Path) -> None:
    registry, once = MemoryRegistry(), PARAMS | {"queries": 3, "failures": 2}
    session = open_session(tiny, "gate", **once)
    said = judge_all(
        [lambda: session], [about("a", claim="0.6"), about("b", claim="0.8")], registry
    )
    assert [v["outcome"] == "promoted" for v in said] == [True, True]
    tiny.fill(ROWS.format(a=8, b=5))
    fresh = open_session(tiny, "gate", name="fresh", **PARAMS)
    assert review_champion(fresh, registry)["rolled_back"] == "1"
    with pytest.raises(InvalidInput, match="no champion that can be scored"):
        review_champion(fresh, MemoryRegistry())


def test_a_registered_version_hears_its_verdict(
    tiny: Tiny, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By version or by run: tags and an artefact. While the registry is down the verdict stays, and a
    retry costs nothing and moves the alias once.
    """
    import mlflow
    import skops.io
    from sklearn.tree import DecisionTreeClassifier

    uri = make_registry(tiny.folder)
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("x", artifact_location=(tiny.folder / "runs").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        # A model that says what column a says.
        file = tiny.folder / "model" / "model.skops"
        file.parent.mkdir()
        skops.io.dump(DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1]), file)
        mlflow.log_artifact(str(file), "model")
    run_id = run.info.run_id
    client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("late")
    client.create_model_version("late", source=f"{run.info.artifact_uri}/model", run_id=run_id)
    given = PARAMS | {"metric": "accuracy", "epsilon": "40", "count_epsilon": "1"}
    shared = {"label": "sick", "features": ["a"], "tracking_uri": uri}
    session = open_session(tiny, "gate", **given)
    gate = ModelGate(session, defaults=shared)
    verdict = gate.submit("models:/late/1", 0.6)
    assert verdict["verdict"] == "yes" and gate.submit("models:/late/1", 0.6) == verdict
    tags = client.get_model_version("late", "1").tags
    assert tags["dpflow.verdict"] == "yes" and tags["dpflow.session"] == verdict["session"]
    assert tags["dpflow.commitment"] == verdict["commitment"] and "dpflow.interval" in tags
    listed = [one.path for one in client.list_artifacts(run_id, "dpflow")]
    assert len(listed) == 1 and listed[0].startswith("dpflow/verdict-")
    assert gate.submit(f"runs:/{run_id}/model", "0.9")["verdict"] == "no"
    assert client.get_run(run_id).data.tags["dpflow.verdict"] == "no"
    left = gate.status()["queries_left"]

    from dpflow.engine.sessions.model_promotion import Promoter

    promoter = Promoter("champions", "champion", uri)
    once = ModelGate(session, promoter, shared)
    original = mlflow.MlflowClient.set_registered_model_alias

    def refuse(*args: Any, **more: Any) -> None:
        raise mlflow.exceptions.MlflowException("postgresql://user:secret@host is down")

    monkeypatch.setattr(mlflow.MlflowClient, "set_registered_model_alias", refuse)
    with pytest.raises(NotPublished, match="costs nothing") as down:
        once.submit("models:/late/1", 0.61)
    assert down.value.retryable and "secret" not in str(down.value)
    monkeypatch.setattr(mlflow.MlflowClient, "set_registered_model_alias", original)
    assert once.submit("models:/late/1", 0.61)["outcome"] == "promoted"
    assert once.submit("models:/late/1", 0.61)["outcome"] == "promoted"
    assert gate.status()["queries_left"] == left - 1
    assert len(client.search_model_versions("name = 'champions'")) == 1
    with pytest.raises(InvalidInput, match="say which score"):
        gate.submit("models:/late/1")
    with pytest.raises(InvalidInput, match="is no model"):
        gate.submit("models:/late", 0.5)


def test_a_pipeline_reviews_the_champion(tiny: Tiny, table: Path) -> None:
    """`dpflow gate review` ends with 0 while the champion stays, and with 1 when it fell."""
    uri = make_registry(tiny.folder)
    moves = ("--model", "late", "--tracking-uri", uri, "--ledger", str(tiny.ledger), "--json")

    def run(*words: object) -> Any:
        return CliRunner().invoke(app, ["gate", *map(str, words), *moves])

    def write(name: str) -> Path:
        path, once = tiny.folder / f"{name}.yml", DUEL | {"queries": 2, "failures": 1}
        content = {
            "name": name,
            "mechanism": "gate",
            "table": "visits.yml",
            "scope": "gate",
        }
        path.write_text(yaml.safe_dump(content | {"params": once}))
        return path

    asked = tiny.folder / "candidates.yml"
    asked.write_text(yaml.safe_dump([about("a"), about("b")]))
    assert run("submit", write("one"), asked).exit_code == 0
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("UPDATE visits SET a = sick, b = 1 - sick")
    done = run("review", write("two"))
    assert done.exit_code == 1 and '"rolled_back": "1"' in done.stdout, done.output


@pytest.mark.parametrize(
    "metric",
    [
        "accuracy",
        "squared_loss",
        {
            "estimator": {
                "sql": "avg(abs(least(greatest(candidate.prediction, 0), 1) - sick) + c)",
                "range": [0, 2],
                "default": 2,
                "better": "lower",
            }
        },
    ],
)
@pytest.mark.parametrize("question", ["champion", "claim"])
def test_models_of_two_labels_are_not_compared(
    tiny: Tiny, table: Path, metric: Any, question: str
) -> None:
    """Before a charge or an answer, in a list and beside the champion; a claim by itself needs no champion."""
    file = tiny.folder / "said.duckdb"
    with duckdb.connect(str(file)) as connection:
        for column in ("a", "b"):
            connection.execute(
                f"CREATE TABLE {column} AS SELECT i AS id, CAST(i % 3 AS DOUBLE) AS prediction FROM range(2000) t(i)"
            )
    claim = {} if question == "champion" else {"claim": "1"}
    first, second = (
        {"name": table, "label": label, "predictions": place, **claim}
        for table, label in (("a", "sick"), ("b", "c"))
        for place in [{"database": str(file), "table": table, "id": "id"}]
    )
    params = (PARAMS if claim else DUEL) | {"metric": metric}
    planned = plan("gate", table, name="gate", scope="gate", **params)
    ledger, champion = Ledger(tiny.ledger), ChampionFile(tiny.folder / "champion.json")
    with pytest.raises(PlanRefused, match="'sick' and 'c', and a comparison is of one label"):
        check_candidates([planned], ledger, [first, second], champion)
    gate = open_session(tiny, "gate", **params)
    candidate = gate.load_candidate(parse_submission(gate, first, champion))
    assert champion.promote(candidate, {"session": "s"}, None)
    with pytest.raises(PlanRefused, match="a comparison is of one label"):
        check_candidates([planned], ledger, [second], champion)
    with pytest.raises(PlanRefused, match="a comparison is of one label"):
        judge(gate, second, champion)
    with pytest.raises(PlanRefused, match="a comparison is of one label"):
        gate.challenge(gate.load_candidate(parse_submission(gate, second, None)), candidate)
    assert gate.remaining()["answered"] == 0
    if claim:
        check_candidates([planned], ledger, [first, second])
