"""`LedgerOperator`: ask the ledger before a run spends, take another way when it cannot pay,
report, or grant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.standard.utils.skipmixin import SkipMixin
from airflow.sdk import BaseOperator

from dpflow.airflow.connection import LedgerHook
from dpflow.airflow.release import dag_folder, requested
from dpflow.airflow.task_context import failures, keep, occasion, principal

if TYPE_CHECKING:
    from dpflow.engine.planning.precheck import Planned
    from dpflow.engine.releases.plan import Plan
    from dpflow.engine.releases.request import Request
    from dpflow.ledger import Ledger

Action = Literal["check", "gate", "report", "grant"]


class LedgerOperator(BaseOperator, SkipMixin):
    """One question or one act of the ledger; nothing is charged.

    ``check`` fails the run before any row is read if its releases would be refused now. ``gate``
    decides instead of failing: if they fit, the tasks downstream go on; if not, they are skipped,
    except ``otherwise``. For both, what this run has paid already counts as paid, and it is a
    forecast: only each release's own reservation is authoritative. ``report`` returns what remains
    in ``scope``. ``grant`` gives a scope a budget, and does nothing if it has just this one.

    :param action: check, gate, report or grant.
    :param releases: what the run plans to spend, as for `ReleaseOperator` (templated). Left out,
        check and gate add up what the release and holdout tasks downstream ask for, mapped ones
        included.
    :param blocks: the blocks that ``releases`` read (templated).
    :param otherwise: for gate: the task id, directly downstream, that runs only if the scope cannot
    pay.
    :param scope: for report and grant (templated).
    :param epsilon: for grant (templated), as ``delta``; exact amounts such as ``"0.5"``.
    :param delta: for grant (templated).
    :param filter: for grant: basic, renyi or hybrid.
    :param tail_share: for grant: the part of delta that converts Renyi divergence.
    :param table: for grant: path of the declaration whose unit the budget protects, relative to the
    DAG file (templated).
    :param ledger_conn_id: connection of type ``dpflow_ledger``. The role behind it must be an
    owner's to grant.
    """

    template_fields: Sequence[str] = ("releases", "blocks", "scope", "epsilon", "delta", "table")
    ui_color = "#f5ecd7"
    inherits_from_skipmixin = True  # what a gate skips stays skipped when it is mapped, or cleared

    def __init__(
        self,
        *,
        action: Action = "check",
        releases: Sequence[Mapping[str, Any] | str] = (),
        blocks: Sequence[str] | str | None = None,
        otherwise: str | None = None,
        scope: str = "",
        epsilon: str = "",
        delta: str = "0",
        filter: Literal["basic", "renyi", "hybrid"] = "basic",
        tail_share: str | None = None,
        table: str | None = None,
        ledger_conn_id: str = "dpflow_ledger",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.action = action
        self.releases = releases
        self.blocks = blocks
        self.otherwise = otherwise
        self.scope = scope
        self.epsilon = epsilon
        self.delta = delta
        self.filter = filter
        self.tail_share = tail_share
        self.table = table
        self.ledger_conn_id = ledger_conn_id

    def execute(self, context: Any) -> dict[str, Any]:
        """Do what ``action`` says; see the class."""
        from dpflow.errors import InvalidInput

        with failures():
            acts = {
                "check": self._check,
                "gate": self._gate,
                "report": self._report,
                "grant": self._grant,
            }
            if self.action not in acts:
                raise InvalidInput(
                    f"LedgerOperator has no action {self.action!r}; use check, gate, report or grant"
                )
            ledger = LedgerHook(self.ledger_conn_id).get_conn()
            found = acts[self.action](context, ledger)
        if self.action == "gate":
            keep(self, context, found)
            self._take_way(context, found["open"])
        return found

    def _report(self, context: Any, ledger: Ledger) -> dict[str, Any]:
        return ledger.remaining(self.scope).to_json()

    def _check(self, context: Any, ledger: Ledger) -> dict[str, Any]:
        from dpflow.engine.planning.precheck import check_run

        return check_run(self._planned(context, ledger), ledger, occasion(context))

    def _gate(self, context: Any, ledger: Ledger) -> dict[str, Any]:
        from dpflow.errors import BudgetExceeded

        try:
            return {"open": True, **self._check(context, ledger), "reason": ""}
        except BudgetExceeded as refusal:
            return {"open": False, "reason": str(refusal)}

    def _take_way(self, context: Any, is_open: bool) -> None:
        """Skip what is not to run; raises Airflow's own signal for it."""
        if is_open and self.otherwise:
            follow = [task for task in self.downstream_task_ids if task != self.otherwise]
        elif is_open:
            return
        else:
            follow = [self.otherwise] if self.otherwise else []
        self.skip_all_except(context["ti"], follow)

    def _grant(self, context: Any, ledger: Ledger) -> dict[str, Any]:
        from dpflow.core.accounting import amounts
        from dpflow.core.accounting.privacy_filters import make_filter
        from dpflow.core.contract.declaration import load_table

        declared = load_table(dag_folder(context) / Path(self.table)) if self.table else None
        promise = amounts.epsilon(self.epsilon), amounts.delta(self.delta)
        wanted = make_filter(
            self.filter, *promise, tail_share=amounts.exact("tail_share", self.tail_share or 1)
        )
        protects = declared.protected if declared else ""
        for known in ledger.scopes():
            same = (known.epsilon, known.filter.delta, known.filter.name) == (*promise, self.filter)
            divided = self.tail_share is None or known.filter.tail_delta == wanted.tail_delta
            if known.scope == self.scope and same and divided and known.protects == protects:
                return ledger.remaining(self.scope).to_json()
        ledger.grant(
            self.scope,
            *promise,
            filter=self.filter,
            tail_share=self.tail_share,
            table=declared,
            principal=principal(self.dag_id),
        )
        return ledger.remaining(self.scope).to_json()

    def _planned(self, context: Any, ledger: Ledger) -> list[Planned]:
        """What is named, or what the tasks downstream ask for."""
        from dpflow.airflow.dag_jobs import downstream_asks
        from dpflow.engine import make_plan
        from dpflow.engine.planning.precheck import Planned
        from dpflow.engine.releases.released_bounds import supposed
        from dpflow.registry import Registry

        registry, folder, when = Registry.load(), dag_folder(context), occasion(context)

        def plan(request: Request) -> Plan:
            return make_plan(request, registry, supposed(request, ledger, when))

        if self.releases:
            named = (requested(release, self.blocks, folder) for release in self.releases)
            return [Planned(plan(request)) for request in named]
        return [
            Planned(
                plan(ask.request.model_copy(update={"blocks": ask.blocks})), task_id, ask.ordinal
            )
            for task_id, ask in downstream_asks(self, context)
        ]
