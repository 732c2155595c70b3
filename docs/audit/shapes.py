"""What each kind of entry holds, field by field and as the ledger spells it: nothing else is read."""

import base64
import hashlib
import json
import re
from datetime import datetime
from fractions import Fraction

AMOUNT = r"(\d{1,101}(\.\d{1,110})?(e-\d{1,3})?|\d{1,101}/\d{1,101})"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
NESTED = 32  # events in events
FIELDS = ["seq", "at", "kind", "scope", "release_id", "principal", "body", "root", "previous"]


def fits(shape, value):
    """A type; a constant; {either, or}; [items of one shape]; (a list, of these); a dict with these
    names, "name?" where it may be missing; or a function that says so."""
    if isinstance(shape, frozenset):
        return any(fits(each, value) for each in shape)
    if isinstance(shape, list):
        return type(value) is list and all(fits(shape[0], item) for item in value)
    if isinstance(shape, tuple):
        return type(value) is list and len(value) == len(shape) and all(map(fits, shape, value))
    if isinstance(shape, dict):
        names = {name.rstrip("?"): part for name, part in shape.items()}
        needed = {name for name in shape if name[-1] != "?"}
        known = type(value) is dict and needed <= value.keys() <= names.keys()
        return known and all(fits(names[name], part) for name, part in value.items())
    if isinstance(shape, type):
        return type(value) is shape
    if callable(shape):
        return shape(value)
    return type(value) is type(shape) and value == shape


def either(*shapes):
    return frozenset(shapes)


def matching(pattern):
    return lambda value: type(value) is str and bool(re.fullmatch(pattern, value, re.ASCII))


def whole(least, largest=float("inf")):
    return lambda value: type(value) is int and least <= value <= largest


def between(least, largest, also=None):
    """An amount as text."""

    def check(value):
        if not matching(AMOUNT)(value):
            return False
        amount = Fraction(value)
        size = max(amount.numerator, amount.denominator)
        return size <= 10**100 and (amount == also or least <= amount <= largest)

    return check


def time(value):
    return matching(TIME)(value) and bool(datetime.fromisoformat(value))


def verifier_key(value):
    """Of signed notes: a name, four bytes of a digest, and base64 of 1 and an Ed25519 key."""
    if type(value) is not str or value.count("+") < 2:
        return False
    name, number, text = value.split("+", 2)
    key = base64.b64decode(text, validate=True)
    known = hashlib.sha256(name.encode() + b"\n" + key).digest()[:4].hex() == number
    return known and key[:1] == b"\x01" and len(key) == 33


def spelled(value):
    """As the ledger writes JSON: one spelling for equal values, and no name twice."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def text_of(shape, same=True):
    """JSON of this shape in a text."""

    def check(value):
        held = json.loads(value) if type(value) is str else None
        return fits(shape, held) and (not same or spelled(held) == value)

    return check


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


def rule(value):
    """The filter of a grant."""
    order = between(1 + Fraction(1, 10**100), 10**18)
    shape = {"version": 1, "name": either("basic", "renyi", "hybrid"), "epsilon": EPSILON}
    shape |= {"delta": DELTA, "order": either(None, order), "tail_delta": DELTA}
    shape |= {"period?": either("day", "week", "month"), "certified_by?": keys, "signers?": keys}
    if not fits(shape | {"witness?": (verifier_key, whole(1, 2**31 - 1))}, value):
        return False
    is_open, tail = value["order"] is not None, Fraction(value["tail_delta"])
    if is_open != (tail > 0) or tail > Fraction(value["delta"]):
        return False
    return value["name"] == "hybrid" or is_open == (value["name"] == "renyi")


UNITS = whole(0), whole(0), whole(0)
SLOT = named, str
FILTER, TEXT = text_of(rule), either(None, str)
TERMS = {"filter": FILTER, "protects": str, "blocks": either(0, 1), "approvals?": 2}
TERMS |= {"capacity": (whole(-1), whole(-1), whole(-1), whole(-1)), "signature?": named}
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
    "resolve": (RELEASE, dict.fromkeys(("decision", "reason", "becomes"), str) | {"fenced_below": int}),
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
    assert fits(ENTRY, entry), "it is no entry"
    body = json.loads(entry["body"])
    assert spelled(body) == entry["body"], "its body is not spelled as the ledger does"
    if entry["kind"] in KINDS:
        names, shape = KINDS[entry["kind"]]
        found = entry["scope"], entry["release_id"]
        assert fits(names, [*found]) and entry["principal"], "names that do not belong there"
        assert fits(shape, body), "says what such an entry cannot say"
    return body
