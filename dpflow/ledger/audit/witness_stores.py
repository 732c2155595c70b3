"""Where a witness keeps checkpoints beyond this machine: a server of ours, a bucket, a table of another database.

Each store lists numbers, reads one, and adds one that is not there; the rules are `NumberedPlace`'s.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpflow.counted import counted
from dpflow.errors import (
    DpflowError,
    InvalidInput,
    LedgerCorrupt,
    LedgerUnavailable,
    MissingExtra,
)
from dpflow.extras import require_extra
from dpflow.loopback import is_loopback

MAX_BYTES = 20_000_000  # of one checkpoint
_NAME = re.compile(r"[0-9]{12}\.txt")
_PATIENCE = 10  # seconds for a connection and for each answer
_PAGE = 50  # checkpoints that are read at once
TABLE = sa.Table(
    "dpflow_checkpoint",
    sa.MetaData(),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("note", sa.Text, nullable=False),
)


class _Taken(LedgerUnavailable):
    """There is a checkpoint of this number, or it is not the next one."""


class _Denied(LedgerUnavailable):
    """A store let this user not do what was tried."""


class _Forbidden(InvalidInput):
    """This user may not add anything, and a later try cannot help."""


def name_note(number: int) -> str:
    """The file or object of a checkpoint."""
    return f"{number:012}.txt"


def list_numbers(names: Iterable[str]) -> list[int]:
    """The numbers of the checkpoints among these names."""
    return [int(name[:12]) for name in names if _NAME.fullmatch(name)]


def require_unbroken(place: object, numbers: Sequence[int]) -> None:
    """Raises `LedgerCorrupt` unless these are all the numbers from 1 on, each once."""
    if sorted(numbers) != list(range(1, len(numbers) + 1)):
        raise LedgerCorrupt(
            f"{place} has {counted(len(numbers), 'checkpoint')}, and the newest is number {max(numbers)}: some were taken away"
        )


class WitnessPlace(ABC):
    """Where checkpoints are kept. Each of its methods raises `LedgerUnavailable` where it is out of reach.

    Attributes:
        is_ordered: the place itself takes only checkpoints that extend the last.
    """

    is_ordered = False

    def newest(self) -> tuple[int, str] | None:
        """Number and text of what was added last, None if there is nothing. It may be no checkpoint, or an older one once
        more: see `dpflow.ledger.history.checkpoint.select_newest`. Errors as of `notes`.
        """
        return next(self.notes(), None)

    @abstractmethod
    def notes(self) -> Iterator[tuple[int, str]]:
        """Number and text of all that was added, the last first.

        Raises:
            LedgerCorrupt: what was there was changed or taken away.
        """

    @abstractmethod
    def add(self, number: int, note: str, entries: Iterable[str] = ()) -> str:
        """Add a checkpoint behind the last, whose number is one less; returns where it is.

        Args:
            entries: the JSON lists whose hashes lead from the last to this one, for a place that checks it.
        """

    @abstractmethod
    def may_be_written(self) -> bool:
        """Whether this user could add or change anything there."""


class NumberedPlace(WitnessPlace):
    """A place of numbered checkpoints that are added once. Its text names it without passwords."""

    @abstractmethod
    def _numbers(self) -> Sequence[int]:
        """Of all checkpoints there. Raises `LedgerCorrupt` if one was changed."""

    @abstractmethod
    def _read(self, number: int) -> str:
        """A checkpoint."""

    @abstractmethod
    def _put(self, number: int, note: str, entries: Iterable[str]) -> None:
        """Add a checkpoint, whole or not at all. Raises `_Taken` or `_Forbidden`."""

    def notes(self) -> Iterator[tuple[int, str]]:
        """See `WitnessPlace`."""
        numbers = self._numbers()
        if numbers:
            require_unbroken(self, numbers)
        for last in range(len(numbers), 0, -_PAGE):
            page = range(last, max(last - _PAGE, 0), -1)
            yield from zip(page, self._read_many(page), strict=True)

    def _read_many(self, numbers: Sequence[int]) -> list[str]:
        """Checkpoints in the order of their numbers' list."""
        return [self._read(number) for number in numbers]

    def add(self, number: int, note: str, entries: Iterable[str] = ()) -> str:
        """See `WitnessPlace`. What was added is read back."""
        self._put(number, note, entries)
        if self._read(number) != note:
            raise LedgerCorrupt(
                f"{self} holds another checkpoint {number} than was added; look at who writes there"
            )
        return f"{name_note(number)} in {self}"

    def may_be_written(self) -> bool:
        """See `WitnessPlace`. The newest is added once more: who may is told that it is there."""
        newest = self.newest()
        if newest is None:
            return True
        try:
            self._put(*newest, ())
        except _Taken:
            return True
        except _Forbidden:
            return False
        return True

    def _taken(self) -> LedgerUnavailable:
        return _Taken(f"another checkpoint was added to {self}; try again")

    def _forbidden(self) -> InvalidInput:
        return _Forbidden(f"{self} lets this user add no checkpoint; ask whoever runs it")

    def _unreachable(self, error: object) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"the witness's place {self} cannot be read or written ({error}); try again when it can"
        )


class HttpPlace(NumberedPlace):
    """A server that speaks the protocol of `docs/audit/witness_server.py`: it takes a checkpoint only with the entries that
    lead to it from the one before.

    Args:
        url: of the witness of one ledger. DPFLOW_LEDGER_WITNESS_TOKEN is sent to it as a bearer's token.

    Raises:
        InvalidInput: no address, or one where the token would travel in the clear.
    """

    is_ordered = True

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        parts = urllib.parse.urlsplit(self._url)
        host = parts.hostname or ""
        if not host or "@" in parts.netloc or parts.query or parts.fragment:
            raise InvalidInput("the witness's address reads https://HOST/PATH; correct it")
        if parts.scheme == "http" and not is_loopback(host):
            raise InvalidInput(
                f"{self} would get the token in the clear; write https://, or ask it on its own machine"
            )
        self._parts = parts

    def __str__(self) -> str:
        return self._url

    def newest(self) -> tuple[int, str] | None:
        """See `WitnessPlace`."""
        status, number, note = self._ask("GET", "")
        if status == 204:
            return None
        if status == 422:
            raise LedgerCorrupt(
                f"the witness {self}: {note.strip()[:200]}; bring the newest copy of its folder back"
            )
        if status != 200 or not re.fullmatch("[1-9][0-9]{0,11}", number):
            raise self._unreachable(f"status {status}")
        return int(number), note

    def notes(self) -> Iterator[tuple[int, str]]:
        """See `WitnessPlace`. Each is asked for when it is needed."""
        if newest := self.newest():
            yield newest
            for number in range(newest[0] - 1, 0, -1):
                yield number, self._read(number)

    def _numbers(self) -> Sequence[int]:
        newest = self.newest()
        return range(1, newest[0] + 1) if newest else ()

    def _read(self, number: int) -> str:
        status, _, note = self._ask("GET", f"/{number}")
        if status != 200:
            raise self._unreachable(f"status {status}")
        return note

    def _put(self, number: int, note: str, entries: Iterable[str]) -> None:
        status, _, text = self._ask("PUT", f"/{number}", _lines(note, entries))
        if status == 409:
            raise self._taken()
        if status in (401, 403):
            raise self._forbidden()
        if status == 422:
            raise LedgerCorrupt(f"the witness {self} refused the checkpoint: {text.strip()[:200]}")
        if status != 201:
            raise self._unreachable(f"status {status}")

    def _ask(
        self, method: str, path: str, lines: Iterator[bytes] | None = None
    ) -> tuple[int, str, str]:
        """Status, number and text of an answer. No redirect is followed: another address would get the token."""
        # Charges import this module, and seldom ask a server.
        import http.client

        kind = (
            http.client.HTTPSConnection
            if self._parts.scheme == "https"
            else http.client.HTTPConnection
        )
        headers = {}
        if token := os.environ.get("DPFLOW_LEDGER_WITNESS_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        try:
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=_PATIENCE)
            try:
                target = (self._parts.path + path) or "/"
                # Refused early: the answer says why.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(
                        method, target, lines, headers, encode_chunked=lines is not None
                    )
                answer = connection.getresponse()
                data = answer.read(MAX_BYTES + 1)
                if len(data) > MAX_BYTES:
                    raise self._unreachable("an answer too long")
                return answer.status, answer.headers.get("Number", ""), data.decode()
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreachable(type(error).__name__) from None


def _lines(note: str, entries: Iterable[str]) -> Iterator[bytes]:
    yield json.dumps(note).encode() + b"\n"
    for entry in entries:
        yield entry.encode() + b"\n"


class ObjectPlace(NumberedPlace):
    """A folder of a bucket that keeps versions, on a store that honours ``If-None-Match``: an object that was replaced or
    taken away shows.

    Args:
        url: ``s3://BUCKET/FOLDER``. Who may read and write is up to the environment, such as AWS_PROFILE.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._bucket, _, folder = self._url.removeprefix("s3://").partition("/")
        self._prefix = f"{folder}/" if folder else ""
        # A pattern would be read as what it matches.
        if not self._bucket or re.search("[@:?]", self._bucket) or re.search(r"[*?\[]", folder):
            raise InvalidInput("the witness's bucket reads s3://BUCKET/FOLDER; correct it")

    def __str__(self) -> str:
        return self._url

    def _numbers(self) -> Sequence[int]:
        if self._call("get_bucket_versioning").get("Status") != "Enabled":
            raise InvalidInput(
                f"the bucket of {self} keeps no versions, so a checkpoint could be replaced unseen; switch versioning on"
            )
        versions: dict[str, set[str]] = defaultdict(set)
        taken: set[str] = set()
        marker: dict[str, Any] = {}
        while True:
            page = self._call("list_object_versions", Prefix=self._prefix, **marker)
            for row in page.get("Versions", ()):
                # The same once more is no change.
                versions[row["Key"]].add(row["ETag"])
            taken |= {row["Key"] for row in page.get("DeleteMarkers", ())}
            if not page.get("IsTruncated"):
                break
            marker = {
                "KeyMarker": page["NextKeyMarker"],
                "VersionIdMarker": page["NextVersionIdMarker"],
            }
        for key, contents in versions.items():
            if len(contents) > 1 or key in taken:
                raise LedgerCorrupt(
                    f"{key} in {self} was changed or taken away; its first version is what was added"
                )
        return list_numbers(key.removeprefix(self._prefix) for key in versions)

    def _read(self, number: int) -> str:
        with self._naming_faults():
            data: bytes = self._files.cat_file(self._path(number))
        return data[:MAX_BYTES].decode(errors="replace")

    def _read_many(self, numbers: Sequence[int]) -> list[str]:
        with self._naming_faults():  # all at once: each takes its time
            data: dict[str, bytes] = self._files.cat([self._path(number) for number in numbers])
        return [data[self._path(n)][:MAX_BYTES].decode(errors="replace") for n in numbers]

    def _put(self, number: int, note: str, entries: Iterable[str]) -> None:
        key = f"{self._prefix}{name_note(number)}"
        try:
            self._call("put_object", Key=key, Body=note.encode(), IfNoneMatch="*")
        except _Denied:
            raise self._forbidden() from None

    def _path(self, number: int) -> str:
        return f"{self._bucket}/{self._prefix}{name_note(number)}"

    @cached_property
    def _files(self) -> Any:
        with require_extra("remote", "a witness's bucket"):
            import fsspec
        patience = {"connect_timeout": _PATIENCE, "read_timeout": _PATIENCE}
        settings = patience | {"retries": {"max_attempts": 1}}
        try:
            return fsspec.filesystem("s3", use_listings_cache=False, config_kwargs=settings)
        except ImportError:
            raise MissingExtra(
                "a witness's bucket needs the package 's3fs': pip install s3fs"
            ) from None

    def _call(self, method: str, **fields: Any) -> dict[str, Any]:
        with self._naming_faults():
            answer: dict[str, Any] = self._files.call_s3(method, Bucket=self._bucket, **fields)
        return answer

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        # Also of credentials that expired, which a later try may have again.
        except PermissionError:
            raise _Denied(str(self._unreachable("access denied"))) from None
        except DpflowError:
            raise
        except Exception as error:  # noqa: BLE001  botocore has a hundred; its text may quote the request
            response = getattr(error.__cause__ or error, "response", {})
            code = response.get("Error", {}).get("Code", "")
            if code in ("PreconditionFailed", "ConditionalRequestConflict"):
                raise self._taken() from None
            raise self._unreachable(code or type(error).__name__) from None


class TablePlace(NumberedPlace):
    """The table ``dpflow_checkpoint`` of another database, whose owner made it and lets the witness select and insert alone.

    Args:
        url: SQLAlchemy's.

    Raises:
        InvalidInput: it cannot be read, or its driver is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = sa.make_url(url)
            is_postgres = self._url.get_backend_name() == "postgresql"
            limits = {"connect_timeout": _PATIENCE} if is_postgres else {}
            self._engine = sa.create_engine(
                self._url, poolclass=sa.NullPool, connect_args=limits, hide_parameters=True
            )
        except (sa.exc.ArgumentError, ImportError, ValueError):
            raise InvalidInput(
                "the witness's database cannot be read from its URL, or its driver is not installed; write it as "
                "postgresql+psycopg://LOGIN@HOST/DATABASE"
            ) from None

    def __str__(self) -> str:
        return self._url.set(query={}).render_as_string(hide_password=True)

    def may_be_written(self) -> bool:
        """See `NumberedPlace`. A SQLite file belongs to whoever may replace it."""
        if self._file is not None:
            return can_write(self._file) or can_write(self._file.parent)
        return super().may_be_written()

    @property
    def _file(self) -> Path | None:
        name = self._url.database
        return Path(name) if self._url.get_backend_name() == "sqlite" and name else None

    def _numbers(self) -> Sequence[int]:
        with self._begin() as connection:
            return list(connection.scalars(sa.select(TABLE.c.number)))

    def _read(self, number: int) -> str:
        return self._read_many([number])[0]

    def _read_many(self, numbers: Sequence[int]) -> list[str]:
        text = sa.func.substr(TABLE.c.note, 1, MAX_BYTES)
        with self._begin() as connection:
            query = sa.select(TABLE.c.number, text).where(TABLE.c.number.in_(numbers))
            found = {number: str(note) for number, note in connection.execute(query)}
        return [found.get(number, "") for number in numbers]

    def _put(self, number: int, note: str, entries: Iterable[str]) -> None:
        # Told apart from a place that is out of reach by reading it first.
        with self._begin() as connection:
            connection.execute(sa.select(TABLE.c.number).limit(1))
            try:
                connection.execute(sa.insert(TABLE).values(number=number, note=note))
            except sa.exc.IntegrityError:
                raise self._taken() from None
            except sa.exc.DBAPIError as error:
                if error.connection_invalidated or "locked" in str(error.orig):
                    raise
                raise self._forbidden() from None

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        # SQLite would make a file that is not there.
        if self._file is not None and not self._file.exists():
            raise self._unreachable("no such file")
        try:
            with self._engine.begin() as connection:
                if not sa.inspect(connection).has_table(TABLE.name):
                    raise self._unreachable(
                        f"no table; make it: CREATE TABLE {TABLE.name} (number INTEGER PRIMARY KEY, note TEXT NOT NULL)"
                    )
                yield connection
        except sa.exc.SQLAlchemyError as error:
            raise self._unreachable(type(error).__name__) from None


def can_write(path: Path) -> bool:
    """Whether this user may write a file or folder, or give itself the right."""
    return path.exists() and (path.stat().st_uid == os.geteuid() or os.access(path, os.W_OK))
