"""SQL text out of sqlglot's nodes, for one dialect: what the renderers of the declared language write
with.

Operands are text that was written before, so the text grows from the leaves: no nesting of a user's
can exhaust the stack, and nothing that was written is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from dpflow.tables.access.arithmetic import DUCKDB

#: Nodes of sqlglot by the operators of the language that are no arithmetic: that is written by
#: `dpflow.tables.access.arithmetic` alone.
_OPERATORS = {
    "=": "EQ",
    "<>": "NEQ",
    "<": "LT",
    "<=": "LTE",
    ">": "GT",
    ">=": "GTE",
    "AND": "And",
    "OR": "Or",
    "LIKE": "Like",
    "||": "DPipe",
}


class SqlWriter:
    """Writes operators, functions, casts and literals of a dialect of sqlglot's; what it gives can
    stand wherever an expression can.
    """

    def __init__(self, dialect: str) -> None:
        from sqlglot import Dialect, exp

        self._exp: Any = exp
        self._generator: Any = Dialect.get_or_raise(dialect).generator()
        # To parse the name of a type takes longer than all else of a cast.
        self._frame_cast = lru_cache(256)(self._write_cast)

    def _write(self, node: Any) -> str:
        return str(self._generator.generate(node, copy=False))

    def _operand(self, text: str) -> Any:
        # A finished text: the generator writes it as it is.
        return self._exp.Var(this=text)

    def operate(self, left: str, operator: str, right: str) -> str:
        """Two operands with an operator between them, in brackets."""
        kind = getattr(self._exp, _OPERATORS[operator])
        node = kind(this=self._operand(left), expression=self._operand(right))
        return self._write(self._exp.Paren(this=node))

    def negate(self, condition: str) -> str:
        """NOT of a condition, in brackets."""
        return self._write(self._exp.Paren(this=self._exp.Not(this=self._operand(condition))))

    def call(self, function: str, *arguments: str) -> str:
        """A function by the name that the engine knows."""
        # No class of sqlglot's: some are written otherwise in other dialects, or for other types.
        return self._write(
            self._exp.Anonymous(this=function, expressions=list(map(self._operand, arguments)))
        )

    def aggregate(
        self, function: str, *arguments: str, distinct: bool = False, where: Sequence[str] = ()
    ) -> str:
        """An aggregate by the name that the engine knows, over all rows or over those that fulfil
        every condition; without an argument it is of whole rows.
        """
        operands = list(map(self._operand, arguments)) or [self._exp.Star()]
        if distinct:
            operands = [self._exp.Distinct(expressions=operands)]
        node = self._exp.Anonymous(this=function, expressions=operands)
        if where:
            condition = self._exp.Where(this=self._operand(" AND ".join(where)))
            node = self._exp.Filter(this=node, expression=condition)
        return self._write(node)

    def is_null(self, value: str) -> str:
        """Whether a value is missing, in brackets."""
        node = self._exp.Is(this=self._operand(value), expression=self._exp.null())
        return self._write(self._exp.Paren(this=node))

    def is_in(self, value: str, others: list[str]) -> str:
        """Whether a value is among others, in brackets."""
        node = self._exp.In(this=self._operand(value), expressions=list(map(self._operand, others)))
        return self._write(self._exp.Paren(this=node))

    def choose(self, whens: list[tuple[str, str]], otherwise: str | None = None) -> str:
        """The first value whose condition holds, in brackets."""
        ifs = [
            self._exp.If(this=self._operand(when), true=self._operand(then)) for when, then in whens
        ]
        default = None if otherwise is None else self._operand(otherwise)
        return self._write(self._exp.Paren(this=self._exp.Case(ifs=ifs, default=default)))

    def cast(self, value: str, kind: str) -> str:
        """A value as another type, which is named as DuckDB names it."""
        return value.join(self._frame_cast(self._exp.Cast, kind))

    def try_cast(self, value: str, kind: str) -> str:
        """The same, or NULL where the type has no such value."""
        return value.join(self._frame_cast(self._exp.TryCast, kind))

    def _write_cast(self, cast: Any, kind: str) -> tuple[str, str]:
        """What stands before and behind the operand."""
        to = self._exp.DataType.build(kind, dialect="duckdb")
        before, after = self._write(cast(this=self._operand("?"), to=to)).split("?")
        return before, after

    def text(self, value: str) -> str:
        """A text literal."""
        return self._write(self._exp.Literal.string(value))

    def truth(self, value: bool) -> str:
        """A literal truth value."""
        return self._write(self._exp.Boolean(this=value))

    def integer(self, value: int) -> str:
        """An integer of the smallest type of 64 or 128 bits that holds it."""
        # A cast of text, as the type of a bare literal follows from its number of digits.
        return self.cast(f"'{value}'", DUCKDB.type_of(value, value).name)

    def double(self, value: float) -> str:
        """A number as a DOUBLE."""
        return self.cast(f"'{value!r}'", "DOUBLE")
