"""Requests that charges keep, encrypted, so that every process of a service can finish them and knows their jobs."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, cast

from dpflow.engine.releases.execute import SEALED_REQUEST
from dpflow.errors import LedgerCorrupt, RetryConflict
from dpflow.ledger import Ledger
from dpflow.server.service import Door

log = logging.getLogger("dpflow")
#: Newest entries of the history in which a job of another process is looked for, and such jobs that are remembered.
_RECENT_ENTRIES, _MAX_KNOWN = 1000, 200
_SEALED, _JOB = "service request", "service job"
#: What is asked, with the door that it needs. A task's request says for which run of its DAG it is.
Kind = Literal[
    "sql",
    "release",
    "session",
    "gate",
    "contract",
    "load",
    "sql task",
    "release task",
    "load task",
    "contract task",
]


def find_door(kind: Kind) -> Door:
    """The door that a request needs."""
    door = kind.removesuffix(" task")
    return cast(Door, "release" if door == "session" else door)


class SealedRequests:
    """The requests of one ledger: each is the JSON list of principal, kind and body."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._logged: set[str] = set()
        # Requests of other processes' jobs, by the job's id.
        self._elsewhere: OrderedDict[str, str] = OrderedDict()

    def seal(self, text: str) -> str:
        """What a charge keeps of a request."""
        return self._ledger.seal(text, _SEALED)

    def open(self, kept: Mapping[str, Any], release_id: str) -> str | None:
        """The request of a charge, from what the charge keeps; None where it keeps none, or none of this ledger."""
        if (sealed := kept.get(SEALED_REQUEST)) is None:
            return None
        # Whoever may charge writes requests; one that was sealed elsewhere stops nobody.
        try:
            return self._ledger.unseal(str(sealed), _SEALED)
        except LedgerCorrupt:
            self.log_once(f"the request of release {release_id} cannot be opened")
            return None

    def identify_job(self, text: str) -> str:
        """The id of a request's job."""
        return self._ledger.commitment(text.encode(), _JOB)[:32]

    def find(self, principal: str, job_id: str) -> str | None:
        """A principal's request that some process charged lately, by its job's id."""
        if (known := self._elsewhere.get(job_id)) is None:
            for entry in reversed(self._ledger.history(limit=_RECENT_ENTRIES)):
                if entry.kind not in ("reserve", "session") or entry.principal != principal:
                    continue
                text = self.open(json.loads(str(entry.body["request"])), entry.release_id)
                if text is not None and self.identify_job(text) == job_id:
                    known = self._elsewhere[job_id] = text
                    break
            while len(self._elsewhere) > _MAX_KNOWN:
                self._elsewhere.popitem(last=False)
        return known if known is not None and json.loads(known)[0] == principal else None

    def count_tries(self, release_ids: Iterable[str], principal: str) -> bool:
        """Count a try of charges that their request does not complete any more. Whether any of them has no result."""
        counted = False
        for release_id in sorted(release_ids):
            with suppress(RetryConflict):
                self._ledger.count_try(release_id, principal)
                counted = True
                self.log_once(
                    f"{principal} paid for {release_id}, which has no result: its request is planned otherwise now. Bring its "
                    f"declaration back, or after max_attempts tries it is settled without one"
                )
        return counted

    def log_once(self, message: str) -> None:
        """A warning about a charge; a second time it says nothing new."""
        if message not in self._logged:
            self._logged.add(message)
            log.warning("%s", message)
