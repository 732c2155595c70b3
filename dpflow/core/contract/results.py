"""What leaves: the rows of a release, and the bound on their error known before spending."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One released number.

    Attributes:
        key: group key, "" when there is no grouping.
        measure: what the number is, e.g. ``"count"``.
        value: the released number, a text where the answer is not a number (a key, a date), or None
            when the release answered "none".
        half_width_95: half-width in which the noise stays with probability 95 %, or None where no bound
            is proved. Bias from clamping and truncation is not in it.
    """

    key: str
    measure: str
    value: float | int | str | None
    half_width_95: float | None = None


@dataclass(frozen=True)
class Synthetic:
    """A synthetic table that stands for a private one; published as a DuckDB table that any query
    may read, at no cost.

    Attributes:
        columns: names with their kinds, one of ``"whole"``, ``"number"``, ``"text"`` and ``"date"``
        (as 2013-01-31).
        rows: values in the order of the columns.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[int | float | str, ...], ...]


@dataclass(frozen=True)
class Result:
    """The rows of one release, in an order that tells nothing about the table.

    ``document`` is JSON that does not fit into rows: a learned hypothesis, the parameters of a
    synopsis. It was drawn with the rows and is stored with them.
    """

    rows: tuple[Row, ...]
    document: Mapping[str, Any] = field(default_factory=dict, hash=False)
    synthetic: Synthetic | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal result."""
        data: dict[str, Any] = {
            "rows": [[r.key, r.measure, r.value, r.half_width_95] for r in self.rows]
        }
        if self.document:
            data["document"] = dict(self.document)
        if self.synthetic is not None:
            data["synthetic"] = {
                "columns": [list(column) for column in self.synthetic.columns],
                "rows": [list(row) for row in self.synthetic.rows],
            }
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The inverse of `to_json`."""
        synthetic_json = data.get("synthetic")
        synthetic = synthetic_json and Synthetic(
            tuple(map(tuple, synthetic_json["columns"])), tuple(map(tuple, synthetic_json["rows"]))
        )
        return cls(
            tuple(Row(*row) for row in data["rows"]), data.get("document", {}), synthetic or None
        )


#: A release whose draw met something impossible: settled and charged as "none", never redrawn.
NONE = Result((Row("", "none", None, None),))


@dataclass(frozen=True)
class ErrorBound:
    """Half-width of the noise at 95 %, by measure, in the measure's own unit; ``note`` says what it
    leaves out.
    """

    half_width: dict[str, float]
    note: str = "noise only; clamping and truncation add bias"
