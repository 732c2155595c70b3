"""A query's text: its options, whether it is to be explained, what sqlglot makes of it with its parameters,
and where each part stands.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from sqlglot import TokenType, exp, tokenize
from sqlglot.errors import SqlglotError

from dpflow.analyst_sql.parse.foreign_sql import (
    find_clause,
    find_dialect,
    read_clause,
    translate,
)
from dpflow.analyst_sql.parse.parameters import find_shape_problem, find_value_problem
from dpflow.errors import InvalidInput, PlanRefused, RuleBroken, SqlRefused
from dpflow.tables.language.conditions import is_unicode, parse_strictly

T = TypeVar("T")
#: The longest query in characters: the parser's time and stack grow with it.
MOST_TEXT = 20_000
#: Options that a leading comment may give.
OPTIONS = (
    *("epsilon", "delta", "error", "rows", "scope", "blocks", "revision", "name", "min_units"),
    *("noise", "groups", "rows_per_group", "rows_per_unit", "bounds", "dialect"),
)
#: sqlglot reads less than DuckDB does.
_UNREADABLE = "the parser cannot read this as DuckDB's SQL"
#: What a comment with options begins with.
_MARK = re.compile(r"\s*dp\s*:", re.IGNORECASE)


class Refusal(Exception):
    """Inside this room: a part of the query breaks a rule. `SourceText.refuse` gives it its position.

    Attributes:
        start: where it begins in the text, which a node's tokens say; None if neither is known.
        option: what keeps the rule if the comment says it.
    """

    def __init__(
        self,
        rule: str,
        what: str,
        node: Any = None,
        option: tuple[str, str] | None = None,
        start: int | None = None,
    ) -> None:
        super().__init__(what)
        self.rule, self.what, self.option = rule, what, option
        self.start = find_start(node) if start is None else start


def refusal_of(error: InvalidInput, node: Any, rule: str = "plan") -> Refusal:
    """What another room refused, at a part of the query."""
    if isinstance(error, RuleBroken):
        return Refusal(error.rule, error.what, node)
    return Refusal(rule, str(error), node)


@dataclass(frozen=True)
class SourceText:
    """One query as it was written.

    Attributes:
        text: what is parsed: the query, with blanks where options and EXPLAIN stood, so that positions
            stay what they are.
        options: of the leading comments.
        asked: the query in its own dialect, with the same blanks.
        explain: EXPLAIN stands before it, without ANALYZE.
        privacy_unit: the column that the query itself takes for the privacy unit's; None if it names none.
    """

    written: str
    text: str
    options: Mapping[str, str]
    asked: str = ""
    explain: bool = False
    privacy_unit: str | None = None
    _lines: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lines", self.written.split("\n"))

    def find_word(self, word: str) -> int | None:
        """Where a word of the query stands first; None if it is not in it."""
        match = re.search(rf"\b{re.escape(word)}\b", self.text, re.IGNORECASE) if word else None
        return None if match is None else match.start()

    def answer(self, read: Callable[[], T]) -> T:
        """What a reader of it gives. Raises `SqlRefused` for its `Refusal`."""
        try:
            return read()
        except Refusal as error:
            refusal = error
        # Outside, so that no traceback has two errors.
        self.refuse(refusal)

    def refuse(self, refusal: Refusal) -> NoReturn:
        """Raise `SqlRefused` with the position of what was refused."""
        nearest = self._add_option(refusal.option)
        start = refusal.start
        if start is None:
            start = len(self.text) - len(self.text.lstrip())
        start = min(start, len(self.written))
        line = self.written.count("\n", 0, start)
        column = start - (self.written.rfind("\n", 0, start) + 1)
        raise SqlRefused(
            refusal.what,
            rule=refusal.rule,
            line=line + 1,
            column=column + 1,
            # A control character in the text must not move a terminal's cursor.
            source="".join(c if c.isprintable() else " " for c in self._lines[line]),
            nearest=nearest,
        )

    def _add_option(self, option: tuple[str, str] | None) -> str | None:
        """The query with an option in its comment, which means the same; None if it cannot be shown."""
        text = self.text.strip().replace("\r\n", "\n")
        # A control character of the query must not move a terminal's cursor.
        if option is None or not all(c.isprintable() or c in "\n\t" for c in text):
            return None
        return f"-- dp: {option[0]}={option[1]}\n{text}"

    def list_parameters(self) -> list[str]:
        """The names or numbers of its parameters; none of a text that is no query."""
        try:
            statements = parse_strictly(self.text)
        except (PlanRefused, SqlglotError, RecursionError, LookupError, AttributeError, TypeError, ValueError):  # fmt: skip
            return []
        return [name for one in statements if one for _, name in _find_placeholders(one)]

    def parse(
        self, parameters: Mapping[str, Any] | Sequence[Any] = (), *, typed_dates: bool = False
    ) -> exp.Expression:
        """The one statement, with parameters as literals. Raises `Refusal`.

        Args:
            typed_dates: dates and times have their type, and are no texts that take that of what stands beside them.
        """
        problem: Refusal | None = None
        statements: list[Any] = []
        try:
            statements = parse_strictly(self.text)
        except PlanRefused as error:
            problem = refusal_of(error, None)
        except RecursionError:
            problem = Refusal("depth", "it is nested too deeply to be read")
        except SqlglotError as error:
            positions = getattr(error, "errors", None) or [{}]
            start = self._offset(positions[0].get("line"), positions[0].get("col"))
            problem = Refusal(
                "syntax", f"{_UNREADABLE}; correct it here, or write it otherwise", start=start
            )
        # Some of sqlglot's builders look blindly at arguments.
        except (LookupError, AttributeError, TypeError, ValueError):
            problem = Refusal("syntax", _UNREADABLE)
        if problem is not None:
            problem.start = problem.start or 0
            raise problem
        # A comment behind the ; is a statement of its own for the parser.
        statements = [one for one in statements if one and not isinstance(one, exp.Semicolon)]
        if len(statements) != 1:
            start = self.text.find(";") + 1 if statements else 0
            what = (
                f"there are {len(statements)} statements; write one query, at most one ; at its end"
            )
            raise Refusal("one-statement", what, start=start)
        statement: exp.Expression = _insert_parameters(statements[0], parameters, self, typed_dates)
        return statement

    def _offset(self, line: int | None, column: int | None) -> int:
        """Of the parser's position, whose column is that of a token's end."""
        if not line:
            return len(self.text.rstrip())
        before = sum(len(one) + 1 for one in self._lines[: line - 1])
        return before + max((column or 1) - 1, 0)


def read_source(text: str, dialect: str | None = None) -> SourceText:
    """Split options and EXPLAIN from a query.

    Args:
        dialect: what it is written in, unless its comment says so; `SourceText.text` is DuckDB's.

    Raises:
        SqlRefused: it is too long, or holds characters that are no text.
        InvalidInput: an option that does not exist, is given twice or stands behind the query's first word; a query
            that is no text.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a query is a text, not of type {type(text).__name__}; give a SELECT")
    # A byte order mark, as editors on Windows begin a file.
    text = text.removeprefix("\ufeff")
    if len(text) > MOST_TEXT or "\0" in text or not is_unicode(text):
        raise SqlRefused(
            f"it is longer than {MOST_TEXT:,} characters, or has characters that are no text",
            rule="length",
            line=1,
            column=1,
            source="",
            nearest=None,
        )
    options: dict[str, str] = {}
    rest, words = text, []
    # The tokenizer takes what stands behind EXPLAIN for one text, so it is read again without it.
    language = "duckdb" if dialect is None else find_dialect(str(dialect))
    tokens = _tokenize(rest, text, language)
    for word in ("explain", "analyze"):
        if not tokens or tokens[0].text.casefold() != word:
            break
        words.append(word)
        rest = _blank(rest, tokens[0].start, tokens[0].end + 1)
        tokens = _tokenize(rest, text, language)
    unread = rest
    start, before = 0, rest[: tokens[0].start if tokens else 0]
    # Options may stand below a title: ignored ones would charge another scope than they name.
    for comment in tokens[0].comments if tokens else ():
        start = before.find(comment, start)
        # A comment behind the first word belongs to it as well.
        if start < 0:
            break
        end = start + len(comment)
        if mark := _MARK.match(comment):
            for name, value in _parse_options(comment[mark.end() :]):
                add_option(options, name, value, "the query's comment")
            is_block = before[start - 2 : start] == "/*"
            # BigQuery's comments may begin with one character.
            opening = 1 if before[start - 1 : start] == "#" else 2
            rest = _blank(rest, start - opening, end + 2 * is_block)
        start = end
    if dialect is None and "dialect" in options:
        source = read_source(text, options["dialect"])
        return replace(source, options={**options, **source.options})
    if rest != unread:
        tokens = _tokenize(rest, text, language)
    later = (comment for token in tokens for comment in token.comments)
    if any(map(_MARK.match, later)):
        raise InvalidInput(
            "a comment with options (-- dp:) stands behind the query's first word, where it is not read; move it before the query"
        )
    unit: str | None = None
    if (clause := find_clause(tokens)) is not None:
        first, last = clause
        google, unit = read_clause(tokens[first + 4 : last])
        for name, value in google.items():
            add_option(options, name, value, "its OPTIONS")
        rest = _blank(rest, tokens[first].start, tokens[last].end + 1)
    asked = rest
    if language != "duckdb":
        text = rest = translate(rest, language)
    return SourceText(text, rest, options, asked, words == ["explain"], unit)


def _tokenize(text: str, written: str, dialect: str = "duckdb") -> list[Any]:
    """sqlglot's tokens. Raises `SqlRefused` for a text that has none, such as one with an open quote; it takes `$1,$` for
    the opening of one.
    """
    try:
        return list(tokenize(text, read=dialect))
    except SqlglotError:
        what = "this is not SQL as DuckDB has it; a quote or comment is not closed"
        if "$" in text:
            what = "a quote or comment is not closed, or a parameter has no blank behind it; write IN ($1, $2)"
        problem = Refusal("syntax", what, start=len(text.rstrip()))
    SourceText(written, text, {}).refuse(problem)


def add_option(options: dict[str, str], name: str, value: object, position: str) -> None:
    """Note an option. Raises `InvalidInput` if it was given before: nobody could say which counts."""
    if name in options:
        raise InvalidInput(
            f"{name} is given twice, the second time in {position}; give each option once"
        )
    options[name] = str(value)


def _parse_options(text: str) -> list[tuple[str, str]]:
    """Names and values of a comment: a value is what stands together up to a comma or blank."""
    try:
        tokens = list(tokenize(text, read="duckdb"))
    except SqlglotError:
        tokens = []
        if text.strip():
            raise _no_options(text) from None
    # What a comment inside of the comment says would not be read.
    unread = text[tokens[-1].end + 1 :] if tokens else text
    if unread.strip() or any(token.comments for token in tokens):
        raise _no_options(unread if unread.strip() else text)
    options = []
    while tokens:
        name, start = tokens[0].text, tokens[0].start
        last = 2
        while (
            last < len(tokens) - 1
            and tokens[last + 1].token_type != TokenType.COMMA
            and tokens[last + 1].start == tokens[last].end + 1
        ):
            last += 1
        value = tokens[2 : last + 1]
        if name not in OPTIONS or not value or tokens[1].token_type != TokenType.EQ:
            raise _no_options(text[start:])
        if len(value) == 1 and value[0].token_type == TokenType.STRING:
            options.append((name, value[0].text))
        else:
            options.append((name, text[value[0].start : value[-1].end + 1]))
        tokens = tokens[last + 1 :]
        if tokens and tokens[0].token_type == TokenType.COMMA:
            tokens = tokens[1:]
    return options


def _no_options(text: str) -> InvalidInput:
    return InvalidInput(
        f"the query's comment is not a list of options at {text[:40].strip()!r}; write for "
        f"example -- dp: epsilon=0.5, delta=1e-6, scope=flights (options: {', '.join(OPTIONS)})"
    )


def _blank(text: str, start: int, end: int) -> str:
    """The text with blanks in a part of it; lines stay lines."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def find_start(node: Any) -> int | None:
    """Where a part of a parsed query begins: the first of its tokens that has a position."""
    # Operators and stars have no position, so what they belong to stands for them.
    while isinstance(node, exp.Expression):
        starts: list[int] = [one.meta["start"] for one in node.walk() if "start" in one.meta]
        if starts:
            return min(starts)
        node = node.parent
    return None


def _find_placeholders(statement: Any) -> list[tuple[Any, str]]:
    """Places of parameters, with their names or numbers."""
    return [
        (one, one.name if isinstance(one, exp.Parameter) else str(one.this or ""))
        for one in statement.walk(bfs=False)
        if isinstance(one, exp.Parameter | exp.Placeholder)
    ]


def _insert_parameters(
    statement: Any,
    parameters: Mapping[str, Any] | Sequence[Any],
    source: SourceText,
    typed_dates: bool,
) -> Any:
    """The statement with literals where ``$name``, ``$1``, ``:name`` and ``?`` stand: whatever a
    value holds, it stays one literal.

    Raises `Refusal` for the first that has no value, when all others have theirs, and for a value that
    stands nowhere.
    """
    if problem := find_shape_problem(parameters):
        raise Refusal("parameters", problem)
    refusal: Refusal | None = None
    names = set[str]()
    for position, name in _find_placeholders(statement):
        names.add(name)
        value: Any = None
        if isinstance(parameters, Mapping):
            known = name in parameters
            value = parameters.get(name)
        else:
            known = name.isdecimal() and 1 <= int(name[:9]) <= len(parameters)
            value = parameters[int(name[:9]) - 1] if known else None
        what = "has no value; give it one"
        problem = find_value_problem(value)
        literal = None if problem else make_literal(value)
        if known and literal is None:
            what = problem or "is a text or number that no query can hold"
        if known and literal is not None:
            if typed_dates and isinstance(value, dt.date):
                literal = exp.cast(
                    literal, "TIMESTAMP" if isinstance(value, dt.datetime) else "DATE"
                )
            position.replace(literal)
        elif refusal is None:
            # Its node has no position.
            mark = re.search(rf"[$:]{re.escape(name)}(?!\w)", source.text) if name else None
            start, what = mark and mark.start(), f"parameter {name[:40]!r} {what}"
            refusal = Refusal("parameters", what, position, start=start)
    if refusal is not None:
        raise refusal
    numbers = map(str, range(1, len(parameters) + 1))
    surplus = {*parameters} - names if isinstance(parameters, Mapping) else {*numbers} - names
    if surplus:
        raise Refusal(
            "parameters",
            f"parameter {min(map(str, surplus))[:40]!r} has a value and stands nowhere in the query; leave the value out",
        )
    return statement


def make_literal(value: Any) -> Any:
    """A value as a literal; None of one that no query can hold."""
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal.string(value) if is_unicode(value) and "\0" not in value else None
    if isinstance(value, dt.datetime):
        return exp.Literal.string(value.isoformat(sep=" "))
    if isinstance(value, dt.date):
        return exp.Literal.string(value.isoformat())
    if isinstance(value, int | Decimal) or (isinstance(value, float) and math.isfinite(value)):
        number = Decimal(str(value))
        # No DOUBLE is further from 1, and its digits would be as many.
        if not number.is_finite() or abs(number.adjusted()) > 400:
            return None
        literal = exp.Literal.number(format(abs(number), "f"))
        return exp.Neg(this=literal) if number < 0 else literal
    return make_literal(Decimal(str(float(value)))) if isinstance(value, Fraction) else None
