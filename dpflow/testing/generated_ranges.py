"""Generated plans whose numbers run through the ranges that a certificate covers.

Each property of `dpflow.core.contract.audit_cells` has an axis here: values from one end of its range to the other, and
every constant of the mechanism's code with its neighbours (`dpflow.testing.code_constants`). First each axis runs by
itself, then plans take values of all axes at once, both ends of all among them. Units of these plans fill all groups
and rows that they may, so that a sensitivity which is too small at any of them shows.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, get_args

from pydantic import BaseModel

from dpflow.core.contract.audit_cells import describe_cells, list_settings
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import ContributionBounds, MaxContributions
from dpflow.core.contract.declaration import PrivacyUnit, RequiredCertificates, Table, UnitRows
from dpflow.core.contract.mechanism import Mechanism
from dpflow.errors import InvalidInput
from dpflow.testing.code_constants import Constants, list_constants
from dpflow.testing.examples import Example, plan_mechanism, standard_parameters
from dpflow.testing.generated_tables import Case, spread
from dpflow.testing.work import Made

#: Ends and middles of each range.
KEYS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 20, 24, 31, 32, 50, 64, 100, 200, 400)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 31, 50, 100)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 31, 50, 100, 365, 1000)
PEAKS = (1, 2, 3, 7, 10, 100, 120, 999, 1000, 1001, 5000, 10**5, 10**6, 2**31, 10**12)
STEPS = ("1", "0.1", "0.5", "0.25", "0.01", "1/3", "0.3", "0.001", "1/1000000", "2", "10", "86400")
EPSILONS = (
    *("1/1000", "1/100", "1/64", "0.05", "0.1", "1/7", "0.2", "0.25", "0.3", "1/3", "0.4", "0.5"),
    *("0.6", "0.7", "0.75", "0.8", "0.9", "1", "1.1", "1.25", "4/3", "1.5", "1.6", "1.75", "2"),
    *("2.3", "2.5", "3", "3.5", "4", "4.7", "5", "6", "7.5", "8", "10", "12", "16", "20"),
    *("50", "100"),
)
DELTAS = ("1e-12", "1e-9", "1e-7", "1e-6", "1e-5", "1e-4", "0.001", "0.01", "1/16", "0.1")
INTEGERS = (*range(-1, 129), 200, 256, 365, 500, 512, 1000, 1024, 10**4, 10**5, 10**6)
NUMBERS = ("0", "1/1000", "0.01", "0.05", "0.1", "0.25", "1/3", "0.5", "0.75", "0.9", "0.99", "1", "1.5", "2", "3", "5",
           "10", "30", "100", "1000")  # fmt: skip
#: Constants of the code that one axis takes, values of a parameter's axis, and plans of all axes at once.
MAX_CONSTANTS, MAX_VALUES, MIXED = 24, 130, 48
#: Keys of one column, and steps of a bound, at most.
MAX_KEYS, MAX_PEAK = 2000, 10**15


@dataclass(frozen=True)
class _Plan:
    """A declaration and parameters that are changed one after the other; ``keys`` were asked for, and ``names``."""

    table: Table
    params: Mapping[str, Any]
    keys: int | None = None
    names: object = None


Change = Callable[[_Plan], _Plan]


class RangeCases(Sequence[Case]):
    """Plans that hold one after the other, each once, and made when it is reached first."""

    def __init__(self, mechanism: Mechanism[Any], examples: Sequence[Example]) -> None:
        self._mechanism, self._bases = mechanism, _list_bases(mechanism, examples)
        axes = _list_axes(mechanism, self._bases) if self._bases else {}
        self._changes = [*_list_changes(axes)] if self._bases else []
        self._tried: dict[int, tuple[Case, object] | None] = {}
        self._cases = Made(self._make_cases())

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def __len__(self) -> int:
        return len([*self._cases])

    def __getitem__(self, place: Any) -> Any:
        return [*self._cases][place]

    def sample(self, share: float) -> Iterator[Case]:
        """A share of them, in an order whose beginning has something of each part; the others are not made."""
        numbered = spread([*enumerate(self._changes)])
        for number, changes in numbered[: max(1, int(len(numbered) * share))]:
            if (made := self._make_case(number, changes)) is not None:
                yield made[0]

    def _make_cases(self) -> Iterator[Case]:
        seen = set[Any]()
        for number, changes in enumerate(self._changes):
            if (made := self._make_case(number, changes)) is not None:
                case, names = made
                name = frozenset(case.cells.items()), names
                if name not in seen:
                    seen.add(name)
                    yield case

    def _make_case(self, number: int, changes: Sequence[Change]) -> tuple[Case, object] | None:
        """Once for all checks: some mechanisms take thousands of plans to find that none holds."""
        if number not in self._tried:
            self._tried[number] = self._try_bases(number, changes)
        return self._tried[number]

    def _try_bases(self, number: int, changes: Sequence[Change]) -> tuple[Case, object] | None:
        """On the first base that these changes suit."""
        for turn in range(len(self._bases)):
            # The plain plan is the base of single changes; mixed ones take all in turn.
            place = turn if len(changes) < 3 else number + turn
            base = self._bases[place % len(self._bases)]
            if (made := _make_case(self._mechanism, base, changes, number)) is not None:
                return made
        return None


def range_cases(mechanism: Mechanism[Any], examples: Sequence[Example] = ()) -> RangeCases:
    """The plans of a mechanism.

    Args:
        mechanism: an instance.
        examples: where it has no standard parameters, or none of them holds on a standard table.
    """
    global _last
    asked = [mechanism, *examples]
    if _last is None or len(asked) != len(_last[0]) or any(map(operator.is_not, asked, _last[0])):
        _last = asked, RangeCases(mechanism, examples)
    return _last[1]


#: What was asked for last, and its cases: several checks of a mechanism ask one after the other.
_last: tuple[Sequence[Any], RangeCases] | None = None


def _list_bases(mechanism: Mechanism[Any], examples: Sequence[Example]) -> list[_Plan]:
    """Plans of standard parameters; those of the examples where none of these holds."""
    fillings = sorted(standard_parameters(mechanism.Params), key=lambda raw: "delta" in raw)
    tables = [_declare(relation) for relation in ("add-remove", "replace")]
    standard = [_Plan(table, raw) for raw in fillings for table in tables]
    if not examples or any(_make_case(mechanism, base, (), 0) for base in standard):
        return standard
    return [_Plan(one.table, one.params) for one in examples if one.sides is None][:4]


def _declare(relation: str) -> Table:
    return Table.model_validate(
        {
            "name": "ranges",
            "database": "ranges.duckdb",
            "privacy_unit": {"column": "user"},
            "block": "day",
            "contribution_bounds": {"rows": 2, "groups": 2, "rows_per_group": 1},
            "neighbours": relation,
            "columns": {
                "user": {},
                "day": {},
                "kind": {"public_keys": ["b", "a", "c"]},
                "word": {},
                "amount": {"lower": -10, "upper": 30},
                "share": {"lower": 0, "upper": 1, "step": "0.25"},
            },
        }
    )


def _list_changes(axes: Mapping[str, Sequence[Change]]) -> Iterator[tuple[Change, ...]]:
    yield ()
    # Both ends of all axes, values of each axis at strides of its own, and all values of each by itself: what work
    # does not suffice for is missing everywhere alike.
    listed = [changes for changes in axes.values() if changes]
    yield tuple(changes[-1] for changes in listed)
    yield tuple(changes[0] for changes in listed)
    golden = (math.sqrt(5) - 1) / 2
    for number in range(1, MIXED + 1):
        yield tuple(
            changes[int(len(changes) * ((number * golden * (place + 1)) % 1))]
            for place, changes in enumerate(listed)
        )
    yield from ((change,) for changes in listed for change in (changes[0], changes[-1]))
    yield from ((change,) for change in spread([one for changes in listed for one in changes]))


def _make_case(
    mechanism: Mechanism[Any], base: _Plan, changes: Sequence[Change], number: int
) -> tuple[Case, object] | None:
    """A case, and what its names are where these were changed: they are in no cell."""
    plan = base
    try:
        for change in changes:
            plan = change(plan)
        raw = dict(plan.params)
        # Whatever else changes, epsilon does.
        is_plain = raw.get("epsilon") == base.params.get("epsilon") and len(changes) == 1
        if is_plain and number % 3 and "epsilon" in mechanism.Params.model_fields:
            raw["epsilon"] = EPSILONS[number % len(EPSILONS)]
        params, _ = plan_mechanism(mechanism, plan.table, raw)
    except (InvalidInput, ValueError, ArithmeticError):
        return None
    return Case(plan.table, raw, describe_cells(plan.table, params), is_range=True), plan.names


# --- axes -------------------------------------------------------------------------------------------------------------


def _list_axes(mechanism: Mechanism[Any], bases: Sequence[_Plan]) -> dict[str, list[Change]]:
    """Changes by property, from the smallest value to the largest."""
    constants, fields = list_constants(mechanism), mechanism.Params.model_fields

    def integers(values: Sequence[int], low: int, high: int) -> list[int]:
        near = constants.integers(low, high)
        return sorted({*values, *near[: 3 * MAX_CONSTANTS]})

    axes: dict[str, list[Change]] = {
        "keys": [_with_keys(n) for n in integers(KEYS, 1, MAX_KEYS)],
        "groups": [_with_limits(n, n, 1) for n in integers(GROUPS, 1, 400)],
        "rows in a group": [_with_limits(n, 1, n) for n in integers(ROWS, 1, 10**4)],
        "rows": [_with_limits(2 * n - 1, n, 2) for n in GROUPS]
        + [_with_limits(3 * n, n, n) for n in ROWS[2:9]],
        "own limits": [_with_own_limits(a, b) for a, b in ((1, 1), (2, 1), (1, 2), (3, 2), (7, 5))],
        "bounds": [*_vary_bounds(integers(PEAKS, 1, MAX_PEAK))],
        "step": [
            _with_step(Fraction(step), low, high)
            for step in (*STEPS, *_fractions(constants))
            for low, high in ((-3, 7), (-57, 29))
        ],
        "missing": [_with_missing(end) for end in ("lower", "zero", "upper", "skip")],
        "declares": [*_vary_declarations()],
        "names": [*_vary_names(constants)],
    }
    others = [*_vary_columns(integers(COLUMNS, 1, MAX_COLUMNS))]
    if "epsilon" in fields:
        values = {Fraction(x) for x in (*EPSILONS, *_fractions(constants), *_near(constants))}
        axes["epsilon"] = _with_values("epsilon", sorted(x for x in values if 0 < x <= 100))
    if "delta" in fields:
        values = {Fraction(x) for x in (*DELTAS, *_fractions(constants))}
        axes["delta"] = _with_values("delta", sorted(x for x in values if 0 < x <= Fraction(1, 10)))
    settings = list_settings(mechanism.Params)
    for name in fields:
        if name not in ("epsilon", "delta"):
            listed = settings.get(name) or _list_parameter(mechanism, name, constants, bases[0])
            axes[f"parameter {name}"] = _with_values(name, listed)
    # The last one: whatever else changes columns finds them.
    return axes | {"columns": others}


def _fractions(constants: Constants) -> list[str]:
    """Constants that are no whole numbers, and small whole ones."""
    return [str(x) for x in constants.numbers if x > 0 and (x.denominator > 1 or x <= 100)]


def _near(constants: Constants) -> Iterator[str]:
    """Just beside the constants."""
    for x in constants.numbers:
        if 0 < x <= 50:
            yield from (str(x * Fraction(99, 100)), str(x * Fraction(101, 100)))


def _list_parameter(
    mechanism: Mechanism[Any], name: str, constants: Constants, base: _Plan
) -> list[Any]:
    """Values of a parameter that is a number or a text, as far as it validates."""
    kinds = {*_kinds_of(mechanism.Params.model_fields[name].annotation)}
    current = base.params.get(name)
    # Lists from a single part to all of them.
    if isinstance(current, list | tuple):
        return [current[:n] for n in range(1, len(current) + 1)]
    values: list[Any] = []
    if int in kinds:
        values += [*INTEGERS, *constants.integers(-(10**6), 10**9)]
    if kinds & {float, Fraction, Decimal}:
        values += [*NUMBERS, *(str(x) for x in constants.numbers)]
    if str in kinds and not (isinstance(current, str) and current in base.table.columns):
        values += [text for text in constants.texts if text not in base.table.columns]
    valid: dict[Any, Any] = {}
    for value in values:
        with suppress(ValueError):
            validated = getattr(mechanism.Params.model_validate({**base.params, name: value}), name)
            if not isinstance(validated, BaseModel):
                valid.setdefault(str(validated), value)
    if len(valid) <= MAX_VALUES:
        return [*valid.values()]
    stride = len(valid) / MAX_VALUES
    return [[*valid.values()][int(place * stride)] for place in range(MAX_VALUES)]


def _kinds_of(annotation: Any) -> Iterator[Any]:
    if isinstance(annotation, type):
        yield annotation
    for part in get_args(annotation):
        yield from _kinds_of(part)


def _with_values(name: str, values: Sequence[Any]) -> list[Change]:
    def change(value: Any) -> Change:
        text = str(value) if isinstance(value, Fraction) else value
        return lambda plan: replace(plan, params={**plan.params, name: text})

    return [change(value) for value in values]


def _change_columns(plan: _Plan, change: Callable[[Column], Column | None]) -> _Plan:
    """The plan with changed columns, those that the change takes. Raises ValueError if none changes."""
    changed = {name: new for name, old in plan.table.columns.items() if (new := change(old))}
    if not changed:
        raise ValueError("no column has it")
    table = plan.table.model_copy(update={"columns": {**plan.table.columns, **changed}})
    return replace(plan, table=table)


def _with_keys(number: int) -> Change:
    def change(plan: _Plan) -> _Plan:
        keys = tuple(f"k{i}" for i in range(number))
        changed = _change_columns(
            plan,
            lambda column: (
                None
                if column.public_keys is None
                else column.model_copy(update={"public_keys": keys})
            ),
        )
        return replace(changed, keys=number, names=None)

    return change


def _with_limits(rows: int, groups: int, rows_per_group: int) -> Change:
    def change(plan: _Plan) -> _Plan:
        bounds = ContributionBounds(rows=rows, groups=groups, rows_per_group=rows_per_group)
        table = plan.table.model_copy(update={"contribution_bounds": bounds})
        plan = replace(plan, table=table)
        # Units that are replaced need room for the groups of both.
        with suppress(ValueError):
            if plan.keys is None and groups > 1:
                return _with_keys(2 * groups + 1)(plan)
        return plan

    return change


def _with_own_limits(groups: int, rows: int) -> Change:
    def change(plan: _Plan) -> _Plan:
        bounds = ContributionBounds(rows=12, groups=4, rows_per_group=3)
        table = plan.table.model_copy(update={"contribution_bounds": bounds})
        own = {"groups": groups, "rows_per_group": rows}
        return _change_columns(
            replace(plan, table=table),
            lambda column: column.model_copy(update=own),
        )

    return change


def _vary_bounds(peaks: Sequence[int]) -> Iterator[Change]:
    """Bounds of each sign with these peaks, in steps, and with a small other end."""
    for number, peak in enumerate(peaks):
        forms = (
            (-peak, peak), (-peak, 1), (-1, peak), (0, peak), (-peak, 0), (peak // 2 + 1, peak + 1),
            (-peak - 1, -(peak // 2) - 1), (-(peak // 3) - 1, peak), (-peak, peak // 3 + 1),
        )  # fmt: skip
        # Every form at some peaks, every peak in some forms.
        for place in (0, 1, 2) if peak in (10, 1000) else (0,):
            yield _with_bounds(*forms[(3 * number + place) % len(forms)])
        if peak == 10:
            yield from (_with_bounds(*form) for form in forms)


def _with_bounds(low: int, high: int) -> Change:
    return lambda plan: _change_columns(
        plan,
        lambda column: (
            None
            if column.lower is None
            else column.model_copy(
                update={"lower": low * column.step, "upper": high * column.step, "missing": "skip"}
            )
        ),
    )


def _with_step(step: Fraction, low: int, high: int) -> Change:
    """A step with bounds of so many: as doubles, some of their quotients are off."""
    changed = {"step": step, "lower": low * step, "upper": high * step, "missing": "skip"}
    return lambda plan: _change_columns(
        plan, lambda column: None if column.lower is None else column.model_copy(update=changed)
    )


def _with_missing(end: str) -> Change:
    def fill(column: Column) -> Column | None:
        if column.lower is None or column.upper is None:
            return None
        middle = min(max(column.lower, Fraction(0)), column.upper)
        value: Any = {"lower": column.lower, "upper": column.upper, "zero": middle, "skip": "skip"}
        return column.model_copy(update={"missing": value[end]})

    return lambda plan: _change_columns(plan, fill)


#: Names of keys: that differ in case, spaces and accents, of numbers and dates, and long ones.
NAMES = (
    ("a", "A", "b", "B"),
    ("", " ", "a ", "a"),
    ("\u00e9", "e\u0301", "e", "\u00df"),
    ("0", "1", "10", "-1"),
    ("2025-01-01", "2025-01-02", "1900-01-01"),
    tuple(f"{'long ' * 20}{i}" for i in range(4)),
)
#: Texts of the code that names are made of, and lengths of names.
MAX_TEXTS, MAX_LENGTH = 12, 64


def _vary_names(constants: Constants) -> Iterator[Change]:
    """Names of keys, of columns that parameters name, and of tables. No certificate says which were tried, so a name
    that code asks for must be.
    """
    for keys in NAMES:
        yield _with_key_names(keys)
    for n in constants.integers(2, MAX_LENGTH)[:MAX_TEXTS]:
        yield _with_key_names([letter * n for letter in "abcd"])
    for text in [text for text in constants.texts if text][:MAX_TEXTS]:
        yield _with_key_names([text, f"{text}x", f"x{text}", "x"])
        yield _with_column_names(text, text + "{}" + text)
        yield _with_column_names(text, text)


def _with_key_names(keys: Sequence[str]) -> Change:
    def change(plan: _Plan) -> _Plan:
        changed = _change_columns(
            plan,
            lambda column: (
                None
                if column.public_keys is None
                else column.model_copy(update={"public_keys": tuple(keys)})
            ),
        )
        return replace(changed, keys=len(keys), names=tuple(keys))

    return change


def _with_column_names(text: str, form: str) -> Change:
    """Other names of the table and of the columns that parameters name; of one of these where the form has no place for
    the old name.
    """

    def change(plan: _Plan) -> _Plan:
        named = [name for name in plan.params.values() if isinstance(name, str)]
        known = plan.table.columns
        listed = {form.replace("{}", name): name for name in known if name in named}
        names = {name: old for name, old in listed.items() if name not in known}
        if not names:
            raise ValueError("no column can have this name")
        new = {old: name for name, old in names.items()}
        columns = {new.get(name, name): column for name, column in plan.table.columns.items()}
        table = plan.table.model_copy(update={"name": text, "columns": columns})
        params = {
            field: new.get(value, value) if isinstance(value, str) else value
            for field, value in plan.params.items()
        }
        return replace(plan, table=table, params=params, names=tuple(sorted(columns)))

    return change


#: Numbers of columns that no parameter names, and of the public keys of one.
COLUMNS, OTHER_KEYS, MAX_COLUMNS = (1, 2, 3, 5, 8, 20, 100), 10**5, 1000


def _vary_columns(numbers: Sequence[int]) -> Iterator[Change]:
    """Columns that no parameter names: none, the unit's left out, one of each kind, and many."""

    def add(**columns: Mapping[str, Any]) -> Change:
        # Most plans are never reached.
        @cache
        def make_columns() -> dict[str, Column]:
            return {name: _make_column(name, json.dumps(raw)) for name, raw in columns.items()}

        def change(plan: _Plan) -> _Plan:
            new = make_columns()
            if plan.table.neighbours != "replace" and any(one.public for one in new.values()):
                raise ValueError("public columns need replace")
            table = plan.table.model_copy(update={"columns": {**plan.table.columns, **new}})
            return replace(plan, table=table)

        return change

    def keep(is_kept: Callable[[_Plan, str], bool]) -> Change:
        def change(plan: _Plan) -> _Plan:
            kept = {n: column for n, column in plan.table.columns.items() if is_kept(plan, n)}
            return replace(plan, table=plan.table.model_copy(update={"columns": kept}))

        return change

    yield keep(lambda plan, name: f'"{name}"' in json.dumps(plan.params, default=str))
    yield keep(lambda plan, name: name != plan.table.privacy_unit.column)
    for bounds in (("1900-01-01", "2100-01-01"), ("1970-01-01", "1970-01-02")):
        low, high = bounds
        yield add(date={"lower": low, "upper": high}, second={"lower": low, "upper": high})
        yield add(time={"lower": f"{low} 00:00:00", "upper": f"{high} 00:00:00"})
    yield add(computed={"expression": "amount + 1"}, scaled={"expression": "2", **_SHARE})
    yield add(searched=_SHARE)
    yield add(own={"groups": 2, "rows_per_group": 1}, periods={"groups": {"day": 3, "month": 2}})
    yield add(known={"public": True})
    for number in range(2, 9):
        yield add(parts={"parts": [*("kind", "word") * 4][:number]})
    yield add(keys={"public_keys": [str(n) for n in range(OTHER_KEYS)]})
    for number in numbers:
        yield add(**{f"plain{n}": {} for n in range(number)})
        yield add(**{f"bounded{n}": {"lower": -n, "upper": n + 1} for n in range(number)})


@lru_cache(maxsize=4 * MAX_COLUMNS)
def _make_column(name: str, written: str) -> Column:
    """A column that plans share: validation of hundreds takes most of the time that a plan takes."""
    column = Column.model_validate(json.loads(written))
    if name == "searched":
        column.note_clamping("at most 1 of about 10 rows are clamped (95 %)")
    return column


_SHARE: Mapping[str, Any] = {"lower": 0, "upper": 1, "step": "0.01", "missing": "0.5"}


def _vary_declarations() -> Iterator[Change]:
    """What else a declaration may have (`dpflow.core.contract.audit_cells`)."""

    def update(**changes: Any) -> Change:
        # Of what is in no cell the name says that this is another plan.
        name = str(changes)
        return lambda plan: replace(plan, table=plan.table.model_copy(update=changes), names=name)

    def in_blocks(**changes: Any) -> Change:
        def change(plan: _Plan) -> _Plan:
            if plan.table.neighbours != "add-remove":
                raise ValueError("blocks need add-remove")
            return update(protects="unit-block", **{"block": "day", **changes})(plan)

        return change

    def by_unit(*parts: Any) -> Change:
        def change(plan: _Plan) -> _Plan:
            table, rows = plan.table, UnitRows(plan.table, *parts)
            return replace(
                plan, table=table.by_unit(rows, table.columns, table.contribution_bounds)
            )

        return change

    def write(part: Any) -> Any:
        """The same with every field written."""
        fields = type(part).model_fields
        return part.model_copy(update={name: getattr(part, name) for name in fields})

    def write_defaults(plan: _Plan) -> _Plan:
        columns = {name: write(column) for name, column in plan.table.columns.items()}
        names = ("privacy_unit", "contribution_bounds")
        parts = {name: write(getattr(plan.table, name)) for name in names}
        table = plan.table.model_copy(update={**parts, "columns": columns})
        return replace(plan, table=write(table), names="written")

    def leave_defaults(plan: _Plan) -> _Plan:
        written = {
            name: getattr(plan.table, name)
            for name, field in Table.model_fields.items()
            if field.is_required() or getattr(plan.table, name) != field.default
        }
        return replace(plan, table=Table.model_validate(written), names="left out")

    yield update(privacy_unit=PrivacyUnit(column="user", missing="one-unit"))
    yield update(holdout=True)
    for rows in (1, 100, 10**6):
        yield update(max_contributions=MaxContributions(rows=rows))
    largest = {"groups": {"kind": 2}, "rows_per_group": {"kind": 1}, "within_bounds": ("share",)}
    yield update(max_contributions=MaxContributions(rows=7, **largest))
    yield update(trusted_sql=("ranges",))
    yield update(block=None)
    yield update(backend="spark")
    yield update(require_certified=RequiredCertificates(keys=("key",)))
    for bounds in (
        {"rows": 1},
        {"rows": 3},
        {"rows": 3, "groups": 2},
        {"rows": 3, "rows_per_group": 2},
    ):
        yield update(contribution_bounds=ContributionBounds(**bounds))
    yield write_defaults
    yield leave_defaults
    yield in_blocks()
    yield in_blocks(cached_partials="checked")
    yield in_blocks(cached_partials="sealed")
    yield in_blocks(cached_partials="sealed", sealed_version=7)
    yield by_unit(None, (), (), ())
    yield by_unit("amount > 0", ("today",), (("word", "word"),), ("count(*)",))
    yield by_unit(None, (), (), tuple(f"sum(amount + {i})" for i in range(16)))
