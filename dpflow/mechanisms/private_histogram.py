"""Rows or units per key, where the keys themselves are private: noisy counts above a threshold.

Definition: each unit is truncated to the groups and rows per group that the column declares. Every
key in the rows gets a noisy count, and is released, sorted, if that reaches a threshold.
`dpflow.core.toolbox.partition_selection` has the three rules, Laplace and Gaussian noise with a
tail bound and truncated Laplace noise, and takes the one with the lowest threshold.

Guarantee: (epsilon, delta)-DP for the declared unit; proofs in
`dpflow.core.toolbox.partition_selection`. ``noise: gaussian`` states delta/2-approximate zCDP with
the rho that is (epsilon, delta/2)-DP, for which a scope with filter renyi or hybrid charges
less, and which basic refuses.

Counting units instead of rows lowers the threshold by the rows that one unit may have: take it
where keys matter more than rows.

When not to use it: for names without counts (`key_union` releases more of them); for keys that are
public anyway (`histogram` is pure and shows empty keys), or when most keys have few units; what is
below the threshold is lost.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import Answer, GroupedSums
from dpflow.core.contract.results import NOT_NEGATIVE, ErrorBound, Result, Row, ValueRange
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.partition_selection import SelectionRule, require_delta


class PrivateHistogramParams(Params):
    """``by``: the grouping column. ``epsilon``: the privacy cost. ``delta``: as epsilon; the chance
    that a lone unit's key shows. ``of``: count rows or units. ``noise``: laplace, gaussian or auto.
    """

    by: str
    epsilon: Epsilon
    delta: Annotated[Delta, AfterValidator(require_delta)]
    of: Literal["rows", "units"] = "rows"
    noise: Literal["laplace", "gaussian", "auto"] = "auto"


class PrivateHistogram(Mechanism[PrivateHistogramParams]):
    """Number of rows of the keys that many units share."""

    name = "private_histogram"
    job = "groups"
    summary = "number of rows or units by key, keys selected privately"
    citation = (
        "Korolova, Kenthapadi, Mishra, Ntoulas 2009 (releasing search queries); Desfontaines, Voss, Gipson, Mandayam 2022 "
        "(differentially private partition selection); bounds proved in dpflow.core.toolbox.partition_selection"
    )
    version = 3

    def counts_units(self, params: PrivateHistogramParams) -> bool:
        """Whether keys are counted by units."""
        return params.of == "units"

    def _selection_rule(self, params: PrivateHistogramParams, table: Table) -> SelectionRule:
        # Raises for a column that nobody declared, before anything is charged.
        table.column(params.by)
        # The rule then compares all laws and takes the lowest threshold.
        law = None if params.noise == "auto" else params.noise
        return SelectionRule.lowest_threshold(
            table.sensitivity(self.data_request(params, table)),
            params.of,
            params.epsilon,
            params.delta,
            law,
        )

    def event(self, params: PrivateHistogramParams, table: Table) -> Event:
        """The guarantee of the selection rule with the lowest threshold."""
        return self._selection_rule(params, table).event

    def data_request(self, params: PrivateHistogramParams, table: Table) -> GroupedSums:
        """Counts of every key in the rows, after contribution bounding; the keys are private."""
        bounds = table.bounds_for(params.by).narrow(None, 1 if params.of == "units" else None)
        groups, rows_per_group, rows = bounds
        return GroupedSums(params.by, None, groups, rows_per_group, rows=rows)

    def draw(
        self, params: PrivateHistogramParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Noisy counts, of which those below the threshold are dropped with their keys."""
        rule = self._selection_rule(params, table)
        places, noisy = rule.show_counts(answer.keys, answer.moment(params.of, ""), source)
        label = "count" if params.of == "rows" else "count_distinct"
        return Result(
            tuple(
                Row(answer.keys[place], label, number, rule.half_width)
                for place, number in zip(places.tolist(), noisy.tolist(), strict=True)
            )
        )

    def value_ranges(self, params: PrivateHistogramParams, table: Table) -> dict[str, ValueRange]:
        """Counts are not negative."""
        return {"count": NOT_NEGATIVE, "count_distinct": NOT_NEGATIVE}

    def error_bound(self, params: PrivateHistogramParams, table: Table) -> ErrorBound:
        """Noise of released counts; what is below the threshold is lost."""
        rule = self._selection_rule(params, table)
        note = f"{rule.noise_name} noise only, for keys that are released; a key needs about {rule.threshold} {params.of} to be"
        return ErrorBound(
            {"count" if params.of == "rows" else "count_distinct": rule.half_width}, note
        )
