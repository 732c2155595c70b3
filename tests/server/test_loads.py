"""The door ``load``: the owner says from where, a scheduler says when; no row decides a reply."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from duckdb_files import read_table
from service_world import TOKENS, ServiceWorld, asker, serve_here, settle, task
from starlette.testclient import TestClient
from typer.testing import CliRunner

from dpflow import fault_points
from dpflow.cli import app
from dpflow.errors import InvalidDeclaration
from dpflow.server.service import load_service
from dpflow.tables.access import isolated_database

HEAD = "person,city,clinic,age,cost,day"
#: Two worlds' rows of one block: all fit, and none fits.
GOOD = f"{HEAD}\n" + "".join(f"{n},Oslo,c1,30,1.25,2021-01-01\n" for n in range(50))
BAD = (
    f"{HEAD}\n" + "".join(f"planted{n},Oslo,c1,many,1.25,2021-13-77,more\n" for n in range(7)) + '"'
)


def make_world(folder: Path, rows: str = GOOD, **load: Any) -> ServiceWorld:
    folder.mkdir()
    world = ServiceWorld(folder)
    service = yaml.safe_load(world.file.read_text())
    described = {"table": "visits", "source": "incoming/{block}.csv", "by": "day"} | load
    service["loads"] = {"daily": described, "other": described}
    service["principals"]["ann"] = asker(
        "ann", role="scheduler", doors=["load", "release", "sql"], loads=["daily"]
    )
    world.file.write_text(yaml.safe_dump(service))
    (folder / "incoming").mkdir()
    (folder / "incoming" / "2021-01-01.csv").write_text(rows)
    return world


def ask(client: TestClient, load: str = "daily", *blocks: str) -> Any:
    body = task("load") | {"load": load, "blocks": list(blocks) or ["2021-01-01"]}
    return settle(client, "tasks/load", body)


def test_rows_are_in_no_reply(tmp_path: Path) -> None:
    """Rows that fit, that do not, and the same again: the same reply; what fits is there once."""
    seen, rows = [], []
    for name, content in (("good", GOOD), ("bad", BAD)):
        world = make_world(tmp_path / name, content)
        with world.test_client("ann") as client:
            for _ in range(2):
                answer = ask(client)
                seen.append((answer.status_code, answer.text, answer.headers["content-length"]))
                rows.append(len(read_table(world.folder / "visits.duckdb")))
            metrics = client.get("/metrics").text
        assert "planted" not in metrics
    assert len(set(seen)) == 1 and seen[0][0] == 200
    assert yaml.safe_load(seen[0][1]) == {
        "load": "daily",
        "table": "visits",
        "blocks": ["2021-01-01"],
    }
    assert rows == [8050, 8050, 8000, 8000]


@pytest.mark.parametrize(
    "row",
    [b'1,"Oslo,c1,30,1.25,2021-01-01\n1,Oslo,c1,30,1.25,2021-01-01\n', b"1,Os\rlo,c1,30,1.25,2021-01-01\n"],
)  # fmt: skip
def test_a_row_that_makes_a_file_unreadable_decides_no_reply(tmp_path: Path, row: bytes) -> None:
    """The block stays as it was, and the reply is that of a file that can be read."""
    world = make_world(tmp_path / "world")
    with world.test_client("ann") as client:
        readable = ask(client)
        with (world.folder / "incoming" / "2021-01-01.csv").open("ab") as file:
            file.write(row)
        unreadable = ask(client)
        assert (unreadable.status_code, unreadable.content) == (200, readable.content)
        assert len(read_table(world.folder / "visits.duckdb")) == 8050
        (world.folder / "incoming" / "2021-01-01.csv").write_text(f"{HEAD}\n")
        assert (
            ask(client).content == readable.content
            and len(read_table(world.folder / "visits.duckdb")) == 8000
        )


def test_a_load_that_could_not_be_written_is_not_called_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row decides that: a disk is full, also for what does not fit into memory, or the owner's file is read-only."""
    many = "".join(f"{n},Oslo,c1,30,1.25,2021-01-01\n" for n in range(20_000))
    world = make_world(tmp_path / "world", f"{HEAD}\n{many}")
    file = world.folder / "visits.duckdb"
    with world.test_client("ann") as client:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
        try:
            full = ask(client)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (full.status_code, full.json()["retryable"]) == (503, True), full.text
        access = os.access
        monkeypatch.setattr(os, "access", lambda place, way: place != file and access(place, way))
        locked = ask(client)
        assert (locked.status_code, locked.json()["retryable"]) == (500, False), locked.text
        monkeypatch.undo()
        settings = isolated_database.session_settings
        small = {"memory_limit": "20MB", "max_temp_directory_size": "1MB"}
        monkeypatch.setattr(
            isolated_database, "session_settings", lambda spill: settings(spill) | small
        )
        (world.folder / "incoming" / "2021-01-01.csv").write_text(f"{HEAD}\n{many * 20}")
        spilled = ask(client)
        assert (spilled.status_code, spilled.json()["retryable"]) == (503, True), spilled.text
        monkeypatch.undo()
        (world.folder / "incoming" / "2021-01-01.csv").write_text(f"{HEAD}\n{many}")
        assert len(read_table(file)) == 8000
        assert ask(client).status_code == 200 and len(read_table(file)) == 28_000


SYNC = duckdb.FatalException("FATAL Error: fsync failed!")
QUOTA = duckdb.TransactionException(
    "TransactionContext Error: Failed to commit: Cannot open file: Disk quota exceeded"
)
TWICE = duckdb.TransactionException(
    'TransactionContext Error: Failed to commit: PRIMARY KEY or UNIQUE constraint violation: duplicate key "7"'
)
DISK = duckdb.IOException("IO Error: Could not read from file: Input/output error")
DAMAGE = duckdb.Error("Corrupt database file: computed checksum does not match")


@pytest.mark.parametrize(
    ("error", "status"), [(SYNC, 503), (QUOTA, 503), (DISK, 500), (DAMAGE, 500), (TWICE, 200)]
)
def test_what_no_row_causes_is_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: duckdb.Error, status: int
) -> None:
    """A disk or file that fails is said, as no row decides it; a key that stands twice is not."""
    world = make_world(tmp_path / "world")

    def fail(point: str) -> None:
        raise error

    with world.test_client("ann") as client:
        with monkeypatch.context() as patch:
            patch.setattr(fault_points, "pass_point", fail)
            failed = ask(client)
        assert failed.status_code == status, failed.text
        assert failed.json().get("retryable") == {503: True, 500: False}.get(status)
        assert str(world.folder) not in failed.text and "7" not in failed.text
        assert len(read_table(world.folder / "visits.duckdb")) == 8000
        assert ask(client).status_code == 200
        assert len(read_table(world.folder / "visits.duckdb")) == 8050


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE SCHEMA dpflow; CREATE TABLE dpflow.loads (a INTEGER)",
        "ALTER TABLE visits RENAME TO other; CREATE VIEW visits AS FROM other",
    ],
)
def test_a_file_that_takes_no_load_is_said(tmp_path: Path, statements: str) -> None:
    """A view in the table's place, or another book of loads than dpflow's."""
    world = make_world(tmp_path / "world")
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        connection.execute(statements)
    with world.test_client("ann") as client:
        failed = ask(client)
    assert (failed.status_code, failed.json()["retryable"]) == (500, False), failed.text
    assert len(read_table(world.folder / "visits.duckdb")) == 8000


def test_what_a_scheduler_may_not_load(tmp_path: Path) -> None:
    """A load of somebody else is one that is not there; a block is no path; what is not delivered is said without
    its place.
    """
    world = make_world(tmp_path / "world")
    with world.test_client("ann") as client:
        theirs, absent = ask(client, "other"), ask(client, "othex")
        assert theirs.status_code == absent.status_code == 422
        assert theirs.text.replace("other", "X") == absent.text.replace("othex", "X")
        for block in ("../visits", "a/b", "..", "*", "a..b", "", "/etc/passwd", "a\0b"):
            assert ask(client, "daily", block).status_code == 422, block
        late = ask(client, "daily", "2021-01-02")
        assert (late.status_code, late.json()["retryable"]) == (503, True)
        (world.folder / "incoming" / "2021-01-03.csv").write_text("other,columns\n1,2\n")
        broken = ask(client, "daily", "2021-01-03")
        assert (broken.status_code, broken.json()["error"]) == (500, "internal_error")
        assert (
            str(world.folder) not in late.text + broken.text
            and len(read_table(world.folder / "visits.duckdb")) == 8000
        )
    with world.test_client("bob") as bob:
        assert (
            bob.post("/v1/tasks/load", json=task() | {"load": "daily", "blocks": ["a"]}).status_code
            == 403
        )


def test_blocks_are_loaded_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a DAG, and without a file beside it."""
    world = make_world(tmp_path / "world")
    (tmp_path / "client").mkdir()
    monkeypatch.chdir(tmp_path / "client")
    monkeypatch.setenv("DPFLOW_TOKEN", TOKENS["ann"][0])

    def load(*words: str) -> Any:
        return CliRunner().invoke(app, ["load", *words])

    with serve_here(world) as server:
        monkeypatch.setenv("DPFLOW_SERVER", server)
        done = load("daily", "--block", "2021-01-01")
        assert (
            done.stdout == "2021-01-01 loaded into visits\n"
            and len(read_table(world.folder / "visits.duckdb")) == 8050
        )
        assert "50" not in load("daily", "--block", "2021-01-01", "--json").stdout
        for words, said in (
            (("other", "--block", "2021-01-01"), "no load 'other'"),
            (("daily", "--block", "2021-01-02"), "has no block"),
            (("daily",), "name one load"),
            (("daily", "daily2", "--block", "2021-01-01"), "name one load"),
            (("daily", "--block", "2021-01-01", "--into", "x.duckdb:t"), "leave all but"),
        ):
            assert said in str(load(*words).exception), words
        monkeypatch.setenv("DPFLOW_TOKEN", TOKENS["bob"][0])
        assert "door load" in str(load("daily", "--block", "2021-01-01").exception)
    assert len(read_table(world.folder / "visits.duckdb")) == 8050 and not list(
        (tmp_path / "client").iterdir()
    )


@pytest.mark.parametrize(
    ("load", "said"),
    [({"table": "visit"}, "did you mean 'visits'"), ({"source": "all.csv"}, "needs {block}"), ({"into": "x"}, "into")],
)  # fmt: skip
def test_a_load_in_the_file_says_what_is_wrong(tmp_path: Path, load: Any, said: str) -> None:
    world = make_world(tmp_path / "world", **load)
    with pytest.raises(InvalidDeclaration, match=said):
        load_service(world.file)
