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
from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.analyst_sql.parse.text_and_options import read_source
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


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(one, marks=[] if one.number % 10 == 0 else [pytest.mark.slow])
        for one in QUESTIONS
        if one.rule is None
    ],
    ids=lambda one: str(one.number),
)
def test_an_answered_question_has_duckdbs_answer(
    shop: Path, ledger: Ledger, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where noise is negligible, and but for what the guide says differs: declared keys without rows."""
    (name,) = {
        n for n in DECLARATIONS if re.search(rf"\b{n}\b", question.query.partition("FROM")[2])
    }
    asked: dict[str, Any] = {"scope": name} | options_of(question.sql)
    if "epsilon" in asked:
        asked |= {"epsilon": 5_000, "delta": "1e-3"}
    query = question.query.replace("OPTIONS(epsilon=1,", "OPTIONS(epsilon=5000,")
    # Tables and public ones are those of dpflow.yml.
    monkeypatch.chdir(shop)
    answer = dpflow.sql(query, ledger=ledger, **asked)
    text = re.sub(
        r"bucket\((\w+), (\d+)\)",
        r"CAST(floor(\1 / \2) * \2 AS BIGINT)",
        read_source(query, asked.get("dialect")).text,
    )
    with duckdb.connect(str(shop / "shop.duckdb"), read_only=True) as connection:
        truth = connection.execute(text).fetchall()
    keys = [
        n
        for n, column in enumerate(answer.columns)
        if (column.interval == "exact" or column.kind == "VARCHAR")
        and not any(isinstance(row[n].value, list) for row in answer.values)
    ]
    expected = {tuple(as_text(row[n]) for n in keys): row for row in truth}
    # Of rows that tie, either may be chosen.
    chooses = "LIMIT" in text or "QUALIFY" in text
    seen = set()
    for row in answer.values:
        key = tuple(as_text(row[n].value) for n in keys)
        seen.add(key)
        numbers = [(cell, n) for n, cell in enumerate(row) if n not in keys]
        if key in expected:
            assert all(is_right(cell, expected[key][n]) for cell, n in numbers), (
                row,
                expected[key],
            )
        elif not chooses:
            # A declared key without rows, of which there is noise alone.
            assert all(is_right(cell, 0) or cell.value is None for cell, n in numbers), row
    missing = {key for key in expected if "None" not in key} - seen
    assert seen and (not missing or chooses), missing


def as_text(value: Any) -> str:
    if isinstance(value, Decimal | int | float) and not isinstance(value, bool):
        return f"{float(value):g}"
    return str(value.date() if isinstance(value, dt.datetime) else value)


def is_right(cell: Any, expected: Any) -> bool:
    """Within the interval, or nearly the same; a quantile is one of the declared grid's values."""
    value = cell.value
    if isinstance(value, list):
        return all(abs(a - b) <= 1 for a, b in zip(value, expected))
    if isinstance(expected, Decimal | int | float) and not isinstance(expected, bool):
        if value is None:
            return False
        inside = cell.low is not None and cell.low <= float(expected) <= cell.high
        return inside or abs(float(value) - float(expected)) <= 2 + 0.01 * abs(float(expected))
    return as_text(value) == as_text(expected)
