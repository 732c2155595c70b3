"""Random conditions over extreme rows: which rows fulfil one is the same on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duckdb_files import duckdb_file
from random_conditions import NUMBERS, TRUTHS, RandomConditions

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import PlanRefused
from dpflow.tables.private import PrivateTable

#: Each row has a power of 2, so that a sum tells the rows. Times lie within the calendar, of which all engines have
#: every value.
ROWS = """
SELECT row_number() OVER () AS u, CAST(2 ** (row_number() OVER () - 1) AS BIGINT) AS w, * FROM (VALUES
 (1::BIGINT, 127::TINYINT, 9223372036854775807::BIGINT, 1.50::DECIMAL(38,2), 'inf'::DOUBLE, 'Oslo', 'sad', true,
  DATE '9999-12-31', TIMESTAMP '9999-12-31 23:59:59.999999', TIMESTAMPTZ '2020-01-01 00:00:00+00'),
 (-9223372036854775808, 0, 0, -99999999999.99, 'nan', 'a%_', 'ok', false, DATE '0001-01-01', TIMESTAMP '0001-01-01', NULL),
 (9223372036854775807, 7, 7, 0, 1e308, repeat('é', 50), NULL, NULL, DATE '2020-02-29', TIMESTAMP '2020-02-29 12:00:00',
  TIMESTAMPTZ '1969-12-31 23:59:59+00'),
 (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (0, 1, 2, 3, -0.0, '', 'sad', true, DATE '1970-01-01', TIMESTAMP '1970-01-01', TIMESTAMPTZ '1970-01-01 00:00:00+00'),
 (5, -128, -9, 2.25, -7.5, 'Rome', 'ok', false, DATE '2021-12-31', TIMESTAMP '2021-12-31 23:59:59',
  TIMESTAMPTZ '2021-12-31 23:59:59+00'),
 (-49, 49, 400, -0.01, 0.1, 'rome', 'OK', true, DATE '1582-10-10', TIMESTAMP '1582-10-10 06:00:00',
  TIMESTAMPTZ '1582-10-10 06:00:00+00')
) t(i, big, huge, dec, f, txt, en, flag, day, ts, tz)
"""
COLUMNS = ("i", "big", "huge", "dec", "f", "txt", "en", "flag", "day", "ts", "tz")
WEIGHTED = GroupedSums(values=(("w", 0),))


def make_file(folder: Path, floats: bool) -> tuple[Path, Path]:
    """The rows as a DuckDB file, and as a folder with a Parquet file; without floats where a server reads none."""
    (folder / "data").mkdir()
    rows = ROWS if floats else f"SELECT * EXCLUDE (f) FROM ({ROWS})"
    with duckdb_file(folder / "data.duckdb") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"COPY ({rows}) TO '{folder}/data/part.parquet' (FORMAT parquet)")
        connection.execute(f"CREATE TABLE data AS FROM '{folder}/data/part.parquet'")
    return folder / "data.duckdb", folder / "data"


def declare(floats: bool, **place: Any) -> Table:
    """The rows as a table in a place."""
    names = [name for name in COLUMNS if floats or name != "f"]
    return Table.model_validate(
        {
            "name": "data",
            **place,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"w": {"lower": 0, "upper": 64}, **{name: {} for name in names}},
        }
    )


def compare(reference: Table, other: Table, count: int, *, seed: int = 5) -> int:
    """Ask both tables as many random conditions, and the negation of each; which rows pass must be the same.
    Returns how many the other one refused by its types.
    """
    floats, refused = "f" in reference.columns, 0
    numbers = [name for name in NUMBERS if floats or name != "f"]
    writer = RandomConditions(seed, numbers, [*TRUTHS, "sqrt(i) < 7", "ln(dec) > 0"])
    answered = 0
    while answered < count:
        text = writer.write_truth(3)
        for where in (text, f"NOT ({text})"):
            try:
                rows = find_rows(other, where)
            except PlanRefused:
                refused += 1
                break
            assert rows == find_rows(reference, where), where
        else:
            answered += 1
        assert refused < 5 * count + 20, "most conditions are refused"
    return refused


def find_rows(table: Table, where: str) -> int:
    """The sum of the weights of the rows that fulfil a condition."""
    private = PrivateTable(table, where)
    private.check_request(WEIGHTED)
    return int(private.answer(WEIGHTED, ()).sums["w"][0])
