"""The rules of a dpflow ledger in other words: python audit.py EXPORT.jsonl or LEDGER.sqlite [CHECKPOINT or VERIFIER_KEY ...]"""

import hashlib
import json
import sqlite3
import sys

from costs import KEY, LARGEST, account, entries, first_link, holds, least_cost, path_of
from decisions import Decisions
from shapes import FIELDS, read_body
from signatures import check_decision, compare

NOBODY = "nobody (generalisation-only)"
RULES = "grant propose reserve join retry settle resolve answer verdict recover witness"
WHOLE = "import", "upgrade", "reanchor"  # they say how many entries came before
ENDS = "reserved close fenced", "reserved retry reserved", "open close closed"


class Audit(Decisions):
    def __init__(self, first=""):
        super().__init__()
        self.gates, self.parts, self.keys, self.slots = {}, {}, set(), set()
        self.queries, self.told = set(), set()
        self.first = first  # what the first entry is chained to, if that is known

    def reserve(self, at, name, body, state="reserved"):
        key, event = tuple(body[column] for column in KEY), json.loads(body["event"])
        assert all(part in self.granted for part in path_of(at)), "a scope that nobody granted"
        assert key not in self.keys and name not in self.releases, "a key charged twice"
        path = path_of(at)
        private = [n for n in body["data"] if n[:7] != "joined "] + ["dataset " + path[0]]
        for data in private + [n.removeprefix("joined ") for n in body["data"]]:
            gate = self.releases.get(self.gates.get(data))
            assert not gate or gate["state"] != "open", "read through an open gate"
        for data in private if body["partition"] else ():
            assert self.parts.setdefault(data, body["partition"]) == body["partition"], "partition"
        assert body["scope"] == at, "another scope than its own"
        assert self.closed.isdisjoint(path), "a scope that a recovery closed"
        paid = [(scope, block) for scope, block, *_ in body["charges"]]
        blocks = {block for scope, block in paid if scope == path[0]}
        binding, *other = {self.granted[s][1] for s in path}
        assert blocks and not other and (blocks == {""}) != bool(binding[1]), "tables or blocks"
        due = [(s, account(self.granted[s][0], b, self.entry["at"])) for s in path for b in blocks]
        assert sorted(paid) == sorted(due), "not its path, once"
        assert {*json.loads(body["blocks"])} == blocks - {""}, "other blocks than it pays for"
        assert event["kind"] != "unprotected.v1" or binding[0] == NOBODY, "no guarantee"
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

    def row(self, at, name):
        assert name in self.releases and self.releases[name]["scope"] == at, "no such release"
        return self.releases[name]

    def join(self, at, name, body):
        self.row(at, name)
        assert (json.dumps(body["slot"]), name) not in self.slots, "joined twice"
        self.slots.add((json.dumps(body["slot"]), name))

    def retry(self, at, name, body):
        row = self.row(at, name)
        assert row["state"] in ("reserved", "open"), "a try of what has ended"
        assert body["attempt"] == row["tries"] + 1, "attempts"
        row["tries"] += 1

    def settle(self, at, name, body):
        row = self.row(at, name)
        assert row["fence"] <= body["attempt"] <= row["tries"], "a fenced attempt"
        assert row["state"] == "reserved", "a second settle"
        row["state"] = "settled"

    def resolve(self, at, name, body):
        row = self.row(at, name)
        assert f"{row['state']} {body['decision']} {body['becomes']}" in ENDS, "a decision"
        assert body["fenced_below"] == row["tries"] + 1, "the fence"
        if signature := body.pop("signature", None):
            check_decision(self.entry, body | {"release_id": name}, signature, self.signers(at, {}))
        row |= {"state": body["becomes"], "fence": body["fenced_below"]}

    def answer(self, at, name, body):
        row, query = self.row(at, name), (name, body.get("query", f"{body['version']:020}"))
        assert row["state"] == "open" and body["version"] == row["version"] + 1, "versions"
        assert body["becomes"] in ("open", "closed") and query not in self.queries, "twice"
        self.queries.add(query)
        row |= {"state": body["becomes"], "version": body["version"]}

    def verdict(self, at, name, body):
        row, version = self.row(at, name), body["version"]
        assert row["state"] in ("open", "closed"), "no session"
        assert 0 < version <= row["version"] and (name, version) not in self.told, "a verdict"
        self.told.add((name, version))

    @property
    def last(self):
        return self.heads[-1] if self.heads else ""

    def apply(self, entry):
        """Hold one entry against the rules. AssertionError and others: it breaks one."""
        self.entry, body = entry, read_body(entry)
        text = json.dumps([entry[name] for name in FIELDS], separators=(",", ":")).encode()
        before = self.last if self.heads else self.first or entry["previous"]
        assert (entry["seq"], entry["previous"]) == (len(self.heads) + 1, before), "the chain"
        assert hashlib.sha256(text).hexdigest() == entry["hash"], "the hash"
        if entry["kind"] in WHOLE:
            assert body["entries"] == entry["seq"] - 1, "a history of another length"
        if entry["kind"] == "import":
            assert body["closed"] == self.end("open"), "sessions that stay open"
        if entry["kind"] in RULES.split():
            getattr(self, entry["kind"])(entry["scope"], entry["release_id"], body)
        if entry["kind"] == "session":
            self.reserve(entry["scope"], entry["release_id"], body, "open")
        self.heads.append(entry["hash"])


def judge(rows, audit, place=""):
    """Hold entries against the rules; "", or a sentence about the first that breaks one."""
    where = "the file"
    try:
        audit.first = first_link(place) if place else audit.first
        for row in rows:
            where = f"entry {len(audit.heads) + 1} ({row['kind']})"
            audit.apply(row)
            where = f"what follows entry {len(audit.heads)}"
    except AssertionError as rule:
        return f"{where} breaks a rule: {rule}"
    except (OSError, sqlite3.Error) as error:
        return f"{where} cannot be read: {error}"
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return f"{where} breaks a rule: it says something impossible"
    return ""


def main():
    audit = Audit()
    if not __debug__:
        sys.exit("python -O leaves out every check: run it without")
    file, *notes = sys.argv[1:] or ["ledger.jsonl"]
    if wrong := judge(entries(file), audit, file):
        sys.exit(wrong)
    wrong, missing, said, taken = compare(audit, notes)
    if wrong:
        sys.exit(wrong)
    for scope, blocks in sorted(audit.spent.items()):
        for block, units in sorted(blocks.items()):
            granted = audit.granted[scope][0]["epsilon"]
            print(json.dumps({"scope": scope, "block": block, "granted": granted, "units": units}))
    for number, reason in audit.reasons.items():
        print(f"entry {number} says why: {reason!r}", file=sys.stderr)
    for checkpoint, _ in audit.recovered:
        if not checkpoint or checkpoint[2] not in taken:
            print("recovered from checkpoint", checkpoint, "- name its file", file=sys.stderr)
    for sentence in said:
        print(sentence, file=sys.stderr)
    if audit.lost:
        print(
            "sums may be too small: entries were lost before entries", audit.lost, file=sys.stderr
        )
    if audit.unsigned:
        print("nobody signed the decisions in entries", audit.unsigned, file=sys.stderr)
    if audit.own:
        print("who charges could write the checkpoints in entries", audit.own, file=sys.stderr)
    print("all within the rules; the last hash is", audit.last, file=sys.stderr)
    if missing:
        names = ", ".join(sorted(key.split("+")[0] for key in missing))
        sys.exit(f"NOT compared with a witness: name the newest checkpoint by {names}")


if __name__ == "__main__":
    main()
