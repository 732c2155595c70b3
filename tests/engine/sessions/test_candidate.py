"""Where candidates come from: estimator files, prediction tables, MLflow; and the partition they
are scored on.
"""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import duckdb
import numpy as np
import pytest
from holdout_gates import PARAMS, write_predictions
from made_once import make_registry
from pydantic import ValidationError

from dpflow import Session, plan
from dpflow.core.contract.gate import ClaimQuery
from dpflow.engine.sessions.candidate import Submission, load_candidate
from dpflow.engine.sessions.holdout_gate import check_submissions, judge
from dpflow.engine.sessions.query_list import ask_all
from dpflow.errors import InvalidDeclaration, InvalidInput, PlanRefused, TableUnreadable
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import read_predictions, read_together
from dpflow.tables.access import isolated_database
from dpflow.tables.access.declarations import load_table
from dpflow.tables.private import PrivateTable
from dpflow.tables.public import predictions as predictions_module
from dpflow.tables.snapshot import SnapshotTable

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, 'r' || i AS visit, DATE '2020-01-01' + CAST(i % 2 AS INTEGER) AS day,
       i % 2 AS sick, (i % 2) * 30 + i % 7 AS age FROM range(4000) t(i)
"""


@pytest.fixture
def gate(tiny: Tiny) -> Session:
    """An open gate."""
    tiny.fill(ROWS)
    columns = {"sick": {"lower": 0, "upper": 1}, "age": {"lower": 0, "upper": 120}, "visit": {}}
    table = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns=columns, block=None
    )
    declared = load_table(table)
    Ledger(tiny.ledger).grant("gate", 8, 0, filter="basic", table=declared, principal="owner")
    planned = plan("reusable_holdout", table, name="gate", scope="gate", **PARAMS)
    return Session.open(planned, Ledger(tiny.ledger), Registry.load())


def test_a_table_of_predictions_is_a_candidate(tiny: Tiny, gate: Session) -> None:
    """Right predictions pass, others do not; the digest covers what the table holds."""
    right = {
        "name": "right",
        "label": "sick",
        "predictions": write_predictions(tiny, "i % 2"),
        "claim": "0.9",
    }
    assert judge(gate, right)["verdict"] == "yes"
    wrong = {
        "name": "wrong",
        "label": "sick",
        "predictions": write_predictions(tiny, "(i + i // 2) % 2", "w"),
        "claim": "0.9",
    }
    assert judge(gate, wrong)["verdict"] == "no"
    short = {
        "name": "short",
        "label": "sick",
        "predictions": write_predictions(tiny, "i % 2", "s", 1000),
        "claim": "0.9",
    }
    assert judge(gate, short)["verdict"] == "no"  # rows without a prediction are wrong
    digests = {load_candidate(Submission.model_validate(s)).digest for s in (right, wrong, short)}
    assert len(digests) == 3


def test_scores_are_looked_up_by_id(tiny: Tiny) -> None:
    table = read_predictions(
        **{**write_predictions(tiny, "i % 2"), "database": tiny.folder / "said.duckdb"}, score="p"
    )
    rows = {"visit": np.array(["r8", "r3", "none", None], dtype=object)}
    assert table.predict(rows).tolist()[:2] == [0, 1] and np.isnan(table.predict(rows)[2:]).all()
    assert table.score(rows)[0] == 8 / 4000


def test_one_rows_long_text_costs_nobody_memory(tiny: Tiny) -> None:
    """Compared as it is, it would make every id of the predictions as long; cut, or without its
    NUL, it would be another id.
    """
    table = read_predictions(
        **{**write_predictions(tiny, "i % 2"), "database": tiny.folder / "said.duckdb"}
    )
    long = "r3999" + "x" * 10**6
    tracemalloc.start()
    said = table.predict({"visit": np.array(["r3", long, "r3\0"], dtype=object)})
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    assert said[0] == 1 and np.isnan(said[1:]).all()


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
@pytest.mark.parametrize("prediction", ["sick", "person"])
def test_private_rows_are_no_predictions(
    tiny: Tiny, gate: Session, link: Any, prediction: str
) -> None:
    """A digest of them, and whether an id occurs twice or a text is a number, would leave for
    nothing: all are refused the same way.
    """
    file = tiny.database if link is None else tiny.folder / "link.duckdb"
    if link is not None:
        link(tiny.database, file)
    place = {"database": str(file), "table": "visits", "id": "visit", "prediction": prediction}
    with pytest.raises(PlanRefused, match="in the private table's file"):
        judge(gate, {"name": "mine", "label": "sick", "predictions": place, "claim": "0.9"})
    assert gate.remaining()["answered"] == 0


@pytest.mark.own_session
def test_tables_of_a_batch_are_read_by_one_duckdb(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same content as alone. Their files may be written in between, and no view leads out of them."""
    tiny.fill(ROWS)
    places: list[dict[str, Any]] = [
        write_predictions(tiny, f"i % {n + 2}", f"said{n}") for n in range(3)
    ]
    files = [Path(place["database"]) for place in places]
    places = [place | {"database": file} for place, file in zip(places, files)]
    alone = [read_predictions(**place).digest for place in places]
    predictions_module._read_state.cache_clear()
    connect, starts = duckdb.connect, Mock(wraps=duckdb.connect)
    monkeypatch.setattr(isolated_database.duckdb, "connect", starts)
    with read_together(files):
        assert [read_predictions(**place).digest for place in places] == alone
        assert starts.call_count == 1
        with connect(str(files[0])) as connection:
            connection.execute("INSERT INTO said VALUES ('r9000', 1, 1)")
            connection.execute(
                f"CREATE VIEW private AS SELECT filename AS visit, 1 AS prediction FROM read_blob('{tiny.database}')"
            )
            connection.execute(
                f"CREATE VIEW other AS SELECT filename AS visit, 1 AS prediction FROM read_blob('{files[1]}')"
            )
            connection.execute("CREATE VIEW own AS FROM said")
        assert read_predictions(**places[0]).digest != alone[0]
        for view in ("private", "other", "own"):
            with pytest.raises(InvalidInput, match="is a view"):
                read_predictions(**places[0] | {"table": view})
        files[2].unlink()
        with pytest.raises(TableUnreadable, match="there is no file"):
            read_predictions(**places[2])
        assert read_predictions(**places[1]).digest == alone[1]


@pytest.mark.own_session
def test_tables_of_a_batch_are_read_through_links_and_odd_names(tiny: Tiny) -> None:
    """Whose logs DuckDB looks for under other names."""
    files = [tiny.folder / "said.duckdb", tiny.folder / "a? '[b].duckdb", tiny.folder / "link"]
    for number, file in enumerate(files[:2]):
        with duckdb.connect(str(file)) as connection:
            connection.execute(f"CREATE TABLE said AS SELECT 'r1' AS visit, {number} AS prediction")
    files[2].symlink_to(files[1])
    with read_together(files):
        read = [read_predictions(file, "said", "visit").predictions.tolist() for file in files]
    assert read == [[0], [1], [1]]


@pytest.mark.parametrize("end", ["", ".wal"])
def test_a_private_file_in_a_batch_is_refused_before_a_charge(
    tiny: Tiny, gate: Session, end: str
) -> None:
    """A view in another file of the batch could read it."""
    listed: list[dict[str, Any]] = [
        {
            "name": n,
            "label": "sick",
            "predictions": write_predictions(tiny, "i % 2", n),
            "claim": "0.9",
        }
        for n in ("first", "second")
    ]
    file = Path(listed[1]["predictions"]["database"])
    if not end:
        file.unlink()
    file.with_name(file.name + end).symlink_to(tiny.database)
    with pytest.raises(PlanRefused, match="in the private table's file"):
        check_submissions([gate.plan], Ledger(tiny.ledger), listed)
    with pytest.raises(PlanRefused, match="in the private table's file"):
        ask_all(gate, listed, tiny.folder)
    assert gate.remaining()["answered"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("INSERT INTO said SELECT * FROM said LIMIT 1", "an id twice"),
        ("UPDATE said SET visit = NULL WHERE visit = 'r1'", "without an id"),
        ("DELETE FROM said", "no rows"),
        ("ALTER TABLE said RENAME prediction TO other", "no column 'prediction'"),
    ],
)
def test_unusable_predictions_are_refused(tiny: Tiny, change: str, message: str) -> None:
    place = write_predictions(tiny, "i % 2", rows=5)
    with duckdb.connect(place["database"]) as connection:
        connection.execute(change)
    with pytest.raises(InvalidInput, match=message):
        read_predictions(Path(place["database"]), "said", "visit")


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ({"score": "prediction"}, "prediction"),
        ({"prediction": "id"}, "id"),
        ({"id": "rowid"}, "rowid"),
        ({"prediction": "rowid"}, "rowid"),
        ({"id": "preds"}, "preds"),
        ({"id": "score", "score": "p"}, "score"),
    ],
)
def test_no_column_stands_for_a_missing_one(
    tiny: Tiny, names: dict[str, str], missing: str
) -> None:
    """Neither another output, nor the table's own name, nor its hidden column."""
    file = tiny.folder / "own.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE preds AS SELECT i AS person, 0.5 AS p FROM range(5) t(i)")
    columns = {"id": "person", "prediction": "p"} | names
    with pytest.raises(InvalidInput, match=f"no column '{missing}'"):
        read_predictions(file, "preds", **columns)


def fitted(tiny: Tiny, name: str, shift: int = 0) -> Path:
    import skops.io
    from sklearn.tree import DecisionTreeClassifier

    ages, labels = (
        np.array([[(i % 2) * 30 + i % 7 + shift] for i in range(400)]),
        np.array([i % 2 for i in range(400)]),
    )
    file = tiny.folder / f"{name}.skops"
    skops.io.dump(DecisionTreeClassifier().fit(ages, labels), file)
    return file


def test_a_registered_model_is_a_candidate(tiny: Tiny, gate: Session) -> None:
    """By version and by alias; what the registry does not have is refused."""
    from mlflow import MlflowClient

    uri = make_registry(tiny.folder)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("sick")
    version = client.create_model_version("sick", source=fitted(tiny, "tree").as_uri()).version
    client.set_registered_model_alias("sick", "best", version)
    given = {"name": "m", "label": "sick", "features": ["age"], "claim": "0.9", "tracking_uri": uri}
    assert judge(gate, given | {"model": f"models:/sick/{version}"})["verdict"] == "yes"
    assert judge(gate, given | {"model": "models:/sick@best"})["verdict"] == "yes"
    for missing in ("models:/sick/7", "models:/well/1", "runs:/1"):
        with pytest.raises(InvalidInput):
            judge(gate, given | {"model": missing})


def test_no_two_submissions_share_a_digest(tiny: Tiny) -> None:
    """A zip file may follow other bytes. Were a model and its rival digested as one text, both in
    one file would be the same submission, and have its stored verdict, though that file loads as
    the rival.
    """
    first, second, joined = (
        fitted(tiny, "tree"),
        fitted(tiny, "worse", 50),
        tiny.folder / "joined.skops",
    )
    joined.write_bytes(first.read_bytes() + b"\0\0" + second.read_bytes())
    given = {"name": "m", "label": "sick", "features": ["age"], "claim": "0.9"}
    two = load_candidate(Submission.model_validate(given | {"file": first, "rival": second}))
    one = load_candidate(Submission.model_validate(given | {"file": joined}))
    assert one.predict is not None and two.rival is not None
    rows = {"age": np.arange(60.0)}
    assert one.predict(rows).tolist() == two.rival(rows).tolist()
    assert one.digest != two.digest
    # What else is in its file is no part of a model.
    alone = load_candidate(Submission.model_validate(given | {"file": second}))
    assert alone.digest == one.digest


def test_estimators_by_name(tiny: Tiny, gate: Session) -> None:
    """Scores, comparisons and columns go through the same gate."""
    given: dict[str, Any] = {
        "name": "m",
        "label": "sick",
        "features": ["age"],
        "file": str(fitted(tiny, "tree")),
    }
    assert (
        judge(gate, given | {"claim": "0.9", "estimator": "auc", "default": "1"})["verdict"]
        == "yes"
    )
    rival = given | {
        "estimator": "difference",
        "rival": str(fitted(tiny, "worse", 50)),
        "claim": "0.2",
    }
    assert judge(gate, rival)["verdict"] == "yes"
    assert (
        gate.ask("column_quantile", columns=["age"], options={"p": "1/2"}, claim="3")["verdict"]
        == "yes"
    )
    assert (
        judge(gate, {"name": "c", "estimator": "column_mean", "features": ["age"], "claim": "10"})[
            "verdict"
        ]
        == "yes"
    )
    with pytest.raises(PlanRefused, match="give the candidate a rival"):
        judge(gate, given | {"estimator": "difference", "claim": "0.2"})
    with pytest.raises(InvalidDeclaration, match="one of file"):
        judge(gate, given | {"model": "models:/a/1", "claim": "0.5"})


def test_the_order_of_rows_changes_nothing(tiny: Tiny) -> None:
    """Estimates are the same to the last bit however the table's rows are stored."""
    from dpflow.core.contract.estimators import Subject
    from dpflow.core.contract.requests import GroupValues
    from dpflow.engine.sessions.group_scores import group_values
    from dpflow.mechanisms.builtin_estimators import COLUMNS

    mean = next(e for e in COLUMNS if e.name == "column_mean")
    found = []
    for order in ("i", "-i", "hash(i)"):
        tiny.fill(
            f"CREATE TABLE visits AS SELECT 'p' || i AS person, sin(i) * exp(i % 30) AS age FROM range(3000) t(i) ORDER BY {order}"
        )
        table = tiny.declare(
            protects="unit", contribution_bounds={"rows": 1}, columns={"age": {}}, block=None
        )
        request = GroupValues(7, ("age",))
        found.append(
            group_values(
                SnapshotTable(load_table(table)), request, b"k", (), mean, Subject(("age",)), 0.0
            ).tolist()
        )
    assert found[0] == found[1] == found[2]


def test_no_row_tells_two_zeros_apart(tiny: Tiny) -> None:
    """They sort equal, so which comes first would follow the order of the table's rows, in which
    other groups' are.
    """
    from dpflow.core.contract.requests import GroupValues

    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' AS person, CAST(unnest(['-0.0', '0.0', '-0.0']) AS DOUBLE) AS age"
    )
    for bounds in ({}, {"lower": -1, "upper": 1}):
        table = tiny.declare(
            protects="unit", contribution_bounds={"rows": 1}, columns={"age": bounds}, block=None
        )
        _, rows = PrivateTable(load_table(table)).grouped_rows(GroupValues(1, ("age",)), b"k", ())
        assert not np.signbit(rows["age"]).any()


def test_a_scope_has_one_partition(tiny: Tiny, gate: Session) -> None:
    """Another number of groups on the same scope is refused, also after the gate is closed."""
    with pytest.raises(PlanRefused, match="partitioned into 400 groups"):
        other = plan(
            "reusable_holdout",
            tiny.folder / "visits.yml",
            name="b",
            scope="gate",
            **(PARAMS | {"groups": 300}),
        )
        Session.open(other, Ledger(tiny.ledger), Registry.load())


def test_a_gate_reads_the_blocks_it_pays_for(tiny: Tiny) -> None:
    """Under a budget per block, rows of other days change nothing, because nobody paid for them."""
    tiny.fill(ROWS.replace("(i % 2) * 30 + i % 7", "CASE WHEN i % 2 = 0 THEN 10 ELSE 100 END"))
    table = tiny.declare(
        contribution_bounds={"rows": 1}, columns={"day": {}, "age": {"lower": 0, "upper": 120}}
    )
    sure = PARAMS | {
        "epsilon": "1",
        "failures": 1,
        "groups": 1000,
    }  # 140 groups from the threshold: 35 scales of the noise
    planned = plan(
        "reusable_holdout", table, name="day", scope="visits", blocks=["2020-01-01"], **sure
    )
    session = Session.open(planned, Ledger(tiny.ledger), Registry.load())
    assert session.ask("column_mean", columns=["age"], claim="10")["verdict"] == "yes"
    assert session.ask("column_mean", columns=["age"], claim="11")["verdict"] == "no"


@pytest.mark.parametrize("field", ["claim", "option"])
def test_a_claim_that_no_double_holds_is_refused_before_it_is_asked(field):
    """It overflowed in the middle of its answer, and an error there closes the gate for everybody."""
    given = {"name": "n", "features": ["x"], "estimator": "mean", "claim": "0.5"}
    given |= {"claim": "1e400"} if field == "claim" else {"options": {"target": "-1e400"}}
    with pytest.raises(ValidationError, match="finite number"):
        Submission.model_validate(given)
    with pytest.raises(ValidationError, match="finite number"):
        ClaimQuery.model_validate(
            {k: v for k, v in given.items() if k not in ("name", "features")} | {"columns": ["x"]}
        )
