"""Groups on Spark: of several columns together, and of units by a secret hash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    GroupedSums,
    GroupEstimates,
    GroupMoments,
    GroupValues,
    KeySets,
    SortedValues,
    UnboundedValues,
    UnitScores,
)
from dpflow.errors import DpflowError, PlanRefused
from dpflow.tables.backends.spark_backend import hash_bounding
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.private import PrivateTable

pytestmark = pytest.mark.usefixtures("steady_files")

Declare = Callable[..., PrivateTable]
KINDS = {"u": "INTEGER", "a": "VARCHAR", "b": "VARCHAR", "n": "INTEGER", "v": "DOUBLE"}
TEXTS = ['x"y', "x", "", ";t1:x", "ü\\", "a,b"]
ROWS = [
    (str(i % 11), TEXTS[i % 6], TEXTS[i * 7 % 5], str(i % 4 - 1), str(i % 9 / 2))
    for i in range(120)
] + [("1", None, "x", "1", "1"), ("2", "x", None, "1", None), (None, "x", "x", "1", "nan")]
COLUMNS: dict[str, Any] = {
    "a": {},
    "b": {"public_keys": ["x", "", "ü\\"]},
    "n": {"lower": -1, "upper": 2},
    "v": {"lower": 0, "upper": 3, "step": "0.5"},
    "bin": {"expression": "bucket(n, 2)"},
    "both": {"parts": ["a", "b"]},
    "all": {"parts": ["b", "bin", "n"]},
}
FIELDS = {"columns": COLUMNS, "contribution_bounds": {"rows": 100}}


def test_keys_of_several_columns_are_those_of_a_file(declare: Declare, tmp_path: Path) -> None:
    """Private and public ones, whatever signs are in them."""
    spark = declare(KINDS, ROWS, **FIELDS)
    # The same rows in a file.
    file = tmp_path / "same.duckdb"
    with duckdb.connect(str(file)) as connection:
        place = spark.declaration.source.table
        connection.execute(f"CREATE TABLE visits AS SELECT * FROM '{place}/*.parquet'")
    fields = {"name": "visits", "database": file, "privacy_unit": {"column": "u"}}
    duck = PrivateTable(Table.model_validate(fields | FIELDS))
    for by in ("both", "all"):
        private = [
            table.answer(GroupedSums(by, None, 100, 100, (("v", 0),)), ())
            for table in (spark, duck)
        ]
        sums = [
            dict(zip(one.keys, zip(one.rows.tolist(), one.units.tolist(), one.sums["v"].tolist())))
            for one in private
        ]
        assert sums[0] == sums[1] and len(sums[0]) > 8
        keys = (*list(sums[0])[::2], '["x","x"]' if by == "both" else '["x","0","1"]')
        keys = tuple(dict.fromkeys(keys))
        for request in (GroupedSums(by, keys, 100, 100), SortedValues("v", 100, by, keys, 100)):
            spark.check_request(request)
            one, two = spark.answer(request, ()), duck.answer(request, ())
            name = "rows" if isinstance(request, GroupedSums) else "codes"
            assert getattr(one, name).tolist() == getattr(two, name).tolist()
        names = [sorted(table.answer(KeySets(by, 100), ()).keys) for table in (spark, duck)]
        assert names[0] == names[1]
    with pytest.raises(PlanRefused, match="'02' is not how"):
        spark.check_request(GroupedSums("all", ('["x","0","02"]',), 1, 1))
    with pytest.raises(DpflowError, match="several columns together"):
        spark.check_request(UnboundedValues("both"))


def test_a_unit_with_a_new_combined_key_moves_its_own_rows_only(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit's choice among combined keys is by their texts and lengths, as the reference says."""
    monkeypatch.setattr("secrets.randbits", lambda _: 5)
    more = [*ROWS, ("99", "new", "x", "1", "1")]
    tables = [declare(KINDS, rows, **FIELDS) for rows in (ROWS, more)]
    counts = [
        Counter(dict(zip(one.keys, one.units.tolist())))
        for one in (table.answer(GroupedSums("both", None, 2, 100), ()) for table in tables)
    ]
    assert counts[1] == counts[0] + Counter(['["new","x"]'])
    want: Counter[tuple[str, str]] = Counter()
    for unit in {row[0] for row in ROWS if row[0] is not None}:
        own = {
            (a, b)
            for u, a, b, *_ in ROWS
            if u == unit and a is not None and b in COLUMNS["b"]["public_keys"]
        }
        number = {
            key: hash_bounding.find_cell_fraction(
                5, [unit], ";".join(map(hash_bounding.tag_text, key))
            )
            for key in own
        }
        want.update(sorted(own, key=number.__getitem__)[:2])
    assert sorted(counts[0].values()) == sorted(want.values())


def test_holdout_groups_hide_their_secret(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no plan that the server shows, and decides the groups."""
    table = declare(KINDS, ROWS, **FIELDS)
    plans, fetch = [], SparkConnection.fetch

    def explain(self: SparkConnection, frame: Any) -> Any:
        plans.append(self.run(lambda _: frame._explain_string(extended=True)))
        return fetch(self, frame)

    monkeypatch.setattr(SparkConnection, "fetch", explain)
    secret = b"\x07secret of 16 by"
    groups, columns = table.grouped_rows(GroupValues(3, ("a", "v", "n")), secret, ())
    assert len(plans) == 1 and secret.hex() not in plans[0] and "secret" in plans[0]
    assert set(groups.tolist()) == {0, 1, 2} and len(groups) == len(ROWS) - 1
    assert np.nanmax(columns["v"]) == 3 and Counter(columns["a"])[None] == 1
    assert np.isnan(columns["v"]).sum() == 1


def test_moments_and_estimates_are_those_of_rows(declare: Declare) -> None:
    """Of pairs, in the columns' own measure, and with texts."""
    table = declare(KINDS, ROWS, **FIELDS)
    groups, columns = table.grouped_rows(GroupValues(4, ("n", "v", "b")), b"key", ())
    there = ~np.isnan(columns["v"])
    request = GroupMoments(4, ("n", "v"), ("n", "x", "xx", "yy", "xy"))
    table.check_request(request)
    moments = table.group_moments(request, b"key", ())
    estimate = GroupEstimates(4, "sum(v) + count(*) FILTER (WHERE b = 'x')")
    table.check_request(estimate)
    numbers = table.group_estimates(estimate, b"key", ())
    for group in range(4):
        mine = (groups == group) & there
        x, y, n = columns["n"][mine], columns["v"][mine], mine.sum()
        want = {"n": n, "x": x.sum(), "xx": n * (x * x).sum() - x.sum() ** 2}
        want |= {
            "yy": n * (y * y).sum() - y.sum() ** 2,
            "xy": n * (x * y).sum() - x.sum() * y.sum(),
        }
        assert {name: moments[name][group] for name in want} == want
        texts = (columns["b"][groups == group] == "x").sum()
        assert abs(numbers[group] - (y.sum() + texts)) < 1e-9
    wide = declare(KINDS, ROWS[:1], columns={"v": {"lower": 0, "upper": 2**31}})
    with pytest.raises(PlanRefused, match="further than 2.30 steps"):
        wide.check_request(GroupMoments(3, ("v",), ("xx",)))
    for wrong in (GroupMoments(3, ("a",), ("x",)), GroupEstimates(3, "sum(a)")):
        with pytest.raises(DpflowError):
            table.check_request(wrong)


@pytest.mark.parametrize("protected", ["unit", "part"])
def test_units_are_numbered(protected: str, declare: Declare) -> None:
    """From 0 and without gaps, one number for a unit in all of its blocks."""
    fields = FIELDS | ({"block": "a", "protects": "unit-block"} if protected == "part" else {})
    table = declare(KINDS, ROWS, **fields)
    table.check_request(UnitScores(("v", "b")))
    units, columns = table.unit_rows(("v", "b"), ())
    assert sorted(set(units.tolist())) == list(range(11)) and len(units) == len(ROWS) - 1
    sizes = Counter(row[0] for row in ROWS if row[0] is not None)
    assert sorted(Counter(units.tolist()).values()) == sorted(sizes.values())
    assert set(columns) == {"v", "b"}
