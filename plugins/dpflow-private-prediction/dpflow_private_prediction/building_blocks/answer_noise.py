"""Integer noise on an integer answer, for predictions that are numbers (Dwork and Feldman 2018,
Lemma 4.5).

Guarantee: an answer that one unit moves by at most D is epsilon-DP with discrete Laplace noise of
scale D/epsilon, and (epsilon^2/2)-zCDP with discrete Gaussian noise of sigma = D/epsilon. Gaussian
noise has no epsilon without a delta, and costs the same in zCDP while its tails are far shorter.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace, Event
from dpflow.core.sampling.noisy_values import add_gaussian, add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import scale_for
from dpflow_private_prediction.building_blocks.shards import Ints

Noise = Literal["laplace", "gaussian"]


def noise_event(noise: Noise, sensitivity: int, epsilon: Fraction) -> Event:
    """The event of one answer. Raises `PlanRefused` where the noise would be too wide to draw."""
    scale = scale_for(sensitivity, epsilon)
    if noise == "gaussian":
        # sigma = D/epsilon, which is (epsilon^2/2)-zCDP.
        return DiscreteGaussian(scale**2, Fraction(sensitivity))
    return DiscreteLaplace(scale, sensitivity)


def add_noise(
    exact: Ints, noise: Noise, sensitivity: int, epsilon: Fraction, source: Source
) -> Ints:
    """Answers with fresh noise for each; the same number added to two answers would show their
    difference.
    """
    scale = scale_for(sensitivity, epsilon)
    if noise == "gaussian":
        return add_gaussian(exact, scale**2, source)
    # No data are known on which a unit moves a model by as much as its stability is proved for.
    source.begin_part(epsilon * len(exact), moves=sensitivity * len(exact))
    return add_laplace(exact, scale, source)
