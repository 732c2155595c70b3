"""`dpflow mechanisms`: what is installed, from where."""

from __future__ import annotations

from dpflow.cli.common import JsonOption, show, show_json
from dpflow.core.mechanism import InteractiveMechanism
from dpflow.registry import Registry


def command(as_json: JsonOption = False) -> None:
    """List installed mechanisms: built-ins and plugins."""
    registry = Registry.load()
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
        cells = ((r["name"], r["kind"], r["summary"], ", ".join(r["params"]), r["origin"]) for r in rows)
        show("mechanisms", ("name", "kind", "summary", "params", "from"), cells)
