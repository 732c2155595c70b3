"""The audit of one mechanism: what is measured of its guarantee, and how sure the measuring is.

Three methods, each wherever it can follow the mechanism: the exact output distributions on tiny tables
(`dpflow.testing.exact_checks`); runs replayed on neighbours of any size, number by number
(`dpflow.testing.replay_audit`); and, where the others see too little, draws (`dpflow.testing.audit`).

Of a composition whose parts no pair of neighbours shows together, each part is held to its own cost, too
(`dpflow.testing.part_audit`).

First of all a one-shot mechanism is held to its guarantee on generated declarations, parameters and neighbours
(`dpflow.testing.generated_checks`), a session at epsilons from 1/1000 to 100. A draw that does anything beside returning
its result is refuted, too.

Each is run once more with the noise of every sampler weakened (`dpflow.testing.sampler_patches`)
by 2, 4, 8, ... until it refutes the guarantee: an audit that cannot see a broken mechanism says
nothing about the sound one. A guarantee that is tight on the compared tables is refuted at 2; one
with room to spare (unused delta, a bound over many stages) still holds there, and falls later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import islice, product
from typing import Any

from dpflow.core.accounting.events import Event, Unprotected
from dpflow.core.contract.audit_cells import Cells, describe_cells, digest_cells, merge_cells
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.errors import InvalidInput
from dpflow.testing import exact_divergence, harness
from dpflow.testing.audit import (
    Audit,
    Sampler,
    affordable_draws,
    audit_pair,
    audit_with_confirmation,
    estimate_power,
)
from dpflow.testing.exact_checks import ExactComparison, compare_exactly, tiny_examples
from dpflow.testing.examples import (
    AnyMechanism,
    Example,
    add_computed_columns,
    examples_for,
    plan_mechanism,
)
from dpflow.testing.generated_checks import (
    delta_covers_lone_units,
    find_violation,
    structure_is_public,
)
from dpflow.testing.generated_ranges import range_cases
from dpflow.testing.generated_tables import EPSILONS, describe_sizes
from dpflow.testing.half_widths import check_half_widths
from dpflow.testing.harness import NotConformant, epsilon_delta, spend_effort
from dpflow.testing.own_state import list_own_state
from dpflow.testing.part_audit import audit_parts
from dpflow.testing.release_checks import (
    draw_never_raises,
    neighbouring_results,
    order_is_public,
    randomness_is_the_source,
)
from dpflow.testing.replay_audit import POWER, replay_examples, replay_pair
from dpflow.testing.replay_audit import estimate_power as estimate_replay_power
from dpflow.testing.sampler_patches import weaken_noise
from dpflow.testing.sensitivity_audit import ORDER, Arithmetic, check_moves, compare_session
from dpflow.testing.session_checks import neighbouring_transcripts
from dpflow.testing.work import count_work, spent

#: By how much noise is weakened until an audit sees it.
FACTORS = (2, 4, 8, 16, 32, 64)
#: Confidence of a measured loss that is drawn; a refutation needs much more.
CONFIDENCE = 0.99
#: Draws from either neighbour, at most.
DRAWS = 40_000
#: Work of an audit that looks at all generated tables.
ENOUGH = 50
#: Of the effort of such an audit, from where on ranges are tried whole.
WHOLE = 0.1
#: Work of a session's look at one epsilon, and draws from either neighbour.
SWEEP_WORK, SWEEP_DRAWS = 0.8, 400
#: Examples, and plans at ends of ranges, on which it is looked at what a draw does beside its result.
CONDUCT = 6
#: Points of a privacy profile.
POINTS = 41

Profile = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class MechanismAudit:
    """What an audit says about a mechanism.

    Attributes:
        mechanism, version: what was audited.
        method: ``exact``, ``replayed``, ``parts`` (replayed, each part held to its cost) or ``drawn``;
            ``none`` for a mechanism that promises nothing.
        neighbours, params: of the example that measures most of the guarantee.
        epsilon, delta: its guarantee.
        measured_epsilon: the loss is at least this at delta, with ``confidence``.
        confidence: 1 for an exact method.
        refuted: whether some example or generated table breaks the guarantee.
        reason: what was found on a generated table; "" otherwise.
        weakened: the factor by which noise must be weaker to be caught, or None if none was.
        power: how surely it is then caught, at least.
        compared: pairs of neighbours, or draws from either of them.
        seconds: CPU time.
        stated, measured: privacy profiles: delta by epsilon, from above and from below.
        coverage: values by property of the declarations and parameters that were tried
            (`dpflow.core.contract.audit_cells`).
        plans: names of all plans that were tried (`dpflow.core.contract.audit_cells.digest_cells`).
        sizes: numbers of rows that were tried, for people: they are private, and decide nothing.
        ranges: whether each generated value of a range was tried in some plan.
        not_followed: generated declarations with parameters of which nothing could be compared.
        arithmetic: where noise takes its sensitivity from, as far as draws showed: ``of requests``, ``declared`` (and
            tested), ``own arithmetic`` (`dpflow.testing.sensitivity_audit`), or ``own state``.
        own_state: what its code reads beside its arguments (`dpflow.testing.own_state`): no audit holds that still.
    """

    mechanism: str
    version: int
    method: str
    neighbours: str
    params: dict[str, Any]
    epsilon: float
    delta: float
    measured_epsilon: float
    confidence: float
    refuted: bool
    weakened: int | None
    power: float
    compared: int
    seconds: float
    stated: Profile
    measured: Profile
    reason: str = ""
    coverage: Mapping[str, Sequence[str]] = field(default_factory=dict)
    plans: Sequence[str] = field(default_factory=list)
    sizes: str = ""
    ranges: bool = False
    not_followed: int = 0
    arithmetic: Arithmetic = "own arithmetic"
    own_state: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """One of ``refuted``, ``not refuted``, ``no power`` (nothing that was tried is seen) and
        ``no guarantee`` (nothing is promised).
        """
        if self.method == "none":
            return "no guarantee"
        if self.refuted:
            return "refuted"
        return "not refuted" if self.weakened is not None else "no power"

    @property
    def share(self) -> float:
        """How much of the stated epsilon was measured."""
        return self.measured_epsilon / self.epsilon if self.epsilon else 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {**asdict(self), "verdict": self.verdict, "share": self.share}


def audit_mechanism(
    mechanism: AnyMechanism,
    examples: Sequence[Example] = (),
    seconds: float = ENOUGH,
    seed: int = 0,
    plans: Sequence[Example] = (),
) -> MechanismAudit:
    """Audit a mechanism on examples, or on the standard ones.

    Args:
        mechanism: an instance.
        examples: for a mechanism whose parameters have no standard names.
        plans: declarations with parameters to try beside all others.
        seconds: work, about as many seconds of CPU time, beside that of generated tables; the exact method ends
            earlier. Below `ENOUGH` fewer of these are looked at, too, and below a tenth of it no range is whole.
        seed: of all randomness. Work is counted (`dpflow.testing.work`), so all that is said follows from code,
            arguments and seed, but for ``seconds``.

    Raises:
        InvalidInput: there are no standard examples, and none were given.
    """
    begun = time.thread_time()
    with count_work(mechanism, seed):
        audit = _audit_by_work(mechanism, examples, plans, seconds)
    return replace(audit, seconds=time.thread_time() - begun)


def _audit_by_work(
    mechanism: AnyMechanism,
    examples: Sequence[Example],
    plans: Sequence[Example],
    seconds: float,
) -> MechanismAudit:
    examples = [add_computed_columns(mechanism, example) for example in examples]
    given = examples or examples_for(mechanism)
    if isinstance(plan_mechanism(mechanism, given[0].table, given[0].params)[1], Unprotected):
        return _state_nothing(mechanism, given[0])
    with spend_effort(harness.effort * min(1.0, seconds / ENOUGH)):
        generated = (
            _check_generated(mechanism, given, plans)
            if isinstance(mechanism, Mechanism)
            else _sweep_epsilons(mechanism, given, plans)
        )
    if generated.reason:
        seconds = min(seconds, 2)  # for a profile: the verdict is known
    begun = spent()
    # Examples of the author's own come first: they say where the guarantee is tight.
    tiny = [] if any(one.form for one in examples) else tiny_examples(mechanism)
    replayed = _audit_replays(mechanism, given, seconds / 3)
    # Secret noise can only be followed exactly, which takes longer.
    left = (seconds - (spent() - begun)) * (0.5 if replayed else 0.85)
    followed = [_audit_exactly(mechanism, [*examples, *tiny], left), replayed]
    seen = [one for one in followed if one is not None]
    is_seen = any(one.refuted or one.weakened == FACTORS[0] for one in seen)
    if replayed and not is_seen:
        seen.append(_audit_parts(mechanism, given, replayed, seconds / 6))
        is_seen = seen[-1].refuted or seen[-1].weakened == FACTORS[0]
    if not is_seen:
        seen.append(_audit_draws(mechanism, given, seconds - (spent() - begun)))
    # Whichever refutes, or sees the smaller mistake; results before what is seen on their way.
    best = min(
        seen,
        key=lambda one: (
            not one.refuted,
            one.weakened or math.inf,
            one.method != "exact",
            -one.share,
        ),
    )
    if generated.reason:
        best = replace(best, refuted=True, reason=generated.reason, weakened=None, power=0.0)
    own_state = list_own_state(mechanism)
    arithmetic = "own state" if own_state else generated.arithmetic
    return replace(
        best,
        coverage={name: sorted(values) for name, values in sorted(generated.cells.items())},
        plans=sorted(generated.plans),
        sizes=generated.sizes,
        ranges=generated.ranges and arithmetic == ORDER[0],
        not_followed=generated.not_followed,
        arithmetic=arithmetic,
        own_state=own_state,
    )


@dataclass(frozen=True)
class _Generated:
    """What generated tables said: what is wrong, and what they covered."""

    reason: str = ""
    cells: Cells = field(default_factory=dict)
    plans: frozenset[str] = frozenset()
    sizes: str = ""
    ranges: bool = False
    not_followed: int = 0
    arithmetic: Arithmetic = "own arithmetic"


def _check_generated(
    mechanism: Mechanism[Any], examples: Sequence[Example], plans: Sequence[Example]
) -> _Generated:
    """The checks of generated tables, and of what a draw does beside its result; those that cost least come first."""
    is_whole, given = harness.effort >= WHOLE, [*plans, *examples]
    for check in (
        partial(_check_conduct, examples=given),
        delta_covers_lone_units,
        structure_is_public,
    ):
        try:
            check(mechanism)
        except NotConformant as refusal:
            return _Generated(str(refusal))
    if widths := check_half_widths(mechanism, harness.effort, given).excess:
        return _Generated(widths)
    moves = check_moves(mechanism, harness.effort, [*examples, *plans])
    violation, coverage = find_violation(mechanism, harness.effort, given, is_whole)
    reason = moves.excess if violation is None else str(violation)
    return _Generated(
        reason,
        coverage.cells,
        coverage.plans,
        describe_sizes(mechanism),
        coverage.ranges,
        coverage.not_followed,
        moves.arithmetic or "own arithmetic",
    )


def _check_conduct(mechanism: Mechanism[Any], examples: Sequence[Example]) -> None:
    """A draw does nothing but return its result, also at ends of ranges."""
    for example in examples[:CONDUCT]:
        for rule in (draw_never_raises, randomness_is_the_source, order_is_public):
            rule(mechanism, example)
    for case in islice(range_cases(mechanism, examples).sample(1.0), CONDUCT):
        draw_never_raises(mechanism, Example(case.table, case.params))


def _sweep_epsilons(
    mechanism: InteractiveMechanism[Any, Any],
    examples: Sequence[Example],
    plans: Sequence[Example] = (),
) -> _Generated:
    """A short look at a session under either relation at each power of ten of epsilon: whole runs replayed, or
    drawn where they cannot be.
    """
    cells = list[Cells]()
    if "epsilon" not in mechanism.Params.model_fields:
        return _Generated()
    first = {example.table.neighbours: example for example in reversed(examples)}
    for example, epsilon in [
        *((plan, plan.params["epsilon"]) for plan in plans),
        *product(first.values(), EPSILONS),
    ]:
        trial = replace(example, params={**example.params, "epsilon": epsilon})
        with suppress(InvalidInput):
            params, _ = plan_mechanism(mechanism, trial.table, trial.params)
            if not _holds_briefly(mechanism, trial):
                relation = trial.table.neighbours
                return _Generated(
                    f"at epsilon {epsilon} under {relation}, its guarantee is refuted"
                )
            cells.append(describe_cells(trial.table, params))
    moves = compare_session(mechanism, first.values())
    return _Generated(
        moves.excess,
        merge_cells(cells),
        frozenset(map(digest_cells, cells)),
        arithmetic=moves.arithmetic or "own arithmetic",
    )


def _holds_briefly(mechanism: InteractiveMechanism[Any, Any], example: Example) -> bool:
    seconds = SWEEP_WORK * harness.effort
    if (replayed := replay_examples(mechanism, [example], seconds)) is not None:
        return replayed.passed
    samplers = _list_samplers(mechanism, example)
    for a, b in samplers:
        draws = affordable_draws(a, SWEEP_DRAWS, seconds / len(samplers))
        guarantee = _guarantee_of(mechanism, example)
        if not audit_with_confirmation(a, b, *guarantee, draws=draws).passed:
            return False
    return True


def _state_nothing(mechanism: AnyMechanism, example: Example) -> MechanismAudit:
    """Of a mechanism without a guarantee there is nothing to audit."""
    return MechanismAudit(
        mechanism=mechanism.name,
        version=mechanism.version,
        method="none",
        neighbours=example.table.neighbours,
        params=dict(example.params),
        epsilon=0.0,
        delta=1.0,
        measured_epsilon=0.0,
        confidence=1.0,
        refuted=False,
        weakened=None,
        power=0.0,
        compared=0,
        seconds=0.0,
        stated=(),
        measured=(),
    )


def _audit_exactly(
    mechanism: AnyMechanism, examples: Sequence[Example], seconds: float
) -> MechanismAudit | None:
    """The exact method; None where no example can be followed."""
    # Half of the work looks for the best example, and half weakens its noise.
    seconds_each = seconds / 2 / max(len(examples), 1)
    comparisons = []
    for example in examples:
        # Standard queries may not fit tiny tables, where other examples do.
        with suppress(InvalidInput):
            comparisons.append((example, compare_exactly(mechanism, example, seconds_each)))
            if not comparisons[-1][1].passed:
                break
    followed = [(example, one) for example, one in comparisons if one.pairs]
    if not followed:
        return None
    followed.sort(key=lambda one: (one[1].passed, -one[1].epsilon_found / one[1].epsilon))
    refuted = not followed[0][1].passed
    share = followed[0][1].epsilon_found / followed[0][1].epsilon
    weakened = None
    # A loss grows with the factor at most, so the first ones cannot be seen.
    factors = [factor for factor in FACTORS if factor * share > 0.9]
    for factor in () if refuted else factors[:3]:
        with weaken_noise(factor):
            if any(
                not compare_exactly(mechanism, example, max(seconds_each, seconds / 12)).passed
                for example, _ in followed[:2]
            ):
                weakened = factor
                break
    example, best = followed[0]
    event = plan_mechanism(mechanism, example.table, best.params)[1]
    return MechanismAudit(
        mechanism.name,
        mechanism.version,
        "exact",
        example.table.neighbours,
        dict(best.params),
        best.epsilon,
        best.delta,
        best.epsilon_found,
        1.0,
        refuted,
        weakened,
        1.0 if weakened else 0.0,
        best.pairs,
        0.0,
        _state_profile(event, best.epsilon, best.delta),
        _measure_exact_profile(best),
    )


def _audit_replays(
    mechanism: AnyMechanism, examples: Sequence[Example], seconds: float
) -> MechanismAudit | None:
    """Replayed runs; None where noise must stay secret."""
    best = replay_examples(mechanism, examples, seconds / 2)
    if best is None:
        return None
    weakened, power = None, 0.0
    for factor in FACTORS if best.passed else ():
        # A loss grows with the factor at most, so the first ones cannot be seen.
        if best.delta or factor * best.share > 0.9:
            power = estimate_replay_power(replay_pair(mechanism, best, factor, seconds))
            if power >= POWER:
                weakened = factor
                break
    event = plan_mechanism(mechanism, best.example.table, best.example.params)[1]
    return MechanismAudit(
        mechanism.name,
        mechanism.version,
        "replayed",
        best.example.table.neighbours,
        dict(best.example.params),
        best.epsilon,
        best.delta,
        best.epsilon_found,
        1.0 if not best.delta else CONFIDENCE,
        not best.passed,
        weakened,
        power if weakened else 0.0,
        best.runs,
        0.0,
        _state_profile(event, best.epsilon, best.delta),
        tuple((x, best.delta_at(x)) for x in _grid(best.epsilon)),
    )


def _audit_parts(
    mechanism: AnyMechanism, examples: Sequence[Example], replayed: MechanismAudit, seconds: float
) -> MechanismAudit:
    """What whole runs say, with the power of an audit of their parts; whole runs alone where none
    are stated.
    """
    parts = audit_parts(mechanism, examples, seconds / 2)
    if parts is None:
        return replayed
    if not parts.passed:
        return replace(replayed, method="parts", refuted=True)
    weaker = audit_parts(mechanism, [parts.example], seconds / 2, FACTORS[0])
    if weaker is None or weaker.power < POWER:
        return replayed
    return replace(replayed, method="parts", weakened=FACTORS[0], power=weaker.power)


def _audit_draws(
    mechanism: AnyMechanism, examples: Sequence[Example], seconds: float
) -> MechanismAudit:
    """The black-box method: the pair of neighbours that shows most is drawn from longest."""
    begun = spent()
    best: tuple[float, Example, int] | None = None
    # A third of the work chooses. Weak noise shows soonest which neighbours are far apart.
    with weaken_noise(FACTORS[3]):
        sampler_pairs = [
            (example, index, samplers)
            for example in examples
            for index, samplers in enumerate(_list_samplers(mechanism, example))
        ]
        for example, index, (a, b) in sampler_pairs:
            epsilon, delta = _guarantee_of(mechanism, example)
            draws = affordable_draws(a, 2000, seconds / 3 / len(sampler_pairs))
            found = audit_pair(a, b, epsilon, delta, draws=draws, confidence=CONFIDENCE)
            share = found.lower_epsilon / epsilon
            if best is None or share > best[0]:
                best = share, example, index
            if spent() > begun + seconds / 2:
                break
    assert best is not None
    _, example, index = best
    epsilon, delta = _guarantee_of(mechanism, example)
    a, b = _list_samplers(mechanism, example)[index]
    left = max(begun + seconds - spent(), seconds / 4)
    draws = affordable_draws(a, DRAWS, left / 4)
    audit = audit_pair(a, b, epsilon, delta, draws=draws, confidence=CONFIDENCE)
    refuted = not audit.passed and not audit_pair(a, b, epsilon, delta, draws=draws).passed
    weakened, power = None, 0.0
    for factor in () if refuted else FACTORS:
        with weaken_noise(factor):
            # A quarter of the draws tells whether all of them are worth their work.
            a, b = _list_samplers(mechanism, example)[index]
            quick = audit_pair(a, b, epsilon, delta, draws=draws // 4, confidence=0.5)
            power = estimate_power(a, b, epsilon, delta, draws=draws) if not quick.passed else 0.0
        if power >= POWER:
            weakened = factor
            break
    event = plan_mechanism(mechanism, example.table, example.params)[1]
    return MechanismAudit(
        mechanism.name,
        mechanism.version,
        "drawn",
        example.table.neighbours,
        dict(example.params),
        epsilon,
        delta,
        audit.lower_epsilon,
        CONFIDENCE,
        refuted,
        weakened,
        power if weakened else 0.0,
        draws,
        0.0,
        _state_profile(event, epsilon, delta),
        _measure_drawn_profile(audit),
    )


def _list_samplers(mechanism: AnyMechanism, example: Example) -> list[tuple[Sampler, Sampler]]:
    if isinstance(mechanism, InteractiveMechanism):
        return [pair for games in neighbouring_transcripts(mechanism, example) for pair in games]
    return neighbouring_results(mechanism, example, edges=True)


def _guarantee_of(mechanism: AnyMechanism, example: Example) -> tuple[float, float]:
    return epsilon_delta(plan_mechanism(mechanism, example.table, example.params)[1])


def _grid(epsilon: float) -> list[float]:
    return [1.25 * epsilon * i / (POINTS - 1) for i in range(POINTS)]


def _state_profile(event: Event, epsilon: float, delta: float) -> Profile:
    """The least delta that the event implies at each epsilon, as far as is known here."""
    if event.epsilon_delta() is not None:
        # Kairouz, Oh, Viswanath 2015: the worst (epsilon, delta)-DP mechanism at smaller epsilons.
        return tuple(
            (
                x,
                delta
                + max(
                    0.0,
                    (1 - delta)
                    * (math.exp(epsilon - x) - 1)
                    / (math.exp(-x) + math.exp(epsilon - x)),
                ),
            )
            for x in _grid(epsilon)
        )
    spare = event.rho_delta()[1]
    deltas = [Fraction(1, 2) * Fraction(3, 5) ** i for i in range(24)]
    points = [(event.epsilon_at(spare + one), float(spare + one)) for one in deltas]
    return tuple((float(x), y) for x, y in points if x is not None)


def _measure_exact_profile(found: ExactComparison) -> Profile:
    assert found.laws is not None
    return tuple((x, exact_divergence.divergence(*found.laws, x)) for x in _grid(found.epsilon))


def _measure_drawn_profile(audit: Audit) -> Profile:
    """Pr[S] - e^epsilon Pr'[S] is a lower bound of delta at every epsilon."""
    return tuple(
        (x, max(0.0, *(low - math.exp(x) * high for low, high in audit.rates)))
        for x in _grid(audit.epsilon)
    )
