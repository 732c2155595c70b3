"""What the stored text of a filter says, and what an event costs at least under it; of each text once."""

from __future__ import annotations

import functools
import json
from typing import Any

from dpflow.core.accounting import events
from dpflow.core.accounting.events import Unprotected
from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.core.contract.declaration import NOBODY
from dpflow.ledger.history.checkpoint import parse_public_key


class Illegal(Exception):
    """What an entry did against the rules."""


def require(holds: object, rule: str) -> None:
    """Raises `Illegal` with the rule that does not hold."""
    if not holds:
        raise Illegal(rule)


@functools.lru_cache(maxsize=1024)
def parse_filter(text: str) -> tuple[Filter, Any]:
    """A filter and its capacity. Raises `Illegal` or what a text that no ledger writes raises."""
    parsed = Filter.from_json(json.loads(text))
    witness = () if parsed.witness is None else (parsed.witness.key,)
    for key in (*parsed.certified_by, *parsed.signers, *witness):
        parse_public_key(key)
        require(key == key.strip(), "names a key that no ledger spells so")
    return parsed, parsed.capacity()


@functools.lru_cache(maxsize=4096)
def least_cost(filter_text: str, protects: str, event_text: str) -> Cost:
    """What an event costs at least where this was granted."""
    event = events.from_json(json.loads(event_text))
    if isinstance(event, Unprotected):
        require(protects == NOBODY, "releases without a guarantee where somebody is protected")
    return parse_filter(filter_text)[0].event_cost(event)
