"""The package's examples for audits, as the checks take them, and a double of a release."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
from dpflow_private_learning.building_blocks.hypotheses import RectangleRule, describe_rule
from dpflow_private_learning.theory import audit_examples
from dpflow_private_learning.theory.audit_examples import DECLARED

from dpflow.core.contract.columns import Column
from dpflow.testing.examples import Example, read_examples

__all__ = ["DECLARED", "EXAMPLES", "PUBLIC_FEATURES", "at_rows", "example", "learn_a_box"]
EXAMPLES = {name: read_examples(given) for name, given in audit_examples.EXAMPLES.items()}
#: A table whose features are public.
PUBLIC_FEATURES = read_examples([audit_examples.with_public_features({}, 1)])[0].table


def example(params: dict[str, Any], relation: str = "add-remove", rows: int = 1) -> Example:
    """The parameters on one relation, with units of at most so many rows."""
    return read_examples([audit_examples.example(params, relation, rows)])[0]


def at_rows(mechanism: Any) -> Any:
    """The mechanism at the number of rows that it is given, which a count takes the place of, and
    without the share of wrong rows: exactly so, where laws are enumerated and sizes are those of
    proofs. `test_learning_counted` has the count, `test_learning_achieved` that share.
    """

    class AtRows(type(mechanism)):  # type: ignore[misc]
        error_share = Fraction(0)

        def counts_rows(self, params: Any, table: Any) -> bool:
            return False

    return AtRows()


def learn_a_box(mechanism: str, rows: Any, **params: Any) -> Any:
    """A double of a release, for scikit-learn's checks: a box over as many columns as the rows
    have.
    """
    names = [f"x{i}" for i in range(np.asarray(rows).shape[1])]
    box = RectangleRule((0,) * len(names), (400,) * len(names))
    document = describe_rule(
        box, {name: Column(lower=-100, upper=100, step="0.25") for name in names}
    )
    return SimpleNamespace(result=SimpleNamespace(document=document))
