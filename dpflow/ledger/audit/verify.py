"""Verification: what the tables must hold, rebuilt from the history alone, and every difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from typing import Any

import sqlalchemy as sa

from dpflow.core.accounting.privacy_filters import Cost
from dpflow.ledger.books import data_claims
from dpflow.ledger.books.records import split_slot
from dpflow.ledger.history import chain
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction

ENTRIES = Prepared(sa.select(schema.entry).order_by(schema.entry.c.seq))
_ALL = {table.name: Prepared(sa.select(table)) for table in schema.metadata.sorted_tables}
_CHANGED = {
    "result": "the result of release {id} is not the one that was settled",
    "secret": "the state of session {id} is not the one its last answer left",
}
_PUBLIC = (*schema.KEY, "family", "exclusive", "blocks", "event", "request")


#: Kinds of entries that only the ledger writes. Any other kind is a note that changes no table.
RESERVED_KINDS = frozenset(
    {"grant", "reserve", "session", "join", "retry", "settle", "resolve", "answer", "import"}
)


class Expected:
    """The tables as the entries say they are. Results, batches of answers and secret states are
    known by digest only.
    """

    def __init__(self, meta: Mapping[str, str]) -> None:
        self.meta = meta
        self.scopes: dict[str, dict[str, Any]] = {}
        self.accounts: dict[tuple[str, str], Cost] = {}
        self.releases: dict[str, dict[str, Any]] = {}
        self.answers: dict[tuple[str, str], tuple[int, str]] = {}
        self.batches: dict[tuple[str, int], str] = {}
        self.slots: set[tuple[str, str, str]] = set()
        self.data: dict[str, dict[str, Any]] = {}
        self.illegal: list[str] = []

    def apply_entry(self, entry: Mapping[str, Any]) -> None:
        """Take one entry into account; one that no verb would have written is kept as illegal."""
        try:
            body = json.loads(entry["body"])
            # Notes of callers change no table, so only the ledger's own kinds find a method.
            if entry["kind"] in RESERVED_KINDS:
                getattr(self, "_apply_" + entry["kind"])(entry, body)
        # Whoever edits the database by hand may put anything into an entry.
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            self.illegal.append(f"entry {entry['seq']} says something impossible")

    def _apply_grant(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        name, before = entry["scope"], self.scopes.get(entry["scope"], body)
        # Before the first charge nothing was promised to a unit, so another table may be named.
        rebinds = any(before[field] != body[field] for field in ("protects", "blocks"))
        if rebinds and any(scope == name for scope, _ in self.accounts):
            raise ValueError("a scope was bound to another table after a charge")
        self.scopes[name] = dict(body)

    def _apply_reserve(
        self, entry: Mapping[str, Any], body: Mapping[str, Any], state: str = "reserved"
    ) -> None:
        for scope, block, *units in body["charges"]:
            self.accounts[scope, block] = self.accounts.get((scope, block), Cost()) + Cost(*units)
        for name in data_claims.claim_names(entry["scope"], body["data"]):
            row = self.data.setdefault(
                name, {"first": entry["release_id"], "gate": None, "partition": None}
            )
            # The last gate counts and the first partition stays, as in `data_claims.record_claims`.
            row["gate"] = entry["release_id"] if body["exclusive"] else row["gate"]
            row["partition"] = row["partition"] or body["partition"] or None
        for name in data_claims.joined_names(entry["scope"], body["data"]):
            self.data.setdefault(
                name, {"first": entry["release_id"], "gate": None, "partition": None}
            )
        self.releases[entry["release_id"]] = {name: body[name] for name in _PUBLIC} | {
            "name": str(json.loads(body["request"]).get("name") or ""),
            "seq": entry["seq"],
            "principal": entry["principal"],
            "state": state,
            "attempts": 1,
            "fenced_below": 0,
            "version": 0,
            "snapshot": None,
            "result": None,
            "secret": body["state"],
        }
        if body["slot"] is not None:
            self._apply_join(entry, body)

    def _apply_session(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        self._apply_reserve(entry, body, "open")

    def _apply_join(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        slot = body["slot"]
        if isinstance(slot, str):
            row = self.releases[entry["release_id"]]
            slot = astuple(split_slot(row["dag_id"], row["scope"], row["run_identity"], slot))
        self.slots.add((*slot, entry["release_id"]))

    def _apply_retry(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        self.releases[entry["release_id"]]["attempts"] = body["attempt"]

    def _apply_settle(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        values = {"state": "settled", "result": body["result"], "snapshot": body["snapshot"]}
        self.releases[entry["release_id"]] |= values

    def _apply_resolve(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        self.releases[entry["release_id"]] |= {
            "state": body["becomes"],
            "fenced_below": body["fenced_below"],
        }

    def _apply_answer(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        values = {"state": body["becomes"], "version": body["version"], "secret": body["state"]}
        self.releases[entry["release_id"]] |= values
        if "answers" in body:
            self.batches[entry["release_id"], body["version"]] = body["answers"]
        else:
            self.answers[entry["release_id"], body["query"]] = body["version"], body["answer"]

    def _apply_import(self, entry: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        # Secret states are in no export, so an import leaves none.
        for session in body["closed"]:
            self.releases[session] |= {"state": "closed"}
        for release in self.releases.values():
            release["secret"] = None


def find_problems(
    transaction: Transaction, expected: Expected, seal: Callable[[str], str]
) -> Iterator[str]:
    """Every difference between the tables and what the history says."""
    yield from expected.illegal
    # An index may be damaged while every row of its table still reads right.
    if transaction.dialect == "sqlite" and transaction.text("PRAGMA integrity_check(1)") != [
        ("ok",)
    ]:
        yield "the file is damaged, though its history may be whole: export it and import that, or bring the newest copy back"
    tables = {
        name: [row._asdict() for row in transaction.rows(all_rows)]
        for name, all_rows in _ALL.items()
        # Entries are checked by the chain's auditor: all else is compared with them.
        if "entry" not in name
    }
    meta = {row["name"]: row["value"] for row in tables["dpflow_meta"]}
    yield from _list_differences("{} in dpflow_meta is not this ledger's", expected.meta, meta)
    scopes = {row.pop("name"): row for row in tables["dpflow_scope"]}
    yield from _list_differences("scope {} is not what was granted", expected.scopes, scopes)
    sums = {
        (row["scope"], row["block"]): Cost(row["epsilon"], row["delta"], row["renyi"])
        for row in tables["dpflow_account"]
    }
    yield from _list_differences(
        "account {} does not hold what its charges add up to", expected.accounts, sums
    )
    releases = {row.pop("id"): row for row in tables["dpflow_release"]}
    yield from _differences_of_releases(expected.releases, releases, seal)
    answers: dict[tuple[str, str], tuple[int, str]] = {}
    batches: dict[tuple[str, int], dict[str, str]] = {key: {} for key in expected.batches}
    for row in tables["dpflow_answer"]:
        if (batch := batches.get((row["session_id"], row["version"]))) is not None:
            batch[row["query"]] = row["answer"]
        else:
            answers[row["session_id"], row["query"]] = row["version"], row["answer"]
    yield from _list_differences(
        "answer {} is not the one that was given", expected.answers, answers
    )
    digests = {key: chain.digest_json(batch) for key, batch in batches.items()}
    yield from _list_differences(
        "the answers of batch {} are not those that were given", expected.batches, digests
    )
    slots = {(s["run"], s["instance"], s["release_id"]): True for s in tables["dpflow_slot"]}
    read = {row.pop("name"): row for row in tables["dpflow_data"]}
    yield from _list_differences(
        "what is known of {} is not what its releases left", expected.data, read
    )
    yield from _list_differences(
        "task instance {} did not ask for that", dict.fromkeys(expected.slots, True), slots
    )


def _list_differences(
    sentence: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]
) -> Iterator[str]:
    for key in sorted(expected.keys() | found.keys(), key=repr):
        if expected.get(key) != found.get(key):
            yield sentence.format(
                "/".join(map(str, filter(None, key))) if isinstance(key, tuple) else key
            )


def _differences_of_releases(
    expected: Mapping[str, Mapping[str, Any]],
    found: Mapping[str, dict[str, Any]],
    seal: Callable[[str], str],
) -> Iterator[str]:
    for release_id in sorted(expected.keys() | found.keys(), key=repr):
        if release_id not in expected:
            yield f"release {release_id} was never charged"
        elif release_id not in found:
            yield f"release {release_id} was charged and is gone"
        else:
            row = dict(found[release_id])
            # The history holds digests and commitments, so the row is brought to that form.
            row["result"] = None if row["result"] is None else chain.digest_json(str(row["result"]))
            row["secret"] = None if row["secret"] is None else seal(str(row["secret"]))
            for name in sorted(row):
                if row[name] != expected[release_id][name]:
                    yield _CHANGED.get(
                        name, "the {name} of release {id} is not what the history says"
                    ).format(name=name, id=release_id)
