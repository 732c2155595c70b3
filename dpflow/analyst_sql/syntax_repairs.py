"""Texts that may be what somebody meant by one that is no SQL, or no SELECT. Whether one of them is
accepted, the planner says.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sqlglot import Dialect, ErrorLevel, exp
from sqlglot.errors import SqlglotError

#: Of each kind of repair.
_MOST = 15
_KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "ORDER", "LIMIT", "OFFSET", "AND", "OR", "NOT"),
    *("AS", "JOIN", "ON", "USING", "LEFT", "UNION", "ALL", "WITH", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("BETWEEN", "IN", "IS", "NULL", "LIKE", "FILTER", "ASC", "DESC", "DISTINCT", "ROLLUP", "CUBE"),
)  # fmt: skip
#: What other systems give a query's options by.
_OPTIONS = re.compile(r"\s*WITH\s+dp\s*\((?P<options>[^()\n]*)\)(?P<query>.*)", re.I | re.DOTALL)


def repair_syntax(text: str, start: int) -> Iterator[str]:
    """Near texts, the likeliest first.

    Args:
        start: where the parser stopped.
    """
    if match := _OPTIONS.fullmatch(text):
        yield f"-- dp: {match['options'].strip()}\n{match['query'].strip()}"
        yield match["query"]
    try:
        tokens = list(Dialect.get_or_raise("duckdb").tokenize(text))
    # A quote that does not end.
    except SqlglotError:
        yield from (text.rstrip() + quote for quote in ("'", '"', "*/"))
        yield from (text[: text.rfind(quote)] for quote in ("'", '"') if quote in text)
        return
    yield from _spell_keywords(text, tokens)
    yield from _close_brackets(text)
    position = next((n for n, one in enumerate(tokens) if one.end >= start), len(tokens) - 1)
    for one in tokens[max(position - 1, 0) : position + 1][::-1]:
        yield text[: one.start] + text[one.end + 1 :]
    for one in tokens[max(position - _MOST, 1) : position + 1][::-1]:
        yield text[: one.start]


def _spell_keywords(text: str, tokens: Sequence[Any]) -> Iterator[str]:
    """With a keyword for each word that nearly is one: for the first, for another, for all of them."""
    changes = []
    for one in tokens:
        word = text[one.start : one.end + 1]
        close = difflib.get_close_matches(word.upper(), _KEYWORDS, n=1, cutoff=0.75)
        if close and word.isalpha() and word.upper() not in _KEYWORDS:
            changes.append((one.start, one.end + 1, close[0]))
    changes = changes[:_MOST]
    for some in (*([one] for one in changes), changes):
        repaired = text
        for start, end, word in reversed(some):
            repaired = repaired[:start] + word + repaired[end:]
        if some:
            yield repaired


def _close_brackets(text: str) -> Iterator[str]:
    missing = text.count("(") - text.count(")")
    if 0 < missing <= _MOST:
        yield text.rstrip("; \n") + ")" * missing
        # Of a call that ends before the next clause.
        for match in list(re.finditer(r"\s+(FROM|WHERE|GROUP|ORDER|AS)\b|,", text, re.I))[:_MOST]:
            yield text[: match.start()] + ")" * missing + text[match.start() :]
    elif -_MOST <= missing < 0:
        for place in [n for n, one in enumerate(text) if one == ")"][: -_MOST - 1 : -1]:
            yield text[:place] + text[place + 1 :]


def find_select(statement: Any) -> str | None:
    """The SELECT inside of another statement, or one that counts the rows that it is about; None if it
    names none.
    """
    where = statement.args.get("where")
    if not isinstance(statement, exp.Delete | exp.Update):
        inner = next((one for one in statement.walk() if isinstance(one, exp.Select | exp.SetOperation)), None)  # fmt: skip
        if inner is not None:
            return _write(inner)
    table = statement.find(exp.Table)
    if table is None or not isinstance(table.this, exp.Identifier):
        return None
    query = exp.select("COUNT(*)").from_(exp.Table(this=table.this.copy()))
    return _write(query if where is None else query.where(where.this.copy()))


def _write(statement: Any) -> str:
    return str(statement.sql("duckdb", unsupported_level=ErrorLevel.IGNORE))
