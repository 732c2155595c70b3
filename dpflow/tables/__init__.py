"""Private and published DuckDB tables; the only importer of duckdb.

`dpflow.tables.private.PrivateTable`, the reader of private rows, is for this package and the engine. It
executes a mechanism's declarative requests on bounded contributions with integer arithmetic, read-only
and sandboxed. `publish` copies settled results into an output table, once. No error of this package holds
a value of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

# Whoever reads a declaration reads its source: the kind of source registers itself.
from dpflow.tables.backends import spark_source as spark_source

if TYPE_CHECKING:
    from dpflow.core.contract.declaration import Table as Table
    from dpflow.core.contract.published_release import PublishedRelease as PublishedRelease
    from dpflow.tables.backends.server_addresses import add_address_finder as add_address_finder
    from dpflow.tables.language.grouping import declare_columns as declare_columns
    from dpflow.tables.language.grouping import declare_groups as declare_groups
    from dpflow.tables.loading.build_database import build_database as build_database
    from dpflow.tables.loading.csv_files import CsvFormat as CsvFormat
    from dpflow.tables.loading.csv_files import CsvSource as CsvSource
    from dpflow.tables.loading.load_rows import load_rows as load_rows
    from dpflow.tables.loading.sources import JsonSource as JsonSource
    from dpflow.tables.loading.sources import ObjectSource as ObjectSource
    from dpflow.tables.loading.sources import ParquetSource as ParquetSource
    from dpflow.tables.private import cancel_reads as cancel_reads
    from dpflow.tables.public.open_rows import open_rows as open_rows
    from dpflow.tables.public.predictions import PredictionTable as PredictionTable
    from dpflow.tables.public.predictions import read_predictions as read_predictions
    from dpflow.tables.public.predictions import read_together as read_together
    from dpflow.tables.public.predictions import write_predictions as write_predictions
    from dpflow.tables.public.publish import check_places as check_places
    from dpflow.tables.public.publish import publish as publish
    from dpflow.tables.public.publish import published_ids as published_ids
    from dpflow.tables.public.publish import read_published as read_published
    from dpflow.tables.public.query_points import check_answers as check_answers
    from dpflow.tables.public.query_points import publish_answers as publish_answers
    from dpflow.tables.public.query_points import read_points as read_points
    from dpflow.tables.source_checks import catalogue_state as catalogue_state
    from dpflow.tables.source_checks import check_request as check_request
    from dpflow.tables.source_checks import check_schema as check_schema
    from dpflow.tables.source_checks import column_types as column_types
    from dpflow.tables.source_checks import describe_typed_columns as describe_typed_columns

_MODULES = {
    "Table": "dpflow.core.contract.declaration",
    "CsvFormat": "dpflow.tables.loading.csv_files",
    "CsvSource": "dpflow.tables.loading.csv_files",
    "JsonSource": "dpflow.tables.loading.sources",
    "ObjectSource": "dpflow.tables.loading.sources",
    "ParquetSource": "dpflow.tables.loading.sources",
    "PredictionTable": "dpflow.tables.public.predictions",
    "PublishedRelease": "dpflow.core.contract.published_release",
    "add_address_finder": "dpflow.tables.backends.server_addresses",
    "build_database": "dpflow.tables.loading.build_database",
    "cancel_reads": "dpflow.tables.private",
    "catalogue_state": "dpflow.tables.source_checks",
    "check_answers": "dpflow.tables.public.query_points",
    "check_places": "dpflow.tables.public.publish",
    "check_request": "dpflow.tables.source_checks",
    "check_schema": "dpflow.tables.source_checks",
    "column_types": "dpflow.tables.source_checks",
    "describe_typed_columns": "dpflow.tables.source_checks",
    "declare_columns": "dpflow.tables.language.grouping",
    "declare_groups": "dpflow.tables.language.grouping",
    "load_rows": "dpflow.tables.loading.load_rows",
    "open_rows": "dpflow.tables.public.open_rows",
    "publish": "dpflow.tables.public.publish",
    "publish_answers": "dpflow.tables.public.query_points",
    "published_ids": "dpflow.tables.public.publish",
    "read_points": "dpflow.tables.public.query_points",
    "read_predictions": "dpflow.tables.public.predictions",
    "read_published": "dpflow.tables.public.publish",
    "read_together": "dpflow.tables.public.predictions",
    "write_predictions": "dpflow.tables.public.predictions",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
