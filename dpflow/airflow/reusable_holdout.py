"""`ReusableHoldoutOperator`: the gate between many model candidates and production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    from airflow.sdk.bases.branch import BranchMixIn
except ImportError:  # Airflow 3.1
    from airflow.providers.standard.operators.branch import BranchMixIn

from dpflow.airflow.service_task import JobTask
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    dag_folder,
    map_failures,
    open_ledger,
    push_result,
    read_request,
)
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient
    from dpflow.engine import Plan
    from dpflow.engine.sessions.session import Session


class ReusableHoldoutOperator(JobTask, BranchMixIn):
    """Say for each candidate whether its claimed score is plausible on fresh data; promote those
    that are and improve.

    :param session: the gate as a release mapping or file with mechanism ``gate``, or another
        gate (templated); with a service its name there. The session is opened and charged once, whatever run comes first; its name and
        revision identify it.
    :param candidates: a list of submissions: name, file, label, features, claim, estimator
        (templated; usually an XCom). They are answered in order, in this one task, and each once:
        the answer is stored under the candidate's digest.
    :param promote: registered model, alias and tracking URI in MLflow (templated), and
        ``better_by``, by how much a challenger has to be better; or None. The sessions must fix a
        metric. On a yes the alias moves to the first candidate; later ones move it if the gate says
        that they beat the champion on fresh data. The model version is tagged with the record.
    :param fresh: gates on other data, as mappings or files (templated): when ``session`` is used
        up, the next of them is opened, charged to its own scope, and goes on.
    :param branches: by outcome the task or tasks directly downstream that run then; all others are
        skipped. With ``promote`` the outcomes are "promoted" (some candidate), else "exhausted" (some got no
        answer), "not_better" (one lost to the champion) and "no"; without it "plausible", "exhausted" and "no". An
        outcome that is left out skips all. None: no branching.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    :param service_conn_id: connection of type ``dpflow``; see `JobTask`, which has ``deferrable``, too. With it
        name gates of the service, which have their champions there: leave ``promote`` out. Files of candidates are
        the worker's, and are sent.

    Returns one verdict per candidate: yes, no or exhausted, its outcome, whether it is proven or unproven, the
    corrected value of a no if the session corrects, how many claims and failures are left, the
    keyed id of the data and a commitment. The holdout's noisy threshold and counts appear nowhere.
    """

    template_fields: Sequence[str] = ("session", "candidates", "promote", "fresh", "plan_only")
    request_field = "session"  #: the argument that says what is charged; `dpflow plan` reads it
    costless_fields = ("candidates", "promote")
    inherits_from_skipmixin = True
    ui_color = "#f5d7e4"

    def __init__(
        self,
        *,
        session: Mapping[str, Any] | str,
        candidates: Any,
        promote: Mapping[str, str] | None = None,
        fresh: Sequence[Mapping[str, Any] | str] = (),
        branches: Mapping[str, str | Sequence[str]] | None = None,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # When the DAG is parsed: a misspelt word would skip every task downstream.
        outcomes: tuple[str, ...] = ("promoted", "not_better") if promote else ("plausible",)
        # Whether a gate of a service promotes is known there.
        if isinstance(session, str) and _is_name(session):
            outcomes = ("promoted", "not_better", "plausible")
        if unknown := set(branches or ()) - {*outcomes, "no", "exhausted"}:
            raise ValueError(
                f"branches are for {', '.join(outcomes)}, no and exhausted {'with' if promote else 'without'} promote, "
                f"not for {', '.join(sorted(unknown))}"
            )
        self.session = session
        self.candidates = candidates
        self.promote = promote
        self.fresh = fresh
        self.branches = branches
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> list[dict[str, Any]]:
        """Answer the candidates in order, then branch; see the class."""
        if (client := self.find_service()) is not None:
            return self._submit_rest(context, client, {"verdicts": [], "gate": 0, "opened": {}})
        from dpflow.engine import make_plan
        from dpflow.engine.sessions.holdout_gate import (
            check_candidates,
            judge_all,
            require_gate,
            require_metrics,
        )
        from dpflow.engine.sessions.model_gate import submit_candidate
        from dpflow.engine.sessions.session import Session
        from dpflow.registry import Registry

        registry, ledger = Registry.load(), open_ledger(self.ledger_conn_id, dag_folder(context))
        requests = [
            read_request(session, NOT_GIVEN, dag_folder(context))
            for session in (self.session, *self.fresh)
        ]
        # All are planned before one is charged: a mistake in the last costs nothing.
        plans = [make_plan(request, registry, ledger) for request in requests]
        for plan in plans:
            require_gate(plan)
        promoter = None
        if self.promote is not None:
            require_metrics(plans)
            from dpflow.engine.sessions.model_promotion import Promoter

            promoter = Promoter(**self.promote)

        check_candidates(plans, ledger, self.candidates, promoter)

        def open_gate(plan: Plan) -> Session:
            replayed = self.log_session(plan, ledger)
            session = Session.open(plan, ledger, registry)
            self.note_session(plan, session.id, replayed)
            return session

        # Opened, and charged, only when the gate before it is used up.
        sessions = [partial(open_gate, plan) for plan in plans]
        verdicts = judge_all(sessions, self.candidates, promoter, submit_candidate)
        for scope, blocks in {plan.request.scope: plan.charged_blocks for plan in plans}.items():
            self.log_remaining(ledger, scope, blocks)
        return self._branch(context, verdicts)

    def _branch(self, context: Any, verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        from dpflow.engine.sessions.holdout_gate import join_outcomes

        if self.branches is not None:
            push_result(self, context, verdicts)
            tasks = self.branches.get(join_outcomes(verdicts))
            self.do_branch(context, [tasks] if isinstance(tasks, str) else tasks)
        return verdicts

    def list_plans(self, context: Any) -> list[str]:
        """As the base class; of gates at a service what opening them costs."""
        client = self.find_service()
        if client is None:
            return super().list_plans(context)
        lines = []
        for name in self._list_gates():
            gate = client.show_gate(name)
            cost = f"epsilon {gate['epsilon']}, delta {gate['delta']}"
            paid = (
                "" if gate["left"]["state"] == "not opened" else "; it was paid before and is free"
            )
            lines.append(f"gate {name}: asks its scope for {cost}{paid}")
        return lines

    def go_on(
        self, context: Any, client: RemoteClient, event: Mapping[str, Any], answer: Any
    ) -> Any:
        """As the base class: the candidates that have no verdict yet are next."""
        progress = event["request"]
        if answer is not None:
            progress = self._take_verdict(progress, answer)
        return self._submit_rest(context, client, progress)

    def _list_gates(self) -> list[str]:
        """Names of the gates at a service. Raises `InvalidInput` for what is no name, and for ``promote``."""
        gates = [self.session, *self.fresh]
        named = [gate for gate in gates if isinstance(gate, str) and _is_name(gate)]
        if self.promote is not None or len(named) < len(gates):
            raise InvalidInput(
                f"{self.task_id!r} asks a service, which has gates and their champions; name its gates as session and fresh, "
                "and leave promote out"
            )
        return named

    def _submit_rest(
        self, context: Any, client: RemoteClient, progress: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Submit the candidates in order, one job each.

        Args:
            progress: ``verdicts`` so far; of the next candidate the number of the ``gate`` that it goes to; gates that
                were ``opened``, by their session, with what each cost.
        """
        from dpflow.client.remote import encode_candidate
        from dpflow.engine.sessions.query_list import load_upload, resolve_paths

        gates, folder = self._list_gates(), dag_folder(context)
        while len(progress["verdicts"]) < len(self.candidates):
            candidate = self.candidates[len(progress["verdicts"])]
            upload = load_upload(resolve_paths(candidate, folder))
            door, body = encode_candidate(gates[progress["gate"]], upload)
            progress = self._take_verdict(
                progress, self.settle_or_defer(client, door, body, progress)
            )
        for about in progress["opened"].values():
            self.note_opened(about)
            self.log_remaining(client, about["scope"], about["blocks"])
        return self._branch(context, list(progress["verdicts"]))

    def _take_verdict(
        self, progress: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The progress after an answer. A candidate that a gate had none for goes to the next one."""
        verdict, verdicts = answer["verdict"], progress["verdicts"]
        opened = {answer["session"]: answer["about"]} | progress["opened"]
        if verdict["verdict"] == "exhausted" and progress["gate"] < len(self.fresh):
            return {"verdicts": verdicts, "gate": progress["gate"] + 1, "opened": opened}
        self.log.info(
            "candidate %d of %d, %s: %s",
            len(verdicts) + 1,
            len(self.candidates),
            verdict["name"],
            verdict["outcome"],
        )
        return {"verdicts": [*verdicts, verdict], "gate": 0, "opened": opened}


def _is_name(gate: str) -> bool:
    """Whether a gate is given by its name at a service."""
    from dpflow.catalogue import is_table_name

    return is_table_name(gate)
