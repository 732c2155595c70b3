"""The reusable holdout against the analysts it was made for: Freedman's, the Science paper's, sign
aggregation, boosting.

All gates here are unproven: their groups are far fewer than any proof asks for (`dpflow calculate samples`),
which is the regime in which people use holdouts. What is asserted is what happens, not what is
proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import sqrt

import numpy as np
from dpflow_stable_median.building_blocks.quantile_intervals import lower_median
from dpflow_stable_median.theory.sign_attack import mean_shift, median_shift
from numpy.typing import NDArray

from dpflow.core.toolbox.quantiles import draw_quantile, rate_for
from dpflow.core.toolbox.ranges import LinearRange
from dpflow.testing.harness import StreamSource
from experiments.gate import Gate
from experiments.report import Bound, Experiment, Found, bound

Signs = NDArray[np.int8]
Floats = NDArray[np.float64]
PERCENT = {"kind": "grid", "lower": 0, "upper": 1, "step": "0.01"}


def per_group(values: NDArray[np.generic], groups: int) -> Floats:
    """Means of consecutive rows, one per group; further axes stay."""
    return np.asarray(values.reshape(groups, -1, *values.shape[1:]).mean(axis=1), dtype=np.float64)


# --- Freedman ---------------------------------------------------------------------------------------------------------

ROWS, FEATURES, GROUPS = 20_000, 2_000, 200
PICKS = (10, 50, 100, 200, 500)


def _right(
    agree: Signs, picked: NDArray[np.int64], signs: Floats, coins: Signs
) -> NDArray[np.bool_]:
    """Whether each row's label is that of the signed majority; ``agree`` is feature times label,
    ties are tossed.
    """
    votes = agree[:, picked].astype(np.int16) @ signs.astype(np.int16)
    return (votes > 0) | ((votes == 0) & (coins > 0))


def _freedman_run(seed: int) -> Iterator[tuple[int, float, float, float, float, str, float | None]]:
    """(K, naive holdout, naive fresh, protected claim, protected fresh, verdict, corrected value)."""
    rng = np.random.default_rng(seed)
    train, holdout, fresh = (
        rng.integers(0, 2, (ROWS, FEATURES), dtype=np.int8) * np.int8(2) - np.int8(1)
        for _ in range(3)
    )
    coins = [rng.integers(0, 2, ROWS, dtype=np.int8) for _ in range(3)]
    on_train, on_holdout = train.mean(axis=0), holdout.mean(axis=0)
    level = 1 / np.sqrt(ROWS)
    both = (on_train * on_holdout > 0) & (np.abs(on_train) > level) & (np.abs(on_holdout) > level)
    kept = np.flatnonzero(both)
    naive = kept[np.argsort(-np.abs(on_train[kept]))]
    gate = Gate(
        seed, epsilon=20, groups=GROUPS, queries=2005, failures=10, side="both", correct=PERCENT
    )  # half of each failure's epsilon of 2 is the verdict's: noise of scale 2 and 4 groups
    groups = per_group(holdout, GROUPS)
    said = [gate.ask(float(claim), groups[:, j])["verdict"] for j, claim in enumerate(on_train)]
    usable = np.array([word == "yes" for word in said])
    protected = np.argsort(-np.abs(on_train) * usable)
    for k in PICKS:
        chosen, mine = naive[:k], protected[:k]
        seen, signs = (
            _right(holdout, chosen, np.sign(on_train[chosen]), coins[1]),
            np.sign(on_train[mine]),
        )
        later = _right(fresh, chosen, np.sign(on_train[chosen]), coins[2]).mean()
        claim = _right(train, mine, signs, coins[0]).mean()
        answer = gate.ask(float(claim), per_group(_right(holdout, mine, signs, coins[1]), GROUPS))
        real = _right(fresh, mine, signs, coins[2]).mean()
        yield (
            k,
            float(seen.mean()),
            float(later),
            float(claim),
            float(real),
            answer["verdict"],
            answer.get("corrected"),
        )


def freedman(runs: int) -> Found:
    """Features that predict nothing; a naive filter on train and holdout; the same with every look
    through the gate.
    """
    found = {k: [] for k in PICKS}
    for seed in range(runs):
        for k, *rest in _freedman_run(seed):
            found[k].append(rest)
    rows, bounds = [], []
    for k, results in found.items():
        naive, fresh, claim, real = (float(np.mean([r[i] for r in results])) for i in range(4))
        noes = sum(r[4] == "no" for r in results)
        values = [r[5] for r in results if r[5] is not None]
        corrected = float(np.mean(values)) if values else None
        rows.append(
            (
                k,
                naive,
                fresh,
                claim,
                real,
                f"{noes} of {len(results)}",
                "-" if corrected is None else corrected,
            )
        )
        if k == 500:
            bounds.append(
                bound(
                    "naive holdout overstates by at least 0.04 at K = 500",
                    naive - fresh,
                    least=0.04,
                )
            )
        if k >= 200:
            bounds.append(
                bound(
                    f"the gate says no in 9 of 10 runs at K = {k}", noes / len(results), least=0.9
                )
            )
            bounds.append(
                bound(
                    f"corrected value within 0.02 of 1/2 at K = {k}",
                    (corrected or 1) - 0.5,
                    -0.02,
                    0.02,
                )
            )
    return Found(
        (
            "K",
            "naive: holdout",
            "naive: fresh",
            "claim to the gate",
            "its fresh value",
            "no",
            "corrected",
        ),
        tuple(rows),
        {
            "naive holdout": [(r[0], r[1]) for r in rows],
            "naive on fresh data": [(r[0], r[2]) for r in rows],
            "claim to the gate": [(r[0], r[3]) for r in rows],
            "corrected by the gate": [(r[0], r[6]) for r in rows if r[6] != "-"],
        },
        tuple(bounds),
    )


# --- Science 2015 -----------------------------------------------------------------------------------------------------

SAMPLE, ATTRIBUTES, CHUNK, BIAS, REAL = 10_000, 10_000, 1_000, 0.06, 20
SIZES = (10, 50, 100, 200, 300, 400, 500)
COUNT = 200  # groups of 50 rows


def _attributes(seed: int, chunk: int, signal: bool) -> NDArray[np.float32]:
    """Attributes times label of 10,000 rows, made again whenever they are needed: a whole table is
    400 MB.
    """
    rng = np.random.default_rng([seed, chunk])
    made = rng.standard_normal((SAMPLE, CHUNK), dtype=np.float32)
    if signal and chunk == 0:
        made[:, :REAL] += np.float32(BIAS)
    return made


def _columns(seed: int, wanted: NDArray[np.int64], signal: bool) -> NDArray[np.float32]:
    """The wanted attributes of all rows, in their order."""
    found = np.empty((SAMPLE, len(wanted)), np.float32)
    for chunk in np.unique(wanted // CHUNK):
        here = np.flatnonzero(wanted // CHUNK == chunk)
        found[:, here] = _attributes(seed, int(chunk), signal)[:, wanted[here] % CHUNK]
    return found


def _science_run(seed: int, signal: bool) -> Iterator[tuple[int, float, float, float, float, str]]:
    """(k, naive holdout, naive fresh, value reported through the gate, its fresh value, verdict)."""
    train, holdout, fresh = (3 * seed + i for i in range(3))
    gate = Gate(
        seed, epsilon=80, groups=COUNT, queries=20_000, failures=10, side="both", correct=PERCENT
    )
    level, on_train, on_holdout, allowed = 1 / np.sqrt(SAMPLE), [], [], []
    for chunk in range(ATTRIBUTES // CHUNK):
        first, second = (
            _attributes(train, chunk, signal).mean(axis=0),
            _attributes(holdout, chunk, signal),
        )
        groups = per_group(second, COUNT)
        for j, claim in enumerate(first):
            strong = abs(claim) > level  # others are never used, so nobody asks about them
            allowed.append(strong and gate.ask(float(claim), groups[:, j])["verdict"] == "yes")
        on_train.append(first)
        on_holdout.append(second.mean(axis=0))
    a, b = np.concatenate(on_train), np.concatenate(on_holdout)
    naive = np.flatnonzero((a * b > 0) & (np.abs(a) > level) & (np.abs(b) > level))
    naive = naive[np.argsort(-np.abs(a[naive]))][: SIZES[-1]]
    protected = np.argsort(-np.abs(a) * np.array(allowed))[: SIZES[-1]]
    sheets = {
        who: [_columns(s, picked, signal) * np.sign(a[picked]) for s in (train, holdout, fresh)]
        for who, picked in (("naive", naive), ("gate", protected))
    }
    for k in SIZES:
        right = {who: [x[:, :k].sum(axis=1) > 0 for x in three] for who, three in sheets.items()}
        claim = float(right["gate"][0].mean())
        answer = gate.ask(claim, per_group(right["gate"][1], COUNT))
        value = answer.get("corrected", claim)
        yield (
            k,
            float(right["naive"][1].mean()),
            float(right["naive"][2].mean()),
            float(value),
            float(right["gate"][2].mean()),
            str(answer["verdict"]),
        )


def _science(runs: int, signal: bool) -> Found:
    found = {k: [] for k in SIZES}
    for seed in range(runs):
        for k, *rest in _science_run(seed, signal):
            found[k].append(rest)
    rows = []
    for k, results in found.items():
        means = [float(np.mean([r[i] for r in results])) for i in range(4)]
        # Half a 95 % interval of the mean over seeds.
        off = 1.96 * float(np.std([r[2] for r in results], ddof=len(results) > 1))
        off /= len(results) ** 0.5
        passed = [r[2] - r[3] for r in results if r[4] == "yes"]
        refused = f"{len(results) - len(passed)} of {len(results)}"
        rows.append((k, *means, off, refused, max(passed, default="-")))
    last = rows[-1]
    bounds = [
        bound(
            "value through the gate within 0.02 of fresh data at k = 500",
            last[3] - last[4],
            -0.02,
            0.02,
        )
    ]
    if not signal:
        bounds.append(
            bound(
                "naive holdout overstates by at least 0.10 at k = 500",
                last[1] - last[2],
                least=0.10,
            )
        )
    return Found(
        (
            *("k", "naive: holdout", "naive: fresh", "through the gate", "its fresh value", "+-"),
            *("no", "most overfit that passed"),
        ),
        tuple(rows),
        {
            "naive holdout": [(r[0], r[1]) for r in rows],
            "naive on fresh data": [(r[0], r[2]) for r in rows],
            "through the gate": [(r[0], r[3]) for r in rows],
            "gate's classifier on fresh data": [(r[0], r[4]) for r in rows],
        },
        tuple(bounds),
    )


def without_signal(runs: int) -> Found:
    """No attribute predicts the label."""
    return _science(runs, False)


def with_signal(runs: int) -> Found:
    """Twenty attributes lean a little towards the label."""
    return _science(runs, True)


# --- sign aggregation against medians ---------------------------------------------------------------------------------

M, K = 1_000, 4_000
EACH = (Fraction(3, 50), Fraction(3, 100), Fraction(1, 50))
SPLIT = 49  # fresh groups for a query: 20 queries, then nothing is left
SPAN = LinearRange(lower=Fraction(-5), upper=Fraction(5), step=Fraction(1, 1000))
QUARTILE = 0.6744897501960817


def _medians(values: Floats, each: Fraction, source: StreamSource) -> Floats:
    """A private median of every column."""
    rate, half = rate_for(each, Fraction(1, 2), 1), Fraction(1, 2)
    keys = [SPAN.nearest_keys(column) for column in np.ascontiguousarray(values.T)]
    return np.array(
        [
            SPAN.key_value(draw_quantile(k, SPAN.first_key, SPAN.last_key, half, rate, source))
            for k in keys
        ]
    )


def _sum_by_sign(values: Floats, answers: Floats) -> Floats:
    """The final query per group: the coordinates (columns) added up with the signs of their answers,
    scaled to variance 1.
    """
    signs = np.where(answers >= 0, 1.0, -1.0)
    added: Floats = values @ signs / sqrt(values.shape[1])
    return added


def _naive_medians(values: Floats) -> Floats:
    """Exact lower medians of every column: what reusing the data says."""
    middle = (len(values) - 1) // 2
    return np.asarray(np.partition(values, middle, axis=0)[middle], dtype=np.float64)


def _split_answers(values: Floats, groups: int) -> Floats:
    """Sample splitting: each query is answered by the exact median of ``groups`` of its own, as far as
    they last.
    """
    served = min(values.shape[1], len(values) // groups)
    return np.array([lower_median(values[j * groups : (j + 1) * groups, j]) for j in range(served)])


def sign_aggregation(runs: int) -> Found:
    """Normal coordinates; every query's answer gives one sign, and the last query adds all
    coordinates up with them.
    """
    shifts: dict[str, list[float]] = {"naive median": []} | {
        f"epsilon {float(e):g}": [] for e in EACH
    }
    shifts[f"splitting, {SPLIT} groups a query"] = []
    for seed in range(runs):
        values, source = np.random.default_rng(seed).standard_normal((M, K)), StreamSource(seed)
        shifts["naive median"].append(
            float(_naive_medians(_sum_by_sign(values, _naive_medians(values))[:, None])[0])
        )
        for each in EACH:
            final = _sum_by_sign(values, _medians(values, each, source))
            shifts[f"epsilon {float(each):g}"].append(
                float(_medians(final[:, None], each, source)[0])
            )
        said = _split_answers(values, SPLIT)
        final = _sum_by_sign(
            values[-SPLIT:, : len(said) - 1], said[:-1]
        )  # asked of groups of its own
        shifts[f"splitting, {SPLIT} groups a query"].append(
            float(_naive_medians(final[:, None])[0])
        )
    rows, bounds = [], []
    predictions = [median_shift(K, M), *(median_shift(K, M, float(e)) for e in EACH), 0.0]
    for (name, found), predicted in zip(shifts.items(), predictions):
        inside = sum(abs(x) < QUARTILE for x in found)
        rows.append(
            (
                name,
                float(np.mean(found)),
                predicted,
                float(np.std(found)),
                f"{inside} of {len(found)}",
            )
        )
        if name == "naive median":
            bounds.append(
                bound(
                    "naive shift within 0.08 of the prediction",
                    rows[-1][1] - predicted,
                    -0.08,
                    0.08,
                )
            )
            bounds.append(
                Bound("naive answers never lie between the quartiles", f"{inside} do", inside == 0)
            )
        elif name == "epsilon 0.03" or name.startswith("splitting"):
            share = inside / len(found)
            bounds.append(bound(f"{name}: between the quartiles in 8 of 10 runs", share, least=0.8))
    measured = [(x, shift) for (_, shift, *_), x in zip(rows[1:4], (0.06, 0.03, 0.02))]
    span = np.geomspace(0.005, 0.3, 40)
    return Found(
        ("answers", "shift in sd", "predicted", "sd over runs", "between the quartiles"),
        tuple(rows),
        {
            "stable median": measured,
            "predicted": [(float(e), median_shift(K, M, float(e))) for e in span],
            "naive median": [(0.005, rows[0][1]), (0.3, rows[0][1])],
            "quartile": [(0.005, QUARTILE), (0.3, QUARTILE)],
        },
        tuple(bounds),
    )


# --- the leaderboard --------------------------------------------------------------------------------------------------

LABELS, SUBMISSIONS = 4_000, 1_000
STEP = 0.01  # of the Ladder: a score is shown if it beats the best one by this, rounded to it


def _board(right: Signs) -> Floats:
    return right.mean(axis=0)


def _boosted(right: Signs, signs: Floats) -> NDArray[np.bool_]:
    """Rows on which the majority vote of the submissions with signs +1, and the negations of the
    others, is right.
    """
    votes = (2 * right.astype(np.int16) - 1) @ signs.astype(np.int16)
    return votes > 0


def leaderboard(runs: int) -> Found:
    """Random submissions; those above one half vote for, the others against. On a board of exact
    scores that wins.
    """
    found: dict[str, list[float]] = {"exact scores": [], "Ladder": [], "gate: corrected": []}
    noes = 0
    for seed in range(runs):
        right = np.random.default_rng(seed).integers(0, 2, (LABELS, SUBMISSIONS), dtype=np.int8)
        scores = _board(right)
        exact = _boosted(right, np.where(scores > 0.5, 1.0, -1.0))
        found["exact scores"].append(float(exact.mean()))
        best, shown = 0.0, []
        for score in (
            scores
        ):  # the Ladder shows the best score so far, and a new one only if it is clearly better
            better = score > best + STEP
            best = round(score / STEP) * STEP if better else best
            shown.append(1.0 if better else -1.0)
        found["Ladder"].append(float(_boosted(right, np.array(shown)).mean()))
        gate = Gate(seed, epsilon=20, groups=GROUPS, queries=1001, failures=10, correct=PERCENT)
        groups = per_group(right, GROUPS)
        signs = []
        for j in range(
            SUBMISSIONS
        ):  # claims at the edge tell most; one failure is kept for the winner
            verdict = gate.ask(0.6, groups[:, j])
            signs.append(1.0 if verdict["verdict"] == "yes" else -1.0)
            if verdict["failures_left"] == 1:
                break
        final = _boosted(right[:, : len(signs)], np.array(signs))
        answer = gate.ask(mean_shift(SUBMISSIONS, LABELS), per_group(final, GROUPS))
        noes += answer["verdict"] == "no"
        found["gate: corrected"].append(float(answer.get("corrected", 1.0)))
    predicted = mean_shift(SUBMISSIONS, LABELS)
    means = {name: float(np.mean(values)) for name, values in found.items()}
    rows = tuple(
        (name, value, predicted if name == "exact scores" else 0.5, 0.5)
        for name, value in means.items()
    )
    return Found(
        ("leaderboard", "score of the boosted submission", "predicted", "truth"),
        rows,
        {
            name: [(float(seed), value) for seed, value in enumerate(values)]
            for name, values in found.items()
        },
        (
            bound(
                "exact scores: within 0.02 of the prediction",
                means["exact scores"] - predicted,
                -0.02,
                0.02,
            ),
            bound("Ladder: boosted score within 0.02 of 1/2", means["Ladder"] - 0.5, -0.02, 0.02),
            bound("the gate refuses the boosted claim in every run", noes / runs, least=1.0),
            bound(
                "its corrected value within 0.02 of 1/2",
                means["gate: corrected"] - 0.5,
                -0.02,
                0.02,
            ),
        ),
    )


EXPERIMENTS = (
    Experiment(
        1,
        "freedman",
        "Freedman's paradox against a holdout and against the gate",
        f"{ROWS:,} rows for training, holdout and fresh data each, {FEATURES:,} random signs that predict nothing. The naive analyst "
        "keeps features whose correlations with the label agree on training and holdout data, takes the K best, votes, and reports "
        f"the holdout accuracy. The other asks the gate ({GROUPS} groups of 100 rows, 10 failures, heuristic) about every feature "
        "and then about the classifier. The truth is 1/2.",
        ("features K", "accuracy"),
        freedman,
    ),
    Experiment(
        2,
        "science-without-signal",
        "The Science 2015 experiment without signal",
        f"{SAMPLE:,} rows and {ATTRIBUTES:,} normal attributes; no attribute predicts the label. The naive analyst filters "
        f"attributes by training and holdout data; the other asks the gate ({COUNT} groups of 50 rows, heuristic). "
        "*+-* is half of a 95 % interval of what comes through the gate, over seeds. Groups of so few rows let overfit claims pass: "
        "the last column has the largest.",
        ("attributes k", "accuracy"),
        without_signal,
        runs=5,
        small=1,
    ),
    Experiment(
        3,
        "science-with-signal",
        "The Science 2015 experiment with signal",
        f"As figure 2, with {REAL} attributes whose mean leans {BIAS} towards the label.",
        ("attributes k", "accuracy"),
        with_signal,
        runs=5,
        small=1,
    ),
    Experiment(
        4,
        "sign-aggregation-medians",
        "Adding up signs of answers about medians",
        f"{M:,} groups, {K:,} normal coordinates with median 0. The analyst asks for each median and then for the sum of the "
        "coordinates with the answers' signs. Beyond 0.674 standard deviations the answer has left the interquartile interval of "
        f"fresh data. Splitting serves {M // SPLIT} queries and then has no group left.",
        ("epsilon of an answer", "shift of the final answer, in sd"),
        sign_aggregation,
        logarithmic="x",
    ),
    Experiment(
        5,
        "leaderboard",
        "Boosting on a leaderboard",
        f"{LABELS:,} labels, {SUBMISSIONS:,} random submissions, and a last one that votes with those that scored above one half. "
        "A board of exact scores is fooled; the Ladder, which shows a score only if it is clearly the best so far, and the gate "
        f"({GROUPS} groups of 20 labels, 10 failures, heuristic) are not. Where the analyst uses verdicts, every claim is 0.6, where "
        "a verdict tells most.",
        ("run", "score of the boosted submission"),
        leaderboard,
    ),
)
