"""Total intervals: what a count, sum or mean can be, noise and truncation together.

An interval of the noise is about the rows that the bounds kept. What they cut is known from above where
a contribution profile counts the same rows: let U be the upper limit on the units that reach more
groups than counted, and V that on the units with more rows. A group's number of units lost U at
most. Its number of rows lost M for each of the U; M is the declared maximum of rows of one unit in one
group (`MaxContributions`), for no histogram sees one unit with many rows. Of each of the V a kept group
lost M - 1 at most, for it keeps a row, and no more than the maxima exceed the bounds, in a group and in
all: what one bound leaves out, the other does not. Without groups each of the V lost at most the declared
maximum less the bound.

A total interval is [x - w, x + w + cut] with the noise's half-width w at 97.5 %, and limits that hold
together with 97.5 %, all that a profile gives at once; so it holds with 95 %, if the declared maximum does. Where nothing is cut no limit
is used, and w is that of 95 %. A sum lacks the values of the rows that are cut: each moves it by [l, h], the
declared bounds with 0, so its interval is [x - w + l cut, x + w + h cut]. That is the sum of the values as
they are where everybody knows that none is clamped or rounded (``within_bounds``); of other columns it is not
stated. A mean of such a column mixes the rows that counted and those that are cut
(`dpflow.core.contract.totals`); truncation takes sum and number of a unit's values down together, so what is
cut is within the bounds, too. It is stated for such sums and means, and for counts of
rows and of units over public keys; not for variances. A profile counts the same rows if it was made of the same
snapshot, of these blocks at least, and without a condition or with parts of the question's, none on what is joined.
What else a WHERE leaves out only lowers what is cut. Of groups of what is joined it limits the rows alone. Rows without
a unit count nowhere, or are one unit together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpflow.core.contract.contribution import MAX_GROUPS
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.core.contract.totals import MeanTotal, TermTotal, Totals
from dpflow.core.toolbox.aggregate import MeasureMechanism, Release
from dpflow.core.toolbox.contribution_profile import ContributionProfile, size_bins
from dpflow.core.toolbox.moments import Measure, Query
from dpflow.core.toolbox.noise import FAILURE
from dpflow.engine.releases.choose_bounds import (
    largest_bounds,
    list_covering,
    list_profiles,
    list_read_columns,
)
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.profiled_groups import Histogram, find_histogram
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import Node


def find_totals(plan: Plan, ledger: Ledger, snapshot: str) -> Totals | None:
    """How far the counts, sums and means of a release may be from the truth, and what that rests on; None where nothing
    can be said. Reads no row.

    Args:
        snapshot: the ledger's commitment to the rows that are read.
    """
    mechanism, table = plan.mechanism, plan.table
    if not isinstance(mechanism, MeasureMechanism) or any(j.kind == "unit" for j in table.joins):
        return None
    # A profile and the maximum count rows, and these are what rows of a unit are made into.
    if table.unit_rows is not None:
        return None
    # Sealed blocks are answered as they were when they were sealed, and a profile counts today's rows.
    if table.cached_partials == "sealed":
        return None
    query = mechanism.make_query(plan.params, table)
    # A unit counts once in each block, and no profile says in how many it is.
    is_repeated = table.protects == "unit-block" and len(set(plan.request.blocks)) != 1
    counts = [
        one
        for one in query.measures
        if one.measure == "count" or (one.measure == "count_distinct" and not is_repeated)
    ]
    within = _measures_within_bounds(query)
    measures = [*counts, *within]
    if query.private or not measures:
        return None
    premise, profile = _find_fitting(plan, ledger, snapshot) or ("", None)
    if profile is None and table.max_contributions is None:
        return None
    cuts = _find_cuts(plan, profile, None if query.group_keys is None else len(query.group_keys))
    release = mechanism.choose_release(plan.params, table)[0]
    ends: dict[str, TermTotal | MeanTotal] = {}
    searched = ""
    for measure in measures:
        cut = cuts.units if measure.measure == "count_distinct" else cuts.rows
        if cut is not None:
            column = query.table.columns.get(measure.column or "")
            if column is None or not column.search:
                total = _find_total(release, measure, cut, cuts.is_limited)
            # Limits of a profile, of a search and of another one are not combined.
            elif (
                not cuts.is_limited
                and searched in ("", column.search)
                and _holds_search(plan, ledger, snapshot, column.search)
            ):
                premise = searched = column.search
                below, above = column.excess
                total = _find_total(release, measure, cut, True)
                assert isinstance(total, TermTotal)
                total = replace(total, beyond_below=below, beyond_above=above)
            else:
                continue
            ends[mechanism.measure_label(measure)] = total
    clamped = "".join(
        f"; values of {name} exceed {column.grid_value(low)} to {column.grid_value(high)} by at most "
        f"{print_bound(sum(column.excess), upper=True)} in all (97.5 %)"
        for name, column in table.columns.items()
        if searched and column.search == searched
        for low, high in [column.grid_bounds()]
    )
    statements = []
    if ends:
        names = sorted(frozenset[str]().union(*within.values())) if cuts.rows is not None else []
        known = (
            f", and no {' or '.join(names)} is beyond its bounds or off its grid" if names else ""
        )
        filled = []
        for one in names:
            if (number := table.columns[one].missing) == "skip":
                continue
            # Elsewhere in an expression what is missing stays so.
            of = [m for m in within if _fills(str(m.column), one, number, table)]
            labels = [mechanism.measure_label(m) for m in of]
            everywhere = len(of) == sum(one in found for found in within.values())
            told = "" if everywhere else f" in {' and '.join(labels)}"
            filled += [f"a missing {one} counts as {number}{told}"] if labels else []
        known += f", where {' and '.join(filled)}" if filled else ""
        statements.append(
            f"total intervals of {', '.join(ends)} hold with 95 %{known}{cuts.premises}{clamped}"
        )
    if any(mechanism.measure_label(one) not in ends for one in counts) and profile is not None:
        unit, by = table.privacy_unit.column, getattr(plan.params, "by", None)
        statements.append(
            f"counts of rows are of the table with each {unit} cut at {table.bounds_for(by).describe()}{cuts.premises}; how many "
            f"rows these lack is unknown: declare max_contributions"
        )
    text = "; ".join(statements)
    return Totals(ends, text, premise, table.largest_text) if statements else None


def find_own_totals(plan: Plan, limit: int) -> Totals | None:
    """The same of a count of units whose own histogram chose the groups: at most so many units have more."""
    mechanism, table, by = plan.mechanism, plan.table, getattr(plan.params, "by", "")
    assert isinstance(mechanism, MeasureMechanism)
    is_repeated = table.protects == "unit-block" and len(set(plan.request.blocks)) != 1
    if is_repeated or _reads_joined([by], table):
        return None
    release, groups = mechanism.choose_release(plan.params, table)[0], table.bounds_for(by).groups
    (measure,), keys = release.query.measures, len(table.public_keys(by))
    is_cut, label = groups < keys, mechanism.measure_label(measure)
    reached = f"{groups} group{'s' * (groups > 1)}"
    known = f"; at most {limit} have more than {reached} (97.5 %)" if is_cut else ""
    cut = _Cut(limit, limit * (keys - groups)) if is_cut else NOTHING
    ends = {label: _find_total(release, measure, cut, is_cut)}
    return Totals(ends, f"total intervals of {label} hold with 95 %{known}")


def describe_unmeasured(plan: Plan) -> str:
    """What noise intervals leave out, where no total interval is known; "" where the declared maximum says that it is
    nothing, and where one row stands for each unit, not one for each of its keys.
    """
    mechanism, table = plan.mechanism, plan.table
    is_one_row = table.unit_rows is not None and not table.unit_rows.keys
    if not isinstance(mechanism, MeasureMechanism) or is_one_row:
        return ""
    query = mechanism.make_query(plan.params, table)
    keys = MAX_GROUPS if query.private else len(query.group_keys or ()) or None
    advice = []
    if table.unit_rows is not None:
        if not _cuts_unit_rows(plan, keys):
            return ""
    else:
        cuts = _find_cuts(plan, None, keys)
        counts_units = all(one.measure == "count_distinct" for one in query.measures)
        is_joined = any(join.kind == "unit" for join in table.joins)
        if not is_joined and (cuts.units if counts_units else cuts.rows) == NOTHING:
            return ""
        advice = [f"release contributions of {table.name}"] if plan.chosen is None else []
    advice += ["declare max_contributions"] if table.max_contributions is None else []
    return (
        f"{plan.describe_contributions()}; noise intervals leave out what that cuts, which is unmeasured"
        f"{': ' * bool(advice)}{' or '.join(advice)}"
    )


def _cuts_unit_rows(plan: Plan, keys: int | None) -> bool:
    """Whether a unit may have more rows than are kept where each stands for a unit and keys of it."""
    table, by = plan.table, getattr(plan.params, "by", None)
    units, largest = table.unit_rows, largest_bounds(plan, by, keys)
    bounds = table.bounds_for(by).narrow(keys if by is not None else 1)
    most_rows: float = math.inf if largest is None else largest.rows
    most_groups = min(keys or math.inf, most_rows, math.inf if largest is None else largest.groups)
    if by is None or units is None:
        return bounds.rows < most_rows
    # Grouped by its only key, each group has one row of a unit.
    within = 1 if [name for name, _ in units.keys] == [by] else most_rows
    return min(bounds.groups, bounds.rows) < most_groups or bounds.rows_per_group < within


def _measures_within_bounds(query: Query) -> dict[Measure, frozenset[str]]:
    """Sums and means of columns of which everybody knows that no value is clamped or rounded, each with the columns of
    which that is declared.
    """
    measures = [one for one in query.measures if one.measure in ("sum", "mean")]
    found = {one: _find_within_bounds(str(one.column), query.table) for one in measures}
    return {one: names for one, names in found.items() if names is not None}


def _fills(measured: str, column: str, number: Any, table: Table) -> bool:
    """Whether a measure counts what is missing of a column as its declared number: the column itself, or an expression that
    says so.
    """
    if measured == column:
        return True
    name = re.escape(str(Node("column", (table.split_name(column),))))
    found = re.findall(rf"coalesce\({name}, (-?[0-9.]+)\)", measured)
    return any(Fraction(one) == Fraction(str(number)) for one in found)


def _find_within_bounds(name: str, table: Table) -> frozenset[str] | None:
    """The columns whose values must lie within their bounds and on their grid so that none of a column's is clamped or
    rounded: its own, or those of which an expression takes one, such as ``CASE WHEN city = 'Rome' THEN cost ELSE 0 END``.
    None where that is not known.
    """
    largest, column = table.max_contributions, table.columns[name]
    if largest is None or name in largest.within_bounds:
        return None if largest is None else frozenset({name})
    if column.expression is None or column.lower is None or column.upper is None:
        return None
    try:
        values = _find_values(parse_row_expression(column.expression, table), table)
    except InvalidInput:
        return None
    is_within = (
        values is not None
        and column.lower <= values.low
        and values.high <= column.upper
        and not any(step % column.step for step in values.steps)
    )
    return values.names if is_within and values is not None else None


@dataclass(frozen=True)
class _Values:
    """What an expression may be, if values of the columns that it names are within their bounds and on their grid."""

    low: Fraction
    high: Fraction
    steps: frozenset[Fraction]
    names: frozenset[str] = frozenset()


def _find_values(node: Node, table: Table) -> _Values | None:
    """Values of an expression that takes one of numbers and columns, or of a linear form of them; None of any other."""
    assert table.max_contributions is not None
    if node.op == "number":
        number = Fraction(node.args[0])
        return _Values(number, number, frozenset({number}))
    if node.op == "column":
        name = ".".join(node.args[0])
        if name not in table.max_contributions.within_bounds or table.columns[name].search:
            return None
        column = table.bounded_column(name)
        low, high = (end * column.step for end in column.grid_bounds())
        return _Values(low, high, frozenset({column.step}), frozenset({name}))
    args = node.args
    if node.op in ("+", "-", "*"):
        return _find_linear(node, table)
    if node.op == "CASE":
        args = (*args[1::2], *args[len(args) // 2 * 2 :])
    elif node.op not in ("least", "greatest", "coalesce"):
        return None
    found = [one for arg in args if (one := _find_values(arg, table))]
    if len(found) < len(args):
        return None
    low, high = min(one.low for one in found), max(one.high for one in found)
    # Of values that may be missing nothing is known.
    numbers = [one.low for arg, one in zip(args, found) if arg.op == "number"]
    if node.op == "least":
        high = min([high, *numbers])
    elif node.op == "greatest":
        low = max([low, *numbers])
    return _Values(
        low,
        high,
        frozenset[Fraction]().union(*(one.steps for one in found)),
        frozenset[str]().union(*(one.names for one in found)),
    )


def _find_linear(node: Node, table: Table) -> _Values | None:
    """Values of a sum, a difference, or a product with a number, which are on the grid of all its parts."""
    found = [_find_values(arg, table) for arg in node.args]
    parts = [one for one in found if one is not None]
    if len(parts) < len(found):
        return None
    factors = [Fraction(1)] * len(parts)
    if node.op == "-":
        factors[-1] = Fraction(-1)
    elif node.op == "*":
        number = next((arg for arg in node.args if arg.op == "number"), None)
        if number is None:
            return None
        factor = Fraction(number.args[0])
        parts = [parts[1 - node.args.index(number)]]
        factors = [factor]
    ends = [sorted((one.low * factor, one.high * factor)) for one, factor in zip(parts, factors)]
    return _Values(
        sum((low for low, _ in ends), Fraction(0)),
        sum((high for _, high in ends), Fraction(0)),
        frozenset(step * abs(factor) for one, factor in zip(parts, factors) for step in one.steps),
        frozenset[str]().union(*(one.names for one in parts)),
    )


def _find_total(
    release: Release, measure: Measure, cut: _Cut, is_limited: bool
) -> TermTotal | MeanTotal:
    query, tails = release.query, release.tails(measure, _noise_failure(is_limited))
    if measure.measure == "mean":
        assert measure.column is not None
        grid = query.columns[measure.column]
        moments = (("sum", measure.column), query.count_moment(measure.column))
        stated = release.tails(measure)
        low, high = grid.term_range("sum")
        return MeanTotal(
            low,
            high,
            grid.centre,
            grid.step,
            (stated[moments[0]], stated[moments[1]]),
            (tails[moments[0]], tails[moments[1]]),
            cut.each,
            is_limited,
        )
    width = query.error_bound(measure, tails)
    below, above = _term_range(query, measure)
    return TermTotal(width, below, above, cut.each, cut.total, is_limited)


def _noise_failure(is_limited: bool) -> float:
    """How often a total interval may fail by noise: half as often where a released limit may fail, too."""
    return FAILURE / 2 if is_limited else FAILURE


def _term_range(query: Query, measure: Measure) -> tuple[float, float]:
    """How far below and above a row that is cut leaves the truth, at most."""
    if measure.column is None:
        return 0.0, 1.0
    grid = query.columns[measure.column]
    return max(0, -grid.low) * grid.step, max(0, grid.high) * grid.step


def _find_fitting(
    plan: Plan, ledger: Ledger, snapshot: str
) -> tuple[str, ContributionProfile] | None:
    """The first profile of the rows that a plan reads, or of more of them: one that counts its groups, else any; with
    the id of its release.
    """
    by, first = getattr(plan.params, "by", None), None
    for record, profile in list_profiles(plan, ledger):
        if not _reads_same_rows(plan, record, snapshot):
            continue
        if by is None or find_histogram(profile, plan.table, by, plan.request.where) is not None:
            return record.release_id, profile
        first = first or (record.release_id, profile)
    return first


def _reads_same_rows(plan: Plan, record: ReleaseRecord, snapshot: str) -> bool:
    """Whether a release whose condition is part of a plan's was made of the rows that this reads, or of more of them."""
    blocks, where = set(plan.request.blocks), record.request.get("where")
    read = set(record.request.get("blocks", ()))
    is_same = record.request.get("block") == plan.table.block
    covers = not read or (is_same and bool(blocks) and blocks <= read)
    names = set() if where is None else parse_condition(where, plan.table).column_names()
    return record.snapshot == snapshot and covers and not _reads_joined(names, plan.table)


def _holds_search(plan: Plan, ledger: Ledger, snapshot: str, search: str) -> bool:
    """Whether a search counted the rows that a plan reads, so that its limits hold for them."""
    record = ledger.release(search)
    return bool(list_covering(plan, [record])) and _reads_same_rows(plan, record, snapshot)


def _reads_joined(names: Iterable[str], table: Table) -> bool:
    """Whether columns are of joined relations, or computed from such: these may be of another time than the rows,
    and another declaration may join another relation.
    """
    return any(len(table.split_name(name)) > 1 for name in list_read_columns(names, table))


@dataclass(frozen=True)
class _Cut:
    """Rows or units that are cut, at most: of one group, and of all groups together."""

    each: int
    total: int


NOTHING = _Cut(0, 0)


@dataclass(frozen=True)
class _Cuts:
    """Rows and units that groups may lack, None where nothing limits them; what that rests on; and whether
    that is a released limit, which may fail.
    """

    rows: _Cut | None
    units: _Cut | None
    premises: str
    is_limited: bool

    @property
    def noise_failure(self) -> float:
        """The probability that is left to the noise."""
        return _noise_failure(self.is_limited)


@dataclass(frozen=True)
class _Limits:
    """Limits on the numbers of units above sizes, which hold together: each bin of a histogram has its share of the
    failures, for noise has a part in choosing sizes and histograms.
    """

    histograms: Sequence[Histogram]
    failure: float

    def count_above(self, size: int) -> int:
        """Units that have more, at most."""
        return min(one.limit_above(size, self.failure * one.shares) for one in self.histograms)

    def sum_beyond(self, size: int, largest: int) -> int:
        """What units have beyond a size, all together, at most: none has more than the largest."""
        # As many units have more than t as are in a sum over all t.
        starts = [size, *(start for start in size_bins(max(1, largest)) if size < start < largest)]
        total, number = 0, self.count_above(size)
        for start, end in zip(starts, [*starts[1:], largest]):
            number = min(number, self.count_above(start))
            total += number * max(0, end - start)
        return total


def _find_cuts(plan: Plan, profile: ContributionProfile | None, keys: int | None) -> _Cuts:
    table, unit = plan.table, plan.table.privacy_unit.column
    by = getattr(plan.params, "by", None)
    bounds = table.bounds_for(by).narrow(keys if by is not None else 1)
    largest = largest_bounds(plan, by, keys)
    reached = min(bounds.groups, bounds.rows)
    # Above so many rows a unit may lose some of a group that it keeps.
    full = bounds.rows
    if largest is None or largest.rows_per_group > bounds.rows_per_group:
        full = min(full, bounds.rows_per_group)
    most_groups = min(keys or reached, largest.groups if largest else keys or reached)
    groups_are_cut = by is not None and reached < most_groups
    rows_are_cut = largest is None or full < largest.rows
    words: list[str] = []

    of_groups = of_rows = None
    if profile is not None:
        # No unit has more groups than rows.
        histograms: list[Histogram] = [profile.rows]
        if by is not None and not _reads_joined([by], table):
            found = find_histogram(profile, table, by, plan.request.where)
            histograms += [found] if found else []
        of_groups, of_rows = (
            _Limits(some, FAILURE / 2 / profile.bins) for some in (histograms, histograms[:1])
        )
        if groups_are_cut:
            words.append(
                f"at most {of_groups.count_above(reached)} have more than {reached} groups"
            )
        if rows_are_cut:
            words.append(f"at most {of_rows.count_above(full)} have more than {full} rows")
    known = f"; {' and '.join(words)} (97.5 %)" if words else ""
    units: _Cut | None = None if groups_are_cut else NOTHING
    if groups_are_cut and of_groups is not None:
        beyond = of_groups.sum_beyond(reached, most_groups)
        units = _Cut(of_groups.count_above(reached), beyond)
    if largest is None:
        return _Cuts(None, units, known, bool(words))
    rows: _Cut | None = None
    if units is not None and (of_rows is not None or not rows_are_cut):
        each, above = largest.rows_per_group, max(0, largest.rows - bounds.rows)
        total_binds = bounds.rows < bounds.groups * bounds.rows_per_group
        within = max(0, each - bounds.rows_per_group) + (above if total_binds else 0)
        kept_lack = above if by is None else min(each - 1, within)
        heavy = of_rows.count_above(full) if rows_are_cut and of_rows is not None else 0
        # Whoever loses rows keeps as many as groups are reached, or rows are kept in full.
        lost = min(units.each * (largest.rows - reached), units.total * each)
        totals = [lost + heavy * max(0, largest.rows - full)]
        if words and of_rows is not None:
            totals.append(of_rows.sum_beyond(min(reached, full), largest.rows))
        total = min(totals)
        rows = _Cut(min(units.each * each + heavy * kept_lack, total), total)
    where = f" of one {table.block}" if table.protects == "unit-block" else ""
    is_reached = by is not None and largest.groups < min(keys or largest.rows, largest.rows)
    reach = f", or rows in more than {largest.groups} of them" if is_reached else ""
    # Rows without a unit are one together, and then its bounds are theirs.
    no_one = unit if table.privacy_unit.missing == "drop" else f"{unit}, nor all rows without one,"
    premise = (
        f", if no {no_one} has more than {largest.rows_per_group} rows{where} in a group and {largest.rows} in all{reach}, as "
        f"declared"
    )
    return _Cuts(rows, units, f"{premise}{known}", bool(words))
