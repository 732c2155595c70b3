"""The rules of a dpflow ledger in other words: python audit.py EXPORT.jsonl, or LEDGER.sqlite"""

import hashlib
import json
import sys

from costs import (
    FIELDS,
    KEY,
    LARGEST,
    account,
    capacity,
    entries,
    fold,
    follows,
    holds,
    least_cost,
    path_of,
)
from signatures import check_decision, people

RULES = "grant propose reserve join retry settle resolve answer import_ recover"
ENDS = "reserved close fenced", "reserved retry reserved", "open close closed"


class Audit:
    def __init__(self):
        self.granted, self.spent, self.waiting, self.approvals, self.releases = {}, {}, {}, {}, {}
        self.gates, self.parts, self.closed, self.keys, self.slots = {}, {}, set(), set(), set()
        self.marks, self.unsigned = [], []  # of each recovery; decisions that nobody signed

    def signers(self, at, rule):
        """Who may sign a grant of a scope now, by name."""
        named = [self.granted[s][0] for s in path_of(at)[::-1] if s in self.granted]
        lists = [rule.get("signers") for rule in [*named, rule]]
        return people(next(filter(None, lists), []))

    def signed(self, at, body):
        """A decision, signed by who may where anybody is named; takes the signature out of it."""
        signature, rule = body.pop("signature", None), json.loads(body["filter"])
        people(rule.get("signers", []))
        if keys := self.signers(at, rule):
            return check_decision(self.entry, body, signature, keys)
        assert signature is None, "a signature that nobody can check"
        self.unsigned.append(self.entry["seq"])

    def propose(self, at, _, body):
        self.signed(at, body)
        self.waiting[at] = body | {"by": self.entry["principal"], "proposal": self.entry["seq"]}

    def grant(self, at, _, body):
        alone = body.get("signature") and body.get("proposal") in self.unsigned
        assert not alone, "one signature for two"
        self.signed(at, body)
        needed = self.approvals.get(at), body.get("approvals", 1)
        waiting, self.approvals[at] = self.waiting.pop(at, {}), needed[1]
        if 2 in needed:
            assert fold(waiting.pop("by", "")) != fold(self.entry["principal"]), "by its proposer"
            assert waiting == body, "another grant than was proposed"
        rule, binding = json.loads(body["filter"]), (body["protects"], body["blocks"])
        parent, limits = at.rpartition("/")[0], capacity(rule)
        assert (self.granted[parent][1] == binding) if parent else "period" not in rule, "a quota"
        assert body.get("capacity", limits) == limits, "another capacity than it grants"
        charged, now = self.spent.get(at, {}), account(rule, "", self.entry["at"])
        sums = {block: units for block, units in charged.items() if any(units)}
        assert all(holds(limits, sums[b]) for b in sums if b.startswith(now)), "less than is spent"
        if at in self.granted:
            follows(self.granted[at], charged, rule, binding)
        self.granted[at] = rule, binding, limits
        self.closed.discard(at)

    def reserve(self, at, name, body, state="reserved"):
        key, event = tuple(body[column] for column in KEY), json.loads(body["event"])
        assert key not in self.keys and name not in self.releases, "a key charged twice"
        path = path_of(at)
        private = [n for n in body["data"] if n[:7] != "joined "] + ["dataset " + path[0]]
        for data in private + [n.removeprefix("joined ") for n in body["data"]]:
            gate = self.releases.get(self.gates.get(data))
            assert not gate or gate["state"] != "open", "read through an open gate"
        for data in private if body["partition"] else ():
            assert self.parts.setdefault(data, body["partition"]) == body["partition"], "partition"
        assert body["scope"] == at and not (body["exclusive"] and state == "reserved"), "scope"
        assert self.closed.isdisjoint(path), "a scope that a recovery closed"
        paid = [(scope, block) for scope, block, *_ in body["charges"]]
        blocks = {block for scope, block in paid if scope == path[0]}
        binding, *other = {self.granted[s][1] for s in path}
        assert blocks and not other and (blocks == {""}) != bool(binding[1]), "tables or blocks"
        due = [(s, account(self.granted[s][0], b, self.entry["at"])) for s in path for b in blocks]
        assert sorted(paid) == sorted(due), "not its path, once"
        assert event["kind"] != "unprotected.v1" or binding[0][:6] == "nobody", "no guarantee"
        for scope, block, *units in body["charges"]:
            rule, _, limits = self.granted[scope]
            trusted = {*rule.get("certified_by", [])}
            assert not trusted or trusted & {*body.get("certified_by", [])}, "no certificate"
            assert all(a >= b for a, b in zip(units, least_cost(event, rule))), "less than it costs"
            sums = self.spent.setdefault(scope, {}).get(block, (0, 0, 0))
            self.spent[scope][block] = [min(a + b, LARGEST) for a, b in zip(sums, units)]
            assert holds(limits, self.spent[scope][block]), "beyond the grant"
        self.keys.add(key)
        self.slots.add((json.dumps(body["slot"]), name))
        self.gates |= dict.fromkeys(private if body["exclusive"] else (), name)
        self.releases[name] = {"state": state, "tries": 1, "fence": 0, "version": 0, "scope": at}

    def join(self, at, name, body):
        assert name in self.releases and (json.dumps(body["slot"]), name) not in self.slots, "twice"
        self.slots.add((json.dumps(body["slot"]), name))

    def retry(self, at, name, body):
        row = self.releases[name]
        assert row["state"] == "reserved" and body["attempt"] == row["tries"] + 1, "attempts"
        row["tries"] += 1

    def settle(self, at, name, body):
        row = self.releases[name]
        assert row["fence"] <= body["attempt"] <= row["tries"], "a fenced attempt"
        assert (row["state"], row["scope"]) == ("reserved", at), "a second settle"
        row["state"] = "settled"

    def resolve(self, at, name, body):
        row = self.releases[name]
        assert f"{row['state']} {body['decision']} {body['becomes']}" in ENDS, "a decision"
        assert body["fenced_below"] == row["tries"] + 1, "the fence"
        row |= {"state": body["becomes"], "fence": body["fenced_below"]}

    def answer(self, at, name, body):
        row, query = self.releases[name], (name, body.get("query", body["version"]))
        assert row["state"] == "open" and body["version"] == row["version"] + 1, "versions"
        assert body["becomes"] in ("open", "closed") and query not in self.keys, "twice"
        self.keys.add(query)
        row |= {"state": body["becomes"], "version": body["version"]}

    def end(self, *states):
        rows = {name: row for name, row in self.releases.items() if row["state"] in states}
        for row in rows.values():
            row["state"] = "fenced" if row["state"] == "reserved" else "closed"
        return sorted(rows)

    def import_(self, at, _, body):
        assert body["closed"] == self.end("open"), "sessions that stay open"

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
            self.granted[name], self.approvals[name], self.waiting[name] = terms, approvals, {}
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
        self.waiting |= {key: {} for key in body["closed"]}
        print("recovered from checkpoint", body["checkpoint"], "- compare it", file=sys.stderr)

    def run(self, place):
        previous, rules = "0" * 64, {kind.strip("_"): getattr(self, kind) for kind in RULES.split()}
        rules["session"] = lambda *entry: self.reserve(*entry, "open")
        for number, self.entry in enumerate(entries(place), 1):
            entry = self.entry
            text = json.dumps([entry[name] for name in FIELDS], separators=(",", ":")).encode()
            assert (entry["seq"], entry["previous"]) == (number, previous), f"{number}: the chain"
            previous, body = hashlib.sha256(text).hexdigest(), json.loads(entry["body"])
            assert previous == entry["hash"], f"{number}: the hash"
            try:
                rules.get(entry["kind"], lambda *_: None)(entry["scope"], entry["release_id"], body)
            except (AssertionError, KeyError, TypeError, ValueError) as rule:
                sys.exit(f"entry {number} ({entry['kind']}) breaks a rule: {rule}")
        return previous


audit = Audit()
last = audit.run(sys.argv[1] if len(sys.argv) == 2 else "ledger.jsonl")
for scope, blocks in sorted(audit.spent.items()):
    for block, units in sorted(blocks.items()):
        granted = audit.granted[scope][0]["epsilon"]
        print(json.dumps({"scope": scope, "block": block, "granted": granted, "units": units}))
if audit.unsigned:
    print("nobody signed the decisions in entries", audit.unsigned, file=sys.stderr)
print("all within the rules; the last hash is", last, file=sys.stderr)
