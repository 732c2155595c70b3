"""Every entry of a history through the rules, and the tables that a legal history leaves.

The chain and its seals show that the ledger wrote an entry. They do not show that it was allowed to:
whoever edited a balance could have let it charge too much, truly and sealed. So each entry is held
against the rules here, from the first one on, with nothing from the tables: what a charge costs,
whether the grants of its whole path hold it, which step may follow which. What the rules leave is
then compared with every row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from hashlib import blake2b
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from dpflow.core.accounting.periods import name_account
from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.counted import counted
from dpflow.errors import DpflowError
from dpflow.ledger.audit.granted_filters import Illegal, least_cost, parse_filter, require
from dpflow.ledger.audit.release_state import (
    ReleaseState,
    ReleaseStates,
    digest_values,
    read_body,
)
from dpflow.ledger.books import data_claims
from dpflow.ledger.books.grant_terms import may_follow, require_persons
from dpflow.ledger.books.grants import find_exceeded, find_signers, is_signed
from dpflow.ledger.books.records import checked_name, is_same_principal, is_visible, path_of
from dpflow.ledger.books.sessions import batch_name
from dpflow.ledger.books.witnesses import signed_by, starts_anew
from dpflow.ledger.history.checkpoint import SCOPE_COLUMNS as CHECKPOINT_COLUMNS
from dpflow.ledger.history.checkpoint import Checkpoint
from dpflow.ledger.storage.compact_json import canonical_json

#: Kinds of entries that only the ledger writes. Any other kind is a note that changes no table.
RESERVED_KINDS = frozenset(
    {"grant", "propose", "reserve", "refuse", "session", "join", "retry", "settle", "resolve",
     "answer", "verdict", "import", "upgrade", "reanchor", "recover", "rotate", "suite", "witness"}
)  # fmt: skip

_take_key = itemgetter("scope", "dag_id", "task_id", "run_identity", "digest", "ordinal")
_NOTHING = Cost()
#: What rules raise at values that no ledger writes.
_IMPOSSIBLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)  # fmt: skip
_HEAD_SIZE = 16


def _digest_head(head: object) -> bytes:
    return blake2b(str(head).encode(errors="replace"), digest_size=_HEAD_SIZE).digest()


class Recheck:
    """The rules, and the tables as the entries so far leave them.

    Attributes:
        problems: what was illegal, by entry.
        root: of the newest entry.
        head: its hash.
        entries: how many there were.
        marks: number and hash of the entry at which the anchor's mark stood at each recovery.
        watched: of scopes that demand a witness: the entry that it signed last, and those that charged behind it.
        own_witness: entries that brought a checkpoint from where the user who charges could write.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        #: Entries of decisions, and of recoveries that state other terms, that nobody signed.
        self.self_declared: list[int] = []
        self.scopes: dict[str, dict[str, Any]] = {}
        self.proposals: dict[str, dict[str, Any]] = {}
        self._proposed: dict[str, Any] = {}  # the entry of each proposal
        self.accounts: dict[str, dict[str, Cost]] = {}
        self.releases = ReleaseStates()
        #: Digests of run, instance and release of each task instance that asked.
        self.slots: set[bytes] = set()
        self.data: dict[str, dict[str, Any]] = {}
        self.answers: dict[tuple[str, str], tuple[int, str]] = {}
        self.verdicts: dict[tuple[str, int], tuple[str, int | None]] = {}
        #: Session and version of every answer and state that was encrypted; each settled release has one of version 0.
        self.keys: set[tuple[str, int]] = set()
        self.root, self.head, self.entries = "", "", 0
        self.marks: set[tuple[int, str]] = set()
        self._keys: set[bytes] = set()
        self.watched: dict[str, tuple[int, list[int]]] = {}
        self.own_witness: list[int] = []
        #: Entries of recoveries that closed scopes, and the last entry that the mark had seen, if it was known.
        self.losses: list[tuple[int, int | None]] = []
        #: Pairs of scopes that charged for the same data.
        self.shared: set[tuple[str, str]] = set()
        # Of the entries that a witness may sign next, from this one on: digests of their hashes.
        self._first_head, self._heads = 0, bytearray()

    def apply_entry(self, entry: Any) -> None:
        """Hold an entry against the rules; one that breaks them changes nothing."""
        kind = entry.kind
        self.entries += 1
        self.head, self.root = entry.hash, entry.root
        try:
            require(
                is_visible(entry.principal), "is by a principal with characters that nobody sees"
            )
            body = read_body(entry)
            if kind in RESERVED_KINDS:
                getattr(self, "_apply_" + kind)(entry, body)
            else:  # a note of a caller's changes no table
                spelled = isinstance(body, dict) and canonical_json(body) == entry.body
                require(spelled, "is a note that no ledger spells so")
        except Illegal as rule:
            self.problems.append(f"entry {entry.seq} {rule}")
        # Whoever edits the database by hand may put anything into an entry.
        except (*_IMPOSSIBLE, DpflowError):
            self.problems.append(f"entry {entry.seq} says something impossible")
        if self.watched:
            self._keep_head(entry.seq, entry.hash)

    # --- grants -------------------------------------------------------------------------------

    def _read_terms(self, entry: Any, body: dict[str, Any]) -> dict[str, Any]:
        """The columns of a grant or proposal."""
        body.pop("signature", None)
        capacity, approvals = body.pop("capacity", None), body.pop("approvals", 1)
        body.pop("proposal", None)
        if "reason" in body:
            checked_name("a reason", body.pop("reason"), longest=1000)
        _, limits = parse_filter(body["filter"])
        require(capacity == [*astuple(limits)], "holds another capacity than it grants")
        require(set(body) == {"filter", "protects", "blocks"}, "grants something unknown")
        require(approvals in (1, 2), "asks for an impossible number of approvals")
        paced = parse_filter(body["filter"])[0].period is not None
        require("/" in entry.scope or not paced, "lets a scope refresh that is no quota")
        return body | {"approvals": approvals}

    def _check_signature(self, entry: Any, body: dict[str, Any]) -> None:
        """A decision is signed by who may sign it, or by nobody where nobody must."""
        granted = parse_filter(body["filter"])[0]
        require_persons(granted.signers)
        trusted = self._find_signers(entry.scope, granted)
        if body.get("signature") is None:
            require(not trusted, "is signed by nobody, where owners sign")
            self.self_declared.append(entry.seq)
            return
        require(is_signed(entry, body, trusted), "is signed by nobody who may")

    def _find_signers(self, scope: str, granted: Filter) -> Sequence[str]:
        """Who may sign a grant of a scope now."""
        before, *above = (
            None if (row := self.scopes.get(name)) is None else parse_filter(row["filter"])[0]
            for name in path_of(scope)[::-1]
        )
        return find_signers(granted, before, [rule for rule in above if rule is not None])

    def _needs_second(self, scope: str, terms: Mapping[str, Any]) -> bool:
        return 2 in (terms["approvals"], self.scopes.get(scope, terms)["approvals"])

    def _apply_propose(self, entry: Any, body: dict[str, Any]) -> None:
        self._check_signature(entry, body)
        self.propose(entry, body)
        terms = self.proposals[entry.scope]
        require(self._needs_second(entry.scope, terms), "proposes what needs no second approval")

    def propose(self, entry: Any, body: dict[str, Any]) -> None:
        """Take down a proposal, whoever signed it."""
        terms = self._read_terms(entry, body)
        self._proposed[entry.scope] = entry
        self.proposals[entry.scope] = terms | {"principal": entry.principal, "seq": entry.seq}

    def _require_second(self, entry: Any, terms: Mapping[str, Any], approved: int | None) -> None:
        """A grant that needs two principals names the proposal that waited for it, by another."""
        name, waiting = entry.scope, self.proposals.get(entry.scope, {})
        require(
            self._needs_second(name, terms) == (approved is not None),
            "grants without the second principal that its scope needs",
        )
        if approved is not None:
            former = self.scopes.get(name, {"seq": 0})["seq"]
            waits = waiting.get("seq") == approved and approved > former
            require(waits and terms.items() <= waiting.items(), "approves what nobody proposed")
            same = is_same_principal(waiting["principal"], entry.principal)
            require(not same, "is approved by who proposed it")
            trusted = self._find_signers(name, parse_filter(terms["filter"])[0])
            proposed = self._proposed[name]
            signed = not trusted or is_signed(proposed, read_body(proposed), trusted)
            require(signed, "approves what nobody signed who may sign now")

    def _apply_grant(self, entry: Any, body: dict[str, Any]) -> None:
        name, approved = entry.scope, body.get("proposal")
        self._check_signature(entry, body)
        body = self._read_terms(entry, body)
        self._require_second(entry, body, approved)
        granted, _ = parse_filter(body["filter"])
        above = self.scopes.get(name.rpartition("/")[0])
        binding = body["protects"], body["blocks"]
        if "/" in name:
            require(above, "grants a quota below no grant")
            require(binding == _binding(above), "grants a quota for another table")
        spent = self.accounts.get(name, {})
        if name in self.scopes:
            self._require_successor(name, granted, binding)
            day = dt.date.min if granted.period is None else _day_of(entry)
            fits = find_exceeded(granted, spent.items(), day) is None
            require(fits, "grants less than is spent")
        former = self.scopes.get(name)
        self.scopes[name] = body | {"closed": 0, "seq": entry.seq}
        self._watch(name, former, granted, entry.seq)

    def _require_successor(self, name: str, granted: Filter, binding: tuple[Any, Any]) -> None:
        """What a scope has spent means the same under its next terms."""
        before, spent = self.scopes[name], self.accounts.get(name, {})
        require(not spent or binding == _binding(before), "binds a scope to a table after a charge")
        former = parse_filter(before["filter"])[0]
        require(granted.name == former.name, "changes the filter of a scope")
        unspent = all(cost == Cost() for cost in spent.values())
        require(unspent or may_follow(granted, former), "changes how spent sums are counted")

    # --- witnesses ----------------------------------------------------------------------------

    def watch_from(self, point: Checkpoint) -> None:
        """Take what a checkpoint says of witnesses, whose next ones are of its entry or a later one."""
        self.watched = {name: (size, [point.size] * n) for name, size, n in point.watched}
        if self.watched:
            self._keep_head(point.size, point.head)

    def _watch(self, name: str, former: Mapping[str, Any] | None, now: Filter, seq: int) -> None:
        before = None if former is None else parse_filter(former["filter"])[0]
        if starts_anew(before, now):
            self.watched[name] = seq, []

    def _keep_head(self, seq: int, head: object) -> None:
        if not self._heads:
            self._first_head = seq
        self._heads += _digest_head(head)

    def _has_head(self, point: Checkpoint) -> bool:
        at = (point.size - self._first_head) * _HEAD_SIZE
        return at >= 0 and self._heads[at : at + _HEAD_SIZE] == _digest_head(point.head)

    def _apply_witness(self, entry: Any, body: dict[str, Any]) -> None:
        filters = {name: parse_filter(self.scopes[name]["filter"])[0] for name in self.watched}
        demands = {name: rule.witness.key for name, rule in filters.items() if rule.witness}
        signers, point = signed_by(body["note"], set(demands.values()))
        require(point is not None, "brings a checkpoint of no witness")
        assert point is not None
        require(self._has_head(point), "brings a checkpoint of another history or an older entry")
        require(isinstance(body["own"], bool), "does not say whose checkpoint it brings")
        gains = [
            n for n, key in demands.items() if key in signers and self.watched[n][0] < point.size
        ]
        require(gains, "brings a checkpoint that nobody waits for")
        for name in gains:
            behind = [seq for seq in self.watched[name][1] if seq > point.size]
            self.watched[name] = point.size, behind
        if body["own"]:
            self.own_witness.append(entry.seq)
        first = min(self.watched[name][0] for name in demands) + 1
        if first > self._first_head:
            del self._heads[: (first - self._first_head) * _HEAD_SIZE]
            self._first_head = first

    def list_demands(self) -> dict[str, str]:
        """Scopes by the verifier key of the witness that each demands."""
        filters = {name: parse_filter(row["filter"])[0] for name, row in self.scopes.items()}
        return {rule.witness.key: name for name, rule in filters.items() if rule.witness}

    @property
    def warnings(self) -> Iterator[str]:
        """Sums that may be too small, and checkpoints of witnesses that prove less than they seem to."""
        for number, seen in self.losses:
            marked = "" if seen is None else f"; the mark had seen entry {seen}"
            yield (
                f"entries were lost before entry {number}, a recovery{marked}: what they charged beyond its checkpoint is in no "
                f"sum, so what was spent may be more"
            )
        for first, second in sorted(self.shared):
            yield f"scopes {first} and {second} pay for the same data, whose units lose the sum of what both spend"
        if self.own_witness:
            yield (
                f"the user who charges could write where {counted(len(self.own_witness), 'checkpoint')} of witnesses, first in "
                f"entry {self.own_witness[0]}, came from: evidence against accidents only"
            )

    # --- charges ------------------------------------------------------------------------------

    def _apply_reserve(self, entry: Any, body: dict[str, Any], kind: str = "reserve") -> None:
        name, scope = entry.release_id, entry.scope
        key = digest_values(_take_key(body))
        require(body["scope"] == scope, "charges another scope than its own")
        require(name and name not in self.releases, "charges a release a second time")
        require(key not in self._keys, "charges the same key a second time")
        claims = data_claims.claim_names(scope, body["data"])
        joined = data_claims.joined_names(scope, body["data"])
        self._require_open(claims + joined)
        for claim in claims:
            parts = self.data.get(claim, {}).get("partition") or body["partition"]
            require(not body["partition"] or parts == body["partition"], "partitions otherwise")
        is_session = kind == "session"
        require(is_session == (body["state"] is not None), "has a state that does not belong here")
        require(is_session or not body["exclusive"], "closes data without being a session")
        self._debit_accounts(scope, body, entry)
        self._keys.add(key)
        if body["slot"] is not None:
            self.slots.add(digest_values((*body["slot"], name)))
        for claim in claims:
            row = self.data.setdefault(claim, {"first": name, "gate": None, "partition": None})
            # The last gate counts and the first partition stays.
            row["gate"] = name if body["exclusive"] else row["gate"]
            first = self.releases.get(row["first"])
            if first is not None and path_of(first.scope)[0] != path_of(scope)[0]:
                self.shared.add((path_of(first.scope)[0], path_of(scope)[0]))
            row["partition"] = row["partition"] or body["partition"] or None
        for claim in joined:
            self.data.setdefault(claim, {"first": name, "gate": None, "partition": None})
        if is_session:
            self.keys.add((name, 0))
        self.releases[name] = ReleaseState.from_entry(entry, body)

    def _apply_session(self, entry: Any, body: dict[str, Any]) -> None:
        self._apply_reserve(entry, body, "session")

    def _require_open(self, names: tuple[str, ...]) -> None:
        for name in names:
            gate = self.data.get(name, {}).get("gate")
            closed = gate is not None and self.releases[gate].state == "open"
            require(not closed, "reads data that an open gate closes")

    def _debit_accounts(self, scope: str, body: Mapping[str, Any], entry: Any) -> None:
        """Every block of every scope of the path pays what the event costs there, or nothing
        does; a quota that refreshes pays in the period of the entry's time.
        """
        after: dict[tuple[str, str], Cost] = {}
        path = path_of(scope)
        blocks = sorted({block for at, block, *_ in body["charges"] if at == path[0]})
        for at in path:
            granted = self.scopes.get(at)
            require(granted is not None, "charges a scope without a grant")
            assert granted is not None
            require(not granted["closed"], "charges a scope that a recovery closed")
            require(_binding(granted) == _binding(self.scopes[path[0]]), "charges two tables")
            require((blocks == [""]) != bool(granted["blocks"]), "charges blocks that do not exist")
        for name, block, *units in body["charges"]:
            granted, cost = self.scopes[name], Cost(*units)
            require(min(units) >= 0 and (name, block) not in after, "charges an impossible sum")
            least = least_cost(granted["filter"], granted["protects"], body["event"])
            paid = cost.epsilon >= least.epsilon and cost.renyi >= least.renyi
            require(paid and cost.delta >= least.delta, "charges less than its event costs")
            total = self.accounts.get(name, {}).get(block, _NOTHING) + cost
            trusted = parse_filter(granted["filter"])[0].certified_by
            certified = not trusted or set(trusted) & set(body.get("certified_by", ()))
            require(certified, f"charges for what scope {name} trusts no certificate of")
            fits = Filter.admits(parse_filter(granted["filter"])[1], total)
            require(fits, f"charges more than scope {name} was granted")
            after[name, block] = total
        expected = set()
        for at in path:
            period = parse_filter(self.scopes[at]["filter"])[0].period
            named = blocks
            if period is not None:
                named = [name_account(period, block, _day_of(entry)) for block in blocks]
            expected |= {(at, account) for account in named}
        require(expected == after.keys() and expected, "does not charge its whole path")
        for at in path:
            if demand := parse_filter(self.scopes[at]["filter"])[0].witness:
                behind = self.watched[at][1]
                require(len(behind) < demand.every, f"charges scope {at} further than its witness")
                behind.append(entry.seq)
        for (name, block), total in after.items():
            self.accounts.setdefault(name, {})[block] = total

    def _apply_refuse(self, entry: Any, body: dict[str, Any]) -> None:
        """Nothing was charged. Others may have charged since, so it is not held against the sums."""

    # --- what may follow a charge -------------------------------------------------------------

    def _release_of(self, entry: Any, *states: str) -> ReleaseState:
        release = self.releases.get(entry.release_id)
        require(release is not None, "is about a release that was never charged")
        assert release is not None
        require(release.scope == entry.scope, "names another scope than its release")
        rule = f"follows a release that is {release.state}"
        require(not states or release.state in states, rule)
        return release

    def _apply_join(self, entry: Any, body: dict[str, Any]) -> None:
        self._release_of(entry)
        slot = digest_values((*body["slot"], entry.release_id))
        require(slot not in self.slots, "joins a release a second time")
        self.slots.add(slot)

    def _apply_retry(self, entry: Any, body: dict[str, Any]) -> None:
        release = self._release_of(entry, "reserved", "open")
        require(body["attempt"] == release.attempts + 1, "counts its attempts wrongly")
        release.attempts += 1

    def _apply_settle(self, entry: Any, body: dict[str, Any]) -> None:
        release = self._release_of(entry, "reserved")
        attempt = body["attempt"]
        require(attempt <= release.attempts, "settles an attempt that was never made")
        require(attempt >= release.fenced_below, "settles an attempt that was fenced")
        release.state, release.snapshot = "settled", body["snapshot"]
        release.result_digest = str(body["result"])
        self.releases.pack(entry.release_id)

    def _apply_resolve(self, entry: Any, body: dict[str, Any]) -> None:
        release = self._release_of(entry, "reserved", "open")
        closed = "closed" if release.state == "open" else "fenced"
        allowed = {"close": closed, "retry": "reserved" if closed == "fenced" else None}
        require(body["becomes"] == allowed.get(body["decision"], ""), "decides the impossible")
        require(body["fenced_below"] == release.attempts + 1, "fences other attempts than all")
        if "signature" in body:
            rule = parse_filter(self.scopes[entry.scope]["filter"])[0]
            signed, trusted = (
                body | {"release_id": entry.release_id},
                self._find_signers(entry.scope, rule),
            )
            require(is_signed(entry, signed, trusted), "is signed by nobody who may")
        release.state, release.fenced_below = body["becomes"], release.attempts + 1

    def _apply_answer(self, entry: Any, body: dict[str, Any]) -> None:
        session, name = self._release_of(entry, "open"), entry.release_id
        require(body["version"] == session.version + 1, "answers from a state that was gone")
        require(body["becomes"] in ("open", "closed"), "leaves a session in no state")
        query = body.get("query", batch_name(body["version"]))
        require((name, query) not in self.answers, "answers a query a second time")
        self.answers[name, query] = body["version"], str(body["answers"])
        self.keys.add((name, body["version"]))
        session.version, session.state = body["version"], body["becomes"]
        session.secret_digest = str(body["state"])

    def _apply_verdict(self, entry: Any, body: dict[str, Any]) -> None:
        session = self._release_of(entry, "open", "closed")
        told = entry.release_id, body["version"]
        require(0 < body["version"] <= session.version, "tells an answer that was never given")
        require(told not in self.verdicts, "tells a verdict a second time")
        self.verdicts[told] = str(body["verdict"]), body["failures_left"]

    # --- the whole ledger ---------------------------------------------------------------------

    def _apply_import(self, entry: Any, body: dict[str, Any]) -> None:
        unsettled = self.releases.unsettled().items()
        still_open = sorted(name for name, row in unsettled if row.state == "open")
        require(body["closed"] == still_open, "closes other sessions than those that are open")
        require(body["entries"] == entry.seq - 1, "continues a history of another length")
        self.close_sessions()

    def close_sessions(self) -> None:
        """Secret states are in no export, so an import leaves none."""
        for name, release in self.releases.items():
            if release.kind == "session":
                self.keys.discard((name, 0))
            release.secret_digest = None
            release.state = "closed" if release.state == "open" else release.state

    def _terms_of(self, name: str) -> dict[str, Any] | None:
        row = self.scopes.get(name)
        return None if row is None else {column: row[column] for column in CHECKPOINT_COLUMNS}

    def limit_terms(self, name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Terms of a scope that a recovery may go on with, where its checkpoint states others.

        No person signed a checkpoint. So a scope whose grants are signed or approved by a second
        principal keeps the terms of this history, and is closed if the checkpoint states others. A
        scope that is granted nowhere here, below one whose grants are signed, is closed and names no
        signers.
        """
        granted, known = parse_filter(stated["filter"])[0], self._terms_of(name)
        signers = self._find_signers(name, replace(granted, signers=()))
        if not signers and (known is None or known["approvals"] == 1):
            return {**stated}
        if known is None:
            text = canonical_json(replace(granted, signers=()).to_json())
            return {**stated, "filter": text, "closed": 1}
        is_other = known | {"closed": stated["closed"]} != stated
        return known | {"closed": int(is_other or known["closed"] or stated["closed"])}

    def apply_recovery(self, number: int, body: Mapping[str, Any]) -> str:
        """Apply a recovery that is not written yet; returns the rule that it breaks, else ""."""
        before, text = len(self.problems), canonical_json(body)
        nothing = dict.fromkeys(("principal", "hash", "root"), "")
        entry = SimpleNamespace(seq=number, kind="recover", body=text, **nothing)
        self.apply_entry(entry)
        return "".join(self.problems[before:])

    def _apply_recover(self, entry: Any, body: dict[str, Any]) -> None:
        # The lost entries may have taken a proposal's place, or the right to sign from who made it.
        for name, row in self.proposals.items():
            if row["seq"] > self.scopes.get(name, {"seq": 0})["seq"]:
                self.proposals[name] = row | {"seq": 0}
        stated = {}
        for name, *columns in body["scopes"]:
            terms = dict(zip(CHECKPOINT_COLUMNS, columns, strict=True))
            require(self.limit_terms(name, terms) == terms, "states terms that nobody signed")
            granted = parse_filter(terms["filter"])[0]
            require_persons(granted.signers)
            require(terms["approvals"] in (1, 2) and terms["closed"] in (0, 1), "states no terms")
            if name in self.scopes:
                self._require_successor(name, granted, _binding(terms))
            stated[name] = terms
        if any(terms != self._terms_of(name) for name, terms in stated.items()):
            self.self_declared.append(entry.seq)
        for name, terms in stated.items():
            now = parse_filter(terms["filter"])[0]
            self._watch(name, self.scopes.get(name), now, entry.seq)
        self.scopes |= {name: terms | {"seq": entry.seq} for name, terms in stated.items()}
        for scope, block, *units in body["spent"]:
            sums, after = self.accounts.setdefault(scope, {}), Cost(*units)
            pairs = zip(astuple(sums.get(block, Cost())), astuple(after), strict=True)
            require(all(before <= now for before, now in pairs), "takes a charge back")
            sums[block] = after
        if body["marked"] is not None:
            number, head = body["marked"]
            self.marks.add((int(number), str(head)))
        # The mark stood at the very entry that was signed, at this recovery or an earlier one: then
        # nothing came after it.
        taken = body["checkpoint"]
        witnessed = taken is not None and (taken[1], taken[2]) in self.marks
        closed = [] if witnessed else sorted(self.scopes)
        require(body["closed"] == closed, "leaves scopes open that nobody witnesses")
        if closed:
            seen = None if body["marked"] is None else int(body["marked"][0])
            self.losses.append((entry.seq, seen))
        for name in closed:
            self.scopes[name] = self.scopes[name] | {"closed": 1, "seq": entry.seq}
        unsettled = self.releases.unsettled()
        require(body["unsettled"] == sorted(unsettled), "leaves a reservation or session open")
        for name in body["data"]:
            self.data.setdefault(name, {"first": "", "gate": None, "partition": None})
        for release in unsettled.values():
            release.state = "fenced" if release.state == "reserved" else "closed"

    def _apply_reanchor(self, entry: Any, body: dict[str, Any]) -> None:
        require(body["entries"] == entry.seq - 1, "goes on from a history of another length")

    _apply_upgrade = _apply_reanchor

    def _apply_rotate(self, entry: Any, body: dict[str, Any]) -> None:
        """Keys are wrapped under another one; no row that decides anything changes."""

    def _apply_suite(self, entry: Any, body: dict[str, Any]) -> None:
        """An owner registers a suite or takes it back; no row that decides a charge changes."""
        require(isinstance(body["registered"], bool), "registers nothing")

    def account_rows(self) -> Iterator[tuple[str, str, Cost]]:
        """Scope, block and sums of every budget that was charged."""
        for scope, blocks in self.accounts.items():
            for block, cost in blocks.items():
                yield scope, block, cost


def _day_of(entry: Any) -> dt.date:
    """The day (UTC) that an entry says; every ledger writes its time in UTC."""
    return dt.date.fromisoformat(entry.at[:10])


def recheck_entries(rows: Any) -> Recheck:
    """All entries, in order, through the rules."""
    recheck = Recheck()
    for row in rows:
        recheck.apply_entry(row)
    return recheck


def _binding(scope: Mapping[str, Any] | None) -> tuple[Any, Any]:
    return (None, None) if scope is None else (scope["protects"], scope["blocks"])
