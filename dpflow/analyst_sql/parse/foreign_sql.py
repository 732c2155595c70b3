"""Queries of other dialects: read by sqlglot as their own, and written as DuckDB's, which is what is planned and
computed. GoogleSQL's clause of differential privacy becomes options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import Dialect, ErrorLevel, TokenType, exp
from sqlglot.errors import ParseError, SqlglotError

from dpflow.analyst_sql.parse.foreign_meaning import find_foreign, spell_alike
from dpflow.errors import InvalidInput
from dpflow.tables.language.conditions import CLAMPED, find_cut_interval, keep_named_arguments

#: What ``dialect`` may be, beside DuckDB's own SQL.
DIALECTS = ("bigquery", "snowflake", "postgres")
#: Options of GoogleSQL's clause by what they are here.
_GOOGLE = {
    "epsilon": "epsilon",
    "delta": "delta",
    "max_groups_contributed": "groups",
    "max_rows_contributed": "rows_per_unit",
    "min_privacy_units_per_group": "min_units",
}
#: GoogleSQL's functions that take bounds as a named argument.
_GOOGLE_BOUNDED = (*CLAMPED, "AVG", "PERCENTILE_CONT", "STDDEV_POP", "VAR_POP")


def find_dialect(name: str) -> str:
    """The dialect that a name means. Raises `InvalidInput`."""
    if name.lower() not in ("duckdb", *DIALECTS):
        raise InvalidInput(
            f"dialect {name[:40]!r} is none of duckdb, {', '.join(DIALECTS)}; write the query in one of these"
        )
    return name.lower()


def translate(text: str, dialect: str) -> str:
    """A text of statements as DuckDB's SQL. Raises `InvalidInput` where a part has no counterpart there, or may have
    another meaning.
    """
    problem, written = "", []
    try:
        language = Dialect.get_or_raise(dialect)
        parser: Any = language.parser()
        tokens = language.tokenize(text)
        parser.FUNCTIONS = keep_named_arguments(parser.FUNCTIONS, _GOOGLE_BOUNDED)
        if (interval := find_cut_interval(tokens)) is not None:
            problem = f"INTERVAL {interval[:40]!r} is no number and unit"
        for tree in filter(None, [] if problem else parser.parse(tokens, text)):
            if part := find_foreign(tree, dialect):
                problem = f"{part[:60]!r} is not known to mean the same in {dialect} and DuckDB"
                break
            if dialect == "postgres":
                _require_fractions(tree)
            alike = tree.transform(spell_alike)
            written.append(alike.sql("duckdb", comments=False, unsupported_level=ErrorLevel.RAISE))
    except ParseError as error:
        place = error.errors[0] if error.errors else {}
        near = str(place.get("highlight") or "")[:40]
        problem = f"it is no SQL of {dialect}" + (f" at {near!r}" if near.isprintable() else "")
    except (SqlglotError, RecursionError):
        problem = f"a part of it is {dialect}'s alone, and DuckDB has nothing for it"
    if problem:
        raise InvalidInput(f"{problem}; correct it, or write the query in DuckDB's SQL")
    return ";\n".join(written)


def _require_fractions(tree: Any) -> None:
    """Refuse a quotient that PostgreSQL rounds and DuckDB does not: of what may be two whole numbers."""
    for quotient in tree.find_all(exp.Div):
        if not any(_is_fraction(side) for side in (quotient.left, quotient.right)):
            raise InvalidInput(
                "PostgreSQL rounds a quotient of whole numbers towards 0, and DuckDB does not; write CAST(x AS DOUBLE PRECISION) / y "
                "for the exact quotient, and FLOOR of that for one that is rounded down"
            )


def _is_fraction(node: Any) -> bool:
    """Whether an expression has a fractional type, whatever its columns are."""
    if isinstance(node, exp.Literal):
        return not node.is_string and "." in node.name
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.REAL_TYPES
    if isinstance(node, exp.Paren | exp.Neg | exp.Nullif | exp.Sum):
        return _is_fraction(node.this)
    if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Div):
        return _is_fraction(node.left) or _is_fraction(node.right)
    return isinstance(node, exp.Avg | exp.Stddev | exp.Variance | exp.Sqrt | exp.Ln | exp.Exp)


def find_clause(tokens: Sequence[Any]) -> tuple[int, int] | None:
    """The first and the last token of ``WITH DIFFERENTIAL_PRIVACY OPTIONS(...)``; None without one. Raises
    `InvalidInput` for a second one, and for one without options.
    """
    starts = [
        n
        for n, token in enumerate(tokens[1:], 1)
        if token.token_type == TokenType.WITH
        and tokens[n - 1].token_type == TokenType.SELECT
        and [one.text.upper() for one in tokens[n + 1 : n + 2]] == ["DIFFERENTIAL_PRIVACY"]
    ]
    if not starts:
        return None
    words = [one.text.upper() for one in tokens[starts[0] + 2 : starts[0] + 4]]
    depth, last = 0, starts[0] + 3
    while words == ["OPTIONS", "("] and last < len(tokens):
        kind = tokens[last].token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        if depth == 0:
            break
        last += 1
    if words != ["OPTIONS", "("] or last == len(tokens) or len(starts) > 1:
        raise InvalidInput(
            "the clause WITH DIFFERENTIAL_PRIVACY stands once, behind the outermost SELECT, with OPTIONS(epsilon=..., ...): one query "
            "has one price"
        )
    return starts[0], last


def read_clause(tokens: Sequence[Any]) -> tuple[dict[str, str], str | None]:
    """The clause's options by what they are here, and the privacy unit's column, if it names one. Raises
    `InvalidInput`.
    """
    options: dict[str, str] = {}
    unit: str | None = None
    for name, value in _split_options(tokens):
        if name == "privacy_unit_column":
            unit = value.rpartition(".")[2]
        elif name not in _GOOGLE:
            raise InvalidInput(
                f"option {name[:40]} of WITH DIFFERENTIAL_PRIVACY has no counterpart here, where bounds of columns and ways to "
                f"choose groups are declared; leave it out (options: {', '.join(_GOOGLE)}, privacy_unit_column)"
            )
        elif _GOOGLE[name] in options:
            raise InvalidInput(f"{name} is given twice in the query; give each option once")
        else:
            options[_GOOGLE[name]] = value
    return options, unit


def _split_options(tokens: Sequence[Any]) -> list[tuple[str, str]]:
    listed: list[list[Any]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.COMMA and depth == 0:
            listed.append([])
        else:
            listed[-1].append(token)
    pairs = []
    for one in listed:
        if len(one) < 3 or one[1].token_type != TokenType.EQ:
            raise InvalidInput(
                "OPTIONS lists name=value, such as OPTIONS(epsilon=1, privacy_unit_column=customer)"
            )
        pairs.append((one[0].text.lower(), "".join(part.text for part in one[2:])))
    return pairs
