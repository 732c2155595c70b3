"""A prediction session's life: learned once per process, asked in batches, one ledger transaction
for each.

A batch is encoded and its known points are looked up; the rest is predicted, and the answers and
the count of spent predictions are stored together, as one row, before any of them is seen. What was
answered is kept in memory (about 150 bytes a point), read from the ledger when a session is first
asked and whenever another process answered something. Two processes that ask for the same points at
once: the one whose transaction comes second stores nothing, looks up what the first one stored, and
predicts only what is left.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpflow import fault_points
from dpflow.core.accounting.events import to_json
from dpflow.core.contract.point_encoding import Codes, Points
from dpflow.core.contract.point_encoding import encode as encoded
from dpflow.core.contract.prediction import PredictionMechanism, PredictionParams
from dpflow.core.contract.requests import Records
from dpflow.core.sampling.randomness import SystemSource
from dpflow.engine.prediction.answer_index import Answered, packed, unpacked
from dpflow.engine.prediction.point_names import Names
from dpflow.engine.releases.plan import Plan, make_plan
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.candidate import Candidate
from dpflow.engine.sessions.session import Session
from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt, PlanRefused, SessionClosed
from dpflow.ledger import Held, Ledger
from dpflow.registry import Registry

#: Points of one transaction, unless the caller says otherwise.
BATCH = 100_000


class NoteConflict(InvalidInput):
    """A note whose name was stored with another value before; nothing was charged."""


class PredictionSession(Session):
    """An open session of private predictions. Safe to use from many threads; make one with
    `PredictionSession.open`.

    ``known_left`` is how many new points could be asked when the ledger was last looked at; `left`
    looks again.
    """

    def __init__(
        self, session_id: str, plan: Plan, ledger: Ledger, registry: Registry, principal: str
    ) -> None:
        super().__init__(session_id, plan, ledger, registry, principal)
        mechanism = plan.mechanism
        if not isinstance(mechanism, PredictionMechanism):
            raise PlanRefused(
                f"{mechanism.name} predicts nothing; name a prediction mechanism, see dpflow mechanisms"
            )
        assert isinstance(plan.params, PredictionParams)
        self._mechanism, self._params = mechanism, plan.params
        self._learning = threading.Lock()
        self._learned: Any = None
        self._turn = threading.Lock()  # one batch at a time: two would only draw in vain
        self._answered = Answered()
        self._notes: dict[str, Any] = {}
        self._upto = 0  # the version of the session up to which these are known
        self.known_left = self._left(ledger.session(session_id))
        key = bytes.fromhex(ledger.commitment(session_id.encode(), "points"))
        self._names = Names(key, len(plan.params.features))

    @classmethod
    def open(
        cls, plan: Plan, ledger: Ledger, registry: Registry, *, run_identity: RunIdentity | None = None
    ) -> PredictionSession:
        """Charge all predictions of the plan, or resume the session; see `Session.open`."""
        if not isinstance(plan.mechanism, PredictionMechanism):  # before anything is charged
            raise PlanRefused(
                f"{plan.mechanism.name} predicts nothing; name a prediction mechanism, see dpflow mechanisms"
            )
        opened = super().open(plan, ledger, registry, run_identity=run_identity)
        assert isinstance(opened, cls)
        return opened

    @property
    def left(self) -> int:
        """How many new points may still be asked."""
        self.known_left = self._left(self._ledger.session(self.id))
        return self.known_left

    def remaining(self) -> dict[str, Any]:
        """What the session can still give. Public."""
        left = self.left
        state = self._ledger.release(self.id).state
        return {
            "state": state,
            "answered": self._params.predictions - left,
            "predictions_left": left,
        }

    def _left(self, held: Held) -> int:
        return 0 if held.closed else self._params.predictions - int(held.state["answered"])

    def ask(
        self, query: Mapping[str, Any] | str, candidate: Candidate | None = None, **fields: Any
    ) -> dict[str, Any]:
        """One point, as ``{"point": [...]}``; the same as a batch of one."""
        if (
            not isinstance(query, Mapping)
            or set(query) != {"point"}
            or candidate is not None
            or fields
        ):
            raise InvalidInput(
                "a prediction session is asked points; write the query as {'point': [value, ...]}"
            )
        return {"answer": self.predict([query["point"]])[0]}

    def share(self, other: PredictionSession) -> None:
        """Answer from what another session of the same table and parameters has learned, instead of
        learning again.

        Raises `PlanRefused` if the two would not learn the same; see `require_alike`.
        """
        require_alike(self._plan, other._plan)
        with other._learning:
            learned = other._learned
        with self._learning:
            self._learned = learned

    def learn(self) -> None:
        """Learn now instead of at the first new point."""
        with self._learning:
            if self._learned is None:
                rows = self._private.answer(self._statistic(), self._plan.request.blocks)
                self._learned = self._mechanism.learn(
                    self._params, self._plan.table, rows, SystemSource()
                )

    def _statistic(self) -> Records:
        """What is learned from, checked against the catalog: what plan and catalog can refuse is
        refused here.
        """
        statistic = self._mechanism.rows(self._params, self._plan.table)
        self._private.check(statistic, self._plan.request.blocks)
        return statistic

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
        codes = self.encode(points)
        said: list[Any] = []
        for start in range(0, len(codes), batch):
            said += self.predict_encoded(codes[start : start + batch])
        return said

    def encode(self, points: Points) -> Codes:
        """Points as the declaration's integers. Raises `InvalidInput`."""
        return encoded(self._plan.table, self._params.features, points)

    def keyed(self, data: bytes) -> str:
        """A digest of something about points, under the ledger's key and this session's name."""
        return self._ledger.commitment(self.id.encode() + b"\0" + data, "note")

    def noted(self, names: Sequence[str]) -> dict[str, Any]:
        """The notes of these names that were stored with some batch."""
        if not names:
            return {}
        with self._turn:
            self._catch_up()
            return {name: self._notes[name] for name in names if name in self._notes}

    def describe(self) -> dict[str, Any]:
        """What whoever asks may know: features with their bounds or keys, the session's claim, what
        is left.
        """
        table, features = self._plan.table, []
        for name in self._params.features:
            column = table.column(name)
            features.append(
                {"name": name}
                | column.model_dump(
                    mode="json", include={"lower", "upper", "step", "missing", "public_keys"}
                )
            )
        return {
            "session_id": self.id,
            "features": features,
            "claim": to_json(self._plan.event),
            "protects": table.protected,
            "predictions_left": self.left,
        }

    def predict_encoded(self, codes: Codes, notes: Mapping[str, Any] | None = None) -> list[Any]:
        """Answers for one batch of encoded points, in one transaction.

        Args:
            codes: what `encode` made.
            notes: names and JSON values to store in the same transaction, unless the session is
            closed; see `noted`.

        Raises:
            NoteConflict: another process stored a note of this name with another value, were it a
            moment ago.
            SessionClosed: more new points than predictions are left.
        """
        names = self._names.of(codes)
        with self._turn:
            while (said := self._said(codes, names, notes or {})) is None:
                pass  # another batch was stored first and none of ours was seen: look up what it answered
            return said

    def _said(
        self, codes: Codes, names: Sequence[bytes], notes: Mapping[str, Any]
    ) -> list[Any] | None:
        """All answers, after storing what had none yet. None if another process was first; then
        nothing was stored.
        """
        held = self._catch_up()
        if any(self._notes.get(name, note) != note for name, note in notes.items()):
            raise NoteConflict("a note of this name has another value; name it otherwise")
        new = self._answered.new(names)
        asked = names if new is None else list(new)
        left = self.known_left = self._left(held)
        if len(asked) > left:
            fewer = (
                f"ask at most {left} new points" if left else "ask points that were answered before"
            )
            raise SessionClosed(
                f"{len(asked)} of these points have no stored answer, and session {self.id} has {left} predictions left; "
                f"{fewer}, or open another session"
            )
        chosen = codes if new is None else codes[np.fromiter(new.values(), np.int64, len(new))]
        answers, text, failed = self._answers(chosen)
        aside = (
            {}
            if held.closed
            else {name: note for name, note in notes.items() if name not in self._notes}
        )
        if asked or aside:
            if not self._ledger.answer_batch(
                self.id,
                {"points": self._names.sealed(asked), "answers": text, "notes": aside},
                expected_version=held.version,
                state={"answered": self._params.predictions - left + len(asked)},
                closed=failed or len(asked) == left,
                principal=self._principal,
            ):
                return None
            self._answered.add(asked, answers)
            self._notes |= aside
            self._upto = held.version + 1
            self.known_left = 0 if failed else left - len(asked)
        return answers if new is None else self._answered.of(names)

    def _catch_up(self) -> Held:
        """The session as it is in the ledger, after looking up what was answered since it was last
        asked.
        """
        held = self._ledger.session(self.id)
        if held.version > self._upto:
            try:
                batches = self._ledger.batches(self.id, self._upto)
                if len(batches) < held.version - self._upto:
                    raise ValueError
                for batch in batches:
                    names, answers = self._names.opened(batch["points"]), unpacked(batch["answers"])
                    if len(names) != len(answers):
                        raise ValueError
                    self._answered.add(names, answers)
                    self._notes |= batch["notes"]
            except (LookupError, TypeError, AttributeError, ValueError):
                raise LedgerCorrupt(
                    f"an answered batch of session {self.id} is damaged, so it gives no answers; run dpflow ledger verify, and "
                    f"bring the newest copy back"
                ) from None
            self._upto = held.version
        return held

    def _answers(self, codes: Codes) -> tuple[list[Any], str, bool]:
        """Fresh answers and their JSON; a failure that may depend on rows or draw is the answer
        None, and closes the session.
        """
        if not len(codes):
            return [], packed([]), False
        if self._learned is None:
            self._statistic()
        try:
            self.learn()
            fault_points.pass_point("aggregate.after")
            learned, table = self._learned, self._plan.table
            answers = list(
                self._mechanism.predict(self._params, table, learned, codes, SystemSource())
            )
            text = packed(answers)
            failed = len(answers) != len(codes)
        except fault_points.FaultInjected:
            raise
        except Exception as error:
            if isinstance(error, DpflowError) and error.retryable:
                raise
            failed = True
        fault_points.pass_point("draw.after")
        if failed:
            answers = [None] * len(codes)
            text = packed(answers)
        return answers, text, failed


def most_predictions(plan: Plan, ledger: Ledger, registry: Registry) -> int:
    """How many predictions the plan's scope could pay for now, with all else as planned; nothing is
    charged.
    """

    def accepted(number: int) -> bool:
        params = plan.request.params | {"predictions": number}
        try:
            wanted = make_plan(
                plan.request.model_copy(update={"params": params}), registry, plan.table
            )
        except DpflowError:
            return False
        return ledger.check(plan.request.scope, [wanted.event], plan.charged_blocks) is None

    if not accepted(1):
        return 0
    low, high = 1, 2
    while high <= 10**9 and accepted(high):
        low, high = high, 2 * high
    high = min(high, 10**9 + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return low


def require_alike(plan: Plan, other: Plan) -> None:
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
