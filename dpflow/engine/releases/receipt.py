"""What a release gives back: its cost, its place in the ledger and the result, for programs and people."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.core.contract.distribution import Distribution
from dpflow.core.contract.published_release import PublishedRelease
from dpflow.core.contract.results import Result
from dpflow.counted import counted
from dpflow.engine.releases.result_table import ResultTable, make_table
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

#: Header of a file: how many rows of it a service leaves out.
ROWS_LEFT_OUT = "rows-left-out"


@dataclass(frozen=True)
class Receipt:
    """What a release cost and where it is. `to_json` is what operators return; the result itself is
    in ``result``.

    Attributes:
        epsilon, delta: the privacy cost as exact texts; delta is "0" for pure guarantees.
        replayed: True when a stored result was returned and nothing was charged.
        protects: whom the privacy guarantee protects, in words.
        released_at: when it was settled, as the ledger's history says; a replay has the same time.
        run: the run that it was charged to.
        rows_left_out: of the result, above what a service sends to its principal.
    """

    release_id: str
    name: str
    mechanism: str
    scope: str
    blocks: tuple[str, ...]
    epsilon: str
    delta: str
    protects: str
    replayed: bool
    released_at: dt.datetime
    run: str
    result: Result = field(repr=False)
    published: str | None = None
    rows_left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        """A small JSON object without the result."""
        return {
            "release_id": self.release_id,
            "name": self.name,
            "mechanism": self.mechanism,
            "scope": self.scope,
            "blocks": list(self.blocks),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "protects": self.protects,
            "replayed": self.replayed,
            "rows": len(self.result.rows),
            "published": self.published,
            **({"rows_left_out": self.rows_left_out} if self.rows_left_out else {}),
        }

    def to_wire(self) -> dict[str, Any]:
        """All of it as JSON, from which `from_wire` makes an equal receipt."""
        return self.to_json() | {
            "released_at": self.released_at.isoformat(),
            "run": self.run,
            "result": self.result.to_json(),
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Receipt:
        """The inverse of `to_wire`."""
        fields = {name: value for name, value in data.items() if name != "rows"}
        return cls(
            **fields
            | {
                "blocks": tuple(data["blocks"]),
                "released_at": dt.datetime.fromisoformat(data["released_at"]),
                "result": Result.from_json(data["result"]),
            }
        )

    @property
    def table(self) -> ResultTable:
        """The result with named columns, as frames and files have it."""
        return make_table(published_release(self))

    @property
    def cdf(self) -> Distribution:
        """The distribution of a release of `cdf`, to be asked for shares and quantiles at no cost.
        Raises `InvalidInput` for another release, one that answered "none", or one that lacks rows.
        """
        if self.rows_left_out:
            raise InvalidInput(
                f"{counted(self.rows_left_out, 'row')} left out, so there is no distribution; the service's owner can raise max_rows"
            )
        return Distribution.from_result(self.result)

    def to_pandas(self) -> pandas.DataFrame:
        """The result as a pandas frame; columns as `ResultTable` says. Raises `MissingExtra`."""
        return self.table.to_pandas()

    def to_arrow(self) -> pyarrow.Table:
        """The result as an Arrow table; columns as `ResultTable` says. Raises `MissingExtra`."""
        return self.table.to_arrow()

    def to_polars(self) -> polars.DataFrame:
        """The result as a polars frame; columns as `ResultTable` says. Raises `MissingExtra`."""
        return self.table.to_polars()

    def write(self, file: Path | str) -> None:
        """Write the result as CSV, Parquet, or JSON with named fields, by the file's name. Raises
        `InvalidInput` for another name, `NotPublished` where it cannot be written.
        """
        self.table.write(file)

    def _repr_html_(self) -> str:
        cost = (
            "replayed, nothing charged"
            if self.replayed
            else f"epsilon {self.epsilon}, delta {self.delta}"
        )
        return self.table.to_html(f"{self.name}: {cost}; protects {self.protects}")


def published_release(receipt: Receipt) -> PublishedRelease:
    """A receipt and its result in the shape of the output table."""
    return PublishedRelease(
        release_id=receipt.release_id,
        release=receipt.name,
        block=",".join(receipt.blocks),
        mechanism=receipt.mechanism,
        epsilon=receipt.epsilon,
        delta=receipt.delta,
        result=receipt.result,
        scope=receipt.scope,
        run=receipt.run,
        released_at=receipt.released_at,
        protects=receipt.protects,
    )
