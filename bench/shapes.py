"""Shapes that the workloads of `bench.tables` leave out: unit ids of 64 random bits and UUIDs, ten sums in
one release, four million private keys, each beside the best un-noised SQL for the same bound; and
sealed partial aggregates beside checked ones.

Ten million rows of a million units, even; UUIDs also skewed, as in `bench.tables`. `python -m bench
shapes` takes some minutes on two cores.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import duckdb

from bench import tables
from bench.events import REGIONS, make
from bench.tables import sql
from bench.timing import hold, show, wall_and_cpu
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import DataRequest, GroupedSums
from dpflow.tables.private import PrivateTable

ROWS, UNITS, KEYS, SUMS, DAYS = 10_000_000, 1_000_000, 4_000_000, 10, 365

_TABLE = """
CREATE TABLE shapes AS
SELECT u AS small, CAST(hash(u) >> 1 AS BIGINT) AS wide, CAST(md5(CAST(u AS VARCHAR)) AS UUID) AS id,
       CAST(i % {keys} AS BIGINT) AS key, {amounts}
FROM (SELECT i, CAST(hash(i, 77) % {units} AS BIGINT) AS u FROM range({rows}) t(i))
"""


def clamped(i: int) -> str:
    """An amount within its bounds."""
    return f"least(greatest(a{i}, 0), 200)"


def rescaled(unit: str, sums: int) -> str:
    """Sums of units with at most 6 rows, as that many times their mean."""
    added = ", ".join(f"sum({clamped(i)}) AS s{i}" for i in range(sums))
    scaled = ", ".join(f"sum(s{i} * least(1, 6 / c))" for i in range(sums))
    return f"SELECT sum(least(c, 6)), {scaled} FROM (SELECT count(*) AS c, {added} FROM shapes GROUP BY {unit})"


_WORD = f"CAST(random() * {1 << 20} AS BIGINT) * {1 << 42} + key * 4 + least(c, 2)"
KEPT = (
    f"SELECT (x >> 2) & {2**40 - 1}, sum(x & 3), count(*) FROM (SELECT unnest(min(CAST({_WORD} AS BIGINT), 3)) AS x "
    f"FROM (SELECT small, key, count(*) AS c FROM shapes GROUP BY ALL) GROUP BY small) GROUP BY 1"
)


def sum_columns(sums: int) -> GroupedSums:
    """A total of the first amounts."""
    return GroupedSums(None, None, 1, 6, tuple((f"a{i}", 0) for i in range(sums)))


#: Units of 64 bits and UUIDs are added up in a hash table, as by the floors; rounding values to exact sums, and the draws,
#: come to that. What is reached, as a profile shows.
REACHED = {
    "count and sum, skewed UUIDs": 1.3,
}
CASES: tuple[tuple[str, str, DataRequest, str], ...] = (
    ("count and sum, small unit ids", "small", sum_columns(1), rescaled("small", 1)),
    ("count and sum, unit ids of 64 bits", "wide", sum_columns(1), rescaled("wide", 1)),
    ("count and sum, UUIDs", "id", sum_columns(1), rescaled("id", 1)),
    ("ten sums", "small", sum_columns(SUMS), rescaled("small", SUMS)),
    ("count by 4 million private keys", "small", GroupedSums("key", None, 3, 2), KEPT),
)


def declare_table(path: Path, unit: str) -> PrivateTable:
    """The table with one of its columns as unit."""
    columns: dict[str, dict[str, int]] = {f"a{i}": {"lower": 0, "upper": 200} for i in range(SUMS)}
    declared = {
        "name": "shapes",
        "database": path,
        "privacy_unit": {"column": unit},
        "contribution_bounds": {"rows": 6, "groups": 3, "rows_per_group": 2},
        "columns": columns | {"key": {}},
    }
    return PrivateTable(Table.model_validate(declared))


def main() -> None:
    """One line for each shape."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shapes.duckdb"
        amounts = ", ".join(f"CAST(hash(i, {j}) % 220 AS INTEGER) AS a{j}" for j in range(SUMS))
        with duckdb.connect(str(path)) as connection:
            connection.execute("SET preserve_insertion_order = false")
            connection.execute(_TABLE.format(keys=KEYS, units=UNITS, rows=ROWS, amounts=amounts))
        lines = [
            measure_shape(name, declare_table(path, unit), request, path, [floor])
            for name, unit, request, floor in CASES
        ]
        path.unlink()
        make(path, ROWS, unit="UUID")
        _, request, _, floors, _ = tables.CASES[0]
        name = "count and sum, skewed UUIDs"
        lines.append(measure_shape(name, tables.table(path), request, path, [*floors.values()]))
    head = ("work", "dpflow", "best SQL", "ratio", "of CPU")
    show(f"further shapes, {ROWS:,} rows: seconds on the wall, and of the processor", head, lines)
    measure_partials()


def measure_shape(
    name: str, private: PrivateTable, request: DataRequest, path: Path, floors: Sequence[str]
) -> tuple[str, ...]:
    """A line of the table: our time beside that of the best floor."""
    actions: dict[str, Callable[[], object]] = {"dpflow": partial(private.answer, request, ())}
    actions |= {floor: sql(path, floor) for floor in floors}
    (wall, cpu), *others = wall_and_cpu(actions, repeats=5).values()
    floor_wall, floor_cpu = (min(other[i] for other in others) for i in (0, 1))
    hold(f"{name}, of the best SQL", wall / floor_wall, tables.BAR, reached=REACHED.get(name))
    return (
        name,
        f"{wall:.2f} s, {cpu:.2f} s",
        f"{floor_wall:.2f} s, {floor_cpu:.2f} s",
        f"{wall / floor_wall:.2f}",
        f"{cpu / floor_cpu:.2f}",
    )


def measure_partials() -> None:
    """A release over a year of days whose sums are cached, sealed and checked."""
    days = [str(date(2025, 1, 1) + timedelta(i)) for i in range(DAYS)]
    request = GroupedSums("region", REGIONS, 3, 2, (("amount", 0),))
    actions = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.duckdb"
        make(path, ROWS // 10, DAYS)
        for partials in ("checked", "sealed"):
            # Sums are cached beside the file, under its name.
            link = path.with_name(f"{partials}.duckdb")
            link.symlink_to(path)
            declared = tables.table(link).declaration.model_dump() | {
                "block": "day",
                "protects": "unit-block",
                "cached_partials": partials,
            }
            table = PrivateTable(Table.model_validate(declared), seal=_seal)
            actions[partials] = partial(table.answer, request, days)
        taken = wall_and_cpu(actions, repeats=5)
    hold(
        "a release over sealed blocks, of checked ones", taken["sealed"][0] / taken["checked"][0], 1
    )
    lines = [
        (name, f"{1000 * wall:.0f} ms", f"{1000 * cpu:.0f} ms")
        for name, (wall, cpu) in taken.items()
    ]
    head = ("cached partials", "on the wall", "of the processor")
    show(f"a release over {DAYS} cached blocks", head, lines)


def _seal(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main()
