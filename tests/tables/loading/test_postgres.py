"""PostgreSQL as a source: one snapshot, its own types, and nothing loaded if the server is lost."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from duckdb_files import query_file

from dpflow.errors import InvalidInput, TableBusy, TableUnreadable
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.postgres import copy_postgres

#: Values that a format of text could lose: line ends, quotes, empty against missing, many digits.
ROWS = r"""
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE TABLE visits (
  person text, city varchar(20), age int, cost numeric(10,2), x double precision, ok boolean,
  day date, at timestamptz, mood mood, parts int[], big numeric
);
INSERT INTO visits VALUES
  ('p1', E'Os"lo\r\n,x', 3, 1.25, 0.1, true, '2026-01-01', '2026-01-01 10:00:00+02', 'glad', '{1}', 1),
  ('', NULL, NULL, NULL, 'Infinity', false, '2026-01-02', NULL, NULL, NULL, NULL),
  (E'p\n3', '', -7, -99999999.99, 'NaN', NULL, '2026-01-02', 'infinity', 'sad', NULL, NULL);
CREATE TABLE capitals (a int, "A" int, b int);
CREATE TABLE lines (a int, "b
c" int);
"""


@pytest.fixture
def server(postgres: Callable[[], str]) -> str:
    """A database with the rows above."""
    url = postgres().replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        connection.execute(ROWS)
    return url


def test_values_arrive_as_they_were(server: str, tmp_path: Path) -> None:
    """With the server's types; what no declaration can use stays out."""
    database = tmp_path / "visits.duckdb"
    with copy_postgres(server, "public.visits") as source:
        assert "parts" not in source.columns and "big" not in source.columns
        assert source.columns["cost"] == "DECIMAL(10,2)" and "@" not in source.name
        assert source.ignored_columns == ("parts", "big")
        assert load_rows(source, database, "visits").rows == 3
    text = "SELECT person, city, age, CAST(cost AS VARCHAR), CAST(x AS VARCHAR), ok, CAST(day AS VARCHAR), "
    text += 'CAST("at" AS VARCHAR), mood FROM visits ORDER BY person'
    assert query_file(database, text) == [
        ("", None, None, None, "inf", False, "2026-01-02", None, None),
        ("p\n3", "", -7, "-99999999.99", "nan", None, "2026-01-02", "infinity", "sad"),
        (
            "p1",
            'Os"lo\r\n,x',
            3,
            "1.25",
            "0.1",
            True,
            "2026-01-01",
            "2026-01-01 08:00:00+00",
            "glad",
        ),
    ]


def test_only_the_blocks_that_are_asked_for(server: str, tmp_path: Path) -> None:
    """They are added one run after the other; the same again changes nothing."""
    database = tmp_path / "visits.duckdb"
    for day, there in (("2026-01-02", 2), ("2026-01-01", 3), ("2026-01-01", 3)):
        with copy_postgres(
            server, "visits", {"person": "VARCHAR", "day": "DATE"}, by="day", blocks=[day]
        ) as source:
            load_rows(source, database, "visits", by="day", blocks=[day])
        assert query_file(database, "SELECT count(*) FROM visits") == [(there,)]


@pytest.mark.timeout(60)
def test_a_list_of_blocks_may_be_long(server: str) -> None:
    """A statement that no socket takes at once is sent whole; before, the load never ended."""
    blocks = [f"p{number:020d}" for number in range(150_000)]
    with copy_postgres(server, "visits", by="person", blocks=[*blocks, "p1"]) as source:
        assert source.copied_rows == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "columns", "blocks", "error", "message"),
    [
        ("nowhere", None, (), InvalidInput, "there is no such table"),
        ("visits; DROP TABLE visits", None, (), InvalidInput, "there is no such table"),
        ("visits", {"persn": "VARCHAR"}, (), InvalidInput, "no column called 'persn'"),
        ("visits", None, ("no day",), TableUnreadable, "blocks are values of their column"),
        ("capitals", None, (), InvalidInput, "columns 'a', 'A'; in a private file names differ by"),
        ("lines", None, (), InvalidInput, "and have no line ends, so name other columns"),
    ],
)
def test_what_the_server_refuses(
    server: str, table: str, columns: Any, blocks: Any, error: type[Exception], message: str
) -> None:
    """One sentence, without the server's own."""
    with pytest.raises(error, match=message) as refused:
        with copy_postgres(server, table, columns, by="day" if blocks else None, blocks=blocks):
            pass
    assert refused.value.__context__ is None and "postgres:postgres" not in str(refused.value)


def test_rows_that_a_policy_hides_are_not_left_out(server: str) -> None:
    """A login that sees a part of the table loads nothing, instead of that part."""
    with psycopg.connect(server) as owner:
        owner.execute("DROP ROLE IF EXISTS halfway")
        owner.execute("CREATE ROLE halfway LOGIN PASSWORD 'halfway'")
        owner.execute("GRANT SELECT ON visits TO halfway")
        owner.execute("ALTER TABLE visits ENABLE ROW LEVEL SECURITY")
        owner.execute("CREATE POLICY half ON visits FOR SELECT TO halfway USING (ok)")
    login = re.sub("//.*@", "//halfway:halfway@", server)
    try:
        with pytest.raises(TableUnreadable, match="may read the table, all rows of it"):
            with copy_postgres(login, "visits"):
                pass
    finally:
        with psycopg.connect(server) as owner:
            owner.execute("DROP OWNED BY halfway")
            owner.execute("DROP ROLE halfway")


@pytest.mark.parametrize(
    "login",
    [
        "me:secret@",
        "me:sec@secret@",
        "me:sec/secret@",
        "me:4/secret@",
        "me:sec?secret@",
        "m/e:secret@",
    ],
)
def test_a_server_out_of_reach_is_tried_again(login: str) -> None:
    """And no password is said, nor a part of one that holds what a URL should escape."""
    with pytest.raises(TableBusy, match="cannot be reached") as refused:
        with copy_postgres(f"postgresql://{login}127.0.0.1:1/db?sslpassword=secret", "visits"):
            pass
    assert "sec" not in str(refused.value) and "127.0.0.1:1/db" in str(refused.value)


def test_a_server_that_is_lost_in_the_middle(server: str, tmp_path: Path) -> None:
    """Nothing half copied is loaded, and a retry may succeed."""
    with psycopg.connect(server) as connection:
        connection.execute(
            "CREATE TABLE many AS SELECT i, repeat('x', 200) AS t FROM generate_series(1, 2000000) i"
        )
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND pid <> pg_backend_pid()"
    done = threading.Event()

    def kill_copy() -> None:
        with psycopg.connect(server, autocommit=True) as connection:
            while not done.is_set():
                connection.execute(kill)

    killer = threading.Thread(target=kill_copy)
    killer.start()
    try:
        with pytest.raises(TableBusy, match="was lost meanwhile"):
            with copy_postgres(server, "many") as source:
                load_rows(source, tmp_path / "many.duckdb", "many")
    finally:
        done.set()
        killer.join()
    assert not (tmp_path / "many.duckdb").exists()


EQUAL = """
CREATE COLLATION ci (provider = libc, locale = 'C');
CREATE COLLATION sorted (provider = libc, locale = 'POSIX');
-- Only ICU makes these, and this build has none: the catalogue says the same.
UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'ci';
CREATE DOMAIN code AS char(10);
CREATE DOMAIN name_ci AS text COLLATE ci;
CREATE TABLE people (
  u text COLLATE ci, v varchar(9) COLLATE sorted, w name_ci, segment char(10), padded code, n numeric, x real, plain text
);
INSERT INTO people
  SELECT CASE WHEN i % 2 = 0 THEN 'P' ELSE 'p' END || i / 2, 'v', 'w', 'BUILDING', 'a b', 1.0, 1, ' c ' FROM generate_series(0, 19) i;
CREATE VIEW folded AS SELECT lower(u COLLATE "C") AS u, segment FROM people;
"""


@pytest.fixture
def people(postgres: Callable[[], str]) -> str:
    """A database whose texts are equal by rules of its own."""
    url = postgres().replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        connection.execute(EQUAL)
    return url


def test_padded_texts_arrive_as_the_server_compares_them(people: str, tmp_path: Path) -> None:
    """Without the blanks of char(n) and of its domains; those of other texts are their own."""
    database = tmp_path / "people.duckdb"
    columns = dict.fromkeys(("segment", "padded", "plain", "v"), "VARCHAR")
    with copy_postgres(people, "people", columns, by="segment", blocks=["BUILDING"]) as source:
        load_rows(source, database, "people", by="segment", blocks=["BUILDING"])
    query = "SELECT DISTINCT segment, padded, plain, v FROM people"
    assert query_file(database, query) == [("BUILDING", "a b", " c ", "v")]
    assert query_file(database, "SELECT count(*) FROM people WHERE segment = 'BUILDING'") == [(20,)]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("u", "has a nondeterministic collation"),
        ("w", "has a nondeterministic collation"),
        ("n", "is of the type numeric"),
        ("x", "is of the type real"),
    ],
)
def test_texts_that_the_server_takes_for_equal_are_refused(
    people: str, column: str, reason: str
) -> None:
    """Under the server's equality one person may have several texts; they are not loaded by default."""
    with (
        pytest.raises(InvalidInput, match=f"'{column}' {reason}, which takes different texts"),
        copy_postgres(people, "people", {column: "VARCHAR"}),
    ):
        pass
    with copy_postgres(people, "people") as source:
        assert source.columns.get(column) != "VARCHAR"
        assert {"u", "w"} <= set(source.ignored_columns)


def test_a_view_with_one_text_for_each_person_is_loaded(people: str, tmp_path: Path) -> None:
    """As the message advises: ten people of twenty texts, which a grant tells apart byte for byte."""
    database = tmp_path / "people.duckdb"
    with copy_postgres(people, "folded") as source:
        load_rows(source, database, "people")
    assert query_file(database, "SELECT count(DISTINCT u) FROM people") == [(10,)]
