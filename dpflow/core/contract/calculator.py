"""The third part of the plugin contract: a `Calculator` answers a question about methods, not
about rows.

Planners (how many rows does this need?), bounds (what can no method reach?) and comparison tables
of the papers are calculators. They read nothing private, cost nothing, and run from ``dpflow
calculate NAME field=value ...`` or Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dpflow.core.accounting.amounts import AS_WRITTEN
from dpflow.core.contract.strict_models import describe_problems
from dpflow.errors import InvalidDeclaration


@dataclass(frozen=True)
class Sheet:
    """A calculator's answer: a table for people and programs.

    Attributes:
        columns: headings.
        rows: cells: texts, numbers, truth values or None.
        notes: sentences that belong below the table: assumptions, what is proven and what is not.
        x: heading of the column for the horizontal axis of a plot, or "" if there is nothing to
            draw; every other column of numbers is a curve.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | bool | None, ...], ...]
    notes: tuple[str, ...] = ()
    x: str = ""

    def to_json(self) -> dict[str, Any]:
        """Columns, rows and notes as JSON."""
        return {
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
        }


class Calculator:
    """A question about methods that needs no rows, answered by a function.

    Attributes:
        make_sheet: the function; its ``params`` are of a pydantic model, and it raises `InvalidInput` where its formula
            does not hold.
        name: the word on the command line, unique among installed plugins: the function's name without ``show_``.
        summary: what it answers: the first paragraph of the function's docstring.
        citation: where the formula comes from.
        Params: the model of its inputs; its docstring says what they mean, in which unit.
    """

    def __init__(self, make_sheet: Callable[[Any], Sheet], citation: str) -> None:
        """Take name, summary and inputs from a function."""
        self.make_sheet, self.citation = make_sheet, citation
        self.name = make_sheet.__name__.removeprefix("show_")
        text = " ".join((make_sheet.__doc__ or "").partition("\n\n")[0].split())
        self.summary = text[:1].lower() + text[1:].removesuffix(".")
        self.Params: type[BaseModel] = get_annotations(make_sheet, eval_str=True)["params"]

    def run(self, given: Mapping[str, Any]) -> Sheet:
        """Validate inputs and calculate; one value where a list may be given is a list of one.

        Raises:
            InvalidDeclaration: naming the field.
        """
        many = {
            # On a command line one value has no brackets, so a lone value for a list becomes a
            # list.
            name
            for name, field in self.Params.model_fields.items()
            if _is_list(field.annotation)
        }
        inputs = {
            name: [value] if name in many and isinstance(value, str | int | float) else value
            for name, value in given.items()
        }
        try:
            # Theory is exact; only what is charged is in whole units.
            params = self.Params.model_validate(inputs, context=AS_WRITTEN)
        except ValidationError as error:
            raise InvalidDeclaration(
                f"calculator {self.name}: {describe_problems(error)}"
            ) from None
        return self.make_sheet(params)


def list_calculators(citations: Mapping[Callable[[Any], Sheet], str]) -> dict[str, Calculator]:
    """A module's functions with their citations, as calculators by name: what a plugin registers."""
    calculators = (Calculator(function, citation) for function, citation in citations.items())
    return {calculator.name: calculator for calculator in calculators}


def _is_list(kind: Any) -> bool:
    """Whether a field holds values of any number."""
    return get_origin(kind) is list or (
        get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis
    )
