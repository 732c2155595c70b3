"""The keys of a private column, without counts: weighted unions of the units' sets of keys, in
rounds.

Definition: of each unit at most g distinct keys count. In a round a unit with k keys that are not
released yet gives each of them the weight 1/root(k), rounded down to a grid of 2^-20. The weights
of all units are added up, and keys whose sum plus Gaussian noise reaches a threshold are released.
Three rounds take 5, 15 and 80 % of the privacy cost: the first ones release what nearly everybody
has, so that later weights go to keys that need them. Released are names, sorted; no weight and no
count leaves.

Guarantee: (epsilon, delta)-DP for the declared unit; with ``guarantee: zcdp`` delta/2-approximate
rho-zCDP, rho the one that is (epsilon, delta/2)-DP, for which a scope with filter renyi or hybrid
charges less, and which basic refuses. Proof. Given what earlier rounds released, a round sees sets
without these keys. A unit's weights have length 1 at most, so under add-remove the weights of keys
that both neighbours have differ by 1 in L2, under replace by root(2), as weights are not negative.
Of keys that one neighbour alone has there are t <= k <= g, each with weight 1/root(k) <= 1/root(t),
and the threshold T is at least 1/root(t) plus a number that the noise reaches with probability
delta_i/t at most, for every t up to g: one of them is shown with probability delta_i at most. Given
that none is, which is independent of the other keys' noise, the round is Gaussian noise on shared
keys: delta_i-approximate rho_i-zCDP, and rounds add up to (rho, delta/2). A key without rows is
never released.

Against `private_histogram`: noise does not grow with g, so let g be large (30 or 100): it hardly
raises the threshold. On Zipf-like keys it releases up to 1.8 times as many names at the same
privacy cost (`python -m bench.keys`).

When not to use it: if counts are wanted, since a second release would pay again; if units have one
key each, where truncated Laplace noise has the lowest threshold.

Source: Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin 2020 (weighted Gaussian union); Swanberg,
Desfontaines, Haney 2023 (rounds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import ZCDP, Approximate, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import KeySets, Sets
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.contract.sensitivity import KeySensitivity
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import Noise, gaussian_noise, rho_for
from dpflow.core.toolbox.partition_selection import gaussian_above, require_delta

UNIT = 2**20  #: grid steps in a weight of 1
#: Shares of the privacy cost, one for each round.
SHARES = (Fraction(1, 20), Fraction(3, 20), Fraction(4, 5))


class KeyUnionParams(Params):
    """``by``: the column of keys. ``epsilon``: the privacy cost. ``delta``: as epsilon; half of it
    is the chance that a lone unit's keys show. ``guarantee``: how it is stated, approximate
    or zcdp; a scope with the filter renyi or hybrid adds zcdp up better.
    """

    by: str
    epsilon: Epsilon
    delta: Annotated[Delta, AfterValidator(require_delta)]
    guarantee: Literal["approximate", "zcdp"] = "approximate"


@dataclass(frozen=True)
class Round:
    """Noise and threshold of one round, in grid steps."""

    noise: Noise
    threshold: int

    @classmethod
    def fit_threshold(cls, moved: KeySensitivity, rho: Fraction, delta: Fraction) -> Round:
        """The round at this cost."""
        # Weights are integers of the grid, so sensitivities are in its steps.
        weights = moved.weights(UNIT)
        # Numbers of keys from one start to the next are taken together: the weight of the first,
        # the tail of the last.
        starts = [1]
        # Ranges that grow by an eighth cost little and save thousands of tails.
        while starts[-1] < moved.groups:
            starts.append(max(starts[-1] + 1, starts[-1] * 9 // 8))
        ends = [min(start - 1, moved.groups) for start in starts[1:]] + [moved.groups]
        thresholds = (
            key_weight(a) + gaussian_above(weights.l2_squared / (2 * rho), delta / b)
            for a, b in zip(starts, ends, strict=True)
            if a <= b
        )
        return cls(gaussian_noise(weights, rho), max(thresholds))


@lru_cache(maxsize=1024)
def split_rounds(moved: KeySensitivity, epsilon: Fraction, delta: Fraction) -> tuple[Round, ...]:
    """All rounds at this cost. Raises `PlanRefused` for one that is too small for Gaussian noise."""
    rho = rho_for(epsilon, delta / 2)
    return tuple(Round.fit_threshold(moved, rho * share, delta / 2 * share) for share in SHARES)


def key_weight(size: int) -> int:
    """1/root(size), rounded down to the grid."""
    return math.isqrt(UNIT**2 // size)


def add_weights(sets: Sets, open_keys: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The weight of every key, from units' keys that are open."""
    # Keys that are out already leave their weight to the unit's other keys.
    there = open_keys[sets.codes]
    codes, units = sets.codes[there], sets.units[there]
    sizes = np.bincount(units)
    # One integer root for each size, not one for each pair.
    table = np.array([0, *map(key_weight, range(1, int(sizes.max(initial=0)) + 1))], dtype=np.int64)
    weights = np.zeros(len(sets.keys), dtype=np.int64)
    np.add.at(weights, codes, table[sizes[units]])
    return weights


class KeyUnion(Mechanism[KeyUnionParams]):
    """Names of keys that many units share."""

    name = "key_union"
    job = "groups"
    summary = "the keys of a private column that enough units share, without counts"
    citation = "Gopi et al. 2020 (differentially private set union); Swanberg, Desfontaines, Haney 2023 (DP-SIPS)"

    def plan_rounds(self, params: KeyUnionParams, table: Table) -> tuple[Round, ...]:
        """What the privacy cost buys. Raises `PlanRefused` for one that is too small for Gaussian
        noise.
        """
        moved = table.sensitivity(self.data_request(params, table))
        return split_rounds(moved, params.epsilon, params.delta)

    def event(self, params: KeyUnionParams, table: Table) -> Event:
        """(epsilon, delta)-DP, or the zCDP that the rounds add up to. Raises `PlanRefused` if too
        small.
        """
        self.plan_rounds(params, table)
        if params.guarantee == "approximate":
            return Approximate(params.epsilon, params.delta)
        return ZCDP(rho_for(params.epsilon, params.delta / 2), params.delta / 2)

    def data_request(self, params: KeyUnionParams, table: Table) -> KeySets:
        """For each unit a uniform choice of at most g distinct keys."""
        return KeySets(params.by, table.bounds_for(params.by).groups)

    def draw(self, params: KeyUnionParams, table: Table, answer: Sets, source: Source) -> Result:
        """Three rounds of noisy weights; a key leaves as soon as its weight reaches the threshold."""
        left = np.ones(len(answer.keys), dtype=bool)
        for one in self.plan_rounds(params, table):
            places = np.flatnonzero(left)
            names, weights = [answer.keys[i] for i in places], add_weights(answer, left)[places]
            shown, _ = one.noise.show_from(names, weights, one.threshold, source)
            # What is released stays out of later rounds, which only post-process that fact.
            left[places[shown]] = False
        released = sorted(answer.keys[i] for i in np.flatnonzero(~left))
        return Result(tuple(Row(key, "key", 1) for key in released))

    def error_bound(self, params: KeyUnionParams, table: Table) -> ErrorBound:
        """No numbers leave; the note says how many units a key needs."""
        last = self.plan_rounds(params, table)[-1].threshold
        alone = math.ceil(last / UNIT)
        full = math.ceil(last / key_weight(table.bounds_for(params.by).groups))
        note = f"no numbers leave; a key needs about {alone} units that have nothing else, {full} that have as many as they may"
        return ErrorBound({}, note)
