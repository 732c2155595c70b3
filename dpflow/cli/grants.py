"""`dpflow ledger grant`, `quota`, `proposals` and `approve`: how owners give a scope its budget."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpflow.cli import checkpoints
from dpflow.cli.console import (
    ConfirmOption,
    JsonOption,
    LedgerOption,
    find_service,
    open_decisions,
    show_json,
    show_table,
)
from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.amounts import short_text as short
from dpflow.core.accounting.privacy_filters import Filter, FilterName
from dpflow.engine.releases.run_identity import current_principal
from dpflow.errors import InvalidInput
from dpflow.ledger import GrantProposal, Scope
from dpflow.ledger.audit.entry_text import escape_controls, list_changes, list_terms

ScopeArgument = Annotated[str, typer.Argument(help="A scope, such as flights or flights/team-a.")]
EpsilonOption = Annotated[str, typer.Option(help="Epsilon, such as 1 or 0.5.")]
DeltaOption = Annotated[str, typer.Option(help="Delta, such as 1e-6.")]
ShareOption = Annotated[
    str | None,
    typer.Option(
        help="Part of delta that lets many releases cost less than their sum (renyi, hybrid); mechanisms that use a delta get the rest."
    ),
]
ApprovalsOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=2,
        help="2: this grant waits until another principal approves it, and from then on each later one does; as before if left out.",
    ),
]  # fmt: skip
CertifiedOption = Annotated[
    bool | None,
    typer.Option(
        "--require-certified/--no-require-certified",
        help="Pay only for mechanisms that the owner or a --certifier has certified; as before if left out.",
    ),
]
CertifiersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--certifier",
        help="With --require-certified: a verifier key to trust instead of the owner's; may be repeated.",
    ),
]
SignersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--signer",
        help="Verifier key of a person who may sign grants of this scope, from this one on; may be repeated.",
    ),
]
SignOption = Annotated[
    Path | None,
    typer.Option(
        envvar="DPFLOW_SIGNING_KEY",
        help="File of your private key (dpflow ledger key FILE --name NAME), which signs the decision.",
    ),
]
WitnessOption = Annotated[
    str | None,
    typer.Option(help="Verifier key of a witness, whose checkpoints charges of this scope demand."),
]
WitnessEveryOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="After so many charges the witness must have signed, or the next is refused; 0 ends it; as before if left out.",
    ),
]
GrantReasonOption = Annotated[
    str, typer.Option("--reason", help="Why, for readers of the history; signed with the grant.")
]


def grant(
    scope: ScopeArgument,
    epsilon: EpsilonOption,
    delta: DeltaOption = "0",
    filter_name: Annotated[
        FilterName | None,
        typer.Option(
            "--filter",
            help="basic, renyi or hybrid. If left out, hybrid with a delta, else basic; or that of the scope so far.",
        ),
    ] = None,
    tail_share: ShareOption = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="The declaration whose privacy unit this budget protects: its name in dpflow.yml or at the service, or its file."
        ),
    ] = None,
    no_table: Annotated[
        bool, typer.Option("--no-table", help="The scope belongs to no declared table.")
    ] = False,
    approvals: ApprovalsOption = None,
    require_certified: CertifiedOption = None,
    certifier: CertifiersOption = None,
    signer: SignersOption = None,
    sign: SignOption = None,
    witness: WitnessOption = None,
    witness_every: WitnessEveryOption = None,
    confirm_large: ConfirmOption = False,
    reason: GrantReasonOption = "",
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a scope a budget, raise it, or lower it to no less than what is spent.

    The first grant makes the ledger. Until something is charged, another table may be named.
    """
    # A scope of no table must be asked for: who forgets --table would protect nothing.
    if (table is None) != no_table:
        raise InvalidInput(
            "a budget protects the privacy unit of a table: give its declaration with --table FILE, "
            "or --no-table for a scope of none"
        )
    from dpflow.ledger.books.grants import require_confirmation
    from dpflow.tables.access.declarations import load_table

    # Read before the ledger is made: a mistake in the declaration must leave none behind.
    require_confirmation(epsilon, delta, confirm_large)
    is_here = find_service(ledger) is None
    declaration = load_table(table) if table and is_here else table
    book = _open_book(ledger, create=True)
    terms: Any = {"filter": filter_name, "tail_share": tail_share, "approvals": approvals}
    terms["certified_by"] = _read_certifiers(book, require_certified, certifier)
    terms |= {
        "signers": signer,
        "signer": checkpoints.read_signer(sign),
        "confirm_large": confirm_large,
        "witness": witness,
        "witness_every": witness_every,
        "reason": reason,
    }
    told = book.grant(
        scope, epsilon, delta, table=declaration, principal=current_principal(), **terms
    )
    _show_grant(told, as_json)
    granted = told.terms if isinstance(told, GrantProposal) else told
    # Nothing adds up the budgets of two scopes over one table, so its owner is told.
    root = scope.partition("/")[0]
    beside = [
        s.scope
        for s in book.scopes()
        if "/" not in s.scope and s.scope != root and s.protects == granted.protects
    ]
    if beside and granted.protects:
        print(
            f"note: {', '.join(beside)} protects the same; a table that pays from several scopes spends the sum of their budgets",
            file=sys.stderr,
        )


def quota(
    scope: ScopeArgument,
    epsilon: EpsilonOption,
    delta: DeltaOption = "0",
    filter_name: Annotated[
        FilterName | None,
        typer.Option(
            "--filter", help="basic, renyi or hybrid; that of the scope above if left out."
        ),
    ] = None,
    tail_share: ShareOption = None,
    approvals: ApprovalsOption = None,
    require_certified: CertifiedOption = None,
    certifier: CertifiersOption = None,
    signer: SignersOption = None,
    sign: SignOption = None,
    witness: WitnessOption = None,
    witness_every: WitnessEveryOption = None,
    period: Annotated[
        Literal["day", "week", "month", "never"] | None,
        typer.Option(help="The quota is whole again after each (UTC). The scope above never is."),
    ] = None,
    reason: GrantReasonOption = "",
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a scope below another a budget inside that one. What it spends, every scope above it
    spends too.
    """
    book = _open_book(ledger)
    terms: Any = {"filter": filter_name, "tail_share": tail_share, "approvals": approvals}
    terms["certified_by"] = _read_certifiers(book, require_certified, certifier)
    terms |= {"signers": signer, "signer": checkpoints.read_signer(sign), "period": period}
    terms |= {"witness": witness, "witness_every": witness_every, "reason": reason}
    told = book.quota(scope, epsilon, delta, principal=current_principal(), **terms)
    _show_grant(told, as_json)


def show_proposals(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """The grants that wait for the approval of a second principal."""
    book = open_decisions(ledger)
    waiting, granted = book.proposals(), {scope.scope: scope for scope in book.scopes()}
    if as_json:
        changes = [list_changes(granted.get(p.terms.scope), p.terms) for p in waiting]
        return show_json(
            [
                _describe_grant(p) | {"changes": c, "terms": p.digest}
                for p, c in zip(waiting, changes, strict=True)
            ]
        )
    columns = ("scope", "entry", "epsilon", "delta", "filter", "approvals", "proposed by")
    cells = []
    for proposal in waiting:
        terms = proposal.terms
        amounts = exact_text(terms.filter.epsilon), exact_text(terms.filter.delta)
        rule = terms.filter.name, terms.approvals
        row = terms.scope, proposal.seq, *amounts, *rule, proposal.principal
        cells.append([escape_controls(str(cell)) for cell in row])
    show_table("grants that wait", columns, cells)
    for proposal in waiting:
        terms, why = proposal.terms, f" ({proposal.reason})" if proposal.reason else ""
        lines = list_terms(granted.get(terms.scope), terms)
        _print_changes(f"entry {proposal.seq} would change of {terms.scope}{why}", lines)
        print(f"  --terms {proposal.digest}")


def approve(
    scope: ScopeArgument,
    entry: Annotated[
        int, typer.Argument(help="The entry that proposed the grant, as dpflow ledger proposals shows it.")
    ],
    digest: Annotated[
        str | None, typer.Option("--terms", help="All terms as dpflow ledger proposals shows them, by the digest it prints.")
    ] = None,
    sign: SignOption = None,
    reason: GrantReasonOption = "",
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Put a grant into effect that another principal proposed."""
    terms: Any = {"principal": current_principal(), "signer": checkpoints.read_signer(sign)}
    terms |= {"reason": reason, "digest": digest}
    book = _open_book(ledger)
    before = next((granted for granted in book.scopes() if granted.scope == scope), None)
    granted = book.approve(scope, entry, **terms)
    _show_grant(granted, as_json)
    if not as_json:
        _print_changes("changed", list_changes(before, granted))


def _open_book(target: str | None, *, create: bool = False) -> Any:
    """As `open_decisions`, where what is said of a grant can be computed: else nothing should be decided."""
    _count_releases(Filter("basic", Fraction(1), Fraction(0)))
    return open_decisions(target, create=create)


def _count_releases(rule: Filter) -> dict[str, int]:
    # It brings the engine, which who reads budgets at a service need not have.
    from dpflow.engine.planning.fit_schedule import count_typical_releases

    return count_typical_releases(rule)


def _print_changes(title: str, changes: Sequence[str]) -> None:
    # A service may say anything, also what a terminal obeys.
    print(f"{escape_controls(title)}:{'' if changes else ' nothing'}")
    for change in changes:
        print(f"  {escape_controls(change)}")


def _read_certifiers(
    book: Any, require_certified: bool | None, keys: list[str] | None
) -> list[str] | None:
    """Whose certificates a grant asks for; None keeps what an earlier grant said. Raises
    `InvalidInput`.
    """
    if keys and not require_certified:
        raise InvalidInput(
            "a --certifier is trusted only where --require-certified is given; add it"
        )
    if require_certified is None:
        return None
    return (keys or [book.signer.public_text]) if require_certified else []


def _describe_grant(told: Scope | GrantProposal) -> dict[str, Any]:
    granted = told.terms if isinstance(told, GrantProposal) else told
    about = {"scope": granted.scope, "protects": granted.protects, "blocks": granted.blocks}
    about |= {"filter": granted.filter.to_json(), "approvals": granted.approvals}
    about["typical_releases"] = _count_releases(granted.filter)
    if granted.protects:
        about["equality"] = granted.equality
    if isinstance(told, GrantProposal):
        about |= {"proposed_by": told.principal, "proposal": told.seq, "reason": told.reason}
    return about


def _show_grant(told: Scope | GrantProposal, as_json: bool) -> None:
    granted = told.terms if isinstance(told, GrantProposal) else told
    if as_json:
        return show_json(_describe_grant(told))
    rule = granted.filter
    extent = " in every block" if granted.blocks else ""
    protects = f", protecting {granted.protects}" if granted.protects else ""
    certified = ", for certified mechanisms only" if rule.certified_by else ""
    print(
        f"{granted.scope}: epsilon {exact_text(rule.epsilon)}, delta {exact_text(rule.delta)}{extent} ({rule.name}){protects}"
        f"{certified}"
    )
    if rule.order is not None:
        own = rule.delta - rule.tail_delta
        print(
            f"of delta, {exact_text(rule.tail_delta)} lets many releases cost less than their sum, and {exact_text(own)} is left "
            f"for mechanisms that use a delta themselves"
        )
    counts = _count_releases(rule)
    print(
        f"releases of epsilon {short(rule.epsilon / 100)} each (discrete Laplace) that it holds by filter: "
        f"{', '.join(f'{name} {count:,}' for name, count in counts.items())}"
    )
    if granted.protects:
        print(granted.equality)
    if isinstance(told, GrantProposal):
        print(
            f"proposed by {told.principal}, and not in effect: another owner runs dpflow ledger approve {granted.scope} {told.seq}"
        )
