"""Watching a contract: sessions of `watch_rows`, each paid whole when its first question is asked.

A session belongs to a period of blocks (a month, say) and names them. It answers "quiet" for nothing
more, and "alarm" as often as the contract says; then it is closed. The next question opens another
session, which is paid whole again: it names the blocks of the period from the one with the last
alarm on. Every question has one stored answer, so a retry asks nothing new. A session that cannot
read the rows answers none and is closed, too; then the run asks nothing more, for each further
question would pay for a session. So it is where an alarm closed a session and the scope cannot pay for
another: what was paid for is told, and the rest is undecided.

Drift is asked key by key, for a sparse vector compares linear excesses (`key_share`): has the share of
this key grown, or shrunk, by more than ``at_most`` since the reference? Shares of the reference are taken
as they were released. A key that moved so far moves the total variation distance at least as far, so
an alarm means what it does where drift is metered. A drift that no single key shows stays quiet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, TypeAlias

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.printed_numbers import print_bound, print_width
from dpflow.core.contract.results import Result
from dpflow.core.toolbox.row_checks import RowCheck, describe_check, describe_rows, match_keys
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.session import Session
from dpflow.engine.sessions.session_charge import name_query
from dpflow.errors import BudgetExceeded, PlanRefused, SessionClosed
from dpflow.ledger import Ledger
from dpflow.ledger.books.records import AnswerRecord
from dpflow.mechanisms.watch_rows import (
    FAILURE,
    WatchRowsParams,
    scale_checks,
    scaled_margin,
    watch_margins,
)
from dpflow.quality.contract_file import Contract, join_name, list_period
from dpflow.quality.verdicts import CheckOutcome, Verdict
from dpflow.registry import Registry

#: The releases that drift is measured from, by check; None where only a cost is asked.
References: TypeAlias = Mapping[str, Result] | None
#: Bounds that one session takes.
MOST_CHECKS = 100
#: What a session's answer says of a check; one that answered none tells nothing.
VERDICTS: tuple[Verdict, ...] = ("quiet", "alarm")
TOO_LATE = "an alarm closed the session of this block; ask blocks in their order"


def session_blocks(contract: Contract, blocks: Sequence[str], first: str = "") -> list[str]:
    """The blocks that the session of a run names: those of its period, from ``first`` on."""
    if contract.period == "run":
        return list(blocks)
    named = dict.fromkeys(
        day for block in blocks for day in list_period(block, contract.period) if day >= first
    )
    return sorted(named)


def plan_session(contract: Contract, blocks: Sequence[str], registry: Registry) -> Plan:
    """The plan of a watch's first session; its cost is the same for all references."""
    return make_plan(request_session(contract, blocks), registry)


def list_drift_checks(
    contract: Contract, references: References = None
) -> dict[str, tuple[RowCheck, ...]]:
    """The linear checks that each drift check asks, by its name: two for a key, unless no share can
    break one of them.

    Args:
        references: the releases that drift is measured from, by check. None stands for equal shares: a
            plan's cost is the same for all.
    """
    table, checks = contract.load_declaration(), dict[str, tuple[RowCheck, ...]]()
    for place, drift in enumerate(contract.drift):
        keys = table.public_keys(drift.column)
        equal = {key: Fraction(1, len(keys)) for key in keys}
        shares = equal if references is None else _read_shares(references[drift.name])
        listed = []
        for at, key in enumerate(keys):
            # Six decimals, as bounds have them, rounded so that no bound gets tighter.
            most = Fraction(math.ceil((shares[key] + drift.at_most) * 10**6), 10**6)
            least = Fraction(math.floor((shares[key] - drift.at_most) * 10**6), 10**6)
            fields = {
                "check": "key_share",
                "column": drift.column,
                "condition": match_keys(table, drift.column, [key]),
            }
            name = f"drift_{place}_{at}"
            if most < 1:
                listed.append(RowCheck(**fields, name=f"{name}_more", at_most=most))
            if least > 0:
                listed.append(RowCheck(**fields, name=f"{name}_less", at_least=least))
        checks[drift.name] = tuple(listed)
    return checks


def _read_shares(reference: Result) -> dict[str, Fraction]:
    """Each key's share of the counts that `find_reference` found; a count below 0 is noise."""
    counts = {row.key: max(0, row.value) for row in reference.rows if isinstance(row.value, int)}
    total = sum(counts.values())
    return {key: Fraction(count, total) for key, count in counts.items()}


def request_session(
    contract: Contract,
    blocks: Sequence[str],
    references: References = None,
    *,
    first: str = "",
    number: int = 1,
) -> ReleaseRequest:
    """A watch's session for the period of some blocks.

    Args:
        references: of `list_drift_checks`.
        first: the first block that it names.
        number: 1, or one more for each session of the period that its alarms closed.
    """
    named = session_blocks(contract, blocks, first)
    drift = list_drift_checks(contract, references).values()
    checks = [*contract.checks, *(one for listed in drift for one in listed)]
    if not 0 < len(checks) <= MOST_CHECKS:
        raise PlanRefused(
            f"a watch takes 1 to {MOST_CHECKS} bounds, and this contract has {len(checks)}, two for most keys of a drift check; "
            "watch fewer, or take mode: metered"
        )
    # Questions are those of the whole period, so that margins do not shrink after an alarm.
    questions = contract.questions or len(checks) * len(session_blocks(contract, blocks))
    period = ",".join(blocks) if contract.period == "run" else _period_name(blocks, contract)
    return ReleaseRequest(
        name=join_name([contract.name, period], blocks),
        mechanism="watch_rows",
        table=contract.table,
        scope=contract.scope,
        blocks=tuple(named),
        revision=1000 * (contract.revision - 1) + number,
        params={
            "checks": [one.model_dump(mode="json", exclude_none=True) for one in checks],
            "epsilon": str(contract.epsilon),
            "alarms": contract.alarms,
            "questions": questions,
        },
    )


def _period_name(blocks: Sequence[str], contract: Contract) -> str:
    """Such as ``from 2013-01-01 to 2013-01-31``."""
    named = session_blocks(contract, blocks)
    return f"from {named[0]} to {named[-1]}"


class Watch:
    """The sessions of a watching contract, opened as they are needed."""

    def __init__(
        self,
        contract: Contract,
        table: Table,
        ledger: Ledger,
        registry: Registry,
        references: References = MappingProxyType({}),
        principal: str | None = None,
    ) -> None:
        self._contract, self._table, self._references = contract, table, references
        self._ledger, self._registry = ledger, registry
        self._principal = principal
        self._sessions: dict[tuple[Any, ...], Session] = {}
        # Sessions that answered, how many answers they had before, and how many were asked for.
        self._answered: dict[str, tuple[Session, int, int]] = {}
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._why_not = ""

    def ask_checks(self, blocks: Sequence[str]) -> list[CheckOutcome]:
        """Ask every check of every block, in order. A check is violated if one of its blocks is.

        Raises `BudgetExceeded` where the scope cannot pay for the first session; nothing was read then.
        """
        outcomes = []
        for check in self._contract.checks:
            verdict = self._ask_each([check], blocks)
            summary = describe_check(check, self._table)
            outcomes.append(self._tell(check.name, check.check, summary, verdict))
        asked = list_drift_checks(self._contract, self._references)
        for drift in self._contract.drift:
            verdict = self._ask_each(asked[drift.name], blocks)
            bound = f"further than {drift.at_most} from {drift.reference!r}"
            summary = f"no share of {drift.column} {bound}{describe_rows(self._table)}"
            outcomes.append(self._tell(drift.name, "drift", summary, verdict))
        return outcomes

    def plan_sessions(self, blocks: Sequence[str]) -> list[Plan]:
        """The sessions that `ask_checks` would ask of these blocks, as far as the ledger tells: those that were charged
        before, and those that it would open. Reads no row, and cannot know alarms to come.
        """
        drift = list_drift_checks(self._contract, self._references).values()
        plans = dict[tuple[str, int], Plan]()
        for checks in [*((check,) for check in self._contract.checks), *drift]:
            for block in blocks:
                for check in checks:
                    plan, verdict = self._foresee(check.name, block, blocks)
                    if plan is not None:
                        plans[plan.digest, plan.request.revision] = plan
                    if verdict not in (None, *VERDICTS):
                        # The rows could not be read: nothing more is asked.
                        return list(plans.values())
                    if verdict == "alarm":
                        break
        return list(plans.values())

    def _foresee(
        self, check: str, block: str, blocks: Sequence[str]
    ) -> tuple[Plan | None, str | None]:
        """The session that `_ask` would ask, and the answer that it has stored."""
        own, first, number = self._own_blocks(block, blocks), "", 1
        while self._contract.period == "run" or block >= first:
            plan = self._plan(own, first, number)
            record = self._ledger.find(RunIdentity.of_request(plan.request).key(plan))
            if record is None:
                return plan, None
            mechanism = plan.mechanism
            assert isinstance(mechanism, InteractiveMechanism)
            name = name_query(
                record.release_id, mechanism.Query.model_validate(_question(check, block))
            )
            answers = self._ledger.answers(record.release_id)
            stored = next((one.answer for one in answers if one.query == name), None)
            if stored is not None or record.state != "closed":
                return plan, None if stored is None else str(stored["verdict"])
            first, number = self._first_after(answers, first), number + 1
        return None, None

    def _own_blocks(self, block: str, blocks: Sequence[str]) -> Sequence[str]:
        """The blocks of a run whose period a session belongs to, where one of them is asked about."""
        return blocks if self._contract.period == "run" else [block]

    def _first_after(self, answers: Sequence[AnswerRecord], first: str) -> str:
        """The first block of the session that follows a closed one with these answers."""
        alarms = [
            str(one.answer["block"]) for one in answers if one.answer.get("verdict") == "alarm"
        ]
        return "" if self._contract.period == "run" else max([first, *alarms[-1:]])

    def _plan(self, blocks: Sequence[str], first: str, number: int) -> Plan:
        name = tuple(session_blocks(self._contract, blocks, first)), number
        if name not in self._plans:
            request = request_session(
                self._contract, blocks, self._references, first=first, number=number
            )
            self._plans[name] = make_plan(request, self._registry)
        return self._plans[name]

    def _tell(self, name: str, kind: str, summary: str, verdict: Verdict) -> CheckOutcome:
        why = (self._why_not or TOO_LATE) if verdict == "undecided" else None
        return CheckOutcome(name, kind, summary, verdict, why_undecided=why)

    def _ask_each(self, checks: Sequence[RowCheck], blocks: Sequence[str]) -> Verdict:
        """The worst verdict of some checks, all of one kind, on every block."""
        asked = set[Verdict]()
        for block in blocks:
            for one in checks:
                asked.add(verdict := self._ask(one.name, block, blocks))
                # One key is enough, and the next alarm would cost another session.
                if verdict == "alarm":
                    break
        worst_first: tuple[Verdict, ...] = ("alarm", "undecided")
        return next((verdict for verdict in worst_first if verdict in asked), "quiet")

    def _ask(self, check: str, block: str, blocks: Sequence[str]) -> Verdict:
        """One question, in the first session of its period that answers it."""
        if self._why_not:
            return "undecided"
        own, first, number = self._own_blocks(block, blocks), "", 1
        while True:
            # A block before the last alarm, asked too late: the session that named it is closed.
            if self._contract.period != "run" and block < first:
                return "undecided"
            try:
                session = self._open_session(own, first, number)
            except BudgetExceeded as error:
                # Before the first alarm nothing was paid; after it, what was is told.
                if not self._answered:
                    raise
                self._why_not = f"after an alarm another session asks the rest, and {error}"
                return "undecided"
            before = self._ledger.session(session.id).version
            try:
                answer = session.ask(_question(check, block))
            except SessionClosed:
                first = self._first_after(self._ledger.answers(session.id), first)
                number += 1
                continue
            _, before, asked = self._answered.get(session.id, (session, before, 0))
            self._answered[session.id] = session, before, asked + 1
            if answer["verdict"] not in VERDICTS:
                self._why_not = "the session could not read the rows"
            return next((told for told in VERDICTS if told == answer["verdict"]), "undecided")

    def _open_session(self, blocks: Sequence[str], first: str, number: int) -> Session:
        """Charge a session whole, or go on with it."""
        name = tuple(session_blocks(self._contract, blocks, first)), number
        if name not in self._sessions:
            plan = self._plan(blocks, first, number)
            identity = RunIdentity.of_request(plan.request, self._principal)
            self._sessions[name] = Session.open(
                plan, self._ledger, self._registry, run_identity=identity
            )
        return self._sessions[name]

    @property
    def receipts(self) -> list[dict[str, Any]]:
        """Of the sessions that answered; ``replayed`` if no row was read, for all answers were stored before this run."""
        receipts = []
        for session, before, asked in self._answered.values():
            request, new = session.plan.request, self._ledger.session(session.id).version - before
            epsilon, delta = session.plan.privacy_cost()
            receipts.append(
                {
                    "release_id": session.id,
                    "name": request.name,
                    "scope": request.scope,
                    "epsilon": epsilon,
                    "delta": delta,
                    "blocks": len(request.blocks),
                    "replayed": new == 0,
                    "stored_answers": max(0, asked - new),
                }
            )
        return receipts


def _question(check: str, block: str) -> dict[str, str]:
    return {"check": check, "block": block}


@dataclass(frozen=True)
class CostComparison:
    """What a watch costs beside paying for each question, at the same margins.

    Attributes:
        margins: by check, the excess below which nothing alarms and above twice which all is found,
            with 95 % for all questions together.
        watch: epsilon that a session charges, to every block or to the unit.
        paid_each: epsilon that Laplace noise on each excess by itself charges for the same margins.
        per: what both are charged to.
    """

    margins: dict[str, float]
    watch: Fraction
    paid_each: Fraction
    per: str

    @property
    def cheaper(self) -> str:
        """``watch`` or ``metered``."""
        return "watch" if self.watch <= self.paid_each else "metered"

    def describe(self) -> dict[str, Any]:
        """For a person."""
        return {
            "charged to": self.per,
            "watch": f"epsilon {exact_text(self.watch)}, and as much again after its alarms",
            "paying each time": f"epsilon {print_bound(float(self.paid_each), upper=True)} for the same margins",
            "cheaper": self.cheaper,
        } | {f"margin of {name}": print_width(width) for name, width in self.margins.items()}


def compare_costs(plan: Plan) -> CostComparison:
    """A session's cost, and that of Laplace noise of the same margins on each of its questions.

    Of a session with Q questions, each excess with sensitivity D on the common scale: Laplace noise of
    scale s stays within the margin M for all with 95 % if s ln(Q/0.05) <= M, and costs D/s. All checks of
    a block are charged to that block; of a table that protects whole units, all questions to the unit.
    """
    params = plan.params
    assert isinstance(params, WatchRowsParams)
    # On the common scale, margin and sensitivity have one ratio: that of any check.
    margins = watch_margins(params, plan.table)
    _, engine = scale_checks(params, plan.table)
    margin = scaled_margin(engine, params.questions)
    ratio = engine.sensitivity * math.log(params.questions / FAILURE) / margin
    per_block = plan.table.protects == "unit-block"
    count = len(params.checks) if per_block else params.questions
    paid = Fraction(math.ceil(count * ratio * 10**6), 10**6)
    return CostComparison(
        margins, params.epsilon, paid, "each block" if per_block else "the unit, over all blocks"
    )
