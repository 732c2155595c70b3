"""`dpflow calculate`: planners, bounds and tables that touch neither rows nor budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from dpflow.cli.console import JsonOption, show_json, show_table
from dpflow.cli.pictures import save_picture
from dpflow.core.contract.calculator import Calculator, Sheet
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.registry import Registry
from dpflow.yaml_files import RepeatedKey, parse_yaml

MANY = 7  #: columns beside each other


def command(
    name: Annotated[str, typer.Argument(help="A calculator, as dpflow reference lists them.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Its inputs as field=value; a value may be a list: [1, 2]."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the columns of numbers to this PNG or SVG file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a question about methods: how many rows, how much noise, what no method can reach."""
    calculator = Registry.load().find_calculator(name)
    sheet = calculator.run(parse_words(inputs or []))
    if plot is not None:
        _draw_sheet(calculator, sheet, plot)
    if as_json:
        return show_json(sheet.to_json())
    show_table(calculator.summary, *_sheet_table(sheet))
    for note in sheet.notes:
        print(note)


def parse_words(inputs: list[str]) -> dict[str, Any]:
    """``field=value`` words as a mapping; values are read as YAML, amounts stay texts so that they
    stay exact.
    """
    values: dict[str, Any] = {}
    for word in inputs:
        field, equals, text = word.partition("=")
        if not equals or not field:
            raise InvalidInput(f"{word!r} is not an input; write field=value, such as epsilon=0.5")
        # Else the last one would win, and nobody would see that the first was dropped.
        if field in values:
            raise InvalidInput(f"{field} is given twice; give it once")
        try:
            values[field] = parse_yaml(text, texts_only=True)
        except RepeatedKey as error:
            raise InvalidInput(f"{field}: {error.problem}; write each key once") from None
        except yaml.YAMLError:
            raise InvalidInput(
                f"the value of {field} cannot be read; write a number, a word or a list [1, 2]"
            ) from None
    return values


def _draw_sheet(calculator: Calculator, sheet: Sheet, file: Path) -> None:
    """Every column of numbers against the sheet's x column, both axes logarithmic where all numbers
    are positive.
    """
    if not sheet.x:
        raise InvalidInput(f"calculator {calculator.name} has no curve to draw; leave --plot out")
    with require_extra("plots", "a plot"):
        import matplotlib

        # Files only: no display is needed, and none is opened.
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        figsize=(8 if len(sheet.columns) <= MANY else 11, 5), layout="constrained"
    )
    columns = {name: [row[i] for row in sheet.rows] for i, name in enumerate(sheet.columns)}
    xs = columns.pop(sheet.x)
    positive = True
    for label, ys in columns.items():
        # Cells may be texts or empty: a curve has only its numbers.
        points = [(x, y) for x, y in zip(xs, ys) if _is_number(x) and _is_number(y)]
        if points:
            # Ten colours are all there are: after ten curves they come again, dashed.
            curves = len(axes.lines)
            axes.plot(
                *zip(*points), "--" if curves >= 10 else "-", marker="o", markersize=3, label=label
            )
            positive = positive and all(x > 0 and y > 0 for x, y in points)  # type: ignore[operator]
    if positive:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set(xlabel=sheet.x, title=calculator.summary)
    # Many curves have their legend beside them, where it hides none.
    if len(axes.lines) > MANY:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        axes.legend()
    try:
        save_picture(figure, file)
    finally:
        # pyplot keeps every figure until it is closed.
        plt.close(figure)


def _sheet_table(sheet: Sheet) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Headings and cells; a curve a line where there are more curves than a screen is wide."""
    rows = [tuple(map(_cell_text, row)) for row in sheet.rows]
    if sheet.columns[0] != sheet.x or len(sheet.columns) <= MANY:
        return sheet.columns, rows
    # More curves than a screen is wide: one line per curve instead of one column.
    turned = list(zip(sheet.columns, *rows, strict=True))
    return tuple(map(str, turned[0])), turned[1:]


def _cell_text(value: Any) -> Any:
    """A cell for people: six digits, yes or no, or nothing; JSON has them all."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        whole = value.is_integer() and 1e-4 <= abs(value) < 1e15
        return str(int(value)) if whole else f"{value:.6g}"
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
