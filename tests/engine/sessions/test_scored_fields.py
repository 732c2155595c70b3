"""A gate refuses what its metric does not use: a field that is ignored is a claim about something else."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import skops.io
from holdout_gates import MemoryRegistry
from sklearn.tree import DecisionTreeClassifier

from dpflow import ModelGate, Session, plan
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from pathlib import Path

    from smallworld import Tiny

ROWS = """CREATE TABLE visits AS SELECT 'p' || i AS person, 'r' || i AS visit, i % 2 AS sick, i % 2 AS a, i % 3 AS b,
          CAST(i % 2 AS VARCHAR) AS digit, CAST([0.1, 0.3, 0.7][1 + i % 3] AS FLOAT) AS real FROM range(300) t(i)"""
BIT = {"lower": 0, "upper": 1}
COLUMNS = {"sick": BIT, "a": BIT, "b": {"lower": 0, "upper": 2}, "visit": {}, "digit": {},
           "real": {"lower": "0.1", "upper": "0.7", "step": "0.1"}}  # fmt: skip


def sql(text: str) -> dict[str, Any]:
    return {"estimator": {"sql": text, "range": [-1, 1], "default": 0, "better": "higher"}}


#: Metric, whether it calls a model, whether a rival, and how many columns an own one reads.
METRICS: dict[str, tuple[Any, bool, bool, int]] = {
    "mean": ({"estimator": "column_mean", "range": [0, 2]}, False, False, 1),
    "agreement": ({"estimator": "column_agreement"}, False, False, 2),
    "accuracy": ("accuracy", True, False, 0),
    "difference": ("difference", True, True, 0),
    "sql": (sql("avg(sick)"), False, False, 0),
    "sql of predictions": (sql("avg(1 - abs(sick - least(greatest(candidate.prediction, 0), 1)))"), True, False, 0),
    "sql of two": (
        sql("avg(least(greatest(candidate.prediction, 0), 1) - least(greatest(candidate.rival, 0), 1) + 0 * sick)"),
        True, True, 0,
    ),
}  # fmt: skip
FIELDS = list(product(("", "file", "predictions"), (False, True), ("", "sick", "b"), (0, 1, 2)))


def is_used(metric: str, source: str, rival: bool, label: str, features: int) -> bool:
    """Whether the metric uses each field that is brought, and has each that it needs."""
    _, calls, compares, columns = METRICS[metric]
    if bool(source) != calls or rival != compares or (source == "predictions" and rival):
        return False
    in_sql = metric.startswith("sql")
    if label and not calls and not in_sql:
        return False
    if calls and not in_sql and not label:
        return False
    if in_sql and label == "b":
        return False
    return features == (1 if source == "file" else columns)


@pytest.fixture
def sources(tiny: Tiny) -> dict[str, Any]:
    tiny.fill(ROWS)
    path = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns=COLUMNS, block=None, holdout=True
    )
    declared, ledger = load_table(path), Ledger(tiny.ledger)
    ledger.grant(
        "gate", 50, 0, filter="basic", table=declared, principal="owner", confirm_large=True
    )
    file, said = tiny.folder / "model.skops", tiny.folder / "said.duckdb"
    skops.io.dump(DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1]), file)
    with duckdb.connect(str(said)) as connection:
        connection.execute(
            "CREATE TABLE said AS SELECT 'r' || i AS visit, i % 2 AS prediction FROM range(300) t(i)"
        )
    place = {"database": str(said), "table": "said", "id": "visit"}
    return {"": None, "file": str(file), "predictions": place}


def open_gate(tiny: Tiny, metric: Any, **params: Any) -> Session:
    common = {
        "metric": metric,
        "threshold": "0" if params.get("question") == "champion" else "0.05",
        "epsilon": "20",
        "queries": 400,
        "failures": 400,
    }
    planned = plan("gate", tiny.folder / "visits.yml", name="gate", scope="gate", **common | params)  # fmt: skip
    return Session.open(planned, Ledger(tiny.ledger), Registry.load())


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("question", ["claim", "champion"])
def test_only_what_is_used_is_taken(
    tiny: Tiny, sources: dict[str, Any], metric: str, question: str, every: int
) -> None:
    """Each of 54 candidates, as a claim and as the first champion, which nothing is asked about: taken
    if and only if all of it is scored, and what is refused costs nothing and promotes nothing. Of those that are
    refused, every fourth in turn.
    """
    assert sum(is_used(metric, *fields) for fields in FIELDS) in (1, 2, 3, 4)
    gate = open_gate(tiny, METRICS[metric][0], question=question)
    claim = {"claim": "0.4"} if question == "claim" else {}
    turn = [*METRICS].index(metric) + (question == "claim")
    for place, fields in enumerate(FIELDS):
        if (place + turn) % every and not is_used(metric, *fields):
            continue
        source, rival, label, n = fields
        brought, registry = {"name": "c", "features": ["a", "b"][:n], **claim}, MemoryRegistry()
        brought |= {source: sources[source]} if source else {}
        brought |= {"rival": sources["file"]} if rival else {}
        brought |= {"label": label} if label else {}
        if is_used(metric, *fields):
            verdict = judge(gate, brought, registry if question == "champion" else None)
            assert verdict["verdict"] in ("yes", "no"), fields
            assert verdict["outcome"] in (
                ("promoted",) if question == "champion" else ("plausible", "no")
            ), fields
            continue
        answered = gate.remaining()["answered"]
        with pytest.raises(InvalidInput):
            judge(gate, brought, registry)
        assert (gate.remaining()["answered"], registry.champion) == (answered, None), fields


LABELS = {
    "sick": BIT,
    "two": {"lower": 1, "upper": 2},
    "word": {"public_keys": ["late", "ontime"]},
}
BINARY = ("log_loss", "f1", "calibration_error", "auc")


@pytest.mark.parametrize("metric", [*BINARY, "squared_loss", "accuracy"])
def test_a_label_is_what_the_metric_takes_it_for(tiny: Tiny, metric: str) -> None:
    """With keys as label a log loss counted no row as positive, and a gate promoted who said 0 of everybody: proven."""
    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick, 1 + i % 2 AS two, "
        "if(i % 2 = 1, 'late', 'ontime') AS word, i % 2 AS a FROM range(300) t(i)"
    )
    columns = {**LABELS, "a": BIT}
    path = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns=columns, block=None, holdout=True
    )
    declared, ledger = load_table(path), Ledger(tiny.ledger)
    ledger.grant(
        "gate", 50, 0, filter="basic", table=declared, principal="owner", confirm_large=True
    )
    asked = {"estimator": metric, "range": [0, 1]} if metric == "squared_loss" else metric
    params = {"groups": 20, "queries": 20, "failures": 10, "rho": "0.24", "alpha": "0.2"}
    planned = plan(
        "reusable_holdout", path, name="gate", scope="gate", metric=asked, epsilon="20", **params
    )
    gate = Session.open(planned, ledger, Registry.load())
    taken = set()
    for label, classes in product(LABELS, ([0, 1], ["ontime", "late"])):
        file = tiny.folder / f"{label}{classes[0]}.skops"
        skops.io.dump(DecisionTreeClassifier().fit([[0.0], [1.0]], classes), file)
        brought = {"name": "c", "file": str(file), "label": label, "features": ["a"]}
        answered = gate.remaining()["answered"]
        try:
            judge(gate, brought | {"claim": "0.5"})
        except InvalidInput as refused:
            assert "takes a label" in str(refused) or "no prediction could be right" in str(refused)
            assert gate.remaining()["answered"] == answered
        else:
            taken.add((label, isinstance(classes[0], str)))
    if metric == "accuracy":
        assert taken == {("sick", False), ("two", False), ("word", True)}
    else:
        numbers = ["sick"] if metric in BINARY else ["sick", "two"]
        assert taken == set(product(numbers, (False, True)))


def test_a_text_is_no_feature_and_a_float_label_equals_its_doubles(
    tiny: Tiny, sources: dict[str, Any]
) -> None:
    """A text was read as the number that it writes; 0.1 is another number in 4 bytes than in 8."""
    gate = open_gate(tiny, "accuracy", queries=2, failures=1)
    text = {"name": "c", "file": sources["file"], "label": "sick", "features": ["digit"]}
    with pytest.raises(InvalidInput, match="feature 'digit', a VARCHAR, and models read numbers"):
        judge(gate, text | {"claim": "0.95"})
    assert gate.remaining()["answered"] == 0
    with duckdb.connect(sources["predictions"]["database"]) as connection:
        connection.execute(
            "CREATE TABLE reals AS SELECT visit, [0.1, 0.3, 0.7][1 + i % 3]::DOUBLE AS prediction "
            "FROM (SELECT visit, CAST(visit[2:] AS INTEGER) AS i FROM said)"
        )
    stored = {
        "name": "d",
        "label": "real",
        "predictions": sources["predictions"] | {"table": "reals"},
    }
    assert judge(gate, stored | {"claim": "0.95"})["verdict"] == "yes"


def test_unknown_fields_are_refused(tiny: Tiny, sources: dict[str, Any]) -> None:
    good = {"name": "c", "file": sources["file"], "label": "sick", "features": ["a"]}
    claims = open_gate(tiny, "accuracy")
    for field, value in (
        ("feature", ["a"]),
        ("predictor", "x"),
        ("tracking_uri", "sqlite:///m.db"),
    ):
        with pytest.raises(InvalidInput, match=field):
            judge(claims, good | {"claim": "0.9", field: value})
    with pytest.raises(InvalidInput, match="add the claim"):
        judge(claims, good)
    noted = good | {"notes": {"depth": 3}, "claim": "0.9"}
    assert judge(claims, noted)["candidate"] == judge(claims, good | {"claim": "0.9"})["candidate"]


def test_a_candidate_is_what_it_says_of_rows(
    tiny: Tiny, sources: dict[str, Any], tmp_path: Path
) -> None:
    """Under another name and path it is the same one, and challenges once."""
    copy = tmp_path / "again.skops"
    copy.write_bytes((tiny.folder / "model.skops").read_bytes())
    good = {"name": "c", "file": sources["file"], "label": "sick", "features": ["a"]}
    duel, registry = open_gate(tiny, "accuracy", question="champion"), MemoryRegistry()
    assert judge(duel, good, registry)["promotion"] == "first"
    again = judge(duel, good | {"name": "d", "file": str(copy)}, registry)
    assert again["promotion"] == "it is the champion"
    assert duel.remaining()["answered"] == 0
    with pytest.raises(InvalidInput, match="better than the champion; leave claim out"):
        judge(duel, good | {"claim": "0.9"}, registry)


def test_another_claim_is_another_question_about_the_same_candidate(
    tiny: Tiny, sources: dict[str, Any]
) -> None:
    """It is answered and counted, and no second candidate for promotion."""
    good = {"name": "c", "file": sources["file"], "label": "sick", "features": ["a"]}
    gate, registry = open_gate(tiny, "accuracy", queries=3, failures=1), MemoryRegistry()
    said = [judge(gate, good | {"claim": claim}, registry) for claim in ("0.9", "0.8")]
    assert said[0]["candidate"] == said[1]["candidate"] and gate.remaining()["answered"] == 2
    assert [one["outcome"] == "promoted" for one in said] == [True, True] and len(
        registry.records
    ) == 1


def test_shared_fields_are_given_to_those_that_take_them(
    tiny: Tiny, sources: dict[str, Any]
) -> None:
    shared = {"label": "sick", "features": ["a"], "tracking_uri": "sqlite:///mlflow.db"}
    # Two questions and one failure: the noise cannot reach what lies between 1, the accuracy, and the claim.
    gate = ModelGate(open_gate(tiny, "accuracy", queries=2, failures=1), defaults=shared)
    for source in ("file", "predictions"):
        assert gate.submit(sources[source], "0.95")["verdict"] == "yes"
