"""`BudgetBranchOperator`: go another way when the budget cannot pay for this run."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.utils.skipmixin import SkipMixin

from dpflow.airflow.budget_check import BudgetCheckOperator
from dpflow.airflow.task_context import map_failures, push_result


class BudgetBranchOperator(BudgetCheckOperator, SkipMixin):
    """Let the tasks downstream run if their releases fit the budget; skip them if not.

    :param otherwise: the task id, directly downstream, that runs only if the budget cannot pay.

    The other parameters are those of `BudgetCheckOperator`, and so is what is counted. Returns
    ``fits`` and the ``reason`` why not; ``fits`` is None if the known releases fit and tasks are ``unknown``.
    """

    inherits_from_skipmixin = True  # what it skips stays skipped when it is mapped, or cleared

    def __init__(self, *, otherwise: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.otherwise = otherwise

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Check the budget, then skip what is not to run; see the class."""
        from dpflow.errors import BudgetExceeded

        try:
            checked = self.check_budget(context)
            outcome = {"fits": None if checked.get("unknown") else True, **checked, "reason": ""}
        # Only this refusal is an answer; a plan that cannot be made fails the task.
        except BudgetExceeded as refusal:
            outcome = {"fits": False, "reason": str(refusal)}
        self.log.info("%s", outcome["reason"] or "the known releases downstream fit the budget")
        # Before the skip, which ends the task by an exception.
        push_result(self, context, outcome)
        if outcome["fits"] is False:
            self.skip_all_except(context["ti"], [self.otherwise] if self.otherwise else [])
        elif self.otherwise:
            others = [task for task in self.downstream_task_ids if task != self.otherwise]
            self.skip_all_except(context["ti"], others)
        return outcome
