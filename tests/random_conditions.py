"""Conditions at random, for comparisons of engines and of versions."""

from __future__ import annotations

import random
from collections.abc import Sequence

NUMBERS = ["i", "big", "huge", "dec", "f", "0", "1", "-1.5", "1e300", "9223372036854775808"]
TEXTS = ["txt", "en", "'Oslo'", "'%'"]
TRUTHS = ["flag", "day < '2020-02-29'", "ts <> '2020-02-29'", "tz >= '1970-01-01'", "en IS NULL"]


class RandomConditions:
    """Conditions of the declared language at random, over columns of the names below.

    Args:
        seed: makes them the same again.
        numbers: operands of arithmetic, columns and constants.
        truths: conditions without parts.
    """

    def __init__(
        self, seed: int, numbers: Sequence[str] = NUMBERS, truths: Sequence[str] = TRUTHS
    ) -> None:
        self.random, self.numbers, self.truths = random.Random(seed), numbers, truths

    def write_number(self, depth: int) -> str:
        """A number."""
        pick, number = self.random.choice, lambda: self.write_number(depth - 1)
        if depth == 0:
            return pick(self.numbers)
        return pick(
            [
                lambda: f"({number()} {pick('+-*/%')} {number()})",
                lambda: f"abs(- {number()})",
                lambda: f"{pick(['sqrt', 'ln', 'exp'])}({number()})",
                lambda: f"{pick(['least', 'greatest', 'coalesce'])}({number()}, {number()})",
                lambda: (
                    f"CASE WHEN {self.write_truth(depth - 1)} THEN {number()} ELSE {number()} END"
                ),
                lambda: f"length({self.write_text(depth - 1)})",
                lambda: pick(self.numbers),
            ]
        )()

    def write_text(self, depth: int) -> str:
        """A text."""
        return (
            f"upper(lower({self.write_text(depth - 1)}))"
            if depth and self.random.random() < 0.4
            else self.random.choice(TEXTS)
        )

    def write_truth(self, depth: int) -> str:
        """A condition."""
        pick, number = self.random.choice, lambda: self.write_number(depth - 1)
        if depth == 0:
            return pick(self.truths)
        comparison = pick(["=", "<>", "<", "<=", ">", ">="])
        return pick(
            [
                lambda: f"{number()} {comparison} {number()}",
                lambda: f"{self.write_text(1)} {comparison} {self.write_text(1)}",
                lambda: f"{self.write_text(1)} LIKE '_%\\'",
                lambda: f"{number()} IN (0, 1.5, 7)",
                lambda: f"{number()} IS NULL",
                lambda: f"NOT ({self.write_truth(depth - 1)})",
                lambda: (
                    f"({self.write_truth(depth - 1)} {pick(['AND', 'OR'])} {self.write_truth(depth - 1)})"
                ),
            ]
        )()
