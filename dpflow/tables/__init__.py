"""Private and published DuckDB tables; the only importer of duckdb.

`dpflow.tables.private.PrivateTable`, the reader of private rows, is for this package and the engine. It
executes a mechanism's declarative requests on bounded contributions with integer arithmetic, read-only
and sandboxed. `publish` copies settled results into an output table, once. No error of this package holds
a value of a row.
"""

from dpflow.core.contract.published_release import PublishedRelease
from dpflow.tables.backends.server_addresses import add_address_finder
from dpflow.tables.language.grouping import declare_columns, declare_groups
from dpflow.tables.loading.build_database import build_database
from dpflow.tables.loading.csv_files import CsvFormat, CsvSource
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.sources import (
    JsonSource,
    ObjectSource,
    ParquetSource,
)
from dpflow.tables.private import cancel_reads
from dpflow.tables.public.open_rows import open_rows
from dpflow.tables.public.predictions import PredictionTable, read_predictions
from dpflow.tables.public.publish import publish, published_ids, read_published
from dpflow.tables.public.query_points import publish_answers, read_points
from dpflow.tables.source_checks import check_request, check_schema, column_types

__all__ = [
    "CsvFormat",
    "CsvSource",
    "JsonSource",
    "ObjectSource",
    "ParquetSource",
    "PredictionTable",
    "PublishedRelease",
    "add_address_finder",
    "build_database",
    "cancel_reads",
    "check_request",
    "check_schema",
    "column_types",
    "declare_columns",
    "declare_groups",
    "load_rows",
    "open_rows",
    "publish",
    "publish_answers",
    "published_ids",
    "read_points",
    "read_predictions",
    "read_published",
]
