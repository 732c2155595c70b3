"""Whether a value has a shape, and which field has not."""

import json
import re
from contextlib import suppress
from fractions import Fraction

AMOUNT = r"(\d{1,101}(\.\d{1,110})?(e-\d{1,3})?|\d{1,101}/\d{1,101})"


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


def misfit(shape, value):
    """The field that does not fit, such as filter.version; "" if no single one is to blame."""
    if type(value) is str and hasattr(shape, "inside"):
        with suppress(ValueError):
            value = json.loads(value)
        shape = shape.inside
    shape = getattr(shape, "fields", shape)
    if not isinstance(shape, dict) or type(value) is not dict:
        return ""
    names = {name.rstrip("?"): part for name, part in shape.items()}
    for name in sorted(names | value):
        if name not in value and f"{name}?" in shape:
            continue
        if not (name in names and name in value and fits(names[name], value[name])):
            inner = misfit(names.get(name), value.get(name))
            return f"{name}.{inner}" if inner else name
    return ""


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


def spelled(value):
    """As the ledger writes JSON: one spelling for equal values, and no name twice."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def text_of(shape, same=True):
    """JSON of this shape in a text."""

    def check(value):
        held = json.loads(value) if type(value) is str else None
        return fits(shape, held) and (not same or spelled(held) == value)

    check.inside = shape
    return check
