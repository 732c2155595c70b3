"""Base learners by name: any scikit-learn classifier or regressor whose options are JSON.

A prediction's guarantee does not depend on the learner, so any will do, on two conditions that are
kept here: a learner has no randomness but a seed that the mechanism draws for its shard, and it
says nothing while it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from dpflow.errors import InvalidDeclaration, UnknownName

Kind = Literal["classifier", "regressor"]
#: Makes a fresh, unfitted estimator with this seed.
Make = Callable[[int], Any]

#: Options that would make a learner print, share threads with other shards, or repeat another
#: shard's randomness.
REFUSED = ("random_state", "verbose", "n_jobs", "warm_start")


@lru_cache(maxsize=2)
def list_estimators(kind: Kind) -> dict[str, Any]:
    """scikit-learn's estimators of a kind, by name."""
    from sklearn.utils import all_estimators

    return dict(all_estimators(type_filter=kind))


def learner_factory(kind: Kind, name: str, options: dict[str, Any]) -> Make:
    """What makes the named estimator with these options.

    Raises:
        UnknownName: no such estimator.
        InvalidDeclaration: an option it does not have, or one that is set by the mechanism.
    """
    estimator_class = list_estimators(kind).get(name)
    if estimator_class is None:
        raise UnknownName(f"scikit-learn {kind}", name, list_estimators(kind))
    if set_here := [option for option in REFUSED if option in options]:
        raise InvalidDeclaration(
            f"option {set_here[0]} of {name} is set by the mechanism; leave it out"
        )
    # The options are checked when the plan is made: what fails later may depend on rows.
    try:
        estimator = estimator_class(**options)
        seeded = "random_state" in estimator.get_params()
        # By itself scikit-learn checks values when it fits, which is after the charge.
        estimator._validate_params()
    except Exception as error:  # noqa: BLE001  whatever a constructor objects to
        raise InvalidDeclaration(
            f"{name} does not take the options {sorted(options)}: {error}"
        ) from None
    # Without a seed of its own a learner would share global randomness with other shards.
    return lambda seed: estimator_class(**options, **({"random_state": seed} if seeded else {}))
