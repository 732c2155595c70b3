"""`dpflow mechanisms`: what is installed, by what it is for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpflow.cli.console import JsonOption, explain_entry, show_json, show_table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import JOBS, Mechanism
from dpflow.mechanisms.rank_methods import list_choices
from dpflow.registry import AnyMechanism, Registry


def command(
    word: Annotated[
        str | None,
        typer.Argument(
            help="A mechanism, to see its parameters, or a word to search for; all are listed without."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List installed mechanisms by job, search them, or explain one and its parameters."""
    registry = Registry.load()
    if word is not None and (word in registry.mechanisms or word in registry.estimators):
        mechanism = registry.find_mechanism(word)
        explain_entry(mechanism, as_json)
        return None if as_json else _print_choices(mechanism, registry)
    rows = [_describe(mechanism, registry) for mechanism in registry.mechanisms.values()]
    if word is not None:
        rows = [row for row in rows if word.casefold() in _text_of(row)]
        if not rows:
            registry.find_mechanism(word)
    if as_json:
        return show_json(rows)
    for job in JOBS:
        cells = [
            (row["name"], row["kind"], row["summary"], row["prefer"], row["origin"])
            for row in rows
            if row["job"] == job
        ]
        if cells:
            show_table(job, ("name", "kind", "summary", "prefer", "from"), cells)
    print("dpflow mechanisms NAME explains one, dpflow mechanisms WORD searches")


def _describe(mechanism: AnyMechanism, registry: Registry) -> dict[str, Any]:
    return {
        "name": mechanism.name,
        # A plugin may call its job by a word of its own.
        "job": mechanism.job if mechanism.job in JOBS else JOBS[-1],
        "kind": "session" if isinstance(mechanism, InteractiveMechanism) else "release",
        "version": mechanism.version,
        "summary": mechanism.summary,
        "prefer": describe_door(mechanism, registry),
        "params": sorted(mechanism.Params.model_fields),
        "origin": registry.origin[mechanism.name],
        "citation": mechanism.citation,
    }


def describe_door(mechanism: AnyMechanism, registry: Registry) -> str:
    """The mechanism to ask in place of this one, and where that takes this one itself."""
    door = registry.mechanisms.get(mechanism.door) if mechanism.door else None
    if not isinstance(door, Mechanism):
        return ""
    uses = list_choices(door).get(mechanism.name)
    return door.name + (f", which takes this one for: {'; '.join(uses)}" if uses else "")


def _print_choices(mechanism: AnyMechanism, registry: Registry) -> None:
    """Which mechanism to prefer, and which ones this one takes itself."""
    if door := describe_door(mechanism, registry):
        print(f"prefer {door}")
    choices = list_choices(mechanism) if isinstance(mechanism, Mechanism) else {}
    for name, questions in choices.items():
        print(f"takes {name} for: {'; '.join(questions)}")


def _text_of(row: dict[str, Any]) -> str:
    """What a search looks at."""
    return " ".join(row[name] for name in ("name", "job", "kind", "summary", "citation")).casefold()
