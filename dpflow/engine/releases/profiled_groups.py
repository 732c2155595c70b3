"""What a contribution profile says of the groups of a grouping.

Either it counts the grouping, however that is written, or what the grouping is computed from: a month
decides its quarter, a column decides an expression of it, and several columns have no more groups
together than the product of theirs. Rows without a value may have a group of their own in an
expression, such as a CASE with ELSE, but where the condition leaves out rows without a value.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpflow.core.contract.contribution import TOUCHED
from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.contribution_profile import (
    ContributionProfile,
    JointHistogram,
    Marginal,
    SizeHistogram,
)
from dpflow.errors import InvalidInput
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.group_bounds import find_period, may_hold, reads_days, takes_null
from dpflow.tables.language.grouping import parse_row_expression, parse_row_expressions
from dpflow.tables.language.nodes import Node

Histogram = SizeHistogram | JointHistogram


def find_histogram(
    profile: ContributionProfile, table: Table, by: str, where: str | None = None
) -> Histogram | None:
    """The histogram of groups of a grouping, or what follows of those of its parts; None where there is none.

    Args:
        where: the condition on rows that are grouped.
    """
    groups = _ProfiledGroups(profile, table, where)
    counted = groups.find_counted(by)
    if counted is not None:
        return counted
    members: Sequence[str] = table.columns[by].parts or (by,)
    marginals = [groups.find_marginals(member) for member in members]
    found = [one for several in marginals for one in several or ()]
    return JointHistogram(tuple(found)) if all(marginals) else None


class _ProfiledGroups:
    """The histograms of a profile, by what they count."""

    def __init__(self, profile: ContributionProfile, table: Table, where: str | None) -> None:
        self._table = table
        self._condition = None if where is None else parse_condition(where, table)
        self._histograms = {self._read(name): one for name, one in profile.groups.items()}

    def _read(self, grouping: str) -> frozenset[str]:
        """What a profile's text means today; nothing where it is of other columns."""
        column = self._table.columns.get(grouping)
        if column is not None:
            # Not a stored column whose name another computed one has taken since.
            is_same = column.parts is not None or column.expression in (None, grouping)
            return self._name(grouping) if is_same else frozenset()
        try:
            nodes = parse_row_expressions(grouping, self._table)
        except InvalidInput:
            return frozenset()
        return frozenset(map(_write_node, nodes))

    def _name(self, by: str) -> frozenset[str]:
        return frozenset(map(self._canonical, self._table.columns[by].parts or (by,)))

    def find_counted(self, by: str) -> SizeHistogram | None:
        """The histogram of this very grouping."""
        column = self._table.columns[by]
        found = self._histograms.get(self._name(by))
        # Bounds that are dates are those of times, too: keys of one day may be several.
        days = [key[:10] for key in column.public_keys or ()]
        is_by_days = column.holds_dates and len(set(days)) == len(days)
        return self._find_period("day", by) if found is None and is_by_days else found

    def _find_deciding(self, name: str, node: Node) -> SizeHistogram | None:
        """The histogram of a column, or of its days where they decide an expression."""
        found = self._histograms.get(self._name(name))
        return self._find_period("day", name) if found is None and reads_days(node, name) else found

    def _find_period(self, period: str, column: str) -> SizeHistogram | None:
        return self._histograms.get(
            frozenset([self._canonical(f"date_trunc('{period}', {column})")])
        )

    def find_marginals(self, by: str) -> list[Marginal] | None:
        """Histograms of what decides a grouping by one column or expression; None where one is missing."""
        column = self._table.columns.get(by)
        if column is None:
            return None
        largest = None if column.public_keys is None else len(column.public_keys)
        counted = self.find_counted(by)
        if counted is not None:
            return [Marginal(counted, 0, largest)]
        node = self._parse(column.expression)
        names = [] if node is None else sorted(node.column_names())
        if node is None or not all(name in self._table.columns for name in names):
            return None
        period, inner = find_period(node)
        if period is not None and inner:
            # Of the longest period that decides this one: it touches one of these.
            deciding = [one for one, touched in TOUCHED[period].items() if touched == 1]
            found = (self._find_period(one, inner) for one in reversed(deciding))
            last = next((one for one in found if one is not None), None)
            return None if last is None else [Marginal(last, 0, largest)]
        histograms = [(name, self._find_deciding(name, node)) for name in names]
        marginals = [
            Marginal(one, int(takes_null(node, name) and self._leaves_null(name)))
            for name, one in histograms
            if one is not None
        ]
        return marginals if len(marginals) == len(names) else None

    def _leaves_null(self, name: str) -> bool:
        return self._condition is None or may_hold(self._condition, name)

    def _parse(self, text: str | None) -> Node | None:
        try:
            return None if text is None else parse_row_expression(text, self._table)
        except InvalidInput:
            return None

    def _canonical(self, name: str) -> str:
        column = self._table.columns.get(name)
        text = name if column is None else column.expression
        if text is None:
            return name
        node = self._parse(text)
        return text if node is None else _write_node(node)


def _write_node(node: Node) -> str:
    return ".".join(node.args[0]) if node.op == "column" else str(node)
