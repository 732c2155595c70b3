"""Bring an output table up to what the ledger has settled."""

from __future__ import annotations

from pathlib import Path

from dpflow.core.contract.results import Result
from dpflow.ledger import Ledger
from dpflow.tables import PublishedRelease, publish, published_ids


def publish_missing(ledger: Ledger, database: Path, table: str, scope: str | None = None) -> int:
    """Copy every settled release that the table lacks and that has something to show; returns how
    many.

    Charges and draws nothing.
    """
    # One look at the table for all releases, not one for each.
    present = published_ids(database, table)
    settled = [r for r in ledger.releases(scope) if r.settled and r.release_id not in present]
    results = [(stored, Result.from_json(stored.result or {"rows": []})) for stored in settled]
    missing = [(stored, result) for stored, result in results if result.rows or result.synthetic]
    for stored, result in missing:
        request = stored.request
        publish(
            database,
            table,
            PublishedRelease(
                release_id=stored.release_id,
                release=str(request["name"]),
                block=",".join(request["blocks"]),
                mechanism=str(request["mechanism"]),
                epsilon=str(request["epsilon"]),
                delta=str(request["delta"]),
                rows=result.rows,
                synthetic=result.synthetic,
            ),
        )
    return len(missing)
