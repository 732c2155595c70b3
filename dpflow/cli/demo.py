"""`dpflow demo`: the main job on real data, end to end, through a real Airflow scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.console import make_console
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra


def command(
    days: Annotated[
        int,
        typer.Option(min=2, max=60, help="Consecutive days of January 2013 and after to release."),
    ] = 14,
    root: Annotated[
        Path, typer.Option(help="Folder for the demo's workflows and all of its state.")
    ] = Path("demo"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the last demo in the folder stopped.")
    ] = False,
    up: Annotated[
        bool,
        typer.Option(
            "--up", help="Start Airflow with its UI on the demo's state, and leave it running."
        ),
    ] = False,
    down: Annotated[bool, typer.Option("--down", help="Stop what --up started.")] = False,
) -> None:
    """Run the main job on real data, then write a report.

    Daily releases, a model gate, a crash, a refusal and a verification.
    """
    with require_extra("demo", "the demo"):
        # Imported only now: other commands must not need the demo's extra.
        from dpflow.demo import job, ui

    folder = root.resolve()
    if up + down + resume > 1:
        raise InvalidInput("give one of --resume, --up and --down")
    if up:
        ui.start_ui(folder)
    elif down:
        ui.stop_ui(folder)
    else:
        job.run_demo(folder, days, make_console(), resume=resume)
