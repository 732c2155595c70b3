"""What can be wrong with a source on Spark: each has its sentence, and says whether a retry helps."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from spark_servers import declare_source

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, Records, SortedValues
from dpflow.errors import (
    DpflowError,
    InvalidDeclaration,
    InvalidInput,
    PlanRefused,
    TableBusy,
    TableInterrupted,
    TableUnreadable,
)
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends.spark_backend import (
    canaries,
    spark_columns,
    spark_connection,
    spark_queries,
    spark_session,
)
from dpflow.tables.backends.spark_backend.spark_columns import describe_field, holds_text
from dpflow.tables.backends.spark_backend.spark_rendering import SparkRenderer
from dpflow.tables.language.rendering import Renderer
from dpflow.tables.private import PrivateTable

Declare = Callable[..., PrivateTable]
SECRET = "s3cr3t"
ONE = [("1", "2")]
KINDS = {"u": "INTEGER", "v": "INTEGER"}


def refusal(table: PrivateTable, request: Any = GroupedSums()) -> DpflowError:
    """What a request is refused with, before a row is read."""
    with pytest.raises(DpflowError) as raised:
        table.check_request(request)
    assert raised.value.__context__ is None or isinstance(raised.value.__context__, DpflowError)
    return raised.value


@pytest.mark.parametrize(
    "place",
    [
        {"spark": f"sc://host:15002/;token={SECRET}", "table": "/lake/visits"},
        {"spark": f"sc://{SECRET}@host", "table": "/lake/visits"},
        {"spark": "lake", "table": "/lake/*"},
        {"spark": "lake", "table": f"s3a://key:{SECRET}@lake/visits"},
        {"spark": "lake", "table": "./lake/visits"},
        {"spark": "lake", "table": "file:lake/visits"},
        {"spark": "lake", "table": "visits"},
        {"spark": "lake", "table": "lake.visits"},
        {"spark": "lake", "table": "main.lake.visits; x"},
        {"spark": "lake"},
    ],
)
def test_a_declaration_says_place_and_no_credentials(place: dict[str, Any], tmp_path: Path) -> None:
    """What else it says is refused, and not repeated."""
    file = tmp_path / "visits.yml"
    fields = {"name": "visits", "privacy_unit": {"column": "u"}, "columns": {}}
    file.write_text(yaml.safe_dump(fields | {"contribution_bounds": {"rows": 1}, "source": place}))
    with pytest.raises(InvalidDeclaration) as raised:
        load_table(file)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "duckdb"},
        {"relation": "visits"},
        {"trusted_sql": ["visits"]},
        {"protects": "unit-block", "block": "u", "cached_partials": "checked"},
    ],
)
def test_fields_of_files_are_refused(fields: dict[str, Any]) -> None:
    """They would say nothing."""
    table = {
        "name": "visits",
        "source": {"spark": "lake", "table": "/lake"},
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {},
    }
    assert Table.model_validate(table).backend == "spark"
    with pytest.raises(ValueError, match="Spark"):
        Table.model_validate(table | fields)
    with pytest.raises(ValueError, match="Spark"):
        without = {name: value for name, value in table.items() if name != "source"}
        Table.model_validate(without | {"database": "x", "backend": "spark"})


def test_doors_of_files_refuse_a_table_on_spark(declare: Declare) -> None:
    """By name, in place of a file that is not there."""
    with pytest.raises(PlanRefused, match="a data contract reads DuckDB and Parquet files"):
        declare(KINDS, ONE).declaration.require_file("a data contract")


def test_connections_are_in_the_environment(
    declare: Declare, spark_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that nobody explained, or explained otherwise, is refused without what it holds."""
    table = declare(KINDS, ONE)
    place = table.declaration.source.model_copy(update={"spark": "lake"})
    named = PrivateTable(table.declaration.model_copy(update={"source": place}))
    monkeypatch.delenv("DPFLOW_SPARK_LAKE", raising=False)
    error = refusal(named)
    assert isinstance(error, InvalidInput) and "DPFLOW_SPARK_LAKE" in str(error)
    for address in (f"https://{SECRET}", f"sc://host:port;{SECRET}"):
        monkeypatch.setenv("DPFLOW_SPARK_LAKE", address)
        error = refusal(named)
        assert SECRET not in str(error) and not error.retryable
    monkeypatch.setenv("DPFLOW_SPARK_LAKE", spark_server)
    named.check_request(GroupedSums())


def test_a_server_that_is_down_may_come_back(declare: Declare) -> None:
    """A retry helps, and comes within seconds, not after the client's ten minutes."""
    table = declare(KINDS, ONE)
    down = table.declaration.source.model_copy(update={"spark": "sc://127.0.0.1:1"})
    begin = time.monotonic()
    error = refusal(PrivateTable(table.declaration.model_copy(update={"source": down})))
    assert isinstance(error, TableBusy) and error.retryable
    assert time.monotonic() - begin < 60


def test_another_server_than_apache_spark_is_trusted_by_name(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by what it says of itself, and so is another version of it; the guarantee names it."""
    monkeypatch.setattr(
        spark_session, "identify_server", lambda *_: spark_session.Server("0.9", False)
    )
    monkeypatch.setattr(spark_session, "_CHECKED", {})
    for trusted in (None, "0.8"):
        declared = declare(KINDS, ONE).declaration
        assert declared.source is not None
        source = declared.source.model_copy(update={"trusted_server": trusted})
        error = refusal(PrivateTable(declared.model_copy(update={"source": source})))
        assert isinstance(error, PlanRefused) and "trusted_server: '0.9'" in str(error)
    source = declared.source.model_copy(update={"trusted_server": "0.9"})
    table = declared.model_copy(update={"source": source})
    PrivateTable(table).check_request(GroupedSums())
    assert "not Apache Spark: 0.9" in table.protection_text
    assert table.stored_form()["trusted_server"].endswith(": 0.9")


@pytest.mark.parametrize("name", canaries.CANARIES)
def test_a_server_that_fails_a_canary_is_refused(
    name: str, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is: every answer is a little wrong here."""
    fetch, asked = spark_connection.SparkConnection.fetch, canaries.CANARIES[name]

    def falsify(self: Any, frame: Any) -> dict[str, Any]:
        import pyarrow as pa

        return {
            column: pa.array([*values.to_pylist()[1:], values.to_pylist()[0]])
            if len(set(values.to_pylist())) > 1
            else pa.array(["another"] * len(values))
            for column, values in fetch(self, frame).items()
        }

    monkeypatch.setattr(spark_session, "_CHECKED", {})
    monkeypatch.setattr(canaries, "CANARIES", {name: asked})
    table = declare(KINDS, ONE)
    table.check_request(GroupedSums())
    monkeypatch.setattr(spark_session, "_CHECKED", {})
    identity = spark_session.Server("true to its word", True)
    monkeypatch.setattr(spark_session, "identify_server", lambda *_: identity)
    monkeypatch.setattr(spark_connection.SparkConnection, "fetch", falsify)
    error = refusal(table)
    assert isinstance(error, TableUnreadable) and name in str(error)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("_delta_log/00000000000000000000.json", "of the format Delta"),
        ("metadata/v1.metadata.json", "of the format Iceberg"),
        (".hoodie/hoodie.properties", "of the format Hudi"),
        ("readme.txt", "holds other files"),
    ],
)
def test_folders_of_other_formats_are_refused(made: str, words: str, declare: Declare) -> None:
    """Of their files some hold rows that were deleted, or none."""
    table = declare(KINDS, ONE)
    file = Path(table.declaration.source.table) / made
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    error = refusal(table)
    assert isinstance(error, TableUnreadable) and words in str(error)


def test_a_table_that_is_gone_or_changed_is_refused(declare: Declare, folders: Any) -> None:
    """Between plan and run: no folder, no column, or one of another type."""
    table = declare(KINDS, ONE, columns={"v": {"lower": 0, "upper": 9}})
    file = Path(table.declaration.source.table) / "part-0.parquet"
    request = SortedValues("v", 3)
    file.unlink()
    assert "finds no file" in str(refusal(table, request))
    folders.write(file, {"u": "INTEGER", "w": "INTEGER"}, ONE)
    assert "did you mean" in str(refusal(table, request)) or "'v'" in str(refusal(table, request))
    folders.write(file, {"u": "INTEGER", "v": "BLOB"}, ONE)
    assert "cannot be a value on Spark" in str(refusal(table, request))
    folders.write(file, {"u": "DOUBLE", "v": "INTEGER"}, ONE)
    assert "cannot be a unit on Spark" in str(refusal(table, request))


def test_keys_that_a_type_lacks_are_refused(declare: Declare) -> None:
    """In the column's own spelling, decided without the server."""
    columns = {"v": {"public_keys": ["1", "02"]}}
    error = refusal(declare(KINDS, ONE, columns=columns), GroupedSums("v", ("1", "02")))
    assert isinstance(error, PlanRefused) and "'02'" in str(error)
    error = refusal(declare(KINDS, ONE, columns=columns), Records(("v",), 1))
    assert isinstance(error, PlanRefused) and "'02'" in str(error)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("tinyint", "-128", "128"),
        ("bigint", str(2**63 - 1), "+1"),
        ("date", "0001-01-01", "2020-1-01"),
        ("timestamp_ntz", "2020-02-29 12:00:00.5", "2020-02-29T12:00:00"),
        ("timestamp_ntz", "2020-02-29 12:00:00", "2020-02-29 12:00:00+00:00"),
        ("decimal(5,2)", "-0.50", "-0.00"),
        ("decimal(5,2)", "999.99", "1000.00"),
        ("decimal(2,2)", "0.50", "1.00"),
        ("boolean", "true", "True"),
        ("string", "", None),
    ],
)
def test_texts_of_types(kind: str, good: str, bad: str | None) -> None:
    """One text for each value."""
    assert holds_text(describe_field("x", kind), good)
    assert bad is None or not holds_text(describe_field("x", kind), bad)


def test_an_answer_is_cancelled_between_its_queries(
    declare: Declare, fetch_and_cancel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another thread; and where nothing runs, nothing happens."""
    table = declare(KINDS, ONE, columns={"v": {}})
    with table.hold_open():
        table.cancel()
        monkeypatch.setattr(spark_connection.SparkConnection, "fetch", fetch_and_cancel(table))
        # Private keys are collected by a query of their own.
        with pytest.raises(TableInterrupted, match="cancelled") as raised:
            table.answer(GroupedSums("v", None), ())
        assert raised.value.retryable
        monkeypatch.undo()
        assert int(table.answer(GroupedSums(), ()).rows[0]) == 1


def test_the_client_writes_no_error(declare: Declare, capfd: pytest.CaptureFixture[str]) -> None:
    """Its loggers of query contexts write a server's text to standard error by themselves."""
    declare(KINDS, ONE).check_request(GroupedSums())
    from pyspark.logger import PySparkLogger

    for name in spark_session._LOGGERS:
        PySparkLogger.getLogger(name).error(SECRET)
    assert SECRET not in "".join(capfd.readouterr())


def test_names_of_columns_are_quoted(declare: Declare) -> None:
    """A name is a name, whatever is in it; two that differ in case alone are refused."""
    odd = "`v`) OR 1=1 --"
    table = declare({"u": "INTEGER", odd: "INTEGER"}, ONE, columns={odd: {"lower": 0, "upper": 9}})
    assert table.answer(SortedValues(odd, 1), ()).values.tolist() == [2]


def test_a_block_has_one_name(declare: Declare) -> None:
    """Servers pass over a zone in the text of a time without one: each zone would be a budget of its own
    for the same rows.
    """
    kinds = {"u": "INTEGER", "b": "TIMESTAMP"}
    table = declare(
        kinds, [("1", "2020-01-01 00:00:00")], block="b", protects="unit-block", columns={"b": {}}
    )
    table.check_request(GroupedSums(), ("2020-01-01 00:00:00",))
    for zone in ("+00:00", "+05:00"):
        with pytest.raises(PlanRefused, match="is not how a TIMESTAMP_NTZ is written"):
            table.check_request(GroupedSums(), (f"2020-01-01 00:00:00{zone}",))


def test_folders_of_other_blocks_are_passed_over(declare: Declare, folders: Any) -> None:
    """What is damaged in one of them is not read; in a block that is asked for, it is."""
    table = declare(KINDS, ONE, block="day", columns={"v": {"lower": 0, "upper": 9}})
    folder = Path(table.declaration.source.table)
    (folder / "part-0.parquet").unlink()
    # Of several values: what a footer's least and greatest value say is known without the data.
    rows = [(str(i % 7), str(i % 5)) for i in range(999)]
    for day in ("mon", "tue"):
        (folder / f"day={day}").mkdir()
        folders.write(folder / f"day={day}" / "part-0.parquet", KINDS, rows)
    file = folder / "day=mon" / "part-0.parquet"
    content = bytearray(file.read_bytes())
    # All data; the footer, from which schemas come, remains.
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:end] = b"\xff" * (end - 4)
    file.write_bytes(content)
    request = SortedValues("v", 3)
    whole = sum(table.answer(request, ("tue",)).counts.tolist())
    assert whole == 7 * 3
    with suppress(TableUnreadable):
        # Some servers fail, others take what they find.
        assert sum(table.answer(request, ("mon",)).counts.tolist()) != whole


def test_damaged_files_are_passed_over_by_no_server(declare: Declare) -> None:
    """Whatever it is set to: a file that is left out for one row's damage takes others' rows with it."""
    table = declare(KINDS, ONE)
    assert table.declaration.source is not None
    with spark_session.open_session(table.declaration.source, "it") as connection:
        for what in ("CorruptFiles", "MissingFiles"):
            name = f"spark.sql.files.ignore{what}"
            assert name in spark_session._SETTINGS
            assert connection.run(lambda session, name=name: session.conf.get(name)) == "false"


def test_texts_are_their_letters(declare: Declare) -> None:
    """Spark writes a setting or variable of the server's in place of `${...}` where it may."""
    table = declare(KINDS, ONE)
    assert table.declaration.source is not None
    with spark_session.open_session(table.declaration.source, "it") as connection:
        read = connection.run(lambda session: session.conf.get("spark.sql.variable.substitute"))
    assert read == "false"


@pytest.mark.parametrize("divisor", ["f", "-i", "i * -1"])
@pytest.mark.parametrize("operator", ["/", "%"])
def test_a_division_by_either_zero_is_missing(
    divisor: str, operator: str, declare: Declare
) -> None:
    """On Sail one by -0 fails, so one row would decide whether there is a result."""
    quotient = {"expression": f"4 {operator} ({divisor})", "lower": -9, "upper": 9}
    columns = {"i": {}, "f": {}, "q": quotient}
    kinds = {"u": "INTEGER", "i": "INTEGER", "f": "DOUBLE"}
    table = declare(kinds, [("1", "0", "-0.0"), ("2", "1", "1")], columns=columns)
    answer = table.answer(GroupedSums(values=(("q", 0),)), ())
    assert answer.rows.tolist() == [2] and abs(answer.sums["q"][0]) == (4 if operator == "/" else 0)
    zero = PrivateTable(table.declaration, "f IN (0, 7)")
    assert zero.answer(GroupedSums(), ()).rows.tolist() == [1]


@pytest.mark.parametrize(
    "where", [None, "v IS NULL", "v >= 0", "NOT v > 5", "v != 3.0", "coalesce(v, 7) = 7"]
)
def test_nan_in_a_file_is_read_as_it_is_or_refused(
    where: str | None, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's end leaves NaN out, and Sail takes a thousand units' NaN for the one number of another."""
    monkeypatch.setattr(spark_queries, "find_misread", spark_columns.find_misread)
    answers = []
    for more in (0, 1):
        folder = tmp_path / str(more)
        folder.mkdir()
        values = pa.array([math.nan] * 1000 + [5.0] * more, pa.float64())
        pq.write_table(pa.table({"u": range(1000 + more), "v": values}), folder / "part.parquet")
        declared = {
            "name": "visits",
            "source": declare_source(spark_server, folder),
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"v": {"lower": -100, "upper": 100}},
        }
        table = PrivateTable(Table.model_validate(declared), where)
        request = GroupedSums(None, None, 1, 1, (("v", 0),))
        if os.environ.get("DPFLOW_TEST_SPARK") != "cluster":
            error = refusal(table, request)
            assert isinstance(error, PlanRefused) and "Apache Spark" in str(error)
            continue
        answer = table.answer(request, ())
        answers.append(
            [int(one[0]) for one in (answer.units, answer.rows, answer.counts["v"])]
            + [int(answer.sums["v"][0]) // 5]
        )
    assert not answers or all(abs(one - other) <= 1 for one, other in zip(*answers, strict=True))


def test_a_format_whose_log_goes_away_is_not_read_as_plain_files(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two questions: all files would count as rows, deleted ones too."""
    table = declare(KINDS, ONE)
    list_files = spark_connection.SparkConnection.list_files

    def find_log(self: Any, folder: str) -> list[dict[str, Any]]:
        log = [{"path": folder, "time": 0, "length": 1}]
        return log if "_delta_log," in folder else list_files(self, folder)

    monkeypatch.setattr(spark_connection.SparkConnection, "list_files", find_log)
    with pytest.raises(TableBusy, match="changed while it was looked at"):
        table.answer(GroupedSums(), ())


@pytest.mark.skipif(os.environ.get("DPFLOW_TEST_SPARK") == "cluster", reason="faults of Sail's")
@pytest.mark.parametrize(
    ("name", "place", "fault"),
    [
        ("NaN and zeros of either sign", "SparkRenderer.without_nan", Renderer.without_nan),
        ("dates and times beyond the calendar", "spark_columns.within_calendar", lambda v, _: v),
    ],
)
def test_canaries_find_what_they_are_asked_for(
    name: str, place: str, fault: Any, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written as for DuckDB, a NaN of another sign stays a number there, and far dates have one text."""
    source = declare(KINDS, ONE).declaration.source
    assert source is not None
    with spark_session.open_session(source, "it") as connection:
        assert canaries.CANARIES[name](connection)
        owner, attribute = place.split(".")
        monkeypatch.setattr(
            {"SparkRenderer": SparkRenderer}.get(owner, spark_columns), attribute, fault
        )
        assert not canaries.CANARIES[name](connection)


def test_texts_that_only_spark_knows_to_compare_are_refused_on_another_server(
    spark_server: str, tmp_path: Path
) -> None:
    """Sail takes a collated text and a padded one of Spark's files for plain ones. Columns that nobody
    reads stand in no way.
    """
    fields = [
        {"name": "u", "type": "string", "metadata": {"__COLLATIONS": {"u": "spark.UTF8_LCASE"}}},
        {"name": "c", "type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(4)"}},
        {"name": "p", "type": "string", "metadata": {}},
    ]
    # As Spark writes it: else it would not read it, either.
    schema = {"type": "struct", "fields": [field | {"nullable": True} for field in fields]}
    note = {"org.apache.spark.sql.parquet.row.metadata": json.dumps(schema)}
    rows = pa.table({"u": ["P7", "p7"], "c": ["a   ", "b   "], "p": ["1", "2"]})
    (tmp_path / "a b").mkdir()
    pq.write_table(rows.replace_schema_metadata(note), tmp_path / "a b" / "part-0.parquet")

    def declare_unit(column: str, **fields: Any) -> PrivateTable:
        given = {
            "name": "visits",
            "source": declare_source(spark_server, tmp_path / "a b"),
            "privacy_unit": {"column": column},
            "contribution_bounds": {"rows": 3},
            "columns": {},
        }
        return PrivateTable(Table.model_validate(given | fields))

    collated = "'u' is a (COLLATED STRING|STRING COLLATE UTF8_LCASE) and cannot be a unit on Spark"
    assert re.search(collated, str(refusal(declare_unit("u"))))
    assert "'c' is a CHAR(4) and cannot be a unit on Spark" in str(refusal(declare_unit("c")))
    grouped = declare_unit("p", columns={"c": {"public_keys": ["a"]}})
    assert "'c' is a CHAR(4)" in str(refusal(grouped, GroupedSums("c", ("a",))))
    declare_unit("p").check_request(GroupedSums())
