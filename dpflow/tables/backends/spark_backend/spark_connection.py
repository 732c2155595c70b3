"""An open session with a Spark Connect server, and what leaves of its errors: a class, never a text."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from dpflow.error_boundary import contain_errors, describe_failure, silence_libraries
from dpflow.errors import (
    DpflowError,
    PlanRefused,
    TableBusy,
    TableInterrupted,
    TableUnreadable,
)

T = TypeVar("T")

#: How often a long answer says how far it is.
_NOTE_SECONDS = 10.0
_log = logging.getLogger("dpflow.spark")


class SparkConnection:
    """An open session.

    Attributes:
        what: names the table in messages.
        most: bytes of an answer.
        ends: whether the session ends with this use, for it may show later what it saw now in place of what
            is there, or a query of it failed or was cancelled.
        is_apache_spark, server_version: whether the server is Apache Spark, and which, by its own word.
    """

    def __init__(self, session: Any, what: str, most: float = math.inf) -> None:
        self._session, self.what, self._most = session, what, most
        self.ends, self.is_apache_spark, self.server_version = False, True, ""
        self._lock = threading.Lock()
        # Whether an answer is computed, which `cancel` may end, and whether it was.
        self._answering = self._cancelled = False
        self._next_note = math.inf

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
        self._next_note = time.monotonic() + _NOTE_SECONDS
        try:
            yield
        finally:
            with self._lock:
                self._answering = self._cancelled = False
            self._next_note = math.inf

    def note_progress(self, stages: Any = None, **_: Any) -> None:
        """Log now and then which share of the tasks of the running query is done, in tens of per cent.
        How many there are may follow from rows.
        """
        planned = sum(stage.num_tasks for stage in stages or ())
        if not planned or time.monotonic() < self._next_note:
            return
        self._next_note = time.monotonic() + _NOTE_SECONDS
        tenths = 10 * sum(stage.num_completed_tasks for stage in stages) // planned
        _log.info("%s: Spark has done about %d %% of its query", self.what, 10 * tenths)

    def _interruption(self) -> TableInterrupted:
        return TableInterrupted(f"the query of {self.what} was cancelled; run it again")

    def fetch(self, frame: Any) -> dict[str, Any]:
        """All rows of a finished query: one Arrow column per output. Raises `TableBusy` if they take more
        than an answer may.
        """
        table = self.run(lambda session: self._collect(session.client, frame, self._most))
        return {name: table.column(name).combine_chunks() for name in table.column_names}

    def _collect(self, client: Any, frame: Any, most: float = math.inf) -> Any:
        """As the client's own ``toArrow``, which asks for all pieces before anybody may count their bytes, and
        first of all for their types.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema, pieces, size = None, list[Any](), 0
        for piece in client.to_table_as_iterator(frame._plan.to_proto(client), {}):
            if not isinstance(piece, pa.Table):
                schema = piece
                continue
            pieces.append(piece)
            size += piece.nbytes
            # Retryable, as where memory itself ends: a result that says so would tell of the rows.
            if size > most:
                raise TableBusy(
                    f"an answer of {self.what} is larger than this machine takes, so nothing of it is used; raise "
                    f"answer_mib in its source, or take a larger machine, and try again, which charges nothing"
                )
        schema = to_arrow_schema(frame.schema if schema is None else schema, timezone="UTC")
        return pa.concat_tables(pieces).cast(schema) if pieces else schema.empty_table()

    def read_schema(self, rows: Any) -> Any:
        """The columns of a relation; no row is read. Raises as `run`."""

        def ask(_: Any) -> Any:
            from pyspark.errors import PySparkException

            try:
                return rows.schema
            except PySparkException as error:
                if _is_out_of_reach(error) or read_condition(error) == "COLUMN_ALREADY_EXISTS":
                    raise
                raise TableUnreadable(
                    f"the types of the columns of {self.what} cannot be read on Spark ({type(error).__name__}): a file is "
                    f"no whole Parquet file, or the server lacks the type of a column, also of one that nothing reads; "
                    f"write such a column with another type (nanoseconds as BIGINT), or leave it out of the files"
                ) from None

        return self.run(ask)

    def find_stored_types(self, rows: Any, columns: Sequence[str]) -> list[str]:
        """The type of each quoted column by the server's ``typeof``, which is asked beside no row: Sail's schemas
        say BIGINT of an unsigned column, where a cast of a value beyond 2^63 fails.
        """
        names = [f"c{i}" for i in range(len(columns))]

        def ask(session: Any) -> Any:
            from pyspark.sql.connect.functions import lit

            named = [f"{column} AS {name}" for column, name in zip(columns, names)]
            none = rows.where("false").selectExpr(*named)
            types = session.range(1).join(none, lit(True), "left")
            return self._collect(
                session.client, types.selectExpr(*(f"typeof({name}) AS {name}" for name in names))
            )

        return [str(column[0].as_py()) for column in self.run(ask).columns]

    def make_rows(self, columns: dict[str, Any]) -> Any:
        """Public rows, given by columns, as a relation of the server's."""
        import pyarrow as pa

        return self.run(lambda session: session.createDataFrame(pa.table(columns)))

    def cancel(self) -> None:
        """Stop what another thread runs in here; it raises `TableInterrupted`."""
        with self._lock:
            # Also between two queries of one answer. Nobody uses the session after it, whom this would meet.
            self._cancelled = is_cancelled = self._answering
            self.ends |= is_cancelled
        if is_cancelled:
            with suppress(Exception):
                self._session.interruptAll()

    def _describe_error(self, error: Exception) -> DpflowError:
        import grpc
        import pyarrow as pa
        from pyspark.errors import PySparkException

        self.ends = True
        if self._cancelled:
            return self._interruption()
        if not isinstance(
            error, PySparkException | grpc.RpcError | pa.ArrowException | MemoryError
        ):
            return describe_failure(error)
        if _is_out_of_reach(error):
            return TableBusy(
                f"the Spark server of {self.what} cannot be reached, or ended the session; try again when it is back"
            )
        if read_condition(error) == "COLUMN_ALREADY_EXISTS":
            return self.refuse_same_names()
        return TableUnreadable(
            f"{self.what} cannot be read on Spark ({type(error).__name__}); the error's own text is withheld, as it "
            f"may quote rows; look at the cluster's own log"
        )

    def refuse_same_names(self) -> PlanRefused:
        """The error where two columns have one name but for its case."""
        return PlanRefused(f"{self.what} has columns whose names differ in case alone; rename one")

    def list_files(self, folder: str) -> list[dict[str, Any]]:
        """Path, time and length of each file of a folder and of those in it; none of a folder that is not
        there. Reads no file.
        """

        def ask(session: Any) -> list[dict[str, Any]]:
            from pyspark.errors import AnalysisException

            files = session.read.format("binaryFile").option("recursiveFileLookup", "true")
            state = ("path", "unix_micros(modificationTime) AS time", "length")
            try:
                listed = self._collect(session.client, files.load(folder).selectExpr(*state))
                return list(listed.to_pylist())
            except AnalysisException as error:
                if read_condition(error) == "PATH_NOT_FOUND":
                    return []
                raise

        return self.run(ask)

    def read_file(self, path: str) -> bytes:
        """The bytes of one file of a table's log. Raises `TableUnreadable` if it is not there."""
        column = self.fetch(
            self.run(lambda session: session.read.format("binaryFile").load(path).select("content"))
        )["content"]
        return b"".join(column.to_pylist())


def _is_out_of_reach(error: Exception) -> bool:
    """Whether a call ended for want of server or session; by its code, not by texts that may quote
    rows.
    """
    import grpc

    read_code = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    code = read_code() if callable(read_code) else None
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED):
        return True
    return read_condition(error).startswith(("INVALID_HANDLE.SESSION", "INVALID_HANDLE.OPERATION"))


def read_condition(error: Exception) -> str:
    """Spark's name for what is wrong, which quotes nothing; "" if there is none."""
    read_name = getattr(error, "getCondition", None)
    return str(read_name() or "") if callable(read_name) else ""
