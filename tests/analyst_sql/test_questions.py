"""The 120 questions of docs/research/analyst-questions.md: what the page says of each is true."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from question_tables import DECLARATIONS, PAGE, Question, make_tables, options_of, read_questions

import dpflow
from dpflow.analyst_sql.query_plan import plan_sql
from dpflow.analyst_sql.source_text import read_source
from dpflow.errors import SqlRefused
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

QUESTIONS = read_questions()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    make_tables(folder)
    return folder


def test_the_page_counts_its_questions() -> None:
    """Of 120, each once, at least 110 are answered."""
    assert [one.number for one in QUESTIONS] == list(range(1, 121))
    assert len({one.sql for one in QUESTIONS}) == 120
    answered = sum(one.rule is None for one in QUESTIONS)
    assert f"**{answered} of 120 are answered.**" in PAGE.read_text() and answered >= 110


def test_each_question_is_planned_or_refused_as_the_page_says(shop: Path) -> None:
    """By its rule; a plan opens the catalogue and binds the outer query, so it would be answered."""
    for question in QUESTIONS:
        try:
            plan_sql(question.query, options_of(question.sql), folder=shop)
            rule = None
        except SqlRefused as error:
            rule = error.rule
        assert rule == question.rule, question


@pytest.fixture(scope="module")
def ledger(shop: Path) -> Ledger:
    """So much for each table that noise is negligible."""
    book = Ledger(shop / "exact.sqlite", create=True)
    for name in DECLARATIONS:
        table = load_table(shop / f"{name}.yml")
        terms = {"filter": "basic", "table": table, "principal": "owner", "confirm_large": True}
        book.grant(name, 10**6, "0.9", **terms)
    return book


@pytest.mark.slow
@pytest.mark.parametrize(
    "question", [one for one in QUESTIONS if one.rule is None], ids=lambda one: str(one.number)
)
def test_an_answered_question_has_duckdbs_answer(
    shop: Path, ledger: Ledger, question: Question
) -> None:
    """Where noise is negligible, and but for what the guide says differs: declared keys without rows."""
    (name,) = {
        n for n in DECLARATIONS if re.search(rf"\b{n}\b", question.query.partition("FROM")[2])
    }
    asked = {"epsilon": 5_000, "delta": "1e-3", "scope": name} | options_of(question.sql)
    asked |= {"epsilon": 5_000, "delta": "1e-3"} if "OPTIONS(" not in question.sql else {}
    answer = dpflow.sql(question.query, tables=[shop / f"{name}.yml"], ledger=ledger, **asked)
    text = re.sub(
        r"bucket\((\w+), (\d+)\)",
        r"CAST(floor(\1 / \2) * \2 AS BIGINT)",
        read_source(question.query, asked.get("dialect")).text,
    )
    with duckdb.connect(str(shop / "shop.duckdb"), read_only=True) as connection:
        truth = connection.execute(text).fetchall()
    exact = "OPTIONS(" not in question.sql
    keys = {find_key(row) for row in truth}
    rows = [row for row in answer.rows if find_key(row) in keys or any(map(is_large, row))]
    # A group without a key is no group here.
    truth = [row for row in truth if find_key(row) in {find_key(one) for one in rows}]
    assert rows and len(rows) == len(truth)
    for row, expected in zip(sorted(rows, key=find_key), sorted(truth, key=find_key)):
        assert all(is_close(a, b, exact) for a, b in zip(row, expected)), (row, expected)


def find_key(row: tuple[Any, ...]) -> str:
    """What a row is of: its texts, dates and truth values, or where it has none its first column."""
    words = [as_text(value) for value in row if isinstance(value, str | dt.date | bool)]
    return "|".join(words or [as_text(row[0]) if len(row) > 1 else ""])


def as_text(value: Any) -> str:
    return str(value.date() if isinstance(value, dt.datetime) else value)


def is_large(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) > 2


def is_close(value: Any, expected: Any, exact: bool) -> bool:
    if isinstance(value, list):
        return all(map(is_close, value, expected, [exact] * len(value)))
    if isinstance(expected, Decimal | int | float) and not isinstance(expected, bool):
        size = abs(float(expected))
        return value is not None and abs(float(value) - float(expected)) <= (
            0.02 + 0.02 * size if exact else 200
        )
    return as_text(value) == as_text(expected)
