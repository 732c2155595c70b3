"""The door ``read``: settled results by URL, as the ledger has them, for dashboards and spreadsheets.

A result is settled once and never changes, so the ids of the releases, and what nobody exceeds, name the content. Copies are
for who cannot ask by URL, and follow what is settled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.copies import copy_settled, encode_results, find_latest
from dpflow.engine.releases.republish import read_settled
from dpflow.errors import DpflowError, UnknownName
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.server.job_queue import Reply
from dpflow.server.principals import Caller
from dpflow.server.request_limits import cut_releases
from dpflow.server.service import Publication

log = logging.getLogger("dpflow")
FileKind = Literal["csv", "json", "parquet", "arrow"]
MEDIA_TYPES: Mapping[FileKind, str] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.file",
}
#: Bytes of files that are kept in memory.
_MAX_KEPT = 2**26


@dataclass(frozen=True)
class PublishedFile:
    """A file's content and its name for caches (``ETag``); no content where a reader has it already. ``rows_left_out``
    are above the reader's limit.
    """

    tag: str
    kind: FileKind
    content: bytes | None = field(repr=False)
    rows_left_out: int = 0


class Publications:
    """What a service publishes.

    Args:
        terms: the releases, by the names that URLs have.
        tables: the declarations, by name.
        ledger: has their results.
    """

    def __init__(
        self, terms: Mapping[str, Publication], tables: Mapping[str, Table], ledger: Ledger
    ) -> None:
        self._terms, self._ledger = terms, ledger
        # Total intervals may rest on them.
        self._largest = {name: table.largest_text for name, table in tables.items()}
        self._kept: OrderedDict[str, PublishedFile] = OrderedDict()
        # What each copy has.
        self._copied: dict[tuple[str, str], list[str]] = {}
        # Ids of settled releases by publication, with the newest entry of the history before they were listed.
        self._settled: dict[str, tuple[tuple[int, str], Sequence[str]]] = {}

    def list_names(self, caller: Caller) -> list[Reply]:
        """What a caller may read, each with its release and the number of settled results."""
        caller.require_door("read")
        return [
            {
                "name": name,
                "release": self._terms[name].release,
                "results": len(self._list_settled(name)),
            }
            for name in sorted(caller.terms.published)
        ]

    def read(
        self, caller: Caller, name: str, kind: FileKind, known: str | None, *, latest: bool
    ) -> PublishedFile:
        """A publication as a file.

        Args:
            known: the header ``If-None-Match``.
            latest: only results of the latest interval, or the one settled last where runs have none.

        Raises:
            UnknownName: the caller may read no such publication, whether there is one or not.
        """
        caller.require_door("read")
        if name not in caller.terms.published:
            raise UnknownName("publication", name, caller.terms.published)
        terms = kind, latest, caller.terms.max_rows
        tag = self._make_tag(name, self._list_settled(name), *terms)
        if known is not None and _is_known(tag, known):
            return PublishedFile(tag, kind, None)
        file = self._kept.get(tag)
        if file is None:
            settled = self._find_settled(name)
            # Perhaps more than were listed.
            tag = self._make_tag(name, [one.release_id for one in settled], *terms)
            file = self._keep(self._encode(settled, tag, *terms))
        return file

    def _find_settled(self, name: str) -> list[ReleaseRecord]:
        terms = self._terms[name]
        records = self._ledger.releases_by_name(terms.scope, terms.release)
        return [
            one
            for one in records
            if one.settled and one.scope == terms.scope and terms.principal in (None, one.principal)
        ]

    def _list_settled(self, name: str) -> Sequence[str]:
        """Ids of the releases that are settled now: read again when the history has a new entry."""
        newest = self._ledger.newest_entry()
        known = self._settled.get(name)
        if known is None or known[0] != newest:
            ids = [record.release_id for record in self._find_settled(name)]
            known = self._settled[name] = (newest, ids)
        return known[1]

    def copy_changed(self) -> None:
        """Bring each copy up to what is settled, where something was settled since the last time. A place that cannot be
        written is tried again the next time, and the log says so.
        """
        for name, terms in self._terms.items():
            listed = list(self._list_settled(name)) if terms.copies else []
            for place in terms.copies:
                if self._copied.get((name, place)) == listed:
                    continue
                try:
                    copy_settled(
                        self._ledger, self._find_settled(name), place, name, self._find_largest
                    )
                    self._copied[name, place] = listed
                except DpflowError as error:
                    log.warning("published %r was not copied: %s", name, error)

    def _encode(
        self,
        settled: list[ReleaseRecord],
        tag: str,
        kind: FileKind,
        latest: bool,
        limit: int | None,
    ) -> PublishedFile:
        releases = [read_settled(self._ledger, one, self._find_largest) for one in settled]
        kept, left_out = cut_releases(find_latest(releases) if latest else releases, limit)
        return PublishedFile(tag, kind, encode_results(kept, kind), left_out)

    def _find_largest(self, table: str) -> str | None:
        return self._largest.get(table)

    def _make_tag(
        self, name: str, settled: Sequence[str], kind: FileKind, latest: bool, limit: int | None
    ) -> str:
        """The name of a file's content: a result is settled once and never changes."""
        about = json.dumps([name, kind, latest, limit, list(settled), self._largest])
        return f'"{hashlib.sha256(about.encode()).hexdigest()[:32]}"'

    def _keep(self, file: PublishedFile) -> PublishedFile:
        self._kept[file.tag] = file
        while (
            len(self._kept) > 1
            # A copy: other threads keep files meanwhile.
            and sum(len(one.content or b"") for one in [*self._kept.values()]) > _MAX_KEPT
        ):
            self._kept.popitem(last=False)
        return file


def _is_known(tag: str, known: str) -> bool:
    """Whether a reader has this content, by its header ``If-None-Match``."""
    tags = [one.strip().removeprefix("W/") for one in known.split(",")]
    return "*" in tags or tag in tags
