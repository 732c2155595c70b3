"""What a service does for one principal: plan, answer, remember; without HTTP.

Every call has its caller, and asks nothing of the process's environment. What the caller may name is
checked before anything is looked up: a table, scope or job of somebody else has the answer of one that
does not exist. A request is planned, refused or answered from the ledger at once; what reads private
rows is a job. Its charge keeps the request, encrypted, so that another process can finish it
(`DataService.resume_charged`); the ledger's rules decide who settles.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dpflow.analyst_sql.answer.answer_cache import KeptAnswer
from dpflow.analyst_sql.answer.query_plan import answer_sql, plan_sql
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.parse.text_and_options import read_source
from dpflow.analyst_sql.releases.own_charges import IdentifyPart
from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.analyst_sql.releases.settings import find_public_table
from dpflow.analyst_sql.releases.stored_answers import identify_query
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import NONE
from dpflow.core.contract.strict_models import require_values
from dpflow.engine.planning.precheck import ALREADY_PAID, SOURCE_AWAY, find_source_fault
from dpflow.engine.releases.execute import (
    check_scope,
    find_lock,
    release,
    require_certified,
)
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.release_list import (
    describe_charge,
    describe_event,
    identify_all,
    release_list,
)
from dpflow.engine.releases.request import ReleaseRequest, parse_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.session import Session
from dpflow.errors import (
    DatasetLocked,
    DpflowError,
    InvalidInput,
    LedgerUnavailable,
    PlanRefused,
    RetryConflict,
    SessionClosed,
)
from dpflow.ledger import Ledger, ReleaseRecord, Reservation
from dpflow.ledger.books.records import path_of
from dpflow.registry import Registry
from dpflow.server.contracts import (
    answer_contract,
    load_contracts,
    plan_checks,
)
from dpflow.server.gates import load_gates
from dpflow.server.job_queue import Job, Jobs, Planned, Query, Reply, refuse_unknown_job
from dpflow.server.loads import plan_load
from dpflow.server.principals import Caller
from dpflow.server.public_facts import PublicFacts
from dpflow.server.publications import Publications
from dpflow.server.refusals import Refused, refuse_for_now
from dpflow.server.request_limits import cut_reply, find_excess
from dpflow.server.sealed_requests import Kind, SealedRequests, find_door
from dpflow.server.service import Service
from dpflow.server.sessions import find_session, plan_questions

log = logging.getLogger("dpflow")
Body = Mapping[str, Any]
#: A query's text, options and tables, and its parameters.
Question = tuple[str, dict[str, Any], list[Table], Any]
#: By request: the id of each of its releases or of its session, with its attempts and answers.
Charged = Mapping[str, frozenset[tuple[str, int, int]]]
#: Plans, each with what was charged for it.
Unsettled = Sequence[tuple[Plan, ReleaseRecord | None]]
#: Characters of a request that a charge keeps.
MAX_REQUEST = 100_000


class DataService:
    """Everything that principals ask for.

    Attributes:
        facts: what they may read of tables, budgets and history.

    Args:
        service: the principals.
        tables: the declarations, by name.
        ledger: where all scopes are.
        registry: the mechanisms.
        jobs: runs what reads private rows.
    """

    def __init__(
        self,
        service: Service,
        tables: Mapping[str, Table],
        ledger: Ledger,
        registry: Registry,
        jobs: Jobs,
    ) -> None:
        self._service, self._tables = service, tables
        self.facts = PublicFacts(tables, ledger)
        self._contracts = load_contracts(service)
        self.gates = load_gates(service, ledger, registry)
        self.publications = Publications(service.published, tables, ledger)
        self._ledger, self._registry, self._jobs = ledger, registry, jobs
        # No file of any private table, also of one that the caller may not ask.
        self._find_public = partial(
            find_public_table, tables=[*tables.values()], public=service.public
        )
        self._requests = SealedRequests(ledger)

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, caller: Caller, body: Body) -> Reply:
        """What a release would cost, its error, and whether the ledger would accept it."""
        caller.require_door("release")
        plan, run = self._plan_release(caller, body)
        forecast, rows = self._forecast(plan, run), None
        if isinstance(plan.mechanism, Mechanism):
            rows = plan.mechanism.count_rows(plan.params, plan.table)
        if forecast != ALREADY_PAID:
            forecast = find_excess(caller.terms, [plan], rows) or forecast
        return plan.describe() | {"forecast": forecast}

    def explain(self, caller: Caller, body: Body) -> Reply:
        """How a query would be answered, what it would cost and how exact it would be."""
        caller.require_door("sql")
        plan = self._plan_sql(self._read_question(caller, body))
        if plan.source_problem:
            plan = replace(plan, source_problem=SOURCE_AWAY)
        told = plan.explain(self._ledger)
        if plan.to_pay and (excess := find_excess(caller.terms, plan.to_pay, plan.count_rows())):
            told["forecast"] = excess
        return told

    def _forecast(self, plan: Plan, run: RunIdentity) -> str:
        if self._ledger.find(run.key(plan)) is not None:
            return ALREADY_PAID
        check_scope(plan, self._ledger)
        require_certified(plan, self._ledger)
        refusal = self._ledger.check(plan.request.scope, [plan.event], plan.charged_blocks)
        refusal = refusal or find_lock([plan], self._ledger)
        # What keeps a source away names its place.
        away = SOURCE_AWAY if find_source_fault(plan) else ""
        return refusal or away or "the ledger would accept it now"

    def _plan_release(self, caller: Caller, body: Body) -> tuple[Plan, RunIdentity]:
        request = self._parse_release(caller, body)
        plan = make_plan(request, self._registry, self._ledger)
        return plan, caller.identify_request(request)

    def _parse_release(self, caller: Caller, body: Body) -> ReleaseRequest:
        name = body.get("table")
        if not isinstance(name, str):
            raise InvalidInput("a release needs the name of its table; add table: NAME")
        if body.get("publish") is not None:
            raise InvalidInput(
                "a service copies no result to a file that its client names; leave publish out, and write the result where you are"
            )
        require_values(body, "the request", may_be_empty=("params", "publish"))
        table = self.facts.find_table(caller, name)
        fields = dict(body) | {
            "table": table,
            "scope": self._find_scope(caller, body.get("scope")),
            "publish": None,
        }
        # No path is left in it, so no place is searched.
        return parse_request(fields, Path("/"))

    def _plan_sql(self, question: Question, identify: IdentifyPart | None = None) -> SqlPlan:
        plan = plan_sql(
            *question,
            self._ledger,
            self._registry,
            look_up=identify is None,
            find_public=self._find_public,
            identify_part=identify,
        )
        if plan.settings.name is not None:
            raise InvalidInput(
                "a service publishes no view that its client names; leave name out of the query's options"
            )
        return plan

    def _read_question(self, caller: Caller, body: Body) -> Question:
        """A query's text, its options with the scope that pays, the caller's tables, and parameters."""
        text, options = body["query"], dict(body.get("options", {}))
        written = None
        # The plan reads it again, so it is read here only where it may name one.
        if "scope" in text.casefold():
            written = read_source(text, options.get("dialect")).options.get("scope")
        scope = self._find_scope(caller, options.pop("scope", None), written)
        if written is None:
            options["scope"] = scope
        tables = [self._tables[name] for name in sorted(caller.terms.tables)]
        return text, options, tables, body.get("parameters", ())

    def _find_scope(self, caller: Caller, *named: Any) -> str:
        """The scope that pays, which a request may leave out. Raises `PlanRefused` if any that it names is
        another one, and where it has no grant.
        """
        scope = caller.terms.scope or ""
        if any(name not in (None, scope) for name in named):
            raise PlanRefused(f"this principal pays from scope {scope!r}; leave scope out")
        granted = {one.scope for one in self._ledger.scopes()}
        if missing := [name for name in path_of(scope) if name not in granted]:
            raise PlanRefused(
                f"scope {missing[0]!r} has no budget yet; the owner of the ledger grants one"
            )
        return scope

    # --- answers ----------------------------------------------------------------------------------

    def submit(self, caller: Caller, kind: Kind, body: Body) -> Reply | Job:
        """The answer from settled releases, or a job that makes it. The same request is the same job,
        also after a restart.

        Raises:
            DpflowError: it is refused; nothing was charged.
            Refused: the door is closed to the caller, or too many requests wait.
        """
        self._require_allowed(caller, kind, body)
        if body.get("plan_only"):
            return {
                "plans": list(
                    map(self._describe_planned, self._plan_query(caller, kind, body, "").planned)
                )
            }
        text, sealed = json.dumps([caller.name, kind, body], sort_keys=True), ""
        # A gate stays open whether its candidate was scored or not: who sent one sends it again.
        if kind != "gate":
            if len(text) > MAX_REQUEST:
                raise Refused(
                    413, "too_large", f"a request has at most {MAX_REQUEST} characters; shorten it"
                )
            sealed = self._requests.seal(text)
        newest = self._ledger.newest_entry()
        query = self._plan_query(caller, kind, body, sealed)
        unsettled = self._list_unsettled(query.planned)
        if not unsettled and not query.always_job:
            return query.answer()
        is_charged = self._require_payable(caller, unsettled, query.rows)
        job_id = self._requests.identify_job(text)
        if any(record and self._is_exhausted(record, text) for _, record in unsettled):
            return Job(job_id, caller.name, query.source, dict, is_charged=True, is_elsewhere=True)

        def answer() -> Reply:
            # Planned again in its turn: what was released meanwhile may answer it.
            is_same = self._ledger.newest_entry() == newest
            return self._answer(query if is_same else self._plan_query(caller, kind, body, sealed))

        job = Job(job_id, caller.name, query.source, answer, is_charged=is_charged)
        return self._jobs.submit(job, caller.terms.concurrent_queries)

    def find_job(self, caller: Caller, job_id: str) -> Job:
        """The caller's job, also one that another process charged. Raises `Refused` for one of somebody else as for an
        unknown one.
        """
        job = self._jobs.find(job_id, caller.name)
        if job is None and (text := self._requests.find(caller.name, job_id)):
            job = self._find_elsewhere(caller, job_id, text)
        if job is None:
            raise refuse_unknown_job()
        return job

    def _find_elsewhere(self, caller: Caller, job_id: str, text: str) -> Job | None:
        """What the ledger says of another process's job: it runs, or has its answer. None where a declaration or grant
        that changed makes another plan of it.
        """
        _, kind, body = json.loads(text)
        self._require_allowed(caller, kind, body)
        query = self._plan_query(caller, kind, body, self._requests.seal(text))
        unsettled = self._list_unsettled(query.planned)
        if any(record is None for _, record in unsettled):
            return None
        job = Job(job_id, caller.name, query.source, query.answer, is_elsewhere=True)
        if not unsettled:
            job.run()
        return job

    def _is_exhausted(self, record: ReleaseRecord, text: str) -> bool:
        """Whether a charge was tried as often as it may be. Other questions to a session than those that opened it are
        none of its tries.
        """
        if record.settled or record.attempts < self._service.max_attempts:
            return False
        opened_by = self._requests.open(record.request, record.release_id)
        return record.state != "open" or text == opened_by

    def cancel_job(self, caller: Caller, job_id: str) -> Job:
        """Take back the caller's job, if it waits and nothing was charged for it. Raises as `find_job`."""
        job = self.find_job(caller, job_id)
        self._jobs.cancel(job)
        return job

    def list_charged(self) -> Charged:
        """Requests that were charged and are not settled, or not all of whose questions are answered by the session
        that they opened.
        """
        found: dict[str, set[tuple[str, int, int]]] = {}
        for record in [*self._ledger.reserved_releases(), *self._ledger.open_sessions()]:
            text = self._requests.open(record.request, record.release_id)
            if record.state == "open" and not self._is_interrupted(record, text):
                continue
            if text is not None:
                charge = record.release_id, record.attempts, record.answers
                found.setdefault(text, set()).add(charge)
        return {text: frozenset(releases) for text, releases in found.items()}

    def _is_interrupted(self, record: ReleaseRecord, text: str | None) -> bool:
        """Whether a session has no answer yet to a question of the request that opened it, and is to give one. The log
        names one that keeps rows from others and that its principal cannot ask here any more.
        """
        try:
            return bool(self._find_unanswered(record, text)[1])
        except LedgerUnavailable:
            raise
        except DpflowError as error:
            mechanism = self._registry.mechanisms.get(str(record.request.get("mechanism")))
            if getattr(mechanism, "locks_dataset", False):
                self._requests.log_once(
                    f"session {record.release_id} of {record.principal} keeps its rows from all other releases, and nobody can "
                    f"ask it here: {error}. Mend that and restart, or close it: "
                    f"dpflow ledger resolve {record.release_id}"
                )
            return False

    def _find_unanswered(
        self, record: ReleaseRecord, text: str | None
    ) -> tuple[Session | None, list[str]]:
        """A session, and which questions of the request that opened it have no answer; none of a gate's.

        Raises `DpflowError`, such as `PlanRefused`, where its principal cannot ask it here.
        """
        terms = self._service.principals.get(record.principal)
        if text is None and terms is not None and "gate" in terms.doors:
            return None, []
        if text is None:
            raise PlanRefused(
                "it was opened elsewhere, or as a gate by a principal without that door"
            )
        name, kind, body = json.loads(text)
        if (caller := self._find_caller(name, kind)) is None:
            raise PlanRefused(f"the service file gives {name} no door {find_door(kind)}")
        planned = self._plan_release(caller, body["session"])
        if (session := find_session(planned, self._ledger, self._registry)) is None:
            raise PlanRefused("its declaration, scope or grant changed, so that it is another plan")
        return session, session.list_unanswered(body["queries"])

    def _find_caller(self, name: str, kind: Kind) -> Caller | None:
        terms = self._service.principals.get(name)
        return None if terms is None or find_door(kind) not in terms.doors else Caller(name, terms)

    def _answer(self, query: Query) -> Reply:
        """Raises `Refused` where a session keeps the rows from others: whether a retry helps depends on whether that
        session is still being answered.
        """
        try:
            return query.answer()
        except DatasetLocked as error:
            record = self._ledger.release(error.session_id)
            text = self._requests.open(record.request, record.release_id)
            if record.state != "open" or self._is_interrupted(record, text):
                raise refuse_for_now(
                    "a session on the same data is being answered; send the request again, which charges nothing twice"
                ) from None
            raise

    def resume_charged(self, charged: Charged, *, are_lapsed: bool = False) -> None:
        """Queue these charged requests, such as of a process that was killed. The ledger lets the first settle,
        so one that still runs elsewhere loses nothing.

        Args:
            charged: of `list_charged`.
            are_lapsed: whether nothing happened to them for a lease. What was tried ``max_attempts`` times is then
                settled without a result; else it is left to who tries it now.
        """
        for text, releases in charged.items():
            name, kind, body = json.loads(text)
            if max(attempts for _, attempts, _ in releases) >= self._service.max_attempts:
                job = self._jobs.find(self._requests.identify_job(text), name)
                if are_lapsed and (job is None or job.done.done()):
                    self._give_up(text, releases)
                continue
            ids = sorted(release_id for release_id, *_ in releases)
            if (caller := self._find_caller(name, kind)) is None:
                self._requests.log_once(
                    f"{name} paid for {', '.join(ids)}, which has no result: the service file gives it no door "
                    f"{find_door(kind)}. Mend that and restart, or close it: dpflow ledger resolve {ids[0]}"
                )
                continue
            self._resume(caller, kind, body, text, ids)

    def _give_up(self, text: str, releases: frozenset[tuple[str, int, int]]) -> None:
        """Settle charges without a result: each process that drew for them died."""
        for release_id, attempts, _ in releases:
            failure = f"{attempts} tries ended"
            log.error("release %s has no result: %s before one", release_id, failure)
            # Its owner or who asks has decided meanwhile.
            with suppress(RetryConflict, SessionClosed, PlanRefused):
                if json.loads(text)[1] != "session":
                    held = Reservation(release_id, attempts, settled=False)
                    self._ledger.settle(held, NONE.to_json(), failure=failure)
                    continue
                session, unanswered = self._find_unanswered(self._ledger.release(release_id), text)
                if session is not None and unanswered:
                    session.give_up(unanswered[0], failure)

    def _resume(
        self, caller: Caller, kind: Kind, body: Body, text: str, charged: Sequence[str]
    ) -> None:
        sealed = self._requests.seal(text)

        def finish() -> Reply:
            query = self._plan_query(caller, kind, body, sealed)
            found = [self._ledger.find(run.key(plan)) for plan, run in query.planned]
            left = {*charged} - {record.release_id for record in found if record}
            # A declaration or grant that changed makes another plan, which nobody asked to pay.
            if self._requests.count_tries(left, caller.name) or None in found:
                raise refuse_for_now("the request is planned otherwise now; send it again")
            if kind == "session":
                # Only what may draw is a try, as of releases: a table that is away ends no session.
                if any(find_source_fault(plan) for plan, _ in query.planned):
                    raise refuse_for_now(SOURCE_AWAY)
                for session_id in charged:
                    with suppress(RetryConflict):
                        self._ledger.count_try(session_id, caller.name)
            return self._answer(query)

        try:
            source = self._plan_query(caller, kind, body, sealed).source
        except DpflowError as error:
            self._requests.log_once(
                f"{caller.name} paid for {', '.join(charged)}, now without a plan: {error}. Mend it, or: dpflow ledger resolve {charged[0]}"
            )
            return
        job_id = self._requests.identify_job(text)
        self._jobs.submit(Job(job_id, caller.name, source, finish, is_charged=True))

    def _require_allowed(self, caller: Caller, kind: Kind, body: Body) -> None:
        """Raises `Refused` unless the caller may ask this."""
        caller.require_door(find_door(kind))
        if "task" in kind:
            caller.require_dag(body["run"]["dag_id"])

    def _plan_query(self, caller: Caller, kind: Kind, body: Body, sealed: str) -> Query:
        query, max_rows = self._plan_kind(caller, kind, body, sealed), caller.terms.max_rows
        return replace(query, answer=lambda: cut_reply(query.answer(), max_rows))

    def _plan_kind(self, caller: Caller, kind: Kind, body: Body, sealed: str) -> Query:
        if kind == "release":
            return self._make_release(*self._plan_release(caller, body), sealed)
        if kind == "release task":
            return self._make_task_releases(caller, body, sealed)
        if kind == "gate":
            return self.gates.plan_candidate(caller, body)
        if kind == "session":
            session, run = self._plan_release(caller, body["session"])
            opened = session, replace(run, sealed_request=sealed)
            return plan_questions(opened, body, self._ledger, self._registry)
        if kind in ("load", "load task"):
            return plan_load(self._service, self._tables, caller, body)
        if kind in ("contract", "contract task"):
            contract = caller.find_own("contract", body["contract"], self._contracts)
            ask = (contract, caller, body, sealed, self._ledger, self._registry)
            planned = plan_checks(*ask)
            place = planned[0][0].table.place
            return Query(place, planned, lambda: answer_contract(*ask))
        if kind == "sql task":
            return self._make_task_query(caller, body, sealed)
        question = self._read_question(caller, body)
        kept = KeptAnswer(*question, self._ledger, self._registry, self._service.public)
        if (known := kept.find()) is not None:
            return Query("", [], known.to_wire)
        plan = self._plan_answer(question)

        def identify(position: int) -> RunIdentity:
            run = identify_query(plan.parts[position].plan, caller.name)
            return replace(run, sealed_request=sealed)

        def answer() -> Reply:
            made = answer_sql(plan, self._ledger, self._registry, identify)
            kept.keep(plan, made)
            return made.to_wire()

        return Query(
            plan.tables[0].place,
            [
                (part.plan, identify(position))
                for position, (part, stored) in enumerate(zip(plan.parts, plan.stored))
                if stored is None
            ],
            answer,
            rows=plan.count_rows() if plan.to_pay else None,
        )

    def _plan_answer(self, question: Question, identify: IdentifyPart | None = None) -> SqlPlan:
        plan = self._plan_sql(question, identify)
        if plan.source.explain:
            raise InvalidInput("EXPLAIN asks for a plan; send it to /v1/explain, or drop EXPLAIN")
        return plan

    def _make_release(self, plan: Plan, run: RunIdentity, sealed: str) -> Query:
        if not isinstance(plan.mechanism, Mechanism):
            raise PlanRefused(
                f"{plan.mechanism.name} is a session; ask it as one (dpflow ask, SessionOperator)"
            )
        run = replace(run, sealed_request=sealed)
        return Query(
            plan.table.place,
            [(plan, run)],
            lambda: release(plan, self._ledger, self._registry, run_identity=run).to_wire(),
            rows=plan.mechanism.count_rows(plan.params, plan.table),
        )

    def _make_task_releases(self, caller: Caller, body: Body, sealed: str) -> Query:
        requests = [self._parse_release(caller, fields) for fields in body["releases"]]

        def identify(ordinal: int, part: str) -> RunIdentity:
            return caller.identify_task(body, ordinal, part, sealed)

        # What takes its bounds from a release of the list is planned with very wide ones until that is settled.
        planned = [
            (make_plan(request, self._registry, self._ledger, run, assume_bounds=True), run)
            for request, run in zip(requests, identify_all(requests, identify))
        ]
        for plan, _ in planned:
            if not isinstance(plan.mechanism, Mechanism):
                raise PlanRefused(
                    f"{plan.mechanism.name} is a session; ask it as one (SessionOperator)"
                )

        def answer() -> Reply:
            made = release_list(
                requests, identify, self._ledger, self._registry, spend_again=body["spend_again"]
            )
            return {"releases": [describe_event(plan, receipt) for plan, receipt in made]}

        return Query(planned[0][0].table.place, planned, answer)

    def _make_task_query(self, caller: Caller, body: Body, sealed: str) -> Query:
        def identify(parts: Sequence[PartPlan], position: int) -> RunIdentity:
            return caller.identify_task(body, 0, f"#{position}" if position else "", sealed)

        plan = self._plan_answer(self._read_question(caller, body), identify)
        if plan.settings.revision is not None:
            raise InvalidInput(
                "the query names a revision, and in a task each run draws for itself; leave revision out, and use "
                "ordinal for a second draw in one run"
            )
        runs = [identify(plan.parts, position) for position in range(len(plan.parts))]

        def answer() -> Reply:
            ask = (plan, self._ledger, self._registry, runs.__getitem__, body["spend_again"])
            return plan.describe_answer(answer_sql(*ask))

        planned = [part.plan for part in plan.parts]
        return Query(plan.tables[0].place, [*zip(planned, runs)], answer)

    def _list_unsettled(self, planned: Sequence[Planned]) -> Unsettled:
        """What no settled release of the same run answers, each with what was charged for it, if anything was."""
        found = [(plan, self._ledger.find(run.key(plan))) for plan, run in planned]
        return [(plan, stored) for plan, stored in found if stored is None or not stored.settled]

    def _describe_planned(self, planned: Planned) -> str:
        plan, run = planned
        return describe_charge(plan, is_paid=self._ledger.find(run.key(plan)) is not None)

    def _require_payable(self, caller: Caller, unsettled: Unsettled, rows: int | None) -> bool:
        """Refuse at once what the charge would refuse. Whether something of it was charged before.

        Raises `PlanRefused` or `BudgetExceeded`.
        """
        new = [plan for plan, stored in unsettled if stored is None]
        is_charged = len(new) < len(unsettled)
        if not new:
            return is_charged
        if excess := find_excess(caller.terms, new, rows):
            raise PlanRefused(excess)
        for plan in new:
            check_scope(plan, self._ledger)
            require_certified(plan, self._ledger)
        first = new[0]
        events = [plan.event for plan in new]
        self._ledger.require((first.request.scope, events, first.charged_blocks))
        return is_charged
