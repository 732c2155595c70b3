"""Tasks whose table is on Spark: Airflow's connection is the address, and a task that is killed cancels
its query.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from airflow_tasks import context, make_release
from spark_servers import declare_source

from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends.spark_backend import spark_connection

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")
TOKEN = "s3cr3t-t0ken"


@pytest.fixture
def lake(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiny]:
    """The tiny table in a folder of Parquet files, on the connection ``lake``."""
    from pysail.spark import SparkConnectServer

    (tiny.folder / "visits").mkdir()
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute(f"COPY visits TO '{tiny.folder}/visits/part.parquet' (FORMAT parquet)")
    declaration = tiny.declare(source=declare_source("lake", tiny.folder / "visits"))
    fields = yaml.safe_load(declaration.read_text())
    del fields["database"]
    declaration.write_text(yaml.safe_dump(fields))
    # Granted anew: the guarantee names the server that is trusted.
    tiny.ledger = tiny.folder / "lake.sqlite"
    Ledger(tiny.ledger, create=True).grant(
        "visits", 1, "1e-6", filter="basic", table=load_table(declaration), principal="owner"
    )
    place = {"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(place))
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    fields = {"conn_type": "spark_connect", "host": f"sc://{host}", "port": port, "login": "me"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(fields))
    monkeypatch.delenv("DPFLOW_SPARK_LAKE", raising=False)
    yield tiny
    server.stop()


def run(operator: Any, tiny: Tiny) -> Any:
    """As Airflow's task runner does it."""
    operator.pre_execute(context(tiny))
    return operator.execute(context(tiny))


def test_a_connection_of_airflow_is_the_address(lake: Tiny) -> None:
    """Nothing but the connection says where the server is."""
    from dpflow.airflow import ReleaseOperator

    assert not run(ReleaseOperator(task_id="t", release=make_release()), lake)["replayed"]


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"host": "spark.example.org"}, "sc://spark.example.org/"),
        (
            {
                "host": "sc://h",
                "port": 7,
                "login": "a b",
                "password": "x;y=z",
                "extra": {"use_ssl": True},
            },
            "sc://h:7/;user_id=a%20b;token=x%3By%3Dz;use_ssl=true",
        ),
        ({"host": "h", "conn_type": "spark", "password": TOKEN}, None),
        ({"host": "", "password": TOKEN}, None),
    ],
)
def test_a_connection_is_read_as_its_provider_does(
    fields: dict[str, Any], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its credentials are in the address alone; another connection is refused without them."""
    from dpflow.airflow.spark_connections import find_spark_address
    from dpflow.errors import InvalidInput

    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "spark_connect"} | fields))
    assert find_spark_address("nobody") is None
    if address is not None:
        assert find_spark_address("lake") == address
        return
    with pytest.raises(InvalidInput, match="of type 'spark_connect'") as raised:
        find_spark_address("lake")
    assert TOKEN not in str(raised.value)


def test_a_token_is_in_no_log_and_no_error(
    lake: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a server that is down, or refuses it; the next try pays nothing more."""
    from airflow_names import AirflowException

    from dpflow.airflow import ReleaseOperator

    caplog.set_level(logging.DEBUG)
    good = os.environ["AIRFLOW_CONN_LAKE"]
    down = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": 1, "password": TOKEN}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(down))
    operator = ReleaseOperator(task_id="t", release=make_release())
    with pytest.raises(AirflowException) as raised:
        run(operator, lake)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", good)
    assert not run(operator, lake)["replayed"]
    seen = caplog.text + repr(raised.value)
    assert "cannot be reached" in seen and TOKEN not in seen
    for file in lake.folder.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file


def test_a_killed_task_cancels_its_query(lake: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow calls `on_kill` from a signal, in the thread that waits for Spark. The charge stands, and
    the next try returns a result for it.
    """
    from airflow_names import AirflowException

    from dpflow.airflow import ReleaseOperator

    operator = ReleaseOperator(task_id="t", release=make_release())
    before = signal.signal(signal.SIGUSR1, lambda *_: operator.on_kill())
    kill = threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1))

    def wait(connection: Any, _: Any) -> Any:
        kill.start()
        far = "SELECT count(*) FROM range(1000000) a JOIN range(1000000) b ON a.id * b.id % 7 = 8"
        return connection.run(lambda session: session.sql(far).toArrow())

    try:
        with monkeypatch.context() as patch, pytest.raises(AirflowException, match="was cancelled"):
            operator.pre_execute(context(lake))
            # Canaries and checks are not asked for an answer.
            answer = spark_connection.SparkConnection.fetch

            def fetch(connection: Any, frame: Any) -> Any:
                return (wait if connection._answering else answer)(connection, frame)

            patch.setattr(spark_connection.SparkConnection, "fetch", fetch)
            operator.execute(context(lake))
    finally:
        signal.signal(signal.SIGUSR1, before)
    (row,) = Ledger(lake.ledger).remaining("visits").rows()
    assert not run(operator, lake)["replayed"]
    assert Ledger(lake.ledger).remaining("visits").rows() == [row]


def test_progress_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long answer, in tens of per cent: how many tasks there are may follow from rows."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(spark_connection, "_NOTE_SECONDS", 0.0)
    connection = spark_connection.SparkConnection(None, "table 'visits'")
    stages = [SimpleNamespace(num_tasks=30, num_completed_tasks=n) for n in (30, 5)]
    connection.note_progress(stages, inflight_tasks=2, operation_id="x", done=False)
    assert not caplog.records
    with connection.make_interruptible():
        connection.note_progress(stages, inflight_tasks=2, operation_id="x", done=False)
        connection.note_progress([], done=True)
    assert [record.message for record in caplog.records] == [
        "table 'visits': Spark has done about 50 % of its query"
    ]
