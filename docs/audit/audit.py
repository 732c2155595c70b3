"""The rules of a dpflow ledger in other words: python audit.py EXPORT.jsonl, or LEDGER.sqlite"""

import hashlib
import json
import sys

from costs import FIELDS, KEY, LARGEST, account, entries, holds, least_cost, path_of
from decisions import Decisions

RULES = "grant propose reserve join retry settle resolve answer import_ recover witness"
ENDS = "reserved close fenced", "reserved retry reserved", "open close closed"


class Audit(Decisions):
    def __init__(self):
        super().__init__()
        self.gates, self.parts, self.keys, self.slots = {}, {}, set(), set()

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
        self.count(path, self.entry["seq"])
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

    def import_(self, at, _, body):
        assert body["closed"] == self.end("open"), "sessions that stay open"

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
                self.heads.append(previous)
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
if audit.own:
    print("who charges could write the checkpoints in entries", audit.own, file=sys.stderr)
print("all within the rules; the last hash is", last, file=sys.stderr)
