"""The owner's pass over a source on Spark: the server reads every value of the columns on which it could fail."""

from __future__ import annotations

from dataclasses import dataclass

from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, TableUnreadable
from dpflow.tables.backends.spark_backend.spark_answers import OpenSource, SparkBackend
from dpflow.tables.backends.spark_backend.spark_columns import needs_verification, write_decoded
from dpflow.tables.backends.spark_backend.spark_queries import describe_fields
from dpflow.tables.backends.spark_backend.spark_sources import SourceState
from dpflow.tables.backends.spark_backend.verified_columns import write_verified
from dpflow.tables.backends.spark_source import SparkSource


@dataclass(frozen=True)
class VerifiedSource:
    """What a pass found, by table and column.

    Attributes:
        verified: columns of which the server read every value.
        failed: columns of which it did not. They stay refused.
    """

    verified: tuple[str, ...]
    failed: tuple[str, ...]


def verify_source(table: Table) -> VerifiedSource:
    """Read every value of a table's columns of times and wide decimals once, and those of joined relations,
    and record it in the file that the source names. For the owner: what fails depends on the rows.

    Raises:
        InvalidInput: the table is not on Spark, or its source names no file.
        TableBusy: files were written meanwhile.
    """
    source = table.source
    if not isinstance(source, SparkSource) or source.verified is None:
        raise InvalidInput(
            f"table {table.name!r} names no file for what is verified; write one into its source on Spark, such as "
            f"verified: {table.name}.verified.json"
        )
    backend = SparkBackend(table, None)
    verified, failed, records = [], [], {}
    with backend.open_source() as opened:
        places = backend.name_sources(source)
        for name, state in opened.states.items():
            good = [
                column for column in _list_columns(opened, state) if _is_read(opened, state, column)
            ]
            bad = sorted({*_list_columns(opened, state)} - {*good})
            records[places[name].table] = (state.identity, good)
            prefix = f"{name}." if name else ""
            verified += [f"{prefix}{column}" for column in good]
            failed += [f"{prefix}{column}" for column in bad]
        backend.require_unchanged(opened)
        write_verified(source.verified, opened.connection.server_version, records)
    return VerifiedSource(tuple(verified), tuple(failed))


def _list_columns(opened: OpenSource, state: SourceState) -> list[str]:
    fields = describe_fields(opened.connection, state.rows)
    is_apache = opened.connection.is_apache_spark
    return [
        n for n, field in fields.items() if needs_verification(field, is_apache_spark=is_apache)
    ]


def _is_read(opened: OpenSource, state: SourceState, column: str) -> bool:
    """Whether the server reads every value of a column."""
    field = describe_fields(opened.connection, state.rows)[column]
    try:
        decoded = f"{write_decoded(field)} AS decoded"
        # A decimal beyond its type may be read, and has no value.
        genuine = f"count({field.reference}) AS genuine"
        raw = f"count(`{column.replace('`', '``')}`) AS present"
        frame = opened.connection.run(lambda _: state.rows.selectExpr(decoded, genuine, raw))
        answer = opened.connection.fetch(frame)
    except TableUnreadable:
        return False
    return bool(answer["genuine"][0].as_py() == answer["present"][0].as_py())
