"""Properties of a plan by which an audit says what it covered.

An audit tries some declarations and parameters. Each has these public properties; a certificate lists the
values of all that passed, and covers a plan whose every value is among them. How many rows a table has is
private: no property, and sizes that were tried decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

from dpflow.core.contract.declaration import Table

#: Values by property.
Cells = Mapping[str, frozenset[str]]


def describe_cells(table: Table, params: Any) -> Cells:
    """The properties of one plan.

    - ``neighbours`` and ``protects``: of the declaration.
    - ``bounds``: whether those of the columns that the parameters name lie around, above or below 0.
    - ``keys``: whether such a column has public keys.
    - ``groups`` and ``rows_per_group``: whether a unit may have more than one, in the grouping ``by``.
    - ``limits``: whether these are the table's, or a column's own.
    - ``epsilon``: its power of ten; ``delta``: whether there is one.
    - the value of each parameter that has few: a `Literal`, an `Enum` or a flag.

    Args:
        table: the declaration.
        params: validated parameters of a mechanism.
    """
    cells: dict[str, set[str]] = {
        "neighbours": {table.neighbours},
        "protects": {table.protects},
    }
    for name in {*_list_texts(params.model_dump(mode="json"))} & set(table.columns):
        column = table.columns[name]
        if column.lower is not None and column.upper is not None:
            place = "above 0" if column.lower > 0 else "below 0" if column.upper < 0 else "around 0"
            cells.setdefault("bounds", set()).add(place)
        else:
            keys = "public" if column.public_keys is not None or column.parts else "private"
            cells.setdefault("keys", set()).add(keys)
    by = getattr(params, "by", None)
    if by is None or (isinstance(by, str) and by in table.columns):
        bounds = table.bounds_for(by)
        cells["groups"] = {_count(bounds.groups)}
        cells["rows_per_group"] = {_count(bounds.rows_per_group)}
        if by is not None:
            sources = {limit.source for limit in table.limits_for(by)}
            is_own = any(not source.startswith("contribution_bounds.") for source in sources)
            cells["limits"] = {"a column's" if is_own else "the table's"}
    if epsilon := getattr(params, "epsilon", None):
        cells["epsilon"] = {f"1e{_exponent(Fraction(epsilon))}"}
    if "delta" in type(params).model_fields:
        cells["delta"] = {"0" if not params.delta else "above 0"}
    for name in list_settings(type(params)):
        cells[name] = {_name_value(getattr(params, name))}
    return {name: frozenset(values) for name, values in cells.items()}


def merge_cells(all_cells: Iterable[Cells]) -> Cells:
    """All values of each property."""
    merged: dict[str, frozenset[str]] = {}
    for cells in all_cells:
        for name, values in cells.items():
            merged[name] = merged.get(name, frozenset()) | values
    return merged


def list_uncovered(cells: Cells, covered: Mapping[str, Iterable[str]]) -> list[str]:
    """The values of a plan that no audited one had, as ``property value``."""
    return [
        f"{name} {value}"
        for name, values in sorted(cells.items())
        for value in sorted(values - {*covered.get(name, ())})
    ]


def list_settings(model: Any) -> dict[str, list[Any]]:
    """Every value of the parameters that have few: a `Literal`, an `Enum` or a flag."""
    values = {name: [*_list_values(f.annotation)] for name, f in model.model_fields.items()}
    return {name: listed for name, listed in values.items() if listed}


def _list_values(annotation: Any) -> Iterator[Any]:
    if annotation is bool:
        yield from (False, True)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (member.value for member in annotation)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_args(annotation):  # unions, and annotated types
        for part in get_args(annotation):
            if not isinstance(part, str):
                yield from _list_values(part)


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _list_texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _list_texts(part)


def _name_value(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _count(number: int) -> str:
    return "1" if number == 1 else "above 1"


def _exponent(number: Fraction) -> int:
    """Of the largest power of ten that is no larger."""
    return (Decimal(number.numerator) / Decimal(number.denominator)).adjusted()
