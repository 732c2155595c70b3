"""`dpflow reference`: what a release file, a gate, `dpflow calculate` or an error may name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dpflow import errors
from dpflow.cli.console import JsonOption, explain_entry, show_json, show_table
from dpflow.cli.measured_doors import COLUMNS, describe_preference, list_measured
from dpflow.core.contract.estimators import Estimator
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import JOBS, Mechanism
from dpflow.errors import UnknownName
from dpflow.mechanisms.rank_methods import NEVER_TAKEN, list_choices
from dpflow.registry import AnyMechanism, Registry

#: What a table of each kind shows beside names; mechanisms have a table for each of their jobs.
_SHOWN = {
    **dict.fromkeys(JOBS, ("kind", "summary", "prefer", "origin")),
    "estimators": ("better", "range", "scores", "summary"),
    "calculators": ("summary", "inputs"),
    "errors": ("summary", "retry helps"),
}
#: Which candidate an estimator scores, by `Estimator.model`.
_CANDIDATES = {"": "columns", "one": "a model", "two": "a model and its rival"}


def command(
    word: Annotated[
        str | None,
        typer.Argument(
            help="A name to explain, a kind to list, or a word to search for; all are listed without."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List mechanisms by job, estimators, calculators and errors; search them, or explain one."""
    registry = Registry.load()
    if word in registry.mechanisms or word in registry.calculators:
        return _explain(str(word), registry, as_json)
    rows = list(_list_rows(registry))
    if exact := [row for row in rows if row["name"] == word]:
        return show_json(exact[0]) if as_json else show_table(str(word), ("", ""), exact[0].items())
    if word is not None:
        known = [row["name"] for row in rows]
        rows = [row for row in rows if word == row["job"]] or [
            row for row in rows if word.casefold() in _searched_text(row)
        ]
        if not rows:
            raise UnknownName("mechanism, estimator, calculator or error", word, known)
    if as_json:
        return show_json(rows)
    for job, columns in _SHOWN.items():
        cells = [(row["name"], *(row[column] for column in columns)) for row in rows if row["job"] == job]  # fmt: skip
        if cells:
            show_table(job, ("name", *columns), cells)
    print("dpflow reference NAME explains one, dpflow reference WORD searches")


def _list_rows(registry: Registry) -> Iterator[dict[str, Any]]:
    for name, mechanism in registry.mechanisms.items():
        yield {
            "name": name,
            # A plugin may call its job by a word of its own.
            "job": mechanism.job if mechanism.job in JOBS else JOBS[-1],
            "kind": "session" if isinstance(mechanism, InteractiveMechanism) else "release",
            "version": mechanism.version,
            "summary": mechanism.summary,
            "prefer": describe_door(mechanism, registry),
            "params": sorted(mechanism.Params.model_fields),
            "origin": registry.origin[name],
            "citation": mechanism.citation,
        }
    for name, estimator in registry.estimators.items():
        yield _describe_estimator(estimator, registry.origin[name])
    for name, calculator in registry.calculators.items():
        fields = calculator.Params.model_fields.items()
        yield {
            "name": name,
            "job": "calculators",
            "summary": calculator.summary,
            "inputs": [n + "?" * (not field.is_required()) for n, field in fields],
            "origin": registry.origin[name],
            "citation": calculator.citation,
        }
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.DpflowError):
            about, _, remedy = inspect.cleandoc(error.__doc__ or "").partition("\n\n")
            yield {
                "name": name,
                "job": "errors",
                "summary": " ".join(about.split()),
                "what to do": " ".join(remedy.partition("\n\n")[0].split()),
                "retry helps": "yes" if error.retryable else "no",
            }


def _describe_estimator(estimator: Estimator, origin: str) -> dict[str, Any]:
    ends = estimator.find_range({})
    if ends is None:
        span = "none; a metric may give one"
    elif ends == "column":
        span = "the first column's bounds"
    else:
        span = " to ".join(f"{end:.6g}" for end in ends)
    return {
        "name": estimator.name,
        "job": "estimators",
        "summary": estimator.summary,
        "better": estimator.better,
        "range": span,
        "default": f"{estimator.default:.6g}",
        "scores": _CANDIDATES[estimator.model],
        "columns": f"at least {estimator.columns}",
        "options": ", ".join(f"{n} (default {v})" for n, v in estimator.options.items()) or "none",
        "mean over rows": "yes" if estimator.row_scores else "no",
        "origin": origin,
    }


def _explain(name: str, registry: Registry, as_json: bool) -> None:
    """A mechanism or calculator with its fields; of a mechanism also which one to prefer, and which ones it takes."""
    if name in registry.calculators:
        return explain_entry(registry.find_calculator(name), as_json)
    mechanism = registry.find_mechanism(name)
    explain_entry(mechanism, as_json)
    if as_json:
        return
    if door := describe_door(mechanism, registry):
        print(f"prefer {door}")
        lines = [[line[name] for name in COLUMNS[2:]] for line in list_measured(name)]
        if lines:
            show_table("mean errors, as shares of the rows", COLUMNS[2:], lines)
    choices = list_choices(mechanism) if isinstance(mechanism, Mechanism) else {}
    for taken, questions in choices.items():
        print(f"takes {taken} for: {'; '.join(questions)}")


def describe_door(mechanism: AnyMechanism, registry: Registry) -> str:
    """The mechanism to ask in place of this one, for what that was measured, and where it takes this one itself, or why never."""
    door = registry.mechanisms.get(mechanism.door) if mechanism.door else None
    if not isinstance(door, Mechanism):
        return ""
    uses = list_choices(door).get(mechanism.name)
    takes = f"; it takes this one for: {'; '.join(uses)}" if uses else ""
    if reason := NEVER_TAKEN.get(mechanism.name):
        takes = f"; it never takes this one: {reason}"
    return door.name + describe_preference(mechanism.name) + takes


def _searched_text(row: dict[str, Any]) -> str:
    """What a search looks at."""
    words = ("name", "job", "kind", "summary", "citation")
    return " ".join(row.get(word, "") for word in words).casefold()
