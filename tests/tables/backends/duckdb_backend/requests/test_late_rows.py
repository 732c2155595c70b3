"""Thirty days of cached sums, with rows that arrive late: one unit moves no release by more than the
noise is fitted to, block by block.
"""

from __future__ import annotations

from typing import Any

import pytest
from cached_tables import again, write

from dpflow.core.contract.requests import GroupedSums

#: Rows of one unit in one block that count, and the largest value.
MOST, PEAK = 2, 10
REQUEST = GroupedSums(None, None, 1, MOST, (("v", 0),))
DAYS = [f"2013-01-{day:02}" for day in range(1, 31)]


def release_history(make: Any, mode: str, blocks: set[int], days: int, every: int) -> list[int]:
    """The sum of all blocks so far, at every release, where unit 1000 has rows in these blocks only.

    On its day one row of it arrives. Three days later, when the block may be released already, come
    two more, so that they are one too many; others' rows come late, too.
    """
    made = make(
        "CREATE TABLE data (u INTEGER, d DATE, v INTEGER)",
        block="d",
        protects="unit-block",
        cached_partials=mode,
        contribution_bounds={"rows": MOST},
        columns={"v": {"lower": 0, "upper": PEAK}},
    )
    table, releases = again(made), []
    for today, day in enumerate(DAYS[:days]):
        rows = [f"({unit}, '{day}', {unit % 7})" for unit in range(20)]
        rows += [f"(1000, '{day}', {PEAK})"] * (today in blocks)
        late = today - 3
        if late >= 0:
            rows += [f"({unit}, '{DAYS[late]}', 5)" for unit in range(3)]
            rows += [f"(1000, '{DAYS[late]}', {PEAK})"] * 2 * (late in blocks)
        write(table, f"INSERT INTO data VALUES {', '.join(rows)}")
        if today % every == every - 1:
            releases.append(int(again(table).answer(REQUEST, DAYS[: today + 1]).sums["v"][0]))
    return releases


@pytest.mark.parametrize("mode", ["checked", "sealed"])
@pytest.mark.parametrize(("days", "every"), [(8, 4), pytest.param(30, 1, marks=pytest.mark.slow)])
def test_late_rows_stay_within_the_sensitivity(make: Any, mode: str, days: int, every: int) -> None:
    """A unit in one block moves every release by the sensitivity at most; in all blocks, by that for
    each block. Rows that come before a block is sealed reach it.
    """
    without = release_history(make, mode, set(), days, every)
    once = release_history(make, mode, {0}, days, every)
    everywhere = release_history(make, mode, set(range(days)), days, every)
    declared = make("CREATE TABLE data (u INTEGER)", contribution_bounds={"rows": MOST})
    claimed = declared.declaration.sensitivity(REQUEST).sum("v").l1
    shifts = [a - b for a, b in zip(once, without, strict=True)]
    assert max(map(abs, shifts)) <= claimed == MOST * PEAK
    # Sealed after its first day the block keeps the one row that was there.
    assert shifts[-1] == (PEAK if mode == "sealed" and every == 1 else claimed)
    for number, (a, b) in enumerate(zip(everywhere, without, strict=True)):
        assert 0 < a - b <= claimed * every * (number + 1)


def test_bounding_what_comes_late_by_itself_is_caught(make: Any) -> None:
    """The control: a cache that adds the bounded late rows to the bounded early ones moves a block by
    one row more than the noise hides.
    """
    columns = {"v": {"lower": 0, "upper": PEAK}}
    parts = []
    for rows in ("(1000, 10)", "(1000, 10), (1000, 10)"):
        table = make(
            "CREATE TABLE data (u INTEGER, v INTEGER)",
            f"INSERT INTO data VALUES {rows}",
            contribution_bounds={"rows": MOST},
            columns=columns,
        )
        parts.append(int(table.answer(REQUEST, []).sums["v"][0]))
    assert sum(parts) == 3 * PEAK > MOST * PEAK
