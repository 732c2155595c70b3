"""Plans over the tiny table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpflow import plan

if TYPE_CHECKING:
    from smallworld import Tiny

    from dpflow.registry import Registry


def planned(
    tiny: Tiny, mechanism: str = "count", registry: Registry | None = None, **changes: Any
) -> Any:
    """A release of one day at epsilon 1/4, but for these changes."""
    given: dict[str, Any] = {
        "name": "visits",
        "scope": "visits",
        "blocks": ["2020-01-01"],
        "epsilon": "0.25",
    }
    return plan(mechanism, tiny.folder / "visits.yml", registry=registry, **(given | changes))
