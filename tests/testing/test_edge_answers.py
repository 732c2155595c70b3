"""Answers at the edges of decisions are answers of neighbouring tables, and show what distant ones hide."""

from __future__ import annotations

import numpy as np
import pytest

from dpflow.core.contract.requests import KeySets, RecordArrays, Records, Sets
from dpflow.testing.edge_answers import ROWS, UNITS, edge_answers
from dpflow.testing.examples import EXAMPLE_TABLE, REPLACE_TABLE


@pytest.mark.parametrize("table", [EXAMPLE_TABLE, REPLACE_TABLE])
def test_records_differ_in_one_unit(table) -> None:
    request = Records(columns=("amount", "kind"), rows=2)
    pairs = edge_answers(request, table)
    assert len(pairs) == 3 * len(ROWS)
    for a, b in pairs:
        assert isinstance(a, RecordArrays) and isinstance(b, RecordArrays)
        shared = len(a.units) - 2
        extra = 2 if table.neighbours == "replace" else 0
        assert len(b.units) == shared + extra and len(set(a.units.tolist())) == shared + 1
        for name in request.columns:
            assert np.array_equal(a.columns[name][:shared], b.columns[name][:shared])
            # Half of the rows at either end: one unit more tips them.
            ends = np.unique(a.columns[name][:shared], return_counts=True)[1]
            assert len(set(ends.tolist())) <= 1


@pytest.mark.parametrize("table", [EXAMPLE_TABLE, REPLACE_TABLE])
def test_key_sets_differ_in_one_unit(table) -> None:
    for (a, b), units in zip(edge_answers(KeySets(by="word", groups=1), table), UNITS):
        assert isinstance(a, Sets) and isinstance(b, Sets)
        assert len(a.units) == units + 1
        assert len(b.units) == units + (table.neighbours == "replace")
