"""Odd private rows through the whole door: every mechanism answers every point, and says nothing
about the rows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from prediction_doors import Doors  # noqa: E402

from dpflow import open_predictions, plan  # noqa: E402
from dpflow.errors import InvalidInput  # noqa: E402

SHARDED = {"features": ["x", "y", "town"], "label": "late", "shards": 30}
LINEAR = {"features": ["x", "y", "town"], "size": 100}
MECHANISMS: dict[str, dict[str, Any]] = {
    "predict_vote": SHARDED,
    "predict_average": SHARDED,
    "predict_value": SHARDED | {"label": "amount"},
    "predict_linear": LINEAR | {"label": "late", "loss": "logistic"},
    "predict_linear, sgd": LINEAR | {"label": "amount", "method": "sgd", "radius": "2"},
    "predict_walk": {"features": ["x"], "label": "late"},
}
#: Rows (person, x, y, town, late, amount) as SQL: nothing, NULLs everywhere, NaN and infinities,
#: keys and labels not declared.
ROWS = {
    "no rows": "SELECT 'p' AS person, 0.1 AS x, 0.2 AS y, 'Oslo' AS town, 'no' AS late, 0.3 AS amount LIMIT 0",
    "one row": "SELECT 'p' AS person, 0.1 AS x, 0.2 AS y, 'Oslo' AS town, 'no' AS late, 0.3 AS amount",
    "one label": "SELECT 'p' || i AS person, i / 50 AS x, 0.2 AS y, 'Oslo' AS town, 'no' AS late, 0.3 AS amount FROM range(50) t(i)",
    "nulls": """
        SELECT NULL::TEXT AS person, NULL::DOUBLE AS x, NULL::DOUBLE AS y, NULL::TEXT AS town, NULL::TEXT AS late, NULL::DOUBLE AS amount
        FROM range(50)""",
    "odd values": """
        SELECT 'p' || i AS person, CASE i % 4 WHEN 0 THEN 'nan' WHEN 1 THEN 'inf' WHEN 2 THEN '-inf' ELSE '1e300' END::DOUBLE AS x,
            CASE i % 3 WHEN 0 THEN 'nan' ELSE '-5' END::DOUBLE AS y, CASE i % 2 WHEN 0 THEN 'Atlantis' ELSE 'Oslo' END AS town,
            CASE i % 3 WHEN 0 THEN 'perhaps' WHEN 1 THEN 'no' ELSE 'yes' END AS late,
            CASE i % 2 WHEN 0 THEN 'inf' ELSE '1e300' END::DOUBLE AS amount FROM range(60) t(i)""",
}  # fmt: skip


@pytest.mark.parametrize("name", MECHANISMS)
def test_odd_rows_are_answered(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No rows, one, one class, shards smaller than the number of classes, NULL, NaN, infinities,
    keys that are not public.
    """
    mechanism, kind = name.split(",")[0], MECHANISMS[name]
    doors = Doors(tmp_path, epsilon=1000)
    point = [0.5, None, None][: len(kind["features"])]
    for rows, script in ROWS.items():
        with duckdb.connect(str(tmp_path / "loans.duckdb")) as connection:
            connection.execute(f"CREATE OR REPLACE TABLE loans AS {script}")
        made = plan(
            mechanism,
            doors.declaration,
            name=rows,
            scope="loans",
            epsilon="0.5",
            predictions=3,
            **kind,
        )
        session = open_predictions(made, doors.book)
        answers = session.predict([point, [0.1, 0.9, "Rome"][: len(point)]])
        assert all(answer is not None for answer in answers), rows
        assert session.predictions_left == 1
    said = capfd.readouterr()
    assert "Warning" not in said.err and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ([0.1, 0.2], "point 1 has 2 values, but a point has 3"),
        ([float("nan"), 0.2, "Oslo"], "point 1 has no x"),
        ([float("inf"), 0.2, "Oslo"], "infinite x"),
        ([0.1, 0.2, "Atlantis"], "Atlantis"),
        (["high", 0.2, "Oslo"], "a number or a date, not a text"),
    ],
)
def test_odd_points_charge_nothing(tmp_path: Path, point: list[Any], said: str) -> None:
    """The number of the point and what is wrong with it; the good point beside it is not answered
    either.
    """
    doors = Doors(tmp_path)
    session = open_predictions(
        plan(
            "predict_vote",
            doors.declaration,
            name="odd",
            scope="loans",
            **doors.session()["params"],
        ),
        doors.book,
    )
    with pytest.raises(InvalidInput, match=said):
        session.predict([[0.1, 0.2, "Oslo"], point])
    assert session.predictions_left == 100
