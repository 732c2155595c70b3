"""Tables, parameters and answers for conformance checks of mechanisms without own examples.

`examples_for` fills a parameter model by the usual names of its fields (`VALUES`), and keeps what
plans on the example tables. A mechanism with a required field of another name passes its own
`Example`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedSums,
    Groups,
    GroupValues,
    KeySets,
    PerGroup,
    PerUnit,
    RecordArrays,
    Records,
    SortedValues,
    UnboundedValues,
    UnitScores,
    UnitSizes,
    ValueCounts,
    row_limit,
)
from dpflow.core.contract.strict_models import describe_problems
from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.given_sides import Sides
from dpflow.testing.neighbours import key_sets, make_histogram, make_sizes

AnyMechanism = Mechanism[Any] | InteractiveMechanism[Any, Any]

#: One unit may reach 2 groups with 2 rows each, but has 3 rows in all: a mechanism that
#: mixes up two of the contribution bounds fails.
EXAMPLE_TABLE = Table.model_validate(
    {
        "name": "example",
        "database": "example.duckdb",
        "privacy_unit": {"column": "user"},
        "block": "day",
        "contribution_bounds": {"rows": 3, "groups": 2, "rows_per_group": 2},
        "columns": {
            "user": {},
            "day": {},
            "kind": {"public_keys": ["b", "a", "d", "c"]},
            "word": {},
            "amount": {"lower": -10, "upper": 30},
            "share": {"lower": 0, "upper": 1, "step": "0.25"},
        },
    }
)
REPLACE_TABLE = EXAMPLE_TABLE.model_copy(update={"neighbours": "replace"})
EXAMPLE_TABLES = (EXAMPLE_TABLE, REPLACE_TABLE)

OMIT = object()
MEASURES = [{"measure": kind, "column": "share"} for kind in ("sum", "mean", "variance")]
#: What a parameter of this name is filled with. `OMIT` leaves an optional field out.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "epsilon": ("1",),
    "delta": ("0.01", OMIT),
    "column": ("amount",),
    "columns": (["amount", "share"],),
    "by": ("kind", "word", OMIT),
    "p": ("1/4", OMIT),
    "exponent": (1, OMIT),
    "quantiles": (["1/4", "1/2"],),
    "noise": (OMIT, "gaussian"),
    "measures": (["count", "count_distinct", {"measure": "sum", "column": "amount"}], MEASURES),
    "of": ("units", OMIT),
    "k": (2,),
    "selection": (OMIT, "exponential"),
    "groups": (20,),
    "failures": (2,),
    "queries": (12,),
    "features": (["amount", "share"],),
    "label": ("kind",),
    "learner": ("GaussianNB",),  # takes no randomness, even of its own
    "predictions": (3,),
    "shards": (4,),
    "rows": (100,),
}
#: The same for the fields of an interactive mechanism's query: one query per place.
QUERY_VALUES: Mapping[str, tuple[Any, ...]] = {
    "threshold": (5, 3, 4, 3, 5, 6),
    "estimator": ("accuracy",) * 6,
    "claim": ("1/2",) * 6,
    "candidate": tuple(f"candidate-{i}" for i in range(6)),
    "columns": (["amount", "share"],) * 6,
    "point": ([5, 0.5], [-10, 0.25], [30, 1], [5, 0.5], [7, 0], [0, 0.75]),
    "column": ("amount", "share") * 3,
    "weights": ([0, 1, "1/2", 0],) * 6,
}


@dataclass(frozen=True)
class Example:
    """A declaration, parameters as in a release file, and queries of an interactive mechanism. ``sides`` are neighbouring tables
    where its guarantee is tight; ``form`` names what is audited apart from the mechanism's other forms.
    """

    table: Table
    params: Mapping[str, Any]
    queries: Sequence[Mapping[str, Any]] = field(default=())
    sides: Sides | None = None
    form: str = ""


def read_examples(registered: Iterable[Mapping[str, Any]]) -> list[Example]:
    """Examples as `dpflow.hookspecs.dpflow_register_examples` has them."""
    return [
        Example(
            validate_model(Table, one["table"]),
            one["params"],
            one.get("queries", ()),
            Sides.from_json(one["sides"]) if "sides" in one else None,
            one.get("form", ""),
        )
        for one in registered
    ]


def validate_model(model: type[BaseModel], raw: Mapping[str, Any]) -> Any:
    """Parameters or a query as the engine builds them. Raises `InvalidDeclaration`."""
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        raise InvalidDeclaration(describe_problems(error)) from None


def plan_mechanism(
    mechanism: AnyMechanism, table: Table, raw: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Validated parameters and the event, after computing all that planning needs."""
    params = validate_model(mechanism.Params, raw)
    event = mechanism.event(params, table)
    if isinstance(mechanism, Mechanism):
        mechanism.data_request(params, table)
        mechanism.error_bound(params, table)
    return params, event


def add_computed_columns(mechanism: AnyMechanism, example: Example) -> Example:
    """The example with the columns that its mechanism computes from each row, as plans have them.

    Rows of its ``sides`` hold their values under these columns' names. Raises `InvalidInput` as
    planning does.
    """
    params = validate_model(mechanism.Params, example.params)
    computed = mechanism.computed_columns(params, example.table)
    if not computed:
        return example
    columns = {**example.table.columns, **computed}
    return replace(example, table=example.table.model_copy(update={"columns": columns}))


def examples_for(
    mechanism: AnyMechanism, tables: Sequence[Table] = EXAMPLE_TABLES
) -> list[Example]:
    """Examples from the standard names. Raises `InvalidInput` if a required field has another name."""
    fields = mechanism.Params.model_fields
    unknown = [name for name, info in fields.items() if info.is_required() and name not in VALUES]
    queries: tuple[dict[str, Any], ...] = ()
    if isinstance(mechanism, InteractiveMechanism):
        required = mechanism.Query.model_fields.items()
        unknown += [n for n, i in required if i.is_required() and n not in QUERY_VALUES]
        queries = _fill_queries(mechanism.Query)
        # Checks of a session without a question would check nothing.
        if not queries:
            unknown += [*mechanism.Query.model_fields][:1]
    examples: list[Example] = []
    for fillings in () if unknown else _fill_params(mechanism.Params):
        for table in tables:
            # Different fillings may validate to equal parameters, such as a default written out.
            distinct: dict[str, Example] = {}
            for raw in fillings:
                try:
                    params, _ = plan_mechanism(mechanism, table, raw)
                except InvalidInput:
                    continue  # e.g. grouping by a column without keys: another filling does
                distinct.setdefault(params.model_dump_json(), Example(table, raw, queries))
            examples.extend(distinct.values())
        # Changing two fields is for models on which no single change plans.
        if examples:
            break
    if not examples:
        hint = (
            f"its fields {', '.join(unknown)} have no standard values"
            if unknown
            else "no standard parameters plan"
        )
        raise InvalidInput(
            f"{mechanism.name}: {hint}; pass examples=[Example(table, params, queries), ...]"
        )
    return examples


def standard_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Parameters by the standard names, one field changed at a time; empty if a required field has
    another name.
    """
    fields = model.model_fields.items()
    is_standard = all(name in VALUES for name, info in fields if info.is_required())
    return _fill_params(model)[0] if is_standard else []


def _fill_params(model: type[BaseModel]) -> list[list[dict[str, Any]]]:
    """Two lists: the first values and one field changed at a time; two fields changed."""
    names = [name for name in model.model_fields if name in VALUES]
    first = {name: VALUES[name][0] for name in names}
    others = [(name, value) for name in names for value in VALUES[name][1:]]

    def apply_changes(changes: Iterable[tuple[tuple[str, Any], ...]]) -> list[dict[str, Any]]:
        candidates = [
            {k: v for k, v in {**first, **dict(change)}.items() if v is not OMIT}
            for change in changes
        ]
        required = [name for name in names if model.model_fields[name].is_required()]
        return [one for one in candidates if all(name in one for name in required)]

    return [apply_changes([(), *combinations(others, 1)]), apply_changes(combinations(others, 2))]


def _fill_queries(model: type[BaseModel]) -> tuple[dict[str, Any], ...]:
    names = [name for name in model.model_fields if name in QUERY_VALUES]
    return tuple(
        dict(zip(names, values)) for values in zip(*(QUERY_VALUES[name] for name in names))
    )


# --- answers ----------------------------------------------------------------------------------------------------------

#: Values of a column, in all groups together, that stand for all of them.
MOST_VALUES = 200
#: The largest sum that a plan accepts.
HUGE = 2**62 - 1


def possible_answers(request: DataRequest, table: Table) -> dict[str, Answer]:
    """Answers that a table may give, by name: typical ones and the ends of what is possible."""
    if isinstance(request, GroupedSums):
        return _group_answers(request)
    if isinstance(request, SortedValues):
        low, high = table.column(request.column).grid_bounds()
        middle = (low + high) // 2
        histograms = {
            "no rows": ([], []),
            "one row": ([high], [1]),
            "one value": ([middle], [50]),
            "both ends": ([low, high], [7, 9]),
            "every value": (list(range(low, min(high, low + 500) + 1)), None),
            "huge": ([low, middle, high], [10**12, 1, 10**12]),
        }
        return {
            name: _repeat_histogram(request, values, counts)
            for name, (values, counts) in histograms.items()
        }
    if isinstance(request, KeySets):
        words = [f"word-{i:03d}" for i in range(40)]
        bags: dict[str, Any] = {
            "no rows": [],
            "one unit": [words[: request.groups]],
            "many": [words[i % 4 : i % 4 + request.groups] for i in range(20_000)],
            "odd keys": [
                ["\x00", "é" * 300, "'; --", ""][i % 4 :][: request.groups] for i in range(4000)
            ],
            "many keys": [[f"w{i}"] for i in range(300)],
            "rare and common keys": [[f"w{i}"] for i in range(40) for _ in range(i)],
        }
        return {name: key_sets(bag) for name, bag in bags.items()}
    if isinstance(request, Records):
        return {f"{n} rows": _make_records(request, table, n) for n in (0, 1, 2, 7, 1000)}
    if isinstance(request, UnboundedValues):
        return _unbounded_answers(request)
    if isinstance(request, UnitSizes):
        lists = {"no units": [], "one unit": [3], "many": [1, 2, 3, 7, 2**40] * 2000}
        number = len(request.groupings)
        return {name: make_sizes(sizes, *[sizes] * number) for name, sizes in lists.items()}
    if isinstance(request, UnitScores):
        return _unit_answers()
    m = request.groups
    columns = {
        "zeros": [0.0],
        "ones": [1.0],
        "mixed": [0.0, 0.25, 0.5, 1.0],
        "huge": [1e300, -1e300, 5e-324],
    }
    return {name: PerGroup(np.resize(np.array(values), m)) for name, values in columns.items()}


def typical_answer(request: DataRequest, table: Table) -> Answer:
    """An answer with many rows in every group, far from the ends."""
    if isinstance(request, SortedValues):
        low, high = table.column(request.column).grid_bounds()
        return _repeat_histogram(request, list(range(low, high + 1)), None)
    if isinstance(request, Records):
        return _make_records(request, table, 200)
    if isinstance(request, UnboundedValues):
        return _unbounded_answers(request)["many"]
    mixed = isinstance(request, GroupValues | UnitScores)
    return possible_answers(request, table)["mixed" if mixed else "many"]


def _unit_answers() -> dict[str, Answer]:
    """Scores of units: none, one, without a number, and far outside of what is possible."""
    columns = {
        "no units": [],
        "one unit": [1.0],
        "nobody has a score": [np.nan] * 20,
        "mixed": [0.0, 0.25, np.nan, 1.0] * 10,
        "huge": [1e300, -1e300, np.inf, -np.inf, 5e-324],
    }
    return {name: PerUnit(np.array(values, dtype=float)) for name, values in columns.items()}


def _unbounded_answers(request: UnboundedValues) -> dict[str, Answer]:
    """The same values in every group."""
    ends = [5e-324, -5e-324, -0.0, 1.7e308, -1.7e308, 2.0**53 + 2, np.inf, -np.inf]
    columns: dict[str, Any] = {
        "no rows": [],
        "one row": [1.5],
        "two rows": [-1e300, 1e300],
        "one value": [7.25] * 400,
        "extremes": ends * 60,
        "infinities": [np.inf] * 200 + [-np.inf] * 200,
        "all scales": 1.5 ** np.arange(-800, 800),
        "rarer and rarer": np.repeat(2.0 ** np.arange(60), np.arange(60, 0, -1)),
        "many": np.sin(np.arange(400.0)) * 10 + np.arange(400.0) % 3,
    }
    return {
        name: ArrayColumn.from_groups(*[values] * len(request.keys))
        for name, values in columns.items()
    }


def _neighbouring_columns(request: UnboundedValues, replace: bool) -> list[tuple[Answer, Answer]]:
    """One unit more, or with other values, beside spread values and two heavy ones."""
    shared = list(np.arange(40.0) % 16) + [3.0] * 40 + [100.0] * 40
    sides = []
    for value, there in ((1000.0, True), (-1000.0, replace)):
        rows = _full_groups(request, len(request.keys)) * there
        groups = [shared + [value] * int(number) for number in rows]
        sides.append(ArrayColumn.from_groups(*groups, units=200 + there))
    return [(sides[0], sides[1])]


def _make_records(request: Records, table: Table, n: int) -> RecordArrays:
    """One row a unit, each column running through its whole domain."""
    return RecordArrays(
        np.arange(n), {name: _cycle_domain(table, name, n) for name in request.columns}
    )


def _cycle_domain(table: Table, name: str, n: int) -> NDArray[np.int64]:
    keys = table.column(name).public_keys
    low, high = table.column(name).grid_bounds() if keys is None else (-1, len(keys) - 1)
    return low + np.arange(n, dtype=np.int64) % (high - low + 1)


def _repeat_histogram(
    request: SortedValues, values: Sequence[int], counts: Sequence[int] | None
) -> ValueCounts:
    """The same values in every group, five times each by default."""
    n = len(request.keys)
    row_counts = np.array([5] * len(values) if counts is None else counts, np.int64)
    codes = None if request.by is None else np.repeat(np.arange(n), len(values))
    return ValueCounts(np.tile(np.array(values, np.int64), n), np.tile(row_counts, n), codes)


def keys_of(request: GroupedSums, most: int = 4) -> tuple[str, ...]:
    """The groups of an answer: the public keys, or some that could be in the rows."""
    if request.by is None:
        return ("",)
    return request.keys if request.keys is not None else tuple(f"word-{i:03d}" for i in range(most))


def make_groups(
    request: GroupedSums,
    keys: Sequence[str],
    rows: Any,
    sums: Any = 0,
    squares: Any = 0,
    units: Any = None,
) -> Groups:
    """An answer with these rows, sums and squares in each group.

    There are as many values as rows, and by default as many units. Sums and squares are one for
    all columns, or a mapping by column.
    """

    def fill_groups(value: Any) -> NDArray[np.int64]:
        return np.array(np.broadcast_to(value, len(keys)), np.int64)

    def fill_column(value: Any, column: str) -> NDArray[np.int64]:
        return fill_groups(value[column] if isinstance(value, Mapping) else value)

    names = [column for column, _ in request.values]
    return Groups(
        tuple(keys),
        fill_groups(rows),
        fill_groups(rows if units is None else units),
        {c: fill_column(sums, c) for c in names},
        {c: fill_groups(rows) for c in names},
        {one.name: fill_column(squares, one.name) for one in request.squares},
    )


def _group_answers(request: GroupedSums) -> dict[str, Answer]:
    keys = keys_of(request)
    answers: dict[str, Answer] = {
        "zeros": make_groups(request, keys, 0),
        "one unit": make_groups(
            request, keys, [1] + [0] * (len(keys) - 1), [7] + [0] * (len(keys) - 1)
        ),
        "many": make_groups(request, keys, [10_000 + 13 * i for i in range(len(keys))], 555),
        "negative sums": make_groups(request, keys, 3, -9999),
        "huge": make_groups(request, keys, HUGE, HUGE),
        "huge negative": make_groups(request, keys, HUGE, -HUGE),
    }
    if request.by is not None and request.keys is None:
        answers["no groups"] = make_groups(request, (), np.zeros(0))
        answers["one group"] = make_groups(request, ("",), 1)
        answers["odd keys"] = make_groups(request, ("\x00", "a\nb", "é" * 300, "'; --"), 10**6)
        answers["many groups"] = make_groups(request, keys_of(request, 300), 100)
    return answers


def neighbouring_answers(request: DataRequest, table: Table) -> list[tuple[Answer, Answer]]:
    """Answers of neighbouring tables that are as far apart as the contribution bounds allow."""
    replace = table.neighbours == "replace"
    if isinstance(request, GroupedSums):
        return _neighbouring_groups(request, table, replace)
    if isinstance(request, SortedValues):
        return _neighbouring_values(request, *table.column(request.column).grid_bounds(), replace)
    if isinstance(request, KeySets):
        shared = [["shared"]] * 60 + [["other", "shared"][: request.groups]] * 30
        lone, theirs = (
            [f"{name}-{i}" for i in range(request.groups)] for name in ("lone", "theirs")
        )
        full = ["shared", "other"][: request.groups]
        return [
            (key_sets([*shared, bag]), key_sets(shared + [theirs] * replace))
            for bag in (lone, full)
        ]
    if isinstance(request, Records):
        return _neighbouring_records(request, table, replace)
    if isinstance(request, UnboundedValues):
        return _neighbouring_columns(request, replace)
    if isinstance(request, UnitScores):
        return _neighbouring_units(replace)
    if isinstance(request, UnitSizes):
        return _neighbouring_sizes(request, replace)
    m = request.groups
    ones, spread = np.zeros(m), np.linspace(0, 1, m)
    # Medians sit at 0 with few ones beside: a group that moves crosses the gap.
    ones[: round(0.15 * m)] = 1.0
    moved = 2 if replace else 1
    return [
        (_raise_lowest(ones, moved), PerGroup(ones)),
        (_raise_lowest(spread, moved), PerGroup(spread)),
    ]


def _neighbouring_sizes(request: UnitSizes, replace: bool) -> list[tuple[Answer, Answer]]:
    """One unit more, or with another number of rows and groups, in bins of few and of many units."""
    shared, number = [1] * 30 + [4] * 5, len(request.groupings)
    sides = [[*shared, size] for size in (1, 2**30)]
    other = shared + [9] * replace
    return [
        (make_sizes(side, *[side] * number), make_sizes(other, *[other] * number)) for side in sides
    ]


def _neighbouring_units(replace: bool) -> list[tuple[Answer, Answer]]:
    """One unit more at either end, or moved to the other one, beside scores around the middle."""
    shared = [0.5] * 30
    return [
        (PerUnit(np.array([*shared, here])), PerUnit(np.array([*shared, *[1 - here] * replace])))
        for here in (0.0, 1.0)
    ]


def _neighbouring_records(
    request: Records, table: Table, replace: bool
) -> list[tuple[Answer, Answer]]:
    """One unit more with rows at one end of every column's domain, or moved to the other end.

    Public columns are the same on both sides.
    """
    shared = _make_records(request, table, 30)

    def add_unit(end: int) -> RecordArrays:
        far = {name: 0 if table.column(name).public else end for name in request.columns}
        extra = {
            c: np.repeat(_cycle_domain(table, c, 1000)[[0, -1][side]], request.rows)
            for c, side in far.items()
        }
        units = np.append(shared.units, np.repeat(len(shared.units), request.rows))
        return RecordArrays(
            units, {name: np.append(shared.columns[name], extra[name]) for name in request.columns}
        )

    return [(add_unit(0), add_unit(1) if replace else shared)]


def _raise_lowest(values: NDArray[np.float64], count: int) -> PerGroup:
    """The lowest values become 1."""
    changed = values.copy()
    changed[np.argsort(values, kind="stable")[:count]] = 1.0
    return PerGroup(changed)


def _neighbouring_values(
    request: SortedValues, low: int, high: int, replace: bool
) -> list[tuple[Answer, Answer]]:
    """One unit more with all its values at one end, or moved, beside no, outer and even values."""
    pairs: list[tuple[Answer, Answer]] = []
    first = _full_groups(request, len(request.keys))
    steps = max(4, MOST_VALUES // len(request.keys))
    every = range(low, high + 1, max(1, (high - low) // steps))
    for base in ([], [low, high] * 3, list(every)):
        sides = [(high, first)] + [
            (low, order) for order in (first, first[::-1])[: len(first)] if replace
        ]
        tables = [[base + [end] * int(rows) for rows in order] for end, order in sides]
        # Under add-remove the neighbour is the table without the unit.
        tables += [[base] * len(first)] * (not replace)
        one, *others = (make_histogram(request, *groups) for groups in tables)
        pairs += [(one, other) for other in others]
    return pairs


def _full_groups(
    request: GroupedSums | SortedValues | UnboundedValues, keys: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A unit's rows in each of so many groups: as many full groups as its bounds allow, and a rest."""
    groups = min(keys, request.groups)
    total = row_limit(request) or groups * request.rows_per_group
    rows = np.arange(groups) * -request.rows_per_group + total
    return np.pad(np.clip(rows, 0, request.rows_per_group), (0, keys - groups))


def _neighbouring_groups(
    request: GroupedSums, table: Table, replace: bool
) -> list[tuple[Answer, Answer]]:
    keys = keys_of(request)
    first = _full_groups(request, len(keys))
    # Under replace the new unit's groups are as far from the old one's as there are any.
    last = first[::-1]
    private = request.by is not None and request.keys is None

    def with_unit(base: int, rows: Any, end: int) -> Groups:
        """``base`` rows in every group, and a unit with so many rows in each, whose values are all at
        the lower (0) or upper (1) bound.
        """
        ends = {
            column: table.column(column).grid_bounds()[end] - centre
            for column, centre in request.values
        }
        sums = {column: 3 * base + value * rows for column, value in ends.items()}
        squares = {}
        for square in request.squares:
            edge = square.round_square(table.column(square.name).grid_bounds()[end])
            squares[square.name] = 9 * base + (edge - square.half) * rows
        return make_groups(request, keys, base + rows, sums, squares, base + (rows > 0))

    pairs: list[tuple[Answer, Answer]] = [
        (with_unit(base, first, end), with_unit(base, last * replace, 1 - end))
        for base in ((40,) if private else (0, 40))
        for end in ((1, 0) if request.values else (0,))
    ]
    # Private keys: the neighbours may show keys that the other table does not have at all.
    if private:
        own_rows = [int(rows) for rows in _full_groups(request, request.groups) if rows]
        shared, lone = ("shared",), tuple(f"lone-{i}" for i in range(len(own_rows)))
        theirs = tuple(f"other-{i}" for i in range(len(own_rows) * replace))
        rows_of = [[200, *own_rows[: len(own)]] for own in (lone, theirs)]
        units_of = [[200, *[1] * len(own)] for own in (lone, theirs)]
        pairs.append(
            (
                make_groups(request, shared + lone, rows_of[0], units=units_of[0]),
                make_groups(request, shared + theirs, rows_of[1], units=units_of[1]),
            )
        )
    return pairs
