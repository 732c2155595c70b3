"""The releases that an operator's argument names, and a line for a task's log about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.engine import Plan
    from dpflow.engine.releases.request import ReleaseRequest


def list_releases(release: Any) -> list[Any]:
    """The releases of an operator's ``release``: one by itself, or those of a list. Raises
    `InvalidInput` for anything else, such as None from a template.
    """
    if isinstance(release, str | Mapping):
        return [release]
    if not isinstance(release, Iterable):
        raise InvalidInput(
            f"a release is a mapping, a file or a list of these, and here it is {str(release)[:80]!r}; correct the template"
        )
    return list(release)


def number_equal(requests: Sequence[ReleaseRequest]) -> list[int]:
    """For each request of one task, how many before it ask for the same: an ordinal that tells them
    apart.
    """
    # A release is known by its content: its name, revision and place are no part of its digest.
    outside = {"name": "", "revision": 1, "publish": None}
    contents = [request.model_copy(update=outside) for request in requests]
    return [contents[:n].count(content) for n, content in enumerate(contents)]


def describe_charge(plan: Plan) -> str:
    """One line for a task's log: what a release will be charged, unless it was paid before."""
    epsilon, delta = plan.privacy_cost()
    blocks = ", ".join(plan.charged_blocks)
    return (
        f"{plan.request.name} ({plan.mechanism.name}): asks scope {plan.request.scope}"
        f"{f', block {blocks},' if blocks else ''} for epsilon {epsilon}, delta {delta}"
    )
