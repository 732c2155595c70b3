"""`BudgetCheckOperator`: would the ledger take what this run is about to spend?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpflow.airflow.base_operator import PrivacyOperator
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    Blocks,
    NotGiven,
    dag_folder,
    identify_run,
    map_failures,
    open_ledger,
    read_request,
)
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.engine.planning.precheck import PlanInRun
    from dpflow.engine.releases.plan import Plan
    from dpflow.engine.releases.request import ReleaseRequest
    from dpflow.ledger import Ledger


class BudgetCheckOperator(PrivacyOperator):
    """Fail the run before any row is read if its releases would be refused now.

    :param releases: what the run plans to spend, as for `ReleaseOperator` (templated). Left out,
        what the release and session tasks downstream ask for is added up, mapped ones included. A
        template that renders to nothing fails the task.
    :param blocks: the blocks that ``releases`` read (templated).
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.

    Charges nothing. What this run has paid already counts as paid. It is a forecast: only each
    release's own reservation is authoritative. Returns how many releases are planned, and how many
    of them are still to pay.
    """

    template_fields: Sequence[str] = ("releases", "blocks")
    label_field = "releases"
    ui_color = "#f5ecd7"

    def __init__(
        self,
        *,
        releases: Sequence[Mapping[str, Any] | str] | NotGiven = NOT_GIVEN,
        blocks: Blocks = NOT_GIVEN,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.names_releases = releases is not NOT_GIVEN
        self.releases = releases if self.names_releases else ()
        self.keep_blocks(blocks)
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Check the budget; see the class."""
        outcome = self.check_budget(context)
        self.log.info("planned: %(planned)d releases; to pay: %(to_pay)d; they fit", outcome)
        return outcome

    def check_budget(self, context: Any) -> dict[str, Any]:
        """The numbers of releases ``planned`` and ``to_pay``.

        Raises:
            BudgetExceeded: they do not fit together.
            PlanRefused: nobody can tell before the run what it will spend, or a scope has no grant.
        """
        from dpflow.engine.planning.precheck import check_run

        ledger = open_ledger(self.ledger_conn_id, dag_folder(context))
        return check_run(self._plan_releases(context, ledger), ledger, identify_run(context))

    def _plan_releases(self, context: Any, ledger: Ledger) -> list[PlanInRun]:
        """Plans of the releases that are listed, or of those that the tasks downstream ask for."""
        from dpflow.airflow.dag_jobs import list_downstream
        from dpflow.airflow.release import list_releases
        from dpflow.engine import make_plan
        from dpflow.engine.planning.precheck import PlanInRun
        from dpflow.engine.releases.scope_filters import ScopeFilters
        from dpflow.registry import Registry

        registry, folder, run = Registry.load(), dag_folder(context), identify_run(context)

        def plan_request(request: ReleaseRequest) -> Plan:
            # A search for bounds in the same run is not settled yet: plan with very wide ones.
            return make_plan(request, registry, ledger, run, assume_bounds=True)

        if self.names_releases:
            releases = list_releases(self.releases)
            if not releases:
                raise InvalidInput(
                    "releases is empty in this run; correct the template, or leave releases out to add up what "
                    "the tasks downstream ask for"
                )
            requests = (
                read_request(release, self.requested_blocks(), folder) for release in releases
            )
            return [PlanInRun(plan_request(request)) for request in requests]
        return [
            PlanInRun(
                # The blocks are the run's; those of a release file are for runs outside Airflow.
                plan_request(ask.request.model_copy(update={"blocks": ask.blocks})),
                task_id,
                ask.ordinal,
            )
            for task_id, ask in list_downstream(self, context, ScopeFilters(ledger))
        ]
