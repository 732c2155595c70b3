"""Custom expectations of Great Expectations, one for each kind of check. They judge a batch of
outcomes (`dpflow.quality.validation_result`); importing this module registers them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpflow.core.contract.printed_numbers import print_around
from dpflow.extras import require_extra
from dpflow.quality.verdicts import PASSING

with require_extra("quality", "a data contract"):
    import pandas as pd
    from great_expectations.core.metric_domain_types import MetricDomainTypes
    from great_expectations.execution_engine import PandasExecutionEngine
    from great_expectations.expectations.expectation import BatchExpectation
    from great_expectations.expectations.metrics.metric_provider import metric_value
    from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider

METRIC = "dpflow.check_outcome"


class CheckOutcomeMetric(TableMetricProvider):  # type: ignore[misc]
    """The line of one check in a batch of outcomes."""

    metric_name = METRIC
    value_keys = ("check",)

    @metric_value(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
    def _find_line(
        cls,  # noqa: N805
        execution_engine: Any,
        metric_domain_kwargs: Any,
        metric_value_kwargs: Any,
        metrics: Any,
        runtime_configuration: Any,
    ) -> dict[str, Any]:
        lines, _, _ = execution_engine.get_compute_domain(
            metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE
        )
        (line,) = lines[lines["name"] == metric_value_kwargs["check"]].to_dict("records")
        return {
            str(name): value
            for name, value in line.items()
            if not pd.api.types.is_scalar(value) or not pd.isna(value)
        }


class ExpectReleased(BatchExpectation):  # type: ignore[misc]
    """A check's outcome is as wanted: kept, or undecided where the contract lets that pass.

    ``column``, ``condition``, ``among``, ``p``, ``since``, ``reference``, ``min_value`` and ``max_value`` say what is asked,
    for readers of results; see `dpflow.core.toolbox.row_checks.RowCheck` and `dpflow.quality.contract_file.DriftCheck`.
    """

    check: str
    undecided: str = "fail"
    column: str | None = None
    condition: str | None = None
    among: str | None = None
    since: float | str | None = None
    reference: str | None = None
    p: float | None = None
    min_value: float | None = None
    max_value: float | None = None
    metric_dependencies: ClassVar[tuple[str, ...]] = (METRIC,)
    success_keys: ClassVar[tuple[str, ...]] = ("check", "undecided")
    domain_keys: ClassVar[tuple[str, ...]] = ()

    def _validate(
        self, metrics: Any, runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        outcome = metrics[METRIC]
        verdict = outcome["verdict"]
        kept = verdict in PASSING or (verdict == "undecided" and self.undecided == "pass")
        return {
            "success": kept,
            "result": {"observed_value": describe_evidence(outcome), "details": outcome},
        }


def describe_evidence(outcome: dict[str, Any]) -> str:
    """The verdict with the released numbers that it follows from, in one line."""
    text = str(outcome["verdict"])
    if "estimate" in outcome:
        text += f"; estimate {outcome['estimate']:.6g}"
    if "excess" in outcome:
        excess, half_width = print_around(outcome["excess"], outcome["half_width"])
        text += f"; beyond the bound by {excess} \u00b1 {half_width}"
    return text


class ExpectDeclaredColumn(ExpectReleased):
    """A declared column exists with a type that releases can use."""


class ExpectDeclarationKept(ExpectReleased):
    """Rows are as the table declares: the one bit of mode trusted."""


class ExpectSuiteKept(ExpectReleased):
    """Rows keep a suite that their owner registered: the one bit of mode trusted."""


class ExpectShareOfViolations(ExpectReleased):
    """The share of rows that fulfil a condition is at most the bound."""


class ExpectShareOfNulls(ExpectReleased):
    """The share of rows without a value is at most the bound."""


class ExpectShareOfUnknownKeys(ExpectReleased):
    """The share of rows with an undeclared key is at most the bound."""


class ExpectShareOfKeys(ExpectReleased):
    """The share of some keys, among rows with a public key, is on the right side of the bound."""


class ExpectQuantile(ExpectReleased):
    """A quantile is on the right side of the bound."""


class ExpectMean(ExpectReleased):
    """A mean is on the right side of the bound."""


class ExpectSum(ExpectReleased):
    """A sum is on the right side of the bound."""


class ExpectNumberOfRows(ExpectReleased):
    """The number of rows is on the right side of the bound."""


class ExpectDistinctUnits(ExpectReleased):
    """The number of privacy units is on the right side of the bound."""


class ExpectFreshRows(ExpectReleased):
    """As many rows are recent as the bound says."""


class ExpectSharesAsReleased(ExpectReleased):
    """The shares of keys are close to those of an earlier release."""


#: The expectation of each kind of check.
EXPECTATIONS: dict[str, type[ExpectReleased]] = {
    "column": ExpectDeclaredColumn,
    "declaration": ExpectDeclarationKept,
    "suite": ExpectSuiteKept,
    "violations": ExpectShareOfViolations,
    "nulls": ExpectShareOfNulls,
    "unknown_keys": ExpectShareOfUnknownKeys,
    "key_share": ExpectShareOfKeys,
    "quantile": ExpectQuantile,
    "mean": ExpectMean,
    "sum": ExpectSum,
    "rows": ExpectNumberOfRows,
    "units": ExpectDistinctUnits,
    "freshness": ExpectFreshRows,
    "drift": ExpectSharesAsReleased,
}
