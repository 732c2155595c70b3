"""Planner, bounds and meter: the specification's tables to the digit, and the inequalities they
rest on.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calculator_rows import calculator_rows
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
import hard_points  # noqa: E402
import prediction_tables as golden  # noqa: E402
from dpflow_private_prediction.theory import prediction_bounds, prediction_sizes  # noqa: E402

from dpflow.cli import app  # noqa: E402
from dpflow.errors import InvalidAmount, InvalidDeclaration, InvalidInput  # noqa: E402
from dpflow.testing.harness import StreamSource  # noqa: E402

ACCOUNTS = prediction_sizes.list_accounts("bounded-range")


def agrees(text: str, value: float) -> bool:
    """Whether a number is what is printed: to all printed digits, whole numbers without an exponent
    exactly.
    """
    if value == 0 or float(text) == 0:
        return abs(value) < 1e-300 and float(text) == 0
    digits = len(text.lower().split("e")[0].replace(".", "").lstrip("0"))
    if "." not in text and "e" not in text.lower():
        return round(value) == int(text)
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return abs(float(text) - value) <= 0.5000001 * 10**-places


def cells(text: str) -> Iterator[list[str]]:
    """The lines of a table, split."""
    return (line.split() for line in text.strip().splitlines())


def test_table_6_1() -> None:
    """The epsilon of one prediction, four accounts."""
    table = calculator_rows("prediction_budget", mechanism="bounded-range")
    for row, line in zip(table, cells(golden.BUDGET), strict=True):
        found = [row["epsilon"], row["predictions"], *(row[a] for a in ACCOUNTS)]
        assert all(agrees(text, value) for text, value in zip(line, found, strict=True)), line


def test_table_6_2() -> None:
    """Shards and rows of a vote, one prediction."""
    found = calculator_rows("vote_sizes", predictions=[1])
    basic = [row for row in found if row["account"] == "basic"]
    for row, line in zip(basic, cells(golden.VOTE), strict=True):
        r, shard, rows = row["shards"], row["rows a shard"], row["rows"]
        closed, unit = row["rows, closed form"], row["rows, constant 1"]
        values = [
            row["epsilon"],
            row["d"],
            r,
            shard,
            rows,
            closed / r,
            closed,
            unit / r,
            unit,
            row["no method below"],
        ]
        assert all(agrees(text, value) for text, value in zip(line, values, strict=True)), line


@pytest.mark.parametrize(
    ("name", "table", "head", "by"),
    [
        ("vote_sizes", golden.VOTE_SEQUENCES, ["each", "shards"], ["rows"]),
        (
            "average_sizes",
            golden.AVERAGE,
            ["each", "shards", "beta / shards"],
            ["rows", "rows, constant 1"],
        ),
        ("walk_sizes", golden.WALK, ["each", "clip", "e^each"], ["rows"]),
    ],
)
def test_tables_6_3_to_6_5(name: str, table: str, head: list[str], by: list[str]) -> None:
    """Votes, averages and walks for sequences of predictions, by account and dimension."""
    found: dict[tuple[float, int, str], list[dict[str, Any]]] = {}
    for row in calculator_rows(name):
        found.setdefault((row["epsilon"], row["predictions"], row["account"]), []).append(row)
    for line in cells(table):
        rows = found[float(line[0]), int(line[1]), line[2].replace("-", " ")]
        values = [rows[0][column] for column in head] + [
            row[column] for column in by for row in rows
        ]
        assert all(agrees(text, value) for text, value in zip(line[3:], values, strict=True)), (
            line,
            values,
        )


def test_table_6_6() -> None:
    """Rows of linear models, by method, with their noise."""
    found = {
        (row["epsilon"], row["predictions"], row["account"]): row
        for row in calculator_rows("linear_sizes")
    }
    columns = [
        "each",
        "regularised",
        "its strength",
        "its noise",
        "sgd as printed",
        "sgd",
        "sgd's noise",
        "strongly convex",
    ]
    for line in cells(golden.LINEAR):
        row = found[float(line[0]), int(line[1]), line[2]]
        assert all(agrees(text, row[c]) for text, c in zip(line[3:], columns, strict=True)), (
            line,
            row,
        )


def test_table_6_7() -> None:
    """Noise and bounds of linear models at a size."""
    columns = [
        "size",
        "each",
        "strength",
        "regularised noise",
        "regularised excess",
        "sgd noise",
        "sgd noise, printed",
    ]
    columns += ["sgd excess", "sgd excess, printed", "n^(-1/4)"]
    for row, line in zip(calculator_rows("linear_noise"), cells(golden.NOISE), strict=True):
        assert all(agrees(text, row[c]) for text, c in zip(line, columns, strict=True)), line


def test_table_6_8() -> None:
    """How often a vote says the minority's label."""
    found, shards = calculator_rows("vote_noise"), 8
    lines = list(cells(golden.FLIPS))
    for place in range(4):
        part = found[place * shards : (place + 1) * shards]
        unanimous, split = lines[2 * place][1:], lines[2 * place + 1]
        for row, first, second in zip(part, unanimous, split, strict=True):
            assert agrees(first, row["unanimous"]) and agrees(second, row["2:1"]), row


def test_table_6_9() -> None:
    """Coefficients of the lower bound, and the example under it."""
    for row, line in zip(calculator_rows("prediction_floor"), cells(golden.FLOOR), strict=True):
        values = list(row.values())[:4]
        assert all(agrees(text, value) for text, value in zip(line, values, strict=True)), line
    (example,) = calculator_rows("prediction_floor", each=[0.1])
    assert math.ceil(example["rows, paper"]) == 313 and round(example["rows, sharper"]) == 1745


def test_agnostic_and_high_probability_walks() -> None:
    """29 520, 118 080 and about 10^6 rows at alpha 0.1; epsilon 1/(16 ln 40) for failure 0.05 in
    all.
    """
    found = [
        row
        for row in calculator_rows("walk_sizes", epsilon=[1], predictions=[1], mode="agnostic")
        if row["account"] == "basic"
    ]
    assert [row["rows"] for row in found] == [29520, 118080, 1003680]
    assert {(row["each"], row["clip"]) for row in found} == {(0.05, 164)}
    (high,) = calculator_rows(
        "walk_sizes", epsilon=[1], predictions=[1], mode="high-probability", beta=0.025, changes=[1]
    )[:1]
    assert high["each"] == pytest.approx(0.0169, abs=5e-5)


# --- properties ---------------------------------------------------------------------------------------------------------


def test_accounts_invert() -> None:
    """The total of what each may cost is the total; what a grant buys fits, one more does not."""
    for account in ACCOUNTS:
        for m in (1, 7, 10**6):
            assert prediction_sizes.total_epsilon(
                prediction_sizes.prediction_epsilon(0.7, 1e-6, m, account), 1e-6, m, account
            ) == pytest.approx(0.7, rel=1e-9)
        m = prediction_sizes.prediction_count(1, 1e-6, 0.003, account)
        assert (
            prediction_sizes.total_epsilon(0.003, 1e-6, m, account)
            <= 1
            < prediction_sizes.total_epsilon(0.003, 1e-6, m + 1, account)
        )
        assert prediction_sizes.prediction_count(1, 1e-6, 5, account) == 0
    assert [
        row["zcdp of a vote"]
        for row in calculator_rows("prediction_count", each=[0.01], mechanism="bounded-range")
    ] == [1397]
    # Ten of 0.1 are 1, however floats write a tenth.
    assert calculator_rows("prediction_count", each=["0.1"])[0]["basic"] == 10
    assert (
        "zcdp of a vote"
        not in calculator_rows("prediction_count")[0] | calculator_rows("prediction_budget")[0]
    )


def test_the_planner_is_monotone_and_above_the_lower_bound() -> None:
    """Fewer rows for more epsilon, error or failure; more for a larger d; never below what no
    method can beat.
    """

    def rows(alpha: float = 0.1, beta: float = 0.05, e: float = 0.5, d: int = 5) -> int:
        r, shard = prediction_sizes.vote_rows(
            alpha, beta, e, lambda a, b: prediction_sizes.sauer_rows(a, b, d)
        )
        return r * shard

    base = rows()
    assert (
        rows(alpha=0.2) < base and rows(beta=0.2) < base and rows(e=1) < base and rows(d=10) > base
    )
    assert 0.8 < rows(e=0.05) * 0.05 / (base * 0.5) < 1.5
    assert all(
        rows(e=e, d=d) > prediction_sizes.least_rows(d, 0.1, e) for e in (0.1, 1) for d in (1, 10)
    )
    dealt = prediction_sizes.vote_dealt(
        0.1, 0.05, 0.5, lambda a, b: prediction_sizes.sauer_rows(a, b, 5)
    )
    (inverse,) = calculator_rows("vote_sizes", epsilon=[0.5], predictions=[1], d=[5], rows=dealt)[
        :1
    ]
    assert inverse["alpha of the rows"] == pytest.approx(0.1, abs=0.002)
    assert (
        prediction_sizes.vote_error(
            10, 0.05, 0.5, lambda a, b: prediction_sizes.sauer_rows(a, b, 5)
        )
        is None
    )
    assert (
        prediction_sizes.vote_shards(0.1, 1) == 23
        and prediction_sizes.vote_shards(0.05, 0.5) == 53
        and prediction_sizes.vote_shards(0.1, 1, 10) == 36
    )
    assert (
        prediction_sizes.threshold_rows(0.025, 0.05 / 222) == 364
        and prediction_sizes.threshold_rows(0.025, 0.05 / 23) == 273
    )
    assert prediction_sizes.finite_rows(0.1, 0.05, math.log(1000)) == 100
    assert [prediction_sizes.average_rows(0.1, 0.05, e, 1)[0] for e in (1, 0.1)] == [20, 200]


@pytest.mark.parametrize("name", ["vote_sizes", "average_sizes"])
def test_rows_are_enough_where_units_draw_their_shards(name: str) -> None:
    """With the rows of the last column every shard has what its learner needs at half of beta, but for
    the other half, by the exact binomial law; with shards of equal size in mind next to never.
    """
    from scipy.stats import binom

    alpha, beta = 0.1, 0.05
    for row in calculator_rows(name, predictions=[1], d=[1, 10]):
        r, e, d = row["shards"], row["each"], row["d"]
        if name == "vote_sizes":
            needed = prediction_sizes.sauer_rows(alpha / 4, beta / (2 * r), d)
        else:
            needed = prediction_sizes.average_rows(alpha, beta / 2, e, d)[1]
        assert r * binom.cdf(needed - 1, round(row["rows, dealt"]), 1 / r) <= beta / 2
        equal = binom.sf(row["rows a shard"] - 1, round(row["rows"]), 1 / r)
        assert r < 5 or equal**r < 0.05


def test_groups_transfer_and_certificates() -> None:
    """Lemmas 6.3, 6.4 and 6.5 at the specification's numbers."""
    assert prediction_bounds.transfer_bound(0.1, 0.01, 0.5, 2) == pytest.approx(
        math.exp(0.1) * 0.5 + 0.02
    )
    assert prediction_bounds.tail_factor(0.02086, 0.05) == pytest.approx(1.6487, abs=5e-5)
    for epsilon in (0.001, 0.3, 4):
        assert prediction_bounds.tail_factor(epsilon, 0.05) >= math.exp(
            2 * math.sqrt(epsilon * math.log(20))
        ) * (1 - 1e-12)
    assert prediction_bounds.trebles_error(
        0.02, 0.1, 0.05, 42
    ) and not prediction_bounds.trebles_error(0.021, 0.1, 0.05, 42)
    assert not prediction_bounds.trebles_error(0.02, 0.1, 0.05, 41)
    found = calculator_rows(
        "prediction_certificate", epsilon=0.02, alpha=0.1, rows=100, training_loss=0.1
    )
    assert [row["value"] for row in found][0] == pytest.approx(0.1 * math.exp(0.02), rel=1e-5)
    assert found[-1]["value"] == pytest.approx(0.3)


def test_predicting_or_learning() -> None:
    """Thresholds: one prediction needs no domain, a model of the reals is impossible; the crossover
    is stated.
    """
    found = {
        row["task"]: row for row in calculator_rows("predicting_or_learning", log2_domain=math.inf)
    }
    assert found["thresholds"]["rows, a model"] is None
    assert found["thresholds"]["rows, one prediction"] == pytest.approx(
        math.log(10) / 0.1, rel=1e-5
    )
    assert found["convex Lipschitz, dimension d"]["rows, a model"] == pytest.approx(1000)
    basic, advanced = prediction_bounds.crossover(0.1, 1, 100, 1e-6)
    assert basic == pytest.approx(100 / math.log(10) ** 2) and advanced == pytest.approx(
        basic**2 / math.log(1e6)
    )


def test_the_generalisation_inequality_holds_and_a_memoriser_breaks_it() -> None:
    """On coin-toss labels a walk's training error stays above e^-epsilon / 2; one nearest
    neighbour's is 0.
    """
    from dpflow_private_prediction.mechanisms.walk import clipped_walk

    rng = np.random.default_rng(4)
    for epsilon, seen in ((0.1, 0.491), (1.0, 0.429), (4.0, 0.306)):
        level, errors = math.ceil(2 * math.log(20) / epsilon), []
        for _ in range(20):
            y = rng.integers(0, 2, 2000)
            p = 1 / (1 + np.exp(-epsilon * clipped_walk(2 * y - 1, level) / 2))
            errors.append(float(np.where(y == 1, 1 - p, p).mean()))
        assert (
            np.mean(errors) == pytest.approx(seen, abs=0.012)
            and np.mean(errors) >= math.exp(-epsilon) / 2
        )
    from sklearn.neighbors import KNeighborsClassifier

    x, y = rng.random((200, 3)), rng.integers(0, 2, 200)
    memorised = float((KNeighborsClassifier(1).fit(x, y).predict(x) != y).mean())
    assert memorised < math.exp(-4.0) / 2


def test_the_meter_passes_private_predictions_and_flags_a_memoriser() -> None:
    """d = 11, alpha 0.1, 200 rows: the floor's values, the counting baseline, a vote, an average,
    and the majority label.
    """
    assert [prediction_sizes.error_floor(200, 11, 0.1, e) for e in (0.1, 1)] == pytest.approx(
        [0.3131, 0.00534], abs=5e-5
    )
    source = StreamSource(31)

    def read(predictor: Any, epsilon: float, instances: int = 400) -> hard_points.MeterReading:
        return hard_points.measure_error(
            predictor, 200, 11, Fraction(1, 10), epsilon, source, instances=instances
        )

    for epsilon, error in ((0.1, 0.402), (1.0, 0.0370)):
        reading = read(hard_points.count_predictor(11, epsilon), epsilon)
        assert reading.possible and reading.error == pytest.approx(error, abs=0.006)
        assert read(shards(3, epsilon, vote=True), epsilon, 60).possible
        assert read(shards(20, epsilon, vote=False), epsilon, 60).possible
    assert not read(
        hard_points.count_predictor(11, 50), 1.0
    ).possible  # the majority label of each point
    assert not read(
        hard_points.count_predictor(11, 1), 0.1
    ).possible  # ten times the epsilon it says
    with pytest.raises(InvalidInput, match="1/4"):
        hard_points.draw_instance(10, 11, Fraction(1, 3), source)


def shards(r: int, epsilon: float, vote: bool) -> Any:
    """Exact probabilities of a soft majority (or of a noisy average with Laplace noise) of
    memorisers on r shards.
    """

    def predict(points: Any, labels: Any) -> Any:
        shard = (StreamSource(len(points)).draw_words(len(points)) % np.uint64(r)).astype(np.int64)
        ones = np.zeros(11)
        for part in range(r):
            mine = shard == part
            ones += np.bincount(points[mine], weights=2.0 * labels[mine] - 1, minlength=11) > 0
        if vote:
            return 1 / (1 + np.exp(-epsilon * (2 * ones - r) / 2))
        z = np.arange(-400, 401)
        law = np.exp(-epsilon * np.abs(z))
        return (np.clip(ones[:, None] + z, 0, r) / r) @ (law / law.sum())

    return predict


def test_the_command_line_plans(tmp_path: Path) -> None:
    """dpflow calculate: a table as JSON, a picture, a refusal that names the field."""
    runner = CliRunner()
    made = runner.invoke(
        app, ["calculate", "walk_sizes", "epsilon=[1]", "predictions=[1]", "changes=[1]", "--json"]
    )
    assert json.loads(made.stdout)["rows"][0][-1] == 360
    picture = tmp_path / "floor.svg"
    assert (
        runner.invoke(app, ["calculate", "prediction_floor", "--plot", str(picture)]).exit_code == 0
    )
    assert picture.stat().st_size > 1000
    for name, given in (
        ("vote_sizes", {"alpha": 2}),
        ("prediction_floor", {"alpha": 0.3}),
        ("walk_sizes", {"epsilon": ["nan"]}),
    ):
        with pytest.raises((InvalidDeclaration, InvalidAmount), match=next(iter(given))):
            calculator_rows(name, **given)


def test_a_certificate_counts_delta_and_says_its_premise() -> None:
    """The floors on the training error of coin-toss labels at epsilon 1 and delta .01: without
    delta the floor was .18394, which does not hold.
    """
    rows = calculator_rows("prediction_certificate", epsilon=1, delta=0.01)
    floors = {row["remark"]: row["value"] for row in rows if "coin-toss" in row["statement"]}
    assert floors["a privacy test; a row is added or replaced"] == pytest.approx(0.18026, abs=1e-5)
    replaced = floors["the same; a row's binary label is replaced by the other"]
    assert replaced == pytest.approx(0.99 / (1 + math.e))
