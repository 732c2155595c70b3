"""A gate promotes who beats the champion on the same rows, once, and records it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from holdout_gates import PARAMS, MemoryRegistry, open_gate
from made_once import make_registry

from dpflow import Session
from dpflow.engine.sessions.candidate import Submission, load_candidate
from dpflow.engine.sessions.holdout_gate import (
    Champion,
    judge,
)
from dpflow.engine.sessions.model_promotion import record_verdict
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny
#: Two columns of predictions: `good` is off by 0.1, `bad` by 0.4, `level` as far as `good`.
LOSSES = """CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick, 0.1 + (i % 7) / 1000 AS good,
            0.4 + (i % 5) / 1000 AS bad, 0.1 + (i % 7) / 1000 AS level FROM range(4000) t(i)"""


def losses(tiny: Tiny, **more: Any) -> tuple[Session, Ledger]:
    tiny.fill(LOSSES)
    loss = {"lower": 0, "upper": 1, "step": "0.001"}
    columns = dict.fromkeys(("sick", "good", "bad", "level"), loss)
    table = load_table(
        tiny.declare(
            protects="unit", contribution_bounds={"rows": 1}, columns=columns, block=None, holdout=True
        )
    )  # fmt: skip
    ledger = Ledger(tiny.ledger)
    ledger.grant("gate", 40, 0, filter="basic", table=table, principal="owner", confirm_large=True)
    metric = {"estimator": "column_mean", "better": "lower"}
    return open_gate(tiny, ledger, **(PARAMS | {"metric": metric, "epsilon": "40"} | more)), ledger


def loss_of(column: str, claim: str) -> dict[str, Any]:
    return {"name": column, "features": [column], "claim": claim}


def test_a_better_claim_does_not_replace_a_better_model(tiny: Tiny) -> None:
    """A loss that is claimed to be 0.0001 fails; one whose claim is plausible but whose model is
    worse stays out; the better model comes in, whatever it claims.
    """
    session, _ = losses(tiny, failures=5)
    models = MemoryRegistry()
    assert judge(session, loss_of("bad", "0.0001"), models)["verdict"] == "no"
    assert judge(session, loss_of("bad", "0.45"), models)["promotion"] == "first"
    better = judge(session, loss_of("good", "0.9"), models)  # claims less than the champion did
    assert better["outcome"] == "promoted" and better["promotion"] == "better than version 1"
    worse = judge(session, loss_of("bad", "0.41"), models)  # claims more than the champion does
    assert worse["verdict"] == "yes" and worse["outcome"] != "promoted"
    # One as good as the champion passes once in many tries by its noise, and not by so much.
    models.better_by = Fraction(1, 10)
    level = judge(session, loss_of("level", "0.11"), models)
    assert level["verdict"] == "yes" and level["promotion"] == "not better than version 2"
    assert models.champion is not None and models.champion.version == "2"


def test_a_retry_of_all_candidates_promotes_nobody_else_and_is_free(tiny: Tiny) -> None:
    session, ledger = losses(tiny, failures=5)
    models = MemoryRegistry()
    given = [loss_of("bad", "0.45"), loss_of("good", "0.2"), loss_of("level", "0.2")]
    first = [judge(session, submission, models)["verdict"] for submission in given]
    left, champion = session.remaining(), models.champion
    again = [judge(session, submission, models) for submission in given]
    assert [verdict["verdict"] for verdict in again] == first == ["yes"] * 3
    assert session.remaining() == left and models.champion == champion and ledger.verify().ok
    assert again[0]["promotion"] == "it was promoted, and then replaced"


def test_a_candidate_is_scored_once_for_as_long_as_the_rows_are_the_same(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As claimant, challenger and champion; other rows are scored again, and other scores are seen."""
    from dpflow.engine.sessions import score_readers

    scored: list[int] = []
    real = score_readers.group_values

    def counted(*given: Any, **more: Any) -> Any:
        scored.append(1)
        return real(*given, **more)

    monkeypatch.setattr(score_readers, "group_values", counted)
    session, _ = losses(tiny, failures=5)
    models = MemoryRegistry()
    for column in ("bad", "good", "level"):
        assert judge(session, loss_of(column, "0.45"), models)["verdict"] == "yes"
    assert len(scored) == 3
    tiny.fill(LOSSES.replace("0.1 + (i % 7) / 1000 AS good", "0.9 AS good"))
    assert judge(session, loss_of("good", "0.44"), models)["verdict"] == "no"
    assert len(scored) == 4


def test_scores_of_other_columns_are_scored_by_themselves(tiny: Tiny) -> None:
    """A question may name other columns than its candidate: the values of one are not those of the
    other.
    """
    session, _ = losses(tiny, failures=5)
    good, bad = (
        load_candidate(Submission.model_validate(session.fill_metric(loss_of(column, "0.45"))))
        for column in ("good", "bad")
    )
    session.challenge(good, bad)
    said = {"estimator": "column_mean", "claim": "0.3"}
    # A loss of 0.3 is too good for `bad` and too bad for `good`, which passes.
    assert session.ask(said | {"columns": ["good"]}, good)["verdict"] == "yes"
    assert session.ask(said | {"columns": ["bad"]}, good)["verdict"] == "no"


def test_a_champion_of_meanwhile_is_not_replaced_unseen(tiny: Tiny) -> None:
    """Two teams beat one champion at once: who is later has not beaten who was promoted meanwhile."""
    session, _ = losses(tiny, failures=5)
    models = MemoryRegistry()
    judge(session, loss_of("bad", "0.45"), models)
    meanwhile = Champion("9", "another", "")
    challenge = session.challenge

    def overtaken(*given: Any) -> Any:
        answer = challenge(*given)
        models.champion = meanwhile
        return answer

    session.challenge = overtaken  # type: ignore[method-assign]
    verdict = judge(session, loss_of("good", "0.2"), models)
    assert verdict["verdict"] == "yes" and verdict["outcome"] != "promoted"
    assert "another champion" in verdict["promotion"] and models.champion is meanwhile


@pytest.mark.parametrize("is_replaced", [False, True])
def test_who_was_promoted_beside_its_retry_hears_so(tiny: Tiny, is_replaced: bool) -> None:
    """An orphan and its retry beat one champion at once: no other champion was promoted meanwhile."""
    session, _ = losses(tiny, failures=5)
    models = MemoryRegistry()
    judge(session, loss_of("bad", "0.45"), models)
    challenge = session.challenge

    def retried(*given: Any) -> Any:
        answer = challenge(*given)
        session.challenge = challenge  # type: ignore[method-assign]
        assert judge(session, loss_of("good", "0.2"), models)["outcome"] == "promoted"
        if is_replaced:
            models.champion = Champion("9", "another", "")
        return answer

    session.challenge = retried  # type: ignore[method-assign]
    verdict = judge(session, loss_of("good", "0.2"), models)
    said = (
        ("no", "it was promoted, and then replaced")
        if is_replaced
        else ("promoted", "it is the champion")
    )
    assert (verdict["verdict"], verdict["outcome"], verdict["promotion"]) == ("yes", *said)


def test_a_champion_that_is_only_named_closes_no_gate(tiny: Tiny) -> None:
    """Typed as a field of a question it has no scores: refused before anything is read or drawn."""
    session, _ = losses(tiny)
    asked = {"columns": ["good"], "champion": "f" * 64}
    with pytest.raises(InvalidInput, match="call challenge with both candidates"):
        session.ask(asked)
    assert session.remaining()["answered"] == 0 and session.remaining()["state"] == "open"


def test_a_registry_that_is_down_costs_no_second_question(tiny: Tiny) -> None:
    """The verdict is kept; the next try moves the alias, once."""
    session, _ = losses(tiny, failures=5)
    models = MemoryRegistry()
    judge(session, loss_of("bad", "0.45"), models)
    up = models.promote
    models.promote = lambda *a: (_ for _ in ()).throw(ConnectionError("down"))  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        judge(session, loss_of("good", "0.2"), models)
    models.promote = up  # type: ignore[method-assign]
    left = session.remaining()
    assert judge(session, loss_of("good", "0.2"), models)["outcome"] == "promoted"
    assert session.remaining() == left and len(models.records) == 2


def test_a_champion_that_is_gone_is_not_replaced(tiny: Tiny) -> None:
    session, _ = losses(tiny)
    models = MemoryRegistry()
    judge(session, loss_of("bad", "0.45"), models)
    assert models.champion is not None
    models.champion = replace(models.champion, submission="")
    verdict = judge(session, loss_of("good", "0.2"), models)
    assert verdict["outcome"] != "promoted" and "is not where it was" in verdict["promotion"]


def test_the_alias_moves_with_the_record(tiny: Tiny) -> None:
    """On a yes to the first, and to whoever beats it; the version's tags say which verdict moved it."""
    from mlflow import MlflowClient

    from dpflow.engine.sessions.model_promotion import Promoter

    uri = make_registry(tiny.folder)
    session, _ = losses(tiny, failures=5)
    promoter = Promoter("loss", "champion", uri, better_by="0.05")
    first = judge(session, loss_of("bad", "0.45"), promoter)
    assert (
        first["outcome"] == "promoted"
        and judge(session, loss_of("bad", "0"), promoter)["outcome"] != "promoted"
    )
    better = judge(session, loss_of("good", "0.2"), promoter)
    assert (
        better["outcome"] == "promoted"
        and judge(session, loss_of("bad", "0.41"), promoter)["outcome"] != "promoted"
    )
    assert judge(session, loss_of("good", "0.2"), promoter)["outcome"] == "promoted"
    assert judge(session, loss_of("bad", "0.45"), promoter)["outcome"] != "promoted"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    champion = client.get_model_version_by_alias("loss", "champion")
    for tag in ("candidate.champion", "session", "commitment"):
        assert champion.tags[f"dpflow.{tag}"] == better[tag.partition(".")[0]]
    # Few groups prove nothing about the claim, and a comparison is proven.
    assert (champion.tags["dpflow.guarantee"], better["guarantee"]) == ("proven", "unproven")
    assert "dpflow.comparison.champion" in champion.tags
    with pytest.raises(InvalidInput, match="is negative"):
        Promoter("loss", "champion", uri, better_by="-0.1")


def test_a_promotion_that_was_killed_behind_its_alias_is_finished(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who was replaced afterwards would take another turn, and nothing would say that there was a champion."""
    from mlflow import MlflowClient

    from dpflow.engine.sessions.model_promotion import Promoter

    uri = make_registry(tiny.folder)
    session, _ = losses(tiny, failures=5)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_tag", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            judge(session, loss_of("bad", "0.45"), Promoter("loss", "champion", uri))
    promoter = Promoter("loss", "champion", uri)
    # Another gate judges it meanwhile.
    MlflowClient(uri).set_model_version_tag("loss", "1", "dpflow.session", "another")
    assert judge(session, loss_of("good", "0.2"), promoter)["outcome"] == "promoted"
    left = session.remaining()
    again = judge(session, loss_of("bad", "0.45"), promoter)
    assert (
        again["promotion"] == "it was promoted, and then replaced" and session.remaining() == left
    )


def test_a_registry_of_models_sees_verdicts_and_no_row(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags and artefacts in MLflow are the verdict's; a canary in the rows, in a unit's name and in the
    environment is in none of them.
    """
    import mlflow

    canary = "QX7canary7XQ"
    monkeypatch.setenv("DPFLOW_CANARY", canary)
    rows = LOSSES.replace("'p' || i", f"'{canary}' || i").replace(
        "AS sick", f"AS sick, '{canary}' AS note"
    )
    monkeypatch.setitem(globals(), "LOSSES", rows)
    session, _ = losses(tiny, failures=5)
    verdict = judge(session, loss_of("good", "0.45"))
    calls: list[Any] = []

    class Client:
        def __init__(self, **addresses: str) -> None: ...

        def get_run(self, run_id: str) -> Any:
            return SimpleNamespace(
                outputs=None,
                info=SimpleNamespace(artifact_uri="file:///runs", lifecycle_stage="active"),
                data=SimpleNamespace(tags={}),
            )

        def __getattr__(self, name: str) -> Any:
            return lambda *given: calls.append((name, *given))

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    model = {"model": "runs:/abc/model", "tracking_uri": "sqlite:///m.db", "label": "sick"}
    submission = Submission.model_validate(
        {"name": "good", "features": ["good"], "claim": "0.45"} | model
    )
    record_verdict(submission, verdict)
    assert ("set_tag", "abc", "dpflow.verdict", "yes") in calls
    assert any(name == "log_dict" and body == verdict for name, _, body, *_ in calls)
    assert canary not in repr(calls) and canary not in repr(verdict)
