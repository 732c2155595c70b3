"""What OpenLineage's events say of a task: the declared tables that it read, the tables that it published,
and what its releases cost. Imported only by the provider's listener, when a task has ended.

All of it is public. A private table is told by its name and the digest of its declaration: never where it
is, its rows or anything computed from them.

What Airflow's provider adds of itself is not made here: of a failed task the line that its log has, which may
say where a table is, and of every task arguments of its DAG, as the DAG wrote them. No row, released value or
password is in an error of ours (`dpflow.error_boundary`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import DatasetFacet, RunFacet
from openlineage.client.generated.data_quality_assertions_dataset import (
    Assertion,
    DataQualityAssertionsDatasetFacet,
)
from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields

from dpflow.airflow.release_note import ContractNote, LoadNote, ReleaseNote
from dpflow.engine.releases.plan import digest
from dpflow.tables.public.named_tables import name_dataset

if TYPE_CHECKING:
    from dpflow.core.contract.declaration import Table

log = logging.getLogger(__name__)

#: Where private tables are, for lineage. Their files are nobody's business.
PRIVATE_NAMESPACE = "dpflow"

#: What the facet says of a release; all else that a caller knows stays out.
FIELDS = (
    *("release_id", "name", "mechanism", "scope", "blocks", "epsilon", "delta", "protects"),
    *("replayed", "published"),
)


def name_schema(facet: str) -> str:
    """The address of a facet's JSON schema: its path in this repository and in the wheel, with its version. A change
    of a facet's fields is another file.
    """
    return f"urn:dpflow:dpflow/airflow/facets/{facet}-1-0-0.json#/$defs/{facet}"


@attrs.define
class DeclarationFacet(DatasetFacet):
    """Of a private table: which declaration of it was read, and whom it protects."""

    declaration_digest: str
    protects: str

    @staticmethod
    def _get_schema() -> str:
        return name_schema("DeclarationDatasetFacet")


@attrs.define
class PrivacyCostFacet(RunFacet):
    """Of a run: its releases, each with scope, epsilon and delta as exact texts.

    A release that was ``replayed`` cost this run nothing: its cost is that of the run which paid. Whoever
    adds up costs counts each ``release_id`` once.
    """

    releases: list[dict[str, Any]]

    @staticmethod
    def _get_schema() -> str:
        return name_schema("PrivacyCostRunFacet")


def make_lineage(notes: Iterable[ReleaseNote | ContractNote | LoadNote]) -> OperatorLineage:
    """The lineage of a task from what it noted. A failure is logged by its kind, and no lineage is told:
    the task has done its work.
    """
    try:
        return _make_lineage(list(notes))
    except Exception as error:  # noqa: BLE001
        log.warning("no lineage is told: %s", type(error).__name__)
        return OperatorLineage()


def _make_lineage(notes: list[ReleaseNote | ContractNote | LoadNote]) -> OperatorLineage:
    releases = [note for note in notes if isinstance(note, ReleaseNote)]
    contracts = [note for note in notes if isinstance(note, ContractNote)]
    loads = [note for note in notes if isinstance(note, LoadNote)]
    tables = {digest(table.stored_form()): table for note in releases for table in note.tables}
    tables |= {digest(note.table.stored_form()): note.table for note in contracts}
    inputs = {name: _describe_input(name, table) for name, table in tables.items()}
    for note in contracts:
        inputs[digest(note.table.stored_form())].inputFacets = {
            "dataQualityAssertions": _describe_contract(note)
        }
    outputs = dict.fromkeys(note.output for note in releases if note.output is not None)
    costs = [{name: note.release.get(name) for name in FIELDS} for note in releases]
    return OperatorLineage(
        inputs=[*inputs.values(), *(InputDataset(*load.source) for load in loads)],
        outputs=[
            *(_describe_output(*output) for output in outputs),
            *(OutputDataset(PRIVATE_NAMESPACE, load.table) for load in loads),
        ],
        run_facets={"dpflow_privacyCost": PrivacyCostFacet(costs)} if costs else {},
    )


def _describe_input(declaration_digest: str, table: Table) -> InputDataset:
    columns = dict.fromkeys([table.privacy_unit.column, *table.columns])
    facets = {
        "dpflow_declaration": DeclarationFacet(declaration_digest, table.protection_text),
        "schema": SchemaDatasetFacet([SchemaDatasetFacetFields(name) for name in columns]),
    }
    return InputDataset(PRIVATE_NAMESPACE, table.name, facets=facets)


def _describe_contract(note: ContractNote) -> DataQualityAssertionsDatasetFacet:
    """Each check as an assertion; what the outcome says, and no number."""
    return DataQualityAssertionsDatasetFacet(
        [
            Assertion(
                assertion=kind, success=kept, column=column or None, name=name, description=asked
            )
            for name, kind, column, asked, kept in note.assertions
        ]
    )


def _describe_output(database: Path, table: str) -> OutputDataset:
    return OutputDataset(*name_dataset(database, table))
