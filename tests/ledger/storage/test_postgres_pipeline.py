"""Statements that go to PostgreSQL together: their rows, their errors, and an interruption."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from dpflow.ledger.storage.postgres_pipeline import run_pipeline

ADD = "SELECT $1::bigint + 1, $2::text"


@pytest.fixture
def connection(postgres) -> Iterator[psycopg.Connection[Any]]:
    url = postgres().replace("+psycopg", "")
    with contextlib.closing(
        psycopg.connect(url, autocommit=True, prepare_threshold=None)
    ) as connection:
        connection.execute("CREATE TABLE noted (number bigint PRIMARY KEY)")
        yield connection


def run(connection: psycopg.Connection[Any], *statements: tuple[Any, ...]) -> list[list[Any]]:
    return [
        load(tuple) for load in run_pipeline(connection, [(sql, rest) for sql, *rest in statements])
    ]


def test_each_statement_has_its_rows(connection):
    """In order, and with their types; a statement that runs twice is prepared once."""
    note = ("INSERT INTO noted VALUES ($1)", 7)
    both = [(ADD, 1, "é"), note, (ADD, 2**62, None), ("SELECT number FROM noted WHERE false",)]
    assert run(connection, *both) == [[(2, "é")], [], [(2**62 + 1, None)], []]
    run(connection, (ADD, 1, ""), (ADD, 1, ""))
    assert run(connection, ("SELECT count(*) FROM pg_prepared_statements",)) == [[(4,)]]


def test_programs_behind_a_pool_have_other_names(connection):
    """Two that a pool gives one connection, one after the other, and neither runs what the other prepared."""
    spec = importlib.util.find_spec("dpflow.ledger.storage.postgres_pipeline")
    for number in range(2):
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        (load,) = program.run_pipeline(connection, [(ADD, [number, ""])])
        assert load(tuple) == [(number + 1, "")]


def test_lists_arrive_as_they_are(connection):
    """Texts of any length and alphabet, the least and the greatest number, and what is missing."""
    both = "SELECT * FROM unnest($1::text[], $2::bigint[])"
    texts, numbers = ["", "é\n", None, '{"a, \\b"}', "NULL", "x" * 10**5], [0, 2**63 - 1, -(2**63)]
    assert run(connection, (both, texts, [*numbers, 1, 2, 3])) == [
        list(zip(texts, [*numbers, 1, 2, 3], strict=True))
    ]
    note = ("INSERT INTO noted VALUES ($1)", 7)
    for wrong, error in (
        ([["cut\0off"], [1]], psycopg.DataError),
        ([["\ud800"], [1]], UnicodeError),
        ([["a"], [2**63]], OverflowError),
        ([["a"], ["b"]], psycopg.ProgrammingError),
    ):
        with pytest.raises(error):
            run(connection, note, (both, *wrong))
    assert run(connection, note) == [[]]  # none of the others ran


def test_after_an_error_nothing_ran_and_all_goes_on(connection):
    """The first error is raised. What was prepared beside it is prepared under another name."""
    note, later = ("INSERT INTO noted VALUES ($1)", 7), ("SELECT count(*) FROM noted",)
    for _ in range(2):
        with pytest.raises(psycopg.errors.UniqueViolation):
            run(connection, note, note, later)
        assert run(connection, later) == [[(0,)]]
    with pytest.raises(psycopg.errors.UndefinedTable):
        run(connection, note, ("SELECT 1 FROM nowhere",))
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        run(connection, (ADD, 2**63, ""))
    with pytest.raises(psycopg.DataError):
        run(connection, note, (ADD, 1, "cut\0off"))
    assert run(connection, later, note) == [[(0,)], []]


def test_an_interruption_ends_the_statement(connection):
    """Ctrl-C while the server works: it is told, and the connection can be used."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            run(
                connection,
                (ADD, 1, ""),
                ("SELECT pg_sleep(60)",),
                ("INSERT INTO noted VALUES (1)",),
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert run(connection, ("SELECT count(*) FROM noted",)) == [[(0,)]]


def test_a_lost_connection_says_so(connection):
    """Before anything is sent, and while it runs."""
    end = "SELECT pg_terminate_backend(pg_backend_pid())"
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError):
            run(connection, (ADD, 1, ""), (end,), (ADD, 1, ""))
