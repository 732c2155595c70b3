"""`DataContractOperator`: stop a run whose rows do not satisfy what the table declares, or what a
contract says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpflow.airflow.release_note import ContractNote
from dpflow.airflow.service_task import RequestTask
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    Blocks,
    dag_folder,
    dag_principal,
    identify_run,
    map_failures,
    name_task_run,
    open_ledger,
    push_result,
    require_lasting,
)
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient
    from dpflow.core.contract.declaration import Table
    from dpflow.quality.contract_file import Contract
    from dpflow.quality.contract_run import ContractOutcome


class DataContractOperator(RequestTask):
    """Check the rows of the named blocks against the table's declaration, or against a contract,
    with Great Expectations.

    :param table: the declaration: its name in ``dpflow.yml``, or its path relative to the DAG file
        (templated). Alone it is a contract in mode ``trusted``.
    :param contract: a contract as a mapping, or the path of its file relative to the DAG file
        (templated), instead of ``table``; with a service its name there. Its mode says what is known of the rows and who pays:
        ``public``, ``trusted``, ``metered`` or ``watch``.
    :param blocks: the blocks to check (templated).
    :param ledger_conn_id: connection of type ``dpflow_ledger`` (see `open_ledger`); it pays where the
        mode is ``metered`` or ``watch``, and the outcome is recorded in its history.
    :param service_conn_id: connection of type ``dpflow``; see `JobTask`, which has ``deferrable``, too.
    :param actions: Great Expectations' actions, which get the outcome.
    :param project: the folder of a project of Great Expectations, relative to the DAG file, whose Data Docs
        sites ``UpdateDataDocsAction`` writes.

    Mode ``trusted``: the one bit, passed or not, is computed from the rows and is not charged. It
    is recorded, and listed among the limits; it goes to whoever sees the run's state. Nothing else
    about the rows is shown. Modes ``metered`` and ``watch`` are paid exactly once: a retry, clear or
    backfill of the same interval costs nothing and finds the same. Returns the outcome, with Great
    Expectations' validation result; a contract that is not kept fails the task without a retry.
    """

    template_fields: Sequence[str] = ("table", "contract", "blocks", "plan_only")
    door = "tasks/contract"
    request_field = "contract"  #: the argument that says what is charged; `dpflow plan` reads it
    ui_color = "#dff5d7"

    def __init__(
        self,
        *,
        table: str = "",
        contract: Mapping[str, Any] | str | None = None,
        blocks: Blocks = NOT_GIVEN,
        ledger_conn_id: str | None = None,
        actions: Sequence[Any] = (),
        project: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.contract = contract
        self.keep_blocks(blocks)
        self.ledger_conn_id = ledger_conn_id
        self.actions = actions
        self.project = project

    def read_contract(self, context: Any) -> Contract:
        """The contract that the arguments describe. Raises `InvalidInput` for none, or two."""
        from dpflow.quality.contract_file import load_contract, parse_contract

        if bool(self.table) == (self.contract is not None):
            raise InvalidInput(
                f"{self.task_id!r} needs either table, for the promises of its declaration, or contract"
            )
        folder = dag_folder(context)
        if self.contract is None:
            return parse_contract({"table": self.table}, folder)
        if isinstance(self.contract, str):
            return load_contract(folder / self.contract)
        return parse_contract(self.contract, folder)

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Check the contract; see the class."""
        if (client := self.find_service()) is not None:
            answer: Any = self.ask_service(context, client)
            return dict(answer)
        from dpflow.quality.contract_run import run_contract
        from dpflow.quality.verdicts import PASSING

        blocks = self.list_blocks()
        contract = self.read_contract(context)
        if contract.mode == "metered":
            self.warn_of_revision(
                contract.name, contract.revision, "a task of another name pays for another draw"
            )
        project = None if self.project is None else dag_folder(context) / self.project
        if project is not None:
            require_lasting(project, "project of Great Expectations")
        outcome = run_contract(
            contract,
            blocks,
            ledger=open_ledger(self.ledger_conn_id, dag_folder(context)),
            principal=dag_principal(self.dag_id),
            identify=lambda plan, n: identify_run(context, blocks, n, f"#{n}" if n else ""),
            actions=self.actions,
            project=project,
        )
        table = contract.load_declaration()
        columns = {one.name: one.column or "" for one in contract.checks}
        columns |= {one.name: one.column for one in contract.drift}
        passing = PASSING | ({"undecided"} if contract.undecided == "pass" else set())
        assertions = (
            (one.name, one.kind, columns.get(one.name, ""), one.summary, one.verdict in passing)
            for one in outcome.checks
        )
        self.note_other(ContractNote(table, tuple(assertions)))
        return self._report(context, outcome, [table])

    def make_body(self, context: Any) -> dict[str, Any]:
        """The contract's name and blocks, for a service."""
        from dpflow.catalogue import is_table_name

        named = isinstance(self.contract, str) and is_table_name(self.contract)
        if not named or self.table or self.actions or self.project:
            raise InvalidInput(
                f"{self.task_id!r} asks a service, which has contracts of its own; name one of them as contract, and leave "
                "table, actions and project out"
            )
        return {"contract": self.contract, "blocks": list(self.list_blocks())}

    def report_answer(
        self, context: Any, answer: Mapping[str, Any], client: RemoteClient
    ) -> dict[str, Any]:
        """As after a check beside the ledger; lineage hears of the cost, and not of the table."""
        from dpflow.quality.contract_run import ContractOutcome

        return self._report(context, ContractOutcome.from_json(answer), [])

    def _report(
        self, context: Any, outcome: ContractOutcome, tables: Sequence[Table]
    ) -> dict[str, Any]:
        name, _ = name_task_run(context, self.list_blocks())
        run = f"{self.dag_id}/{self.task_id}/{name}"
        for receipt in outcome.receipts:
            # A session's says how many blocks it has.
            is_list = isinstance(receipt.get("blocks"), list)
            self.note_release(tables, receipt if is_list else {**receipt, "blocks": None})
            # A session's receipt does not say which run paid: it was paid once for all.
            paid = f"epsilon {receipt['epsilon']}, delta {receipt['delta']} of scope {receipt['scope']}"
            stored = (
                f" were paid before{f', by {run}' if is_list else ''}; nothing was charged, no row was read"
                if receipt["replayed"]
                else " pay for it"
            )
            self.log.info(
                "%s: %s%s; release %s", receipt["name"], paid, stored, receipt["release_id"]
            )
        # What is one bit is in the run's state already.
        if not outcome.passed and outcome.mode != "trusted":
            # Its checks are worth seeing most when they fail.
            push_result(self, context, outcome.to_json())
        outcome.require_passed()
        return outcome.to_json()
