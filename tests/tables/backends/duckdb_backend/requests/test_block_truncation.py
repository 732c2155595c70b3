"""Blocks are truncated one by one, by a function of their rows: fair, and each unit's own."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from cached_tables import CUT, DAYS, REQUESTS, again, folder, seal, write

from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import Truncation
from dpflow.tables.backends.duckdb_backend.requests import cached_blocks
from dpflow.tables.private import PrivateTable
from dpflow.testing.neighbours import answer_fingerprint


@pytest.mark.parametrize("request_", REQUESTS)
def test_sums_of_blocks_add_up_to_those_of_all(
    table: PrivateTable, reads: list[Any], request_: Any
) -> None:
    """Where nothing is cut the answer is that of one scan; a new block is all that is read
    afterwards.
    """
    whole = PrivateTable(table.declaration)
    assert answer_fingerprint(table.answer(request_, DAYS[:4])) == answer_fingerprint(
        whole.answer(request_, DAYS[:4])
    )
    reads.clear()
    assert answer_fingerprint(again(table).answer(request_, DAYS)) == answer_fingerprint(
        whole.answer(request_, DAYS)
    )
    assert len(reads) == 2  # the fifth day, and the comparison's own
    reads.clear()
    assert answer_fingerprint(table.answer(request_, DAYS[3:])) == answer_fingerprint(
        whole.answer(request_, DAYS[3:])
    )
    assert len(reads) == 1


@pytest.mark.parametrize("request_", CUT)
def test_a_cut_is_one_function_of_the_rows(table: PrivateTable, request_: Any) -> None:
    """With, without and after losing what was kept: the same; another key cuts otherwise, and fresh
    draws do each time.
    """
    first = answer_fingerprint(table.answer(request_, DAYS))
    assert answer_fingerprint(table.answer(request_, DAYS)) == first
    shutil.rmtree(folder(table))
    assert answer_fingerprint(table.answer(request_, DAYS)) == first
    other = PrivateTable(table.declaration, seal=lambda data: seal(b"other" + data))
    assert answer_fingerprint(other.answer(request_, DAYS)) != first
    fresh = PrivateTable(table.declaration)
    assert len({answer_fingerprint(fresh.answer(request_, DAYS)) for _ in range(3)}) > 1


@pytest.mark.parametrize("request_", [*CUT, GroupedSums("n", None, 2, 1500)])
def test_equal_draws_do_not_follow_the_order_of_rows(
    table: PrivateTable, monkeypatch: pytest.MonkeyPatch, request_: Any
) -> None:
    """Two keyed draws may be equal: then groups and values decide, and not where rows lie."""
    monkeypatch.setattr(Truncation, "random_number", lambda self, *_: "0.5")
    answers = set()
    for order in ("hash(rowid)", "k, v, n, u", "u, n DESC, v DESC, k DESC"):
        write(table, f"CREATE OR REPLACE TABLE data AS SELECT * FROM data ORDER BY {order}")
        answers.add(answer_fingerprint(table.answer(request_, DAYS)))
    assert len(answers) == 1


def test_a_late_row_moves_its_own_unit_only(table: PrivateTable) -> None:
    """A block that is cut again because a unit's rows arrived differs by that unit's limits; with
    fresh draws all units move.
    """
    request = GroupedSums("k", ("a", "b", "c", "x"), 1, 2)
    fresh = PrivateTable(table.declaration)
    before, drawn = table.answer(request, DAYS), fresh.answer(request, DAYS)
    write(
        table, f"INSERT INTO data SELECT 1000, DATE '{DAYS[1]}', unnest(['a', 'b', 'c', 'a']), 1, 1"
    )
    assert 1 <= int(np.abs(before.rows - table.answer(request, DAYS).rows).sum()) <= 2
    assert int(np.abs(drawn.rows - fresh.answer(request, DAYS).rows).sum()) > 8
    write(table, "DELETE FROM data WHERE u = 1000")
    assert answer_fingerprint(table.answer(request, DAYS)) == answer_fingerprint(before)


@pytest.mark.parametrize(
    "request_",
    [GroupedSums("k", ("a", "b", "c"), 1, 1), SortedValues("v", 1, "k", ("a", "b", "c"), 1)],
)
def test_keyed_draws_are_fair(make: Any, request_: Any) -> None:
    """20,000 units with three groups and two values in each: every group within 8 standard
    deviations of a third.
    """
    rows = """CREATE TABLE data AS SELECT i // 6 AS u, DATE '2013-01-01' + (i // 6 % 2)::INT AS d,
              ['a', 'b', 'c'][i % 3 + 1] AS k, i % 6 // 3 AS v FROM range(120000) t(i)"""
    made = make(rows, block="d", protects="unit-block", cached_partials="checked")
    found = PrivateTable(made.declaration, seal=seal).answer(request_, DAYS[:2])
    counts = found.rows if isinstance(request_, GroupedSums) else found.counts
    assert counts.sum() == 20000
    assert all(abs(int(n) - 20000 / len(counts)) < 8 * (20000 / 3 * 2 / 3) ** 0.5 for n in counts)


def test_rounded_means_are_unbiased(make: Any) -> None:
    """Units with three rows, of which one row's mean counts: 1/3 on average, each unit 0 or 1."""
    rows = """CREATE TABLE data AS SELECT i // 3 AS u, DATE '2013-01-01' + (i // 3 % 2)::INT AS d, CAST(i % 3 = 0 AS INT) AS v
              FROM range(60000) t(i)"""
    made = make(
        rows,
        block="d",
        protects="unit-block",
        cached_partials="checked",
        columns={"v": {"lower": 0, "upper": 1}},
    )
    total = PrivateTable(made.declaration, seal=seal).answer(
        GroupedSums(None, None, 1, 1, (("v", 0),)), DAYS[:2]
    )
    assert abs(int(total.sums["v"][0]) - 20000 / 3) < 8 * (20000 * 2 / 9) ** 0.5


def test_sums_at_the_limit_do_not_wrap() -> None:
    """Sums that stopped at 2^62 in three blocks stop there together."""
    from dpflow.testing.examples import make_groups

    request = GroupedSums(None, None, 1, 1, (("v", 0),))
    huge = [make_groups(request, ("",), 1, 2**62)] * 3 + [make_groups(request, ("",), 1, -5)]
    found = cached_blocks.merge_parts(huge)
    assert (
        isinstance(found, type(huge[0]))
        and found.sums["v"].tolist() == [2**62]
        and found.rows.tolist() == [4]
    )
