"""Models as MLflow 3 logs them, by each URI that it gives them, and what the gate tells them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlflow
import pytest
from holdout_gates import grant_people, open_session
from made_once import make_registry
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from sqlalchemy.exc import IntegrityError

from dpflow import ModelGate, Session
from dpflow.engine.sessions.champion_file import ChampionFile
from dpflow.engine.sessions.mlflow_models import find_file, registry_in_reach
from dpflow.engine.sessions.model_promotion import TAGS, Promoter
from dpflow.errors import InvalidInput, NotPublished

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from smallworld import Tiny

ROWS = "CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick, i % 2 AS a FROM range(2000) t(i)"
TRUSTED = ["sklearn.tree._tree.Tree"]


#: Given, so that MLflow starts no process to find them.
NEEDS = {"pip_requirements": ["scikit-learn"]}


@pytest.fixture
def registry(tiny: Tiny) -> Iterator[str]:
    """An empty registry and its file store."""
    former, uri = mlflow.get_tracking_uri(), make_registry(tiny.folder)
    mlflow.set_tracking_uri(uri)
    mlflow.create_experiment("gate", artifact_location=(tiny.folder / "store").as_uri())
    mlflow.set_experiment("gate")
    yield uri
    mlflow.set_tracking_uri(former)


def log(model: Any, **options: Any) -> Any:
    with mlflow.start_run():
        fitted = model.fit([[0.0], [1.0]], [0, 1])
        return mlflow.sklearn.log_model(fitted, name="forest", **NEEDS, **options)


def open_gate(tiny: Tiny) -> Session:
    bit = {"lower": 0, "upper": 1}
    grant_people(tiny, ROWS, {"sick": bit, "a": bit})
    params = {"threshold": "0.05", "epsilon": "40", "queries": 20, "failures": 4}
    return open_session(tiny, "gate", metric="accuracy", **params)


@pytest.mark.parametrize(
    ("model", "trusted"),
    [(LogisticRegression(), {}), (DecisionTreeClassifier(), {"skops_trusted_types": TRUSTED})],
)
def test_a_logged_model_is_a_candidate_by_each_of_its_uris(
    tiny: Tiny, registry: str, model: Any, trusted: dict[str, Any]
) -> None:
    """Each URI leads to the same file, and its verdict is tagged on what it names."""
    logged = log(model, serialization_format="skops", registered_model_name="late", **trusted)
    client = mlflow.MlflowClient()
    client.set_registered_model_alias("late", "best", "1")
    again = mlflow.register_model(f"runs:/{logged.run_id}/forest", "other")
    uris = [
        logged.model_uri, "models:/late/1", "models:/late@best", f"models:/other/{again.version}",
        f"runs:/{logged.run_id}/forest", f"runs:/{logged.run_id}/forest/model.skops",
    ]  # fmt: skip
    assert logged.model_uri.startswith("models:/m-")
    assert len({find_file(uri, registry, tiny.folder) for uri in uris}) == 1
    shared = {"label": "sick", "features": ["a"], "tracking_uri": registry}
    gate = ModelGate(open_gate(tiny), defaults=shared)
    # Kinds of files take turns in them: each submission starts a process.
    judged = uris[2:4] if trusted else [*uris[:2], *uris[4:]]
    assert {gate.submit(uri, "0.98")["verdict"] for uri in judged} == {"yes"}
    assert client.get_model_version("late", "1").tags["dpflow.verdict"] == "yes"
    if trusted:
        return
    assert client.get_logged_model(logged.model_id).tags["dpflow.verdict"] == "yes"
    assert client.get_run(logged.run_id).data.tags["dpflow.verdict"] == "yes"
    assert client.list_artifacts(logged.run_id, "dpflow")


def test_a_model_that_is_logged_twice_is_one_candidate(tiny: Tiny, registry: str) -> None:
    """Its second file has other bytes; the verdict is the stored one and no question is spent."""
    models = [log(LogisticRegression(), serialization_format="skops") for _ in range(2)]
    first, second = (find_file(model.model_uri, registry, tiny.folder) for model in models)
    assert first != second and first.read_bytes() != second.read_bytes()
    shared = {"label": "sick", "features": ["a"], "tracking_uri": registry}
    gate = ModelGate(open_gate(tiny), defaults=shared)
    verdicts = [gate.submit(model.model_uri, "0.98") for model in models]
    assert len({verdict["candidate"] for verdict in verdicts}) == 1
    assert [verdict["queries_left"] for verdict in verdicts] == [19, 19]


def test_the_alias_goes_to_the_submitted_version_with_tags_of_one_verdict(
    tiny: Tiny, registry: str
) -> None:
    """By version, by alias and by logged model; a later no leaves nothing of the yes on it."""
    logged = log(LogisticRegression(), serialization_format="skops", registered_model_name="late")
    client, promoter = mlflow.MlflowClient(), Promoter("late", "champion", registry)
    client.set_registered_model_alias("late", "best", "1")
    gate = ModelGate(open_gate(tiny), promoter, {"label": "sick", "features": ["a"]})
    for uri in (logged.model_uri, "models:/late/1", "models:/late@best"):
        assert gate.submit(uri, "0.98")["outcome"] == "promoted"
    assert [v.version for v in client.search_model_versions("name = 'late'")] == [1]
    tags = client.get_model_version_by_alias("late", "champion").tags
    assert (tags["dpflow.verdict"], tags["dpflow.outcome"]) == ("yes", "promoted")
    yes = gate.submit("models:/late/1", "0.97")
    assert client.get_model_version("late", "1").tags["dpflow.claim"] == yes["claim"]
    client.set_model_version_tag("late", "1", "dpflow.interval", "[0, 1]")
    no = gate.submit("models:/late/1", "1") if gate.status()["failures_left"] else yes
    tags = client.get_model_version("late", "1").tags
    verdict = {name: str(no[name]) for name in TAGS if name in no}
    assert {
        n.removeprefix("dpflow."): t for n, t in tags.items() if n.removeprefix("dpflow.") in TAGS
    } == verdict
    assert tags["dpflow.promoted.champion"] == no["session"]
    assert all(registry not in text for text in tags.values())


@pytest.mark.parametrize("kept", ["registry", "file"])
def test_a_champion_is_kept_by_its_version(tiny: Tiny, registry: str, kept: str) -> None:
    """An alias for candidates moves on; the champion is compared with the next one all the same."""
    name = "Ann's model"
    client, alias = mlflow.MlflowClient(), f"models:/{name}@candidate"
    named = {"serialization_format": "skops", "registered_model_name": name}
    log(LogisticRegression(), **named)
    client.set_registered_model_alias(name, "candidate", "1")
    promoter: Any = Promoter(name, "champion", registry)
    if kept == "file":
        promoter = ChampionFile(tiny.folder / "champion.json")
    shared = {"label": "sick", "features": ["a"], "tracking_uri": registry}
    gate = ModelGate(open_gate(tiny), promoter, shared)
    assert gate.submit(alias, "0.98")["outcome"] == "promoted"
    assert json.loads(promoter.find_champion().submission)["model"] == f"models:/{name}/1"
    log(LogisticRegression(C=0.5), **named)
    client.set_registered_model_alias(name, "candidate", "2")
    verdict = gate.submit(alias, "0.98")
    assert verdict["promotion"] == "not better than version 1"
    assert client.get_model_version(name, "2").tags["dpflow.verdict"] == verdict["verdict"]


def test_what_is_not_there_is_said_and_what_is_down_is_tried_again(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing model is the analyst's mistake, a server that is down is nobody's."""
    no_model, no_run = f"models:/m-{'0' * 32}", f"runs:/{'0' * 32}/forest"
    for uri in (no_model, no_run, "models:/late/7", "models:/late@best"):
        with pytest.raises(InvalidInput, match="MLflow has no"):
            find_file(uri, registry, tmp_path)
    for uri in ("models:/late", "models:/late/latest", "models:/m-7", "runs:/1", "late"):
        with pytest.raises(InvalidInput, match="is no model; write models:/name/version"):
            find_file(uri, registry, tmp_path)
    with pytest.raises(InvalidInput, match="both kinds of quotation marks"):
        Promoter('Ann\'s "best"', "champion", registry)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(NotPublished):
        find_file("models:/late/7", "http://127.0.0.1:9", tmp_path)


def test_who_writes_into_a_registry_beside_another_tries_again() -> None:
    """Two promotions that set one tag at once: MLflow calls the later a bad request, and its task ended for good."""
    with pytest.raises(NotPublished, match="submit the same again"), registry_in_reach():
        raise MlflowException("twice", BAD_REQUEST) from IntegrityError("", {}, Exception())
    with pytest.raises(InvalidInput, match="for good"), registry_in_reach():
        raise MlflowException("too long", BAD_REQUEST)


def test_a_model_without_one_skops_file_in_reach_is_refused_with_what_helps(
    registry: str, tmp_path: Path
) -> None:
    """Other formats, two models of one name, and a store elsewhere."""
    pickled = log(LogisticRegression(), serialization_format="cloudpickle")
    with pytest.raises(InvalidInput, match=r"serialization_format='skops'\), trees and forests"):
        find_file(pickled.model_uri, registry, tmp_path)
    with mlflow.start_run() as run:
        for _ in range(2):
            model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
            mlflow.sklearn.log_model(model, name="forest", serialization_format="skops", **NEEDS)
    with pytest.raises(InvalidInput, match="holds 2 skops files"):
        find_file(f"runs:/{run.info.run_id}/forest", registry, tmp_path)
    # Of another kind, whatever file is a part of it.
    logged = log(LogisticRegression(), serialization_format="skops")
    (skops,) = (tmp_path / "store").rglob(f"{logged.model_id}/**/model.skops")
    text = (skops.parent / "MLmodel").read_text()
    for part, other in (("loader_module: mlflow.sklearn", "loader_module: mlflow.pyfunc.model"),
                        ("predict_fn: predict", "predict_fn: predict_proba"),
                        ("serialization_format: skops", "serialization_format: pickle"),
                        ("pickled_model: model.skops", "pickled_model: model.pkl"),
                        ("model_path: model.skops", "model_path: other.bin"),
                        ("model_path: model.skops", "model_path: model.skops\n    data: other.bin")):  # fmt: skip
        assert part in text
        (skops.parent / "MLmodel").write_text(text.replace(part, other))
        with pytest.raises(InvalidInput, match="as another kind of model, of which its skops file"):
            find_file(logged.model_uri, registry, tmp_path)
    client = mlflow.MlflowClient()
    client.create_registered_model("far")
    client.create_model_version("far", source="s3://bucket/model")
    client.create_model_version("far", source=(tmp_path / "nowhere").as_uri())
    with pytest.raises(InvalidInput, match=r"does not open \(s3:\)"):
        find_file("models:/far/1", registry, tmp_path)
    with pytest.raises(
        InvalidInput, match="is on this machine; correct the URI, or .* download it"
    ):
        find_file("models:/far/2", registry, tmp_path)
