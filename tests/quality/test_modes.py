"""What each mode of a contract may know, what it pays, and what it shows."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml
from contract_world import (
    CHECKS,
    DAY,
    SECRET,
    World,
    declare_profiled,
    release_named,
    verdicts,
    watch,
)
from typer.testing import CliRunner

from dpflow.cli import contract
from dpflow.core.contract.results import NONE, Result, Row
from dpflow.engine.releases import execute
from dpflow.errors import (
    BudgetExceeded,
    ContractViolated,
    InvalidDeclaration,
    InvalidInput,
    PlanRefused,
)
from dpflow.quality import run_contract
from dpflow.quality.contract_file import list_period
from dpflow.quality.contract_run import plan_contract, session_lister
from dpflow.quality.page import write_html
from dpflow.quality.released_expectations import describe_evidence
from dpflow.quality.suggest import suggest_bounds
from dpflow.quality.verdicts import _divide_excess, decide_excess, judge_checks
from dpflow.quality.watch import compare_costs, plan_session, request_session
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource
from tests.smallworld import forbid_reads

REGISTRY = Registry.load()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- public and trusted ---------------------------------------------------------------------------


def test_public_reads_no_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the catalogue alone, so it says the same of an empty table, and works on a holdout."""
    forbid_reads(monkeypatch)
    contract = world.free("public")
    kept = run_contract(contract, [DAY])
    assert kept.passed and verdicts(kept)["delay"] == "kept"
    world.fill(rows=0)
    assert run_contract(contract, [DAY]).to_json() == kept.to_json()
    with duckdb.connect(str(world.database)) as connection:
        connection.execute("ALTER TABLE flights DROP COLUMN delay")
        connection.execute("ALTER TABLE flights ADD COLUMN delay VARCHAR")
        # Of a type that is no unit: every release is refused.
        connection.execute("ALTER TABLE flights DROP COLUMN plane")
        connection.execute("ALTER TABLE flights ADD COLUMN plane DOUBLE")
    broken = run_contract(contract, [DAY])
    assert not broken.passed and verdicts(broken)["delay"] == "violated"
    assert verdicts(broken)["plane"] == "violated"
    declaration = world.folder / "flights.yml"
    fields = yaml.safe_load(declaration.read_text()) | {"holdout": True}
    declaration.write_text(yaml.safe_dump(fields))
    assert verdicts(run_contract(contract))["carrier"] == "kept"
    with pytest.raises(PlanRefused, match="holdout"):
        run_contract(world.free("trusted"), [DAY])


def test_trusted_is_one_recorded_bit(world: World) -> None:
    """The validation result holds the bit, under one expectation, and nothing is charged."""
    outcome = run_contract(world.free("trusted"), [DAY], ledger=world.ledger)
    assert outcome.passed and world.spent() == "0"
    (expectation,) = outcome.validation["results"]
    assert expectation["expectation_config"]["type"] == "expect_declaration_kept"
    world.fill(delay="1000.0")
    broken = run_contract(world.free("trusted"), ["2020-01-02"], ledger=world.ledger)
    with pytest.raises(ContractViolated, match="do not satisfy the declaration"):
        broken.require_passed()


# --- metered --------------------------------------------------------------------------------------


def test_metered_decides_from_what_it_paid(world: World) -> None:
    """Good rows are kept; the faults of a day are named; both are charged what was said."""
    assert verdicts(world.run()) == {"late": "kept", "keys": "kept", "many": "kept"}
    world.fill(delay="100", carrier=f"'{SECRET}'")
    broken = world.run("2020-01-02")
    assert verdicts(broken) == {"late": "violated", "keys": "violated", "many": "kept"}
    with pytest.raises(ContractViolated, match=r"violated: late, keys\); let the table's owner"):
        broken.require_passed()
    assert world.spent() == world.spent("2020-01-02") == "30"


def test_a_retry_is_free_and_says_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same contract on the same block is charged once and read once; another revision pays."""
    first = world.run()
    with monkeypatch.context() as patch:
        forbid_reads(patch)
        again = world.run()
    assert world.spent() == "30"
    told = [outcome.to_json() for outcome in (first, again)]
    assert [one.pop("receipts")[0]["replayed"] for one in told] == [False, True]
    assert told[0] == told[1]
    world.run(revision=2)
    assert world.spent() == "60"


def test_long_lists_of_blocks_that_begin_alike_are_two_runs(world: World) -> None:
    """The name was cut behind twelve blocks: the second list was refused as a conflict with the first."""
    days = [f"2020-01-{day:02}" for day in range(1, 22)]
    for blocks in (days[:20], [*days[:19], days[20]]):
        runs = [world.run(*blocks, epsilon="1") for _ in range(2)]
        assert [run.receipts[0]["replayed"] for run in runs] == [False, True]
    assert [world.spent(day) for day in (days[0], days[19], days[20])] == ["2", "1", "1"]
    asked = world.contract(mode="watch", period="run")
    names = {request_session(asked, blocks).name for blocks in (days[:20], [*days[:19], days[20]])}
    assert len(names) == 2 and all(len(name) <= 200 for name in names)


def test_all_is_charged_or_nothing(world: World) -> None:
    """A contract of two releases that do not fit together charges neither, and reads nothing."""
    world.run(revision=1, epsilon="10")  # a reference to compare with
    drift = {"name": "mix", "column": "carrier", "reference": "base", "at_most": "0.1"}
    with pytest.raises(PlanRefused, match="no settled release of that name"):
        world.run(drift=[drift | {"epsilon": "1"}], revision=2)
    plan_of = plan_contract(world.contract(drift=[drift | {"epsilon": "5"}]), [DAY], REGISTRY)
    named = plan_of[1][0].request.model_copy(update={"name": "base"})
    execute.release(
        execute.Plan(**{**vars(plan_of[1][0]), "request": named}), world.ledger, REGISTRY
    )
    with pytest.raises(BudgetExceeded):
        world.run(drift=[drift | {"epsilon": "90"}], revision=2)
    assert world.spent() == "15"
    kept = world.run(drift=[drift | {"epsilon": "40"}], revision=3)
    assert verdicts(kept)["mix"] == "kept" and world.spent() == "85"
    world.fill(carrier="'UA'")
    moved = world.run("2020-01-02", drift=[drift | {"epsilon": "40"}])
    assert verdicts(moved)["mix"] == "violated"


def test_numbers_beside_a_verdict_are_in_the_unit_of_its_bound(world: World) -> None:
    """A mean's excess is of the mean, at every sum and number that noise leaves possible; a quantile has no estimate."""
    checks = [
        {"name": "mean", "check": "mean", "column": "delay", "at_most": "100"},
        {"name": "middle", "check": "quantile", "column": "delay", "p": "0.5", "at_most": "100"},
    ]
    mean, middle = world.run(checks=checks).checks
    assert mean.verdict == middle.verdict == "kept"
    assert middle.estimate is None and middle.excess is not None
    assert mean.estimate is not None and mean.excess is not None and mean.half_width is not None
    assert abs(mean.estimate - 100 - mean.excess) <= mean.half_width < 100
    assert mean.excess - mean.half_width > -180 and mean.excess + mean.half_width <= 0
    assert "estimate" not in describe_evidence(middle.to_json())


@pytest.mark.parametrize("excess", [-240_000.0, -900.0, 0.0, 900.0, 240_000.0])
def test_a_quotient_of_noisy_numbers_holds_all_that_is_possible(excess: float) -> None:
    """And says what the verdict says; a number that may be 0 bounds nothing."""
    width, number, tail = 957.0, 6_000, 40.0
    middle, half = _divide_excess(excess, width, number, tail)
    assert middle is not None and half is not None
    for total in (excess - width, excess, excess + width):
        for rows in (number - tail, number, number + tail):
            assert middle - half - 1e-9 <= total / rows <= middle + half + 1e-9
    assert decide_excess(middle, half) == decide_excess(excess, width)
    assert _divide_excess(excess, width, 40, 40.0) == (None, None)


def test_what_noise_hides_is_undecided(world: World) -> None:
    """At a small price the excess is within its error: undecided, which fails unless told to pass."""
    outcome = world.run(epsilon="0.01")
    assert "undecided" in verdicts(outcome).values() and not outcome.passed
    with pytest.raises(ContractViolated, match="a larger epsilon, a wider bound, or undecided"):
        outcome.require_passed()
    assert outcome.validation["success"] is False
    passing = world.run(epsilon="0.01", undecided="pass", revision=2)
    if "violated" not in verdicts(passing).values():
        assert passing.passed and passing.validation["success"] is True


def test_verdicts_follow_from_the_stored_result_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the rows are: other released numbers give other verdicts, and none gives none."""
    numbers = {"sum(check_late)": 900, "rows": 1000, "sum(check_keys)": 0}
    rows = tuple(Row("", name, value, 1.0) for name, value in numbers.items())
    monkeypatch.setattr(execute, "draw_result", lambda *_: Result(rows))
    assert verdicts(world.run()) == {"late": "violated", "keys": "kept", "many": "kept"}
    monkeypatch.setattr(execute, "draw_result", lambda *_: NONE)
    silent = world.run(revision=2)
    assert set(verdicts(silent).values()) == {"undecided"} and not silent.passed


def test_wrong_verdicts_are_as_rare_as_said(world: World) -> None:
    """A check exactly at its bound, with confidence 0.8: noise makes it violated in a tenth of 2,000
    draws, the other tenth being on the other side.
    """
    exact = {"name": "at", "check": "rows", "at_least": 1000}
    contract = world.contract(checks=[exact], epsilon="1", confidence="0.8")
    ((plan, _),) = plan_contract(contract, [DAY], REGISTRY)
    release, _ = plan.mechanism.choose_release(plan.params, plan.table)
    (noise,) = release.noises.values()
    width = noise.half_width(0.2)
    drawn = noise.add_noise(np.zeros(2000, np.int64), StreamSource(1))
    wrong = sum(decide_excess(float(-x), width) == "violated" for x in drawn) / 2000
    assert 0.05 < wrong < 0.15


@pytest.mark.parametrize(
    ("excess", "width", "verdict"),
    [
        (1.0, 0.5, "violated"),
        (0.5, 0.5, "undecided"),
        (-0.5, 0.5, "kept"),
        (-0.4, 0.5, "undecided"),
        (float("nan"), 1.0, "undecided"),
        (1.0, float("inf"), "undecided"),
    ],
)
def test_verdict_of_an_excess(excess: float, width: float, verdict: str) -> None:
    assert decide_excess(excess, width) == verdict


def test_bounds_are_suggested_from_released_numbers_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is read and nothing charged; each suggested bound keeps every former run, and one a
    little tighter does not.
    """
    checks = [
        *CHECKS,
        {"name": "mean", "check": "mean", "column": "delay", "at_least": -50},
        {"name": "half", "check": "quantile", "column": "delay", "p": "0.5", "at_most": 100},
    ]
    outcomes = [world.run(day, checks=checks) for day in (DAY, "2020-01-02")]
    spent = world.spent()
    contract = world.contract(checks=checks)
    with monkeypatch.context() as patch:
        forbid_reads(patch)
        found = {one.check.name: one for one in suggest_bounds(contract, world.ledger, REGISTRY)}
    assert world.spent() == spent
    assert {one.runs for name, one in found.items() if name != "half"} == {2}
    assert found["half"].bound is None and "its own bound" in found["half"].remark
    assert 0 <= found["late"].bound < Fraction("0.1") < Fraction("0.2")
    assert 950 < found["many"].bound <= 1000
    # The same draws, judged with other bounds: results are stored, so verdicts follow at once.
    bounds = {n: o for n, o in found.items() if o.bound is not None}
    for name, one in bounds.items():
        side = "at_most" if one.check.at_least is None else "at_least"
        worse = Fraction(95, 100) if (side == "at_most") == (one.bound > 0) else Fraction(105, 100)
        for factor, kept in ((1, True), (worse, False)):
            told = one.check.model_copy(update={side: one.bound * factor})
            judged = contract.model_copy(update={"checks": (told,)})
            ((plan, _),) = plan_contract(contract, [DAY], REGISTRY)
            results = [Result.from_json(one.result) for one in world.ledger.releases("flights")]
            verdict = {judge_checks(judged, plan, result)[0].verdict for result in results}
            assert (verdict == {"kept"}) is kept, name
    assert len(outcomes) == 2


def test_nothing_is_suggested_without_history(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = suggest_bounds(world.contract(), world.ledger, REGISTRY)
    assert {(one.bound, one.remark) for one in found} == {
        (None, "no former run released its numbers under the present declaration")
    }
    # A run that answered none is no history.
    world.run(DAY)
    (record,) = world.ledger.releases("flights")
    told_none = [replace(record, result=NONE.to_json())]
    monkeypatch.setattr(world.ledger, "releases", lambda scope: told_none)
    assert suggest_bounds(world.contract(), world.ledger, REGISTRY) == found
    with pytest.raises(InvalidInput, match="releases none"):
        suggest_bounds(world.contract(mode="watch"), world.ledger, REGISTRY)


# --- rows that a profile cuts ---------------------------------------------------------------------


@pytest.fixture
def profiled(tmp_path: Path) -> World:
    return declare_profiled(tmp_path)


LATE = [{"name": "late", "check": "violations", "condition": "delay > 30", "at_most": "0.05"}]


def test_a_profile_changes_no_verdict(profiled: World) -> None:
    """A contract's rows are cut as declared: a profile released in between had the stored numbers judged by noise that
    they did not have, and cut the rows of later runs, of which one in ten is late here.
    """
    terms = {"checks": LATE, "epsilon": "5", "confidence": "0.99"}
    before = profiled.run(**terms)
    release_named(
        profiled, "contributions of flights", "contributions", groupings=["carrier"], epsilon="10"
    )
    assert profiled.run(**terms).checks == before.checks
    after = profiled.run(**terms, name="later")
    (first,), (second,) = before.checks, after.checks
    assert first.half_width == second.half_width
    (shown,) = plan_contract(
        profiled.contract(checks=LATE, epsilon="5"), [DAY], REGISTRY, profiled.ledger
    )
    assert "500 rows" in str(shown[0].describe())


def test_drift_compares_rows_that_are_cut_alike(profiled: World) -> None:
    """The reference took a profile's bounds: the shares of the very same rows had drifted."""
    release_named(
        profiled, "contributions of flights", "contributions", groupings=["carrier"], epsilon="10"
    )
    drift = [{"name": "mix", "column": "carrier", "at_most": "0.05", "epsilon": "5"}]
    release_named(profiled, "chosen", "histogram", by="carrier", epsilon="0.02")
    with pytest.raises(PlanRefused, match="cut each plane's rows, otherwise"):
        profiled.run(checks=None, epsilon=None, drift=[drift[0] | {"reference": "chosen"}])
    release_named(
        profiled,
        "fixed",
        "histogram",
        by="carrier",
        epsilon="40",
        contribution_bounds={"rows": 500},
    )
    told = profiled.run(
        checks=None, epsilon=None, drift=[drift[0] | {"reference": "fixed", "epsilon": "40"}]
    )
    assert verdicts(told) == {"mix": "kept"}


def test_a_plan_states_the_noise_that_its_scope_holds(tmp_path: Path) -> None:
    """A scope with filter basic holds no Gaussian noise: `contract plan` stated it, and decided by it."""
    world = World(tmp_path)
    many = [CHECKS[0] | {"name": f"c{n}", "condition": f"delay > {n}"} for n in range(40)]
    fields = {"name": "wide", "table": "flights.yml", "mode": "metered", "scope": "flights", "epsilon": "1",
              "delta": "1e-6", "checks": many}  # fmt: skip
    (tmp_path / "c.yml").write_text(yaml.safe_dump(fields))
    (tmp_path / "dpflow.yml").write_text(f"ledger: {tmp_path / 'ledger.sqlite'}\n")
    told = CliRunner().invoke(
        contract.app, ["plan", str(tmp_path / "c.yml"), "--block", DAY, "--json"]
    )
    (view,) = json.loads(told.output)
    assert view["delta"] == "0"
    (outcome, *_) = world.run(**fields).checks
    assert float(view["error of c0"]) == pytest.approx(outcome.half_width, rel=0.5)


# --- watch ----------------------------------------------------------------------------------------


def test_a_watch_is_paid_whole_when_it_is_opened(world: World) -> None:
    """Every day of the month is charged once, whatever is asked; quiet days add nothing."""
    for day in (DAY, DAY, "2020-01-03"):
        outcome = watch(world, day)
        # Up to twice the margin may be hidden: it is never said to be kept.
        assert outcome.passed and outcome.verdict.startswith("quiet")
        assert set(verdicts(outcome).values()) == {"quiet"} and outcome.validation["success"]
    assert {world.spent(day) for day in (DAY, "2020-01-31")} == {"40"}
    assert world.spent("2020-02-01") == "0"


def test_an_alarm_opens_another_paid_session(world: World) -> None:
    """After an alarm the rest of the month, from that day on, is charged once more; a retry asks
    nothing new; an earlier day, asked too late, is undecided.
    """
    world.fill(delay="170")
    broken = watch(world, "2020-01-02")
    assert verdicts(broken) == {"late": "alarm", "keys": "quiet", "many": "quiet"}
    assert (world.spent(), world.spent("2020-01-02")) == ("40", "80")
    again = watch(world, "2020-01-02")
    assert (again.checks, again.validation) == (broken.checks, broken.validation)
    assert watch(world, "2020-01-03").passed
    assert (world.spent(), world.spent("2020-01-03")) == ("40", "80")
    assert set(verdicts(watch(world, DAY)).values()) == {"undecided"}
    assert world.spent() == "40"


def test_a_watch_that_cannot_be_paid_reads_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_reads(monkeypatch)
    with pytest.raises(BudgetExceeded):
        watch(world, DAY, epsilon="101")
    assert world.spent() == "0"


def test_an_alarm_is_told_where_another_session_cannot_be_paid(world: World) -> None:
    """Paid and answered, it was lost in the refusal of the next session, in every run: nothing was recorded."""
    world.fill(delay="170")
    day = "2020-01-02"
    broken = watch(world, day, epsilon="60")
    assert verdicts(broken) == {"late": "alarm", "keys": "undecided", "many": "undecided"}
    assert not broken.passed and world.spent(day) == "60"
    with pytest.raises(
        ContractViolated, match="alarm: late.*keys, many: after an alarm .*cannot pay"
    ):
        broken.require_passed()
    assert watch(world, day, epsilon="60").checks == broken.checks
    assert [entry.kind for entry in world.ledger.history()].count("contract") == 2


def test_the_plan_says_which_is_cheaper(world: World) -> None:
    """One check is cheaper alone; of ten, a session is."""
    many = [CHECKS[2] | {"name": f"many{n}", "at_least": n} for n in range(12)]
    costs = {}
    for number in (1, 12):
        contract = world.contract(mode="watch", checks=many[:number])
        costs[number] = compare_costs(plan_session(contract, [DAY], REGISTRY))
    assert (costs[1].cheaper, costs[12].cheaper) == ("metered", "watch")
    assert costs[12].describe()["cheaper"] == "watch"
    assert costs[12].per == "each block"


def test_a_watch_needs_blocks_that_are_dates(world: World) -> None:
    for period in ("run", "month"):
        contract = world.contract(mode="watch", period=period)
        with pytest.raises(InvalidInput, match="name the run's blocks, or take mode: metered"):
            run_contract(contract, [], ledger=world.ledger)
        for ledger in (world.ledger, None):
            with pytest.raises(InvalidInput, match="name the run's blocks, or take mode: metered"):
                session_lister(contract, ledger)([])
    assert world.spent() == "0"
    with pytest.raises(InvalidInput, match="blocks that are dates"):
        watch(world, "first")
    assert watch(world, DAY, period="run").passed
    assert (world.spent(), world.spent("2020-01-02")) == ("40", "0")


@pytest.mark.parametrize("epsilon", ["0.0007", "0.0001"])
def test_a_watch_with_noise_that_cannot_be_drawn_is_no_plan(world: World, epsilon: str) -> None:
    """The threshold's noise is half as wide as a question's: between the two a session was paid that
    could answer none, and then the next one.
    """
    checks = [
        CHECKS[0] | {"at_most": "0.200003"},
        {"name": "mean", "check": "mean", "column": "delay", "at_most": "79.123457"},
    ]
    with pytest.raises(PlanRefused, match="noise of more than 2\\^50 steps"):
        watch(world, DAY, checks=checks, epsilon=epsilon)
    assert world.spent() == "0"


def test_a_watch_that_cannot_read_pays_once_a_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What answered none is closed. The other questions of the run open no further session."""
    with monkeypatch.context() as patch:
        patch.setattr(PrivateTable, "answer", lambda *_: 1 / 0)
        broken = watch(world, DAY)
    assert set(verdicts(broken).values()) == {"undecided"}
    assert world.spent() == "40"
    assert watch(world, DAY).checks == broken.checks
    assert watch(world, "2020-01-03").passed
    assert world.spent() == "80"


def test_a_stored_quiet_says_that_no_row_was_read(world: World) -> None:
    """Rows that came after the answer are in no question: the outcome, and its page, must not say "quiet" of them."""
    first = watch(world, "2020-01-02", DAY)
    assert (first.verdict, [one["replayed"] for one in first.receipts]) == ("quiet", [False])
    world.fill(delay="170", carrier="'UA'")
    again = watch(world, "2020-01-02")
    assert again.verdict == "quiet, as answered before: no row was read"
    assert again.verdict in write_html(again)
    assert again.receipts == ({**first.receipts[0], "replayed": True, "stored_answers": 3},)
    later = watch(world, "2020-01-02", "2020-01-03")
    assert (later.verdict, later.receipts[0]["replayed"]) == (
        "quiet, 3 questions as answered before",
        False,
    )


def test_a_block_has_one_name(world: World) -> None:
    """Another spelling of a date paid for the month, and then was none of its blocks."""
    with pytest.raises(InvalidInput, match="'2020-01-01', and '20200101' is another name"):
        watch(world, "20200101")
    assert world.spent() == "0"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "trusted"}, "takes no checks, epsilon"),
        ({"checks": None}, "needs checks"),
        ({"epsilon": None}, "go together"),
        ({"scope": None}, "which budget pays"),
        ({"mode": "watch", "delta": "0.1"}, "takes no delta"),
        ({"alarms": 2}, "takes no alarms"),
        ({"checks": [CHECKS[0], CHECKS[0]]}, "name each check once"),
        ({"confidence": "1"}, "confidence"),
        ({"table": None}, "table: is missing"),
        ({"chekcs": []}, "did you mean 'checks'"),
    ],
)
def test_what_is_no_contract_is_refused(world: World, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDeclaration, match=words):
        world.contract(**fields)


@pytest.mark.parametrize("period", ["day", "week", "month", "year"])
@pytest.mark.parametrize("block", ["2020-02-29", "9999-12-31", "9999-12-01", "0001-01-01"])
def test_a_period_ends_where_calendars_do(block: str, period: str) -> None:
    """The first day after the last one is no date; a watch in it ended in an unforeseen failure."""
    days = list_period(block, period)
    least = {"day": 1, "week": 1, "month": 29, "year": 365}[period]
    assert block in days and days == sorted(days) and least <= len(days) <= 366


def test_keys_of_other_types_than_texts_are_known(world: World) -> None:
    """Declared keys are texts, whatever their column holds: whole numbers, dates, truths."""
    world.fill(carrier="'AA'")
    with duckdb.connect(str(world.database)) as connection:
        connection.execute("ALTER TABLE flights DROP COLUMN carrier")
        connection.execute("ALTER TABLE flights ADD COLUMN carrier INTEGER DEFAULT 7")
        connection.execute("ALTER TABLE flights ADD COLUMN since DATE DEFAULT DATE '2020-01-01'")
        connection.execute("ALTER TABLE flights ADD COLUMN diverted BOOLEAN DEFAULT true")
    declaration = world.folder / "flights.yml"
    fields = yaml.safe_load(declaration.read_text())
    for keys, since, diverted, verdict in (
        (["7", "-1"], ["2020-01-01"], ["false", "true"], "kept"),
        (["0", "1"], ["2021-01-01"], ["false"], "violated"),
    ):
        listed = {"carrier": keys, "since": since, "diverted": diverted}
        fields["columns"] |= {name: {"public_keys": keys} for name, keys in listed.items()}
        declaration.write_text(yaml.safe_dump(fields))
        checks = [
            {"name": name, "check": "unknown_keys", "column": name, "at_most": "0.1"}
            for name in listed
        ]
        outcome = world.run(checks=checks, name=verdict)
        assert verdicts(outcome) == dict.fromkeys(listed, verdict)


def test_a_contract_is_judged_by_the_noise_that_its_scope_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a delta Gaussian noise is better for many checks, and a basic scope pays none: what is drawn
    and what verdicts are decided by is Laplace noise.
    """
    world = World(tmp_path)
    world.ledger.grant("wide", 10, "1e-3", filter="basic", table=world.table, principal="owner")
    checks = [
        {"name": f"c{n}", "check": "violations", "condition": f"delay > {n}", "at_most": "0.9"}
        for n in range(60)
    ]
    fields: dict[str, Any] = {"scope": "wide", "epsilon": "5", "delta": "1e-4", "checks": checks}
    contract = world.contract(**fields)
    ((unknown, _),) = plan_contract(contract, [DAY], REGISTRY)
    assert unknown.event.epsilon_delta() is None
    judged: list[Any] = []

    def judge(contract: Any, plan: Any, result: Any) -> Any:
        judged.append(plan)
        return judge_checks(contract, plan, result)

    monkeypatch.setattr("dpflow.quality.contract_run.judge_checks", judge)
    outcome = run_contract(contract, (DAY,), ledger=world.ledger)
    (receipt,) = outcome.receipts
    assert (receipt["epsilon"], receipt["delta"]) == ("5", "0")
    assert [plan.params.noise for plan in judged] == ["laplace"]
    assert judged[0].privacy_cost() == (receipt["epsilon"], receipt["delta"])
