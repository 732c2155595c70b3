"""The operator, the command line and Python: the same session, charged once, the same answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from prediction_doors import Doors, written  # noqa: E402, F401

from dpflow import open_predictions, plan  # noqa: E402
from dpflow.cli import app  # noqa: E402


@pytest.fixture
def doors(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Doors:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    made = Doors(tmp_path)
    connection = {"conn_type": "dpflow_ledger", "host": str(made.ledger)}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))
    return made


def test_the_operator_answers_a_table_once(doors: Doors) -> None:
    """A retry writes the same labels and spends nothing; later points use the predictions that are
    left.
    """
    first = doors.predict(
        points={"database": "points.duckdb", "table": "tomorrow", "key": "id", "batch": 20}
    )
    assert (
        first.items()
        >= {
            "points": 50,
            "clamped": 0,
            "predictions_left": 50,
            "published": "answers.duckdb:answers",
        }.items()
    )
    labels = doors.published()
    assert len(labels) == 50 and {label for _, label, _ in labels} == {"no", "yes"}
    assert (doors.spent(), doors.predict()["predictions_left"], doors.spent()) == ("20", 50, "20")
    assert doors.published() == labels
    with duckdb.connect(str(doors.folder / "points.duckdb")) as connection:
        connection.execute(
            "INSERT INTO tomorrow VALUES ('late', 0.111, 0.222, 'Oslo'), ('same', 0.111, 0.222, 'Oslo'), "
            "('far', 1, 29, 'Oslo'), ('farther', 1, 30, 'Oslo')"
        )
    again = doors.predict()
    assert (again["predictions_left"], again["session_id"]) == (48, first["session_id"])
    assert again["clamped"] == 2  # answered as one point, the end of the range, and nothing said so
    late, same = (answer[1] for answer in doors.published() if answer[0] in ("late", "same"))
    assert late == same and len(doors.published()) == 54
    assert doors.book.verify().ok


@pytest.mark.usefixtures("written")
def test_labels_follow_the_rows(doors: Doors) -> None:
    """With shards and epsilon enough, most labels are right: the learner sees what it should."""
    doors.predict(session=doors.session(epsilon="0.2", predictions=50, shards=40))
    with duckdb.connect(str(doors.folder / "points.duckdb")) as connection:
        truth = dict(
            connection.execute("SELECT id, x + coalesce(y, 0.5) > 1 FROM tomorrow").fetchall()
        )
    right = sum((label == "yes") == truth[point] for point, label, _ in doors.published())
    assert right >= 38  # 40 shards at 0.2: a unanimous vote is right with probability 0.98


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"points": {"database": "loans.duckdb", "table": "loans", "key": "person"}},
            "a file of their own",
        ),
        (
            {"points": {"database": "points.duckdb", "table": "tomorow", "key": "id"}},
            "cannot be read",
        ),
        (
            {"points": {"database": "points.duckdb", "table": "tomorrow", "key": "no"}},
            "there is no column",
        ),
        (
            {"points": {"database": "points.duckdb", "table": "tomorrow", "key": "town"}},
            "names the points",
        ),
        (
            {"points": {"database": "nothing.duckdb", "table": "tomorrow", "key": "id"}},
            "there is no file",
        ),
        ({"points": {"table": "tomorrow"}}, "points: database"),
        ({"answers": {"database": "answers.duckdb", "table": "a b"}}, "answers: table"),
        ({"answers": {"database": "loans.duckdb", "table": "answers"}}, "answers are public"),
        ({"session": {"mechanism": "count", "params": {"epsilon": "0.1"}}}, "predicts nothing"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_the_charge(
    doors: Doors, changes: dict[str, Any], said: str
) -> None:
    """And fails the task without a retry."""
    from airflow.sdk.exceptions import AirflowFailException

    if "session" in changes:
        changes = {"session": doors.session() | changes["session"]}
    with pytest.raises(AirflowFailException, match=said):
        doors.predict(**changes)
    assert doors.spent() == "0"


def test_the_command_line_says_what_a_grant_buys_and_answers(doors: Doors) -> None:
    """First the number of predictions, then the answers; the operator's session is the same one."""
    runner = CliRunner()
    options = ["predict", str(doors.file()), "--ledger", str(doors.ledger), "--json"]
    before = json.loads(runner.invoke(app, options).stdout)
    assert before["predictions the scope can pay for"] == 100
    assert doors.spent() == "0"
    places = [
        "--points",
        f"{doors.folder}/points.duckdb:tomorrow",
        "--answers",
        f"{doors.folder}/answers.duckdb:answers",
    ]
    done = json.loads(runner.invoke(app, [*options, *places]).stdout)
    assert doors.predict()["predictions_left"] == done["predictions_left"]


def test_python_opens_the_same_kind_of_session(doors: Doors) -> None:
    """A plan, a session, answers; nothing about the models is shown."""
    made = plan(
        "predict_vote", doors.declaration, name="py", scope="loans", **doors.session()["params"]
    )
    session = open_predictions(made, doors.book)
    assert session.predict([[0.9, 0.9, "Oslo"]]) == session.predict(
        {"x": [0.9], "y": [0.9], "town": ["Oslo"]}
    )
    assert session.predictions_left == 99
    shown = repr(session) + repr(vars(session)) + str(doors.book.history())
    assert "GaussianNB(" not in shown and "theta" not in shown


SHARDED = {"features": ["x", "y", "town"], "shards": 40, "predictions": 4}
LINEAR = {"features": ["x", "y"], "size": 800, "predictions": 4}


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("mechanism", "params"),
    [
        (
            "predict_average",
            SHARDED | {"label": "late", "learner": "GaussianNB", "answer": "share"},
        ),
        ("predict_value", SHARDED | {"label": "amount"}),
        ("predict_linear", LINEAR | {"label": "late", "loss": "logistic", "strength": "0.01"}),
        ("predict_linear", LINEAR | {"label": "amount", "strength": "0.01"}),
        ("predict_linear", LINEAR | {"label": "amount", "method": "sgd", "radius": "10"}),
        ("predict_walk", {"features": ["x"], "label": "late", "predictions": 2}),
    ],
)
def test_every_mechanism_answers_what_is_right(
    tmp_path: Path, mechanism: str, params: dict[str, Any]
) -> None:
    """Through the plan and the ledger, with epsilon enough: low corner and high corner are told
    apart.
    """
    doors = Doors(tmp_path, epsilon=1000)
    session = open_predictions(
        plan(mechanism, doors.declaration, name="py", scope="loans", epsilon="50", **params),
        doors.book,
    )
    corners = [[0.02, 0.02, "Oslo"], [0.98, 0.98, "Rome"]]
    low, high = session.predict([corner[: len(params["features"])] for corner in corners])
    assert (low, high) == ("no", "yes") if isinstance(low, str) else low < high - 0.25
    assert session.predictions_left == params["predictions"] - 2
