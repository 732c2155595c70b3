"""The published file under other processes: readers that stay, writers of their own, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from duckdb_files import query_file

from dpflow.core.contract.results import Result, Row
from dpflow.errors import NotPublished
from dpflow.tables import PublishedRelease, publish, published_ids
from dpflow.tables.public.named_tables import AnswerRun, publish_view
from dpflow.tables.public.public_file import storage_version, write_file
from dpflow.tables.public.query_points import publish_answers

HOLD = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read")
if sys.argv[2] == "killed":
    connection.execute("SET checkpoint_threshold = '1GB'; INSERT INTO mine VALUES (3)")
print("held", flush=True)
for line in sys.stdin:
    print(connection.execute("SELECT count(DISTINCT release_id) FROM releases").fetchone()[0], flush=True)
"""
WRITE = """
import sys
from pathlib import Path
from dpflow.core.contract.results import Result, Row
from dpflow.tables import PublishedRelease, publish
for i in range(int(sys.argv[3])):
    result = Result((Row("", "count", i, None),))
    publish(Path(sys.argv[1]), "releases", PublishedRelease(f"{sys.argv[2]}-{i}", "n", "", "count", "1", "0", result))
"""


def release(name: str) -> PublishedRelease:
    return PublishedRelease(name, "n", "", "count", "1", "0", Result((Row("", "count", 1, None),)))


@contextmanager
def holder(path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that keeps the file open, and counts its releases when it gets a line."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how], stdin=pipe, stdout=pipe, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def count(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def write(path: Path, name: str, times: int, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE, str(path), name, str(times)]
    return subprocess.Popen(command, env=os.environ | environ, stderr=subprocess.PIPE, text=True)


def leftovers(path: Path) -> list[str]:
    """What is beside the file, but for its lock."""
    return sorted(file.name for file in path.parent.iterdir() if file not in (path, _lock(path)))


def _lock(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def test_a_reader_that_stays_holds_nothing_up(tmp_path: Path) -> None:
    """Every kind of publication ends at once; the reader keeps what it opened, the next sees all."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", release("r1"))
    with holder(path, "read") as reader:
        publish(path, "releases", release("r2"), deadline=0.0)
        publish_view(path, "answer", [("n", "BIGINT", [1])], AnswerRun(), deadline=0.0)
        publish_answers(path, "answers", "s", ["k"], [1.0], deadline=0.0)
        assert count(reader) == 1
        with holder(path, "read") as next_reader:
            assert count(next_reader) == 2
            publish(path, "releases", release("r3"), deadline=0.0)
            assert (count(reader), count(next_reader)) == (1, 2)
    assert published_ids(path, "releases") == {"r1", "r2", "r3"}
    assert (
        query_file(path, "SELECT n FROM answer")
        == query_file(path, "SELECT 1 FROM answers")
        == [(1,)]
    )
    assert leftovers(path) == []


def test_publishers_beside_a_reader_lose_nothing(tmp_path: Path) -> None:
    """Three processes and a reader that stays."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", release("first"))
    with holder(path, "read") as reader:
        running = [write(path, f"w{number}", 3) for number in range(3)]
        for process in running:
            _, errors = process.communicate(timeout=280)
            assert process.returncode == 0, errors
        assert count(reader) == 1
    assert len(published_ids(path, "releases")) == 10 and leftovers(path) == []


@pytest.mark.parametrize(
    ("point", "there"),
    [
        ("publish.before-commit", False),
        ("publish.before-replace", False),
        ("publish.after-commit", True),
    ],
)
def test_a_kill_leaves_all_or_nothing(tmp_path: Path, point: str, there: bool) -> None:
    """What the killed process had copied is removed by the next one that writes."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", release("r1"))
    process = write(path, "w", 1, DPFLOW_FAULT=f"{point}:kill")
    process.communicate(timeout=280)
    assert process.returncode == -signal.SIGKILL
    assert published_ids(path, "releases") == {"r1"} | ({"w-0"} if there else set())
    assert bool(leftovers(path)) is not there
    publish(path, "releases", release("r2"))
    assert "r2" in published_ids(path, "releases") and leftovers(path) == []


def test_a_writer_leaves_the_copy_of_a_longer_name(tmp_path: Path) -> None:
    """It takes away what killed writers of its own file left, and nobody else's."""
    longer, left = tmp_path / "released.duckdb", tmp_path / f".released.{'0' * 16}.part"
    left.touch()

    def write(connection: duckdb.DuckDBPyConnection) -> bool:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS x")
        subprocess.run(
            [sys.executable, "-c", WRITE, str(tmp_path / "released"), "r", "1"], check=True
        )
        return True

    write_file(longer, 60, write)
    assert query_file(longer, "FROM mine") == [(1,)] and not left.exists()


def test_what_users_made_in_the_file_is_kept(tmp_path: Path) -> None:
    """Tables with their keys and indexes, views, macros and schemas; the file's rights and links, too."""
    path, link = tmp_path / "out.duckdb", tmp_path / "link.duckdb"
    publish(path, "releases", release("r1"))
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE SCHEMA own; CREATE TABLE own.mine (a INT PRIMARY KEY, b VARCHAR)"
        )
        connection.execute("INSERT INTO own.mine VALUES (1, 'x')")
        connection.execute("CREATE INDEX by_b ON own.mine (b)")
        connection.execute("CREATE VIEW seen AS SELECT count(*) AS n FROM releases")
        connection.execute("CREATE MACRO plus_one(x) AS x + 1")
    path.chmod(0o640)
    link.symlink_to(path)
    publish(link, "releases", release("r2"))
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    assert query_file(path, "SELECT n, plus_one(1) FROM seen") == [(2, 2)]
    assert query_file(path, "SELECT * FROM own.mine") == [(1, "x")]
    assert query_file(path, "SELECT index_name FROM duckdb_indexes()") == [("by_b",)]
    with duckdb.connect(str(path)) as connection, pytest.raises(duckdb.ConstraintException):
        connection.execute("INSERT INTO own.mine VALUES (1, 'y')")


def test_another_writer_is_waited_for(tmp_path: Path) -> None:
    """Its changes are kept; past the deadline the release is still to be published."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", release("r1"))
    with holder(path, "write"):
        start = time.monotonic()
        with pytest.raises(NotPublished, match="another process writes it"):
            publish(path, "releases", release("r2"), deadline=0.3)
        assert time.monotonic() - start < 20
        later = threading.Thread(target=publish, args=(path, "releases", release("r2")))
        later.start()
    later.join()
    assert published_ids(path, "releases") == {"r1", "r2"}


def test_changes_of_a_killed_writer_are_kept(tmp_path: Path) -> None:
    """They are in a log beside the file until somebody opens it to write."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", release("r1"))
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine (a INT)")
    with holder(path, "killed"):
        pass
    assert leftovers(path) == ["out.duckdb.wal"]
    publish(path, "releases", release("r2"))
    assert query_file(path, "SELECT a FROM mine") == [(3,)] and leftovers(path) == []


def test_a_connection_of_this_process_goes_on(tmp_path: Path) -> None:
    """A notebook that writes the file itself sees what is published, and loses nothing."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", release("r1"))
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS a")
        publish(path, "releases", release("r2"))
        ids = "SELECT count(DISTINCT release_id) FROM releases"
        assert connection.execute(ids).fetchall() == [(2,)]
        connection.execute("INSERT INTO mine VALUES (2)")
    assert query_file(path, "SELECT sum(a) FROM mine") == [(3,)]
    with duckdb.connect(str(path), read_only=True) as connection:
        publish(path, "releases", release("r3"))
        assert connection.execute(ids).fetchall() == [(2,)]
        publish(path, "releases", release("r4"))
    assert len(published_ids(path, "releases")) == 4


def test_nothing_is_replaced_where_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "out.duckdb"
    publish(path, "releases", release("r1"))
    before = path.stat().st_ino
    publish(path, "releases", release("r1"))
    write_file(path, 1, lambda connection: False)
    assert path.stat().st_ino == before and leftovers(path) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Another user could point it at a file of theirs."""
    path, other = tmp_path / "out.duckdb", tmp_path / "other"
    _lock(path).symlink_to(other)
    with pytest.raises(NotPublished, match="cannot be written .Too many levels of symbolic links"):
        publish(path, "releases", release("r1"), deadline=0.1)
    assert not other.exists() and not path.exists()


def test_a_published_file_has_the_format_of_duckdb_1_2(tmp_path: Path) -> None:
    """Whoever makes it, and after changes, too; `make compat` opens one with old clients."""
    files = [tmp_path / f"{name}.duckdb" for name in ("releases", "answer", "points")]
    for _ in range(2):
        publish(files[0], "releases", release(f"r{time.monotonic_ns()}"))
        publish_view(files[1], "answer", [("n", "BIGINT", [1])], AnswerRun())
        publish_answers(files[2], "answers", "s", ["k"], [1.0])
        assert [storage_version(file) for file in files] == ["1.2"] * 3
    with duckdb.connect(str(tmp_path / "new.duckdb")) as connection:
        connection.execute("CREATE TABLE t (a INT)")
    assert storage_version(tmp_path / "new.duckdb") == "2.0"
    assert storage_version(tmp_path / "none.duckdb") == storage_version(_lock(files[0])) == ""
