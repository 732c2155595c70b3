"""Queries that read published results alone: DuckDB computes them where they are asked, and nothing is charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import TokenType, exp, tokenize
from sqlglot.errors import SqlglotError

from dpflow.analyst_sql.answer.answers import read_decimals, read_values
from dpflow.analyst_sql.parse.text_and_options import Refusal, SourceText
from dpflow.counted import counted
from dpflow.errors import InvalidInput, PlanRefused, QueryFailed
from dpflow.tables.public.query_process import PROCESS, QueryRejected, RowTable
from dpflow.tables.public.query_worker import SCHEMA

#: The schema that tools which know databases write before a table.
DEFAULT_SCHEMA = "main"


@dataclass(frozen=True)
class PublishedAnswer:
    """Names and types of columns, as those of `dpflow.analyst_sql.answer.sql_answer.AnswerColumn`, and rows."""

    columns: list[tuple[str, str]]
    rows: list[tuple[Any, ...]]


def drop_schema(text: str) -> str:
    """A query with blanks where the schema `DEFAULT_SCHEMA` stands before a table and its columns."""
    try:
        tokens = tokenize(text, read="duckdb")
    except SqlglotError:
        return text
    starts = {TokenType.FROM, TokenType.JOIN}
    found = [
        (before, one.start, dot.end)
        for before, one, dot in zip([None, *tokens], tokens, tokens[1:])
        if one.text.lower() == DEFAULT_SCHEMA and dot.token_type == TokenType.DOT
        and one.token_type in (TokenType.VAR, TokenType.IDENTIFIER)
    ]  # fmt: skip
    # Else it is an alias.
    if not any(before is not None and before.token_type in starts for before, _, _ in found):
        return text
    for before, start, end in found:
        if before is None or before.token_type != TokenType.DOT:
            text = text[:start] + " " * (end + 1 - start) + text[end + 1 :]
    return text


def find_published(
    source: SourceText,
    parameters: Mapping[str, Any] | Sequence[Any],
    published: Callable[[], Collection[str]],
    private: Callable[[], Collection[str]],
) -> tuple[exp.Expression, set[str]] | None:
    """The statement and the published results that it reads, if it is a SELECT that reads nothing else; else None.

    Args:
        published, private: list names of published results, and of private tables.

    Raises:
        InvalidInput: it would be answered from published results, and a name stands for something else as well.
    """
    try:
        tree = source.parse(parameters, typed_dates=True)
    except Refusal:
        return None
    if not isinstance(tree, exp.Query):
        return None
    own = {one.alias_or_name.casefold() for one in tree.find_all(exp.CTE)}
    tables = [one for one in tree.find_all(exp.Table) if one.name]
    outside = [one for one in tables if one.args.get("db") or one.name.casefold() not in own]
    names = {one.name.casefold() for one in outside}
    listed = list(published()) if names else []
    known = {name.casefold(): name for name in listed}
    if any(one.args.get("db") for one in outside) or not names <= known.keys():
        return None
    # Of a private table nobody wants published rows counted.
    uses = Counter(name.casefold() for name in [*listed, *(private() if names else ())])
    if ambiguous := sorted(name for name in names if uses[name] > 1):
        raise InvalidInput(
            f"{known[ambiguous[0]]!r} is the name of two tables or published results; whoever publishes it gives one of "
            f"them another name"
        )
    for one in outside:
        alias = one.alias or one.name
        one.set("this", exp.to_identifier(known[one.name.casefold()], quoted=True))
        one.set("db", exp.to_identifier(SCHEMA))
        if not one.args.get("alias"):
            one.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    return tree, {known[name] for name in names}


def describe_rest(tree: exp.Expression, tables: Sequence[RowTable]) -> list[str]:
    """What a reader must know of rows that a service left out. Raises `PlanRefused` where a value or the choice of a row
    would depend on them.
    """
    notes = [
        f"{counted(one.rows_left_out, 'row')} of {one.name} left out: more than the service sends to this principal"
        for one in tables
        if one.rows_left_out
    ]
    changes = {name for name, part in tree.args.items() if part}
    plain = {"kind", "expressions", "from_", "where", "order"}
    is_plain = changes <= plain and not tree.find(exp.AggFunc, exp.Window, exp.Subquery)
    if notes and not is_plain:
        raise PlanRefused(
            f"{'; '.join(notes)}; a query that is computed from all rows would be wrong: SELECT columns of one table, or let the "
            f"owner of the service raise max_rows"
        )
    return notes


def answer_published(tree: exp.Expression, tables: Sequence[RowTable]) -> PublishedAnswer:
    """The rows of a statement of `find_published`.

    Raises:
        QueryFailed: DuckDB cannot compute it, or a part is none that may run.
        QueryStopped: it took too long, or too much memory.
    """
    try:
        result = PROCESS.run(tables, tree.sql("duckdb"))
    except QueryRejected as error:
        # No private row is behind it.
        problem = " ".join(error.text.partition("\n\nLINE")[0].split())[:400] or (
            f"the {error.kind} {error.name[:60]!r} may not be used"
        )
        raise QueryFailed(
            f"DuckDB cannot compute the query over published results: {problem}"
        ) from None
    columns, values = [], []
    for position, (name, kind) in enumerate(result.columns):
        cells: list[Any] = [row[position] for row in result.rows]
        if kind.startswith("DECIMAL"):
            kind, cells = read_decimals(kind, cells, result.exact, position)
        else:
            kind, cells = read_values(kind, cells)
        columns.append((name, kind))
        values.append(cells)
    return PublishedAnswer(columns, list(zip(*values)))
