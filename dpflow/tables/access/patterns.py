"""Whether DuckDB takes a regular expression, asked of a database without rows."""

from __future__ import annotations

from functools import cache


@cache
def find_problem(pattern: str) -> str:
    """What DuckDB says of a pattern that it does not take; empty for one that it takes."""
    # A command whose query has no pattern need not wait for it.
    import duckdb

    with duckdb.connect(":memory:") as connection:
        try:
            connection.execute("SELECT regexp_matches('', ?)", [pattern])
        except duckdb.Error as error:
            return str(error).splitlines()[0][:80]
    return ""
