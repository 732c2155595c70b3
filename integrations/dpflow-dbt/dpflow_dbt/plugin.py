"""The dbt-duckdb plugin that answers a model's query from the private table and stores the answer.

dbt's connection is to the file of results. The private file is opened by dpflow alone, in its own
sandbox, and is never attached here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.exceptions import DbtRuntimeError

from dpflow.analyst_sql.answer.query_plan import answer_sql, plan_sql
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.parse.text_and_options import OPTIONS
from dpflow.catalogue import find_server, locate_ledger
from dpflow.client.open_client import connect
from dpflow.counted import counted
from dpflow.engine.releases.request import require_public
from dpflow.error_boundary import contain_errors
from dpflow.errors import DpflowError, InvalidInput, NotPublished
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.sql import quote_name
from dpflow.tables.public.named_tables import AnswerRun, fits_columns, merge_columns

log = AdapterLogger("dpflow")

#: Columns of a model's table beside the query's own, with their types.
ABOUT = dict.fromkeys(("block", "run", "interval_start", "released_at", "releases"), "VARCHAR")
ABOUT |= dict.fromkeys(("interval_start", "released_at"), "TIMESTAMP")
#: What ``meta.dpflow`` of a model may hold beside ``parameters``, values of ``$name``, and ``run``, which may begin with
#: the start of its interval: options of `dpflow.sql`.
_OPTIONS = tuple(name for name in OPTIONS if name != "name")


class Plugin(BasePlugin):
    """Stores private answers; made by dbt-duckdb from ``plugins: [{module: dpflow_dbt}]``.

    Its ``config`` in ``profiles.yml`` may name the ``ledger``, the ``tables`` (declarations) and the
    ``folder`` in which the search for ``dpflow.yml`` begins; the folder where dbt runs if left out. Where that names a
    ``server``, models are answered there, with the token of ``dpflow login`` or DPFLOW_TOKEN.
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Called once, by the base class."""
        self._folder = Path(plugin_config.get("folder", "."))
        self._ledger: str | None = plugin_config.get("ledger")
        self._tables = [self._folder / one for one in plugin_config.get("tables", ())]
        # Threads of dbt share this plugin; a private table is read by one release at a time.
        self._turn = threading.Lock()
        self._connection: Any = None

    def configure_connection(self, conn: Any) -> None:
        """Keep dbt's connection to the output file."""
        self._connection = conn

    def store(self, target_config: Any) -> None:
        """Answer the query of a model, and write the answer to ``target_config.relation``, with the rows
        of other blocks and runs from the model's table so far.

        A model that was answered before gets its stored answer, at no cost, unless it asks for less
        noise or for another revision. Raises `DbtRuntimeError` with dpflow's message.
        """
        failure = ""
        try:
            with self._turn:
                self._store_answer(target_config.relation, target_config.config)
        except DpflowError as error:
            failure = str(error)
        if failure:
            # Outside of the handler, so that no traceback of dpflow's reaches dbt's logs.
            raise DbtRuntimeError(f"dpflow: {failure}")

    def _store_answer(self, relation: Any, model: Mapping[str, Any]) -> None:
        options = dict({} if model.get("options") is None else model["options"])
        parameters, run = options.pop("parameters", ()), str(options.pop("run", ""))
        if unknown := sorted(set(options) - set(_OPTIONS)):
            raise InvalidInput(
                f"meta.dpflow of {model['id']} has {', '.join(unknown)}, which is no option; the options are: "
                f"{', '.join((*_OPTIONS, 'parameters', 'run'))}"
            )
        if (server := None if self._ledger else find_server(self._folder)) is not None:
            answer, blocks, scope = self._ask_service(server, model, options, parameters, run)
        else:
            answer, blocks, scope = self._ask_ledger(model, options, parameters, run)
        columns = [column[:3] for column in answer.list_published()]
        told = AnswerRun(blocks, run, answer.released_at, releases=answer.release_ids)
        cursor, existing = self._connection.cursor(), model.get("existing")
        contain_errors(
            lambda: write_answer(cursor, str(relation), columns, told, existing),
            lambda error: NotPublished(
                f"the answer of {model['id']} is stored in the ledger, and could not be written as its table "
                f"({type(error).__name__}); make the file writable, and build again, which charges nothing"
            ),
        )
        if answer.rows_left_out:
            rows = counted(answer.rows_left_out, "row")
            log.warning(
                f"{model['id']}: {rows} left out: more than the service sends to this principal"
            )
        for one in answer.origins:
            paid = f"charged epsilon {one.epsilon}, delta {one.delta} to scope {scope}"
            log.info(
                f"{model['id']}: {'stored answer, nothing charged' if one.stored else paid}; "
                f"release {one.release_id}"
            )

    def _ask_service(
        self,
        server: str,
        model: Mapping[str, Any],
        options: Mapping[str, Any],
        parameters: Any,
        run: str,
    ) -> tuple[SqlAnswer, str, str]:
        """The answer of the service that ``dpflow.yml`` names, its blocks, and the scope that pays.
        What is stored there serves, whoever of that scope asked it, so a run is one of its blocks.
        """
        client, text = connect(server), model["sql"]
        plan = client.explain(text, parameters=parameters, **options)
        self._check_columns([column["column"] for column in plan["columns"]], model.get("existing"))
        blocks = dict.fromkeys(block for one in plan["releases"] for block in one["blocks"])
        if run and run not in blocks:
            raise InvalidInput(
                f"{model['id']} is run {run!r}, and the service would take what another run asked of these rows; name the "
                "run as one of its blocks, or leave run out"
            )
        answer = client.sql(text, parameters=parameters, **options)
        return answer, ",".join(blocks), str(plan["scope"])

    def _ask_ledger(
        self, model: Mapping[str, Any], options: Mapping[str, Any], parameters: Any, run: str
    ) -> tuple[SqlAnswer, str, str]:
        """The same beside the ledger, where each run of a model is answered by itself."""
        registry, ledger = Registry.load(), self._open_ledger()
        plan = plan_sql(
            model["sql"],
            options,
            self._tables,
            parameters,
            ledger,
            registry,
            self._folder,
            asker=model["id"] + (f" in run {run}" if run else ""),
        )
        self._check_plan(plan)
        self._check_columns(plan.columns, model.get("existing"))
        answer = answer_sql(plan, ledger, registry)
        return answer, plan.block_text, plan.settings.scope

    def _open_ledger(self) -> Ledger:
        location, anchor = locate_ledger(self._ledger, self._folder)
        return Ledger(location, anchor=anchor)

    def _check_plan(self, plan: SqlPlan) -> None:
        """Refuse, before anything is charged, what could not be stored beside public tables."""
        if plan.source.explain:
            raise InvalidInput(
                "the model begins with EXPLAIN, which charges nothing and has no rows; take EXPLAIN out, or ask with "
                "dpflow sql what it would cost"
            )
        if plan.settings.name is not None:
            raise InvalidInput(
                "the query has a name, and dbt's model is what its table is called; take name out of its options"
            )
        with self._connection.cursor() as cursor:
            files = cursor.execute("SELECT path FROM duckdb_databases() WHERE path IS NOT NULL")
            for (file,) in files.fetchall():
                for table in plan.tables:
                    require_public(Path(file), table, "dbt's models and databases")

    def _check_columns(self, columns: Sequence[str], existing: str | None) -> None:
        """Raises `InvalidInput` for a column that is called like one of `ABOUT`, or where a model's table has others."""
        if taken := [name for name in columns if name.casefold() in ABOUT]:
            raise InvalidInput(
                f"the query calls a column {taken[0]!r}, and the model's table has one of its own; give it another "
                f"name than {', '.join(ABOUT)}"
            )
        if existing is None:
            return
        with self._connection.cursor() as cursor:
            stored = dict(_describe_columns(cursor, existing))
        if missing := [name for name in ABOUT if stored.get(name) != ABOUT[name]]:
            raise InvalidInput(
                f"the model's table has no column {missing[0]!r} {ABOUT[missing[0]]}, so it holds no answers of dpflow; nothing "
                "was charged; move it away, or begin anew with --full-refresh"
            )
        if not fits_columns([name for name in stored if name not in ABOUT], columns):
            raise InvalidInput(
                "the model's table has answers of other columns; nothing was charged; call the model otherwise, or begin "
                "its table anew with --full-refresh"
            )


def _describe_columns(cursor: Any, relation: str) -> list[tuple[str, str]]:
    """Names and types of a table's columns."""
    described = cursor.execute(f"DESCRIBE FROM {relation}").fetchall()
    return [(name, kind) for name, kind, *_ in described]


def write_answer(
    cursor: Any,
    relation: str,
    columns: Sequence[tuple[str, str, Sequence[Any]]],
    about: AnswerRun,
    existing: str | None = None,
) -> None:
    """Write an answer as a table, whole, in the place of one of this name: its columns and `ABOUT`; with the
    rows of ``existing`` that are about other blocks and runs. A column that one of both has not is NULL there, and a
    type holds the values of both.

    Args:
        relation, existing: names of tables, already quoted.
        columns: names, types and values.
    """
    key = [about.block, about.run]
    parameters: list[Any] = [list(values) for _, _, values in columns]
    parameters += [*key, about.interval, about.released_at, ",".join(about.releases)]
    with cursor:
        stored = [] if existing is None else _describe_columns(cursor, existing)
        own = [column for column in stored if column[0] not in ABOUT]
        kinds = {name.casefold(): kind for name, kind in merge_columns(own, columns)}
        places = [
            f"CAST(unnest(CAST(? AS {kind}[])) AS {kinds[name.casefold()]}) AS {quote_name(name)}"
            for name, kind, _ in columns
        ]
        places += [f"CAST(? AS {kind}) AS {name}" for name, kind in ABOUT.items()]
        select = f"SELECT {', '.join(places)}"
        if existing is not None:
            names = [(quote_name(name), kinds.get(name.casefold(), kind)) for name, kind in stored]
            listed = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in names)
            others = f"SELECT {listed} FROM {existing} WHERE NOT (block = ? AND run = ?)"
            select = f"{others} UNION ALL BY NAME {select}"
            parameters = [*key, *parameters]
        # One statement: whatever ends it, the earlier table stays.
        cursor.execute(f"CREATE OR REPLACE TABLE {relation} AS {select}", parameters)
