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
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpflow.core.toolbox.row_checks import RowCheck
from dpflow.error_boundary import contain_errors, silence_libraries
from dpflow.errors import InvalidInput, UnexpectedFailure
from dpflow.quality.contract_file import Contract, DriftCheck
from dpflow.quality.released_expectations import EXPECTATIONS
from dpflow.quality.verdicts import CheckOutcome

#: What makes a folder a project of Great Expectations.
GX_FILE = "great_expectations.yml"

log = logging.getLogger("dpflow")


def validate_outcomes(
    contract: Contract,
    outcomes: Sequence[CheckOutcome],
    actions: Sequence[Any] = (),
    project: Path | None = None,
) -> dict[str, Any]:
    """Great Expectations' validation result over outcomes, as JSON; actions get it.

    Args:
        project: the folder of a project of Great Expectations, which keeps the results, and whose Data Docs
            sites actions write.

    Raises `InvalidInput` as `find_home`.
    An action that fails is logged by its class and changes nothing.
    """
    with silence_libraries():
        result = _run_suite(contract, outcomes, actions, project)
    return _describe_result(result.to_json_dict())


def find_home(project: Path) -> Path:
    """The folder of a project of Great Expectations that has its configuration. Raises `InvalidInput` without one."""
    for home in (project / "gx", project):
        if (home / GX_FILE).is_file():
            return home
    raise InvalidInput(
        f"there is no {GX_FILE} in {project} or its folder gx; name a project's folder"
    )


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


def _describe_bounds(contract: Contract, name: str) -> dict[str, Any]:
    """What a check asks, as arguments of its expectation."""
    checks: list[RowCheck | DriftCheck] = [*contract.checks, *contract.drift]
    for check in checks:
        if check.name == name:
            asked: dict[str, Any] = {
                "column": check.column,
                **{
                    field: getattr(check, field, None)
                    for field in ("condition", "among", "p", "since", "reference")
                },
                "min_value": getattr(check, "at_least", None),
                "max_value": check.at_most,
            }
            asked = {name: value for name, value in asked.items() if value is not None}
            return {
                name: float(value)
                if isinstance(value, Fraction)
                # Dates as texts, for JSON.
                else str(value)
                for name, value in asked.items()
            }
    return {}


def _open_context(project: Path | None) -> Any:
    """A context in memory; with a project one that keeps suites, results and Data Docs where the project does.

    Its data sources, definitions and checkpoints are left out: nothing of ours is written to its configuration.
    """
    import great_expectations as gx

    if project is None:
        return gx.get_context(mode="ephemeral")
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
    )

    home = find_home(project)
    file_context = gx.get_context(mode="file", context_root_dir=str(home))
    theirs = file_context.project_config_with_variables_substituted
    kept = (theirs.expectations_store_name, theirs.validation_results_store_name)
    places = {name: theirs.stores[name] for name in kept}
    sites = dict(theirs.data_docs_sites or {})
    for place in (*places.values(), *sites.values()):
        backend = place.get("store_backend", {})
        if folder := backend.get("base_directory"):
            backend["base_directory"] = str(home.resolve() / folder)
    memory = InMemoryStoreBackendDefaults()
    # What actions write as ${name}.
    variables = theirs.config_variables_file_path
    config = DataContextConfig(
        config_variables_file_path=str(home.resolve() / variables) if variables else None,
        stores={**memory.stores, **places},
        expectations_store_name=kept[0],
        validation_results_store_name=kept[1],
        checkpoint_store_name=memory.checkpoint_store_name,
        data_docs_sites=sites,
    )
    return gx.get_context(mode="ephemeral", project_config=config)


def _run_suite(
    contract: Contract,
    outcomes: Sequence[CheckOutcome],
    actions: Sequence[Any],
    project: Path | None,
) -> Any:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    import pandas as pd

    context = _open_context(project)
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("dpflow").add_dataframe_asset(contract.name)
    batch = asset.add_batch_definition_whole_dataframe("outcomes")
    expectations = [
        EXPECTATIONS[one.kind](
            check=one.name,
            undecided=contract.undecided,
            description=one.summary,
            **_describe_bounds(contract, one.name),
        )
        for one in outcomes
    ]
    # In a project a suite of the contract's name may be the one that it was made from.
    name = contract.name if project is None else f"dpflow {contract.name}"
    suite = context.suites.add_or_update(gx.ExpectationSuite(name, expectations=expectations))
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
