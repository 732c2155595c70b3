"""Death, loss and want after every single statement, and death at every line: at most one charge,
at most one visible result, a retry completes.

The named points of `dpflow.fault_points` are tested where their code is (tests/engine,
test_faults.py). Here the number of the SQL statement, begin and commit included, says where a
process dies, an exception is raised or a connection is lost; or a line of the ledger's code does.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from crashes import run_forked_work

from dpflow import fault_points
from dpflow.errors import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import BudgetView, Ledger
from dpflow.ledger.storage import database as connections
from dpflow.ledger.storage.postgres_transaction import PostgresTransaction

UNIT = Fraction("1e-6")


def one_shot(ledger, ask, n):
    """A release of one scope: charged, settled."""
    held = ask.reserve(ledger, f"one-{n}", "1e-6", slot=f"slot-{n}")
    return ledger.settle(held, {"drawn": secrets.token_hex(4)}, snapshot="s").result


def in_a_quota(ledger, ask, n):
    """A release that debits two scopes and two blocks of each."""
    held = ask.reserve(ledger, f"quota-{n}", "1e-6", scope="days/team", blocks=["mon", "tue"])
    return ledger.settle(held, {"drawn": secrets.token_hex(4)}).result


def session(ledger, ask, n):
    """A session that is opened, asked twice, and used up."""
    held = ledger.open_session(
        ask.key(f"session-{n}"), **ask.terms("1e-6"), state={"left": 2}, exclusive=True
    )
    shown = []
    for version in (0, 1):
        drawn = {"drawn": secrets.token_hex(4)}
        given = ledger.answer(
            held.session_id, query=f"q{version}", expected_version=version, state={"left": 1 - version}, answer=drawn,
            closed=version == 1,
        )  # fmt: skip
        shown.append(given.answer)
    return shown


def taken_over(ledger, ask, n):
    """An orphan, an owner's decision, and the try that finishes it."""
    orphan = ask.reserve(ledger, f"orphan-{n}", "1e-6")
    ledger.resolve(
        orphan.release_id, reason="r", principal="owner", decision="retry"
    ) if not orphan.settled else None
    held = ask.reserve(ledger, f"orphan-{n}", "1e-6")
    return ledger.settle(held, {"drawn": secrets.token_hex(4)}).result


ALL_LIVES = (one_shot, session, in_a_quota, taken_over)
#: Lives, and after which of their statements something happens: every one under `make slow`.
LIVES = [
    *((life, 3) for life in ALL_LIVES[:2]),
    *(pytest.param(life, 1, marks=pytest.mark.slow) for life in ALL_LIVES),
]


@pytest.fixture
def ledger(place) -> Ledger:
    """Scopes for all lives."""
    ledger = place.open()
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    for scope in ("days", "days/team"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", blocks=True, principal="owner")
    return ledger


def at_statement(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """A hook for `fault_points.after_statement` that acts once."""
    left = iter([False] * (number - 1) + [True])

    def passed() -> None:
        if next(left, False):
            action()

    return passed


@contextlib.contextmanager
def hooked(hook: Callable[[], None]) -> Iterator[None]:
    fault_points.after_statement = hook
    try:
        yield
    finally:
        fault_points.after_statement = None


def statements_of(
    life: Callable[..., Any], ledger: Ledger, ask: Any, passed: list[None] | None = None
) -> int:
    """How many statements a whole life runs, after the first one, which writes down what is read.
    Two charges.
    """
    passed = [] if passed is None else passed
    life(ledger, ask, -1)
    with hooked(lambda: passed.append(None)):
        life(ledger, ask, 0)
    return len(passed)


def books(ledger: Ledger) -> tuple[int, int]:
    """Charges, and what all of them add up to in the account that every life but one pays."""
    charged = [
        entry for entry in ledger.history(limit=10**6) if entry.kind in ("reserve", "session")
    ]
    ((_, cost),) = ledger.remaining("flights").spent
    return len(charged), cost.epsilon


@pytest.mark.parametrize(("life", "every"), LIVES)
def test_killed_after_any_statement(ledger, ask, life, every):
    """SIGKILL after the n-th statement, for every n: the retry finds or makes the one charge and
    the one result.
    """
    numbers = range(1, statements_of(life, ledger, ask) + 1, every)
    for n in numbers:

        def doomed(n: int = n) -> Any:
            fault_points.after_statement = at_statement(
                n, lambda: os.kill(os.getpid(), signal.SIGKILL)
            )
            return life(ledger, ask, n)

        code, shown = run_forked_work(doomed)
        assert (code, shown) == (-signal.SIGKILL, None)
        assert life(ledger, ask, n) == life(ledger, ask, n)
    assert books(ledger)[0] == len(numbers) + 2
    for _, cost in ledger.remaining("days/team").spent + ledger.remaining("flights").spent:
        assert cost.epsilon in (0, (len(numbers) + 2) * 10**6)
    assert ledger.verify().ok


# --- lines

#: A file, a line, and how often it is passed before.
Passage = tuple[str, int, int]


@contextlib.contextmanager
def traced(passed: Callable[[str, int], None], files: str = "/dpflow/ledger/") -> Iterator[None]:
    """Calls a function before each line of the ledger's code."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        if files not in frame.f_code.co_filename:
            return None
        if event == "line":
            passed(frame.f_code.co_filename, frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def passages_of(work: Callable[[], Any]) -> list[Passage]:
    """The first and the last time that each line is passed."""
    times = Counter[tuple[str, int]]()
    with traced(lambda *line: times.update([line])):
        work()
    both = {(*line, n) for line, number in times.items() for n in (0, number - 1)}
    return sorted(both)


@contextlib.contextmanager
def killed_at(passage: Passage) -> Iterator[None]:
    """SIGKILL to this process before it passes a line so many times."""
    file, number, before = passage
    left = iter([False] * before + [True])

    def die(_: str, line: int) -> None:
        if line == number and next(left, False):
            os.kill(os.getpid(), signal.SIGKILL)

    with traced(die, file):
        yield


@pytest.mark.parametrize(
    ("life", "every"),
    [(one_shot, 127), *(pytest.param(life, 1, marks=pytest.mark.slow) for life in ALL_LIVES)],
)
def test_killed_at_any_line(ledger, place, ask, life, every):
    """SIGKILL before each line of the ledger's code, from opening it to the last commit, the first
    and the last time that it is passed. The line is watched, not written down: which lines there
    are is found by running them.
    """
    life(ledger, ask, -1)
    # In a child, which has the same caches as those that will die.
    code, passages = run_forked_work(
        lambda: passages_of(lambda: life(place.open(create=False), ask, -2))
    )
    assert code == 0 and len(passages) > 500
    deaths, tries = 0, passages[::every]
    for n, passage in enumerate(tries):

        def doomed(n: int = n, passage: Passage = passage) -> Any:
            with killed_at(passage):
                return life(place.open(create=False), ask, n)

        code, shown = run_forked_work(doomed)
        # Ids are drawn and caches fill, so some lines are passed less often than before.
        assert (code, shown) == (-signal.SIGKILL, None) or (code == 0 and shown is not None)
        deaths += code != 0
        first = life(ledger, ask, n)
        assert first == life(ledger, ask, n) and shown in (None, first)
    # Of ten lines that are tried, one may be missed.
    assert len(tries) - deaths <= max(1, len(tries) // 10)
    assert books(ledger)[0] == len(tries) + 2
    for _, cost in ledger.remaining("days/team").spent + ledger.remaining("flights").spent:
        assert cost.epsilon in (0, (len(tries) + 2) * 10**6)
    assert ledger.verify().ok


@pytest.mark.parametrize(("life", "every"), LIVES)
def test_an_exception_after_any_statement(ledger, ask, life, every):
    """An exception at the n-th statement undoes its transaction, whose ledger object goes on."""
    numbers = range(1, statements_of(life, ledger, ask) + 1, every)

    def fail() -> None:
        raise fault_points.FaultInjected

    for n in numbers:
        with hooked(at_statement(n, fail)), pytest.raises(fault_points.FaultInjected):
            life(ledger, ask, n)
        assert life(ledger, ask, n) == life(ledger, ask, n)
    assert books(ledger)[0] == len(numbers) + 2 and ledger.verify().ok


@pytest.mark.parametrize(
    "life", [one_shot, *(pytest.param(life, marks=pytest.mark.slow) for life in ALL_LIVES[1:])]
)
def test_a_connection_lost_after_any_statement(postgres, tmp_path, ask, life, caplog, monkeypatch):
    """pg_terminate_backend after the n-th statement: retryable and silent, and the retry completes.

    Lost is a call whose connection breaks after its transaction has begun and before it ends; one
    that breaks while it begins is replaced, because nothing ran on it.
    """
    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    for scope in ("days", "days/team"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", blocks=True, principal="owner")
    begun, lost = 0, 0

    def counted(*arguments: Any) -> Any:
        nonlocal begun
        before = len(passed)
        started = begins(*arguments)
        begun += len(passed) - before
        return started

    with monkeypatch.context() as patched:
        begins = connections.Database._begin_transaction
        patched.setattr(connections.Database, "_begin_transaction", counted)
        passed: list[None] = []
        whole = statements_of(life, ledger, ask, passed)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
        ours = other.info.backend_pid

        def terminate() -> None:
            other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s",
                [ours],
            )

        for n in range(1, whole + 1):
            try:
                with hooked(at_statement(n, terminate)):
                    first = life(ledger, ask, n)
            except LedgerUnavailable as error:
                assert error.retryable and "drawn" not in str(error)
                lost += 1
            else:
                assert life(ledger, ask, n) == first  # lost between two transactions, and replaced
            assert life(ledger, ask, n) == life(ledger, ask, n)
    assert lost == whole - begun > 0 and not [
        record for record in caplog.records if record.levelname == "ERROR"
    ]
    assert books(ledger)[0] == whole + 2 and ledger.verify().ok


@pytest.mark.parametrize("life", [one_shot, session])
def test_a_connection_lost_while_committing(postgres, tmp_path, ask, life, monkeypatch):
    """The server committed and its answer is lost: the message claims nothing, and the same call
    finds what there is.
    """
    ledger = Ledger(postgres(), anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    commit = PostgresTransaction.commit

    def lost(transaction: PostgresTransaction) -> None:
        commit(transaction)
        transaction._connection.close()
        raise psycopg.OperationalError("lost")

    for n in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(PostgresTransaction, "commit", lost)
            with pytest.raises(LedgerUnavailable, match="may or may not be recorded"):
                life(ledger, ask, n)
        assert life(ledger, ask, n) == life(ledger, ask, n)
    assert books(ledger) == (4, 4 * 10**6) and ledger.verify().ok


def test_no_connection_is_left(postgres, tmp_path, ask):
    """At max_connections a charge is refused retryably, and succeeds when somebody hangs up."""
    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            ledger._database.begin_reading()
        )  # this process's own connection is in use
        with pytest.raises(psycopg.OperationalError, match="too many|remaining connection slots"):
            for _ in range(1000):
                stack.enter_context(
                    contextlib.closing(psycopg.connect(url.replace("+psycopg", "")))
                )
        with pytest.raises(LedgerUnavailable, match="out of reach"):
            ask.reserve(ledger)
        with pytest.raises(LedgerUnavailable, match="out of reach"):
            Ledger(url, anchor=tmp_path / "anchor")
    one_shot(ledger, ask, 0)
    assert books(ledger) == (1, 10**6) and ledger.verify().ok


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_somebody_sits_on_the_lock(kind, request, tmp_path, ask, monkeypatch):
    """A writer that never ends is waited for with patience, then the wait is given up retryably."""
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    target = str(tmp_path / "l") if kind == "sqlite" else request.getfixturevalue("postgres")()
    ledger = Ledger(target, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    if kind == "sqlite":
        other: Any = sqlite3.connect(target, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
    else:
        other = psycopg.connect(target.replace("+psycopg", ""))
        other.execute(f"SELECT pg_advisory_xact_lock({connections._LOCK})")
    with (
        contextlib.closing(other),
        pytest.raises(LedgerUnavailable, match="this step recorded nothing"),
    ):
        ask.reserve(ledger)
    one_shot(ledger, ask, 0)
    assert books(ledger)[0] == 1 and ledger.verify().ok


# --- disks


@pytest.fixture
def on_disk(tmp_path) -> Ledger:
    ledger = Ledger(tmp_path / "l", anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    return ledger


def test_a_file_that_cannot_grow(on_disk, ask, tmp_path):
    """Whatever size a file may not exceed, a charge is recorded or refused retryably, and the retry
    completes.
    """
    codes = []
    for n in range(20):
        # Pages have 8 KiB. The last limit: not even the anchor's mark.
        limit = 200 if n == 19 else 2 * 3554 * n

        def cramped(limit: int = limit, n: int = n) -> Any:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            return one_shot(on_disk, ask, n)

        code, shown = run_forked_work(cramped)
        codes.append(code)
        kept = one_shot(on_disk, ask, n)
        assert code == 75 or shown == kept
    assert set(codes) == {0, 75}
    assert books(on_disk) == (20, 20 * 10**6) and on_disk.verify().ok


def test_a_page_of_budgets_keeps_no_fork_from_closing_files(on_disk, ask, tmp_path):
    """A fork closes idle connections of every ledger, also where a page reads one in this process."""
    view = BudgetView(tmp_path / "l")
    connections._before_fork()  # raised for a page, and an exception there is printed and forgotten
    view.check()
    code, shown = run_forked_work(lambda: one_shot(on_disk, ask, 0))
    assert code == 0 and shown == one_shot(on_disk, ask, 0)


def test_a_process_with_too_many_open_files(ledger, place, ask):
    """However few are left, a charge is recorded or refused retryably, and the retry completes."""
    codes = []
    # It was eight before results were encrypted. With eight, no charge on SQLite gets through any
    # more, because it reads the wrapping key, too; then 0 would not be among the codes.
    for left in range(12):

        def crowded(left: int = left) -> Any:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            for descriptor in held[:left]:
                os.close(descriptor)
            return one_shot(place.open(create=False), ask, left)

        code, shown = run_forked_work(crowded)
        codes.append(code)
        kept = one_shot(ledger, ask, left)
        assert code == 75 or shown == kept
    assert set(codes) == {0, 75}
    assert books(ledger) == (12, 12 * 10**6) and ledger.verify().ok


FULL = """
import sys
from pathlib import Path
from dpflow.core.accounting.events import Pure
from dpflow.errors import LedgerUnavailable
from dpflow.ledger import Ledger, ReleaseKey
ledger = Ledger(sys.argv[1] + "/l", create=True)
ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
refused = 0
def release(n):
    held = ledger.reserve(ReleaseKey("flights", "", "", str(n), "d"), event=Pure("1e-6"), blocks=(), family="f", slot=None,
                          principal="p", request={"filler": "x" * 5000})
    return ledger.settle(held, {"drawn": n, "filler": "x" * 3000}).result
for n in range(300):
    try:
        release(n)
    except LedgerUnavailable as error:
        refused += 1
        if refused == 1:
            first = n
        if refused > 20:
            break
Path(sys.argv[1] + "/ballast").unlink()
for again in range(first, n + 1):
    release(again)
assert len(ledger.releases()) == n + 1 and ledger.verify().ok, ledger.verify()
assert ledger.remaining("flights").spent[0][1].epsilon == (n + 1) * 10**6
print("refused", refused)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no way to a file system of our own")
def test_no_space_left_on_the_device():
    """A real file system of twelve megabytes, filled to the last byte, then relieved of its
    ballast.
    """
    script = 'mount -t tmpfs -o size=12m none "$0" && dd if=/dev/zero of="$0/ballast" bs=1M count=9 status=none && exec "$1" -c "$2" "$0"'
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            folder,
            sys.executable,
            FULL,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no file system of our own here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (0, "refused 21\n"), done.stderr


@pytest.mark.parametrize("what", ["file", "folder", "anchor", "mark"])
def test_a_place_that_is_read_only(ask, what):
    """Who may not write is refused before anything is charged, and nothing is read for nothing.

    Where the directory of the anchor cannot be written, no new mark is written: one that is missing
    is an owner's matter.
    """
    folder = Path(tempfile.mkdtemp(prefix="dpflow-read-only-", dir="/tmp"))
    try:
        ledger = Ledger(folder / "l", anchor=folder / "anchor", create=True)
        ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
        connections._before_fork()  # closes what this process has open
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o770 if path.is_dir() else 0o660)
            # A group shares it: what all may write is refused.
            if os.geteuid() == 0:
                os.chown(path, 0, 65534)
        closed = {
            "file": folder / "l",
            "folder": folder,
            "anchor": folder / "anchor",
            "mark": folder / "anchor" / "mark",
        }[what]
        mark = folder / "anchor" / "mark"
        if what == "anchor":
            mark.rename(folder / "mark")
        closed.chmod(0o555 if closed.is_dir() else 0o444)

        def unprivileged() -> Any:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            try:
                return one_shot(ledger, ask, 0)
            except LedgerCorrupt as error:
                return str(error)

        code, shown = run_forked_work(unprivileged)
        closed.chmod(0o770 if closed.is_dir() else 0o660)
        if what == "anchor":
            assert code == 0 and "the high-water mark is missing" in shown and not mark.exists()
            (folder / "mark").rename(mark)
        else:
            assert (code, shown) == (75, None)
        assert ledger.releases() == []
        one_shot(ledger, ask, 0)
        assert books(ledger) == (1, 10**6) and ledger.verify().ok
    finally:
        shutil.rmtree(folder)
