"""What a submission goes through: load, ask, and on a yes challenge the champion.

A claim alone promotes nothing: a candidate replaces the champion only if the same session says that
it is better, by the metric that the session fixes, on the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from dpflow.core.contract.gate import OUTCOMES, Gate
from dpflow.core.contract.strict_models import describe_problems
from dpflow.engine.releases.plan import Plan
from dpflow.engine.sessions.candidate import Candidate, Submission, load_model
from dpflow.engine.sessions.scored_fields import require_one_label
from dpflow.engine.sessions.session import Session
from dpflow.errors import (
    InvalidDeclaration,
    InvalidInput,
    PlanRefused,
    SessionClosed,
    TableUnreadable,
)
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import read_together

log = logging.getLogger(__name__)


IS_CHAMPION = "it is the champion"  #: why nothing is asked about a candidate


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

    @property
    def tracking_uri(self) -> str | None:
        """Where models of candidates are that do not say so; None for MLflow's own default."""

    def find_champion(self) -> Champion | None:
        """The promoted version, or None."""

    def find_missing(self) -> str:
        """What would say which one is promoted and is missing, and what to do about it; "" where it is there."""

    def was_promoted(self, digest: str, session: str) -> bool:
        """Whether the alias once pointed at this candidate, on a verdict of this session."""

    def promote(
        self, candidate: Candidate, record: Mapping[str, str], seen: Champion | None
    ) -> bool:
        """Point the alias at a candidate, whose version is made if it is missing. False, and nothing is moved, where
        another champion stands than the one that was seen.

        Args:
            record: what is kept beside it: session, guarantee, snapshot, the commitment to the
            verdict, and the version that it replaced.
        """

    def find_replaced(self) -> Champion | None:
        """The version that the promoted one replaced, or None."""

    def roll_back(self, former: Champion, record: Mapping[str, str], seen: Champion | None) -> bool:
        """Point the alias at a version again that was promoted before. False as for `promote`.

        Args:
            record: the session whose answer spoke against the present one.
        """


def require_gate(plan: Plan) -> Gate[Any]:
    """The gate that a plan opens. Raises `PlanRefused` for another mechanism."""
    if not isinstance(plan.mechanism, Gate):
        installed = Registry.load().mechanisms.items()
        gates = " or ".join(name for name, other in installed if isinstance(other, Gate))
        raise PlanRefused(
            f"{plan.request.name} asks for {plan.mechanism.name}, and a gate is {gates}; other sessions are opened by dpflow ask"
        )
    return plan.mechanism


def require_metrics(plans: Sequence[Plan]) -> None:
    """Raises `PlanRefused` unless every session is a gate that fixes a metric, before one is charged."""
    for plan in plans:
        if require_gate(plan).find_metric(plan.params) is None:
            raise PlanRefused(
                f"{plan.request.name} fixes no metric, so it says nothing about which of two candidates is better; give it "
                f"metric: accuracy, or another one, or promote nothing"
            )


def judge(
    session: Session, submission: Mapping[str, Any], promoter: Promotes | None = None
) -> dict[str, Any]:
    """The gate's verdict on one submission.

    Returns: name, claim, candidate digest, verdict ("yes", "no", "none" or "exhausted"), guarantee,
        session, and ``outcome``, one of `OUTCOMES`, with the reason in ``promotion`` where something
        could be promoted; a verdict that was given also has the snapshot it was given on and a
        commitment to all of it.

    Raises `PlanRefused` where something shall be promoted and the session fixes no metric: claims
    about different numbers say nothing about each other.
    """
    if promoter is not None:
        require_metrics([session.plan])
        _require_kept(session, promoter)
    parsed = parse_submission(session, submission, promoter)
    _require_one_label([parsed], promoter)
    candidate = _load_public(session, parsed)
    # Said with every verdict, also with one that was never given.
    about: dict[str, Any] = {"name": parsed.name, "candidate": candidate.digest}
    if asks_for_champions(session.plan):
        return {**about, "session": session.id, **_judge_challenger(session, candidate, promoter)}
    about["claim"] = str(parsed.claim)
    try:
        answer = session.ask(candidate.query(), candidate)
    except SessionClosed:
        ended = {"outcome": "exhausted", "verdict": "exhausted", "guarantee": "none"}
        return {**about, "session": session.id, **ended}
    record = {"session": session.id, "commitment": session.commitment({**about, **answer})}
    outcomes = {"yes": "plausible", "exhausted": "exhausted"}
    action = {"outcome": outcomes.get(answer["verdict"], "no")}
    if answer["verdict"] == "yes" and promoter is not None:
        proof = {name: str(answer[name]) for name in ("guarantee", "snapshot") if name in answer}
        action = _promote(session, candidate, promoter, record | proof)
    return {**about, **action, **record, **answer}


def _require_kept(session: Session, promoter: Promotes) -> None:
    """Raises `InvalidInput` where a session compared candidates with a champion, and nothing says any more that there was
    one: the next one would be called the first.
    """
    missing = promoter.find_missing()
    if missing and session.has_compared():
        raise InvalidInput(
            f"{session.plan.request.name} compared candidates with a champion, and {missing}"
        )


def check_candidate(
    unopened: Session, submission: Mapping[str, Any], promoter: Promotes | None
) -> None:
    """Check all that a verdict checks before it reads rows, so that no gate is charged for a candidate that none can
    judge. Raises as `judge`.
    """
    candidate = _load_public(unopened, parse_submission(unopened, submission, promoter))
    if asks_for_champions(unopened.plan):
        unopened.require_scorable(candidate)
    else:
        unopened.check_question(candidate.query(), candidate)


def parse_submission(
    session: Session, submission: Mapping[str, Any], promoter: Promotes | None = None
) -> Submission:
    """A submission to a session, with its metric. Raises `InvalidDeclaration`."""
    fields = _fill_tracking(session.fill_metric(submission), promoter)
    try:
        parsed = session.canonical_query(Submission.model_validate(fields))
    except ValidationError as error:
        raise InvalidDeclaration(
            f"candidate {submission.get('name')!r}: {describe_problems(error)}"
        ) from None
    if asks_for_champions(session.plan) != (parsed.claim is None):
        wrong = "claims a score" if parsed.claim is not None else "claims no score"
        what = "whether it is better than the champion; leave claim out"
        if parsed.claim is None:
            what = "whether its claim is plausible; add the claim"
        raise InvalidDeclaration(
            f"candidate {parsed.name!r} {wrong}, and {session.plan.request.name} says {what}"
        )
    return parsed


def check_submissions(
    plans: Sequence[Plan],
    ledger: Ledger,
    submissions: Sequence[Mapping[str, Any]],
    promoter: Promotes | None = None,
) -> None:
    """Check candidates before a gate is charged, without their files. Raises `InvalidDeclaration` or
    `PlanRefused` for fields that a gate of these plans does not know or use, predictions in a private file, and more than
    one label.
    """
    listed: list[Submission] = []
    for plan in plans:
        unopened = Session("", "", plan, ledger, Registry.load())
        for submission in submissions:
            parsed = parse_submission(unopened, submission, promoter)
            listed.append(parsed)
            unopened.require_used(parsed)
            if parsed.predictions is not None:
                _require_public(unopened, parsed.predictions.database)
    _require_one_label(listed, promoter)


def _require_one_label(submissions: Sequence[Submission], promoter: Promotes | None) -> None:
    """Raises `PlanRefused` for candidates of another label than the champion's, or of several."""
    if promoter is not None:
        # Also what a registry refuses, it refuses before a gate is charged.
        standing = promoter.find_champion()
        champion = None if standing is None else _read_submission(standing)
        require_one_label([*([champion] if champion else []), *submissions])


def check_candidates(
    plans: Sequence[Plan],
    ledger: Ledger,
    submissions: Sequence[Mapping[str, Any]],
    promoter: Promotes | None = None,
) -> None:
    """Check all that verdicts check before they read rows, with the files of candidates, so that no gate is charged
    for a list with one that it cannot judge. Of gates that were charged before only fields are checked. Raises as `judge`.
    """
    check_submissions(plans, ledger, submissions, promoter)
    registry = Registry.load()
    # The gates are asked about one candidate in turn, which is read once: its file and its rival's.
    load = lru_cache(maxsize=2)(load_model)
    unopened = [
        Session("", "", plan, ledger, registry, load)
        for plan in plans
        if Session.find(plan, ledger, registry) is None
    ]
    if not unopened:
        return
    with read_tables_together(unopened[0], submissions):
        for submission in submissions:
            for session in unopened:
                check_candidate(session, submission, promoter)


def _fill_tracking(fields: Mapping[str, Any], promoter: Promotes | None) -> Mapping[str, Any]:
    """A submission's fields; a model that says no other place is where the champion is."""
    if promoter is None or fields.get("model") is None or fields.get("tracking_uri"):
        return fields
    return {**fields, "tracking_uri": promoter.tracking_uri}


def _load_public(session: Session, submission: Submission) -> Candidate:
    # Its digest is published with the verdict.
    if submission.predictions is not None:
        _require_public(session, submission.predictions.database)
    return session.load_candidate(submission)


def _require_public(session: Session, database: Path) -> None:
    """Raises `PlanRefused` for a private file, also where it is a database's write-ahead log."""
    for file in (database, database.with_name(database.name + ".wal")):
        session.require_public(file, "predictions")


def _promote(
    session: Session, candidate: Candidate, promoter: Promotes, record: Mapping[str, str]
) -> dict[str, str]:
    """Promote an accepted candidate if it is the first, or if the gate says that it beats the
    champion on fresh data; say which.
    """
    standing = promoter.find_champion()
    if turn := _find_turn(session, candidate, promoter, standing):
        return turn
    if standing is None:
        _require_kept(session, promoter)
        if promoter.promote(candidate, record, None):
            return _act("promoted", "first")
        # Another one came first: this one is compared with it.
        return _promote(session, candidate, promoter, record)
    return _challenge_champion(session, candidate, promoter, standing, record)[1]


def _find_turn(
    session: Session, candidate: Candidate, promoter: Promotes, standing: Champion | None
) -> dict[str, str]:
    """What came of a candidate that is champion, or was promoted by this session; empty for others. A retry, also one beside
    its first try, repeats no question.
    """
    if standing is not None and standing.digest == candidate.digest:
        return _act("promoted", IS_CHAMPION)
    if promoter.was_promoted(candidate.digest, session.id):
        return _act("no", "it was promoted, and then replaced")
    return {}


def asks_for_champions(plan: Plan) -> bool:
    """Whether a session says which of two candidates is better, and nothing about claims."""
    return require_gate(plan).asks_for_champions(plan.params)


def _judge_challenger(
    session: Session, candidate: Candidate, promoter: Promotes | None
) -> dict[str, Any]:
    """The verdict of a gate that compares only: yes if the alias points at the candidate now."""
    if promoter is None:
        raise InvalidInput(
            f"{session.plan.request.name} says whether a candidate is better than the champion; name the registered model "
            f"whose alias points at it (promote, or --model)"
        )
    standing, none = promoter.find_champion(), {"guarantee": "none"}
    if standing is None:
        # Nothing to compare with, so nothing is asked; the next one is compared with this one.
        session.require_scorable(candidate)
        _require_kept(session, promoter)
        if promoter.promote(candidate, {"session": session.id, **none}, None):
            return {"verdict": "yes", **_act("promoted", "first"), **none}
        return _judge_challenger(session, candidate, promoter)
    if turn := _find_turn(session, candidate, promoter, standing):
        return {"verdict": "yes" if turn["outcome"] == "promoted" else "no", **turn, **none}
    record = {"session": session.id}
    answer, action = _challenge_champion(session, candidate, promoter, standing, record)
    if action["outcome"] == "exhausted":
        return {"verdict": "exhausted", **action, **none}
    return {"verdict": "no", **none, **answer, **action}


def _read_submission(standing: Champion) -> Submission | None:
    """What was promoted, or None where the registry does not have it."""
    try:
        return Submission.model_validate_json(standing.submission)
    except ValueError:
        return None


def _find_standing(session: Session, standing: Champion, promoter: Promotes) -> Candidate | None:
    """A promoted version as a candidate, or None if its files are not what they were."""
    stored = _read_submission(standing)
    if stored is None:
        return None
    if stored.model is not None and not stored.tracking_uri:
        stored = stored.model_copy(update={"tracking_uri": promoter.tracking_uri})
    try:
        candidate = _load_public(session, stored)
    # A table that is busy is there, and a retry helps.
    except (ValueError, InvalidInput, TableUnreadable):
        return None
    return candidate if candidate.digest == standing.digest else None


def _challenge_champion(
    session: Session,
    candidate: Candidate,
    promoter: Promotes,
    standing: Champion,
    record: Mapping[str, str],
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """The answer, if one was given, and whether the alias moved and why or why not."""
    champion = _find_standing(session, standing, promoter)
    if champion is None:
        why = f"the champion, version {standing.version}, is not where it was, so nothing compares the two"
        return {}, _act("no", why)
    try:
        answer = session.challenge(candidate, champion, promoter.better_by)
    except SessionClosed:
        answer = {"verdict": "exhausted"}
    if answer["verdict"] == "exhausted":
        return {}, _act("exhausted", "the gate has no answer left")
    if answer["verdict"] == "none":
        return answer, _act("no", "the comparison failed")
    if other := _find_other_question(session, answer, standing, promoter):
        outcome = "no" if answer["verdict"] == "yes" else "not_better"
        result = "was better" if answer["verdict"] == "yes" else "was not better"
        why = f"it challenged once already, {other}, and {result}; submit it to another session"
        return answer, _act(outcome, why)
    if answer["verdict"] != "yes":
        return answer, _act("not_better", f"not better than version {standing.version}")
    # The version's guarantee is that of what moved the alias.
    proof = {name: str(answer[name]) for name in ("guarantee", "snapshot") if name in answer}
    compared = session.commitment({"candidate": candidate.digest, **answer})
    moved = {"comparison": compared, "replaced": standing.version}
    # Comparing took long: meanwhile another try may have promoted this one, or another team a model that it never met.
    if not promoter.promote(candidate, dict(record) | proof | moved, standing):
        why = "another champion was promoted meanwhile; submit it to another session"
        turn = _find_turn(session, candidate, promoter, promoter.find_champion())
        return answer, turn or _act("no", why)
    return answer, _act("promoted", f"better than version {standing.version}")


def _find_other_question(
    session: Session, answer: Mapping[str, Any], standing: Champion, promoter: Promotes
) -> str:
    """How a stored answer's question differs from whether the champion of now is beaten by better_by;
    "" if it does not, or nothing was answered.
    """
    if answer["verdict"] not in ("yes", "no"):
        return ""
    if answer["champion"] != standing.digest:
        return "against another champion"
    former, now = Fraction(answer["better_by"]), max(promoter.better_by, session.margin)
    return "" if former == now else f"with better_by {float(former):g} instead of {float(now):g}"


def review_champion(session: Session, promoter: Promotes) -> dict[str, Any]:
    """Look at the champion again on fresh rows, and roll back if they speak against it.

    A gate on claims is asked about the champion's claim: a no rolls back. A gate on champions is
    asked whether the version that it replaced is better: a yes rolls back.

    Returns: verdict ("yes" if the champion stays, "no", "exhausted"), version, session, and
        ``rolled_back`` with the version that the alias points at now, or None.

    Raises `InvalidInput` where there is no champion, or none that can be rolled back.
    """
    standing, champion, former, predecessor = find_reviewed(session, promoter)
    about = {"version": standing.version, "session": session.id, "rolled_back": None}
    try:
        if predecessor is not None:
            answer = session.challenge(predecessor, champion, promoter.better_by)
            if other := _find_other_question(session, answer, standing, promoter):
                raise InvalidInput(
                    f"the version before {standing.version} challenged once already in this session, {other}; review with "
                    f"another session"
                )
            fell = answer["verdict"] == "yes"
        else:
            answer = session.ask(champion.query(), champion)
            fell = answer["verdict"] == "no"
    except SessionClosed:
        answer, fell = {"verdict": "exhausted"}, False
    if answer["verdict"] == "exhausted":
        return {**about, "verdict": "exhausted", "guarantee": "none"}
    # Another team may have moved it meanwhile, and a retry finds it moved.
    if (
        fell
        and former is not None
        and promoter.roll_back(former, {"session": session.id}, standing)
    ):
        about["rolled_back"] = former.version
    verdict = answer["verdict"] if answer["verdict"] == "none" else "no" if fell else "yes"
    return {**answer, **about, "verdict": verdict}


def find_reviewed(
    session: Session, promoter: Promotes
) -> tuple[Champion, Candidate, Champion | None, Candidate | None]:
    """The champion and what it replaced, each with the candidate that it was; of what was replaced only a gate on
    champions has the candidate. The session may be unopened: no gate is charged for a review of nothing.

    Raises `InvalidInput` where there is no champion that can be scored again, or none to compare it with.
    """
    if file := promoter.find_missing():
        raise InvalidInput(
            f"there is no {file}, which would say who is champion; restore it, or submit candidates first"
        )
    standing, former = promoter.find_champion(), promoter.find_replaced()
    champion = None if standing is None else _find_standing(session, standing, promoter)
    if standing is None or champion is None:
        raise InvalidInput("there is no champion that can be scored again; submit candidates first")
    if not asks_for_champions(session.plan):
        return standing, champion, former, None
    predecessor = None if former is None else _find_standing(session, former, promoter)
    if predecessor is None:
        raise InvalidInput(
            f"version {standing.version} replaced none that can be scored again, so nothing can be compared with it"
        )
    return standing, champion, former, predecessor


def judge_all(
    sessions: Sequence[Callable[[], Session]],
    submissions: Sequence[Mapping[str, Any]],
    promoter: Promotes | None = None,
    judge_one: Callable[..., dict[str, Any]] = judge,
) -> list[dict[str, Any]]:
    """Verdicts in order. A submission that one session has no answer left for goes to the next,
    which is then opened. ``judge_one`` is `judge`, or does more with each verdict.

    Sessions are asked from the first one, every time: what they answered before they repeat for
    nothing, so a retry goes the same way.
    """
    # Also for no submission: what is declared is charged, as plans and checks count it.
    verdicts: list[dict[str, Any]] = []
    # A verdict that moves an alias or becomes a tag is told before it does.
    acts = promoter is not None or any(submission.get("model") for submission in submissions)
    with ExitStack() as stack:

        def open_session(opening: Callable[[], Session]) -> Session:
            session = opening()
            if not acts:
                stack.enter_context(session.tell_behind())
            return session

        open_sessions = [open_session(sessions[0])]
        stack.enter_context(read_tables_together(open_sessions[0], submissions))
        for submission in submissions:
            for number, opening in enumerate(sessions):
                if number == len(open_sessions):
                    open_sessions.append(open_session(opening))
                verdict = judge_one(open_sessions[number], submission, promoter)
                if verdict["verdict"] != "exhausted":
                    break
            log.info(
                "candidate %d of %d, %s%s: %s%s",
                len(verdicts) + 1,
                len(submissions),
                verdict["name"],
                f", claims {float(Fraction(verdict['claim'])):.4f}" if "claim" in verdict else "",
                verdict["verdict"],
                ", promoted" if verdict["outcome"] == "promoted" else "",
            )
            verdicts.append(verdict)
    return verdicts


def read_tables_together(
    session: Session, submissions: Sequence[Mapping[str, Any]]
) -> AbstractContextManager[None]:
    """While it lasts, submissions' tables of predictions are read by one DuckDB. Raises `PlanRefused` if
    one of them is in the session's private file.
    """
    tables = [submission.get("predictions") for submission in submissions]
    databases = [
        Path(str(table["database"]))
        for table in tables
        if isinstance(table, Mapping) and "database" in table
    ]
    for database in dict.fromkeys(databases):
        _require_public(session, database)
    return read_together(databases)


def join_outcomes(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """What many verdicts say together: the first of `OUTCOMES` that one has, "no" if there are none."""
    words = {verdict["outcome"] for verdict in verdicts}
    return next((word for word in OUTCOMES if word in words), "no")


def _act(outcome: str, why: str) -> dict[str, str]:
    return {"outcome": outcome, "promotion": why}
