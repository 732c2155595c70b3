"""What only rows hold is looked for in everything that a failure leaves behind, at every door.

The private file holds texts and a number that nothing else holds. Then everything fails that can:
each statement that DuckDB executes, with errors that quote them, and the file itself. Nothing of
them may be in a stream, a log, a warning, a file, or in what an exception carries.
"""

from __future__ import annotations

import datetime as dt
import functools
import io
import itertools
import json
import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import pytest
import sqlalchemy as sa

from dpflow import Session, api, error_boundary, plan, quality, release
from dpflow.cli.commands import run_app
from dpflow.engine import fail_closed
from dpflow.errors import DpflowError
from dpflow.ledger import Ledger
from dpflow.quality import validate
from dpflow.quality.page import write_html
from dpflow.registry import Registry
from dpflow.tables import open_rows
from dpflow.tables.access import isolated_database
from dpflow.tables.access.declarations import load_table
from dpflow.tables.loading import build_database
from dpflow.tables.loading.csv_files import CsvSource

if TYPE_CHECKING:
    from smallworld import Tiny

TEXT, NUMBER = "QX7canary7XQ", 481516234208
#: In unit, block, key, value and condition columns; a unit whose rows no rule foresees.
ROWS = f"""
CREATE TABLE visits AS
SELECT 'p' || i || (CASE WHEN i % 50 = 7 THEN '{TEXT}' ELSE '' END) AS person,
       CASE WHEN i = 3 THEN {NUMBER} ELSE i % 101 END AS age,
       i % 2 AS sick, CASE WHEN i % 20 = 0 THEN '{TEXT}' ELSE 'Oslo' END AS city,
       '{TEXT}' || i AS note, 'n' || i AS name, DATE '2020-01-01' AS day
FROM range(1000) t(i)
"""
COLUMNS = {
    "age": {"lower": 0, "upper": 120},
    "sick": {"lower": 0, "upper": 1},
    "city": {"public_keys": ["Oslo", "Rome"]},
    "note": {},
    "name": {},
}


class World:
    """The tiny world with canaries in its rows; every call of a door is a new release."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny, self.folder, self._numbers = tiny, tiny.folder, itertools.count()
        tiny.fill(ROWS)
        declared = {"block": None, "protects": "unit", "contribution_bounds": {"rows": 1}}
        # One of the breaks puts a view in the table's place.
        declared["trusted_sql"] = ["visits"]
        self.table = tiny.declare(**declared, columns=COLUMNS)
        self.by_day = self.folder / "by_day.yml"
        self.by_day.write_text(self.table.read_text().replace("block: null", "block: day"))
        self.open_table = self.folder / "open.yml"
        self.open_table.write_text(self.table.read_text() + "generalisation_only: true\n")
        self.bytes = tiny.database.read_bytes()
        ledger = Ledger(tiny.ledger)
        table = load_table(self.table)
        ledger.grant(
            "all", 1000, "1e-3", filter="basic", table=table, principal="owner", confirm_large=True
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.tiny.ledger)

    def make_ledger(self) -> Ledger:
        """One that knows of no other session."""
        ledger = Ledger(self.folder / f"ledger{next(self._numbers)}.sqlite", create=True)
        table = load_table(self.table)
        ledger.grant("all", 2, 0, filter="basic", table=table, principal="owner")
        return ledger

    def restore(self) -> None:
        """The private file as it was."""
        self.tiny.database.unlink(missing_ok=True)
        self.tiny.database.write_bytes(self.bytes)

    def request(self, **changes: Any) -> dict[str, Any]:
        """A release file's fields, of a name that was never used."""
        return {
            "name": f"r{next(self._numbers)}",
            "mechanism": "sum",
            "table": "visits.yml",
            "scope": "all",
            "where": "note LIKE '%1%'",
            "params": {"column": "age", "epsilon": "0.01"},
            **changes,
        }

    def plan(self, mechanism: str, epsilon: str = "0.01", **changes: Any) -> Any:
        """A plan of a name that was never used."""
        name = f"r{next(self._numbers)}"
        return plan(mechanism, self.table, name=name, scope="all", epsilon=epsilon, **changes)


def release_sum(world: World) -> None:
    release(world.plan("sum", column="age", where="note LIKE '%1%'"), world.ledger)


def release_histogram(world: World) -> None:
    release(world.plan("histogram", by="city"), world.ledger)


def release_private_keys(world: World) -> None:
    """Keys that nobody declared; few units have the canary, so it is not released."""
    keys = world.plan("private_histogram", by="name", delta="1e-9", where="note IS NOT NULL")
    release(keys, world.ledger)
    release(world.plan("median", column="age", by="city"), world.ledger)


def ask_session(world: World) -> None:
    params = {"groups": 250, "queries": 3, "range_size": 1001}
    planned = world.plan("stable_median", **params | {"epsilon": "0.5"})
    session = Session.open(planned, world.make_ledger(), Registry.load())
    grid = {"kind": "grid", "lower": 0, "upper": 100, "step": "0.1"}
    session.ask({"estimator": "column_mean", "columns": ["age"], "range": grid})


def ask_predictions(world: World) -> None:
    planned = world.plan(
        "predict_vote", features=["age", "city"], label="sick", predictions=2, shards=30
    )
    api.open_predictions(planned, world.ledger).predict([[30, "Oslo"]])


def check_contract(world: World) -> None:
    quality.check(load_table(world.table))


def pay_contract(world: World) -> None:
    """Checks of every kind, decided from noisy numbers or watched; all that they show is a file."""
    checks = [
        {"name": "notes", "check": "violations", "condition": "note LIKE '%1%'", "at_most": "0.9"},
        {"name": "gaps", "check": "nulls", "column": "note", "at_most": "0.5"},
        {"name": "keys", "check": "unknown_keys", "column": "city", "at_most": "0.5"},
        {"name": "half", "check": "quantile", "column": "age", "p": "0.5", "at_most": 100},
        {"name": "mean", "check": "mean", "column": "age", "at_most": 100},
        {"name": "fresh", "check": "freshness", "column": "age", "since": 1, "at_least": 1},
    ]
    fields = {"table": "by_day.yml", "scope": "all", "epsilon": "0.5", "checks": checks}
    number = next(world._numbers)
    # By turns, for both read the same sums.
    mode = {"mode": "metered"} if number % 2 else {"mode": "watch", "period": "run"}
    contract = quality.parse_contract(fields | mode | {"name": f"c{number}"}, world.folder)
    outcome = quality.run_contract(contract, ["2020-01-01"], ledger=world.ledger)
    shown = write_html(outcome) + json.dumps(outcome.to_json()) + repr(outcome)
    (world.folder / f"c{number}.html").write_text(shown)


def hand_out_rows(world: World) -> None:
    open_rows(world.open_table)


def run_operator(world: World) -> None:
    """A release, then the contract, as tasks; Airflow's own exception is what the log shows."""
    from dpflow.airflow import DataContractOperator, ReleaseOperator

    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    instance = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1, "try_number": 1}
    context = {
        "ti": SimpleNamespace(**instance),
        "dag_run": SimpleNamespace(partition_key=None),
        "dag": SimpleNamespace(fileloc=str(world.folder / "dag.py")),
        "logical_date": day + dt.timedelta(days=next(world._numbers)),
        "data_interval_start": None,
        "data_interval_end": None,
    }
    tasks = [
        ReleaseOperator(task_id="t", release=world.request(), spend_again=True),
        DataContractOperator(task_id="c", table="visits.yml"),
    ]
    for task in tasks:
        assert TEXT not in json.dumps(task.execute(context))


def run_command(world: World) -> None:
    """`dpflow release`; ends the process with one sentence on stderr."""
    file = world.folder / "release.yml"
    file.write_text(json.dumps(world.request()))
    words = ["dpflow", "release", str(file), "--ledger", str(world.tiny.ledger)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", words)
        run_app()


DOORS: dict[str, Callable[[World], None]] = {
    "release": release_sum,
    "release by keys": release_histogram,
    "release of private keys": release_private_keys,
    "session": ask_session,
    "predictions": ask_predictions,
    "contract": check_contract,
    "paid contract": pay_contract,
    "rows for models": hand_out_rows,
    "operators": run_operator,
    "command": run_command,
}

# --- What is looked at ---------------------------------------------------------------------------


class Watch:
    """Everything that a failure leaves behind, as text."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd, self.stream = folder, capfd, io.StringIO()
        self.texts: list[str] = []

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Hear all loggers at their loudest, and all warnings."""
        handler, root = logging.StreamHandler(self.stream), logging.getLogger()
        loud = [root, *map(logging.getLogger, ("sqlalchemy", "sqlalchemy.engine"))]
        levels = [logger.level for logger in loud]
        root.addHandler(handler)
        for logger in loud:
            logger.setLevel(logging.DEBUG)
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                yield
                self.texts += [str(warning.message) for warning in heard]
        finally:
            root.removeHandler(handler)
            for logger, level in zip(loud, levels, strict=True):
                logger.setLevel(level)

    def see_error(self, error: BaseException | None, seen: frozenset[int] = frozenset()) -> None:
        """All that an exception carries, and all that it leads to, variables of frames included."""
        if error is None or id(error) in seen:
            return
        parts = [str(error), repr(error), repr(error.args), repr(error.__dict__)]
        self.texts += [*parts, *traceback.format_exception(error)]
        frames = error.__traceback__
        while frames is not None:
            code = frames.tb_frame.f_code
            if code.co_filename != __file__:  # a test's own variables are the canaries
                self.texts += [repr(value) for value in frames.tb_frame.f_locals.values()]
            frames = frames.tb_next
        for other in (error.__context__, error.__cause__):
            self.see_error(other, seen | {id(error)})

    def finds_canary(self) -> str:
        """Where a canary is, or ""."""
        streams = self.capfd.readouterr()
        places = [("error", text) for text in self.texts]
        places += [
            ("stdout", streams.out),
            ("stderr", streams.err),
            ("log", self.stream.getvalue()),
        ]
        self.texts.clear()
        self.stream.seek(0)
        self.stream.truncate()
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.name.startswith(("visits.duckdb", "source.csv")):
                places.append((path.name, path.read_bytes().decode("latin-1")))
        for place, text in places:
            for canary in (TEXT, str(NUMBER)):
                if canary in text:
                    start = max(0, text.index(canary) - 200)
                    return f"{place}: ...{text[start : start + 400]}"
        return ""


@pytest.fixture
def world(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("AIRFLOW_HOME", str(tiny.folder / "airflow"))
    connection = {"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))
    return World(tiny)


@pytest.fixture
def watch(world: World, capfd: pytest.CaptureFixture[str]) -> Watch:
    return Watch(world.folder, capfd)


def enter(door: Callable[[World], None], world: World, watch: Watch) -> BaseException | None:
    """What a door raises, after all of it was looked at."""
    from airflow_names import AirflowException

    failure: BaseException | None = None
    with watch.listen():
        try:
            door(world)
        except (DpflowError, AirflowException, SystemExit) as error:
            failure = error
    watch.see_error(failure)
    return failure


# --- Failures of every statement -----------------------------------------------------------------


SAID = f"Could not convert string '{TEXT}' of {NUMBER}"
ERRORS: list[Callable[[], BaseException]] = [
    lambda: duckdb.ConversionException(SAID),
    lambda: duckdb.InternalException(SAID),
    lambda: duckdb.InterruptException(SAID),
    lambda: duckdb.IOException(f"Could not write file {SAID}: No space left on device"),
    lambda: MemoryError(SAID),
    lambda: OSError(28, SAID),
    lambda: UnicodeDecodeError("utf-8", SAID.encode(), 0, 1, SAID),
    lambda: KeyError(SAID),
    lambda: pd.errors.ParserError(SAID),
    lambda: sa.exc.StatementError(SAID, SAID, {"x": SAID}, ValueError(SAID)),
    lambda: RecursionError(SAID),
]


class FailingConnection:
    """A connection to DuckDB of which the n-th call fails."""

    def __init__(self, raw: duckdb.DuckDBPyConnection, calls: Iterator[int], fatal: int) -> None:
        self._raw, self._calls, self._fatal = raw, calls, fatal

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._raw, name)
        if name not in ("execute", "sql", "fetchall", "fetchnumpy", "get_table_names"):
            return inner

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(self._calls) == self._fatal:
                # As a library would that says all it can.
                try:
                    raise ValueError(f"{TEXT} caused it")
                except ValueError as cause:
                    error = ERRORS[self._fatal % len(ERRORS)]()
                    error.add_note(f"and {NUMBER} did")
                    raise error from cause
            given = inner(*args, **kwargs)
            return self if given is self._raw else given

        return call


def fail_at(patch: pytest.MonkeyPatch, fatal: int) -> Iterator[int]:
    """Let the n-th call to DuckDB fail, counted over all connections of the sandbox."""
    calls = itertools.count()
    connect = duckdb.connect

    def open_failing(*args: Any, **kwargs: Any) -> Any:
        return FailingConnection(connect(*args, **kwargs), calls, fatal)

    stand_in = SimpleNamespace(**{**vars(duckdb), "connect": open_failing})
    patch.setattr(isolated_database, "duckdb", stand_in)
    return calls


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DOORS)
def test_no_statement_that_fails_shows_a_row(
    name: str, step: int, world: World, watch: Watch
) -> None:
    """Each call to DuckDB in turn fails, or each eleventh, with another library's error: what is
    raised is ours and alone; what depends on rows ends as none, in silence.
    """
    for fatal in itertools.count(list(DOORS).index(name) % step, step):
        with pytest.MonkeyPatch.context() as patch:
            calls = fail_at(patch, fatal)
            failure = enter(DOORS[name], world, watch)
            reached = next(calls) > fatal
        assert not watch.finds_canary(), (fatal, failure)
        if not reached:
            # Everything was executed: the door itself opens.
            assert failure is None or isinstance(failure, SystemExit)
            assert fatal > 3
            return


# --- The file fails ------------------------------------------------------------------------------


def vanish(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def corrupt(file: Path) -> None:
    """Rows whose checksum is wrong: DuckDB says so when it reads them."""
    content = bytearray(file.read_bytes())
    for at in range(3 * 4096 + 8, len(content), 4096):
        content[at] ^= 0xFF
    file.write_bytes(content)


def replace_by_text(file: Path) -> None:
    file.write_text(TEXT * 10_000)


def change_type(file: Path) -> None:
    with duckdb.connect(str(file)) as connection:
        connection.execute("ALTER TABLE visits ALTER age TYPE VARCHAR")
        connection.execute(f"UPDATE visits SET age = '{TEXT}'")


def make_failing_view(file: Path) -> None:
    """The owner's own SQL fails on a row, and DuckDB's text quotes it."""
    with duckdb.connect(str(file)) as connection:
        connection.execute("ALTER TABLE visits RENAME TO base")
        connection.execute(
            "CREATE VIEW visits AS SELECT * REPLACE (CAST(note AS INTEGER) AS age) FROM base"
        )


def lock(file: Path) -> Any:
    """Somebody writes it."""
    return duckdb.connect(str(file))


BREAKS: dict[str, Callable[[Path], Any]] = {
    f.__name__: f
    for f in (vanish, truncate, corrupt, replace_by_text, change_type, make_failing_view, lock)
}


#: Doors that read the file in another way than "release" does; all are in `make slow`.
APART = ("release", "session", "contract", "operators")


@pytest.mark.parametrize(
    "name",
    [name if name in APART else pytest.param(name, marks=pytest.mark.slow) for name in DOORS],
)
def test_no_broken_file_shows_a_row(name: str, world: World, watch: Watch) -> None:
    """Whatever happened to the private file, and whenever: before the door opens, or while its
    first statements run.
    """
    for kind, action in BREAKS.items():
        world.restore()
        held = action(world.tiny.database)
        enter(DOORS[name], world, watch)
        if held is not None:
            held.close()
        assert not watch.finds_canary(), kind
    # In the middle: the connection is open, then the file changes under it.
    for action in (vanish, truncate, corrupt):
        world.restore()
        settings = isolated_database.Connection.find_relation

        def strike(*args: Any, action: Any = action, settings: Any = settings) -> Any:
            with suppress(FileNotFoundError):
                action(world.tiny.database)
            return settings(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(isolated_database.Connection, "find_relation", strike)
            enter(DOORS[name], world, watch)
        assert not watch.finds_canary(), action.__name__


# --- Libraries that talk -------------------------------------------------------------------------


def talk() -> None:
    """What libraries log and warn about, under their own names and those of children made later."""
    for name in (
        "sklearn.base",
        f"numpy.made.{next(_fresh)}",
        "great_expectations",
        "sqlalchemy.pool",
    ):
        logging.getLogger(name).error("%s of %s", TEXT, NUMBER, exc_info=ValueError(TEXT))
    warnings.warn(f"y contains previously unseen labels: {TEXT}", UserWarning, stacklevel=1)


_fresh = itertools.count()


@pytest.mark.parametrize("name", ["release", "session", "predictions", "contract"])
def test_no_library_is_heard_while_it_sees_rows(
    name: str, world: World, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that sees rows says what they hold, and then fails or not; nobody hears it, and
    afterwards it is heard again.
    """
    fetch = isolated_database.Connection.fetch_arrays
    monkeypatch.setattr(
        isolated_database.Connection, "fetch_arrays", lambda *a: (talk(), fetch(*a))[1]
    )
    judge = validate._read_verdict
    monkeypatch.setattr(validate, "_read_verdict", lambda found: (talk(), judge(found))[1])
    enter(DOORS[name], world, watch)
    assert not watch.finds_canary()
    with watch.listen():
        talk()
    assert watch.finds_canary()


# --- The owner's doors ---------------------------------------------------------------------------


def test_a_build_or_a_publication_that_fails_shows_no_row(world: World, watch: Watch) -> None:
    """A script over sources that hold what it cannot convert; a published file that DuckDB cannot
    write to.
    """
    source = world.folder / "source.csv"
    source.write_text(f"a\n1\n{TEXT}\n")

    def build(world: World) -> None:
        script = "CREATE TABLE t AS SELECT CAST(a AS INTEGER) AS a FROM source"
        files = CsvSource([source], {"a": "VARCHAR"})
        build_database.build_database(world.folder / "built.duckdb", script, {"source": files})

    def publish(world: World) -> None:
        out = world.folder / "out.duckdb"
        with duckdb.connect(str(out)) as connection:
            connection.execute("CREATE TABLE p (release_id INTEGER)")
        publish = {"database": "out.duckdb", "table": "p"}
        file = world.folder / "release.yml"
        file.write_text(json.dumps(world.request(publish=publish)))
        run = world.folder / "release.yml"
        from dpflow.engine.releases.make_plan import make_plan
        from dpflow.engine.releases.request import load_request

        release(make_plan(load_request(run), Registry.load()), world.ledger)

    for door in (build, publish):
        assert enter(door, world, watch) is not None
        assert not watch.finds_canary(), door.__name__


# --- Without the boundary ------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
def test_without_the_boundary_the_canary_is_found(
    name: str, world: World, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same failure shows rows as soon as the boundary is taken away."""
    from dpflow.airflow import task_context

    def pass_on(action: Callable[[], Any], *_: Any, **__: Any) -> Any:
        return action()

    for module in (error_boundary, isolated_database, validate, build_database, task_context):
        monkeypatch.setattr(module, "contain_errors", pass_on)
    for module in (validate, fail_closed):
        monkeypatch.setattr(module, "silence_libraries", nullcontext)
    fail_at(monkeypatch, 4)
    with ExitStack() as stack:
        stack.enter_context(watch.listen())
        try:
            DOORS[name](world)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is looked at
            watch.see_error(error)
    assert watch.finds_canary()
