"""Estimators: functions of one holdout group's rows, and nothing else, by name or in a user's own
SQL.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import Rows
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow.errors import InvalidInput, UnknownName
from dpflow.late_numpy import NDArray, np

__all__ = [
    "AnyEstimator",
    "AnyMetric",
    "Better",
    "Estimator",
    "EstimatorQuery",
    "FromMoments",
    "Metric",
    "Rows",
    "SqlEstimator",
    "Subject",
    "reads_across",
]

Floats: TypeAlias = "NDArray[np.float64]"
#: Which of two values of a score is the better one.
Better = Literal["higher", "lower"]


class SqlEstimator(Params):
    """A user's own estimator.

    ``sql``: an expression of aggregates over one group's rows
    (`dpflow.tables.language.expressions`). ``range``: [low, high], to which its number is clamped.
    ``default``: within the range, the number of a group without rows, or on which the expression
    gives NULL, NaN or an infinity. ``better``: whether ``higher`` or ``lower`` numbers are better;
    a gate needs to know.
    """

    sql: Annotated[str, Field(min_length=1)]
    range: tuple[Exact, Exact]
    default: Exact
    better: Better | None = None

    @model_validator(mode="after")
    def _check_range(self) -> SqlEstimator:
        low, high = self.range
        if not low < high:
            raise ValueError(f"range must be [low, high] with low below high, not [{low}, {high}]")
        if not low <= self.default <= high:
            raise ValueError(f"default must lie within range [{low}, {high}]")
        return self

    def clamp_values(self, found: Floats) -> Floats:
        """What is used of the expression's numbers, one per group, NaN where it has none."""
        low, high = map(float, self.range)
        # Never -0.0.
        return np.where(np.isfinite(found), np.clip(found, low, high) + 0.0, float(self.default))


def _estimator_kind(given: Any) -> str:
    return "name" if isinstance(given, str) else "sql"


#: An estimator by name, or a user's own.
AnyEstimator = Annotated[
    Annotated[str, Field(min_length=1), Tag("name")] | Annotated[SqlEstimator, Tag("sql")],
    Discriminator(_estimator_kind),
]


def _name_estimator(given: Any) -> Any:
    return {"estimator": given} if isinstance(given, str) else given


class Metric(Params):
    """The number that all candidates of a session are compared by, as its owner fixes it.

    ``estimator``: a name, or SQL, which has range, default and direction in itself. ``options``: of
    a named estimator. ``better``: ``higher`` or ``lower``; the named estimator's own if left out.
    ``range``: [low, high], to which numbers of rows and groups are clamped; the estimator's own if left out.
    ``default``: the number of a group without rows or on which it fails; the estimator's own if
    left out. ``label``: the one column that all candidates
    predict; `gate` needs it for a metric of pairs of rows, such as auc. Written as a name alone it leaves all of them out.
    """

    estimator: AnyEstimator
    label: Annotated[str, Field(min_length=1)] | None = None
    options: dict[str, Exact] = Field(default_factory=dict)
    better: Better | None = None
    range: tuple[Exact, Exact] | None = None
    default: Exact | None = None

    @model_validator(mode="after")
    def _check_parts(self) -> Metric:
        own = (self.better, self.range, self.default)
        if self.label is not None and (
            self.options or own != (None, None, None) or isinstance(self.estimator, SqlEstimator)
        ):
            raise ValueError(
                "label is for a metric of pairs of rows, which has a name and its own range and direction; leave out label or the rest"
            )
        if isinstance(self.estimator, SqlEstimator):
            if self.options or own != (None, None, None):
                raise ValueError(
                    "an estimator in SQL has its range, default and direction in itself, and no options; write them there"
                )
            if self.estimator.better is None:
                raise ValueError(
                    "say whether higher or lower numbers of this SQL are better; add better: higher or better: lower"
                )
        if self.range is not None:
            low, high = self.range
            if not low < high:
                raise ValueError(f"range must be [low, high], low below high, not [{low}, {high}]")
            if self.default is not None and not low <= self.default <= high:
                raise ValueError(f"default must lie within range [{low}, {high}]")
        return self


#: A metric as a person writes it: a mapping, or the name of an estimator.
AnyMetric = Annotated[Metric, BeforeValidator(_name_estimator)]


class EstimatorQuery(Params):
    """What is asked of every group.

    ``estimator``: a name, or an estimator of the user's own in SQL, which has its columns and its
    default in itself. ``columns``: the columns that a named estimator reads. ``options``: its
    options. ``default``: the number of a group on which it fails; the estimator's own if left out.
    ``candidate``: the digest of the candidate it scores, if it scores one.
    """

    estimator: AnyEstimator
    columns: tuple[str, ...] = ()
    options: dict[str, Exact] = Field(default_factory=dict)
    default: Exact | None = None
    candidate: str = ""

    @model_validator(mode="after")
    def _check_columns(self) -> EstimatorQuery:
        if isinstance(self.estimator, str):
            if not self.columns:
                raise ValueError("name the columns that the estimator reads")
        elif self.options or self.default is not None or (self.columns and not self.candidate):
            raise ValueError(
                "an estimator in SQL names its columns and default itself; leave columns, options and default out"
            )
        return self


@dataclass(frozen=True)
class Subject:
    """What an estimator looks at, beside rows.

    Attributes:
        columns: the columns of the query, in its order.
        options: its options, defaults filled in.
        label: the column that a model predicts; "" without a model.
        predict, score: functions from rows to one prediction, or one score, per row; None without a
        model.
        rival: the predictions of a second model, for comparisons; None without one.
    """

    columns: tuple[str, ...]
    options: Mapping[str, Fraction] = field(default_factory=dict)
    label: str = ""
    predict: Callable[[Rows], Any] | None = field(default=None, repr=False)
    score: Callable[[Rows], Any] | None = field(default=None, repr=False)
    rival: Callable[[Rows], Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class FromMoments:
    """An estimator as a function of exact sums, one number per group: the database adds up, and no
    row leaves it.

    Attributes:
        measures: what it needs, of those of `GroupMoments`.
        function: from measure to its numbers, to the estimates; not finite means that the estimator
        fails on the group.
    """

    measures: tuple[str, ...]
    function: Callable[[Mapping[str, Floats]], Floats]

    def estimate_groups(self, moments: Mapping[str, Floats], default: float) -> Floats:
        """One estimate per group, or the default."""
        # A warning about one group's numbers would be a message about its rows.
        with np.errstate(all="ignore"):
            estimates = self.function(moments)
        return np.where(np.isfinite(estimates), estimates, default)


@dataclass(frozen=True)
class Estimator:
    """A named function of (rows of one group, `Subject`) with a default for failures.

    ``default`` is returned for a group on which the function fails or gives no finite number; a
    group is never dropped, because then their number would depend on the rows.

    Attributes:
        better: whether higher or lower numbers of it are better; a gate refuses claims that are too
        good.
        range: [low, high], to which its numbers are clamped, and of a mean over rows each score; "column" for the
        bounds of its first column, a function from options to either, or None if it has none of its own.
        row_scores: for a mean of one score for each row, these scores; the function may then be
        left out.
        pair_scores: for a mean over pairs of a positive row, whose label is 1, and a negative one, each
        row's score: a pair counts 1 if the positive row's is higher, and 1/2 if none is.
        skips_missing: whether it leaves out rows that lack a value, and does not fail on them.
        options: the options it knows, with their defaults.
        model: whether it scores a candidate: "" no, "one" a model, "two" a model and a rival.
        columns: how many columns it needs at least.
        more_columns: whether an estimator of columns reads more than these.
        moments: the same as a function of sums; used where the columns are bounded.
        label: what it takes as label: "any" if it compares predictions with it, a "number", or "binary" where 1 is
        positive and all else is not.
    """

    name: str
    summary: str
    default: float
    function: Callable[[Rows, Subject], float]
    options: Mapping[str, Fraction] = field(default_factory=dict)
    model: str = "one"
    columns: int = 1
    moments: FromMoments | None = None
    better: Better = field(kw_only=True)
    range: (
        tuple[float, float]
        | Literal["column"]
        | Callable[[Mapping[str, Fraction]], tuple[float, float] | Literal["column"]]
        | None
    ) = field(default=None, kw_only=True)
    row_scores: Callable[[Rows, Subject], Floats] | None = field(default=None, kw_only=True)
    pair_scores: Callable[[Rows, Subject], Floats] | None = field(default=None, kw_only=True)
    skips_missing: bool = field(default=False, kw_only=True)
    more_columns: bool = field(default=False, kw_only=True)
    label: Literal["any", "number", "binary"] = field(default="any", kw_only=True)

    def __post_init__(self) -> None:
        """Raises `ValueError` for a direction that there is not, or another one than pairs have."""
        if self.better not in ("higher", "lower"):
            raise ValueError(f"estimator {self.name!r}: better is higher or lower")
        if self.pair_scores is not None and (self.better, self.range) != ("higher", (0, 1)):
            raise ValueError(f"estimator {self.name!r}: of pairs higher is better, in range (0, 1)")

    def find_range(
        self, options: Mapping[str, Fraction]
    ) -> tuple[float, float] | Literal["column"] | None:
        """`range` with these options. Raises `InvalidInput` for options that it cannot have."""
        return self.range({**self.options, **options}) if callable(self.range) else self.range

    def fill_options(self, query: EstimatorQuery) -> dict[str, Fraction]:
        """The query's options with defaults. Raises `UnknownName` or `InvalidInput` before anything
        is read.
        """
        if len(query.columns) < self.columns:
            raise InvalidInput(
                f"estimator {self.name!r} needs {self.columns} columns; name them in its order"
            )
        self.check_options(query.options)
        return {**self.options, **query.options}

    def check_options(self, options: Mapping[str, Fraction]) -> None:
        """Raises `UnknownName` or `InvalidInput` for options that it cannot have."""
        for name in options:
            if name not in self.options:
                raise UnknownName(f"option of estimator {self.name!r}", name, self.options)
        self.find_range(options)

    def estimate_group(self, rows: Rows, subject: Subject, default: float | None = None) -> float:
        """The estimate on one group, or the default. Never raises because of a row."""
        default = self.default if default is None else default
        try:
            with warnings.catch_warnings():
                # A warning about one group's rows is a message about them.
                warnings.simplefilter("ignore")
                value = float(self.function(rows, subject))
        # An error's text could show a value of a row.
        except Exception:  # noqa: BLE001  any failure may depend on a row, so it is mapped, not shown
            return default
        return value if math.isfinite(value) else default


def reads_across(estimator: Estimator, source: Source) -> bool:
    """Whether a group's estimate depends on other groups: a randomised check on made-up rows, as
    estimators are registered.

    Every group is estimated, then all of them again in another order; sums are given for all groups
    and for one alone, and scores are taken of rows together and of each alone. A function of
    one group, or of one row, gives the same both times. No check finds an
    estimator that wants to hide what it keeps.
    """
    # Rows of our own: no private row takes part in the check.
    groups = [_made_up(source) for _ in range(6)]
    subject = Subject(
        ("x", "y", "z"),
        estimator.options,
        "label",
        lambda rows: (np.asarray(rows["x"]) > 0.4).astype(float),
        lambda rows: np.asarray(rows["x"]),
        lambda rows: (np.asarray(rows["y"]) > 0.4).astype(float),
    )
    first = [estimator.estimate_group(rows, subject) for rows in groups]
    # Each group at least once, then some at random, in the opposite order.
    again = [0, 1, 2, 3, 4, 5, *(source.draw_below(6) for _ in range(6))][::-1]
    if any(estimator.estimate_group(groups[i], subject) != first[i] for i in again):
        return True
    for scores in (estimator.row_scores, estimator.pair_scores):
        if scores is not None and _scores_across(scores, groups, subject):
            return True
    if estimator.moments is None:
        return False
    sums = {
        name: np.array([float(1 + source.draw_below(50)) for _ in range(6)])
        for name in estimator.moments.measures
    }
    sums["n"] = np.full(6, 51.0)
    together = estimator.moments.estimate_groups(sums, estimator.default)
    alone = [
        estimator.moments.estimate_groups(
            {n: s[i : i + 1] for n, s in sums.items()}, estimator.default
        )[0]
        for i in range(6)
    ]
    return bool((together != np.array(alone)).any())


def _scores_across(
    scores: Callable[[Rows, Subject], Floats], groups: Sequence[Rows], subject: Subject
) -> bool:
    """Whether a row's score depends on other rows."""
    every = {name: np.concatenate([rows[name] for rows in groups]) for name in groups[0]}
    # Those of one group: every process that loads plugins does this.
    first = range(len(groups[0]["label"]))
    single = [{name: column[i : i + 1] for name, column in every.items()} for i in first]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            together = np.asarray(scores(every, subject), dtype=float)
        except Exception:  # noqa: BLE001  then units are scored one by one
            return False
        try:
            alone = [np.asarray(scores(row, subject), dtype=float) for row in single]
        except Exception:  # noqa: BLE001  other rows made it a score
            return True
    if together.shape != every["label"].shape:
        return False
    return not np.array_equal(together[: len(first)], np.concatenate(alone), equal_nan=True)


def _made_up(source: Source) -> Rows:
    """Rows of one group: three numbers in [0, 1] and a label."""
    size = 6 + source.draw_below(6)
    numbers = {
        name: np.array([source.draw_below(1000) / 1000 for _ in range(size)])
        for name in ("x", "y", "z")
    }
    return {**numbers, "label": np.array([float(source.draw_below(2)) for _ in range(size)])}
