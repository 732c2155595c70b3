"""The answering sessions keep their claims exactly, answer well, and say what is proven."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dpflow_stable_median.building_blocks import median_sizes
from dpflow_stable_median.building_blocks.private_medians import (
    Exponential,
    find_median,
    installed_medians,
)
from dpflow_stable_median.mechanisms import stable_median
from dpflow_stable_median.mechanisms.mean_queries import MeanQueries
from dpflow_stable_median.mechanisms.stable_median import AnsweringParams, StableMedian
from pydantic import ValidationError

from dpflow.core.accounting.events import ZCDP, BoundedRange, Repeated
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, PerGroup
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.core.toolbox.ranges import LinearRange
from dpflow.errors import InvalidInput, PlanRefused, UnknownName
from dpflow.testing import exact_divergence
from dpflow.testing.audit import clopper_pearson
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.examples import EXAMPLE_TABLE, REPLACE_TABLE, Example, make_groups
from dpflow.testing.session_checks import MemorySession

RANGE = {"kind": "grid", "lower": 0, "upper": 3, "step": 1}
ASK = {"estimator": "column_mean", "columns": ["amount"], "range": RANGE}


def answered(
    mechanism: Any,
    table: Table,
    params: dict[str, Any],
    queries: list[dict[str, Any]],
    given: list[Any],
) -> Any:
    """The law of all transcripts when the statistics' answers are given."""

    def draw(source: Source) -> tuple[str, ...]:
        answers = iter(given)
        return MemorySession(mechanism, Example(table, params, queries), source).transcript(
            lambda _: next(answers)
        )

    return enumerate_outputs(draw, tail=1e-7)


@pytest.mark.parametrize(("name", "epsilon"), [("exponential", "1"), ("binary_search", "8")])
@pytest.mark.parametrize(("table", "moved"), [(EXAMPLE_TABLE, 1), (REPLACE_TABLE, 2)])
def test_two_adaptive_answers_cost_twice_epsilon(
    table: Table, moved: int, name: str, epsilon: str
) -> None:
    """Every transcript of two queries on tables whose unit moves one group's value, or two, keeps 2
    epsilon; and needs most of it.
    """
    params = {"epsilon": epsilon, "groups": 4, "queries": 2, "range_size": 4, "median": name}
    asks = (
        [ASK, ASK | {"default": 1}]
        if name == "exponential"
        else [ASK | {"range": RANGE | {"upper": 1}}]
    )
    claim = float(epsilon) * len(asks)

    def law(values: list[float]) -> Any:
        return answered(
            StableMedian(), table, params, asks, [PerGroup(np.array(values))] * len(asks)
        )

    a = law([0.0, 0.0, 1.0, 3.0])
    b = law([0.0] * (2 - moved) + [3.0] * moved + [1.0, 3.0])
    assert exact_divergence.divergence(a, b, claim) <= 1e-5
    assert exact_divergence.smallest_epsilon(a, b, 1e-5) > claim / 8


@pytest.mark.parametrize("p", ["1/4", "0.9"])
def test_a_quantile_keeps_epsilon_and_is_one(p: str) -> None:
    """The exact law on neighbours is epsilon-DP and uses much of it; with little noise it is the
    p-quantile of the groups.
    """
    params = {"epsilon": "1", "groups": 4, "queries": 1, "range_size": 4}
    laws = [
        answered(StableMedian(), EXAMPLE_TABLE, params, [ASK | {"p": p}], [PerGroup(np.array(v))])
        for v in ([0.0, 0.0, 1.0, 3.0], [0.0, 0.0, 3.0, 3.0], [0.0, 0.0, 1.0, 0.0])
    ]
    for other in laws[1:]:
        assert exact_divergence.divergence(laws[0], other, 1) <= 1e-5
    assert (
        max(exact_divergence.smallest_epsilon(laws[0], other, 1e-5) for other in laws[1:]) > 1 / 4
    )
    ask = ASK | {"p": p, "range": RANGE | {"upper": 100}}
    sure = params | {"epsilon": "100000", "groups": 101, "range_size": 101}
    session = MemorySession(StableMedian(), Example(EXAMPLE_TABLE, sure, [ask]), SystemSource())
    body = session.ask_query(session.queries[0], PerGroup(np.arange(101.0))).body
    assert abs(body["value"] - 100 * float(Fraction(p))) <= 1
    assert body["interval"] == pytest.approx(
        [max(0, Fraction(p) - Fraction(1, 4)), min(1, Fraction(p) + Fraction(1, 4))]
    )


def test_quantiles_are_proven_with_the_medians_division_of_beta() -> None:
    """A little more than the planned groups proves the medians; quantiles need the room of 2D(1-D)
    at 1/2; never by themselves.
    """
    task = median_sizes.AnsweringTask(10, 1000, 0.05)
    plan = median_sizes.tight_calibration(task, True)
    assert median_sizes.carries_proof(
        task, plan.groups, plan.step
    ) and not median_sizes.carries_proof(task, plan.groups, plan.step, p=0.1)
    enough = plan.groups * 3 // 2
    assert median_sizes.carries_proof(task, enough, plan.step * plan.groups / enough, p=0.5)
    session, each = StableMedian(), Fraction(plan.step / 2).limit_denominator(10**9)
    params = AnsweringParams(epsilon=each, groups=plan.groups * 3, queries=10, range_size=1000)
    said = {
        p: session.describe_guarantee(params, EXAMPLE_TABLE, Fraction(p))
        for p in ("1/2", "1/10", "9/10")
    }
    assert {p: one["guarantee"] for p, one in said.items()} == dict.fromkeys(said, "proven")
    assert said["1/10"]["interval"] == pytest.approx([0, 0.35]) and said["9/10"][
        "interval"
    ] == pytest.approx([0.65, 1])
    simple = params.model_copy(update={"interval": "simple"})
    assert (
        session.describe_guarantee(simple, EXAMPLE_TABLE, Fraction(1, 10))["guarantee"]
        == "unproven"
    )
    for wrong in ("0", "1", "-1", "x"):
        with pytest.raises(ValueError):
            session.Query.model_validate(ASK | {"p": wrong})


def test_a_median_that_forgets_the_second_group_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under replace-unit with the price of one changed group the claim fails."""
    monkeypatch.setattr(stable_median, "sides_of", lambda table: 1)
    params = {"epsilon": "1", "groups": 2, "queries": 1, "range_size": 4}
    a, b = (
        answered(StableMedian(), REPLACE_TABLE, params, [ASK], [PerGroup(np.array(v))])
        for v in ([0.0, 0.0], [3.0, 3.0])
    )
    losses = [math.log(a[x] / b[x]) for x in a]
    assert max(losses) - min(losses) > 1.9  # bounded range would be 1


def median_task(name: str, shape: str) -> tuple[np.ndarray, Fraction]:
    """As many values as Corollary 3.3 or Theorem 3.1 asks for at 1000 points and beta 0.05, and the
    price of a median.
    """
    n, epsilon, rng = 1000, 0.5, np.random.default_rng(0)
    search, price = (
        median_sizes.binary_search_sizes(n, epsilon, 1e-5, 0.25, 0.05),
        Fraction(epsilon),
    )
    m = {
        "exponential": median_sizes.median_groups(n, epsilon, 0.25, 0.05),
        "binary_search": search.laplace_groups,
    }.get(name, search.groups)
    y = {
        "uniform": rng.integers(0, n, m),
        "clustered": 500 + rng.integers(0, 3, m),
        "two points": np.repeat([3, 990], [m // 2, m - m // 2]),
        "equal": np.full(m, 7),
    }[shape]
    if (
        name == "gaussian_search"
    ):  # its price is that of its noise: sigma in counts is q^(1/2)/price
        price = Fraction(math.sqrt(search.probes) / (search.sigma * m)).limit_denominator(10**6)
    return y, price


def is_accurate(y: np.ndarray, v: int) -> bool:
    """Whether v is a 1/4-approximate median of y."""
    return bool((y <= v).mean() > 3 / 8 and (y < v).mean() < 5 / 8)


def proven_misses(name: str, y: np.ndarray, price: Fraction) -> float:
    """A lower bound, wrong once in 10^9 times, of how often the median is not accurate: exact
    binomial, 100 draws.
    """
    drawn = (
        find_median(name).draw(y, (0, 999), Fraction(1, 2), price, 1, SystemSource())
        for _ in range(100)
    )
    misses = sum(not is_accurate(y, v) for v in drawn)
    return float(clopper_pearson(np.array([misses]), 100, 1e-9)[0][0])


MEDIANS = ["exponential", "binary_search", "gaussian_search"]


@pytest.mark.parametrize("name", MEDIANS)
@pytest.mark.parametrize("shape", ["uniform", "clustered", "two points", "equal"])
def test_medians_are_accurate_at_their_sizes(name: str, shape: str) -> None:
    """With Corollary 3.3's and Theorem 3.1's numbers of values a draw is no 1/4-approximate median
    at most beta often.
    """
    assert proven_misses(name, *median_task(name, shape)) <= 0.05


@pytest.mark.parametrize("name", MEDIANS)
def test_a_median_with_too_much_noise_is_seen_to_be_inaccurate(name: str) -> None:
    """At a 32nd of the price more than 75 % of draws miss, so fewer than 23 of 100 (what 0.05
    allows) happen 1 in 10^29 times.
    """
    y, price = median_task(name, "equal")
    assert proven_misses(name, y, price / 32) > 0.05


@pytest.mark.parametrize("shape", ["uniform", "clustered", "equal"])
def test_the_exponential_median_misses_as_rarely_as_proven(shape: str) -> None:
    """Theorem 3.1, exactly: the mass of all answers that are not accurate; with a sixteenth of the
    price it is too much.
    """
    y, price = median_task("exponential", shape)

    def missed(price: Fraction) -> float:
        law = enumerate_outputs(
            lambda source: find_median("exponential").draw(
                y, (0, 999), Fraction(1, 2), price, 1, source
            )
        )
        return sum(mass for v, mass in law.items() if not is_accurate(y, v))

    assert missed(price) <= 0.05 < missed(price / 16)


def test_binary_search_probes_no_more_than_it_pays_for() -> None:
    """At most 2 ceil(log2 N) noisy counts, for every N."""

    class Counting(type(find_median("binary_search"))):  # type: ignore[misc]
        def __init__(self) -> None:
            self.asked = 0

        def noisy_count(
            self, rows: int, probes: int, epsilon: Fraction, changed: int, source: Source
        ) -> int:
            self.asked += 1
            assert self.asked <= probes
            return rows + int(source.draw_below(2001)) - 1000

    for n in (1, 2, 3, 4, 5, 1000, 2**20 + 1):
        for _ in range(30):
            found = Counting()
            v = found.draw(
                np.zeros(10, np.int64), (0, n - 1), Fraction(1, 2), Fraction(1), 1, SystemSource()
            )
            # The least is two counts of the middle: a search that asks nothing tests nothing.
            assert 0 <= v < n and min(n - 1, 2) <= found.asked <= 2 * math.ceil(math.log2(n))


def test_events_and_names() -> None:
    made = StableMedian().event(AnsweringParams(epsilon="1/2", groups=5, queries=7), EXAMPLE_TABLE)
    assert made == Repeated(BoundedRange(Fraction(1, 2)), 7)
    made = StableMedian().event(
        AnsweringParams(epsilon="1/2", groups=5, queries=7, median="gaussian_search"), EXAMPLE_TABLE
    )
    assert made == Repeated(ZCDP(Fraction(1, 8)), 7)
    with pytest.raises(UnknownName, match="exponential"):
        find_median("exponentiel")
    assert list(installed_medians())[0] == Exponential.name


def test_ranges_and_queries_that_do_not_fit_are_refused_before_reading() -> None:
    session = StableMedian()
    params = AnsweringParams(epsilon="1", groups=5, range_size=4)
    wide = session.Query.model_validate(ASK | {"range": RANGE | {"upper": 4}})
    with pytest.raises(InvalidInput, match="range has 5 points"):
        session.data_request(params, wide, EXAMPLE_TABLE)
    with pytest.raises(UnknownName):
        session.data_request(
            params, session.Query.model_validate(ASK | {"columns": ["amuont"]}), EXAMPLE_TABLE
        )


@pytest.mark.parametrize(
    "p", ["1500000000000000/3000000000000001", "0.5000000000000001", "1e-7", "0", "1"]
)
def test_a_quantile_of_too_many_decimals_is_refused(p: str) -> None:
    """Costs are whole numbers of 1/denominator: with large ones rows would decide whether an answer
    can be drawn.
    """
    with pytest.raises(ValidationError):
        StableMedian.Query.model_validate(ASK | {"p": p})
    assert StableMedian.Query.model_validate(ASK | {"p": "0.999999"}).p.denominator == 10**6


def test_what_is_proven() -> None:
    """The planner's sizes are proven sessions; a tenth of the epsilon's inverse, or replace without
    twice the price, is not.
    """
    task = median_sizes.AnsweringTask(10, 1000, 0.05)
    plan = median_sizes.tight_calibration(task, True)
    each = Fraction(plan.step).limit_denominator(10**9)
    params = AnsweringParams(
        epsilon=each, groups=plan.groups + 5, queries=10, range_size=1000, require="proven"
    )
    assert StableMedian().describe_guarantee(params, EXAMPLE_TABLE)["guarantee"] == "proven"
    with pytest.raises(PlanRefused, match=r"at least 12134 groups and epsilon"):
        StableMedian().event(params, REPLACE_TABLE)
    # With far more groups the cause is the epsilon, and the refusal says so, not "at least".
    large = params.model_copy(update={"epsilon": Fraction(1), "groups": 10 * plan.groups})
    with pytest.raises(PlanRefused, match=r"take epsilon 0.0\d+ at most, or split"):
        StableMedian().event(large, EXAMPLE_TABLE)
    small = median_sizes.simple_calibration(task)
    each = Fraction(small.step).limit_denominator(10**9) + Fraction(1, 10**8)
    params = AnsweringParams(
        epsilon=each, groups=small.groups, queries=10, range_size=1000, interval="simple"
    )
    promise = StableMedian().describe_guarantee(params, EXAMPLE_TABLE)
    assert promise["guarantee"] == "proven" and promise["interval"][0] == pytest.approx(small.rho)


def test_a_plan_says_what_its_answers_prove() -> None:
    """Before anything is spent: what is proven, or which groups and epsilon would be; another
    median proves nothing.
    """
    plan = median_sizes.tight_calibration(median_sizes.AnsweringTask(10, 1000, 0.05), True)
    each = Fraction(plan.step).limit_denominator(10**9)
    enough = {"epsilon": each, "groups": plan.groups + 5, "queries": 10, "range_size": 1000}
    proven, few = (
        AnsweringParams.model_validate(enough),
        AnsweringParams.model_validate(enough | {"groups": 400}),
    )
    other = AnsweringParams.model_validate(enough | {"median": "binary_search"})
    session = StableMedian()
    assert session.note(proven, EXAMPLE_TABLE).startswith(
        "answers are proven to lie in the (0.25, 0.75) interval"
    )
    assert "unproven: 400 groups at epsilon" in session.note(few, EXAMPLE_TABLE)
    assert f"take at least {plan.groups} groups" in session.note(few, EXAMPLE_TABLE)
    assert "take median: exponential" in session.note(other, EXAMPLE_TABLE)


def test_every_answer_lies_between_the_quartiles_of_fresh_groups() -> None:
    """A proven session of adaptive queries on normal groups: no answer leaves 0.674 standard
    deviations.
    """
    plan, rng = (
        median_sizes.tight_calibration(median_sizes.AnsweringTask(10, 1001, 0.05), True),
        np.random.default_rng(0),
    )
    each = Fraction(plan.step).limit_denominator(10**9)
    params = {"epsilon": each, "groups": plan.groups, "queries": 10, "range_size": 1001}
    ask = ASK | {"range": {"kind": "grid", "lower": -5, "upper": 5, "step": "0.01"}}
    session = MemorySession(StableMedian(), Example(EXAMPLE_TABLE, params, [ask]), SystemSource())
    columns = rng.normal(size=(10, plan.groups))
    said = []
    for j in range(9):
        said.append(session.ask_query(session.queries[0], PerGroup(columns[j])).body["value"])
    attack = np.sign(said) @ columns[:9] / 3
    last = session.ask_query(session.queries[0], PerGroup(attack))
    assert max(abs(v) for v in [*said, last.body["value"]]) < 0.6745
    assert last.closed and session.ask_query(session.queries[0], PerGroup(attack)).body == {
        "verdict": "exhausted"
    }


# --- means ------------------------------------------------------------------------------------------------------------


def test_one_mean_keeps_epsilon_exactly() -> None:
    """Neighbours as far apart as the limits allow: divergence 0 at epsilon; attained within a grid
    step.
    """
    params, ask = {"epsilon": "4", "rows": 20, "queries": 1}, [{"by": "kind", "key": "a"}]
    statistic = GroupedSums("kind", ("a",), 1, 2)

    def law(rows: int) -> Any:
        return answered(
            MeanQueries(), EXAMPLE_TABLE, params, ask, [make_groups(statistic, ("a",), rows)]
        )

    a, b = law(10), law(12)  # a unit has two rows in a group
    assert exact_divergence.divergence(a, b, Fraction(4)) <= 1e-5
    assert exact_divergence.smallest_epsilon(a, b, 1e-5) > 3.5


def test_default_range_is_a_thousand_steps() -> None:
    query = StableMedian.Query.model_validate({"estimator": "accuracy", "columns": ["amount"]})
    assert isinstance(query.range, LinearRange) and query.range.key_count == 1001


def test_the_amplified_estimator_is_the_median_of_a_groups_blocks() -> None:
    """Blocks refine the same groups: u times as many estimates, and one of them moves one group's
    number at most.
    """
    params = {"epsilon": "1000", "groups": 5, "queries": 3, "range_size": 100}
    wide = {"kind": "grid", "lower": 0, "upper": 99, "step": 1}
    query = {"estimator": "column_mean", "columns": ["amount"], "range": wide, "blocks": 3}
    session = MemorySession(StableMedian(), Example(EXAMPLE_TABLE, params, [query]), SystemSource())
    statistic = StableMedian().data_request(session.params, session.queries[0], EXAMPLE_TABLE)
    assert statistic.groups == 15
    of_group = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    blocks = np.concatenate(
        [of_group - 9, of_group, of_group + 40]
    )  # bucket b is block b // 5 of group b % 5
    assert session.ask_query(session.queries[0], PerGroup(blocks)).body["value"] == 30
    rng, exceed = np.random.default_rng(0), []
    u = math.ceil(
        8 * math.log(1 / 0.05)
    )  # whatever is in (0.05, 0.95) of the median is between the quartiles of a block
    for row in np.sort(rng.normal(size=(4000, u)), axis=1)[:, (u - 1) // 2]:
        exceed.append(abs(row) > 0.6745)
    assert np.mean(exceed) <= 2 * 0.05


def test_blocks_are_inside_the_groups(tmp_path: Any) -> None:
    """With more buckets a unit stays in the group it had: its hash modulo the number of groups."""
    import duckdb

    from dpflow.core.contract.requests import GroupValues
    from dpflow.tables.private import PrivateTable

    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT i AS person, i AS v FROM range(500) t(i)")
    table = Table.model_validate(
        {
            "name": "t",
            "database": tmp_path / "t.duckdb",
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 1},
            "columns": {"v": {}},
        }
    )
    found = {}
    for m in (7, 35):
        groups, rows = PrivateTable(table).grouped_rows(GroupValues(m, ("v",)), b"k", ())
        found[m] = dict(zip(rows["v"].tolist(), groups.tolist()))
    assert all(bucket % 7 == found[7][unit] for unit, bucket in found[35].items())
