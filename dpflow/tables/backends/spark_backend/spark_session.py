"""Opens sessions with Spark Connect servers, checks the servers, and keeps sessions for the next answers."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dpflow.error_boundary import contain_errors, silence_libraries
from dpflow.errors import (
    DpflowError,
    PlanRefused,
)
from dpflow.extras import require_extra
from dpflow.tables.backends.server_addresses import find_server_address
from dpflow.tables.backends.spark_backend.canaries import check_server
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.backends.spark_source import SparkSource

#: Loggers of the client's that write an error's text by handlers of their own.
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "pyspark.sql.connect.logging")
#: Of a session: what folders name is text, as everywhere in dpflow, whatever their names look like;
#: and a text is its letters, where ``${...}`` would stand for a setting or variable of the server's. A file
#: that is damaged or gone is an error: where it is passed over, one row's damage takes away others'. Old dates are
#: read as they are stored, whatever wrote them: a server may be set to fail on them.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
}
#: Servers that answered the canaries, by address and version: asked once in a process.
_CHECKED: dict[tuple[str, str], Server] = {}
#: Sessions that are kept for the next answers, the newest last: each with its process, for a child must not use
#: the parent's, and its address. In a new one the cluster compiles a query again, and runs it slowly until it is warm.
_IDLE: list[tuple[int, str, Any]] = []
_IDLE_LOCK = threading.Lock()
_MOST_IDLE = 4
_MEBIBYTE = 2**20
#: How often a call that did not reach the server is made again.
_RETRIES = 2


@dataclass(frozen=True)
class Server:
    """What a server says of itself.

    Attributes:
        version: what ``version()`` answers.
        is_apache_spark: whether that is a version of Apache Spark, which begins with the protocol's.
    """

    version: str
    is_apache_spark: bool


@contextmanager
def open_session(source: SparkSource, what: str) -> Iterator[SparkConnection]:
    """A session with the source's server that nobody else uses meanwhile, in UTC.

    Raises:
        InvalidInput: nobody said what the connection is.
        PlanRefused: the server is not Apache Spark, and the source does not trust it.
        TableBusy: the server cannot be reached.
        TableUnreadable: it answers constant questions otherwise than the backend relies on.
    """
    address = find_server_address(source)
    # The client warns of versions of pandas, of which nothing here makes use.
    with require_extra("spark", "a table on Spark"), silence_libraries():
        from pyspark.logger import PySparkLogger
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    for name in _LOGGERS:
        # For this process: an error's text may quote a row, and these loggers ask nobody.
        PySparkLogger.getLogger(name).disabled = True
    session = _take_idle(address)
    is_new = session is None
    if is_new:
        try:
            session = contain_errors(lambda: SparkSession.builder.remote(address).create())
        except DpflowError:
            raise PlanRefused(
                f"{what}: no session can be opened by the connection {source.spark!r}; correct its address"
            ) from None
        _hide(session)
        # The client would go on for ten minutes.
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
        # Before what the client itself does at the end, which asks a server that may be gone.
        atexit.unregister(_stop_idle)
        atexit.register(_stop_idle)
    connection, is_kept = SparkConnection(session, what, source.answer_mib * _MEBIBYTE), False
    try:
        if is_new:
            connection.run(_make_settings)
        server = (address, connection.run(lambda one: str(one.version)))
        identity = _CHECKED.get(server) or identify_server(connection, server[1])
        _require_trust(identity, source, what)
        if server not in _CHECKED:
            check_server(connection, what)
            _CHECKED[server] = identity
        connection.is_apache_spark = identity.is_apache_spark
        connection.server_version = identity.version
        session.registerProgressHandler(connection.note_progress)
        yield connection
        session.removeProgressHandler(connection.note_progress)
        is_kept = not connection.ends
    finally:
        if is_kept:
            _keep_idle(address, session)
        else:
            _stop(session)


def identify_server(connection: SparkConnection, protocol: str) -> Server:
    """What the server is by its own word. Apache Spark's ``version()`` begins with the version of the protocol."""
    answer = connection.fetch(connection.run(lambda one: one.sql("SELECT version() AS version")))
    version = str(answer["version"][0].as_py())
    return Server(version, version.startswith(protocol))


def _require_trust(server: Server, source: SparkSource, what: str) -> None:
    """Raises `PlanRefused` for a server other than Apache Spark that the owner does not name."""
    if server.is_apache_spark or server.version == source.trusted_server:
        return
    raise PlanRefused(
        f"{what}: its server is not Apache Spark, for version() answers {server.version[:100]!r}, and on such a server one row "
        f"can decide whether there is a result; read the rows on Apache Spark, or accept that in the source: "
        f"trusted_server: {server.version[:100]!r}"
    )


def _hide(session: Any) -> None:
    """Let no other library find it as the process's own: MLflow asks whatever session is active."""
    kind = type(session)
    if kind._default_session is session:
        kind._default_session = None
    if getattr(kind._active_session, "session", None) is session:
        kind._active_session.session = None


def _make_settings(session: Any) -> None:
    session.conf._set_all(_SETTINGS, silent=False)


def _take_idle(address: str) -> Any:
    """A session that is kept and that the server still knows; None if there is none."""
    while (session := _pop_idle(address)) is not None:
        with suppress(Exception), silence_libraries():
            # A server that was restarted may know the session's name, and no setting of it.
            _make_settings(session)
            return session
        _stop(session)
    return None


def _pop_idle(address: str | None) -> Any:
    """The newest of this process's with an address; of any, the oldest. None if there is none."""
    with _IDLE_LOCK:
        ours = [i for i, one in enumerate(_IDLE) if one[0] == os.getpid()]
        if address is not None:
            ours = [i for i in reversed(ours) if _IDLE[i][1] == address]
        return _IDLE.pop(ours[0])[2] if ours else None


def _keep_idle(address: str, session: Any) -> None:
    """Keep a session for later, in place of the oldest where there are many: tokens in addresses change."""
    with _IDLE_LOCK:
        _IDLE.append((os.getpid(), address, session))
        is_full = sum(process == os.getpid() for process, _, _ in _IDLE) > _MOST_IDLE
    if is_full:
        _stop(_pop_idle(None))


def _stop(session: Any) -> None:
    with suppress(Exception), silence_libraries():
        session.stop()


def _stop_idle() -> None:
    """End what this process keeps. A server ends sessions of a process that was killed after an hour."""
    while (session := _pop_idle(None)) is not None:
        _stop(session)
