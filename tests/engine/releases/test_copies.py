"""Copies of settled results: the same rows in each place, changed in one step, and readers hold none of them up."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import psycopg
import pyarrow.parquet
import pytest
import yaml
from service_world import RELEASE, TOKENS, ServiceWorld, asker, settle, task
from typer.testing import CliRunner

import dpflow
from dpflow.cli import app, publish
from dpflow.engine.releases.copies import check_place, copy_settled
from dpflow.errors import InvalidInput, NotPublished, PlanRefused
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.server import app as server_app
from dpflow.server.served_tables import load_tables
from dpflow.server.service import load_service
from dpflow.tables import read_published
from dpflow.tables.access.declarations import load_table
from dpflow.tables.access.file_list import FileList, ListedFile
from dpflow.tables.public import copies


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    """Two days were released, the later one first."""
    world = ServiceWorld(tmp_path_factory.mktemp("copies"))
    with world.test_client("ann") as ann:
        for day in (2, 1):
            body = task(day=day) | {"releases": [RELEASE]}
            assert settle(ann, "tasks/release", body).status_code == 200
    return world


@pytest.fixture
def settled(world: ServiceWorld) -> list[ReleaseRecord]:
    return [one for one in world.ledger.releases("visits/ann") if one.settled]


@pytest.fixture
def url(postgres: Callable[[], str]) -> str:
    return postgres().replace(":@", "@").replace("+psycopg", "")


def read_server(url: str, table: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT run, value, epsilon, interval_start FROM {table} ORDER BY 1, 2").fetchall()  # type: ignore[call-overload,no-any-return]  # fmt: skip


def read_parquet(place: str) -> list[Any]:
    with fsspec.open(place) as file:
        table = pyarrow.parquet.read_table(io.BytesIO(file.read()))
    return sorted(zip(table["run"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.mark.parametrize("scheme", ["", "memory://copies/"])
def test_a_file_is_replaced_whole(
    world: ServiceWorld, settled: list[ReleaseRecord], tmp_path: Path, scheme: str
) -> None:
    """Here and in a store; one that is open goes on with what it was."""
    place = f"{scheme or tmp_path}/daily.parquet"
    assert copy_settled(world.ledger, settled[:1], place, "daily") == 1
    if scheme:
        assert copy_settled(world.ledger, settled, place, "daily") == 2
    else:
        with Path(place).open("rb") as reader:
            assert copy_settled(world.ledger, settled, place, "daily") == 2
            assert pyarrow.parquet.read_table(reader).num_rows == 3
        assert {file.name for file in tmp_path.iterdir()} == {
            "daily.parquet",
            "daily_latest.parquet",
        }
    rows = read_parquet(place)
    latest = read_parquet(f"{scheme or tmp_path}/daily_latest.parquet")
    assert len(rows) == 6 and latest == rows[3:] and "2026-01-02" in latest[0][0]


def test_a_table_of_a_server_gets_what_it_lacks(
    world: ServiceWorld, settled: list[ReleaseRecord], url: str, tmp_path: Path
) -> None:
    """The same rows as a file; a reader in the middle of a transaction is no obstacle, and sees its own state."""
    assert copy_settled(world.ledger, settled[:1], url, "daily") == 1
    with psycopg.connect(url) as reader:
        assert reader.execute("SELECT count(*) FROM daily").fetchone() == (3,)
        reader.execute("LOCK TABLE daily IN ACCESS SHARE MODE")
        done = threading.Event()
        copy = threading.Thread(
            target=lambda: (copy_settled(world.ledger, settled, url, "daily"), done.set())
        )
        copy.start()
        assert done.wait(60)
        copy.join()
    assert copy_settled(world.ledger, settled, url, "daily") == 0
    rows = read_server(url, "daily")
    assert {row[2] for row in rows} == {"0.5"} and len(rows) == 6
    assert read_server(url, "daily_latest") == rows[3:]
    copy_settled(world.ledger, settled, str(tmp_path / "daily.parquet"), "daily")
    assert [row[:2] for row in rows] == read_parquet(str(tmp_path / "daily.parquet"))


def test_a_table_that_is_locked_is_copied_the_next_time(
    world: ServiceWorld, settled: list[ReleaseRecord], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps it for itself, such as to rebuild it, keeps no copy of another place waiting."""
    copy_settled(world.ledger, settled[:1], url, "daily")
    monkeypatch.setattr(copies, "WAIT_SECONDS", 1)
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE daily IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(NotPublished, match="LockNotAvailable"):
            copy_settled(world.ledger, settled, url, "daily")
    assert copy_settled(world.ledger, settled, url, "daily") == len(settled) - 1


def test_what_fails_changes_nothing(
    world: ServiceWorld,
    settled: list[ReleaseRecord],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a table, of a file, without a server, and where a table is somebody else's."""
    place = str(tmp_path / "daily.parquet")
    copy_settled(world.ledger, settled[:1], place, "daily")
    before = Path(place).read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(copies.os, "fsync", fail)
    with pytest.raises(NotPublished, match="what was there stays"):
        copy_settled(world.ledger, settled, place, "daily")
    assert Path(place).read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    monkeypatch.undo()

    def break_off(release_id: str) -> list[Any]:
        if release_id == settled[1].release_id:
            raise ValueError("in the middle")
        return []

    ids = [one.release_id for one in settled]
    kinds = {"release_id": "VARCHAR"} | dict.fromkeys(("released_at", copies.MOMENT), "TIMESTAMP")
    with pytest.raises(NotPublished):
        copies.add_rows(url, "broken", kinds, ids, break_off)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('broken')").fetchone() == (None,)
        connection.execute("CREATE TABLE theirs (x integer)")
    secret = "postgresql://me:pa55word@127.0.0.1:9/nowhere?connect_timeout=1"
    parameter = "postgresql://127.0.0.1:9/nowhere?password=pa55word&connect_timeout=1"
    for place, table in ((url, "theirs"), (secret, "daily"), (parameter, "daily")):
        with pytest.raises(NotPublished) as raised:
            copy_settled(world.ledger, settled, place, table)
        assert "pa55word" not in str(raised.value)


@pytest.mark.parametrize(
    "place",
    [
        "x.csv",
        "http://me:pa55word@host/x.parquets",
        "http://host/x?password=pa55word",
        "postgres:/me:pa55word@host/x",
        "",
    ],
)
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(InvalidInput, match="no place of a copy") as raised:
        check_place(place)
    assert "pa55word" not in str(raised.value)


def test_a_service_copies_what_it_publishes(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Each time something was settled, and to the other places while one cannot be written, or never answers."""
    monkeypatch.setattr(server_app, "COPY_SECONDS", 0.05)
    monkeypatch.setattr(copies, "WAIT_SECONDS", 2)
    hung = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(hung.close)
    places = [f"postgresql://me@127.0.0.1:{port}/x" for port in (9, hung.getsockname()[1])]
    terms = {
        "release": "daily",
        "scope": "visits/ann",
        "copies": [*places, "copies/daily.parquet", "out.duckdb", url],
    }
    world = ServiceWorld(
        tmp_path,
        published={"daily": terms},
        principals={"ann": asker("ann"), "bob": {"token_sha256": TOKENS["bob"][1], "role": "auditor"}},
    )  # fmt: skip

    def count() -> int:
        try:
            return len(read_server(url, "daily"))
        except psycopg.errors.UndefinedTable:
            return 0

    with world.test_client("ann") as ann:
        for revision in (1, 2):
            assert settle(ann, "release", RELEASE | {"revision": revision}).status_code == 200
            waited = threading.Event()
            for _ in range(600):
                if count() == 3 * revision:
                    break
                waited.wait(0.1)
            assert count() == 3 * revision
    assert len(read_parquet(str(tmp_path / "copies" / "daily.parquet"))) == 6
    assert (tmp_path / "out.duckdb").exists()


def test_a_service_checks_places(tmp_path: Path) -> None:
    terms = {"release": "daily", "scope": "visits/ann", "copies": ["daily.txt"]}
    world = ServiceWorld(tmp_path, published={"daily": terms})
    with pytest.raises(InvalidInput, match="no place of a copy"):
        load_tables(load_service(world.file))


def test_a_service_serves_no_private_file_as_a_public_table(tmp_path: Path) -> None:
    """Of any of its tables; it does not start."""
    world = ServiceWorld(tmp_path, published={})
    (tmp_path / "link.csv").symlink_to(
        load_table(load_service(world.file).tables["visits"]).database
    )
    service = yaml.safe_load(world.file.read_text()) | {"public": {"towns": "link.csv"}}
    world.file.write_text(yaml.safe_dump(service))
    with pytest.raises(PlanRefused, match="rows of towns are public, and these are in the private"):
        load_tables(load_service(world.file))


@pytest.mark.parametrize("scheme", ["", "memory://rows/"])
@pytest.mark.parametrize("name", ["daily", "daily_latest"])
def test_a_copy_replaces_copies_only(
    world: ServiceWorld, settled: list[ReleaseRecord], tmp_path: Path, scheme: str, name: str
) -> None:
    """What has other columns stays, also in the file of the latest interval, of which nobody wrote a word; and what is no
    Parquet file.
    """
    folder = scheme or str(tmp_path)
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"person": [1, 2], "age": [3, 4]}), stream)
    for content in (stream.getvalue(), b"", b"text"):
        with fsspec.open(f"{folder}/{name}.parquet", "wb") as file:
            file.write(content)
        with pytest.raises(NotPublished, match="no copy of published results"):
            copy_settled(world.ledger, settled, f"{folder}/daily.parquet", "daily")
        with fsspec.open(f"{folder}/{name}.parquet") as file:
            assert file.read() == content
    # An empty copy, which columns of nulls may be in, is one.
    place = f"{folder}/none.parquet"
    assert copy_settled(world.ledger, [], place, "daily") == 0
    assert copy_settled(world.ledger, settled, place, "daily") == 2


@pytest.mark.parametrize(
    ("copy_places", "match"),
    [
        (["visits.duckdb"], "copies are public"),
        # The file of the latest interval, of a list of files, and one that is not there now.
        (["pets.parquet"], "copies are public"),
        (["gone.parquet"], "copies are public"),
        (["s3://clinic//part.parquet"], "copies are public"),
        (["out.parquet", "sub/../out_latest.parquet"], "two copies"),
        (["out.parquet", "out.parquet"], "two copies"),
    ],
)
def test_no_copy_is_in_a_private_file_or_in_another_copy(
    tmp_path: Path, copy_places: list[str], match: str
) -> None:
    terms = {"release": "daily", "scope": "visits/ann", "copies": copy_places}
    world = ServiceWorld(tmp_path, published={"daily": terms})
    pets = tmp_path / "pets_latest.parquet"
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"person": [1, 2], "age": [3, 4]}), stream)
    pets.write_bytes(stream.getvalue())
    listed = [
        ListedFile(str(pets), (0, 0, 0, 0)),
        ListedFile(str(tmp_path / "gone.parquet"), (0, 0, 0, 0)),
        ListedFile("s3://clinic/part.parquet", (0, "tag")),
    ]
    text = FileList("pets", {"person": "BIGINT"}, (), (), tuple(listed)).to_json(tmp_path)
    (tmp_path / "pets.files.json").write_text(text)
    declaration = yaml.safe_load((tmp_path / "visits.yml").read_text())
    declaration |= {"name": "pets", "database": "pets.files.json"}
    (tmp_path / "pets.yml").write_text(yaml.safe_dump(declaration))
    service = yaml.safe_load(world.file.read_text())
    service["tables"]["pets"] = "pets.yml"
    world.file.write_text(yaml.safe_dump(service))
    with pytest.raises((PlanRefused, InvalidInput), match=match):
        load_tables(load_service(world.file))


def test_the_command_shows_no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ServiceWorld(tmp_path)
    monkeypatch.setattr(publish, "copy_settled", lambda *names: 3)
    for place in ("postgresql://h/db?password=pa55word", "postgresql://me:pa55word@h/db"):
        done = CliRunner().invoke(
            app, ["publish", place, "--ledger", str(tmp_path / "ledger.sqlite")]
        )
        assert "copied to releases of postgresql://h/db\n" in done.output


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("postgresql+PSYCOPG://me:pa55word@h/db", "postgresql+PSYCOPG://h/db"),
        ("postgresql://me:p@55word@h/db?sslmode=require", "postgresql://h/db"),
        ("postgresql://h/db?user=me&password=pa@55word", "postgresql://..."),
        ("postgresql://me:pa?55word@h/db", "postgresql://..."),
        ("postgresql://me:pa\n55word@h/db", "postgresql://h/db"),
        ("me:pa55word@h/db", "h/db"),
        ("out/daily.parquet", "out/daily.parquet"),
    ],
)
def test_no_message_shows_a_login(place: str, shown: str) -> None:
    assert copies.show_place(place) == shown


def test_a_server_is_asked_whatever_case_its_scheme_has(
    settled: list[ReleaseRecord], world: ServiceWorld, url: str
) -> None:
    place = url.replace("postgresql://", "Postgresql+PSYCOPG://")
    assert copy_settled(world.ledger, settled, place, "daily") == 2


@pytest.mark.parametrize("place", ["seen.duckdb", "seen.parquet", "server"])
def test_a_copy_states_no_maximum_that_was_withdrawn(
    tmp_path: Path, place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that is brought up to date nor one that is made later: 300 to 300 was stated of 3,000 rows."""
    place = request.getfixturevalue("url") if place == "server" else str(tmp_path / place)
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("private.duckdb") as connection:
        connection.execute("CREATE TABLE seen AS SELECT i % 60 AS unit FROM range(3000) r(i)")
    declared = {"name": "seen", "database": "private.duckdb", "privacy_unit": {"column": "unit"},
                "contribution_bounds": {"rows": 5}, "max_contributions": {"rows": 5}, "columns": {}}  # fmt: skip
    Path("seen.yml").write_text(yaml.safe_dump(declared))
    Path("dpflow.yml").write_text(yaml.safe_dump({"tables": {"seen": "seen.yml"}}))
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("seen", 9, 0, table=load_table("seen"), principal="owner")
    dpflow.sql("SELECT COUNT(*) FROM seen", ledger=ledger, scope="seen", epsilon="1")
    released = ledger.releases("seen")

    def read_totals(of: str) -> list[Any]:
        if of.endswith(".duckdb"):
            return [row["low"] for row in read_published(Path(of), "seen")]
        if of.endswith(".parquet"):
            return list(pyarrow.parquet.read_table(of)["low"].to_pylist())
        with psycopg.connect(of) as server:
            return [low for (low,) in server.execute("SELECT low FROM seen").fetchall()]

    copy_settled(ledger, released, place, "seen")
    stated = read_totals(place)
    assert None not in stated
    # Where no declaration is found, nobody says that it was withdrawn: what is there stays, and a new copy states nothing.
    unknown = str(tmp_path / "unknown.parquet")
    for copy in (unknown, *([] if place.endswith(".parquet") else [place])):
        copy_settled(ledger, released, copy, "seen", lambda table: None)
    assert read_totals(place) == stated and read_totals(unknown) == [None]
    Path("seen.yml").write_text(yaml.safe_dump(declared | {"max_contributions": {"rows": 50}}))
    copy_settled(ledger, released, place, "seen")
    assert read_totals(place) == [None]
    later = str(tmp_path / "later.duckdb")
    copy_settled(ledger, released, later, "seen")
    assert read_totals(later) == [None]
