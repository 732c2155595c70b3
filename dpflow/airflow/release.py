"""`ReleaseOperator`: differentially private releases, one or a list of them per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.airflow.asset_events import fill_outlet_events
from dpflow.airflow.links import BudgetPageLink, ReceiptLink
from dpflow.airflow.service_task import RequestTask
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    Blocks,
    dag_folder,
    identify_run,
    list_releases,
    map_failures,
    open_ledger,
    read_blocks,
    read_fields,
    read_request,
    require_lasting,
)

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient
    from dpflow.core.contract.declaration import Table
    from dpflow.ledger import Ledger


#: What pays where a revision does not.
SECOND_DRAW = "ordinal=1 with spend_again=True on the operator pays for another draw"
#: What the operator returns of each release.
RECEIPT_FIELDS = (
    *("release_id", "name", "mechanism", "scope", "blocks", "epsilon", "delta", "protects"),
    *("replayed", "rows", "published"),
)


def describe_receipt(event: Mapping[str, Any]) -> str:
    """One line for a task's log: whether a release was paid now or before, and where its result is. Never
    the result.
    """
    paid = (
        f"nothing was charged: {event['run']} paid, and it was settled at "
        f"{event['released_at'][:19].replace('T', ' ')} UTC; this is its stored result"
        if event["replayed"]
        else f"charged epsilon {event['epsilon']}, delta {event['delta']} to scope {event['scope']}"
    )
    place = f"published in {event['published']}" if event["published"] else "not published"
    return f"{event['name']}: {paid}; {place}; release {event['release_id']}"


class ReleaseOperator(RequestTask):
    """Charge, draw, settle and publish releases, exactly once whatever Airflow retries.

    :param release: a release as a mapping, or the path of a release file relative to the DAG file,
        or a list of these (templated).
    :param blocks: the blocks it reads, instead of those in ``release``, e.g. ``"{{
        data_interval_start | ds }}"`` (templated). A template that renders to nothing fails the
        task before anything is charged.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    :param service_conn_id: connection of type ``dpflow``; see `JobTask`, which has ``deferrable``, too.
    :param ordinal: number among equal releases of one run, when the same one is requested twice.
        Equal releases of a list are counted from it. An unused number with ``spend_again`` pays for another draw of
        an interval that was paid; a request's ``revision`` does not.
    :param spend_again: pay for a new release although this task released something else for this interval, or
        the same with another ``ordinal``, before.

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
    door = "tasks/release"
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
        if (client := self.find_service()) is not None:
            return self.ask_service(context, client)
        from dpflow.engine.releases.release_list import describe_event, release_list
        from dpflow.registry import Registry

        folder = dag_folder(context)
        # All are read before the first is charged: a mistake in the last costs nothing.
        requests = [
            read_request(release, self.requested_blocks(), folder)
            for release in list_releases(self.release)
        ]
        for request in requests:
            self.warn_of_revision(request.name, request.revision, SECOND_DRAW)
            if request.publish is not None:
                require_lasting(request.publish.database, "published file")
        ledger = open_ledger(self.ledger_conn_id, folder)
        events: list[dict[str, Any]] = []
        blocks = {block for request in requests for block in request.blocks}
        made = release_list(
            requests,
            lambda ordinal, part: identify_run(context, blocks, self.ordinal + ordinal, part),
            ledger,
            Registry.load(),
            spend_again=self.spend_again,
            log_charge=lambda line: self.log.info("%s", line),
        )
        for plan, receipt in made:
            where = plan.request.publish
            events.append(describe_event(plan, receipt))
            self._keep_receipt(
                events[-1], [plan.table], (where.database, where.table) if where else None
            )
        return self._report_releases(context, events, ledger)

    def make_body(self, context: Any) -> dict[str, Any]:
        """The releases, for a service."""
        from dpflow.client.remote import encode_fields

        folder = dag_folder(context)
        releases = [
            read_fields(release, self.requested_blocks(), folder)[0]
            for release in list_releases(self.release)
        ]
        for fields in releases:
            self.warn_of_revision(fields.get("name"), fields.get("revision"), SECOND_DRAW)
        return {
            "releases": [encode_fields(fields) for fields in releases],
            "ordinal": self.ordinal,
            "spend_again": self.spend_again,
        }

    def list_read_blocks(self, body: Mapping[str, Any]) -> list[str]:
        """As the base class, of all its releases."""
        named = (release.get("blocks") for release in body["releases"])
        return [block for blocks in named if blocks for block in read_blocks(blocks)]

    def report_answer(
        self, context: Any, answer: Mapping[str, Any], client: RemoteClient
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """As after a release beside the ledger; lineage hears of the cost, and not of the table."""
        for event in answer["releases"]:
            self._keep_receipt(event, [], None)
        return self._report_releases(context, answer["releases"], client)

    def _keep_receipt(
        self, event: Mapping[str, Any], tables: Sequence[Table], output: tuple[Path, str] | None
    ) -> None:
        self.log.info("%s", describe_receipt(event))
        self.note_release(tables, event, output)

    def _report_releases(
        self, context: Any, releases: Sequence[dict[str, Any]], place: Ledger | RemoteClient
    ) -> dict[str, Any] | list[dict[str, Any]]:
        self.receipt_id = releases[0]["release_id"] if len(releases) == 1 else None
        told = ("rows", "run", "released_at")
        fill_outlet_events(
            self.outlets,
            context,
            [{k: v for k, v in event.items() if k not in told} for event in releases],
        )
        for scope in dict.fromkeys(event["scope"] for event in releases):
            blocks = {b for event in releases if event["scope"] == scope for b in event["blocks"]}
            self.log_remaining(place, scope, blocks)
        receipts = [{name: event[name] for name in RECEIPT_FIELDS} for event in releases]
        return receipts[0] if isinstance(self.release, str | Mapping) else receipts
