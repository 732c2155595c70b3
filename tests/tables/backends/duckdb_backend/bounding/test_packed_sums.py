"""Sums of a unit's rows that share one integer are those that stand alone."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpflow.tables.backends.duckdb_backend.bounding import sort_bounding
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import (
    NumberedColumn,
    PackedRows,
    UnitGroupCells,
)
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import Truncation, Value


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 6, 255, 2**20]), st.booleans()), max_size=5),
    st.sampled_from([7, 64, 900]),
    st.integers(0, 2**32),
)
@settings(max_examples=40)
def test_sums_side_by_side_do_not_touch(
    values: list[tuple[int, bool]], rows: int, seed: int
) -> None:
    """Sums of every possible cell are those of sorted cells, also where all rows of a cell have the largest value."""
    draws = np.random.default_rng(seed)
    made = tuple(Value(0, span, 0, optional) for span, optional in values)
    cut = Truncation("", made, 2, 3, 4, most_rows=rows)
    layout = PackedRows(cut, (NumberedColumn("unit", 0, 3),), NumberedColumn("code", 0, 3))
    assume(layout._unit_shift < 60)
    words = draws.integers(0, 2, rows) << layout._unit_shift
    words += draws.integers(0, 3, rows) << layout._cell_shift
    for i, largest in enumerate(layout._spans):
        shift = sum(map(sort_bounding.bit_length, layout._spans[i + 1 :]))
        words += (
            draws.choice([0, largest // 2, values[i][0], largest], rows, p=[0.1, 0.1, 0.6, 0.2])
            << shift
        )
    parts = [
        UnitGroupCells.merge_parts([piece() for piece in pieces])
        for pieces in (layout._sum_cells(words, 4 << 2), layout._sort_cells(words))
    ]
    given_cells, expected = (
        [part.unit, part.code, part.rows, *part.counts, *part.sums] for part in parts
    )
    assert [x.tolist() for x in given_cells] == [x.tolist() for x in expected]
