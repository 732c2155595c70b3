"""One candidate through the reusable holdout: load, ask, and offer it for promotion on a yes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import ValidationError

from dpflow.core.declaration import problems
from dpflow.engine.candidate import Candidate, Submission, load_candidate
from dpflow.engine.session import Session
from dpflow.errors import InvalidDeclaration, SessionClosed


class Promotes(Protocol):
    """Whatever moves a model registry's alias."""

    def offer(self, candidate: Candidate, session_id: str, guarantee: str) -> bool:
        """Promote an accepted candidate if it improves; say whether it is the promoted one now."""


def judge(session: Session, submission: Mapping[str, Any], promoter: Promotes | None = None) -> dict[str, Any]:
    """The gate's verdict on one submission.

    Returns:
        name, claim, candidate digest, verdict ("yes", "no" or "exhausted"), guarantee, and whether it was promoted.
    """
    fields = {name: submission[name] for name in Submission.model_fields if name in submission}
    try:
        candidate = load_candidate(Submission.model_validate(fields))
    except ValidationError as error:
        raise InvalidDeclaration(f"candidate {submission.get('name')!r}: {problems(error)}") from None
    given = candidate.submission
    try:
        answer = session.ask(candidate.query(), candidate)
    except SessionClosed:
        answer = {"verdict": "exhausted", "guarantee": "none"}
    promoted = False
    if answer["verdict"] == "yes" and promoter is not None:
        promoted = promoter.offer(candidate, session.id, answer["guarantee"])
    about = {"name": given.name, "claim": str(given.claim), "candidate": candidate.digest, "promoted": promoted}
    return about | answer
