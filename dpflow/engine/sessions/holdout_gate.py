"""What a submission goes through: load, ask, and offer it for promotion on a yes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from pydantic import ValidationError

from dpflow.core.contract.declaration import describe_problems
from dpflow.engine.sessions.candidate import Candidate, Submission, load_candidate
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidDeclaration, SessionClosed

log = logging.getLogger(__name__)


class Promotes(Protocol):
    """Whatever moves a model registry's alias."""

    def offer(self, candidate: Candidate, record: Mapping[str, str]) -> bool:
        """Promote an accepted candidate if it improves; say whether it is the promoted one now.

        Args:
            record: what is kept beside it: session, guarantee, snapshot, and the commitment to the
            verdict.
        """


def judge(
    session: Session, submission: Mapping[str, Any], promoter: Promotes | None = None
) -> dict[str, Any]:
    """The gate's verdict on one submission.

    Returns: name, claim, candidate digest, verdict ("yes", "no" or "exhausted"), guarantee,
        session, and whether it was promoted; a verdict that was given also has the snapshot it was
        given on and a commitment to all of it.
    """
    fields = {name: submission[name] for name in Submission.model_fields if name in submission}
    try:
        parsed = session.canonical_query(Submission.model_validate(fields))
    except ValidationError as error:
        raise InvalidDeclaration(
            f"candidate {submission.get('name')!r}: {describe_problems(error)}"
        ) from None
    # Its digest is published with the verdict.
    if parsed.predictions is not None:
        session.require_public(parsed.predictions.database, "predictions")
    candidate = load_candidate(parsed)
    # Said with every verdict, also with one that was never given.
    about: dict[str, Any] = {
        "name": parsed.name,
        "claim": str(parsed.claim),
        "candidate": candidate.digest,
    }
    try:
        answer = session.ask(candidate.query(), candidate)
    except SessionClosed:
        return {
            **about,
            "promoted": False,
            "session": session.id,
            "verdict": "exhausted",
            "guarantee": "none",
        }
    record = {"session": session.id, "commitment": session.commitment({**about, **answer})}
    promoted = False
    if answer["verdict"] == "yes" and promoter is not None:
        proof = {name: str(answer[name]) for name in ("guarantee", "snapshot") if name in answer}
        promoted = promoter.offer(candidate, record | proof)
    return {**about, "promoted": promoted, **record, **answer}


def judge_all(
    sessions: Sequence[Callable[[], Session]],
    submissions: Sequence[Mapping[str, Any]],
    promoter: Promotes | None = None,
) -> list[dict[str, Any]]:
    """Verdicts in order. A submission that one session has no answer left for goes to the next,
    which is then opened.

    Sessions are asked from the first one, every time: what they answered before they repeat for
    nothing, so a retry goes the same way.
    """
    # Also for no submission: what is declared is charged, as plans and checks count it.
    open_sessions = [sessions[0]()]
    verdicts: list[dict[str, Any]] = []
    for submission in submissions:
        for number, opening in enumerate(sessions):
            if number == len(open_sessions):
                open_sessions.append(opening())
            verdict = judge(open_sessions[number], submission, promoter)
            if verdict["verdict"] != "exhausted":
                break
        log.info(
            "candidate %d of %d, %s, claims %.4f: %s%s",
            len(verdicts) + 1,
            len(submissions),
            verdict["name"],
            Fraction(verdict["claim"]),
            verdict["verdict"],
            ", promoted" if verdict["promoted"] else "",
        )
        verdicts.append(verdict)
    return verdicts


def join_verdicts(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """What many verdicts say together: "yes" if one is, else "exhausted" if one is, else "no"."""
    words = {verdict["verdict"] for verdict in verdicts}
    return next((word for word in ("yes", "exhausted") if word in words), "no")
