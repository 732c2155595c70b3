"""The protocol of gates: `Gate`, a session that candidates for production pass or do not pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, Field, model_validator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import EstimatorQuery, Metric
from dpflow.core.contract.interactive import InteractiveMechanism, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.strict_models import Exact

P = TypeVar("P", bound=BaseModel)

#: What a gate answers; "none" ends the session, as a draw that fails does: nothing is said of the candidate.
VERDICTS = ("yes", "no", "none", "exhausted")
#: Of an answer that says nothing of a candidate.
NO_WORTH: Mapping[str, Any] = {"guarantee": "none"}
#: Fields of an answer that hold no more than its proof does: they leave where rows are not fresh.
PROVEN_FIELDS = ("interval", "tolerance")
#: What becomes of a candidate, the word that decides for many first: ``promoted``, the alias points at
#: it; ``plausible``, its claim is, and nothing can be promoted; ``exhausted``, no answer is left;
#: ``not_better``, it lost to the champion; ``no``, its claim is not plausible or nothing compared it.
OUTCOMES = ("promoted", "plausible", "exhausted", "not_better", "no")


class Reserve(Params):
    """What a gate keeps for releases inside it.

    ``epsilon``: less than the gate's. ``delta``: at most the gate's.
    """

    epsilon: Epsilon
    delta: Delta = Fraction(0)


class ClaimQuery(EstimatorQuery):
    """One of two questions.

    ``claim``: the number that the estimator is said to have on fresh data. ``champion``: the digest
    of a candidate that this one is said to beat on fresh data (`dpflow.Session.challenge`).
    ``better_by``: by more than how much, in units of the metric.
    """

    claim: Exact | None = None
    champion: str = ""
    better_by: Annotated[Exact, Field(ge=0)] = Fraction(0)

    @model_validator(mode="after")
    def _check_question(self) -> ClaimQuery:
        if (self.claim is None) == (not self.champion):
            raise ValueError("give a claim, or the champion that this candidate is said to beat")
        if self.better_by and not self.champion:
            raise ValueError("better_by is about a champion; leave it out of a claim")
        return self


class Gate(InteractiveMechanism[P, ClaimQuery]):
    """A session about candidates: is a claimed score plausible on fresh data, or is one candidate better
    than another? `dpflow gate`, the operator and the pages work with every mechanism that implements it.

    What a gate keeps:
        - An answer's body has ``verdict``, one of `VERDICTS`. "yes" to a claim says that it is plausible,
          "yes" to a challenge that the candidate beats the champion by more than ``better_by``, by the
          session's metric on the same rows. "exhausted" answers everything after the last answer, and costs
          nothing.
        - ``guarantee`` in the body is "proven" only where the verdict holds for fresh data with the stated
          probability, whatever was asked before. Otherwise it is "unproven", or "none" beside "exhausted".
        - What `limits` counts is in every body but that of "none" with what is left of it, as
          ``queries_left`` and so on.

    What dpflow guarantees for it:
        - It is charged whole, once, before rows are read, and nothing else reads its table while it is open.
        - The same candidate with the same claim, or a second challenge of one candidate, gets the stored
          verdict, and spends nothing.
        - "proven" becomes "unproven" where rows are not fresh: released before, changed, or read by a
          release inside the session.
        - Each candidate ends with one of `OUTCOMES`; the alias moves on a yes alone, and only a metric that
          the session fixes compares two candidates.
    """

    Query: ClassVar[type[BaseModel]] = ClaimQuery
    locks_dataset = True

    @abstractmethod
    def find_metric(self, params: P) -> Metric | None:
        """The one number that candidates are compared by; None if claims are about any, and nothing can be
        promoted.
        """

    def asks_for_champions(self, params: P) -> bool:
        """Whether it is asked about challengers alone: candidates then claim nothing."""
        return False

    def find_margin(self, params: P) -> Fraction:
        """What a challenger must be better by at least, whatever is asked, in units of the metric."""
        return Fraction(0)

    def find_reserve(self, params: P) -> Reserve | None:
        """The part of its cost that pays for releases inside the session; None if it keeps none."""
        return None

    @abstractmethod
    def limits(self, params: P) -> Mapping[str, int]:
        """How many ``queries`` it answers, and how many ``failures`` it has, if it counts them."""

    def describe_limits(self, params: P) -> Mapping[str, int]:
        """How long it lasts, in words for people."""
        return self.limits(params)

    def make_verdict(
        self, params: P, word: str, used: tuple[int, int], worth: Mapping[str, Any] = NO_WORTH
    ) -> Verdict:
        """An answer, with what is left of ``queries`` and ``failures``; the last one where either is used up.

        Args:
            used: of both, this answer included.
            worth: ``guarantee`` and what else the answer says.
        """
        most = self.limits(params)
        left = most["queries"] - used[0], most["failures"] - used[1]
        body = {"verdict": word, **worth, "queries_left": left[0], "failures_left": left[1]}
        return Verdict(body, closed=min(left) <= 0)

    def refusal_power(
        self, params: P, table: Table, excess: float, units: int, deviation: float
    ) -> float | None:
        """How often a claim is refused that is too good by ``excess``, with so many units; None where no
        formula says it. Reporting only.

        Args:
            excess: as a share of the metric's range.
            deviation: standard deviation of one unit's score, as a share of the range.
        """
        return None
