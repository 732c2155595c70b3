"""Run a table's contract: Great Expectations over the rows that `dpflow.tables` selects, read-only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from dpflow.core.contract.declaration import Table
from dpflow.error_boundary import contain_errors, silence_libraries
from dpflow.errors import InvalidInput, PlanRefused, TableUnreadable
from dpflow.extras import require_extra
from dpflow.quality.expectations import FEWEST_UNITS, judged_columns, suite, text_name

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.datasource.fluent.sql_datasource import SQLDatasource
    from great_expectations.expectations.expectation import Expectation

#: Releases of Great Expectations that read a DuckDB cursor after closing its connection, and so
#: find no rows.
NEEDS_SHIM = ("1.24.",)


def check(table: Table, blocks: Sequence[str] = ()) -> bool:
    """True if the rows of the named blocks (of the whole table, if none is named) keep what the
    table declares.

    Guarantees that nothing but this bit leaves: no value in a log, on a stream, in a file or in an
    error, and no network. Nothing is charged.

    Raises:
        TableUnreadable: the file is missing, is not DuckDB, lacks the relation, or the suite could
        not be evaluated.
        TableBusy: another process is writing the file; the same call can succeed later.
        InvalidInput: blocks are named, but the table declares no block column.
        PlanRefused: the table is a holdout: even one bit beside the gate's answers would be an
        output that nobody paid for.
    """
    require_checkable(table, blocks)
    # Great Expectations logs what it reads, and SQLAlchemy the errors that end a connection.
    with silence_libraries():
        with require_extra("quality", "a data contract"):
            import great_expectations  # noqa: F401

            from dpflow.tables.access import contract_rows  # noqa: F401
        return contain_errors(
            lambda: _read_verdict(_check_declaration(table, blocks)),
            lambda _: TableUnreadable(
                f"the contract of table {table.name!r} cannot be checked: its rows cannot be judged, such as those of a "
                f"view whose own SQL fails; let the table's owner look at them"
            ),
        )


def require_checkable(table: Table, blocks: Sequence[str]) -> None:
    """Raise `PlanRefused` for a holdout, and `InvalidInput` for blocks of a table that has none."""
    if table.holdout:
        raise PlanRefused(
            f"table {table.name!r} is a holdout, readable only through a gate session, and a contract's outcome is a bit about "
            f"its rows; check the rows before they become a holdout"
        )
    if blocks and table.block is None:
        raise InvalidInput(
            f"table {table.name!r} declares no block column, so no block of it can be checked"
        )


def _check_declaration(table: Table, blocks: Sequence[str]) -> ExpectationSuiteValidationResult:
    from dpflow.tables.backends.judged_rows import find_judge

    columns = {name: text_name(name) for name in judged_columns(table)}
    with find_judge(table).open_rows(table, blocks, columns, FEWEST_UNITS) as connect:
        return _judge_rows(connect, suite(table))


def keeps_expectations(
    table: Table, blocks: Sequence[str], expectations: Sequence[Expectation]
) -> bool:
    """Whether the rows of the named blocks, as they are, keep every expectation.

    One bit leaves: an expectation that cannot be evaluated on these rows is not kept. As `check` otherwise, but for
    `require_checkable`, which the caller asks.
    """

    def judge() -> bool:
        from dpflow.tables.access import contract_rows

        with contract_rows.open_all_columns(table, blocks) as connect:
            try:
                return bool(_judge_rows(connect, expectations).success)
            # Whether a library fails on rows is a bit of them, too: the same one.
            except Exception:  # noqa: BLE001
                return False

    with silence_libraries():
        return contain_errors(judge)


def _judge_rows(
    connect: Callable[[], Any], expectations: Sequence[Expectation]
) -> ExpectationSuiteValidationResult:
    """Great Expectations' own result over `ROWS_QUERY`, without values.

    Args:
        connect: what `dpflow.tables.access.contract_rows` yields.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx

    from dpflow.tables.access import contract_rows

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    options = {"creator": connect, "poolclass": sa.pool.StaticPool}
    source = context.data_sources.add_sql(
        "t", connection_string=contract_rows.ENGINE, kwargs=options
    )
    _install_shim(source, gx.__version__)
    asset = source.add_query_asset("rows", query=contract_rows.ROWS_QUERY)
    rows = asset.add_batch_definition_whole_table("all")
    promises = gx.ExpectationSuite("contract", expectations=list(expectations))
    return rows.get_batch().validate(promises, result_format="BOOLEAN_ONLY")


def _install_shim(source: SQLDatasource, version: str) -> None:
    """Make this one source fetch rows before its connection closes, where Great Expectations does
    not.
    """

    def execute_query(self: Any, statement: Any) -> Any:
        with self.get_connection() as connection:
            result = self._execute_query_with_recovery(connection, statement)
            return result.freeze()() if result.returns_rows else result

    if version.startswith(NEEDS_SHIM):
        engine = source.get_execution_engine()
        engine.execute_query = MethodType(execute_query, engine)


def _read_verdict(result: ExpectationSuiteValidationResult) -> bool:
    """The one bit. A plain failure is False, even beside errors that follow from it; an error
    without one is raised.
    """
    broken = [_has_raised(item.exception_info) for item in result.results]
    if any(
        not item.success and not error for item, error in zip(result.results, broken, strict=True)
    ):
        return False
    if any(broken):
        raise RuntimeError("an expectation could not be evaluated")
    return bool(result.success)


def _has_raised(info: Mapping[str, Any] | None) -> bool:
    """Whether an expectation failed to run; Great Expectations says it flat, or once for every
    metric.
    """
    nested = [value for value in (info or {}).values() if isinstance(value, Mapping)]
    return bool((info or {}).get("raised_exception")) or any(
        value.get("raised_exception") for value in nested
    )
