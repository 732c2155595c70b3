"""`ReleaseOperator`: differentially private releases, one or a list of them per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpflow.airflow.asset_events import fill_outlet_events
from dpflow.airflow.base_operator import PrivacyOperator
from dpflow.airflow.links import BudgetPageLink, ReceiptLink
from dpflow.airflow.release_requests import describe_charge, list_releases, number_equal
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    Blocks,
    dag_folder,
    identify_run,
    map_failures,
    open_ledger,
    read_request,
    require_lasting,
)

if TYPE_CHECKING:
    from dpflow.engine import Plan, Receipt
    from dpflow.engine.releases.run_identity import RunIdentity


def describe_receipt(receipt: Receipt) -> str:
    """One line for a task's log: whether it was paid now or before, and where its result is. Never
    the result.
    """
    paid = (
        f"nothing was charged: {receipt.run} paid, and it was settled at "
        f"{receipt.released_at:%Y-%m-%d %H:%M:%S} UTC; this is its stored result"
        if receipt.replayed
        else f"charged epsilon {receipt.epsilon}, delta {receipt.delta} to scope {receipt.scope}"
    )
    place = f"published in {receipt.published}" if receipt.published else "not published"
    return f"{receipt.name}: {paid}; {place}; release {receipt.release_id}"


def describe_event(plan: Plan, receipt: Receipt) -> dict[str, Any]:
    """What an asset event says of a release: its receipt, the table it was published in, and the
    half-width of its noise interval as it was planned. Never the result.
    """
    fields = receipt.to_json()
    # How many rows there are is the table's to say.
    del fields["rows"]
    bound = plan.error_bound
    return fields | {
        # A place is FILE:TABLE.
        "table": receipt.published and receipt.published.rpartition(":")[2],
        "half_width_95": (bound and dict(bound.half_width)) or None,
    }


class ReleaseOperator(PrivacyOperator):
    """Charge, draw, settle and publish releases, exactly once whatever Airflow retries.

    :param release: a release as a mapping, or the path of a release file relative to the DAG file,
        or a list of these (templated).
    :param blocks: the blocks it reads, instead of those in ``release``, e.g. ``"{{
        data_interval_start | ds }}"`` (templated). A template that renders to nothing fails the
        task before anything is charged.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    :param ordinal: number among equal releases of one run, when the same one is requested twice.
        Equal releases of a list are counted from it.
    :param spend_again: pay for a new release although this task released something else for this interval
        before.

    Charges the release's scope when the task first runs; a retry, clear or backfill of the same
    interval costs nothing. A list is charged whole before any row is read: if one is refused, none
    is charged. Then its releases are drawn one after the other, and a retry draws those that have
    no result. A release that takes bounds from one of the list is charged after that one was drawn,
    with those behind it. An entry that asks for the release of an earlier one in other words is
    refused, too. Assets among the task's ``outlets`` get events that say what was released
    (`dpflow.airflow.asset_events`). Returns a receipt, or a list of them for a list: release id, privacy cost, what it
    protects, whether it was replayed. Never the result.
    """

    template_fields: Sequence[str] = ("release", "blocks", "plan_only")
    request_field = "release"  #: the argument that says what is charged; `dpflow plan` reads it
    operator_extra_links = (ReceiptLink(), BudgetPageLink())
    #: Of the one release of a task that has run; read by its link.
    receipt_id: str | None = None
    ui_color = "#d7e8f5"

    def __init__(
        self,
        *,
        release: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str],
        blocks: Blocks = NOT_GIVEN,
        ledger_conn_id: str | None = None,
        ordinal: int = 0,
        spend_again: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.release = release
        self.keep_blocks(blocks)
        self.ledger_conn_id = ledger_conn_id
        self.ordinal = ordinal
        self.spend_again = spend_again

    @map_failures
    def execute(self, context: Any) -> dict[str, Any] | list[dict[str, Any]]:
        """Run the release, or those of the list in their order; see the class."""
        from dpflow.engine import make_plan, release_all
        from dpflow.errors import PlanRefused
        from dpflow.registry import Registry

        registry, folder = Registry.load(), dag_folder(context)
        # All are read before the first is charged: a mistake in the last costs nothing.
        requests = [
            read_request(release, self.requested_blocks(), folder)
            for release in list_releases(self.release)
        ]
        for request in requests:
            if request.publish is not None:
                require_lasting(request.publish.database, "published file")
        ledger = open_ledger(self.ledger_conn_id, folder)
        receipts: list[dict[str, Any]] = []
        waiting: list[tuple[Plan, RunIdentity]] = []
        events: list[dict[str, Any]] = []
        names: dict[tuple[str, int], str] = {}

        def release_waiting() -> None:
            for plan, _ in waiting:
                self.log.info("%s", describe_charge(plan))
            done = release_all(waiting, ledger, registry, spend_again=self.spend_again)
            for (plan, _), receipt in zip(waiting, done):
                self.log.info("%s", describe_receipt(receipt))
                receipts.append(receipt.to_json())
                events.append(describe_event(plan, receipt))
                where = plan.request.publish
                output = (where.database, where.table) if where else None
                self.note_release([plan.table], receipt.to_json(), output)
            waiting.clear()

        for n, (request, ordinal) in enumerate(zip(requests, number_equal(requests))):
            run = identify_run(context, self.ordinal + ordinal, f"#{n}" if n else "")
            # Its plan needs what these search for, so they come first.
            if {plan.request.name for plan, _ in waiting} & set(request.bounds):
                release_waiting()
            plan = make_plan(request, registry, ledger, run)
            # A database's path is in no digest: a second file would get the first one's result.
            other = names.setdefault((plan.digest, ordinal), request.name)
            if len(names) <= n:
                raise PlanRefused(
                    f"{request.name!r} is the same release as {other!r} before it in the list, "
                    f"though written otherwise; write both the same way to draw twice, and give "
                    f"the declarations of two tables two names"
                )
            waiting.append((plan, run))
        release_waiting()
        self.receipt_id = receipts[0]["release_id"] if len(receipts) == 1 else None
        fill_outlet_events(self.outlets, context, events)
        for scope in dict.fromkeys(receipt["scope"] for receipt in receipts):
            blocks = {
                b for receipt in receipts if receipt["scope"] == scope for b in receipt["blocks"]
            }
            self.log_remaining(ledger, scope, blocks)
        return receipts[0] if isinstance(self.release, str | Mapping) else receipts
