"""What an entry says in a few words, for lists of entries. No result, and nothing that is encrypted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.privacy_filters import Filter
from dpflow.core.contract.question_text import describe_question
from dpflow.counted import counted
from dpflow.errors import DpflowError
from dpflow.ledger.books.records import Entry, Scope, stored_json
from dpflow.ledger.history.checkpoint import parse_note


def explain_entry(entry: Entry) -> str:
    """One line; "" for an entry of which its kind says all."""
    try:
        return _describe(entry)
    # Edited by hand, so that it may say anything.
    except (DpflowError, ValueError, TypeError, LookupError, AttributeError):
        return "cannot be read; run dpflow ledger verify"


def escape_controls(text: str) -> str:
    """Text in which control and invisible characters are spelled out."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def explain_conditions(rule: Filter, approvals: int) -> str:
    """The terms of a grant beside its amounts, in one line; what it does not have is left out."""
    terms = [f"each {rule.period}"] if rule.period else []
    terms += [f"{approvals} approvals"] if approvals > 1 else []
    terms += [f"signers {_join_keys(rule.signers)}"] if rule.signers else []
    if rule.witness:
        charges = counted(rule.witness.every, "charge")
        terms.append(f"witness {_join_keys([rule.witness.key])} within {charges}")
    terms += [f"certified by {_join_keys(rule.certified_by)}"] if rule.certified_by else []
    return "; ".join(terms)


def list_changes(before: Scope | None, after: Scope) -> list[str]:
    """What a grant changes of the terms in force, keys in full. Of a first grant, all that it has."""
    changes = []
    then: dict[str, Any] = {} if before is None else _name_terms(before)
    for name, value in _name_terms(after).items():
        former = then.get(name, () if isinstance(value, tuple) else "")
        if isinstance(value, tuple):
            added, gone = sorted({*value} - {*former}), sorted({*former} - {*value})
            changes += [f"{name} added: {key}" for key in added]
            changes += [f"{name} removed: {key}" for key in gone]
        elif former != value:
            changes.append(f"{name}: {former or 'none'} -> {value or 'none'}")
    return changes


def list_terms(before: Scope | None, after: Scope) -> list[str]:
    """All terms of a grant: what it changes, then what stays, keys in full."""
    stays = []
    then: dict[str, Any] = {} if before is None else _name_terms(before)
    for name, value in _name_terms(after).items():
        if isinstance(value, tuple):
            stays += [f"{name} stays: {key}" for key in value if key in then.get(name, ())]
        elif value and then.get(name) == value:
            stays.append(f"{name} stays: {value}")
    return list_changes(before, after) + stays


def _name_terms(granted: Scope) -> dict[str, str | tuple[str, ...]]:
    rule = granted.filter
    witness = rule.witness and f"{rule.witness.key} within {counted(rule.witness.every, 'charge')}"
    return {
        "epsilon": exact_text(rule.epsilon),
        "delta": exact_text(rule.delta),
        "filter": rule.name,
        "tail delta": exact_text(rule.tail_delta) if rule.order is not None else "",
        "Renyi order": exact_text(rule.order) if rule.order is not None else "",
        "period": rule.period or "",
        "protects": granted.protects + (", in every block" if granted.blocks else ""),
        "approvals": str(granted.approvals),
        "signer": rule.signers,
        "witness": witness or "",
        "certifier": rule.certified_by,
        "closed": "yes" if granted.closed else "",
    }


def _join_keys(keys: Iterable[str]) -> str:
    """Names and numbers: two keys of one name differ."""
    return ", ".join("+".join(key.split("+")[:2]) for key in keys)


def _describe(entry: Entry) -> str:
    body = entry.body
    if entry.kind in ("grant", "propose"):
        rule = Filter.from_json(stored_json(body["filter"]))
        signed = "signed" if body.get("signature") else "self-declared"
        approved = f", approves entry {body['proposal']}" if body.get("proposal") else ""
        amounts = f"epsilon {exact_text(rule.epsilon)}, delta {exact_text(rule.delta)}"
        terms = [
            f"{amounts}, filter {rule.name}",
            explain_conditions(rule, body.get("approvals", 1)),
        ]
        return "; ".join(filter(None, [*terms, f"{signed}{approved}", body.get("reason")]))
    if entry.kind in ("reserve", "session"):
        request = stored_json(body["request"])
        task = f", task {body['dag_id']}.{body['task_id']}" if body["dag_id"] else ""
        return f"{request.get('name', '')}: {describe_question(request)}{task}"
    if entry.kind == "suite":
        done = "registered" if body["registered"] else "withdrawn"
        return f"suite {body['suite'][:12]} of table {body['table']}: {done}"
    if entry.kind == "refuse":
        scope, block = body["account"]
        return f"{body['name']}: {scope}{f', block {block},' if block else ''} could not pay"
    if entry.kind == "verdict":
        left = "" if body["failures_left"] is None else f", {body['failures_left']} failures left"
        return f"look {body['version']}: {body['verdict']}{left}"
    if entry.kind == "witness":
        own = " (evidence against accidents only)" if body["own"] else ""
        return f"its checkpoint of entry {parse_note(body['note']).size}{own}"
    if entry.kind == "recover":
        taken = body["checkpoint"]
        source = (
            f"from the checkpoint of entry {taken[1]} by {taken[3]}"
            if taken
            else "taking over no checkpoint"
        )
        seen = f"; the mark had seen entry {body['marked'][0]}" if body["marked"] else ""
        return (
            f"{body['reason']} ({source}{seen}; closed: {', '.join(body['closed']) or 'no scope'})"
        )
    if entry.kind in ("resolve", "reanchor"):
        decision = body.get("decision")
        signed = "; signed" if body.get("signature") else ""
        return f"{f'{decision}: ' if decision else ''}{body.get('reason', '')}{signed}"
    return ""
