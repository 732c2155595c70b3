"""The checks of a one-shot mechanism's draw; `dpflow.testing.conformance` runs them."""

from __future__ import annotations

import copy
import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, GroupedSums, Groups
from dpflow.core.contract.results import Result, Row, Synthetic
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput
from dpflow.testing import harness
from dpflow.testing.audit import (
    RARE,
    Sampler,
    affordable_draws,
    audit_with_confirmation,
    refutes_probability,
)
from dpflow.testing.edge_answers import edge_answers
from dpflow.testing.examples import (
    Example,
    neighbouring_answers,
    plan_mechanism,
    possible_answers,
    typical_answer,
)
from dpflow.testing.harness import (
    LimitedSource,
    NotConformant,
    StreamSource,
    capture_output,
    deep_equal,
    epsilon_delta,
    forbid_hidden_randomness,
    remember_globals,
    require,
)
from dpflow.testing.leaks import name_drawn_leak
from dpflow.testing.outcomes import Path, choose_paths, list_features, make_outcome
from dpflow.testing.sampler_patches import replace_samplers
from dpflow.testing.work import counts_work

#: Draws per side of an audit, and for an error bound.
DRAWS = 2000
#: Draws whose order is compared with the declared one.
ORDERS = 12
#: Work of drawing, for the audits of one example.
WORK = 0.45

#: Draws of either side that are timed, nanoseconds that a clock outside can notice, and pairs of an example.
TIMED, NOTICEABLE, TIMED_PAIRS = 5, 2_000_000, 12


class TimeTells(UserWarning):
    """How long a draw takes depends on rows."""


def draw_never_raises(mechanism: Mechanism[Any], example: Example) -> None:
    """Rows never cause an error or output; results are finite, survive JSON and leave no trace."""
    table = example.table
    params, event = plan_mechanism(mechanism, table, example.params)
    for name, answer in possible_answers(mechanism.data_request(params, table), table).items():
        # Copied first, or a mechanism that changes its answer would be compared with the change.
        before, attributes = copy.deepcopy(answer), copy.deepcopy(vars(mechanism))
        parameters = dict(vars(params))
        globals_stay = remember_globals(mechanism)
        with capture_output() as output:
            try:
                result = mechanism.draw(params, table, answer, LimitedSource())
            except NotConformant:
                raise
            except Exception as error:
                raise NotConformant(
                    f"draw raised {type(error).__name__} on the answer {name!r}"
                ) from error
        require(
            not output(),
            f"draw printed, logged, warned or opened a file on the answer {name!r}, or wrote to one or to the environment, "
            f"or reached out of its process: {output()[:80]!r}",
        )
        _check_result(result, name)
        require(deep_equal(before, answer), f"draw changed the answer {name!r}")
        require(parameters == vars(params), "draw must not keep anything in the parameters")
        require(
            deep_equal(attributes, vars(mechanism)), "draw must not keep anything in the mechanism"
        )
        require(
            globals_stay(),
            "draw must not keep anything in the module or the class of the mechanism",
        )
    require(
        mechanism.event(params, table) == event,
        "the event changed after a draw: rows must not matter",
    )


def accepted_plans_draw(mechanism: Mechanism[Any], example: Example) -> None:
    """Planning refuses an epsilon, or drawing with it works: an error after the charge wastes budget."""
    table = example.table
    # Both ends: noise beyond what samplers draw, and next to none.
    ends = ("1e-12", "1e-6", "1/7", "1e6")
    for epsilon in ends if "epsilon" in mechanism.Params.model_fields else ():
        try:
            params, _ = plan_mechanism(mechanism, table, {**example.params, "epsilon": epsilon})
        except InvalidInput:
            continue
        answer = typical_answer(mechanism.data_request(params, table), table)
        try:
            mechanism.draw(params, table, answer, LimitedSource())
        except NotConformant as error:
            raise NotConformant(f"epsilon {epsilon} plans, but {error}") from error
        except Exception as error:
            raise NotConformant(
                f"epsilon {epsilon} plans, but draw raised {type(error).__name__}"
            ) from error


def _value_order(row: Row) -> tuple[bool, float, str]:
    # What is no number comes last.
    number = row.value if isinstance(row.value, int | float) else None
    return number is None, 0 if number is None else -number, row.key


def order_is_public(mechanism: Mechanism[Any], example: Example) -> None:
    """Rows follow the declared order of public keys, or are sorted by key or, as declared, by their values."""
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    request = mechanism.data_request(params, example.table)
    if not isinstance(request, GroupedSums) or request.by is None:
        return
    answer = typical_answer(request, example.table)
    assert isinstance(answer, Groups)
    # The database may return private keys in any order, so the answer has them backwards.
    if request.keys is None:
        answer = replace(answer, keys=answer.keys[::-1])
    if mechanism.order == "values":
        for _ in range(ORDERS):
            rows = mechanism.draw(params, example.table, answer, LimitedSource()).rows
            require(
                list(rows) == sorted(rows, key=_value_order),
                "rows must be sorted by the values that they show, the largest first and then by key",
            )
        return
    result = mechanism.draw(params, example.table, answer, LimitedSource())
    released_keys = [*dict.fromkeys(row.key for row in result.rows)]
    public_order = sorted(released_keys)
    if request.keys is not None:
        public_order = [key for key in request.keys if key in released_keys]
    require(
        released_keys == public_order,
        "rows must come in the order of declared keys, or sorted where keys are private",
    )


def randomness_is_the_source(mechanism: Mechanism[Any], example: Example) -> None:
    """Results are a function of the words, change with them, and touch no other randomness."""
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    request, sources = mechanism.data_request(params, example.table), list[LimitedSource]()

    def draw_with_seed(answer: Answer, seed: int) -> Result:
        sources.append(source := LimitedSource(StreamSource(seed)))
        # On so few rows a number may be hidden in each result.
        with forbid_hidden_randomness() as touched, replace_samplers({}):
            result = mechanism.draw(params, example.table, answer, source)
        require(not touched, f"draw used {', '.join(touched)}; take all randomness from the source")
        return result

    for answer in (
        typical_answer(request, example.table),
        *possible_answers(request, example.table).values(),
    ):
        first = harness.run_seeds(partial(draw_with_seed, answer))
        again = [draw_with_seed(answer, seed) for seed in range(len(first))]
        require(first == again, "the same random words must give the same result")
        if len(set(first)) > 1:
            return  # one answer is enough: a choice may be almost certain on others
    # An example with tables of its own is audited on these, and a coarse choice may be almost certain on all that are tried.
    if example.sides is not None and any(source.is_used for source in sources):
        return
    raise NotConformant("results do not change with the random words: no noise, or a fixed seed")


@counts_work
def error_bound_holds(mechanism: Mechanism[Any], example: Example) -> None:
    """The noise stays within the promised half-width in 95 % of the draws.

    Checked against the bound of the plan and the one in the result.
    """
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    answer = typical_answer(mechanism.data_request(params, example.table), example.table)
    try:
        # At this epsilon there is hardly any noise: its result serves as the truth.
        exact, _ = plan_mechanism(mechanism, example.table, {**example.params, "epsilon": "1e6"})
    except InvalidInput:
        return
    rows = mechanism.draw(exact, example.table, answer, LimitedSource()).rows
    truth = {
        (row.key, row.measure): row.value for row in rows if isinstance(row.value, int | float)
    }
    if not truth:
        return  # only numbers have errors: thousands of draws would count nothing
    bound = mechanism.error_bound(params, example.table)
    promised = bound.half_width if bound is not None else {}
    draws = max(1, int(DRAWS * min(1.0, harness.effort)) // max(1, len(truth)))
    misses = Counter[tuple[str, str]]()
    source = SystemSource()
    for _ in range(draws):
        for row in mechanism.draw(params, example.table, answer, LimitedSource(source)).rows:
            true = truth.get((row.key, row.measure))
            widths = [w for w in (promised.get(row.measure), row.half_width_95) if w is not None]
            value = row.value
            if widths and true is not None and isinstance(value, int | float):
                # The factor forgives the rounding of the widths, and nothing more.
                misses[row.key, row.measure] += abs(value - true) > min(widths) * (1 + 1e-9)
    # Numbers of one draw may share noise, so each name is counted by itself.
    for name, missed in misses.items():
        refuted = refutes_probability(missed, draws, 0.05, RARE / len(misses))
        require(
            not refuted,
            f"the noise left the promised half-width of {name} in {missed} of {draws} draws",
        )


@counts_work
def guarantee_survives_audit(mechanism: Mechanism[Any], example: Example) -> None:
    """Draws on neighbouring answers do not refute the event's (epsilon, delta)."""
    _, event = plan_mechanism(mechanism, example.table, example.params)
    epsilon, delta = epsilon_delta(event)
    pairs = neighbouring_results(mechanism, example)
    for number, (a, b) in enumerate(pairs):
        audit = audit_with_confirmation(
            a,
            b,
            epsilon,
            delta,
            draws=affordable_draws(
                a, int(DRAWS * harness.effort), WORK * harness.effort / len(pairs)
            ),
        )
        if not audit.passed:
            raise NotConformant(
                f"neighbouring answers {number}: {audit}. "
                f"What differs most: {_name_leak(mechanism, example, number, epsilon)}"
            )


def _name_leak(mechanism: Mechanism[Any], example: Example, number: int, epsilon: float) -> str:
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    request, source = mechanism.data_request(params, example.table), SystemSource()
    answers = list_pairs(request, example)[number]
    draws = [
        [mechanism.draw(params, example.table, answer, LimitedSource(source)) for _ in range(200)]
        for answer in answers
    ]
    return name_drawn_leak(draws, epsilon)


def time_is_public(mechanism: Mechanism[Any], example: Example) -> None:
    """A draw takes as long on one table as on its neighbour; another time is a warning, for clocks
    are no part of the contract.
    """
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    request, source = mechanism.data_request(params, example.table), SystemSource()
    for answers in list_pairs(request, example)[: math.ceil(TIMED_PAIRS * harness.effort)]:
        times: tuple[list[int], list[int]] = ([], [])
        for _ in range(TIMED):
            for answer, taken in zip(answers, times, strict=True):
                begun = time.thread_time_ns()
                mechanism.draw(params, example.table, answer, LimitedSource(source))
                taken.append(time.thread_time_ns() - begun)
            # Noise takes time, too: the quickest draw of the slower side against all of the other's.
            slow, quick = sorted(times, key=min, reverse=True)
            telling = min(slow) > 2 * max(quick) and min(slow) - max(quick) > NOTICEABLE
            # Further draws only bring the two closer: what does not tell now never will.
            if not telling:
                break
        if telling:
            warnings.warn(
                f"{mechanism.name}: the time of a draw tells neighbouring answers apart: {min(slow) / 1e6:.1f} ms "
                f"at least, and {max(quick) / 1e6:.1f} ms at most; whoever sees clocks learns of a unit",
                TimeTells,
                stacklevel=2,
            )
            return


def neighbouring_results(
    mechanism: Mechanism[Any], example: Example, edges: bool = False
) -> list[tuple[Sampler, Sampler]]:
    """What draws a result from either of two neighbours, for each pair that is worth an audit.

    Args:
        mechanism: an instance.
        example: what it is planned on.
        edges: take `dpflow.testing.edge_answers`, too.
    """
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    source = SystemSource()

    def draw_from(answer: Answer) -> Callable[[], Result]:
        return lambda: mechanism.draw(params, example.table, answer, LimitedSource(source))

    samplers: list[tuple[Sampler, Sampler]] = []
    request = mechanism.data_request(params, example.table)
    for pair in list_pairs(request, example, edges):
        draws = [draw_from(given) for given in pair]
        # Twenty draws of either side show which coordinates change at all.
        paths = choose_paths(list_features(draw()) for draw in draws for _ in range(20))
        a, b = (_outcome_sampler(draw, paths) for draw in draws)
        samplers.append((a, b))
    return samplers


def list_pairs(request: Any, example: Example, edges: bool = False) -> list[tuple[Answer, Answer]]:
    """Neighbouring answers: those that the example brings, or the standard ones."""
    if example.sides is not None:
        first, second = (example.sides.answer_request(request, example.table, s) for s in (0, 1))
        return [(first, second)]
    pairs = neighbouring_answers(request, example.table)
    return pairs + (edge_answers(request, example.table) if edges else [])


ONE_SHOT = (
    draw_never_raises,
    accepted_plans_draw,
    order_is_public,
    randomness_is_the_source,
    error_bound_holds,
    guarantee_survives_audit,
    time_is_public,
)


def _check_result(result: Any, name: str) -> None:
    """Rows of texts and finite numbers, equal after JSON."""
    require(isinstance(result, Result), f"draw must return a Result, on the answer {name!r}")
    require(
        isinstance(result.synthetic, Synthetic | None),
        "the synthetic rows of a Result are a Synthetic, which names its columns",
    )
    for row in result.rows:
        # By exact type: texts of another class may carry more than they show.
        require(
            {type(row.key), type(row.measure), type(row.remark)} == {str},
            "key, measure and remark of a row are texts",
        )
        require(
            type(row.only_a_bound) is bool and (row.value is None or not row.only_a_bound),
            "only_a_bound of a row is True or False, and True only without a value",
        )
        for number in (None if isinstance(row.value, str) else row.value, row.half_width_95):
            # By exact type: a bool or a numpy float passes isinstance.
            finite = number is None or (type(number) in (int, float) and math.isfinite(number))
            require(
                finite,
                f"a row's numbers are None, int or finite float, not {type(number).__name__} ({name!r})",
            )
        require(
            row.half_width_95 is None or row.half_width_95 >= 0, "half_width_95 cannot be negative"
        )
    try:
        stored = json.loads(json.dumps(result.to_json(), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise NotConformant(
            f"the result must be JSON, on {name!r}: texts, whole and finite numbers, lists, objects"
        ) from error
    require(
        Result.from_json(stored) == result,
        f"the result must be equal after a JSON round trip, on {name!r}",
    )


def _outcome_sampler(
    draw: Callable[[], Result], paths: Sequence[Path]
) -> Callable[[], tuple[Hashable, ...]]:
    """Outcomes for an audit: the whole result, by coordinates."""
    return lambda: make_outcome(draw(), paths)
