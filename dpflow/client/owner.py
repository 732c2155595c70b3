"""Verbs of owners at a service: what is decided there is signed here, by a person's key that stays here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any

from dpflow.client.remote import RemoteClient
from dpflow.core.accounting.amounts import DELTA_UNIT, parse_exact, to_units_down
from dpflow.core.accounting.privacy_filters import Filter
from dpflow.errors import DpflowError, InvalidInput, ServiceUnavailable, SignatureRequired
from dpflow.ledger.books.records import GrantProposal, Scope
from dpflow.ledger.history.checkpoint import DecisionSigner, decision_text

#: How often a decision is signed again because others wrote to the ledger first.
MAX_SIGNED = 50
#: How often one is sent again that no answer came to, and seconds before it.
MAX_RESENT, MAX_PAUSE = 10, 5.0
#: Entries among which a decision is searched that no answer came to.
NEWEST = 50
#: What a decision says: ``kind``, ``scope``, ``body``.
Signed = Mapping[str, Any]


class RemoteLedger:
    """The owner's verbs of `dpflow.ledger.Ledger`, at a service. Each signs what the service says is to be signed, if that
    is what was decided: its terms word for word, under the key's name.

    Args:
        service: asked with the token of an owner.
    """

    def __init__(self, service: RemoteClient) -> None:
        self._service = service

    @property
    def signer(self) -> Any:
        """Never: the owner's key pair stays with the ledger."""
        raise InvalidInput(
            "the owner's key stays with the ledger; name it: --certifier KEY, as dpflow ledger key prints it there"
        )

    def scopes(self) -> list[Scope]:
        """As `dpflow.ledger.Ledger.scopes`."""
        return [Scope.from_json(scope) for scope in self._service.scopes()]

    def proposals(self) -> list[GrantProposal]:
        """As `dpflow.ledger.Ledger.proposals`."""
        return [
            GrantProposal(**{**one, "terms": Scope.from_json(one["terms"])})
            for one in self._service.proposals()
        ]

    def grant(
        self, scope: str, epsilon: str, delta: str, *, table: str | None, **terms: Any
    ) -> Scope | GrantProposal:
        """As `dpflow.ledger.Ledger.grant`, of a table by its name."""
        terms |= {"scope": scope, "epsilon": epsilon, "delta": delta, "table": table}
        return self._change("grant", terms)

    def quota(self, scope: str, epsilon: str, delta: str, **terms: Any) -> Scope | GrantProposal:
        """As `dpflow.ledger.Ledger.quota`."""
        return self._change("quota", terms | {"scope": scope, "epsilon": epsilon, "delta": delta})

    def approve(self, scope: str, proposal: int, **terms: Any) -> Scope:
        """As `dpflow.ledger.Ledger.approve`."""

        def check(signed: Signed) -> bool:
            named = signed["kind"], signed["scope"], signed["body"]["proposal"]
            return named == ("grant", scope, proposal) and read_granted(signed) is not None

        signed, _ = self._decide("approve", terms | {"scope": scope, "proposal": proposal}, check)
        assert signed is not None
        return read_granted(signed)

    def resolve(self, release_id: str, *, reason: str, decision: str, **terms: Any) -> str:
        """As `dpflow.ledger.Ledger.resolve`."""
        named = {"release_id": release_id, "reason": reason, "decision": decision}

        def check(signed: Signed) -> bool:
            body = signed["body"]
            is_whole = {*body} == {*named, "fenced_below", "becomes"}
            return signed["kind"] == "resolve" and is_whole and named.items() <= body.items()

        signed, _ = self._decide("resolve", terms | named, check)
        assert signed is not None
        return str(signed["body"]["becomes"])

    def _change(self, verb: str, terms: Mapping[str, Any]) -> Scope | GrantProposal:
        """A grant or quota, in effect or proposed."""

        def check(signed: Signed) -> bool:
            is_change = signed["kind"] in ("grant", "propose") and "proposal" not in signed["body"]
            granted = read_granted(signed)
            return is_change and granted.scope == terms["scope"] and has_terms(granted, terms)

        signed, proposal = self._decide(verb, terms, check)
        if proposal is None:
            assert signed is not None
            return read_granted(signed)
        # Also where the same grant waited before, so that nothing was to be signed.
        return next(one for one in self.proposals() if one.seq == proposal)

    def _decide(
        self, verb: str, terms: Mapping[str, Any], check: Callable[[Signed], bool]
    ) -> tuple[Signed | None, int | None]:
        """What was signed, None if nothing had to be, and the entry of a proposal. It is recorded once, also where an
        answer is lost.
        """
        signer: DecisionSigner | None = terms["signer"]
        if signer is None:
            raise InvalidInput(
                "at a service decisions are signed by a person's key; give its file: --sign FILE"
            )
        named = {
            name: value
            for name, value in terms.items()
            if value is not None and name not in ("signer", "principal")
        }
        decision = named | {"verb": verb, "key": signer.public_text, "signature": ""}
        signed, lost = None, 0
        for _ in range(MAX_SIGNED):
            try:
                return signed, self._service.decide(decision)["proposal"]
            except SignatureRequired as required:
                if lost and (entry := self._find_recorded(signer.name, decision["signature"])):
                    return signed, entry["seq"] if entry["kind"] == "propose" else None
                signed = self._read_decision(required.text, signer.name, check)
                if signed["body"].get("reason", "") != terms.get("reason", ""):
                    raise self._other_decision() from None
                decision["signature"], lost = signer.sign_line(required.text), 0
            except DpflowError as error:
                if not error.retryable or not decision["signature"] or lost == MAX_RESENT:
                    raise
                time.sleep(min(0.05 * 2**lost, MAX_PAUSE))
                lost += 1
        raise ServiceUnavailable(
            f"others wrote to the ledger of {self._service.server} each time before this decision came; send it again"
        )

    def _find_recorded(self, principal: str, signature: str) -> dict[str, Any] | None:
        newest = self._service.history(principal=principal, limit=NEWEST)
        return next((one for one in newest if one["body"].get("signature") == signature), None)

    def _read_decision(self, text: str, name: str, check: Callable[[Signed], bool]) -> Signed:
        """What a text to sign says. Raises `InvalidInput` unless that is what was decided."""
        try:
            signed: Signed = json.loads(text.partition("\n")[2])
            head, kind, scope = (signed[field] for field in ("after", "kind", "scope"))
            if decision_text(head, kind, scope, name, signed["body"]) == text and check(signed):
                return signed
        except (DpflowError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            pass
        raise self._other_decision()

    def _other_decision(self) -> InvalidInput:
        return InvalidInput(
            f"{self._service.server} asks for a signature of something else than was decided here, so nothing was signed; tell who "
            "runs it"
        )


def read_granted(signed: Signed) -> Scope:
    """The terms of a grant or proposal. Raises `InvalidInput` or `ValueError` for what is none."""
    body = dict(signed["body"])
    rule = Filter.from_json(json.loads(body.pop("filter")))
    for name in ("proposal", "reason"):
        body.pop(name, None)
    granted = Scope(
        signed["scope"],
        rule,
        str(body.pop("protects")),
        bool(body.pop("blocks")),
        approvals=body.pop("approvals", 1),
    )
    if body != {"capacity": [*astuple(granted.capacity)]}:
        raise ValueError("this grants something else than its amounts")
    return granted


def has_terms(granted: Scope, terms: Mapping[str, Any]) -> bool:
    """Whether a grant has all terms that are named; None stands for one that is not."""
    rule = granted.filter
    demand = rule.witness
    has: dict[str, Any] = {
        "epsilon": rule.epsilon,
        "delta": rule.delta,
        "filter": rule.name,
        "period": rule.period or "never",
        "approvals": granted.approvals,
        "certified_by": {*rule.certified_by},
        "signers": {*rule.signers},
        "witness": demand and demand.key,
        "witness_every": demand.every if demand else 0,
    }
    named = {name: terms[name] for name in has if terms.get(name) is not None}
    named |= {name: parse_exact(name, named[name]) for name in ("epsilon", "delta")}
    named |= {
        name: {*map(str.strip, named[name])}
        for name in ("certified_by", "signers")
        if name in named
    }
    share = terms.get("tail_share")
    if share is not None and rule.order is not None:
        tail = to_units_down(rule.delta * parse_exact("tail_share", share), DELTA_UNIT)
        named["tail_delta"], has["tail_delta"] = tail * DELTA_UNIT, rule.tail_delta
    return all(has[name] == value for name, value in named.items())
