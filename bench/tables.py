"""Bounded aggregates of 10 million rows against the best un-noised SQL we know for the same bound,
in the same run.

W1 total count and sum, W2 count and sum by 50 regions, W3 count by 10,000 private categories, W4
quantiles: a unit has at most 3 groups with 2 rows each (6 rows where there are no groups). The
other case: a million units, 1,000 groups, 5 of them a unit. `python -m bench.tables --growth`
measures 100 million rows, which takes ten minutes and 2 GB of disk. `python -m bench.tables
--units` has units that are texts and UUIDs, which go through queries on both sides. Floors clamp
and cut, but know no NaN, no NULL and no declared grid, and draw no noise; the fastest of several is
taken.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import duckdb

from bench.events import REGIONS, SECTORS, make
from bench.timing import hold, show, wall_and_cpu
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import DataRequest, GroupedSums, SortedValues
from dpflow.tables.private import PrivateTable

ROWS = 10_000_000
#: The most of the best bounded SQL, and of a hash aggregate without any bound.
BAR, BARE_BAR = 1.0, 1.1
#: By workload, the hash aggregate that its bound needs: `GROUP BY unit[, key]`, and nothing else.
BARE = {
    "W1 count and sum": "unit",
    "W2 by 50 regions": "unit, region",
    "W3 by 10,000 private keys": "unit, category",
}
CLAMPED = "least(greatest(amount, 0), 200)"
ENUM = "CAST({} AS ENUM ({}))"


def rescaled(word: str, groups: int, code: str, from_: str, bits: int) -> str:
    """Count and sum by a coded column: cells of one word each, of which every unit keeps the least
    few.
    """
    top = 1 << (18 + bits)
    cells = f"SELECT unit, {code} AS g, {word} FROM {from_} GROUP BY ALL"
    packed = (
        f"CAST(CAST(random() * {1 << 30} AS BIGINT) * {top} + g * {1 << 18} + least(c, 2) * {1 << 16} "
        f"+ CAST(s * least(1, 2 / c) AS BIGINT) AS BIGINT)"
    )
    kept = f"SELECT unnest(min({packed}, {groups})) AS x FROM ({cells}) GROUP BY unit"
    return f"SELECT (x >> 18) & {(1 << bits) - 1} AS g, sum((x >> 16) & 3), sum(x & 65535) FROM ({kept}) GROUP BY 1"


def coded(column: str, keys: tuple[str, ...], groups: int, bits: int) -> dict[str, str]:
    """Floors of count and sum by a text column with known keys: its codes by an ENUM or a join."""
    listed = ", ".join(f"'{key}'" for key in keys)
    two = f"count(*) AS c, sum({CLAMPED}) AS s"
    code = f"enum_code({ENUM.format(column, listed)})"
    join = f"events JOIN (SELECT unnest([{listed}]) AS {column}, unnest(range({len(keys)})) AS code) USING ({column})"
    return {
        "ENUM, packed": rescaled(two, groups, code, "events", bits),
        "join, packed": rescaled(two, groups, "code", join, bits),
    }


def window(column: str | None, groups: int) -> str:
    """The usual form: rows and groups numbered by windows."""
    rows = f"SELECT *, row_number() OVER (PARTITION BY unit{', ' + column if column else ''} ORDER BY hash(rowid)) AS n"
    if column is None:
        return f"SELECT count(*), sum({CLAMPED}) FROM ({rows} FROM events) WHERE n <= 6"
    cells = f"SELECT unit, {column} AS g, count(*) AS c, sum({CLAMPED}) AS s FROM ({rows} FROM events) WHERE n <= 2 GROUP BY ALL"
    ranked = f"SELECT *, row_number() OVER (PARTITION BY unit ORDER BY hash(unit, g)) AS n FROM ({cells})"
    return f"SELECT g, sum(c), sum(s) FROM ({ranked}) WHERE n <= {groups} GROUP BY 1"


DRAWN = f"min(CAST(random() * {1 << 30} AS BIGINT) * 65536 + CAST({CLAMPED} AS BIGINT), 6)"
PACKED_KEYS = f"min(CAST(CAST(random() * {1 << 28} AS BIGINT) * {1 << 34} + category * 4 + least(c, 2) AS BIGINT), 3)"
Case = tuple[str, DataRequest, str, dict[str, str], str]
CASES: tuple[Case, ...] = (
    (
        "W1 count and sum",
        GroupedSums(None, None, 1, 6, (("amount", 0),)),
        window(None, 1),
        {
            "two sums": f"SELECT sum(least(c, 6)), sum(s * least(1, 6 / c)) FROM (SELECT count(*) AS c, sum({CLAMPED}) AS s "
            f"FROM events GROUP BY unit)",
            "one sum": f"SELECT sum(least(c, 6)), sum((w - c * {2**40}) * least(1, 6 / c)) FROM "
            f"(SELECT w, w // {2**40} AS c FROM (SELECT sum({CLAMPED} + {2**40}) AS w FROM events GROUP BY unit))",
        },
        "0.90",
    ),
    (
        "W2 by 50 regions",
        GroupedSums("region", REGIONS, 3, 2, (("amount", 0),)),
        window("region", 3),
        coded("region", REGIONS, 3, 6),
        "0.64",
    ),
    (
        "W3 by 10,000 private keys",
        GroupedSums("category", None, 3, 2),
        window("category", 3),
        {
            "packed": f"SELECT (x >> 2) & {2**32 - 1}, sum(x & 3), count(*) FROM (SELECT unnest({PACKED_KEYS}) AS x FROM "
            f"(SELECT unit, category, count(*) AS c FROM events GROUP BY ALL) GROUP BY unit) GROUP BY 1"
        },
        "0.93",
    ),
    (
        "W4 values for quantiles",
        SortedValues("amount", 6),
        f"SELECT quantile_cont(a, [0.1, 0.5, 0.9]) FROM (SELECT {CLAMPED} AS a, row_number() OVER (PARTITION BY unit "
        f"ORDER BY hash(rowid)) AS n FROM events) WHERE n <= 6",
        {
            "top-n": f"SELECT quantile_cont(a, [0.1, 0.5, 0.9]) FROM (SELECT unnest(arg_min({CLAMPED}, hash(rowid), 6)) AS a "
            f"FROM events GROUP BY unit)",
            "packed": f"SELECT x & 65535, count(*) FROM (SELECT unnest({DRAWN}) AS x FROM events GROUP BY unit) GROUP BY 1",
        },
        "1.75",
    ),
    (
        "1,000 groups, 5 a unit",
        GroupedSums("sector", SECTORS, 5, 2, (("amount", 0),)),
        "",
        coded("sector", SECTORS, 5, 10),
        "",
    ),
)


def table(path: Path) -> PrivateTable:
    """The benchmark's table as an owner declares it."""
    return PrivateTable(
        Table.model_validate(
            {
                "name": "events",
                "database": path,
                "privacy_unit": {"column": "unit"},
                "contribution_bounds": {"rows": 6, "groups": 3, "rows_per_group": 2},
                "columns": {
                    "region": {"public_keys": REGIONS},
                    "sector": {"public_keys": SECTORS, "groups": 5},
                    "category": {},
                    "amount": {"lower": 0, "upper": 200},
                },
            }
        )
    )


def sql(path: Path, text: str) -> Callable[[], object]:
    """A query that computes and fetches a floor's answer."""

    def run() -> object:
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute("SET preserve_insertion_order = false")
            return connection.execute(text).fetchnumpy()

    return run


def main(rows: int = ROWS, unit: str = "BIGINT") -> None:
    """One line for each workload."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.duckdb"
        make(path, rows, unit=unit)
        private = table(path)
        lines = []
        for name, statistic, windows, floors, peer in CASES:
            actions = {"dpflow": partial(private.answer, statistic, ())}
            actions |= {floor: sql(path, text) for floor, text in floors.items()}
            if windows:
                actions["windows"] = sql(path, windows)
            if keys := BARE.get(name):
                aggregate = f"SELECT count(*) AS c, sum(amount) AS s FROM events GROUP BY {keys}"
                actions["bare"] = sql(path, f"SELECT sum(c), sum(s) FROM ({aggregate})")
            taken = wall_and_cpu(actions, repeats=3)
            best = min(floors, key=taken.__getitem__)
            ours, floor = taken["dpflow"], taken[best]
            hold(f"{name}, {unit} units, of the best SQL", ours[0] / floor[0], BAR)
            if keys:
                bare = taken["bare"][0]
                hold(f"{name}, {unit} units, of GROUP BY {keys}", ours[0] / bare, BARE_BAR)
            lines.append(
                (
                    name,
                    f"{ours[0]:.2f} s",
                    f"{floor[0]:.2f} s ({best})",
                    f"{ours[0] / floor[0]:.2f}",
                    f"{ours[1] / floor[1]:.2f}",
                    f"{ours[0] / taken['windows'][0]:.2f}" if windows else "",
                    f"{ours[0] / taken['bare'][0]:.2f}" if keys else "",
                    peer,
                )
            )
    head = (
        "work",
        "dpflow",
        "best SQL",
        "ratio",
        "of CPU",
        "times the window SQL",
        "times GROUP BY",
        "best peer's",
    )
    show(f"bounded aggregates, {rows:,} rows, {unit} units", head, lines)


def growth(rows: int = 10 * ROWS) -> None:
    """Every workload on ten times as many rows: time by row against the smaller table, beside the
    last of its floors, and memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{size}.duckdb" for size in (rows // 10, rows)]
        for path, size in zip(paths, (rows // 10, rows), strict=True):
            make(path, size)
        lines = []
        for number, (name, *_) in enumerate(CASES):
            small, large, *floor = (
                _alone(path, number, ours) for ours in (True, False) for path in paths
            )
            hold(f"{name}, growth of CPU by row", large[1] / small[1] / 10, 1.3)
            hold(f"{name}, memory in GiB", large[2] / 2**20, 4)
            lines.append(
                (
                    name,
                    *(f"{wall:.1f} s, {cpu:.1f} s" for wall, cpu, _ in (small, large, floor[1])),
                    f"{large[0] / small[0] / 10:.2f}, {large[1] / small[1] / 10:.2f}",
                    f"{floor[1][0] / floor[0][0] / 10:.2f}, {floor[1][1] / floor[0][1] / 10:.2f}",
                    f"{large[2] / 2**20:.1f} GiB",
                )
            )
    sizes = (f"{rows // 10:,} rows", f"{rows:,} rows", "SQL")
    head = ("work", *sizes, "growth by row", "of SQL", "memory")
    show("ten times the rows: seconds on the wall, and of the processor", head, lines)


def _alone(path: Path, number: int, ours: bool) -> tuple[float, float, int]:
    """Wall and CPU seconds and KiB of memory of one workload in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, path, number, ours).result()


def _measured(path: Path, number: int, ours: bool) -> tuple[float, float, int]:
    _, statistic, _, floors, _ = CASES[number]
    action = (
        partial(table(path).answer, statistic, ()) if ours else sql(path, list(floors.values())[-1])
    )
    ((wall, cpu),) = wall_and_cpu({"": action}, repeats=1).values()
    return wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    if "--growth" in sys.argv:
        growth()
    elif "--units" in sys.argv:
        main(unit="VARCHAR")
        main(unit="UUID")
    else:
        main()
