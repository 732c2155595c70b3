"""Checks of rows: what they are decided by, how far one unit moves it, and what sessions over them
cost.
"""

from __future__ import annotations

import datetime as dt
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from declared_tables import with_rows

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import State
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox import row_checks
from dpflow.core.toolbox.row_checks import (
    RowCheck,
    make_excess,
    query_check,
    scale_excesses,
)
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import DpflowError, InvalidDeclaration, PlanRefused, UnknownName
from dpflow.mechanisms.watch_rows import WatchRows
from dpflow.registry import Registry
from dpflow.tables import declare_columns
from dpflow.tables.private import PrivateTable
from dpflow.testing.exact_checks import compare_exactly
from dpflow.testing.examples import Example

REGISTRY = Registry.load()
CHECKS: list[dict[str, Any]] = [
    {"name": "late", "check": "violations", "condition": "delay > 30", "at_most": "0.1"},
    {"name": "empty", "check": "nulls", "column": "delay", "at_most": "0.02"},
    {"name": "keys", "check": "unknown_keys", "column": "carrier", "at_most": 0},
    {
        "name": "share",
        "check": "key_share",
        "column": "carrier",
        "condition": "carrier = 'UA'",
        "at_most": "0.3",
    },
    {
        "name": "other",
        "check": "key_share",
        "column": "carrier",
        "condition": "carrier IN ('A''A')",
        "at_least": "0.75",
    },
    {"name": "median", "check": "quantile", "column": "delay", "p": "0.5", "at_most": 12},
    {"name": "lowest", "check": "quantile", "column": "delay", "p": "0.1", "at_least": -5},
    {"name": "mean", "check": "mean", "column": "delay", "at_most": "12.5"},
    {"name": "least", "check": "mean", "column": "delay", "at_least": "-2"},
    {"name": "many", "check": "rows", "at_least": 9},
    {"name": "few", "check": "units", "at_most": 2},
    {"name": "fresh", "check": "freshness", "column": "day", "since": "15706", "at_least": 3},
]


def declare(database: Path, relation: str = "add-remove", **changes: Any) -> Table:
    declared: dict[str, Any] = {
        "name": "flights",
        "database": database,
        "privacy_unit": {"column": "plane"},
        "neighbours": relation,
        "contribution_bounds": {"rows": 3},
        "columns": {
            "delay": {"lower": -10, "upper": 60},
            "carrier": {"public_keys": ["A'A", "UA"]},
            "day": {"lower": "2012-01-01", "upper": "2014-01-01"},
        },
    }
    declared["columns"]["day"] = {"lower": 15000, "upper": 17000}
    return Table.model_validate(declared | changes)


def fill(database: Path, rows: list[tuple[Any, ...]]) -> None:
    database.unlink(missing_ok=True)
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            "CREATE TABLE flights (plane VARCHAR, delay DOUBLE, carrier VARCHAR, day INTEGER)"
        )
        if rows:
            connection.executemany("INSERT INTO flights VALUES (?, ?, ?, ?)", rows)


def measure(table: Table, checks: list[RowCheck]) -> dict[str, Fraction]:
    """The exact excess of every check."""
    table = declare_columns(table, row_checks.computed_columns(checks, table))
    found = {}
    for check in checks:
        query = query_check(check, table)
        answer = PrivateTable(table).answer(query.data_request(), ())
        excess = make_excess(check, query)
        found[check.name] = excess.evaluate(
            {m: int(answer.moment(*m)[0]) for m in excess.coefficients}
        )
    return found


PARSED = [RowCheck.model_validate(one) for one in CHECKS]
#: Two planes with two rows each: 4 rows, 3 values, one without, one unknown key, one late.
ROWS = [
    ("a", 40.0, "A'A", 15706),
    ("a", 10.0, "UA", 15700),
    ("b", None, None, 15706),
    ("b", -6.0, "ZZ", 15707),
]


def test_excess_is_what_the_check_says(tmp_path: Path) -> None:
    """Computed by hand from four rows, for every kind of check."""
    fill(tmp_path / "f.duckdb", ROWS)
    assert measure(declare(tmp_path / "f.duckdb"), PARSED) == {
        "late": 1 - Fraction(1, 10) * 4,
        "empty": 1 - Fraction(2, 100) * 4,
        "keys": 1,
        # One row each of two with a public key.
        "share": 1 - Fraction(3, 10) * 2,
        "other": Fraction(3, 4) * 2 - 1,
        # One value above 12, and half of three may be.
        "median": 1 - Fraction(3, 2),
        "lowest": 1 - Fraction(3, 10),
        "mean": 44 - Fraction(25, 2) * 3,
        "least": -44 - 2 * 3,
        "many": 9 - 4,
        "few": 2 - 2,
        "fresh": 3 - 3,
    }


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_one_unit_moves_no_excess_further_than_is_claimed(tmp_path: Path, relation: str) -> None:
    """Event: the moments of one check. Neighbours: a plane more, or a plane's rows replaced, by
    extreme rows, more than its bound. Claim: the stated sensitivity; some check reaches two thirds
    of it (control: the claim is not idle).
    """
    database = tmp_path / "f.duckdb"
    table = declare(database, relation)
    others = [("o", 0.0, "UA", 15706)] * 2
    extremes: list[list[tuple[Any, ...]]] = [
        [("x", 60.0, "ZZ", 15709)] * 5,
        [("x", -10.0, None, 15001)] * 3,
        [("x", None, "A'A", 15709)] * 4,
        [("x", 13.0, "UA", 15001)] * 3,
    ]
    if relation == "add-remove":
        extremes.append([])
    found = []
    for rows in extremes:
        fill(database, others + rows)
        found.append(measure(table, PARSED))
    whole = declare_columns(table, row_checks.computed_columns(PARSED, table))
    pairs = (
        [(one, found[-1]) for one in found]
        if relation == "add-remove"
        else list(itertools.combinations(found, 2))
    )
    reached = []
    for check in PARSED:
        query = query_check(check, whole)
        claim = make_excess(check, query).sensitivity(query)
        moved = max(abs(one[check.name] - other[check.name]) for one, other in pairs)
        assert moved <= claim, check.name
        reached.append(moved / claim)
    assert max(reached) >= Fraction(2, 3)


def test_scaled_excesses_have_one_sensitivity(tmp_path: Path) -> None:
    """Each scaled excess is a positive multiple of its own, and moves by the common bound at most."""
    table = declare(tmp_path / "f.duckdb")
    whole = declare_columns(table, row_checks.computed_columns(PARSED, table))
    scaled, common = scale_excesses(PARSED, whole)
    for check in PARSED:
        query = query_check(check, whole)
        excess, stretched = make_excess(check, query), scaled[check.name]
        assert stretched.factor > 0
        assert stretched.constant == excess.constant * stretched.factor
        for moment, value in excess.coefficients.items():
            assert stretched.coefficients[moment] == value * stretched.factor
        assert common * Fraction(99, 100) <= excess.sensitivity(query) * stretched.factor <= common


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"condition": None}, "needs condition"),
        ({"column": "delay"}, "takes no column"),
        ({"at_most": "1"}, "share of the rows"),
        ({"at_least": "0.1"}, "either at_least or at_most"),
        ({"at_most": "0.0000001"}, "six decimals"),
        ({"name": "Late; DROP"}, "pattern"),
        ({"check": "share"}, "must be"),
        ({"check": "key_share", "column": "carrier", "at_most": "1.1"}, "a share from 0 to 1"),
        ({"check": "key_share", "column": "delay"}, "public keys"),
        ({"condition": "delay > "}, "check_late cannot be computed, for its condition"),
        ({"condition": "secret = 1"}, "no column"),
        ({"condition": "1=1) THEN 1 ELSE error('x') END --"}, "check_late cannot be computed"),
        ({"condition": "delay IN (SELECT 1)"}, "check_late cannot be computed"),
    ],
)
def test_what_is_no_check_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Wrong fields, bounds and conditions never reach a row, and say what is wrong."""
    check = {k: v for k, v in (CHECKS[0] | change).items() if v is not None}
    with pytest.raises((InvalidDeclaration, PlanRefused, UnknownName), match=words):
        plan(tmp_path, "check_rows", {"checks": [check], "epsilon": "1"})


def test_a_check_takes_no_declared_columns_name(tmp_path: Path) -> None:
    """Its computed column would hide the declared one."""
    columns = {"delay": {"lower": 0, "upper": 9}, "Check_Late": {}}
    with pytest.raises(PlanRefused, match="another name"):
        plan(tmp_path, "check_rows", {"checks": CHECKS[:1], "epsilon": "1"}, columns=columns)


def plan(folder: Path, mechanism: str, params: dict[str, Any], **changes: Any) -> Any:
    table = declare(folder / "f.duckdb", **changes)
    request = ReleaseRequest(
        name="c", mechanism=mechanism, table=table, scope="flights", params=params
    )
    return make_plan(request, REGISTRY)


def test_error_of_a_check_shrinks_with_its_price(tmp_path: Path) -> None:
    """Ten times the epsilon, a tenth of the error; all checks together cost what is asked."""
    dear, cheap = (
        plan(tmp_path, "check_rows", {"checks": CHECKS, "epsilon": e}) for e in ("5", "0.5")
    )
    assert (dear.privacy_cost(), cheap.privacy_cost()) == (("5", "0"), ("0.5", "0"))
    for check in PARSED:
        ratio = cheap.error_bound.half_width[check.name] / dear.error_bound.half_width[check.name]
        assert 8 < ratio < 12


#: Three answers of a session over two counts, on tables that differ in one unit's row.
WATCHED = {
    "epsilon": "6",
    "checks": [
        {"name": "fewest", "check": "rows", "at_least": 3},
        {"name": "most", "check": "rows", "at_most": 1},
    ],
    "questions": 1,
}
ASKED = [{"check": name} for name in ("fewest", "fewest", "most")]


class NoThresholdNoise(WatchRows):
    """As if the secret threshold had no noise: quiet answers are then not free."""

    def open(self, params: Any, table: Table, source: Source) -> State:
        return State({"failures": 0, "noise": 0})


class ForgetsTheScale(WatchRows):
    """As if a unit moved every excess by a third of what it does."""

    def computed_columns(self, params: Any, table: Table) -> Any:
        return {}

    def open(self, params: Any, table: Table, source: Source) -> State:
        return super().open(params, with_rows(table, 1), source)

    def answer(self, params: Any, table: Table, *rest: Any) -> Any:
        return super().answer(params, with_rows(table, 1), *rest)


def test_a_watch_whose_sums_could_stop_is_refused(tmp_path: Path) -> None:
    """2^40 rows of a bound 2^22 steps from the middle reach 2^62; a step more, and a verdict could be wrong."""
    checks = [RowCheck(name="m", check="mean", column="v", at_most=Fraction(9))]
    for far, fits in ((2**22, True), (2**22 + 1, False)):
        columns = {"v": {"lower": -far, "upper": far}}
        declared = Table.model_validate(
            {"name": "t", "database": tmp_path / "t.duckdb", "privacy_unit": {"column": "u"}}
            | {"contribution_bounds": {"rows": 1}, "columns": columns}
        )
        if fits:
            scale_excesses(checks, declared)
        else:
            with pytest.raises(PlanRefused, match="may stop at 2.62 steps.*a step of at least 1"):
                scale_excesses(checks, declared)


def test_a_watch_keeps_its_epsilon_exactly() -> None:
    """Event: all answers of a session. Neighbours: a unit more or less. Claim: epsilon, found by
    exact enumeration; it is nearly reached, so a smaller claim would be false.
    """
    table = declare(Path("f.duckdb"), contribution_bounds={"rows": 1}, columns={"delay": {}})
    found = compare_exactly(WatchRows(), Example(table, WATCHED, ASKED), 3)
    assert found.passed and found.epsilon_found >= 2


@pytest.mark.parametrize("broken", [NoThresholdNoise(), ForgetsTheScale()])
def test_a_broken_watch_is_caught_exactly(broken: WatchRows) -> None:
    """Controls: a threshold without noise, and a third of the sensitivity, exceed the claim."""
    questions = [{"check": "fewest"}] * 6 + [{"check": "most"}]
    rows = 3 if isinstance(broken, ForgetsTheScale) else 1
    table = declare(Path("f.duckdb"), contribution_bounds={"rows": rows}, columns={"delay": {}})
    assert not compare_exactly(broken, Example(table, WATCHED, questions), 3).passed


def test_refusals_of_a_watch_come_before_rows(tmp_path: Path) -> None:
    """An unknown check, and a block that was not charged, are refused by the plan alone."""
    asked = plan(tmp_path, "watch_rows", WATCHED)
    mechanism = asked.mechanism
    query = mechanism.Query(check="other")
    with pytest.raises(UnknownName, match="no check 'other'"):
        mechanism.data_request(asked.params, query, asked.table)
    with pytest.raises(DpflowError, match="none of the session's 1 blocks"):
        mechanism.read_blocks(mechanism.Query(check="most", block="b"), ("a",))


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP"])
@pytest.mark.parametrize("since", [dt.date(2013, 1, 2), "2013-01-02"])
def test_rows_are_fresh_from_a_date_on(tmp_path: Path, kind: str, since: object) -> None:
    """A date became a number of days, which no column of dates could be compared with."""
    database = tmp_path / "private.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            f"CREATE TABLE flights AS SELECT 'p' || i AS plane, "
            f"CAST(DATE '2013-01-01' + CAST(i AS INTEGER) AS {kind}) AS day FROM range(4) t(i)"
        )
    check = RowCheck.model_validate(
        {"name": "fresh", "check": "freshness", "column": "day", "since": since, "at_least": 3}
    )
    assert RowCheck.model_validate(check.model_dump(mode="json")) == check
    assert check.summary == "rows whose day is 2013-01-02 or later at least 3"
    table = declare(database, columns={"day": {}})
    table = declare_columns(table, row_checks.computed_columns([check], table))
    answer = PrivateTable(table).answer(query_check(check, table).data_request(), ())
    assert answer.sums["check_fresh"].tolist() == [3]
