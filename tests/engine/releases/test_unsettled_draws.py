"""What a killed release leaves behind: no file shows a draw that nobody paid for by settling it.

The draws are random whole numbers of 52 bits, which the test knows. It looks for them in every file
below the folder that holds the ledger, its anchor, the output table and all temporary files, as
text, as 64-bit integers and floats, and inside base64.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

# It has imported everything and opened nothing, and forks a child for each release that it is sent;
# a child that ended is left to be killed until the next line.
DRIVER = """
import json, os, random, sys
from pathlib import Path
from dpflow import Ledger, fault_points, plan, release
from dpflow.core.contract.results import Result, Row
from dpflow.engine.releases import execute
from dpflow.engine.releases.request import Publish
from dpflow.fault_points import pass_point
from dpflow.registry import Registry

Registry.load()
folder = Path(sys.argv[1])

def run_release(target, anchor, number, seed, point):
    def draw(*_):
        source = random.Random(seed)
        rows = tuple(Row(f"k{n}", "count", source.getrandbits(52), 1.0) for n in range(number))
        print("drawn", flush=True)
        pass_point("draw.after")
        return Result(rows)

    execute.draw_result = draw
    wanted = plan("count", folder / "visits.yml", name="r", epsilon="0.001", scope="visits", blocks=["2020-01-01"],
                  publish=Publish(database=folder / "out.duckdb") if number < 5000 else None)
    ledger = Ledger(target, anchor=anchor)
    fault_points.armed = point and point + ":kill"
    print(len(release(wanted, ledger).result.rows), flush=True)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        try:
            run_release(*json.loads(line))
            os._exit(0)
        finally:
            os._exit(1)
    sys.stdin.readline()
    print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
POINTS = (
    "reserve.before-commit",
    "reserve.after-commit",
    "draw.after",
    "settle.before-commit",
    "settle.after-commit",
    "publish.before-commit",
)
#: Fewer may be chance; the rule to be kept speaks of eight in a row.
FEW = 8


def drawn_values(number: int, seed: str) -> np.ndarray:
    source = random.Random(seed)
    return np.sort(np.array([source.getrandbits(52) for _ in range(number)], np.int64))


def shown_values(data: bytes, values: np.ndarray) -> int:
    """How many of these values some bytes show, in any of the encodings."""
    # Runs of base64 are joined, so that each is searched once and not page by page.
    pieces = [data]
    for start in range(4):
        runs = (run[start:] for run in re.findall(rb"[A-Za-z0-9+/]{40,}", data))
        pieces.append(b"?".join(base64.b64decode(run[: len(run) // 4 * 4]) for run in runs))
    floats = values.astype(np.float64)
    found = 0
    for piece in pieces:
        texts = [int(text) for text in re.findall(rb"\d{10,16}", piece)]
        found += _count(np.array(texts, np.int64), values)
        for start in range(8):
            size = max(0, (len(piece) - start) // 8)
            found += _count(np.frombuffer(piece, np.int64, size, start if size else 0), values)
            found += _count(np.frombuffer(piece, np.float64, size, start if size else 0), floats)
    return found


def _count(words: np.ndarray, values: np.ndarray) -> int:
    # Most words are no values by their size alone.
    words = words[(words >= values[0]) & (words <= values[-1])]
    places = np.searchsorted(values, words).clip(max=len(values) - 1)
    return int((values[places] == words).sum())


def test_the_search_finds_each_encoding() -> None:
    """The instrument itself: it sees draws in every form that it claims to look for."""
    values = drawn_values(50, "s")
    text = json.dumps([["k", "count", int(value), 1.0] for value in values]).encode()
    for data in (
        text,
        b"?" + values.tobytes(),
        values.astype(float).tobytes(),
        b"??" + base64.b64encode(b"x" + text),
        base64.b64encode(values.tobytes()),
    ):
        assert shown_values(data, values) >= 49  # the end of base64 is not in whole groups
    assert shown_values(random.Random(1).randbytes(10**5), values) == 0


class Driver:
    """Releases in children that may be killed, of which one at a time lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "tmp").mkdir()
        places = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder)], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=places | {"DPFLOW_LEDGER_OWNER": "1"},
        )  # fmt: skip

    def start(self, target: str, number: int, seed: str, point: str = "") -> None:
        anchor = str(self._folder / "server.anchor") if "://" in target else f"{target}.anchor"
        self._send(json.dumps([target, anchor, number, seed, point]))
        self._said: list[str] = []

    def wait_for_draw(self) -> float:
        """When it was drawn."""
        while "drawn" not in self._said:
            self._hear()
        return time.monotonic()

    def kill(self) -> None:
        os.kill(int(self._said[0]), signal.SIGKILL)

    def finish(self) -> tuple[int, str]:
        """Exit code, and the last word before it."""
        self._send("")
        while not self._said or not self._said[-1].startswith("exit "):
            self._hear()
        return int(self._said.pop()[5:]), self._said[-1]

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def _hear(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip()
        assert line, "the driver ended"
        self._said.append(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def driver(tiny, tmp_path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()


def require_hidden(folder: Path, values: np.ndarray, settled: bool) -> None:
    """No file shows the draw. What is settled may be published, but is encrypted in the ledger."""
    for path in filter(Path.is_file, folder.rglob("*")):
        # The test's own inputs hold no draws.
        is_public = settled and path.name.startswith("out.duckdb")
        if not is_public and not path.name.startswith("visits."):
            shown = shown_values(path.read_bytes(), values)
            assert shown < FEW, f"{path.name} shows {shown} of {len(values)} draws"


@pytest.fixture
def world(tiny, tmp_path):
    """A ledger of its own anchor, whose place the driver knows."""
    from dpflow import Ledger, load_table

    def make_ledger(target: str) -> tuple[Path, str]:
        anchor = tmp_path / "server.anchor" if "://" in target else f"{target}.anchor"
        Ledger(target, anchor=anchor, create=True).grant(
            "visits", 1, "1e-6", filter="basic", table=load_table(tmp_path / "visits.yml"), principal="owner",
        )  # fmt: skip
        return tmp_path, target

    return make_ledger


@pytest.mark.parametrize(
    ("number", "points"),
    [
        # More than SQLite's cache holds: pages of the draw reach the log before the commit.
        pytest.param(100_000, ["settle.before-commit"], id="spilled"),
        pytest.param(2_000, ["settle.after-commit", "publish.before-commit"], id="settled"),
        pytest.param(1_000_000, POINTS[:5], id="a-million", marks=pytest.mark.slow),
    ],
)
def test_killed_at_a_point(world, driver, tmp_path, number, points):
    for point in points:
        folder, target = world(str(tmp_path / f"{point}.sqlite"))
        driver.start(target, number, point, point)
        assert driver.finish()[0] == -signal.SIGKILL
        values = drawn_values(number, point)
        require_hidden(folder, values, settled="publish" in point)
        # The retry destroys what is left, draws afresh and is paid.
        driver.start(target, number, point + "again")
        assert driver.finish() == (0, str(number))
        require_hidden(folder, values, settled=True)
        require_hidden(folder, drawn_values(number, point + "again"), settled=True)


def kill_at_random_times(driver: Driver, targets: Iterator[str], number: int) -> Iterator[str]:
    """Whole at first, which says how long it takes; then deaths between the draw and the end.
    Gives each seed while its files are there.
    """
    times, longest, codes = random.Random(7), 0.0, []
    for n, target in enumerate(targets):
        driver.start(target, number, str(n))
        drawn = driver.wait_for_draw()
        if n:
            time.sleep(times.random() * longest)
            driver.kill()
        codes.append(driver.finish()[0])
        if not n:
            longest = time.monotonic() - drawn
        yield str(n)
    assert {*codes} == {0, -signal.SIGKILL} and codes[0] == 0
    assert codes.count(-signal.SIGKILL) >= len(codes) // 2  # the others had just ended


@pytest.mark.slow
@pytest.mark.parametrize("number", [100_000])
def test_killed_at_random_times(world, driver, tmp_path, number):
    """Two hundred deaths between the draw and the end."""
    targets = (world(str(tmp_path / f"{n}.sqlite"))[1] for n in range(201))
    for seed in kill_at_random_times(driver, targets, number):
        require_hidden(tmp_path, drawn_values(number, seed), settled=True)
        for path in tmp_path.glob(f"{seed}.sqlite*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class Server:
    """The files of a PostgreSQL server that may hold what one database wrote since it was made."""

    def __init__(self, target: str) -> None:
        self._url = target.replace("+psycopg", "")
        ((self._data, oid),) = self._ask(
            "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
        )
        self._base = Path(self._data) / "base" / str(oid)
        self._first = self._segment()

    def _ask(self, statement: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _segment(self) -> str:
        return str(self._ask("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")[0][0])

    def files(self) -> list[Path]:
        """The database's own, and the log since it was made, once all of it is on the disk."""
        self._ask("CHECKPOINT")
        last = self._segment()
        self._ask("SELECT pg_switch_wal()")
        log = (Path(self._data) / "pg_wal").iterdir()
        written = [path for path in log if self._first <= path.name <= last]
        assert written
        return [*written, *(path for path in self._base.iterdir() if path.is_file())]


def require_server_hidden(server: Server, values: np.ndarray) -> int:
    """No file of the server shows the draw; returns how many bytes were searched."""
    size = 0
    for path in server.files():
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # the server makes some of its caches again and again
            continue
        size += len(data)
        shown = shown_values(data, values)
        assert shown < FEW, f"{path.name} of the server shows {shown} of {len(values)} draws"
    return size


@pytest.mark.parametrize(
    ("number", "points"),
    [
        pytest.param(10_000, ["settle.before-commit"], id="one"),
        pytest.param(100_000, POINTS[:5], id="hundred-thousand", marks=pytest.mark.slow),
    ],
)
def test_a_server_shows_no_killed_draw(world, driver, postgres, number, points):
    """PostgreSQL writes rows of transactions that never commit to its files and its log: they hold
    ciphertext only.
    """
    for point in points:
        target = postgres()
        folder, _ = world(target)
        server = Server(target)
        driver.start(target, number, point, point)
        assert driver.finish()[0] == -signal.SIGKILL
        searched = require_server_hidden(server, drawn_values(number, point))
        # A control of the search: what was written of the draw is longer than its values.
        if point.startswith("settle"):
            assert searched > 8 * number
        shutil.rmtree(folder / "server.anchor")


def test_the_search_of_a_server_finds_what_is_in_the_clear(postgres):
    """Its control: the same values in a transaction that is rolled back are found."""
    target = postgres()
    server, values = Server(target), drawn_values(2_000, "clear")
    with psycopg.connect(target.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE t (x text)")
        text = json.dumps([int(value) for value in values])
        connection.execute("ALTER TABLE t ALTER x SET STORAGE EXTERNAL")
        connection.execute("INSERT INTO t VALUES (%s)", [text])
        connection.rollback()
    with pytest.raises(AssertionError, match="of the server shows"):
        require_server_hidden(server, values)


@pytest.mark.slow
@pytest.mark.parametrize("number", [100_000])
def test_a_server_shows_no_draw_killed_at_random_times(world, driver, postgres, tmp_path, number):
    """Twenty deaths between the draw and the end."""
    servers: list[Server] = []

    def targets() -> Iterator[str]:
        for _ in range(21):
            target = postgres()
            world(target)
            servers.append(Server(target))
            yield target

    for seed in kill_at_random_times(driver, targets(), number):
        require_server_hidden(servers[-1], drawn_values(number, seed))
        shutil.rmtree(tmp_path / "server.anchor")
