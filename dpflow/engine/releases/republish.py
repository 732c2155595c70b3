"""Bring an output table up to what the ledger has settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from dpflow.catalogue import is_table_name
from dpflow.core.contract.results import Result
from dpflow.errors import DpflowError, TableUnreadable
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.tables import PublishedRelease, publish, published_ids
from dpflow.tables.access.declarations import load_table
from dpflow.tables.public.publish import digest_rows, withdraw_totals

#: Finds `Table.largest_text` of a table's declaration of now by its name; None where there is no declaration.
FindLargest = Callable[[str], str | None]


def find_largest(table: str) -> str | None:
    """The same of the declaration that ``dpflow.yml`` names."""
    try:
        return load_table(table).largest_text if is_table_name(table) else None
    except DpflowError:
        return None


def publish_missing(ledger: Ledger, database: Path, table: str, scope: str | None = None) -> int:
    """Copy every settled release that the table lacks; returns how many. One that selected nothing
    has one row that says so.

    Charges and draws nothing.
    """
    return publish_settled(
        ledger, [r for r in ledger.releases(scope) if r.settled], database, table
    )


def publish_settled(
    ledger: Ledger,
    settled: Sequence[ReleaseRecord],
    database: Path,
    table: str,
    largest: FindLargest = find_largest,
) -> int:
    """As `publish_missing`, of these releases. What cannot be written keeps none of the others from it.

    Raises:
        NotPublished: the file is held by another process, or its place cannot be written.
        TableUnreadable: it is no DuckDB file, or says which releases cannot be written, when the others are.
    """
    largest = cache(largest)
    # One look at the table for all releases, not one for each.
    present = published_ids(database, table)
    missing = [record for record in settled if record.release_id not in present]
    withdraw_totals(database, table, present & set(list_withdrawn(settled, largest)))
    unwritten: dict[str, str] = {}
    for stored in missing:
        try:
            publish(database, table, read_settled(ledger, stored, largest))
        except TableUnreadable as error:
            unwritten[stored.release_id] = str(error)
    if unwritten:
        raise TableUnreadable(
            f"{len(missing) - len(unwritten)} settled releases were copied, and {len(unwritten)} could not be: "
            f"{', '.join(unwritten)}; {next(iter(unwritten.values()))}"
        )
    return len(missing)


def list_withdrawn(settled: Sequence[ReleaseRecord], largest: FindLargest) -> list[str]:
    """Ids of the releases whose total intervals rest on a maximum that is not declared any more."""
    return [
        record.release_id
        for record in settled
        if "totals" in (record.result or {})
        and largest(_table_of(record)) is not None
        and _read_result(record, largest).totals is None
    ]


def digest_settled(ledger: Ledger, stored: ReleaseRecord) -> set[str]:
    """What `digest_published` may say of a settled release: with its total intervals, and with these withdrawn. Nothing of one
    whose synthetic rows are in a table of their own.
    """
    release, whole = read_settled(ledger, stored), Result.from_json(stored.result or {"rows": []})
    return (
        set()
        if whole.synthetic is not None
        else {
            digest_rows(replace(release, result=result).list_rows())
            for result in (whole, replace(whole, totals=None))
        }
    )


def _read_result(stored: ReleaseRecord, largest: FindLargest) -> Result:
    result = Result.from_json(stored.result or {"rows": []})
    if result.totals is None:
        return result
    return result.follow_declaration(largest(_table_of(stored)) or "")


def _table_of(stored: ReleaseRecord) -> str:
    return str(stored.request.get("table"))


def read_settled(
    ledger: Ledger, stored: ReleaseRecord, largest: FindLargest = find_largest
) -> PublishedRelease:
    """A settled release of a ledger as it is published: without total intervals that rest on a maximum which its
    table's declaration does not have now, or no declaration says. Raises like `Ledger.settlement`.
    """
    request, result = stored.request, _read_result(stored, largest)
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
