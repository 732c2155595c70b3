"""What owners and witnesses do: grants, approvals, going on after a loss, checkpoints."""

import base64
import json

from costs import account, capacity, fold, follows, holds, path_of
from signatures import check_decision, note_signers, people


class Decisions:
    def __init__(self):
        self.granted, self.spent, self.waiting, self.approvals, self.releases = {}, {}, {}, {}, {}
        self.closed, self.proposed, self.recovered = set(), {}, []
        self.marks, self.unsigned, self.lost = (
            [],
            [],
            [],
        )  # of each recovery; decisions that nobody signed
        self.heads, self.watched, self.own = [], {}, []  # charges behind what a witness signed
        self.reasons = {}  # of decisions, by entry

    def signers(self, at, rule):
        """Who may sign a grant of a scope now, by name."""
        named = [self.granted[s][0] for s in path_of(at)[::-1] if s in self.granted]
        lists = [rule.get("signers") for rule in [*named, rule]]
        return people(next(filter(None, lists), []))

    def signed(self, at, body):
        """A decision, signed by who may where anybody is named; takes the signature out of it."""
        signature, rule = body.pop("signature", None), json.loads(body["filter"])
        self.reasons |= {self.entry["seq"]: body["reason"]} if "reason" in body else {}
        people(rule.get("signers", []))
        if keys := self.signers(at, rule):
            check_decision(self.entry, body, signature, keys)
            return keys, signature
        assert signature is None, "a signature that nobody can check"
        self.unsigned.append(self.entry["seq"])
        return keys, None

    def terms(self, at, body):
        """The rule, the binding and the limits that a decision names."""
        rule = json.loads(body["filter"])
        assert body["capacity"] == capacity(rule), "another capacity than it grants"
        assert "/" in at or "period" not in rule, "a scope that refreshes and is no quota"
        return rule, (body["protects"], body["blocks"]), body["capacity"]

    def propose(self, at, _, body):
        self.proposed[at] = self.entry, body, self.signed(at, body)[1]
        self.terms(at, body)
        assert 2 in (self.approvals.get(at), body.get("approvals", 1)), "no second is needed"
        self.waiting[at] = body | {"by": self.entry["principal"], "proposal": self.entry["seq"]}
        self.waiting[at].pop("reason", None)

    def grant(self, at, _, body):
        keys, _ = self.signed(at, body)
        proposal, _ = body.pop("proposal", None), body.pop("reason", None)
        needed = self.approvals.get(at), body.get("approvals", 1)
        waiting, self.approvals[at] = self.waiting.pop(at, {}), needed[1]
        assert (proposal is not None) == (2 in needed), "a second approval"
        if 2 in needed:
            assert waiting.pop("proposal", None) == proposal, "another grant than was proposed"
            assert fold(waiting.pop("by", "")) != fold(self.entry["principal"]), "by its proposer"
            if keys:  # both sign by the list as it is now
                check_decision(*self.proposed[at], keys)
            assert waiting == body, "another grant than was proposed"
        rule, binding, limits = self.terms(at, body)
        if "/" in at:
            above = self.granted.get(at.rpartition("/")[0])
            assert above and above[1] == binding, "a quota of another table, or below no grant"
        charged, now = self.spent.get(at, {}), account(rule, "", self.entry["at"])
        sums = {block: units for block, units in charged.items() if any(units)}
        assert all(holds(limits, sums[b]) for b in sums if b.startswith(now)), "less than is spent"
        if at in self.granted:
            follows(self.granted[at], charged, rule, binding)
        self.watch(at, rule)
        self.granted[at] = rule, binding, limits
        self.closed.discard(at)

    def watch(self, at, rule):
        key, _ = rule.get("witness", (None, 0))
        before = self.granted.get(at, [{}])[0].get("witness", [None])
        if key and key != before[0]:
            self.watched[at] = self.entry["seq"], []

    def count(self, path, seq):
        for at in path:
            if demand := self.granted[at][0].get("witness"):
                assert len(self.watched[at][1]) < demand[1], "further than its witness"
                self.watched[at][1].append(seq)

    def witness(self, at, _, body):
        rules = {at: self.granted[at][0].get("witness") for at in self.watched}
        signers, lines = note_signers(body["note"], {rule[0] for rule in rules.values() if rule})
        size, head = int(lines[1]), base64.b64decode(lines[2]).hex()
        assert 0 < size <= len(self.heads) and self.heads[size - 1] == head, "another history"
        gains = [at for at, rule in rules.items() if rule and rule[0] in signers]
        gains = [at for at in gains if self.watched[at][0] < size]
        assert gains, "a checkpoint that nobody waits for"
        for at in gains:
            self.watched[at] = size, [seq for seq in self.watched[at][1] if seq > size]
        self.own += [self.entry["seq"]] if body["own"] else []

    def end(self, *states):
        rows = {name: row for name, row in self.releases.items() if row["state"] in states}
        for row in rows.values():
            row["state"] = "fenced" if row["state"] == "reserved" else "closed"
        return sorted(rows)

    def recover(self, at, _, body):  # after a loss: what was lost is an owner's word
        stated, is_other = {}, False
        for name, text, protects, blocks, closed, approvals in body["scopes"]:
            rule, known, shut = json.loads(text), self.granted.get(name), name in self.closed
            keys, count = self.signers(name, {}), self.approvals.get(name, 1)
            terms = rule, (protects, blocks), capacity(rule)
            is_same = known == terms and count == approvals
            people(rule.get("signers", []))
            assert closed in (0, 1) and approvals in (1, 2), "no terms"
            if known and (keys or count == 2):
                assert is_same and closed >= shut, "other terms than people signed or approved"
            elif keys:
                assert closed and not rule.get("signers"), "a quota that nobody signed"
            if known:
                follows(known, self.spent.get(name, {}), rule, terms[1])
            is_other |= not is_same or closed != shut
            stated[name] = terms, closed, approvals
        self.unsigned += [self.entry["seq"]] if is_other else []
        for name, (terms, closed, approvals) in stated.items():
            self.watch(name, terms[0])
            self.granted[name], self.approvals[name] = terms, approvals
            self.closed = self.closed - {name} | ({name} if closed else set())
        for scope, block, *units in body["spent"]:
            sums = self.spent.setdefault(scope, {}).get(block, (0, 0, 0))
            assert all(a <= b for a, b in zip(sums, units)), "a charge taken back"
            self.spent[scope][block] = units
        self.marks.append(body["marked"])
        witnessed = body["checkpoint"] and body["checkpoint"][1:3] in self.marks
        assert body["closed"] == ([] if witnessed else sorted(self.granted)), "left open"
        assert body["unsettled"] == self.end("reserved", "open"), "unsettled"
        self.closed |= set(body["closed"])
        self.lost += [self.entry["seq"]] if body["closed"] else []
        self.waiting = {}
        sums = {at: dict(blocks) for at, blocks in self.spent.items()}
        self.recovered.append((body["checkpoint"], sums))
