"""Publishing settled results: once, concurrently, and with patience."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from forked_programs import ForkedProgram

from dpflow.core.contract.results import NO_INFORMATION, Result, Row, Synthetic
from dpflow.errors import NotPublished, TableUnreadable
from dpflow.fault_points import FaultInjected
from dpflow.tables import PublishedRelease, publish, published_ids
from dpflow.tables.public.publish import read_published

RELEASE = PublishedRelease(
    "r1",
    "daily",
    "2013-01-01",
    "histogram",
    "0.5",
    "0",
    Result((Row("AA", "count", 12, 3.0), Row("UA", "count", None))),
)
HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
WRITE = """
import sys
import time
from pathlib import Path
from dpflow.core.contract.results import Result, Row
from dpflow.tables import PublishedRelease, publish
for i in range(3):
    for name in (f"{sys.argv[2]}-{i}", "shared"):
        publish(Path(sys.argv[1]), "releases", PublishedRelease(name, "n", "", "count", "1", "0", Result((Row("", "count", i, None),))))
"""


def content(path: Path, table: str = "releases") -> list[tuple[object, ...]]:
    """All published rows."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall()


def test_publishing_makes_file_and_table(tmp_path: Path) -> None:
    """A result lands in a new file with its price and error columns."""
    path = tmp_path / "deep" / "out.duckdb"
    publish(path, "releases", RELEASE)
    about = ("r1", "daily", "2013-01-01", "histogram")
    assert content(path) == [
        (
            *about,
            "AA",
            "count",
            12.0,
            None,
            9.0,
            15.0,
            None,
            None,
            False,
            False,
            None,
            0.5,
            0.0,
            *[None] * 7,
            12.0,
            3.0,
        ),
        (*about, "UA", "count", *[None] * 6, False, False, None, 0.5, 0.0, *[None] * 9),
    ]
    assert published_ids(path, "releases") == {"r1"}


def test_no_progress_is_printed(tmp_path: Path) -> None:
    """DuckDB takes `python -c` for a person, and after two seconds draws a bar between its lines."""
    program = """
import sys
from pathlib import Path
from dpflow.tables.public.public_file import write_file
ask = "SELECT current_setting('enable_progress_bar')"
write_file(Path(sys.argv[1]), 1, lambda connection: print(connection.execute(ask).fetchall()))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "out.duckdb")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[(False,)]\n"


def test_a_release_without_rows_has_one(tmp_path: Path) -> None:
    """A private selection may select nothing: the table says that the release was made, and knows it."""
    path = tmp_path / "out.duckdb"
    empty = replace(RELEASE, result=Result(()))
    publish(path, "releases", empty)
    publish(path, "releases", empty)
    about = ("r1", "daily", "2013-01-01", "histogram")
    assert content(path) == [
        (*about, "", "no rows", *[None] * 6, False, False, None, 0.5, 0.0, *[None] * 9)
    ]
    assert published_ids(path, "releases") == {"r1"}


def test_a_remark_is_published_beside_its_number(tmp_path: Path) -> None:
    """Of those that have one."""
    path = tmp_path / "out.duckdb"
    rows = (Row("", "mean", 30.0, 30.0, NO_INFORMATION), Row("", "count", 3, 9.0))
    publish(path, "releases", replace(RELEASE, result=Result(rows)))
    found = {row["measure"]: row["remark"] for row in read_published(path, "releases")}
    assert found == {"mean": NO_INFORMATION, "count": None}


def test_publishing_twice_changes_nothing(tmp_path: Path) -> None:
    """The same release again leaves the table as it is."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", RELEASE)
    before = content(path)
    publish(path, "releases", RELEASE)
    assert content(path) == before


def test_a_synthetic_table_becomes_an_ordinary_table(tmp_path: Path) -> None:
    """Any SQL may query it; the same release again adds nothing, another one adds its own rows."""
    path = tmp_path / "out.duckdb"
    made = Synthetic(
        (("distance", "whole"), ("share", "number"), ("weight", "whole")),
        ((10, 0.5, 3), (2**60, 1.0, 7)),
    )
    for release_id in ("r1", "r1", "r2"):
        publish(
            path,
            "releases",
            replace(RELEASE, release_id=release_id, result=replace(RELEASE.result, synthetic=made)),
        )
    with duckdb.connect(str(path), read_only=True) as connection:
        query = "SELECT sum(weight) FILTER (WHERE distance < 100) FROM daily_synthetic WHERE release_id = 'r2'"
        assert connection.execute(query).fetchall() == [(3,)]
        assert connection.execute(
            "SELECT count(*), max(distance) FROM daily_synthetic"
        ).fetchall() == [(4, 2**60)]


def test_published_ids_of_nothing(tmp_path: Path) -> None:
    """A missing file or table has no releases, and asking creates neither."""
    path = tmp_path / "out.duckdb"
    assert published_ids(path, "releases") == set() and not path.exists()
    publish(path, "releases", RELEASE)
    assert published_ids(path, "other") == set()


def test_four_processes_publish_at_once(tmp_path: Path) -> None:
    """Four processes that publish their own and a shared release lose nothing and double nothing."""
    path = tmp_path / "out.duckdb"
    running = [ForkedProgram(WRITE, str(path), str(i)) for i in range(4)]
    assert [process.wait()[0] for process in running] == [0] * 4
    ids = [row[0] for row in content(path)]
    assert len(ids) == len(set(ids)) == 13


def test_threads_of_one_process_publish_a_release_once(tmp_path: Path) -> None:
    """In one process DuckDB lets both of two writers commit that add the same rows."""
    file = tmp_path / "out.duckdb"
    publish(file, "releases", replace(RELEASE, release_id="first"))
    for number in range(10):
        start = threading.Barrier(2)

        def run(name: str = f"r{number}", start: threading.Barrier = start) -> None:
            start.wait()
            publish(file, "releases", replace(RELEASE, release_id=name))

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ids = [row["release_id"] for row in read_published(file, "releases")]
    assert len(ids) == len(RELEASE.result.rows) * 11


def test_a_held_file_is_not_published_retryably(tmp_path: Path) -> None:
    """While another process holds the file past the deadline the release stays settled; later it is
    published.
    """
    path = tmp_path / "out.duckdb"
    publish(path, "releases", RELEASE)
    other = PublishedRelease(
        "r2", "daily", "", "count", "1", "1e-6", Result((Row("", "count", 1, None),))
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(
            NotPublished, match="settled and paid, repair with: dpflow publish"
        ) as caught:
            publish(path, "releases", other, deadline=0.3)
        assert caught.value.retryable
    finally:
        holder.communicate("")
    publish(path, "releases", other)
    assert published_ids(path, "releases") == {"r1", "r2"}


@pytest.mark.parametrize(
    ("point", "present"), [("publish.before-commit", set()), ("publish.after-commit", {"r1"})]
)
def test_a_crash_publishes_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, present: set[str]
) -> None:
    """A failure before the commit leaves nothing, one after it everything; publishing again
    completes either.
    """
    path = tmp_path / "out.duckdb"
    monkeypatch.setattr("dpflow.fault_points.armed", f"{point}:fail")
    with pytest.raises(FaultInjected, match=point):
        publish(path, "releases", RELEASE)
    monkeypatch.setattr("dpflow.fault_points.armed", "")
    assert published_ids(path, "releases") == present
    publish(path, "releases", RELEASE)
    assert len(content(path)) == 2


def test_a_foreign_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text file, a folder, and a table with other columns, are not overwritten."""
    path = tmp_path / "out.duckdb"
    path.write_text("not a database " * 1000)
    with pytest.raises(TableUnreadable, match="is not a DuckDB file"):
        publish(path, "releases", RELEASE)
    assert path.read_text().startswith("not a database")
    # Without waiting for a writer, who is not there.
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(TableUnreadable, match="is a folder"):
        publish(tmp_path, "releases", RELEASE)
    other = tmp_path / "other.duckdb"
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE releases (x INT)")
    with pytest.raises(TableUnreadable, match="cannot take releases"):
        publish(other, "releases", RELEASE)


def test_an_impossible_place_is_not_published(tmp_path: Path) -> None:
    """A directory that cannot be made is reported, with the way to repair."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotPublished, match="cannot be created"):
        publish(tmp_path / "file" / "out.duckdb", "releases", RELEASE)


def test_a_large_result_is_published_in_bulk(tmp_path: Path) -> None:
    """30,000 rows in their order, in seconds; one statement per row took a minute."""
    rows = tuple(Row(f"k{n}", "count", n if n % 3 else None, n / 4) for n in range(30_000))
    path, start = tmp_path / "out.duckdb", time.process_time()
    publish(path, "releases", replace(RELEASE, result=Result(rows)))
    assert time.process_time() - start < 10
    with duckdb.connect(str(path), read_only=True) as connection:
        stored = connection.execute(
            "SELECT group_key, value, half_width_95 FROM releases"
        ).fetchall()
    assert stored == [(row.key, row.value, row.half_width_95) for row in rows]
