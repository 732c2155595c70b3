"""Decisions of owners over HTTP: grants, approvals and what becomes of orphans, signed where a person's key is.

A token alone decides nothing. What is to be signed follows from the decision and the newest entry of the ledger, and
who sends no signature of it gets that text. The service holds no person's key, and records what it got with the same
entries as the commands beside the ledger. A signature that was used is none of any later entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from dpflow.catalogue import TableName
from dpflow.core.accounting.privacy_filters import FilterName
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, LedgerCorrupt, UnknownName
from dpflow.ledger import GrantProposal, Ledger
from dpflow.ledger.history.checkpoint import SentSignature, parse_public_key
from dpflow.server.bodies import DistinctKeysRoute
from dpflow.server.job_queue import Reply
from dpflow.server.principals import Caller, Who
from dpflow.server.refusals import Refused, describe_errors

router = APIRouter(route_class=DistinctKeysRoute)
Name = Annotated[str, Field(min_length=1, max_length=200)]
Key = Annotated[str, Field(min_length=1, max_length=400)]
Keys = Annotated[list[Key], Field(max_length=100)]
Amount = Annotated[str, Field(min_length=1, max_length=100)]


class Decision(BaseModel):
    """What all decisions have.

    Attributes:
        key: verifier key of the person who signs.
        signature: of the text that this decision has behind the newest entry; "" asks for the text.
        reason: why, for readers of the history.
    """

    model_config = ConfigDict(extra="forbid")

    key: Key
    signature: Annotated[str, Field(max_length=200)] = ""
    reason: Annotated[str, Field(max_length=1000)] = ""


class Terms(Decision):
    """Terms as of `dpflow.Ledger.grant`; but for the amounts, those that are left out stay."""

    scope: Name
    epsilon: Amount
    delta: Amount = "0"
    filter: FilterName | None = None
    tail_share: Amount | None = None
    approvals: Literal[1, 2] | None = None
    certified_by: Keys | None = None
    signers: Keys | None = None
    witness: Key | None = None
    witness_every: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class Grant(Terms):
    """A grant to a scope, for a table of the service file or for none."""

    verb: Literal["grant"]
    table: TableName | None = None
    confirm_large: bool = False


class Quota(Terms):
    """A quota below a scope."""

    verb: Literal["quota"]
    period: Literal["day", "week", "month", "never"] | None = None


class Approval(Decision):
    """The second person's word on the grant that an entry proposed."""

    verb: Literal["approve"]
    scope: Name
    proposal: Annotated[int, Field(ge=1, le=2**62)]


class Resolution(Decision):
    """What becomes of a release that was charged and has no result."""

    verb: Literal["resolve"]
    release_id: Name
    reason: Annotated[str, Field(min_length=1, max_length=1000)]
    decision: Literal["close", "retry"] = "close"


AnyDecision = Annotated[Grant | Quota | Approval | Resolution, Field(discriminator="verb")]


class Recorded(BaseModel):
    """That a decision was recorded.

    Attributes:
        proposal: the entry that a second person approves before it takes effect.
    """

    proposal: int | None = None


class Decisions:
    """What owners decide, and what they read for it.

    Args:
        tables: the declarations, by name.
        ledger: where decisions are recorded.
    """

    def __init__(self, tables: Mapping[str, Table], ledger: Ledger) -> None:
        self._tables, self._ledger = tables, ledger

    def record(self, caller: Caller, decision: AnyDecision) -> Recorded:
        """Record a decision that a person's key signed.

        Raises:
            Refused: the caller is no owner.
            SignatureRequired: it has the text that is to be signed: there is no signature, or it is of something else.
            DpflowError: as of the ledger's verb; nothing was recorded.
        """
        _require_role(caller, "owner")
        terms = decision.model_dump(exclude={"verb", "key", "signature"})
        if isinstance(decision, Grant) and decision.table is not None:
            if decision.table not in self._tables:
                raise UnknownName("table", decision.table, self._tables)
            terms["table"] = self._tables[decision.table]
        signer = SentSignature(decision.key, decision.signature)
        self._require_person(decision.key)
        record = getattr(self._ledger, decision.verb)
        outcome = record(**terms, principal=signer.name, signer=signer)
        return Recorded(proposal=outcome.seq if isinstance(outcome, GrantProposal) else None)

    def list_scopes(self, caller: Caller) -> list[Reply]:
        """All granted scopes, with all of their terms."""
        _require_role(caller, "owner", "auditor")
        return [scope.to_json() for scope in self._ledger.scopes()]

    def list_proposals(self, caller: Caller) -> list[Reply]:
        """The grants that wait."""
        _require_role(caller, "owner", "auditor")
        return [asdict(one) | {"terms": one.terms.to_json()} for one in self._ledger.proposals()]

    def _require_person(self, key: str) -> None:
        """Raises `InvalidInput` for the key of the anchor that this process reads: it could sign by itself."""
        _, public_half = parse_public_key(key)
        with contextlib.suppress(LedgerCorrupt):  # no private half is there
            if self._ledger.signer.public_key == public_half:
                raise InvalidInput(
                    "this key lies in the ledger's anchor, which the service reads, so it is no person's; sign with a key of your own"
                )


def _require_role(caller: Caller, *roles: str) -> None:
    if caller.terms.role not in roles:
        raise Refused(
            403, "forbidden", f"this is for principals with the role {' or '.join(roles)}"
        )


_ERRORS = describe_errors(401, 403, 422, 429, 500, 503)


def _decisions(request: Request) -> Decisions:
    found: Decisions = request.app.state.decisions
    return found


@router.get("/v1/scopes", responses=_ERRORS)
def list_scopes(request: Request, caller: Who) -> list[Reply]:
    """All granted scopes with their terms; for owners and auditors."""
    return _decisions(request).list_scopes(caller)


@router.get("/v1/proposals", responses=_ERRORS)
def list_proposals(request: Request, caller: Who) -> list[Reply]:
    """Grants that wait for a second person; for owners and auditors."""
    return _decisions(request).list_proposals(caller)


@router.post("/v1/decisions", responses=_ERRORS | describe_errors(409))
def record_decision(request: Request, caller: Who, decision: AnyDecision) -> Recorded:
    """Record an owner's decision that a person's key signed. Unless the signature is of what the decision is behind the newest
    entry of the ledger, the answer is 409 with the text to sign in ``details``.
    """
    return _decisions(request).record(caller, decision)
