"""`dpflow release`: run a release file outside Airflow, with the same guarantees; list and reprint
past ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_service,
    open_ledger,
    show_json,
    show_table,
)
from dpflow.core.contract.question_text import describe_question
from dpflow.core.contract.results import Result
from dpflow.core.contract.strict_models import leave_out_empty
from dpflow.counted import counted
from dpflow.engine import Receipt, load_request
from dpflow.engine.releases.request import list_request_fields, require_public
from dpflow.engine.releases.result_table import (
    list_printed_columns,
    list_printed_rows,
    make_table,
    require_file_kind,
    write_tables,
)
from dpflow.errors import InvalidInput
from dpflow.output_files import require_writable
from dpflow.yaml_files import load_yaml


def command(
    files: Annotated[list[Path] | None, typer.Argument(help="Release files (YAML).")] = None,
    ledger: LedgerOption = None,
    listing: Annotated[bool, typer.Option("--list", help="List past releases instead.")] = False,
    shown: Annotated[
        str | None, typer.Option("--show", help="Reprint one past release by id.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Also write the results with named columns: .csv, .json or .parquet."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Charge, draw, settle and publish releases; list past ones.

    The same file again prints the stored result and costs nothing. Several files are charged
    together before any row is read: all of them, or none.
    """
    if bool(files) + listing + (shown is not None) != 1:
        raise InvalidInput("give either release files, or --list, or --show ID")
    if listing:
        return _list_releases(ledger, as_json)
    if shown is not None:
        return _show_release(ledger, shown, output, as_json)
    if output is not None:
        # Before anything is charged: a mistyped name should cost nothing.
        require_file_kind(output)
        require_writable(output)
    receipts = _release_files(files or [], ledger, output)
    if as_json:
        shown_receipts = [receipt.to_json() | receipt.result.to_json() for receipt in receipts]
        show_json(shown_receipts if len(receipts) > 1 else shown_receipts[0])
    else:
        for receipt in receipts:
            _show_receipt(receipt)
    # After they are shown: they are paid, whatever becomes of the file.
    if output is not None:
        write_tables([receipt.table for receipt in receipts], output)


def _release_files(
    files: Sequence[Path], ledger: str | None, output: Path | None = None
) -> list[Receipt]:
    """All of them charged together; at a service one alone. Refuses an output in a private table's file."""
    if service := find_service(ledger, files[0].parent):
        if len(files) > 1:
            raise InvalidInput("a service charges each release by itself; give one release file")
        return [service.release(service.plan_fields(load_yaml(files[0], "release file")))]
    # They bring databases, which who asks a service need not have.
    from dpflow.engine import RunIdentity, make_plan, release_all
    from dpflow.registry import Registry

    registry, book = Registry.load(), open_ledger(ledger, files=files)
    plans = [make_plan(request, registry, book) for request in map(load_request, files)]
    for plan in plans if output is not None else ():
        require_public(str(output), plan.table, "results")
    planned = [(plan, RunIdentity.of_request(plan.request)) for plan in plans]
    return list(release_all(planned, book, registry))


def _show_receipt(receipt: Receipt) -> None:
    cost = (
        "replayed, nothing charged"
        if receipt.replayed
        else f"epsilon {receipt.epsilon}, delta {receipt.delta}"
    )
    _print_result(
        f"{receipt.name} ({cost}; protects {receipt.protects}; id {receipt.release_id})",
        receipt.result,
    )
    if receipt.rows_left_out:
        print(
            f"{counted(receipt.rows_left_out, 'row')} left out: more than the service sends to this principal"
        )
    if receipt.published:
        print(f"published in {receipt.published}")
    if receipt.result.synthetic is not None:
        print(
            f"its synthetic data is the table {receipt.name + '_synthetic'!r} there"
            if receipt.published
            else "its synthetic data is in the ledger; add publish: {database: FILE.duckdb} to the release file and run it "
            "again, at no cost"
        )


def _print_result(title: str, result: Result) -> None:
    show_table(title, list_printed_columns(result), list_printed_rows(result))
    if result.totals is not None:
        print(result.totals.statement)
    # A document has no rows: it is shown as the JSON that it is.
    if result.document:
        show_json(dict(result.document))


def _list_releases(ledger: str | None, as_json: bool) -> None:
    releases = open_ledger(ledger).releases()
    columns = ("id", "scope", "name", "question", "epsilon", "delta", "blocks", "state")
    rows = [
        (
            r.release_id,
            r.scope,
            r.request.get("name"),
            describe_question(r.request),
            *(r.request.get(amount, "") for amount in ("epsilon", "delta")),
            r.blocks,
            r.state,
        )
        for r in releases
    ]
    if as_json:
        return show_json([dict(zip(columns, row)) for row in rows])
    cells = ((*about, ", ".join(blocks), state) for *about, blocks, state in rows)
    show_table("releases", columns, cells)


def _show_release(ledger: str | None, release_id: str, output: Path | None, as_json: bool) -> None:
    from dpflow.engine.releases.execute import SEALED_REQUEST
    from dpflow.engine.releases.republish import read_settled

    opened = open_ledger(ledger)
    stored = opened.release(release_id)
    if stored.result is None:
        raise InvalidInput(
            f"release {release_id} is {stored.state}, so it has no result; run its file again to finish it"
        )
    release = read_settled(opened, stored)
    if output is not None:
        write_tables([make_table(release)], output)
    if as_json:
        # A service keeps there what it was sent, encrypted: nothing to read.
        request = list_request_fields(stored.request, stored.scope)
        about = {n: v for n, v in stored.request.items() if n not in {SEALED_REQUEST, *request}}
        return show_json(
            {
                "id": stored.release_id,
                "request": request,
                "about": leave_out_empty(about),
                **release.result.to_json(),
            }
        )
    _print_result(
        f"{stored.request.get('name')}: {describe_question(stored.request)} (id {stored.release_id})",
        release.result,
    )
    when = f"{release.released_at:%Y-%m-%d %H:%M} UTC" if release.released_at else "an unknown time"
    print(
        f"charged to {stored.scope} by {stored.principal}: epsilon {release.epsilon}, delta {release.delta}; settled at {when}"
    )
