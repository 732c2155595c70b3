"""`dpflow contract`: plan, run and suggest data contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_ledger,
    find_service,
    open_ledger,
    open_output,
    show_json,
    show_table,
)
from dpflow.core.contract.printed_numbers import print_around, print_width
from dpflow.engine.releases.request import require_public
from dpflow.output_files import require_writable

app = typer.Typer(
    help="Data contracts: what they cost, whether rows keep them, thresholds from history.",
    no_args_is_help=True,
)

FileArgument = Annotated[Path, typer.Argument(help="A contract's file (YAML).")]
BlockOption = Annotated[
    list[str] | None, typer.Option("--block", help="A block to check; repeatable.")
]


@app.command("plan")
def plan_command(
    file: FileArgument,
    block: BlockOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a contract costs and what its noise can decide; nothing is read or charged.

    A check can be decided where rows without a fault are told kept. For a watch: beside paying each time, and which is cheaper.
    """
    from dpflow.quality.contract_file import load_contract, require_blocks
    from dpflow.quality.contract_run import plan_contract
    from dpflow.quality.decidability import list_decidability
    from dpflow.quality.watch import compare_costs, plan_session
    from dpflow.registry import Registry

    contract, blocks = load_contract(file), block or []
    require_blocks(contract, contract.load_declaration(), blocks)
    views: list[dict[str, Any]] = []
    if not contract.is_paid:
        views = [{"contract": contract.name, "mode": contract.mode, "cost": "nothing is charged"}]
    elif contract.mode == "metered":
        ledger = find_ledger(None, [file])
        for plan, drift in plan_contract(contract, blocks, Registry.load(), ledger):
            view = plan.describe()
            widths = view.pop("half_width_95")
            view |= {f"error of {name}": print_width(width) for name, width in dict(widths).items()}
            if drift is None:
                view |= {
                    f"{one.check} can be decided": one.describe()
                    for one in list_decidability(contract, plan)
                }
            views.append(view)
    else:
        plan = plan_session(contract, blocks, Registry.load())
        views = [plan.describe() | compare_costs(plan).describe()]
    if as_json:
        return show_json(views)
    for view in views:
        shown = {name: value for name, value in view.items() if name not in ("guarantee", "digest")}
        show_table(
            f"contract {contract.name}, {contract.mode}",
            ("", ""),
            [(name, str(value)) for name, value in shown.items() if value != ""],
        )


@app.command("run")
def run_command(
    file: FileArgument,
    block: BlockOption = None,
    ledger: LedgerOption = None,
    page: Annotated[
        Path | None, typer.Option(help="Write the outcome as one HTML page, too.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a contract, pay for it where its mode is paid, and fail if it is not kept.

    The same contract, revision and blocks again are free. At a service, name a contract of the service file.
    """
    from dpflow.quality.contract_file import load_contract
    from dpflow.quality.contract_run import ContractOutcome, run_contract
    from dpflow.quality.page import write_html

    if page is not None:
        require_writable(page)
    if service := find_service(ledger, file.parent):
        outcome = ContractOutcome.from_json(service.check_contract(str(file), block or ()))
    else:
        contract = load_contract(file)
        if page is not None:
            require_public(page, contract.load_declaration(), "outcomes")
        # What is paid needs a ledger; other outcomes are recorded where there is one.
        book = (
            open_ledger(ledger, files=[file]) if contract.is_paid else find_ledger(ledger, [file])
        )
        outcome = run_contract(contract, block or (), ledger=book)
    if as_json:
        show_json(outcome.to_json())
    else:
        show_table(
            f"contract {outcome.contract}: {outcome.verdict}",
            ("check", "asked", "verdict", "estimate", "beyond the bound", "+-"),
            (
                (
                    one.name,
                    one.summary,
                    one.verdict,
                    None if one.estimate is None else f"{one.estimate:.6g}",
                    *_write_excess(one.excess, one.half_width),
                )
                for one in outcome.checks
            ),
        )
        if outcome.receipts:
            heads = ("release", "epsilon", "delta", "scope")
            show_table("paid", heads, _list_receipts(outcome.receipts))
    # After it is shown: it is paid, whatever becomes of the page.
    if page is not None:
        with open_output(page) as stream:
            stream.write(write_html(outcome))
    outcome.require_passed()


def _write_excess(excess: float | None, half_width: float | None) -> tuple[str | None, str | None]:
    if excess is None or half_width is None:
        return None, None
    return print_around(excess, half_width)


def _list_receipts(receipts: Any) -> list[tuple[Any, ...]]:
    return [tuple(one[name] for name in ("name", "epsilon", "delta", "scope")) for one in receipts]


@app.command("from-suite")
def from_suite_command(
    file: Annotated[
        Path, typer.Argument(help="A suite or a checkpoint of Great Expectations 1 (JSON).")
    ],
    table: Annotated[
        str, typer.Option(help="The declaration: its path, or its name in dpflow.yml.")
    ],
    epsilon: Annotated[str, typer.Option(help="The cost of all checks together.")] = "1",
    scope: Annotated[str, typer.Option(help="Which budget pays.")] = "",
    tolerance: Annotated[
        str | None,
        typer.Option(help="The share of rows that may break an expectation without mostly."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="About how many rows a run reads.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the contract to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a metered contract with the checks that a suite of Great Expectations asks for.

    Expectations that are no sum over rows and no quantile stay in it as comments, with the reason.
    """
    from dpflow.quality.from_suite import read_contract

    imported = read_contract(file, table, epsilon, scope, tolerance, rows)
    if as_json:
        show_json(imported.to_json())
    elif output is None:
        typer.echo(imported.text, nl=False)
    if output is not None:
        with open_output(output) as stream:
            stream.write(imported.text)


@app.command("register")
def register_command(
    file: Annotated[
        Path, typer.Argument(help="A suite or a checkpoint of Great Expectations 1 (JSON).")
    ],
    table: Annotated[
        str, typer.Option(help="The declaration: its path, or its name in dpflow.yml.")
    ],
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take it back.")] = False,
    ledger: LedgerOption = None,
) -> None:
    """Let contracts in mode trusted run a suite over a table, as the table's owner.

    It can hold SQL that asks anything of the rows. Register only what you have read: each run tells one bit, unpaid.
    """
    from dpflow.catalogue import locate_declaration
    from dpflow.engine.releases.run_identity import current_principal
    from dpflow.quality.registered_suite import register_suite
    from dpflow.tables.access.declarations import load_table

    declaration = load_table(locate_declaration(table, Path.cwd()))
    book = open_ledger(ledger, files=[Path(table)])
    digest = register_suite(
        file, declaration, book, principal=current_principal(), registered=not withdraw
    )
    done = "is withdrawn from" if withdraw else "is registered for"
    typer.echo(f"suite {digest[:12]} {done} table {declaration.name}")


@app.command("suggest")
def suggest_command(
    file: FileArgument,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Suggest bounds from what former runs released; nothing is read or charged.

    The tightest at which every former run is kept at the present price.
    """
    from dpflow.core.accounting.amounts import exact_text
    from dpflow.core.toolbox.row_checks import describe_check
    from dpflow.quality.contract_file import load_contract
    from dpflow.quality.suggest import suggest_bounds
    from dpflow.registry import Registry

    contract = load_contract(file)
    rows = [
        {
            "check": one.check.name,
            "asked": describe_check(one.check, contract.load_declaration()),
            "suggested": "" if one.bound is None else exact_text(one.bound),
            "runs": one.runs,
            "remark": one.remark,
        }
        for one in suggest_bounds(contract, open_ledger(ledger, files=[file]), Registry.load())
    ]
    if as_json:
        return show_json(rows)
    show_table(
        f"bounds from history of {contract.name}",
        ("check", "asked", "suggested", "runs", "remark"),
        [list(row.values()) for row in rows],
    )
