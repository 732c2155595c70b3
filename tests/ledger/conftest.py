"""The same tests on both databases."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from witness_server_run import serve_witness

from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseKey, Reservation, SessionRecord, Slot


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ask PostgreSQL every second case of a test that has other parameters, too, and all in ``make slow``; SQLite has all."""
    cases = Counter[tuple[Path, str]]()
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(Path(__file__).parent):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            if len(parameters) > 1 and parameters.get("place") == "postgresql":
                cases[item.path, item.originalname] += 1
                if cases[item.path, item.originalname] % 2 == 0:
                    item.add_marker(pytest.mark.slow)


@dataclass
class Place:
    """Where a ledger is: how to open it, and how to go behind its back."""

    target: str
    anchor: Path

    def open(self, create: bool = True) -> Ledger:
        return Ledger(self.target, anchor=self.anchor, create=create)

    @contextlib.contextmanager
    def intruder(self) -> Iterator[Callable[..., list[Any]]]:
        """Somebody with full rights over the database: runs one statement, with ``?`` for
        parameters, and returns its rows.
        """
        if "://" in self.target:
            with psycopg.connect(
                self.target.replace("+psycopg", ""), autocommit=True
            ) as connection:
                connection.execute("SET session_replication_role = replica")  # no triggers

                def run(statement: str, *values: Any) -> list[Any]:
                    cursor = connection.execute(statement.replace("?", "%s"), values or None)
                    return cursor.fetchall() if cursor.description else []

                yield run
            return
        with contextlib.closing(sqlite3.connect(self.target, isolation_level=None)) as connection:
            find = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            for (trigger,) in connection.execute(find).fetchall():
                connection.execute(f"DROP TRIGGER {trigger}")
            yield lambda statement, *values: connection.execute(statement, values).fetchall()

    def sql(self, *statements: str) -> list[Any]:
        """Run statements as an intruder; returns the last one's rows."""
        with self.intruder() as run:
            return [run(statement) for statement in statements][-1]


@pytest.fixture
def make_place() -> type[Place]:
    """Makes a place where no fixture of one test can."""
    return Place


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(str(tmp_path / "ledger.sqlite"), tmp_path / "anchor")
    return Place(request.getfixturevalue("postgres")(), tmp_path / "anchor")


@pytest.fixture
def new_target(place: Place, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes another target on the database of `place`: a file that is not there, or an empty
    database.
    """
    if "://" in place.target:
        make: Callable[[], str] = request.getfixturevalue("postgres")
        return make
    numbers = itertools.count()
    return lambda: str(tmp_path / f"other-{next(numbers)}.sqlite")


@pytest.fixture
def ledger(place: Place) -> Ledger:
    """A ledger that granted epsilon 1 to ``flights``."""
    ledger = place.open()
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    return ledger


class Asks:
    """Short forms of the verbs' long argument lists."""

    @staticmethod
    def key(
        digest: str = "d",
        *,
        scope: str = "flights",
        task: str = "t",
        run_identity: str = "o",
        ordinal: int = 0,
    ) -> ReleaseKey:
        return ReleaseKey(scope, "dag", task, run_identity, digest, ordinal)

    @staticmethod
    def terms(epsilon: str = "0.1", **changes: Any) -> dict[str, Any]:
        if isinstance(changes.get("slot"), str):
            changes["slot"] = Slot(*changes["slot"].split("/"))  # "run/instance"
        return {
            "event": Pure(Fraction(epsilon)),
            "blocks": (),
            "family": "f",
            "slot": None,
            "principal": "airflow:dag",
            "request": {"name": "n"},
        } | changes

    def reserve(
        self, ledger: Ledger, digest: str = "d", epsilon: str = "0.1", **changes: Any
    ) -> Reservation:
        where = {
            name: changes.pop(name)
            for name in ("scope", "task", "run_identity", "ordinal")
            if name in changes
        }
        return ledger.reserve(self.key(digest, **where), **self.terms(epsilon, **changes))

    def settle(
        self, ledger: Ledger, digest: str = "d", epsilon: str = "0.1", **changes: Any
    ) -> Reservation:
        """Reserve, and settle with a result that has the name of the request."""
        held = self.reserve(ledger, digest, epsilon, **changes)
        return ledger.settle(held, {"rows": [digest]})

    def answer_once(self, ledger: Ledger) -> SessionRecord:
        """A new session that answered one question and keeps a secret."""
        session = ledger.open_session(
            self.key("gate"), **self.terms(), state={"threshold": 4711}, exclusive=False
        )
        ledger.answer(
            session.session_id,
            query="q",
            expected_version=0,
            state={"threshold": 4712},
            answer={"ok": True},
        )
        return session

    @staticmethod
    def spent(ledger: Ledger, scope: str = "flights") -> dict[str, str]:
        return {row["block"]: row["epsilon_spent"] for row in ledger.remaining(scope).rows()}


@pytest.fixture(scope="session")
def ask() -> Asks:
    return Asks()


@pytest.fixture
def make_keep(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Makes a place of a witness, of the kind that is named, which those who charge know."""
    with contextlib.ExitStack() as servers:

        def make(kind: str, *keys: str) -> str:
            folder = tmp_path / "witness"
            if kind == "git":
                subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
                name = f"git+{folder}"
            elif kind == "s3":
                request.getfixturevalue("s3_server")
                files = pytest.importorskip("s3fs").S3FileSystem()
                # The server's buckets outlive it.
                bucket, status = f"witness-{uuid.uuid4().hex}", {"Status": "Enabled"}
                files.call_s3("create_bucket", Bucket=bucket)
                files.call_s3(
                    "put_bucket_versioning", Bucket=bucket, VersioningConfiguration=status
                )
                name = f"s3://{bucket}/visits"
            elif kind == "table":
                folder.mkdir()
                with contextlib.closing(sqlite3.connect(folder / "notes.sqlite")) as connection:
                    connection.execute(CHECKPOINTS)
                name = f"sqlite:///{folder}/notes.sqlite"
            else:
                folder.mkdir()
                name = str(folder)
            if kind == "http":
                monkeypatch.setenv("DPFLOW_LEDGER_WITNESS_TOKEN", "t0ken")
                name = servers.enter_context(serve_witness(folder, keys, "t0ken"))
            monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", name)
            return name

        yield make


CHECKPOINTS = "CREATE TABLE dpflow_checkpoint (number INTEGER PRIMARY KEY, note TEXT NOT NULL)"
