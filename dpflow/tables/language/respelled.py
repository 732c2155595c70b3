"""Spellings of SQL that stand for others of the language, and functions with literal arguments.

``IF``, ``NULLIF``, ``ILIKE``, ``IS TRUE``, ``IS DISTINCT FROM``, ``FLOOR``, ``dayname``, ``strftime`` and the like are read
as what they mean in the operators that every engine renders, so no engine has a second rule for them. What is new are
operators of DuckDB: ``round``, ``substring``, ``||``, ``date_diff``, ``regexp_matches`` and ``regexp_extract``. None of them
raises: positions and patterns are literals that are checked here, and dates are within the years 1 to 9999.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

from dpflow.tables.access.patterns import find_problem
from dpflow.tables.language.nodes import COMPARISONS, DIFFERENCES, Node, refuse_sql


class Reader(Protocol):
    """What copies operands into the language."""

    def read_operand(self, found: Any, depth: int) -> Node:
        """An operand of what is read at a depth."""

    def take_arguments(self, found: Any, *names: str, ignore: tuple[str, ...] = ()) -> list[Any]:
        """The named arguments; any other that is set is refused."""


#: The longest text that ``substring`` gives, and the longest pattern.
MAX_LENGTH, MAX_PATTERN = 10_000, 500
_ZERO, _ONE = Node("number", (Decimal(0),)), Node("number", (Decimal(1),))
_EMPTY = Node("text", ("",))
#: Parts of strftime's formats with few values: the part of a date, and its values from the least on.
_FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "b": ("month", tuple(calendar.month_abbr[1:])),
    "B": ("month", tuple(calendar.month_name[1:])),
    "a": ("isodow", tuple(calendar.day_abbr)),
    "A": ("isodow", tuple(calendar.day_name)),
    "m": ("month", tuple(f"{n:02}" for n in range(1, 13))),
    "d": ("day", tuple(f"{n:02}" for n in range(1, 32))),
}
#: Those that begin a date's own text, and how long they are.
_BEGINNINGS = (("%Y-%m-%d", "day", 10), ("%Y-%m", "month", 7), ("%Y", "year", 4))
#: Units of INTERVAL, as months or as seconds.
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "WEEK": 604_800}


def read_respelled(reader: Reader, parsed: Any, depth: int) -> Node | None:
    """The node of another spelling; None for what is read as it stands. Raises `PlanRefused`."""
    kind = type(parsed).__name__
    if kind == "Anonymous":
        kind = _NAMED.get(parsed.name.lower(), "")
    read = _SPELLINGS.get(kind)
    return None if read is None else read(reader, parsed, depth)


def _if(reader: Reader, parsed: Any, depth: int) -> Node:
    test, value, default = reader.take_arguments(parsed, "this", "true", "false")
    values = [test, value, *([] if type(default).__name__ in ("NoneType", "Null") else [default])]
    return Node("CASE", tuple(reader.read_operand(one, depth) for one in values))


def _nullif(reader: Reader, parsed: Any, depth: int) -> Node:
    value, other = _read_two(reader, parsed, depth)
    whens: tuple[Node, ...] = (Node("<>", (value, other)), value)
    if other.op not in ("number", "text", "truth"):
        whens += (Node("IS NULL", (other,)), value)
    return Node("CASE", whens)


def _read_two(reader: Reader, parsed: Any, depth: int) -> tuple[Node, Node]:
    left, right = reader.take_arguments(parsed, "this", "expression", ignore=("safe",))
    return reader.read_operand(left, depth), reader.read_operand(right, depth)


def _is_same(reader: Reader, parsed: Any, depth: int) -> Node:
    """NULL equals NULL, and the comparison is never NULL."""
    sides = reader.take_arguments(parsed, "this", "expression", ignore=("safe",))
    kept = [side for side in sides if type(_strip(side)).__name__ != "Null"]
    if len(kept) == 1:
        return Node("IS NULL", (reader.read_operand(kept[0], depth),))
    return _compare_same(*_read_two(reader, parsed, depth))


def _compare_same(left: Node, right: Node) -> Node:
    sides = [Node("IS NULL", (one,)) for one in (left, right) if one.op not in _LITERALS]
    same = Node("=", (left, right))
    for missing in sides:
        same = Node("AND", (same, Node("NOT", (missing,))))
    return Node("OR", (same, Node("AND", tuple(sides)))) if len(sides) == 2 else same


_LITERALS = ("number", "text", "truth")


def _in_rows(reader: Reader, parsed: Any, depth: int) -> Node | None:
    """``(a, b) IN (('x', 1), ...)``: it is never NULL. Each pair is compared as ``=`` compares it, so a text beside a
    time stands for that time.
    """
    if type(parsed.this).__name__ != "Tuple":
        return None
    row, listed = reader.take_arguments(parsed, "this", "expressions")
    values = [reader.read_operand(one, depth) for one in row.expressions]
    found = []
    for other in listed or ():
        literals = [reader.read_operand(one, depth) for one in other.expressions]
        if len(literals) != len(values) or any(one.op not in _LITERALS for one in literals):
            refuse_sql("literals", f"IN takes rows of {len(values)} literals here")
        pairs = zip(values, literals)
        found.append(_connect("AND", [_compare_same(one, literal) for one, literal in pairs]))
    if not found:
        refuse_sql("literals", "IN takes a list of rows of literals")
    # Sorted and distinct, so that a list in another order is the same condition.
    return _connect("OR", sorted(set(found), key=str))


def _connect(operator: str, nodes: Sequence[Node]) -> Node:
    """Nodes with a connective between them, nested as little as can be."""
    if len(nodes) == 1:
        return nodes[0]
    middle = (len(nodes) + 1) // 2
    halves = _connect(operator, nodes[:middle]), _connect(operator, nodes[middle:])
    return Node(operator, halves)


def _is_other(reader: Reader, parsed: Any, depth: int) -> Node:
    return Node("NOT", (_is_same(reader, parsed, depth),))


def _is(reader: Reader, parsed: Any, depth: int) -> Node | None:
    value, other = reader.take_arguments(parsed, "this", "expression")
    if type(other).__name__ != "Boolean":
        return None
    node = reader.read_operand(value, depth)
    test = node if other.this else Node("NOT", (node,))
    return Node("AND", (test, Node("NOT", (Node("IS NULL", (node,)),))))


def _ilike(reader: Reader, parsed: Any, depth: int) -> Node:
    value, other = reader.take_arguments(parsed, "this", "expression", ignore=("negate",))
    pattern = _read_literal(reader, other, "ILIKE takes a literal pattern")
    if not pattern.isascii():
        refuse_sql("literals", "ILIKE takes a pattern of ASCII characters; write lower(x) LIKE ...")
    lowered = Node("lower", (reader.read_operand(value, depth),))
    node = Node("LIKE", (lowered, Node("text", (pattern.lower(),))))
    return Node("NOT", (node,)) if parsed.args.get("negate") else node


def _read_literal(reader: Reader, parsed: Any, what: str) -> str:
    node = reader.read_operand(parsed, 3) if type(parsed).__name__ in ("Literal", "Paren") else None
    if node is None or node.op != "text":
        refuse_sql("literals", what)
    return str(node.args[0])


def _contains(before: str, after: str) -> Callable[[Reader, Any, int], Node]:
    """starts_with, ends_with and contains, as LIKE."""

    def read(reader: Reader, parsed: Any, depth: int) -> Node:
        arguments = parsed.args.get("expressions") or [parsed.this, parsed.args.get("expression")]
        if len(arguments) != 2:
            refuse_sql("literals", "starts_with and the like take a text and a literal")
        part = _read_literal(reader, arguments[1], "starts_with and the like take a literal part")
        if set(part) & set("%_\\"):
            refuse_sql("literals", "a part with %, _ or \\ would be a pattern; write LIKE")
        pattern = Node("text", (before + part + after,))
        return Node("LIKE", (reader.read_operand(arguments[0], depth), pattern))

    return read


def _floor(reader: Reader, parsed: Any, depth: int) -> Node:
    (value,) = reader.take_arguments(parsed, "this")
    return Node("bucket", (reader.read_operand(value, depth), _ONE))


def _round(reader: Reader, parsed: Any, depth: int) -> Node:
    value, decimals = reader.take_arguments(parsed, "this", "decimals")
    digits = _ZERO if decimals is None else reader.read_operand(decimals, depth)
    if digits.op != "number" or digits.args[0] not in range(13):
        refuse_sql("literals", "ROUND takes a number, and a literal number of decimals up to 12")
    return Node("round", (reader.read_operand(value, depth), digits))


def _multiply(reader: Reader, parsed: Any, depth: int) -> Node | None:
    """``FLOOR(x / 50) * 50`` is a bucket, whose start is a whole number and so a key."""
    for one, other in ((parsed.this, parsed.expression), (parsed.expression, parsed.this)):
        floor = _strip(one)
        inner: Any = _strip(floor.this) if type(floor).__name__ == "Floor" else None
        if type(inner).__name__ != "Div" or type(other).__name__ != "Literal":
            continue
        (quotient,) = reader.take_arguments(floor, "this")
        width, divisor = (
            reader.read_operand(other, depth),
            reader.read_operand(inner.expression, depth),
        )
        whole = width.op == "number" and width.args[0] == width.args[0].to_integral_value()
        if whole and width == divisor and 1 <= width.args[0] < 2**53:
            value = reader.take_arguments(
                _strip(quotient), "this", "expression", ignore=("typed", "safe")
            )[0]
            return Node("bucket", (reader.read_operand(value, depth), width))
    return None


def _strip(parsed: Any) -> Any:
    while type(parsed).__name__ == "Paren":
        parsed = parsed.this
    return parsed


def _substring(reader: Reader, parsed: Any, depth: int) -> Node:
    if type(parsed).__name__ == "Left":
        value, length = reader.take_arguments(parsed, "this", "expression")
        start: Any = None
    else:
        value, start, length = reader.take_arguments(parsed, "this", "start", "length")
    first = _ONE if start is None else reader.read_operand(start, depth)
    number = Node("number", (Decimal(MAX_LENGTH),))
    if length is not None:
        number = reader.read_operand(length, depth)
    for one, low in ((first, 1), (number, 0)):
        if one.op != "number" or not low <= one.args[0] <= MAX_LENGTH or one.args[0] % 1:
            refuse_sql(
                "literals",
                f"a part of a text is from a literal position, 1 or more, with a literal length up to {MAX_LENGTH}",
            )
    return Node("substring", (reader.read_operand(value, depth), first, number))


def _join(reader: Reader, parsed: Any, depth: int) -> Node:
    left, right = _read_two(reader, parsed, depth)
    return Node("||", (left, right))


def _concat(reader: Reader, parsed: Any, depth: int) -> Node:
    """As ``||``, but that a missing text is an empty one."""
    (parts,) = reader.take_arguments(parsed, "expressions", ignore=("safe", "coalesce"))
    nodes = [reader.read_operand(one, depth) for one in parts]
    texts = [one if one.op == "text" else Node("coalesce", (one, _EMPTY)) for one in nodes]
    joined = texts[0] if len(texts) > 1 else Node("||", (texts[0], _EMPTY))
    for text in texts[1:]:
        joined = Node("||", (joined, text))
    return joined


def _name_part(part: str, names: tuple[str, ...], value: Node) -> Node:
    """The name of a part of a date: as CASE its outcomes are public."""
    whens: list[Node] = []
    for number, name in enumerate(names, 1):
        test = Node("=", (Node(part, (value,)), Node("number", (Decimal(number),))))
        whens += [test, Node("text", (name,))]
    return Node("CASE", tuple(whens))


def _date_name(letter: str) -> Callable[[Reader, Any, int], Node]:
    def read(reader: Reader, parsed: Any, depth: int) -> Node:
        (value,) = reader.take_arguments(parsed, "this")
        return _name_part(*_FORMATS[letter], reader.read_operand(value, depth))

    return read


def _strftime(reader: Reader, parsed: Any, depth: int) -> Node:
    _, arguments = reader.take_arguments(parsed, "this", "expressions")
    if len(arguments or ()) != 2:
        refuse_sql("literals", "strftime takes a date and a literal format")
    shape = _read_literal(reader, arguments[1], "strftime takes a literal format")
    value, parts, rest = reader.read_operand(arguments[0], depth), list[Node](), shape
    while rest:
        beginning = next((one for one in _BEGINNINGS if rest.startswith(one[0])), None)
        if beginning is not None:
            form, unit, length = beginning
            start = Node("date_trunc", (Node("text", (unit,)), value))
            numbers = (_ONE, Node("number", (Decimal(length),)))
            parts.append(Node("substring", (Node("CAST", (start, "VARCHAR")), *numbers)))
            rest = rest[len(form) :]
        elif rest[0] != "%":
            text = rest.partition("%")[0]
            parts.append(Node("text", (text,)))
            rest = rest[len(text) :]
        elif rest[1:2] in _FORMATS:
            parts.append(_name_part(*_FORMATS[rest[1]], value))
            rest = rest[2:]
        else:
            known = ", ".join(f"%{letter}" for letter in ("Y", *_FORMATS))
            refuse_sql("literals", f"strftime has the parts {known} here, and no {rest[:2]}")
    if not parts or not any(one.op != "text" for one in parts):
        refuse_sql("literals", "this format gives one text for all dates; write the text")
    joined = parts[0]
    for part in parts[1:]:
        joined = Node("||", (joined, part))
    return joined


def _date_diff(reader: Reader, parsed: Any, depth: int) -> Node:
    later, earlier, unit = reader.take_arguments(
        parsed, "this", "expression", "unit", ignore=("date_part_boundary",)
    )
    name = "day" if unit is None else str(unit.this).lower().removesuffix("s")
    if name not in DIFFERENCES:
        refuse_sql("literals", f"date_diff counts one of {', '.join(DIFFERENCES)}")
    moments = (reader.read_operand(earlier, depth), reader.read_operand(later, depth))
    return Node("date_diff", (Node("text", (name,)), *moments))


def _shift(reader: Reader, parsed: Any, depth: int) -> Node | None:
    """A literal date plus or minus an INTERVAL."""
    value, interval = parsed.this, _strip(parsed.expression)
    if type(interval).__name__ != "Interval":
        return None
    literal = reader.read_operand(value, depth)
    amount, unit = _read_interval(interval)
    sign = -1 if type(parsed).__name__ == "Sub" else 1
    if literal.op != "text":
        refuse_sql(
            "literals",
            "an INTERVAL is added to a literal date, such as DATE '2024-01-01' + INTERVAL 30 DAY; the days between two "
            "columns are date_diff('day', a, b)",
        )
    try:
        moment = dt.datetime.fromisoformat(literal.args[0])
        if unit in _MONTHS:
            months = moment.year * 12 + moment.month - 1 + sign * amount * _MONTHS[unit]
            year, month = divmod(months, 12)
            last = calendar.monthrange(year, month + 1)[1]
            moment = moment.replace(year=year, month=month + 1, day=min(moment.day, last))
        else:
            moment += dt.timedelta(seconds=sign * amount * _SECONDS[unit])
    except (ValueError, OverflowError):
        refuse_sql("literals", "the date and the INTERVAL give no date of the years 1 to 9999")
    return Node("text", (str(moment.date() if moment.time() == dt.time() else moment),))


def _read_interval(interval: Any) -> tuple[int, str]:
    text, unit = getattr(interval.this, "this", None), interval.args.get("unit")
    name = str(getattr(unit, "this", "")).upper().removesuffix("S")
    whole = isinstance(text, str) and re.fullmatch(r"-?\d{1,9}", text, re.ASCII)
    if not whole or name not in _MONTHS | _SECONDS:
        refuse_sql("literals", "an INTERVAL is a whole number of one unit, such as INTERVAL 30 DAY")
    return int(str(text)), name


def _compare(reader: Reader, parsed: Any, depth: int) -> Node | None:
    """The time between two timestamps, beside an INTERVAL."""
    left, right = _strip(parsed.this), _strip(parsed.expression)
    if type(right).__name__ != "Interval" or type(left).__name__ != "Sub":
        return None
    amount, unit = _read_interval(right)
    if unit in _MONTHS:
        refuse_sql("literals", "months have no length; compare with days, or use date_diff")
    later, earlier = reader.take_arguments(left, "this", "expression")
    moments = (reader.read_operand(earlier, depth), reader.read_operand(later, depth))
    difference = Node("date_diff", (Node("text", ("microsecond",)), *moments))
    number = Node("number", (Decimal(amount * _SECONDS[unit] * 10**6),))
    return Node(COMPARISONS[type(parsed).__name__], (difference, number))


def _regexp(reader: Reader, parsed: Any, depth: int) -> Node:
    extracts = type(parsed).__name__ == "RegexpExtract"
    value, other, group = reader.take_arguments(
        parsed, "this", "expression", "group", ignore=("null_if_pos_overflow",)
    )
    pattern = _read_literal(reader, other, "a regular expression is a literal")
    number = _ONE if group is None else reader.read_operand(group, depth)
    position = int(number.args[0]) if group is not None and number.op == "number" else 0
    if len(pattern) > MAX_PATTERN or not 0 <= position <= 9 or number.op != "number":
        refuse_sql(
            "literals",
            f"a regular expression has at most {MAX_PATTERN} characters, and nine groups",
        )
    # One that DuckDB does not take would fail where rows are read.
    if problem := find_problem(pattern):
        refuse_sql("literals", f"the regular expression is none of DuckDB's: {problem}")
    subject = (reader.read_operand(value, depth), Node("text", (pattern,)))
    if not extracts:
        return Node("regexp_matches", subject)
    return Node("regexp_extract", (*subject, Node("number", (Decimal(position),))))


#: Functions that are parsed as a name with arguments.
_NAMED = {"strftime": "strftime", "prefix": "StartsWith", "suffix": "EndsWith"}
_SPELLINGS: dict[str, Callable[[Reader, Any, int], Node | None]] = {
    "If": _if,
    "Nullif": _nullif,
    "NullSafeEQ": _is_same,
    "NullSafeNEQ": _is_other,
    "In": _in_rows,
    "Is": _is,
    "ILike": _ilike,
    "StartsWith": _contains("", "%"),
    "EndsWith": _contains("%", ""),
    "Contains": _contains("%", "%"),
    "Floor": _floor,
    "Round": _round,
    "Mul": _multiply,
    "Substring": _substring,
    "Left": _substring,
    "DPipe": _join,
    "Concat": _concat,
    "Dayname": _date_name("A"),
    "Monthname": _date_name("B"),
    "strftime": _strftime,
    "DateDiff": _date_diff,
    "Add": _shift,
    "Sub": _shift,
    "RegexpLike": _regexp,
    "RegexpExtract": _regexp,
    **dict.fromkeys(COMPARISONS, _compare),
}
