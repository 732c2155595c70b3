"""Great Expectations' suites as data contracts: expectations that are linear in sums over rows, or about
quantiles, become checks; the others are listed with the reason. Reads JSON; imports nothing of theirs.

Shares keep Great Expectations' meaning: ``mostly`` is a share of the values that are there, or of the rows
where the expectation is about missing values, and a row condition leaves other rows out of both. A quantile's bound
is a share of values beyond it; theirs interpolates between two values, so the two may differ at an even number. NaN is a
missing value to checks, and to Great Expectations over DuckDB a value above all others: the contract names such columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dpflow.catalogue import locate_declaration
from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.strict_models import describe_problems, parse_exact, read_quoted_date
from dpflow.core.toolbox.row_checks import (
    RowCheck,
    computed_columns,
    describe_change,
    list_measures,
    quote_column,
    write_number,
)
from dpflow.errors import InvalidInput
from dpflow.quality.contract_file import parse_contract
from dpflow.tables.access.declarations import load_table
from dpflow.tables.language.grouping import declare_columns
from dpflow.tables.source_checks import readable_types
from dpflow.yaml_files import parse_json

#: What a run of a suite passes beside what an expectation asks.
IGNORED = (
    "batch_id",
    "result_format",
    "catch_exceptions",
    "condition_parser",
    "allow_relative_error",
)
#: Reasons for kinds of expectations that are no check, by the type's name without ``expect_``.
CATALOGUE = (
    "is about columns and types, not rows: mode public checks the declared ones, free of charge"
)
NOT_LINEAR = "is no sum over rows, and no quantile"
OWN_SQL = "runs SQL of its own; mode trusted runs it, where the table's owner registers the suite"
REASONS = (
    (r"column_to_exist|column_type_to_be|.*_of_type|.*_in_type_list|table_column.*", CATALOGUE),
    (r"query_results.*|table_row_count_to_equal_other_table", OWN_SQL),
)
OPERATORS = {"==": "=", "!=": "<>", ">": ">", ">=": ">=", "<": "<", "<=": "<="}


class _NoCheck(Exception):
    """Why an expectation is no check."""


@dataclass(frozen=True)
class LeftOut:
    """An expectation that is no check.

    Attributes:
        expectation: its type.
        column: what it is about, "" for the table.
        reason: why.
    """

    expectation: str
    column: str
    reason: str


@dataclass(frozen=True)
class ImportedContract:
    """A contract that was made of suites.

    Attributes:
        fields: of the contract's file.
        left_out: expectations that it does not check.
        nan_columns: columns in which NaN means something else to Great Expectations.
        unit: the column without which a row is in no check; "" where rows without it count as one unit's.
    """

    fields: dict[str, Any]
    left_out: tuple[LeftOut, ...]
    nan_columns: tuple[str, ...] = ()
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        left_out = [vars(one) for one in self.left_out]
        about = {"nan_columns": [*self.nan_columns], "unit": self.unit}
        return {"contract": self.fields, "left_out": left_out, **about}

    @property
    def text(self) -> str:
        """The contract's file, with what it does not check as comments."""
        checks = "\n".join(
            f"  - {yaml.safe_dump(check, default_flow_style=True, sort_keys=False, width=10**6).strip()}"
            for check in self.fields["checks"]
        )
        rest = {name: value for name, value in self.fields.items() if name != "checks"}
        comments = "".join(
            f"# not checked: {one.expectation}{f' of {one.column}' if one.column else ''}: {one.reason}\n".replace(
                "\n", " "
            ).strip()
            + "\n"
            for one in self.left_out
        )
        if self.nan_columns:
            comments += (
                f"# NaN in {', '.join(self.nan_columns)} is a missing value here, and a value above all others to Great "
                f"Expectations\n"
            )
        if self.unit:
            comments += (
                f"# rows without {self.unit} are in no check, and in all of Great Expectations\n"
            )
        return f"{yaml.safe_dump(rest, sort_keys=False)}checks:\n{checks}\n{comments}"


def read_contract(
    file: Path, table: str, epsilon: str, scope: str, tolerance: str | None, rows: int | None
) -> ImportedContract:
    """A metered contract of the suites of a file, about a table as the current folder's ``dpflow.yml`` names it.

    Raises `InvalidInput` as `read_suites`, and where no expectation is a check.
    """
    share = None if tolerance is None else parse_share(tolerance)
    declaration = load_table(locate_declaration(table, Path.cwd()))
    suites = read_suites(file)
    entries = [entry for suite in suites for entry in suite["expectations"]]
    checks, left_out = import_expectations(entries, declaration, share)
    if not checks:
        reasons = "; ".join(f"{one.expectation}: {one.reason}" for one in left_out[:5])
        raise InvalidInput(f"no expectation of {file} is a check of a contract ({reasons})")
    fields = {
        "name": str(suites[0].get("name") or "suite")[:100],
        "table": table,
        "mode": "metered",
        **({"scope": scope} if scope else {}),
        "epsilon": epsilon,
        **({"rows": rows} if rows else {}),
        "checks": [one.model_dump(mode="json", exclude_defaults=True) for one in checks],
    }
    parse_contract(fields | ({} if scope else {"scope": "any"}), Path.cwd())
    unit = declaration.privacy_unit
    nan_columns = _find_nan_columns(entries, declaration)
    unseen = unit.column if unit.missing == "drop" else ""
    return ImportedContract(fields, tuple(left_out), nan_columns, unseen)


def _find_nan_columns(entries: Sequence[Mapping[str, Any]], table: Table) -> tuple[str, ...]:
    """Columns of expectations that can hold NaN, and none where the catalogue cannot be read now."""
    asked = [dict(entry.get("kwargs") or {}) for entry in entries]
    names = {one.get(name) for one in asked for name in ("column", "column_A", "column_B")}
    return tuple(
        name
        for name, kind in readable_types(table).items()
        if name in names and kind.upper() in ("FLOAT", "DOUBLE")
    )


def parse_share(text: str) -> Fraction:
    """A share of rows between 0 and 1. Raises `InvalidInput`."""
    try:
        share = parse_exact(text)
    except ValueError:
        share = Fraction(0)
    if not 0 < share < 1:
        raise InvalidInput(
            f"tolerance is {text[:40]!r}; write a share of the rows between 0 and 1, such as 0.01"
        )
    return share


def read_suites(path: Path) -> list[dict[str, Any]]:
    """The suites of a file: a suite's own, or those of a checkpoint's file in a project of Great
    Expectations.

    Raises:
        InvalidInput: no file, no JSON, neither suite nor checkpoint, a checkpoint of several assets, or a suite that is
            not in the project.
    """
    content = _read_json(path)
    if isinstance(content.get("expectations"), list):
        return [content]
    if not isinstance(content.get("validation_definitions"), list):
        raise InvalidInput(
            f"{path} is neither a suite nor a checkpoint of Great Expectations 1: it has no expectations and no "
            "validation_definitions; save it with the version 1 of Great Expectations"
        )
    home, suites, assets = path.parent.parent, {}, set()
    for reference in content["validation_definitions"]:
        definition = _read_json(_member(home, "validation_definitions", reference))
        data = definition.get("data")
        parts = (
            data.get(key) if isinstance(data, Mapping) else None for key in ("datasource", "asset")
        )
        assets.add(
            tuple(str(part.get("name")) if isinstance(part, Mapping) else "" for part in parts)
        )
        suite = _member(home, "expectations", definition.get("suite"))
        suites[suite] = _read_json(suite)
    if len(assets) > 1:
        names = ", ".join(sorted(asset for _, asset in assets))
        raise InvalidInput(
            f"{path} validates several tables ({names}), and a contract is of one; give the suite's own file, or a checkpoint "
            "of one asset"
        )
    return list(suites.values())


def _member(home: Path, folder: str, reference: Any) -> Path:
    name = reference.get("name") if isinstance(reference, Mapping) else None
    if (
        not isinstance(name, str)
        or not name
        or Path(name).is_absolute()
        or ".." in Path(name).parts
    ):
        raise InvalidInput(f"a reference into {folder} has no usable name; save the project again")
    return home / folder / f"{name}.json"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = error if type(error) is ValueError else type(error).__name__
        raise InvalidInput(f"{path} cannot be read as JSON: {problem}") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} holds no JSON object")
    return content


def import_expectations(
    entries: Sequence[Mapping[str, Any]], table: Table, tolerance: Fraction | None = None
) -> tuple[list[RowCheck], list[LeftOut]]:
    """The checks that mean what expectations ask of a declared table, and the expectations that are none.

    Args:
        entries: as a suite's JSON has them.
        tolerance: the share of rows that may break an expectation that allows none, for noise cannot tell
            none from one; without it these are left out.
    """
    checks, left_out = list[RowCheck](), list[LeftOut]()
    for entry in entries:
        kind = str(entry.get("type") or entry.get("expectation_type") or "")
        kwargs = {k: v for k, v in dict(entry.get("kwargs") or {}).items() if k not in IGNORED}
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        column = str(kwargs.get("column") or kwargs.get("column_A") or "")
        try:
            fields = _Expectation(kwargs, table, tolerance).map(kind)
            named = [_name_check(one, kind, column, checks, n) for n, one in enumerate(fields)]
            for check in named:
                declare_columns(table, computed_columns([check], table))
                for measure in list_measures([check]):
                    if check.check in ("mean", "sum"):
                        table.bounded_column(str(measure.column))
        except _NoCheck as reason:
            left_out.append(LeftOut(kind, column, str(reason)))
        except (InvalidInput, ValidationError) as error:
            text = describe_problems(error) if isinstance(error, ValidationError) else str(error)
            left_out.append(LeftOut(kind, column, text))
        except (TypeError, ValueError):
            left_out.append(
                LeftOut(kind, column, "its arguments are no numbers, or no lists of them")
            )
        else:
            checks += named
    return checks, left_out


def _name_check(
    fields: Mapping[str, Any], kind: str, column: str, before: Sequence[RowCheck], number: int
) -> RowCheck:
    short = re.sub(r"^expect_(column_values_to_|column_|table_)?|_to_be_between$", "", kind)
    stem = re.sub(r"[^a-z0-9]+", "_", f"{column} {short}".lower()).strip("_")[:34]
    stem = stem if stem[:1].isalpha() else f"c_{stem}"
    names = {check.name for check in before}
    taken = len([name for name in names if re.fullmatch(rf"{stem}(_\d+)?", name)]) + number
    return RowCheck.model_validate({**fields, "name": f"{stem}_{taken + 1}" if taken else stem})


class _Expectation:
    """One expectation's arguments, and the checks that they are."""

    def __init__(self, kwargs: dict[str, Any], table: Table, tolerance: Fraction | None) -> None:
        self._kwargs, self._table, self._tolerance = kwargs, table, tolerance
        self._used = set[str]()

    def map(self, kind: str) -> list[dict[str, Any]]:
        """Fields of checks without their names."""
        for name, value in self._kwargs.items():
            if isinstance(value, Mapping) and "$PARAMETER" in value:
                raise _NoCheck(f"{name} is a parameter of a run; write a value")
        short = kind.removeprefix("expect_")
        method: Callable[[], list[dict[str, Any]]] | None = getattr(self, f"_map_{short}", None)
        if method is None:
            reasons = (reason for pattern, reason in REASONS if re.fullmatch(pattern, short))
            own_sql = "unexpected_rows_query" in self._kwargs
            raise _NoCheck(OWN_SQL if own_sql else next(reasons, NOT_LINEAR))
        fields = method()
        if unread := sorted(set(self._kwargs) - self._used):
            raise _NoCheck(f"{', '.join(unread)} has no counterpart in a check")
        return fields

    # --- arguments ----------------------------------------------------------------------------------

    def _get(self, name: str, default: Any = None) -> Any:
        self._used.add(name)
        return self._kwargs.get(name, default)

    def _column(self, name: str = "column") -> str:
        column = self._get(name)
        if not isinstance(column, str):
            raise _NoCheck(f"it has no {name}")
        self._table.column(column)
        return column

    def _literal(self, value: Any) -> str:
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, int | float):
            return write_number(parse_exact(value))
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        raise _NoCheck(f"a value of type {type(value).__name__} cannot be written in a condition")

    def _range(
        self, low: str = "min_value", high: str = "max_value"
    ) -> list[tuple[str, Any, bool]]:
        """Which bounds there are: ``at_least`` or ``at_most``, the bound, and whether it is strict."""
        bounds = [
            ("at_least", self._get(low), bool(self._get("strict_min", False))),
            ("at_most", self._get(high), bool(self._get("strict_max", False))),
        ]
        if not (found := [bound for bound in bounds if bound[1] is not None]):
            raise _NoCheck("it has no bound, so it always holds")
        return found

    def _bounds(self, *, whole: bool = False) -> list[dict[str, str]]:
        """Bounds of a number, as fields of checks; strict ones only of whole numbers."""
        fields = []
        for side, value, strict in self._range():
            bound = parse_exact(value)
            if strict and not whole:
                raise _NoCheck("a strict bound means nothing under noise; leave strict out")
            if strict:
                bound += 1 if side == "at_least" else -1
            fields.append({side: exact_text(bound)})
        return fields

    def _share(self, condition: str, among: str | None = None) -> list[dict[str, Any]]:
        """At most the rest of ``mostly`` of the rows fulfils a condition."""
        rest = 1 - parse_exact(self._get("mostly", 1))
        if rest == 0 and self._tolerance is None:
            raise _NoCheck(
                "it lets no row break it, which noise cannot tell from one: give a tolerance"
            )
        given = self._get("row_condition")
        parts = [part for part in (among, self._condition(given) if given else None) if part]
        fields: dict[str, Any] = {"check": "violations", "condition": condition}
        if parts:
            fields["among"] = " AND ".join(f"({part})" for part in parts)
        return [fields | {"at_most": exact_text(rest or self._tolerance or Fraction(0))}]

    def _condition(self, condition: Any) -> str:
        """A row condition of theirs, in the language of conditions."""
        if not isinstance(condition, Mapping):
            raise _NoCheck(
                "its row_condition is a text; write it as a condition object of Great Expectations, and save the suite again"
            )
        parts = condition.get("conditions")
        if condition.get("type") in ("and", "or") and isinstance(parts, Sequence):
            return f" {condition['type'].upper()} ".join(f"({self._condition(c)})" for c in parts)
        name = dict(condition.get("column") or {}).get("name")
        if not isinstance(name, str):
            raise _NoCheck("its row_condition is not one of comparisons of a column")
        self._table.column(name)
        quoted, operator = quote_column(name), str(condition.get("operator"))
        if condition.get("type") == "nullity":
            return f"{quoted} IS {'' if condition.get('is_null') else 'NOT '}NULL"
        value = condition.get("parameter")
        if operator in ("IN", "NOT_IN") and isinstance(value, list):
            listed = f"{quoted} IN ({', '.join(map(self._literal, value))})"
            return listed if operator == "IN" else f"NOT {listed}"
        if operator not in OPERATORS:
            raise _NoCheck("its row_condition is not one of comparisons of a column")
        return f"{quoted} {OPERATORS[operator]} {self._literal(value)}"

    def _of_values(self, condition: Callable[[str], str]) -> list[dict[str, Any]]:
        quoted = quote_column(self._column())
        return self._share(condition(quoted), f"{quoted} IS NOT NULL")

    # --- expectations: values of rows ---------------------------------------------------------------

    def _map_column_values_to_not_be_null(self) -> list[dict[str, Any]]:
        return self._share(f"{quote_column(self._column())} IS NULL")

    def _map_column_values_to_be_null(self) -> list[dict[str, Any]]:
        return self._share(f"{quote_column(self._column())} IS NOT NULL")

    def _map_column_values_to_be_between(self) -> list[dict[str, Any]]:
        return self._between("{}")

    def _between(self, form: str) -> list[dict[str, Any]]:
        parts = {"at_least": ("<", "<="), "at_most": (">", ">=")}
        bounds = [
            f"{parts[side][strict]} {self._literal(value)}" for side, value, strict in self._range()
        ]
        return self._of_values(
            lambda column: " OR ".join(f"{form.format(column)} {bound}" for bound in bounds)
        )

    def _map_column_values_to_be_in_set(self) -> list[dict[str, Any]]:
        values = self._values()
        return self._of_values(lambda column: f"NOT {column} IN ({values})")

    _map_column_distinct_values_to_be_in_set = _map_column_values_to_be_in_set

    def _map_column_values_to_not_be_in_set(self) -> list[dict[str, Any]]:
        values = self._values()
        return self._of_values(lambda column: f"{column} IN ({values})")

    def _values(self) -> str:
        values = self._get("value_set")
        if not isinstance(values, list) or not values:
            raise _NoCheck("its value_set is empty, or no list")
        return ", ".join(map(self._literal, values))

    def _map_column_values_to_match_like_pattern(self) -> list[dict[str, Any]]:
        pattern = self._literal(self._get("like_pattern"))
        return self._of_values(lambda column: f"NOT {column} LIKE {pattern}")

    def _map_column_values_to_not_match_like_pattern(self) -> list[dict[str, Any]]:
        pattern = self._literal(self._get("like_pattern"))
        return self._of_values(lambda column: f"{column} LIKE {pattern}")

    def _map_column_value_lengths_to_be_between(self) -> list[dict[str, Any]]:
        return self._between("length({})")

    def _map_column_value_lengths_to_equal(self) -> list[dict[str, Any]]:
        length = self._literal(self._get("value"))
        return self._of_values(lambda column: f"length({column}) <> {length}")

    def _map_column_pair_values_to_be_equal(self) -> list[dict[str, Any]]:
        return self._pair("<>")

    def _map_column_pair_values_a_to_be_greater_than_b(self) -> list[dict[str, Any]]:
        return self._pair("<" if self._get("or_equal") else "<=")

    def _pair(self, operator: str) -> list[dict[str, Any]]:
        first, second = (quote_column(self._column(name)) for name in ("column_A", "column_B"))
        if self._get("ignore_row_if", "both_values_are_missing") != "either_value_is_missing":
            raise _NoCheck(
                "it counts rows in which one value is missing: ignore_row_if either_value_is_missing"
            )
        return self._share(
            f"{first} {operator} {second}", f"{first} IS NOT NULL AND {second} IS NOT NULL"
        )

    # --- expectations: numbers of a column or of the table ------------------------------------------

    def _map_column_proportion_of_non_null_values_to_be_between(self) -> list[dict[str, Any]]:
        quoted, fields = quote_column(self._column()), []
        for bound in self._bounds():
            missing = "at_least" in bound
            value = parse_exact(bound["at_least"] if missing else bound["at_most"])
            condition = f"{quoted} IS {'' if missing else 'NOT '}NULL"
            at_most = exact_text(1 - value if missing else value)
            fields.append({"check": "violations", "condition": condition, "at_most": at_most})
        return fields

    def _map_column_mean_to_be_between(self) -> list[dict[str, Any]]:
        return [{"check": "mean", "column": self._whole_column()} | one for one in self._bounds()]

    def _map_column_sum_to_be_between(self) -> list[dict[str, Any]]:
        return [{"check": "sum", "column": self._whole_column()} | one for one in self._bounds()]

    def _whole_column(self) -> str:
        """A column whose sums are those of its values: nothing is clamped or filled."""
        column = self._column()
        if change := describe_change(self._table, column):
            raise _NoCheck(
                f"a check takes {column} {change}, and this takes it as it is; where every value is within its bounds, "
                f"declare max_contributions: within_bounds: [{column}]; or write the check by hand"
            )
        return column

    def _map_column_median_to_be_between(self) -> list[dict[str, Any]]:
        column, bounds = self._column(), self._bounds()
        self._require_kind(column, [value for _, value, _ in self._range()])
        return [{"check": "quantile", "column": column, "p": "0.5"} | bound for bound in bounds]

    def _require_kind(self, column: str, bounds: Sequence[Any]) -> None:
        """Refuse a date for a column that is not declared to hold dates: no number compares with it."""
        is_date = any(read_quoted_date(bound) is not bound for bound in bounds)
        if is_date and not self._table.column(column).holds_dates:
            raise _NoCheck(f"its bounds are dates: declare lower and upper of {column} as dates")

    def _map_column_quantile_values_to_be_between(self) -> list[dict[str, Any]]:
        column, ranges = self._column(), dict(self._get("quantile_ranges") or {})
        fields = []
        self._require_kind(column, [end for pair in ranges.get("value_ranges", []) for end in pair])
        # Of other lengths they mean nothing.
        named = zip(ranges.get("quantiles", []), ranges.get("value_ranges", []), strict=True)
        for p, bounds in named:
            for side, value in zip(("at_least", "at_most"), bounds):
                if value is not None:
                    share, bound = (exact_text(parse_exact(n)) for n in (p, value))
                    fields.append({"check": "quantile", "column": column, "p": share, side: bound})
        if not fields:
            raise _NoCheck("it has no bound, so it always holds")
        return fields

    def _map_column_max_to_be_between(self) -> list[dict[str, Any]]:
        column, fields = self._column(), list[dict[str, Any]]()
        quoted = quote_column(column)
        for side, value, strict in self._range():
            if side == "at_most":
                beyond = ">=" if strict else ">"
                condition = f"{quoted} {beyond} {self._literal(value)}"
                fields += self._share(condition, f"{quoted} IS NOT NULL")
            elif strict:
                raise _NoCheck("a strict bound means nothing under noise; leave strict out")
            elif others := [n for n in ("row_condition", "mostly") if n in self._kwargs]:
                # The other bound reads them; this one would hold of other rows.
                raise _NoCheck(
                    f"{', '.join(others)} has no counterpart in a check of the latest value"
                )
            else:
                fields.append(
                    {"check": "freshness", "column": column, "since": value, "at_least": 1}
                )
        return fields

    def _map_column_min_to_be_between(self) -> list[dict[str, Any]]:
        quoted = quote_column(self._column())
        ((side, value, strict), *others) = self._range()
        if others or side == "at_most":
            raise _NoCheck(
                "that some value is as low as a bound is " + NOT_LINEAR.removeprefix("is ")
            )
        below = "<=" if strict else "<"
        return self._share(f"{quoted} {below} {self._literal(value)}", f"{quoted} IS NOT NULL")

    def _map_column_unique_value_count_to_be_between(self) -> list[dict[str, Any]]:
        if self._get("column") != self._table.privacy_unit.column:
            raise _NoCheck(NOT_LINEAR)
        return [{"check": "units"} | bound for bound in self._bounds(whole=True)]

    def _map_table_row_count_to_be_between(self) -> list[dict[str, Any]]:
        return [{"check": "rows"} | bound for bound in self._bounds(whole=True)]

    def _map_table_row_count_to_equal(self) -> list[dict[str, Any]]:
        value = self._get("value")
        return [{"check": "rows", side: value} for side in ("at_least", "at_most")]
