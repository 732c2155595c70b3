"""Averages and linear models with output noise keep their stability rates and epsilons; broken
variants are caught.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from dpflow_private_prediction.building_blocks import answer_noise, stable_descent  # noqa: E402
from dpflow_private_prediction.building_blocks.shards import Shards  # noqa: E402
from dpflow_private_prediction.building_blocks.stable_descent import (
    loss_slopes,
    minimise,
    one_pass,
    sample_places,
)  # noqa: E402
from dpflow_private_prediction.mechanisms import linear  # noqa: E402
from dpflow_private_prediction.mechanisms.average_label import (  # noqa: E402
    AverageParams,
    PredictAverage,
    noisy_count,
)
from dpflow_private_prediction.mechanisms.average_value import PredictValue, ValueParams  # noqa: E402
from dpflow_private_prediction.mechanisms.linear import LinearParams, PredictLinear  # noqa: E402
from neighbour_auditor import largest_move, max_divergence  # noqa: E402
from prediction_world import ALTERNATIVES, POINTS, TABLE, records, tables  # noqa: E402

from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace, Repeated  # noqa: E402
from dpflow.core.sampling.samplers import uniform_integers  # noqa: E402
from dpflow.errors import InvalidInput, PlanRefused  # noqa: E402
from dpflow.testing.enumeration import enumerate_outputs  # noqa: E402
from dpflow.testing.exact_divergence import discrete_laplace, divergence  # noqa: E402
from dpflow.testing.harness import StreamSource  # noqa: E402
from dpflow.testing.scripted_sources import ScriptedSource  # noqa: E402

SHARDED = {"features": ["x"], "label": "y", "epsilon": "1", "shards": 3, "predictions": 10}
AVERAGED = SHARDED | {"learner": "DecisionTreeClassifier"}
VALUED = SHARDED | {"learner": "DecisionTreeRegressor"}


def line(**changes: Any) -> LinearParams:
    given = {
        "features": ["x"],
        "label": "y",
        "epsilon": "1",
        "size": 6,
        "predictions": 10,
        "radius": "2",
    }
    return LinearParams.model_validate(given | changes)


# --- the noise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sensitivity", [1, 3])
def test_noise_keeps_what_it_claims(sensitivity: int) -> None:
    """Laplace: epsilon exactly. Gaussian: the divergence at every order stays under rho times the
    order.
    """
    for shift in (1, sensitivity):
        a, b = (_law("laplace", sensitivity, at) for at in (0, shift))
        both = a.keys() & b.keys()  # the tails are cut where less than 1e-13 is left
        loss = max_divergence({x: a[x] for x in both}, {x: b[x] for x in both})
        assert loss <= 0.5 + 1e-9 and (shift < sensitivity or loss > 0.5 - 1e-9)
        gauss = [_law("gaussian", sensitivity, at) for at in (0, shift)]
        for order in (1.5, 2, 8):
            moment = sum(
                p**order * gauss[1][x] ** (1 - order) for x, p in gauss[0].items() if x in gauss[1]
            )
            assert math.log(moment) / (order - 1) <= order * 0.5**2 / 2 + 1e-6


def _law(kind: Any, sensitivity: int, at: int) -> dict[int, float]:
    return enumerate_outputs(
        lambda source: int(
            answer_noise.add_noise(np.array([at]), kind, sensitivity, Fraction(1, 2), source)[0]
        ),
        tail=1e-13,
    )


def test_the_claim_is_that_of_the_noise() -> None:
    """Scales as in Lemma 4.5 (sensitivity over epsilon, not the reverse), and no noise that cannot
    be drawn.
    """
    assert answer_noise.noise_event("laplace", 3, Fraction(1, 2)) == DiscreteLaplace(Fraction(6), 3)
    gauss = answer_noise.noise_event("gaussian", 3, Fraction(1, 2))
    assert gauss == DiscreteGaussian(Fraction(36), Fraction(3)) and gauss.rho_delta()[
        0
    ] == Fraction(1, 8)
    for kind in ("laplace", "gaussian"):
        with pytest.raises(InvalidInput, match="2\\^50"):
            answer_noise.noise_event(kind, 2**40, Fraction(1, 10**6))


def test_a_swapped_scale_is_caught() -> None:
    """Laplace noise of scale epsilon/D, as the paper's proof of Lemma 4.5 prints it."""
    swapped = discrete_laplace(Fraction(1, 2) / 3, 1e-13)
    assert divergence(swapped, {x + 3: p for x, p in swapped.items()}, 0.5) > 0.5


def test_each_answer_has_noise_of_its_own() -> None:
    """Equal answers in one batch differ."""
    assert (
        len(
            set(
                answer_noise.add_noise(
                    np.zeros(50, np.int64), "laplace", 1000, Fraction(1), StreamSource(1)
                ).tolist()
            )
        )
        > 40
    )


# --- average -----------------------------------------------------------------------------------------------------------


class Fixed(Shards):
    """Models that say what a test wants."""

    def __init__(self, answer: int) -> None:
        object.__setattr__(self, "models", ())
        object.__setattr__(self, "answer", answer)

    def votes(self, points: Any, labels: int) -> Any:
        return np.array([[3 - self.answer, self.answer]])

    def sums(self, points: Any, low: int, high: int) -> Any:
        return np.array([self.answer])


@pytest.mark.parametrize("answer", ["label", "share"])
def test_average_keeps_epsilon_for_every_count(answer: str) -> None:
    """The law of the mechanism's own answer to each number of votes, both forms of it."""
    asked, point = AverageParams.model_validate(AVERAGED | {"answer": answer}), np.array([[0]])
    laws = [
        enumerate_outputs(
            lambda s, n=n: PredictAverage().predict(asked, TABLE, Fixed(n), point, s)[0], tail=1e-13
        )
        for n in range(4)
    ]
    worst = max(max_divergence(a, b) for a, b in zip(laws, laws[1:]))
    assert (0.2 if answer == "label" else 0.99) < worst <= 1 + 1e-9


@pytest.mark.parametrize("relation", ["replace", "add-remove"])
def test_one_unit_moves_one_vote_of_an_average(relation: Any) -> None:
    """Learners included, retrained on every neighbour."""

    def ones(rows: tuple[Any, ...], point: Any) -> float:
        learned = PredictAverage().learn(
            AverageParams.model_validate(AVERAGED), TABLE, records(rows), StreamSource(5)
        )
        return float(learned.votes(np.array([[point / 2 - 1]]), 2)[0, 1])

    assert largest_move(ones, tables(5, 3), ALTERNATIVES, POINTS) == 1
    if relation == "add-remove":
        for rows in tables(5, 3):
            assert all(abs(ones(rows, x) - ones(rows[:-1], x)) <= 1 for x in POINTS)


def test_an_average_is_as_wrong_as_its_models_and_their_noise() -> None:
    """|E[error] - mean error of the models| <= 1/(r epsilon), exactly, for every count."""
    for kind in ("laplace", "gaussian"):
        asked = AverageParams.model_validate(AVERAGED | {"shards": 20, "noise": kind})
        for ones in range(21):
            law = enumerate_outputs(
                lambda source: int(noisy_count(np.array([ones]), asked, source)[0]), tail=1e-13
            )
            share = sum(p * count for count, p in law.items()) / 20
            assert abs(share - ones / 20) <= 1 / 20 + 1e-9


def test_average_needs_two_labels() -> None:
    """And says what to use instead."""
    with pytest.raises(InvalidInput, match="predict_vote"):
        other = AverageParams.model_validate(AVERAGED | {"label": "x", "features": ["y"]})
        PredictAverage().event(other, TABLE)


# --- value -------------------------------------------------------------------------------------------------------------


def test_value_keeps_epsilon_for_every_sum() -> None:
    """Bounds 0 and 1, three models: one unit moves the sum by one, epsilon is used up and not
    exceeded.
    """
    asked, point = ValueParams.model_validate(VALUED), np.array([[0]])
    laws = [
        enumerate_outputs(
            lambda s, n=n: PredictValue().predict(asked, TABLE, Fixed(n), point, s)[0], tail=1e-13
        )
        for n in range(4)
    ]
    assert 0.99 < max(max_divergence(a, b) for a, b in zip(laws, laws[1:])) <= 1 + 1e-9

    def total(rows: tuple[Any, ...], x: Any) -> float:
        learned = PredictValue().learn(asked, TABLE, records(rows), StreamSource(5))
        return float(learned.sums(np.array([[x / 2 - 1]]), 0, 1)[0])

    assert largest_move(total, tables(5, 3), ALTERNATIVES, POINTS) == 1


def test_the_average_is_stable_and_the_median_is_not() -> None:
    """Lemma 4.6: one row moves the mean of three models by at most 1/3 of the range; their median
    by all of it.
    """
    asked = ValueParams.model_validate(VALUED | {"label": "x", "features": ["y"]})

    def models(rows: tuple[Any, ...], point: Any) -> Any:
        made = PredictValue().learn(asked, TABLE, records(rows), StreamSource(5))
        return np.array([model.predict(np.array([[2.0 * point - 1]]))[0] for model in made.models])

    few = tables(6, 2)
    assert (
        largest_move(
            lambda r, x: float(np.clip(models(r, x), 0, 4).mean()), few, ALTERNATIVES, [0, 1]
        )
        <= 4 / 3 + 1e-9
    )
    assert (
        largest_move(
            lambda r, x: float(np.median(np.clip(models(r, x), 0, 4))), few, ALTERNATIVES, [0, 1]
        )
        > 4 / 3
    )


def test_value_follows_its_claim_and_its_label() -> None:
    """D is the number of steps between the bounds; the mean is in the label's unit; what cannot be
    added up is refused.
    """
    steps = TABLE.columns["x"].model_copy(update={"step": Fraction(1, 10)})
    fine = TABLE.model_copy(update={"columns": TABLE.columns | {"x": steps}})
    changes = {"label": "x", "features": ["y"], "epsilon": "1000000", "learner": "LinearRegression"}
    asked = ValueParams.model_validate(VALUED | changes)
    assert PredictValue().event(asked, fine) == Repeated(
        DiscreteLaplace(Fraction(40, 10**6), 40), 10
    )
    rows = records([(10 + 20 * (i % 2), i % 2) for i in range(40)])
    learned = PredictValue().learn(asked, fine, rows, StreamSource(1))
    answers = PredictValue().predict(asked, fine, learned, np.array([[0], [1]]), StreamSource(2))
    assert answers == pytest.approx([1.0, 3.0], abs=0.04)
    nothing = PredictValue().learn(asked, fine, records([]), StreamSource(1))
    assert PredictValue().predict(
        asked, fine, nothing, np.array([[0]]), StreamSource(2)
    ) == pytest.approx([2.0])
    wide = TABLE.columns["x"].model_copy(update={"upper": Fraction(2**51)})
    with pytest.raises(InvalidInput, match="coarsen"):
        PredictValue().event(
            asked, TABLE.model_copy(update={"columns": TABLE.columns | {"x": wide}})
        )
    keyed = TABLE.columns["x"].model_copy(update={"public_keys": ("a", "b")})
    with pytest.raises(InvalidInput, match="keys, not numbers"):
        PredictValue().event(
            asked, TABLE.model_copy(update={"columns": TABLE.columns | {"x": keyed}})
        )


# --- linear ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["huber", "logistic"])
@pytest.mark.parametrize("method", ["regularised", "sgd"])
def test_one_row_moves_a_linear_answer_by_no_more_than_the_noise_covers(
    method: str, loss: str
) -> None:
    """Retrained on every neighbour of small tables; in steps of the grid, which is what the noise
    is added to.
    """
    asked = line(loss=loss, method=method, size=6)
    g, steps = linear.answer_grid(asked, TABLE)

    def answer(rows: tuple[Any, ...], point: Any) -> float:
        learned = PredictLinear().learn(asked, TABLE, records(rows), StreamSource(5))
        return float(
            np.round((linear.unit_ball(TABLE, asked, np.array([[point]]).T) @ learned.w)[0] / g)
        )

    moved = largest_move(answer, tables(6, 3), ALTERNATIVES, POINTS)
    assert 0.05 * steps < moved <= steps
    one = PredictLinear().event(asked, TABLE)
    assert one == Repeated(DiscreteLaplace(Fraction(steps), steps), 10)


def test_rows_come_and_go_without_moving_more() -> None:
    """Regularised, add-remove: the size is a public number and not the number of rows."""
    asked = line(loss="logistic")

    def answer(rows: tuple[Any, ...], point: Any) -> float:
        learned = PredictLinear().learn(asked, TABLE, records(rows), StreamSource(5))
        return float((linear.unit_ball(TABLE, asked, np.array([[point]]).T) @ learned.w)[0])

    for rows in tables(8, 3):
        for end in range(8):
            for point in POINTS:
                assert abs(
                    answer(rows[:end], point) - answer(rows[: end + 1], point)
                ) <= linear.stability_rate(asked)


def test_the_paper_s_sgd_constant_is_caught() -> None:
    """The replaced row in the first place: twice R/sqrt(n) is attained, R/sqrt(n) is exceeded
    (erratum A9).
    """
    for n, move in ((100, 0.198), (1000, 0.0631823)):
        asked = line(method="sgd", size=n, radius="1")
        points = np.vstack([[[1.0, 0.0]], np.tile([0.0, 1.0], (n - 1, 1))])
        scores = []
        for target in (5.0, -5.0):
            targets = np.array([target] + [0.0] * (n - 1))
            scores.append(one_pass(points, targets, "huber", 1.0, n, ScriptedSource(range(n)))[0])
        moved = abs(scores[0] - scores[1])
        assert moved == pytest.approx(move, abs=5e-7)
        assert 1 / math.sqrt(n) < moved <= linear.stability_rate(asked)


def test_the_specification_s_regularised_numbers() -> None:
    """n = 400, R = 3, epsilon 1: lambda and gamma, and what 200 replaced rows move."""
    asked = line(size=400, radius="3", loss="logistic")
    assert linear.plan_strength(asked) == pytest.approx(0.0471404521, abs=5e-11)
    assert linear.stability_rate(asked) == pytest.approx(0.2121320344, abs=5e-11)
    points, targets = _sample(400, 5)
    lam = linear.plan_strength(asked)
    w, worst = minimise(points, targets, "logistic", lam, 400), 0.0
    for i in range(200):
        changed, other = points.copy(), targets.copy()
        changed[i] = -targets[i] * w / np.linalg.norm(w)  # the row that pulls most
        worst = max(
            worst, float(np.linalg.norm(minimise(changed, other, "logistic", lam, 400) - w))
        )
    assert 0.005 < worst <= 2.5 / (lam * 400)


def _sample(n: int, seed: int, d: int = 4) -> tuple[Any, Any]:
    words = StreamSource(seed).draw_words(n * d).astype(np.float64).reshape(n, d) / 2**64
    points = (2 * words - 1) / math.sqrt(d)
    return points, np.where(points[:, 0] + 0.3 * points[:, 1] > 0, 1.0, -1.0)


def _off(w: Any, points: Any, targets: Any, loss: Any, strength: float, size: int) -> float:
    """How far w is from the minimiser, at most, as a multiple of what is proved: by its gradient,
    in long doubles.
    """
    x, v = points.astype(np.longdouble), w.astype(np.longdouble)
    gradient = (
        x.T @ loss_slopes(loss, x @ v, targets.astype(np.longdouble)) / size + 2 * strength * v
    )
    return float(np.sqrt((gradient**2).sum()) / (2 * strength) / (1.5 / (2 * strength * size)))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_the_minimum_is_met_as_closely_as_is_proved(
    loss: Any, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hard rows (separable, opposed, one, none), both ways out: a small gradient, and the counted
    steps alone.
    """
    if not early:
        monkeypatch.setattr(stable_descent, "ENOUGH", 0.0)
    points, targets = _sample(500, 2)
    for strength in (1e-4, 0.01, 10.0):
        for size in (500, 10**5):
            assert stable_descent.exact_enough(loss, strength, size, 4)
            for x, y in (
                (points, targets),
                (points, -targets),
                (points[:1], targets[:1]),
                (points[:0], targets[:0]),
            ):
                assert _off(minimise(x, y, loss, strength, size), x, y, loss, strength, size) <= 1


def test_the_minimum_is_met_with_the_largest_rounding_that_a_plan_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients that are off by q/(4n) towards one side, at every step and with no early end, stay
    within the proof.
    """
    points, targets = _sample(500, 2)
    exact = stable_descent.sum_rows
    monkeypatch.setattr(stable_descent, "ENOUGH", 0.0)
    for loss in ("logistic", "huber"):
        strength, size = 0.001, 500
        true = minimise(points, targets, loss, strength, size)
        q = math.sqrt(2 * strength / (stable_descent.SMOOTHNESS[loss] + 2 * strength))
        for side in (np.eye(4)[0], -np.eye(4)[1], true / np.linalg.norm(true)):
            monkeypatch.setattr(
                stable_descent, "sum_rows", lambda x, f, side=side: exact(x, f) + side * q / 4
            )
            found = minimise(points, targets, loss, strength, size)
            assert np.linalg.norm(found - true) > 1e-5
            assert np.linalg.norm(found - true) <= 2 * 1.5 / (2 * strength * size)
            monkeypatch.setattr(stable_descent, "sum_rows", exact)


def test_too_few_steps_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above sees a solver that gives up: a few of the steps, and the default vector 0."""
    points, targets = _sample(500, 2)
    monkeypatch.setattr(stable_descent, "ENOUGH", 0.0)
    monkeypatch.setattr(stable_descent.math, "ceil", lambda steps: int(steps / 40))
    assert (
        _off(
            minimise(points, targets, "logistic", 1e-4, 500),
            points,
            targets,
            "logistic",
            1e-4,
            500,
        )
        > 1
    )
    assert _off(np.zeros(4), points, targets, "logistic", 1e-4, 500) > 1


def test_the_minimiser_is_scikit_learn_s() -> None:
    """Logistic, at the strength of Corollary 4.11."""
    from sklearn.linear_model import LogisticRegression

    points, targets = _sample(500, 2)
    lam = linear.plan_strength(line(size=500, radius="5", loss="logistic"))
    peer = LogisticRegression(C=1 / (2 * lam * 500), fit_intercept=False, tol=1e-10).fit(
        points, targets
    )
    found = minimise(points, targets, "logistic", lam, 500)
    assert np.linalg.norm(found - peer.coef_[0]) <= 1 / (lam * 500)


def test_more_rows_than_places() -> None:
    """As many as the size are taken, and one row more or other moves the answer no further than the
    noise covers.
    """
    for method in ("regularised", "sgd"):
        asked = line(method=method, size=4, radius="1")

        def answer(rows: tuple[Any, ...], point: Any, asked: LinearParams = asked) -> float:
            learned = PredictLinear().learn(asked, TABLE, records(rows), StreamSource(5))
            return float((linear.unit_ball(TABLE, asked, np.array([[point]]).T) @ learned.w)[0])

        assert largest_move(answer, tables(7, 3), ALTERNATIVES, POINTS) <= linear.stability_rate(
            asked
        )
        for rows in tables(7, 3):
            for end in range(7):
                assert abs(
                    answer(rows[:end], 3) - answer(rows[: end + 1], 3)
                ) <= linear.stability_rate(asked)


def test_rounding_has_room_in_every_noise() -> None:
    """One pass: its own allowance is in the noise. The minimum: a plan that rounding would spoil is
    refused, others not.
    """
    asked = line(method="sgd", size=10**7)
    g, steps = linear.answer_grid(asked, TABLE)
    assert g * steps >= linear.stability_rate(asked) + stable_descent.rounding_drift(2.0, 10**7, 2)
    assert stable_descent.rounding_drift(2.0, 10**7, 2) < 0.001 * linear.stability_rate(asked)
    for size in (1, 100, 10**4, 10**6, 10**8):
        for epsilon in ("0.01", "1", "100"):
            PredictLinear().event(line(size=size, epsilon=epsilon, radius="5"), TABLE)
    with pytest.raises(PlanRefused, match="raise strength"):
        PredictLinear().event(line(size=10**9, strength="0.000001"), TABLE)


def test_one_pass_is_the_paper_s_loop() -> None:
    """With as many rows as places: the eight lines of Theorem 4.12, on the order that the source
    drew.
    """
    points, targets = _sample(300, 7)
    order = np.argsort(uniform_integers(2**62, 300, StreamSource(4)), kind="stable")
    w, total, eta = np.zeros(4), np.zeros(4), 0.5 / math.sqrt(300)
    for i in order:
        total += w
        w = w - eta * np.clip(points[i] @ w - targets[i], -1, 1) * points[i]
        w = w * min(1.0, 0.5 / max(np.linalg.norm(w), 1e-300))
    assert one_pass(points, targets, "huber", 0.5, 300, StreamSource(4)) == pytest.approx(
        total / 300, abs=1e-12
    )
    assert not one_pass(points[:0], targets[:0], "huber", 0.5, 300, StreamSource(4)).any()
    for loss, peer in stable_descent.SLOPES.items():
        for score, target in ((0.3, 1.0), (-2.0, 1.0), (5.0, -1.0)):
            assert peer(score, target) == pytest.approx(
                loss_slopes(loss, np.array([score]), np.array([target]))[0]
            )


def test_places_are_a_uniform_set() -> None:
    """Every set of places has the same probability, few or many of them."""
    for number, size in ((0, 3), (1, 3), (2, 3), (3, 3), (2, 5)):
        law = (
            enumerate_outputs(
                lambda source: tuple(sample_places(number, size, source).tolist()), tail=0.0
            )
            if number < 2
            else None
        )
        if law is not None:
            assert (
                len(law) == math.comb(size, number)
                and len({round(p, 12) for p in law.values()}) == 1
            )
        drawn = [tuple(sample_places(number, size, StreamSource(i)).tolist()) for i in range(600)]
        assert len(set(drawn)) == math.comb(size, number) and all(len(d) == number for d in drawn)
        least = min(drawn.count(one) for one in set(drawn))
        assert least > 0.6 * 600 / math.comb(size, number)


def test_answers_are_in_the_label_s_unit() -> None:
    """Huber: within the bounds; logistic: probabilities; both near the truth where epsilon is
    generous.
    """
    rows = records([(4 * (i % 2), i % 2) for i in range(400)])
    for loss in ("huber", "logistic"):
        asked = line(loss=loss, size=400, epsilon="1000", strength="0.001")
        learned = PredictLinear().learn(asked, TABLE, rows, StreamSource(1))
        low, high = PredictLinear().predict(
            asked, TABLE, learned, np.array([[0], [4]]), StreamSource(2)
        )
        assert 0 <= low < 0.25 and 0.75 < high <= 1
        assert repr(learned) == "Weights()"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "logistic", "label": "x", "features": ["y"]}, "two labels"),
        ({"method": "sgd", "strength": "0.1"}, "no strength"),
        ({"method": "sgd", "radius": "100"}, "overshoot"),
        ({"loss": "hinge"}, "loss"),
        ({"size": 0}, "size"),
    ],
)
def test_a_wrong_linear_plan_is_refused(changes: dict[str, Any], said: str) -> None:
    """Before anything is charged; a loss that is not smooth has no one-pass bound and is not
    offered.
    """
    with pytest.raises((InvalidInput, ValueError), match=said):
        PredictLinear().event(line(**changes), TABLE)


def test_a_number_s_label_must_not_have_keys() -> None:
    """Huber on a column with three keys is refused with the reason."""
    keyed = TABLE.columns["y"].model_copy(
        update={"public_keys": ("a", "b", "c"), "lower": None, "upper": None}
    )
    with pytest.raises(InvalidInput, match="keys, not numbers"):
        PredictLinear().event(
            line(), TABLE.model_copy(update={"columns": TABLE.columns | {"y": keyed}})
        )
