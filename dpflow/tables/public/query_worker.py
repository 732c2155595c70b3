"""The program of the process that runs an analyst's SQL over released rows; it imports nothing of dpflow.

Its database is in memory and holds what one request brings. Before it is locked it loses files, network,
settings, extensions and local frames. What runs is one SELECT, checked in DuckDB's own syntax tree: tables are those
of the request, and functions are deterministic. Started by `dpflow.tables.public.query_process`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import IO, Any

#: The schema of the tables that a request brings.
SCHEMA = "released"
#: Largest message in bytes, and largest number of rows of an answer.
MAX_BYTES, MAX_ROWS = 256 * 2**20, 1_000_000
#: Table functions that compute rows from their arguments alone.
_TABLE_FUNCTIONS = {"range", "generate_series", "unnest", "repeat_row"}
#: Products and quotients of numbers between ends: macro, parameters, where there is an interval, and its candidates. An
#: operand that is exact has one end only: macros in macros are written out, so each repetition doubles the query.
_PRODUCTS = (
    ("product", "a, b, c, d", "", "a * c, a * d, b * c, b * d"),
    ("multiple", "a, c, d", "", "a * c, a * d"),
    ("quotient", "a, b, c, d", "c > 0 OR d < 0", "a / c, a / d, b / c, b / d"),
    ("inverse", "a, c, d", "c > 0 OR d < 0", "a / c, a / d"),
    # Of a literal, which is not negative.
    ("reciprocal", "a, c, d", "c > 0 OR d < 0", ("a / d", "a / c")),
    ("share", "a, b, c", "c > 0 OR c < 0", "a / c, b / c"),
)
#: Interval arithmetic, in which an operand is written once however often it is used: the ends of products and
#: quotients; and the width of so many cells, from those of the sizes of `dpflow.core.toolbox.noise_sums.list_sizes`.
INTERVAL_MACROS = (
    *(
        (
            f"{name}_{end}",
            parameters,
            f"CASE WHEN {test} THEN {value} END" if test else value,
        )
        for n, (end, choose) in enumerate((("low", "least"), ("high", "greatest")))
        for name, parameters, test, ends in _PRODUCTS
        for value in [f"{choose}({ends})" if isinstance(ends, str) else ends[n]]
    ),
    (
        "place_of_size",
        "cells, shift",
        "(16 * shift + ceil(cells / 2 ** shift))::BIGINT",
    ),
    (
        "width_of_size",
        "cells, widths",
        "widths[place_of_size(greatest(cells, 1), greatest(0, floor(log2(greatest(cells - 1, 1)) + 1e-9) - 4))]",
    ),
)
#: Types whose functions depend on the session's time zone, which is UTC and locked. A TIME WITH TIME ZONE is none: it
#: moves to another zone by that zone's offset of today.
_ZONED = {"TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"}
#: What depends on statistics that DuckDB keeps of a table.
_REJECTED = {"bitstring_agg"}
#: Names without brackets that DuckDB reads as functions of the moment or the session.
_MOMENTS = {
    *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
    *("current_catalog", "current_database", "current_schema"),
}
#: Parts of a FROM that read nothing but what their own parts read.
_SOURCES = {
    *("BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST"),
    "PIVOT",
}


def import_duckdb() -> Any:
    """DuckDB's compiled module, which takes a fifth of the package's time; the package where it has another
    name.
    """
    try:
        return import_module("_duckdb")
    except ImportError:
        return import_module("duckdb")


class RejectedPart(Exception):
    """The query has a part that is not allowed: ``kind`` and ``name`` say which."""

    def __init__(self, kind: str, name: str = "") -> None:
        super().__init__(kind)
        self.kind, self.name = kind, name


class LockedDatabase:
    """One locked database for all requests of the process."""

    def __init__(self, memory: str) -> None:
        duckdb = import_duckdb()
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "memory_limit": memory,
                "preserve_insertion_order": True,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                "python_enable_replacements": False,
                "temp_directory": "",
            },
        )
        execute = self._connection.execute
        execute("SET TimeZone = 'UTC'")
        execute("SET enable_progress_bar = false")
        # No released number makes a quotient fail: by 0 it is NULL.
        execute("SET ieee_floating_point_ops = false")
        execute("SET error_on_division_by_zero = false")
        execute("SET enable_external_access = false")
        execute("SET lock_configuration = true")
        for name, parameters, definition in INTERVAL_MACROS:
            execute(f"CREATE MACRO {name}({parameters}) AS {definition}")
        rows = execute(
            "SELECT function_name, function_type, stability, parameter_types, return_type, macro_definition "
            "FROM duckdb_functions()"
        ).fetchall()
        self.aggregates = sorted({name for name, kind, *_ in rows if kind == "aggregate"})
        # One overload that is volatile makes the name so.
        rejected = {name for name, _, *facts, _ in rows if not _is_consistent(*facts)} | _REJECTED
        kinds = ("scalar", "aggregate", "window")
        self._functions = {name for name, kind, *_ in rows if kind in kinds} - rejected
        # A question is run several times, with the ends of intervals for its numbers.
        self._check_query = lru_cache(64)(lambda text: self._check_tree(self._parse(text)))
        self._macros: dict[str, list[str]] = {}
        for name, kind, *_, definition in rows:
            if kind == "macro" and name not in rejected | self._functions:
                self._macros.setdefault(name, []).append(definition)

    def _is_deterministic(self, name: str) -> bool:
        """Whether a function is; a macro is if all that it calls are, which is looked up when it is used."""
        if name in self._macros:
            # Taken out first: one that calls itself is not.
            for definition in self._macros.pop(name):
                try:
                    self._check_tree(self._parse(f"SELECT {definition}"))
                except RejectedPart:
                    return False
            self._functions.add(name)
        return name in self._functions

    def _parse(self, query: str) -> dict[str, Any]:
        """DuckDB's syntax tree of one SELECT."""
        row = self._connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
        tree = json.loads(row[0] if row else "{}")
        if tree.get("error", True):
            kind = "statement" if tree.get("error_type") == "not implemented" else "syntax"
            raise RejectedPart(kind)
        if len(tree["statements"]) != 1:
            raise RejectedPart("statement")
        statement: dict[str, Any] = tree["statements"][0]
        return statement

    def _check_tree(self, tree: Any) -> None:
        """Raise `RejectedPart` for a part that reads, or computes, anything but the request's rows."""
        nodes = list(walk_tree(tree))
        ctes = {
            str(entry["key"]).casefold()
            for node in nodes
            if isinstance(node.get("cte_map"), Mapping)
            for entry in node["cte_map"].get("map", ())
        }
        ctes |= {str(n["cte_name"]).casefold() for n in nodes if n.get("cte_name")}
        for node in nodes:
            kind, name = node.get("type"), node.get("function_name")
            if node.get("sample") is not None:
                raise RejectedPart("sample")
            if node.get("at_clause") is not None:
                raise RejectedPart("relation", str(node.get("table_name")))
            if "column_name_alias" in node or kind in ("SHOW_REF", "DELIM_GET", "COLUMN_DATA"):
                self._check_source(node, ctes)
            if kind == "COLUMN_REF" and _is_moment(node["column_names"]):
                raise RejectedPart("function", node["column_names"][-1])
            if isinstance(name, str) and not (
                name.casefold() in _TABLE_FUNCTIONS or self._is_deterministic(name.casefold())
            ):
                raise RejectedPart("function", name)
            if str(name).casefold() == "age" and len(node.get("arguments", ())) < 2:
                raise RejectedPart("function", "age")

    def _check_source(self, node: Mapping[str, Any], ctes: set[str]) -> None:
        kind = node.get("type")
        if kind not in _SOURCES:
            raise RejectedPart("relation", str(node.get("table_name") or kind))
        if kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name", "")).casefold()
            if name not in _TABLE_FUNCTIONS:
                raise RejectedPart("function", name)
        if kind == "BASE_TABLE":
            path = [str(part).casefold() for part in node["qualified_name"]["path"]]
            if path[:-1] != [SCHEMA] and not (len(path) == 1 and path[0] in ctes):
                raise RejectedPart("relation", path[-1])

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Columns and rows of a request; of one for ``columns_only`` no rows."""
        query = str(request["query"])
        self._check_query(query)
        execute = self._connection.execute
        # What a request brings goes with it.
        execute("BEGIN")
        try:
            execute(f"CREATE SCHEMA {SCHEMA}")
            for table in request["tables"]:
                self._fill(table)
            if request.get("columns_only"):
                columns = execute(f"DESCRIBE {query}").fetchall()
                return {"columns": [[str(one[0]), str(one[1])] for one in columns], "rows": []}
            cursor = execute(query)
            described = [[str(one[0]), str(one[1])] for one in cursor.description]
            rows = _fetch(cursor, described)
            if rows is None:
                rows = execute(_write_texts(query, described)).fetchmany(MAX_ROWS + 1)
            if len(rows) > MAX_ROWS:
                return {"failed": "rows"}
            written = [[write_value(v) for v in row] for row in rows]
            return {"columns": described, "rows": written, "exact": list_exact(rows)}
        finally:
            execute("ROLLBACK")

    def _fill(self, table: Mapping[str, Any]) -> None:
        names = ['"' + name.replace('"', '""') + '"' for name, _ in table["columns"]]
        kinds = [kind for _, kind in table["columns"]]
        parts = ", ".join(f"unnest(CAST(? AS {k}[])) AS {n}" for n, k in zip(names, kinds))
        values = table["values"] or [[] for _ in table["columns"]]
        self._connection.execute(
            f'CREATE TABLE {SCHEMA}."{table["name"]}" AS SELECT {parts}', values
        )


#: What Python makes of infinite dates.
_ENDS = (dt.date.max, dt.date.min, dt.datetime.max, dt.datetime.min)


def _fetch(cursor: Any, columns: Sequence[Sequence[str]]) -> list[Any] | None:
    """Rows as values of Python; None where it has no such values: months, infinite dates, years of six digits."""
    if any("INTERVAL" in kind for _, kind in columns):
        return None
    try:
        rows: list[Any] = cursor.fetchmany(MAX_ROWS + 1)
    except (OverflowError, ValueError, TypeError):
        return None
    times = [n for n, (_, kind) in enumerate(columns) if kind.startswith(("DATE", "TIMESTAMP"))]
    is_read = not any(row[n] in _ENDS for row in rows for n in times)
    return rows if is_read else None


def _write_texts(query: str, columns: Sequence[Sequence[str]]) -> str:
    """The query with texts, as DuckDB writes them, for all values but numbers and truth values."""
    names = [f"c{n}" for n in range(len(columns))]
    items = [_write_text(name, kind) for name, (_, kind) in zip(names, columns)]
    return f"SELECT {', '.join(items)} FROM ({query}) AS written({', '.join(names)})"


def _write_text(name: str, kind: str) -> str:
    plain = kind in ("BOOLEAN", "VARCHAR", "DOUBLE", "FLOAT") or kind.endswith("INT")
    if plain or kind.startswith(("INTEGER", "DECIMAL")):
        return name
    # The session's zone is UTC.
    value = f"CAST({name} AS TIMESTAMP)" if kind in _ZONED else name
    return f"CAST({value} AS VARCHAR)"


def walk_tree(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a JSON tree."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _is_consistent(stability: str | None, parameters: Sequence[str], result: str | None) -> bool:
    """Whether an overload gives the same for the same arguments in every session of UTC.

    What DuckDB calls consistent only within a query depends on the moment or a setting. With arguments, of which one
    or the result is zoned, that is the zone; `age` of one argument alone depends on the moment, too.
    """
    zoned = bool(parameters) and not _ZONED.isdisjoint([*parameters, result])
    return stability in (None, "CONSISTENT") or (stability == "CONSISTENT_WITHIN_QUERY" and zoned)


def _is_moment(names: Sequence[str]) -> bool:
    return len(names) == 1 and names[0].casefold() in _MOMENTS


def write_value(value: Any) -> Any:
    """A value as JSON: dates and all that JSON does not have are texts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ")
    if isinstance(value, bytes):
        # As DuckDB writes them.
        plain = (32 <= one < 127 and one not in b"\"'\\" for one in value)
        return "".join(
            chr(one) if is_plain else f"\\x{one:02X}" for one, is_plain in zip(value, plain)
        )
    if isinstance(value, dict):
        return {str(key): write_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [write_value(inner) for inner in value]
    return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)


def list_exact(rows: Sequence[Sequence[Any]]) -> list[tuple[int, int, str]]:
    """Row, column and digits of the decimals that no double writes."""
    return [
        (i, j, f"{value:f}")
        for i, row in enumerate(rows)
        for j, value in enumerate(row)
        if isinstance(value, decimal.Decimal) and decimal.Decimal(repr(float(value))) != value
    ]


def read_message(stream: IO[bytes], max_bytes: int = MAX_BYTES) -> bytes | None:
    """One message; None at the end of the stream, or for one that is too large."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    (size,) = struct.unpack("<Q", header)
    if size > max_bytes:
        return None
    content = stream.read(size)
    return content if len(content) == size else None


def write_message(stream: IO[bytes], content: bytes) -> None:
    """Send one message."""
    stream.write(struct.pack("<Q", len(content)))
    stream.write(content)
    stream.flush()


def _limit_resources(address_space: int, seconds: int) -> None:
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    allowed = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    # The parent kills what takes too long; this ends a process that has lost it.
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Nothing is ever written to a file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _answer_safely(database: LockedDatabase, content: bytes) -> bytes:
    duckdb = import_duckdb()
    try:
        reply = database.answer(json.loads(content))
        written = json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace")
        if len(written) <= MAX_BYTES:
            return written
        reply = {"failed": "rows"}
    except RejectedPart as error:
        reply = {"rejected": error.kind, "name": error.name}
    except (MemoryError, duckdb.OutOfMemoryException):
        reply = {"failed": "memory"}
    except duckdb.Error as error:
        reply = {"failed": "query", "error": type(error).__name__, "text": str(error)[:2000]}
    return json.dumps(reply).encode()


def serve(duckdb_folder: str, memory: str, address_space: int, seconds: int) -> None:
    """Answer requests until the stream ends."""
    sys.path.append(duckdb_folder)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    database = LockedDatabase(memory)
    write_message(replies, json.dumps(database.aggregates).encode())
    while (content := read_message(requests)) is not None:
        _limit_resources(address_space, seconds)
        write_message(replies, _answer_safely(database, content))


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
