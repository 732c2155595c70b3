"""Attacks on the tables layer: errors that quote rows, files read through names, code hidden in the
database file.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.errors import DpflowError, TableUnreadable
from dpflow.tables.access import isolated_database
from dpflow.tables.private import PrivateTable

SECRET = "hunter2-secret-value"
COUNT = GroupedSums(None, None, 1, 1, (("v", 0),))


def private(path: Path, statements: list[str], **changes: Any) -> PrivateTable:
    """A table ``data`` made by statements."""
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    declared = {
        "name": "data",
        "database": path,
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {"v": {"lower": 0, "upper": 9}, "k": {}},
    }
    return PrivateTable(Table.model_validate(declared | changes))


def chain(error: BaseException) -> str:
    """Everything an exception shows or leads to."""
    text, seen = "", set()
    stack: list[BaseException | None] = [error]
    while stack:
        link = stack.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            text += repr(link) + str(link.args) + "".join(traceback.format_exception(link))
            stack += [link.__cause__, link.__context__]
    return text


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(s AS INTEGER)",
        "error(s)::INTEGER",
        "CASE WHEN s = 'x' THEN 1 ELSE CAST(s AS DATE) - DATE '2000-01-01' END",
    ],
)
def test_an_error_on_a_chosen_row_quotes_nothing(tmp_path: Path, expression: str) -> None:
    """A view that fails on a secret row gives a fixed sentence; the secret is nowhere in the
    exception chain.
    """
    table = private(
        tmp_path / "x.duckdb",
        [
            f"CREATE TABLE rows_ AS SELECT 1 AS u, '{SECRET}' AS s",
            f"CREATE VIEW data AS SELECT u, {expression} AS v, s AS k FROM rows_",
        ],
        trusted_sql=["data"],
    )
    with pytest.raises(
        DpflowError, match=r"table 'data' cannot be read \(\w+Exception\)"
    ) as caught:
        table.answer(COUNT, ())
    assert SECRET not in chain(caught.value)


def test_reprs_hold_no_row(tmp_path: Path) -> None:
    """Tables and answers can be logged: their repr and str show no value."""
    table = private(
        tmp_path / "x.duckdb", [f"CREATE TABLE data AS SELECT 1 AS u, 7 AS v, '{SECRET}' AS k"]
    )
    answer = table.answer(GroupedSums("k", None, 1, 1, (("v", 0),)), ())
    assert answer.keys == (SECRET,)
    assert SECRET not in repr(answer) + str(answer) + repr(table)
    assert "7" not in repr(table.answer(SortedValues("v", 1), ()))


@pytest.mark.parametrize(
    "relation",
    [
        "*.parquet",
        "rows.csv",
        "/etc/passwd",
        "read_csv('/etc/passwd')",
        "data; DROP TABLE data",
        'data" JOIN "data',
        "duckdb_settings()",
        "main.data.x",
        "information_schema.tables",
    ],
)
def test_only_relations_of_the_file_are_read(tmp_path: Path, relation: str) -> None:
    """A glob, a file, a function or SQL in place of a relation is a name nobody has."""
    (tmp_path / "rows.csv").write_text("u,v\n1,2\n")
    table = private(
        tmp_path / "x.duckdb", ["CREATE TABLE data AS SELECT 1 AS u, 2 AS v"], relation=relation
    )
    with pytest.raises(TableUnreadable, match="no relation in the file of table 'data' called"):
        table.check_request(COUNT)


def test_a_view_cannot_read_files(tmp_path: Path) -> None:
    """A view over a file on disk is refused when it is bound: the sandbox has no file system."""
    (tmp_path / "rows.csv").write_text(f"u,v\n1,{SECRET}\n")
    statements = [f"CREATE VIEW data AS SELECT * FROM read_csv('{tmp_path / 'rows.csv'}')"]
    with pytest.raises(TableUnreadable, match="cannot be read") as caught:
        private(tmp_path / "x.duckdb", statements).check_request(COUNT)
    assert SECRET not in chain(caught.value)


def test_macros_in_the_file_do_not_replace_functions(tmp_path: Path) -> None:
    """A file that defines its own random() or least() does not change the cut or the clamp."""
    table = private(
        tmp_path / "x.duckdb",
        [
            "CREATE TABLE data AS SELECT 1 AS u, 99 AS v FROM range(100)",
            "CREATE MACRO least(a, b) AS a",
            "CREATE MACRO random() AS 0",
            "CREATE MACRO arg_min(a, b, c) AS [a]",
        ],
    )
    assert table.answer(COUNT, ()).sums["v"].tolist() == [9]


def test_the_session_is_locked_down(tmp_path: Path) -> None:
    """Inside the sandbox nothing can be written, attached, installed, read from disk or
    reconfigured.
    """
    table = private(tmp_path / "x.duckdb", ["CREATE TABLE data AS SELECT 1 AS u, 2 AS v"])
    attempts = [
        "INSERT INTO private.main.data VALUES (3, 4)",
        "DROP TABLE private.main.data",
        f"COPY private.main.data TO '{tmp_path / 'out.csv'}'",
        f"ATTACH '{tmp_path / 'other.duckdb'}'",
        "SELECT * FROM read_text('/etc/hostname')",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
        "INSTALL httpfs",
        "LOAD httpfs",
        f"EXPORT DATABASE '{tmp_path / 'dump'}'",
    ]
    with isolated_database.open_file(table.declaration.database, "table 'data'") as connection:
        for attempt in attempts:
            with pytest.raises(TableUnreadable, match="own text is withheld"):
                connection.execute(attempt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.duckdb"]


def test_a_path_is_no_sql(tmp_path: Path) -> None:
    """A database path with quotes and semicolons is a path."""
    path = tmp_path / "x'; DROP --.duckdb"
    assert private(path, ["CREATE TABLE data AS SELECT 1 AS u, 2 AS v"]).answer(
        COUNT, ()
    ).rows.tolist() == [1]
