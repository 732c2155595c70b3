"""Answers in the published file: one view for each query that has a name, so that BI tools read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dpflow.analyst_sql.answer.sql_answer import SqlAnswer, check_suffix
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.catalogue import find_catalogue
from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.request import require_public
from dpflow.errors import InvalidInput, TableUnreadable
from dpflow.output_files import require_writable

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def publish_answer(
    plan: SqlPlan, answer: SqlAnswer, folder: Path | None = None, run: str = "", source: str = ""
) -> str | None:
    """Write an answer under its query's name into the output of ``dpflow.yml``, beside those of other
    blocks and runs (`publish_view`); None without a name.

    Args:
        run: the name of the run that asked; outside of Airflow the query's revision, if it names one.
        source: DAG and task that asked.

    Raises:
        InvalidInput: no output, or a name that is none.
        TableUnreadable: as `check_name`, where another task took the name meanwhile.
        NotPublished: somebody holds the file; the releases are settled and paid.
    """
    name = plan.settings.name
    if name is None:
        return None
    # Most queries have no name.
    from dpflow.tables.public.named_tables import AnswerRun, publish_view

    database = find_output(plan, name, folder)
    revision = plan.settings.revision
    run = run or ("" if revision is None else f"revision {revision}")
    columns = answer.list_published()
    confidences = tuple(column[3] for column in columns)
    released_at, chosen, releases = answer.released_at, answer.chosen, answer.release_ids
    about = AnswerRun(plan.block_text, run, released_at, confidences, chosen, source, releases)
    try:
        publish_view(database, name, [column[:3] for column in columns], about)
    except TableUnreadable as error:
        raise TableUnreadable(
            f"{error}; the answer is stored, and free under another name"
        ) from None
    return f"{database.name}:{name}"


def check_name(
    plan: SqlPlan, name: str, folder: Path | None = None, run: str = "", source: str = ""
) -> Path:
    """The file that an answer goes to, after all is checked that a name can be refused for: before anything is charged.
    The arguments are those of `publish_answer`.

    Raises:
        InvalidInput, PlanRefused: as `find_output`.
        TableUnreadable: the name is somebody else's there, or of answers with other columns or of another source.
        NotPublished: another process holds the file.
    """
    from dpflow.tables.public.named_tables import AnswerRun, require_free_name

    database = find_output(plan, name, folder)
    about = AnswerRun(plan.block_text, run, source=source)
    require_free_name(database, name, plan.columns, about)
    return database


def find_output(plan: SqlPlan, name: str, folder: Path | None = None) -> Path:
    """The file that answers are published in. Raises `InvalidInput` or `PlanRefused`."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"the query's name {name[:40]!r} is no name of a table; write letters, digits and _"
        )
    catalogue = find_catalogue(folder)
    output = catalogue.output if catalogue is not None else None
    if output is None:
        raise InvalidInput(
            "the query has a name, and nothing says which file its answer goes to; add output: "
            "{database: published.duckdb} to dpflow.yml"
        )
    assert catalogue is not None
    declared = {one.casefold() for one in (*catalogue.tables, *catalogue.public)}
    if taken := {name.casefold(), f"{name}_latest".casefold()} & declared:
        raise InvalidInput(
            f"{taken.pop()!r} is a table of dpflow.yml, and queries read published answers by their names, too; give the query "
            f"another name"
        )
    for table in plan.tables:
        require_public(output.database, table, "published results")
    return output.database


def check_output(file: Path, tables: Sequence[Table]) -> None:
    """Refuse a file that an answer cannot or must not be written to, before anything is charged.

    Raises:
        InvalidInput: its name does not say what it is, or it cannot be written.
        PlanRefused: it is a private table's own.
    """
    check_suffix(file)
    for table in tables:
        require_public(file, table, "answers")
    require_writable(file)
