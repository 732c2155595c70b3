"""`dpflow plan`: cost, error and refusal forecast, of one release or of a whole schedule, without
touching data or budget.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_ledger,
    find_service,
    show_json,
    show_table,
)
from dpflow.core.contract.printed_numbers import print_width
from dpflow.errors import InvalidInput
from dpflow.yaml_files import load_yaml


def command(
    place: Annotated[Path, typer.Argument(help="A release file, a DAG file, or a folder of them.")],
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
    start: Annotated[
        str | None, typer.Option(help="First date of the schedule, such as 2026-01-31.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(help="How often release files and DAGs without a timetable run: 1d, 12h, 2w."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Look no further than this date; ten years if left out.")
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="Suppose a grant: SCOPE=EPSILON[,DELTA[,FILTER[,TAIL_SHARE]]]; repeatable."
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Find the noise that makes this many runs fit.")
    ] = None,
    share: Annotated[
        list[str] | None, typer.Option(help="With --runs: RELEASE=WEIGHT; repeatable.")
    ] = None,
    error: Annotated[
        list[str] | None, typer.Option(help="With --runs: RELEASE=ERROR at 95 %; repeatable.")
    ] = None,
    fail_over: Annotated[
        float | None,
        typer.Option(
            help="Exit code 1 if a budget comes to more than this share of its grant, such as 0.8, or nobody can tell."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw how the budgets burn down, as SVG or PNG.")
    ] = None,
) -> None:
    """Say what a release or a whole schedule will cost, before anything is spent.

    Per task: privacy cost and error.
    Per scope: when it is exhausted, which filter holds more releases, what noise fits.
    """
    if runs is None and (share or error):
        raise InvalidInput("--share and --error say how to divide a grant over runs; add --runs N")
    if fail_over is not None and not 0 < fail_over <= 1:
        raise InvalidInput("--fail-over is a share of a grant, above 0 and at most 1; write 0.8")
    # Options of a schedule make a schedule of a single release file, too.
    options = (start, every, until, grant, runs, plot, fail_over)
    if place.is_dir() or place.suffix == ".py" or any(options):
        # One release, which most plans are about, needs none of it.
        from dpflow.cli import plan_schedule
        from dpflow.engine.planning.report import list_faults

        wishes = plan_schedule.Wishes.parse_options(
            start, every, until, grant or [], runs, share or [], error or []
        )
        seen = plan_schedule.plan_schedule(
            place, find_ledger(ledger, [place]), wishes, as_json, plot
        )
        if fail_over is not None and (faults := list_faults(seen, fail_over)):
            # Not among what a pipe reads.
            for fault in faults:
                print(fault, file=sys.stderr)
            raise typer.Exit(1)
        return
    if service := find_service(ledger, place.parent):
        planned = service.plan_fields(load_yaml(place, "release file"))
        return _show_plan(str(planned.request["name"]), dict(planned.about), as_json)
    # They bring databases, which who asks a service need not have.
    from dpflow.engine import load_request, make_plan
    from dpflow.engine.planning.precheck import forecast
    from dpflow.registry import Registry

    request, book = load_request(place), find_ledger(ledger, [place])
    plan = make_plan(request, Registry.load(), book)
    view = plan.describe()
    view["forecast"] = forecast(plan, book) if book else "no ledger yet, so no forecast"
    _show_plan(plan.request.name, view, as_json)


def _show_plan(name: str, view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return show_json(view)
    widths = view.pop("half_width_95")
    if isinstance(widths, dict):
        widths = {name: print_width(width) for name, width in widths.items()}
    view["95 % half-width"] = widths
    rows = ((k, _event_text(v)) for k, v in view.items() if v != "")
    show_table(f"plan {name}", ("", ""), rows)


def _event_text(value: Any) -> str:
    """An event or the errors by measure, on one line."""
    if isinstance(value, list):
        return "; ".join(map(_event_text, value))
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(
        _event_text(v) if k == "kind" else f"{k} {_event_text(v)}" for k, v in value.items()
    )
