"""Values without bounds on Spark are those of a file with the same rows, of every type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from in_turns import in_turns

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import CellGrid, UnboundedValues
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.private import PrivateTable

pytestmark = pytest.mark.usefixtures("steady_files")

Declare = Callable[..., PrivateTable]
VALUES = {
    "TINYINT": ["-128", "127", "3"],
    "BIGINT": [str(2**63 - 1), str(-(2**63)), "5", "9007199254740993"],
    "DOUBLE": ["inf", "-inf", "nan", "-0.0", "0.1", "1e300", "5e-324"],
    "DECIMAL(9,2)": ["-1234567.89", "0.01", "2.50"],
    "DECIMAL(18,4)": ["12345678901234.5678", "-0.0001"],
    "DATE": ["1969-12-31", "2020-02-29", "9999-12-31"],
    "TIMESTAMP": ["1969-12-31 23:59:59.999999", "2020-02-29 12:00:00.000001", "9999-01-01"],
    "BOOLEAN": ["true", "false"],
}


#: What a missing value counts as, by type.
MISSING = {"BIGINT": str(2**60 + 1), "DOUBLE": "0.1", "DECIMAL(9,2)": "0.25", "TIMESTAMP": "1.5"}


@pytest.mark.parametrize(("kind", "is_skipped"), in_turns(list(VALUES), [False, True], every=2))
def test_values_are_those_of_a_file(
    kind: str, is_skipped: bool, declare: Declare, tmp_path: Path
) -> None:
    """As numbers, in cells of three widths, trimmed, and as the column writes them; with a declared number in
    the place of what is missing.
    """
    missing = "skip" if is_skipped else MISSING.get(kind, "1")
    texts = [*VALUES[kind], *VALUES[kind][:1], None]
    rows = [(str(i), "ab"[i % 2], text) for i, text in enumerate(texts)]
    columns = {"k": {"public_keys": ["a", "b"]}, "v": {"missing": missing}}
    spark = declare({"u": "INTEGER", "k": "VARCHAR", "v": kind}, rows, columns=columns)
    file = tmp_path / "same.duckdb"
    with duckdb.connect(str(file)) as connection:
        place = spark.declaration.source.table
        connection.execute(f"CREATE TABLE visits AS SELECT * FROM '{place}/*.parquet'")
    fields = {"name": "visits", "database": file, "privacy_unit": {"column": "u"}}
    fields |= {"contribution_bounds": {"rows": 3}, "columns": columns}
    duck = PrivateTable(Table.model_validate(fields))
    for request in (UnboundedValues("v"), UnboundedValues("v", "k", ("a", "b"), 2, 3)):
        seen = []
        for table in (spark, duck):
            table.check_request(request)
            with table.open_answer(request, ()) as column:
                groups = range(len(request.keys))
                cells = [
                    column.count_cells(dict.fromkeys(groups, CellGrid(*grid)))
                    for grid in ((None,), (0,), (40,), (-3, 1), (5, 0, 2))
                ]
                listed = [
                    {g: (one.keys.tolist(), one.counts.tolist()) for g, one in cell.items()}
                    for cell in cells
                ]
                values = [np.sort(one).tolist() for one in column.sample_values(50)]
                written = [str(column.column_value(x)) for x in (-3.5, 0, 1000.25)]
                seen.append(
                    (column.rows.tolist(), column.step, column.is_whole, listed, values, written)
                )
                assert len(column.sample_values(1)[0]) == 1
        assert seen[0] == seen[1]
        assert missing == "skip" or sum(seen[0][0]) == len(texts)


def test_a_unit_is_bounded_and_sampled_by_its_hash(declare: Declare) -> None:
    """A unit with many values keeps the declared number, whatever they are; the sample is drawn by
    units, and another reading draws another one.
    """
    rows = [("0", str(1000 + i)) for i in range(500)] + [(str(i), str(i)) for i in range(1, 300)]
    table = declare({"u": "INTEGER", "v": "INTEGER"}, rows, columns={"v": {}})
    request, samples = UnboundedValues("v", rows_per_group=2), []
    for _ in range(2):
        with table.open_answer(request, ()) as column:
            assert column.rows.tolist() == [301] and column.count_units() == 300
            (sample,) = column.sample_values(40)
            assert len(sample) == 40 and len(set(sample.tolist())) == 40
            samples.append(sorted(sample.tolist()))
            (everything,) = column.sample_values(1000)
            assert sum(everything >= 1000) == 2 and column.public_size is None
    assert samples[0] != samples[1]


def test_what_64_bits_do_not_hold_is_refused(declare: Declare) -> None:
    """And what is no number."""
    for kind, words in (("DECIMAL(20,2)", "18 digits"), ("VARCHAR", "cannot be a value")):
        table = declare({"u": "INTEGER", "v": kind}, [("1", "1")], columns={"v": {}})
        with pytest.raises((PlanRefused, TableUnreadable), match=words):
            table.check_request(UnboundedValues("v"))
    table = declare({"u": "INTEGER", "v": "DATE"}, [("1", None)], columns={"v": {"missing": "0.5"}})
    with pytest.raises(PlanRefused, match="declares missing: 1/2, which is no"):
        table.check_request(UnboundedValues("v"))
    replaced: dict[str, Any] = {"neighbours": "replace", "columns": {"v": {}}}
    table = declare({"u": "INTEGER", "v": "INTEGER"}, [("1", "1"), ("2", None)], **replaced)
    with table.open_answer(UnboundedValues("v"), ()) as column:
        assert column.public_size is not None and column.public_size.rows == 2
        assert not column.public_size.exact
