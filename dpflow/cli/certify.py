"""`dpflow certify`: audit mechanisms, and sign what the audits found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.console import LedgerOption, open_ledger, open_output
from dpflow.engine.releases.certificates import (
    PASSED,
    MechanismCertificate,
    read_notes,
    write_notes,
)
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.ledger.history.checkpoint import Signer
from dpflow.registry import Registry


def command(
    names: Annotated[list[str], typer.Argument(help="Mechanisms that are installed.")],
    out: Annotated[
        Path,
        typer.Option(help="The file of certificates; it keeps those of other mechanisms."),
    ],
    key: Annotated[
        Path | None,
        typer.Option(help="Private key that signs (dpflow ledger key FILE); else the owner's."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="CPU seconds for each audit, about.")] = 50,
    ledger: LedgerOption = None,
) -> None:
    """Audit mechanisms, and sign what was found about the code that is installed here.

    A mechanism that is refuted, or of which the audit saw nothing, gets no certificate.
    """
    with require_extra("testing", "an audit"):
        import scipy  # noqa: F401  the bounds of counted draws

        from dpflow.testing.examples import read_examples
        from dpflow.testing.mechanism_audit import audit_mechanism
    signer = _read_signer(key) if key is not None else open_ledger(ledger).signer
    registry = Registry.load()
    mechanisms = [registry.find_mechanism(name) for name in names]
    signed = {}
    for mechanism in mechanisms:
        examples = read_examples(registry.collect_examples(mechanism.name))
        audit = audit_mechanism(mechanism, examples, seconds)
        if audit.verdict != PASSED:
            raise InvalidInput(
                f"the audit of {mechanism.name} says: {audit.verdict}; nothing was signed, so see dpflow audit {mechanism.name}"
            )
        certificate = MechanismCertificate.of_audit(
            mechanism, registry.origin[mechanism.name], audit.to_json()
        )
        signed[mechanism.name] = certificate.sign(signer)
        weaker = f"noise of 1/{audit.weakened} would be caught"
        print(f"{mechanism.name}: {audit.method}, {audit.share:.0%} of epsilon measured, {weaker}")
    others = read_notes(out) if out.exists() else []
    # An older certificate of the same mechanism and key is replaced.
    kept = [
        note
        for note in others
        if (old := MechanismCertificate.open(note, [signer.public_text])) is None
        or old.mechanism not in signed
    ]
    with open_output(out) as file:
        file.write(write_notes([*kept, *signed.values()]))
    print(f"signed by {signer.public_text}")


def _read_signer(file: Path) -> Signer:
    try:
        return Signer.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidInput(
            f"{file} cannot be read; make a key: dpflow ledger key FILE --name NAME"
        ) from None
