"""Exact privacy amounts: every epsilon, delta and rho is a `fractions.Fraction`, checked once, at
the door.

An amount is written as a decimal string (``"0.1"``), a ratio (``"1/3"``), an int, a `Decimal`, a
`Fraction`, or a float, which is taken by its shortest decimal form: ``0.1`` means one tenth, not
the binary number next to it. Everything else raises `InvalidAmount`: zero where it makes no sense,
negative, NaN, infinite, too small, too large, bool. A number that is legal but astronomically long
is refused before it is expanded.

=========  ===========================  ==========================================
amount     legal range                  why these ends
=========  ===========================  ==========================================
epsilon    1e-12 to 1e6                 one accounting unit; beyond, no protection
delta      0, or 1e-18 up to below 1    one accounting unit; 1 protects nobody
rho        1e-24 to 1e6                 the square of an epsilon
=========  ===========================  ==========================================

Budgets count in whole units of 1e-12 for epsilon and 1e-18 for delta. What a release asks for is
taken to the unit below (`Epsilon`, `Delta`), and its noise is made for that: 1/3 becomes
0.333333333333, so three of them fit into a grant of 1, and no grant is ever overspent.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from dpflow.errors import InvalidAmount

#: What may be written where an exact amount is wanted.
Amount = str | int | float | Decimal | Fraction

EPSILON_UNIT: Final = Fraction(1, 10**12)  #: of epsilon and of Renyi divergence
DELTA_UNIT: Final = Fraction(1, 10**18)
#: Validation context of a model whose amounts stay as they are written (`Epsilon`, `Delta`).
AS_WRITTEN: Final = {"amounts": "as written"}

SMALLEST_EPSILON: Final = EPSILON_UNIT
LARGEST_EPSILON: Final = Fraction(10**6)
SMALLEST_DELTA: Final = DELTA_UNIT
SMALLEST_RHO: Final = Fraction(1, 10**24)

_LONGEST: Final = 220  # characters of a written amount
# Numerator and denominator, so that every amount can be written down again.
_LARGEST_TERM: Final = 10**100
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_RATIO: Final = re.compile(r"[+-]?\d+/\d+", re.ASCII)


def check_epsilon(value: object) -> Fraction:
    """A privacy loss bound epsilon in [1e-12, 1e6], in nats. Raises `InvalidAmount`."""
    return _check_range("epsilon", value, SMALLEST_EPSILON, LARGEST_EPSILON)


def check_delta(value: object) -> Fraction:
    """A failure probability delta: 0, or in [1e-18, 1). Raises `InvalidAmount`."""
    amount = parse_exact("delta", value)
    if amount == 0 or SMALLEST_DELTA <= amount < 1:
        return amount
    raise InvalidAmount(
        f"delta is {_describe_value(value)}; it must be 0, or from 1e-18 up to below 1. Write e.g. delta: 1e-6."
    )


def check_rho(value: object) -> Fraction:
    """A zero-concentrated DP parameter rho in [1e-24, 1e6]. Raises `InvalidAmount`."""
    return _check_range("rho", value, SMALLEST_RHO, LARGEST_EPSILON)


def parse_exact(what: str, value: object) -> Fraction:
    """The rational number that ``value`` writes down, sign and size unchecked.

    Args:
        what: the amount's name, for the message.
        value: an `Amount`.

    Raises:
        InvalidAmount: not an exact finite number, or longer than 100 digits.
    """
    number = _parse_number(value)
    if (
        number is None
        or abs(number.numerator) > _LARGEST_TERM
        or number.denominator > _LARGEST_TERM
    ):
        raise InvalidAmount(
            f"{what} is {_describe_value(value)}; it must be a finite number of at most 100 digits, written as a decimal "
            "string, a ratio, an int, a Decimal, a Fraction or a float. Write e.g. '0.1' or '1/4'."
        )
    return number


def to_units_up(amount: Fraction, unit: Fraction) -> int:
    """How many whole units cover ``amount``: what a spender pays."""
    return -((-amount) // unit)


def to_units_down(amount: Fraction, unit: Fraction) -> int:
    """How many whole units fit into ``amount``: what a grant holds."""
    return amount // unit


def decimal_places(amount: Fraction) -> int | None:
    """How many decimals write an amount, and all its multiples; None if none do."""
    rest, digits = amount.denominator, 0
    # A ratio has a finite decimal form only if 2 and 5 alone divide its denominator.
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        digits = max(digits, power)
    return digits if rest == 1 else None


def exact_text(amount: Fraction) -> str:
    """The exact amount as a string that `exact` reads back: ``"0.1"``, ``"1e-12"`` or ``"1/3"``."""
    digits = decimal_places(amount)
    if digits is None:
        return f"{amount.numerator}/{amount.denominator}"
    sign = "-" if amount < 0 else ""
    scaled = abs(amount.numerator) * 10**digits // amount.denominator
    # Small amounts are written as 1e-12, because rows of zeros are misread.
    if digits > 6 and scaled:
        coefficient = str(scaled).rstrip("0")
        exponent = len(str(scaled)) - 1 - digits
        if exponent < -4:
            point = "." if len(coefficient) > 1 else ""
            return f"{sign}{coefficient[0]}{point}{coefficient[1:]}e{exponent}"
    whole, part = divmod(scaled, 10**digits)
    return f"{sign}{whole}.{part:0{digits}d}" if digits else f"{sign}{whole}"


def short_text(amount: Fraction) -> str:
    """A short form for people, at most six significant digits: ``"0.333333"``. Not exact; see
    `text`.
    """
    return f"{float(amount):.6g}"


def _check_range(what: str, value: object, low: Fraction, high: Fraction) -> Fraction:
    amount = parse_exact(what, value)
    if low <= amount <= high:
        return amount
    raise InvalidAmount(
        f"{what} is {_describe_value(value)}; it must be from {exact_text(low)} to {exact_text(high)}. Write e.g. {what}: 0.1."
    )


def _parse_number(value: object) -> Fraction | None:
    # True is an integer to Python, and nobody means an epsilon of 1 by it.
    if isinstance(value, bool):
        return None
    if isinstance(value, Fraction):
        return value
    if isinstance(value, numbers.Integral):
        return Fraction(int(value))
    if isinstance(value, float):
        # The shortest decimal that reads back as this float, also for numpy's float64.
        value = float.__repr__(value)
    if isinstance(value, Decimal):
        return _from_decimal(value)
    # Longer texts are refused before they are read: the time of int() grows with their square.
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    written = value.strip()
    if _RATIO.fullmatch(written):
        numerator, denominator = map(int, written.split("/"))
        return Fraction(numerator, denominator) if denominator else None
    return _from_decimal(Decimal(written)) if _DECIMAL.fullmatch(written) else None


def _from_decimal(value: Decimal) -> Fraction | None:
    """The exact ratio; None for NaN, infinities, and exponents that would expand to more than a few
    hundred digits.
    """
    if (
        not value.is_finite()
        or (value and not -400 <= value.adjusted() <= 400)
        or len(value.as_tuple().digits) > 400
    ):
        return None
    return Fraction(value)


def _describe_value(value: object) -> str:
    # Writing a huge integer takes long, and Python refuses one of more than 4,300 digits.
    if isinstance(value, int) and value.bit_length() > 400:
        return "an integer of more than 120 digits"
    if (
        isinstance(value, Fraction)
        and max(abs(value.numerator), value.denominator).bit_length() > 800
    ):
        return "a ratio of more than 240 digits"
    if not isinstance(value, str | int | float | Decimal | Fraction):
        return f"of type {type(value).__name__}"
    plain = repr(value) if isinstance(value, str) else str(value)
    return plain if len(plain) <= 60 else plain[:57] + "..."


def _check_field(
    check: Callable[[object], Fraction], unit: Fraction, value: object, info: ValidationInfo
) -> Fraction:
    """Run a check inside pydantic; `InvalidAmount` is no ValueError, so it leaves the model
    untouched, with the field.
    """
    try:
        amount = check(value)
    except InvalidAmount as error:
        raise InvalidAmount(f"{info.field_name or 'value'}: {error}") from None
    return amount if info.context == AS_WRITTEN else to_units_down(amount, unit) * unit


def _json_schema(meaning: str, *examples: str) -> WithJsonSchema:
    # Whole units: a field holds just what these say.
    return WithJsonSchema({"type": "string", "description": meaning, "examples": [*examples]})


#: A pydantic field type: an epsilon in whole units, rounded down, JSON form an exact string. A bad
#: value raises `InvalidAmount` as is.
Epsilon = Annotated[
    Fraction,
    BeforeValidator(partial(_check_field, check_epsilon, EPSILON_UNIT)),
    PlainSerializer(exact_text, return_type=str),
    _json_schema("privacy loss bound, 1e-12 to 1e6, exact", "0.1", "1/4"),
]

#: A pydantic field type: a delta, as `Epsilon`.
Delta = Annotated[
    Fraction,
    BeforeValidator(partial(_check_field, check_delta, DELTA_UNIT)),
    PlainSerializer(exact_text, return_type=str),
    _json_schema("failure probability, 0 or 1e-18 up to below 1, exact", "1e-6", "1/1000000"),
]
