"""Run a data contract: find out what its mode may know, validate that with Great Expectations,
record the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result
from dpflow.counted import counted
from dpflow.engine.releases.execute import has_hard_links, name_rows, release_all
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.receipt import Receipt
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.error_boundary import errors_end_here, silence_libraries
from dpflow.errors import ContractViolated, InvalidInput, MissingExtra, PlanRefused
from dpflow.extras import require_extra
from dpflow.ledger import Ledger
from dpflow.quality.contract_file import Contract, DriftCheck, join_name, require_blocks
from dpflow.quality.decidability import weigh_checks
from dpflow.quality.expectations import judged_columns
from dpflow.quality.registered_suite import check_suite
from dpflow.quality.validate import check, require_checkable
from dpflow.quality.verdicts import (
    CheckOutcome,
    all_pass,
    judge_checks,
    judge_drift,
    shares_of,
)
from dpflow.quality.watch import Watch, request_session
from dpflow.registry import Registry

#: Which run a paid release belongs to: of its plan and its place among those of the run.
Identify = Callable[[Plan, int], RunIdentity]


@dataclass(frozen=True)
class ContractOutcome:
    """What a run of a contract found. All of it may be shown to whoever may see the run.

    Attributes:
        contract, table, mode, blocks: what was checked.
        passed: whether the rows keep the contract, as far as its mode tells.
        checks: the outcome of each check; in mode trusted the one bit.
        receipts: of what was paid, or replayed.
        validation: Great Expectations' result over these outcomes, as JSON.
    """

    contract: str
    table: str
    mode: str
    blocks: tuple[str, ...]
    passed: bool
    checks: tuple[CheckOutcome, ...]
    receipts: tuple[dict[str, Any], ...] = ()
    validation: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> str:
        """In words, with the number of checks that noise left undecided, and whether the answers are stored ones."""
        undecided = sum(check.verdict == "undecided" for check in self.checks)
        beside = f", {undecided} of {len(self.checks)} checks undecided" if undecided else ""
        word = "quiet" if self.mode == "watch" else "kept"
        if self.receipts and all(receipt["replayed"] for receipt in self.receipts):
            beside += ", as answered before: no row was read"
        elif stored := sum(receipt.get("stored_answers", 0) for receipt in self.receipts):
            beside += f", {counted(stored, 'question')} as answered before"
        return f"{'' if self.passed else 'not '}{word}{beside}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object: what the operator returns."""
        return {
            "contract": self.contract,
            "table": self.table,
            "mode": self.mode,
            "blocks": list(self.blocks),
            "passed": self.passed,
            "checks": [outcome.to_json() for outcome in self.checks],
            "receipts": list(self.receipts),
            "validation": self.validation,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ContractOutcome:
        """The inverse of `to_json`."""
        return cls(
            **{
                **data,
                "blocks": tuple(data["blocks"]),
                "checks": tuple(CheckOutcome(**check) for check in data["checks"]),
                "receipts": tuple(data["receipts"]),
            }
        )

    def require_passed(self) -> None:
        """Raises `ContractViolated` if the contract is not kept; it names checks, never values."""
        if self.passed:
            return
        where = f"{self.table} {list(self.blocks)}"
        if self.mode == "trusted":
            promise = "the declaration" if self.checks[0].kind == "declaration" else "the suite"
            raise ContractViolated(
                f"the rows of {where} do not satisfy {promise}; let the table's owner look at them"
            )
        parts = []
        for verdict in ("violated", "alarm", "undecided"):
            if names := [one.name for one in self.checks if one.verdict == verdict]:
                parts.append(f"{verdict}: {', '.join(names)}")
        advice = "let the table's owner look at the rows"
        undecided = [one for one in self.checks if one.verdict == "undecided"]
        if any(one.why_undecided is None for one in undecided):
            advice += "; undecided checks need a larger epsilon, a wider bound, or undecided: pass"
        for why in dict.fromkeys(one.why_undecided for one in undecided if one.why_undecided):
            advice += (
                f"; {', '.join(one.name for one in undecided if one.why_undecided == why)}: {why}"
            )
        raise ContractViolated(
            f"contract {self.contract!r} on {where} ({'; '.join(parts)}); {advice}"
        )


@errors_end_here
def run_contract(
    contract: Contract,
    blocks: Sequence[str] = (),
    *,
    ledger: Ledger | None = None,
    registry: Registry | None = None,
    principal: str | None = None,
    identify: Identify | None = None,
    actions: Sequence[Any] = (),
    project: Path | None = None,
) -> ContractOutcome:
    """Check the rows of the named blocks; the same run again pays nothing.

    Args:
        ledger: what pays, and where the outcome is recorded. Modes public and trusted need none,
            and are then recorded nowhere.
        principal: who asks, for the history.
        identify: which run it is; by default the contract's name and revision, and the blocks.
        actions: Great Expectations' actions, such as ``SlackNotificationAction``, which get the
            outcomes; one that fails leaves them as they are.
        project: the folder of a project of Great Expectations, whose Data Docs sites
            ``UpdateDataDocsAction`` then writes.

    Raises:
        InvalidInput: a folder without a project.
        BudgetExceeded: a paid mode is above what is left; nothing was read. Of a watch, its first session.
        PlanRefused: a mode that reads rows on a holdout; checks outside of the language.
        TableUnreadable, TableBusy: as for releases.
    """
    table = contract.load_declaration()
    blocks = tuple(blocks)
    require_blocks(contract, table, blocks)
    # Before anything is paid that nobody could then be told.
    with require_extra("quality", "a data contract"), silence_libraries():
        from dpflow.quality.validation_result import find_home, validate_outcomes
    if project is not None:
        find_home(project)
    receipts, data = list[dict[str, Any]](), list[str]()

    def record(passed: bool | None) -> None:
        """What a gate must know: somebody was told of these rows. None where they were not judged."""
        if ledger is None:
            return
        entry = {
            "table": table.name,
            "blocks": list(blocks),
            "passed": passed,
            "mode": contract.mode,
        }
        who = principal or RunIdentity.of_request(_request(contract, "", {}, blocks)).principal
        ledger.record("contract", entry, principal=who, data=data)

    if contract.mode == "public":
        outcomes = check_catalogue(table)
    elif contract.mode == "trusted":
        if ledger is not None:
            require_checkable(table, blocks)
            data = name_rows(table, ledger, asks_source=True)
            ledger.require_no_gate(data)
            if has_hard_links(table):
                raise PlanRefused(
                    f"the file of table {table.name!r} has another name, a hard link, under which a gate may be on its rows; leave "
                    "it one name"
                )
        try:
            outcomes = [_check_trusted(contract, table, blocks, ledger)]
        except (InvalidInput, MissingExtra):
            # Said by the declaration and the suite.
            raise
        except Exception:
            # Rows may decide that they cannot be judged, and how it fails.
            record(None)
            raise
    else:
        if ledger is None:
            raise InvalidInput(f"a contract in mode {contract.mode} is paid from a ledger; name it")
        registry = registry or Registry.load()
        if contract.mode == "metered":
            outcomes, paid = _pay_checks(contract, blocks, ledger, registry, identify, principal)
            receipts = [receipt.to_json() for receipt in paid]
        else:
            references = find_references(contract, blocks, ledger, registry)
            watch = Watch(contract, table, ledger, registry, references, principal)
            outcomes = watch.ask_checks(blocks)
            receipts = watch.receipts
    passed = all_pass(outcomes, contract.undecided)
    # Before anybody hears of it: a gate may have opened on the rows meanwhile.
    record(passed)
    return ContractOutcome(
        contract.name,
        table.name,
        contract.mode,
        blocks,
        passed,
        tuple(outcomes),
        tuple(receipts),
        validate_outcomes(contract, outcomes, actions, project),
    )


def _check_trusted(
    contract: Contract, table: Table, blocks: Sequence[str], ledger: Ledger | None
) -> CheckOutcome:
    """The one bit of mode trusted."""
    if contract.suite is None:
        kind, summary, is_kept = (
            "declaration",
            "rows are as the table declares",
            check(table, blocks),
        )
    else:
        kind, summary = "suite", f"rows keep suite {contract.suite.name}"
        is_kept = check_suite(contract.suite, table, blocks, ledger)
    return CheckOutcome(kind, kind, summary, "kept" if is_kept else "violated")


def check_catalogue(table: Table) -> list[CheckOutcome]:
    """Whether every declared column exists with a type that releases can use. Reads no row, so it
    works on holdouts, too. Raises `TableUnreadable` without the file or the relation.
    """
    from dpflow.tables.backends.judged_rows import find_judge

    names = judged_columns(table)
    usable = set(find_judge(table).usable_columns(table, names))
    return [
        CheckOutcome(
            name,
            "column",
            f"column {name} exists with a usable type",
            "kept" if name in usable else "violated",
        )
        for name in names
    ]


def plan_contract(
    contract: Contract, blocks: Sequence[str], registry: Registry, ledger: Ledger | None = None
) -> list[tuple[Plan, DriftCheck | None]]:
    """The plans of `list_requests`, each with its drift check. Rows are cut as the declaration says: verdicts of two
    runs, and shares and their reference, are about the same rows, whatever profile is released between them.

    Args:
        ledger: whose grants say which noise is held.
    """
    filters = ScopeFilters(ledger)
    requests = list_requests(contract, blocks, filters)
    return [(make_plan(request, registry, filters=filters), drift) for request, drift in requests]


def list_requests(
    contract: Contract, blocks: Sequence[str], filters: ScopeFilters
) -> list[tuple[ReleaseRequest, DriftCheck | None]]:
    """The releases of a metered contract: one for its checks, and one for each drift check."""
    asked: list[tuple[ReleaseRequest, DriftCheck | None]] = []
    if contract.checks:
        weighted = weigh_checks(contract, filters)
        params = {
            "checks": [one.model_dump(mode="json", exclude_none=True) for one in weighted],
            "epsilon": str(contract.epsilon),
            "delta": str(contract.delta),
        }
        asked.append((_request(contract, "check_rows", params, blocks), None))
    return asked + [(_request_drift(contract, drift, blocks), drift) for drift in contract.drift]


def _request_drift(contract: Contract, drift: DriftCheck, blocks: Sequence[str]) -> ReleaseRequest:
    """The histogram that a drift check is decided by where it is metered."""
    params = {"by": drift.column, "epsilon": str(drift.epsilon or 1)}
    return _request(contract, "histogram", params, blocks, drift.name)


def _request(
    contract: Contract,
    mechanism: str,
    params: dict[str, Any],
    blocks: Sequence[str],
    part: str = "",
) -> ReleaseRequest:
    return ReleaseRequest(
        name=join_name([contract.name, part, ",".join(blocks)], blocks),
        mechanism=mechanism,
        table=contract.table,
        scope=contract.scope or contract.name,
        params=params,
        blocks=tuple(blocks),
        revision=contract.revision,
    )


def _pay_checks(
    contract: Contract,
    blocks: Sequence[str],
    ledger: Ledger,
    registry: Registry,
    identify: Identify | None,
    principal: str | None,
) -> tuple[list[CheckOutcome], list[Receipt]]:
    """Charge all of a metered contract in one transaction, or nothing; then decide its checks."""
    planned = plan_contract(contract, blocks, registry, ledger)
    # Looked up before anything is paid: a reference that is missing costs nothing.
    references = {d.name: find_reference(ledger, d, plan) for plan, d in planned if d is not None}
    runs = [
        identify(plan, n) if identify else RunIdentity.of_request(plan.request, principal)
        for n, (plan, _) in enumerate(planned)
    ]
    plans = [plan for plan, _ in planned]
    receipts = list(release_all(list(zip(plans, runs)), ledger, registry))
    outcomes = []
    for (plan, drift), receipt in zip(planned, receipts):
        if drift is None:
            outcomes += judge_checks(contract, plan, receipt.result)
        else:
            outcomes.append(
                judge_drift(contract, drift, plan, receipt.result, references[drift.name])
            )
    return outcomes, receipts


def find_references(
    contract: Contract, blocks: Sequence[str], ledger: Ledger, registry: Registry
) -> dict[str, Result]:
    """The releases that a watch's drift is measured from, by check. Raises as `find_reference`."""
    return {
        one.name: find_reference(
            ledger, one, make_plan(_request_drift(contract, one, blocks), registry)
        )
        for one in contract.drift
    }


def session_lister(
    contract: Contract, ledger: Ledger | None
) -> Callable[[Sequence[str]], list[ReleaseRequest]]:
    """A function from a run's blocks to the sessions that a watch would ask: of their period, and those that its alarms
    made necessary. Without a ledger, or a reference yet, the first one. Raises as `require_blocks`.
    """
    table, registry = contract.load_declaration(), Registry.load()
    any_block = ("any",) if table.protects == "unit-block" else ()
    watch = None
    if ledger is not None:
        references = None
        with suppress(PlanRefused):
            references = find_references(contract, any_block, ledger, registry)
        watch = Watch(contract, table, ledger, registry, references)

    def list_sessions(blocks: Sequence[str]) -> list[ReleaseRequest]:
        require_blocks(contract, table, blocks)
        if watch is None:
            return [request_session(contract, blocks)]
        return [plan.request for plan in watch.plan_sessions(blocks)]

    return list_sessions


def find_reference(ledger: Ledger, drift: DriftCheck, plan: Plan) -> Result:
    """The released counts that a drift check compares with: the first settled release of that name.

    Args:
        plan: the histogram of the check, which a metered contract pays for.

    Raises:
        PlanRefused: there is none, or one of other counts, or of rows that were chosen or cut otherwise.
    """
    scope, unit = plan.request.scope, plan.table.privacy_unit.column
    remedy = f"release a histogram by {drift.column}"
    for record in ledger.releases_by_name(scope, drift.reference):
        if not record.settled or record.result is None:
            continue
        result = Result.from_json(record.result)
        keys = {row.key for row in result.rows}
        is_by_column = record.request["params"].get("by") == drift.column
        if (
            not is_by_column
            or shares_of(result) is None
            or keys != set(plan.table.public_keys(drift.column))
        ):
            raise PlanRefused(
                f"check {drift.name!r} compares with {drift.reference!r}, which has no counts of the keys that {drift.column!r} "
                f"declares now; {remedy} under another name, and compare with that"
            )
        # Shares of rows that were chosen or cut differently differ though the rows are the same.
        if not plan.measures_same_rows(record.request):
            raise PlanRefused(
                f"check {drift.name!r} compares with {drift.reference!r}, which chose its rows, or cut each {unit}'s rows, otherwise "
                f"than a contract does now; {remedy} of all rows under another name, with the bounds that are declared now"
            )
        return result
    raise PlanRefused(
        f"check {drift.name!r} compares with {drift.reference!r}, and scope {scope!r} has no settled release of that name; {remedy} first"
    )
