"""Run identities: what makes a retry free, and a new day a new, paid release."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.ledger import ReleaseKey, Slot, make_slot


def current_principal() -> str:
    """Who spends: DPFLOW_PRINCIPAL, else the operating system's user."""
    # A container may run under a user id that has no name.
    try:
        return os.environ.get("DPFLOW_PRINCIPAL") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


@dataclass(frozen=True)
class RunIdentity:
    """Identity of one run of a release; part of its idempotency key.

    Attributes:
        dag_id, task_id: empty outside Airflow; of a service's scheduler PRINCIPAL/DAG.
        name: the logical date, data interval, partition key or run id; outside Airflow the
        release's name and revision.
        slot: one task instance within one run, so that a retry that asks for something else is
        noticed.
        ordinal: number among equal plans of one run, when a task makes the same release twice.
        sealed_request: a service's request, encrypted: by it another process finishes what was charged.
        question: the text that it answers, such as a SQL query, for lists of releases; empty of a request alone.
        types: what the source's catalogue calls the types of grouping expressions, for who reads keys later.
    """

    dag_id: str
    task_id: str
    name: str
    slot: Slot
    principal: str
    ordinal: int = 0
    sealed_request: str = field(default="", compare=False, repr=False)
    question: str = field(default="", compare=False, repr=False)
    types: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_request(cls, request: ReleaseRequest, principal: str | None = None) -> RunIdentity:
        """Outside Airflow, and for sessions: the same name and revision is the same run.

        Args:
            principal: who asks; by default `current_principal`.
        """
        name = f"{request.name}#{request.revision}"
        return cls("", "", name, make_slot(request.scope, name), principal or current_principal())

    @classmethod
    def of_task(
        cls,
        dag_id: str,
        task_id: str,
        name: str,
        principal: str,
        *,
        map_index: int = -1,
        ordinal: int = 0,
        part: str = "",
    ) -> RunIdentity:
        """A task instance of a DAG's run. The slot holds DAG, name, task and map index, to notice that the
        task asks for something else; another run of the same name is the same to it.

        Args:
            name: what makes the run the same run again.
            part: which of several releases of one task instance; each has a slot of its own.
        """
        slot = make_slot(dag_id, name, task_id, instance=f"{map_index}{part}")
        return cls(dag_id, task_id, name, slot, principal, ordinal)

    def key(self, plan: Plan) -> ReleaseKey:
        """The idempotency key of a plan in this run."""
        return ReleaseKey(
            plan.request.scope,
            self.dag_id,
            self.task_id,
            self.name,
            plan.digest,
            self.ordinal,
        )
