"""The checks of a one-shot mechanism's draw; `dpflow.testing.conformance` runs them."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, GroupedSums, Groups
from dpflow.core.contract.results import Result
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput
from dpflow.testing.audit import RARE, affordable, confirmed, too_often
from dpflow.testing.examples import Example, answers, neighbouring, plan, typical
from dpflow.testing.harness import (
    NotConformant,
    StreamSource,
    claim,
    forbid_hidden_randomness,
    require,
    same,
    silence,
)

DRAWS = 2000  # per side of an audit, and for an error bound
SECONDS = 1.5  # of drawing, for the audits of one example


def draw_never_raises(mechanism: Mechanism[Any], example: Example) -> None:
    """Rows never cause an error; what leaves is finite and survives JSON; nothing is printed,
    logged or kept.
    """
    params, event = plan(mechanism, example.table, example.params)
    for name, given in answers(
        mechanism.data_request(params, example.table), example.table
    ).items():
        before, kept = copy.deepcopy(given), copy.deepcopy(vars(mechanism))
        with silence() as said:
            try:
                result = mechanism.draw(params, example.table, given, SystemSource())
            except Exception as error:
                raise NotConformant(
                    f"draw raised {type(error).__name__} on the answer {name!r}"
                ) from error
        require(not said(), f"draw printed or logged something on the answer {name!r}")
        _check_result(result, name)
        require(same(before, given), f"draw changed the answer {name!r}")
        require(same(kept, vars(mechanism)), "draw must not keep anything in the mechanism")
    require(
        mechanism.event(params, example.table) == event,
        "the event changed after a draw: rows must not matter",
    )


def accepted_plans_draw(mechanism: Mechanism[Any], example: Example) -> None:
    """A price is refused when the plan is made, or drawing with it works: afterwards it is paid
    for.
    """
    for epsilon in (
        ("1e-12", "1e-6", "1/7", "1e6") if "epsilon" in mechanism.Params.model_fields else ()
    ):
        try:
            params, _ = plan(mechanism, example.table, {**example.params, "epsilon": epsilon})
        except InvalidInput:
            continue
        given = typical(mechanism.data_request(params, example.table), example.table)
        try:
            mechanism.draw(params, example.table, given, SystemSource())
        except Exception as error:
            raise NotConformant(
                f"epsilon {epsilon} plans, but draw raised {type(error).__name__}"
            ) from error


def order_is_public(mechanism: Mechanism[Any], example: Example) -> None:
    """Rows come in the declared order of keys, or sorted where keys are private; never as they were
    found.
    """
    params, _ = plan(mechanism, example.table, example.params)
    statistic = mechanism.data_request(params, example.table)
    if not isinstance(statistic, GroupedSums) or statistic.by is None:
        return
    given = typical(statistic, example.table)
    assert isinstance(given, Groups)
    if statistic.keys is None:
        given = replace(given, keys=given.keys[::-1])
    found = [
        *dict.fromkeys(
            row.key for row in mechanism.draw(params, example.table, given, SystemSource()).rows
        )
    ]
    wanted = (
        [key for key in statistic.keys if key in found]
        if statistic.keys is not None
        else sorted(found)
    )
    require(
        found == wanted,
        "rows must come in the order of declared keys, or sorted where keys are private",
    )


def randomness_is_the_source(mechanism: Mechanism[Any], example: Example) -> None:
    """The same words give the same result, other words another one on some answer, and no other
    randomness is touched.
    """
    params, _ = plan(mechanism, example.table, example.params)
    statistic = mechanism.data_request(params, example.table)

    def draw(given: Answer, seed: int) -> Result:
        with forbid_hidden_randomness() as touched:
            result = mechanism.draw(params, example.table, given, StreamSource(seed))
        require(not touched, f"draw used {', '.join(touched)}; take all randomness from the source")
        return result

    for given in (typical(statistic, example.table), *answers(statistic, example.table).values()):
        first = [draw(given, seed) for seed in range(12)]
        again = [draw(given, seed) for seed in range(12)]
        require(first == again, "the same random words must give the same result")
        if len(set(first)) > 1:
            return  # a choice may be as good as certain on some answers
    raise NotConformant("results do not change with the random words: no noise, or a fixed seed")


def error_bound_holds(mechanism: Mechanism[Any], example: Example) -> None:
    """The noise stays within the promised half-width in 95 % of the draws, before and after
    spending.
    """
    params, _ = plan(mechanism, example.table, example.params)
    given = typical(mechanism.data_request(params, example.table), example.table)
    try:
        exact, _ = plan(
            mechanism, example.table, {**example.params, "epsilon": "1e6"}
        )  # hardly any noise
    except InvalidInput:
        return
    rows = mechanism.draw(exact, example.table, given, SystemSource()).rows
    truth = {
        (row.key, row.measure): row.value for row in rows if isinstance(row.value, int | float)
    }
    if not truth:
        return  # only numbers have errors: thousands of draws would count nothing
    bound = mechanism.error_bound(params, example.table)
    promised = bound.half_width if bound is not None else {}
    draws, misses = max(1, DRAWS // max(1, len(truth))), Counter[tuple[str, str]]()
    source = SystemSource()
    for _ in range(draws):
        for row in mechanism.draw(params, example.table, given, source).rows:
            true = truth.get((row.key, row.measure))
            widths = [w for w in (promised.get(row.measure), row.error_95) if w is not None]
            value = row.value
            if widths and true is not None and isinstance(value, int | float):
                misses[row.key, row.measure] += abs(value - true) > min(widths) * (1 + 1e-9)
    for (
        place,
        missed,
    ) in misses.items():  # numbers of one draw may share noise, so each is counted by itself
        refuted = too_often(missed, draws, 0.05, RARE / len(misses))
        require(
            not refuted,
            f"the noise left the promised half-width of {place} in {missed} of {draws} draws",
        )


def claim_survives_audit(mechanism: Mechanism[Any], example: Example) -> None:
    """The claimed (epsilon, delta) is not refuted by draws on neighbouring answers."""
    params, event = plan(mechanism, example.table, example.params)
    epsilon, delta = claim(event)
    source = SystemSource()

    def drawing(given: Answer) -> Callable[[], Result]:
        return lambda: mechanism.draw(params, example.table, given, source)

    pairs = neighbouring(mechanism.data_request(params, example.table), example.table)
    for number, pair in enumerate(pairs):
        draws = [drawing(given) for given in pair]
        seen = [row for draw in draws for _ in range(20) for row in draw().rows]
        keys = {row.key for row in seen}.union(*(getattr(given, "keys", ()) for given in pair))
        places = sorted((key, measure) for key in keys for measure in {row.measure for row in seen})
        a, b = (_sampler(draw, places) for draw in draws)
        found = confirmed(a, b, epsilon, delta, draws=affordable(a, DRAWS, SECONDS / len(pairs)))
        require(found.passed, f"neighbouring answers {number}: {found}")


ONE_SHOT = (
    draw_never_raises,
    accepted_plans_draw,
    order_is_public,
    randomness_is_the_source,
    error_bound_holds,
    claim_survives_audit,
)


def _check_result(result: Any, name: str) -> None:
    """Rows of texts and finite numbers, equal after JSON."""
    require(isinstance(result, Result), f"draw must return a Result, on the answer {name!r}")
    for row in result.rows:
        require(
            isinstance(row.key, str) and isinstance(row.measure, str),
            "key and measure of a row are texts",
        )
        for number in (None if isinstance(row.value, str) else row.value, row.error_95):
            finite = number is None or (type(number) in (int, float) and math.isfinite(number))
            require(
                finite,
                f"a row's numbers are None, int or finite float, not {type(number).__name__} ({name!r})",
            )
        require(row.error_95 is None or row.error_95 >= 0, "error_95 cannot be negative")
    stored = json.loads(json.dumps(result.to_json(), allow_nan=False))
    require(
        Result.from_json(stored) == result,
        f"the result must be equal after a JSON round trip, on {name!r}",
    )


def _sampler(
    draw: Callable[[], Result], places: list[tuple[str, str]]
) -> Callable[[], tuple[Any, ...]]:
    """Outcomes for an audit: one coordinate per place, None where nothing was released."""

    def sample() -> tuple[Any, ...]:
        values = {(row.key, row.measure): row.value for row in draw().rows}
        return tuple(values.get(place) for place in places)

    return sample
