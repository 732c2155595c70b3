"""What commands share: where the ledger is, how tables and JSON are printed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger

LedgerOption = Annotated[
    str | None,
    typer.Option("--ledger", envvar="DPFLOW_LEDGER", help="SQLite file or postgresql+psycopg:// URL of the ledger."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def open_ledger(target: str | None, *, create: bool = False, anchor: Path | None = None) -> Ledger:
    """The ledger a command works on. There is no default place: two ledgers for one table would spend its budget twice."""
    if not target:
        raise InvalidInput("no ledger was named; give --ledger FILE or set DPFLOW_LEDGER, the same one for every run")
    return Ledger(target, create=create, anchor=anchor)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table for people."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")  # a narrow terminal breaks amounts, but loses none
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console().print(table)


def show_json(value: Any) -> None:
    """Print JSON for programs."""
    print(json.dumps(value, indent=2, default=str))


@contextmanager
def writing(file: Path) -> Iterator[TextIO]:
    """A text file that appears whole or not at all, readable by its owner only. Raises `InvalidInput` for a bad place."""
    try:
        descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError:
        raise InvalidInput(f"{file.parent} cannot be written; give a file in a directory of yours") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            yield stream
        Path(part).replace(file)
    except OSError:
        raise InvalidInput(f"{file} cannot be written; give another file, on a disk with room") from None
    finally:
        Path(part).unlink(missing_ok=True)
