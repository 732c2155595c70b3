"""What a release asked, in words that its user knows: the SQL query, or statistic, grouping, table, condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Where a stored request has the text that it answers, and how much of a text is kept and shown.
QUESTION, MAX_QUESTION = "question", 1_000


def shorten_question(text: str) -> str:
    """A text as a list shows it: in one line, with its end left out where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUESTION else line[: MAX_QUESTION - 3] + "..."


def describe_question(request: Mapping[str, Any]) -> str:
    """The text that was asked, such as a SQL query, or words such as ``count, mean of amount by country, from orders
    where returned``; of a stored request (`dpflow.ledger.ReleaseRecord`), whatever somebody may have made of it by
    hand.
    """
    if isinstance(question := request.get(QUESTION), str) and question:
        return shorten_question(question)
    params = request.get("params")
    params = params if isinstance(params, Mapping) else {}
    statistics = ", ".join(_list_statistics(str(request.get("mechanism") or ""), params))
    by = params.get("by")
    group = f" by {by}" if by and by != params.get("column") else ""
    where = request.get("where")
    table = _name_rows(request.get("table"), request.get("unit_rows"))
    place = f", from {table}" if table and group else f" from {table}" if table else ""
    return f"{statistics}{group}{place}{f' where {where}' if where else ''}"


def _name_rows(table: Any, units: Any) -> Any:
    """Such as ``(orders where returned, by customer)`` of rows by privacy unit."""
    if not isinstance(units, Mapping):
        return table
    where, keys = units.get("where"), units.get("keys")
    rows = _name_rows(table, units.get("rows"))
    named = ", ".join(map(str, (units.get("unit"), *(keys if isinstance(keys, Mapping) else ()))))
    return f"({rows}{f' where {where}' if where else ''}, by {named})"


def _list_statistics(mechanism: str, params: Mapping[str, Any]) -> Iterator[str]:
    measures = params.get("measures")
    if isinstance(measures, list) and all(isinstance(one, Mapping) for one in measures):
        for one in measures:
            yield _name_statistic(str(one.get("measure")), one.get("column"))
        return
    columns = params.get("columns")
    column = params.get("column") or (
        ", ".join(map(str, columns)) if isinstance(columns, list) else None
    )
    yield _name_statistic(mechanism, column)


def _name_statistic(name: str, column: Any) -> str:
    name = name.replace("_", " ")
    return f"{name} of {column}" if column else name
