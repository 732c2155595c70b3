"""`dpflow estimators`: what holdout groups can be scored by."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpflow.cli.console import JsonOption, show_json, show_table
from dpflow.core.contract.estimators import Estimator
from dpflow.registry import Registry

#: Which candidate an estimator scores, by `Estimator.model`.
_CANDIDATES = {"": "columns", "one": "a model", "two": "a model and its rival"}


def command(
    name: Annotated[
        str | None, typer.Argument(help="An estimator to explain; all are listed without.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the estimators of gates and answering sessions, or explain one: direction, range, default."""
    registry = Registry.load()
    names = registry.estimators if name is None else [registry.find_estimator(name).name]
    rows = [_describe(registry.find_estimator(n), registry.origin[n]) for n in names]
    if as_json:
        return show_json(rows if name is None else rows[0])
    if name is not None:
        return show_table(name, ("", ""), rows[0].items())
    cells = ((r["name"], r["better"], r["range"], r["scores"], r["summary"]) for r in rows)
    title = "estimators (dpflow estimators NAME explains one)"
    show_table(title, ("name", "better", "range", "scores", "summary"), cells)


def _describe(estimator: Estimator, origin: str) -> dict[str, Any]:
    if estimator.range is None:
        span = "none; a metric may give one"
    elif estimator.range == "column":
        span = "the first column's bounds"
    else:
        span = " to ".join(f"{end:.6g}" for end in estimator.range)
    return {
        "name": estimator.name,
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
