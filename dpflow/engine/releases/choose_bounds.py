"""Contribution bounds that a released profile chooses, where nobody fixed them.

A profile is a settled release of the mechanism `contributions` that is called ``contributions of TABLE``, in
the scope that pays or one above it: the newest, and first one whose condition is that of the question or a part
of it. The rule: the error of each measure is taken to be the median size of its noise plus what the bounds cut
of one group in the mean, in rows of the largest value. A row that is cut takes half of that from a sum. Of a
mean or variance the noise grows as the rows that are kept get fewer, and a row that is cut moves it by an
eighth of what a row can: the rows that are kept speak for those that are cut, but for how these differ. The
bounds with the least product of these errors are chosen: first the groups, then the rows in all groups, then
the rows in one. Cuts are computed from the profile: units with most rows are taken to have most groups, and
rows to be spread evenly over a unit's groups. Where the question's condition leaves out rows that the profile
counts, nobody knows how many: the product is also over the cases that half of the rows pass, and a quarter,
which keeps the loss against the best bounds small in each; of units, where a unit has one value of what the condition
reads, so that it passes with all of its rows or with none. Groups that the condition leaves out by their keys take their
rows with them. No bound is above the declared maximum. A grouping that the
profile does not count has as many groups as what it is computed from allows
(`dpflow.engine.releases.profiled_groups`), or as many as rows.

Such bounds are no part of the question: plans of one question have one digest, whatever profile is there. So a
stored answer is found by its question, and a retry draws with the bounds that were charged. Privacy does not
depend on the choice, which follows released numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from dpflow.core.contract.contribution import MAX_GROUPS, MAX_ROWS, GroupBounds, RequestedBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.aggregate import MeasureMechanism, Release
from dpflow.core.toolbox.contribution_profile import (
    ContributionProfile,
    JointHistogram,
    SizeHistogram,
    couple_classes,
)
from dpflow.core.toolbox.moments import Measure
from dpflow.engine.releases.own_histogram import DOCUMENT, add_histogram, follow_charge
from dpflow.engine.releases.plan import Candidate, ChosenBounds, Plan, list_computed
from dpflow.engine.releases.profiled_groups import Histogram, find_histogram
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.late_numpy import NDArray, np
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.ledger.books.records import path_of
from dpflow.tables import declare_groups
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.key_tests import split_nodes

#: Name of the mechanism.
PROFILE = "contributions"
#: What a row that is cut takes from a sum, as a share of the largest value, and moves a mean by, as one of what a
#: row can.
SUM_SHARE, MEAN_SHARE = 0.5, 0.125
_NOUNS = ("rows", "units")
#: Of the rows that a profile counts, the shares that may pass a further condition.
PASSING_SHARES = (0.5, 0.25)
#: The share of units with one value from which on a condition on it is taken to leave out whole units.
ONE_VALUE = 0.95
Floats: TypeAlias = "NDArray[np.float64]"


def profile_name(table: Table) -> str:
    """What a table's profile is called in the ledger, so that it is found."""
    return f"{PROFILE} of {table.name}"


class BoundsChooser:
    """Chooses bounds by the profiles of a ledger; without one, or without a profile, none."""

    def __init__(self, ledger: Ledger | None, *, takes_histograms: bool = True) -> None:
        """With the profiles of a ledger.

        Args:
            takes_histograms: let a count of units take a histogram of its own where no profile counts its
                groups; False where errors must be known before anything is drawn.
        """
        self.ledger, self._takes_histograms = ledger, takes_histograms
        self._found: dict[tuple[str | None, ...], _FoundProfile | None] = {}

    def fit(self, plan: Plan) -> Plan:
        """The plan with bounds that are chosen, or as it is where somebody fixed all of them."""
        if self.ledger is None or not may_choose(plan):
            return plan
        request, by = plan.request, _grouping(plan)
        key = (plan.table.name, request.scope, request.where, by)
        if key not in self._found:
            self._found[key] = _find_profile(plan, self.ledger)
        found, fitted = self._found[key], plan
        if found is not None:
            fitted = _Choice(plan, found.profile, found.is_of_more).apply(found.release)
        # The audits that certificates are about are those of single draws.
        is_open = (
            self._takes_histograms
            and _is_open_to_histogram(plan, found)
            and not self._asks_for_certificates(request.scope)
        )
        return add_histogram(fitted) if is_open else fitted

    def _asks_for_certificates(self, scope: str) -> bool:
        assert self.ledger is not None
        try:
            filters = [self.ledger.scope(name).filter for name in path_of(scope)]
        except PlanRefused:  # not granted yet
            return True
        return any(one.certified_by for one in filters)


class _FoundProfile(NamedTuple):
    """A profile, its release's id, and whether it counts rows that the question's condition leaves out."""

    release: str
    profile: ContributionProfile
    is_of_more: bool


def _is_open_to_histogram(plan: Plan, found: _FoundProfile | None) -> bool:
    """Whether nobody declared a plan's groups, and a profile does not count them: neither at all, nor under a
    condition on what rows are grouped by.
    """
    table, by = plan.table, _grouping(plan)
    if by is None or table.require_certified or table.cached_partials:
        return False
    if table.limits_for(by)[0].source != "contribution_bounds.rows":
        return False
    if found is None or not isinstance(
        find_histogram(found.profile, table, by, plan.request.where), SizeHistogram
    ):
        return True
    return found.is_of_more and bool(_list_conditioned(plan) & {*list_read_columns([by], table)})


def list_read_columns(names: Iterable[str], table: Table) -> Iterator[str]:
    """Columns, and those that they are computed from."""
    for name in names:
        yield name
        column = table.columns[name]
        inner: Iterable[str] = column.parts or ()
        if column.expression is not None:
            inner = parse_row_expression(column.expression, table).column_names()
        yield from list_read_columns(inner, table)


def largest_bounds(plan: Plan, by: str | None, keys: int | None) -> GroupBounds | None:
    """What no unit exceeds in a grouping, as declared."""
    table = plan.table.largest_contributions()
    if table is None:
        return None
    if by is not None:
        table, by = declare_groups(table, by)
    return table.bounds_for(by).narrow(keys if by is not None else 1)


def _is_about_keys(plan: Plan) -> bool:
    """Whether a condition reads nothing but what its rows are grouped by."""
    by = _grouping(plan)
    return by is not None and _list_conditioned(plan) <= {*list_read_columns([by], plan.table)}


def _is_about_units(plan: Plan, profile: ContributionProfile) -> bool:
    """Whether a condition reads nothing but columns in which nearly every unit has one value."""
    for name in _list_conditioned(plan):
        largest, found = (
            largest_bounds(plan, name, None),
            find_histogram(profile, plan.table, name, plan.request.where),
        )
        if largest is not None and largest.groups == 1:
            continue
        if found is None or not isinstance(found, SizeHistogram):
            return False
        if found.estimates[found.sizes <= 1].sum() < ONE_VALUE * found.estimates.sum():
            return False
    return bool(_list_conditioned(plan))


def _list_conditioned(plan: Plan) -> set[str]:
    """The columns that a plan's condition reads."""
    where = plan.request.where
    return set() if where is None else set(parse_condition(where, plan.table).column_names())


def _find_profile(plan: Plan, ledger: Ledger) -> _FoundProfile | None:
    """The first profile that says something of a plan's groups, else the first of all."""
    first, by = None, _grouping(plan)
    asked = _read_condition(plan.request.where, plan.table)
    for record, profile in list_profiles(plan, ledger):
        counted = _read_condition(record.request.get("where"), plan.table)
        found = _FoundProfile(record.release_id, profile, counted != asked)
        if by is None or find_histogram(profile, plan.table, by, plan.request.where) is not None:
            return found
        first = first or found
    return first


def list_profiles(
    plan: Plan, ledger: Ledger
) -> Iterator[tuple[ReleaseRecord, ContributionProfile]]:
    """Profiles of a plan's table that count all rows that it reads: under no condition, or under parts of its
    own. Those with most parts of it first, of these the newest.
    """
    table = plan.table
    records = ledger.releases_by_name(plan.request.scope, profile_name(table))
    for record in list_covering(plan, records):
        profile = _read_profile(record, table)
        if profile is not None:
            yield record, profile


def list_covering(plan: Plan, records: Sequence[ReleaseRecord]) -> list[ReleaseRecord]:
    """Releases under no condition, or under parts of a plan's own: those with most parts first, of these the newest."""
    table = plan.table
    asked = _read_condition(plan.request.where, table)
    fitting = [
        (parts, record)
        for record in reversed(records)
        if (parts := _read_condition(record.request.get("where"), table)) is not None
        and asked is not None
        and parts <= asked
        and record.request.get("computed", {}) == list_computed(record.request.get("where"), table)
    ]
    # Stable: the newest stay first.
    return [record for _, record in sorted(fitting, key=lambda one: -len(one[0]))]


def _read_condition(where: str | None, table: Table) -> frozenset[str] | None:
    """What a condition demands, part by part; None where it is of other columns than today's."""
    try:
        return frozenset(map(str, split_nodes(parse_condition(where, table) if where else None)))
    except InvalidInput:
        return None


def _read_profile(record: ReleaseRecord, table: Table) -> ContributionProfile | None:
    """The profile that a release holds; None where it is none, or too coarse to say anything."""
    request = record.request
    fits = (request.get("mechanism"), request.get("table"), request.get("protects")) == (
        PROFILE,
        table.name,
        table.protection_text,
    )
    document = (record.result or {}).get("document", {}).get(PROFILE)
    if not (record.settled and fits and document):
        return None
    if document["missing"] != table.privacy_unit.missing:
        return None
    profile = ContributionProfile.from_json(document)
    return profile if profile.is_fine else None


def may_choose(plan: Plan) -> bool:
    """Whether a plan's bounds are open to choice: it draws sums, and nobody asked for bounds."""
    return (
        isinstance(plan.mechanism, MeasureMechanism)
        and plan.request.contribution_bounds is None
        and plan.chosen is None
        and not plan.table.holdout
        # A profile counts the rows that these are made of.
        and plan.table.unit_rows is None
        # Rows of a joined unit are multiplied, and a profile counts the table's own.
        and not any(join.kind == "unit" for join in plan.table.joins)
        # Limits of a profile and of a search are not combined.
        and not any(column.search for column in plan.table.columns.values())
    )


def apply_bounds(plan: Plan, chosen: ChosenBounds) -> Plan:
    """The plan of the same question, and with its digests, that draws with these bounds."""
    table = bounded_table(plan, chosen.bounds, f"chosen by profile {chosen.profile[:8]}")
    mechanism, params = plan.mechanism, plan.params
    assert isinstance(mechanism, MeasureMechanism)
    return replace(
        plan,
        table=table,
        event=mechanism.event(params, table),
        error_bound=mechanism.error_bound(params, table),
        chosen=chosen,
        question=plan,
    )


def follow_record(plan: Plan, record: ReleaseRecord | None) -> Plan:
    """The plan with the bounds that its charge names: whatever a later profile would choose."""
    if record is None:
        return plan
    return follow_request(plan, record.request)


def follow_request(plan: Plan, request: Mapping[str, Any]) -> Plan:
    """The same, of a charge's public request."""
    question, recorded = plan.question or plan, request.get("chosen_bounds")
    own = request.get(DOCUMENT)
    current = [one and one.to_json() for one in (plan.chosen, plan.histogram)]
    if [recorded, own] == current:
        return plan
    followed = (
        question if recorded is None else apply_bounds(question, ChosenBounds.from_json(recorded))
    )
    return followed if own is None else follow_charge(followed, own)


def bounded_table(plan: Plan, bounds: RequestedBounds, source: str) -> Table:
    """The declaration with bounds for the grouping of a plan."""
    return plan.table.with_bounds(_grouping(plan), bounds, source)


def _grouping(plan: Plan) -> str | None:
    by = getattr(plan.params, "by", None)
    return by if isinstance(by, str) and by in plan.table.columns else None


@dataclass(frozen=True)
class _Units:
    """Classes of units: how many, and the rows and groups of each."""

    units: Floats
    rows: Floats
    groups: Floats

    def thin(self, share: float) -> _Units:
        """In the mean, where each row passes a condition with this probability; units without a row are none."""
        passing = 1 - (1 - share) ** self.rows
        each = self.rows / np.maximum(self.groups, 1)
        groups = self.groups * (1 - (1 - share) ** each) / passing
        return _Units(self.units * passing, self.rows * share / passing, groups)

    def thin_units(self, share: float) -> _Units:
        """In the mean, where a condition leaves this share of the units, with all of their rows."""
        return replace(self, units=self.units * share)

    def keep_groups(self, share: float) -> _Units:
        """In the mean, where a condition leaves this share of all groups; units without a group are none."""
        passing = 1 - (1 - share) ** self.groups
        return _Units(
            self.units * passing, self.rows * share / passing, self.groups * share / passing
        )

    def cut(self, what: str, groups: int, in_each: int, rows: int) -> float:
        """Rows, or units of groups, that bounds cut of all groups together."""
        reached = np.minimum(self.groups, min(groups, rows))
        if what == "units":
            return float((self.units * (self.groups - reached)).sum())
        each = self.rows / np.maximum(self.groups, 1)
        kept = np.minimum(np.minimum(reached * np.minimum(each, in_each), rows), self.rows)
        return float((self.units * (self.rows - kept)).sum())


class _Choice:
    """One choice: the units as the profile has them, the errors that bounds lead to, and the search."""

    def __init__(self, plan: Plan, profile: ContributionProfile, is_of_more: bool) -> None:
        self._plan, self._by, self._profile = plan, _grouping(plan), profile
        mechanism = plan.mechanism
        assert isinstance(mechanism, MeasureMechanism)
        self._mechanism: MeasureMechanism[Any] = mechanism
        histogram = (
            None
            if self._by is None
            else find_histogram(profile, plan.table, self._by, plan.request.where)
        )
        declared = plan.table.max_contributions
        units, rows, groups = couple_sizes(
            profile.rows if declared is None else replace(profile.rows, end=declared.rows),
            histogram,
            is_grouped=self._by is not None,
        )
        keys = mechanism.make_query(plan.params, plan.table).group_keys
        self._keys = max(1, int(groups.max(initial=1))) if self._by is not None else 1
        self._units = _Units(units, rows, groups)
        if is_of_more:
            self._units = self._units.keep_groups(plan.key_share)
        if keys is not None:
            self._keys = len(keys)
            self._units = replace(self._units, groups=np.minimum(self._units.groups, self._keys))
        largest = largest_bounds(plan, self._by, self._keys if keys is not None else None)
        self._max_rows = MAX_ROWS if largest is None else largest.rows
        shares = PASSING_SHARES if is_of_more and not _is_about_keys(plan) else ()
        thin = self._units.thin_units if _is_about_units(plan, profile) else self._units.thin
        self._cases = (self._units, *map(thin, shares))

    def apply(self, profile: str) -> Plan:
        """The plan with the bounds of least error."""
        bounds = self._search()
        if bounds is None:
            return self._plan
        fitted = self._plan
        if bounds != self._declared():
            fitted = apply_bounds(fitted, ChosenBounds(bounds, profile))
        return replace(fitted, candidates=tuple(self._describe(bounds)))

    def _declared(self) -> RequestedBounds:
        groups, rows_per_group, rows = self._plan.table.bounds_for(self._by)
        return RequestedBounds(groups=groups, rows_per_group=rows_per_group, rows=rows)

    def _search(self) -> RequestedBounds | None:
        fixed_groups, fixed_rows = self._fixed()
        top = max(1, int(self._units.rows.max(initial=1)))
        groups = fixed_groups or min(top, self._keys, MAX_GROUPS)
        best, errors = None, dict[tuple[int, int, int], float]()

        def score(bounds: tuple[int, int, int]) -> float:
            if bounds not in errors:
                errors[bounds] = self._score(*bounds)
            return errors[bounds]

        def make(groups: int, in_each: int | None, rows: int) -> tuple[int, int, int]:
            # As they are enforced, so that a candidate is counted once.
            return (min(groups, rows), min(in_each or fixed_rows or rows, rows), rows)

        sizes = [*dict.fromkeys(min(size, self._max_rows) for size in _sizes(top))]
        if fixed_groups is None and self._by is not None:
            limits = [one for one in sizes if one < groups] + [groups]
            groups = min(limits, key=lambda one: score(make(one, None, max(top, one))))
        best = min((make(groups, None, rows) for rows in sizes), key=score)
        if fixed_rows is None and best[0] > 1:
            even = -(-best[2] // best[0])
            best = min((best, (best[0], even, best[2]), (best[0], 2 * even, best[2])), key=score)
        if math.isinf(score(best)):
            return None
        kept_groups, in_each, rows = best
        return RequestedBounds(groups=kept_groups, rows_per_group=min(in_each, rows), rows=rows)

    def _fixed(self) -> tuple[int | None, int | None]:
        """Groups and rows per group that the declaration fixes; the table's number of rows is a default."""
        if self._by is None:
            return 1, None
        return tuple(  # type: ignore[return-value]
            None if limit.source == "contribution_bounds.rows" else limit.number
            for limit in self._plan.table.limits_for(self._by)
        )

    def _release(self, bounds: tuple[int, int, int]) -> Release | None:
        groups, in_each, rows = bounds
        requested = RequestedBounds(groups=groups, rows_per_group=in_each, rows=rows)
        try:
            table = bounded_table(self._plan, requested, "of a candidate")
            return self._mechanism.choose_release(self._plan.params, table)[0]
        except PlanRefused:  # noise beyond what can be drawn
            return None

    def _score(self, groups: int, in_each: int, rows: int) -> float:
        release = self._release((groups, in_each, rows))
        if release is None:
            return math.inf
        score = 0.0
        for case in self._cases:
            cuts = {noun: case.cut(noun, groups, in_each, rows) / self._keys for noun in _NOUNS}
            total = float((case.units * case.rows).sum()) / self._keys
            errors = (self._find_error(release, one, cuts, total) for one in release.query.measures)
            score += sum(math.log(error + 1e-3) for error in errors)
        return score

    def _find_error(
        self, release: Release, measure: Measure, cuts: Mapping[str, float], total: float
    ) -> float:
        """A measure's error in one group, in rows of the largest value."""
        query, weights = release.query, release.query.weights(measure)
        widths = {one: release.noises[one].half_width(0.5) for one in weights}
        if measure.column is None:
            return sum(widths.values()) + cuts["units" if ("units", "") in widths else "rows"]
        grid, cut = query.columns[measure.column], cuts["rows"]
        if not measure.shrinks:
            noise = sum(abs(weights[one]) * width for one, width in widths.items())
            return noise / max(abs(grid.low), abs(grid.high), 1) + SUM_SHARE * cut
        noise = sum(
            # A column with one possible value has terms of 0.
            width / (max(1, *map(abs, grid.term_range(what))) if what in ("sum", "square") else 1)
            for (what, _), width in widths.items()
        )
        return noise * total / max(total - cut, 1.0) + MEAN_SHARE * cut

    def _describe(self, bounds: RequestedBounds) -> Iterator[Candidate]:
        """The chosen bounds, half and twice as many, and the declared ones."""
        groups, in_each, rows = (bounds.groups or 1, bounds.rows_per_group or 1, bounds.rows or 1)
        halves = tuple(max(1, one // 2) for one in (groups, in_each, rows))
        doubles = (min(2 * groups, self._keys), 2 * in_each, 2 * rows)
        declared = tuple(self._plan.table.bounds_for(self._by))
        for one in dict.fromkeys(((groups, in_each, rows), halves, doubles, declared)):
            few, each, total = one[0], min(one[1], one[2]), one[2]
            requested = RequestedBounds(groups=few, rows_per_group=each, rows=total)
            table = bounded_table(self._plan, requested, "of a candidate")
            try:
                bound = self._mechanism.error_bound(self._plan.params, table)
            except PlanRefused:  # noise beyond what can be drawn
                continue
            cuts = {
                noun: self._units.cut(noun, few, each, total) / self._keys
                for noun in ("rows", "units")
                if noun == "rows" or self._by is not None
            }
            text = table.bounds_for(self._by).describe()
            yield Candidate(text, dict(bound.half_width), cuts)


def _sizes(top: int) -> Iterator[int]:
    """Bounds that are tried: two for each doubling, up to twice the largest."""
    size = 1
    while size <= 2 * top:
        yield size
        size += max(1, 1 << max(0, size.bit_length() - 2))


def couple_sizes(
    rows: SizeHistogram, groups: Histogram | None, *, is_grouped: bool
) -> tuple[Floats, Floats, Floats]:
    """Classes of units: how many, their rows, and their groups. Units with most rows are taken to have
    most groups; without a histogram as many as rows.
    """
    if groups is None:
        ones = np.ones_like(rows.sizes)
        return rows.estimates, rows.sizes, rows.sizes if is_grouped else ones
    lists = [(one.estimates, one.sizes) for one in (rows, groups)]
    units, (of_rows, of_groups) = couple_classes(lists)
    if isinstance(groups, JointHistogram):
        # It bounds groups from above, and no unit has more of them than rows.
        return units, of_rows, np.minimum(of_rows, of_groups)
    return units, np.maximum(of_rows, of_groups), of_groups
