"""Where a declaration says that its rows are on Spark."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from dpflow.core.contract.server_source import ServerSource

_SIGN = r"[^*?\[\]{}\\\x00-\x1f]"
_NAME = r"[^/:@*?\[\]{}\\\x00-\x1f]*"
# The whole path, and no user's password before the host.
_FOLDER = rf"([A-Za-z][A-Za-z0-9+.-]*:(//{_NAME}(@{_NAME})?(:[0-9]+)?)?)?/([^/*?\[\]{{}}\\\x00-\x1f]{_SIGN}*)?"
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}"
_TABLE = rf"{_FOLDER}|{_WORD}\.{_WORD}\.{_WORD}"

#: Schemes of one meaning. A path without one is in the cluster's own file system, which may be any of
#: those that become "".
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}
_SCHEMES |= dict.fromkeys(("file", "hdfs", "viewfs", "dbfs"), "")


class SparkSource(ServerSource):
    """Rows that a Spark cluster reads, through Spark Connect.

    Attributes:
        spark: the server, as ``sc://host:port`` without a user or parameters, or a connection's
            name. The address of the connection ``lake``, with its credentials, is in the environment
            variable ``DPFLOW_SPARK_LAKE``.
        table: a folder by its whole path as the cluster names it, such as ``s3://lake/visits``, of Parquet
            files or of a table of Delta or Iceberg; or a table by the three words ``catalog.schema.table``.
        answer_mib: the most that one answer may take of the memory where the release runs, in MiB (1 to
            2^20). Distinct values, keys, records and groups come there; sums take little.
        trusted_server: what ``SELECT version()`` answers on a server that is not Apache Spark. Without it such
            a server is refused: a value that it cannot decode makes a release "none", and that row shows.
            The guarantee's text and the grant then name the server.
        verified: the file in which ``dpflow load DECLARATION --in-place`` records that the server read every
            value of these columns, in one state of the rows. Columns that it does not name are refused if the
            server can fail on one value: times, for a server fails on one in milliseconds beyond the years of
            microseconds, and on Apache Spark decimals of more than 18 digits, for a file can hold more digits
            than the type. After rows were written they are refused until the next record.
    """

    backend: ClassVar[str] = "spark"
    system: ClassVar[str] = "Spark"
    example = "{spark: lake, table: 's3://lake/visits'}"

    spark: Annotated[
        str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,62}|sc://[A-Za-z0-9.-]+(:[0-9]{1,5})?)$")
    ]
    table: Annotated[str, Field(pattern=f"^({_TABLE})$")]
    answer_mib: Annotated[int, Field(ge=1, le=2**20)] = 4096
    verified: Path | None = None
    trusted_server: Annotated[str, Field(pattern=r"^[ -~]{1,100}$")] | None = None

    @property
    def place(self) -> str:
        """One text for the spellings of one place. Names of catalogues and hosts fold case; folders have
        schemes of one meaning, signs by their codes, double slashes, and slashes at their end. Where
        servers differ, it is one text for both: a budget that is shared is the safer mistake.
        """
        if "/" not in self.table:
            return self.table.casefold()
        match = re.match(r"(?:([^:/]+):)?(?://([^/]*))?(.*)", self.table)
        assert match is not None
        scheme = (match[1] or "").casefold()
        scheme = _SCHEMES.get(scheme, scheme)
        # Of a path normpath keeps two slashes at its beginning.
        path = "/" + posixpath.normpath(_decode_signs(match[3])).lstrip("/")
        return f"{scheme}://{(match[2] or '').casefold()}{path}" if scheme else path

    @property
    def description(self) -> str:
        """Table and server, for people."""
        return f"{self.table} on {self.spark}"

    @property
    def trust_text(self) -> str:
        """The server that is not Apache Spark, by its own word."""
        server = self.trusted_server
        return f"a server that is not Apache Spark: {server}" if server else ""

    def in_folder(self, folder: str) -> SparkSource:
        """The same rows by the folder that a catalogue says they are in."""
        return self.model_copy(update={"table": folder})

    def resolve_files(self, folder: Path) -> SparkSource:
        """The same source, whose record of verified columns is relative to the declaration's folder."""
        if self.verified is None:
            return self
        return self.model_copy(update={"verified": (folder / self.verified).resolve()})

    def find_relation(self, relation: str) -> SparkSource:
        """The source of what a join names: a folder or a catalogue's table, or by a word what lies beside
        the table, in the same folder or schema. Raises `ValueError` for another text.
        """
        table = relation
        if "/" not in relation and relation.count(".") != 2:
            mark = "/" if "/" in self.table else "."
            table = self.table.rstrip("/").rpartition(mark)[0] + mark + relation
        if re.fullmatch(_TABLE, table) is None:
            # Not repeated: it may hold a password.
            raise ValueError(
                "a join of a source on Spark names a relation by a word, a folder's whole path, or three words of a catalogue"
            )
        return self.model_copy(update={"table": table})


def _decode_signs(path: str) -> str:
    """A path with the signs that codes such as ``%20`` stand for."""

    def decode(codes: re.Match[str]) -> str:
        return bytes.fromhex(codes[0].replace("%", "")).decode(errors="replace")

    return re.sub("(?:%[0-9A-Fa-f]{2})+", decode, path)


def is_folder(text: str) -> bool:
    """Whether a text names one folder by its whole path, as a declaration may."""
    return re.fullmatch(_FOLDER, text) is not None
