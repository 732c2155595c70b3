"""The third protocol of the plugin contract: a `Calculator` answers a question about methods, not
about rows.

Planners (how many rows does this need?), bounds (what can no method reach?) and comparison tables
of the papers are calculators. They read nothing private, cost nothing, and run from ``dpflow
calculate NAME field=value ...`` or Python.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dpflow.core.accounting.amounts import AS_WRITTEN
from dpflow.core.contract.strict_models import TakesParams, describe_problems
from dpflow.errors import InvalidDeclaration

P = TypeVar("P", bound=BaseModel)


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


class Calculator(TakesParams, ABC, Generic[P]):
    """A question about methods that needs no rows.

    Class attributes:
        name: the word on the command line, unique among installed plugins.
        summary: one sentence for ``dpflow calculate``.
        citation: where the formula comes from.
        Params: the pydantic model of its inputs, the class's type argument; its docstring says what they mean, in which unit.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]

    @abstractmethod
    def make_sheet(self, params: P) -> Sheet:
        """The answer. Raises `InvalidInput` where the formula does not hold."""

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
        return self.make_sheet(params)  # type: ignore[arg-type]


def _is_list(kind: Any) -> bool:
    """Whether a field holds values of any number."""
    return get_origin(kind) is list or (
        get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis
    )
