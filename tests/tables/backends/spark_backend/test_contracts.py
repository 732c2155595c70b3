"""A data contract over a table on Spark finds what it finds over a file with the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_servers import declare_source

from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused, TableBusy
from dpflow.quality import check, parse_contract, run_contract
from dpflow.tables.backends.judged_rows import find_judge
from dpflow.tables.backends.spark_backend import spark_sources
from dpflow.tables.backends.spark_backend.column_verdicts import MOST_ROWS, spread_codes

FIELDS: dict[str, Any] = {
    "name": "visits",
    "privacy_unit": {"column": "who"},
    "block": "day",
    "contribution_bounds": {"rows": 3},
    "columns": {
        "delay": {"lower": -60, "upper": 180},
        "town": {"public_keys": ["Oslo", "it's"]},
    },
}
DAY = ("2013-01-01",)


def visits(
    who: str = "'N' || i",
    delay: str = "CAST(i AS DOUBLE)",
    town: str = "'Oslo'",
    day: str = "DATE '2013-01-01'",
    count: int = 20,
) -> str:
    """Rows, each column an expression over i."""
    return f"SELECT {who} AS who, {delay} AS delay, {town} AS town, {day} AS day FROM range({count}) t(i)"


@pytest.fixture
def make_both(tmp_path: Path, spark_server: str) -> Callable[[str], tuple[Table, Table]]:
    """One table of a query's rows in a file, and one on Spark."""

    def make(rows: str) -> tuple[Table, Table]:
        file, folder = tmp_path / "visits.duckdb", tmp_path / "visits"
        folder.mkdir()
        with duckdb.connect(str(file)) as connection:
            connection.execute(f"CREATE TABLE visits AS {rows}")
            connection.execute(f"COPY visits TO '{folder}/part.parquet' (FORMAT parquet)")
        source = declare_source(spark_server, folder)
        return (
            Table.model_validate(FIELDS | {"database": file}),
            Table.model_validate(FIELDS | {"source": source}),
        )

    return make


VERDICTS = [
    (visits(delay="1000.0 * i"), False),
    (visits(delay="CASE WHEN i < 10 THEN CAST('inf' AS DOUBLE) ELSE 180 END"), True),
    (visits(delay="CASE WHEN i < 11 THEN CAST('inf' AS DOUBLE) ELSE 180 END"), False),
    (visits(delay="DATE '1970-01-01' + CAST(i * 40 AS INTEGER)"), False),
    (visits(town="CASE WHEN i < 2 THEN 'ZZ' ELSE 'it''s' END"), True),
    (visits(town="CASE WHEN i < 3 THEN 'ZZ' ELSE 'it''s' END"), False),
    (visits(who="CASE WHEN i > 0 THEN NULL ELSE 'N' END"), True),
    (visits(day="DATE '2013-01-02'", delay="1e6"), True),
]
#: As these, and on files in tests/quality/test_contract.py.
MORE_VERDICTS = [
    (visits(), True),
    (visits(delay="CAST('nan' AS DOUBLE)", town="NULL::VARCHAR"), True),
    (visits(delay="CAST(i * 7 AS DECIMAL(9, 2))"), True),
    (visits(delay="'late'"), False),
    (visits(who="NULL::VARCHAR"), False),
    (visits(who="'N1'", delay="1e6", count=50), True),
    (visits().replace("AS who", "AS whom"), False),
    (visits().replace("AS day", "AS date"), False),
]


@pytest.mark.parametrize(
    ("rows", "kept"),
    VERDICTS + [pytest.param(*case, marks=pytest.mark.slow) for case in MORE_VERDICTS],
)
def test_the_verdict_is_that_of_a_file(
    rows: str, kept: bool, make_both: Callable[[str], tuple[Table, Table]]
) -> None:
    """Good rows, odd ones, and those of a broken pipeline."""
    for table in make_both(rows):
        assert check(table, DAY) is kept, table.backend


@pytest.mark.parametrize(
    ("rows", "usable"),
    [(visits(delay="'late'"), ["who", "town"]), (visits(who="i::DOUBLE"), ["delay", "town"])],
)
def test_a_column_that_no_release_can_use_is_named(
    make_both: Callable[[str], tuple[Table, Table]], rows: str, usable: list[str]
) -> None:
    """By the catalogue alone, as a public contract asks."""
    for table in make_both(rows):
        asked = ["who", "delay", "town", "nobody"]
        assert find_judge(table).usable_columns(table, asked) == usable, table.backend


def test_columns_that_differ_in_case_alone_are_refused(
    make_both: Callable[[str], tuple[Table, Table]],
) -> None:
    """Which of them is judged would follow their order."""
    _, table = make_both(visits())
    assert table.source is not None
    columns = {"who": ["N1"], "delay": [1.0], "Delay": [9e9], "town": ["Oslo"], "day": ["x"]}
    pq.write_table(pa.table(columns), f"{table.source.table}/part.parquet")
    with pytest.raises(PlanRefused, match="differ in case alone"):
        check(table, ())


def test_files_that_change_meanwhile_decide_nothing(
    make_both: Callable[[str], tuple[Table, Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry reads one state."""
    _, table = make_both(visits())
    listings = iter([b"before", b"after"])
    monkeypatch.setattr(spark_sources._Finder, "_digest_listing", lambda *_: next(listings))
    with pytest.raises(TableBusy, match="changed while they were read"):
        check(table, DAY)


def test_large_tables_are_judged_in_the_same_shares() -> None:
    """What is rare remains, and a small table is itself."""
    assert spread_codes(2, 3, 7).tolist() == [1, 1, 2, 2, 2, 0, 0]
    codes = spread_codes(1, 10**9 // 2, 10**9)
    assert len(codes) == MOST_ROWS
    assert (codes == 1).sum() == 1 and (codes == 2).sum() == MOST_ROWS // 2
    assert (spread_codes(10**9, 0, 10**9) == 1).all() and len(spread_codes(0, 0, 0)) == 0


def test_an_outcome_of_spark_names_no_value(
    make_both: Callable[[str], tuple[Table, Table]], tmp_path: Path
) -> None:
    """It is one bit, in the words of a file's."""
    import yaml

    outcomes = []
    for number, table in enumerate(make_both(visits(town="'secret town'"))):
        place = (
            {"source": table.source.model_dump()}
            if table.source
            else {"database": str(table.database)}
        )
        file = tmp_path / f"{number}.yml"
        file.write_text(yaml.safe_dump(FIELDS | place))
        outcome = run_contract(parse_contract({"table": str(file)}, tmp_path), DAY).to_json()
        assert not outcome["passed"] and "secret town" not in str(outcome)
        outcomes.append({name: outcome[name] for name in ("table", "mode", "checks")})
    assert outcomes[0] == outcomes[1]


def test_a_column_that_may_not_be_read_refuses_no_other(
    spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody verified the times, so no release reads them. A contract about the catalogue says so of this
    column; one that judges rows would read it, and is refused.
    """
    monkeypatch.setattr(spark_sources, "find_verified", lambda *_: frozenset())
    folder = tmp_path / "visits"
    folder.mkdir()
    with duckdb.connect() as connection:
        rows = visits(day="TIMESTAMP '2013-01-01 10:00:00' + INTERVAL (i) MINUTE")
        connection.execute(f"COPY ({rows}) TO '{folder}/part.parquet' (FORMAT parquet)")
    times = {"lower": "2013-01-01", "upper": "2014-01-01"}
    columns = FIELDS["columns"] | {"day": times}
    fields = FIELDS | {"source": declare_source(spark_server, folder), "columns": columns}
    del fields["block"]
    table = Table.model_validate(fields)

    assert set(find_judge(table).usable_columns(table, ["who", "town", "day"])) == {"who", "town"}
    with pytest.raises(PlanRefused, match="'day'"):
        check(table)
