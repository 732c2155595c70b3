"""An interactive mechanism's life: opened and charged once, asked many times, its state in the ledger.

The answer and the state it leads to are stored in one transaction before the answer is seen. The same question again
returns the stored answer and spends nothing; one that crashed before its answer was stored is asked with fresh noise, and
nobody saw the first. A failure that may depend on the rows or the draw is stored as the answer "none" and closes the
session: asking again would be rejection sampling, and going on would let failures tell about rows for nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from dpflow import fault_points
from dpflow.core.contract.estimators import EstimatorQuery, Metric, SqlEstimator
from dpflow.core.contract.gate import PROVEN_FIELDS, VERDICTS, ClaimQuery, Gate
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import GroupValues, UnitScores
from dpflow.core.contract.strict_models import describe_problems
from dpflow.core.sampling.randomness import Source
from dpflow.engine.fail_closed import draw_or_none
from dpflow.engine.releases.execute import (
    data_names,
    draw_result,
    has_hard_links,
    require_certified,
)
from dpflow.engine.releases.plan import Plan, digest
from dpflow.engine.releases.request import require_public
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.source_check import check_source
from dpflow.engine.sessions import nested_release
from dpflow.engine.sessions.candidate import (
    Candidate,
    ModelLoader,
    Submission,
    load_candidate,
    load_model,
)
from dpflow.engine.sessions.score_readers import ScoreReaders
from dpflow.engine.sessions.scored_fields import require_one_label
from dpflow.engine.sessions.session_charge import charge_session, name_query
from dpflow.error_boundary import errors_end_here
from dpflow.errors import (
    DpflowError,
    InvalidDeclaration,
    InvalidInput,
    PlanRefused,
    PluginError,
    SessionClosed,
    TableError,
)
from dpflow.ledger import AnswerRecord, Ledger, SessionRecord
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.tables.snapshot import SnapshotTable

Q = TypeVar("Q", EstimatorQuery, Submission)

_ROWS = "rows"  #: in a session's state: the keyed name of the rows of its first answer
_ENGINE_STATE = (nested_release.STATE, _ROWS)
NO_ANSWER = {"verdict": "none"}  #: of a failure, which closes the session


class _Batch(threading.local):
    """Of one thread: answers whose verdicts wait for the next one, None where none has to; and what the ledger said
    before the last one.
    """

    untold: list[AnswerRecord] | None = None
    asked: SessionRecord | None = None


class Session:
    """An open session (`dpflow.open_session`); the same plan and run identity resume it."""

    def __init__(
        self,
        session_id: str,
        principal: str,
        plan: Plan,
        ledger: Ledger,
        registry: Registry,
        load: ModelLoader = load_model,
    ) -> None:
        self.id, self._principal, self._load = session_id, principal, load
        self._plan, self._ledger, self._registry = plan, ledger, registry
        # Rows in memory are those of one answer at a time.
        self._answering = threading.RLock()
        self._batch = _Batch()
        self._private = SnapshotTable(plan.table, plan.request.where)
        self._readers = ScoreReaders(plan, registry, self._private, self._partition_secret)

    @cached_property
    def _seen(self) -> str:
        """Why the session's data are not fresh, or "": proofs of generalisation begin with rows that nobody has seen."""
        plan, table = self._plan, self._plan.table
        if table.generalisation_only and not table.holdout:
            return "rows of a generalisation_only table may have been handed out; declare holdout: true"
        if has_hard_links(table):
            return "the file of the rows has another name, a hard link, under which they may have been read"
        names = data_names(plan, self._ledger, self._private)
        if not self._ledger.is_fresh(self.id, plan.request.scope, names):
            return "something was released from this data before the session was opened"
        if self._ledger.was_checked(names):
            return "a contract in mode trusted told a bit about these rows"
        return ""

    def _partition_secret(self) -> bytes:
        """What groups are made with: one partition per data set, whatever the session."""
        root = self._plan.request.scope.split("/")[0]
        return bytes.fromhex(self._ledger.commitment(root.encode(), "partition"))

    @classmethod
    @errors_end_here
    def open(
        cls,
        plan: Plan,
        ledger: Ledger,
        registry: Registry,
        *,
        run_identity: RunIdentity | None = None,
        load: ModelLoader = load_model,
    ) -> Session:
        """Charge the whole session, or resume it.

        Args:
            load: loads models of candidates; into this process if left out.

        Raises:
            BudgetExceeded: the scope cannot pay; nothing was read.
            PlanRefused: the plan is a one-shot release, or partitions its data into other groups
            than the first session did.
            DatasetLocked: another session on the same data is open.
            TableError: the source cannot be opened, or lacks what is declared; nothing was charged.
        """
        return cls(*charge_session(plan, ledger, run_identity), plan, ledger, registry, load)

    @classmethod
    def find(
        cls, plan: Plan, ledger: Ledger, registry: Registry, principal: str | None = None
    ) -> Session | None:
        """The session that was charged for this plan outside Airflow, or None; charges nothing. Another plan or revision of
        the same name is another session.
        """
        run = RunIdentity.of_request(plan.request, principal)
        record = ledger.find(run.key(plan))
        if record is None or record.state not in ("open", "closed"):
            return None
        return cls(record.release_id, run.principal, plan, ledger, registry)

    @errors_end_here
    def ask(
        self, query: Mapping[str, Any] | str, candidate: Candidate | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Answer one query, or return its stored answer.

        Args:
            query: a query of the mechanism, or the name of an estimator with the query's other
                ``fields``, or ``{"sql": ..., "range": ..., "default": ...}``, an estimator of one's
                own, with them; or ``{"release": {...}}``, a release inside the session
                (`dpflow.engine.sessions.nested_release`).
            candidate: what the estimator scores, if it scores one; its digest becomes part of the
                query, and so do the columns it reads where an estimator in SQL leaves columns out.

        Raises:
            SessionClosed: no answer is left and this question was not answered before.
            InvalidInput, TableError: the question cannot be asked of this table; nothing was read.
        """
        mechanism = self._plan.mechanism
        assert isinstance(mechanism, InteractiveMechanism)
        if not isinstance(query, Mapping | str):
            raise InvalidInput(
                f"a question is a mapping or an estimator's name, and not of type {type(query).__name__}; give one"
            )
        fields_of_query = {
            **({"estimator": query} if isinstance(query, str) or "sql" in query else query),
            **fields,
        }
        parsed = self._parse_question(mechanism, fields_of_query, candidate)
        if isinstance(parsed, Plan):
            return self._answer_once(
                self._name_question(parsed), partial(self._answer_release, parsed)
            )
        name = self._name_question(parsed)
        return self._answer_once(name, partial(self._answer_query, mechanism, parsed, candidate))

    def list_unanswered(self, queries: Sequence[Mapping[str, Any]]) -> list[str]:
        """Under which names answers to these queries, which have no candidate, would be stored and are not; empty if
        the session is closed.
        """
        if self._ledger.release(self.id).state != "open":
            return []
        mechanism = self._plan.mechanism
        assert isinstance(mechanism, InteractiveMechanism)
        names = [self._name_question(self._parse_question(mechanism, query)) for query in queries]
        stored = {record.query for record in self._ledger.answers(self.id)}
        return [name for name in names if name not in stored]

    def give_up(self, name: str, failure: str) -> None:
        """Store the answer "none" under a name of `list_unanswered`, which closes the session."""
        session = self._ledger.session(self.id)
        self._ledger.answer(
            self.id,
            query=name,
            expected_version=session.version,
            state=session.state,
            answer=NO_ANSWER,
            closed=True,
            principal=self._principal,
            failure=failure,
        )

    def _name_question(self, parsed: Any) -> str:
        return name_query(self.id, parsed)

    def check_question(self, query: Mapping[str, Any], candidate: Candidate | None = None) -> None:
        """Check a query of `ask` before a session is charged for it; reads no row.

        Raises:
            InvalidInput, PlanRefused: it cannot be asked.
        """
        mechanism = self._plan.mechanism
        assert isinstance(mechanism, InteractiveMechanism)
        parsed = self._parse_question(mechanism, query, candidate)
        if not isinstance(parsed, Plan):
            # A stored answer needs no table, and opening a session looks at it.
            with suppress(TableError):
                self._plan_read(mechanism, parsed, candidate, None)

    def _parse_question(
        self,
        mechanism: InteractiveMechanism[Any, Any],
        fields: Mapping[str, Any],
        candidate: Candidate | None = None,
    ) -> Any:
        """The mechanism's query, or the plan of a release inside the session."""
        fields = dict(self.fill_metric(fields))
        if candidate is not None:
            fields["candidate"] = candidate.digest
        if set(fields) == {"release"} and isinstance(fields["release"], Mapping):
            return nested_release.inner_plan(self._plan, fields["release"], self._registry)
        try:
            parsed = mechanism.Query.model_validate(fields)
        except ValidationError as error:
            raise InvalidDeclaration(
                f"query of {mechanism.name}: {describe_problems(error)}"
            ) from None
        if isinstance(parsed, EstimatorQuery):
            # A digest alone gives no scores to compare with, which inside the draw would be the answer none.
            if isinstance(parsed, ClaimQuery) and parsed.champion:
                raise InvalidInput(
                    "a question names no champion, for it is scored as well; call challenge with both candidates"
                )
            parsed = self.canonical_query(parsed)
            self._require_metric(parsed)
            if candidate is not None and not parsed.columns:
                parsed = parsed.model_copy(update={"columns": candidate.submission.columns})
        return parsed

    @errors_end_here
    def challenge(
        self, candidate: Candidate, champion: Candidate, better_by: Fraction = Fraction(0)
    ) -> dict[str, Any]:
        """Whether a candidate beats a champion by more than ``better_by``, or `margin`, on fresh data, by the
        session's metric on the same rows: yes or no, or the stored answer.

        A candidate challenges once in a session: whoever is champion by then and whatever is asked of
        it, the answer is the stored one, and its ``champion`` and ``better_by`` say what it was about.

        Raises:
            PlanRefused: the session fixes no metric, or they predict two labels.
            SessionClosed: no answer is left.
        """
        mechanism, query = self._comparison(candidate, champion, better_by)
        name = digest([self.id, "challenge", candidate.digest])
        answer = partial(self._answer_query, mechanism, query, candidate, champion=champion)
        return self._answer_once(name, answer)

    @property
    def margin(self) -> Fraction:
        """What a challenger must be better by at least, whatever is asked, in units of the metric."""
        gate = self._plan.mechanism
        return gate.find_margin(self._plan.params) if isinstance(gate, Gate) else Fraction(0)

    def has_compared(self) -> bool:
        """Whether an answer is about a champion."""
        return any("champion" in record.answer for record in self._ledger.answers(self.id))

    def require_scorable(self, candidate: Candidate) -> None:
        """Check all that a comparison checks before it reads rows.

        Raises:
            InvalidInput: another metric, a field that it does not use, or columns that are not there.
        """
        mechanism, query = self._comparison(candidate, candidate, Fraction(0))
        self._plan_read(mechanism, query, candidate, candidate)

    def _comparison(
        self, candidate: Candidate, champion: Candidate, better_by: Fraction
    ) -> tuple[InteractiveMechanism[Any, Any], EstimatorQuery]:
        """The question whether one candidate beats another, of the same label."""
        require_one_label([candidate.submission, champion.submission])
        mechanism = self._plan.mechanism
        if self.metric is None or not isinstance(mechanism, InteractiveMechanism):
            raise PlanRefused(
                f"{self._plan.request.name} fixes no metric, so nothing compares two candidates; open a session with "
                f"metric: accuracy, or another one"
            )
        fields = candidate.query() | {
            "claim": None,
            "champion": champion.digest,
            "better_by": str(max(better_by, self.margin)),
        }
        parsed = mechanism.Query.model_validate(fields)
        assert isinstance(parsed, EstimatorQuery)
        query = self.canonical_query(parsed)
        self._require_metric(query)
        return mechanism, query

    @property
    def plan(self) -> Plan:
        """What was charged."""
        return self._plan

    @property
    def metric(self) -> Metric | None:
        """The metric that the session's owner fixed, if any."""
        return self._readers.metric

    def load_candidate(self, submission: Submission) -> Candidate:
        """What a submission names. Raises `InvalidInput`."""
        return load_candidate(submission, self._load)

    def require_used(self, submission: Submission) -> None:
        """Raises `PlanRefused` for a field of a candidate that its estimator does not use, or lacks."""
        self._readers.require_used(submission)

    def fill_metric(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """A query or submission with the session's metric where it names no estimator."""
        if self.metric is None or "release" in fields:
            return fields
        named = {name: value for name, value in fields.items() if value is not None}
        return {**self._metric_fields, **named}

    @cached_property
    def _metric_fields(self) -> dict[str, Any]:
        assert self.metric is not None
        metric = self.metric.model_dump(mode="json")
        return {name: metric[name] for name in ("estimator", "options") if metric[name]}

    @cached_property
    def _metric_query(self) -> EstimatorQuery:
        """The session's metric as every query must name it."""
        assert self.metric is not None
        columns = {"columns": ["x"]} if isinstance(self.metric.estimator, str) else {}
        return self.canonical_query(EstimatorQuery.model_validate(self._metric_fields | columns))

    def _require_metric(self, query: EstimatorQuery) -> None:
        """Raises `InvalidInput` unless a query is about the session's metric."""
        if self.metric is None:
            return
        wanted = self._metric_query
        asked = (query.estimator, query.options, query.default)
        if asked != (wanted.estimator, wanted.options, None):
            name = wanted.estimator if isinstance(wanted.estimator, str) else wanted.estimator.sql
            raise InvalidInput(
                f"{self._plan.request.name} compares candidates by {name} alone, as its owner fixed it; leave estimator, "
                f"options and default out"
            )

    def canonical_query(self, asked: Q) -> Q:
        """The same with an estimator's SQL in its canonical form, so that spaces make no other
        question of it.

        Raises `PlanRefused` or `UnknownName` if it is not in the language of
        `dpflow.tables.language.expressions`.
        """
        if not isinstance(asked.estimator, SqlEstimator):
            return asked
        text = self._private.canonical_expression(asked.estimator.sql)
        return asked.model_copy(
            update={"estimator": asked.estimator.model_copy(update={"sql": text})}
        )

    def require_public(self, file: Path, what: str) -> None:
        """Raises `PlanRefused` if a file of the analyst's is that of the session's table
        (`dpflow.engine.releases.request`).
        """
        require_public(file, self._plan.table, what)

    def _answer_once(
        self, name: str, answer: Callable[[SessionRecord, list[str]], tuple[Verdict, State]]
    ) -> dict[str, Any]:
        """The stored answer of a query, or a new one, stored with the state it leads to before it
        is seen. A gate's verdict is told behind it, also when it dies in between and is asked again.
        """
        is_gate = isinstance(self._plan.mechanism, Gate)
        while True:
            session = self._ledger.ask(self.id, name, self._batch.asked)
            if isinstance(session, AnswerRecord):
                if is_gate:
                    self._ledger.tell_verdict(self.id, name, principal=self._principal)
                return dict(session.answer)
            if session.closed:
                raise SessionClosed(
                    f"session {self.id} is closed: its answers are used up; open one on fresh data"
                )
            failures: list[str] = []
            with self._answering:
                verdict, state = answer(session, failures)
            untold = self._batch.untold if is_gate else None
            record = self._ledger.answer(
                self.id,
                query=name,
                expected_version=session.version,
                state=state.data,
                answer=verdict.body,
                closed=verdict.closed,
                principal=self._principal,
                failure="; ".join(failures),
                rows=session.rows,
                public_verdict=is_gate and untold is None,
                tell=untold or (),
            )
            if untold is not None:
                untold[:] = [] if record is None else [record]
                self._batch.asked = session
            if record is not None:
                return dict(record.answer)
            # somebody else's answer advanced the state first: ours was never seen, so draw again
            # from theirs

    @contextmanager
    def tell_behind(self) -> Iterator[None]:
        """Until it ends, tell each new verdict in the transaction of the next answer, and the last one at the end: a
        transaction of its own costs half of the answer's. For verdicts that nobody acts on before the end. Inside
        another one it changes nothing.
        """
        if self._batch.untold is not None:
            yield
            return
        self._batch.untold = []
        try:
            yield
        except BaseException:
            # What ended it says more than a ledger out of reach; who asks again tells what was stored.
            with suppress(DpflowError):
                self._end_batch()
            raise
        else:
            self._end_batch()

    def _end_batch(self) -> None:
        untold, self._batch.untold, self._batch.asked = self._batch.untold, None, None
        for record in untold or ():
            self._ledger.tell_verdict(self.id, record.query, principal=self._principal)

    @errors_end_here
    def remaining(self) -> dict[str, Any]:
        """What the session can still give: its state, and what its last answer said is left. Public."""
        session, mechanism = self._ledger.session(self.id), self._plan.mechanism
        assert isinstance(mechanism, InteractiveMechanism)
        limits = mechanism.limits(self._plan.params)
        counts: dict[str, Any] = {f"{name}_left": number for name, number in limits.items()}
        # The last answer says all of it, but for one that is none, and where releases inside say more.
        # A session that was imported has no state to tell.
        says_all = session.state and nested_release.STATE not in session.state
        after = max(0, session.version - 1) if says_all else 0
        answers = self._ledger.answers(self.id, after)
        if after and answers[-1].answer.get("verdict") == "none":
            after, answers = 0, self._ledger.answers(self.id)
        for record in answers:
            counts |= {k: v for k, v in record.answer.items() if k.endswith("_left")}
        answered = after + len(answers)
        return {"state": self._ledger.release(self.id).state, "answered": answered, **counts}

    def commitment(self, said: Mapping[str, Any]) -> str:
        """A keyed commitment to something said in this session: whoever has the ledger can tell
        that it was, nobody else.
        """
        # With the session's id: the same words in two sessions have two commitments.
        return self._ledger.commitment(
            json.dumps([self.id, said], sort_keys=True).encode(), "verdict"
        )

    def _plan_read(
        self,
        mechanism: InteractiveMechanism[Any, Any],
        query: Any,
        candidate: Candidate | None,
        champion: Candidate | None,
    ) -> Callable[[], Any]:
        """What reads the rows for a query, after everything that plan and catalog can refuse."""
        plan = self._plan
        statistic = mechanism.data_request(plan.params, query, plan.table)
        blocks = mechanism.read_blocks(query, plan.request.blocks)
        if isinstance(statistic, GroupValues):
            if mechanism.count_groups(plan.params) is None:
                raise PluginError(
                    f"session {mechanism.name} asks for groups, and the ledger knows no partition of it; its author must say "
                    f"in count_groups how many there are"
                )
            return self._readers.group_reader(statistic, query, candidate, champion)
        if isinstance(statistic, UnitScores):
            return self._readers.unit_reader(statistic, query, candidate, champion)
        self._private.check_request(statistic, blocks)
        return partial(self._private.answer, statistic, blocks)

    def _answer_query(
        self,
        mechanism: InteractiveMechanism[Any, Any],
        query: Any,
        candidate: Candidate | None,
        held: SessionRecord,
        failures: list[str],
        champion: Candidate | None = None,
    ) -> tuple[Verdict, State]:
        """First everything that plan and catalog can refuse; then rows and draw, whose failures are
        the answer "none".
        """
        # What nested releases spent, and the rows of the first answer, are the engine's part of the
        # state; the mechanism never sees it.
        plan, ours = self._plan, {k: v for k, v in held.state.items() if k in _ENGINE_STATE}
        state = State({k: v for k, v in held.state.items() if k not in ours})
        # Taken before the draw: reading the catalog may fail, and may say why.
        identity = self._private.take_snapshot()
        read = self._plan_read(mechanism, query, candidate, champion)
        snapshot = self._ledger.commitment(identity, "snapshot") if mechanism.locks_dataset else ""
        if mechanism.locks_dataset:
            ours = {_ROWS: snapshot, **ours}
        # Why a verdict that the mechanism calls proven is unproven in this session.
        doubt = self._seen or (nested_release.WHY if nested_release.STATE in ours else "")
        if ours.get(_ROWS, snapshot) != snapshot:
            doubt = doubt or "the rows are not those of the session's first answer"
            # Rows that come back were others meanwhile, so no later answer has them again.
            ours[_ROWS] = ""

        def draw_verdict(source: Source) -> tuple[Verdict, State]:
            values = read()
            # A process that ended in the middle gave scores to some units, and to all others the default.
            for scored in filter(None, (candidate, champion)):
                scored.require_running()
            fault_points.pass_point("aggregate.after")
            verdict, after = mechanism.answer(plan.params, plan.table, state, query, values, source)
            body = dict(verdict.body)
            # It becomes public, so it is one of few words, or the answer none.
            if isinstance(mechanism, Gate) and body.get("verdict") not in VERDICTS:
                raise PluginError(f"gate {mechanism.name} answers none of {', '.join(VERDICTS)}")
            if body.get("guarantee") == "proven" and doubt:
                # What was stated with the proof falls with it.
                body = {k: v for k, v in body.items() if k not in PROVEN_FIELDS}
                body |= {"guarantee": "unproven", "because": doubt}
                if "corrected_guarantee" in body:
                    body["corrected_guarantee"] = "unproven"
            if mechanism.locks_dataset:
                body["snapshot"] = snapshot
            if champion is not None:
                body |= {"champion": champion.digest, "better_by": str(query.better_by)}
            # What cannot be stored is an impossible value, too.
            json.dumps([body, after.data], allow_nan=False)
            return Verdict(body, verdict.closed), after

        none = Verdict(NO_ANSWER, closed=True)
        verdict, after = draw_or_none(draw_verdict, (none, state), failures)
        fault_points.pass_point("draw.after")
        return verdict, State({**after.data, **ours})

    def _answer_release(
        self, inner: Plan, held: SessionRecord, failures: list[str]
    ) -> tuple[Verdict, State]:
        """A release inside the session: refused, or paid out of its reserve and drawn; a failure is the result "none"."""
        assert isinstance(inner.mechanism, Mechanism)
        # The gate was certified when it was opened; this is another mechanism.
        require_certified(inner, self._ledger)
        state, left = nested_release.spend_reserve(self._plan, inner, held.state)
        private = PrivateTable(inner.table, inner.request.where)
        with private.hold_open():
            check_source(inner, private)
            snapshot = self._ledger.commitment(private.data_identity(), "snapshot")
            result = draw_result(inner, private, failures)
        epsilon, delta = inner.privacy_cost()
        body = {
            "verdict": "released",
            "mechanism": inner.mechanism.name,
            "epsilon": epsilon,
            "delta": delta,
        }
        return Verdict({**body, **left, "result": result.to_json(), "snapshot": snapshot}), State(
            state
        )
