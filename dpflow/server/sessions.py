"""Sessions at a service: opened and charged once for the principal's name and revision, and asked in order.

A session is no gate, whose candidates have a door of their own, and no prediction, which has one, too. Each answer is
stored before it is seen, so whoever sends the questions again gets the stored answers, and the others go on. The
request that opens a session is kept with the charge, so that another process asks the rest of it after a kill: a
session that locks its rows would keep them from everybody else till its own client comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpflow.core.contract.gate import Gate
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow.core.contract.results import finite_json
from dpflow.engine.releases.release_list import describe_session
from dpflow.engine.sessions.query_list import ask_all, check_questions
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.server.job_queue import Planned, Query, Reply


def plan_questions(
    planned: Planned, body: Mapping[str, Any], ledger: Ledger, registry: Registry
) -> Query:
    """The answers to a list of questions, as a job.

    Args:
        planned: the session, with the run identity of its principal.
        body: of the request.

    Raises:
        PlanRefused: the mechanism is no session, or has a door of its own.
        InvalidInput: a question that is a candidate, or a release inside the session, or that cannot be asked of a
            session that is not charged yet.
    """
    plan, run = planned
    name = plan.mechanism.name
    if isinstance(plan.mechanism, Gate):
        raise PlanRefused(
            f"{name} is a gate, which the owner of a service opens for candidates; submit them to a gate of the service"
        )
    if isinstance(plan.mechanism, PredictionMechanism):
        raise PlanRefused(
            f"{name} predicts, and a service opens such sessions itself; ask it for predictions"
        )
    if not isinstance(plan.mechanism, InteractiveMechanism):
        raise PlanRefused(f"{name} is a release, not a session; ask for it as a release")
    questions = body["queries"]
    if any(field in question for question in questions for field in ("name", "release")):
        raise InvalidInput(
            "a question to a session of a service is none of a candidate or release; leave name and release out"
        )
    known = find_session(planned, ledger, registry)
    if is_new := known is None:
        # No file is named in a question, so the folder of paths is nobody's.
        check_questions(plan, ledger, registry, questions, Path("/"))

    def answer() -> Reply:
        session = Session.open(plan, ledger, registry, run_identity=run)
        answers = ask_all(session, questions, Path("/"))
        reply = {
            "session": session.id,
            "answers": answers,
            "left": session.remaining(),
            "about": describe_session(plan, session.id, replayed=not is_new),
        }
        return dict(finite_json(reply))

    is_open = known is None or bool(known.list_unanswered(questions))
    shown = [planned] if is_open or body["plan_only"] else []
    return Query(plan.table.place, shown, answer, always_job=True)


def find_session(planned: Planned, ledger: Ledger, registry: Registry) -> Session | None:
    """The session that was charged for a plan and its run, or None."""
    plan, run = planned
    record = ledger.find(run.key(plan))
    if record is None:
        return None
    return Session(record.release_id, run.principal, plan, ledger, registry)
