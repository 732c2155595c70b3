"""The entries of a ledger; what an event costs and what a grant holds, exactly, in 100 digits."""

import hashlib
import json
import sqlite3
import unicodedata
from datetime import date
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, setcontext
from fractions import Fraction
from math import ceil, floor

from fitting import fits, misfit
from shapes import FIELDS, HEADER, LINES

KEY = ["scope", "dag_id", "task_id", "run_identity", "digest", "ordinal"]
UNITS = 10**12, 10**18, 10**12  # of epsilon, delta and Renyi divergence
LARGEST = 2**62 - 1  # a sum that cannot be paid on its path stays at this
setcontext(Context(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN))


def is_export(place):
    with open(place, "rb") as file:
        return file.read(6) != b"SQLite"


def entries(place):
    """The entries of an export or of a SQLite ledger, as mappings."""
    if is_export(place):
        with open(place, encoding="utf-8") as file:
            header = json.loads(file.readline())
            wrong = misfit(HEADER, header)
            assert fits(HEADER, header), f"no export that this program reads: its {wrong}"
            for line in map(json.loads, file):
                assert any(fits(shape, line) for shape in LINES), "a line that no export has"
                if line["line"] == "entry":
                    yield {name: line[name] for name in (*FIELDS, "hash")}
        return
    query = f"SELECT {', '.join(FIELDS)}, hash FROM dpflow_entry ORDER BY seq"
    for row in sqlite3.connect(place).execute(query):
        yield dict(zip([*FIELDS, "hash"], row))


def first_link(place):
    """What the first entry of an export or of a SQLite ledger is chained to: a hash of the ledger's id."""
    if is_export(place):
        with open(place, encoding="utf-8") as file:
            name = json.loads(file.readline())["ledger"]
    else:
        query = "SELECT value FROM dpflow_meta WHERE name = 'anchor'"
        name = sqlite3.connect(place).execute(query).fetchone()[0][:16]
    return link(name)


def link(ledger):
    return hashlib.sha256(f"dpflow.ledger\n{ledger}".encode()).hexdigest()


def fold(name):
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def path_of(at):
    """A scope and those above it, the widest first."""
    return [at[:n] for n in range(len(at) + 1) if (at + "/")[n] == "/"]


def account(rule, block, at):
    """What pays for a block at a time in UTC; a quota that refreshes has an account for each period."""
    year, week, _ = date.fromisoformat(at[:10]).isocalendar()
    names = {"": "", "day": at[:10], "week": f"{year}-W{week:02}", "month": at[:7]}
    return "/".join(filter(None, (names[rule.get("period", "")], block)))


def decimal(number):
    return Decimal(number.numerator) / number.denominator


def divergence(epsilon, steps, order):
    """Of integer noise exp(-epsilon |x|), moved by so many steps."""
    t, a = decimal(epsilon), decimal(order)
    r, q = (-(2 * a - 1) * t).exp(), (-t).exp()
    p = (1 - r * q) / ((1 - r) * (1 + q))
    return Fraction(t * steps + (p + (1 - p) * r**steps).ln() / (a - 1))


def parts(event, order):
    """Epsilon, delta and Renyi divergence at an order (0: none) of one event."""
    kind = event["kind"].partition(".")[0]
    if kind == "composed":
        return [sum(column) for column in zip(*(parts(e, order) for e in event["events"]))]
    if kind == "repeated":
        return [event["count"] * part for part in parts(event["event"], order)]
    have = {name: Fraction(value) for name, value in event.items() if name != "kind"}
    delta, steps = have.get("delta", 0), int(have.get("sensitivity", 1))
    if kind in ("zcdp", "discrete-gaussian"):
        rho = have["rho"] if kind == "zcdp" else have["sensitivity"] ** 2 / (2 * have["sigma2"])
        return LARGEST, delta, rho * order
    if kind == "unprotected":
        return 0, 0, 0
    epsilon = 1 / have["scale"] if kind == "discrete-laplace" else have["epsilon"]
    bound = divergence(epsilon, steps, order) if order else 0
    if kind == "bounded-range":
        bound = min(bound, epsilon**2 * order / 8)
    return epsilon * steps, delta, bound


def least_cost(event, rule):
    """In whole units, rounded up: what a charge of this event pays at least under this filter."""
    amounts = parts(event, Fraction(rule["order"] or 0))
    units = [min(ceil(amount * unit), LARGEST) for amount, unit in zip(amounts, UNITS)]
    return [0 if rule["name"] == "renyi" else units[0], *units[1:]]


def capacity(rule):
    """What sums may reach: epsilon with delta, or divergence with delta. -1 where nothing may."""
    epsilon, delta, tail = (Fraction(rule[name]) for name in ("epsilon", "delta", "tail_delta"))
    basic = -1 if rule["name"] == "renyi" else floor(epsilon * UNITS[0])
    own = floor((delta - tail) * UNITS[1])
    if rule["order"] is None:
        return [basic, own, -1, -1]
    a, d = decimal(Fraction(rule["order"])), decimal(tail)
    penalty = (1 - 1 / a).ln() - (a * d).ln() / (a - 1)
    bound = floor((epsilon - Fraction(penalty)) * UNITS[2])
    return [basic, -1 if basic == -1 else own, min(max(bound, -1), LARGEST - 1), own]


def follows(before, charged, rule, binding):
    """What is spent means the same under the next terms of a scope."""
    former, table, _ = before
    same = former.get("period") == rule.get("period") and rule["order"] in (None, former["order"])
    if same and rule["order"]:
        share = Fraction(former["tail_delta"]) / Fraction(former["delta"])
        tail = Fraction(floor(Fraction(rule["delta"]) * share * UNITS[1]), UNITS[1])
        same = Fraction(rule["tail_delta"]) == tail
    assert former["name"] == rule["name"], "another filter"
    assert not charged or table == binding, "another table after a charge"
    assert same or not any(map(any, charged.values())), "other ways to count than its charges had"


def holds(limits, sums):
    paths = (sums[0], *limits[:2]), (sums[2], *limits[2:])
    return any(amount <= limit and sums[1] <= delta for amount, limit, delta in paths)
