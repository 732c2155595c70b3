"""`dpflow certify`: audit mechanisms, and sign what the audits found."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.cli.console import LedgerOption, open_ledger, open_output
from dpflow.core.contract.audit_cells import describe_cells, digest_cells
from dpflow.engine import Plan, load_request, make_plan
from dpflow.engine.releases.certificates import (
    CERTIFICATES,
    OWN_ARITHMETIC,
    OWN_STATE,
    PASSED,
    MechanismCertificate,
    digest_code,
    read_notes,
    read_shipped_audit,
    write_notes,
)
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.extras import require_extra
from dpflow.ledger.history.checkpoint import Signer
from dpflow.registry import Registry

#: What is accepted only by name, by where noise takes its sensitivity from.
_BY_NAME = {
    OWN_ARITHMETIC: "computes scales of its noise itself",
    OWN_STATE: "reads more than its arguments",
}


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Mechanisms that are installed; with --accept all, if left out."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file of certificates, which keeps those of other mechanisms; beside the ledger's keys if left out."
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Sign the audits that distributions ship instead of auditing here."
        ),
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(help="Private key that signs (dpflow ledger key FILE); else the owner's."),
    ] = None,
    releases: Annotated[
        list[Path] | None,
        typer.Option(
            "--release",
            help="A release file whose plan the audit tries, and the certificate covers; may be repeated.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="CPU seconds for each audit, about.")] = 50,
    ledger: LedgerOption = None,
) -> None:
    """Audit mechanisms, and sign what was found about the code that is installed here.

    A mechanism that is refuted, or of which the audit saw nothing, gets no certificate. Nor does one
    whose shipped audit is about other code, version or distribution. One whose noise follows arithmetic of its own, or
    whose code reads more than its arguments, is accepted only by name.

    A certificate covers the plans that the audit tried, and plans between them only where noise is fitted to what the
    declaration implies. Name release files to have their plans tried, too.
    """
    if releases and accept:
        raise InvalidInput(
            "--release tries plans now, and --accept signs what was tried before; give one of them"
        )
    registry = Registry.load()
    plans = _read_plans(releases or [], registry)
    names = [*dict.fromkeys([*(names or []), *plans])]
    if not names and not accept:
        raise InvalidInput(
            "nothing was named; name mechanisms, or sign the audits of all: dpflow certify --accept"
        )
    mechanisms = [registry.find_mechanism(name) for name in names or registry.mechanisms]
    signer, out = _find_signer(key, out, ledger)
    certificates = (
        _accept_shipped(mechanisms, registry, skip=not names)
        if accept
        else _audit_all(mechanisms, registry, seconds, plans)
    )
    signed = {one.mechanism: one.sign(signer) for one in certificates}
    others = read_notes(out) if out.exists() else []
    # An older certificate of the same mechanism and key is replaced.
    remaining = [
        note
        for note in others
        if (old := MechanismCertificate.open(note, [signer.public_text])) is None
        or old.mechanism not in signed
    ]
    with open_output(out) as file:
        file.write(write_notes([*remaining, *signed.values()]))
    print(f"{len(signed)} signed by {signer.public_text}, in {out}")


def _accept_shipped(
    mechanisms: Sequence[Any], registry: Registry, skip: bool
) -> list[MechanismCertificate]:
    """What distributions ship; those that cannot be accepted are named, or skipped. Raises
    `InvalidInput`.
    """
    accepted, refusals = [], list[InvalidInput | PlanRefused]()
    for mechanism in mechanisms:
        try:
            one = read_shipped_audit(mechanism, registry.origin[mechanism.name])
        # PlanRefused: a plugin's package without files, which must not stand in the way of others.
        except (InvalidInput, PlanRefused) as refusal:
            if not skip:
                raise
            refusals.append(refusal)
            continue
        if skip and one.arithmetic in _BY_NAME:
            what = _BY_NAME[one.arithmetic]
            refusals.append(
                InvalidInput(
                    f"{one.mechanism} {what}, and is accepted only by name: dpflow certify {one.mechanism} --accept"
                )
            )
            continue
        print(f"{one.mechanism}: {_describe(one)}; accepted")
        accepted.append(one)
    for reason in refusals:
        print(f"not accepted: {reason}", file=sys.stderr)
    if not accepted:
        raise InvalidInput(
            "no installed distribution ships an audit of the code that is installed; audit it here: dpflow certify NAME"
        )
    return accepted


def _read_plans(files: Sequence[Path], registry: Registry) -> dict[str, list[Plan]]:
    """The plans of release files by mechanism, as if their tables asked for no certificates."""
    plans: dict[str, list[Plan]] = {}
    for file in files:
        request = load_request(file)
        table = request.load_declaration().model_copy(update={"require_certified": None})
        plan = make_plan(request.model_copy(update={"table": table}), registry)
        plans.setdefault(plan.mechanism.name, []).append(plan)
    return plans


def _audit_all(
    mechanisms: Sequence[Any],
    registry: Registry,
    seconds: float,
    plans: Mapping[str, Sequence[Plan]],
) -> list[MechanismCertificate]:
    """Audit now. Raises `InvalidInput` for a mechanism that does not pass."""
    with require_extra("testing", "an audit"):
        import scipy  # noqa: F401  the bounds of counted draws

        from dpflow.testing.examples import Example, examples_for, read_examples
        from dpflow.testing.mechanism_audit import audit_mechanism
    certificates = []
    for mechanism in mechanisms:
        # Code that no certificate can cover is refused before it is audited.
        digest_code(mechanism)
        examples = read_examples(registry.collect_examples(mechanism.name))
        named = plans.get(mechanism.name, [])
        given = examples or (examples_for(mechanism) if named else [])
        queries = given[0].queries if given else ()
        tried = [Example(p.table, p.params.model_dump(mode="json"), queries) for p in named]
        audit = audit_mechanism(mechanism, examples, seconds, plans=tried)
        if audit.verdict != PASSED:
            reason = f": {audit.reason}" if audit.reason else ""
            raise InvalidInput(
                f"the audit of {mechanism.name} says: {audit.verdict}{reason}; nothing was signed, so see dpflow audit "
                f"{mechanism.name}"
            )
        for plan in named:
            if digest_cells(describe_cells(plan.table, plan.params)) not in audit.plans:
                raise InvalidInput(
                    f"the plan of {plan.request.name} could not be followed, so nothing was signed; take fewer keys or rows of a unit"
                )
        certificate = MechanismCertificate.of_audit(
            mechanism, registry.origin[mechanism.name], audit.to_json()
        )
        print(f"{mechanism.name}: {_describe(certificate)}")
        certificates.append(certificate)
    return certificates


def _describe(certificate: MechanismCertificate) -> str:
    share = certificate.measured_epsilon / certificate.epsilon if certificate.epsilon else 0
    weaker = f"noise of 1/{certificate.weakened} would be caught"
    reads = f" ({', '.join(certificate.own_state)})" if certificate.own_state else ""
    covers = "ranges" if certificate.ranges else "only plans as they were tried"
    sensitivities = f"sensitivities: {certificate.arithmetic}{reads}"
    return f"{certificate.method}, {share:.0%} of epsilon measured, {weaker}, {sensitivities}, covers {covers}"


def _find_signer(key: Path | None, out: Path | None, ledger: str | None) -> tuple[Signer, Path]:
    """Who signs, and into which file. The ledger is opened only where it is needed for one."""
    if key is not None and out is not None:
        return _read_signer(key), out
    book = open_ledger(ledger)
    signer = book.signer if key is None else _read_signer(key)
    return signer, out or book.anchor_folder / CERTIFICATES


def _read_signer(file: Path) -> Signer:
    try:
        return Signer.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidInput(
            f"{file} cannot be read; make a key: dpflow ledger key FILE --name NAME"
        ) from None
