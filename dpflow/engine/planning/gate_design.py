"""A gate from what a team wants: a tolerance, a number of candidates and a confidence.

`design_gate` compares the methods that a declared table allows, each with the least epsilon that does
what is wanted, and takes the cheapest; without noise, the one that says most. What is wanted of claims:
an honest one passes, and one that is too good by the tolerance is refused, each with the given
confidence. Of champions: a challenger that is better by the tolerance replaces one, with that
confidence. No row is read: how many units there are, and how far their scores spread, is said by whoever
plans, and decides about power only, never about privacy.

Without noise, three more ways to answer are compared by how far an answer may be from fresh data: a
Ladder, units of its own for each question, and questions that are fixed beforehand. The Ladder's idea is
in the gate itself: a champion that improves by a least step each time improves few times.

The power is that of the normal approximation for the mean of independent units
(`dpflow.core.toolbox.gate_power`). What no setting reaches is refused with the nearest that one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import AnyMetric, SqlEstimator
from dpflow.core.contract.strict_models import Exact, Strict, describe_problems
from dpflow.core.toolbox.mean_test import fresh_width, ladder_width, splitting_width
from dpflow.core.toolbox.transcripts import Transcripts
from dpflow.engine.releases.request import ReleaseRequest, parse_request
from dpflow.errors import InvalidAmount, InvalidDeclaration, PlanRefused
from dpflow.mechanisms.holdout_params import HoldoutParams
from dpflow.mechanisms.mean_gate import MeanGate, claim_reach
from dpflow.mechanisms.mean_gate_params import MeanGateParams
from dpflow.mechanisms.reusable_holdout import ReusableHoldout
from dpflow.registry import Registry
from dpflow.yaml_files import load_yaml

#: Numbers of groups that are tried for the median of groups.
GROUPS = (50, 100, 200, 400, 800, 1600, 3200)
#: The most groups of a gate.
MOST_GROUPS = 10**6
#: What the power curve is computed for, in tolerances.
CURVE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: The part of epsilon that counts units, so that verdicts carry intervals, by method; Gaussian noise
#: shares its square.
COUNT_SHARES = {
    "sparse_vector": Fraction(1, 10),
    "sparse_vector_with_delta": Fraction(1, 10),
    "gaussian": Fraction(1, 20),
}
#: Methods of a gate on means, for people.
METHOD_NAMES = {
    "sparse_vector": "sparse vector",
    "sparse_vector_with_delta": "sparse vector with a delta",
    "gaussian": "Gaussian noise",
    "description_length": "description length",
}


class GateWishes(Strict):
    """What a team wants of a gate.

    ``metric``: what candidates are compared by. ``tolerance``: in its units. ``candidates``: how many
    there may be. ``confidence``: with which the gate is right about one of them. ``units``: how many
    the holdout has about; for auc with a label, those of the class that has fewer. ``question``:
    `champion` or `claim`. ``better_by``: what a challenger must at least be better by. ``paid``: how
    many answers may be paid for, a champion's yes or a claim's no. ``deviation``: of one unit's score,
    or of the difference of two candidates' scores, as a share of the range. ``score``: about what is
    expected, as a share of the range. ``max_epsilon``: the most that the gate may cost. ``delta``: the
    delta that it may cost beside; Gaussian noise needs one.
    """

    metric: AnyMetric
    tolerance: Annotated[Exact, Field(gt=0)]
    candidates: Annotated[int, Field(ge=1, le=10**9)]
    confidence: Annotated[Exact, Field(ge=0.5, lt=1)] = Fraction(19, 20)
    units: Annotated[int, Field(ge=2, le=10**12)]
    question: Literal["champion", "claim"] = "champion"
    better_by: Annotated[Exact, Field(ge=0)] = Fraction(0)
    paid: Annotated[int, Field(ge=1, le=10**6)] = 5
    deviation: Annotated[Exact, Field(gt=0, le=1)] = Fraction(1, 2)
    score: Annotated[Exact, Field(ge=0, le=1)] = Fraction(1)
    max_epsilon: Epsilon = Fraction(10)
    delta: Delta = Fraction(0)


@dataclass(frozen=True)
class GateOption:
    """One method, set so that it does what is wanted, or as near as it comes.

    Attributes:
        method: its name for people.
        mechanism, params: as in a release file.
        epsilon: what it costs; None without noise.
        right: the probability with which it is right about one candidate, the least of those asked for.
        guarantee: what its verdicts say about fresh data.
        power: how often it refuses, or lets replace, by the excess as a share of the range.
    """

    method: str
    mechanism: str
    params: Mapping[str, Any]
    epsilon: Fraction | None
    right: float
    guarantee: str
    power: Callable[[float], float]


@dataclass(frozen=True)
class GateDesign:
    """The chosen option, all that were compared, and the power curve: (excess in units of the
    metric, probability). ``widths``: without noise, how far an answer and the score on fresh data may
    be apart, proven, by way to answer, in units of the metric.
    """

    wishes: GateWishes
    chosen: GateOption
    options: tuple[GateOption, ...]
    curve: tuple[tuple[float, float], ...]
    interval: float
    widths: Mapping[str, float]


def load_gate_file(path: Path, registry: Registry) -> tuple[ReleaseRequest, GateDesign | None]:
    """A gate's release file, or one that says what is wanted (``gate:`` in place of mechanism and
    parameters), which becomes that of the chosen method.

    Raises `InvalidInput` or `PlanRefused`.
    """
    data = load_yaml(path, "gate file") if path.is_file() else {}
    if "gate" not in data:
        from dpflow.engine.releases.request import load_request

        return load_request(path), None
    raw = data.pop("gate")
    if "mechanism" in data or "params" in data:
        raise InvalidDeclaration(
            f"{path} says what is wanted under gate, so mechanism and params are found for it; leave them out"
        )
    try:
        wishes = GateWishes.model_validate(raw)
    except ValidationError as error:
        raise InvalidDeclaration(f"{path}: gate: {describe_problems(error)}") from None
    request = parse_request({**data, "mechanism": "gate"}, path.parent, str(path))
    design = design_gate(wishes, request.load_declaration(), registry)
    chosen = {"mechanism": design.chosen.mechanism, "params": dict(design.chosen.params)}
    return request.model_copy(update=chosen), design


def design_gate(wishes: GateWishes, table: Table, registry: Registry) -> GateDesign:
    """The cheapest gate that does what is wanted. Raises `PlanRefused` with the nearest possible
    wishes where none does.
    """
    width = _range_width(wishes, registry)
    options = tuple(_list_options(wishes, table, width, is_mean=_is_mean(wishes, table, registry)))
    able = [one for one in options if one.right >= float(wishes.confidence)]
    if not able:
        raise PlanRefused(_explain_refusal(wishes, table, width, registry, options))
    # Cheapest first; of equal ones without a delta, then the surest.
    chosen = min(able, key=lambda one: (one.epsilon or 0, "delta" in one.params, -one.right))
    tolerance, base = float(wishes.tolerance), float(wishes.better_by)
    shift = base if wishes.question == "champion" else 0.0
    curve = tuple(
        (shift + x * tolerance, chosen.power((shift + x * tolerance) / width)) for x in CURVE
    )
    widths = _compare_widths(wishes, width) if table.generalisation_only else {}
    interval = _interval(wishes, table, chosen, width)
    return GateDesign(wishes, chosen, options, curve, interval, widths)


def _compare_widths(wishes: GateWishes, width: float) -> dict[str, float]:
    """How far each way to answer lets a mean and its expectation be apart, in all answers together."""
    units, questions, beta = (
        wishes.units,
        wishes.candidates,
        float(MeanGateParams.model_fields["beta"].default),
    )
    cost = Transcripts(questions, _most_paid(wishes)).largest_cost(beta)
    return {
        f"yes or no, {_most_paid(wishes)} paid": width
        * math.sqrt((cost + math.log(2)) / 2 / units),
        "Ladder": width * ladder_width(units, questions, beta),
        "splitting": width * splitting_width(units, questions, beta),
        "fixed beforehand": width * fresh_width(units, questions, beta),
    }


def _most_paid(wishes: GateWishes, width: float = math.inf, least: Fraction = Fraction(0)) -> int:
    """How many answers may be paid for.

    Args:
        least: by how much each champion is better than the one before. Steps of that size end at the
            range's end, as a Ladder's do (Blum, Hardt 2015).
    """
    most = min(wishes.paid, wishes.candidates)
    return max(1, min(most, math.floor(width / least))) if least else most


def _list_options(
    wishes: GateWishes, table: Table, width: float, *, is_mean: bool
) -> Iterator[GateOption]:
    """Every method that the table allows."""
    if is_mean and table.generalisation_only:
        yield _mean_option(wishes, table, width, "description_length", None)
    elif is_mean:
        noisy = ["sparse_vector", "sparse_vector_with_delta", "gaussian"]
        for method in noisy if wishes.delta else noisy[:1]:
            make = partial(_mean_option, wishes, table, width, method)
            # What is too small or too large for one noise may do for another.
            with suppress(PlanRefused, InvalidAmount):
                yield _search_epsilon(wishes, make)
    if wishes.question == "champion":
        return
    for groups in GROUPS:
        # Groups of fewer units tell nothing.
        if groups * 5 > wishes.units:
            break
        make = partial(_group_option, wishes, table, width, groups)
        yield make(None) if table.generalisation_only else _search_epsilon(wishes, make)
    groups = wishes.units // 5
    if table.generalisation_only and wishes.candidates <= groups <= MOST_GROUPS:
        yield _group_option(wishes, table, width, groups, None, "splitting")


def _mean_option(
    wishes: GateWishes, table: Table, width: float, method: str, epsilon: Fraction | None
) -> GateOption:
    """A gate on means; half the tolerance is the threshold, equally far from both."""
    params: dict[str, Any] = {
        "metric": wishes.metric.model_dump(mode="json", exclude_defaults=True),
        "queries": wishes.candidates,
        "failures": _most_paid(wishes),
        "question": wishes.question,
        "method": method.removesuffix("_with_delta"),
    }
    if method in ("sparse_vector_with_delta", "gaussian"):
        params["delta"] = str(wishes.delta)
    if wishes.question == "claim":
        params["threshold"] = str(wishes.tolerance / 2)
    else:
        params["better_by"] = str(wishes.better_by)
        params["failures"] = _most_paid(wishes, width, wishes.better_by)
    if epsilon is not None:
        params["epsilon"] = str(epsilon)
        if wishes.question == "claim":
            params["count_epsilon"] = str(epsilon * COUNT_SHARES[method])
    parsed, mechanism = MeanGateParams.model_validate(params), MeanGate()
    units, deviation, score = wishes.units, float(wishes.deviation), float(wishes.score)

    def power(excess: float) -> float:
        if wishes.question == "champion":
            return mechanism.recognition_power(parsed, table, excess, units, deviation, width=width)
        return mechanism.refusal_power(parsed, table, excess, units, deviation, score, width)

    name = f"mean, {METHOD_NAMES[method]}"
    right = _rightness(wishes, power, width)
    if wishes.question == "claim" and claim_reach(parsed, table, units, width) >= 0.5:
        # An interval as wide as the range proves nothing.
        right = 0.0
    return GateOption(name, mechanism.name, params, epsilon, right, "proven", power)


def _group_option(
    wishes: GateWishes,
    table: Table,
    width: float,
    groups: int,
    epsilon: Fraction | None,
    exact_method: str = "description_length",
) -> GateOption:
    """A gate on the median of groups, for any estimator."""
    params: dict[str, Any] = {
        "metric": wishes.metric.model_dump(mode="json", exclude_defaults=True),
        "groups": groups,
        "queries": wishes.candidates,
        "failures": _most_paid(wishes),
        "method": exact_method if epsilon is None else "one_query",
    }
    if epsilon is not None:
        params["epsilon"] = str(epsilon)
    parsed, mechanism = HoldoutParams.model_validate(params), ReusableHoldout()

    def power(excess: float) -> float:
        return mechanism.refusal_power(parsed, table, excess, wishes.units, float(wishes.deviation))

    guarantee = "unproven" if mechanism.note(parsed, table).count("unproven") else "proven"
    of = (
        f"{groups // wishes.candidates} groups of its own"
        if exact_method == "splitting"
        else f"{groups} groups"
    )
    name, right = f"median of {of}", _rightness(wishes, power, width)
    return GateOption(name, mechanism.name, params, epsilon, right, guarantee, power)


def _rightness(wishes: GateWishes, power: Callable[[float], float], width: float) -> float:
    """The least probability of being right among those asked for."""
    tolerance = float(wishes.tolerance) / width
    if wishes.question == "champion":
        # Neither luck nor noise says yes in more than a share beta of sessions.
        return power(float(wishes.better_by) / width + tolerance)
    return min(1 - power(0.0), power(tolerance))


def _search_epsilon(wishes: GateWishes, make: Callable[[Fraction], GateOption]) -> GateOption:
    """The option with the least epsilon that does what is wanted, in two digits; with the most that
    may be spent where none does.
    """
    confidence, best = float(wishes.confidence), make(wishes.max_epsilon)
    if best.right < confidence:
        return best
    low, high = 0.001, float(wishes.max_epsilon)
    for _ in range(12):
        middle = math.sqrt(low * high)
        tried = make(min(_round_up(middle), wishes.max_epsilon))
        low, high, best = (
            (low, middle, tried) if tried.right >= confidence else (middle, high, best)
        )
    return best


def _round_up(value: float) -> Fraction:
    """The next number of two digits."""
    step = Fraction(10) ** (math.floor(math.log10(value)) - 1)
    return math.ceil(Fraction(value) / step) * step


def _range_width(wishes: GateWishes, registry: Registry) -> float:
    metric = wishes.metric
    ends: Any = metric.range
    if isinstance(metric.estimator, SqlEstimator):
        ends = metric.estimator.range
    elif ends is None:
        ends = registry.find_estimator(metric.estimator).find_range(metric.options)
    if ends is None or ends == "column":
        raise PlanRefused(
            "the metric has no range, so no tolerance is a part of it; give it range: [low, high]"
        )
    return float(ends[1]) - float(ends[0])


def _is_mean(wishes: GateWishes, table: Table, registry: Registry) -> bool:
    """Whether the metric is a mean of scores of rows, or SQL, whose mean over units it is, or without
    noise a mean over pairs, which is no worse than one over as many units as the rarer class has.
    """
    metric = wishes.metric
    if isinstance(metric.estimator, SqlEstimator):
        return True
    estimator = registry.find_estimator(metric.estimator)
    if estimator.pair_scores is not None:
        return metric.label is not None and table.generalisation_only
    return estimator.row_scores is not None


def _interval(wishes: GateWishes, table: Table, chosen: GateOption, width: float) -> float:
    """How far a passed claim and the score on fresh data may lie apart, in the last answer; 0 if it says
    nothing.
    """
    if chosen.mechanism != MeanGate.name or wishes.question == "champion":
        return 0.0
    params = MeanGateParams.model_validate(chosen.params)
    return claim_reach(params, table, wishes.units, width) * width


def _explain_refusal(
    wishes: GateWishes,
    table: Table,
    width: float,
    registry: Registry,
    options: tuple[GateOption, ...],
) -> str:
    """What no method does, and the nearest that one does, wish by wish."""
    is_mean = _is_mean(wishes, table, registry)
    if not options:
        pairs = ""
        if registry.find_estimator(str(wishes.metric.estimator)).pair_scores is not None:
            pairs = "give the metric its label on a table that is generalisation_only, "
        return (
            f"no gate plans for champions by {wishes.metric.estimator}, which is no mean of scores of rows; {pairs}open "
            f"reusable_holdout with it, which compares estimates of groups of units, ask question: claim, or take another metric"
        )
    confidence = float(wishes.confidence)

    def reaches(**changes: Any) -> bool:
        changed = wishes.model_copy(update=changes)
        return any(
            o.right >= confidence for o in _list_options(changed, table, width, is_mean=is_mean)
        )

    nearest = []
    tolerance = _find_least_factor(
        lambda f: reaches(tolerance=wishes.tolerance * Fraction(f)), 1000.0
    )
    if tolerance is not None and float(wishes.tolerance) * tolerance <= width / 2:
        nearest.append(f"tolerance {float(_round_up(float(wishes.tolerance) * tolerance)):g}")
    units = _find_least_factor(lambda f: reaches(units=math.ceil(wishes.units * f)), 10_000.0)
    if units is not None:
        nearest.append(f"{int(_round_up(wishes.units * units)):,} units")
    best = max(one.right for one in options)
    if best >= 0.5:
        nearest.append(f"confidence {math.floor(best * 100) / 100:g}")
    if not table.generalisation_only and reaches(max_epsilon=Fraction(1000)):
        factor = _find_least_factor(
            lambda f: reaches(max_epsilon=wishes.max_epsilon * Fraction(f)), 1000.0
        )
        if factor is not None:
            nearest.append(f"max_epsilon {float(_round_up(float(wishes.max_epsilon) * factor)):g}")
    near = (
        f"the nearest that are possible, each alone: {', '.join(nearest)}"
        if nearest
        else "nothing near is possible"
    )
    return (
        f"no gate on {wishes.units:,} units tells {float(wishes.tolerance):g} apart with confidence {confidence:g} for "
        f"{wishes.candidates:,} candidates"
        + ("" if table.generalisation_only else f" and epsilon {float(wishes.max_epsilon):g}")
        + f"; {near}"
    )


def _find_least_factor(holds: Callable[[float], bool], most: float) -> float | None:
    """About the least factor from 1 to ``most`` that is enough; None if none is."""
    if not holds(most):
        return None
    low, high = 1.0, most
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
