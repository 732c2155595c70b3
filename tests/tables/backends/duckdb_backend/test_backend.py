"""DuckDB passes the suite of query backends, and the suite finds a backend that breaks a promise."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file, load_texts

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.errors import PluginError, TableInterrupted, UnknownName
from dpflow.tables.backends import discovery, find_backend
from dpflow.tables.backends.duckdb_backend import DuckDBBackend
from dpflow.tables.private import PrivateTable
from dpflow.testing import backend_bounds
from dpflow.testing import backend_checks as suite
from dpflow.testing.backend_relations import Bench, Content
from dpflow.testing.harness import NotConformant

COUNT = GroupedSums(None, None, 1, 10)


class Files:
    """Makes DuckDB files out of texts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, 0

    def __call__(self, relations: Mapping[str, Content]) -> dict[str, Any]:
        self.made += 1
        path = self.folder / f"{self.made}.duckdb"
        with duckdb_file(path) as connection:
            for name, (columns, rows) in relations.items():
                load_texts(connection, columns, rows)
                casts = ", ".join(f'CAST("{c}" AS {kind}) AS "{c}"' for c, kind in columns.items())
                connection.execute(
                    f"SET TimeZone = 'UTC'; CREATE TABLE {name} AS SELECT {casts} FROM texts"
                )
        return {"database": path}


CHECKS = {check.name: check for check in suite.backend_checks("duckdb", lambda _: {})}


@pytest.mark.parametrize("name", CHECKS)
def test_duckdb_keeps_the_contract(name: str, tmp_path: Path) -> None:
    """Every check of the suite."""
    (check,) = (c for c in suite.backend_checks("duckdb", Files(tmp_path)) if c.name == name)
    check.run()


@pytest.mark.slow
def test_a_million_keys(tmp_path: Path) -> None:
    """As many private keys as rows."""
    checks = list(suite.backend_checks("duckdb", Files(tmp_path), max_keys=10**6))
    checks[-1].run()


class Unbounded(DuckDBBackend):
    """Keeps one row, or group, more than the request says."""

    name = "unbounded"

    def answer(self, request: Any, blocks: Any, nonce: int | None = None) -> Any:
        return super().answer(loosen(request), blocks, nonce)

    @contextmanager
    def open_answer(self, request: Any, blocks: Any, nonce: int | None = None) -> Iterator[Any]:
        with super().open_answer(loosen(request), blocks, nonce) as answer:
            yield answer


class Overall(DuckDBBackend):
    """Bounds a unit's rows in each group, and not in all groups together."""

    name = "overall"

    def answer(self, request: Any, blocks: Any, nonce: int | None = None) -> Any:
        return super().answer(replace(request, rows=None), blocks, nonce)


def loosen(request: Any) -> Any:
    """The same with its last bound one higher."""
    bound = next(name for name in ("rows_per_group", "rows", "groups") if hasattr(request, name))
    return replace(request, **{bound: getattr(request, bound) + 1})


class Careless(DuckDBBackend):
    """Draws without its nonce, keeps two joined rows, and counts a unit's rows twice in groups."""

    name = "careless"

    def __init__(self, table: Any, where: Any, seal: Any = None) -> None:
        joins = [join.model_copy(update={"rows": 2}) for join in table.joins]
        super().__init__(table.model_copy(update={"joins": joins}), where, seal)

    def answer(self, request: Any, blocks: Any, nonce: int | None = None) -> Any:
        return super().answer(request, blocks)

    @contextmanager
    def open_answer(self, request: Any, blocks: Any, nonce: int | None = None) -> Iterator[Any]:
        with super().open_answer(request, blocks) as answer:
            yield answer

    def group_moments(self, request: Any, secret: bytes, blocks: Any) -> Any:
        return {
            name: 2 * one for name, one in super().group_moments(request, secret, blocks).items()
        }


class Forgetful(DuckDBBackend):
    """Tells other numbers than those that it draws by."""

    name = "forgetful"

    def keyed_fractions(self, nonce: int, cells: Any, *words: str) -> Any:
        return 1 - super().keyed_fractions(nonce, cells, *words)


def register(monkeypatch: pytest.MonkeyPatch, *classes: Any) -> None:
    points = EntryPoints(
        EntryPoint(one.name, f"{one.__module__}:{one.__qualname__}", discovery.GROUP)
        for one in classes
    )
    monkeypatch.setattr(discovery, "entry_points", lambda group: points.select(group=group))


JOINED = backend_bounds.joined_rows_are_bounded
BY_NONCE = (
    backend_bounds.sums_are_bounded,
    backend_bounds.values_are_bounded,
    backend_bounds.sets_are_bounded,
    backend_bounds.records_are_bounded,
)
BROKEN = [
    *((Unbounded, rule) for rule in BY_NONCE),
    *((bad, rule) for bad in (Forgetful, Careless) for rule in (*BY_NONCE, JOINED)),
    (Careless, backend_bounds.holdout_groups_are_exact),
    (Overall, backend_bounds.sums_are_bounded),
]


@pytest.mark.parametrize(("bad", "rule"), BROKEN)
def test_the_suite_finds_a_bad_backend(
    bad: Any, rule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a third party's backend, found by its entry point, that lets a unit
    contribute more, draws by other numbers than it says, or by none.
    """
    register(monkeypatch, bad)
    assert find_backend(bad.name) is bad
    with pytest.raises(NotConformant):
        rule(Bench(bad.name, Files(tmp_path)))


def test_one_line_runs_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on after a broken rule, and names all that are broken."""
    register(monkeypatch, Unbounded)
    rules = (suite.snapshots_are_told_apart, *BY_NONCE[2:])
    monkeypatch.setattr(suite, "RULES", rules)
    with pytest.raises(NotConformant) as raised:
        suite.check_backend("unbounded", Files(tmp_path), max_keys=9, types={"DATE"})
    named = [line.split(":")[1].strip() for line in str(raised.value).splitlines()]
    assert named == ["sets_are_bounded", "records_are_bounded"]


def test_a_backend_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that nobody or two register, and an object that is no backend, are refused."""
    register(monkeypatch, Unbounded, Unbounded)
    with pytest.raises(PluginError, match="two distributions"):
        find_backend("unbounded")
    with pytest.raises(UnknownName, match="did you mean 'unbounded'"):
        find_backend("unbounde")
    points = EntryPoints([EntryPoint("odd", "pathlib:Path", discovery.GROUP)])
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)
    with pytest.raises(PluginError, match="not a QueryBackend"):
        find_backend("odd")


def test_a_query_is_cancelled(make: Any) -> None:
    """From another thread, with an error that says that a retry helps and nothing of the rows."""
    table = make("CREATE TABLE data AS SELECT range AS u, 1 AS v, 'a' AS k FROM range(3000000)")
    stop = threading.Event()

    def cancel_often() -> None:
        while not stop.wait(0.005):
            table.cancel()

    thread = threading.Thread(target=cancel_often)
    thread.start()
    try:
        with pytest.raises(TableInterrupted, match="cancelled") as raised:
            for _ in range(50):
                table.answer(SortedValues("v", 1), ())
    finally:
        stop.set()
        thread.join()
    assert raised.value.retryable
    assert int(table.answer(GroupedSums(), ()).rows[0]) == 3_000_000


def test_a_file_that_takes_the_place_of_an_open_one_is_another_state(tmp_path: Path) -> None:
    """Inside `hold_open` identity and rows are those of the file that was opened, whatever is renamed to its path."""
    place, next_file = tmp_path / "visits.duckdb", tmp_path / "next.duckdb"
    for path, n in ((place, 3), (next_file, 5)):
        with duckdb_file(path) as connection:
            connection.execute(f"CREATE TABLE visits AS SELECT i AS person FROM range({n}) t(i)")
    private = PrivateTable(
        Table.model_validate(
            {
                "name": "visits",
                "database": place,
                "privacy_unit": {"column": "person"},
                "contribution_bounds": {"rows": 1},
                "columns": {},
            }
        )
    )
    with private.hold_open():
        before = private.data_identity()
        next_file.replace(place)
        assert private.data_identity() == before
        # Also of what is held within.
        with private.hold_open():
            assert private.answer(COUNT, ()).rows.tolist() == [3]
    assert private.data_identity() != before and private.answer(COUNT, ()).rows.tolist() == [5]
