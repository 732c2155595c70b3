"""A settled result with what is public of its release: what tables, frames and files are made of."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.core.contract.result_fields import FIELDS, list_row_fields, utc_time
from dpflow.core.contract.results import Result, Row

#: The end of a run's name: START/END of its interval, or its one date, which is captured. For Python and for DuckDB.
RUN_INTERVAL = "(?:^|/)([0-9]{4}-[0-9]{2}-[0-9]{2}[^/]*)(?:/[0-9]{4}-[0-9]{2}-[0-9]{2}[^/]*)?$"
#: Stands for a release without rows: whoever reads the table sees that it was made.
NO_ROWS = Row("", "no rows", None)


def find_interval(run: str, settled: dt.datetime) -> dt.datetime | None:
    """The start of a run's interval; None for a run of none, or of one that was to begin after its result was settled, but
    for the offset of a time zone.

    Args:
        run: its name, alone or behind DAG and task.
        settled: in UTC and without a zone.
    """
    found = re.search(RUN_INTERVAL, run)
    try:
        start = found and dt.datetime.fromisoformat(found[1][:19]).replace(tzinfo=None)
    except ValueError:
        return None
    return start if start and start - settled <= dt.timedelta(days=1) else None


@dataclass(frozen=True)
class PublishedRelease:
    """A settled result as it is published; ``epsilon`` and ``delta`` are exact text.

    What comes from the ledger's record is the same whenever it is published: ``scope``, ``run``,
    ``released_at`` (when it was settled, a time with its zone) and ``protects``. "" and None stand
    for what nobody knows.

    A synthetic table goes to a table of its own, named after the release with ``_synthetic`` behind
    it.
    """

    release_id: str
    release: str
    block: str
    mechanism: str
    epsilon: str
    delta: str
    result: Result
    scope: str = ""
    run: str = ""
    released_at: dt.datetime | None = None
    protects: str = ""

    def list_columns(self) -> dict[str, Any]:
        """Values by column: a list, or the one value of all rows."""
        by_row = list_row_fields(self.result if self.result.rows else Result((NO_ROWS,)))
        # A column has one type for all releases.
        by_row["value"] = [None if v is None else float(v) for v in by_row["value"]]
        return {
            **by_row,
            "release_id": self.release_id,
            "release": self.release,
            "block": self.block,
            "mechanism": self.mechanism,
            "epsilon": float(Fraction(self.epsilon)),
            "delta": float(Fraction(self.delta)),
            "scope": self.scope or None,
            "run": self.run or None,
            "released_at": utc_time(self.released_at),
            "protects": self.protects or None,
        }

    def list_rows(self) -> list[tuple[Any, ...]]:
        """Its rows as a published table has them, by `FIELDS`."""
        columns = self.list_columns()
        size = len(columns["group_key"])
        values = [columns[name] for name in FIELDS]
        return [*zip(*(v if isinstance(v, list) else [v] * size for v in values), strict=True)]
