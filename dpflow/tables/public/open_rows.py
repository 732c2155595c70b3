"""The owner's side: read rows that the owner declared open. Never part of a release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpflow.error_boundary import errors_end_here
from dpflow.errors import PlanRefused
from dpflow.extras import require_extra
from dpflow.tables.access import file_list, sql
from dpflow.tables.access.declarations import load_table


@errors_end_here
def open_rows(path: Path | str) -> Any:
    """The declared columns of a table as a pandas frame, for fitting models.

    What is computed from raw rows has no privacy guarantee, so only a table declared
    ``generalisation_only`` is read.

    Raises:
        PlanRefused: the declaration protects units, or the table is a holdout.
    """
    with require_extra("gate", "a frame of rows"):
        import pandas

    table = load_table(path)
    if not table.generalisation_only:
        raise PlanRefused(
            f"table {table.name!r} protects {table.protection_text}, so its rows are not handed out; release statistics of it, or "
            f"let its owner declare generalisation_only"
        )
    if table.holdout:
        raise PlanRefused(
            f"table {table.name!r} is a holdout, so its rows are not handed out, for a model that saw them passes any gate"
        )
    stored = [n for n, c in table.columns.items() if not c.expression and not c.parts]
    columns = ", ".join(map(sql.quote_name, stored))
    with file_list.open_source(
        table.require_file("a frame of rows"), f"table {table.name!r}"
    ) as connection:
        relation = connection.find_relation(table.relation_name, trusted=True)
        return pandas.DataFrame(
            # One order whatever the file's: a fitted model can be fitted again.
            connection.fetch_arrays(f"SELECT {columns} FROM {relation.quoted} ORDER BY ALL")
        )
