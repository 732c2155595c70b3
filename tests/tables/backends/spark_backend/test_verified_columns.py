"""Columns on one of whose values a server can fail: refused until their owner has had every value read once,
and again after rows were written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from spark_servers import declare_source
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import InvalidInput, PlanRefused, TableUnreadable
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends.spark_backend import (
    spark_session,
    spark_sources,
    verified_columns,
    verify_source,
)
from dpflow.tables.private import PrivateTable

TIMES = GroupedSums(values=(("t", 0),))


@pytest.fixture(autouse=True)
def read_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a release: other tests trust their files."""
    monkeypatch.setattr(spark_sources, "find_verified", verified_columns.find_verified)
    yield


class Visits:
    """A folder of Parquet files on a server, and its declaration's file."""

    def __init__(self, server: str, home: Path) -> None:
        self.folder, self.file = home / "visits", home / "visits.yml"
        self.folder.mkdir()
        self.write(0, [0, 1000])
        bounds = {"lower": 0, "upper": 9}
        declared = {
            "name": "visits",
            "source": declare_source(server, self.folder) | {"verified": "record.json"},
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "block": "b",
            "columns": {"t": bounds, "z": bounds, "d": bounds, "u": {}},
        }
        self.file.write_text(yaml.safe_dump(declared))

    def write(self, number: int, times: list[int], unit: str = "ms") -> None:
        """A file of more rows, with these times."""
        rows = {
            "u": range(len(times)),
            "b": ["a"] * len(times),
            "t": pa.array(times, pa.timestamp(unit)),
            "z": pa.array([0] * len(times), pa.timestamp("us", "UTC")),
            "d": pa.array([1] * len(times), pa.decimal128(38, 2)),
        }
        pq.write_table(pa.table(rows), self.folder / f"{number}.parquet")

    def private(self, where: str | None = None, **changes: Any) -> PrivateTable:
        """The table, as it is declared or with another field."""
        return PrivateTable(load_table(self.file).model_copy(update=changes), where)

    def verify(self) -> Any:
        """The owner's command."""
        return CliRunner().invoke(app, ["load", str(self.file), "--in-place"])


@pytest.fixture
def visits(spark_server: str, tmp_path: Path) -> Visits:
    return Visits(spark_server, tmp_path)


def test_times_are_read_once_they_are_verified(visits: Visits) -> None:
    """In every role a column of times is refused before a row is read, other columns are not; after the
    pass it is read, until rows are written.
    """
    table = load_table(visits.file)
    unit = table.privacy_unit.model_copy(update={"column": "t"})
    roles: list[tuple[dict[str, Any], str | None, GroupedSums]] = [
        ({}, None, GroupedSums(values=(("z", 0),))),
        ({}, None, GroupedSums("t", None, 1, 1)),
        ({}, "t IS NULL", GroupedSums()),
        ({"privacy_unit": unit}, None, GroupedSums()),
        ({"block": "t"}, None, GroupedSums()),
    ]

    def count_refused() -> int:
        refused = 0
        for changes, where, request in roles:
            try:
                visits.private(where, **changes).check_request(request)
            except PlanRefused as error:
                refused += "verified:" in str(error)
        return refused

    assert count_refused() == len(roles)
    visits.private().check_request(GroupedSums("u", None, 1, 1))
    done = visits.verify()
    assert done.exit_code == 0 and "t, z" in done.output, done.output
    record = visits.file.with_name("record.json")
    assert record.stat().st_mode & 0o077 == 0
    assert count_refused() == 0
    assert int(visits.private().answer(TIMES, ()).rows[0]) == 2
    visits.write(1, [5])
    assert count_refused() == len(roles)
    record.write_text("[]")
    with pytest.raises(TableUnreadable, match="no record"):
        visits.private().check_request(TIMES)


def test_a_time_that_no_server_decodes_stays_refused(visits: Visits) -> None:
    """DuckDB writes it. The owner's pass names its column; releases are refused with that row and without."""
    for times in ([0, 1000], [0, 1000, 2**62]):
        visits.write(0, times)
        with pytest.raises(PlanRefused, match="in-place"):
            visits.private().check_request(TIMES)
    failed = visits.verify()
    assert failed.exit_code == 1 and "column t holds a value" in failed.output, failed.output
    with pytest.raises(PlanRefused, match="in-place"):
        visits.private().check_request(TIMES)
    visits.private().check_request(GroupedSums(values=(("z", 0),)))


def test_wide_decimals_need_it_on_apache_spark_alone(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails on a value of more digits than the type. A record of another server counts for nothing."""
    wide = GroupedSums(values=(("d", 0),))
    assert visits.verify().exit_code == 0
    if spark_session._CHECKED and all(s.is_apache_spark for s in spark_session._CHECKED.values()):
        visits.private().check_request(wide)
        return
    monkeypatch.setattr(spark_session, "_CHECKED", {})
    spark = spark_session.Server("4", True)
    monkeypatch.setattr(spark_session, "identify_server", lambda *_: spark)
    for request in (wide, TIMES):
        with pytest.raises(PlanRefused, match="in-place"):
            visits.private().check_request(request)
    assert "d" in verify_source.verify_source(load_table(visits.file)).verified
    for request in (wide, TIMES):
        visits.private().check_request(request)


def test_a_source_names_its_record(visits: Visits) -> None:
    """Without a file there is nothing to write to."""
    text = visits.file.read_text().replace("  verified: record.json\n", "")
    visits.file.write_text(text)
    with pytest.raises(InvalidInput, match=r"visits\.verified\.json"):
        verify_source.verify_source(load_table(visits.file))
