"""Bring an output table up to what the ledger has settled."""

from __future__ import annotations

from pathlib import Path

from dpflow.core.results import Result
from dpflow.ledger import Ledger
from dpflow.tables import PublishedRelease, publish, published_ids


def publish_missing(ledger: Ledger, database: Path, table: str, scope: str | None = None) -> int:
    """Copy every settled release that the table lacks; returns how many. Charges and draws nothing."""
    present = published_ids(database, table)
    missing = [r for r in ledger.releases(scope) if r.settled and r.release_id not in present]
    for stored in missing:
        request = stored.request
        result = Result.from_json(stored.result or {"rows": []})
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
