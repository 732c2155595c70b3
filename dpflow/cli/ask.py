"""`dpflow ask`: open or resume a session outside Airflow, ask it, and see what is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.cli.calculate import parse_words
from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_service,
    open_ledger,
    show_json,
    show_table,
)
from dpflow.engine import load_request, make_plan
from dpflow.engine.sessions.query_list import ask_all, check_questions
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidInput
from dpflow.registry import Registry
from dpflow.yaml_files import load_yaml, load_yaml_value

FileArgument = Annotated[
    Path, typer.Argument(help="A release file (YAML) whose mechanism is a session.")
]
QueryArgument = Annotated[
    list[str] | None,
    typer.Argument(help="One query as field=value; a value may be a list: \\[a, b]."),
]
QueriesOption = Annotated[
    Path | None, typer.Option("--queries", help="A YAML file with a list of queries or candidates.")
]


def command(
    file: FileArgument,
    query: QueryArgument = None,
    queries: QueriesOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a session, in order; without a query, show what is left of it.

    Opening charges it whole, once. The same query again is free.
    """
    if query and queries:
        raise InvalidInput("give either one query as field=value words, or a file of queries")
    questions: list[Any] = (
        [parse_words(query)] if query else read_queries(queries) if queries else []
    )
    if service := find_service(ledger, file.parent):
        asked = service.ask(load_yaml(file, "release file"), questions)
        session_id, answers, left = asked["session"], asked["answers"], asked["left"]
    else:
        registry = Registry.load()
        request, book = load_request(file), open_ledger(ledger, files=[file])
        plan = make_plan(request, registry, book)
        # Paths of candidates are relative to the file that lists them.
        folder = (queries or file).parent
        check_questions(plan, book, registry, questions, folder)
        session = Session.open(plan, book, registry)
        answers = ask_all(session, questions, folder)
        session_id, left = session.id, session.remaining()
    if as_json:
        return show_json({"session": session_id, "answers": answers, "left": left})
    for question, answer in zip(questions, answers):
        title = ", ".join(
            f"{k} {_query_text(v)}" for k, v in question.items() if k not in ("file", "features")
        )
        show_table(title, ("", ""), answer.items())
    show_table(f"left of session {session_id}", ("", ""), left.items())


def _query_text(value: Any) -> Any:
    """A value of a query; an estimator in SQL is its text."""
    return value["sql"] if isinstance(value, dict) and "sql" in value else value


def read_queries(path: Path) -> list[Any]:
    """The list in a YAML file. Raises `InvalidInput` where there is none."""
    queries = load_yaml_value(path, "list of queries")
    # A mapping alone would be taken key by key.
    if not isinstance(queries, list):
        raise InvalidInput(
            f"{path} holds no list; write one query per item, such as - {{threshold: 5}}"
        )
    return queries
