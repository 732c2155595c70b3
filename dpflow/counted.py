"""How messages count things."""

from __future__ import annotations


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number and its noun: 1 entry, 1,000 entries. The plural ends in "s" unless it is given."""
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"
