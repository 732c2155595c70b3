"""The schedule side of `dpflow plan`: reads options and files, prints the engine's forecast as
tables, JSON or a plot.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dpflow.cli.console import show_json, show_table
from dpflow.cli.pictures import save_picture
from dpflow.core.accounting import amounts
from dpflow.core.accounting.privacy_filters import (
    Cost,
    Filter,
    FilterName,
    default_filter,
    make_filter,
)
from dpflow.core.contract.printed_numbers import print_width
from dpflow.counted import counted
from dpflow.engine.planning import report
from dpflow.engine.planning.fit_schedule import SolvedLine, solve_epsilons
from dpflow.engine.planning.simulate import (
    Forecast,
    Job,
    file_job,
    forecast_schedule,
    release_files,
)
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.ledger import Ledger, Scope
from dpflow.registry import Registry

_SPANS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Wishes:
    """The options, parsed."""

    start: dt.datetime | None
    every: dt.timedelta | None
    until: dt.datetime | None
    grants: dict[str, Filter]
    runs: int | None
    shares: dict[str, str]
    errors: dict[str, str]

    @classmethod
    def parse_options(
        cls,
        start: str | None,
        every: str | None,
        until: str | None,
        grants: list[str],
        runs: int | None,
        shares: list[str],
        errors: list[str],
    ) -> Wishes:
        """Raises `InvalidInput` for what cannot be understood."""
        granted = {k: _parse_filter(k, v) for k, v in _parse_pairs("--grant", grants).items()}
        return cls(
            parse_date("--start", start),
            _parse_span(every),
            parse_last_date("--until", until),
            granted,
            runs,
            _parse_pairs("--share", shares),
            _parse_pairs("--error", errors),
        )


def _parse_filter(scope: str, text: str) -> Filter:
    """The filter of a supposed grant; what is left out is as `dpflow ledger grant` has it."""
    parts = text.split(",")
    if len(parts) > 4:
        raise InvalidInput(
            f"--grant {scope} has more than EPSILON,DELTA,FILTER,TAIL_SHARE; correct it"
        )
    epsilon, delta, rule, share = (*parts, *("", "0", "", "")[len(parts) :])
    exact = amounts.check_epsilon(epsilon), amounts.check_delta(delta)
    name = cast(FilterName, rule) if rule else default_filter(exact[1])
    tail_share = amounts.parse_exact("tail_share", share) if share else None
    return make_filter(name, *exact, tail_share=tail_share)


def plan_schedule(
    place: Path, ledger: Ledger | None, wishes: Wishes, as_json: bool, plot: Path | None
) -> Forecast:
    """Read, forecast, solve if asked, and print."""
    registry = Registry.load()
    jobs = read_jobs(place, wishes, ledger)
    # Without a ledger first: a supposed grant needs to know which table charges its scope.
    first = forecast_schedule(jobs, registry, None)
    assumed = {name: _suppose_grant(name, rule, first) for name, rule in wishes.grants.items()}
    seen = forecast_schedule(jobs, registry, ledger, supposed_grants=assumed, until=wishes.until)
    fitted = _fit_noise(seen, wishes) if wishes.runs is not None else []
    if plot is not None:
        draw_forecast(seen, plot)
    if as_json:
        description = report.describe_forecast(seen)
        if fitted:
            description["fitted"] = {
                "runs": wishes.runs,
                "tasks": [one.to_json() for one in fitted],
            }
        show_json(description)
    else:
        _print_forecast(seen, fitted, wishes)
    return seen


def read_jobs(place: Path, wishes: Wishes, ledger: Ledger | None) -> list[Job]:
    """Jobs of a file or folder. A release file that a DAG reads belongs to the DAG."""
    start = wishes.start or dt.datetime.now(dt.UTC)
    if not place.exists():
        raise InvalidInput(
            f"there is nothing at {place}; give a release file, a DAG file, or a folder of them"
        )
    jobs: list[Job] = []
    of_dags: set[Path] = set()
    # Airflow is imported only if there is a DAG file to read.
    if place.suffix == ".py" or (place.is_dir() and any(place.rglob("*.py"))):
        from dpflow.airflow.dag_jobs import read_dags

        jobs, of_dags = read_dags(
            place,
            start=wishes.start,
            every=wishes.every,
            filters=ScopeFilters(ledger, wishes.grants),
        )
    if place.suffix != ".py":
        files = release_files(place) if place.is_dir() else [place]
        jobs += [
            file_job(file, start, wishes.every) for file in files if file.resolve() not in of_dags
        ]
    if not jobs:
        raise InvalidInput(
            f"nothing in {place} charges a budget: no release file, and no DAG with a release or a gate"
        )
    return jobs


def _suppose_grant(name: str, filter: Filter, seen: Forecast) -> Scope:
    """A grant that nobody made, for the table that charges it."""
    tables = [line.plan.table for line in seen.lines if name in line.scope_path]
    if not tables:
        raise InvalidInput(
            f"no task charges scope {name!r}; the scopes charged are: {', '.join(seen.ungranted)}"
        )
    return Scope(name, filter, tables[0].protection_text, tables[0].protects == "unit-block")


def _fit_noise(seen: Forecast, wishes: Wishes) -> list[SolvedLine]:
    """Solve for a fresh block, or for what a scope without blocks has left."""
    if seen.ungranted:
        raise InvalidInput(
            f"scope {seen.ungranted[0]!r} has no grant to fit; name its ledger, or suppose one with --grant"
        )
    # A session that is open is paid for, whatever its noise.
    lines = [line for line in seen.lines if line not in seen.open_sessions]
    granted = {name: outlook.scope for name, outlook in seen.outlooks.items()}
    # A scope with blocks pays for a run from fresh ones: only the others have spent anything.
    spent = {
        name: seen.spent.get(name, {}).get("", Cost())
        for name, scope in granted.items()
        if not scope.blocks
    }
    assert wishes.runs is not None
    return solve_epsilons(
        lines, granted, wishes.runs, shares=wishes.shares, errors=wishes.errors, spent=spent
    )


# --- for people -------------------------------------------------------------------------------------------------------


_TASKS = ("task", "charged", "release", "mechanism", "scope", "epsilon", "delta", "95 % half-width")
_FITS = ("release", "scope", "share", "epsilon now", "epsilon that fits", "error now", "error then")


def _print_forecast(seen: Forecast, fitted: list[SolvedLine], wishes: Wishes) -> None:
    description = report.describe_forecast(seen)
    runs = {job["job"]: job["runs"] for job in description["jobs"]}
    tasks = (_task_row(task, runs[task["job"]]) for task in description["tasks"])
    show_table("tasks", _TASKS, tasks)
    for note in description["notes"]:
        print(note)
    for row in description["scopes"]:
        title = f"scope {row['scope']} (a round is one run of every job)"
        show_table(title, ("", ""), _scope_rows(row))
    for name in description["ungranted"]:
        print(
            f"scope {name!r} has no grant here: name its ledger, or suppose one with --grant {name}=1,1e-6"
        )
    if fitted:
        fits = (_fitted_row(one.to_json()) for one in fitted)
        show_table(f"noise that makes {wishes.runs} runs fit", _FITS, fits)
    print(f"forecast: {description['forecast']}")


def _task_row(task: dict[str, Any], runs: str) -> tuple[Any, ...]:
    charged = "once" if task["charged"] == "once" else runs
    name = task["job"] if task["task"] == task["job"] else f"{task['job']}: {task['task']}"
    where = (name, charged, task["release"], task["mechanism"], task["scope"])
    return (*where, task["epsilon"], task["delta"], _errors(task["half_width_95"]))


def _fitted_row(row: dict[str, Any]) -> tuple[Any, ...]:
    share = row["share"] or "by its error"
    errors = _errors(row["half_width_95_now"]), _errors(row["half_width_95"])
    return (row["release"], row["scope"], share, row["epsilon_now"], row["epsilon"], *errors)


def _scope_rows(row: dict[str, Any]) -> list[tuple[str, str]]:
    best, fixed = row["filters"][0], row["fixed_schedule"]
    shared = f", tail share {best['tail_share']}" if best["tail_share"] not in (None, "1") else ""
    if row["exhausted"]:
        where = f", block {row['exhausted_block']}" if row["exhausted_block"] else ""
        end = f"{row['exhausted'][:16]}{where}"
    else:
        end = f"no (last run {row['last_run'][:10]})" if row["last_run"] else "no run"
    once = f"; once {row['once']['epsilon']}" if row["once"]["epsilon"] != "0" else ""
    before = f" ({row['runs_paid_before']} paid before)" if row["runs_paid_before"] else ""
    if changed := row["runs_changed"]:
        before += (
            f"; {len(changed)} already paid for another release of the same interval, and need spend_again for this one: "
            f"{', '.join(changed[:3])}{f' and {len(changed) - 3} more' if changed[3:] else ''}"
        )
    costs = f"epsilon {row['round']['epsilon']}, delta {row['round']['delta']}{once}"
    closed = "; closed: its owner grants it again" if row["closed"] else ""
    rows = [
        ("grant", f"epsilon {row['epsilon']}, delta {row['delta']} ({row['filter']}){closed}"),
        ("charged", row["charged"]),
        ("a round costs", costs),
        ("rounds that fit", _count_text(row["rounds_that_fit"])),
        ("runs served", f"{row['runs']}{before}"),
        ("exhausted", end),
        ("best filter", f"{best['filter']}: {_count_text(best['rounds'])}{shared}"),
    ]
    if fixed:
        cost = "costs" if fixed["releases"] == 1 else "cost"
        cost = f"{counted(fixed['releases'], 'release')} {cost} epsilon {fixed['epsilon']:.4g} at delta {fixed['delta']}"
        rows.append(("fixed in advance", f"{cost} ({fixed['report']})"))
    return rows


def _count_text(number: int | None) -> str:
    return "any number" if number is None else "none" if number < 0 else f"{number:,}"


def _errors(bounds: dict[str, float] | None) -> str:
    if bounds is None:
        return "part of the result"
    return ", ".join(f"{k} {print_width(v)}" for k, v in bounds.items())


def draw_forecast(seen: Forecast, file: Path) -> None:
    """Share of each scope's grant that is left after every run; under a budget per block, of the
    blocks of that run.
    """
    with require_extra("plots", "a plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, scope in seen.outlooks.items():
        if scope.burn:
            label = name + (" (blocks of the run)" if scope.scope.blocks else "")
            dates: Any = [when for when, _ in scope.burn]
            left = [1 - used for _, used in scope.burn]
            # A step holds until the next run: a slope would show budget that is gone.
            axes.step(dates, left, where="post", label=label)
        if scope.refused:
            end: Any = scope.refused
            axes.axvline(end, linestyle=":", color="grey")
            axes.annotate("exhausted", (end, 0.5), rotation=90, ha="right")
    # A little room, or a line at 0 or 1 would lie on the frame.
    axes.set(
        ylim=(-0.02, 1.02), ylabel="left of the grant", title="forecast of this schedule alone"
    )
    axes.xaxis_date()
    if axes.get_lines():
        axes.legend()
    figure.autofmt_xdate()
    save_picture(figure, file)


# --- options ----------------------------------------------------------------------------------------------------------


def parse_date(option: str, value: str | None) -> dt.datetime | None:
    """The date of an option, in UTC if it names no zone; None if it was left out. Raises `InvalidInput`."""
    if value is None:
        return None
    try:
        date = dt.datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(
            f"{option} {value[:40]!r} is no date; write it as 2026-01-31 or 2026-01-31T06:00"
        ) from None
    # UTC, so that a forecast does not depend on the machine it is made on.
    return date if date.tzinfo else date.replace(tzinfo=dt.UTC)


def parse_last_date(option: str, value: str | None) -> dt.datetime | None:
    """As `parse_date`, but a date alone is its whole day."""
    date = parse_date(option, value)
    is_day = date is not None and len(value or "") <= 10
    return dt.datetime.combine(date, dt.time.max, date.tzinfo) if date and is_day else date


def _parse_span(value: str | None) -> dt.timedelta | None:
    if value is None:
        return None
    # Six digits at most: any such number of weeks still fits into a timedelta.
    match = re.fullmatch(r"(\d{1,6})\s*([mhdw])", value.strip())
    if match is None or int(match[1]) == 0:
        raise InvalidInput(
            f"--every {value[:40]!r} is no span of time; write it as 1d, 12h, 30m or 2w"
        )
    return dt.timedelta(**{_SPANS[match[2]]: int(match[1])})


def _parse_pairs(option: str, values: list[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        # From the right: a release's name may hold an equals sign, an amount does not.
        name, equals, amount = value.rpartition("=")
        if not equals or not name or not amount:
            raise InvalidInput(
                f"{option} {value[:60]!r} has no NAME=VALUE; write it as {option} 'some name=1'"
            )
        pairs[name] = amount
    return pairs
