"""Bounds that a release takes from a settled search: resolved when it is planned, part of its
identity, refused in words.
"""

from __future__ import annotations

import datetime as dt
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from dpflow import Ledger, Session, fault_points, plan, release
from dpflow.core.contract.requests import SortedValues
from dpflow.engine import load_request, make_plan
from dpflow.engine.releases.released_bounds import _widen
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import NotSettled, PlanRefused, UnknownName
from dpflow.ledger import make_slot
from dpflow.mechanisms import bounds
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

REGISTRY = Registry.load()
OPEN: dict[str, Any] = {"age": {}, "city": {"public_keys": ["Oslo", "Rome"]}}
MANY = """
CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, 20 + i % 50 AS age, 'Oslo' AS city,
       DATE '2001-01-01' + CAST(i % 90 AS INTEGER) AS born FROM range(4000) t(i)
"""
SEARCH: dict[str, Any] = {
    "name": "look",
    "mechanism": "bounds",
    "params": {"column": "age", "epsilon": "0.5"},
}
TOTAL: dict[str, Any] = {
    "name": "total",
    "mechanism": "sum",
    "params": {"column": "age", "epsilon": "0.2"},
    "bounds": "look",
}


@pytest.fixture
def world(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """Many rows, a column without bounds, a budget that is not in the way, and a search that takes
    no empty bin.
    """
    monkeypatch.setattr(bounds, "FAILURE", 1e-12)
    tiny.fill(MANY)
    tiny.declare(columns=OPEN)
    return tiny


def planned(world: Tiny, occasion: RunIdentity | None = None, **content: Any) -> Any:
    """A plan through the door of release files."""
    request = load_request(world.file(**content))
    return make_plan(request, REGISTRY, Ledger(world.ledger), occasion)


def released(world: Tiny, occasion: RunIdentity | None = None, **content: Any) -> Any:
    return release(
        planned(world, occasion, **content),
        Ledger(world.ledger),
        run_identity=occasion,
        registry=REGISTRY,
    )


def test_a_plan_takes_what_a_search_found(world: Tiny) -> None:
    """The numbers enter the declaration: same statistic, error and identity as with the numbers
    written down; and it runs.
    """
    document = released(world, **SEARCH).result.document
    wanted = planned(world, **TOTAL)
    age = wanted.table.columns["age"]
    assert (
        document["columns"]["age"]
        == {"lower": 16, "upper": 128}
        == {"lower": age.lower, "upper": age.upper}
    )
    # Of 4,000 rows none is outside: a plan says how few it can be sure of.
    outside = document["outside"]
    assert 0 <= outside["rows"] <= outside["at_most_95"] < outside["of"]
    words = f"at most {outside['at_most_95']} of about {outside['of']} rows that 'look' counted are clamped (95 %)"
    assert wanted.describe()["bounds"] == f"age from 16 to 128: {words}"
    assert wanted.ledger_entry()["bounds"] == ["look"]
    (row,) = release(wanted, Ledger(world.ledger), registry=REGISTRY).result.rows
    assert abs(float(row.value or 0) - 4000 * 44.5) < 30_000  # 23 scales of its noise
    assert released(world, **TOTAL).replayed
    world.declare(columns=OPEN | document["columns"])
    assert (
        planned(world, **{k: v for k, v in TOTAL.items() if k != "bounds"}).digest == wanted.digest
    )


def test_a_search_counted_no_values_of_another_declaration(world: Tiny) -> None:
    """Of a column that is computed otherwise since it was searched."""
    world.declare(columns=OPEN | {"late": {"expression": "age + 1"}})
    searched = SEARCH | {"params": {"column": "late", "epsilon": "0.5"}}
    total = TOTAL | {"params": {"column": "late", "epsilon": "0.2"}}
    released(world, **searched)
    assert "that 'look' counted are clamped" in planned(world, **total).describe()["bounds"]
    world.declare(columns=OPEN | {"late": {"expression": "age * 100"}})
    told = planned(world, **total).describe()["bounds"]
    assert told.endswith("'look' counted other values: how many are clamped is not known")


def test_fractions_are_not_rounded_for_a_step_that_nobody_declared(world: Tiny) -> None:
    """Bounds of a search are refused as the same ones in a declaration are; with a step they serve."""
    world.fill(MANY.replace("20 + i % 50 AS age", "(i % 90) / 300.0 + 0.13 AS age"))
    released(world, **SEARCH)
    with pytest.raises(PlanRefused, match="reads column age, which holds DOUBLE .*declare step: 0"):
        released(world, **TOTAL)
    world.declare(columns=OPEN | {"age": {"step": "0.001"}})
    (row,) = released(world, **TOTAL).result.rows
    assert abs(float(row.value or 0) - 1113) < 120  # 23 scales of its noise


def test_other_bounds_are_another_release(world: Tiny) -> None:
    """Two searches that found different numbers: two digests; a search that is repeated under its
    name changes nothing.
    """
    released(world, **SEARCH)
    first = planned(world, **TOTAL)
    world.fill(MANY.replace("20 + i % 50", "3000 + i % 50"))
    released(world, **SEARCH | {"name": "again", "params": {"column": "age", "epsilon": "0.2"}})
    assert planned(world, **TOTAL | {"bounds": "again"}).digest != first.digest
    released(world, **SEARCH | {"revision": 2, "params": {"column": "age", "epsilon": "0.1"}})
    assert planned(world, **TOTAL).digest == first.digest


def test_a_search_that_is_not_settled_is_worth_a_retry(
    world: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charged but not drawn: refused retryably, nothing is spent; after the search has ended the
    same plan works.
    """

    def interrupted(name: str) -> None:
        if name == "draw.after":
            raise fault_points.FaultInjected(name)

    with monkeypatch.context() as patch, pytest.raises(fault_points.FaultInjected):
        patch.setattr(fault_points, "pass_point", interrupted)
        released(world, **SEARCH)
    with pytest.raises(
        NotSettled, match="total takes its bounds from 'look', which is reserved"
    ) as refused:
        planned(world, **TOTAL)
    assert refused.value.retryable
    released(world, **SEARCH)
    assert planned(world, **TOTAL).table.columns["age"].upper == 128


def test_what_cannot_give_bounds_is_refused_without_retry(world: Tiny) -> None:
    """A name nobody charged, a release of something else, by group, nothing found, another table,
    bounds declared already.
    """
    released(world, **SEARCH)
    with pytest.raises(UnknownName, match="did you mean 'look'") as unknown:
        planned(world, **TOTAL | {"bounds": "lok"})
    assert not unknown.value.retryable
    released(world, name="rows", params={"epsilon": "0.1"})
    with pytest.raises(PlanRefused, match="'rows', which is a release of count"):
        planned(world, **TOTAL | {"bounds": ["rows"]})
    asked = {"column": "age", "by": "city", "epsilon": "0.1"}
    released(world, **SEARCH | {"name": "cities", "params": asked})
    with pytest.raises(PlanRefused, match="searched by group"):
        planned(world, **TOTAL | {"bounds": "cities"})
    with pytest.raises(PlanRefused, match="table 'visits' declares some"):
        planned(world, **TOTAL | {"bounds": ["look", "look"]})
    world.declare(columns=OPEN, name="others", relation="visits")
    with pytest.raises(PlanRefused, match="which searched table 'visits', not 'others'"):
        planned(world, **TOTAL)
    world.fill(MANY.replace("4000", "3"))
    world.declare(columns=OPEN)
    released(world, **SEARCH | {"name": "few", "params": {"column": "age", "epsilon": "0.01"}})
    with pytest.raises(PlanRefused, match="'few' found no bounds"):
        planned(world, **TOTAL | {"bounds": "few"})


def test_dates_that_nobody_can_declare_are_refused(world: Tiny) -> None:
    """Many rows at a far day, such as 9999-12-31, have an upper edge after the last year that can
    be written.
    """
    world.fill(MANY.replace("DATE '2001-01-01' + CAST(i % 90 AS INTEGER)", "DATE '9999-12-31'"))
    world.declare(columns=OPEN | {"born": {}})
    released(world, **SEARCH | {"params": {"column": "born", "epsilon": "0.5"}})
    with pytest.raises(PlanRefused, match="found bounds that column 'born' cannot have"):
        planned(world, **TOTAL | {"params": {"column": "born", "epsilon": "0.2"}})


def test_a_search_that_its_owner_closed_is_passed_over(
    world: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never has a result; the next one of its name counts."""

    def interrupted(name: str) -> None:
        if name == "draw.after":
            raise fault_points.FaultInjected(name)

    with monkeypatch.context() as patch:
        patch.setattr(fault_points, "pass_point", interrupted)
        with pytest.raises(fault_points.FaultInjected):
            released(world, **SEARCH)
    ledger = Ledger(world.ledger)
    ledger.resolve(ledger.releases()[0].release_id, reason="host lost", principal="owner")
    with pytest.raises(UnknownName):
        planned(world, **TOTAL)
    released(world, **SEARCH | {"revision": 2})
    assert planned(world, **TOTAL).table.columns["age"].upper == 128


def test_nothing_is_planned_as_if_no_bounds_were_asked_for(world: Tiny) -> None:
    """A median would take another mechanism; a door that does not look bounds up refuses instead."""
    file = world.file(
        mechanism="median",
        bounds="look",
        params={"column": "age", "epsilon": "0.1", "delta": "1e-8"},
    )
    with pytest.raises(PlanRefused, match="takes bounds from 'look'.*name the ledger"):
        make_plan(load_request(file), REGISTRY)


def test_a_session_takes_the_first_search(world: Tiny) -> None:
    """Opened, resumed and asked with the bounds that were found first, whatever is searched later;
    refused without a search.
    """
    asked: dict[str, Any] = {"name": "watch", "mechanism": "above_threshold", "bounds": "look"}
    with pytest.raises(UnknownName, match="named 'look'"):
        planned(world, **asked | {"params": {"epsilon": "0.1"}})
    released(world, **SEARCH)
    wanted = planned(world, **asked | {"params": {"epsilon": "0.1"}})
    assert wanted.table.columns["age"].upper == 128
    session = Session.open(wanted, Ledger(world.ledger), REGISTRY)
    released(world, **SEARCH | {"revision": 2, "params": {"column": "age", "epsilon": "0.1"}})
    again = Session.open(
        planned(world, **asked | {"params": {"epsilon": "0.1"}}), Ledger(world.ledger), REGISTRY
    )
    assert again.id == session.id and again.ask({"threshold": -(2**40)}) == {"verdict": "above"}


def test_a_later_search_in_a_nearer_scope_changes_nothing(world: Tiny) -> None:
    """What a release or session of a quota was planned with stays, whoever searches there
    afterwards; the earliest counts.
    """
    ledger = Ledger(world.ledger)
    ledger.quota("visits/team", "0.9", "1e-6", principal="owner")
    ours: dict[str, Any] = TOTAL | {"scope": "visits/team"}
    released(world, **SEARCH)
    before = planned(world, **ours).digest
    narrow = SEARCH | {
        "scope": "visits/team",
        "where": "age < 40",
        "params": {"column": "age", "epsilon": "0.4"},
    }
    found = released(world, **narrow).result.document["columns"]["age"]
    assert found == {"lower": 16, "upper": 64} and planned(world, **ours).digest == before
    assert [one.scope for one in ledger.releases_by_name("visits/team", "look")] == [
        "visits",
        "visits/team",
    ]


def test_a_gate_takes_no_bounds(world: Tiny) -> None:
    """Nothing but the gate reads its holdout, so no search can have been there; said before
    anything is looked up.
    """
    world.declare(columns=OPEN, holdout=True)
    with pytest.raises(
        PlanRefused, match="'visits' is a holdout, which no search may read beside its gate"
    ):
        planned(world, mechanism="reusable_holdout", bounds="look")


@pytest.mark.parametrize(
    ("text", "step", "low", "high"),
    [
        ("2014-01-02", "1", dt.date(2014, 1, 2), dt.date(2014, 1, 2)),
        ("2014-01-02", "10", dt.date(2013, 12, 31), dt.date(2014, 1, 10)),
        ("2014-01-02 03:04:05+00", "1", dt.datetime(2014, 1, 2), dt.datetime(2014, 1, 3)),
        ("1914-01-02 18:00:00", "1/2", dt.datetime(1914, 1, 2, 12), dt.datetime(1914, 1, 3)),
        ("20140102", "1", 20140102, 20140102),  # which ISO 8601 also reads as a date
        ("-20140102.5", "1", -20140103, -20140102),
        ("-20140102.5", "0.1", Fraction("-20140102.5"), Fraction("-20140102.5")),
        (16, "10", 10, 20),
    ],
)
def test_found_bounds_are_widened_to_the_grid(text: Any, step: str, low: Any, high: Any) -> None:
    """Dates and times stay such: by the hyphens that every one and no number has inside."""
    found = [_widen(text, Fraction(step), round_to) for round_to in (math.floor, math.ceil)]
    assert found == [low, high]
    assert [type(end) is dt.date for end in found] == [type(low) is dt.date, type(high) is dt.date]


def test_no_row_is_clamped_because_of_a_coarse_step(world: Tiny) -> None:
    """4,000 rows of 20 to 69 in steps of 50: bounds of 16 to 128 would make 50 of every row below 25."""
    world.declare(columns={"age": {"step": 50}})
    released(world, **SEARCH)
    assert planned(world, **TOTAL).table.columns["age"].grid_bounds() == (0, 3)


def test_every_scope_pays_a_search(world: Tiny) -> None:
    """A delta allows Gaussian noise, which has no price in a scope of filter basic: there it is Laplace,
    and costs no delta.
    """
    params = {"column": "age", "by": "city", "epsilon": "0.2"}
    world.declare(
        columns=OPEN
        | {
            "city": {"public_keys": [f"c{n}" for n in range(60)], "groups": 60, "rows_per_group": 1}
        },
        contribution_bounds={"rows": 60},
    )
    request = SEARCH | {"params": params | {"delta": "1e-7"}}
    file = load_request(world.file(**request))
    assert make_plan(file, REGISTRY).event.epsilon_delta() is None
    receipt = released(world, **request)
    assert (receipt.epsilon, receipt.delta) == ("0.2", "0")
    assert released(world, **SEARCH | {"params": params}).replayed


def test_a_run_takes_its_own_search_first(world: Tiny) -> None:
    """An upstream task of the same run comes before older searches; another run takes the first one
    of all.
    """
    runs = [
        RunIdentity("d", "search", f"2020-01-0{day}", make_slot("d", str(day)), "me")
        for day in (1, 2)
    ]
    released(world, runs[0], **SEARCH)
    world.fill(MANY.replace("20 + i % 50", "3000 + i % 50"))
    released(world, runs[1], **SEARCH | {"params": {"column": "age", "epsilon": "0.4"}})
    tops = [
        planned(world, RunIdentity("d", "t", run, make_slot("s"), "me"), **TOTAL)
        .table.columns["age"]
        .upper
        for run in ("2020-01-01", "2020-01-02", "2020-01-03")
    ]
    assert tops == [128, 4096, 128]


def test_a_quota_finds_the_searches_of_its_scope(world: Tiny) -> None:
    """A search that the dataset paid for serves its teams."""
    released(world, **SEARCH)
    table = load_table(world.folder / "visits.yml")
    Ledger(world.ledger).grant(
        "visits/team", "0.5", 0, filter="basic", table=table, principal="owner"
    )
    assert planned(world, **TOTAL | {"scope": "visits/team"}).table.columns["age"].upper == 128


def test_dates_are_bounds_too(world: Tiny) -> None:
    """A search of a DATE column writes dates, and so does a release that takes them."""
    world.declare(columns={"born": {}})
    found = released(
        world, **SEARCH | {"params": {"column": "born", "epsilon": "0.5"}}
    ).result.document
    assert found["columns"]["born"] == {"lower": "1992-06-06", "upper": "2014-11-10"}
    wanted = planned(
        world, **TOTAL | {"mechanism": "median", "params": {"column": "born", "epsilon": "0.2"}}
    )
    (row,) = release(wanted, Ledger(world.ledger), registry=REGISTRY).result.rows
    born = dt.date.fromisoformat(str(row.value))
    # The type may be a TIMESTAMP for all the mechanism knows.
    assert ", rounded to days, is within" in row.remark
    assert abs((born - dt.date(2001, 2, 15)).days) < 60
    assert isinstance(wanted.mechanism.data_request(wanted.params, wanted.table), SortedValues)


def test_python_and_forecasts(world: Tiny) -> None:
    """`dpflow.plan` takes bounds from a ledger; a forecast before the search supposes wide ones, at
    the same price.
    """
    request = load_request(world.file(**TOTAL))
    before = make_plan(request, REGISTRY, Ledger(world.ledger), assume_bounds=True)
    released(world, **SEARCH)
    terms: dict[str, Any] = {
        "name": "total",
        "scope": "visits",
        "blocks": ["2020-01-01"],
        "bounds": ["look"],
    }
    wanted = plan(
        "sum",
        world.folder / "visits.yml",
        **terms,
        ledger=Ledger(world.ledger),
        column="age",
        epsilon=Fraction(1, 5),
    )
    assert wanted.privacy_cost() == before.privacy_cost() == ("0.2", "0")
    request = load_request(world.file(**TOTAL))
    after = make_plan(request, REGISTRY, Ledger(world.ledger), assume_bounds=True)
    assert after.digest == wanted.digest
