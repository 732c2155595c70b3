"""`BudgetCheckOperator`: would the ledger take what this run is about to spend?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

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
from dpflow.errors import InvalidInput, PlanRefused

if TYPE_CHECKING:
    from dpflow.engine.planning.precheck import PlanInRun
    from dpflow.engine.releases.request import ReleaseRequest
    from dpflow.ledger import Ledger


class BudgetCheckOperator(PrivacyOperator):
    """Fail the run before any row is read if its releases would be refused now.

    :param releases: what the run plans to spend, as for `ReleaseOperator` (templated). Left out,
        what the release and session tasks downstream ask for is added up, mapped tasks and mapped task
        groups included. Values of tasks that are upstream of this one are known. A template that renders
        to nothing fails the task.
    :param blocks: the blocks that ``releases`` read (templated).
    :param unknown: what to do if nobody can know now what a task downstream asks for, because that depends on
        a task that is not upstream or has not finished: ``fail``, or ``warn`` and check the rest.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.

    Charges nothing. What this run has paid already counts as paid. It is a forecast: only each
    release's own reservation is authoritative. Returns how many releases are ``planned``, and how many
    of them are still ``to_pay``; with ``unknown="warn"`` also the ids of ``unknown`` tasks, which are in
    neither number.
    """

    template_fields: Sequence[str] = ("releases", "blocks")
    label_field = "releases"
    ui_color = "#f5ecd7"

    def __init__(
        self,
        *,
        releases: Sequence[Mapping[str, Any] | str] | NotGiven = NOT_GIVEN,
        blocks: Blocks = NOT_GIVEN,
        unknown: Literal["fail", "warn"] = "fail",
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if unknown not in ("fail", "warn"):
            raise InvalidInput(f"unknown is {str(unknown)[:40]!r}; write 'fail' or 'warn'")
        self.unknown = unknown
        self.names_releases = releases is not NOT_GIVEN
        self.releases = releases if self.names_releases else ()
        self.keep_blocks(blocks)
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Check the budget; see the class."""
        outcome = self.check_budget(context)
        self.log_outcome(outcome)
        return outcome

    def log_outcome(self, outcome: Mapping[str, Any]) -> None:
        """One line of the log for a check that passed."""
        fits = "these fit" if outcome.get("unknown") else "they fit"
        self.log.info("releases planned: %(planned)d; to pay: %(to_pay)d; " + fits, outcome)

    def check_budget(self, context: Any) -> dict[str, Any]:
        """The numbers of releases ``planned`` and ``to_pay``, and with ``unknown="warn"`` which tasks are
        ``unknown``.

        Raises:
            BudgetExceeded: they do not fit together.
            PlanRefused: nobody can tell before the run what it will spend, or a scope has no grant.
        """
        from dpflow.engine.planning.precheck import check_run

        ledger = open_ledger(self.ledger_conn_id, dag_folder(context))
        plans, unknown = self._plan_releases(context, ledger)
        outcome = check_run(plans, ledger, identify_run(context))
        return outcome | ({"unknown": unknown} if self.unknown == "warn" else {})

    def _plan_releases(self, context: Any, ledger: Ledger) -> tuple[list[PlanInRun], list[str]]:
        """Plans of the releases that are listed, or of those that the tasks downstream ask for, and the ids of
        tasks of which that is unknown.
        """
        from dpflow.airflow.dag_jobs import list_downstream
        from dpflow.airflow.task_context import list_releases
        from dpflow.engine import make_plan
        from dpflow.engine.planning.precheck import PlanInRun
        from dpflow.engine.releases.scope_filters import ScopeFilters
        from dpflow.registry import Registry

        registry, folder = Registry.load(), dag_folder(context)

        def plan_request(
            request: ReleaseRequest, task_id: str | None = None, ordinal: int = 0
        ) -> PlanInRun:
            # A search for bounds in the same run is not settled yet: plan with very wide ones.
            run = identify_run(context, request.blocks)
            plan = make_plan(request, registry, ledger, run, assume_bounds=True)
            return PlanInRun(plan, task_id, ordinal, run.name)

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
            return [plan_request(request) for request in requests], []
        asks, unknown = list_downstream(self, context, ScopeFilters(ledger))
        self._report_unknown(unknown)
        plans = [
            # The blocks are the run's; those of a release file are for runs outside Airflow.
            plan_request(
                ask.request.model_copy(update={"blocks": ask.blocks}), task_id, ask.ordinal
            )
            for task_id, ask in asks
        ]
        return plans, sorted(unknown)

    def _report_unknown(self, unknown: Mapping[str, str]) -> None:
        """Fail for tasks of which nobody knows what they ask for, or warn of each."""
        if unknown and self.unknown == "fail":
            reasons = "; ".join(f"{task_id!r}: {reason}" for task_id, reason in unknown.items())
            raise PlanRefused(
                f"{self.task_id!r} cannot tell what this run will spend: {reasons}. Put it behind the tasks whose "
                "XComs these need, list the releases in releases, or set unknown='warn' to check the other tasks"
            )
        for task_id, reason in unknown.items():
            self.log.warning("not checked: what %r will spend is unknown: %s", task_id, reason)
