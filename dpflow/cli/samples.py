"""`dpflow samples`: how many rows each method of asking adaptively needs, and which proven one is
the cheapest.
"""

from __future__ import annotations

from dpflow.cli import calculate
from dpflow.cli.console import JsonOption
from dpflow.registry import Registry


def command(
    inputs: calculate.InputsArgument = None,
    plot: calculate.PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many rows each method of answering or checking k adaptive queries needs.

    --plot draws them over k.
    """
    if plot is not None:
        # Another calculator has the curves; the table below is for one k.
        curves = Registry.load().find_calculator("sample_curves")
        calculate.draw_sheet(curves, curves.run(calculate.parse_words(inputs or [])), plot)
    calculate.command("samples", inputs, as_json=as_json)
