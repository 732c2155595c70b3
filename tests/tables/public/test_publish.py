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
from duckdb_files import read_table
from forked_programs import ForkedProgram

from dpflow.core.contract.results import NO_INFORMATION, Result, Row, Synthetic
from dpflow.errors import NotPublished, TableUnreadable
from dpflow.fault_points import FaultInjected
from dpflow.tables import PublishedRelease, publish, published_ids
from dpflow.tables.public.publish import check_places, read_published

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


def test_publishing_makes_file_and_table(tmp_path: Path) -> None:
    """A result lands in a new file with its price and error columns."""
    path = tmp_path / "deep" / "out.duckdb"
    publish(path, "releases", RELEASE)
    about = ("r1", "daily", "2013-01-01", "histogram")
    assert read_table(path, "releases") == [
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
    assert read_table(path, "releases") == [
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
    before = read_table(path, "releases")
    publish(path, "releases", RELEASE)
    assert read_table(path, "releases") == before


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


def synthetic(
    release_id: str, columns: dict[str, str], *rows: tuple[object, ...]
) -> PublishedRelease:
    made = Result(RELEASE.result.rows, {}, Synthetic(tuple(columns.items()), rows))
    return replace(RELEASE, release_id=release_id, result=made)


def test_synthetic_rows_are_written_once_whatever_the_output_table(tmp_path: Path) -> None:
    """A second output table of one file had every row of NAME_synthetic again; a table that was dropped comes back."""
    path, made = tmp_path / "out.duckdb", synthetic("r1", {"age": "whole"}, (1,), (2,))
    for table in ("releases", "visits", "releases"):
        publish(path, table, made)
    assert read_table(path, "daily_synthetic") == [("r1", "2013-01-01", 1), ("r1", "2013-01-01", 2)]
    assert published_ids(path, "visits") == published_ids(path, "releases") == {"r1"}
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE daily_synthetic")
    publish(path, "releases", made)
    assert len(read_table(path, "daily_synthetic")) == len(read_table(path, "releases")) == 2


def test_synthetic_rows_of_other_columns_have_a_place(tmp_path: Path) -> None:
    """They were charged and fitted in no file. What one of two releases has not is NULL; a column holds the values of both
    unchanged; what is called as a column of ours has another name.
    """
    path = tmp_path / "out.duckdb"
    publish(
        path,
        "releases",
        synthetic("r1", {"city": "text", "age": "whole", "n": "whole"}, ("7", 2**60 + 1, 7)),
    )
    wide = {"Age": "number", "block": "text", "n": "number", "day": "date", "DAY": "date"}
    publish(path, "releases", synthetic("r2", wide, (0.5, "b", 0.5, "2020-01-02", None)))
    publish(path, "releases", synthetic("r3", {"n": "text", "city": "whole"}, ("x", 5)))
    publish(path, "releases", synthetic("r4", {"day": "whole"}))
    with duckdb.connect(str(path), read_only=True) as connection:
        query = "SELECT release_id, city, age, n, block_, CAST(day AS VARCHAR), day_ FROM daily_synthetic ORDER BY 1"
        found = connection.execute(query).fetchall()
    assert found == [
        ("r1", "7", str(2**60 + 1), "7.0", None, None, None),
        ("r2", None, "0.5", "0.5", "b", "2020-01-02", None),
        ("r3", "5", None, "x", None, None, None),
    ]
    assert published_ids(path, "releases") == {"r1", "r2", "r3", "r4"}


TAKEN = {
    "CREATE VIEW Releases AS SELECT 1 AS release_id": "a view under the name 'releases'",
    "CREATE TABLE releases (release_id VARCHAR)": "a table of other columns under the name 'releases'",
    "CREATE TABLE daily_synthetic (mine INT)": "'daily_synthetic'; synthetic rows of 'daily'",
    "CREATE TABLE daily_synthetic (release_id VARCHAR, block VARCHAR, mine INT NOT NULL)": "synthetic rows of 'daily'",
}


@pytest.mark.parametrize("made", TAKEN)
def test_a_taken_name_is_refused_before_the_charge_and_after(tmp_path: Path, made: str) -> None:
    """A view of a query's answers had the name of an output table: seen after the charge alone, and at each retry."""
    path, release = tmp_path / "out.duckdb", synthetic("r1", {"age": "whole"}, (1,))
    check_places(path, [("releases", "daily")])
    with duckdb.connect(str(path)) as connection:
        connection.execute(made)
    before = path.read_bytes()
    with pytest.raises(TableUnreadable, match=f"{TAKEN[made]}.*nothing was charged now"):
        check_places(path, [("other", "weekly"), ("releases", "daily")])
    with pytest.raises(TableUnreadable, match=TAKEN[made]):
        publish(path, "releases", release)
    assert path.read_bytes() == before


def test_own_tables_and_columns_of_their_users_take_no_name(tmp_path: Path) -> None:
    """What this module made, whoever added a column to it; and two of one list that ask for one table do not fit."""
    path = tmp_path / "out.duckdb"
    publish(path, "releases", synthetic("r1", {"age": "whole"}, (1,)))
    with duckdb.connect(str(path)) as connection:
        connection.execute("ALTER TABLE releases ADD COLUMN comment VARCHAR DEFAULT 'seen'")
    check_places(path, [("Releases", "Daily"), ("other", "daily")])
    publish(path, "releases", synthetic("r2", {"age": "whole"}, (2,)))
    assert published_ids(path, "releases") == {"r1", "r2"}
    with pytest.raises(TableUnreadable, match="the table of two things"):
        check_places(tmp_path / "none.duckdb", [("b", "a"), ("A_synthetic", "b")])
    with pytest.raises(NotPublished, match="not writable.*nothing was charged now"):
        check_places(path / "beside.duckdb", [("b", "a")])


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
    ids = [row[0] for row in read_table(path, "releases")]
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
    assert len(read_table(path, "releases")) == 2


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
    with pytest.raises(TableUnreadable, match="a table of other columns under the name 'releases'"):
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
