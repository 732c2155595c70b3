"""What commands share: where the ledger is, how tables and JSON are printed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpflow.catalogue import find_server, locate_ledger
from dpflow.core.contract.calculator import Calculator
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import finite_json
from dpflow.core.contract.strict_models import Strict
from dpflow.errors import InvalidInput

# Who asks a service has neither.
if TYPE_CHECKING:
    from dpflow.client.interface import Client
    from dpflow.client.remote import RemoteClient
    from dpflow.ledger import Ledger

ConfirmOption = Annotated[
    bool,
    typer.Option("--confirm-large", help="An epsilon above 20 or a delta above 1e-3 is meant."),
]
LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="DPFLOW_LEDGER",
        help="SQLite file or postgresql+psycopg:// URL of the ledger; DPFLOW_LEDGER, or that of dpflow.yml, if left out.",
    ),
]
ReasonOption = Annotated[str, typer.Option(help="Why; kept in the history.")]
KeysOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Verifier key of a witness who may have signed; may be repeated."),
]
#: With these a cell of a spreadsheet is a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def require_place(target: str | None) -> str:
    """Where the ledger is. Raises `InvalidInput` if nobody said."""
    return locate_ledger(target)[0]


def open_ledger(
    target: str | None,
    *,
    create: bool = False,
    anchor: Path | None = None,
    files: Sequence[Path] = (),
) -> Ledger:
    """The ledger a command works on. There is no default place: two ledgers for one table would
    spend its budget twice.

    Args:
        files: release files that it pays for; ``dpflow.yml`` is searched for above them.

    Raises:
        InvalidInput: nobody said where it is, or the files belong to projects with two ledgers.
    """
    locations = {locate_ledger(target, file.parent) for file in files} or {locate_ledger(target)}
    if len(locations) > 1:
        raise InvalidInput(
            "these files belong to projects with different ledgers; run them one by one, or give --ledger"
        )
    from dpflow.ledger import Ledger

    ((place, usual_anchor),) = locations
    anchor = anchor or usual_anchor
    if not create:
        return Ledger(place, anchor=anchor)
    # Where there is a ledger it is opened as it is: only a new one is worth a word.
    try:
        return Ledger(place, anchor=anchor)
    except InvalidInput:
        new_ledger = Ledger(place, create=True, anchor=anchor)
    where = "" if "://" in place else f" at {Path(place).resolve()}"  # a URL may hold a password
    print(
        f"made a new ledger{where}; its keys and mark are in {new_ledger.anchor_folder}",
        file=sys.stderr,
    )
    return new_ledger


def find_service(target: str | None, folder: Path | None = None) -> RemoteClient | None:
    """The service that a command asks; None where it works on a ledger.

    Args:
        target: a ledger that the user named.
        folder: where the search for ``dpflow.yml`` begins.

    Raises:
        InvalidInput: a ledger and DPFLOW_SERVER are both named, or no token is known.
    """
    if target and os.environ.get("DPFLOW_SERVER"):
        raise InvalidInput(
            "DPFLOW_SERVER names a service, and a ledger is named, too; unset DPFLOW_SERVER, or leave the ledger out"
        )
    server = None if target else find_server(folder)
    if server is None:
        return None
    from dpflow.client.remote import RemoteClient, check_server
    from dpflow.client.tokens import find_token

    place = check_server(server)
    return RemoteClient(place, find_token(place))


def open_local(target: str | None) -> Client:
    """Tables of ``dpflow.yml``, and the ledger."""
    from dpflow.client.local import LocalClient

    return LocalClient(target)


def open_decisions(target: str | None, *, create: bool = False) -> Any:
    """Where owners decide: the ledger, or a service that records what they sign. Both have the same verbs."""
    service = find_service(target)
    if service is None:
        return open_ledger(target, create=create)
    from dpflow.client.owner import RemoteLedger

    return RemoteLedger(service, confirm_decision)


def confirm_decision(lines: Sequence[str]) -> bool:
    """Show what is about to be signed. On a terminal ask; true if the person agrees, false where nobody is asked."""
    from dpflow.client.owner import show_lines

    show_lines(lines)
    is_person = sys.stdin.isatty() and sys.stderr.isatty()
    return is_person and typer.confirm("sign this?", abort=True, err=True)


def find_ledger(target: str | None, files: Sequence[Path] = ()) -> Ledger | None:
    """As `open_ledger`; None where nobody said which ledger, or where ``dpflow.yml`` names one that
    the first grant will make.
    """
    try:
        return open_ledger(target, files=files)
    except InvalidInput:
        if target:
            raise
        return None


def make_console() -> Console:
    """Where people read: as wide as the terminal; in a file or a pipe as wide as what is written."""
    # So wide that no row of a table breaks: what reads a pipe goes by lines. A name like a:b: is no emoji.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
    return Console(width=width, emoji=False)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table for people: in a terminal as wide as that, in a file or a pipe one line a row.
    Empty columns stay out. Paths below the working directory are relative, those below the home directory begin with ~.
    """
    cells = [["" if cell is None else _shorten_paths(str(cell)) for cell in row] for row in rows]
    filled = [i for i in range(len(columns)) if not cells or any(row[i] for row in cells)]
    table = Table(header_style="bold", show_header=any(columns))
    # A narrow terminal breaks amounts, but loses none, and never the name in front.
    for i in filled:
        table.add_column(Text(columns[i]), overflow="fold", no_wrap=i == 0)
    for row in cells:
        # As `Text`, because brackets in a key are no markup.
        table.add_row(*(Text(row[i]) for i in filled))
    console = make_console()
    console.print(title, style="italic", highlight=False, markup=False)
    console.print(table)


def _shorten_paths(text: str) -> str:
    here, home = Path.cwd(), Path.home()
    for place, short in ((here, ""), (home, "~/")):
        # Nothing is shorter below the root.
        if place != place.parent:
            text = text.replace(f"{place}/", short)
    return text


def show_json(value: Any) -> None:
    """Print JSON for programs."""
    # Whatever JSON does not know becomes its text: a float would round it.
    print(json.dumps(finite_json(value), indent=2, default=str, ensure_ascii=False))


def explain_entry(
    entry: Mechanism[Any] | InteractiveMechanism[Any, Any] | Calculator, as_json: bool
) -> None:
    """Print what a mechanism or calculator is, and what its fields mean."""
    models: dict[str, type[BaseModel]] = {"field": entry.Params}
    if isinstance(entry, InteractiveMechanism):
        models["a query's field"] = entry.Query
    if as_json:
        about: dict[str, Any] = {"name": entry.name, "summary": entry.summary}
        about["citation"] = entry.citation
        for kind, model in zip(("", "query_"), models.values()):
            rows, meaning = _describe_fields(model)
            about |= {f"{kind}fields": dict(rows), f"{kind}meaning": meaning}
        return show_json(about)
    title = f"{entry.name}: {entry.summary} ({entry.citation})"
    for heading, model in models.items():
        rows, meaning = _describe_fields(model)
        show_table(title, (heading, "if left out"), rows)
        print(textwrap.fill(meaning, 120))
        title = f"what {entry.name} is asked"


def _describe_fields(model: type[BaseModel]) -> tuple[list[tuple[str, str]], str]:
    """Every field with its default, and what they mean."""
    fields = model.model_fields
    rows = [(name, _default_text(field)) for name, field in fields.items()]
    meaning = ""
    # A base's text stands for the fields that nearer classes leave out.
    for base in model.__mro__:
        annotations, text = vars(base).get("__annotations__", {}), vars(base).get("__doc__") or ""
        if issubclass(base, Strict) and any(
            name in fields and f"``{name}``" not in meaning for name in annotations
        ):
            meaning += " ".join(text.split()) + " "
    return rows, meaning.replace("``", "").strip()


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = {name: str(part) for name, part in value.model_dump(mode="json").items()}
        return ", ".join(f"{name}: {part}" for name, part in value.items())
    return "nothing" if value is None or value in ((), {}, "") else str(value)


@contextmanager
def open_output(file: Path) -> Iterator[TextIO]:
    """A text file that appears whole or not at all, readable by its owner only; a device or a pipe, such
    as ``/dev/stdout``, is written into. Raises `InvalidInput` for a bad place.
    """
    # Else written beside its place and moved there: nobody ever reads half of it. A link stays one.
    place, part = Path(os.path.realpath(file)), ""
    try:
        if file.is_char_device() or file.is_fifo():
            descriptor = os.open(file, os.O_WRONLY)
        else:
            descriptor, part = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    except OSError:
        raise InvalidInput(
            f"{file.parent} cannot be written; give a file in a directory of yours"
        ) from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            yield stream
        if part:
            Path(part).replace(place)
    except OSError:
        raise InvalidInput(
            f"{file} cannot be written; give another file, on a disk with room"
        ) from None
    finally:
        # Moved into its place by now, or half a file that must not stay.
        if part:
            Path(part).unlink(missing_ok=True)


def write_page(text: str, file: Path | None, what: str) -> None:
    """Write a text to a file, and say what is there; to standard output without one."""
    if file is None:
        print(text, end="")
        return
    with open_output(file) as stream:
        stream.write(text)
    print(f"{what} is in {file}")


def read_text(file: Path) -> str:
    """The text of a file that the user names. Raises `InvalidInput` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        raise InvalidInput(f"{file} cannot be read; name a file that is there") from None


def spreadsheet_cells(cells: Iterable[object]) -> list[object]:
    """The cells of a CSV line; a text that a spreadsheet would run as a formula gets an apostrophe.

    Names and reasons in a history are anybody's words.
    """
    return [
        f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
        for cell in cells
    ]
