"""What a submission goes through: load, ask, and on a yes challenge the champion.

A claim alone promotes nothing: a candidate replaces the champion only if the same session says that
it is better, by the metric that the session fixes, on the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from pydantic import ValidationError

from dpflow.core.contract.strict_models import describe_problems
from dpflow.engine.releases.plan import Plan
from dpflow.engine.sessions.candidate import Candidate, Submission, load_candidate
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidDeclaration, InvalidInput, PlanRefused, SessionClosed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Champion:
    """The promoted model version, as a model registry knows it.

    Attributes:
        version: its version.
        digest: of the candidate that it was.
        submission: the candidate as JSON, "" if the registry does not have it.
    """

    version: str
    digest: str
    submission: str


class Promotes(Protocol):
    """Whatever moves a model registry's alias."""

    #: by how much a challenger has to be better, in units of the metric
    better_by: Fraction

    def find_champion(self) -> Champion | None:
        """The promoted version, or None."""

    def was_promoted(self, digest: str, session: str) -> bool:
        """Whether the alias once pointed at this candidate, on a verdict of this session."""

    def promote(self, candidate: Candidate, record: Mapping[str, str]) -> None:
        """Point the alias at a candidate, whose version is made if it is missing.

        Args:
            record: what is kept beside it: session, metric, guarantee, snapshot, and the commitment
            to the verdict.
        """


def require_metrics(plans: Sequence[Plan]) -> None:
    """Raises `PlanRefused` unless every session fixes a metric, before one is charged."""
    for plan in plans:
        if getattr(plan.params, "metric", None) is None:
            raise PlanRefused(
                f"{plan.request.name} fixes no metric, so it says nothing about which of two candidates is better; give it "
                f"metric: accuracy, or another one, or promote nothing"
            )


def judge(
    session: Session, submission: Mapping[str, Any], promoter: Promotes | None = None
) -> dict[str, Any]:
    """The gate's verdict on one submission.

    Returns: name, claim, candidate digest, verdict ("yes", "no" or "exhausted"), guarantee,
        session, and whether it was promoted and why or why not; a verdict that was given also has
        the snapshot it was given on and a commitment to all of it.

    Raises `PlanRefused` where something shall be promoted and the session fixes no metric: claims
    about different numbers say nothing about each other.
    """
    if promoter is not None:
        require_metrics([session.plan])
    fields = {name: submission[name] for name in Submission.model_fields if name in submission}
    try:
        parsed = session.canonical_query(Submission.model_validate(session.fill_metric(fields)))
    except ValidationError as error:
        raise InvalidDeclaration(
            f"candidate {submission.get('name')!r}: {describe_problems(error)}"
        ) from None
    candidate = _load_public(session, parsed)
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
    promoted: dict[str, Any] = {"promoted": False}
    if answer["verdict"] == "yes" and promoter is not None:
        proof = {name: str(answer[name]) for name in ("guarantee", "snapshot") if name in answer}
        promoted = _promote(session, candidate, promoter, record | proof)
    return {**about, **promoted, **record, **answer}


def _load_public(session: Session, submission: Submission) -> Candidate:
    # Its digest is published with the verdict.
    if submission.predictions is not None:
        session.require_public(submission.predictions.database, "predictions")
    return load_candidate(submission)


def _promote(
    session: Session, candidate: Candidate, promoter: Promotes, record: Mapping[str, str]
) -> dict[str, Any]:
    """Promote an accepted candidate if it is the first, or if the gate says that it beats the
    champion on fresh data; say which.
    """
    standing = promoter.find_champion()
    if standing is not None and standing.digest == candidate.digest:
        return {"promoted": True}
    # A retry repeats no question: it had its turn.
    if promoter.was_promoted(candidate.digest, session.id):
        return {"promoted": False, "promotion": "it was promoted, and then replaced"}
    if standing is None:
        promoter.promote(candidate, record)
        return {"promoted": True, "promotion": "first"}
    try:
        champion = _load_public(session, Submission.model_validate_json(standing.submission))
        found = champion.digest == standing.digest
    except (ValidationError, InvalidInput):
        found = False
    if not found:
        why = f"the champion, version {standing.version}, is not where it was, so nothing compares the two"
        return {"promoted": False, "promotion": why}
    try:
        answer = session.challenge(candidate, champion, promoter.better_by)
    except SessionClosed:
        return {"promoted": False, "promotion": "exhausted"}
    if answer["verdict"] != "yes":
        return {"promoted": False, "promotion": f"not better than version {standing.version}"}
    if answer["champion"] != standing.digest:
        why = "it beat another champion than the one of now; submit it to another session"
        return {"promoted": False, "promotion": why}
    # Comparing took long: meanwhile another team may have promoted a model that this one never met.
    if promoter.find_champion() != standing:
        why = "another champion was promoted meanwhile; submit it to another session"
        return {"promoted": False, "promotion": why}
    # The version's guarantee is that of what moved the alias.
    proof = {name: str(answer[name]) for name in ("guarantee", "snapshot") if name in answer}
    compared = session.commitment({"candidate": candidate.digest, **answer})
    promoter.promote(candidate, dict(record) | proof | {"comparison": compared})
    return {"promoted": True, "promotion": f"better than version {standing.version}"}


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
