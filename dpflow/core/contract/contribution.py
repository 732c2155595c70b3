"""Contribution bounds: how much one privacy unit may add to a statistic."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from dpflow.core.contract.strict_models import Strict


class GroupBounds(NamedTuple):
    """What one unit may contribute to one grouping. Each bound is enforced, and a sensitivity may
    use all three.

    Attributes:
        groups: groups that the unit may reach.
        rows_per_group: its rows that count in one group.
        rows: its rows that count in all groups together, at most ``groups`` x ``rows_per_group``.
    """

    groups: int
    rows_per_group: int
    rows: int

    @classmethod
    def combine(cls, groups: int, rows_per_group: int, rows: int) -> GroupBounds:
        """The bounds that hold together: none of them is larger than the others allow."""
        groups, rows_per_group = min(groups, rows), min(rows_per_group, rows)
        return cls(groups, rows_per_group, min(rows, groups * rows_per_group))

    def narrow(self, keys: int | None, most: int | None = None) -> GroupBounds:
        """The same where there are only so many keys (None: any number), and at most ``most`` terms
        of a unit count in a group.
        """
        groups = self.groups if keys is None else min(self.groups, keys)
        return self.combine(
            groups,
            self.rows_per_group if most is None else min(self.rows_per_group, most),
            self.rows,
        )

    def describe(self) -> str:
        """The bounds in words: "2 groups, 3 rows in each, 5 in all"."""

        def count(number: int, noun: str) -> str:
            return f"{number} {noun}{'s'[: number > 1]}"

        text = f"{count(self.groups, 'group')}, {count(self.rows_per_group, 'row')} in each"
        in_all = self.rows < self.groups * self.rows_per_group
        return f"{text}, {self.rows} in all" if in_all else text

    @property
    def squares(self) -> int:
        """The largest sum of squares of the unit's numbers of rows: full groups, and a rest."""
        full, rest = divmod(self.rows, self.rows_per_group)
        return full * self.rows_per_group**2 + rest**2


class ContributionBounds(Strict):
    """How much one privacy unit may contribute to one statistic. All bounds hold together; what is
    above them is truncated, by a draw over the unit's own rows only.

    Attributes:
        rows: rows of one unit that count, in all groups together.
        groups: groups that one unit may reach.
        rows_per_group: rows of one unit that count in one group; ``rows`` if left out.
    """

    example = "{rows: 3}"

    rows: Annotated[int, Field(ge=1, le=10**9)]
    groups: Annotated[int, Field(ge=1, le=10**6)] = 1
    rows_per_group: Annotated[int, Field(ge=1, le=10**9)] | None = None

    @model_validator(mode="after")
    def _check_rows(self) -> ContributionBounds:
        if self.per_group > self.rows:
            raise ValueError("rows_per_group cannot be above rows")
        return self

    @property
    def per_group(self) -> int:
        """Rows one unit may have in one group."""
        return self.rows_per_group or self.rows
