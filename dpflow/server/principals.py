"""Who may ask now, and how often: tokens as the service file has them at this moment, and a rate for
each principal.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import DpflowError, PlanRefused, UnknownName
from dpflow.quality.contract_file import Contract
from dpflow.server.openid import Issuers, KeysUnavailable, has_claim
from dpflow.server.refusals import Refused, refuse_for_now
from dpflow.server.service import Claim, Door, Principal, Service, load_service, token_digest

log = logging.getLogger("dpflow")
_T = TypeVar("_T", ReleaseRequest, Contract)


@dataclass(frozen=True)
class Caller:
    """Who sends a request, with what the service file allows it."""

    name: str
    terms: Principal

    def require_door(self, door: Door) -> None:
        """Raises `Refused` unless it may ask there."""
        if door not in self.terms.doors:
            raise Refused(
                403,
                "forbidden",
                f"this principal has no door {door}; the owner of the service adds it to its doors",
            )

    def find_own(
        self, kind: Literal["contract", "gate"], name: str, served: Mapping[str, _T]
    ) -> _T:
        """The contract or gate that a request names. Raises `UnknownName` for one that it may not name as for one that is
        not there, and `PlanRefused` if another scope pays for it.
        """
        known = self.terms.contracts if kind == "contract" else self.terms.gates
        if name not in known:
            raise UnknownName(kind, name, known)
        if served[name].scope != self.terms.scope:
            raise PlanRefused(
                f"{kind} {name!r} is paid from another scope than this principal's {self.terms.scope!r}; the owner of the "
                f"service gives it a {kind} of its own"
            )
        return served[name]

    def require_dag(self, dag_id: str) -> None:
        """Raises `Refused` unless it may ask for runs of this DAG."""
        if self.terms.role != "scheduler":
            raise Refused(
                403,
                "forbidden",
                "this principal is no scheduler; the owner of the service writes role: scheduler",
            )
        prefixes = self.terms.dag_prefixes
        if prefixes and not dag_id.startswith(tuple(prefixes)):
            raise Refused(
                403,
                "forbidden",
                f"the name of this scheduler's DAGs begins with {' or '.join(sorted(prefixes))}",
            )

    def identify_request(self, request: ReleaseRequest) -> RunIdentity:
        """The run identity of a request of no DAG: its name and revision, of this principal. A slash ends the
        principal's name, which has none in it.
        """
        named = request.model_copy(update={"name": f"{self.name}/{request.name}"})
        return RunIdentity.of_request(named, self.name)

    def identify_task(
        self, body: Mapping[str, Any], ordinal: int, part: str, sealed: str
    ) -> RunIdentity:
        """The run identity of a task of this scheduler. A slash ends the principal's name, and neither that nor a
        DAG's has one in it.

        Args:
            body: the task's request.
            ordinal, part: which of the task's releases; see `RunIdentity.of_task`.
            sealed: the request, encrypted.
        """
        run = body["run"]
        identity = RunIdentity.of_task(
            f"{self.name}/{run['dag_id']}",
            run["task_id"],
            run["name"],
            self.name,
            map_index=run["map_index"],
            ordinal=body.get("ordinal", 0) + ordinal,
            part=part,
        )
        return replace(identity, sealed_request=sealed)


class Principals:
    """The principals of a service file, read again whenever the file changes. Thread-safe.

    A new token is valid, and one that was taken out is not, from the next request on. Who is new in
    the file has no session: only a restart opens one. While the file is gone or no service file,
    nobody is let in.

    Args:
        path: the service file.
        opened: the file as it was when sessions were opened.
    """

    def __init__(self, path: Path, opened: Service) -> None:
        self._path, self._opened, self._now = path, opened, opened
        # Looked at with the first request: it may have changed while sessions were opened.
        self._seen: tuple[int, ...] | None = ()
        self._problem = False
        self._lock = threading.Lock()
        #: Reads tokens of the file's OpenID issuers.
        self.issuers = Issuers(opened.issuers)
        self._buckets = {
            name: _Bucket(
                opened.requests_per_minute
                if principal.requests_per_minute is None
                else principal.requests_per_minute
            )
            for name, principal in opened.principals.items()
        }

    def find_by_token(self, token: str) -> Caller | None:
        """The principal of a token, or None; every digest is compared, in constant time. A token with dots is one of
        an OpenID issuer.

        Raises `Refused` while the file or an issuer's keys cannot be read.
        """
        if "." in token:
            try:
                read = self.issuers.read_claims(token)
            except KeysUnavailable:
                raise refuse_for_now(
                    "the issuer's keys cannot be read now; repeat the request later"
                ) from None
            claim = None if read is None else self.match_claims(*read)
            return None if claim is None else self.find_by_claim(claim)
        digest, owner = token_digest(token), None
        # No early return: the time must not tell whose token was close.
        for name, principal in self._list_now().items():
            for of_token in principal.digests:
                if hmac.compare_digest(of_token, digest) and name in self._opened.principals:
                    owner = name
        return None if owner is None else Caller(owner, self._opened.principals[owner])

    def match_claims(self, issuer: str, claims: Mapping[str, Any]) -> Claim | None:
        """The one claim of a principal that is among an issuer's; of two nobody knows who pays. Raises `Refused`."""
        claimed = [one.openid for one in self._list_now().values() if one.openid is not None]
        found = [claim for claim in claimed if has_claim(claim, issuer, claims)]
        return found[0] if len(found) == 1 else None

    def find_by_claim(self, claim: Claim) -> Caller | None:
        """The principal who has exactly this claim now. Raises `Refused`."""
        owners = [name for name, one in self._list_now().items() if one.openid == claim]
        known = [name for name in owners if name in self._opened.principals]
        return Caller(known[0], self._opened.principals[known[0]]) if len(known) == 1 else None

    def _list_now(self) -> Mapping[str, Principal]:
        with self._lock:
            self._read_changes()
            if self._problem:
                raise refuse_for_now(
                    "the service's file cannot be read now, so nobody is let in; its owner must bring it back"
                )
            return self._now.principals

    def count_request(self, name: str) -> int:
        """0 if this principal may ask now, else in how many seconds."""
        with self._lock:
            return self._buckets[name].take()

    def _read_changes(self) -> None:
        version = _find_version(self._path)
        if version == self._seen:
            return
        self._seen = version
        before = self._now
        try:
            self._now, self._problem = load_service(self._path), False
        except DpflowError as error:
            self._problem = True
            log.error("nobody is let in: %s", error)
            return
        if self._now.without_tokens() != self._opened.without_tokens():
            log.warning("restart the service for what else changed in its file")
        if self._now != before:
            log.warning("tokens were read again")


class _Bucket:
    """So many requests a minute, and as many at once."""

    def __init__(self, per_minute: int | None) -> None:
        self._most = per_minute
        self._left, self._at = float(per_minute or 0), time.monotonic()

    def take(self) -> int:
        if self._most is None:
            return 0
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60)
        self._at = now
        if self._left < 1:
            return math.ceil((1 - self._left) * 60 / self._most)
        self._left -= 1
        return 0


def _find_version(path: Path) -> tuple[int, ...] | None:
    """What changes when a file does; None if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def admit(principals: Principals, authorization: str | None, *, basic: bool = False) -> Caller:
    """Who asks, by the header ``Authorization``, and not too often. Raises `Refused`.

    Args:
        basic: whether the token may be the password of HTTP Basic. Browsers send that by themselves, also for pages of
            others, so it is for what only reads.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if basic and scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            password = base64.b64decode(token, validate=True).decode().partition(":")[2]
            scheme, token = "bearer", password
    caller = principals.find_by_token(token) if scheme.lower() == "bearer" and token else None
    return require_caller(principals, caller)


def require_caller(principals: Principals, caller: Caller | None) -> Caller:
    """Who asks, and not too often. Raises `Refused` for nobody, too."""
    if caller is None:
        raise Refused(
            401,
            "unauthorized",
            "give a valid bearer token: there is none, or it has expired or was taken out",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if seconds := principals.count_request(caller.name):
        raise Refused(
            429,
            "too_many_requests",
            f"this principal asks too often; ask again in {seconds} seconds",
            headers={"Retry-After": str(seconds)},
        )
    return caller


_bearer = HTTPBearer(auto_error=False)


# For the description of the service: the gate has admitted the caller before the body was read.
async def require_principal(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """Who asks."""
    caller: Caller = request.state.caller
    return caller


Who = Annotated[Caller, Depends(require_principal)]
