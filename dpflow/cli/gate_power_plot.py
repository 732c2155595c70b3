"""What `dpflow gate plan` writes beside its tables: the power curve as a picture, and a release file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dpflow.cli.pictures import save_picture
from dpflow.engine.planning.gate_design import GateOption
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra


def describe_option(option: GateOption) -> dict[str, Any]:
    """One compared method as a line of a table."""
    return {
        "method": option.method,
        "epsilon": "none" if option.epsilon is None else f"{float(option.epsilon):g}",
        "right": f"{option.right:.3f}",
        "verdicts": option.guarantee,
    }


def draw_power(curve: Sequence[tuple[float, float]], what: str, event: str, file: Path) -> None:
    """Draw probabilities by excess. Raises `InvalidInput` for a file that is no picture, or for no
    curve.
    """
    if not curve:
        raise InvalidInput("there is no power curve without a number of units; give --units")
    with require_extra("plots", "a plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([x for x, _ in curve], [y for _, y in curve], marker="o", markersize=4)
    axes.set(xlabel=what, ylabel=f"probability: {event}", ylim=(-0.02, 1.02))
    axes.grid(visible=True, alpha=0.3)
    save_picture(figure, file)


def write_request(request: ReleaseRequest, file: Path) -> None:
    """The release file of a chosen gate. Raises `InvalidInput` if it cannot be written."""
    content = request.model_dump(mode="json", exclude_defaults=True)
    if Path(content["table"]).is_absolute():
        # From the file's folder, as a release file names it: the two may move together.
        content["table"] = os.path.relpath(content["table"], file.absolute().parent)
    try:
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    except OSError:
        raise InvalidInput(f"{file} cannot be written; give a file in a folder of yours") from None
