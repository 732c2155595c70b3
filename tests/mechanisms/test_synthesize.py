"""Synthetic tables: what each round may cost, errors that hold, and values of the columns' own types."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from declared_tables import declare_table

from dpflow.core.accounting.events import ZCDP, Approximate
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import RecordArrays
from dpflow.core.contract.results import NO_INFORMATION, Result
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.noise import rho_for
from dpflow.errors import PlanRefused
from dpflow.mechanisms import synthesize
from dpflow.mechanisms.audit_examples import EXAMPLES
from dpflow.testing import replay_audit
from dpflow.testing.examples import read_examples
from dpflow.testing.replay_audit import replay_examples

RANDOM = np.random.default_rng(19)
COLUMNS: dict[str, Any] = {
    "age": {"lower": 0, "upper": 99},
    "city": {"public_keys": ["Oslo", "Rome", "Ulm"]},
    "job": {"public_keys": [f"job {i}" for i in range(12)]},
    "pay": {"lower": 0, "upper": 1, "step": "0.1"},
}
NAMES = ("age", "city", "job", "pay")


def make_rows(n: int) -> dict[str, np.ndarray]:
    """Age and job go together, pay follows the job, and cities stand alone."""
    age = np.clip(RANDOM.gamma(6, 7, n), 0, 99).astype(np.int64)
    job = (age // 9 + RANDOM.integers(0, 2, n)) % 12
    return {
        "age": age,
        "city": RANDOM.choice(3, n, p=[0.6, 0.3, 0.1]),
        "job": job,
        "pay": np.minimum(10, job + RANDOM.integers(0, 3, n)),
    }


def draw(
    data: dict[str, np.ndarray], table: Table | None = None, **params: Any
) -> tuple[Result, Any]:
    mechanism = synthesize.Synthesize()
    given = mechanism.Params.model_validate(
        {"columns": list(data), "epsilon": 1, "delta": "1e-6", **params}
    )
    answer = RecordArrays(np.arange(len(next(iter(data.values())))), data)
    return mechanism.draw(given, table or declare_table(COLUMNS), answer, SystemSource()), given


def cells_of(rows: dict[str, np.ndarray], name: str) -> np.ndarray:
    column = declare_table(COLUMNS).column(name)
    return synthesize.Cells.of_column(column, 64).number_cells(rows[name])


def read_synthetic(result: Result) -> dict[str, np.ndarray]:
    """The synthetic rows as grid integers and places of keys."""
    columns = {}
    for (name, _), values in zip(result.synthetic.columns, zip(*result.synthetic.rows)):
        keys = COLUMNS[name].get("public_keys")
        step = Fraction(COLUMNS[name].get("step", 1))
        columns[name] = np.array(
            [keys.index(v) if keys else int(Fraction(str(v)) / step) for v in values], np.int64
        )
    return columns


@pytest.mark.parametrize(
    ("relation", "rows", "squared", "moved"),
    [("add-remove", 1, 1, 1), ("add-remove", 3, 9, 3), ("replace", 2, 8, 4)],
)
@pytest.mark.parametrize("number", [2, 4])
def test_every_round_is_paid_for_what_a_unit_moves(
    monkeypatch: pytest.MonkeyPatch,
    relation: str,
    rows: int,
    squared: int,
    moved: int,
    number: int,
) -> None:
    """The costs of all draws together are rho; one more count or choice than planned is seen here."""
    spent: list[Fraction] = []

    def add(exact: np.ndarray, sigma2: Fraction, source: object) -> np.ndarray:
        spent.append(squared / (2 * sigma2))
        return np.asarray(exact)

    def choose(lengths: Any, costs: np.ndarray, rate: Fraction, source: object) -> int:
        # Losses lie in an interval of twice the rate times what a score moves by.
        spent.append((2 * rate * moved) ** 2 / 8)
        return int(np.argmin(costs))

    monkeypatch.setattr(synthesize, "add_gaussian", add)
    monkeypatch.setattr(synthesize, "choose_piece", choose)
    table, data = declare_table(COLUMNS, rows, neighbours=relation), make_rows(3000)
    _, params = draw({name: data[name] for name in NAMES[:number]}, table, rows=10)
    rho = rho_for(params.epsilon, params.delta)
    assert len(spent) == number + (number - 1) * (1 if number == 2 else 2)
    assert 0 <= rho - sum(spent) < rho / 10**6
    event = synthesize.Synthesize().event
    assert event(params, table) == Approximate(params.epsilon, params.delta)
    assert event(params.model_copy(update={"guarantee": "zcdp"}), table) == ZCDP(rho)
    # The one implies the other.
    assert ZCDP(rho).epsilon_at(params.delta) <= params.epsilon


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_a_unit_moves_counts_and_scores_as_far_as_is_paid(relation: str) -> None:
    """Over random neighbours: the L2 distance of all marginals, and each score; and both are reached."""
    rows, replaced = 2, relation == "replace"
    farthest = np.zeros(2)
    for _ in range(200):
        data = make_rows(6)
        extra = [{n: np.repeat(v[:1], rows) for n, v in make_rows(1).items()} for _ in "ab"]
        one = {n: np.concatenate([data[n], extra[0][n]]) for n in NAMES}
        other = {n: np.concatenate([data[n], extra[1][n]]) if replaced else data[n] for n in NAMES}
        counts = [
            [np.bincount(cells_of(side, n), minlength=64) for n in NAMES] for side in (one, other)
        ]
        moved = sum(int(((a - b) ** 2).sum()) for a, b in zip(*counts))
        # A score against released numbers that are far from both.
        expected = np.full(64, 5)
        scores = [int(np.abs(side[0] - expected).sum()) for side in counts]
        farthest = np.maximum(farthest, [moved, abs(scores[0] - scores[1])])
    assert farthest[0] == len(NAMES) * rows**2 * (2 if replaced else 1)
    assert farthest[1] <= rows * (2 if replaced else 1)


def true_errors(rows: dict[str, np.ndarray], result: Result, key: str, groups: Any) -> float:
    """The distance in total variation of a marginal, over the groups that were compared."""
    made, sides = read_synthetic(result), []
    for side in (rows, made):
        parts = [groups[name][cells_of(side, name)] for name in key.split(", ")]
        sizes = [int(groups[name].max()) + 1 for name in key.split(", ")]
        flat = np.ravel_multi_index(parts, sizes)
        sides.append(np.bincount(flat, minlength=int(np.prod(sizes))) / max(1, len(flat)))
    return 0.5 * float(np.abs(sides[0] - sides[1]).sum())


def run_with_groups(monkeypatch: pytest.MonkeyPatch, rows: Any, **params: Any) -> tuple[Any, Any]:
    """A release, and the groups of cells that it compares pairs by."""
    kept: list[Any] = []
    real = synthesize.measure_singles

    def measure(*given: Any) -> Any:
        kept.append(real(*given))
        return kept[-1]

    monkeypatch.setattr(synthesize, "measure_singles", measure)
    result, _ = draw(rows, **params)
    return result, dict(zip(rows, kept[-1].groups))


@pytest.mark.parametrize("n", [0, 150, 1500])
def test_all_errors_hold_at_once(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Of columns and of pairs, whether measured or not, and of the number of rows. Tails of Gaussian noise leave far
    less than 5 %: more than 3 of 12 has a probability below .003 there.
    """
    failed = 0
    for _ in range(12):
        rows = make_rows(n)
        result, groups = run_with_groups(monkeypatch, rows)
        total, *errors = result.rows
        wrong = abs(total.value - n) > total.half_width_95
        for row in errors if n else ():
            single = ", " not in row.key
            own = {row.key: np.arange(64)} if single else groups
            wrong |= true_errors(rows, result, row.key, own) > row.value + 1e-9
        failed += wrong
        if n == 0:
            assert all(row.remark == NO_INFORMATION for row in errors)
    assert failed <= 3


def test_smaller_errors_would_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an eighth of a measured error is too little."""
    failed = 0
    for _ in range(6):
        rows = make_rows(3000)
        result, groups = run_with_groups(monkeypatch, rows)
        pair = ", ".join(sorted(result.document["pairs"][0], key=list(NAMES).index))
        stated = next(row.value for row in result.rows if row.key == pair)
        failed += true_errors(rows, result, pair, groups) > stated / 8
    assert failed >= 4


def test_what_goes_together_is_chosen_and_kept() -> None:
    """A tree of the pairs that depend on each other; with many rows all pairs are near."""
    rows = make_rows(40_000)
    result, _ = draw(rows, epsilon=3)
    assert {frozenset(pair) for pair in result.document["pairs"]} >= {
        frozenset(("age", "job")),
        frozenset(("job", "pay")),
    }
    whole = {name: np.arange(64) for name in NAMES}
    errors = {
        pair: true_errors(rows, result, ", ".join(pair), whole)
        for pair in itertools.combinations(NAMES, 2)
    }
    assert errors["job", "pay"] < 0.03 and max(errors.values()) < 0.12
    # Independent columns, which the control would be, are far away.
    shuffled = {name: RANDOM.permutation(values) for name, values in read_synthetic(result).items()}
    joint = [np.bincount(s["job"] * 16 + s["pay"], minlength=200) for s in (rows, shuffled)]
    assert 0.5 * np.abs(joint[0] / 40_000 - joint[1] / len(shuffled["job"])).sum() > 0.3


def test_rows_are_as_many_as_asked_for_or_as_were_read() -> None:
    """Values are of the columns' own types, and the result survives its JSON."""
    rows = make_rows(500)
    asked, _ = draw(rows, rows=77)
    assert len(asked.synthetic.rows) == 77
    assert asked.synthetic.columns == (
        ("age", "whole"),
        ("city", "text"),
        ("job", "text"),
        ("pay", "number"),
    )
    assert Result.from_json(asked.to_json()) == asked
    # A pair's error is of its groups, and says so: by cells it would be no smaller than its columns'.
    measures = {"pair of groups" in row.measure: ", " in row.key for row in asked.rows[1:]}
    assert measures == {True: True, False: False}
    usual, _ = draw(rows, epsilon=20)
    assert len(usual.synthetic.rows) == usual.rows[0].value
    # What is no public key, or has none of them in one column, is no row.
    odd = {**make_rows(500), "city": np.full(500, -1)}
    assert draw(odd, epsilon=20)[0].rows[0].value < 60


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({}, "declares no bounds"),
        ({"lower": 0, "upper": 2**63}, "beyond 2\\^63"),
        ({"public_keys": [str(i) for i in range(10_001)]}, "10001 public keys"),
    ],
)
def test_what_has_no_public_cells_is_refused(column: dict[str, Any], message: str) -> None:
    mechanism = synthesize.Synthesize()
    params = mechanism.Params(columns=("city", "x"), epsilon=Fraction(1), delta=Fraction(1, 10**6))
    with pytest.raises(PlanRefused, match=message):
        mechanism.event(params, declare_table(COLUMNS | {"x": column}))


def test_names_that_a_table_cannot_hold_are_refused() -> None:
    mechanism = synthesize.Synthesize()
    amounts = {"epsilon": 1, "delta": "1e-6"}
    for columns in (["age", "age"], ["age", "AGE"], ["age"], ["age", "city"] * 5):
        with pytest.raises(ValueError):
            mechanism.Params.model_validate({"columns": columns, **amounts})
    params = mechanism.Params.model_validate({"columns": ["age", "Block"], **amounts})
    with pytest.raises(PlanRefused, match="of its own"):
        mechanism.event(params, declare_table(COLUMNS | {"Block": {"lower": 0, "upper": 9}}))
    with pytest.raises(ValueError, match="Gaussian noise needs a delta above 0"):
        mechanism.Params.model_validate({"columns": ["age", "city"], "epsilon": 1, "delta": 0})


def test_half_of_the_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By replayed runs, on the example whose audit is on record; by so many of them, however long they take."""

    class HalfNoise(synthesize.Synthesize):
        def _spending(self, params: Any, table: Table) -> synthesize.Spending:
            planned = super()._spending(params, table)
            return synthesize.Spending(planned.singles / 4, planned.pairs / 4, planned.rate * 2)

    examples = read_examples(EXAMPLES["synthesize"])
    assert replay_examples(synthesize.Synthesize(), examples, 1).passed
    # A hundred runs prove a delta above .5, where .01 is allowed.
    monkeypatch.setattr(replay_audit, "MOST", 200)
    assert not replay_examples(HalfNoise(), examples, 600).passed
