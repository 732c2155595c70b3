"""The noisy sums by which a data contract's checks are decided: shares, means, quantiles, numbers.

Definition: `dpflow.core.toolbox.row_checks`. Every moment that some check needs is released once,
with integer noise; a check is decided from these numbers alone (`dpflow.quality`), so deciding it
costs nothing more.

Guarantee and error: `dpflow.core.toolbox.aggregate`, for the declared privacy unit and neighbouring
relation. Rows are truncated to the declared contribution bounds first. The number of rows is shared
by all checks of shares, and is paid once.

When not to use it: for a check on every block of a long time where most are kept (`watch_rows` pays
for alarms only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import MAX_MAGNITUDE, Table
from dpflow.core.contract.results import (
    NOT_NEGATIVE,
    TOO_LARGE,
    ErrorBound,
    Result,
    Row,
    ValueRange,
)
from dpflow.core.toolbox.aggregate import (
    POWER,
    STOP_FAILURE,
    Law,
    MeasureMechanism,
    NoisyParams,
    Release,
)
from dpflow.core.toolbox.budget_split import balance_shares
from dpflow.core.toolbox.moments import Measure, Moment, Noisy, Query
from dpflow.core.toolbox.noise import FAILURE, Noise, rho_for
from dpflow.core.toolbox.row_checks import (
    RowChecks,
    computed_columns,
    list_measures,
    make_excess,
)

#: The least factor that a moment's error counts with where the cost is split.
MIN_FACTOR = 1e-3


class CheckRowsParams(NoisyParams):
    """``checks``: bounds on the rows (`RowCheck`). ``epsilon``: the privacy cost of all of them
    together. ``delta``: allows Gaussian noise. ``noise``: laplace, gaussian or auto.
    """

    checks: RowChecks


def moment_label(moment: Moment) -> str:
    """What a released moment is called: ``rows``, or ``sum(check_late)``."""
    what, column = moment
    return f"{what}({column})" if column else what


class CheckRows(MeasureMechanism[CheckRowsParams]):
    """Noisy moments for checks of rows."""

    name = "check_rows"
    job = "gate"
    version = 1
    summary = "what a data contract's checks are decided by: shares, means, quantiles, numbers"
    citation = (
        "Dwork, McSherry, Nissim, Smith 2006; linear checks in dpflow.core.toolbox.row_checks"
    )

    def computed_columns(self, params: CheckRowsParams, table: Table) -> Mapping[str, Column]:
        """1 in the rows that a check counts."""
        return computed_columns(params.checks, table)

    def list_measures(self, params: CheckRowsParams) -> Sequence[Measure]:
        """What the checks need, each once."""
        return list_measures(params.checks)

    def fit_release(self, params: CheckRowsParams, query: Query, law: Law) -> Release:
        """The cost is split so that the weighted geometric mean of the errors of excesses is least."""
        power = POWER[law]
        factors = [make_excess(check, query).coefficients for check in params.checks]
        errors = [
            [
                (moment in used)
                * query.sensitivity(moment).noise_norm(power)
                # A bound of 0 takes a moment and multiplies it by 0.
                * max(abs(float(used.get(moment, 0))), MIN_FACTOR)
                for moment in query.moments
            ]
            for used in factors
        ]
        shares = balance_shares(errors, [check.weight for check in params.checks], power)
        total = params.epsilon if law == "laplace" else rho_for(params.epsilon, params.delta)
        return Release(query, law, tuple(total * share for share in shares))

    def list_rows(
        self, release: Release, measures: Sequence[Measure], keys: Sequence[str], noisy: Noisy
    ) -> Result:
        """The noisy moments themselves, from which every check can be decided."""
        return Result(
            tuple(
                _make_row(moment, int(noisy[moment][0]), noise)
                for moment, noise in release.noises.items()
            )
        )

    def value_ranges(self, params: CheckRowsParams, table: Table) -> dict[str, ValueRange]:
        """Numbers of rows, values and units are not negative."""
        moments = self.make_query(params, table).moments
        counts = [moment for moment in moments if moment[0] in ("rows", "values", "units")]
        return {moment_label(moment): NOT_NEGATIVE for moment in counts}

    def error_bound(self, params: CheckRowsParams, table: Table) -> ErrorBound:
        """By check: how far the noise moves its excess (violating rows above what is allowed)."""
        release, note = self.choose_release(params, table)
        widths = {}
        for check in params.checks:
            excess = make_excess(check, release.query)
            widths[check.name] = excess.half_width(excess.list_tails(release.noises, FAILURE))
        return ErrorBound(
            widths,
            "; ".join(filter(None, ["of each excess; clamping and truncation add bias", note])),
        )


def _make_row(moment: Moment, value: int, noise: Noise) -> Row:
    if abs(value) >= MAX_MAGNITUDE - noise.half_width(STOP_FAILURE):
        # Checks that need it are undecided.
        return Row("", moment_label(moment), None, None, TOO_LARGE)
    return Row("", moment_label(moment), value, float(noise.half_width()))


def list_examples() -> dict[str, list[dict[str, Any]]]:
    """What an audit tries."""
    table = {
        "name": "audited",
        "database": "audited.duckdb",
        "privacy_unit": {"column": "user"},
        "contribution_bounds": {"rows": 1},
        "columns": {"user": {}, "amount": {"lower": 0, "upper": 1}},
    }
    checks = [
        {"name": "few", "check": "rows", "at_most": 2},
        {"name": "low", "check": "mean", "column": "amount", "at_most": "0.5"},
    ]
    return {"check_rows": [{"table": table, "params": {"epsilon": "4", "checks": checks}}]}
