"""Outcomes of checks as Great Expectations' own: custom expectations over a batch of outcomes, never
over rows.

A batch has one line per check, with its verdict and, where it was paid for, the released excess and
its error. So results, Data Docs and notifications hold nothing else: names of expectations, and
noisy numbers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.error_boundary import contain_errors, silence_libraries
from dpflow.errors import UnexpectedFailure
from dpflow.quality.contract_file import Contract
from dpflow.quality.released_expectations import EXPECTATIONS
from dpflow.quality.verdicts import CheckOutcome

log = logging.getLogger("dpflow")


def validate_outcomes(
    contract: Contract, outcomes: Sequence[CheckOutcome], actions: Sequence[Any] = ()
) -> dict[str, Any]:
    """Great Expectations' validation result over outcomes, as JSON; actions get it.

    An action that fails is logged by its class and changes nothing.
    """
    with silence_libraries():
        result = _run_suite(contract, outcomes, actions)
    return _describe_result(result.to_json_dict())


def _describe_result(told: Mapping[str, Any]) -> dict[str, Any]:
    """What says something of the outcomes: times and random ids differ between a run and its retry."""
    results = [
        {
            "success": one["success"],
            "expectation_config": {
                "type": one["expectation_config"]["type"],
                "kwargs": {
                    name: value
                    for name, value in one["expectation_config"]["kwargs"].items()
                    if name != "batch_id"
                },
            },
            "result": one["result"],
        }
        for one in told["results"]
    ]
    return {
        "success": told["success"],
        "suite_name": told["suite_name"],
        "results": results,
        "statistics": told["statistics"],
    }


def _run_suite(contract: Contract, outcomes: Sequence[CheckOutcome], actions: Sequence[Any]) -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("dpflow").add_dataframe_asset(contract.name)
    batch = asset.add_batch_definition_whole_dataframe("outcomes")
    expectations = [
        EXPECTATIONS[one.kind](check=one.name, undecided=contract.undecided) for one in outcomes
    ]
    suite = context.suites.add(gx.ExpectationSuite(contract.name, expectations=expectations))
    lines = pd.DataFrame([vars(one) for one in outcomes])
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name=contract.name, data=batch, suite=suite)
    )
    result = definition.run(batch_parameters={"dataframe": lines}, result_format="BASIC")
    for number, action in enumerate(actions):
        # One by one: an action that fails stops no other, and not the contract.
        checkpoint = gx.Checkpoint(
            name=f"{contract.name} {number}",
            validation_definitions=[definition],
            actions=[action],
            result_format="BASIC",
        )

        def notify(checkpoint: Any = checkpoint) -> None:
            context.checkpoints.add(checkpoint)
            checkpoint.run(batch_parameters={"dataframe": lines})

        try:
            contain_errors(notify, lambda _: UnexpectedFailure("a notification failed"))
        except UnexpectedFailure:
            log.warning("action %s failed; the contract's outcome stands", type(action).__name__)
    return result
