"""Relations of a FROM, and the columns that names mean there, with what is known of their noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.noise.expression_intervals import (
    EXACT,
    Find,
    Known,
    NoisyNull,
    Source,
    add_counts,
    choose,
    combine,
    number,
)
from dpflow.analyst_sql.parse.parsed_parts import iterate_parts
from dpflow.analyst_sql.parse.select_query import (
    filled_column,
    key_column,
    number_column,
    present_column,
)
from dpflow.analyst_sql.releases.spellings import MEAN_OF
from dpflow.core.contract.results import ValueRange
from dpflow.tables.public.published_rows import EXACT as EXACT_COLUMN
from dpflow.tables.public.published_rows import PublishedRows
from dpflow.tables.public.query_process import RowTable
from dpflow.tables.public.query_worker import SCHEMA

#: Expressions that are looked at, at most.
_MAX_STEPS = 20_000
#: What makes a list, and no struct.
_LISTS = (exp.Array, exp.ArrayAgg, exp.GenerateSeries, exp.Split)
MARK = " #"
#: What stands beside a column, by the end of its name.
LOW, HIGH, COUNT = f"{MARK}low", f"{MARK}high", f"{MARK}count"
#: The column of a released row's position.
ROW = f"row{MARK}"


@dataclass(frozen=True)
class ReleasedColumns:
    """What is known of a released table before it is read.

    Attributes:
        keys: how many grouping expressions it has.
        numeric: for each number whether it has widths.
        rows: how many rows it has.
        selected: its rows were selected privately.
        cells: for each number how many cells of its release are added up in it; 0 where their noise does
            not add up.
        hidden: for each number whether noise made it NULL in some row.
        filled: the numbers beside which stands whether their intervals exclude 0.
        present: the numbers of units, beside which that stands as a number with an interval of its own.
        premises: for each number the releases whose limits on what is cut its total interval rests on.
        partial: some rows of the query may be in none of its groups, so sums of all groups have no total interval.
    """

    keys: int
    numeric: Sequence[bool]
    rows: int
    selected: bool
    cells: Sequence[int]
    hidden: Sequence[bool]
    filled: Sequence[int]
    present: Sequence[int]
    premises: Sequence[frozenset[str]]
    partial: bool = False


@dataclass(frozen=True)
class NoisyColumn:
    """A column of a query and its noise.

    Attributes:
        cell: the released number that it is, as it stands, in each row.
    """

    name: str
    noise: Known
    cell: Source | None = None


@dataclass
class Shape:
    """The columns of a query.

    Attributes:
        chosen: numbers whose noise decided which rows these are.
        ordered: numbers whose noise decided their order, which DuckDB keeps: it chooses where a query around it
            cuts the rows.
        selected: the rows, or some below, were selected privately.
        release: the release whose rows these are, each at most once.
        reread: what is known of some columns by other rules of the same released tables.
    """

    columns: list[NoisyColumn]
    chosen: frozenset[Source] = frozenset()
    selected: bool = False
    release: int | None = None
    ordered: frozenset[Source] = frozenset()
    attach: Callable[[Sequence[bool]], None] = field(default=lambda wanted: None, repr=False)
    reread: Callable[[ReleasedNoise, Sequence[bool]], list[Known]] | None = None

    def list_ruled(self) -> list[bool]:
        """For each column whether it has an interval."""
        return [column.noise.ruled for column in self.columns]

    @cached_property
    def named(self) -> Mapping[str, list[NoisyColumn]]:
        """The columns by their names in lower case."""
        found: dict[str, list[NoisyColumn]] = {}
        for column in self.columns:
            found.setdefault(column.name.casefold(), []).append(column)
        return found


class RuleMissing(Exception):
    """No rule covers the query, so no column of it has an interval."""


#: Columns of queries by their names in lower case.
Scope = Mapping[str, Shape]


def expose(shape: Shape, alias: Any) -> Shape:
    """A query's columns as the query around it sees them, with those for intervals."""
    wanted = shape.list_ruled()
    shape.attach(wanted)
    names = [column.name for column in shape.columns]
    given = [one.name for one in alias.args.get("columns") or ()] if alias is not None else []
    names[: len(given)] = given
    if len({name.casefold() for name in names}) < len(names):
        raise RuleMissing
    if given:
        beside = [n + end for n, w in zip(names, wanted) if w for end in (LOW, HIGH, COUNT)]
        columns = [exp.to_identifier(name, quoted=True) for name in names + beside]
        alias.set("columns", columns)
    columns_seen = [replace(column, name=name) for column, name in zip(shape.columns, names)]
    return Shape(columns_seen, shape.chosen, shape.selected, shape.release, shape.ordered)


class ReleasedNoise:
    """What rules read of the released tables, and how far they may go.

    Args:
        releases: the released tables, by position.
        aggregate_names: DuckDB's aggregates, in lower case.
        public: the public tables beside them.
        sum_width: writes how far below and above it a sum of cells of a number's release may be, by how many
            there are.
        keep_noisy: conditions on noisy values are left out: the most rows that an answer may have.
        mean_limits: public ranges of means, by the sum that they are quotients of; then the columns beside
            numbers are the ends of public ranges.
        is_total: intervals are of noise and truncation.
    """

    def __init__(
        self,
        releases: Sequence[ReleasedColumns],
        aggregate_names: frozenset[str],
        public: Sequence[RowTable] = (),
        sum_width: Callable[[Source, Any], tuple[Any, Any]] | None = None,
        keep_noisy: bool = False,
        mean_limits: Mapping[Source, ValueRange] | None = None,
        is_total: bool = False,
    ) -> None:
        self._releases, self.aggregate_names = releases, aggregate_names
        self._sum_width, self.keep_noisy, self._mean_limits = sum_width, keep_noisy, mean_limits
        #: Whether a value is one of many by its rank.
        self.ranks = False
        self._public, self._is_total = list(public), is_total
        self._steps = 0
        #: All released columns: what may have decided where nothing is noise. Behind the releases are public tables.
        self.everything = frozenset(
            (n, j) for n, one in enumerate(releases) for j in range(len(one.numeric))
        ) | frozenset(
            (len(releases) + n, j)
            for n, one in enumerate(public)
            if isinstance(one, PublishedRows)
            for j, held in enumerate(one.confidences)
            if held < EXACT_COLUMN
        )

    def rests_on_one(self, sources: Iterable[Source]) -> bool:
        """Whether the intervals of what is computed from these rest on the limits of one release at most: those of
        several fail together too often.
        """
        if not self._is_total:
            return True
        known = [self._releases[n].premises[j] for n, j in sources if n < len(self._releases)]
        return len(frozenset[str]().union(*known)) <= 1

    def make_sum_width(self, source: Source) -> Callable[[Any], tuple[Any, Any]] | None:
        """What writes how far below and above it a sum of a column's numbers may be; None where their noise
        does not add up.
        """
        write_width = self._sum_width
        if write_width is None or not self._releases[source[0]].cells[source[1]]:
            return None
        return lambda count: write_width(source, count)

    def find_quotient_range(self, part: Any, find: Find) -> Known | None:
        """The public range of a mean, or of a quotient that is not negative; None of anything else, and
        where intervals are looked for.
        """
        if self._mean_limits is None:
            return None
        source = part.meta.get(MEAN_OF)
        limits = self._mean_limits.get(source)
        if limits is not None:
            return Known(
                True,
                frozenset({source}),
                _write_end(limits.low),
                _write_end(limits.high),
                number(1),
                NoisyNull.ANYWHERE,
            )
        if not isinstance(part, exp.Div):
            return None
        parts = [part.this, part.expression]
        operands = [find(one) for one in parts]
        if any(one.noisy and not one.ruled for one in operands):
            return None
        lows = [one.low if one.noisy else exp.paren(p) for p, one in zip(parts, operands)]
        signs = [exp.GTE(this=low.copy(), expression=number(0)) for low in lows]
        positive = exp.paren(exp.and_(*signs))
        low, high = choose(positive, number(0)), choose(positive, _write_end(None))
        sources = operands[0].sources | operands[1].sources
        return Known(True, sources, low, high, add_counts(operands), NoisyNull.ANYWHERE)

    def count_step(self) -> None:
        """Raise `RuleMissing` where a query takes too many steps."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise RuleMissing

    def count_numbers(self, sources: Iterable[Source]) -> int:
        """How many released numbers columns of released and of published tables have."""
        return sum(map(self._count_column, sources))

    def _count_column(self, source: Source) -> int:
        position, column = source
        if position < len(self._releases):
            return self._releases[position].rows
        published = self._public[position - len(self._releases)]
        assert isinstance(published, PublishedRows)
        return len(published.values[column]) * published.count_failures(column)

    def reads_published(self, sources: Iterable[Source]) -> bool:
        """Whether some of them are columns of a published answer."""
        return any(position >= len(self._releases) for position, _ in sources)

    def _read_public(self, position: int) -> Shape:
        table = self._public[position]
        if not isinstance(table, PublishedRows):
            return Shape([NoisyColumn(column, EXACT) for column, _ in table.columns])
        columns = []
        for n, ((name, _), held) in enumerate(zip(table.columns, table.confidences)):
            sources = frozenset({(len(self._releases) + position, n)})
            noise = EXACT if held == EXACT_COLUMN else combine([], sources)
            if table.has_interval(n) and self._mean_limits is None and not self._is_total:
                noise = beside(name, "", sources, *_hide(None in table.values[n]))
            columns.append(NoisyColumn(name, noise))
        # The noise that chose them may be that of any number beside them.
        chosen = self.everything if table.chosen else frozenset[Source]()
        return Shape(columns, chosen, selected=table.chosen)

    def read_table(self, name: str) -> Shape:
        """The columns of a released or a public table."""
        position = int(name[1:])
        if name[:1] == "p":
            return self._read_public(position)
        released = self._releases[position]
        keys = [NoisyColumn(key_column(n), EXACT) for n in range(released.keys)]
        numbers = []
        for n, numeric in enumerate(released.numeric):
            name, source = number_column(n), (position, n)
            noise = combine([], frozenset({source}))
            if numeric:
                noise = beside(name, "", frozenset({source}), *_hide(released.hidden[n]))
            numbers.append(NoisyColumn(name, noise, source if numeric else None))
        # Beside the quotients that they decide on, for which noise may be the reason to be NULL.
        filled = [NoisyColumn(filled_column(n), EXACT) for n in released.filled]
        for n in released.present:
            noise = beside(present_column(n), "", frozenset({(position, n)}), *_hide(False))
            numbers.append(NoisyColumn(present_column(n), noise))
        selected = released.selected or (self._is_total and released.partial)
        return Shape(keys + numbers + filled, selected=selected, release=position)


def _write_end(value: float | None) -> Any:
    """An upper end as a double; None is infinite."""
    text = "inf" if value is None else repr(float(value))
    return exp.cast(exp.Literal.string(text), "DOUBLE")


def _may_be_several(item: Any) -> bool:
    """Whether an item of SELECT may be several columns: a pattern of names, or the fields of a struct."""
    for node in iterate_parts(item):
        if isinstance(node, exp.Star):
            above = node.parent.parent if isinstance(node.parent, exp.Column) else node.parent
            if not isinstance(above, exp.Count | exp.Select):
                return True
        if isinstance(node, exp.Explode | exp.Unnest):
            lists = node.expressions if isinstance(node, exp.Unnest) else [node.this]
            more = node.expressions if isinstance(node, exp.Explode) else lists[1:]
            if more or not all(isinstance(one, _LISTS) for one in lists):
                return True
    return False


#: Reads a query inside another: its columns. Raises `RuleMissing`.
ReadQuery = Callable[[Any, Scope], Shape]


class SelectSources(ABC):
    """The FROM of one SELECT, and what its names mean.

    Args:
        read_query: reads a query inside it.
        scope: the CTEs that it sees.
    """

    def __init__(
        self, released: ReleasedNoise, read_query: ReadQuery, select: Any, scope: Scope
    ) -> None:
        self._released, self._read_query = released, read_query
        self._select, self._scope = select, scope
        self._relations: list[tuple[str, Shape | None]] = []
        #: Names that USING makes one column of.
        self._merged: set[str] = set()
        self._chosen: frozenset[Source] = frozenset()
        #: The same for the rows that aggregates are over.
        self._rows_chosen: frozenset[Source] = frozenset()
        #: Numbers whose noise decided the order of the rows of FROM.
        self._ordered: frozenset[Source] = frozenset()
        self._selected = self._is_outer = self._filled_by_noise = False
        self._release: int | None = None
        self._groups: list[tuple[Any, Known]] | None = None
        self._aliases: dict[str, Any] = {}
        #: What kinds of parts it has, those of queries inside it included.
        self._kinds = set(map(type, iterate_parts(select)))

    @abstractmethod
    def find(self, part: Any) -> Known:
        """What is known of an expression's noise."""

    def _choose(self, noise: Known) -> None:
        """Note that noise decided which rows these are."""
        self._chosen |= self._list_deciding(noise)

    def _list_deciding(self, noise: Known) -> frozenset[Source]:
        """The numbers whose noise a value has, or may have."""
        return (noise.sources or self._released.everything) if noise.noisy else frozenset()

    def _read_sources(self) -> None:
        source, joins = self._select.args.get("from_"), self._select.args.get("joins") or []
        if self._select.args.get("laterals"):
            raise RuleMissing
        if source is not None:
            self._add_relation(source.this)
        outer = False
        for join in joins:
            kind = str(join.args.get("kind") or "")
            if kind not in ("", "INNER", "OUTER", "CROSS") or join.args.get("method"):
                raise RuleMissing
            self._add_relation(join.this)
            outer = outer or bool(join.args.get("side"))
            self._merged |= {name.name.casefold() for name in join.args.get("using") or ()}
        for _, shape in self._relations:
            if shape is not None:
                self._chosen |= shape.chosen
                self._ordered |= shape.ordered
                self._selected = self._selected or shape.selected
        for join in joins:
            condition = join.args.get("on")
            noise = EXACT if condition is None else self.find(condition)
            self._choose(noise)
            if noise.noisy and self._released.keep_noisy:
                join.set("on", exp.true())
            for name in join.args.get("using") or ():
                for column in self._list_columns("", name.name):
                    self._choose(column.noise)
        if len(self._relations) == 1 and self._relations[0][1] is not None:
            self._release = self._relations[0][1].release
        # A row that noise left out makes a NULL of what may have been a number.
        self._is_outer = outer
        self._filled_by_noise = outer and (self._selected or bool(self._chosen))

    def _add_relation(self, relation: Any) -> None:
        alias = relation.args.get("alias")
        shape: Shape | None = None
        if relation.args.get("joins"):
            raise RuleMissing
        if isinstance(relation, exp.Table):
            if alias is not None and alias.args.get("columns"):
                raise RuleMissing
            if relation.db == SCHEMA:
                shape = self._released.read_table(relation.name)
            elif isinstance(relation.this, exp.Identifier):
                # None: a recursive CTE, of which nothing is noise.
                shape = self._scope.get(relation.name.casefold())
                if shape is None:
                    raise RuleMissing
        elif isinstance(relation, exp.Subquery):
            shape = expose(self._read_query(relation, self._scope), alias)
        elif isinstance(relation, exp.Values) and alias is not None:
            names = [one.name for one in alias.args.get("columns") or ()]
            rows = [map(self.find, row.expressions) for row in relation.expressions]
            noise = [combine(cells, noisy=any(c.noisy for c in cells)) for cells in zip(*rows)]
            shape = Shape([NoisyColumn(*one) for one in zip(names, noise)])
        if shape is None:
            # A function, whose noisy arguments make its rows what they are.
            for part in relation.iter_expressions():
                if not isinstance(part, exp.TableAlias):
                    self._choose(self.find(part))
        self._relations.append((relation.alias_or_name.casefold(), shape))

    def _list_columns(self, qualifier: str, name: str) -> list[NoisyColumn]:
        """The columns of FROM that a name may mean."""
        return [
            column
            for relation, shape in self._relations
            if shape is not None and qualifier in ("", relation)
            for column in shape.named.get(name.casefold(), ())
        ]

    def _expand_stars(self) -> list[Any]:
        """The columns of the answer; ``*`` is written out, as columns stand beside those of FROM."""
        items: list[Any] = []
        may_expand = any(issubclass(one, exp.Star | exp.UDTF) for one in self._kinds)
        for item in self._select.expressions:
            inner = item.unalias()
            star = inner.this if isinstance(inner, exp.Column) else inner
            if not isinstance(star, exp.Star):
                if may_expand and _may_be_several(inner):
                    raise RuleMissing
                items.append(item)
                continue
            if any(star.args.values()):
                raise RuleMissing
            items += self._list_star(inner.table.casefold() if inner is not star else "")
        self._select.set("expressions", items)
        return items

    def _list_star(self, qualifier: str) -> list[Any]:
        columns = []
        merged: set[str] = set()
        for name, shape in self._relations:
            if shape is None:
                raise RuleMissing
            for column in shape.columns if qualifier in ("", name) else ():
                folded = column.name.casefold()
                if folded in self._merged and not qualifier:
                    if folded in merged:
                        continue
                    merged.add(folded)
                    columns.append(exp.column(exp.to_identifier(column.name, quoted=True)))
                    continue
                table = exp.to_identifier(name, quoted=True) if name else None
                columns.append(exp.column(exp.to_identifier(column.name, quoted=True), table=table))
        if not columns:
            # The fields of a struct.
            raise RuleMissing
        return columns

    def _find_column(self, part: Any) -> Known:
        name, qualifier = part.name, part.table.casefold()
        matches = self._list_columns(qualifier, name)
        if len(matches) == 1:
            (column,) = matches
            noise = column.noise
            if not noise.noisy:
                return EXACT
            if not noise.ruled:
                return combine([noise])
            return beside(
                column.name,
                part.table,
                noise.sources,
                NoisyNull.ANYWHERE if self._filled_by_noise else noise.noisy_null,
                noise.never_null and not self._is_outer,
            )
        if matches and name.casefold() in self._merged:
            noisy = [column.noise for column in matches if column.noise.noisy]
            return combine(noisy) if noisy else EXACT
        alias = None if qualifier or matches else self._aliases.pop(name.casefold(), None)
        if alias is not None:
            try:
                return self.find(alias)
            finally:
                self._aliases[name.casefold()] = alias
        if not matches and any(
            shape is None and qualifier in ("", relation) for relation, shape in self._relations
        ):
            # Of a function in FROM, whose arguments are exact or its rows are chosen.
            return combine([], self._chosen) if self._chosen else EXACT
        # A row of a query around this one, or nothing that is noise.
        return combine([], self._released.everything)

    def _find_cell(self, part: Any) -> Source | None:
        if not isinstance(part, exp.Column):
            return None
        matches = self._list_columns(part.table.casefold(), part.name)
        return matches[0].cell if len(matches) == 1 else None


def _hide(is_hidden: bool) -> tuple[NoisyNull, bool]:
    """Where noise may make a column NULL that has NULLs by noise or none, and whether it has a value in every row."""
    return (NoisyNull.ANYWHERE if is_hidden else NoisyNull.NOWHERE), not is_hidden


def beside(
    name: str,
    table: str,
    sources: frozenset[Source],
    noisy_null: NoisyNull,
    never_null: bool,
) -> Known:
    """A column of FROM beside which its bounds stand."""
    parts = [
        exp.Column(
            this=exp.Identifier(this=name + end, quoted=True),
            table=exp.Identifier(this=table, quoted=True) if table else None,
        )
        for end in (LOW, HIGH, COUNT)
    ]
    # A row that an outer join lacks has no number.
    count = exp.Coalesce(this=parts[2], expressions=[number(0)])
    return Known(True, sources, parts[0], parts[1], count, noisy_null, never_null)
