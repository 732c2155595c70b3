"""Exactly once for ad-hoc queries: what is free, from which release, and what is paid."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import sql_world
from sql_world import close

from dpflow.errors import BudgetExceeded, InvalidInput, PlanRefused

if TYPE_CHECKING:
    from sql_world import World

FIRST = "SELECT city, COUNT(*) AS n, SUM(age) AS s, AVG(age) AS a, VAR_POP(age) AS v FROM visits WHERE cost > 1 GROUP BY city"

FREE = [
    "select CITY as c, avg(Age), count(*) from VISITS where (cost > 1.0) group by 1",
    "SELECT v.city, SUM(v.age) / COUNT(*), STDDEV_POP(age) FROM visits v WHERE v.cost > 1 GROUP BY v.city HAVING COUNT(*) > 5",
    "SELECT COUNT(*) AS n, city FROM visits WHERE 1 < cost GROUP BY city ORDER BY n DESC LIMIT 1",
    "SELECT city, VAR_POP(age) FROM visits WHERE cost > 1 AND city IN ('Rome', 'Oslo') GROUP BY city",
    "SELECT COUNT(*) FROM visits WHERE NOT (cost <= 1) AND 'Rome' = city AND city IN ('Rome') GROUP BY city",
    "SELECT city, COUNT(*) FROM visits WHERE NOT city = 'Rome' AND cost > 1 GROUP BY city ORDER BY COUNT(*) - SUM(age)",
]
PAID = [
    "SELECT city, COUNT(*) FROM visits WHERE cost > 2 GROUP BY city",
    "SELECT city, COUNT(*) FROM visits GROUP BY city",
    "SELECT city, COUNT(age) FROM visits WHERE cost > 1 GROUP BY city",
    "SELECT city, MEDIAN(age) FROM visits WHERE cost > 1 GROUP BY city",
    "SELECT COUNT(DISTINCT person) FROM visits WHERE cost > 1",
    "SELECT AVG(age) FROM visits WHERE cost > 1",
    "SELECT VAR_POP(age) FROM visits WHERE cost > 1",
    "SELECT city, COUNT(*) FROM visits WHERE cost > 1 AND age > 3 GROUP BY city",
]


@pytest.fixture(scope="module")
def answered_world(world: World) -> World:
    world.ask(FIRST, epsilon=8)
    return world


# A finer question for less is answered by what was released for more.
@pytest.mark.parametrize("text", FREE)
def test_other_spellings_orders_and_filters_are_free(answered_world: World, text: str) -> None:
    """At any price whose errors are no smaller than the stored ones."""
    before = answered_world.spent()
    answer = answered_world.ask(text, epsilon="0.5")
    assert answer.free and answered_world.spent() == before
    first = {row[0]: row for row in answered_world.ask(FIRST, epsilon=8).rows}
    for row in answer.rows:
        if row[0] in first and isinstance(row[1], int):
            assert row[1] in first[row[0]]


@pytest.mark.parametrize("text", PAID)
def test_what_does_not_follow_is_paid(answered_world: World, text: str) -> None:
    """Other rows, other statistics, statistics that do not add up."""
    plan = answered_world.ask(f"EXPLAIN {text}", epsilon="0.001")
    assert plan.to_pay


def test_a_smaller_error_is_paid(fresh: World) -> None:
    """A stored answer serves where its error is at most the asked one; the price is in no key."""
    text = "SELECT city, COUNT(*) FROM visits GROUP BY city"
    first = fresh.ask(text, epsilon=1)
    assert not first.free and fresh.spent() == "1"
    assert fresh.ask(text, epsilon="0.5").rows == first.rows and fresh.spent() == "1"
    better = fresh.ask(text, epsilon=3)
    assert not better.free and fresh.spent() == "4"
    # The newest that is exact enough.
    assert fresh.ask(text, epsilon="0.5").rows == better.rows
    assert fresh.ask(text, error="1000").rows == better.rows and fresh.spent() == "4"
    assert fresh.ask(text, epsilon=1).origins[0].released_at == better.origins[0].released_at


def test_epsilon_zero_answers_from_what_is_stored_or_refuses(fresh: World) -> None:
    """Whatever the error; keys that other units must have, and runs that draw for themselves, get nothing."""
    cities = "SELECT city, COUNT(*) AS n FROM visits GROUP BY city"
    clinics = "SELECT clinic, COUNT(*) AS n FROM visits GROUP BY clinic"
    for text in (cities, clinics):
        with pytest.raises(PlanRefused, match="no stored answer serves"):
            fresh.ask(text, epsilon=0)
    assert fresh.spent() == "0"
    coarse = fresh.ask(cities, epsilon="0.01")
    keys = fresh.ask(clinics, epsilon="0.02", delta="1e-6")
    spent = fresh.spent()
    assert fresh.ask(cities, epsilon=0) == fresh.ask(f"-- dp: epsilon=0\n{cities}")
    assert fresh.ask(cities, epsilon=0).values == coarse.values
    assert fresh.ask(clinics, epsilon=0).values == keys.values
    assert fresh.ask(f"EXPLAIN {cities}", epsilon=0).explain()["forecast"].startswith("free")
    for options in ({"min_units": 5}, {"revision": 2}, {"ledger": None}):
        with pytest.raises(InvalidInput):
            fresh.ask(clinics, epsilon=0, **options)
    assert fresh.spent() == spent


@pytest.mark.parametrize("finer", [False, True])
def test_epsilon_zero_takes_the_most_exact_of_what_is_stored(fresh: World, finer: bool) -> None:
    """A newer and worse draw hides nothing, also where a finer release is added up; of equal errors the newest."""
    text = "SELECT COUNT(*) AS n FROM visits"
    better = fresh.ask(text, epsilon=1)
    worse = (
        fresh.ask("SELECT city, COUNT(*) AS n FROM visits GROUP BY city", epsilon="0.6")
        if finer
        else fresh.ask(text, epsilon="0.1", revision=2)
    )
    assert not worse.free
    assert fresh.ask(text, epsilon=0).origins[0].release_id == better.origins[0].release_id
    again = fresh.ask(text, epsilon=1, revision=3)
    assert not again.free
    assert fresh.ask(text, epsilon=0).origins[0].release_id == again.origins[0].release_id


def test_a_basic_scope_pays_for_private_keys_with_laplace_noise(fresh: World) -> None:
    """They need a delta, with which Gaussian noise would be chosen where it is smaller; this filter pays
    none, so nobody has to say noise: laplace.
    """
    text = "SELECT city, clinic, COUNT(*) FROM visits GROUP BY city, clinic"
    with pytest.raises(PlanRefused, match="noise: auto"):
        fresh.ask(text, epsilon=1, delta="1e-6", noise="gaussian")
    assert fresh.spent() == "0"
    answer = fresh.ask(text, epsilon=1, delta="1e-6")
    assert not answer.free and fresh.spent() == "1"
    assert fresh.ask(text, epsilon=1, delta="1e-6", noise="laplace").free
    assert fresh.ask(f"-- dp: noise=laplace\n{text}", epsilon=1, delta="1e-6").free
    with pytest.raises(InvalidInput, match="noise=laplace"):
        fresh.ask(text, epsilon=1, noise="none")


def test_a_revision_pays_once(fresh: World) -> None:
    """Another number is a new draw, the same number again is free."""
    text = "SELECT COUNT(*) FROM visits"
    fresh.ask(text, epsilon=1)
    second = fresh.ask(text, epsilon=1, revision=2)
    assert not second.free and fresh.spent() == "2"
    again = fresh.ask(text, epsilon=1, revision=2)
    assert again.free and again.rows == second.rows
    assert fresh.ask(text, epsilon=1, revision=1).free and fresh.spent() == "2"


def test_sums_over_public_keys_add_up(fresh: World) -> None:
    """With the error of a sum of noise, and only where the asked error allows it."""
    ages = "age >= 0 AND age <= 100"
    fine = f"SELECT city, bucket(age, 10) AS b, COUNT(*) AS n, SUM(cost) AS s FROM visits WHERE {ages} GROUP BY city, b"
    answer = fresh.ask(fine, epsilon=50)
    coarse = f"SELECT city, COUNT(*) AS n FROM visits WHERE {ages} GROUP BY city"
    total = fresh.ask(coarse, epsilon="0.1")
    assert total.free and fresh.spent() == "50"
    for (city, *_), (_, n) in zip(total.rows, total.values):
        cells = [row[2] for row in answer.values if row[0].value == city]
        assert n.raw_value == sum(cell.raw_value for cell in cells)
    # Noise of 11 cells is wider than that of one, and narrower than 11 times it.
    width, one = (
        a.values[0][i].raw_span[1] - a.values[0][i].raw_value for a, i in ((total, 1), (answer, 2))
    )
    assert one < width < 11 * one
    assert total.notes and answer.origins[0].release_id in total.notes[0]
    mean = fresh.ask(f"EXPLAIN {coarse.replace('COUNT(*)', 'AVG(cost)')}", epsilon="0.1")
    assert mean.to_pay and "does not add up" in mean.unpaid[0]
    # One cell is exact enough for this price, and eleven together are not.
    assert fresh.ask(f"EXPLAIN {coarse}", epsilon=20).to_pay
    assert not fresh.ask(f"EXPLAIN {coarse}", epsilon=1).to_pay


class Keys:
    """Random expressions that have public keys by their texts, and conditions that may leave out rows without one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def condition(self, key: str = "") -> str:
        """A condition on rows, which may be of a key."""
        low, high = sorted(self._random.choices(range(-10, 60), k=2))
        first, last = sorted(self._random.choices(range(1, 29), k=2))
        tests = ["age IS NOT NULL", "age IS NULL", f"cost > {low % 5}", "city = 'Oslo'"]
        tests += [
            f"age BETWEEN {low} AND {high}",
            f"age < {high}",
            f"age >= {low}",
            f"age <> {low}",
        ]
        tests += [f"day >= '2020-01-{first:02}' AND day < '2020-02-{last % 9 + 1:02}'"]
        tests += [f"day BETWEEN '2020-01-{first:02}' AND '2020-01-{last:02}'", "day > '2020-01-06'"]
        if key.startswith("CASE"):
            tests += [
                f"{key} IS NOT NULL",
                f"{key} = 'a'",
                f"{key} IN ('a', 'b')",
                f"{key} <> 'a'",
            ] * 4
        return self._random.choice(tests)

    def test(self, depth: int = 2) -> str:
        """A condition of several ones."""
        parts = [self.condition() if depth == 0 else self.test(depth - 1) for _ in range(2)]
        return self._random.choice(
            [*["{0}"] * 3, "NOT ({0})", "({0}) AND ({1})", "({0}) OR ({1})"]
        ).format(*parts)

    def text(self, depth: int = 2) -> str:
        """An expression of texts that it names."""
        one, other = (
            self.text(depth - 1) if depth else self._random.choice(["'a'", "'b'"]) for _ in range(2)
        )
        forms = ["CASE WHEN {2} THEN {0} END", "CASE WHEN {2} THEN {0} WHEN {3} THEN {1} END"]
        forms += ["CASE WHEN {2} THEN {0} ELSE {1} END"] * 2
        forms += [
            "coalesce({0}, {1})",
            "substring({0}, 1, 1)",
            "{0} || {1}",
            "CAST({2} AS VARCHAR)",
        ]
        form = self._random.choice(forms[: len(forms) if depth < 2 else 4])
        return form.format(one, other, self.test(1), self.test(1))

    def key(self) -> str:
        """What rows are grouped by."""
        others = [
            "bucket(age, 10)",
            "bucket(age, 7)",
            "month(day)",
            "year(day)",
            "date_trunc('week', day)",
        ]
        return self._random.choice(
            [self.text(), self.text(), self.test(), *others[self._random.randrange(5) :][:1]]
        )


def test_groups_that_lack_rows_do_not_add_up(fresh: World) -> None:
    """Rows have NULL, numbers and days beyond the declared bounds: no sum of groups without them is stated of all rows."""
    columns = sql_world.DECLARATION["columns"] | {"age": {"lower": 0, "upper": 30}}
    columns["day"] = {"lower": "2020-01-05", "upper": "2020-01-31"}
    fresh.table = fresh.declare(columns=columns, max_contributions={"rows": 20})
    fresh.grant("levels")
    seen: Counter[str] = Counter()
    keys = Keys(1)
    for _ in range(24):
        # Of all rows: what a stored release of a random key answers, a level that is added up, and a sum of its groups
        # that states a total interval.
        key = keys.key()
        where = " AND ".join(f"({keys.condition(key)})" for _ in range(2))
        rows = f"FROM visits WHERE {where}"
        ((truth,),) = fresh.truth(
            f"SELECT COUNT(*) {re.sub(r'bucket.age, ([0-9]+).', r'(age // 1)', rows)}"
        )
        fine = f"SELECT {key} AS k, COUNT(*) AS n {rows} GROUP BY k"
        (cell,) = fresh.ask(f"SELECT SUM(n) FROM ({fine})", epsilon=1000).values[0]
        if cell.total is not None:
            seen["total"] += 1
            assert cell.total[0] - 1 <= truth <= cell.total[1] + 1, (key, where, truth, cell)
        if not fresh.ask(f"EXPLAIN SELECT COUNT(*) {rows}", epsilon=1).to_pay:
            seen["free"] += 1
            answer = fresh.ask(f"SELECT COUNT(*) {rows}", epsilon=1)
            assert close(answer.rows[0][0], truth), (key, where, truth, answer)
        levels = f"SELECT GROUPING(k) AS g, {key} AS k, COUNT(*) AS n {rows} GROUP BY ROLLUP (k)"
        plan = fresh.ask(f"EXPLAIN {levels}", epsilon=1000, scope="levels")
        answer = fresh.ask(levels, epsilon=1000, scope="levels")
        assert sum(one.epsilon != "0" for one in answer.origins) == len(plan.to_pay)
        seen["level"] += len(plan.added)
        (total,) = [n for g, _, n in answer.rows if g]
        assert close(total, truth), (key, where, truth, plan.levels)
        seen["paid"] += not plan.added
    assert min(seen[one] for one in ("total", "free", "level", "paid")) > 2, seen


@pytest.mark.parametrize(("last", "is_free"), [("9", True), ("9.99999999999999999999", False)])
def test_an_end_that_a_double_rounds_adds_up_nothing(
    fresh: World, last: str, is_free: bool
) -> None:
    """A column of doubles takes the second for 10, whose bin is no listed key."""
    columns = sql_world.DECLARATION["columns"] | {"age": {"lower": 0, "upper": 9}}
    fresh.table = fresh.declare(columns=columns)
    rows = f"FROM visits WHERE age >= 0 AND age <= {last}"
    fresh.ask(f"SELECT bucket(age, 10) AS b, COUNT(*) {rows} GROUP BY b", epsilon=40)
    assert bool(fresh.ask(f"EXPLAIN SELECT COUNT(*) {rows}", epsilon=1).to_pay) != is_free


def test_a_mean_follows_from_sum_and_count(fresh: World) -> None:
    """Of the same release, also added up over its cells."""
    fresh.ask("SELECT city, SUM(age), COUNT(age) FROM visits GROUP BY city", epsilon=40)
    for text in (
        "SELECT AVG(age) FROM visits",
        "SELECT city, AVG(age) AS a FROM visits GROUP BY city HAVING a > 1",
    ):
        answer = fresh.ask(text, epsilon="0.1")
        # Rows without a city are in no cell, and the notes of a sum over cells say so.
        assert ("declared keys" in str(answer.notes)) == ("city" not in text)
        of_cells = text.replace("FROM visits", "FROM visits WHERE city IS NOT NULL")
        ((*_, truth), *_) = fresh.truth(of_cells + (" ORDER BY city" if "city" in text else ""))
        assert answer.free and abs(answer.rows[0][-1] - truth) < 1
        cell = answer.values[0][-1]
        assert abs(cell.value - truth) < 3 * (cell.high - cell.low)
    assert fresh.spent() == "40"
    assert fresh.ask("EXPLAIN SELECT AVG(cost) FROM visits", epsilon="0.1").to_pay


def test_private_keys_do_not_add_up(fresh: World) -> None:
    """What was not selected is missing in the sums; the plan says so."""
    fresh.ask(
        "SELECT clinic, city, COUNT(*) FROM visits GROUP BY clinic, city", epsilon=50, delta="1e-5"
    )
    plan = fresh.ask("EXPLAIN SELECT city, COUNT(*) FROM visits GROUP BY city", epsilon="0.1")
    assert plan.to_pay and "selected privately" in plan.unpaid[0]
    kept = fresh.ask(
        "SELECT clinic, city, COUNT(*) FROM visits WHERE city = 'Rome' GROUP BY city, clinic",
        epsilon=50,
        delta="1e-5",
    )
    assert kept.free and {row[1] for row in kept.rows} == {"Rome"}
    # A text that a number could be written as is no plain comparison of keys.
    numbers = "EXPLAIN SELECT clinic, city, COUNT(*) FROM visits WHERE clinic = 'c1' GROUP BY city, clinic"
    assert fresh.ask(numbers, epsilon=1, delta="1e-6").to_pay


def test_another_declaration_is_another_query(fresh: World) -> None:
    """What bounds, scope and blocks say is in the key; columns that nothing names are not."""
    text = "SELECT SUM(age) FROM visits"
    fresh.ask(text, epsilon=1)
    columns = {"age": {"lower": 0, "upper": 100}, "new": {"lower": 0, "upper": 1}, "city": {}}
    fresh.table = fresh.declare(columns=columns)
    assert fresh.ask(text, epsilon=1).free
    columns["age"] = {"lower": 0, "upper": 60}
    fresh.table = fresh.declare(columns=columns)
    assert fresh.ask(f"EXPLAIN {text}", epsilon=1).to_pay
    fresh.ledger.grant("team", 1, "1e-6", filter="basic", table=fresh.table, principal="owner")
    assert fresh.ask(f"EXPLAIN {text}", epsilon=1, scope="team").to_pay


def test_a_refused_price_reads_nothing(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several mechanisms are charged together, or none is."""
    from smallworld import forbid_reads

    fresh.ledger.grant("small", 1, "1e-6", filter="basic", table=fresh.table, principal="owner")
    forbid_reads(monkeypatch)
    with pytest.raises(BudgetExceeded):
        fresh.ask(
            "SELECT COUNT(*), MEDIAN(age), MODE(city) FROM visits", epsilon="1.5", scope="small"
        )
    assert fresh.ledger.remaining("small").rows()[0]["epsilon_spent"] == "0"


def test_a_target_finds_its_price(fresh: World) -> None:
    """The least epsilon whose errors are within the target."""
    answer = fresh.ask("SELECT COUNT(*), SUM(age) FROM visits", error="5000")
    widths = [cell.raw_span[1] - cell.raw_value for cell in answer.values[0]]
    assert 4500 < max(widths) <= 5000
    relative = fresh.ask("EXPLAIN SELECT AVG(age) FROM visits", error="1%", rows=8000)
    bound = relative.parts[0].plan.error_bound
    assert bound is not None and 0 < float(relative.parts[0].plan.privacy_cost()[0]) < 20


def test_groups_that_where_left_out_stay_out(fresh: World) -> None:
    """The stored release has a noisy number for each declared key; asked again, none is in the answer."""
    where = "WHERE city IN ('Oslo', 'Rome')"
    for _ in range(2):
        answer = fresh.ask(f"SELECT city, COUNT(*) FROM visits {where} GROUP BY city", epsilon=8)
        assert [city for city, _ in answer.rows] == ["Oslo", "Rome"]
    assert answer.free
