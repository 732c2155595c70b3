"""`SqlReleaseOperator`: a query over a private table, released once for each run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpflow.airflow.asset_events import fill_outlet_events
from dpflow.airflow.links import BudgetPageLink, ReceiptLink
from dpflow.airflow.service_task import RequestTask
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    Blocks,
    dag_folder,
    identify_run,
    map_failures,
    name_task_run,
    open_ledger,
    require_lasting,
)
from dpflow.airflow.task_query import plan_query
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from dpflow.analyst_sql.releases.query_parts import PartPlan
    from dpflow.client.remote import RemoteClient
    from dpflow.core.contract.declaration import Table
    from dpflow.engine.releases.run_identity import RunIdentity
    from dpflow.ledger import Ledger


class SqlReleaseOperator(RequestTask):
    """Answer a SELECT over a declared table: charge, draw, settle and publish, exactly once whatever
    Airflow retries.

    :param sql: the query, or the name of a ``.sql`` file that Airflow finds as a template
        (templated). Options may stand in a leading comment: ``-- dp: epsilon=0.5``.
    :param parameters: values of ``$name`` or ``?`` in it (templated). Each stays one literal,
        whatever a run's configuration holds; a template in ``sql`` becomes part of the query.
    :param epsilon: what may be spent, if the query's comment does not say it.
    :param delta: as epsilon.
    :param scope: which budget pays; that of ``dpflow.yml`` if left out.
    :param blocks: the blocks it reads, e.g. ``"{{ data_interval_start | ds }}"`` (templated); WHERE
        may name them, too.
    :param tables: declarations, relative to the DAG file; those of ``dpflow.yml`` if left out.
    :param output_table: what the view of the answers is called in the published file of ``dpflow.yml``,
        and with ``_latest`` behind it that of the latest interval; none is written if left out. It
        takes one task's answers, each mapped instance and ordinal as a run of its own.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    :param service_conn_id: connection of type ``dpflow``; see `JobTask`, which has ``deferrable``, too.
        With it leave ``tables`` and ``output_table`` out: the service has its own.
    :param ordinal: number among equal queries of one run.
    :param spend_again: pay although this task released something else for this interval before.

    A run pays for its own draw: the run identity is in the key, so answers of other runs are not
    taken. A retry, clear or backfill of the same interval costs nothing. Assets among the task's
    ``outlets`` get events that say what was released (`dpflow.airflow.asset_events`). Returns what was charged
    and released: never a number of the answer.
    """

    template_fields: Sequence[str] = ("sql", "parameters", "blocks", "plan_only")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql", "parameters": "json"}
    request_field = "sql"  #: the argument that says what is charged; `dpflow plan` reads it
    door = "tasks/sql"
    label_field = "output_table"
    operator_extra_links = (ReceiptLink(), BudgetPageLink())
    #: Of the one release that answered a query; read by its link.
    receipt_id: str | None = None
    ui_color = "#d7e8f5"

    def __init__(
        self,
        *,
        sql: str,
        parameters: Mapping[str, Any] | Sequence[Any] | None = None,
        epsilon: str | float | None = None,
        delta: str | float | None = None,
        scope: str | None = None,
        blocks: Blocks = NOT_GIVEN,
        tables: Sequence[str] = (),
        output_table: str | None = None,
        ledger_conn_id: str | None = None,
        ordinal: int = 0,
        spend_again: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sql = sql
        self.parameters = parameters
        self.epsilon = epsilon
        self.delta = delta
        self.scope = scope
        self.keep_blocks(blocks)
        self.tables = tables
        self.output_table = output_table
        self.ledger_conn_id = ledger_conn_id
        self.ordinal = ordinal
        self.spend_again = spend_again

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Answer the query; see the class."""
        if (client := self.find_service()) is not None:
            answered: Any = self.ask_service(context, client)
            return dict(answered)
        from dpflow.analyst_sql.answer.publish_answer import check_name, find_output, publish_answer
        from dpflow.analyst_sql.answer.query_plan import answer_sql
        from dpflow.engine.releases.release_list import describe_charge
        from dpflow.registry import Registry

        registry, folder = Registry.load(), dag_folder(context)
        ledger = open_ledger(self.ledger_conn_id, folder)
        arguments = vars(self) | {"blocks": self.list_blocks() if self.names_blocks else None}

        def identify(parts: Sequence[PartPlan], position: int) -> RunIdentity:
            read = {block for part in parts for block in part.plan.read_blocks}
            return identify_run(context, read, self.ordinal, f"#{position}" if position else "")

        plan = plan_query(arguments, folder, registry, ledger, identify=identify)
        read = plan.read_blocks
        # The query's own comment may name it, too.
        name = plan.settings.name
        if name:
            database = check_name(plan, name, folder, *self._name_answer(context, read))
            require_lasting(database, "published file")
        for part in plan.parts:
            self.log.info("%s", describe_charge(part.plan))
        answer = answer_sql(
            plan,
            ledger,
            registry,
            lambda position: identify(plan.parts, position),
            self.spend_again,
        )
        published = publish_answer(plan, answer, folder, *self._name_answer(context, read))
        output = (find_output(plan, name, folder), name) if name and published else None
        return self._report(
            context,
            plan.describe_answer(answer) | {"published": published},
            ledger,
            plan.tables,
            output,
        )

    def _name_answer(self, context: Any, blocks: Collection[str]) -> tuple[str, str]:
        """The run of a published answer, one for each mapped instance and ordinal; and the task that asks."""
        name, map_index = name_task_run(context, blocks)
        parts = [f"map {map_index}"] if map_index >= 0 else []
        parts += [f"ordinal {self.ordinal}"] if self.ordinal else []
        return "/".join([*parts, name]), f"{context['ti'].dag_id}.{context['ti'].task_id}"

    def make_body(self, context: Any) -> dict[str, Any]:
        """The query, for a service."""
        from dpflow.client.remote import encode_query

        if self.tables or self.output_table:
            raise InvalidInput(
                f"{self.task_id!r} asks a service, which has its own tables and writes no file here; leave tables and "
                "output_table out"
            )
        options = {name: getattr(self, name) for name in ("epsilon", "delta", "scope")}
        options["blocks"] = list(self.list_blocks()) if self.names_blocks else None
        parameters = () if self.parameters is None else self.parameters
        return encode_query(self.sql, parameters, options) | {
            "ordinal": self.ordinal,
            "spend_again": self.spend_again,
        }

    def list_read_blocks(self, body: Mapping[str, Any]) -> Any:
        """As the base class; only the service knows what WHERE names."""
        return body["options"].get("blocks")

    def report_answer(
        self, context: Any, answer: Mapping[str, Any], client: RemoteClient
    ) -> dict[str, Any]:
        """As after an answer beside the ledger; lineage hears of the cost, and not of the table."""
        return self._report(context, {**answer, "published": None}, client, (), None)

    def _report(
        self,
        context: Any,
        answer: Mapping[str, Any],
        place: Ledger | RemoteClient,
        tables: Sequence[Table],
        output: tuple[Path, str] | None,
    ) -> dict[str, Any]:
        scope, blocks, published = answer["scope"], answer["blocks"], answer["published"]
        run = f"{self.dag_id}/{self.task_id}/{name_task_run(context, blocks)[0]}"
        for release in answer["releases"]:
            charge = (
                f"charged epsilon {release['epsilon']}, delta {release['delta']} to scope {scope}"
            )
            self.log.info(
                "%s: %s; release %s",
                release["mechanism"],
                f"nothing was charged: {run} paid for it before" if release["stored"] else charge,
                release["release_id"],
            )
        self.log.info("%d rows; published in %s", answer["rows"], published or "no view")
        release_ids = {release["release_id"] for release in answer["releases"]}
        self.receipt_id = release_ids.pop() if len(release_ids) == 1 else None
        events = [
            {name: release[name] for name in ("release_id", "mechanism", "epsilon", "delta")}
            | {
                "scope": scope,
                "blocks": blocks,
                "replayed": release["stored"],
                "protects": answer["protects"],
                "published": published,
                "table": output and output[1],
            }
            for release in answer["releases"]
        ]
        for event in events:
            self.note_release(tables, event, output)
        fill_outlet_events(self.outlets, context, events)
        self.log_remaining(place, scope, blocks)
        return {name: answer[name] for name in ("releases", "protects", "rows", "published")}
