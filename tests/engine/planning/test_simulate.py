"""A schedule is forecast with the ledger's own arithmetic: dates, counts, what is paid already,
which noise fits.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dpflow.core.accounting.composition import optimal_eps
from dpflow.core.accounting.events import Approximate, DiscreteGaussian, DiscreteLaplace, Pure
from dpflow.core.accounting.privacy_filters import Cost, Filter, make_filter
from dpflow.engine import RunIdentity, make_plan, release
from dpflow.engine.planning.fit_schedule import (
    compare_filters,
    count_rounds,
    on_grid,
    round_down,
    solve_epsilons,
    total_cost,
)
from dpflow.engine.planning.report import describe_forecast
from dpflow.engine.planning.simulate import (
    Forecast,
    Job,
    PlannedRelease,
    Run,
    Task,
    file_job,
    forecast_schedule,
    release_files,
)
from dpflow.engine.releases.request import parse_request
from dpflow.errors import (
    BudgetExceeded,
    InvalidInput,
    PlanRefused,
    RetryConflict,
    UnknownName,
)
from dpflow.ledger import Ledger, Scope, make_slot
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

F = Fraction
START = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


def job(
    tiny: Tiny,
    *epsilons: str,
    name: str = "daily",
    step: dt.timedelta = DAY,
    moving: bool = False,
    **changes: Any,
) -> Job:
    """A DAG without end: one count per epsilon and run, on one block or on that of its day."""
    content = {"mechanism": "count", "table": "visits.yml", "scope": "visits"} | changes
    requests = [
        parse_request(
            content | {"name": f"{name} {n}", "params": {"epsilon": epsilon}}, tiny.folder
        )
        for n, epsilon in enumerate(epsilons)
    ]

    def asks(run: Run) -> list[Any]:
        block = run.when.strftime("%Y-%m-%d") if moving else "2020-01-01"
        return [PlannedRelease(request, (block,)) for request in requests]

    def runs() -> Iterator[Run]:
        return (Run(START + n * step, f"run {n}") for n in itertools.count())

    return Job(name, name, "daily", (Task("release", asks),), runs)


def granted(
    tiny: Tiny, epsilon: str = "1", delta: str = "0", name: str = "basic", scope: str = "visits"
) -> dict[str, Scope]:
    """A supposed grant."""
    table = load_table(tiny.folder / "visits.yml")
    rule = make_filter(name, F(epsilon), F(delta))  # type: ignore[arg-type]
    return {scope: Scope(scope, rule, table.protection_text, True)}


def test_a_scope_is_exhausted_on_the_day_of_its_first_refusal(
    tiny: Tiny, registry: Registry
) -> None:
    """0.3 + 0.05 a day: two days fit into 1, the third is refused; epsilon 0.1 fits ten times to
    the unit.
    """
    seen = forecast_schedule(
        [job(tiny, "0.3", "0.05")], registry, None, supposed_grants=granted(tiny)
    ).outlooks["visits"]
    assert (seen.runs, seen.refused, seen.block, seen.last) == (
        2,
        START + 2 * DAY,
        "2020-01-01",
        START + DAY,
    )
    assert [used for _, used in seen.burn] == [0.35, 0.7, 1.0]
    ten = forecast_schedule(
        [job(tiny, "0.1")], registry, None, supposed_grants=granted(tiny)
    ).outlooks["visits"]
    assert (ten.runs, ten.refused) == (10, START + 10 * DAY)


def test_a_budget_per_block_lasts_while_the_blocks_move(tiny: Tiny, registry: Registry) -> None:
    """Each day pays its own account: nothing runs out until the forecast ends."""
    until = START + 40 * DAY
    found = forecast_schedule(
        [job(tiny, "0.7", moving=True)], registry, None, supposed_grants=granted(tiny), until=until
    )
    seen = found.outlooks["visits"]
    assert (seen.runs, seen.refused, found.until) == (41, None, until)
    assert {used for _, used in seen.burn} == {0.7}


def test_schedules_are_merged_by_date(tiny: Tiny, registry: Registry) -> None:
    """A weekly and a daily job share a scope: 0.02 a day and 0.3 a week, the first refusal is the
    weekly one.
    """
    jobs = [job(tiny, "0.02"), job(tiny, "0.3", name="weekly", step=7 * DAY)]
    seen = forecast_schedule(jobs, registry, None, supposed_grants=granted(tiny)).outlooks["visits"]
    spent, day = F(0), 0
    while True:
        costs = [F(2, 100)] + ([F(3, 10)] if day % 7 == 0 else [])
        if spent + sum(costs) > 1:
            break
        spent, day = spent + sum(costs), day + 1
    assert seen.refused == START + day * DAY


def test_the_forecast_is_what_the_ledger_does(tiny: Tiny, registry: Registry) -> None:
    """Releasing the schedule for real is refused in the run that was forecast; what was paid counts
    as paid.
    """
    ledger, daily = Ledger(tiny.ledger), job(tiny, "0.2", "0.13")
    before = forecast_schedule([daily], registry, ledger).outlooks["visits"]
    assert ledger.remaining("visits").rows()[0]["used"] == 0, "a forecast charges nothing"
    served = 0
    for run in itertools.islice(daily.runs(), 9):
        occasion = RunIdentity(
            "daily", "release", run.occurrence, make_slot(run.occurrence), "tester"
        )
        try:
            for request, blocks, *_ in daily.tasks[0].asks(run):
                plan = make_plan(request.model_copy(update={"blocks": blocks}), registry)
                release(plan, ledger, registry, run_identity=occasion, spend_again=True)
        except BudgetExceeded:
            break
        served += 1
    assert (before.runs, before.refused) == (served, run.when) == (3, START + 3 * DAY)
    after = forecast_schedule([daily], registry, ledger).outlooks["visits"]
    assert (after.runs, after.runs_paid_before, after.refused) == (3, 3, START + 3 * DAY)


def test_a_forecast_counts_intervals_that_paid_for_another_release(
    tiny: Tiny, registry: Registry
) -> None:
    """An edited task would be refused there, so a backfill after an edit is no surprise."""
    ledger, daily, edited = Ledger(tiny.ledger), job(tiny, "0.1"), job(tiny, "0.15")
    (run,) = itertools.islice(daily.runs(), 1)
    slot = make_slot("daily", run.occurrence, "release")
    ((request, blocks, *_),) = daily.tasks[0].asks(run)
    plan = make_plan(request.model_copy(update={"blocks": blocks}), registry)
    identity = RunIdentity("daily", "release", run.occurrence, slot, "tester")
    release(plan, ledger, registry, run_identity=identity)
    for planned, changed in ((daily, set()), (edited, {run.occurrence})):
        outlook = forecast_schedule([planned], registry, ledger).outlooks["visits"]
        assert outlook.runs_changed == changed
    with pytest.raises(RetryConflict):
        ((request, blocks, *_),) = edited.tasks[0].asks(run)
        plan = make_plan(request.model_copy(update={"blocks": blocks}), registry)
        release(plan, ledger, registry, run_identity=identity)


def test_a_quota_ends_before_the_scope_above(tiny: Tiny, registry: Registry) -> None:
    """Both are on the path; the tighter one refuses, and the other goes on being forecast."""
    both = granted(tiny, "1") | granted(tiny, "0.3", scope="visits/a")
    jobs = [job(tiny, "0.1", scope="visits/a"), job(tiny, "0.1", name="other")]
    found = forecast_schedule(jobs, registry, None, supposed_grants=both).outlooks
    assert found["visits/a"].refused == START + 3 * DAY
    assert found["visits"].refused == START + 7 * DAY  # 3 x 0.2, then 0.1 a day


def test_a_quota_that_refused_pays_again_in_its_next_period(tiny: Tiny, registry: Registry) -> None:
    """Twice a day 0.15, of which a quota of 0.2 pays one: the scope above lasts six days, by UTC."""
    scopes = granted(tiny)
    rule = replace(granted(tiny, "0.2")["visits"].filter, period="day")
    scopes["visits/team"] = replace(scopes["visits"], scope="visits/team", filter=rule)
    # Their own time zone begins its day after noon: what is charged has the ledger's.
    zone = dt.timezone(dt.timedelta(hours=-13))
    start = dt.datetime(2999, 1, 1, tzinfo=dt.UTC)
    twice = replace(
        job(tiny, "0.15", scope="visits/team"),
        runs=lambda: (
            Run((start + n * DAY / 2).astimezone(zone), f"run {n}") for n in itertools.count()
        ),
    )
    seen = forecast_schedule([twice], registry, None, supposed_grants=scopes).outlooks
    team, above = seen["visits/team"], seen["visits"]
    assert (team.refused, team.block) == (start + DAY / 2, "2999-01-01/2020-01-01")
    # The scope above is asked first.
    assert above.refused == start + 5.5 * DAY


def test_a_session_is_paid_once(tiny: Tiny, registry: Registry) -> None:
    """It is charged by the first run that opens it, and not at all if the ledger has it open."""
    from dpflow.engine.sessions.session import Session

    gate = job(tiny, "0.6", mechanism="above_threshold")
    seen = forecast_schedule(
        [gate], registry, None, supposed_grants=granted(tiny), until=START + 9 * DAY
    )
    assert seen.lines[0].once and seen.outlooks["visits"].refused is None
    assert seen.outlooks["visits"].burn[-1][1] == 0.6
    ledger = Ledger(tiny.ledger)
    request, blocks, *_ = gate.tasks[0].asks(Run(START, ""))[0]
    Session.open(
        make_plan(request.model_copy(update={"blocks": blocks}), registry), ledger, registry
    )
    again = forecast_schedule([gate], registry, ledger, until=START + 9 * DAY)
    assert len(again.open_sessions) == 1 and again.outlooks["visits"].burn[-1][1] == 0.6


def test_release_files_are_jobs(tiny: Tiny, registry: Registry) -> None:
    """Once, or a new revision each time; a file that was released already is paid; other YAML is no
    release.
    """
    ledger, file = Ledger(tiny.ledger), tiny.file()
    assert [f.name for f in release_files(tiny.folder)] == ["release.yml"]
    (tiny.folder / "broken.yml").write_text("mechanism: [")
    assert [f.name for f in release_files(tiny.folder)] == ["release.yml"]
    once = forecast_schedule([file_job(file, START, None)], registry, ledger).outlooks["visits"]
    assert (once.runs, once.runs_paid_before, once.refused) == (1, 0, None)
    request = parse_request(yaml.safe_load(file.read_text()), tiny.folder)
    release(make_plan(request, registry), ledger, registry)
    often = forecast_schedule([file_job(file, START, DAY)], registry, ledger).outlooks["visits"]
    assert (often.runs, often.runs_paid_before, often.refused) == (2, 1, START + 2 * DAY)


def test_a_scope_for_something_else_is_refused(tiny: Tiny, registry: Registry) -> None:
    """As the release itself would be."""
    other = {"visits": Scope("visits", make_filter("basic", F(1), F(0)), "one flight", True)}
    with pytest.raises(PlanRefused, match="was granted to protect one flight"):
        forecast_schedule([job(tiny, "0.1")], registry, None, supposed_grants=other)


def test_a_fixed_schedule_is_reported_not_enforced(tiny: Tiny, registry: Registry) -> None:
    """100 releases of 0.01 fill a basic grant; fixed in advance they cost far less, which is said
    and changes nothing.
    """
    grants = granted(tiny, "1", "1e-6")
    (scope,) = describe_forecast(
        forecast_schedule([job(tiny, "0.01")], registry, None, supposed_grants=grants)
    )["scopes"]
    seen = scope["fixed_schedule"]
    assert (scope["rounds_that_fit"], scope["runs"], seen["releases"], seen["delta"]) == (
        100,
        100,
        100,
        "0.000001",
    )
    assert (
        optimal_eps(0.01, 1e-6, 100) <= seen["epsilon"] < optimal_eps(0.01, 1e-6, 100) + 2e-6 < 0.5
    )
    assert "a report for a schedule fixed in advance, not a filter" in seen["report"]
    moving = forecast_schedule(
        [job(tiny, "0.7", moving=True)],
        registry,
        None,
        supposed_grants=grants,
        until=START + 9 * DAY,
    )
    assert moving.outlooks["visits"].charged == ((DiscreteLaplace(F(20, 7), 2), 1),), (
        "one day's account"
    )
    for nothing in (
        granted(tiny),
        granted(tiny, "0.001", "1e-6"),
    ):  # no delta to report at; nothing charged
        found = describe_forecast(
            forecast_schedule([job(tiny, "0.01")], registry, None, supposed_grants=nothing)
        )
        assert found["scopes"][0]["fixed_schedule"] is None


# --- filters and the solver -------------------------------------------------------------------------------------------


def test_rounds_are_counted_as_the_ledger_would() -> None:
    """The numbers of docs/guides/accounting.md; sessions first; nothing fits, or everything does."""
    laplace = DiscreteLaplace(F(100))
    basic, renyi = make_filter("basic", F(1), F(1, 10**6)), make_filter("renyi", F(1), F(1, 10**6))
    assert (count_rounds(basic, [], [laplace]), count_rounds(renyi, [], [laplace])) == (100, 490)
    assert count_rounds(basic, [Pure(F(1, 2))], [laplace, laplace]) == 25
    assert count_rounds(basic, [Pure(F(2))], [laplace]) == -1
    assert count_rounds(basic, [Pure(F(1))], []) is None
    assert count_rounds(basic, [], [laplace], Cost(10**12 - 1, 0, 0)) == 0


def test_the_cheaper_filter_comes_first() -> None:
    """Many small releases: renyi. Few: basic. Gaussian noise: never basic, with the reason. Own
    deltas: delta is divided.
    """
    small = compare_filters(F(1), F(1, 10**6), [], [DiscreteLaplace(F(100))])
    assert [(c.name, c.rounds) for c in small] == [("hybrid", 490), ("renyi", 490), ("basic", 100)]
    assert [(c.name, c.rounds) for c in compare_filters(F(1), F(0), [], [Pure(F(1, 2))])][0] == (
        "basic",
        2,
    )
    gaussian = {
        c.name: c for c in compare_filters(F(1), F(1, 10**6), [], [DiscreteGaussian(F(2500))])
    }
    assert gaussian["renyi"].rounds == 121 and "no epsilon of its own" in gaussian["basic"].reason
    assert (
        "needs delta > 0"
        in {c.name: c for c in compare_filters(F(1), F(0), [], [Pure(F(1, 2))])}["renyi"].reason
    )
    own = {
        c.name: c
        for c in compare_filters(F(1), F(1, 10**6), [], [Approximate(F(1, 100), F(1, 10**9))])
    }
    share = own["renyi"].tail_share
    assert share is not None and 0 < share < 1
    rule = make_filter("renyi", F(1), F(1, 10**6), tail_share=share)
    assert (
        count_rounds(rule, [], [Approximate(F(1, 100), F(1, 10**9))]) == own["renyi"].rounds > 100
    )


def lines(tiny: Tiny, registry: Registry, *jobs: Job) -> Forecast:
    return forecast_schedule(jobs, registry, None, supposed_grants=granted(tiny), until=START)


@pytest.mark.parametrize(("name", "delta"), [("basic", "0"), ("renyi", "1e-6"), ("hybrid", "1e-6")])
@pytest.mark.parametrize("runs", [1, 7, 1000])
def test_the_solved_noise_fits_and_wastes_little(
    tiny: Tiny, registry: Registry, name: str, delta: str, runs: int
) -> None:
    """Exactly ``runs`` runs are admitted; with every epsilon 3 % larger they are not; shares keep
    their ratio.
    """
    found = lines(tiny, registry, job(tiny, "0.3", "0.31", "0.32")).lines
    scope = granted(tiny, "1", delta, name)
    fitted = solve_epsilons(found, scope, runs, shares={"daily 0": "2", "daily 2": "1/2"})
    rule = scope["visits"].filter

    def fits(factor: Fraction) -> bool:
        spent = total_cost(
            rule, [(DiscreteLaplace(2 / (one.epsilon * factor), 2), runs) for one in fitted]
        )
        return Filter.admits(rule.capacity(), spent)

    assert fits(F(1)) and not fits(F(103, 100))
    assert float(fitted[0].epsilon / fitted[2].epsilon) == pytest.approx(4, rel=0.02)


def test_target_errors_come_first_and_the_rest_is_shared(tiny: Tiny, registry: Registry) -> None:
    """The smallest epsilon that reaches an error, on a grid of three digits; the others divide what
    is left.
    """
    found = lines(tiny, registry, job(tiny, "0.3", "0.31")).lines
    wanted, rest = solve_epsilons(found, granted(tiny), 2, errors={"daily 0": "40"})
    assert (
        wanted.share is None
        and wanted.error_bound is not None
        and wanted.error_bound.half_width["count"] <= 40
    )
    smaller = make_plan(
        parse_request(
            {
                "name": "x",
                "mechanism": "count",
                "table": "visits.yml",
                "scope": "visits",
                "blocks": ["2020-01-01"],
                "params": {"epsilon": str(float(wanted.epsilon) * 0.985)},
            },
            tiny.folder,
        ),
        registry,
    )
    assert smaller.error_bound is not None and smaller.error_bound.half_width["count"] > 40
    assert F(98, 100) / 2 < wanted.epsilon + rest.epsilon <= F(1, 2)


def test_a_full_scope_does_not_hold_the_others_back(tiny: Tiny, registry: Registry) -> None:
    """Max-min fair: the quota's release stops at its quota, the other takes the rest of the scope
    above.
    """
    found = lines(
        tiny, registry, job(tiny, "0.1", scope="visits/a"), job(tiny, "0.1", name="b")
    ).lines
    both = granted(tiny, "1") | granted(tiny, "0.2", scope="visits/a")
    inside, outside = solve_epsilons(found, both, 1)
    assert (inside.epsilon, outside.epsilon) == (F(1, 5), F(8, 10))


def test_sessions_are_counted_once_by_the_solver(tiny: Tiny, registry: Registry) -> None:
    """Ten runs, one session: 10 a + s = 1 at equal shares."""
    found = lines(
        tiny, registry, job(tiny, "0.1"), job(tiny, "0.1", name="gate", mechanism="above_threshold")
    ).lines
    each, session = solve_epsilons(found, granted(tiny), 10)
    assert each.epsilon == session.epsilon == F(909, 10000)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"runs": 0}, InvalidInput, "whole number from 1"),
        ({"runs": True}, InvalidInput, "whole number from 1"),
        ({"runs": 10**18}, InvalidInput, "whole number from 1"),
        (
            {"runs": 10**12},
            BudgetExceeded,
            "1000000000000 runs do not fit scope 'visits' with any noise",
        ),
        ({"shares": {"daily 9": 1}}, UnknownName, "did you mean .*'daily 0'"),
        ({"shares": {"daily 0": 0}}, InvalidInput, "must be above 0"),
        ({"shares": {"daily 0": "nan"}}, InvalidInput, "share of 'daily 0'"),
        ({"errors": {"daily 0": "0"}}, InvalidInput, "must be above 0"),
        (
            {"errors": {"daily 0": "1"}},
            BudgetExceeded,
            "target errors alone do not fit scope 'visits'",
        ),
    ],
)
def test_what_cannot_be_solved_is_said(
    tiny: Tiny, registry: Registry, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """No answer rather than a wrong one."""
    found = lines(tiny, registry, job(tiny, "0.3", "0.31")).lines
    with pytest.raises(kind, match=message):
        solve_epsilons(found, granted(tiny), **({"runs": 1} | changes))


def test_an_error_that_depends_on_rows_cannot_be_a_target(tiny: Tiny, registry: Registry) -> None:
    """A mean reports its error with its result."""
    found = forecast_schedule(
        [
            file_job(
                tiny.file(mechanism="mean", params={"column": "age", "epsilon": "0.5"}), START, None
            )
        ],
        registry,
        None,
        supposed_grants=granted(tiny),
    ).lines
    with pytest.raises(InvalidInput, match="part of its result; give it a share"):
        solve_epsilons(found, granted(tiny), 1, errors={"visits": 3})


def test_three_digits_round_down() -> None:
    """What a person copies is never more than what was found, and lies on one grid."""
    assert round_down(0.1239999) == F(123, 1000)
    assert round_down(1e-20) == F(1, 10**12) and round_down(1e9) == 10**6
    assert [on_grid(0), on_grid(899), on_grid(900), on_grid(18 * 900)] == [
        F(1, 10**12),
        F(999, 10**14),
        F(1, 10**11),
        F(10**6),
    ]


def test_two_files_that_declare_the_same_are_no_one_release(tiny: Tiny, registry: Registry) -> None:
    """No digest has a database's path: a run would give the second the first one's result."""
    twin = tiny.folder / "twin.yml"
    text = tiny.declare().read_text().replace("visits.duckdb", "twin.duckdb")
    twin.write_text(text)
    common = {"mechanism": "count", "scope": "visits", "params": {"epsilon": "0.1"}}
    requests = [
        parse_request(common | {"name": name, "table": f"{name}.yml"}, tiny.folder)
        for name in ("visits", "twin")
    ]
    task = Task("release", lambda run: [PlannedRelease(r, ("2020-01-01",)) for r in requests])
    twins = Job("daily", "daily", "once", (task,), lambda: iter([Run(START, "run")]))
    with pytest.raises(PlanRefused, match="'twin' would get the result of 'visits'"):
        forecast_schedule([twins], registry, None)
