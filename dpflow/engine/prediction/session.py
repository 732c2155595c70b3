"""A prediction session's life: learned once per process, asked in batches, one ledger transaction
for each.

A batch is encoded and its known points are looked up; the rest is predicted, and the answers and
the count of spent predictions are stored together, as one row, before any of them is seen. What was
answered is stored in memory (about 150 bytes a point), read from the ledger when a session is first
asked and whenever another process answered something. Two processes that ask for the same points at
once: the one whose transaction comes second stores nothing, looks up what the first one stored, and
predicts only what is left.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dpflow import fault_points
from dpflow.core.accounting.bisection import bisect_integers
from dpflow.core.accounting.events import to_json
from dpflow.core.contract.point_encoding import Codes, EncodedPoints, Points, encode_points
from dpflow.core.contract.prediction import PredictionMechanism, PredictionParams
from dpflow.core.sampling.randomness import Source
from dpflow.counted import counted
from dpflow.engine.fail_closed import draw_or_none
from dpflow.engine.prediction.answer_index import (
    AnswerIndex,
    PointNames,
    pack_answers,
    unpack_answers,
)
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.released_bounds import compose_event
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.session_charge import charge_session
from dpflow.error_boundary import errors_end_here
from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt, PlanRefused, SessionClosed
from dpflow.ledger import Ledger, SessionRecord
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable

#: In place of models: learning failed, and whether it would fail again may depend on rows.
_FAILED: Final = object()

#: Points of one transaction, unless the caller says otherwise.
BATCH = 100_000


class NoteConflict(InvalidInput):
    """A note whose name was stored with another value before; nothing was charged."""


def require_predictions(plan: Plan) -> None:
    """Raises `PlanRefused` if a plan is not one for predictions, before anything is charged."""
    if not isinstance(plan.mechanism, PredictionMechanism):
        raise PlanRefused(
            f"{plan.mechanism.name} predicts nothing; name a prediction mechanism, see dpflow reference predictions"
        )


class PredictionSession:
    """An open session of private predictions (`dpflow.open_predictions`). Thread-safe.

    Attributes:
        id: the session's, in the ledger.
        cached_left: how many new points could be asked when the ledger was last looked at;
            `predictions_left` looks again.
    """

    def __init__(self, session_id: str, principal: str, plan: Plan, ledger: Ledger) -> None:
        mechanism, params = plan.mechanism, plan.params
        assert isinstance(mechanism, PredictionMechanism) and isinstance(params, PredictionParams)
        self.id, self._principal, self._plan, self._ledger = session_id, principal, plan, ledger
        self._private = PrivateTable(plan.table, plan.request.where)
        self._mechanism, self._params = mechanism, params
        self._learning = threading.Lock()
        self._learned: Any = None
        self._failures: list[str] = []
        # One batch at a time: of two, the second would draw what nobody sees.
        self._turn = threading.Lock()
        self._index = AnswerIndex()
        self._notes: dict[str, Any] = {}
        # The version of the session up to which index and notes are complete.
        self._version = 0
        self._names = PointNames(bytes.fromhex(ledger.commitment(session_id.encode(), "points")))
        self.cached_left = self._count_left(ledger.session(session_id))

    @classmethod
    @errors_end_here
    def open(
        cls, plan: Plan, ledger: Ledger, *, run_identity: RunIdentity | None = None
    ) -> PredictionSession:
        """Charge all predictions of the plan, or resume the session.

        Raises:
            BudgetExceeded: the scope cannot pay for all of them; nothing was read.
            PlanRefused: the plan is for something else.
        """
        require_predictions(plan)
        return cls(*charge_session(plan, ledger, run_identity), plan, ledger)

    @property
    def predictions_left(self) -> int:
        """How many new points may still be asked."""
        self.cached_left = self._count_left(self._ledger.session(self.id))
        return self.cached_left

    def _count_left(self, session: SessionRecord) -> int:
        return 0 if session.closed else self._params.predictions - int(session.state["answered"])

    def share_models(self, other: PredictionSession) -> None:
        """Answer from the models of another session, instead of learning them again.

        Raises `PlanRefused` if the two would not learn the same; see `require_same_models`.
        """
        require_same_models(self._plan, other._plan)
        # One lock at a time: two sessions that share with each other cannot block.
        with other._learning:
            learned = other._learned
        with self._learning:
            self._learned = learned

    @errors_end_here
    def learn_models(self) -> None:
        """Learn now instead of at the first new point.

        A failure that may depend on rows raises nothing. It shows at the first new point, as the
        answer None, and closes the session.
        """
        with self._learning:
            if self._learned is not None:
                return
            plan = self._plan
            request = self._mechanism.training_records(self._params, plan.table)
            # What plan and catalog can refuse is refused here, where an error may say why.
            self._private.check_request(request, plan.request.blocks)

            def learn_from_rows(source: Source) -> Any:
                rows = self._private.answer(request, plan.request.blocks)
                return self._mechanism.learn(self._params, plan.table, rows, source)

            self._learned = draw_or_none(learn_from_rows, _FAILED, self._failures)

    @errors_end_here
    def predict(self, points: Points, *, batch: int = BATCH) -> list[Any]:
        """Answers for points, in their order; points that were answered before cost nothing.

        Args:
            points: rows of values in the order of the features, or a mapping from feature to
            values.
            batch: points of one transaction.

        Raises:
            InvalidInput: points that do not fit the declaration; nothing was charged.
            SessionClosed: more new points than predictions are left; the batches before are
            answered and stored.
        """
        if batch < 1:
            raise InvalidInput("a batch has 1 or more points")
        codes = self.encode(points).codes
        answers: list[Any] = []
        for start in range(0, len(codes), batch):
            answers += self.predict_batch(codes[start : start + batch])
        return answers

    @errors_end_here
    def encode(self, points: Points) -> EncodedPoints:
        """Points as the declaration's integers. Raises `InvalidInput`."""
        return encode_points(self._plan.table, self._params.features, points)

    def keyed_digest(self, data: bytes) -> str:
        """A digest of something about points, under the ledger's key and this session's name."""
        return self._ledger.commitment(self.id.encode() + b"\0" + data, "note")

    def find_notes(self, names: Sequence[str]) -> dict[str, Any]:
        """The notes of these names that were stored with some batch."""
        if not names:
            return {}
        with self._turn:
            self._catch_up()
            return {name: self._notes[name] for name in names if name in self._notes}

    def describe(self) -> dict[str, Any]:
        """What whoever asks may know: features, the privacy guarantee, what is left."""
        return {
            "session_id": self.id,
            "name": self._plan.request.name,
            "features": self.features,
            "guarantee": to_json(compose_event(self._plan, self._ledger)),
            "protects": self._plan.table.protection_text,
            "predictions_left": self.predictions_left,
        }

    @functools.cached_property
    def features(self) -> list[dict[str, Any]]:
        """In the order of a point's values, with their bounds or keys."""
        shown = {"lower", "upper", "step", "missing", "public_keys"}
        columns = [(name, self._plan.table.column(name)) for name in self._params.features]
        return [
            {"name": name} | column.model_dump(mode="json", include=shown)
            for name, column in columns
        ]

    @errors_end_here
    def predict_batch(self, codes: Codes, notes: Mapping[str, Any] | None = None) -> list[Any]:
        """Answers for one batch of encoded points, in one transaction.

        Args:
            codes: what `encode_points` made.
            notes: names and JSON values to store in the same transaction, unless the session is
                closed; see `find_notes`.

        Raises:
            NoteConflict: a note of this name was stored with another value.
            SessionClosed: more new points than predictions are left.
        """
        with self._turn:
            # None: another batch was stored first and none of ours was seen. Its answers may be
            # to our points, so look again.
            while (answers := self._try_batch(codes, notes or {})) is None:
                pass
            return answers

    def _try_batch(self, codes: Codes, notes: Mapping[str, Any]) -> list[Any] | None:
        """All answers, after storing what had none yet. None if another process was first; then
        nothing was stored.
        """
        session = self._catch_up()
        # Before any draw: a conflict must not use up predictions.
        if any(self._notes.get(name, note) != note for name, note in notes.items()):
            raise NoteConflict("a note of this name has another value; name it otherwise")
        names = self._names.name_points(codes)
        new = self._index.find_new(names)
        fresh = names if new is None else list(new)
        left = self.cached_left = self._count_left(session)
        if len(fresh) > left:
            fewer = (
                f"ask at most {left} new points" if left else "ask points that were answered before"
            )
            raise SessionClosed(
                f"{len(fresh)} of these points have no stored answer, and session {self.id} has "
                f"{counted(left, 'prediction')} left; {fewer}, or open another session"
            )
        rows = codes if new is None else codes[np.fromiter(new.values(), np.int64, len(new))]
        answers, text, failed = self._draw_answers(rows)
        new_notes = {name: notes[name] for name in notes.keys() - self._notes.keys()}
        # A closed session stores nothing more; its known points are still answered.
        if session.closed:
            new_notes = {}
        if fresh or new_notes:
            if not self._ledger.answer_batch(
                self.id,
                {**self._names.seal(fresh), "answers": text, "notes": new_notes},
                expected_version=session.version,
                state={"answered": self._params.predictions - left + len(fresh)},
                closed=failed or len(fresh) == left,
                principal=self._principal,
                failure="; ".join(self._failures) if failed else "",
            ):
                return None
            self._index.add_answers(fresh, answers)
            self._notes |= new_notes
            self._version = session.version + 1
            self.cached_left = 0 if failed else left - len(fresh)
        return answers if new is None else self._index.look_up(names)

    def _catch_up(self) -> SessionRecord:
        """The session as it is in the ledger, after reading what was answered since the last time."""
        session = self._ledger.session(self.id)
        if session.version > self._version:
            try:
                batches = self._ledger.batches(self.id, self._version)
                # A batch that is missing would let its points be answered a second time.
                if len(batches) < session.version - self._version:
                    raise ValueError
                for batch in batches:
                    names = self._names.open(batch)
                    answers = unpack_answers(batch["answers"])
                    if len(names) != len(answers):
                        raise ValueError
                    self._index.add_answers(names, answers)
                    self._notes |= batch["notes"]
            except (LookupError, TypeError, AttributeError, ValueError):
                raise LedgerCorrupt(
                    f"an answered batch of session {self.id} is damaged, so it gives no answers; "
                    f"run dpflow ledger verify, and bring the newest copy back"
                ) from None
            self._version = session.version
        return session

    def _draw_answers(self, codes: Codes) -> tuple[list[Any], str, bool]:
        """Fresh answers, their JSON, and whether they failed: then each is None, and the session
        closes.
        """
        if not len(codes):
            return [], pack_answers([]), False
        self.learn_models()

        def draw_checked(source: Source) -> tuple[list[Any], str, bool]:
            if self._learned is _FAILED:
                raise ValueError
            fault_points.pass_point("aggregate.after")
            answers = list(
                self._mechanism.predict(
                    self._params, self._plan.table, self._learned, codes, source
                )
            )
            if len(answers) != len(codes):
                raise ValueError
            return answers, pack_answers(answers), False

        result = draw_or_none(draw_checked, None, self._failures)
        fault_points.pass_point("draw.after")
        if result is None:
            answers = [None] * len(codes)
            result = answers, pack_answers(answers), True
        return result


def most_predictions(plan: Plan, ledger: Ledger, registry: Registry) -> int:
    """How many predictions the plan's scope could pay for now, with all else as planned; nothing is
    charged.
    """

    def is_affordable(number: int) -> bool:
        # With the bounds that the plan took from searches already.
        params = plan.request.params | {"predictions": number}
        changes = {"params": params, "table": plan.table, "bounds": ()}
        try:
            candidate = make_plan(plan.request.model_copy(update=changes), registry)
        except DpflowError:
            return False
        return ledger.check(plan.request.scope, [candidate.event], plan.charged_blocks) is None

    # A search by doubling and halving: what a number costs is known only by a plan of it.
    if not is_affordable(1):
        return 0
    low, high = 1, 2
    while high <= 10**9 and is_affordable(high):
        low, high = high, 2 * high
    high = min(high, 10**9 + 1)
    return bisect_integers(lambda n: not is_affordable(n), low, high) - 1


def require_same_models(plan: Plan, other: Plan) -> None:
    """Raises `PlanRefused` unless two sessions may answer from one set of models.

    Models depend on the bounds of the columns, and those that a search found were paid by the scope
    of that search: who answers from them must have paid for it, too.
    """
    same = [
        (
            p.mechanism.name,
            p.table,
            p.request.blocks,
            p.request.where,
            p.params.model_copy(update={"predictions": 0}),
        )
        for p in (plan, other)
    ]
    if same[0] != same[1]:
        raise PlanRefused(
            f"{plan.request.name} and {other.request.name} cannot answer from one set of models: their declarations, conditions or "
            f"parameters differ, such as by bounds that searches in two scopes found; search in a scope above both, or declare the bounds"
        )
