"""Releases of a table on Spark: charged before anything is read, drawn once, refused before any charge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
import yaml

from dpflow import plan, release
from dpflow.core.contract.results import NONE
from dpflow.engine.releases.plan import Plan
from dpflow.errors import InvalidDeclaration, PlanRefused, TableBusy, TableError
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends.spark_backend import spark_session
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.private import PrivateTable

KINDS = {"who": "INTEGER", "town": "VARCHAR", "amount": "DOUBLE"}
SECRET = 7_364_519
ROWS = [(str(i % 40), "ab"[i % 2], str(SECRET if i == 5 else i % 9)) for i in range(120)]
TABLE: dict[str, Any] = {
    "name": "visits",
    "privacy_unit": {"column": "who"},
    "contribution_bounds": {"rows": 3, "groups": 2},
    "columns": {
        "town": {"public_keys": ["a", "b"]},
        "amount": {"lower": 0, "upper": 10, "step": "0.5"},
    },
}
#: One mechanism of each kind of request, and its parameters.
KINDS_OF_RELEASES: dict[str, dict[str, Any]] = {
    "mean": {"column": "amount", "by": "town"},
    "median": {"column": "amount"},
    "private_histogram": {"by": "town"},
    "key_union": {"by": "town"},
    "bounds": {"column": "amount"},
    "count": {"by": "town, amount > 3"},
}


class World:
    """A table on Spark, its declaration, and a ledger that pays."""

    def __init__(self, folder: Path, source: dict[str, Any]) -> None:
        self.folder, self.ledger = folder, folder / "ledger.db"
        self.files = Path(source["source"]["table"])
        self.declaration = folder / "visits.yml"
        self.declaration.write_text(yaml.safe_dump(TABLE | source))
        table = load_table(self.declaration)
        Ledger(self.ledger, create=True).grant(
            "visits", 9, "1e-3", filter="basic", table=table, principal="owner"
        )

    def plan(self, mechanism: str, **changes: Any) -> Any:
        given = {"name": mechanism, "scope": "visits", "epsilon": "0.25"}
        return plan(mechanism, self.declaration, **(given | changes))

    def release(self, mechanism: str, **changes: Any) -> Any:
        return release(self.plan(mechanism, **changes), Ledger(self.ledger))

    def spent(self) -> Fraction:
        rows = Ledger(self.ledger).remaining("visits").rows()
        return sum((Fraction(row["epsilon_spent"]) for row in rows), Fraction(0))


@pytest.fixture
def world(tmp_path: Path, folders: Any) -> World:
    return World(tmp_path, folders({"data": (KINDS, ROWS)}))


@pytest.mark.parametrize("mechanism", ["median", "private_histogram", "key_union", "bounds"])
def test_an_answer_beyond_its_declared_size_is_paid_once(
    mechanism: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused as where memory ends: retryable, nothing drawn, and what it says has no number of rows."""
    options = dict(KINDS_OF_RELEASES[mechanism])
    if mechanism in ("private_histogram", "key_union"):
        options["delta"] = "1e-6"
    world.release("count")  # by then the server was asked what it can
    with monkeypatch.context() as patch:
        patch.setattr(spark_session, "_MEBIBYTE", 0)
        for _ in range(2):
            with pytest.raises(TableBusy, match="raise answer_mib") as refused:
                world.release(mechanism, **options)
    assert not any(sign.isdigit() for sign in str(refused.value))
    assert world.spent() == Fraction(1, 2)
    world.release(mechanism, **options)
    assert world.spent() == Fraction(1, 2) and Ledger(world.ledger).verify().ok


def test_a_raised_size_is_the_same_release(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the refusal says: its owner raises the size in the declaration, and nothing more is charged."""

    def declare(most: int) -> None:
        declared = yaml.safe_load(world.declaration.read_text())
        declared["source"]["answer_mib"] = most
        world.declaration.write_text(yaml.safe_dump(declared))

    world.release("count")
    monkeypatch.setattr(spark_session, "_MEBIBYTE", 10)
    declare(1)
    with pytest.raises(TableBusy, match="raise answer_mib"):
        world.release("median", column="amount")
    declare(4096)
    first = world.release("median", column="amount")
    declare(8192)
    assert world.release("median", column="amount").result == first.result
    assert world.spent() == Fraction(1, 2) and Ledger(world.ledger).verify().ok


def test_pieces_are_counted_until_they_are_too_many(world: World) -> None:
    """The rest of an answer is never taken in."""
    import pyarrow as pa

    taken = 0

    class Client:
        def to_table_as_iterator(self, plan: Any, observations: Any) -> Any:
            nonlocal taken
            for _ in range(1000):
                taken += 1
                yield pa.table({"x": pa.array(range(1000), pa.int64())})

    frame = SimpleNamespace(_plan=SimpleNamespace(to_proto=lambda client: None))
    connection = SparkConnection(SimpleNamespace(client=Client()), "table 'visits'", 20_000)
    with pytest.raises(TableBusy, match="larger than this machine takes"):
        connection.fetch(frame)
    assert taken == 3


@pytest.mark.parametrize("mechanism", KINDS_OF_RELEASES)
def test_each_kind_is_charged_and_drawn_once(mechanism: str, world: World) -> None:
    """A retry gives the stored result and pays nothing, also when the files are gone."""
    options = dict(KINDS_OF_RELEASES[mechanism])
    if mechanism in ("private_histogram", "key_union"):
        options["delta"] = "1e-6"
    first = world.release(mechanism, **options)
    assert first.result != NONE
    shutil.rmtree(world.files)
    again = world.release(mechanism, **options)
    assert again.replayed and again.result == first.result
    assert world.spent() == Fraction(1, 4)


def test_the_price_is_that_of_a_file(world: World) -> None:
    """The same declaration over a DuckDB file has the same plan: where rows are is in no digest. What a
    guarantee rests on is, as a server that is trusted.
    """
    file = world.folder / "visits.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE TABLE visits AS SELECT * FROM '{world.files}/*.parquet'")
    on_file = world.folder / "file.yml"
    on_file.write_text(yaml.safe_dump(TABLE | {"database": file.name}))
    here = plan("count", on_file, name="count", scope="visits", epsilon="0.25")
    trusting = world.plan("count")
    assert here.event == trusting.event and here.digest != trusting.digest
    assert "trusting a server that is not Apache Spark" in trusting.table.protection_text
    declared = yaml.safe_load(world.declaration.read_text())
    del declared["source"]["trusted_server"]
    world.declaration.write_text(yaml.safe_dump(declared))
    there = world.plan("count")
    assert (here.event, here.digest) == (there.event, there.digest)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("count", {"where": "town LIKE 'a\\%'"}),
        ("count", {"where": "ln(ln(amount)) > 0"}),
    ],
)
def test_what_spark_does_not_have_is_refused_before_any_charge(
    mechanism: str, options: dict[str, Any], world: World
) -> None:
    """With the name of what is missing."""
    with pytest.raises(PlanRefused, match="on Spark"):
        world.release(mechanism, **options)
    assert world.spent() == 0


def test_files_that_change_meanwhile_are_no_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is thrown away; the retry reads one state and pays nothing more."""
    fetch, times = SparkConnection.fetch, []

    def write_another(self: SparkConnection, frame: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            shutil.copy(world.files / "part-0.parquet", world.files / "part-1.parquet")
        return fetch(self, frame)

    monkeypatch.setattr(SparkConnection, "fetch", write_another)
    with pytest.raises(TableBusy, match="changed while they were read"):
        world.release("count")
    assert world.spent() == Fraction(1, 4)
    assert not world.release("count").replayed
    assert world.spent() == Fraction(1, 4)


def test_a_server_that_is_lost_keeps_the_reservation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a release it is an error that a retry helps, at one charge."""
    import grpc
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    def lose(self: SparkConnection, frame: Any) -> Any:
        def fail(_: Any) -> None:
            raise SparkConnectGrpcException(
                f"row {SECRET}", grpc_status_code=grpc.StatusCode.UNAVAILABLE
            )

        return self.run(fail)

    with monkeypatch.context() as patch:
        patch.setattr(SparkConnection, "fetch", lose)
        with pytest.raises(TableBusy, match="cannot be reached") as raised:
            world.release("count")
    assert str(SECRET) not in str(raised.value) and raised.value.__context__ is None
    assert not world.release("count").replayed
    assert world.spent() == Fraction(1, 4)


def test_an_error_of_the_server_quotes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that fails on rows is charged and settled as none, and its text is nowhere."""
    fetch = SparkConnection.fetch

    def fail_on_rows(self: SparkConnection, frame: Any) -> Any:
        # Raises on the server, with the value in its text.
        return fetch(self, frame.selectExpr(f"CAST(concat('x{SECRET}', code) AS INT) AS code"))

    monkeypatch.setattr(SparkConnection, "fetch", fail_on_rows)
    private = PrivateTable(load_table(world.declaration))
    request = world.plan("count")
    statistic = request.mechanism.data_request(request.params, request.table)
    with pytest.raises(TableError) as raised:
        private.answer(statistic, ())
    assert not raised.value.retryable and str(SECRET) not in repr(raised.value)
    assert raised.value.__context__ is None and raised.value.__cause__ is None
    receipt = world.release("count")
    assert receipt.result == NONE and world.spent() == Fraction(1, 4)
    assert str(SECRET) not in caplog.text + json.dumps(str(receipt))
    for file in world.folder.glob("ledger*"):
        if file.is_file():
            assert str(SECRET).encode() not in file.read_bytes()


def test_two_declarations_of_one_folder_are_one_data_set(
    world: World, declare: Callable[..., PrivateTable]
) -> None:
    """A gate on the folder closes it for a declaration under another name, too."""
    from dpflow.engine.releases.execute import data_names

    other = world.folder / "other.yml"
    source = yaml.safe_load(world.declaration.read_text())["source"]
    source["table"] += "/"
    other.write_text(yaml.safe_dump(TABLE | {"name": "other", "source": source}))
    book = Ledger(world.ledger)

    def find_names(made: Plan) -> list[str]:
        return data_names(made, book, PrivateTable(made.table))

    one = find_names(world.plan("count"))
    two = find_names(plan("count", other, name="x", scope="visits", epsilon="0.25"))
    assert one[0] != two[0] and one[1] == two[1] and len(one) == len(two) == 2
    # Through a symbolic link it has a name of its own, and that of what the link leads to.
    (world.folder / "link").symlink_to(source["table"])
    linked = world.folder / "linked.yml"
    linked.write_text(
        yaml.safe_dump(TABLE | {"source": source | {"table": f"{world.folder}/link"}})
    )
    names = find_names(plan("count", linked, name="x", scope="visits", epsilon="0.25"))
    assert len(names) == 3 and names[2] == one[1]
    with pytest.raises(InvalidDeclaration, match="database or source, not both"):
        other.write_text(yaml.safe_dump(TABLE | {"database": "x.duckdb", "source": source}))
        load_table(other)
