"""Real data: six faults in a year of flights, and what paid contracts find of them at what price."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import yaml

from dpflow.core.toolbox.aggregate import MeasureMechanism
from dpflow.core.toolbox.row_checks import make_excess, query_check
from dpflow.demo.data import extract_flights
from dpflow.engine.releases.plan import Plan
from dpflow.ledger import Ledger
from dpflow.mechanisms.watch_rows import WatchRows, WatchRowsParams, watch_margins
from dpflow.quality import Contract, check, parse_contract, run_contract
from dpflow.quality.contract_run import plan_contract
from dpflow.quality.verdicts import judge_checks
from dpflow.quality.watch import plan_session
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource
from experiments.report import Experiment, Found, bound

EPSILON = "2"  #: of a metered day, and of a watch's session
CONFIDENCE = "0.9999"  #: 2,190 verdicts in a year
DRAWS = 40  #: of each fault size

#: What good days keep with room to spare: the worst day of 2013 has 49 % late flights.
CHECKS: list[dict[str, Any]] = [
    {"name": "few", "check": "rows", "at_least": 250},
    {"name": "many", "check": "rows", "at_most": 1150},
    {"name": "carriers", "check": "nulls", "column": "carrier", "at_most": "0.02"},
    {"name": "late", "check": "violations", "condition": "delay > 60", "at_most": "0.6"},
    {
        "name": "air",
        "check": "violations",
        "condition": "air_time < 15 OR air_time > 720",
        "at_most": "0.02",
    },
    {
        "name": "distance",
        "check": "violations",
        "condition": "distance < 50 OR distance > 3000",
        "at_most": "0.03",
    },
]

#: Fault, its day, the check that is to find it, and the statement that makes it.
FAULTS = (
    (
        "missing carrier",
        "2013-01-17",
        "carriers",
        "UPDATE {day} SET carrier = NULL WHERE carrier = 'UA'",
    ),
    ("shifted delays", "2013-03-05", "late", "UPDATE {day} SET delay = delay + 120"),
    ("duplicated rows", "2013-05-14", "many", "INSERT INTO {day} SELECT * FROM {day}"),
    ("empty day", "2013-07-23", "few", "DELETE FROM {day}"),
    ("swapped units", "2013-09-10", "air", "UPDATE {day} SET air_time = air_time * 60"),
    ("scale error", "2013-11-12", "distance", "UPDATE {day} SET distance = distance / 100"),
)

DECLARATION: dict[str, Any] = {
    "name": "flights",
    "database": "flights.duckdb",
    "privacy_unit": {"column": "tailnum"},
    "block": "day",
    "contribution_bounds": {"rows": 2},
    "columns": {
        "delay": {"lower": -60, "upper": 300},
        "air_time": {"lower": 0, "upper": 720},
        "distance": {"lower": 0, "upper": 5000},
        "carrier": {"public_keys": "9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV".split()},  # noqa: SIM905
    },
}


def make_world(folder: Path) -> tuple[Ledger, list[str]]:
    """The flights of 2013 with six faults, their declaration, and a budget. Returns the days."""
    with duckdb.connect(str(folder / "flights.duckdb")) as connection:
        connection.execute(
            f"""CREATE TABLE flights AS SELECT tailnum, make_date(year, month, day) AS day, carrier,
            CAST(dep_delay AS DOUBLE) AS delay, CAST(air_time AS DOUBLE) AS air_time,
            CAST(distance AS DOUBLE) AS distance
            FROM read_csv('{extract_flights(folder)}', nullstr='NA') WHERE tailnum IS NOT NULL"""
        )
        days = [
            str(d)
            for (d,) in connection.sql("SELECT DISTINCT day FROM flights ORDER BY day").fetchall()
        ]
        for _, day, _, statement in FAULTS:
            connection.execute(
                f"CREATE TEMP TABLE broken AS SELECT * FROM flights WHERE day = '{day}'"
            )
            connection.execute(statement.format(day="broken"))
            connection.execute(f"DELETE FROM flights WHERE day = '{day}'")
            connection.execute("INSERT INTO flights FROM broken")
            connection.execute("DROP TABLE broken")
    (folder / "flights.yml").write_text(yaml.safe_dump(DECLARATION))
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    table = load_table(folder / "flights.yml")
    for scope in ("metered", "watch"):
        ledger.grant(
            scope, 1000, 0, filter="basic", table=table, principal="owner", confirm_large=True
        )
    return ledger, days


def make_contract(folder: Path, mode: str) -> Contract:
    """The contract of a mode."""
    fields: dict[str, Any] = {"name": mode, "table": "flights.yml", "mode": mode, "scope": mode}
    fields |= {"checks": CHECKS, "epsilon": EPSILON}
    # A good day has less room than the noise, so most of its shares cannot be proven to be kept.
    fields |= {"undecided": "pass"}
    fields |= {"confidence": CONFIDENCE} if mode == "metered" else {"period": "year"}
    return parse_contract(fields, folder)


def faults(months: int) -> Found:
    """Every day of so many months, in every mode; then faults of all sizes on one day."""
    registry = Registry.load()
    found: dict[str, dict[str, set[str]]] = {"metered": {}, "watch": {}, "trusted": {}}
    undecided, seconds = 0, dict.fromkeys(found, 0.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger, days = make_world(folder)
        days = [day for day in days if int(day[5:7]) <= months]
        contracts = {mode: make_contract(folder, mode) for mode in ("metered", "watch")}
        table = contracts["metered"].load_declaration()
        for day in days:
            for mode, contract in contracts.items():
                began = time.process_time()
                outcome = run_contract(contract, [day], ledger=ledger, registry=registry)
                seconds[mode] += time.process_time() - began
                found[mode][day] = {o.name for o in outcome.checks if o.verdict == "violated"}
                undecided += sum(o.verdict == "undecided" for o in outcome.checks)
            began = time.process_time()
            found["trusted"][day] = set() if check(table, [day]) else {"declaration"}
            seconds["trusted"] += time.process_time() - began
        spent = {
            mode: float(ledger.remaining(mode).rows()[0]["epsilon_spent"]) for mode in contracts
        }
        session = plan_session(contracts["watch"], days[:1], registry)
        ((release, _),) = plan_contract(contracts["metered"], [], registry)
        sizes = {"metered": metered_sizes(release), "watch": watch_sizes(session)}
        injected = [fault for fault in FAULTS if fault[1] in days]
        excesses = {day: measure_excess(session, by, day) for _, day, by, _ in injected}
        curves = draw_sizes(contracts["metered"], release, session, days[0])
    # What the simulation counted, beside what the plan said beforehand.
    rows = [
        (
            fault,
            by,
            round(excesses[day]),
            *(round(sizes[mode][by]) for mode in sizes),
            *("yes" if found[mode][day] else "no" for mode in found),
        )
        for fault, day, by, _ in injected
    ]
    faulty = {day for _, day, _, _ in injected}
    false = {
        mode: sum(bool(names) for day, names in by.items() if day not in faulty)
        for mode, by in found.items()
    }
    rows.append(("false alarms", "", "", "", "", *false.values()))
    share = undecided / len(days) / len(CHECKS)
    rows.append(("checks undecided", "", "", "", "", share, 0.0, 0.0))
    rows.append(("epsilon spent", "", "", "", "", *(spent | {"trusted": 0.0}).values()))
    rows.append(("CPU seconds a day", "", "", "", "", *(s / len(days) for s in seconds.values())))
    for mode, widths in sizes.items():
        curves[f"predicted {mode}"] = [(widths["carriers"], 0.0), (widths["carriers"], 1.0)]
    bounds = [
        bound(
            f"{mode}: faults above the detectable size that are found on their day",
            sum(
                by in found[mode][day]
                for _, day, by, _ in injected
                if excesses[day] >= sizes[mode][by]
            )
            / max(1, sum(excesses[day] >= sizes[mode][by] for _, day, by, _ in injected)),
            least=1.0,
        )
        for mode in sizes
    ]
    bounds += [
        bound(
            "faults above both detectable sizes",
            float(
                sum(excesses[d] >= max(s[by] for s in sizes.values()) for _, d, by, _ in injected)
            ),
            least=float(len(injected)),
        ),
        *(
            bound(f"{mode}: days with a false alarm", float(false[mode]), most=1.0)
            for mode in sizes
        ),
        bound(
            "watch: epsilon spent, as a share of metered",
            spent["watch"] / spent["metered"],
            most=0.1,
        ),
    ]
    columns = ("fault", "check", "excess", "detectable metered", "detectable watch", *found)
    return Found(columns, tuple(rows), curves, tuple(bounds))


def measure_excess(session: Plan, name: str, day: str) -> float:
    """The true excess of a check on a day, after contributions were bounded: what noise has to show.
    Only whoever injects faults knows it.
    """
    params = session.params
    assert isinstance(params, WatchRowsParams)
    (one,) = [check for check in params.checks if check.name == name]
    query = query_check(one, session.table)
    answer: Any = PrivateTable(session.table).answer(query.data_request(), [day])
    excess = make_excess(one, query)
    return float(excess.evaluate({m: int(answer.moment(*m)[0]) for m in excess.coefficients}))


def metered_sizes(plan: Plan) -> dict[str, float]:
    """By check, the excess that is found but for 1 - confidence: twice the half-width of its noise."""
    params: Any = plan.params
    release, _ = plan.mechanism.choose_release(params, plan.table)  # type: ignore[union-attr]
    sizes = {}
    for one in params.checks:
        excess = make_excess(one, release.query)
        failure = (1 - float(CONFIDENCE)) / len(excess.coefficients)
        tails = {m: float(release.noises[m].half_width(failure)) for m in excess.coefficients}
        sizes[one.name] = 2 * excess.half_width(tails)
    return sizes


def watch_sizes(plan: Plan) -> dict[str, float]:
    """By check, the excess that a session finds with 95 %, over all its questions."""
    assert isinstance(plan.params, WatchRowsParams)
    return {name: 2 * margin for name, margin in watch_margins(plan.params, plan.table).items()}


def draw_sizes(
    contract: Contract, release: Plan, session: Plan, day: str
) -> dict[str, list[tuple[Any, float]]]:
    """How often rows without a carrier are found, by their excess, on a good day."""
    one, watch = release.mechanism, session.mechanism
    assert isinstance(one, MeasureMechanism) and isinstance(watch, WatchRows)
    private = PrivateTable(release.table)
    exact: Any = private.answer(one.data_request(release.params, release.table), [day])
    query = watch.Query(check="carriers")
    asked: Any = private.answer(watch.data_request(session.params, query, session.table), [day])
    curves: dict[str, list[tuple[Any, float]]] = {"metered": [], "watch": []}
    for excess in range(0, 201, 20):
        without = round(excess + 0.02 * int(exact.rows[0]))
        sums = {"check_carriers": np.array([without])}
        found = {"metered": 0, "watch": 0}
        for seed in range(DRAWS):
            answer = replace(exact, sums={**exact.sums, **sums})
            result = one.draw(release.params, release.table, answer, StreamSource(seed))
            outcomes = {o.name: o.verdict for o in judge_checks(contract, release, result)}
            found["metered"] += outcomes["carriers"] == "violated"
            source = StreamSource(seed + DRAWS)
            state = watch.open(session.params, session.table, source)
            answer = replace(asked, sums={**asked.sums, **sums})
            verdict, _ = watch.answer(session.params, session.table, state, query, answer, source)
            found["watch"] += verdict.body["verdict"] == "alarm"
        for mode, number in found.items():
            curves[mode].append((excess, number / DRAWS))
    return curves


EXPERIMENTS = (
    Experiment(
        81,
        "contract-faults",
        "Six faults in a year of flights",
        "The flights of 2013 from New York, day by day, with six days broken. Each contract has six checks. It protects all "
        "flights of an aircraft, of which two a day are counted; further copies of rows are truncated. `metered` pays epsilon 2 "
        "every day, `watch` epsilon 2 for a session of the year and once more after each alarm, `trusted` nothing: it is no private "
        "answer. Excess: violating rows beyond what is allowed. An excess is detectable if it is twice the margin that the plan "
        "states beforehand (metered at confidence 0.9999 for each check, watch at 95 % for all 2,190 questions). The figure: how often "
        "rows without a carrier are found on a good day, in 40 draws of each size.",
        ("rows without a carrier beyond the bound", "share found"),
        faults,
        runs=12,
        small=1,
    ),
)
