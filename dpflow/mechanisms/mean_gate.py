"""MeanGate: a gate for metrics that are means of bounded scores, such as accuracy.

Definition: a unit's score s_u is the mean of its rows' scores, as a share of the metric's range. A
claim v with threshold T is too good if the sum over units of (v - T - s_u) is above 0, which is v - T
above the mean score, and too bad if the sum of (s_u - v - T) is. A challenger is better than the
champion by more than better_by if the test of `dpflow.core.toolbox.improvement` says so.

Guarantee: what is compared is an integer that one unit moves by 1 at most, and no count enters
(`dpflow.core.toolbox.mean_test`). It meets noise for sensitivity 1 in one of two ways
(`dpflow.core.toolbox.sum_tests`), so the session has its guarantee whatever is asked:

- `sparse_vector` is epsilon-DP, however many answers are free. Each stretch up to a paid answer costs
  e0, the larger of epsilon/failures and what advanced composition allows for (epsilon, delta). With
  ``correct`` half of e0 pays for the verdict, half for a noisy sum of scores after a no.
  ``count_epsilon`` is subtracted first and pays for one noisy number of units.
- `gaussian` is (epsilon, delta)-DP: of the rho that zCDP allows for it, ``count_epsilon`` e takes
  e^2/2, and each of the sums that may be asked about an equal part, whatever the answers are: one for
  each of ``queries``, two with ``side: both``, and with ``correct`` one more for each failure.

Without epsilon there is no noise and no privacy, and verdicts are exact.

Generalisation: with probability 1 - ``beta`` all that a session calls proven holds on fresh data,
whatever was asked after whatever answers: every champion's yes is a model better by more than
better_by, and every interval holds the claimed score. The noise alone stays within its reach, and
conditioned on it a union bound covers every transcript (`dpflow.core.toolbox.transcripts`), with and
without noise. It assumes that units are independent draws.

A metric of pairs of rows, such as auc, is a mean over all pairs of a positive and a negative unit. Without
noise it has the same bounds as a mean of as many units as the rarer class has: labels are fixed first, and
an average over pairs is one over sums of pairs that share no unit (Hoeffding 1963).

Source: method sparse_vector is Thresholdout (Dwork, Feldman, Hardt, Pitassi, Reingold, Roth 2015,
"Generalization in adaptive data analysis and holdout reuse"), with a linear test instead of their mean.
description_length is theirs, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.accounting.amounts import SMALLEST_RHO
from dpflow.core.accounting.composition import step_eps
from dpflow.core.accounting.events import Approximate, Event, Pure, SparseVector, Unprotected
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import Metric
from dpflow.core.contract.gate import ClaimQuery, Gate
from dpflow.core.contract.interactive import State, Verdict
from dpflow.core.contract.requests import (
    GroupedUnits,
    PairCounts,
    PerUnit,
    UnitAnswer,
    UnitScores,
)
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.gate_power import mean_refusal_probability
from dpflow.core.toolbox.improvement import (
    count_improvement,
    count_pair_improvement,
    list_rates,
    total_cost,
)
from dpflow.core.toolbox.mean_test import STEPS, count_shortfall, largest_move, sum_steps
from dpflow.core.toolbox.noise import half_width, rho_for, scale_for
from dpflow.core.toolbox.sparse_vector import Engine
from dpflow.core.toolbox.sum_tests import GaussianTest, SparseVectorTest, SumTest
from dpflow.core.toolbox.transcripts import Transcripts, highest_mean, lowest_mean
from dpflow.core.toolbox.unit_counts import learn_units
from dpflow.errors import PlanRefused
from dpflow.mechanisms.mean_gate_params import MeanGateParams

#: Shares of beta: that a noisy number of units is too large, or too small; that the noise of any
#: verdict, or of any score, is beyond its reach; the rest is for the sample.
COUNT_FAILURE, VERDICT_FAILURE, SCORE_FAILURE = 0.01, 0.25, 0.2
#: The same of claims' verdicts and of challenges' apart: they share thresholds, so both fail less than 1.2 times as often.
REACH_FAILURE = 0.8 * VERDICT_FAILURE


class MeanGate(Gate[MeanGateParams]):
    """Is a claimed mean plausible on fresh data, or a candidate better than the champion?"""

    name = "gate"
    job = "gate"
    summary = (
        "session: is a candidate's claimed mean score plausible, or better than the champion's?"
    )
    citation = "Dwork, Feldman, Hardt, Pitassi, Reingold, Roth 2015 (Thresholdout)"

    def find_metric(self, params: MeanGateParams) -> Metric:
        """The session's."""
        return params.metric

    def asks_for_champions(self, params: MeanGateParams) -> bool:
        """Whether ``question`` is champion."""
        return params.question == "champion"

    def find_margin(self, params: MeanGateParams) -> Fraction:
        """``better_by``."""
        return params.better_by

    def limits(self, params: MeanGateParams) -> Mapping[str, int]:
        """Questions, and the answers among them that `sparse_vector` pays for."""
        return {"queries": params.queries, "failures": params.failures}

    def describe_limits(self, params: MeanGateParams) -> Mapping[str, int]:
        """Gaussian noise pays for every look."""
        paid = "failures" if params.method == "gaussian" else "paid answers"
        return {"looks": params.queries, paid: params.failures}

    def event(self, params: MeanGateParams, table: Table) -> Event:
        """The whole session's guarantee; `Unprotected` without noise."""
        if params.metric.label is not None:
            table.column(params.metric.label)
            if table.contribution_bounds.rows != 1:
                raise PlanRefused(
                    "pairs of rows are independent only where each unit has one row; declare contribution_bounds: {rows: 1}"
                )
        if params.epsilon is None:
            return Unprotected()
        # Refused now, not once it is paid for, if it cannot be drawn.
        self.make_test(params).extra_noise(STEPS if params.correct else 1)
        if params.correct and not (params.count_epsilon or table.neighbours == "replace"):
            raise PlanRefused(
                "a score is a sum divided by the number of units, which is private; add count_epsilon, a part of epsilon "
                "that counts them, or leave correct out"
            )
        if params.delta > 0:
            return Approximate(params.epsilon, params.delta)
        # A count or a noisy sum is no sparse vector, so the whole is stated as pure.
        if params.correct or params.count_epsilon:
            return Pure(params.epsilon)
        return SparseVector(params.epsilon)

    def note(self, params: MeanGateParams, table: Table) -> str:
        """What its answers prove, and what they need for it."""
        draws = "independent units" + (", alike in each class" if params.metric.label else "")
        if params.question == "champion":
            return f"every yes is proven for {draws}"
        if params.is_private and not (params.count_epsilon or table.neighbours == "replace"):
            return "without count_epsilon verdicts carry no interval and prove nothing"
        return f"intervals are proven for {draws}"

    def make_test(self, params: MeanGateParams) -> SumTest:
        """How sums are compared: one unit moves every compared integer by 1 at most. Raises
        `PlanRefused` where the noise is beyond what can be drawn.
        """
        if params.method == "gaussian":
            return GaussianTest(_draw_rho(params))
        each = _verdict_epsilon(params)
        engine = Engine(each, 1, params.failures)
        engine.require_scales()
        return SparseVectorTest(engine, each)

    def refusal_power(
        self,
        params: MeanGateParams,
        table: Table,
        excess: float,
        units: int,
        deviation: float,
        score: float = 1.0,
        width: float = 1.0,
    ) -> float:
        """How often a claim is refused that is too good by ``excess``, with so many units.

        Args:
            excess: as a share of the metric's range.
            deviation: standard deviation of one unit's score, as a share of the range.
            score: about what is expected, as a share of the range; noise is largest at the ends.
            width: of the metric's range, in its own units.
        """
        distance = excess - float(params.threshold) / width
        levels = [(distance, score + distance)]
        if params.side == "both":
            # The other side is the same test of 1 - score; one sample is not beyond both.
            levels.append((distance - 2 * excess, 1 - score + distance - 2 * excess))
        if not params.is_private:
            return sum(mean_refusal_probability(d, units, deviation, ()) for d, _ in levels)
        test = self.make_test(params)
        moves = [float(largest_move(Fraction(level), table)) for _, level in levels]
        refused = (test.power(d, units, deviation, move) for (d, _), move in zip(levels, moves))
        return min(1.0, sum(refused))

    def recognition_power(
        self,
        params: MeanGateParams,
        table: Table,
        gain: float,
        units: int,
        deviation: float,
        *,
        width: float = 1.0,
    ) -> float:
        """How often a challenger replaces a champion that it is better than by ``gain``.

        Args:
            gain: as a share of the metric's range.
            deviation: of one unit's difference, as a share of the range.
            width: of the metric's range, in its own units.
        """
        margin = params.better_by / Fraction(width)
        cost = total_cost(count_transcripts(params, width).largest_cost(sample_failure(params)))
        level, scale = float(margin), 1 + float(margin)
        mean, spread = (gain - level) / scale, deviation / scale
        needed, powers = self.challenge_margin(params), []
        for each in list_rates(margin, is_replaced=_is_replaced(table)):
            rate, curvature, move = (float(x) for x in (each.rate, each.curvature, each.move))
            distance = rate * mean - curvature * (spread**2 + mean**2)
            distance -= (cost + needed * move) / units
            if not params.is_private:
                powers.append(mean_refusal_probability(distance, units, rate * spread, ()))
            else:
                test = self.make_test(params)
                powers.append(test.power(distance, units, rate * spread, move))
        return max(powers)

    def challenge_margin(self, params: MeanGateParams) -> int:
        """What noise alone reaches in a part of beta of sessions, all comparisons together, in moves."""
        if not params.is_private:
            return 0
        # One side only.
        failure = min(1.0, 2 * REACH_FAILURE * float(params.beta))
        return math.ceil(self.make_test(params).session_reach(params.queries, failure))

    def open(self, params: MeanGateParams, table: Table, source: Source) -> State:
        """No question asked yet; with noise, that of the first threshold is drawn."""
        if not params.is_private:
            return State({"asked": 0, "failures": 0})
        return State({"asked": 0, **self.make_test(params).start_session(source)})

    def data_request(self, params: MeanGateParams, query: ClaimQuery, table: Table) -> UnitScores:
        """One score for each unit. Raises `UnknownName`, or `PlanRefused` for a question that this
        session does not answer.
        """
        if params.question == "champion" and not query.champion:
            raise PlanRefused(
                "this gate says whether a candidate is better than the champion, and no claim is plausible or not; "
                "submit it with the model whose alias moves, or call challenge with both candidates"
            )
        for name in query.columns:
            table.column(name)
        return UnitScores(query.columns)

    def answer(
        self,
        params: MeanGateParams,
        table: Table,
        state: State,
        query: ClaimQuery,
        answer: UnitAnswer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """ "yes", "no" or "exhausted", with an interval where the number of units is known."""
        asked, failures = int(state.data["asked"]), int(state.data["failures"])
        if failures >= params.failures or asked >= params.queries:
            return self.make_verdict(params, "exhausted", (asked, failures)), state
        counted = self._count_units(params, state, answer, source)
        units = self._usable_number(params, counted, answer)
        if query.champion:
            compared = self._compare_challenger(params, table, query, answer, asked, failures)
        else:
            compared = _compare_claim(params, table, query, answer)
        pays, after = self._is_over(params, state, compared, source)
        word = "yes" if pays == bool(query.champion) else "no"
        cost = count_transcripts(params, answer.span[1] - answer.span[0]).cost(
            asked, failures, sample_failure(params)
        )
        worth = self._describe_worth(params, table, query, answer, units, word, cost)
        if pays and params.correct and not query.champion and units is not None:
            assert isinstance(answer, PerUnit)
            worth |= self._draw_score(params, table, answer, units, cost, source)
        failures += pays
        verdict = self.make_verdict(params, word, (asked + 1, failures), worth)
        return verdict, State({"asked": asked + 1, **counted, **after})

    def _count_units(
        self, params: MeanGateParams, state: State, answer: UnitAnswer, source: Source
    ) -> dict[str, Any]:
        """The number of units for the state, noisy where it is private; nothing if it is public or not paid for."""
        # Once, for it was charged once: also where it came to 0.
        if "units" in state.data:
            return {"units": state.data["units"]}
        # Of all units, or of none: how many have a value in some columns would be one more text.
        if answer.needs or (answer.is_size_public and params.is_private):
            return {}
        if not params.is_private:
            return {"units": _count_scores(answer)}
        failure = COUNT_FAILURE * float(params.beta)
        secret = GroupedUnits(_count_scores(answer), is_public=False)
        units = learn_units(secret, None, params.count_epsilon, failure, source)
        return {} if units is None else {"units": units}

    def _usable_number(
        self, params: MeanGateParams, counted: Mapping[str, Any], answer: UnitAnswer
    ) -> int | None:
        """The number of units: at most the true one, or None."""
        if answer.needs:
            return None
        if answer.is_size_public and params.is_private:
            return _count_scores(answer) or None
        # Rows that were added meanwhile are told by no verdict.
        if not params.is_private and counted["units"] != _count_scores(answer):
            return None
        return counted.get("units") or None

    def _compare_challenger(
        self,
        params: MeanGateParams,
        table: Table,
        query: ClaimQuery,
        answer: UnitAnswer,
        asked: int,
        failures: int,
    ) -> list[int]:
        """How far the challenger is above what luck and noise reach, in whole moves of one unit."""
        width = Fraction(answer.span[1]) - Fraction(answer.span[0])
        least = max(query.better_by, params.better_by) / width
        cost = count_transcripts(params, float(width)).cost(asked, failures, sample_failure(params))
        if isinstance(answer, PairCounts):
            found = count_pair_improvement(answer, least, cost)
        else:
            found = count_improvement(answer.shares, least, cost, is_replaced=_is_replaced(table))
        return [found - self.challenge_margin(params) + (0 if params.is_private else 1)]

    def _is_over(
        self, params: MeanGateParams, state: State, compared: list[int], source: Source
    ) -> tuple[bool, dict[str, Any]]:
        """Whether one of the sums is above 0, and the state without the number of questions."""
        if not params.is_private:
            over = max(compared) > 0
            return over, {"failures": int(state.data["failures"]) + over}
        test, after = self.make_test(params), state.data
        # After a failed first side the second is not asked: the last failure is a "no", too.
        for value in compared:
            over, after = test.is_above(value, after, source)
            if over:
                break
        return over, after

    def _describe_worth(
        self,
        params: MeanGateParams,
        table: Table,
        query: ClaimQuery,
        answer: UnitAnswer,
        units: int | None,
        word: str,
        cost: float,
    ) -> dict[str, Any]:
        """What a verdict says about fresh data: noise and interval, in units of the metric."""
        if answer.needs:
            why = (
                f"a unit may lack a value in {' or '.join(answer.needs)}, and what is proven is of all units; declare what a "
                f"missing value is"
            )
            return {"guarantee": "unproven", "because": why}
        if isinstance(answer, PairCounts) and answer.doubt:
            return {"guarantee": "unproven", "because": answer.doubt}
        # A comparison needs no number of units.
        if query.champion:
            return {"guarantee": "proven"}
        if units is None:
            why = (
                "a class has no unit"
                if isinstance(answer, PairCounts) and not answer.pairs
                else "rows were added or taken out since the session's first question"
                if not params.is_private
                else "the number of units came to 0"
                if params.count_epsilon
                else "the number of units is private and was not counted; open with count_epsilon"
            )
            return {"guarantee": "unproven", "because": why}
        worth: dict[str, Any] = {}
        over, under = (float(level) for level in _levels(params, query, answer))
        # Scores are rounded by half a step, and a level by less than one.
        slack = 2 / STEPS
        if params.is_private:
            test, move = self.make_test(params), _move(params, table, query, answer)
            worth["noise"] = (
                test.half_width(0.05) * move / units * (answer.span[1] - answer.span[0])
            )
            slack += verdict_reach(test, params) * move / units
        exponent, low, high = (cost + math.log(2)) / units, 0.0, 1.0
        if word == "yes":
            low = lowest_mean(over - slack, exponent)
            high = highest_mean(under + slack, exponent) if params.side == "both" else high
        elif params.side == "over":
            high = highest_mean(over + slack, exponent)
        if low <= 0 and high >= 1:
            both = word == "no" and params.side == "both"
            why = "a no of both sides does not say which" if both else _explain_width(units)
            return {"guarantee": "unproven", "because": why, **worth}
        # Of a loss less is better.
        ends = (1 - high, 1 - low) if answer.lower_is_better else (low, high)
        return {"guarantee": "proven", **worth, "interval": _in_units(ends, answer)}

    def _draw_score(
        self,
        params: MeanGateParams,
        table: Table,
        answer: PerUnit,
        units: int,
        cost: float,
        source: Source,
    ) -> dict[str, Any]:
        """The holdout's mean with noise, a multiple of the threshold, and an interval for that of fresh
        data.
        """
        whole, number = sum_steps(answer.shares)
        # Around the middle, where one unit moves the sum least.
        move = STEPS if largest_move(Fraction(1, 2), table) == 1 else STEPS // 2
        noise_law = self.make_test(params).extra_noise(move)
        noisy = noise_law.add_noise(whole - number * (STEPS // 2), source)
        count_error = 0
        if not answer.is_size_public and params.count_epsilon is not None:
            failure = COUNT_FAILURE * float(params.beta)
            count_error = half_width(scale_for(1, params.count_epsilon), 2 * failure)
        low, high = answer.span
        grid = float(params.threshold) / (high - low)
        share = min(1.0, max(0.0, 0.5 + noisy / (STEPS * (units + count_error))))
        share = min(1.0, round(share / grid) * grid)
        noise = noise_law.half_width(SCORE_FAILURE * float(params.beta) / params.failures) / STEPS
        # The number of units may be off by twice that, of a mean that is at most half a range.
        reach = (noise + count_error) / units + grid / 2 + 1 / STEPS
        exponent = (cost + math.log(2)) / units
        ends = (lowest_mean(share - reach, exponent), highest_mean(share + reach, exponent))
        score = {"score": low + share * (high - low)}
        if ends == (0, 1):
            return {**score, "guarantee": "unproven", "because": _explain_width(units)}
        return {**score, "guarantee": "proven", "interval": _in_units(ends, answer)}


def claim_reach(params: MeanGateParams, table: Table, units: int, width: float) -> float:
    """How far a plausible claim and the score on fresh data may lie apart at most, as a share of the
    range, in the last answer of a session: where scores spread as coins do.
    """
    noise = 0.0
    if params.is_private:
        # At a claim of 1/2, where noise counts least.
        noise = verdict_reach(MeanGate().make_test(params), params) / units
        noise *= float(largest_move(Fraction(1, 2), table))
    cost = count_transcripts(params, width).largest_cost(sample_failure(params)) + math.log(2)
    level = 0.5 - noise
    return float(params.threshold) / width + 0.5 - lowest_mean(level, cost / units)


def _explain_width(units: int) -> str:
    return f"with {units} units the interval would be the whole range"


def count_transcripts(params: MeanGateParams, width: float) -> Transcripts:
    """A no with a score carries one of few multiples of the threshold."""
    texts = math.ceil(Fraction(width) / params.threshold) + 1 if params.correct else 1
    return Transcripts(params.queries, params.failures, texts)


def sample_failure(params: MeanGateParams) -> float:
    """The part of beta that is for the sample."""
    share = 1.0
    if params.is_private:
        share -= VERDICT_FAILURE + (SCORE_FAILURE if params.correct else 0.0)
        share -= 2 * COUNT_FAILURE if params.count_epsilon else 0.0
    return share * float(params.beta)


def verdict_reach(test: SumTest, params: MeanGateParams) -> float:
    """What the noise of all claims' verdicts stays within, in moves."""
    sums = params.queries * (2 if params.side == "both" else 1)
    return test.session_reach(sums, REACH_FAILURE * float(params.beta))


def _is_replaced(table: Table) -> bool:
    """Whether a unit may have one score before and another one after."""
    return table.neighbours == "replace" or table.protects == "unit-block"


def _count_scores(answer: UnitAnswer) -> int:
    """How many independent scores a verdict is about."""
    if isinstance(answer, PairCounts):
        return answer.independent
    return int((~np.isnan(answer.shares)).sum())


def _verdict_epsilon(params: MeanGateParams) -> Fraction:
    """Epsilon of each stretch's verdicts: an even split, or what advanced composition allows for
    delta, whichever is more; half of it beside a score.
    """
    each = params.stretch_epsilon
    if params.delta > 0:
        epsilon = each * params.failures
        each = max(each, Fraction(step_eps(epsilon, params.delta, params.failures)))
    return each / 2 if params.correct else each


def _draw_rho(params: MeanGateParams) -> Fraction:
    """What each Gaussian draw costs. Raises `PlanRefused` where nothing is left for them."""
    assert params.epsilon is not None
    whole = rho_for(params.epsilon, params.delta)
    left = whole - (Pure(params.count_epsilon).rho_delta()[0] if params.count_epsilon else 0)
    sums = params.queries * (2 if params.side == "both" else 1)
    each = left / (sums + (params.failures if params.correct else 0))
    if each < SMALLEST_RHO:
        raise PlanRefused(
            "epsilon and delta leave nothing for the verdicts beside count_epsilon, or too little for so many questions; take "
            "a larger epsilon or delta, a smaller count_epsilon, or fewer queries"
        )
    return each


def _levels(
    params: MeanGateParams, query: ClaimQuery, answer: UnitAnswer
) -> tuple[Fraction, Fraction]:
    """(too good above, too bad below) as shares of the range, of which more is better."""
    assert query.claim is not None
    low, high = (Fraction(end) for end in answer.span)
    threshold = params.threshold / (high - low)
    claim = (query.claim - low) / (high - low)
    # A loss that is too good is one that is too low.
    if answer.lower_is_better:
        claim = 1 - claim
    return claim - threshold, claim + threshold


def _compare_claim(
    params: MeanGateParams, table: Table, query: ClaimQuery, answer: UnitAnswer
) -> list[int]:
    """How far a claim is beyond what the holdout says, in whole units, on each side."""
    over, under = _levels(params, query, answer)
    if isinstance(answer, PairCounts):
        # In steps of 1/2^20, too.
        return _compare_sum(params, (over, under), answer.halves * (STEPS // 2), answer.pairs)
    shares = 1 - answer.shares if answer.lower_is_better else answer.shares
    if not params.is_private:
        return _compare_sum(params, (over, under), *sum_steps(shares))
    compared = [count_shortfall(shares, over, table)]
    # The other side is the same test of 1 - score.
    if params.side == "both":
        compared.append(count_shortfall(1 - shares, 1 - under, table))
    return compared


def _compare_sum(
    params: MeanGateParams, levels: tuple[Fraction, Fraction], total: int, number: int
) -> list[int]:
    """1 for each side on which a sum of scores is beyond its level, else -1."""
    over, under = levels
    sums = [over * STEPS * number - total, total - under * STEPS * number]
    compared = [1 if sum_ > 0 else -1 for sum_ in sums]
    return compared if params.side == "both" else compared[:1]


def _move(params: MeanGateParams, table: Table, query: ClaimQuery, answer: UnitAnswer) -> float:
    """How far one unit moves the sum behind a claim's verdict, in shares of the range."""
    over, under = _levels(params, query, answer)
    moves = [largest_move(over, table), largest_move(1 - under, table)]
    return float(max(moves) if params.side == "both" else moves[0])


def _in_units(ends: tuple[float, float], answer: UnitAnswer) -> list[float]:
    """An interval of shares of the range, in units of the metric."""
    low, high = answer.span
    return [low + end * (high - low) for end in ends]
