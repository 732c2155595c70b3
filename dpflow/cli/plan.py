"""`dpflow plan`: cost, error and refusal forecast, without touching data or budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.common import JsonOption, LedgerOption, open_ledger, show, show_json
from dpflow.engine import load_request, make_plan
from dpflow.engine.forecast import forecast
from dpflow.registry import Registry

FileArgument = Annotated[Path, typer.Argument(help="A release file (YAML).")]


def command(file: FileArgument, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Print what a release file would cost, how accurate it would be, and whether the ledger would take it."""
    plan = make_plan(load_request(file), Registry.load())
    view = plan.describe()
    view["forecast"] = forecast(plan, open_ledger(ledger)) if ledger else "no ledger named, so no forecast"
    if as_json:
        show_json(view)
    else:
        show(f"plan {plan.request.name}", ("", ""), ((k, v) for k, v in view.items()))
