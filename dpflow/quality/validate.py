"""Run a table's contract: Great Expectations over the rows that `dpflow.tables` selects, read-only."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, InvalidInput, PlanRefused, TableBusy, TableUnreadable
from dpflow.extras import require_extra
from dpflow.quality.expectations import FEWEST_UNITS, judged_columns, suite, text_name

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.datasource.fluent.sql_datasource import SQLDatasource

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
    if table.holdout:
        raise PlanRefused(
            f"table {table.name!r} is a holdout, readable only through a gate session, and a contract's outcome is a bit about "
            f"its rows; check the rows before they become a holdout"
        )
    if blocks and table.block is None:
        raise InvalidInput(
            f"table {table.name!r} declares no block column, so no block of it can be checked"
        )
    if not table.database.is_file():
        raise TableUnreadable(
            f"there is no file {table.database} for table {table.name!r}; create it, or correct `database`"
        )
    with _silence_logs():
        with require_extra("quality", "a data contract"):
            import great_expectations  # noqa: F401

            from dpflow.tables.access import contract_rows  # noqa: F401
        try:
            return _read_verdict(_run_suite(table, blocks))
        except Exception as error:  # noqa: BLE001  # whatever it is, its message may quote a value
            failure = _scrub_error(table, error)
    raise failure


def _run_suite(table: Table, blocks: Sequence[str]) -> ExpectationSuiteValidationResult:
    """Great Expectations' own result, without values; whatever was opened is closed again."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    from dpflow.tables.access import contract_rows

    # Without a pool nothing stays open.
    connect = contract_rows.connect_arguments(table.database)
    options = {"connect_args": connect, "poolclass": sa.pool.NullPool}
    source = context.data_sources.add_sql(
        "t", connection_string=contract_rows.ENGINE, kwargs=options
    )
    _install_shim(source, gx.__version__)
    with (
        source.get_execution_engine().engine.connect() as connection
    ):  # held to the end, so that no writer can come between
        described = connection.exec_driver_sql(contract_rows.describe_query(table)).fetchall()
        types = {row[0]: row[1] for row in described}
        columns = {name: text_name(name) for name in judged_columns(table)}
        sql = contract_rows.contract_query(table, types, blocks, columns, FEWEST_UNITS)
        rows = source.add_query_asset("rows", query=sql).add_batch_definition_whole_table("all")
        promises = gx.ExpectationSuite("contract", expectations=suite(table))
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


def _scrub_error(table: Table, error: Exception) -> DpflowError:
    """The same failure in our words: DuckDB's messages quote values."""
    message = str(error)
    if "Could not set lock" in message or "different configuration" in message:
        return TableBusy(
            f"{table.database} is being written by another process or connection; try again when it is done"
        )
    return TableUnreadable(
        f"the contract of table {table.name!r} cannot be checked: {table.database} is not a DuckDB file that this version "
        f"reads, has no relation {table.relation_name!r}, or holds columns that cannot be compared"
    )


@contextmanager
def _silence_logs() -> Iterator[None]:
    """Keep Great Expectations' log records, which quote errors and values, and its warnings from
    every handler.
    """
    logger = logging.getLogger("great_expectations")
    nowhere, before = logging.NullHandler(), logger.propagate
    logger.addHandler(nowhere)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.propagate = before
        logger.removeHandler(nowhere)
