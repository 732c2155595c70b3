"""Prints the queries of TPC-H and TPC-DS, and the columns of their tables, as JSON.

Runs in an environment of its own, with DuckDB 1.5.5 and its extensions tpch and tpcds from wheels. The
texts go to a pipe and are stored nowhere.
"""

import importlib
import json
import sys
from pathlib import Path

import duckdb


def fetch_benchmark(name: str, generator: str) -> dict[str, object]:
    """Queries by number, and columns by table, of one extension."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        module = importlib.import_module(f"duckdb_extension_{name}")
        (file,) = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
        connection.execute(f"CALL {generator}(sf=0)")
        tables: dict[str, dict[str, str]] = {}
        for table, column, kind in connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
        ).fetchall():
            tables.setdefault(table, {})[column] = kind
        queries = connection.execute(f"SELECT query_nr, query FROM {name}_queries()").fetchall()  # noqa: S608
    return {"tables": tables, "queries": {str(number): text for number, text in queries}}


json.dump(
    {
        "TPC-H": fetch_benchmark("tpch", "dbgen"),
        "TPC-DS": fetch_benchmark("tpcds", "dsdgen"),
    },
    sys.stdout,
)
