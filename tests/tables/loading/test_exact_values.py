"""What a load takes is exactly what the source says, in its declared type; all else is rejected and told.

DuckDB's readers and casts are generous, so each line below that is rejected was once another value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from duckdb_files import query_file
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.errors import TableUnreadable
from dpflow.tables.loading.csv_files import CsvFormat, CsvSource
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.postgres import copy_postgres
from dpflow.tables.loading.report import LoadReport
from dpflow.tables.loading.sources import JsonSource, ObjectSource, ParquetSource

# By type: texts that are taken, as DuckDB writes their values, and texts that are not.
INTEGERS = {"7": "7", "-7": "-7", "+7": "7", "007": "7", "-0": "0", "7.0": "7", "7.": "7"}
NO_INTEGERS = [
    *("1.7", ".5", "1e3", "15e-1", "0x1F", "0b11", "1_000", "2147483648", "true", "１", "1,5"),
    *(" 7", "7 "),
]
ZONED = {
    "2026-01-01 10:00:00+00": "2026-01-01 10:00:00+00",
    "2026-01-01T10:00:00Z": "2026-01-01 10:00:00+00",
    "2026-01-01 10:00:00.5+05:30": "2026-01-01 04:30:00.5+00",
    "2026-01-01 10:00:00-0530": "2026-01-01 15:30:00+00",
    "1850-01-01 10:00:00+05:53:28": "1850-01-01 04:06:32+00",
    "2026-01-01 10:00:00": "2026-01-01 10:00:00+00",
    "2026-01-01": "2026-01-01 00:00:00+00",
    "infinity": "infinity",
}
TIMES = {
    "2026-01-01": "2026-01-01 00:00:00",
    "2026-01-01 10:00": "2026-01-01 10:00:00",
    "2026-01-01T10:00:00.25": "2026-01-01 10:00:00.25",
    "10000-01-01 10:00:00": "10000-01-01 10:00:00",
    "-infinity": "-infinity",
}
NO_TIMES = [
    *("2026-01-01 10:00:00 junk", "2026-01-01 10:00:00Z", "2026-01-01 10:00:00+02"),
    *("0044-03-15 10:00:00 BC", "2026-01-01 24:00:00", "2026-01-01 10:00:00 UTC"),
    *("2026-01-01 10:00:60", "epoch", " 2026-01-01 10:00:00", "2026-02-30 10:00:00"),
    *("2026-01-01 10:00:00 Europe/Oslo", "2026/01/01 10:00", "294248-01-01 00:00:00"),
]
PLAIN = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "DATE": (
        {"2026-01-01": "2026-01-01", "10000-01-01": "10000-01-01", "infinity": "infinity"},
        [
            *("2026-01-01 junk", "0044-03-15 BC", "2026-01-01T00:00:00", "2026-01-01 10:00:00"),
            *("2026-1-1", "2026/01/01", "2026 01 01", "26-01-01", "2026-01-01+05", "epoch"),
            *("2026-01-01 ", " 2026-01-01", "2026-02-30", "-0044-01-01", "20260101"),
        ],
    ),
    "TIMESTAMP": (
        TIMES | {"2026-01-01 10:00:00.123456000": "2026-01-01 10:00:00.123456"},
        [*NO_TIMES, "2026-01-01 10:00:00.1234564"],
    ),
    "TIMESTAMP_S": (
        {"2026-01-01 10:00:00.000": "2026-01-01 10:00:00"},
        [*NO_TIMES, "2026-01-01 10:00:00.6"],
    ),
    "TIMESTAMP_MS": (
        {"2026-01-01 10:00:00.678": "2026-01-01 10:00:00.678"},
        [*NO_TIMES, "2026-01-01 10:00:00.6789"],
    ),
    "TIMESTAMP_NS": (
        {"2026-01-01 10:00:00.123456789": "2026-01-01 10:00:00.123456789"},
        [*NO_TIMES, "2026-01-01 10:00:00.1234567899", "1500-01-01 00:00:00"],
    ),
    "TIMESTAMP WITH TIME ZONE": (
        ZONED,
        [
            *("2026-01-01 10:00:00+02 junk", "0044-03-15 10:00:00+00 BC", "2026-01-01 10:00:00+99"),
            *("2026-01-01 24:00:00+00", "2026-01-01 10:00:00.1234567+00"),
            *("2026-01-01 10:00:00 Europe/Oslo", "2026-01-01 10:00:00 +02"),
        ],
    ),
    "TIME": (
        {
            "10:00:00": "10:00:00",
            "10:00": "10:00:00",
            "24:00:00": "24:00:00",
            "10:00:00.5": "10:00:00.5",
        },
        [
            *("10:00:00 junk", "10:00:00+02", "10:00:00 PM", " 10:00:00", "1:2:3", "25:00:00"),
            *("10:00:00.1234567", "24:00:01", "10"),
        ],
    ),
    "INTEGER": (INTEGERS, NO_INTEGERS),
    "BIGINT": (
        INTEGERS | {"9223372036854775807.0": "9223372036854775807"},
        [*NO_INTEGERS[:7], "9223372036854775807.4", "9223372036854775808"],
    ),
    "UTINYINT": ({"255": "255"}, ["255.4", "256", "-1"]),
    "HUGEINT": ({"-170141183460469231731687303715884105728": "-" + str(2**127)}, ["1.7", "1e3"]),
    "DECIMAL(10,2)": (
        {
            "1.25": "1.25",
            "1.2500": "1.25",
            "+1.2": "1.20",
            ".5": "0.50",
            "-5.": "-5.00",
            "7": "7.00",
        },
        [
            *("1.255", "12345678.999", "99999999.999", "123456789.1", "1e2", "125e-3", "1_0.5"),
            *(" 1.25", "1,25", "NaN", "0x10", "."),
        ],
    ),
    "DECIMAL(38,0)": ({"1" * 38: "1" * 38}, ["1.5", "1" * 39]),
    "DOUBLE": (
        {
            "0.1": "0.1",
            "1e3": "1000.0",
            "-Infinity": "-inf",
            "NaN": "nan",
            "1.": "1.0",
            ".5": "0.5",
        },
        ["1e400", "1_000.5", "-nan", " 1", "1.5junk", "0x10", "1,5"],
    ),
    "FLOAT": ({"0.1": "0.1", "inf": "inf"}, ["1e39", "3.5e38"]),
    "BOOLEAN": (
        {"t": "true", "FALSE": "false", "1": "true", "n": "false", "yes": "true"},
        ["2", "1.0", " t", "on", "01"],
    ),
    "UUID": (
        {PLAIN: PLAIN, PLAIN.upper(): PLAIN, PLAIN.replace("-", ""): PLAIN},
        ["{" + PLAIN + "}", "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11", PLAIN[:-1], " " + PLAIN],
    ),
    "VARCHAR": ({" x ": " x ", "1_0": "1_0"}, []),
}


def load_all(folder: Path, source: Any) -> tuple[LoadReport, dict[int, str]]:
    """Load what can be taken: the report, and the values by line."""
    database = folder / "visits.duckdb"
    database.unlink(missing_ok=True)
    report = load_rows(source, database, "visits", max_rejects=10**9)
    return report, dict(
        query_file(database, "SELECT line, CAST(v AS VARCHAR) FROM visits ORDER BY line")
    )


def csv_source(folder: Path, kind: str, texts: list[str], **form: Any) -> CsvSource:
    quoted = (text.replace('"', '""') for text in texts)
    lines = ["line,v", *(f'{line},"{text}"' for line, text in enumerate(quoted, 2)), ""]
    (folder / "v.csv").write_text("\n".join(lines))
    return CsvSource([folder / "v.csv"], {"line": "INTEGER", "v": kind}, CsvFormat(**form))


def json_source(folder: Path, kind: str, texts: list[str]) -> JsonSource:
    lines = [json.dumps({"line": line, "v": text}) for line, text in enumerate(texts, 2)]
    (folder / "v.jsonl").write_text("\n".join(lines))
    return JsonSource([folder / "v.jsonl"], {"line": "INTEGER", "v": kind})


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("write", [csv_source, json_source])
def test_a_text_is_taken_as_it_is_written_or_rejected(
    tmp_path: Path, write: Callable[..., Any], kind: str
) -> None:
    """A CSV file's line is told."""
    taken, left = CASES[kind]
    texts = [*taken, *left]
    report, values = load_all(tmp_path, write(tmp_path, kind, texts))
    assert values == dict(enumerate(taken.values(), 2))
    lines = tuple(range(2 + len(taken), 2 + len(texts)))
    told = [(r.column, r.kind, r.rows) for r in report.rejects]
    assert told == ([("v", f"not {kind}", len(left))] if left else [])
    if left and write is csv_source:
        assert report.rejects[0].lines == lines[:20]


def test_one_such_row_refuses_the_load(tmp_path: Path) -> None:
    """As any other that cannot be read."""
    source = csv_source(tmp_path, "DATE", ["2026-01-01", "2026-01-01 junk"])
    with pytest.raises(TableUnreadable, match="nothing was loaded") as refused:
        load_rows(source, tmp_path / "visits.duckdb", "visits")
    assert "junk" not in str(refused.value)


def test_lines_of_faults_are_the_first_of_each_file_and_column(tmp_path: Path) -> None:
    """Beside rows that cannot be split, and values that run over line ends."""
    first = 'line,v\nx,2\n3,4,5\n1,"a\nb"\n4.5,c\n' + "y,1\n" * 30
    for name, content in (("1.csv", first), ("2.csv", "line,v\n1,a\n2 ,a\n")):
        (tmp_path / name).write_text(content)
    source = CsvSource(
        [tmp_path / "1.csv", tmp_path / "2.csv"],
        {"line": "INTEGER", "v": "VARCHAR"},
        CsvFormat(multiline=True),
    )
    report, _ = load_all(tmp_path, source)
    told = {(Path(r.source).name, r.column, r.kind, r.rows, r.lines) for r in report.rejects}
    assert told == {
        ("1.csv", "", "too many columns", 1, (3,)),
        ("1.csv", "line", "not INTEGER", 32, (2, *range(6, 25))),
        ("2.csv", "line", "not INTEGER", 1, (3,)),
    }
    assert (report.rows, report.rejected) == (2, 34)


@pytest.mark.parametrize(
    ("kind", "form", "taken", "left"),
    [
        (
            "DATE",
            {"date_format": "%d.%m.%Y"},
            {"31.01.2026": "2026-01-31", "1.1.2026": "2026-01-01"},
            ["31.01.2026 junk", "2026-01-31", " 31.01.2026", "31.01.2026 ", "infinity", "epoch"],
        ),
        ("DATE", {"date_format": "%d.%m.%Y %H:%M"}, {"31.01.2026 00:00": "2026-01-31"}, ["31.01.2026 10:00"]),
        (
            "TIMESTAMP_S",
            {"timestamp_format": "%Y%m%d %H%M%S.%f"},
            {"20260131 100000.0": "2026-01-31 10:00:00"},
            ["20260131 100000.6", "-infinity"],
        ),
        (
            "TIMESTAMP WITH TIME ZONE",
            {"timestamp_format": "%d.%m.%Y %H:%M %z"},
            {"31.01.2026 10:00 +0200": "2026-01-31 08:00:00+00"},
            ["31.01.2026 10:00", "31.01.2026 24:00 +00"],
        ),
    ],
)  # fmt: skip
def test_a_format_reads_whole_texts(
    tmp_path: Path, kind: str, form: dict[str, str], taken: dict[str, str], left: list[str]
) -> None:
    """strptime reads "infinity" as a day of 1900, and a day of a time of day."""
    report, values = load_all(tmp_path, csv_source(tmp_path, kind, [*taken, *left], **form))
    assert values == dict(enumerate(taken.values(), 2))
    assert report.rejected == len(left)


_TEXT = st.one_of(
    st.text("0123456789.+-eE_ x", min_size=1, max_size=12),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str),
    st.integers(-(2**70), 2**70).map(str),
)


@settings(max_examples=6)
@given(st.lists(_TEXT, min_size=300, max_size=500))
def test_a_number_that_is_taken_is_the_number_that_is_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    """Digit by digit, by Python's own decimals."""
    folder = tmp_path_factory.mktemp("numbers")
    for kind in ("BIGINT", "DECIMAL(18,3)"):
        _, values = load_all(folder, csv_source(folder, kind, texts))
        for line, value in values.items():
            with decimal.localcontext(prec=100):
                assert decimal.Decimal(value) == decimal.Decimal(texts[line - 2].replace("_", "?"))


def test_typed_values_are_neither_rounded_nor_cut(tmp_path: Path) -> None:
    """Of frames and Parquet files: what does not come back as it was is rejected."""
    arrow = pytest.importorskip("pyarrow")
    day = dt.datetime(2026, 1, 1)
    # By column: the declared type, three stored values, and which of them are exact.
    columns: dict[str, tuple[str, Any, str]] = {
        "a": ("INTEGER", arrow.array([1.0, 1.7, 1e10]), "yes no no"),
        "b": ("INTEGER", arrow.array(["1", "1.7", "0x1"]), "yes no no"),
        "c": ("INTEGER", arrow.array(["1", "1.7", "1_0"]).dictionary_encode(), "yes no no"),
        "d": ("DATE", arrow.array([day, day.replace(hour=1), day]), "yes no yes"),
        "e": ("DATE", arrow.array(["2026-01-01", "2026-01-01 x", "x"]), "yes no no"),
        "f": ("DECIMAL(4,1)", arrow.array([1.5, 1.25, 0.1]), "yes no yes"),
        "g": (
            "DECIMAL(4,1)",
            arrow.array([decimal.Decimal(n) for n in ("1.50", "1.25", "0.10")]),
            "yes no yes",
        ),
        "h": ("DOUBLE", arrow.array([2**53, 2**53 + 1, 0]), "yes no yes"),
        "i": ("FLOAT", arrow.array([0.5, 0.1, float("nan")]), "yes no yes"),
        "j": ("TIMESTAMP", arrow.array([1000, 1001, 0], arrow.timestamp("ns")), "yes no yes"),
        "k": ("TIME", arrow.array([day, day, day]), "no no no"),
        "l": ("BOOLEAN", arrow.array([0, 1, 2]), "yes yes no"),
    }
    table = arrow.table({name: array for name, (_, array, _) in columns.items()})
    file = tmp_path / "v.parquet"
    table.to_pandas().to_parquet(file)
    declared = {name: kind for name, (kind, _, _) in columns.items()}
    for source in (ObjectSource(table, declared), ParquetSource([file], declared)):
        told: list[LoadReport] = []
        with pytest.raises(TableUnreadable, match="rejected"):
            load_rows(source, tmp_path / "visits.duckdb", "visits", tell=told.append)
        counts = {reject.column: reject.rows for reject in told[0].rejects}
        assert counts == {
            name: exact.split().count("no") for name, (_, _, exact) in columns.items()
        }


@pytest.mark.parametrize(
    ("kind", "numbers", "taken"),
    [
        ("DECIMAL(38,18)", ["0.5", "0.1234567890123456789"], {2: "0.500000000000000000"}),
        ("DECIMAL(38,2)", ["12.50", "100000000000000000000.5", "1e-400"], {2: "12.50"}),
        ("HUGEINT", ["12345678901234567890123", "100000000000000000000.5"], {2: "12345678901234567890123"}),
        ("VARCHAR", ["1.50", "0.1234567890123456789", "123456789012345678.5"], {2: "1.5"}),
        ("DECIMAL(18,3)", ["1.25", "1.2500000000000000055"], {2: "1.250"}),
        ("DOUBLE", ["0.1234567890123456789", "1e400"], {2: "0.12345678901234568"}),
    ],
)  # fmt: skip
def test_long_numbers_of_json_keep_their_digits(
    tmp_path: Path, kind: str, numbers: list[str], taken: dict[int, str]
) -> None:
    """DuckDB reads them as doubles; a long text beside them changes nothing."""
    lines = [f'{{"line": {line}, "v": {number}}}' for line, number in enumerate(numbers, 2)]
    lines += [line[:-1] + ', "id": "12345678901234567890"}' for line in lines]
    lines[len(numbers) :] = [line.replace(": ", ":1", 1) for line in lines[len(numbers) :]]
    for text in ("\n".join(lines), "[" + ",\n".join(lines) + "]"):
        (tmp_path / "v.json").write_text(text)
        source = JsonSource([tmp_path / "v.json"], {"line": "INTEGER", "v": kind})
        report, values = load_all(tmp_path, source)
        assert values == taken | {10 + line: value for line, value in taken.items()}
        assert report.rejected == 2 * (len(numbers) - len(taken))


def test_what_postgresql_has_and_duckdb_has_not(
    postgres: Callable[[], str], tmp_path: Path
) -> None:
    """Years before Christ and after 294247 are rejected; infinity and 24:00 are values of both."""
    url = postgres().replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE visits (line int, day date, at timestamp, seen timestamptz, clock time, x double precision);"
            "INSERT INTO visits VALUES (1, '0044-03-15 BC', NULL, NULL, NULL, 0), (2, NULL, '0044-03-15 BC', NULL, NULL, 0),"
            "(3, NULL, NULL, '0044-03-15 BC', NULL, 0), (4, NULL, '294270-01-01', NULL, NULL, 0),"
            "(5, '-infinity', 'infinity', 'infinity', '24:00', 0.1::float8 + 0.2::float8),"
            "(6, '5874897-12-31', '9999-12-31 23:59:59.999999', '1850-01-01 10:00:00+05:53:28', '10:00:00.000001', 1e-310)"
        )
        connection.execute("ALTER ROLE CURRENT_USER SET extra_float_digits = 0")
    try:
        with copy_postgres(url, "visits") as source:
            report = load_rows(source, tmp_path / "visits.duckdb", "visits", max_rejects=4)
    finally:
        with psycopg.connect(url) as connection:
            connection.execute("ALTER ROLE CURRENT_USER RESET extra_float_digits")
    told = [(r.column, r.kind, r.rows, r.lines) for r in report.rejects]
    assert told == [
        ("day", "not DATE", 1, ()),
        ("at", "not TIMESTAMP", 2, ()),
        ("seen", "not TIMESTAMP WITH TIME ZONE", 1, ()),
    ]
    assert {r.source for r in report.rejects} == {source.name}
    with duckdb.connect(str(tmp_path / "visits.duckdb"), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.execute(
            "SELECT CAST(COLUMNS(*) AS VARCHAR) FROM visits ORDER BY line"
        ).fetchall()
    assert rows == [
        ("5", "-infinity", "infinity", "infinity", "24:00:00", "0.30000000000000004"),
        (
            *("6", "5874897-12-31", "9999-12-31 23:59:59.999999", "1850-01-01 04:06:32+00"),
            *("10:00:00.000001", "1e-310"),
        ),
    ]
