"""Properties of a plan by which a certificate says which plans an audit tried.

A mechanism may read anything public: its parameters, and all that a declaration says, also of columns that no parameter
names. Each of these is a property here, with its exact value. What is none: names of tables, columns and keys, the text of
expressions, which numbers limits by period have, who certifies, which fields are written though they have their default,
where rows are stored and which version of them, and how many there are, which is private. Of names, audits try texts and
lengths that the code has, and some that differ in case, spaces or accents; they try declarations with and without
certifiers, and with all defaults written and none.

Claim. A certificate covers a plan in two cases only:

1. A plan with the same value of every property was tried. This holds for every mechanism.
2. The mechanism's noise is fitted to sensitivities of its requests and to nothing else (``of requests``,
   `dpflow.testing.sensitivity_audit`), as far as all draws of the audit showed, and the audit could follow plans with every
   value of a range that it generated. Then each property is looked at by itself: its
   value was tried or, of `RANGES`, lies between two values that were. Tried are both ends of each range, many values
   between them, all of them together in mixed plans, and every constant in the mechanism's code with its neighbours.
   So a mistake that begins or ends at some value is tried. One at a value inside a range that is in no constant of
   the code is not.

Scales that a mechanism computes itself may be wrong at any one plan, so for these there is no second case.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table

#: Values by property.
Cells = Mapping[str, frozenset[str]]

#: How much a unit contributes: all rows, groups, and rows in one group.
LIMITS = ("rows of a unit", "groups of a unit", "rows of a unit in a group")
#: Properties whose values between two tried ones are covered in the second case; of columns, by their last word.
RANGES = frozenset(
    {
        *("epsilon", "delta", *LIMITS, "lower", "upper", "step", "missing", "keys", "length"),
        *("declared columns", "bounded columns", "max rows", "declared groups"),
        *("declared rows of a group", "unit keys", "unit features"),
    }
)


def describe_cells(table: Table, params: Any) -> Cells:
    """The properties of one plan.

    - ``neighbours`` and ``protects``; ``declares``: what else the declaration has of what few have.
    - of all columns together, ``declared columns`` and ``bounded columns``: how many; whether the ``unit column`` is
      one; and ``all columns`` with what is said of each column below.
    - `LIMITS`, in the grouping ``by``; ``limits``: whether they are the table's, or a column's own.
    - of each column that a parameter names, after that parameter: ``lower``, ``upper`` and ``step`` of its grid,
      ``missing``, the number of public ``keys``, and what else it ``is``.
    - the value of each parameter that names no column; of a list also its ``length``.

    Args:
        table: the declaration.
        params: validated parameters of a mechanism.
    """
    cells: dict[str, set[str]] = {
        "neighbours": {table.neighbours},
        "protects": {table.protects},
        "unit column": {"declared" if table.privacy_unit.column in table.columns else "not"},
        "declared groups": {str(table.contribution_bounds.groups or "not")},
        "declared rows of a group": {str(table.contribution_bounds.rows_per_group or "not")},
    }
    for one in _list_tables(table):
        bounded = sum(column.lower is not None for column in one.columns.values())
        cells.setdefault("declared columns", set()).add(str(len(one.columns)))
        cells.setdefault("bounded columns", set()).add(str(bounded))
        for name in one.columns:
            for what, text in _describe_column(one, name):
                cells.setdefault(f"all columns: {what}", set()).add(text)
    if (units := table.unit_rows) is not None:
        cells["unit keys"] = {str(len(units.keys))}
        cells["unit features"] = {str(len(units.features))}
    if table.max_contributions is not None:
        cells["max rows"] = {str(table.max_contributions.rows)}
    if declares := {*_list_declared(table)}:
        cells["declares"] = declares
    by = getattr(params, "by", None)
    by = by if isinstance(by, str) and by in table.columns else None
    bounds = table.bounds_for(by)
    numbers = (bounds.rows, bounds.groups, bounds.rows_per_group)
    cells |= {name: {str(number)} for name, number in zip(LIMITS, numbers, strict=True)}
    if by is not None:
        sources = {limit.source for limit in table.limits_for(by)}
        is_own = any(not source.startswith("contribution_bounds.") for source in sources)
        cells["limits"] = {"a column's" if is_own else "the table's"}
    for name in type(params).model_fields:
        for place, value in _list_values(name, getattr(params, name)):
            if isinstance(value, str) and value in table.columns:
                cells.setdefault(place, set()).add("a column")
                for what, text in _describe_column(table, value):
                    cells.setdefault(f"{place}: {what}", set()).add(text)
            else:
                cells.setdefault(place, set()).add(_name_value(value))
    return {name: frozenset(values) for name, values in cells.items()}


def merge_cells(all_cells: Iterable[Cells]) -> Cells:
    """All values of each property."""
    merged: dict[str, frozenset[str]] = {}
    for cells in all_cells:
        for name, values in cells.items():
            merged[name] = merged.get(name, frozenset()) | values
    return merged


def digest_cells(cells: Cells) -> str:
    """A name of the plans that have these values of all properties: SHA-256, its first 20 digits."""
    text = json.dumps({name: sorted(values) for name, values in cells.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def list_uncovered(cells: Cells, covered: Mapping[str, Iterable[str]]) -> list[str]:
    """The values of a plan that no audited one had, and that lie in no range of them, as ``property value``."""
    uncovered = []
    for name, values in sorted(cells.items()):
        tried = {*covered.get(name, ())}
        # Without a delta is another guarantee than with a small one.
        ends = _find_range(tried - {"0"} if name == "delta" else tried) if _is_range(name) else None
        for value in sorted(values - tried):
            number = _read_number(value)
            if number is None or ends is None or not ends[0] <= number <= ends[1]:
                uncovered.append(f"{name} {value}")
    return uncovered


def has_holes(tried: Cells, others: Cells) -> bool:
    """Whether some of these other values lie between tried ones, so that what was tried makes no range."""
    inside = {name: values - tried.get(name, frozenset()) for name, values in others.items()}
    uncovered = {*list_uncovered(inside, tried)}
    return any(f"{name} {value}" not in uncovered for name in inside for value in inside[name])


def describe_values(name: str, values: Iterable[str]) -> str:
    """The tried values of a property for people: of one with a range, its ends and how many there are."""
    values = sorted(
        values, key=lambda value: (_read_number(value) is None, _read_number(value) or 0, value)
    )
    numbers = [value for value in values if _read_number(value) is not None]
    if not _is_range(name) or len(numbers) < 4:
        return ", ".join(values)
    others = values[len(numbers) :]
    return ", ".join([f"{numbers[0]} to {numbers[-1]} ({len(numbers)} values)", *others])


def list_settings(model: Any) -> dict[str, list[Any]]:
    """Every value of the parameters that have few: a `Literal`, an `Enum` or a flag."""
    values = {name: [*_list_choices(f.annotation)] for name, f in model.model_fields.items()}
    return {name: listed for name, listed in values.items() if listed}


def _list_tables(table: Table) -> Iterator[Table]:
    """The declaration, and those of the rows that its rows are made of."""
    yield table
    while (units := table.unit_rows) is not None:
        yield (table := units.rows)


def _list_declared(table: Table) -> Iterator[str]:
    """What a declaration has beside relation, protection, contribution bounds and columns."""
    if table.privacy_unit.missing != "drop":
        yield f"missing units {table.privacy_unit.missing}"
    for join in table.joins:
        yield f"joins {len(table.joins)}, {join.kind} of {join.rows or 'one'} rows"
    if table.holdout:
        yield "holdout"
    if table.generalisation_only:
        yield "generalisation_only"
    if table.block is not None:
        yield "block"
    if table.trusted_sql:
        yield "trusted_sql"
    if (largest := table.max_contributions) is not None:
        yield "max_contributions"
        for name in ("groups", "rows_per_group", "within_bounds"):
            if getattr(largest, name):
                yield f"max_contributions {name}"
    if table.cached_partials is not None:
        yield f"cached_partials {table.cached_partials}"
    if table.backend != "duckdb":
        yield f"backend {table.backend}"
    if (units := table.unit_rows) is not None:
        yield "one row a unit"
        for name in ("where", "blocks"):
            if getattr(units, name):
                yield f"one row a unit, {name}"
    if table.public_columns:
        yield "public columns"


def _describe_column(table: Table, name: str) -> Iterator[tuple[str, str]]:
    column = table.columns[name]
    if column.lower is not None and column.upper is not None:
        low, high = column.grid_bounds()
        yield from (("lower", str(low)), ("upper", str(high)), ("step", str(column.step)))
        yield "missing", str(column.missing)
    yield "keys", str(_count_keys(table, name))
    for word in _name_kinds(column):
        yield "is", word


def _count_keys(table: Table, name: str) -> int | str:
    column = table.columns.get(name)
    if column is None:  # a part that is not declared
        return "private"
    if column.parts is None:
        return "private" if column.public_keys is None else len(column.public_keys)
    counts = [_count_keys(table, part) for part in column.parts]
    number = 1
    for count in counts:
        if isinstance(count, str):
            return count
        number *= count
    return number


def _name_kinds(column: Column) -> Iterator[str]:
    if column.holds_dates:
        yield "dates"
    elif column.bounds_are_times:
        yield "times"
    if column.public:
        yield "public"
    if column.expression is not None:
        yield "computed"
    if column.parts is not None:
        yield f"{len(column.parts)} columns"
    if column.clamping:
        yield "bounds of a search"
    for limit in (column.groups, column.rows_per_group):
        if limit is not None:
            yield "limited by itself" if isinstance(limit, int) else "limited by period"


def _list_choices(annotation: Any) -> Iterator[Any]:
    if annotation is bool:
        yield from (False, True)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (member.value for member in annotation)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_args(annotation):  # unions, and annotated types
        for part in get_args(annotation):
            if not isinstance(part, str):
                yield from _list_choices(part)


def _list_values(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a parameter, with where they stand; models are looked through."""
    if hasattr(value, "model_fields"):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _list_values(f"{place}.{name}", part)
    elif isinstance(value, list | tuple | set | frozenset):
        yield f"{place}: length", len(value)
        for part in value:
            yield from _list_values(place, part)
    else:
        yield place, value


def _name_value(value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        value = Fraction(repr(value)) if value == value and abs(value) != float("inf") else value
    return str(value)


def _is_range(name: str) -> bool:
    return name.rpartition(": ")[2] in RANGES


def _find_range(values: Iterable[str]) -> tuple[Fraction, Fraction] | None:
    numbers = [number for value in values if (number := _read_number(value)) is not None]
    return (min(numbers), max(numbers)) if numbers else None


def _read_number(value: str) -> Fraction | None:
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError):
        return None
