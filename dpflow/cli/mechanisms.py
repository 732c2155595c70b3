"""`dpflow mechanisms`: what is installed, from where."""

from __future__ import annotations

from typing import Annotated

import typer

from dpflow.cli.console import JsonOption, explain_entry, show_json, show_table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.registry import Registry


def command(
    name: Annotated[
        str | None,
        typer.Argument(help="A mechanism, to see its parameters; all are listed without."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List installed mechanisms, built-ins and plugins, or explain one and its parameters."""
    registry = Registry.load()
    if name is not None:
        return explain_entry(registry.find_mechanism(name), as_json)
    rows = [
        {
            "name": m.name,
            "kind": "session" if isinstance(m, InteractiveMechanism) else "release",
            "version": m.version,
            "summary": m.summary,
            "params": sorted(m.Params.model_fields),
            "origin": registry.origin[m.name],
            "citation": m.citation,
        }
        for m in registry.mechanisms.values()
    ]
    if as_json:
        show_json(rows)
    else:
        cells = ((r["name"], r["kind"], r["summary"], r["origin"]) for r in rows)
        title = "mechanisms (dpflow mechanisms NAME explains one)"
        show_table(title, ("name", "kind", "summary", "from"), cells)
