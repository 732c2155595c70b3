"""Verbs of owners at a service: what is decided there is signed here, by a person's key that stays here."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

from dpflow.client.remote import RemoteClient
from dpflow.core.accounting.privacy_filters import Filter
from dpflow.core.contract.table_description import has_block_budgets
from dpflow.errors import DpflowError, InvalidInput, ServiceUnavailable, SignatureRequired
from dpflow.ledger.audit.entry_text import escape_controls, list_terms
from dpflow.ledger.books.records import OTHER_TERMS, GrantProposal, Scope
from dpflow.ledger.history.checkpoint import DecisionSigner, decision_text

#: How often a decision is signed again because others wrote to the ledger first.
MAX_SIGNED = 50
#: How often one is sent again that no answer came to, and seconds before it.
MAX_RESENT, MAX_PAUSE = 10, 5.0
#: Entries among which a decision is searched that no answer came to, and those that are read at once for a charge.
NEWEST, CHARGES = 50, 1000
#: What a decision says: ``kind``, ``scope``, ``body``.
Signed = Mapping[str, Any]


def show_lines(lines: Sequence[str]) -> bool:
    """Print what is about to be signed to standard error, with no character that a terminal obeys. Nobody agrees to it."""
    for line in lines:
        print(escape_controls(line), file=sys.stderr)
    return False


class RemoteLedger:
    """The owner's verbs of `dpflow.ledger.Ledger`, at a service. Each signs what the service says is to be signed, if that
    is what was decided: its terms word for word, under the key's name. Terms that were left out are those in force as the
    service said and ``confirm`` showed, or the defaults.

    Args:
        service: asked with the token of an owner.
        confirm: shows lines of all that is about to be signed. True if a person agreed, false if nobody could
            be asked; it raises where one did not agree.
    """

    def __init__(
        self, service: RemoteClient, confirm: Callable[[Sequence[str]], bool] = show_lines
    ) -> None:
        self._service, self._confirm = service, confirm

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
        find_signer(terms)
        terms |= {"scope": scope, "epsilon": epsilon, "delta": delta, "table": table}
        protects, blocks = "", False
        if table is not None:
            about = self._service.describe(table)
            protects, blocks = str(about["protects"]), has_block_budgets(about)
        return self._change("grant", terms, self._find_scope(scope), protects, blocks)

    def quota(self, scope: str, epsilon: str, delta: str, **terms: Any) -> Scope | GrantProposal:
        """As `dpflow.ledger.Ledger.quota`."""
        find_signer(terms)
        before, above = self._find_scope(scope), self._find_scope(scope.rpartition("/")[0])
        terms |= {"scope": scope, "epsilon": epsilon, "delta": delta}
        if above is None:
            raise InvalidInput(f"{scope!r} is below no scope that has a grant; grant that first")
        terms["filter"] = terms.get("filter") or (before or above).filter.name
        return self._change("quota", terms, before, above.protects, above.blocks)

    def approve(
        self, scope: str, proposal: int, *, digest: str | None = None, **terms: Any
    ) -> Scope:
        """As `dpflow.ledger.Ledger.approve`, of terms that the approver saw: by their digest, or because they are shown and
        a person agrees.
        """
        find_signer(terms)
        for waiting in self.proposals():
            is_named = (waiting.terms.scope, waiting.seq) == (scope, proposal)
            if is_named and digest in (None, waiting.digest):
                break
        else:
            raise InvalidInput(OTHER_TERMS.format(scope=scope, seq=proposal))
        title = f"entry {proposal}, which {waiting.principal} proposed, grants {scope}"
        lines = [f"{title}{waiting.reason and f' ({waiting.reason})'}:"]
        lines += [f"  {line}" for line in list_terms(self._find_scope(scope), waiting.terms)]
        if not self._confirm(lines) and digest is None:
            raise InvalidInput(
                "a service could show one grant and have another signed; name what you approve: --terms DIGEST, as dpflow "
                "ledger proposals printed it"
            )

        def check(signed: Signed) -> bool:
            named = signed["kind"], signed["scope"], signed["body"]["proposal"]
            return named == ("grant", scope, proposal) and read_granted(signed) == waiting.terms

        signed, _ = self._decide("approve", terms | {"scope": scope, "proposal": proposal}, check)
        assert signed is not None
        return read_granted(signed)

    def resolve(self, release_id: str, *, reason: str, decision: str, **terms: Any) -> str:
        """As `dpflow.ledger.Ledger.resolve`."""
        named = {"release_id": release_id, "reason": reason, "decision": decision}
        find_signer(terms)
        charge = self._find_charge(release_id)
        closed = "fenced" if charge["kind"] == "reserve" else "closed"
        ends = {"becomes": "reserved" if decision == "retry" else closed}
        head = (
            f"release {release_id} of scope {charge['scope']}, which {charge['principal']} charged"
        )
        self._confirm([f"{head}, becomes {ends['becomes']} ({reason})"])

        def check(signed: Signed) -> bool:
            body = dict(signed["body"])
            fenced = body.pop("fenced_below")
            is_fenced = type(fenced) is int and fenced > 1
            is_this = (signed["kind"], signed["scope"]) == ("resolve", charge["scope"])
            return is_this and is_fenced and body == named | ends

        signed, _ = self._decide("resolve", terms | named, check)
        assert signed is not None
        return str(signed["body"]["becomes"])

    def _find_scope(self, name: str) -> Scope | None:
        return next((one for one in self.scopes() if one.scope == name), None)

    def _find_charge(self, release_id: str) -> dict[str, Any]:
        """The entry that charged a release. Raises `InvalidInput`."""
        end = None
        while entries := self._service.history(limit=CHARGES, end=end):
            for entry in entries:
                if entry["release_id"] == release_id and entry["kind"] in ("reserve", "session"):
                    return entry
            end = entries[0]["seq"]
        raise InvalidInput(f"release {release_id} is unknown; dpflow release --list has their ids")

    def _change(
        self, verb: str, terms: Mapping[str, Any], before: Scope | None, protects: str, blocks: bool
    ) -> Scope | GrantProposal:
        """A grant or quota, in effect or proposed."""
        # It brings the database, which who asks a service need not have.
        from dpflow.ledger.books.grant_terms import GrantOptions, Terms

        options = {name: terms.get(name) for name in GrantOptions.__annotations__}
        named = Terms.parse_terms(
            terms["epsilon"],
            terms["delta"],
            terms.get("period"),
            **{**options, "reason": terms.get("reason", "")},
        )
        stays = 1 if before is None else before.approvals
        shown = list[Scope]()

        def check(signed: Signed) -> bool:
            granted = read_granted(signed)
            may_be = named.list_grants(before, replace(granted, protects=protects, blocks=blocks))
            kind = "propose" if 2 in (stays, granted.approvals) else "grant"
            is_change = signed["kind"] == kind and "proposal" not in signed["body"]
            if not is_change or granted.scope != terms["scope"] or granted not in may_be:
                return False
            if granted not in shown:
                lines = [f"  {line}" for line in list_terms(before, granted)]
                self._confirm([f"to be signed for {granted.scope}:", *lines])
                shown.append(granted)
            return True

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
        signer = find_signer(terms)
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
            f"{self._service.server} asks for a signature of something else than was decided here, so nothing was signed; unless "
            "another owner changed the scope meanwhile, tell who runs it"
        )


def find_signer(terms: Mapping[str, Any]) -> DecisionSigner:
    """Who signs. Raises `InvalidInput` if nobody does."""
    signer: DecisionSigner | None = terms["signer"]
    if signer is None:
        raise InvalidInput(
            "at a service decisions are signed by a person's key; give its file: --sign FILE"
        )
    return signer


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
