"""The nearest query that is accepted: the refused part is mended, or left out, and the rest is tried
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from sqlglot import ErrorLevel, exp

from dpflow.analyst_sql.source_text import Refusal, SourceText
from dpflow.analyst_sql.syntax_repairs import repair_syntax

#: Rounds of mending: each takes what the last one was refused for.
_ROUNDS = 10
#: Near texts of one that is no SQL.
_CANDIDATES = 40
#: The longest query that is shown, and looked for.
_LONGEST = 2000

Try = Callable[[str, Mapping[str, str]], object]


def find_nearest(source: SourceText, refusal: Refusal, try_query: Try) -> str | None:
    """A query that is accepted; None if none is near, or if it cannot be shown: a control character of
    the query must not move a terminal's cursor.

    Args:
        try_query: plans a text with further options; raises `Refusal`.
    """
    text = _find_nearest(source, refusal, try_query)
    shown = None if text is None else text.replace("\r\n", "\n")
    return shown if shown and all(c.isprintable() or c in "\n\t" for c in shown) else None


def _find_nearest(source: SourceText, refusal: Refusal, try_query: Try) -> str | None:
    if len(source.text) > _LONGEST:
        return None
    if refusal.option is not None:
        return _try_option(source.text.strip(), refusal, try_query)
    if refusal.rule == "syntax":
        texts = islice(repair_syntax(source.text, refusal.start or 0), _CANDIDATES)
        return next(filter(None, (_try_text(text.strip(), try_query) for text in texts)), None)
    if refusal.text is not None:
        return _try_text(refusal.text, try_query)
    if refusal.node is None:
        return None
    # First by what each rule proposes, then by leaving parts out.
    untouched = refusal.node.root().copy()
    return _mend(refusal, try_query, True) or _mend_again(untouched, try_query)


def _mend_again(statement: Any, try_query: Try) -> str | None:
    try:
        try_query(statement.sql("duckdb", unsupported_level=ErrorLevel.IGNORE), {})
    except Refusal as refusal:
        return _mend(refusal, try_query, False) if refusal.node is not None else None
    # A text that sqlglot writes need not be one that it reads.
    except Exception:  # noqa: BLE001  without a nearest query the refusal stands as it is
        return None
    return None


def _mend(refusal: Refusal, try_query: Try, by_proposals: bool) -> str | None:
    for _ in range(_ROUNDS):
        if refusal.node is None:
            return None
        try:
            root = refusal.node.root()
            if by_proposals and refusal.repair is not None:
                refusal.repair()
            elif not drop_part(refusal.node):
                return None
            text = str(root.sql("duckdb", unsupported_level=ErrorLevel.IGNORE))
            if len(text) > _LONGEST:
                return None
            try_query(text, {})
        except Refusal as error:
            if error.option is not None:
                return _try_option(text, error, try_query)
            refusal = error
        except Exception:  # noqa: BLE001  as above
            return None
        else:
            return text
    return None


def _try_option(text: str, refusal: Refusal, try_query: Try) -> str | None:
    assert refusal.option is not None
    name, value = refusal.option
    try:
        try_query(text, {name: value})
    except Exception:  # noqa: BLE001  as above
        return None
    return f"-- dp: {name}={value}\n{text}"


def _try_text(text: str, try_query: Try) -> str | None:
    """A text, or what is accepted in its place."""
    refusal: Refusal | None = None
    try:
        try_query(text, {})
    except Refusal as error:
        refusal = error
    except Exception:  # noqa: BLE001  as above
        return None
    if refusal is None:
        return text
    if refusal.option is not None:
        return _try_option(text, refusal, try_query)
    return _mend(refusal, try_query, True)


def drop_part(node: Any) -> bool:
    """Take the smallest part of a query out that holds a node and that it can do without; False if
    there is none.
    """
    while node.parent is not None:
        parent, clause = node.parent, node.arg_key
        if isinstance(parent, exp.Select):
            if clause == "expressions":
                if len(parent.expressions) > 1:
                    node.pop()
                else:
                    node.replace(exp.Count(this=exp.Star()))
            elif clause in ("from_", "with_"):
                return False
            else:
                node.pop()
            return True
        if isinstance(parent, exp.And) and isinstance(
            _above_connectives(parent), exp.Where | exp.Having
        ):
            parent.replace(parent.expression if clause == "this" else parent.this)
            return True
        if isinstance(parent, exp.Group | exp.Order) and len(parent.expressions) > 1:
            node.pop()
            return True
        node = parent
    return False


def _above_connectives(node: Any) -> Any:
    while isinstance(node, exp.And | exp.Paren):
        node = node.parent
    return node
