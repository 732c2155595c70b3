"""A published student: trained on private answers to public points, registered with the guarantee
that it really has.
"""

from __future__ import annotations

import json
import sys
import uuid
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
import yaml
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from mlflow_server import KINDS, stand_server  # noqa: E402
from prediction_doors import DECLARATION, Doors, written  # noqa: E402, F401

import dpflow  # noqa: E402
from dpflow import open_predictions, plan  # noqa: E402
from dpflow.cli import app  # noqa: E402
from dpflow.engine.prediction.student import (
    Student,
    parse_student,
    pool_matrix,
    student_guarantee,
    teach_student,
)  # noqa: E402
from dpflow.engine.sessions import mlflow_models  # noqa: E402
from dpflow.engine.sessions.candidate import Submission, load_candidate  # noqa: E402
from dpflow.errors import InvalidInput  # noqa: E402


@pytest.fixture
def doors(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Doors:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    made = Doors(tmp_path)
    connection = {"conn_type": "dpflow_ledger", "host": str(made.ledger)}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))
    return made


@pytest.mark.usefixtures("written")
def test_the_operator_registers_a_student_once(doors: Doors) -> None:
    """With its epsilon in the tags; a retry spends nothing and finds the same file and version; the
    file predicts.
    """
    from mlflow import MlflowClient

    uri = f"sqlite:///{doors.folder / 'mlflow.db'}"
    student = {"folder": "students", "model": "late", "tracking_uri": uri, "options": {"C": 10}}
    first = doors.predict(student=student)
    spent = doors.spent()
    again = doors.predict(student=student)
    assert (doors.spent(), again["student"]) == (spent, first["student"])
    assert again["predictions_left"] == first["predictions_left"]
    assert (
        first["student"].items()
        >= {"epsilon": "20", "delta": "0", "points": 50, "version": "1"}.items()
    )
    tags = MlflowClient(tracking_uri=uri, registry_uri=uri).get_model_version("late", "1").tags
    assert tags["dpflow.epsilon"] == "20" and tags["dpflow.session"] == first["session_id"]
    assert "(20, 0)-DP for all rows of one person (add-remove) of loans" in tags["dpflow.guarantee"]
    assert json.loads(tags["dpflow.event"])["kind"] == "repeated.v1"
    file = mlflow_models.find_file("models:/late/1", uri, doors.folder)
    assert file == Path(first["student"]["file"])
    assert [*file.parent.parent.iterdir()] == [file.parent]
    corners = np.array([[0.02, 0.02, "Oslo"], [0.98, 0.98, "Rome"]], dtype=object)
    assert skops.io.loads(file.read_bytes()).predict(corners).tolist() == ["no", "yes"]


@pytest.mark.usefixtures("written")
def test_a_registered_student_is_loaded_by_mlflow_and_judged_by_a_gate(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a model of scikit-learn, and by a gate where it reads numbers alone: no gate took any."""
    import mlflow

    uri = f"sqlite:///{doors.folder / 'mlflow.db'}"
    student = {"folder": "students", "model": "late", "tracking_uri": uri}
    doors.predict(
        student=student | {"learner": "DecisionTreeClassifier"},
        session=doors.session(features=["x", "y"]),
    )
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", uri)
    corners = np.array([[0.02, 0.02], [0.98, 0.98]])
    for flavour in (mlflow.sklearn, mlflow.pyfunc):
        assert flavour.load_model("models:/late/1").predict(corners).tolist() == ["no", "yes"]
    submission = {"name": "s", "model": "models:/late/1", "features": ["x", "y"], "label": "yes"}
    candidate = load_candidate(Submission.model_validate({**submission, "tracking_uri": uri}))
    assert candidate.predicts_rows_alone and candidate.predict is not None
    rows = {"x": corners[:, 0], "y": corners[:, 1]}
    assert [*candidate.predict(rows)] == ["no", "yes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("written")
def test_a_student_is_registered_on_a_server(
    doors: Doors, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes no folder of this machine: with its files, once, and loaded by MLflow."""
    import mlflow

    uri, name = stand_server(kind, doors.folder, monkeypatch), f"late-{uuid.uuid4()}"
    student = {"folder": "students", "model": name, "tracking_uri": uri}
    learner = {"learner": "DecisionTreeClassifier"}
    made = [
        doors.predict(student=student | learner, session=doors.session(features=["x", "y"]))[
            "student"
        ]
        for _ in range(2)
    ]
    assert [report["version"] for report in made] == ["1", "1"]
    kept = mlflow_models.find_file(f"models:/{name}/1", uri, doors.folder)
    assert kept.read_bytes() == Path(made[0]["file"]).read_bytes()
    if kind == "server":
        monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", uri)
        loaded = mlflow.sklearn.load_model(f"models:/{name}/1")
        assert loaded.predict([[0.02, 0.02], [0.98, 0.98]]).tolist() == ["no", "yes"]


@pytest.mark.usefixtures("written")
def test_a_registry_that_is_down_costs_no_answer(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was first asked when all answers were paid for."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    student = {"folder": "students", "model": "late", "tracking_uri": "http://127.0.0.1:9"}
    with pytest.raises(Exception, match="could not be reached") as told:
        doors.predict(student=student)
    assert "NotPublished" in repr(told.value.__cause__ or told.value)
    assert doors.spent() == "0"


@pytest.mark.usefixtures("written")
def test_a_student_learns_more_from_more_points(tmp_path: Path) -> None:
    """Accuracy grows with the pool, and the ledger's total is what was planned."""
    doors = Doors(tmp_path, epsilon=100)
    rng, right = np.random.default_rng(3), {}
    made = plan("predict_vote", doors.declaration, name="pool", scope="loans", **doors.session(
        epsilon="0.1", predictions=1000, shards=60)["params"])  # fmt: skip
    session = open_predictions(made, doors.book)
    assert doors.spent() == "100"
    points = [[float(x), float(y), "Oslo"] for x, y in rng.random((1000, 2))]
    codes, answers = session.encode(points).codes, session.predict(points)
    fresh = rng.random((2000, 2))
    truth = fresh.sum(axis=1) > 1
    exam = pool_matrix(
        made.table,
        ("x", "y", "town"),
        session.encode([[float(x), float(y), "Oslo"] for x, y in fresh]).codes,
    )
    for number in (8, 1000):
        taught = teach_student(
            made,
            made.event,
            session.id,
            codes[:number],
            answers[:number],
            Student(folder=doors.folder / "s"),
        )
        right[number] = float(
            (
                (skops.io.loads(Path(taught["file"]).read_bytes()).predict(exam) == "yes") == truth
            ).mean()
        )
    assert right[1000] > 0.85 and right[1000] >= right[8]


def test_the_guarantee_is_the_session_s(doors: Doors) -> None:
    """Basic at delta 0, the vote's zCDP at another, Gaussian noise only with a delta; rounded up."""
    given = doors.session()["params"] | {"epsilon": "0.01", "predictions": 10000}
    made = plan("predict_vote", doors.declaration, name="a", scope="loans", **given)
    assert student_guarantee(made.event, Fraction(0)) == ("100", "0")
    epsilon, delta = student_guarantee(made.event, Fraction(1, 10**6))
    assert (
        0.5 < float(epsilon) < 10000 * 0.01**2 / 8 + 2 * (10000 * 0.01**2 / 8 * 13.82) ** 0.5
        and delta == "0.000001"
    )
    stated = plan(
        "predict_vote", doors.declaration, name="b", scope="loans", **given | {"delta": "0.00001"}
    )
    assert (
        student_guarantee(stated.event, Fraction(0))[1] == "0.00001"
        and float(student_guarantee(stated.event, Fraction(0))[0]) < 2.6
    )
    numbers = given | {"noise": "gaussian", "learner": "LinearRegression", "label": "amount"}
    gaussian = plan("predict_value", doors.declaration, name="c", scope="loans", **numbers)
    with pytest.raises(InvalidInput, match="give the student one"):
        student_guarantee(gaussian.event, Fraction(0))


@pytest.mark.parametrize(
    ("student", "said"),
    [
        ({"folder": "s", "learner": "LogisticRegresion"}, "did you mean 'LogisticRegression'"),
        ({"folder": "s", "options": {"C": -1}}, "does not take the options"),
        ({"folder": "s", "model": "late"}, "both model and tracking_uri"),
        ({"learner": "Ridge"}, "student: folder"),
    ],
)
def test_a_wrong_student_is_refused_before_the_charge(
    doors: Doors, student: dict[str, Any], said: str
) -> None:
    """And fails the task without a retry."""
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=said):
        doors.predict(student=student)
    assert doors.spent() == "0"


def test_the_command_line_teaches(doors: Doors) -> None:
    """dpflow predict --student: a tree on numbers, without a registry."""
    file = doors.folder / "student.yml"
    file.write_text(
        yaml.safe_dump(
            {"folder": "students", "learner": "DecisionTreeClassifier", "options": {"max_depth": 3}}
        )
    )
    options = [
        "predict",
        str(doors.file()),
        "--ledger",
        str(doors.ledger),
        "--student",
        str(file),
        "--json",
    ]
    assert "give both" in str(CliRunner().invoke(app, options).exception)
    places = [
        "--points",
        f"{doors.folder}/points.duckdb:tomorrow",
        "--answers",
        f"{doors.folder}/answers.duckdb:answers",
    ]
    done = json.loads(CliRunner().invoke(app, [*options, *places]).stdout)
    assert Path(done["student"]["file"]).exists() and "version" not in done["student"]


def test_answers_that_teach_nothing_are_said_to(doors: Doors) -> None:
    """One label only: the answers are public, so the error may say so."""
    made = plan(
        "predict_vote", doors.declaration, name="pool", scope="loans", **doors.session()["params"]
    )
    session = open_predictions(made, doors.book)
    codes = session.encode([[0.1, 0.1, "Oslo"], [0.9, 0.9, None]]).codes
    student = parse_student({"folder": "s"}, doors.folder)
    with pytest.raises(InvalidInput, match="cannot learn from these 2 answers"):
        teach_student(made, made.event, session.id, codes, ["yes", "yes"], student)


@pytest.mark.usefixtures("written")
def test_a_student_answers_for_the_search_of_its_bounds(tmp_path: Path) -> None:
    """Points are clamped to searched bounds, and its scaler shows them: by the answers alone it was called (1, 0)-DP."""
    columns = {**DECLARATION["columns"], "x": {"step": "0.001"}}
    doors = Doors(tmp_path, columns=columns)
    search = {"name": "x bounds", "mechanism": "bounds", "table": "loans.yml", "scope": "loans"}
    found = dpflow.plan(**search | {"table": doors.declaration}, column="x", epsilon="3")
    dpflow.release(found, ledger=doors.book)
    asked = doors.session(epsilon="0.1", predictions=50, shards=20) | {"bounds": ["x bounds"]}
    (tmp_path / "session.yml").write_text(yaml.safe_dump(asked))
    points = [
        "--points",
        f"{tmp_path}/points.duckdb:tomorrow",
        "--answers",
        f"{tmp_path}/answers.duckdb:a",
    ]
    (tmp_path / "student.yml").write_text("folder: students\n")
    words = [
        "predict",
        f"{tmp_path}/session.yml",
        *points,
        "--student",
        f"{tmp_path}/student.yml",
        "--json",
    ]
    done = CliRunner().invoke(app, [*words, "--ledger", str(doors.ledger)])
    assert done.exit_code == 0, done.output
    student = json.loads(done.stdout)["student"]
    assert (student["epsilon"], student["delta"], doors.spent()) == ("8", "0", "8")
