"""A prediction session: charged whole, asked in batches, every point answered once, whoever asks
and whatever crashes.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest

from dpflow import fault_points, hookimpl
from dpflow.core.accounting.events import BoundedRange, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes, encode_points
from dpflow.core.contract.prediction import PredictionMechanism, PredictionParams
from dpflow.core.contract.requests import Records
from dpflow.core.sampling.randomness import Source
from dpflow.engine.prediction.answer_index import PointNames, pack_answers, unpack_answers
from dpflow.engine.prediction.batch import label_points, parse_tables
from dpflow.engine.prediction.session import PredictionSession, most_predictions
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import parse_request
from dpflow.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerCorrupt,
    PlanRefused,
    SessionClosed,
    TableUnreadable,
)
from dpflow.ledger import Ledger
from dpflow.ledger.books import sessions
from dpflow.ledger.history.cipher import SALT, Cipher, add_salt, strip_salt
from dpflow.registry import BUILT_INS, Registry

if TYPE_CHECKING:
    from smallworld import Tiny


class Counting(PredictionMechanism[PredictionParams]):
    """Answers a fresh number each time, so that a second draw would be seen; counts how often it
    learned.
    """

    name = "predict_counting"
    summary = citation = "test"
    Params = PredictionParams

    def __init__(self) -> None:
        self.learned, self.broken = 0, False
        self._lock = threading.Lock()

    def prediction_event(self, params: PredictionParams, table: Table) -> Event:
        return BoundedRange(Fraction(1, 100))

    def training_records(self, params: PredictionParams, table: Table) -> Records:
        return Records(params.features, table.contribution_bounds.rows)

    def learn(self, params: PredictionParams, table: Table, answer: Any, source: Source) -> Any:
        with self._lock:
            self.learned += 1
        if self.broken:
            raise ZeroDivisionError("a value of Ann")
        return len(answer.units)

    def predict(
        self, params: PredictionParams, table: Table, learned: Any, points: Codes, source: Source
    ) -> Sequence[Any]:
        return source.draw_words(len(points)).astype(np.int64).tolist()


class World:
    """A ledger, a registry with the counting mechanism, and sessions on the tiny table."""

    def __init__(self, tiny: Tiny) -> None:
        from importlib import import_module

        self.tiny, self.mechanism = tiny, Counting()
        mechanism = self.mechanism

        class Plugin:
            @hookimpl
            def dpflow_register_mechanisms(self) -> list[Any]:
                return [mechanism]

        self.registry = Registry(
            {**{name: import_module(name) for name in BUILT_INS}, "test": Plugin()}
        )
        self.ledger = Ledger(tiny.ledger)

    def plan(self, predictions: int = 10, **changes: Any) -> Any:
        given = {
            "name": "ages",
            "mechanism": "predict_counting",
            "table": "visits.yml",
            "scope": "visits",
            "blocks": ["2020-01-01"],
            "params": {"features": ["age", "city"], "predictions": predictions},
        }
        return make_plan(parse_request(given | changes, self.tiny.folder), self.registry)

    def open(self, predictions: int = 10, **changes: Any) -> PredictionSession:
        return PredictionSession.open(self.plan(predictions, **changes), self.ledger)

    def spent(self) -> list[str]:
        return [row["epsilon_spent"] for row in self.ledger.remaining("visits").rows()]


@pytest.fixture
def world(tiny: Tiny) -> World:
    return World(tiny)


def test_a_known_point_costs_nothing_and_keeps_its_answer(world: World) -> None:
    """Within a batch, in a later batch, in another process's session; all charged when it opened."""
    session = world.open(4)
    assert world.spent() == ["0.04"]
    first = session.predict([[30, "Oslo"], [40, "Rome"], [30, "Oslo"]])
    assert first[0] == first[2] != first[1]
    assert (session.predictions_left, world.mechanism.learned) == (2, 1)
    again = world.open(4)
    assert again.predict([[40, "Rome"], [50, "Oslo"]])[0] == first[1]
    assert again.predict([[30.2, "Oslo"]]) == [first[0]]  # the same grid step
    assert (again.predictions_left, world.mechanism.learned) == (1, 2)
    assert world.spent() == ["0.04"]
    assert world.ledger.verify().ok


def test_more_new_points_than_predictions_are_refused_before_a_draw(world: World) -> None:
    """A refusal depends on the count of new points only; afterwards the rest can be asked, then
    only known points.
    """
    session = world.open(3)
    with pytest.raises(
        SessionClosed, match="4 of these points have no stored answer.*3 predictions left"
    ):
        session.predict([[age, "Oslo"] for age in (1, 2, 3, 4)])
    assert (session.predictions_left, world.mechanism.learned) == (3, 0)
    said = session.predict([[age, "Oslo"] for age in (1, 2, 3)])
    assert session.predictions_left == 0
    assert session.predict([[3, "Oslo"], [1, "Oslo"]]) == [said[2], said[0]]
    with pytest.raises(SessionClosed, match="has 0 predictions left"):
        session.predict([[9, "Oslo"]])


def test_batches_are_transactions(world: World) -> None:
    """What was answered before a batch that does not fit stays."""
    session = world.open(5)
    points = [[age, "Rome"] for age in range(8)]
    with pytest.raises(SessionClosed):
        session.predict(points, batch=4)
    assert session.predictions_left == 1
    assert len({*session.predict(points[:4])}) == 4
    assert session.predict([]) == []


def test_sessions_of_other_rows_share_no_models(world: World) -> None:
    """Two sessions that differ in name alone may answer from one set of models; other conditions
    learn from other rows.
    """
    first, second = world.open(name="first"), world.open(name="second")
    first.learn_models()
    second.share_models(first)
    assert world.mechanism.learned == 1
    with pytest.raises(PlanRefused, match="cannot answer from one set of models"):
        world.open(name="third", where="age > 30").share_models(first)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([[1, "Oslo"], [1]], "point 1 has 1 values, but a point has 2: age, city"),
        ([[1, "Oslo"], [float("nan"), "Oslo"]], "point 1 has no age"),
        ([[None, "Oslo"]], "point 0 has no age"),
        ([[float("inf"), "Oslo"]], "infinite age"),
        ([[10**400, "Oslo"]], "infinite age"),
        ([["old", "Oslo"]], "not a text"),
        ([[[1], "Oslo"]], "not a list"),
        ([[1, "Olso"]], "did you mean 'Oslo'"),
        ([[1, 7]], "public key of city '7'"),
        (["ab"], "point 0 is no list"),
        ([np.array(3)], "point 0 is no list"),
        (7, "points are a list of points"),
        ("ab", "points are a list of points"),
        ({"age": 3, "city": "Oslo"}, "the values of age are no list"),
        (np.zeros((2, 3)), "has 3 values"),
        ({"age": [1]}, "lack city"),
        ({"age": [1, 2], "city": ["Oslo"]}, "different numbers"),
    ],
)
def test_odd_points_are_refused_by_their_number(world: World, points: Any, said: str) -> None:
    """Nothing is learned, counted or stored."""
    session = world.open(3)
    with pytest.raises(InvalidInput, match=said):
        session.predict(points)
    assert (
        session.predictions_left,
        world.mechanism.learned,
        world.ledger.session(session.id).version,
    ) == (
        3,
        0,
        0,
    )


def test_a_point_without_a_public_key_is_allowed(world: World) -> None:
    """No key at all is what rows without one are: none of the keys."""
    assert world.open().predict([[1, None]])


def test_a_failure_is_the_answer_none_and_closes(world: World) -> None:
    """Rows never raise, are never drawn again, and the failure says nothing."""
    session = world.open()
    world.mechanism.broken = True
    assert session.predict([[1, "Oslo"], [2, "Oslo"]]) == [None, None]
    with pytest.raises(SessionClosed):
        session.predict([[3, "Oslo"]])
    assert session.predict([[1, "Oslo"]]) == [None]
    assert "value of Ann" not in str(world.ledger.history())


def test_a_failure_to_learn_shows_at_the_first_new_point(world: World) -> None:
    """A service that learns when it starts must not tell by its start whether rows made it fail."""
    first, second = world.open(name="first"), world.open(name="second")
    world.mechanism.broken = True
    first.learn_models()
    second.share_models(first)
    world.mechanism.broken = False
    for session in (first, second):
        assert session.predict([[1, "Oslo"]]) == [None]
        with pytest.raises(SessionClosed):
            session.predict([[2, "Oslo"]])
    assert world.mechanism.learned == 1


def test_a_crash_before_the_commit_shows_nothing_and_after_it_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same points after each fault: one stored answer each, counted once."""
    session = world.open()
    for point in ("draw.after", "session.before-commit"):
        monkeypatch.setattr("dpflow.fault_points.armed", f"{point}:fail")
        with pytest.raises(fault_points.FaultInjected):
            session.predict([[1, "Oslo"], [2, "Rome"]])
        monkeypatch.setattr("dpflow.fault_points.armed", "")
        assert session.predictions_left == 10
    monkeypatch.setattr("dpflow.fault_points.armed", "session.after-commit:fail")
    with pytest.raises(fault_points.FaultInjected):
        session.predict([[1, "Oslo"], [2, "Rome"]])
    monkeypatch.setattr("dpflow.fault_points.armed", "")
    assert session.predictions_left == 8
    (stored,) = [unpack_answers(batch["answers"]) for batch in world.ledger.batches(session.id)]
    assert sorted(session.predict([[1, "Oslo"], [2, "Rome"]])) == sorted(stored)


def test_threads_that_ask_for_the_same_points_get_the_same_answers(world: World) -> None:
    """Nothing is answered or counted twice, and the rows are learned from once."""
    session = world.open(40)
    said: list[list[Any]] = []

    def ask(start: int) -> None:
        said.append(
            list(
                zip(
                    range(start, start + 20),
                    session.predict([[age, "Oslo"] for age in range(start, start + 20)]),
                )
            )
        )

    threads = [threading.Thread(target=ask, args=(start,)) for start in (0, 5, 10, 15, 20, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 6
    answers = Counter(pair for some in said for pair in some)
    assert len(answers) == len({age for age, _ in answers}) == 40
    assert (session.predictions_left, world.mechanism.learned) == (0, 1)


def test_the_grant_says_how_many_predictions_it_buys(world: World) -> None:
    """The largest number whose session the ledger would accept now, and nothing is charged by
    asking.
    """
    assert (
        most_predictions(world.plan(), world.ledger, world.registry) == 100
    )  # epsilon 1 at 1/100 each
    with pytest.raises(BudgetExceeded):
        world.open(101)
    world.open(40)
    assert most_predictions(world.plan(), world.ledger, world.registry) == 60
    assert world.spent() == ["0.4"]


def test_a_basic_scope_pays_a_session_as_one_epsilon_and_delta(world: World) -> None:
    """With a delta the session is stated as one (epsilon, delta), far below the sum."""
    params = {"features": ["age", "city"], "predictions": 10_000, "delta": "1e-7"}
    plan = world.plan(params=params)
    epsilon, delta = plan.event.epsilon_delta()
    # 10^4 x epsilon^2/8 = 0.125 zCDP
    assert delta == Fraction(1, 10**7) and 2 < epsilon < 0.125 + 2 * (0.125 * 16.2) ** 0.5 < 3


def test_only_prediction_mechanisms_predict(world: World) -> None:
    """Another mechanism is refused before anything is charged."""
    plan = world.plan(mechanism="above_threshold", params={"epsilon": "0.5"})
    with pytest.raises(PlanRefused, match="predicts nothing"):
        PredictionSession.open(plan, world.ledger)
    assert world.ledger.releases() == []


def test_notes_are_stored_with_the_batch(world: World) -> None:
    """A note appears in the transaction of the answers, also when all points are known."""
    session = world.open()
    assert session.find_notes(["k"]) == session.find_notes([]) == {}
    codes = session.encode([[1, "Oslo"]]).codes
    assert session.predict_batch(codes, {"k": {"v": 1}}) == session.predict_batch(codes, {"l": 2})
    assert (session.find_notes(["k", "l", "m"]), session.predictions_left) == (
        {"k": {"v": 1}, "l": 2},
        9,
    )


def test_names_are_the_key_s_and_their_store_shows_nothing() -> None:
    """The same point has one name in every process; others have others; what is stored differs each
    time and opens again.
    """
    codes = np.array([[0, 1, -1], [1, 0, -1], [0, 1, 2**62], [0, 1, -(2**62)], [0, 1, -1]])
    key = PointNames(b"k" * 32)
    names = key.name_points(codes)
    assert names == PointNames(b"k" * 32).name_points(np.asfortranarray(codes))
    assert {len(name) for name in names} == {16}
    assert names[0] == names[4] and len(set(names)) == 4
    assert not set(names) & set(PointNames(b"l" * 32).name_points(codes))
    assert key.name_points(codes[:0]) == []
    grid = np.stack(np.meshgrid(np.arange(300), np.arange(300)), -1).reshape(-1, 2)
    many = key.name_points(grid)
    assert len(set(many)) == 300**2
    for part in range(4):  # each quarter is a 32-bit hash of its own
        quarters = {name[4 * part : 4 * part + 4] for name in many}
        assert len(quarters) > 300**2 - 12
    batches = [key.seal(many[:50]) for _ in range(2)]
    texts = [batch["names"] for batch in batches]
    assert texts[0] != texts[1] and all(key.open(batch) == many[:50] for batch in batches)
    assert key.open(key.seal([])) == []
    assert not any(name in base64.b64decode(texts[0]) for name in many[:50])


def test_the_mask_of_a_batch_does_not_repeat() -> None:
    """The xor of two batches of the same names, or of two names of one batch, is no constant."""
    key, name = PointNames(b"k" * 32), b"n" * 16
    masks: set[bytes] = set()
    for _ in range(20):
        sealed = base64.b64decode(key.seal([name] * 9)["names"])[16:]
        masks |= {sealed[i : i + 16] for i in range(0, len(sealed), 16)}
    assert len(masks) == 180


def test_a_form_of_a_later_version_is_not_guessed() -> None:
    """Read wrongly, its points would be answered a second time."""
    batch = PointNames(b"k" * 32).seal([b"n" * 16])
    for changed in ({"form": 3}, {"form": None}):
        with pytest.raises(ValueError, match="later version"):
            PointNames(b"k" * 32).open({**batch, **changed})


def test_what_a_mask_hides_is_missing(world: World) -> None:
    """NULLs of a points table: refused, or the declared number; whatever lies under the mask, as a
    matrix or by column.
    """
    table = world.plan().table
    age = table.columns["age"]
    table = table.model_copy(
        update={"columns": table.columns | {"b": age.model_copy(update={"missing": Fraction(7)})}}
    )
    values, mask = [[1.0, 2.0], [3.0, 4.0]], [[False, False], [True, False]]
    with pytest.raises(InvalidInput, match="point 1 has no age"):
        encode_points(table, ["age", "b"], np.ma.masked_array(values, mask=mask))
    for kind in (float, np.int64, object, "datetime64[D]"):
        column = np.ma.masked_array(
            np.array([1, 2, 3], "int64").astype(kind), mask=[False, True, False]
        )
        assert encode_points(table, ["b"], {"b": column}).codes[:, 0].tolist() == [1, 7, 3]


@pytest.mark.parametrize(
    "damaged",
    [
        "{}",
        "[]",
        "7",
        '{"points": "x", "answers": "[]", "notes": {}}',
        '{"form": 2, "names": "x", "answers": "[]", "notes": {}}',
        '{"form": 2, "names": "", "answers": "[1]", "notes": {}}',
        '{"form": 3, "names": "", "answers": "[]", "notes": {}}',
        '{"points": "", "answers": "[1]", "notes": {}}',
    ],
)
def test_a_damaged_batch_stops_the_session(
    world: World, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """Not one answer more, rather than a second draw for a point whose answer cannot be read: as it
    stands in the database, and were it what the ledger encrypted.
    """
    world.open().predict([[1, "Oslo"]])
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "open_answer", lambda *_: "0" * SALT + damaged)
        with pytest.raises(LedgerCorrupt):
            world.open().predict([[1, "Oslo"]])
    with sqlite3.connect(world.tiny.ledger) as connection:
        connection.execute("UPDATE dpflow_answer SET answer = ?", [damaged])
    connection.close()
    with pytest.raises(LedgerCorrupt):
        world.open().predict([[1, "Oslo"]])
    assert world.mechanism.learned == 1


def test_a_changed_batch_that_reads_well_is_not_believed(world: World) -> None:
    """Its digest is in the sealed history: another one that somebody encrypted with the anchor's
    wrapping key is refused, not given.
    """
    world.open().predict([[1, "Oslo"]])
    cipher = Cipher(Ledger(world.tiny.ledger)._anchor)
    with sqlite3.connect(world.tiny.ledger) as connection:
        columns = "release_id, version, wrapped FROM dpflow_key WHERE version = 1"
        ((*place, wrapped),) = connection.execute(f"SELECT {columns}").fetchall()
        key = cipher.open_key(*place, wrapped)
        ((sealed,),) = connection.execute("SELECT answer FROM dpflow_answer").fetchall()
        batch = json.loads(strip_salt(key.decrypt(sealed, "answer")))
        text = json.dumps(batch | {"answers": pack_answers(["forged"])}, separators=(",", ":"))
        forged = key.encrypt(add_salt(text), "answer")
        connection.execute("UPDATE dpflow_answer SET answer = ?", [forged])
    connection.close()
    with pytest.raises(LedgerCorrupt, match="not the one that was given"):
        world.open().predict([[1, "Oslo"]])


def test_another_batch_in_the_place_of_one_is_not_believed(world: World) -> None:
    """A batch is encrypted for its place: a genuine one that is put elsewhere is refused, not given."""
    for n in range(2):
        world.open().predict([[n, "Oslo"]])
    with sqlite3.connect(world.tiny.ledger) as connection:
        connection.execute(
            "UPDATE dpflow_answer SET answer = (SELECT answer FROM dpflow_answer ORDER BY query LIMIT 1)"
        )
    connection.close()
    with pytest.raises(LedgerCorrupt, match="not what this ledger encrypted"):
        world.open().predict([[1, "Oslo"]])


def test_a_batch_that_is_gone_stops_the_session(world: World) -> None:
    """The session's version says how many there are."""
    for n in range(2):
        world.open().predict([[n, "Oslo"]])
    with sqlite3.connect(world.tiny.ledger) as connection:
        connection.execute(
            "DELETE FROM dpflow_answer WHERE query = (SELECT min(query) FROM dpflow_answer)"
        )
    connection.close()
    with pytest.raises(LedgerCorrupt):
        world.open().predict([[0, "Oslo"]])


def test_answers_that_could_not_be_written_charge_nothing(world: World) -> None:
    """The whole session was charged before the name of the answers' table was looked at."""
    file = world.tiny.folder / "pub.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE late (a INTEGER)")
    with duckdb.connect(str(world.tiny.folder / "points.duckdb")) as connection:
        connection.execute("CREATE TABLE points AS SELECT 1 AS id, 30 AS age, 'Oslo' AS city")
    place = {"database": "points.duckdb", "table": "points", "key": "id"}

    def label(table: str) -> Any:
        tables = parse_tables(place, {"database": "pub.duckdb", "table": table}, world.tiny.folder)
        return label_points(world.plan(), *tables, world.ledger, world.registry)

    with pytest.raises(TableUnreadable, match="name another table.*nothing was charged now"):
        label("late")
    assert world.spent() == ["0"] and world.mechanism.learned == 0
    assert label("late_2")["points"] == 1
