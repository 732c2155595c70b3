"""Objects of a store as a private source: the same statistics, only what was listed, one state."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import numpy as np
import pytest
from declared_tables import declare_visits
from page_runner import inside, run_main

from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import InvalidInput, MissingExtra, TableBusy, TableUnreadable
from dpflow.tables.access import object_stores
from dpflow.tables.access.file_list import FileList, open_list
from dpflow.tables.loading.csv_files import CsvFormat
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.source_names import find_sources, open_source
from dpflow.tables.private import PrivateTable

pytestmark = pytest.mark.own_session

DAYS = ("2026-01-01", "2026-01-02")


def part(day: str, folder: Path) -> bytes:
    """A Parquet file of a day's visits."""
    file = folder / "part.parquet"
    query = f"SELECT 'p' || (i % 40) AS person, CAST(20 + i % 50 AS INTEGER) AS age FROM range({day[-1]}0) t(i)"
    duckdb.sql(query).write_parquet(str(file))
    return file.read_bytes()


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """A file system, and the URL of a folder in it with two days of visits."""
    if request.param == "s3":
        request.getfixturevalue("s3_server")
    files = fsspec.filesystem(request.param, use_listings_cache=False)
    root = f"{request.param}:///clinic" if request.param == "memory" else "s3://clinic"
    if files.exists(root):
        files.rm(root, recursive=True)
    files.mkdir(root)
    for day in DAYS:
        files.pipe(f"{root}/visits/day={day}/part.parquet", part(day, tmp_path))
    yield files, f"{root}/visits"
    files.rm(root, recursive=True)


def make_list(root: str, folder: Path) -> Path:
    target = folder / "visits.files.json"
    files, found = find_sources([f"{root}/**/*.parquet"])
    list_files(files, found, "visits", target)
    return target


def test_an_object_whose_name_is_a_pattern_is_refused(
    store: tuple[Any, str], tmp_path: Path
) -> None:
    """Another one would be read in place of it."""
    files, root = store
    odd = f"{root}/day={DAYS[0]}/par[t].parquet"
    files.pipe(odd, part(DAYS[0], tmp_path))
    with pytest.raises(InvalidInput, match="rename it"):
        list_files([odd], root, "visits", tmp_path / "visits.files.json")


def test_statistics_are_those_of_files(store: tuple[Any, str], tmp_path: Path) -> None:
    """The same rows in a store, in Parquet files and in a DuckDB file."""
    files, root = store
    local = tmp_path / "local" / "visits"
    for day in DAYS:
        (local / f"day={day}").mkdir(parents=True)
        (local / f"day={day}" / "part.parquet").write_bytes(part(day, tmp_path))
    beside = tmp_path / "local" / "visits.files.json"
    list_files(sorted(local.rglob("*.parquet")), local, "visits", beside)
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE visits AS FROM read_parquet('{local}/*/*.parquet', hive_types_autocast = false)"
        )
    remote = make_list(root, tmp_path)
    listed = FileList.read(remote, "x")
    assert listed.columns == FileList.read(beside, "x").columns and listed.partitions == ("day",)
    assert remote.stat().st_mode & 0o077 == 0
    request = GroupedSums(rows_per_group=100, values=(("age", 0),))
    for blocks in ((), DAYS[:1], DAYS):
        answers = [
            PrivateTable(declare_visits(database)).answer(request, blocks)
            for database in (remote, beside, tmp_path / "visits.duckdb")
        ]
        for other in answers[1:]:
            assert np.array_equal(answers[0].rows, other.rows)
            assert np.array_equal(answers[0].sums["age"], other.sums["age"])


def test_a_release_from_a_store(store: tuple[Any, str], tmp_path: Path) -> None:
    """By commands: list, init, release."""
    with inside(tmp_path):
        os.environ.pop("DPFLOW_LEDGER", None)
        for words in (
            f"load {store[1]}/**/*.parquet --in-place",
            "init visits.files.json --unit person --rows 4 --block day --epsilon 1 --first-block 2026-01-01",
            "release visits_first.yml",
            "check",
        ):
            status, _, errors = run_main(words.split())
            assert status == 0, errors
        status, _, errors = run_main(["init", f"{store[1]}/day=2026-01-01/part.parquet"])
        assert status and "--in-place" in errors


@pytest.mark.parametrize("change", ["grown", "replaced", "removed"])
def test_objects_are_read_only_as_they_were_listed(
    store: tuple[Any, str], tmp_path: Path, change: str
) -> None:
    """A change is refused before anything is charged, and during the scan it is tried again."""
    files, root = store
    file, changed = make_list(root, tmp_path), f"{root}/day=2026-01-01/part.parquet"
    before = PrivateTable(declare_visits(file)).data_identity()
    with open_list(file, "table visits") as connection:
        relation = connection.find_relation("visits")
        assert connection.fetch_rows(f"SELECT count(*) FROM {relation.quoted}") == [(30,)]
        if change == "removed":
            files.rm(changed)
        else:
            content = files.cat(changed)
            other = bytearray(content)
            other[200] ^= 1  # of the same size
            files.pipe(changed, bytes(other) if change == "replaced" else content + content)
        with pytest.raises(TableBusy, match="while it was read"):
            connection.fetch_rows(f"SELECT count(age) FROM {relation.quoted}")
    assert PrivateTable(declare_visits(file)).data_identity() != before
    with pytest.raises(TableUnreadable, match="list the files again"):
        PrivateTable(declare_visits(file)).answer(GroupedSums(), ["2026-01-02"])


def test_nothing_else_is_in_reach(store: tuple[Any, str], tmp_path: Path) -> None:
    """Neither other objects nor files, nor writing."""
    files, root = store
    file = make_list(root, tmp_path)
    files.pipe(f"{root}/other.parquet", part(DAYS[0], tmp_path))
    with open_list(file, "x") as connection:
        for query in (
            f"SELECT * FROM '{root}/other.parquet'",
            f"SELECT * FROM read_parquet('{root}/*/*.parquet')",
            f"SELECT * FROM '{tmp_path}/part.parquet'",
            f"COPY (SELECT 1) TO '{root}/leak.parquet'",
            "SET enable_external_access = true",
        ):
            with pytest.raises(TableUnreadable):
                connection.fetch_rows(query)
    assert not files.exists(f"{root}/leak.parquet")


def test_rows_of_a_store_are_loaded(store: tuple[Any, str], tmp_path: Path) -> None:
    """CSV as from a file: with declared types, once, under the objects' name."""
    files, root = store
    for name in ("a", "b"):
        files.pipe(f"{root}/{name}/day.csv", b"person,age\np1,30\np2,41\n")
    private = tmp_path / "v.duckdb"
    for loaded in (True, False):
        words = ([f"{root}/*/day.csv"], None, f"{private}:v", "person VARCHAR, age INTEGER")
        with open_source(*words, CsvFormat(), None, []) as (source, database, table):
            report = load_rows(source, database, table)
        assert report.loaded is loaded
    with duckdb.connect(str(private), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(4,)]
        assert connection.execute("SELECT source FROM dpflow.loads").fetchall() == [
            (f"{root}/*/day.csv",)
        ]


def test_what_is_refused(store: tuple[Any, str], tmp_path: Path) -> None:
    """No match, several places, the files of a table with a log."""
    files, root = store
    with pytest.raises(InvalidInput, match="no file matches"):
        find_sources([f"{root}/**/*.csv"])
    with pytest.raises(InvalidInput, match="in several places"):
        find_sources([f"{root}/*.parquet", str(tmp_path)])
    files.pipe(f"{root}/_delta_log/0.json", b"{}")
    with pytest.raises(InvalidInput, match="of the format Delta"):
        make_list(root, tmp_path)
    assert not (tmp_path / "visits.files.json").exists()


def test_a_login_is_never_in_a_url() -> None:
    """It would stand in lists, books and messages."""
    for url in ("s3://ann:s3cret@bucket/v.parquet", "s3://s3cret@bucket/v.parquet"):
        with pytest.raises(InvalidInput, match="login") as refused:
            find_sources([url])
        assert "s3cret" not in str(refused.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of the store, or the extra."""

    def refuse(*args: Any, **options: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", refuse)
    with pytest.raises(MissingExtra, match="pip install s3fs"):
        find_sources(["s3://clinic/*.parquet"])
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match="extra 'remote'"):
        find_sources(["memory:///clinic/*.parquet"])


def test_a_store_out_of_reach_is_tried_again(
    store: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and during a release; the failure's own text is withheld."""
    file = make_list(store[1], tmp_path)

    class LostStore:
        def __getattr__(self, name: str) -> Any:
            if name == "unstrip_protocol" or name.startswith("_"):
                return getattr(store[0], name)
            raise ConnectionResetError("s3cret")

    opened = object_stores.ObjectStore.open(["memory:///x"])
    monkeypatch.setattr(
        object_stores.ObjectStore,
        "open",
        lambda places: object_stores.ObjectStore(opened.scheme, LostStore()),
    )
    with pytest.raises(TableBusy, match="cannot be reached") as lost:
        PrivateTable(declare_visits(file)).answer(GroupedSums(), DAYS)
    assert "s3cret" not in str(lost.value) and TableBusy.retryable


def test_a_store_without_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, a change could not be seen."""
    fsspec.filesystem("memory").pipe("/clinic/v.parquet", b"x")
    monkeypatch.setattr(object_stores, "_VERSIONS", ("ETag",))
    with pytest.raises(TableUnreadable, match="says no version"):
        object_stores.ObjectStore.open(["memory:///clinic/v.parquet"]).find_states(
            ["memory:///clinic/v.parquet"]
        )
