"""Ids of a table of predictions and of the holdout are compared by their types, or refused before a charge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from holdout_gates import PARAMS

from dpflow import Session, plan
from dpflow.core.contract.columns import Column
from dpflow.engine.sessions.holdout_gate import check_candidates, judge
from dpflow.engine.sessions.query_list import load_upload
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import read_predictions, write_predictions
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

#: Columns of the holdout, one id each for row i.
IDS = {
    "day": "DATE '2020-01-01' + CAST(i AS INTEGER)",
    "time": "TIMESTAMP '2020-01-01' + INTERVAL (i * 1000001) MICROSECOND",
    "second": "CAST(TIMESTAMP '2020-01-01' + INTERVAL (i) SECOND AS TIMESTAMP_S)",
    "zoned": "CAST(TIMESTAMP '2020-01-01' + INTERVAL (i) HOUR AS TIMESTAMPTZ)",
    "number": "CAST(i AS BIGINT)",
    "bounded": "i",
    "filled": "i",
    "real": "CAST(i AS FLOAT)",
    "digits": "CAST(i AS DECIMAL(18, 0))",
    "text": "'r' || i",
    "padded": "lpad(CAST(i AS VARCHAR), 5, '0')",
    "cents": "CAST(i / 4 AS DECIMAL(18, 2))",
    "quarter": "i / 4",
    "nano": "CAST(TIMESTAMP '2020-01-01' + INTERVAL (i) HOUR AS TIMESTAMP_NS)",
    "uuid": "CAST(lpad(CAST(i AS VARCHAR), 32, '0') AS UUID)",
}
#: What predictions may write for a column's ids.
MATCHED = [
    ("filled", "CASE WHEN i = 7 THEN 5000 ELSE i END"),
    *((name, IDS[name]) for name in ("day", "time", "second", "zoned", "number", "text")),
    ("real", "i::DOUBLE"),
    ("digits", "i::INTEGER"),
    ("number", "i::DOUBLE"),
    ("number", "i::VARCHAR"),
    ("day", f"({IDS['day']})::VARCHAR"),
    ("day", f"({IDS['day']})::TIMESTAMP"),
    ("time", f"({IDS['time']})::VARCHAR"),
    ("second", IDS["second"].replace("TIMESTAMP_S", "TIMESTAMP")),
    ("zoned", f"({IDS['zoned']})::VARCHAR"),
]
REFUSED = [
    ("bounded", "i", "within the bounds of column 'bounded'"),
    ("bounded", "i + 1", "within the bounds of column 'bounded'"),
    ("filled", "i", "its missing"),
    ("day", "i", "ids of type INTEGER|ids of type BIGINT"),
    ("day", IDS["time"], "a time of day"),
    ("day", "'2020-1-' || (i + 1)", "not a date or time"),
    (
        "zoned",
        f"({IDS['zoned']})::TIMESTAMP",
        "ids of type TIMESTAMP, .* is TIMESTAMP WITH TIME ZONE",
    ),
    ("number", IDS["day"], "ids of type DATE, .* is BIGINT"),
    ("number", IDS["padded"], "not a whole number"),
    ("number", "i + 9007199254740992", "below 2\\^53"),
    ("number", "i + 0.5::DOUBLE", "not a whole number"),
    ("padded", "i", "is VARCHAR, so no id could be matched"),
    ("cents", IDS["cents"], "ids of type DECIMAL"),
    ("quarter", IDS["quarter"], "not a whole number"),
    ("nano", IDS["nano"], "TIMESTAMP_NS"),
    ("uuid", IDS["uuid"], "UUID"),
    ("text", "TIME '00:00:00' + INTERVAL (i) SECOND", "TIME"),
]


@pytest.fixture
def holdout(tiny: Tiny) -> Path:
    """A holdout of 2,000 people."""
    outputs = ", ".join(f"{text} AS {name}" for name, text in IDS.items())
    tiny.fill(
        f"CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick, {outputs} FROM range(2000) t(i)"
    )
    columns: dict[str, Any] = {"sick": {"lower": 0, "upper": 1}} | {name: {} for name in IDS}
    columns |= {
        "bounded": {"lower": 0, "upper": 100},
        "filled": {"lower": -1, "upper": 9999, "missing": 7},
    }
    table = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns=columns, block=None
    )
    Ledger(tiny.ledger).grant(
        "gate", 8, 0, filter="basic", table=load_table(table), principal="owner"
    )
    return table


def submit(tiny: Tiny, name: str, text: str) -> dict[str, Any]:
    file = tiny.folder / "said.duckdb"
    file.unlink(missing_ok=True)
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            f"CREATE TABLE said AS SELECT {text} AS {name}, i % 2 AS prediction FROM range(2000) t(i)"
        )
    place = {"database": str(file), "table": "said", "id": name}
    return {"name": name, "label": "sick", "predictions": place, "claim": "0.9"}


def test_ids_match_by_their_types(tiny: Tiny, holdout: Path) -> None:
    """Predictions that are right are found right, whatever type the ids have, also through a service."""
    planned = plan(
        "reusable_holdout", holdout, name="gate", scope="gate", **PARAMS | {"queries": 40}
    )
    gate = Session.open(planned, Ledger(tiny.ledger), Registry.load())
    for name, text in MATCHED:
        candidate = submit(tiny, name, text)
        assert judge(gate, candidate)["verdict"] == "yes", (name, text)
        sent = load_upload(candidate)["predictions"]
        stored = Path(candidate["predictions"]["database"])
        stored.unlink()
        write_predictions(stored, sent["column"], sent["ids"], sent["predictions"], sent["scores"])
        served = candidate | {"predictions": candidate["predictions"] | {"table": "predictions"}}
        assert judge(gate, served)["verdict"] == "yes", (name, text, "by a service")


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_ids_without_a_common_form_are_refused_before_a_charge(
    tiny: Tiny, holdout: Path, name: str, text: str, message: str
) -> None:
    planned = plan("reusable_holdout", holdout, name="gate", scope="gate", **PARAMS)
    with pytest.raises(InvalidInput, match=message):
        check_candidates([planned], Ledger(tiny.ledger), [submit(tiny, name, text)])


def test_two_texts_of_one_time_are_one_id(tiny: Tiny) -> None:
    file = Path(
        submit(tiny, "day", "['2020-01-01', '2020-01-01 00:00:00'][i + 1]")["predictions"][
            "database"
        ]
    )
    with duckdb.connect(str(file)) as connection:
        connection.execute("DELETE FROM said WHERE day IS NULL")
    table = read_predictions(file, "said", "day")
    assert len(table.match_type("VARCHAR", Column()).ids) == 2
    with pytest.raises(InvalidInput, match="an id twice"):
        table.match_type("TIMESTAMP", Column())


@pytest.mark.parametrize(
    ("spark", "text", "other"),
    [
        ("int", "i", "string"),
        ("string", "'r' || i", "binary"),
        ("date", IDS["day"], "timestamp"),
        ("timestamp_ntz", IDS["time"], "timestamp"),
        ("timestamp", IDS["zoned"], "timestamp_ntz"),
        ("decimal(18,0)", "i", "decimal(18,2)"),
    ],
)
def test_types_of_spark_are_known(tiny: Tiny, spark: str, text: str, other: str) -> None:
    place = submit(tiny, "id", text)["predictions"]
    table = read_predictions(Path(place["database"]), "said", "id")
    assert len(table.match_type(spark, Column()).ids) == 2000
    with pytest.raises(InvalidInput, match="no id could be matched"):
        table.match_type(other, Column())
