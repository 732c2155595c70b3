"""What each kind of entry holds, field by field and as the ledger spells it: nothing else is read."""

import base64
import hashlib
import json
import re
from datetime import datetime
from fractions import Fraction

from fitting import between, either, fits, matching, misfit, spelled, text_of, whole

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
P25519 = 2**255 - 19
Y8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
SMALL = {0, 1, P25519 - 1, Y8, P25519 - Y8}  # of keys (their y) that anybody can sign for
UNSEEN = (
    "[\0-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    "\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
NESTED = 32  # events in events
FIELDS = ["seq", "at", "kind", "scope", "release_id", "principal", "body", "root", "previous"]


def time(value):
    return matching(TIME)(value) and bool(datetime.fromisoformat(value))


def verifier_key(value):
    """Of signed notes: a name of visible ASCII, four bytes of a digest, and base64 of 1 and an Ed25519 key of a person's."""
    if type(value) is not str or not re.fullmatch(r"[!-*,-~]{1,200}\+[0-9a-f]{8}\+\S{44}", value):
        return False
    name, number, text = value.split("+", 2)
    key = base64.b64decode(text, validate=True)
    known = hashlib.sha256(name.encode() + b"\n" + key).digest()[:4].hex() == number
    y = int.from_bytes(key[1:], "little") % 2**255
    is_spelled = base64.b64encode(key).decode() == text and key[:1] == b"\x01" and len(key) == 33
    return known and is_spelled and y < P25519 and y not in SMALL


named, digest = matching("(?s:.+)"), matching("[0-9a-f]{64}")
EPSILON, RHO = between(Fraction(1, 10**12), 10**6), between(Fraction(1, 10**24), 10**6)
DELTA = between(Fraction(1, 10**18), 1 - Fraction(1, 10**100), 0)
POSITIVE = between(Fraction(1, 10**100), 10**100)
EVENTS = {
    "pure.v1": {"epsilon": EPSILON},
    "sparse-vector.v1": {"epsilon": EPSILON},
    "bounded-range.v1": {"epsilon": EPSILON},
    "approximate.v1": {"epsilon": EPSILON, "delta": DELTA},
    "zcdp.v1": {"rho": RHO, "delta": DELTA},
    "discrete-laplace.v1": {"scale": POSITIVE, "sensitivity": whole(1, 10**30)},
    "discrete-gaussian.v1": {"sigma2": POSITIVE, "sensitivity": POSITIVE},
    "unprotected.v1": {},
    "composed.v1": {"events": list},
    "repeated.v1": {"event": dict, "count": whole(1, 10**12)},
}


def event(value, depth=0):
    """An event of a known kind, with legal amounts. Parts of another make a guarantee themselves."""
    kind = value.get("kind") if type(value) is dict else None
    if type(kind) is not str or kind not in EVENTS or depth == NESTED:
        return False
    if not fits(EVENTS[kind] | {"kind": str}, value) or (depth and kind == "unprotected.v1"):
        return False
    if kind == "discrete-laplace.v1":
        return 1 <= value["sensitivity"] / Fraction(value["scale"]) * 10**12 <= 10**18
    if kind == "discrete-gaussian.v1":
        rho = Fraction(value["sensitivity"]) ** 2 / Fraction(value["sigma2"]) / 2
        return Fraction(1, 10**24) <= rho <= 10**6
    inner = value.get("events", [value["event"]] if "event" in value else [])
    is_empty = kind == "composed.v1" and not inner
    return not is_empty and all(event(each, depth + 1) for each in inner)


def keys(value):
    return fits([verifier_key], value) and value != []


ORDER = between(1 + Fraction(1, 10**100), 10**18)
RULE = {"version": 1, "name": either("basic", "renyi", "hybrid"), "epsilon": EPSILON}
RULE |= {"delta": DELTA, "order": either(None, ORDER), "tail_delta": DELTA, "signers?": keys}
RULE |= {"period?": either("day", "week", "month"), "certified_by?": keys}
RULE |= {"witness?": (verifier_key, whole(1, 2**31 - 1))}


def rule(value):
    """The filter of a grant."""
    if not fits(RULE, value):
        return False
    is_open, tail = value["order"] is not None, Fraction(value["tail_delta"])
    if is_open != (tail > 0) or tail > Fraction(value["delta"]):
        return False
    return value["name"] == "hybrid" or is_open == (value["name"] == "renyi")


rule.fields = RULE


UNITS = whole(0), whole(0), whole(0)
SLOT = named, str
FILTER, TEXT = text_of(rule), either(None, str)
TERMS = {"filter": FILTER, "protects": str, "blocks": either(0, 1), "approvals?": 2}
TERMS |= {
    "capacity": (whole(-1), whole(-1), whole(-1), whole(-1)),
    "signature?": named,
    "reason?": named,
}
CHARGE = {"scope": named, "dag_id": str, "task_id": str, "run_identity": str, "digest": named}
CHARGE |= {"ordinal": whole(0), "family": str, "event": text_of(event), "blocks": text_of([named])}
CHARGE |= {"request": text_of(dict, same=False), "slot": either(None, SLOT), "data": [named]}
CHARGE |= {"partition": str, "certified_by?": keys, "charges": [(named, str, *UNITS)]}
SCOPE, RELEASE, LEDGER = (named, ""), (named, named), ("", "")  # scope and release of an entry
KINDS = {
    "grant": (SCOPE, TERMS | {"proposal?": whole(1)}),
    "propose": (SCOPE, TERMS),
    "reserve": (RELEASE, CHARGE | {"state": None, "exclusive": 0}),
    "session": (RELEASE, CHARGE | {"state": digest, "exclusive": either(0, 1)}),
    "refuse": (SCOPE, dict),
    "join": (RELEASE, {"slot": SLOT}),
    "retry": (RELEASE, {"attempt": whole(1)}),
    "settle": (RELEASE, {"attempt": whole(1), "result": digest, "snapshot": TEXT}),
    "resolve": (RELEASE, {
        "decision": str, "reason": str, "becomes": str, "fenced_below": int, "signature?": named,
    }),
    "answer": (RELEASE, {"answers": digest, "version": int, "state": digest, "becomes": str, "query?": named}),
    "verdict": (RELEASE, {"version": int, "verdict": named, "failures_left": either(None, int)}),
    "import": (LEDGER, {"entries": int, "closed": [str]}),
    "upgrade": (LEDGER, {"from": str, "entries": int}),
    "reanchor": (LEDGER, {"reason": named, "entries": int}),
    "rotate": (LEDGER, {"keys": whole(0)}),
    "suite": (LEDGER, {"suite": named, "places": [str], "block": TEXT, "table": named, "registered": bool}),
    "witness": (LEDGER, {"note": named, "own": bool}),
    "recover": (LEDGER, {
        "reason": named, "marked": either(None, (whole(0), digest)), "closed": [str], "unsettled": [str], "data": [str],
        "checkpoint": either(None, (named, whole(1), digest, named)), "spent": [(named, str, *UNITS)],
        "scopes": [(named, FILTER, str, either(0, 1), either(0, 1), either(1, 2))],
    }),
}  # fmt: skip
ENTRY = dict.fromkeys(("kind", "scope", "release_id", "principal", "body"), str) | {"at": time}
ENTRY |= {"seq": int, "root": digest, "previous": digest, "hash": digest}
HEADER = {"line": "header", "format": "dpflow-ledger", "schema": "1", "ledger": named}
LINES = [
    ENTRY | {"line": "entry", "seal": str},
    {"line": "result", "release_id": str, "result": str},
    {"line": "answer", "session_id": str, "query": str, "answer": str},
]


def read_body(entry):
    """What an entry says, which must be what its kind may say; a note of somebody's says anything."""
    assert fits(ENTRY, entry), f"its {misfit(ENTRY, entry)} is none of an entry's"
    assert not re.search(UNSEEN, entry["principal"]), "a principal with signs that nobody sees"
    body = json.loads(entry["body"])
    is_spelled = type(body) is dict and spelled(body) == entry["body"]
    assert is_spelled, "its body is not spelled as the ledger does"
    if entry["kind"] in KINDS:
        names, shape = KINDS[entry["kind"]]
        found = entry["scope"], entry["release_id"]
        assert fits(names, [*found]) and entry["principal"], "names that do not belong there"
        field = misfit(shape, body) if not fits(shape, body) else None
        assert field is None, f"its {field or 'body'} is missing, unknown or impossible"
    return body
