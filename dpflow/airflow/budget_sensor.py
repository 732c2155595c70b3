"""`BudgetSensor`: wait until the budget could pay for this run."""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.configuration import conf
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseSensorOperator

from dpflow.airflow.budget_check import BudgetCheckOperator
from dpflow.airflow.task_context import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    map_failures,
)


class BudgetSensor(BudgetCheckOperator, BaseSensorOperator):
    """Wait until the ledger could pay for what this run is about to spend: an owner has raised a grant,
    a block is new, or a quota's new period has begun.

    :param deferrable: wait in the triggerer, without a worker; Airflow's
        ``[operators] default_deferrable`` if left out.
    :param poke_interval: seconds, or a timedelta, between two questions to the ledger.

    ``releases``, ``blocks``, ``unknown`` and ``ledger_conn_id`` are those of `BudgetCheckOperator`, and so is what is
    counted; ``timeout``, ``mode`` and ``soft_fail`` are Airflow's.
    It reserves nothing: others may be faster, and a release task downstream may still be refused. A
    scope without a grant, or one that was granted for another table, ends the task at once. Scopes and
    their blocks never refill by themselves, only quotas that were given a period: without an owner's grant
    any other run waits until its timeout.
    """

    ui_color = "#f5ecd7"

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: dt.timedelta | float = 300,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.deferrable = deferrable

    def execute(self, context: Any) -> Any:
        """Wait in a worker, or defer; see the class."""
        if self.deferrable:
            return self.check_or_defer(context)
        return BaseSensorOperator.execute(self, context)

    @map_failures
    def poke(self, context: Any) -> bool:
        """Whether all of it fits now."""
        from dpflow.errors import BudgetExceeded

        try:
            self.log_outcome(self.check_budget(context))
        # Any other refusal is a mistake, which waiting does not mend.
        except BudgetExceeded as refusal:
            self.log.info("not yet: %s", refusal)
            return False
        return True

    def check_or_defer(self, context: Any, event: Any = None, started: str | None = None) -> None:
        """Look, and go to sleep if it does not fit.

        The trigger is Airflow's clock. So the triggerer needs neither ledger nor anchor nor declarations,
        which a trigger that looks by itself would, and each look is a task's, under its own login.

        Args:
            started: when the first look was, as an ISO time; the timeout counts from then.
        """
        now = dt.datetime.now(dt.UTC)
        first = dt.datetime.fromisoformat(started) if started else now
        try:
            fits = self.poke(context)
        except AirflowFailException as error:
            # As Airflow's own loop does for sensors that wait in a worker.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from None
            raise
        if fits:
            return
        rest = self.timeout - (now - first).total_seconds()
        if rest <= 0:
            text = f"the budget could not pay within {self.timeout:.0f} seconds; raise the grant, or release less"
            raise (
                AirflowSkipException if self.soft_fail or self.never_fail else AirflowSensorTimeout
            )(text)
        self.defer(
            trigger=TimeDeltaTrigger(dt.timedelta(seconds=min(self.poke_interval, rest))),
            method_name="check_or_defer",
            kwargs={"started": first.isoformat()},
        )
