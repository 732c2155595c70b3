"""What a learner returns: a rule over columns, that predicts, survives JSON and reads as an SQL predicate.

Rules live on the declared grid. A row's value is clamped, rounded half away from zero to grid steps and, where it is missing,
replaced as the column declares, exactly as the mechanism saw it; `Rule.sql` writes the same steps, so the predicate is true
on exactly the rows that `Rule.predict` calls positive. Columns of dates are numbers of days there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpflow.core.declaration import Column
from dpflow.errors import InvalidInput

Bools = NDArray[np.bool_]


class Rule(ABC):
    """A hypothesis: positive or not, from the grid integers of its columns."""

    kind: ClassVar[str]

    @abstractmethod
    def predict(self, x: NDArray[Any]) -> Bools:
        """Which rows are positive; x has one row a row and one column a column, integers."""

    @abstractmethod
    def sql(self, columns: Sequence[str]) -> str:
        """The predicate over these SQL expressions of grid integers."""

    def to_json(self) -> dict[str, Any]:
        """JSON from which `rule` makes an equal one."""
        return {"kind": self.kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Nothing(Rule):
    """Positive nowhere."""

    kind = "nothing"

    def predict(self, x: NDArray[Any]) -> Bools:
        return np.zeros(len(x), bool)

    def sql(self, columns: Sequence[str]) -> str:
        return "false"


@dataclass(frozen=True)
class Point(Rule):
    """Positive at one value: c_j."""

    kind = "point"
    at: int

    def predict(self, x: NDArray[Any]) -> Bools:
        return np.asarray(x[:, 0] == self.at, bool)

    def sql(self, columns: Sequence[str]) -> str:
        return f"{columns[0]} = {self.at}"


@dataclass(frozen=True)
class Threshold(Rule):
    """Positive strictly below a value: the value itself is negative."""

    kind = "threshold"
    below: int

    def predict(self, x: NDArray[Any]) -> Bools:
        return np.asarray(x[:, 0] < self.below, bool)

    def sql(self, columns: Sequence[str]) -> str:
        return f"{columns[0]} < {self.below}"


@dataclass(frozen=True)
class Rectangle(Rule):
    """Positive where every coordinate lies between its ends, ends included; a lower end above its upper one is empty."""

    kind = "rectangle"
    lower: tuple[int, ...]
    upper: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", tuple(self.lower))
        object.__setattr__(self, "upper", tuple(self.upper))

    def predict(self, x: NDArray[Any]) -> Bools:
        inside = (x >= np.array(self.lower)) & (x <= np.array(self.upper))
        return np.asarray(inside.all(axis=1), bool)

    def sql(self, columns: Sequence[str]) -> str:
        return " AND ".join(f"{c} BETWEEN {a} AND {b}" for c, a, b in zip(columns, self.lower, self.upper))


KINDS: Mapping[str, type[Rule]] = {cls.kind: cls for cls in (Nothing, Point, Threshold, Rectangle)}


def rule(data: Mapping[str, Any]) -> Rule:
    """The rule that `Rule.to_json` wrote. Raises `InvalidInput`."""
    fields = {name: value for name, value in data.items() if name != "kind"}
    try:
        return KINDS[data["kind"]](**fields)
    except (KeyError, TypeError):
        raise InvalidInput(f"a hypothesis has a kind ({', '.join(KINDS)}) and its fields, such as below: 10") from None


def grid_sql(name: str, column: Column) -> str:
    """The grid integer of a numeric column as SQL, as the private table computes it."""
    low, high = column.grid()
    quoted = '"' + name.replace('"', '""') + '"'
    scaled = "" if column.step == 1 else f" * {column.step.denominator} / {column.step.numerator}"
    value = f"round({quoted}{scaled})"
    bounded = f"least(greatest({value}, {low}), {high})"
    if column.missing == "skip":
        return bounded
    sign = -1 if column.missing < 0 else 1
    missing = sign * ((2 * abs(column.missing) / column.step + 1) // 2)
    return f"coalesce({bounded}, {min(max(int(missing), low), high)})"


def learned(found: Rule, columns: Mapping[str, Column]) -> dict[str, Any]:
    """The part of a result's document that says what was learned."""
    return {
        "hypothesis": found.to_json(),
        "columns": list(columns),
        "steps": [str(Fraction(column.step)) for column in columns.values()],
        "sql": found.sql([grid_sql(name, column) for name, column in columns.items()]),
    }
