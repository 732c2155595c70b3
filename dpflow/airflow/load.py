"""`LoadOperator`: rows of a run's files, or of a PostgreSQL table, into a private DuckDB file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from dpflow.airflow.asset_events import fill_load_events
from dpflow.airflow.release_note import LoadNote
from dpflow.airflow.service_task import RequestTask
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    Blocks,
    dag_folder,
    map_failures,
    name_task_run,
    require_lasting,
)
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient


class LoadOperator(RequestTask):
    """Load rows with declared types, all of them or none, once whatever Airflow retries.

    :param load: a load of the service's file, by its name: the service loads ``blocks`` from where its owner has them
        (templated). Then ``source``, ``into`` and all that describes them are left out.
    :param source: files or globs relative to the DAG file: CSV, JSON or Parquet (templated). Left
        out for PostgreSQL.
    :param into: ``FILE:TABLE`` relative to the DAG file, or a table's name in ``dpflow.yml``
        (templated).
    :param columns: declared columns, such as ``"person VARCHAR, day DATE"``; those of the table or
        the source's own types if left out.
    :param by: a column whose values are blocks, such as a day; the source's blocks are added.
    :param blocks: with ``by``, the blocks that the source should hold, e.g. ``"{{
        data_interval_start | ds }}"``; of PostgreSQL only these are copied (templated).
    :param replace: rows of these blocks that are there, or of the whole table, are replaced.
    :param max_rejects: how many rows may be left out because a value is not of its type.
    :param missing: texts of CSV files that mean no value, such as ``["NA"]``.
    :param postgres_conn_id: a connection to the server that the rows come from.
    :param source_table: the table there, such as ``public.visits`` (templated).
    :param service_conn_id: with ``load``, the connection of type ``dpflow``; see `JobTask`, which has
        ``deferrable``, too.

    The log says nothing about rows, and neither does what the task returns: exact numbers are for
    the owner. The same source again changes nothing, so a retry or clear is free. Assets among the task's
    ``outlets`` get events that name the table and ``blocks`` (`dpflow.airflow.asset_events`).
    """

    template_fields: Sequence[str] = ("load", "source", "into", "blocks", "source_table")
    label_field = "source"
    door = "tasks/load"
    ui_color = "#e2ecdc"

    def __init__(
        self,
        *,
        load: str | None = None,
        into: str = "",
        source: Sequence[str] | str = (),
        columns: str | None = None,
        by: str | None = None,
        blocks: Blocks = NOT_GIVEN,
        replace: bool = False,
        max_rejects: int = 0,
        missing: Sequence[str] = (),
        postgres_conn_id: str | None = None,
        source_table: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (load is None) == (not into):
            raise InvalidInput(
                f"{self.task_id!r} needs either load, for a load of a service, or into"
            )
        self.load = load
        self.into = into
        self.source = source
        self.columns = columns
        self.by = by
        self.keep_blocks(blocks)
        self.replace = replace
        self.max_rejects = max_rejects
        self.missing = missing
        self.postgres_conn_id = postgres_conn_id
        self.source_table = source_table

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Load; see the class."""
        if self.load is not None:
            client = self.find_service()
            if client is None:
                raise InvalidInput(
                    f"load {self.load!r} is one of a service; make a connection of type dpflow"
                )
            answer: Any = self.ask_service(context, client)
            return dict(answer)
        from dpflow.tables.loading.csv_files import CsvFormat
        from dpflow.tables.loading.load_rows import load_rows
        from dpflow.tables.loading.source_names import open_source

        names = [self.source] if isinstance(self.source, str) else list(self.source)
        if self.postgres_conn_id is not None:
            from dpflow.airflow.connection import server_url

            names = [server_url(BaseHook.get_connection(self.postgres_conn_id), "postgresql")]
        blocks = self.list_blocks()
        if self.outlets:
            name_task_run(context, blocks)  # refuses blocks of several loads before rows are read
        form = CsvFormat(missing=("", *self.missing))
        source = open_source(
            names,
            self.source_table,
            self.into,
            self.columns,
            form,
            self.by,
            blocks,
            dag_folder(context),
        )
        with source as (rows, database, table):
            require_lasting(database, "private file")
            report = load_rows(
                rows,
                database,
                table,
                by=self.by,
                blocks=blocks,
                replace=self.replace,
                max_rejects=self.max_rejects,
            )
        # How many rows there were is exact, so it is in no log.
        self.log.info("%s: %s", report.table, "loaded" if report.loaded else "nothing was changed")
        place = (f"airflow:{self.postgres_conn_id}", str(self.source_table))
        if self.postgres_conn_id is None:
            place = ("file", ", ".join(PurePath(name).name for name in map(str, names)))
        self.note_other(LoadNote(place, report.table))
        fill_load_events(self.outlets, context, report.table, blocks)
        return {"table": report.table, "loaded": report.loaded, "repeated": report.repeated}

    def make_body(self, context: Any) -> dict[str, Any]:
        """The load's name and blocks, for a service."""
        return {"load": self.load, "blocks": list(self.list_blocks())}

    def report_answer(
        self, context: Any, answer: Mapping[str, Any], client: RemoteClient
    ) -> dict[str, Any]:
        """As after a load beside the file."""
        table, blocks = answer["table"], answer["blocks"]
        self.log.info("%s: loaded", table)
        self.note_other(LoadNote(("dpflow", str(self.load)), table))
        fill_load_events(self.outlets, context, table, blocks)
        return {"table": table, "blocks": blocks}
