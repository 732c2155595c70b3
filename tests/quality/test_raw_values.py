"""Every row of every file gives a contract an outcome: what SQL cannot write, in every role."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest
from raw_values import TYPES, RawType, mark_near

from dpflow.core.contract.declaration import Table
from dpflow.quality import check
from dpflow.quality.expectations import judged_columns, text_name
from dpflow.tables.access.contract_rows import ROWS_QUERY, open_rows

ROWS, DAY = 40, "2013-01-01"
KEYS = ("a", "b", "1", "1970-01-02", "00:00:01", "another key")
#: What a declaration may say of a column of raw values, beside its use as unit and block.
USES: dict[str, Any] = {
    "unread": {},
    "bounded": {"lower": -1, "upper": 10},
    "key": {"public_keys": list(KEYS)},
    "both": {"lower": 0, "upper": 1, "public_keys": ["0", "1"]},
}
ROLES = ("unit", "block", *USES)


def fill(file: Path, raw: RawType, values: Sequence[Any]) -> Path:
    """``ROWS`` rows of as many units, each with the next of these values, on one day."""
    file.unlink(missing_ok=True)
    with duckdb.connect(str(file)) as connection:
        raw.load(connection, list(itertools.islice(itertools.cycle(values), ROWS)))
        columns = f"'N' || i AS u, DATE '{DAY}' AS day, 0.0 AS v, 'AA' AS k, x"
        connection.execute(f"CREATE TABLE data AS SELECT {columns} FROM source")
        connection.execute("DROP TABLE source")
    return file


def declare(file: Path, role: str) -> Table:
    """The raw column ``x`` in this role, among columns that keep any contract."""
    columns: dict[str, Any] = {"v": {"lower": -60, "upper": 180}, "k": {"public_keys": ["AA"]}}
    if role in USES:
        columns["x"] = USES[role]
    return Table.model_validate(
        {
            "name": "data",
            "database": file,
            "privacy_unit": {"column": "x" if role == "unit" else "u"},
            "block": "x" if role == "block" else "day",
            "contribution_bounds": {"rows": 5},
            "columns": columns,
        }
    )


def name_block(raw: RawType) -> str:
    """A block as DuckDB writes it in the raw column's type, or any text where it has none."""
    text = raw.literal.strip("'") or "a"
    with duckdb.connect() as connection, suppress(duckdb.Error):
        connection.execute("SET TimeZone = 'UTC'")
        written = f"SELECT CAST(TRY_CAST(unnest([?, '0']) AS {raw.name}) AS VARCHAR)"
        found = [block for (block,) in connection.execute(written, [text]).fetchall()]
        return next(filter(None, found), text)
    return text


def judged_rows(file: Path, role: str, blocks: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """What Great Expectations sees of a file."""
    table = declare(file, role)
    columns = {name: text_name(name) for name in judged_columns(table)}
    with open_rows(table, blocks, columns, 1) as connect:
        cursor = connect().cursor()
        cursor.execute(ROWS_QUERY)
        return list(cursor.fetchall())


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("raw", mark_near(TYPES))
def test_the_rows_that_are_judged_hold_numbers_and_declared_keys(
    raw: RawType, every: int, tmp_path: Path
) -> None:
    """Whatever raw values a file brings: no error, and nothing of them but numbers. Types take turns in roles."""
    file = fill(tmp_path / "raw.duckdb", raw, raw.values)
    for role in ROLES[TYPES.index(raw) % every :: every]:
        rows = judged_rows(file, role)
        assert len(rows) in (0, ROWS)  # none where the type cannot be a unit
        texts = {value for row in rows for value in row if isinstance(value, str)}
        assert texts <= {"AA", "0", *KEYS, "another key?"}
        assert {type(value) for row in rows for value in row} <= {float, int, str, type(None)}
    assert len(judged_rows(file, "block", [name_block(raw)])) <= ROWS


def outcomes(raw: RawType, values: Sequence[Any], file: Path) -> dict[str, bool]:
    """The contract's bit in each role, of the whole table and of one block."""
    fill(file, raw, values)
    answers = {}
    for role in ROLES:
        block = name_block(raw) if role == "block" else DAY
        answers[role] = check(declare(file, role))
        answers[f"{role}, one block"] = check(declare(file, role), [block])
    return answers


def listen(caplog: pytest.LogCaptureFixture) -> None:
    """Hear every library at its loudest."""
    for name in ("", "sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "great_expectations"):
        caplog.set_level(logging.DEBUG, name)


def assert_silence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """No word on any stream, and no record but ours."""
    said = capfd.readouterr()
    assert said.out == said.err == ""
    assert not [record for record in caplog.records if not record.name.startswith("dpflow")]


@pytest.mark.parametrize(
    "raw", [raw for raw in TYPES if raw.name == "TIMESTAMP_S"], ids=lambda raw: raw.name
)
def test_extremes_alone_have_an_outcome(
    raw: RawType,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A table of nothing but raw values: true or false, and nothing said."""
    listen(caplog)
    answers = outcomes(raw, raw.raw, tmp_path / "raw.duckdb")
    assert {type(answer) for answer in answers.values()} == {bool}
    assert_silence(caplog, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("raw", TYPES, ids=lambda raw: raw.name)
def test_one_raw_row_changes_no_outcome(
    raw: RawType,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One row among forty is within what a contract tolerates, whatever it holds."""
    listen(caplog)
    file = tmp_path / "raw.duckdb"
    plain = outcomes(raw, raw.plain, file)
    several = [raw.plain[i % len(raw.plain)] for i in range(ROWS - 1)]
    for value in (*raw.raw, None):
        assert outcomes(raw, [*several, value], file) == plain, value
    assert {type(bit) for bit in outcomes(raw, raw.raw, file).values()} == {bool}
    assert_silence(caplog, capfd)
