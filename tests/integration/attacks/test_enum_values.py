"""Values of an ENUM, which may be made from rows (``CREATE TYPE ... AS ENUM (SELECT DISTINCT ...)``), are in no message: its full
type lists them.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpflow
from dpflow import Ledger
from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, InvalidInput
from dpflow.tables import describe_typed_columns
from dpflow.tables.access import sql
from dpflow.tables.loading.csv_files import CsvSource
from dpflow.tables.loading.load_rows import find_columns, load_rows

CANARY = "Diagnosis-K4PP4"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    file = tmp_path / "t.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            f"CREATE TABLE raw AS SELECT 'p' || i AS u, CASE WHEN i = 7 THEN '{CANARY}, it''s (a)' ELSE 'b' END AS m FROM range(50) r(i); "
            "CREATE TYPE mood AS ENUM (SELECT DISTINCT m FROM raw); "
            "CREATE TABLE t AS SELECT u, m::mood AS m, [m::mood] AS ml, {a: m::mood} AS ms FROM raw; DROP TABLE raw; "
            "CREATE TABLE dim AS SELECT 'b' AS k, 'z' AS l"
        )
    return Table.model_validate(
        {
            "name": "t",
            "database": file,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"m": {"public_keys": ["b"]}, "d.l": {"public_keys": ["z"]}},
        }
    )


@pytest.mark.parametrize("column", ["m", "ml", "ms"])
def test_a_join_by_another_type_tells_no_values(table: Table, tmp_path: Path, column: str) -> None:
    """It is refused before a charge, to whoever asks."""
    join = {"relation": "dim", "name": "d", "kind": "dimension", "on": {column: "k"}}
    joined = Table.model_validate({**table.model_dump(exclude_unset=True), "joins": [join]})
    ledger = Ledger(tmp_path / "l.sqlite", create=True)
    ledger.grant("t", "1", "0", table=joined, principal="owner")
    query = "SELECT count(*) AS n FROM t WHERE d.l = 'z'"
    with pytest.raises(DpflowError, match="same-type|cannot") as refused:
        dpflow.sql(query, tables=[joined], ledger=ledger, scope="t", epsilon="0.1")
    assert CANARY not in str(refused.value) and "ENUM" in str(refused.value)


def test_a_tables_description_tells_no_values(table: Table) -> None:
    """An analyst sees it."""
    own = {name: column for name, column in table.columns.items() if name == "m"}
    described = describe_typed_columns(table.model_copy(update={"columns": own}))
    assert {row["column"]: row["type"] for row in described}["m"] == "ENUM"
    assert CANARY not in str(described)


@pytest.mark.parametrize("columns", ["declared", "stored"])
def test_a_load_tells_no_values(table: Table, tmp_path: Path, columns: str) -> None:
    """Its messages are in a task's log."""
    file = tmp_path / "x.csv"
    file.write_text("u,m\np1,b\n")
    types = {"u": "VARCHAR", "m": "VARCHAR"}
    with pytest.raises(InvalidInput) as refused:
        if columns == "stored":
            types = find_columns(table.database, "t")
        load_rows(CsvSource([file], types), table.database, "t", by="u")
    assert CANARY not in str(refused.value) and "ENUM" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ENUM('a', 'it''s, ) (')[]", "ENUM[]"),
        ("STRUCT(a ENUM('x'), b INTEGER)", "STRUCT(a ENUM, b INTEGER)"),
        ("MAP(ENUM('a','b'), ENUM('c'))", "MAP(ENUM, ENUM)"),
        ("DECIMAL(18,3)", "DECIMAL(18,3)"),
    ],
)
def test_types_are_told_without_values(kind: str, said: str) -> None:
    assert sql.describe_type(kind) == said
