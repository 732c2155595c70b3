"""`dpflow demo`: the main job on real data, end to end, through a real Airflow scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.console import terminal
from dpflow.errors import InvalidInput


def command(
    days: Annotated[
        int,
        typer.Option(min=2, max=60, help="Consecutive days of January 2013 and after to release."),
    ] = 14,
    root: Annotated[
        Path | None, typer.Option(help="Folder with dags/; state goes to its demo/ folder.")
    ] = None,
    up: Annotated[
        bool,
        typer.Option(
            "--up", help="Start Airflow with its UI on the demo's state, and leave it running."
        ),
    ] = False,
    down: Annotated[bool, typer.Option("--down", help="Stop what --up started.")] = False,
) -> None:
    """Run the main job: daily releases, a model gate, a crash, a refusal and a verification; then
    write a report.
    """
    from dpflow.demo import job, ui

    place = (root or project_root()).resolve()
    if up and down:
        raise InvalidInput("give --up or --down, not both")
    if up:
        return ui.up(place)
    if down:
        return ui.down(place)
    job.run(place, days, terminal())


def project_root() -> Path:
    """The clone this dpflow runs from: the demo needs its dags folder."""
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / "dags" / "flights_daily.py").exists():
            return folder
    raise InvalidInput(
        "there is no dags/flights_daily.py here; run the demo from a clone of dpflow, or give --root"
    )
