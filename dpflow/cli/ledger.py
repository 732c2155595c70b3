"""`dpflow ledger`: what owners grant, what is left, what happened, and whether anybody touched it."""

from __future__ import annotations

import csv
import json
import sys
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpflow.cli import checkpoints, grants, statement
from dpflow.cli.console import (
    JsonOption,
    KeysOption,
    LedgerOption,
    ReasonOption,
    find_service,
    open_decisions,
    open_ledger,
    open_output,
    read_text,
    require_place,
    show_json,
    show_table,
    spreadsheet_cells,
)
from dpflow.cli.grants import SignOption
from dpflow.cli.statement import NewOnlyOption, SinceOption, UntilOption
from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.printed_numbers import print_bound, whole_percent
from dpflow.counted import counted
from dpflow.engine.releases.run_identity import current_principal
from dpflow.errors import InvalidInput, UnknownName
from dpflow.ledger import Entry
from dpflow.ledger.audit.entry_text import explain_entry
from dpflow.ledger.books.records import is_same_principal, read_point
from dpflow.ledger.history.anchor import default_folder

# Who reads at a service has no ledger.
if TYPE_CHECKING:
    from dpflow.ledger import VerificationReport

app = typer.Typer(
    help="Grant budgets; show what is left, what happened, and verify it.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(grants.grant)
app.command()(grants.quota)
app.command("proposals")(grants.show_proposals)
app.command()(grants.approve)
app.command("statement")(statement.write_statement)
app.command("reconcile")(statement.reconcile_ledger)
app.command("checkpoint")(checkpoints.sign_checkpoint)
app.command("key")(checkpoints.make_key)
app.command("recover")(checkpoints.recover)

ScopeFilter = Annotated[str | None, typer.Argument(help="One scope; all if left out.")]


@app.command("show")
def show_scopes(
    scope: ScopeFilter = None, ledger: LedgerOption = None, as_json: JsonOption = False
) -> None:
    """What remains in every scope and block."""
    service = find_service(ledger)
    if service is not None:
        rows = service.remaining(scope)
    else:
        book = open_ledger(ledger)
        names = [scope] if scope is not None else [granted.scope for granted in book.scopes()]
        rows = [row for name in names for row in book.remaining(name).rows()]
    if as_json:
        return show_json(rows)
    cells = [row | {"used": f"{whole_percent(row['used'])}%"} for row in rows]
    for row in cells:
        if "period" in row:
            row["block"] = f"{row['block']} {row['period']}, until {row['renews']}".strip()
    amounts = ("epsilon granted", "epsilon left", "delta left")
    columns = ("scope", "block", *amounts, "filter", "used", "protects")
    show_table("remaining", columns, ([row[c.replace(" ", "_")] for c in columns] for row in cells))
    if service is not None:
        return
    for name in [granted.scope for granted in book.scopes() if granted.closed]:
        print(f"{name} is closed until its owner grants it again: lost entries may have charged it")
    for witness in book.witness_states():
        print(witness)


@app.command()
def odometer(
    scope: ScopeFilter = None,
    delta: Annotated[
        str | None, typer.Option(help="Report at this total delta; the grant's if left out.")
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """What has been spent so far, as (epsilon, delta). A report: the promise is the grant."""
    book = open_ledger(ledger)
    scopes = book.scopes() if scope is None else [book.scope(scope)]
    rows: list[dict[str, Any]] = []
    cells = []
    for s in scopes:
        for block, spent in book.odometer(s.scope, delta=delta).items():
            row = {"scope": s.scope, "block": block, "protects": s.protects, "epsilon": None}
            loss = ("nothing finite", "", "")
            if spent:
                row |= {"epsilon": exact_text(spent.epsilon), "delta": exact_text(spent.delta)}
                row["proved_by"] = spent.via
                epsilon, delta_used = (
                    print_bound(x, upper=True) for x in (spent.epsilon, spent.delta)
                )
                loss = (epsilon, delta_used, spent.via)
            rows.append(row)
            cells.append((s.scope, block, *loss, s.protects))
    if as_json:
        report = "what was spent so far; the promise is the grant"
        return show_json({"report": report, "budgets": rows})
    columns = ("scope", "block", "epsilon", "delta", "proved by", "protects")
    show_table("spent so far (a report: the promise is the grant)", columns, cells)
    if book.has_recovered():
        print(
            "entries were lost and an owner went on: what they charged may be missing (dpflow ledger verify)"
        )
    if any(row["block"] == "*" for row in rows):
        print("block * is a unit with rows in every block used so far")
    if any(s.filter.order is not None for s in scopes):
        whole = "the grant's delta" if delta is None else f"delta {delta}"
        print(
            f"Renyi divergence is converted at all that is left of {whole}, by a statement at the grant's tail delta: two "
            f"guarantees of one loss"
        )


@app.command()
def history(
    scope: Annotated[
        str | None, typer.Option(help="Only this scope and the quotas below it.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    principal: Annotated[str | None, typer.Option(help="Only what this principal did.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Only entries of this kind, such as grant, recover or refuse; may be repeated."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the newest; 50 in a table, else all, if left out."),
    ] = None,
    form: Annotated[
        Literal["table", "json", "csv"],
        typer.Option("--format", help="json and csv hold whole entries, the oldest first."),
    ] = "table",
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """The entries of the append-only history: who did what, and when."""
    form = "json" if as_json else form
    if limit is None and form == "table":
        limit = 50
    entries: Iterable[Entry]
    end = None if until is None else read_point("until", until)
    is_chosen = bool(kind or until)
    if service := find_service(ledger):
        most = sys.maxsize if is_chosen or limit is None else limit
        found = service.history(scope, since=since, principal=principal, limit=most)
        entries = [Entry(**entry) for entry in found]
        _require_known(entries, kind or (), None)  # it tells its callers of nobody else
    else:
        book, first = open_ledger(ledger), 1 if since is None else read_point("since", since)
        statement.require_reached(book, first)
        _require_known(book.stream_history(), kind or (), principal)
        entries = book.stream_history(scope, since=first, principal=principal)
        if limit is not None and not is_chosen:
            entries = book.history(scope, since=first, principal=principal, limit=limit)
    if is_chosen:
        within = (e for e in entries if end is None or e.precedes(end))
        entries = (e for e in within if not kind or e.kind in kind)
        entries = entries if limit is None else deque(entries, limit)
    if form == "json":
        # An array, written as it comes: a history may not fit into memory.
        start = "["
        for entry in entries:
            print(start, json.dumps(entry.to_json(), ensure_ascii=False), sep="\n", end="")
            start = ","
        print("[]" if start == "[" else "\n]")
    elif form == "csv":
        rows = csv.writer(sys.stdout, lineterminator="\n")
        rows.writerow(field.name for field in fields(Entry))
        for entry in entries:
            text = json.dumps(entry.body, ensure_ascii=False)
            rows.writerow(spreadsheet_cells((entry.to_json() | {"body": text}).values()))
    else:
        columns = ("seq", "at", "kind", "scope", "principal", "release_id", "what")
        lines = (
            e.to_json() | {"at": e.at[:16].replace("T", " "), "what": explain_entry(e)}
            for e in entries
        )
        show_table("history", columns, ([line[c] for c in columns] for line in lines))


def _require_known(entries: Iterable[Entry], kinds: Collection[str], principal: str | None) -> None:
    """Raises `UnknownName` for a kind that is neither the ledger's nor in the history, and for a principal who did nothing."""
    if not kinds and principal is None:
        return
    from dpflow.ledger.audit.recheck import RESERVED_KINDS

    for verb in {*kinds} & {"approve", "quota"}:
        raise InvalidInput(
            f"no entry is of kind {verb}: dpflow ledger {verb} writes a grant; use --kind grant"
        )
    missing, known, principals = {*kinds} - RESERVED_KINDS, {*RESERVED_KINDS}, set[str]()
    if not missing and principal is None:
        return
    for entry in entries:
        missing.discard(entry.kind)
        if principal is not None and is_same_principal(principal, entry.principal):
            principal = None
        if not missing and principal is None:
            return
        known.add(entry.kind)
        principals.add(entry.principal)
    if missing:
        raise UnknownName("kind of entry", min(missing), known)
    assert principal is not None
    raise UnknownName("principal in the history", principal, principals)


@app.command()
def verify(
    since: Annotated[
        Path | None, typer.Option(help="A checkpoint that the history must extend.")
    ] = None,
    new_only: NewOnlyOption = False,
    key: KeysOption = None,
    failures: Annotated[
        bool,
        typer.Option(
            "--failures",
            help="Only list draws that failed unexpectedly; needs the owner's key, sign in the anchor.",
        ),
    ] = False,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold every entry against the rules, and every row against the entries; exit 1 if anything was
    changed, dropped, reordered or restored. With --failures, exit 1 if a draw failed or a note cannot be
    opened.
    """
    if failures:
        draws = open_ledger(ledger).failures()
        show_json(asdict(draws)) if as_json else print(draws)
        sys.exit(bool(draws.failures or draws.unreadable))
    if new_only and since is None:
        raise InvalidInput("--new-only starts at a checkpoint; name it with --since FILE")
    note = None if since is None else read_text(since)
    report = open_ledger(ledger).verify(since=note, keys=key or (), new_only=new_only)
    _show_verification(report, as_json)


@app.command()
def rotate(ledger: LedgerOption = None) -> None:
    """Encrypt the keys of results, and the states of open sessions, under new keys."""
    number = open_ledger(ledger).rotate(principal=current_principal())
    are = "is" if number == 1 else "are"
    print(f"{counted(number, 'key')} {are} wrapped under a new one, and the old one is destroyed")
    print("back up wrap again: without it no stored result can be read")


@app.command()
def upgrade(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Take a ledger of an earlier schema version to this one, verified before and after. Runs that
    are queued meanwhile wait.
    """
    from dpflow.ledger import Ledger

    report = Ledger.upgrade(require_place(ledger), principal=current_principal())
    _show_verification(report, as_json)


@app.command()
def resolve(
    release_id: Annotated[str, typer.Argument(help="The unsettled release.")],
    reason: ReasonOption,
    decision: Annotated[
        Literal["close", "retry"],
        typer.Option(help="close: no later try either; retry: a new try may finish it."),
    ] = "close",
    sign: SignOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fence an orphaned reservation: its late result will be discarded. What it was charged stays
    charged.
    """
    who: Any = {"principal": current_principal(), "signer": checkpoints.read_signer(sign)}
    state = open_decisions(ledger).resolve(release_id, reason=reason, decision=decision, **who)
    if as_json:
        return show_json({"release_id": release_id, "decision": decision, "state": state})
    end = "a new try may finish it" if decision == "retry" else "it stays closed"
    print(f"{release_id} is fenced; {end}")


@app.command()
def export(
    file: Annotated[
        Path | None, typer.Argument(help="The file to write; standard output if left out.")
    ] = None,
    ledger: LedgerOption = None,
) -> None:
    """Write everything but secrets as JSON lines, from which a third party recomputes the spend
    (docs/how-to/operate-the-ledger.md).
    """
    book = open_ledger(ledger)
    if file is None:
        book.export(sys.stdout)
        return
    with open_output(file) as stream:
        number = book.export(stream)
    print(f"{counted(number, 'entry', 'entries')} written to {file}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An export.")],
    anchor: Annotated[
        Path | None,
        typer.Option(
            envvar="DPFLOW_LEDGER_ANCHOR",
            help="The anchor directory of the ledger that wrote the export; this user's if left out.",
        ),
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill a new ledger, on either database, from an export, and verify it. The old one is refused
    from then on.
    """
    if not file.is_file():
        raise InvalidInput(
            f"there is no export at {file}; write one with: dpflow ledger export FILE"
        )
    anchor = anchor or _usual_anchor(file)
    # Without a key the new ledger would make one, under which no entry of the export holds.
    if not (anchor / "key").is_file():
        raise InvalidInput(
            "an import goes on under the key of the ledger that wrote it; give its anchor directory "
            "with --anchor DIR"
        )
    book = open_ledger(ledger, create=True, anchor=anchor)
    # Bytes that are no UTF-8 must fail as a changed entry, not as a traceback.
    with file.open(encoding="utf-8", errors="replace") as stream:
        book.import_(stream, principal=current_principal())
    _show_verification(book.verify(), as_json)


def _usual_anchor(file: Path) -> Path:
    """Where the anchor of the ledger that wrote an export is, unless somebody moved it."""
    try:
        header = json.loads(file.open(encoding="utf-8", errors="replace").readline())
        return default_folder(str(header["ledger"]))
    except (ValueError, TypeError, KeyError):
        raise InvalidInput(
            f"{file} is no ledger export; write one with: dpflow ledger export FILE"
        ) from None


def _show_verification(report: VerificationReport, as_json: bool) -> None:
    if as_json:
        show_json(report.to_json())
    else:
        print(report)
    # A script that verifies every night looks at the exit code alone.
    if not report.ok:
        sys.exit(1)
