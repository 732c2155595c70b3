"""Interval arithmetic as SQL: from the bounds of an expression's operands to its own. Parts of bounds stand in several
bounds; whoever puts one into a query copies it.

The lower and the upper bound are NULL together where there is no interval: so it is for a quotient whose divisor may
be 0, or the logarithm of what may be negative. What has no rule here has no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import islice
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import is_there, iterate_parts

#: A released number's column: the position of its release, and its own.
Source = tuple[int, int]
#: Functions that keep the order of numbers, in their first argument.
_MONOTONE = (exp.Round, exp.Floor, exp.Ceil, exp.Trunc, exp.Sign, exp.Cbrt, exp.Exp)
#: Larger bounds are not written.
_MAX_NODES = 10_000
_NUMBERS = {"TINYINT", "SMALLINT", "INT", "BIGINT", "INT128", "FLOAT", "DOUBLE", "DECIMAL"}
#: Those that hold every released number.
_WIDE = {"BIGINT", "INT128", "FLOAT", "DOUBLE"}


class NoisyNull(IntEnum):
    """Where noise may decide whether an expression is NULL."""

    NOWHERE = 0
    UNBOUNDED = 1
    """In rows where it has no bounds: those of ``ln(n)`` are there where those of ``n`` are above 0."""
    ANYWHERE = 2


@dataclass(frozen=True)
class Known:
    """What is known of an expression's noise.

    Attributes:
        noisy: it depends on noise.
        sources: the released columns that it is computed from.
        low, high: expressions of its bounds; None where there is no rule.
        count: how many released numbers must be within their widths for the bounds to hold.
        noisy_null: where noise may make it NULL, or a number of NULL.
        never_null: it has a value in every row.
        weight: at least of how many parts its bounds are.
    """

    noisy: bool = False
    sources: frozenset[Source] = frozenset()
    low: Any = None
    high: Any = None
    count: Any = None
    noisy_null: NoisyNull = NoisyNull.NOWHERE
    never_null: bool = False
    weight: int = 0

    @property
    def ruled(self) -> bool:
        """Whether it has noise and bounds for it."""
        return self.noisy and self.low is not None


EXACT = Known()


def combine(
    parts: Iterable[Known], sources: frozenset[Source] = frozenset(), noisy: bool = True
) -> Known:
    """What is computed from parts by no rule: it has noise, and no bounds."""
    sources = sources.union(*(part.sources for part in parts))
    return Known(noisy, sources, noisy_null=NoisyNull.ANYWHERE)


def number(value: int) -> Any:
    """A number as an expression."""
    return exp.Literal.number(value)


def brackets(expression: Any) -> Any:
    """An expression in brackets; one of a query is copied before."""
    return exp.Paren(this=expression)


def add_counts(parts: Iterable[Known]) -> Any:
    """How many numbers several operands need together."""
    total = None
    for part in parts:
        if part.noisy:
            assert part.count is not None
            total = part.count if total is None else exp.Add(this=total, expression=part.count)
    return number(0) if total is None else total


def choose(test: Any, value: Any, otherwise: Any = None) -> Any:
    """``CASE WHEN test THEN value ELSE otherwise END``."""
    return brackets(exp.Case(ifs=[exp.If(this=test, true=value)], default=otherwise))


def call(kind: type, parts: Sequence[Any]) -> Any:
    """LEAST or GREATEST of expressions."""
    first, *others = parts
    return kind(this=first, expressions=others)


def call_macro(name: str, parts: Sequence[Any]) -> Any:
    """One of `dpflow.tables.public.query_worker.INTERVAL_MACROS`."""
    return exp.Anonymous(this=name, expressions=list(parts))


def all_bounded(parts: Sequence[Known]) -> Any:
    """Whether all noisy ones of several values have an interval."""
    test: Any = exp.true()
    for part in parts:
        if part.noisy:
            test = exp.And(this=test, expression=is_there(brackets(part.low)))
    return brackets(test)


Operand = tuple[Any, Known]
Find = Callable[[Any], Known]


def rule_of(expression: Any, find: Find) -> Known | None:
    """Bounds of an operator or function from those of its operands; None without a rule.

    Args:
        find: what is known of an operand.
    """
    for kinds, names, read in _RULES:
        if isinstance(expression, kinds):
            values = (expression.args.get(name) for name in names)
            parts = [
                one for value in values for one in (value if isinstance(value, list) else [value])
            ]
            operands = _read_operands(parts, find)
            return None if operands is None else read(expression, operands, find)
    return None


def _bounds(operand: Operand) -> tuple[Any, Any]:
    expression, noise = operand
    if not noise.noisy:
        exact = brackets(expression.copy())
        return exact, exact
    return brackets(noise.low), brackets(noise.high)


def _read_operands(parts: Sequence[Any], find: Find) -> list[Operand] | None:
    """Operands with what is known of them; None unless each is exact or has bounds."""
    operands = [(part, find(part)) for part in parts]
    if any(noise.noisy and not noise.ruled for _, noise in operands):
        return None
    return operands


def _are_chosen(operands: Sequence[Operand]) -> bool:
    """Whether noise may make an operand NULL that has bounds."""
    return any(noise.noisy_null is NoisyNull.ANYWHERE for _, noise in operands)


def _is_never_null(operand: Operand) -> bool:
    expression, noise = operand
    return noise.never_null or isinstance(expression, exp.Literal)


def _make(
    operands: Sequence[Operand],
    low: Any,
    high: Any,
    noisy_null: NoisyNull = NoisyNull.NOWHERE,
    never_null: bool = False,
) -> Known:
    parts = [noise for _, noise in operands]
    # Most are far from the limit, and are not counted.
    weight = 50 + 4 * sum(one.weight or 2 * _count_parts(part) for part, one in operands)
    if weight > _MAX_NODES:
        weight = _count_parts(low) + _count_parts(high)
        if weight > _MAX_NODES:
            return combine(parts)
    return Known(
        True,
        frozenset[Source]().union(*(noise.sources for noise in parts)),
        low,
        high,
        add_counts(parts),
        NoisyNull.NOWHERE if never_null else max(noisy_null, *(one.noisy_null for one in parts)),
        never_null,
        weight,
    )


def _count_parts(expression: Any) -> int:
    """How many parts it has, up to one more than `_MAX_NODES`."""
    return sum(1 for _ in islice(iterate_parts(expression), _MAX_NODES + 1))


def _read_arithmetic(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    (low, high), (other_low, other_high) = map(_bounds, operands)
    kind = type(expression)
    if kind in (exp.Add, exp.Sub):
        first, second = (other_low, other_high) if kind is exp.Add else (other_high, other_low)
        least, most = kind(this=low, expression=first), kind(this=high, expression=second)
        return _make(operands, least, most, never_null=all(map(_is_never_null, operands)))
    (_, noise), (_, other) = operands
    name, ends = "product" if kind is exp.Mul else "quotient", [low, high, other_low, other_high]
    if not noise.noisy:
        name, ends = "multiple" if kind is exp.Mul else "inverse", [low, other_low, other_high]
        if (
            kind is exp.Div
            and isinstance(expression.this, exp.Literal)
            and expression.this.is_number
        ):
            name = "reciprocal"
    elif not other.noisy:
        name, ends = "multiple" if kind is exp.Mul else "share", [low, high, other_low]
        if kind is exp.Mul:
            ends.insert(0, ends.pop())
    least, most = (call_macro(f"{name}_{end}", ends) for end in ("low", "high"))
    if kind is exp.Mul:
        return _make(operands, least, most, never_null=all(map(_is_never_null, operands)))
    return _make(operands, least, most, NoisyNull.UNBOUNDED if other.noisy else NoisyNull.NOWHERE)


def _read_negation(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    low, high = _bounds(operands[0])
    ends = exp.Neg(this=high), exp.Neg(this=low)
    return _make(operands, *ends, never_null=_is_never_null(operands[0]))


def _read_abs(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    low, high = _bounds(operands[0])
    ends = [exp.Abs(this=low), exp.Abs(this=high)]
    holds_zero = brackets(
        exp.And(
            this=exp.LTE(this=low, expression=number(0)),
            expression=exp.GTE(this=high, expression=number(0)),
        )
    )
    return _make(
        operands,
        choose(holds_zero, number(0), call(exp.Least, ends)),
        call(exp.Greatest, ends),
        never_null=_is_never_null(operands[0]),
    )


def _with_first(expression: Any, first: Any) -> Any:
    new = expression.copy()
    new.set("this", first)
    return new


def _read_monotone(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    extra = [part for name, part in expression.args.items() if name != "this"]
    if any(find(part).noisy for part in extra if isinstance(part, exp.Expression)):
        return None
    low, high = _bounds(operands[0])
    return _make(operands, _with_first(expression, low), _with_first(expression, high))


def _read_logarithm(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    if expression.args.get("expression") is None:
        return _read_partial(expression, "this", exp.GT, operands[0])
    base = expression.this
    if not isinstance(base, exp.Literal) or base.is_string or float(base.this) <= 1:
        return None
    return _read_partial(
        expression, "expression", exp.GT, (expression.expression, find(expression.expression))
    )


def _read_partial(expression: Any, name: str, kind: type, operand: Operand) -> Known | None:
    """A function that keeps order and fails below 0: bounds where its operand surely has a value of it."""
    if not operand[1].ruled:
        return None
    low, high = _bounds(operand)
    is_legal = kind(this=low, expression=number(0))
    ends = []
    for end in (low, high):
        new = expression.copy()
        new.set(name, end)
        ends.append(choose(is_legal, new))
    return _make([operand], ends[0], ends[1], NoisyNull.UNBOUNDED)


def _read_cast(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    kind = expression.args["to"]
    if getattr(kind.this, "name", "") not in _NUMBERS:
        return None
    casts = [exp.TryCast(this=end, to=kind.copy()) for end in _bounds(operands[0])]
    fits: Any = exp.true()
    for one in casts:
        fits = exp.And(this=fits, expression=is_there(one))
    low, high = (choose(brackets(fits), one) for one in casts)
    fails = isinstance(expression, exp.TryCast) or kind.this.name not in _WIDE
    noisy_null = NoisyNull.UNBOUNDED if fails else NoisyNull.NOWHERE
    return _make(operands, low, high, noisy_null, not fails and _is_never_null(operands[0]))


def _read_try(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    """Where the ends do not fail, what they are ends of fails only beyond its type."""
    ends = [exp.Try(this=end) for end in _bounds(operands[0])]
    fits = brackets(exp.And(this=is_there(ends[0]), expression=is_there(ends[1])))
    low, high = (choose(fits, end) for end in ends)
    overflows = expression.find(exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Abs) is not None
    return _make(operands, low, high, NoisyNull.ANYWHERE if overflows else NoisyNull.UNBOUNDED)


def _read_extreme(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    if _are_chosen(operands):
        return None
    noise = all_bounded([one for _, one in operands])
    lows, highs = zip(*map(_bounds, operands))
    kind = type(expression)
    low, high = (choose(noise, call(kind, side)) for side in (lows, highs))
    return _make(operands, low, high, never_null=any(map(_is_never_null, operands)))


def _read_coalesce(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    """The first that is there; of what noise may have made NULL beside its bounds there is no rule."""
    if _are_chosen(operands[:-1]):
        return None
    low, high = _bounds(operands[-1])
    for operand in reversed(operands[:-1]):
        own_low, own_high = _bounds(operand)
        there = is_there(brackets(operand[0].copy()))
        # A released number that is NULL is missing, and its value is not noise.
        rest = (exp.Null(), exp.Null()) if operand[1].noisy else (low, high)
        low, high = choose(there, own_low, rest[0]), choose(there, own_high, rest[1])
    return _make(operands, low, high, never_null=any(map(_is_never_null, operands)))


def _read_nullif(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    (low, high), (other_low, other_high) = map(_bounds, operands)
    below, above = (
        exp.LT(this=one, expression=other) for one, other in ((high, other_low), (other_high, low))
    )
    differ = exp.Or(this=below, expression=above)
    return _make(operands, choose(differ, low), choose(differ, high), NoisyNull.UNBOUNDED)


def _read_case(expression: Any, operands: list[Operand], find: Find) -> Known | None:
    """The branch that is taken; where noise takes it, the hull of all branches."""
    if isinstance(expression, exp.If):
        branches, default = [expression], expression.args.get("false")
    else:
        branches, default = expression.args["ifs"], expression.args.get("default")
    results = [branch.args["true"] for branch in branches]
    results += [] if default is None else [default]
    present = [part for part in results if not isinstance(part, exp.Null)]
    results_read = _read_operands(present, find)
    if results_read is None or not any(noise.noisy for _, noise in results_read):
        return None
    operands = results_read
    tests = [branch.this for branch in branches]
    if not isinstance(expression, exp.If) and expression.this is not None:
        tests.append(expression.this)
    conditions = [find(test) for test in tests]
    never_null = default is not None and all(_is_never_null((part, find(part))) for part in results)
    if not any(noise.noisy for noise in conditions):
        ends = [_bounds((part, find(part))) for part in results]
        pair = []
        for side in (0, 1):
            new = expression.copy()
            copies = [new] if isinstance(new, exp.If) else new.args["ifs"]
            for branch, end in zip(copies, ends):
                branch.set("true", end[side])
            if default is not None:
                new.set("false" if isinstance(new, exp.If) else "default", ends[-1][side])
            pair.append(brackets(new))
        return _make(operands, pair[0], pair[1], never_null=never_null)
    there = all_bounded([noise for _, noise in operands])
    lows, highs = zip(*map(_bounds, operands))
    low, high = lows[0], highs[0]
    if len(operands) > 1:
        low, high = choose(there, call(exp.Least, lows)), choose(there, call(exp.Greatest, highs))
    noise = _make(
        operands,
        low,
        high,
        # Noise chooses between a NULL of any branch and the others' numbers.
        NoisyNull.ANYWHERE,
        never_null,
    )
    return replace(noise, sources=noise.sources.union(*(one.sources for one in conditions)))


_BOTH, _ALL = ("this", "expression"), ("this", "expressions")
#: Kinds of expressions, the arguments that are operands, and what makes bounds of theirs.
_RULES: tuple[tuple[Any, tuple[str, ...], Callable[[Any, Any, Find], Known | None]], ...] = (
    (exp.Paren, ("this",), lambda _, operands, find: operands[0][1]),
    ((exp.Add, exp.Sub, exp.Mul, exp.Div), _BOTH, _read_arithmetic),
    (exp.Neg, ("this",), _read_negation),
    (exp.Abs, ("this",), _read_abs),
    (_MONOTONE, ("this",), _read_monotone),
    (exp.Sqrt, ("this",), lambda root, parts, find: _read_partial(root, "this", exp.GTE, parts[0])),
    ((exp.Ln, exp.Log), ("this",), _read_logarithm),
    ((exp.Cast, exp.TryCast), ("this",), _read_cast),
    (exp.Try, ("this",), _read_try),
    ((exp.Least, exp.Greatest), _ALL, _read_extreme),
    (exp.Coalesce, _ALL, _read_coalesce),
    (exp.Nullif, _BOTH, _read_nullif),
    ((exp.Case, exp.If), (), _read_case),
)
