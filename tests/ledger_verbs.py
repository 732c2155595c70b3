"""What tests of ledger verbs share: the type of `run`, and a charge without a result."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseKey

if TYPE_CHECKING:
    from smallworld import Tiny

Run = Callable[..., Any]


def list_verdicts(ledger: Ledger) -> list[dict[str, Any]]:
    """Bodies of the entries that tell verdicts, in their order."""
    return [dict(entry.body) for entry in ledger.stream_history() if entry.kind == "verdict"]


def spent(ledger: Ledger, scope: str) -> float:
    """The epsilon that a scope without blocks has paid."""
    return float(ledger.remaining(scope).rows()[0]["epsilon_spent"])


def charge(
    tiny: Tiny, name: str, scope: str = "visits", epsilon: str = "0.1", block: str = "2020-01-01"
) -> str:
    """Reserve without settling: an orphan."""
    return (
        Ledger(tiny.ledger)
        .reserve(
            ReleaseKey(scope, "", "", name, "d"),
            event=Pure(Fraction(epsilon)),
            blocks=[block],
            family="f",
            slot=None,
            principal="spender",
            request={"name": name},
        )
        .release_id
    )
