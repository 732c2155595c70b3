"""Rows of queries over released numbers: filters, joins, groups, orders and unions, where each value
keeps the noise that it was computed from.

Everything is computed twice: as it was released, which also chooses rows and their order, and with the
half-widths that hold for as many numbers together as a column is computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpflow.analyst_sql.cells import Cells, Number, add_numbers
from dpflow.analyst_sql.outputs import (
    NULL,
    Released,
    add_released,
    as_truth,
    divide_released,
    evaluate,
    exact,
    read_number_value,
    sort_key,
    write_text,
)
from dpflow.analyst_sql.released_query import Query, ReleasedQuery, UnionAll
from dpflow.analyst_sql.select_query import Order, OutputExpression, SelectQuery
from dpflow.analyst_sql.typed_keys import KeyReader

_NO_NOISE: frozenset[Number] = frozenset()


@dataclass(frozen=True)
class Cell:
    """One value.

    Attributes:
        noises: the released numbers that it was computed from.
        number: the released number that it is, if it is one as it stands.
    """

    value: Released
    noises: frozenset[Number] = _NO_NOISE
    number: Number | None = None


CellOf = Callable[[OutputExpression], Cell]
_NULL = Cell(NULL)


@dataclass(frozen=True)
class Rows:
    """Rows of one query.

    Attributes:
        cells: the values, in the order of the query's columns.
        chosen_by: released numbers that decided which rows these are.
    """

    cells: list[tuple[Cell, ...]]
    chosen_by: frozenset[Number] = _NO_NOISE


class RowComputer:
    """Computes the rows of queries.

    Args:
        cells: for a private SELECT, what its releases have.
        together: with the intervals of as many numbers together; None: values alone.
        key_reader: shared by all that compute one answer.
        keep_noisy: rows stay that a condition leaves out by noise: the most rows that an answer may
            have, whatever is released.
    """

    def __init__(
        self,
        cells: Callable[[SelectQuery], Cells],
        together: int | None,
        key_reader: KeyReader,
        keep_noisy: bool = False,
    ) -> None:
        self._cells, self._together, self._key_reader = cells, together, key_reader
        self._keep_noisy = keep_noisy
        self._known: dict[int, Rows] = {}
        self._scalars: dict[int, Cell] = {}

    def compute(self, query: Query) -> Rows:
        """Its rows, in its order."""
        # A CTE that is named twice is computed once.
        if id(query) not in self._known:
            if isinstance(query, UnionAll):
                rows = self._unite(query)
            elif isinstance(query, SelectQuery):
                rows = self._compute_select(query)
            else:
                rows = self._compute_released(query)
            self._known[id(query)] = rows
        return self._known[id(query)]

    def _unite(self, query: UnionAll) -> Rows:
        branches = [self.compute(one) for one in query.branches]
        return Rows(
            [row for branch in branches for row in branch.cells],
            _join_noises(branch.chosen_by for branch in branches),
        )

    def _compute_select(self, query: SelectQuery) -> Rows:
        """One row for each group that was released."""
        cells = self._cells(query)
        keys = list(cells)
        texts = [[key[n] for key in keys] for n in range(len(query.groups))]
        typed = self._key_reader.read_columns(query.table, query.groups, texts)
        groups: list[CellOf] = []
        for key in keys:
            values = [exact(typed[position][text]) for position, text in enumerate(key)]
            numbers = {one: self._read_number(number) for one, number in cells[key].items()}
            groups.append(self._make_look_up(values, numbers))
        return self._order_and_limit(query, groups, _NO_NOISE)

    def _make_look_up(self, keys: Sequence[Released], numbers: Mapping[Any, Cell]) -> CellOf:
        def find(leaf: OutputExpression) -> Cell:
            if leaf.op == "key":
                return Cell(keys[leaf.args[0]])
            if leaf.op == "aggregate":
                return numbers.get(leaf.args[0], _NULL)
            return self._compute_scalar(leaf)

        return find

    def _read_number(self, number: Number) -> Cell:
        value = number.value
        if value is None:
            return Cell(Released(None, noisy=True), frozenset({number}))
        width = None if self._together is None else number.width(self._together)
        if width is None or isinstance(value, bool) or not isinstance(value, int | float):
            return Cell(Released(value, noisy=True), frozenset({number}), number)
        interval = Released(value, value - width, value + width, noisy=True)
        return Cell(interval, frozenset({number}), number)

    def _compute_scalar(self, leaf: OutputExpression) -> Cell:
        """The one value of a query in brackets; NULL if it has no row, or several. Where noise chose the
        row, its interval holds if those of all that might have been chosen do.
        """
        query = leaf.args[0]
        if id(query) not in self._scalars:
            self._scalars[id(query)] = self._choose_scalar(self.compute(query))
        return self._scalars[id(query)]

    @staticmethod
    def _choose_scalar(rows: Rows) -> Cell:
        cell = rows.cells[0][0] if len(rows.cells) == 1 else _NULL
        if not rows.chosen_by:
            return cell
        # A value without noise of its own, such as a key, might have been another one.
        value = cell.value if cell.noises else Released(cell.value.value)
        return Cell(replace(value, noisy=True), cell.noises | rows.chosen_by)

    def _compute_released(self, query: ReleasedQuery) -> Rows:
        rows, chosen_by = self._join(query)
        if query.where is not None:
            look_ups = [self._look_up_row(row) for row in rows]
            rows = [row for row, of in zip(rows, look_ups) if self._holds(query.where, of)]
            chosen_by |= _join_noises(list_noises(query.where, of) for of in look_ups)
        if query.groups is None:
            return self._order_and_limit(query, [self._look_up_row(row) for row in rows], chosen_by)
        grouped: dict[tuple[str, ...], tuple[list[Released], list[tuple[Cell, ...]]]] = {}
        if not query.groups:
            grouped[()] = [], []
        for row in rows:
            cells = [self._compute_cell(one, self._look_up_row(row)) for one in query.groups]
            # Groups of noisy keys are what they are: which rows fell into them is noise, too.
            chosen_by |= _join_noises(cell.noises for cell in cells)
            key = tuple(_write_key(cell.value.value) for cell in cells)
            key_values = [Released(cell.value.value, *_span(cell.value.value)) for cell in cells]
            grouped.setdefault(key, (key_values, []))[1].append(row)
        groups = [
            self._look_up_group(key_values, members, chosen_by)
            for key_values, members in grouped.values()
        ]
        return self._order_and_limit(query, groups, chosen_by)

    def _look_up_row(self, row: Sequence[Cell]) -> CellOf:
        return lambda leaf: row[leaf.args[0]] if leaf.op == "input" else self._compute_scalar(leaf)

    def _look_up_group(
        self,
        keys: Sequence[Released],
        rows: Sequence[Sequence[Cell]],
        chosen_by: frozenset[Number],
    ) -> CellOf:
        computed: dict[int, Cell] = {}

        def find(leaf: OutputExpression) -> Cell:
            if leaf.op == "key":
                return Cell(keys[leaf.args[0]])
            if leaf.op == "scalar":
                return self._compute_scalar(leaf)
            if id(leaf) not in computed:
                computed[id(leaf)] = self._aggregate(leaf, rows, chosen_by)
            return computed[id(leaf)]

        return find

    def _aggregate(
        self,
        leaf: OutputExpression,
        rows: Sequence[Sequence[Cell]],
        chosen_by: frozenset[Number],
    ) -> Cell:
        """An aggregate of released rows. Where noise chose them, every number that might have been among
        them must be within its width for the interval to hold.
        """
        name, value, condition = leaf.args
        look_ups = [self._look_up_row(row) for row in rows]
        if condition is not None:
            chosen_by |= _join_noises(list_noises(condition, of) for of in look_ups)
            look_ups = [of for of in look_ups if self._holds(condition, of)]
        if value is None:
            return _count_rows(len(look_ups), chosen_by)
        cells = [self._compute_cell(value, of) for of in look_ups]
        # Whether a number is NULL that was computed from noise is noise, too.
        null_by = _join_noises(cell.noises for cell in cells if cell.number is None)
        cells = [cell for cell in cells if cell.value.value is not None]
        noises = chosen_by | _join_noises(cell.noises for cell in cells)
        values = [cell.value for cell in cells]
        if name in ("count", "distinct"):
            texts = [_write_key(one.value) for one in values]
            number = len(texts) if name == "count" else len(set(texts))
            # How many there are is no number with noise unless their values are compared.
            return _count_rows(number, chosen_by | null_by if name == "count" else noises)
        numbers = [cell.number for cell in cells if cell.number is not None]
        if name in ("sum", "avg") and len(numbers) == len(cells) > 1 and not chosen_by:
            total = add_numbers(numbers)
            if total is not None:
                cell = self._read_number(total)
                if name == "sum":
                    return cell
                mean = divide_released(cell.value, exact(len(cells)))
                return Cell(replace(mean, noisy=True), cell.noises)
        noises |= null_by
        result = _aggregate_values(name, values)
        return Cell(replace(result, noisy=bool(noises)), noises)

    # --- what every SELECT does ---------------------------------------------------------------------------------

    def _compute_cell(self, output: OutputExpression, find: CellOf) -> Cell:
        if output.op in ("input", "aggregate", "rows", "key", "scalar"):
            return find(output)
        noises = list_noises(output, find)
        value = evaluate(output, lambda leaf: find(leaf).value)
        return Cell(replace(value, noisy=bool(noises)), noises)

    def _holds(self, condition: OutputExpression, find: CellOf) -> bool:
        if self._keep_noisy and list_noises(condition, find):
            return True
        return bool(as_truth(evaluate(condition, lambda leaf: find(leaf).value).value))

    def _order_and_limit(
        self,
        query: SelectQuery | ReleasedQuery,
        groups: Sequence[CellOf],
        chosen_by: frozenset[Number],
    ) -> Rows:
        """HAVING, ORDER BY, LIMIT and columns."""
        remaining = list(groups)
        if query.having is not None:
            having = query.having
            chosen_by |= _join_noises(list_noises(having, find) for find in remaining)
            remaining = [find for find in remaining if self._holds(having, find)]
        for order in reversed(query.order):
            remaining.sort(key=lambda find, order=order: _order_key(order, find))  # type: ignore[misc]
        # Among equals, and without ORDER BY, the order of keys: that of rows would tell of them.
        last = None if query.limit is None else query.offset + query.limit
        if query.offset or (last is not None and last < len(remaining)):
            chosen_by |= _join_noises(
                list_noises(order.by, find) for order in query.order for find in remaining
            )
        remaining = remaining[query.offset : last]
        rows = [
            tuple(self._compute_cell(one, find) for _, one in query.columns) for find in remaining
        ]
        return Rows(rows, chosen_by)

    def _join(self, query: ReleasedQuery) -> tuple[list[tuple[Cell, ...]], frozenset[Number]]:
        """All combinations of the sources' rows that belong together."""
        rows: list[tuple[Cell, ...]] = [()]
        chosen_by = _NO_NOISE
        for source in query.sources:
            further = self.compute(source.query)
            chosen_by |= further.chosen_by
            nothing = (_NULL,) * len(source.query.columns)
            width = len(rows[0]) if rows else 0
            index = _index_rows(source.on, further.cells, width)
            joined: list[tuple[Cell, ...]] = []
            for row in rows:
                candidates = further.cells if index is None else index(row)
                matches = [row + other for other in candidates]
                if source.on is not None:
                    look_ups = [self._look_up_row(both) for both in matches]
                    chosen_by |= _join_noises(list_noises(source.on, of) for of in look_ups)
                    matches = [
                        both for both, of in zip(matches, look_ups) if self._holds(source.on, of)
                    ]
                if not matches and source.keep_left:
                    matches = [row + nothing]
                joined += matches
            rows = joined
        return rows, chosen_by


def _index_rows(
    on: OutputExpression | None, further: Sequence[tuple[Cell, ...]], width: int
) -> Callable[[tuple[Cell, ...]], Sequence[tuple[Cell, ...]]] | None:
    """What finds the rows that may belong to one by an equality without noise; None without one."""
    for test in _split_tests(on):
        if test.op != "=" or any(arg.op != "input" for arg in test.args):
            continue
        left, right = sorted(arg.args[0] for arg in test.args)
        if not left < width <= right or any(row[right - width].noises for row in further):
            continue
        return _make_index(further, left, right - width)
    return None


def _make_index(
    further: Sequence[tuple[Cell, ...]], left: int, right: int
) -> Callable[[tuple[Cell, ...]], Sequence[tuple[Cell, ...]]]:
    index: dict[str, list[tuple[Cell, ...]]] = {}
    for row in further:
        index.setdefault(_write_comparable(row[right].value.value), []).append(row)

    def find(row: tuple[Cell, ...]) -> Sequence[tuple[Cell, ...]]:
        if row[left].noises:
            return further
        return index.get(_write_comparable(row[left].value.value), ())

    return find


def _split_tests(on: OutputExpression | None) -> list[OutputExpression]:
    if on is None:
        return []
    if on.op == "AND":
        return [test for arg in on.args for test in _split_tests(arg)]
    return [on]


def _count_rows(number: int, chosen_by: frozenset[Number]) -> Cell:
    """A number of rows; without an interval where noise chose them, as one more or less may be near."""
    count = Released(number, noisy=True) if chosen_by else exact(number)
    return Cell(count, chosen_by)


def _aggregate_values(name: str, values: Sequence[Released]) -> Released:
    """Of values that are not NULL, as DuckDB has it; intervals by the ends of all of theirs."""
    if not values:
        return NULL
    if name in ("min", "max"):
        return _find_extreme(name, values)
    numbers = [read_number_value(one.value) for one in values]
    if any(number is None for number in numbers):
        return NULL
    if name == "median":
        return _find_middle(values)
    total = values[0]
    for one in values[1:]:
        total = add_released(total, one)
    return total if name == "sum" else divide_released(total, exact(len(values)))


def _find_extreme(name: str, values: Sequence[Released]) -> Released:
    choose: Any = min if name == "min" else max
    value = choose((one.value for one in values), key=sort_key)
    if not all(one.bounded for one in values):
        return Released(value)
    return Released(value, choose(one.low for one in values), choose(one.high for one in values))


def _find_middle(values: Sequence[Released]) -> Released:
    """The median: it lies between that of all low ends and that of all high ends."""

    def middle(numbers: Iterable[Any]) -> float:
        ordered = sorted(numbers)
        half = len(ordered) // 2
        even = len(ordered) % 2 == 0
        return float((ordered[half - 1] + ordered[half]) / 2 if even else ordered[half])

    value = middle(one.value for one in values)
    if not all(one.bounded for one in values):
        return Released(value)
    return Released(value, middle(one.low for one in values), middle(one.high for one in values))


def list_noises(output: OutputExpression, find: CellOf) -> frozenset[Number]:
    """The released numbers that an expression is computed from in one row."""
    return _join_noises(find(leaf).noises for leaf in output.list_leaves())


def _join_noises(sets: Iterable[frozenset[Number]]) -> frozenset[Number]:
    return _NO_NOISE.union(*sets)


def _span(value: Any) -> tuple[Any, ...]:
    number = exact(value)
    return (number.low, number.high) if number.bounded else ()


def _write_key(value: Any) -> str:
    """A text that values have in common where they are one value in a GROUP BY."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    kind = {bool: "truth", int: "number", float: "number"}.get(type(value), "text")
    return "" if value is None else f"{kind} {write_text(value)}"


def _write_comparable(value: Any) -> str:
    """A text that values have in common where one may equal the other: a text is compared as a number."""
    number = read_number_value(value)
    return write_text(value) if number is None else str(float(number))


@dataclass(frozen=True)
class _Reverse:
    """Orders the other way round."""

    key: Any

    def __lt__(self, other: _Reverse) -> bool:
        return bool(other.key < self.key)


def _order_key(order: Order, find: CellOf) -> Any:
    value = evaluate(order.by, lambda leaf: find(leaf).value).value
    if value is None:
        return (0 if order.nulls_first else 2, _Reverse(()) if order.descending else ())
    key = sort_key(value)
    return (1, _Reverse(key) if order.descending else key)
