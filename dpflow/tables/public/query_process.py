"""SQL over released rows, in DuckDB, in a process of its own that is killed when it takes too long.

The process (`dpflow.tables.public.query_worker`) gets no environment, no file and no network, and has a limit of
memory. It reads what a request brings: rows that were released or declared open.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpflow.errors import QueryStopped
from dpflow.tables.public import query_worker
from dpflow.tables.public.query_worker import read_message, write_message

#: Seconds after which the process is killed, and bytes of memory that it may address.
MAX_SECONDS, MAX_ADDRESS_SPACE = 20.0, 3 * 2**30
#: DuckDB's own limit, which ends most queries in good order.
_MEMORY = "1GB"


@dataclass(frozen=True)
class RowTable:
    """Rows that a query may read, as ``released.NAME``.

    Attributes:
        columns: names and types of DuckDB.
        values: for each column its values; empty lists where only types are asked for.
        rows_left_out: above what a service sends to its principal.
    """

    name: str
    columns: Sequence[tuple[str, str]]
    values: Sequence[Sequence[Any]]
    rows_left_out: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class QueryResult:
    """Names and types of columns, and rows; dates are texts, decimals doubles.

    Attributes:
        exact: the digits of decimals that no double writes, by row and column.
    """

    columns: list[tuple[str, str]]
    rows: list[list[Any]]
    exact: Mapping[tuple[int, int], str]


class QueryRejected(Exception):
    """The query has a part that is not allowed, or DuckDB cannot bind or run it.

    Attributes:
        kind: ``function``, ``relation``, ``sample``, ``statement``, ``syntax`` or ``query``.
        name: the function or relation.
        text: what DuckDB says, which may quote released values.
    """

    def __init__(self, kind: str, name: str = "", text: str = "") -> None:
        super().__init__(kind)
        self.kind, self.name, self.text = kind, name, text


class QueryProcess:
    """The kept process; it is started when it is needed, and again after it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._aggregates: frozenset[str] = frozenset()

    def list_aggregates(self) -> frozenset[str]:
        """Names of DuckDB's aggregate functions, in lower case."""
        with self._lock:
            if not self._aggregates:
                self._start()
            return self._aggregates

    def describe(self, tables: Sequence[RowTable], query: str) -> QueryResult:
        """Names and types of a query's columns, and no rows; none is looked at.

        Raises:
            QueryRejected: a part of it is not allowed, or DuckDB cannot bind it.
            QueryStopped: the process was killed.
        """
        return self._ask(tables, query, MAX_SECONDS, columns_only=True)

    def run(
        self, tables: Sequence[RowTable], query: str, seconds: float | None = None
    ) -> QueryResult:
        """A query's rows.

        Raises:
            QueryRejected: a part of it is not allowed, or DuckDB cannot run it.
            QueryStopped: it took too long, or too much memory.
        """
        return self._ask(tables, query, MAX_SECONDS if seconds is None else seconds)

    def _ask(
        self,
        tables: Sequence[RowTable],
        query: str,
        seconds: float,
        columns_only: bool = False,
    ) -> QueryResult:
        request = {
            "tables": [
                {"name": one.name, "columns": list(one.columns), "values": list(one.values)}
                for one in tables
            ],
            "query": query,
            "columns_only": columns_only,
        }
        content = json.dumps(request).encode()
        if len(content) > query_worker.MAX_BYTES:
            raise QueryStopped(_describe_stop("rows"))
        with self._lock:
            reply = self._exchange(content, seconds)
        if reply is None:
            raise QueryStopped(_describe_stop("time", seconds))
        if reply.get("failed") in ("rows", "memory"):
            raise QueryStopped(_describe_stop(reply["failed"]))
        if "failed" in reply:
            raise QueryRejected("query", str(reply["error"]), str(reply["text"]))
        if "rejected" in reply:
            raise QueryRejected(str(reply["rejected"]), str(reply["name"]))
        columns = [(name, kind) for name, kind in reply["columns"]]
        exact = {(row, column): digits for row, column, digits in reply.get("exact", ())}
        return QueryResult(columns, reply["rows"], exact)

    def _exchange(self, content: bytes, seconds: float) -> dict[str, Any] | None:
        """The process's reply; None if it was killed or ended by itself."""
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        reply = None
        timer.start()
        try:
            write_message(process.stdin, content)
            received = read_message(process.stdout)
            reply = None if received is None else json.loads(received)
        except (OSError, ValueError):
            reply = None
        finally:
            timer.cancel()
            # Also where a signal's handler raised: what the process says later is nobody's reply.
            if reply is None:
                self._stop()
        return reply

    def _start(self) -> subprocess.Popen[bytes]:
        # A forked process does not own its parent's: two would read each other's replies.
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return self._process
            self._stop()
        package = find_spec("duckdb")
        assert package is not None and package.origin is not None
        folder = str(Path(package.origin).parents[1])
        arguments = (folder, _MEMORY, str(MAX_ADDRESS_SPACE), str(int(MAX_SECONDS) + 5))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", query_worker.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )
        self._process, self._owner = process, os.getpid()
        assert process.stdout is not None
        timer = threading.Timer(60, process.kill)
        timer.daemon = True
        timer.start()
        try:
            ready = read_message(process.stdout)
        finally:
            timer.cancel()
        if ready is None:
            self._stop()
            raise QueryStopped(
                "the process for SQL over released rows does not start; install duckdb for this Python"
            )
        self._aggregates = frozenset(json.loads(ready))
        return process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def forget(self) -> None:
        """Begin anew in a forked process: another thread may hold the lock for ever."""
        self._lock = threading.Lock()
        self._process = None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()


def _describe_stop(reason: str, seconds: float = MAX_SECONDS) -> str:
    reasons = {
        "time": f"it took longer than {seconds:g} s of time, or too much memory",
        "memory": "it took too much memory",
        "rows": f"it has more than {query_worker.MAX_ROWS:,} rows, or too large ones",
    }
    return (
        f"the part of the query over released rows was stopped: {reasons[reason]}; what was released is stored, so a query "
        f"that computes less is free"
    )


#: The process of this interpreter.
PROCESS = QueryProcess()
atexit.register(PROCESS.close)
os.register_at_fork(after_in_child=PROCESS.forget)
