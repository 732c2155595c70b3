"""The door ``load``: a scheduler names a load and blocks; where rows come from and go to is the owner's.

No row decides a reply: rows that do not fit are left out, and how many there were is said to nobody. Where one row
makes a whole file unreadable, the block stays as it was, and only the service's log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, InvalidInput, TableUnreadable, UnknownName
from dpflow.server.job_queue import Query, Reply
from dpflow.server.principals import Caller
from dpflow.server.refusals import Refused, refuse_for_now
from dpflow.server.service import BLOCK, Load, Service
from dpflow.tables.loading.csv_files import CsvFormat
from dpflow.tables.loading.load_rows import TableUnfit, load_rows
from dpflow.tables.loading.source_names import open_source

log = logging.getLogger("dpflow")
#: More rows than any source has.
_ALL = 2**63


def check_loads(service: Service, tables: Mapping[str, Table]) -> None:
    """Raises `InvalidInput` for a load into a table that is in no DuckDB file."""
    for name, load in service.loads.items():
        if tables[load.table].source is not None:
            raise InvalidInput(
                f"load {name!r} is into table {load.table!r}, which is in no DuckDB file; load it where it is"
            )


def plan_load(
    service: Service, tables: Mapping[str, Table], caller: Caller, body: Mapping[str, Any]
) -> Query:
    """A load of some blocks, in the queue of its table: no query reads the table meanwhile. Raises `UnknownName` for
    a load that the caller may not name as for one that is not there.
    """
    name = str(body["load"])
    if name not in caller.terms.loads:
        raise UnknownName("load", name, caller.terms.loads)
    load, table = service.loads[name], tables[service.loads[name].table]

    def run() -> Reply:
        for block in body["blocks"]:
            _load_block(name, load, table, block)
        return {"load": name, "table": load.table, "blocks": list(body["blocks"])}

    return Query(table.place, (), run, always_job=True)


def _load_block(name: str, load: Load, table: Table, block: str) -> None:
    file = Path(str(load.source).replace(BLOCK, block))
    if not file.is_file():
        raise refuse_for_now(
            f"the source of load {name!r} has no block {block!r} yet; repeat the request when it is delivered",
            seconds=60,
        )
    problem: DpflowError | None = None
    is_open = False
    try:
        form = CsvFormat(missing=("", *load.missing))
        into = f"{table.database}:{table.relation_name}"
        source = open_source([str(file)], None, into, load.columns, form, load.by, (block,))
        with source as (rows, database, relation):
            is_open = True
            load_rows(
                rows,
                database,
                relation,
                by=load.by,
                blocks=(block,),
                replace=True,
                max_rejects=_ALL,
            )
    except DpflowError as error:
        if error.retryable:
            raise
        problem = error
    if problem is None:
        return
    # Its text names the owner's places.
    log.error("load %s of block %s failed: %s", name, block, problem)
    # Files and header were read: what fails then is for a row, such as a stray quote, or `TableUnfit`.
    is_of_rows = isinstance(problem, TableUnreadable) and not isinstance(problem, TableUnfit)
    if not (is_open and is_of_rows):
        raise Refused(
            500,
            "internal_error",
            f"load {name!r} cannot be made until its owner repairs it; block {block!r} was not changed",
            cause=type(problem),
        )
