"""The soft majority keeps its epsilon exactly; every broken variant is caught."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from dpflow_private_prediction.building_blocks import features  # noqa: E402
from dpflow_private_prediction.building_blocks.base_learners import learner_factory  # noqa: E402
from dpflow_private_prediction.building_blocks.shards import (
    Constant,
    Model,
    Shards,
    by_shard,
    deal_shards,
    majority,
    split_linear,
    train_shards,
)  # noqa: E402
from dpflow_private_prediction.mechanisms import vote  # noqa: E402
from dpflow_private_prediction.mechanisms.vote import PredictVote, VoteParams  # noqa: E402
from neighbour_auditor import audit_prediction, max_divergence  # noqa: E402
from prediction_world import ALTERNATIVES, POINTS, TABLE, exact_law, records, tables  # noqa: E402

from dpflow.core.accounting.events import BoundedRange, Repeated  # noqa: E402
from dpflow.errors import InvalidInput  # noqa: E402
from dpflow.testing.enumeration import enumerate_outputs  # noqa: E402
from dpflow.testing.harness import StreamSource  # noqa: E402

MECHANISM = PredictVote()


def params(**changes: Any) -> VoteParams:
    given = {
        "features": ["x"],
        "label": "y",
        "epsilon": "1",
        "shards": 3,
        "predictions": 10,
        "learner": "DecisionTreeClassifier",
    }
    return VoteParams.model_validate(given | changes)


@pytest.mark.parametrize("epsilon", ["0.1", "1", "3"])
def test_one_vote_moves_the_answer_by_epsilon(epsilon: str) -> None:
    """All counts of up to 24 shards, and no less than epsilon is used once shards abound."""
    worst = 0.0
    for shards in (1, 2, 3, 4, 7, 12, 24):
        asked = params(shards=shards, epsilon=epsilon)
        laws = [_law((shards - ones, ones), asked) for ones in range(shards + 1)]
        found = max(max_divergence(a, b) for a, b in zip(laws, laws[1:]))
        assert found <= float(epsilon) * (1 + 1e-12)
        worst = max(worst, found)
        if shards >= 24 and epsilon == "1":
            assert found > 0.9999
    asked = params(shards=24, epsilon=str(2 * Fraction(epsilon)))
    doubled = [_law((24 - ones, ones), asked) for ones in range(25)]
    assert max(max_divergence(a, b) for a, b in zip(doubled, doubled[1:])) > 1.5 * float(epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", ["0.1", "1", "3"])
def test_one_vote_of_any_number_of_shards(epsilon: str) -> None:
    """Every number of up to 24 shards, and two larger ones."""
    for shards in (*range(1, 25), 40, 60):
        asked = params(shards=shards, epsilon=epsilon)
        laws = [_law((shards - ones, ones), asked) for ones in range(shards + 1)]
        moves = [max_divergence(a, b) for a, b in zip(laws, laws[1:])]
        assert max(moves) <= float(epsilon) * (1 + 1e-12)


def test_the_specification_s_probabilities() -> None:
    """23 shards at epsilon 1: a unanimous vote, and 16 of 23."""
    asked = params(shards=23, epsilon="1")
    assert _law((0, 23), asked)[1] == pytest.approx(0.9999898700, abs=5e-11)
    assert _law((7, 16), asked)[1] == pytest.approx(0.9890130574, abs=5e-11)


def test_more_labels_keep_epsilon_and_the_range() -> None:
    """All moves of one vote between four labels: losses within an interval of length epsilon (hence
    epsilon^2/8 zCDP).
    """
    asked = params(shards=6, epsilon="1")
    for votes in [(6, 0, 0, 0), (3, 3, 0, 0), (2, 2, 1, 1), (4, 1, 1, 0)]:
        base = _law(votes, asked)
        for gone in range(4):
            for come in range(4):
                if gone != come and votes[gone]:
                    moved = list(votes)
                    moved[gone], moved[come] = moved[gone] - 1, moved[come] + 1
                    other = _law(tuple(moved), asked)
                    losses = [math.log(base[b] / other[b]) for b in range(4)]
                    assert max(losses) - min(losses) <= 1 + 1e-12


def _law(votes: tuple[int, ...], asked: VoteParams) -> dict[int, float]:
    """The law of the mechanism's own draw from counts of votes."""
    return enumerate_outputs(
        lambda source: int(vote.soft_majority(np.array([votes]), asked, source)[0])
    )


@pytest.mark.parametrize("relation", ["replace", "add-remove"])
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("DecisionTreeClassifier", 1),
        ("GaussianNB", 1),
        *(
            pytest.param(name, 2, marks=pytest.mark.slow)
            for name in (
                "DecisionTreeClassifier",
                "LogisticRegression",
                "KNeighborsClassifier",
                "GaussianNB",
            )
        ),
    ],
)
def test_retrained_on_every_neighbour(name: str, number: int, relation: Any) -> None:
    """The whole mechanism, learner included: single-class and empty shards, and a learner that
    refuses small shards.
    """
    law = exact_law(MECHANISM, params(learner=name))
    found = audit_prediction(law, tables(5, number), ALTERNATIVES, POINTS, relation=relation)
    assert found.keeps_epsilon(1.0) and found.epsilon > 0.1


# --- what must be caught ----------------------------------------------------------------------------------------------


def trained(make: Any, x: Any, y: Any, shard: Any, shards: int, source: Any) -> Shards:
    """Two labels, learned from rows in any order."""
    order, cuts = by_shard(shard, shards)
    return train_shards(make, x[order], y[order], cuts, source, majority(2))


def broken(shard: Any, scale: Any = None, sharpness: float = 0.5) -> Any:
    """A vote whose shards or features are made by a function of all rows."""

    @cache
    def law(rows: tuple[Any, ...], point: Any) -> dict[int, float]:
        table = records(rows)
        columns = table.columns["x"], table.columns["y"]
        x, query = columns[0][:, None].astype(float), np.array([[float(point)]])
        if scale is not None:
            x, query = scale(x, x), scale(x, query)
        made = trained(
            learner_factory("classifier", "DecisionTreeClassifier", {}),
            x,
            columns[1],
            shard(rows),
            3,
            StreamSource(5),
        )
        ones = int(made.votes(query, 2)[0, 1])
        logit = sharpness * (2 * ones - 3)
        return {1: 1 / (1 + math.exp(-logit)), 0: 1 / (1 + math.exp(logit))}

    return law


def by_unit(rows: tuple[Any, ...]) -> Any:
    return deal_shards(np.arange(len(rows)), 3, StreamSource(5))


def by_content(rows: tuple[Any, ...]) -> Any:
    """shard = hash of the row: a changed row changes its shard."""
    return np.array([(7 * x + 3 * y) % 3 for x, y in rows])


def by_rank(rows: tuple[Any, ...]) -> Any:
    """NTILE over a key of the rows: a changed row shifts the boundaries."""
    order = np.argsort([x + y / 10 for x, y in rows], kind="stable")
    shards = np.empty(len(rows), np.int64)
    shards[order] = np.arange(len(rows)) * 3 // len(rows)
    return shards


def test_the_harness_passes_what_is_right() -> None:
    """Without a mutation the same harness finds nothing."""
    assert audit_prediction(broken(by_unit), tables(6, 3), ALTERNATIVES, POINTS).keeps_epsilon(1.0)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("exp of votes, not of half of them", broken(by_unit, sharpness=1.0)),
        ("shards by content", broken(by_content)),
        ("shards by rank", broken(by_rank)),
        (
            "a scaler of all rows",
            broken(
                by_unit,
                scale=lambda fitted, x: np.round((x - fitted.mean()) / (fitted.std() + 0.1), 1),
            ),
        ),
    ],
)
def test_a_broken_vote_is_caught(name: str, law: Any) -> None:
    """Each costs more than epsilon on some pair of tables of six rows."""
    found = (audit_prediction(law, [table], ALTERNATIVES, POINTS) for table in tables(6, 12))
    assert any(not one.keeps_epsilon(1.0) for one in found), name


def test_a_released_probability_is_caught() -> None:
    """The margin is a function of the rows without noise: two tables can be told apart for certain."""
    law = exact_law(MECHANISM, params())

    def shown(rows: tuple[Any, ...], point: Any) -> dict[float, float]:
        return {round(law(rows, point)[1], 9): 1.0}

    assert audit_prediction(shown, tables(5, 1), ALTERNATIVES, POINTS).epsilon == math.inf


def test_a_reported_failure_is_caught() -> None:
    """An answer that says that some shard failed has an outcome that its neighbour lacks."""
    law = exact_law(MECHANISM, params())

    def telling(rows: tuple[Any, ...], point: Any) -> dict[Any, float]:
        return {"failed": 1.0} if len({y for _, y in rows}) == 1 else law(rows, point)

    uniform = [((0, 1), (1, 1), (2, 1), (3, 1), (4, 1))]
    assert audit_prediction(telling, uniform, ALTERNATIVES, POINTS).epsilon == math.inf


# --- plans and odd rows ----------------------------------------------------------------------------------------------


def test_the_claim_is_bounded_range_for_each_prediction() -> None:
    """Whatever number of shards and learner."""
    for shards in (1, 500):
        assert MECHANISM.event(params(shards=shards), TABLE) == Repeated(
            BoundedRange(Fraction(1)), 10
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learner": "LogisticRegresion"}, "did you mean 'LogisticRegression'"),
        ({"options": {"C": -1}}, "does not take the options"),
        ({"options": {"no_such": 1}}, "does not take the options"),
        ({"options": {"random_state": 1}}, "set by the mechanism"),
        ({"options": {"verbose": 1}}, "set by the mechanism"),
        ({"label": "x", "features": ["x"]}, "label is not a feature"),
        ({"label": "who"}, "no bounds"),
        ({"features": ["x", "x"]}, "named once"),
    ],
)
def test_a_wrong_plan_is_refused(changes: dict[str, Any], said: str) -> None:
    """Before anything is charged."""
    with pytest.raises(InvalidInput, match=said):
        MECHANISM.event(params(**changes), TABLE)


def test_rows_without_a_public_label_are_left_out_in_their_shard() -> None:
    """They are neither a class nor an error."""
    keyed = TABLE.columns["y"].model_copy(
        update={"public_keys": ("no", "yes"), "lower": None, "upper": None}
    )
    table = TABLE.model_copy(update={"columns": TABLE.columns | {"y": keyed}})
    rows = records([(0, 0), (1, -1), (4, 1), (3, -1)])
    made = vote.learn_labels(params(shards=1), table, rows, StreamSource(1))
    assert features.list_labels(table, "y") == ("no", "yes")
    assert MECHANISM.predict(
        params(shards=1, epsilon="1000"), table, made, np.array([[0], [4]]), StreamSource(2)
    ) == [
        "no",
        "yes",
    ]


def test_a_failing_model_has_a_default_for_every_point() -> None:
    """Fitting raises, predicting raises or answers nonsense: the shard's majority, and nobody hears
    of it.
    """

    class Odd:
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def fit(self, x: Any, y: Any) -> Odd:
            if self.answer == "raise":
                raise RuntimeError("row 4711")
            return self

        def predict(self, points: Any) -> Any:
            if self.answer == "raise later":
                raise RuntimeError("row 4711")
            return np.resize(np.array(self.answer), len(points))

    x, y, shard = np.zeros((3, 1)), np.array([1, 1, 0]), np.zeros(3, np.int64)
    for answer, ones in (
        ("raise", 1),
        ("raise later", 1),
        ([7], 0),
        ([-1], 0),
        ([np.nan], 0),
        ([1], 1),
    ):
        made = trained(lambda seed, a=answer: Odd(a), x, y, shard, 1, StreamSource(0))
        assert made.votes(np.zeros((2, 1)), 2)[:, 1].tolist() == [ones, ones], answer
    assert majority(3)(np.zeros(0, np.int64)) == Constant(0)


def test_models_show_nothing() -> None:
    """A repr of what was learned names no model and no count."""
    made = vote.learn_labels(params(), TABLE, records([(0, 0), (4, 1)] * 20), StreamSource(1))
    assert repr(made) == "Shards()"


def test_linear_models_vote_side_by_side_as_they_do_alone() -> None:
    """Several kinds of learners, constants among the models, more points than a block: the same
    counts as one by one.
    """
    source = StreamSource(6)
    x = source.draw_words(9000 * 3).astype(np.float64).reshape(9000, 3) / 2**63 - 1
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    shard = np.where(x[:, 2] > 0.9, 0, 1 + np.arange(9000) % 30)
    y[shard == 0] = 1
    for name in ("LogisticRegression", "Perceptron", "RidgeClassifier", "GaussianNB"):
        made = trained(learner_factory("classifier", name, {}), x, y, shard, 31, source)
        alone = sum(np.asarray(model.predict(x)) for model in made.models)
        assert np.abs(made.votes(x, 2)[:, 1] - alone).sum() <= 2  # rounding next to a border
        assert (made.votes(x, 2).sum(axis=1) == 31).all()


@pytest.mark.parametrize(
    "name", ["LogisticRegression", "LinearSVC", "RidgeClassifier", "SGDClassifier", "Perceptron"]
)
def test_a_product_says_what_each_linear_model_says(name: str) -> None:
    """Weights and points in 64ths, where scores are exact: the same label at every point, also
    where a score is 0.
    """
    source = StreamSource(9)
    x = np.floor(source.draw_words(500 * 3).astype(np.float64).reshape(500, 3) / 2**57 - 64) / 64
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    made = trained(learner_factory("classifier", name, {}), x, y, np.arange(500) % 300, 300, source)
    fitted = [model.fitted for model in made.models if isinstance(model, Model)]
    for estimator in fitted:
        estimator.coef_ = np.floor(estimator.coef_ / np.abs(estimator.coef_).max() * 4) / 4
        estimator.intercept_ = np.zeros(1)
    assert len(fitted) > 30 and split_linear(made.models)[0] is not None
    alone = np.array([np.asarray(model.predict(x)) for model in made.models])
    assert made.votes(x, 2)[:, 1].tolist() == alone.sum(axis=0).tolist()
    assert any((estimator.decision_function(x) == 0).any() for estimator in fitted)


def test_a_model_s_vote_does_not_mind_what_the_other_shards_hold() -> None:
    """At points where many scores are 0 but for rounding, a shard that becomes a constant changes
    its own vote alone.
    """
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (400, 7))
    y = (x[:, 0] > 0).astype(np.int64)
    made = trained(
        learner_factory("classifier", "LogisticRegression", {}),
        x,
        y,
        np.arange(400) % 20,
        20,
        StreamSource(1),
    )
    points = []
    for model in made.models:
        w, b = model.fitted.coef_[0], model.fitted.intercept_[0]  # type: ignore[union-attr]
        for start in rng.uniform(-1, 1, (50, 7)):
            points.append(start - (start @ w + b) / (w @ w) * w)
    border = np.array(points)
    votes = made.votes(border, 2)[:, 1]
    for shard in range(20):
        changed = Shards((*made.models[:shard], Constant(0), *made.models[shard + 1 :]))
        fewer = votes - changed.votes(border, 2)[:, 1]
        assert fewer.min() >= 0 and fewer.max() == 1
