"""`dpflow ledger`: what owners grant, what is left, what happened, and whether anybody touched it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.common import JsonOption, LedgerOption, open_ledger, show, show_json
from dpflow.core.declaration import load_table
from dpflow.core.filters import FilterName
from dpflow.engine.occasion import current_principal

app = typer.Typer(help="Grants, remaining budget, history and its verification.", no_args_is_help=True)

ScopeArgument = Annotated[str, typer.Argument(help="A scope, such as flights or flights/team-a.")]


@app.command()
def grant(
    scope: ScopeArgument,
    epsilon: Annotated[str, typer.Option(help="Epsilon, such as 1 or 0.5.")],
    delta: Annotated[str, typer.Option(help="Delta, such as 1e-6.")] = "0",
    filter_name: Annotated[FilterName, typer.Option("--filter", help="basic, renyi or hybrid.")] = "basic",
    table: Annotated[Path | None, typer.Option(help="The declaration whose unit this budget protects.")] = None,
    ledger: LedgerOption = None,
) -> None:
    """Give a scope a budget, raise it, or lower it to no less than what is spent. The first grant makes the ledger."""
    declared = load_table(table) if table else None
    open_ledger(ledger, create=True).grant(
        scope,
        epsilon,
        delta,
        filter=filter_name,
        table=declared,
        principal=current_principal(),
    )
    protects = f", protecting {declared.protected}" if declared else ""
    print(f"{scope}: epsilon {epsilon}, delta {delta} ({filter_name}){protects}")


@app.command("show")
def show_scopes(
    scope: Annotated[str | None, typer.Argument(help="One scope; all if left out.")] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """What remains in every scope and block."""
    book = open_ledger(ledger)
    names = [scope] if scope else [s.scope for s in book.scopes()]
    rows = [row for name in names for row in book.remaining(name).rows()]
    if as_json:
        return show_json(rows)
    columns = ("scope", "block", "epsilon granted", "epsilon left", "delta left", "filter", "protects")
    show("remaining", columns, ([row[c.replace(" ", "_")] for c in columns] for row in rows))


@app.command()
def history(
    scope: Annotated[str | None, typer.Argument(help="One scope; all if left out.")] = None,
    limit: Annotated[int, typer.Option(help="How many of the newest entries.")] = 50,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest entries of the append-only history."""
    entries = open_ledger(ledger).history(scope, limit=limit)
    rows = [e.to_json() for e in entries]
    if as_json:
        return show_json(rows)
    columns = ("seq", "at", "kind", "scope", "principal", "release_id")
    show("history", columns, ([row.get(c) for c in columns] for row in rows))


@app.command()
def verify(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Recompute the hash chain and every sum; exit 1 if anything was changed, dropped, reordered or restored."""
    report = open_ledger(ledger).verify()
    if as_json:
        show_json(report.to_json())
    else:
        print(report)
    if not report.ok:
        sys.exit(1)


@app.command()
def resolve(
    release_id: Annotated[str, typer.Argument(help="The unsettled release.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the history.")],
    ledger: LedgerOption = None,
) -> None:
    """Fence an orphaned reservation: its late result will be discarded. What it was charged stays charged."""
    open_ledger(ledger).resolve(release_id, reason=reason, principal=current_principal())
    print(f"{release_id} is fenced")
