"""`PrivacyOperator`: what all operators of dpflow do in Airflow's page: a label for each mapped
task, documentation, and an end at once for a template that no retry can fill.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink

from dpflow.airflow.links import BudgetPageLink
from dpflow.airflow.release_note import ContractNote, LoadNote, ReleaseNote
from dpflow.airflow.run_names import DATED_FIELDS, require_zone
from dpflow.airflow.task_context import (
    LIST_AS_TEXT,
    NOT_GIVEN,
    AirflowFailException,
    AirflowSkipException,
    dag_folder,
    is_collection_text,
    open_ledger,
    read_blocks,
    read_switch,
)
from dpflow.core.contract.printed_numbers import whole_percent
from dpflow.counted import counted
from dpflow.errors import DpflowError, InvalidInput
from dpflow.extras import require_extra

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient
    from dpflow.core.contract.declaration import Table
    from dpflow.engine.releases.plan import Plan
    from dpflow.ledger import Ledger

#: Airflow keeps 250 characters of a mapped task's label.
_LONGEST_LABEL = 100


class PrivacyOperator(BaseOperator):
    """Base of the operators.

    :param plan_only: say in the log what the task would be charged, then skip it: nothing is read, charged
        or published, and no asset event is sent (templated, such as ``"{{ params.plan_only }}"``).
    """

    #: The argument that says what is charged; None for operators that charge nothing.
    request_field: str | None = None
    operator_extra_links: Sequence[BaseOperatorLink] = (BudgetPageLink(),)
    label_field: str | None = None  #: what names a mapped task, where it is another argument
    #: What this try has released so far.
    _release_notes: Sequence[ReleaseNote] = ()
    #: What this try has checked or loaded.
    _other_notes: Sequence[ContractNote | LoadNote] = ()
    #: Whether the DAG names blocks; what a template makes of them cannot take that back.
    names_blocks = False
    blocks: Any = None

    def __init__(self, *, plan_only: bool | str = False, **kwargs: Any) -> None:
        # Shown on the task's page; a DAG's own text wins.
        kwargs.setdefault("doc_md", (inspect.getdoc(type(self)) or "").partition("\n\n")[0])
        super().__init__(**kwargs)
        if plan_only and self.request_field is None:
            raise InvalidInput(f"{self.task_id!r} charges nothing, so it takes no plan_only")
        self.plan_only = plan_only

    def pre_execute(self, context: Any) -> None:
        """As Airflow's; a try begins without releases, and Airflow's connections name servers of Spark."""
        from dpflow.airflow.spark_connections import find_spark_address
        from dpflow.tables import add_address_finder

        super().pre_execute(context)
        self._release_notes = self._other_notes = ()
        add_address_finder("airflow", find_spark_address)
        plans_only = str(self.plan_only).lower() == "true"
        if self.request_field and not plans_only and is_test_run():
            self.log.warning(
                "this run was started by airflow dags test or dag.test(): it reads private rows and spends the real "
                "budget, as any other run; with plan_only=True it would only say what it costs"
            )

    def plan_instead(self, context: Any) -> None:
        """Log what this task would be charged and skip it, where ``plan_only`` is true."""
        if not read_switch("plan_only", self.plan_only):
            return
        lines = self.list_plans(context)
        for line in lines:
            self.log.info("%s", line)
        raise AirflowSkipException(
            f"plan_only: {counted(len(lines), 'release')} planned; nothing was charged"
        )

    def list_plans(self, context: Any) -> list[str]:
        """A line for each release that this task would make."""
        from dpflow.airflow.dag_jobs import list_task_plans

        ledger = open_ledger(getattr(self, "ledger_conn_id", None), dag_folder(context))
        return list_task_plans(self, context, ledger)

    def on_kill(self) -> None:
        """Cancel what is asked of private tables, also on a cluster. What was charged stays so, and the next
        try goes on with it.
        """
        from dpflow.tables import cancel_reads

        cancel_reads()
        super().on_kill()

    def keep_blocks(self, blocks: Any) -> None:
        """Remember an argument ``blocks``, and whether it was given: with `NOT_GIVEN` it is None."""
        self.names_blocks = blocks is not NOT_GIVEN
        self.blocks = blocks if self.names_blocks else None

    def requested_blocks(self) -> Any:
        """The argument ``blocks`` as it was rendered, or `NOT_GIVEN`."""
        return self.blocks if self.names_blocks else NOT_GIVEN

    def list_blocks(self) -> tuple[str, ...]:
        """The blocks of this run; none where the DAG names none. Raises as `read_blocks`."""
        return read_blocks(self.blocks) if self.names_blocks else ()

    def note_release(
        self,
        tables: Iterable[Table],
        release: Mapping[str, Any],
        output: tuple[Path, str] | None = None,
    ) -> None:
        """Keep for lineage what was released; `ReleaseNote` has the arguments' meaning."""
        self._release_notes = (*self._release_notes, ReleaseNote(tuple(tables), release, output))

    def note_other(self, note: ContractNote | LoadNote) -> None:
        """Keep for lineage what was checked or loaded."""
        self._other_notes = (*self._other_notes, note)

    def note_session(
        self, plan: Plan, session_id: str, replayed: bool, output: tuple[Path, str] | None = None
    ) -> None:
        """`note_release` of a session that was opened, or that goes on."""
        from dpflow.engine.releases.release_list import describe_session

        about = describe_session(plan, session_id, replayed=replayed)
        about["published"] = output and f"{output[0].name}:{output[1]}"
        self.note_release([plan.table], about, output)

    def note_opened(self, about: Mapping[str, Any]) -> None:
        """Log and keep for lineage what a service says of a session that it opened, or that goes on."""
        cost = f"epsilon {about['epsilon']}, delta {about['delta']}"
        self.log.info(
            "session %s: %s",
            about["name"],
            f"scope {about['scope']} paid for it before; nothing was charged"
            if about["replayed"]
            else f"charged {cost} to scope {about['scope']}, once for all that it answers",
        )
        self.note_release((), about)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What Airflow's OpenLineage provider tells of this task: `dpflow.airflow.lineage`."""
        with require_extra("lineage", "lineage"):
            from dpflow.airflow.lineage import make_lineage
        return make_lineage([*self._release_notes, *self._other_notes])

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """What this try released before it failed: that was paid, and stands."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Any,
        jinja_env: Any,
        seen_oids: set[int],
    ) -> None:
        """Render, as Airflow does for tasks and mapped tasks; then name a mapped task by what it is
        about, unless its DAG does.

        Raises:
            AirflowFailException: a template that renders to nothing, for a field that is left out mostly means
                more: all rows, or another scope. Or one that cannot be rendered, such as one that needs a
                logical date in a run without one, or one that `require_zone` refuses. Airflow itself would try again, and fail again.
        """
        from jinja2 import TemplateError

        failure = ""
        fields = list(template_fields)
        arguments = {name: getattr(parent, name, None) for name in fields}
        templates = dict(_list_templates(arguments))
        dated = {name: arguments[name] for name in DATED_FIELDS if name in arguments}
        # What a function gets may become blocks.
        of_function = ("op_args", "op_kwargs")
        dated["op_args"] = [text for path, text in templates.items() if path[0] in of_function]
        try:
            super()._do_render_template_fields(parent, fields, context, jinja_env, seen_oids)
            failure = describe_wrong_fields(parent, templates)
            if not failure:
                require_zone(
                    context,
                    lambda one: {
                        name: self.render_template(value, one, jinja_env, set())
                        for name, value in dated.items()
                    },
                )
        except TemplateError as error:
            failure = describe_template_error(error.message or "", context)
        except InvalidInput as error:
            failure = f"InvalidInput: {error}"
        if failure:
            # Outside the handler: one line in the log, without a second traceback.
            raise AirflowFailException(failure)
        instance = context.get("ti")
        is_mapped = getattr(instance, "map_index", -1) >= 0
        if parent is self and is_mapped and not context.get("map_index_template"):
            named = self.label_field or self.request_field
            parts = [getattr(self, field, None) for field in (named, "blocks") if field]
            if label := " ".join(filter(None, map(describe_request, parts))):
                context["dpflow_label"] = label[:_LONGEST_LABEL]
                context["map_index_template"] = "{{ dpflow_label }}"

    def log_session(self, plan: Plan, ledger: Ledger) -> bool:
        """One line of the log, before a session is opened: what it will be charged, or that it was
        charged before. Whether it was.
        """
        from dpflow.engine.releases.run_identity import RunIdentity

        name, scope = plan.request.name, plan.request.scope
        if ledger.find(RunIdentity.of_request(plan.request).key(plan)) is not None:
            self.log.info("session %s goes on: scope %s paid for it before", name, scope)
            return True
        epsilon, delta = plan.privacy_cost()
        self.log.info(
            "session %s: asks scope %s for epsilon %s, delta %s, once for all that it answers",
            name,
            scope,
            epsilon,
            delta,
        )
        return False

    def warn_of_revision(self, name: object, revision: object, remedy: str) -> None:
        """One line of the log where a revision is named that pays nothing, since a task is known by its run."""
        if revision not in (None, 1):
            self.log.warning(
                "revision %s of %s pays nothing in a task, which pays once a run; %s",
                revision,
                name,
                remedy,
            )

    def log_remaining(
        self, ledger: Ledger | RemoteClient, scope: str, blocks: Iterable[str] = ()
    ) -> None:
        """One line of the log: how much is left in a scope, in the fullest of the blocks that paid.
        These amounts are the ledger's, and public.
        """
        paying = {"", *blocks}
        try:
            remaining = ledger.remaining(scope)
            rows = remaining if isinstance(remaining, list) else remaining.rows()
            budgets = [row for row in rows if row["block"] in paying]
        # What was released stands, and the task with it.
        except DpflowError as error:
            self.log.warning("what is left in %s could not be read: %s", scope, error)
            return
        if not budgets:
            return
        row = max(budgets, key=lambda budget: budget["used"])
        others = f", the fullest of {len(budgets)}" if len(budgets) > 1 else ""
        place = f", block {row['block']}{others}" if row["block"] else ""
        rest = (
            f"epsilon {row['epsilon_left']} of {row['epsilon_granted']}"
            if row["epsilon_left"] is not None
            else f"Renyi divergence {row['renyi_left']}"
        )
        self.log.info(
            "left in %s%s: %s, delta %s; %d %% are used",
            scope,
            place,
            rest,
            row["delta_left"],
            whole_percent(row["used"]),
        )


def is_test_run() -> bool:
    """Whether this task runs in the process of ``airflow dags test`` or ``dag.test()``."""
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
    return type(comms).__name__ == "InProcessSupervisorComms"


#: Where a field is, below an operator: names of arguments and keys, and places in lists.
_Path = tuple[str | int, ...]


def _list_templates(value: Any, path: _Path = ()) -> Iterator[tuple[_Path, str]]:
    """The texts with templates in an operator's arguments, each with its place."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield path, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _list_templates(inner, (*path, name))
    elif isinstance(value, list | tuple):
        for n, inner in enumerate(value):
            yield from _list_templates(inner, (*path, n))


def describe_wrong_fields(operator: Any, templates: Mapping[_Path, str]) -> str:
    """What to say of the first template that became nothing (None, its text, or what is empty or blank) or whose
    one expression became the text of a list. "" where there is none; `read_blocks` judges blocks.

    Args:
        templates: their places and texts before they were rendered.
    """
    for path, template in templates.items():
        name, *places = path
        value: Any = getattr(operator, str(name), None)
        for place in places:
            value = value[place]
        is_blank = isinstance(value, str) and value.strip() in ("", "None")
        is_empty = isinstance(value, Collection) and not value
        if "blocks" in path:
            continue
        field = ".".join(map(str, path))
        start = (
            f"InvalidInput: {field} is {value!r:.40} in this run, rendered from {template[:80]!r}"
        )
        if value is None or is_blank or is_empty:
            return f"{start}; correct the template, or leave {field} out"
        is_expression = re.fullmatch(r"\s*\{\{.*\}\}\s*", template, re.DOTALL)
        if is_expression and isinstance(value, str) and is_collection_text(value):
            return f"{start}: {LIST_AS_TEXT}"
    return ""


def describe_template_error(message: str, context: Mapping[str, Any]) -> str:
    """What a template asked for that its run does not have, and what to do."""
    text = f"InvalidInput: a template of this task cannot be rendered: {message}"
    if context.get("logical_date") is not None:
        return f"{text}; change the template"
    return (
        f"{text}; this run has no logical date, so ds, ts, logical_date and data_interval_start do not "
        f"exist in it: run a day of the schedule by airflow backfill create --dag-id DAG --from-date DAY --to-date DAYT23:59, "
        f"give the DAG a param day, or write run_id or partition_key instead"
    )


def describe_request(value: Any) -> str:
    """What a request is called: its name with its blocks, a file's name, or those of a list; "" for
    anything else.
    """
    if isinstance(value, Mapping):
        parts = value.get("name"), describe_request(value.get("blocks"))
        return " ".join(str(part) for part in parts if part)
    if isinstance(value, str):
        return PurePath(value).name.removesuffix(".yml")
    if isinstance(value, Iterable):
        return ", ".join(filter(None, map(describe_request, value)))
    return ""
