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
together with 97.5 %; so it holds with 95 %, if the declared maximum does. Where nothing is cut no limit
is used, and w is that of 95 %. A sum lacks the values of the rows that are cut: each moves it by [l, h], the
declared bounds with 0, so its interval is [x - w + l cut, x + w + h cut]. That is the sum of the values as
they are where everybody knows that none is clamped or rounded (``within_bounds``); of other columns it is not
stated. A mean of such a column mixes the rows that counted and those that are cut
(`dpflow.core.contract.totals`); truncation takes sum and number of a unit's values down together, so what is
cut is within the bounds, too. It is stated for such sums and means, and for counts of
rows and of units over public keys; not for variances. A profile counts the same rows if it was made of the same
snapshot, of these blocks at least, and without a condition or with parts of the question's, none on what is joined.
What else a WHERE leaves out only lowers what is cut. Of groups of what is joined it limits the rows alone. Rows without
a unit count nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dpflow.core.contract.contribution import MAX_GROUPS
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.totals import MeanTotal, TermTotal, Totals
from dpflow.core.toolbox.aggregate import MeasureMechanism, Release
from dpflow.core.toolbox.contribution_profile import ContributionProfile, JointHistogram
from dpflow.core.toolbox.moments import Measure, Query
from dpflow.core.toolbox.noise import FAILURE
from dpflow.engine.releases.choose_bounds import largest_bounds, list_profiles, list_read_columns
from dpflow.engine.releases.own_histogram import noise_failure
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.profiled_groups import Histogram, find_histogram
from dpflow.ledger import Ledger
from dpflow.tables.language.conditions import parse_condition


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
    measures = [*counts, *_measures_within_bounds(query)]
    if query.private or not measures:
        return None
    profile = _find_fitting(plan, ledger, snapshot)
    if profile is None and table.max_contributions is None:
        return None
    cuts = _find_cuts(plan, profile, None if query.group_keys is None else len(query.group_keys))
    release = mechanism.choose_release(plan.params, table)[0]
    ends: dict[str, TermTotal | MeanTotal] = {}
    for measure in measures:
        cut = cuts.units if measure.measure == "count_distinct" else cuts.rows
        if cut is not None:
            total = _find_total(release, measure, cut, cuts.noise_failure)
            ends[mechanism.measure_label(measure)] = total
    statements = []
    if ends:
        within = [one.column for one in measures if one.column and cuts.rows is not None]
        known = (
            f", and no {' or '.join(within)} is beyond its bounds or off its grid" if within else ""
        )
        statements.append(
            f"total intervals of {', '.join(ends)} hold with 95 %{known}{cuts.premises}"
        )
    if any(mechanism.measure_label(one) not in ends for one in counts) and profile is not None:
        unit, by = table.privacy_unit.column, getattr(plan.params, "by", None)
        statements.append(
            f"counts of rows are of the table with each {unit} cut at {table.bounds_for(by).describe()}{cuts.premises}; how many "
            f"rows these lack is unknown: declare max_contributions"
        )
    return Totals(ends, "; ".join(statements)) if statements else None


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
    ends = {label: _find_total(release, measure, limit, noise_failure(groups, keys))}
    return Totals(ends, f"total intervals of {label} hold with 95 %{known}")


def describe_unmeasured(plan: Plan) -> str:
    """What noise intervals leave out, where no total interval is known; "" where the declared maximum says that it is
    nothing, and where one row stands for each unit.
    """
    mechanism, table = plan.mechanism, plan.table
    if not isinstance(mechanism, MeasureMechanism) or table.unit_rows is not None:
        return ""
    query = mechanism.make_query(plan.params, table)
    keys = MAX_GROUPS if query.private else len(query.group_keys or ()) or None
    cuts = _find_cuts(plan, None, keys)
    counts_units = all(one.measure == "count_distinct" for one in query.measures)
    is_joined = any(join.kind == "unit" for join in table.joins)
    if not is_joined and (cuts.units if counts_units else cuts.rows) == 0:
        return ""
    advice = [f"release contributions of {table.name}"] if plan.chosen is None else []
    advice += ["declare max_contributions"] if table.max_contributions is None else []
    return (
        f"{plan.describe_contributions()}; noise intervals leave out what that cuts, which is unmeasured"
        f"{': ' * bool(advice)}{' or '.join(advice)}"
    )


def _measures_within_bounds(query: Query) -> list[Measure]:
    """Sums and means of columns of which everybody knows that no value is clamped or rounded."""
    largest = query.table.max_contributions
    names = () if largest is None else largest.within_bounds
    return [one for one in query.measures if one.measure in ("sum", "mean") and one.column in names]


def _find_total(
    release: Release, measure: Measure, cut: int, failure: float
) -> TermTotal | MeanTotal:
    query, tails = release.query, release.tails(measure, failure)
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
            cut,
        )
    width = query.error_bound(measure, tails)
    below, above = _term_range(query, measure)
    return TermTotal(width + below * cut, width + above * cut)


def _term_range(query: Query, measure: Measure) -> tuple[float, float]:
    """How far below and above a row that is cut leaves the truth, at most."""
    if measure.column is None:
        return 0.0, 1.0
    grid = query.columns[measure.column]
    return max(0, -grid.low) * grid.step, max(0, grid.high) * grid.step


def _find_fitting(plan: Plan, ledger: Ledger, snapshot: str) -> ContributionProfile | None:
    """The first profile of the rows that a plan reads, or of more of them: one that counts its groups, else any."""
    blocks, by = set(plan.request.blocks), getattr(plan.params, "by", None)
    first = None
    for record, profile in list_profiles(plan, ledger):
        where, read = record.request.get("where"), set(record.request.get("blocks", ()))
        is_same = record.request.get("block") == plan.table.block
        covers = not read or (is_same and bool(blocks) and blocks <= read)
        names = set() if where is None else parse_condition(where, plan.table).column_names()
        if record.snapshot != snapshot or not covers or _reads_joined(names, plan.table):
            continue
        if by is None or find_histogram(profile, plan.table, by, plan.request.where) is not None:
            return profile
        first = first or profile
    return first


def _reads_joined(names: Iterable[str], table: Table) -> bool:
    """Whether columns are of joined relations, or computed from such: these may be of another time than the rows,
    and another declaration may join another relation.
    """
    return any(len(table.split_name(name)) > 1 for name in list_read_columns(names, table))


@dataclass(frozen=True)
class _Cuts:
    """Rows and units that a group may lack, None where nothing limits them; what that rests on; and
    the probability that is left to the noise.
    """

    rows: int | None
    units: int | None
    premises: str
    noise_failure: float


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
    groups_are_cut = by is not None and reached < min(
        keys or reached, largest.groups if largest else keys or reached
    )
    rows_are_cut = largest is None or full < largest.rows
    needed = groups_are_cut + rows_are_cut
    words: list[str] = []

    def limit(size: int, noun: str, is_cut: bool) -> int | None:
        if not is_cut:
            return 0
        if profile is None:
            return None
        # No unit has more groups than rows.
        histograms: list[Histogram] = [profile.rows]
        is_counted = noun == "groups" and by is not None and not _reads_joined([by], table)
        if (
            is_counted
            and by is not None
            and (found := find_histogram(profile, table, by, plan.request.where))
        ):
            histograms = [found, *histograms] if isinstance(found, JointHistogram) else [found]
        failure = FAILURE / 2 / needed / len(histograms)
        number = min(limit_any(histogram, size, failure) for histogram in histograms)
        words.append(f"at most {number} have more than {size} {noun}")
        return number

    lost_groups, lost_rows = (
        limit(reached, "groups", groups_are_cut),
        limit(full, "rows", rows_are_cut),
    )
    known = f"; {' and '.join(words)} (97.5 %)" if words else ""
    noise_failure = FAILURE / 2 if words else FAILURE
    if largest is None:
        return _Cuts(None, lost_groups, known, noise_failure)
    rows: int | None = None
    if lost_groups is not None and lost_rows is not None:
        each, above = largest.rows_per_group, max(0, largest.rows - bounds.rows)
        total_binds = bounds.rows < bounds.groups * bounds.rows_per_group
        within = max(0, each - bounds.rows_per_group) + (above if total_binds else 0)
        kept_lack = above if by is None else min(each - 1, within)
        rows = lost_groups * each + lost_rows * kept_lack
    where = f" of one {table.block}" if table.protects == "unit-block" else ""
    is_limited = by is not None and largest.groups < min(keys or largest.rows, largest.rows)
    reach = f", or rows in more than {largest.groups} of them" if is_limited else ""
    premise = f", if no {unit} has more than {largest.rows_per_group} rows{where} in a group and {largest.rows} in all{reach}, as declared"
    return _Cuts(rows, lost_groups, f"{premise}{known}", noise_failure)


def limit_any(histogram: Histogram, size: int, failure: float) -> int:
    """Units above a size that the histogram's own noise had a part in choosing: limits of all sizes hold together,
    but with this probability.
    """
    # Those of several histograms do already.
    sizes = 1 if isinstance(histogram, JointHistogram) else len(histogram.starts)
    return histogram.limit_above(size, failure / sizes)
