"""Bring an output table up to what the ledger has settled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpflow.core.contract.results import Result
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.tables import PublishedRelease, publish, published_ids


def publish_missing(ledger: Ledger, database: Path, table: str, scope: str | None = None) -> int:
    """Copy every settled release that the table lacks; returns how many. One that selected nothing
    has one row that says so.

    Charges and draws nothing.
    """
    return publish_settled(
        ledger, [r for r in ledger.releases(scope) if r.settled], database, table
    )


def publish_settled(
    ledger: Ledger, settled: Sequence[ReleaseRecord], database: Path, table: str
) -> int:
    """As `publish_missing`, of these releases."""
    # One look at the table for all releases, not one for each.
    present = published_ids(database, table)
    missing = [record for record in settled if record.release_id not in present]
    for stored in missing:
        publish(database, table, read_settled(ledger, stored))
    return len(missing)


def read_settled(ledger: Ledger, stored: ReleaseRecord) -> PublishedRelease:
    """A settled release of a ledger as it is published. Raises like `Ledger.settlement`."""
    request, result = stored.request, Result.from_json(stored.result or {"rows": []})
    settlement = ledger.settlement(stored.release_id)
    return PublishedRelease(
        release_id=stored.release_id,
        release=str(request["name"]),
        block=",".join(request["blocks"]),
        mechanism=str(request["mechanism"]),
        epsilon=str(request["epsilon"]),
        delta=str(request["delta"]),
        result=result,
        scope=stored.scope,
        run=settlement.run,
        released_at=settlement.at,
        protects=str(request.get("protects") or ""),
    )
