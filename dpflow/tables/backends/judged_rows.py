"""The rows that a data contract looks at, wherever they are."""

from __future__ import annotations

from types import ModuleType

from dpflow.core.contract.declaration import Table


def find_judge(table: Table) -> ModuleType:
    """What has `open_rows` and `usable_columns` for the place of a table's rows."""
    if table.source is not None:
        from dpflow.tables.backends.spark_backend import column_verdicts

        return column_verdicts
    from dpflow.tables.access import contract_rows

    return contract_rows
