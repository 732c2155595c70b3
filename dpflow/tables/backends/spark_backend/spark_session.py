"""A session with a Spark Connect server, and what leaves of its errors: a class, never a text."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from dpflow.core.contract.spark_source import SparkSource
from dpflow.error_boundary import contain_errors, describe_failure, silence_libraries
from dpflow.errors import (
    DpflowError,
    InvalidInput,
    PlanRefused,
    TableBusy,
    TableInterrupted,
    TableUnreadable,
)
from dpflow.extras import require_extra

T = TypeVar("T")

#: Loggers of the client's that write an error's text by handlers of their own.
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "pyspark.sql.connect.logging")
#: Of a session: what folders name is text, as everywhere in dpflow, whatever their names look like;
#: and a text is its letters, where ``${...}`` would stand for a setting or variable of the server's.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.variable.substitute": "false",
}
#: Servers that answered the canaries, by address and version: asked once in a process.
_TRUSTED: set[tuple[str, str]] = set()
#: How often a call that did not reach the server is made again.
_RETRIES = 2
#: Logs of table formats, which say what of a folder's files counts.
_LOGS = {"_delta_log": "Delta", "metadata": "Iceberg", ".hoodie": "Hudi"}


def server_address(source: SparkSource) -> str:
    """The server's address, with the credentials that a connection has. Raises `InvalidInput` where
    nobody said what the connection is.
    """
    if source.spark.startswith("sc://"):
        return source.spark
    variable = f"DPFLOW_SPARK_{source.spark.upper()}"
    address = os.environ.get(variable, "")
    # Not repeated: it may hold a token.
    if re.match(r"sc://[^/;]", address) is None:
        raise InvalidInput(
            f"the connection {source.spark!r} needs the address of a Spark Connect server in the environment variable "
            f"{variable}, such as sc://spark.example.org:15002; set it"
        )
    return address


class SparkConnection:
    """An open session. ``what`` names the table in messages."""

    def __init__(self, session: Any, what: str) -> None:
        self._session, self._what = session, what
        # Whether an answer is computed, which `cancel` may end, and whether it was.
        self._answering = self._cancelled = False

    def run(self, action: Callable[[Any], T]) -> T:
        """What an action on the session returns; what it raises quotes neither server nor row.

        Raises:
            TableBusy: the server cannot be reached, or has forgotten the session.
            TableInterrupted: another thread cancelled the query.
            TableUnreadable: anything else that Spark objects to.
        """
        if self._cancelled:
            raise self._interruption()
        with silence_libraries():
            return contain_errors(lambda: action(self._session), self._describe_error)

    @contextmanager
    def make_interruptible(self) -> Iterator[None]:
        """What is asked inside, in several queries, ends when another thread cancels it."""
        self._answering, self._cancelled = True, False
        try:
            yield
        finally:
            self._answering = self._cancelled = False

    def _interruption(self) -> TableInterrupted:
        return TableInterrupted(f"the query of {self._what} was cancelled; run it again")

    def fetch(self, frame: Any) -> dict[str, Any]:
        """All rows of a finished query: one Arrow column per output."""
        table = self.run(lambda _: frame.toArrow())
        return {name: table.column(name).combine_chunks() for name in table.column_names}

    def make_rows(self, columns: dict[str, Any]) -> Any:
        """Public rows, given by columns, as a relation of the server's."""
        import pyarrow as pa

        return self.run(lambda session: session.createDataFrame(pa.table(columns)))

    def cancel(self) -> None:
        """Stop what another thread runs in here; it raises `TableInterrupted`."""
        if self._answering:
            # Also between two queries of one answer.
            self._cancelled = True
            with suppress(Exception):
                self._session.interruptAll()

    def _describe_error(self, error: Exception) -> DpflowError:
        import grpc
        import pyarrow as pa
        from pyspark.errors import PySparkException

        if self._cancelled:
            return self._interruption()
        if not isinstance(
            error, PySparkException | grpc.RpcError | pa.ArrowException | MemoryError
        ):
            return describe_failure(error)
        if _is_out_of_reach(error):
            return TableBusy(
                f"the Spark server of {self._what} cannot be reached, or ended the session; try again when it is back"
            )
        return TableUnreadable(
            f"{self._what} cannot be read on Spark ({type(error).__name__}); the error's own text is withheld, as it "
            f"may quote rows; look at the cluster's own log"
        )

    def check_folder(self, folder: str) -> None:
        """Refuse a folder of a table format, whose log says what of its files counts. Reads no file.
        Raises `TableUnreadable`.
        """
        for log, kind in _LOGS.items():
            if self._list(f"{folder.rstrip('/')}/{log}"):
                raise TableUnreadable(
                    f"{self._what} is a table of the format {kind}, whose log says which of its files count, and dpflow reads plain "
                    f"Parquet folders on Spark; write its newest state to one"
                )

    def list_files(self, folder: str) -> bytes:
        """A digest of the names, sizes and times of a folder's Parquet files: what differs when the
        rows may differ. Reads no file. Raises `TableUnreadable` if there are none, or others too.
        """
        files = self._list(folder)
        if not files:
            raise TableUnreadable(
                f"{self._what}: Spark finds no file in {folder}; correct the declaration's source, or write the rows"
            )
        if not all(file["path"].endswith(".parquet") for file in files):
            raise TableUnreadable(
                f"{self._what}: {folder} holds other files than those whose names end with .parquet; take them out"
            )
        states = sorted((file["path"], file["time"], file["length"]) for file in files)
        return hashlib.sha256(repr(states).encode()).digest()

    def _list(self, folder: str) -> list[dict[str, Any]]:
        """The files of a folder and of those in it, from their names and states alone; none of a folder
        that is not there.
        """

        def ask(session: Any) -> list[dict[str, Any]]:
            from pyspark.errors import AnalysisException

            files = session.read.format("binaryFile").option("recursiveFileLookup", "true")
            state = ("path", "unix_micros(modificationTime) AS time", "length")
            try:
                return list(files.load(folder).selectExpr(*state).toArrow().to_pylist())
            except AnalysisException as error:
                if error.getCondition() == "PATH_NOT_FOUND":
                    return []
                raise

        return self.run(ask)

    def read_files(self, folder: str) -> Any:
        """The rows of a folder; nothing is read before somebody asks. Columns that folders name, such as
        ``day=2013-01-01``, are texts.
        """
        return self.run(lambda session: session.read.parquet(folder))


def _is_out_of_reach(error: Exception) -> bool:
    """Whether a call ended for want of server or session; by its code, not by texts that may quote
    rows.
    """
    import grpc

    read_code = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    code = read_code() if callable(read_code) else None
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED):
        return True
    read_class = getattr(error, "getCondition", None)
    name = str(read_class() or "") if callable(read_class) else ""
    return name.startswith(("INVALID_HANDLE.SESSION", "INVALID_HANDLE.OPERATION"))


@contextmanager
def open_session(source: SparkSource, what: str) -> Iterator[SparkConnection]:
    """A session of its own with the source's server, in UTC.

    Raises:
        InvalidInput: nobody said what the connection is.
        TableBusy: the server cannot be reached.
        TableUnreadable: it answers constant questions otherwise than the backend relies on.
    """
    from dpflow.tables.backends.spark_backend.canaries import check_server

    address = server_address(source)
    # The client warns of versions of pandas, of which nothing here makes use.
    with require_extra("spark", "a table on Spark"), silence_libraries():
        from pyspark.logger import PySparkLogger
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    for name in _LOGGERS:
        # For this process: an error's text may quote a row, and these loggers ask nobody.
        PySparkLogger.getLogger(name).disabled = True
    try:
        session = contain_errors(lambda: SparkSession.builder.remote(address).create())
    except DpflowError:
        raise PlanRefused(
            f"{what}: no session can be opened by the connection {source.spark!r}; correct its address"
        ) from None
    connection = SparkConnection(session, what)
    try:
        # The client would go on for ten minutes.
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
        connection.run(lambda one: [one.conf.set(*setting) for setting in _SETTINGS.items()])
        server = (address, connection.run(lambda one: str(one.version)))
        if server not in _TRUSTED:
            check_server(connection, what)
            _TRUSTED.add(server)
        yield connection
    finally:
        with suppress(Exception), silence_libraries():
            session.stop()
