"""What reads one number per holdout group for a session, once the charge is in its ledger: by a named
estimator or a user's SQL, of one candidate or of the difference of two, with the units in the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.estimators import (
    Estimator,
    EstimatorQuery,
    Metric,
    Rows,
    SqlEstimator,
    Subject,
)
from dpflow.core.contract.gate import ClaimQuery, Gate
from dpflow.core.contract.requests import (
    GroupedUnits,
    GroupEstimates,
    GroupValues,
    PairCounts,
    PerGroup,
    PerUnit,
    UnitAnswer,
    UnitScores,
)
from dpflow.core.toolbox.pair_counts import count_pairs
from dpflow.engine.releases.plan import Plan, digest
from dpflow.engine.sessions.candidate import Candidate, Submission
from dpflow.engine.sessions.group_scores import (
    clamp_numbers,
    exact_sums,
    find_worst,
    group_values,
    predicted_values,
    score_range,
)
from dpflow.engine.sessions.scored_fields import (
    predict_floats,
    require_comparable,
    require_numbers,
    require_used_by_name,
    require_used_by_sql,
)
from dpflow.engine.sessions.unit_scores import (
    mean_shares,
    pair_scores,
    read_labels,
    require_pair_scores,
    require_row_scores,
    share_values,
)
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.extras import require_extra
from dpflow.registry import Registry
from dpflow.tables.snapshot import SnapshotTable

#: Which function of a candidate gives the columns that an estimator in SQL reads of it.
_SAYS = {"candidate.prediction": "predict", "candidate.score": "score", "candidate.rival": "rival"}


def _check_columns(query: EstimatorQuery, given: Submission) -> None:
    """A candidate without one of its columns would fail on every group, and each would have the
    default.
    """
    if absent := sorted(set(given.columns) - set(query.columns)):
        raise PlanRefused(
            f"candidate {given.name!r} reads {', '.join(absent)}, which the query's columns leave out; name "
            f"{', '.join(given.columns)}"
        )


class ScoreReaders:
    """Makes the readers of one session.

    Args:
        plan: what was charged.
        registry: the estimators by name.
        private: the session's table.
        secret: gives what groups are made with.
    """

    def __init__(
        self,
        plan: Plan,
        registry: Registry,
        private: SnapshotTable,
        secret: Callable[[], bytes],
    ) -> None:
        self._plan, self._registry, self._private = plan, registry, private
        self._secret = secret

    @property
    def metric(self) -> Metric | None:
        """The metric that the session's owner fixed, if any."""
        gate = self._plan.mechanism
        return gate.find_metric(self._plan.params) if isinstance(gate, Gate) else None

    def group_reader(
        self,
        statistic: GroupValues,
        query: EstimatorQuery,
        candidate: Candidate | None,
        champion: Candidate | None,
    ) -> Callable[[], PerGroup]:
        """What reads the estimates, or how much better a candidate's are than a champion's, and
        the units that they are of.
        """
        mine = self.value_reader(statistic, query, candidate)
        # A candidate is asked about twice, as claimant and as challenger, and a champion often.
        if candidate is not None:
            mine = self._remember_values(mine, statistic, query, candidate)
        count = mine.count_units if statistic.count_units else lambda: None
        if champion is None:
            return lambda: PerGroup(mine.read(), mine.lower_is_better, count())
        of_theirs = replace(statistic, columns=champion.submission.columns)
        asked = query.model_copy(update={"columns": champion.submission.columns})
        theirs = self.value_reader(of_theirs, asked, champion)
        theirs = self._remember_values(theirs, of_theirs, asked, champion)
        if mine.span is None:
            raise PlanRefused(
                f"{self._plan.request.name} compares candidates by a metric without a range, so one unit may decide everything; "
                f"open a session whose metric has range: [low, high]"
            )
        _require_same_range(mine.span, theirs.span)
        sign, width = -1.0 if mine.lower_is_better else 1.0, mine.span[1] - mine.span[0]
        return lambda: PerGroup(sign * (mine.read() - theirs.read()), units=count(), width=width)

    def unit_reader(
        self,
        statistic: UnitScores,
        query: EstimatorQuery,
        candidate: Candidate | None,
        champion: Candidate | None,
    ) -> Callable[[], UnitAnswer]:
        """What reads the units' scores, or how much better a candidate's are than a champion's; of a
        metric with a label their sums over pairs.
        """
        mine = self._share_reader(statistic, query, candidate)
        if candidate is not None:
            mine = self._remember_values(mine, statistic, query, candidate)
        assert mine.span is not None
        span, theirs = mine.span, None
        if champion is not None:
            of_theirs = UnitScores(champion.submission.columns)
            asked = query.model_copy(update={"columns": champion.submission.columns})
            theirs = self._share_reader(of_theirs, asked, champion)
            theirs = self._remember_values(theirs, of_theirs, asked, champion)
            _require_same_range(span, theirs.span)
        readers = [mine] if theirs is None else [mine, theirs]
        sign = -1.0 if mine.lower_is_better else 1.0

        def read_units() -> PerUnit:
            # Units have the same numbers in both, for one snapshot is read.
            shares = mine.read() if theirs is None else sign * (mine.read() - theirs.read())
            # A unit that lacks a value of either has no difference, and then nothing is proven.
            return PerUnit(shares, span, mine.lower_is_better, *_describe_size(readers))

        def read_pairs() -> PairCounts:
            assert self._pair_label is not None
            labels, has_one_row = read_labels(
                self._private, self._pair_label, self._plan.request.blocks
            )
            counts = count_pairs(labels, *(reader.read() for reader in readers))
            doubt = (
                "" if has_one_row else "some unit has several rows, which may depend on each other"
            )
            return replace(counts, needs=_describe_size(readers)[1], doubt=doubt)

        return read_units if self._pair_label is None else read_pairs

    @property
    def _pair_label(self) -> str | None:
        """The label of a metric of pairs of rows."""
        return None if self.metric is None else self.metric.label

    def _remember_values(
        self,
        reader: GroupReader,
        statistic: GroupValues | UnitScores,
        query: EstimatorQuery,
        of: Candidate,
    ) -> GroupReader:
        """The same reader, which computes a candidate's numbers once for as long as the rows are the
        same. Exact values: they leave through a mechanism only.
        """
        about = query.model_dump(mode="json", include={"estimator", "options", "default"})
        # A question may name other columns than its candidate, whose digest covers its own.
        groups = statistic.groups if isinstance(statistic, GroupValues) else "units"
        name = ("values", digest([about, of.digest, groups, list(statistic.columns)]))
        return replace(reader, read=partial(self._private.remember, name, reader.read))

    def _share_reader(
        self, statistic: UnitScores, query: EstimatorQuery, candidate: Candidate | None
    ) -> GroupReader:
        """What reads where in the metric's range each unit's score is."""
        private, blocks = self._private, self._plan.request.blocks
        candidate = self._match_ids(candidate)
        private.check_request(statistic, blocks)
        if isinstance(query.estimator, SqlEstimator):
            return self._sql_shares(query, query.estimator, candidate)
        estimator, subject, default, lower, span = self._named_subject(query, candidate)
        scored = (blocks, estimator, subject)
        read: Callable[..., NDArray[np.float64]]
        needed: Sequence[str]
        if self._pair_label is not None:
            require_pair_scores(estimator, self._plan.table)
            # A row without a score is in pairs, one without a label is in none.
            needed, skips_missing = (self._pair_label,), True
            read = partial(pair_scores, private, statistic.columns, *scored)
        else:
            require_row_scores(estimator, span)
            assert span is not None
            skips_missing = estimator.skips_missing
            needed = query.columns if estimator.model else query.columns[: estimator.columns]
            needs = tuple(sorted(set(needed))) if skips_missing else ()
            read = partial(mean_shares, private, statistic.columns, needs, *scored, span, default)
        assert span is not None
        _require_possible_claim(query, span)
        read = partial(read, scores_rows_alone=_is_row_wise(candidate))
        counter = self._unit_counter(needed, span, skips_missing=skips_missing)
        return GroupReader(read, lower, span, counter, skips_missing)

    def _sql_shares(
        self, query: EstimatorQuery, own: SqlEstimator, candidate: Candidate | None
    ) -> GroupReader:
        """The same of an expression, whose number each unit's rows have."""
        private, blocks = self._private, self._plan.request.blocks
        columns, functions = self._sql_inputs(query, own, candidate)
        private.check_request(GroupEstimates(2, own.sql), blocks)
        private.check_request(UnitScores(columns), blocks)
        # The expression is computed over rows in memory; its absence inside a draw would be none.
        with require_extra("gate", "an expression for each unit"):
            import pandas  # noqa: F401
        span = float(own.range[0]), float(own.range[1])
        _require_possible_claim(query, span)

        def read() -> NDArray[np.float64]:
            units, rows = private.unit_rows(columns, blocks)
            count = int(units.max()) + 1 if len(units) else 0
            values = predicted_values(
                private,
                units,
                rows,
                GroupEstimates(count, own.sql),
                functions,
                predicts_rows_alone=_is_row_wise(candidate),
            )
            return share_values(own.clamp_values(values), span)

        counter = self._unit_counter(columns, span, skips_missing=True)
        return GroupReader(read, own.better == "lower", span, counter)

    def _sql_inputs(
        self, query: EstimatorQuery, own: SqlEstimator, candidate: Candidate | None
    ) -> tuple[tuple[str, ...], dict[str, Callable[[Rows], Any]]]:
        """Columns of the table that are read for an expression, and what gives a candidate's."""
        columns, theirs = self._private.expression_columns(own.sql)
        if candidate is not None:
            require_used_by_sql(columns, theirs, candidate.submission)
        functions = {name: getattr(candidate, _SAYS[name], None) for name in theirs}
        if absent := sorted(name for name, function in functions.items() if function is None):
            raise PlanRefused(
                f"the estimator reads {', '.join(absent)}, and no candidate says that; hand one to ask"
            )
        if theirs and candidate is not None:
            _check_columns(query, candidate.submission)
            require_numbers(candidate.submission, self._type_of)
        every = (*query.columns, *columns) if theirs else columns
        available = {name: function for name, function in functions.items() if function is not None}
        return tuple(dict.fromkeys(every)), available

    def value_reader(
        self, statistic: GroupValues, query: EstimatorQuery, candidate: Candidate | None
    ) -> GroupReader:
        """What reads the estimates; groups are one partition per data set, whatever the session."""
        blocks, secret = self._plan.request.blocks, self._secret()
        candidate = self._match_ids(candidate)
        if isinstance(query.estimator, SqlEstimator):
            return self._sql_reader(statistic, query, query.estimator, candidate, secret)
        estimator, subject, default, lower, span = self._named_subject(query, candidate)
        self._private.check_request(
            exact_sums(self._private, statistic, estimator) or statistic, blocks
        )
        of_rows = span if estimator.row_scores is not None else None
        needed = query.columns if estimator.model else query.columns[: estimator.columns]
        return GroupReader(
            lambda: group_values(
                self._private,
                statistic,
                secret,
                blocks,
                estimator,
                subject,
                default,
                scores_rows_alone=_is_row_wise(candidate),
            ),
            lower,
            span,
            self._unit_counter(needed, of_rows, skips_missing=estimator.skips_missing),
        )

    def _match_ids(self, candidate: Candidate | None) -> Candidate | None:
        """A candidate whose predictions are looked up by ids of the type that the table's have."""
        if candidate is None or candidate.submission.predictions is None:
            return candidate
        name = candidate.submission.predictions.id
        return candidate.match_ids(self._type_of(name), self._plan.table.column(name))

    def _match_label(self, candidate: Candidate) -> Candidate:
        """A candidate whose predictions can equal the label's values. Raises `PlanRefused` where none can."""
        label = candidate.submission.label
        require_comparable(candidate, label, self._type_of(label))
        if self._type_of(label).upper() != "FLOAT":
            return candidate
        declared = self._plan.table.column(label)
        predict, rival = (
            function and predict_floats(function, declared)
            for function in (candidate.predict, candidate.rival)
        )
        return replace(candidate, predict=predict, rival=rival)

    def _type_of(self, column: str) -> str:
        """A column's type, looked up once for these rows."""
        types = self._private.column_types
        return self._private.remember(("type", column), lambda: types([column])[column])

    def require_used(self, submission: Submission) -> None:
        """Raises `PlanRefused` for a field of a candidate that its estimator does not use, or lacks."""
        if isinstance(submission.estimator, SqlEstimator):
            columns, theirs = self._private.expression_columns(submission.estimator.sql)
            require_used_by_sql(columns, theirs, submission)
        else:
            estimator = self._registry.find_estimator(submission.estimator)
            require_used_by_name(estimator, submission, self._plan.table)

    def _named_subject(
        self, query: EstimatorQuery, candidate: Candidate | None
    ) -> tuple[Estimator, Subject, float, bool, tuple[float, float] | None]:
        """A named estimator, what it looks at, its default, whether lower is better, and the range of the metric, or
        else its own, within which all its numbers are.
        """
        assert isinstance(query.estimator, str)
        estimator = self._registry.find_estimator(query.estimator)
        options = estimator.fill_options(query)
        if candidate is not None:
            require_used_by_name(estimator, candidate.submission, self._plan.table)
        if estimator.model and (candidate is None or candidate.predict is None):
            raise PlanRefused(f"estimator {estimator.name!r} scores a candidate; hand one to ask")
        subject = Subject(query.columns, options)
        if candidate is not None and candidate.predict is not None:
            submission = candidate.submission
            _check_columns(query, submission)
            require_numbers(submission, self._type_of)
            if estimator.label == "any":
                candidate = self._match_label(candidate)
            subject = Subject(
                query.columns,
                options,
                submission.label,
                candidate.predict,
                candidate.score,
                candidate.rival,
            )
        given = query.default
        metric, lower, table = self.metric, estimator.better == "lower", self._plan.table
        span = score_range(estimator, options, query.columns, table)
        if metric is not None:
            if metric.label not in (None, subject.label):
                raise PlanRefused(
                    f"candidates predict {subject.label or 'nothing'}, and the session's metric is of label {metric.label}"
                )
            lower = (metric.better or estimator.better) == "lower"
            given = metric.default
            span = (
                span if metric.range is None else (float(metric.range[0]), float(metric.range[1]))
            )
        if span is not None:
            estimator = clamp_numbers(estimator, span, query.columns, table)
        if given is not None:
            default = float(given)
        elif metric is None and not estimator.model:
            default = estimator.default
        else:
            default = find_worst(estimator, span, lower=lower)
        if metric is not None and span is not None:
            default = min(max(default, span[0]), span[1])
        return estimator, subject, default, lower, span

    def _unit_counter(
        self, columns: Sequence[str], span: tuple[float, float] | None, *, skips_missing: bool
    ) -> Callable[[], GroupedUnits]:
        """What counts the units in the groups, after the charge."""

        def count() -> GroupedUnits:
            units = self._private.grouped_units(
                columns, self._plan.request.blocks, skips_missing=skips_missing
            )
            return replace(units, mean_range=span)

        return count

    def _sql_reader(
        self,
        statistic: GroupValues,
        query: EstimatorQuery,
        own: SqlEstimator,
        candidate: Candidate | None,
        secret: bytes,
    ) -> GroupReader:
        """The same of an estimator in SQL: in the database, or over its rows with what a candidate
        says about them.
        """
        private, blocks = self._private, self._plan.request.blocks
        request = GroupEstimates(statistic.groups, own.sql)
        columns, functions = self._sql_inputs(query, own, candidate)
        private.check_request(request, blocks)
        lower, of_rows = own.better == "lower", private.mean_range(own.sql)
        span = float(own.range[0]), float(own.range[1])
        if not functions:
            return GroupReader(
                lambda: own.clamp_values(private.group_estimates(request, secret, blocks)),
                lower,
                span,
                self._unit_counter(columns, of_rows, skips_missing=True),
            )
        rows = GroupValues(statistic.groups, columns)
        private.check_request(rows, blocks)

        def read() -> NDArray[np.float64]:
            groups, values = private.grouped_rows(rows, secret, blocks)
            numbers = predicted_values(
                private,
                groups,
                values,
                request,
                functions,
                predicts_rows_alone=_is_row_wise(candidate),
            )
            return own.clamp_values(numbers)

        counter = self._unit_counter(columns, of_rows, skips_missing=False)
        return GroupReader(read, lower, span, counter)


def _require_possible_claim(query: EstimatorQuery, span: tuple[float, float]) -> None:
    """Raises `InvalidInput` for a number that the metric cannot have: a certain no would be paid for."""
    low, high = map(Fraction, span)
    if not isinstance(query, ClaimQuery):
        return
    if query.claim is not None and not low <= query.claim <= high:
        raise InvalidInput(
            f"the claim is outside of the metric's range [{span[0]:g}, {span[1]:g}]; claim a score that it can have"
        )
    if query.better_by > high - low:
        raise InvalidInput(
            f"nothing is better by more than the metric's range [{span[0]:g}, {span[1]:g}]; take a smaller better_by"
        )


def _require_same_range(
    mine: tuple[float, float] | None, theirs: tuple[float, float] | None
) -> None:
    """Raises `PlanRefused` for columns of two candidates whose numbers are parts of different ranges."""
    if mine != theirs:
        raise PlanRefused(
            "the columns of candidate and champion are declared with different bounds, so no range holds the numbers of both; "
            "declare the same, or open a session whose metric has range: [low, high]"
        )


def _is_row_wise(candidate: Candidate | None) -> bool:
    """Whether what is said of a row does not depend on other rows; an estimator of rows does not."""
    return candidate is None or candidate.predicts_rows_alone


def _describe_size(readers: Sequence[GroupReader]) -> tuple[bool, tuple[str, ...]]:
    """Whether the number of all units is public, and the columns for whose sake a unit may have no number.

    A doubt is about groups: a unit that lacks a value has the default there, which is a number.
    """
    units = [reader.count_units() for reader in readers]
    is_public = all(one is not None and one.is_public for one in units)
    needs = {
        name
        for reader, one in zip(readers, units)
        if reader.skips_missing and one is not None
        for name in one.needs
    }
    return is_public, tuple(sorted(needs))


@dataclass(frozen=True)
class GroupReader:
    """What reads one number per group, once the charge is in the ledger; ``span``: within which all
    of them are, or None; ``skips_missing``: whether a unit has no number that lacks a value.
    """

    read: Callable[[], NDArray[np.float64]]
    lower_is_better: bool
    span: tuple[float, float] | None
    count_units: Callable[[], GroupedUnits | None]
    skips_missing: bool = False
