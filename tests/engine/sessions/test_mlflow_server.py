"""Promotion with a server of MLflow, which takes and opens what its own store keeps; and what was deleted in it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import duckdb
import pytest
import requests
import skops.io
from made_once import make_registry
from mlflow import MlflowClient
from mlflow_server import KINDS, stand_server
from sklearn.tree import DecisionTreeClassifier

from dpflow import ModelGate, Session, plan
from dpflow.engine.sessions import mlflow_models
from dpflow.engine.sessions.holdout_gate import (
    IS_CHAMPION,
    check_candidates,
    parse_submission,
    review_champion,
)
from dpflow.engine.sessions.model_promotion import Promoter
from dpflow.errors import InvalidInput, NotPublished
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = "CREATE TABLE visits AS SELECT 'p' || i AS person, CAST(i % 8 > 3 AS INTEGER) AS sick, i % 8 AS a FROM range(2000) t(i)"
SHARED = {"label": "sick", "features": ["a"]}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> str:
    return stand_server(request.param, tiny.folder, monkeypatch)


@pytest.fixture
def name() -> str:
    """Of a registered model: a real server keeps those of former runs."""
    return f"late-{uuid.uuid4()}"


def plan_gate(tiny: Tiny, **params: Any) -> tuple[Any, Ledger]:
    tiny.fill(ROWS)
    path = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, block=None, holdout=True,
        columns={"person": {}, "sick": {"lower": 0, "upper": 1}, "a": {"lower": 0, "upper": 7}},
    )  # fmt: skip
    declared, ledger = load_table(path), Ledger(tiny.ledger)
    ledger.grant(
        "gate", 40, 0, filter="basic", table=declared, principal="owner", confirm_large=True
    )
    asked: dict[str, Any] = {"metric": "accuracy", "question": "champion", "epsilon": "40", "queries": 20, "failures": 5}  # fmt: skip
    return plan("gate", path, name="gate", scope="gate", **asked | params), ledger


def open_gate(tiny: Tiny, **params: Any) -> Session:
    return Session.open(*plan_gate(tiny, **params), Registry.load())


def save(folder: Path, cut: int) -> Path:
    """A tree that is right from 3, and the less so the further ``cut`` is from it."""
    file = folder / f"cut{cut}.bin"
    fitted = DecisionTreeClassifier(max_depth=1).fit([[i] for i in range(8)], [i > cut for i in range(8)])  # fmt: skip
    skops.io.dump(fitted, file)
    return file


def test_files_and_tables_are_promoted_on_a_server(tiny: Tiny, server: str, name: str) -> None:
    """A server takes no file of this machine as a version's source; a champion is scored again though its file is gone."""
    gate = ModelGate(open_gate(tiny), Promoter(name, "champion", server), SHARED)
    with duckdb.connect(str(tiny.folder / "said.duckdb")) as connection:
        connection.execute("CREATE TABLE said AS SELECT 'p' || i AS person, 0 AS prediction FROM range(2000) t(i)")  # fmt: skip
    table = {"database": tiny.folder / "said.duckdb", "table": "said", "id": "person"}
    worse, better = save(tiny.folder, 5), save(tiny.folder, 3)
    first = gate.submit(table)
    assert (first["outcome"], first["promotion"]) == ("promoted", "first")
    assert gate.submit(worse)["promotion"] == "better than version 1"
    worse.unlink()
    assert gate.submit(better)["promotion"] == "better than version 2"
    assert gate.submit(better)["outcome"] == "promoted"
    client = mlflow_models.open_client(server)
    assert str(client.get_model_version_by_alias(name, "champion").version) == "3"
    kept = mlflow_models.find_file(f"models:/{name}/3", server, tiny.folder / "scratch")
    assert kept.read_bytes() == better.read_bytes()


def test_a_model_that_a_server_keeps_is_a_candidate(
    tiny: Tiny, server: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By version, run and path; one of another registered model is promoted, too. None that is too large is read."""
    client = mlflow_models.open_registry(name, server)
    run, place = mlflow_models.keep_model(client, "made", save(tiny.folder, 3))
    client.create_model_version(name, place, run)
    uris = f"models:/{name}/1", f"runs:/{run}/model", f"runs:/{run}/model/model.skops"
    for number, uri in enumerate(uris):
        assert mlflow_models.find_file(uri, server, tiny.folder / str(number)).stat().st_size
    session = open_gate(tiny)
    for number, uri in enumerate(uris[:2]):
        other = f"{name}-{number}"
        gate = ModelGate(session, Promoter(other, "champion", server), SHARED)
        assert gate.submit(uri)["outcome"] == "promoted"
        assert mlflow_models.find_file(f"models:/{other}/1", server, tiny.folder / other)
    with pytest.raises(InvalidInput, match=r"holds no skops file|no file of .* is on this machine"):
        mlflow_models.find_file(f"runs:/{run}/nothing", server, tiny.folder)
    monkeypatch.setattr(mlflow_models, "MAX_FILE", 10)
    with pytest.raises(InvalidInput, match="more than 10 bytes"):
        mlflow_models.find_file(uris[0], server, tiny.folder)


def test_a_deleted_champion_makes_no_first(tiny: Tiny, server: str, name: str) -> None:
    """MLflow drops its alias: the next one, however bad, was called the first, and promoted. Nothing is charged."""
    planned, ledger = plan_gate(tiny)
    promoter = Promoter(name, "champion", server)
    session = Session.open(planned, ledger, Registry.load())
    gate = ModelGate(session, promoter, SHARED)
    for cut in (5, 3):
        assert gate.submit(save(tiny.folder, cut))["outcome"] == "promoted"
    client = mlflow_models.open_client(server)
    client.delete_model_version(name, "2")
    with pytest.raises(InvalidInput, match="had a champion, version 2, and nothing bears") as told:
        gate.submit(save(tiny.folder, 6))
    assert not told.value.retryable
    worst = SHARED | {"name": "worst", "file": save(tiny.folder, 6)}
    with pytest.raises(InvalidInput, match="had a champion"):
        check_candidates([planned], ledger, [worst], promoter)
    client.set_registered_model_alias(name, "champion", "1")
    assert "not better" in gate.submit(save(tiny.folder, 6))["promotion"]


def test_a_registered_model_that_is_gone_makes_no_first(tiny: Tiny, server: str, name: str) -> None:
    """MLflow drops its tags, too, or keeps them under another name: an empty one of that name was made, and the loser
    promoted. Beginning anew is said.
    """
    session, client = open_gate(tiny), mlflow_models.open_client(server)
    gate = ModelGate(session, Promoter(name, "champion", server), SHARED)
    worst = save(tiny.folder, 6)
    for file in (save(tiny.folder, 3), worst):
        gate.submit(file)
    left = gate.status()
    client.rename_registered_model(name, f"{name}-kept")
    again = ModelGate(session, Promoter(name, "champion", server), SHARED)
    with pytest.raises(InvalidInput, match="bring back the registered model") as told:
        again.submit(worst)
    assert not told.value.retryable
    client.delete_registered_model(name)
    client.rename_registered_model(f"{name}-kept", name)
    assert gate.submit(worst)["promotion"] == "not better than version 1"
    client.delete_registered_model(name)
    again = ModelGate(session, Promoter(name, "champion", server), SHARED)
    with pytest.raises(InvalidInput, match="set the tag dpflow.last.champion"):
        again.submit(worst)
    assert gate.status() == left
    client.set_registered_model_tag(name, "dpflow.last.champion", "none")
    assert again.submit(worst)["promotion"] == "first"


def test_a_review_names_a_deleted_predecessor(tiny: Tiny, server: str, name: str) -> None:
    """It is gone, which no retry mends; a gate on claims needs none."""
    promoter = Promoter(name, "champion", server)
    session = open_gate(tiny, question="claim", threshold="0.05")
    gate = ModelGate(session, promoter, SHARED)
    for cut, claim in ((5, "0.7"), (3, "0.98")):
        assert gate.submit(save(tiny.folder, cut), claim)["outcome"] == "promoted"
    client = mlflow_models.open_client(server)
    client.delete_model_version(name, "1")
    assert promoter.find_replaced() is None
    assert review_champion(session, promoter)["verdict"] == "yes"


def test_what_mlflow_has_no_more_is_not_out_of_reach(tiny: Tiny, server: str, name: str) -> None:
    """A registered model and a run that were deleted meanwhile: no retry helps, and that is said."""
    promoter = Promoter(name, "champion", server)
    client = mlflow_models.open_client(server)
    run, _ = mlflow_models.keep_model(client, "made", save(tiny.folder, 3))
    client.delete_run(run)
    with pytest.raises(InvalidInput, match="was deleted in MLflow"):
        mlflow_models.find_file(f"runs:/{run}/model", server, tiny.folder)
    client.delete_registered_model(name)
    with pytest.raises(InvalidInput, match=r"refuses this for good \(RESOURCE_DOES_NOT_EXIST\)"):
        promoter.find_champion()


def test_a_server_with_a_folder_of_its_own_machine_is_refused_at_once(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wants its clients to write there; a gate learned that when it was charged."""
    uri = stand_server(KINDS[0], tmp_path, monkeypatch)
    (tmp_path / "file").touch()
    for folder in ("file/runs", "runs"):
        client = mlflow_models.open_client(uri)
        monkeypatch.setattr(mlflow_models, "EXPERIMENT", folder)
        client.create_experiment(folder, (tmp_path / folder).as_uri())
        if folder == "runs":
            assert mlflow_models.open_registry(name, uri)
            continue
        with pytest.raises(InvalidInput, match="start it with --artifacts-destination"):
            Promoter(name, "champion", uri)


def test_a_package_that_a_store_needs_is_named() -> None:
    """No retry installs it; what the error itself says stays out."""
    with pytest.raises(InvalidInput, match="boto3 is not installed"):
        with mlflow_models.registry_in_reach():
            raise ModuleNotFoundError("secret", name="boto3")
    with pytest.raises(KeyError):
        with mlflow_models.registry_in_reach():
            raise KeyError("a fault of a program")


class ClientError(Exception):
    """As boto's, which is no `OSError`."""


def test_an_error_of_a_store_is_the_stores(
    tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the charge: what the store says is left out but for its class, and a retry is free."""
    promoter = Promoter(name, "champion", make_registry(tiny.folder))
    gate, better = ModelGate(open_gate(tiny), promoter, SHARED), save(tiny.folder, 3)
    assert gate.submit(save(tiny.folder, 5))["promotion"] == "first"
    for kind in (ClientError, requests.HTTPError, PermissionError):
        with monkeypatch.context() as patch:
            patch.setattr(MlflowClient, "create_model_version", Mock(side_effect=kind("secret")))
            with pytest.raises(NotPublished, match=rf"\({kind.__name__}\)") as told:
                gate.submit(better)
        assert "costs nothing" in str(told.value) and "secret" not in str(told.value)
        assert told.value.retryable and gate.status()["queries_left"] == 19
    assert gate.submit(better)["promotion"] == "better than version 1"
    assert gate.status()["queries_left"] == 19


def test_two_aliases_of_a_model_have_a_history_each(tiny: Tiny, name: str) -> None:
    """What one session promoted to one alias, and what fell there, says nothing of the other."""
    uri, session = make_registry(tiny.folder), open_gate(tiny)
    champion = Promoter(name, "champion", uri)
    gate = ModelGate(session, champion, SHARED)
    worse, better = (save(tiny.folder, cut) for cut in (5, 3))
    assert gate.submit(worse)["promotion"] == "first"
    assert gate.submit(better)["promotion"] == "better than version 1"
    for alias, file in (("canary", worse), ("third", better)):
        # The session compared candidates: that this alias had no champion is said.
        mlflow_models.open_client(uri).set_registered_model_tag(
            name, f"dpflow.last.{alias}", "none"
        )
        other = ModelGate(session, Promoter(name, alias, uri), SHARED)
        assert other.submit(file)["promotion"] == "first"
    assert gate.submit(worse)["promotion"] == "it was promoted, and then replaced"
    assert champion.find_replaced().version == "1"


@pytest.mark.parametrize(
    "asked",
    [
        {"question": "claim", "metric": "accuracy", "threshold": "0.05"},
        {"question": "champion", "metric": "log_loss"},
    ],
)
def test_two_aliases_of_one_version_have_a_champion_each(
    tiny: Tiny, name: str, asked: dict[str, Any]
) -> None:
    """Another gate that promoted it to another alias made another claim of the champion, or another candidate, which was
    asked again, paid for, and rolled back.
    """
    uri = make_registry(tiny.folder)
    client = mlflow_models.open_registry(name, uri)
    client.create_experiment(mlflow_models.EXPERIMENT, (tiny.folder / "runs").as_uri())
    for cut in (6, 5):
        run, place = mlflow_models.keep_model(client, f"cut{cut}", save(tiny.folder, cut))
        client.create_model_version(name, place, run)
    champion, canary = (Promoter(name, alias, uri) for alias in ("champion", "canary"))
    session = open_gate(tiny, question="claim", threshold="0.05")
    gate = ModelGate(session, champion, SHARED)
    for version, claim in (("1", "0.6"), ("2", "0.74")):
        assert gate.submit(f"models:/{name}/{version}", claim)["outcome"] == "promoted"
    standing, replaced, left = champion.find_champion(), champion.find_replaced(), gate.status()
    other = Session("", "", plan_gate(tiny, **asked)[0], Ledger(tiny.ledger), Registry.load())
    claim = {"claim": "0.98"} if asked["question"] == "claim" else {}
    for version in ("1", "2"):
        fields = SHARED | {"name": "canary", "model": f"models:/{name}/{version}"} | claim
        candidate = other.load_candidate(parse_submission(other, fields, canary))
        assert canary.promote(candidate, {"session": "other"}, canary.find_champion())
    assert (champion.find_champion(), champion.find_replaced()) == (standing, replaced)
    assert canary.was_promoted(candidate.digest, "other")
    assert not champion.was_promoted(candidate.digest, "other")
    assert gate.submit(f"models:/{name}/2", "0.74")["promotion"] == IS_CHAMPION
    assert (
        gate.submit(f"models:/{name}/1", "0.6")["promotion"] == "it was promoted, and then replaced"
    )
    assert review_champion(session, champion)["verdict"] == "yes"
    assert gate.status() == left
