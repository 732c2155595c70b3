"""What an entry says in a few words, for lists of entries. No result, and nothing that is encrypted."""

from __future__ import annotations

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.privacy_filters import Filter
from dpflow.core.contract.question_text import describe_question
from dpflow.counted import counted
from dpflow.errors import DpflowError
from dpflow.ledger.books.records import Entry, stored_json
from dpflow.ledger.history.checkpoint import parse_note


def explain_entry(entry: Entry) -> str:
    """One line; "" for an entry of which its kind says all."""
    try:
        return _describe(entry)
    # Edited by hand, so that it may say anything.
    except (DpflowError, ValueError, TypeError, LookupError, AttributeError):
        return "cannot be read; run dpflow ledger verify"


def _describe(entry: Entry) -> str:
    body = entry.body
    if entry.kind in ("grant", "propose"):
        rule = Filter.from_json(stored_json(body["filter"]))
        each = f", each {rule.period}" if rule.period else ""
        signed = "signed" if body.get("signature") else "self-declared"
        approved = f", approves entry {body['proposal']}" if body.get("proposal") else ""
        amounts = f"epsilon {exact_text(rule.epsilon)}, delta {exact_text(rule.delta)}"
        return f"{amounts}, filter {rule.name}{each}; {signed}{approved}"
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
            else "by no checkpoint"
        )
        return f"{body['reason']} ({source}; {counted(len(body['closed']), 'scope')} closed)"
    if entry.kind in ("resolve", "reanchor"):
        decision = body.get("decision")
        return f"{f'{decision}: ' if decision else ''}{body.get('reason', '')}"
    return ""
