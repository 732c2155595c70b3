"""Results in notebooks, frames and files: typed, named, exact, and safe to show."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from dpflow import Ledger, plan, release
from dpflow.core.contract.results import Result, Row
from dpflow.engine.releases.result_table import ResultTable, write_tables
from dpflow.errors import InvalidInput, NotPublished

if TYPE_CHECKING:
    from smallworld import Tiny

ID = {"release_id": "a1"}
COUNTS = Result((Row("Oslo", "count", 12, 3), Row("Rome", "count", -1, 3.5)))
MIXED = Result(
    (
        Row("", "mean", 2.5, 0.25),
        Row("", "none", None),
        Row("", "first", "2020-01-01"),
        Row("", "sum", 2**60 + 1, 8),
    )
)
NAMES = [
    "release_id",
    *(
        "group_key",
        "measure",
        "value",
        "text",
        "noise_low",
        "noise_high",
        "low",
        "high",
        "clipped",
        "only_a_bound",
        "remark",
    ),
    *("key_integer", "key_date", "key_timestamp", "raw_value", "half_width_95"),
]


def test_integers_stay_integers() -> None:
    """In every frame."""
    frames = (
        ResultTable(ID, COUNTS).to_pandas(),
        ResultTable(ID, COUNTS).to_polars(),
        ResultTable(ID, COUNTS).to_arrow(),
    )
    pandas_frame, polars_frame, arrow = frames
    assert list(pandas_frame.columns) == polars_frame.columns == arrow.column_names == NAMES
    assert (
        str(pandas_frame["value"].dtype) == "Int64"
        and str(arrow.schema.field("value").type) == "int64"
    )
    assert list(pandas_frame["value"]) == polars_frame["value"].to_list() == [12, -1]
    assert arrow.column("half_width_95").to_pylist() == [3.0, 3.5]


def test_what_no_double_writes_is_a_text_beside_it() -> None:
    """Also dates and keys; "none" has neither."""
    records = ResultTable(ID, MIXED).records()
    assert [(r["value"], r["text"]) for r in records] == [
        (2.5, None),
        (None, None),
        (None, "2020-01-01"),
        (float(2**60), str(2**60 + 1)),
    ]
    frames = (
        ResultTable(ID, MIXED).to_pandas(),
        ResultTable(ID, MIXED).to_polars(),
        ResultTable(ID, MIXED).to_arrow().to_pandas(),
    )
    assert [len(frame) for frame in frames] == [4, 4, 4]


@pytest.mark.parametrize("result", [COUNTS, MIXED, Result(())])
def test_files_have_named_columns(result: Result, tmp_path: Path) -> None:
    """Whatever the kind; of nothing selected, the names. Truth is written as in DuckDB's CSV, and a type is never drawn."""
    for suffix in ("csv", "json", "parquet"):
        ResultTable(ID, result).write(tmp_path / f"r.{suffix}")
    with (tmp_path / "r.csv").open() as stream:
        lines = list(csv.reader(stream))
    assert lines[0] == NAMES and len(lines) == 1 + len(result.rows)
    assert json.loads((tmp_path / "r.json").read_text()) == ResultTable(ID, result).records()
    parquet = duckdb.sql(f"FROM '{tmp_path}/r.parquet'")
    assert dict(zip(parquet.columns, parquet.types))["value"] == "DOUBLE"
    clipped = NAMES.index("clipped")
    assert {line[clipped] for line in lines[1:]} <= {"true", "false"}
    assert parquet.columns == NAMES and len(parquet.fetchall()) == len(result.rows)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_several_results_in_one_file(tmp_path: Path) -> None:
    """One below the other."""
    write_tables([ResultTable(ID, COUNTS), ResultTable(ID, MIXED)], tmp_path / "both.parquet")
    assert duckdb.sql(
        f"SELECT count(*), count(value) FROM '{tmp_path}/both.parquet'"
    ).fetchall() == [(6, 4)]


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    """With the kinds that there are."""
    with pytest.raises(InvalidInput, match=r"\.csv, \.json, \.parquet"):
        ResultTable(ID, COUNTS).write(tmp_path / "r.xlsx")
    with pytest.raises(NotPublished, match="cannot be written"):
        ResultTable(ID, COUNTS).write(tmp_path / "nowhere" / "r.csv")


def test_a_plan_is_one_line_and_a_page(tiny: Tiny) -> None:
    """Cost and noise before spending; what people wrote is no markup."""
    options: dict[str, Any] = {"scope": "visits", "blocks": ["2020-01-01"], "epsilon": "0.5"}
    made = plan("histogram", tiny.folder / "visits.yml", name="<b>x</b>", by="city", **options)
    assert (
        repr(made)
        == "Plan('<b>x</b>': histogram of visits, epsilon 0.5, delta 0, from scope 'visits')"
    )
    page = made._repr_html_()
    assert (
        "epsilon 0.5, delta 0" in page and "count +- " in page and "all rows of one person" in page
    )
    assert "<b>x</b>" not in page and "&lt;b&gt;x&lt;/b&gt;" in page


def test_a_receipt_in_a_notebook(tiny: Tiny) -> None:
    """Its numbers with their intervals, and what they cost."""
    options: dict[str, Any] = {"scope": "visits", "blocks": ["2020-01-01"], "epsilon": "0.5"}
    made = plan("histogram", tiny.folder / "visits.yml", name="v", by="city", **options)
    receipt = release(made, Ledger(tiny.ledger))
    page = receipt._repr_html_()
    (oslo, _) = receipt.result.rows
    assert (
        f'<td style="text-align:left">{max(0, oslo.value)}</td>' in page and "epsilon 0.5" in page
    )
    width = oslo.half_width_95
    assert f"{max(0, oslo.value - width):g} to {max(0, oslo.value + width):g}" in page
    again = release(made, Ledger(tiny.ledger))
    assert "replayed, nothing charged" in again._repr_html_()
    frame = receipt.to_pandas()
    assert list(frame["group_key"]) == ["Oslo", "Rome"] and set(frame["protects"]) == {
        receipt.protects
    }
    receipt.write(tiny.folder / "r.json")
    assert json.loads((tiny.folder / "r.json").read_text())[0]["epsilon"] == "0.5"
    assert "nothing was selected" in ResultTable(ID, Result(()))._repr_html_()
