"""A question opens its file once: what was checked is what is read, and who writes the file is kept away no longer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pytest
from duckdb_files import duckdb_file
from sql_world import EXACT, World

from dpflow.analyst_sql.answer import query_plan
from dpflow.registry import Registry
from dpflow.tables.access import isolated_database, local_files
from dpflow.tables.access.kept_sources import keep_sources_open, open_source

OPTIONS = {"epsilon": EXACT, "delta": "1e-6", "scope": "visits"}


def test_a_question_opens_its_file_once(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the types of its keys, for the check of its plan, and for all of its releases; a stored answer never."""
    opened, open_file = [], isolated_database.open_file

    def count(database: Path, what: str) -> Any:
        opened.append(database)
        return open_file(database, what)

    monkeypatch.setattr(isolated_database, "open_file", count)
    text = (
        "SELECT city, COUNT(*), MEDIAN(age), VAR_POP(cost) FROM visits WHERE age > 1 GROUP BY city"
    )
    assert len(fresh.ask(text, epsilon=8).origins) > 1
    assert len(opened) == 1
    assert fresh.ask(text, epsilon=8).free and len(opened) == 1


def test_a_file_that_was_exchanged_is_read_as_it_is(fresh: World) -> None:
    """Not as it was planned: the ledger's commitment is to the rows that were read."""
    other = fresh.folder / "other.duckdb"
    with duckdb_file(other) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS person, 'Oslo' AS city, 'c' AS clinic, 1 AS age, 1.0::DOUBLE AS cost, "
            "DATE '2020-01-01' AS day FROM range(70) t(i)"
        )
    with keep_sources_open():
        plan = query_plan.plan_sql(
            "SELECT COUNT(*) FROM visits", OPTIONS, [fresh.table], ledger=fresh.ledger
        )
        os.replace(other, fresh.folder / "visits.duckdb")
        answer = query_plan.answer_sql(plan, fresh.ledger, Registry.load())
    assert answer.rows == [(70,)]
    record = fresh.ledger.release(answer.origins[0].release_id)
    identity = local_files.file_identity(fresh.folder / "visits.duckdb", "visits") + b"/visits"
    assert record.snapshot == fresh.ledger.commitment(identity, "snapshot")


def test_the_file_is_closed_before_the_answer_is_computed(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed from released rows may take its time."""
    compute = query_plan.compute_answer

    def write_meanwhile(*arguments: Any, **options: Any) -> Any:
        with duckdb.connect(str(fresh.folder / "visits.duckdb")) as connection:
            connection.execute("CREATE TABLE written AS SELECT 1 AS one")
        return compute(*arguments, **options)

    monkeypatch.setattr(query_plan, "compute_answer", write_meanwhile)
    assert len(fresh.ask("SELECT COUNT(*) FROM visits", epsilon=1).rows) == 1


@pytest.mark.own_session
def test_sessions_of_one_file_share_nothing_but_the_file(fresh: World) -> None:
    """Temporary tables are of one session; both are locked, in UTC, and reach nothing else."""
    database = fresh.folder / "visits.duckdb"
    with keep_sources_open():
        with open_source(database, "visits") as first:
            first.execute("CREATE TEMP TABLE kept AS SELECT 1 AS one")
            with open_source(database, "visits") as second:
                assert second.fetch_rows("SELECT count(*) FROM private.visits") == [(8000,)]
                assert second.fetch_rows("SELECT current_setting('TimeZone')") == [("UTC",)]
                for query in (
                    "FROM kept",
                    "SET threads = 1",
                    f"FROM read_csv('{database.with_name('a.csv')}')",
                    f"ATTACH '{database.with_name('other.duckdb')}' AS again",
                    "CREATE TABLE private.made AS SELECT 1 AS one",
                ):
                    with pytest.raises(Exception, match="cannot be read"):
                        second.execute(query)
            assert first.fetch_rows("FROM kept") == [(1,)]
