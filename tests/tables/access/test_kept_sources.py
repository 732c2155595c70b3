"""A DuckDB that is kept between questions: locked to one file, which it has open no longer than a question takes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pytest
from forked_programs import run_forked

from dpflow.errors import TableError, TableUnreadable
from dpflow.tables.access import isolated_database, kept_sources
from dpflow.tables.access.kept_sources import keep_sources_open, open_source
from dpflow.tables.access.spill import PREFIX

pytestmark = pytest.mark.own_session
FORKS = """
import os, sys
from pathlib import Path
from dpflow.tables.access import kept_sources
def ask():
    with kept_sources.keep_sources_open(), kept_sources.open_source(Path(sys.argv[1]), "rows") as connection:
        assert connection.fetch_rows("SELECT count(*) FROM private.rows") == [(3,)]
ask()
assert kept_sources._IDLE
child = os.fork()
if child == 0:
    assert not kept_sources._IDLE
    ask()
ask()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A file with the three rows of the table ``rows``, read by nobody before."""
    kept_sources._close_idle()
    yield make_file(tmp_path / "rows.duckdb", 3)
    kept_sources._close_idle()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the starts of DuckDB."""
    starts = Mock(wraps=isolated_database.start_duckdb)
    monkeypatch.setattr(isolated_database, "start_duckdb", starts)
    return starts


def make_file(file: Path, rows: int) -> Path:
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE OR REPLACE TABLE rows AS FROM range({rows})")
    return file


def ask(file: Path, query: str = "SELECT count(*) FROM private.rows") -> Any:
    """What one question reads."""
    with keep_sources_open(), open_source(file, "rows") as connection:
        return connection.fetch_rows(query)


def open_descriptors(file: Path) -> list[str]:
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if link.is_symlink()]
    return [name for name in names if name.startswith(str(file))]


def test_questions_about_a_file_start_one_duckdb(file: Path, starts: Mock) -> None:
    """Which holds neither the file nor a folder between them, and reads what was written there."""
    for rows in (3, 4, 5):
        make_file(file, rows)
        with keep_sources_open(), open_source(file, "rows") as connection:
            assert connection.fetch_rows("SELECT count(*) FROM private.rows") == [(rows,)]
            assert open_descriptors(file)
            (folder,) = [path for path in file.parent.iterdir() if path.name.startswith(PREFIX)]
            assert folder.stat().st_mode & 0o777 == 0o700
        assert not open_descriptors(file) and os.listdir(file.parent) == [file.name]
    assert starts.call_count == 1


def test_a_file_that_was_exchanged_is_read_as_it_is(file: Path, starts: Mock) -> None:
    """One that took its place is read by the same DuckDB; where a link leads elsewhere, another one is locked to that."""
    assert ask(file) == [(3,)]
    os.replace(make_file(file.with_name("other.duckdb"), 7), file)
    assert ask(file) == [(7,)] and starts.call_count == 1
    link, far = file.with_name("link.duckdb"), make_file(file.with_name("far.duckdb"), 9)
    for target, rows in ((file, 7), (far, 9), (file, 7)):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert ask(link) == [(rows,)]
    file.unlink()
    with pytest.raises(TableUnreadable, match="there is no file"):
        ask(link)


def test_rows_of_a_log_are_read(file: Path) -> None:
    """A writer that was killed leaves rows outside the file itself, also between two questions."""
    assert ask(file) == [(3,)]
    text = f"""
import duckdb, os
connection = duckdb.connect({str(file)!r})
connection.execute("SET wal_autocheckpoint = '1GB'; INSERT INTO rows VALUES (8)")
os._exit(0)
"""
    assert run_forked(text) == 0 and Path(f"{file}.wal").exists()
    assert ask(file) == [(4,)]
    assert ask(file) == [(4,)]


def test_nothing_of_a_question_is_in_the_next_one(file: Path, starts: Mock) -> None:
    """Neither tables nor views, variables, macros, statements or databases."""
    with keep_sources_open(), open_source(file, "rows") as connection:
        for statement in (
            "CREATE TEMP TABLE keys AS FROM private.rows",
            "CREATE TEMP VIEW kept AS FROM private.rows",
            "CREATE TEMP MACRO counted() AS (SELECT count(*) FROM private.rows)",
            "SET VARIABLE seen = (SELECT max(range) FROM private.rows)",
            "PREPARE again AS SELECT * FROM private.rows",
        ):
            connection.execute(statement)
    with keep_sources_open(), open_source(file, "rows") as connection:
        for query in (
            "SELECT table_name FROM duckdb_tables() WHERE database_name != 'private'",
            "SELECT view_name FROM duckdb_views() WHERE NOT internal",
            "SELECT function_name FROM duckdb_functions() WHERE NOT internal",
            "SELECT name FROM duckdb_variables()",
            "SELECT name FROM duckdb_prepared_statements()",
            "SELECT path FROM duckdb_temporary_files()",
        ):
            assert connection.fetch_rows(query) == [], query
        databases = "SELECT database_name FROM duckdb_databases() WHERE NOT internal ORDER BY ALL"
        assert connection.fetch_rows(databases) == [("memory",), ("private",)]
    assert starts.call_count == 1


def test_a_kept_duckdb_is_locked(file: Path, starts: Mock) -> None:
    """From the first question on, in each of them."""
    other = make_file(file.with_name("other.duckdb"), 1)
    for _ in range(2):
        with keep_sources_open(), open_source(file, "rows") as connection:
            for statement in (
                "SET threads = 1",
                "SET enable_external_access = true",
                "SET lock_configuration = false",
                "SET allowed_paths = ['/']",
                "SET temp_directory = '/'",
                f"ATTACH '{other}' AS other (READ_ONLY)",
                f"FROM read_blob('{other}')",
                f"COPY private.rows TO '{file.with_name('copy.csv')}'",
                "INSERT INTO private.rows VALUES (1)",
                "INSTALL httpfs",
            ):
                with pytest.raises(TableError):
                    connection.execute(statement)
            assert connection.fetch_rows("SELECT current_setting('TimeZone')") == [("UTC",)]
    assert starts.call_count == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, TableUnreadable])
def test_nothing_is_kept_of_a_question_that_fails(
    file: Path, starts: Mock, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        with keep_sources_open(), open_source(file, "rows"):
            raise error("of the test")
    assert not kept_sources._IDLE and not open_descriptors(file)
    assert os.listdir(file.parent) == [file.name]
    assert ask(file) == [(3,)] and starts.call_count == 2


def test_a_file_that_is_none_is_refused_again(file: Path) -> None:
    """By the file's own reason, though nothing was attached that could be detached."""
    assert ask(file) == [(3,)]
    content = file.read_bytes()
    file.write_bytes(b"no database")
    for _ in range(2):
        with pytest.raises(TableUnreadable):
            ask(file)
    file.write_bytes(content)
    assert ask(file) == [(3,)]


def test_a_fork_starts_its_own(file: Path) -> None:
    """It has none of the threads; its parent goes on."""
    assert run_forked(FORKS, str(file)) == 0


def test_threads_share_none(file: Path, starts: Mock) -> None:
    """And no more stay than a few."""
    assert ask(file) == [(3,)]
    with keep_sources_open(), open_source(file, "rows"), ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: ask(file), range(24))) == [[(3,)]] * 24
    assert len(kept_sources._IDLE) <= kept_sources._MAX_IDLE
    assert len({id(session) for session in kept_sources._IDLE}) == len(kept_sources._IDLE)
    assert not open_descriptors(file)


def test_what_a_session_may_take_is_of_its_question(
    file: Path, starts: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another limit of memory takes another DuckDB, as does a folder whose name somebody took."""
    setting = "SELECT current_setting('memory_limit')"
    first = ask(file, setting)
    monkeypatch.setenv("DPFLOW_MEMORY_LIMIT", "123MiB")
    assert ask(file, setting) == [("123.0 MiB",)] != first
    kept_sources._IDLE[-1]._spill.parent.mkdir()
    assert ask(file, setting) == [("123.0 MiB",)] and starts.call_count == 3


def test_no_row_is_spilled_where_others_could_read_it(
    file: Path, starts: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB makes a folder again that somebody removed, but not this one: what must spill fails in words of
    ours, what need not is answered, and nothing is kept of either.
    """
    monkeypatch.setenv("DPFLOW_MEMORY_LIMIT", "20MB")

    def remove_folder() -> None:
        (folder,) = [path for path in file.parent.iterdir() if path.name.startswith(PREFIX)]
        shutil.rmtree(folder)

    with pytest.raises(TableUnreadable, match="the folder it spills into .* run it again"):
        with keep_sources_open(), open_source(file, "rows") as connection:
            remove_folder()
            connection.execute(
                "CREATE TEMP TABLE kept AS SELECT repeat('secret' || i, 40) FROM range(200000) r(i)"
            )
    assert os.listdir(file.parent) == [file.name]
    with keep_sources_open(), open_source(file, "rows") as connection:
        remove_folder()
        assert connection.fetch_rows("SELECT count(*) FROM private.rows") == [(3,)]
    assert os.listdir(file.parent) == [file.name] and not kept_sources._IDLE
    assert ask(file) == [(3,)] and starts.call_count == 3


def test_few_are_kept(file: Path, starts: Mock) -> None:
    """Those of the files that were read last; the threads of the others end."""
    files = [make_file(file.with_name(f"{n}.duckdb"), n) for n in range(6)]
    assert [ask(file) for file in files] == [[(n,)] for n in range(6)]
    assert len(kept_sources._IDLE) == kept_sources._MAX_IDLE and starts.call_count == 6
    threads = len(os.listdir("/proc/self/task"))
    assert ask(make_file(file.with_name("6.duckdb"), 6)) == [(6,)]
    assert len(os.listdir("/proc/self/task")) == threads
    assert ask(files[5]) == [(5,)] and starts.call_count == 7
    assert ask(files[0]) == [(0,)] and starts.call_count == 8
