"""``python -m checks.audit_table``: audits every mechanism and writes docs/research/audits.md.

``--seconds N`` gives each mechanism so much CPU time, 50 by default; ``--workers N`` audits so many
at a time. Names audit only these, print their lines, and leave page and packages. ``--ship`` writes
what is not refuted into ``audits.json`` of each package, unsigned: wheels that are built afterwards
ship it, and owners accept it. ``--certify KEY`` signs the same with this private key into
``dpflow/certificates.json``, for whoever builds for others who know the key.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from dpflow.engine.releases.certificates import (
    PASSED,
    SHIPPED,
    MechanismCertificate,
    shipped_audits_file,
    write_audits,
    write_notes,
)
from dpflow.ledger.history.checkpoint import Signer
from dpflow.registry import Registry
from dpflow.testing.examples import read_examples
from dpflow.testing.mechanism_audit import MechanismAudit, audit_mechanism
from tests.testing.corpus import CONTROLS

PAGE = Path(__file__).parents[1] / "docs" / "research" / "audits.md"
#: What stands between these lines is made by this program.
MARKS = {name: (f"<!-- {name}: made -->", f"<!-- {name}: end -->") for name in ("audits", "corpus")}


def render_audit(audit: MechanismAudit, form: str = "") -> str:
    """One mechanism, or one form of it, as a line of the table."""
    weaker = "none seen" if audit.weakened is None else f"1/{audit.weakened}"
    cells = (
        f"`{audit.mechanism}`" + (f", {form}" if form else ""),
        audit.method,
        audit.neighbours,
        f"{audit.epsilon:.3g}",
        f"{audit.delta:.2g}",
        f"{audit.share:.2f}",
        weaker,
        f"{audit.power:.4g}",
        f"{audit.seconds:.0f}",
        audit.arithmetic,
        audit.verdict,
    )
    return "| " + " | ".join(cells) + " |"


def render_corpus() -> Iterator[str]:
    """Every broken mechanism, what is wrong with it, and which checks find it."""
    checks: dict[type, list[str]] = {}
    for control in CONTROLS:
        checks.setdefault(type(control.mechanism), []).append(f"`{control.caught_by}`")
    for broken, names in checks.items():
        what = " ".join((broken.__doc__ or "").split())
        yield f"| `{broken.__name__}` | {what} | {', '.join(names)} |"


def write_between(text: str, name: str, lines: Sequence[str]) -> str:
    """The page with these lines between two marks; the table's head stays."""
    first, last = MARKS[name]
    head, _, rest = text.partition(f"{first}\n")
    table, _, tail = rest.partition(last)
    return (
        head
        + f"{first}\n"
        + "".join(line + "\n" for line in (*table.splitlines()[:2], *lines))
        + last
        + tail
    )


def write_run(text: str, lines: int, seconds: float, workers: int) -> str:
    """The page with a sentence on the run that made its table."""
    made = f"All {lines} lines below were made in one run, in {seconds / 60:.0f} minutes by {workers} processes."
    marks = "<!-- run: made -->\n", "\n<!-- run: end -->"
    return re.sub(f"(?<={marks[0]}).*?(?={marks[1]})", made, text, flags=re.DOTALL)


@dataclass(frozen=True)
class AuditedMechanism:
    """What the audits of one mechanism's forms found.

    Attributes:
        lines: of the table.
        refuted: whether one of them was.
        file, certificate: what is shipped where, unless an audit refuted or saw nothing.
    """

    lines: list[str]
    refuted: bool
    file: Path | None = None
    certificate: MechanismCertificate | None = None


def audit_forms(name: str, seconds: float) -> AuditedMechanism:
    """Audit every form of an installed mechanism."""
    registry = Registry.load()
    mechanism, examples = (
        registry.find_mechanism(name),
        read_examples(registry.collect_examples(name)),
    )
    audits = {
        form: audit_mechanism(mechanism, [one for one in examples if one.form == form], seconds)
        for form in dict.fromkeys(one.form for one in examples) or [""]
    }
    lines = [render_audit(audit, form) for form, audit in audits.items()]
    # A certificate is about all forms: the one that shows least speaks for the others.
    weakest = max(audits.values(), key=lambda one: (one.verdict != PASSED, one.weakened or 0))
    if weakest.verdict != PASSED:
        return AuditedMechanism(lines, any(audit.refuted for audit in audits.values()))
    passed = MechanismCertificate.of_audit(mechanism, registry.origin[name], weakest.to_json())
    return AuditedMechanism(lines, False, shipped_audits_file(mechanism), passed)


def main() -> int:
    """Audit, print as it goes, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--certify", type=Path, metavar="KEY")
    parser.add_argument("--ship", action="store_true")
    chosen = parser.parse_args()
    signer = chosen.certify and Signer.parse(chosen.certify.read_text(encoding="utf-8"))
    names, begun = chosen.names or [*Registry.load().mechanisms], time.monotonic()
    audited = list[AuditedMechanism]()
    # Each in a process of its own kind: an audit counts the CPU time of its thread.
    with ProcessPoolExecutor(chosen.workers, get_context("spawn")) as pool:
        for one in pool.map(audit_forms, names, [chosen.seconds] * len(names)):
            audited.append(one)
            print("\n".join(one.lines), flush=True)
    lines = [line for one in audited for line in one.lines]
    print(f"{len(lines)} lines, {len(names)} mechanisms, in {time.monotonic() - begun:.0f} s")
    shipped: dict[Path, list[MechanismCertificate]] = {}
    for one in audited:
        if one.file and one.certificate:
            shipped.setdefault(one.file, []).append(one.certificate)
    for file, audits in shipped.items() if chosen.ship and not chosen.names else ():
        file.write_text(write_audits(audits), encoding="utf-8")
        print(f"{len(audits)} audits in {file}")
    if signer:
        notes = [one.sign(signer) for audits in shipped.values() for one in audits]
        SHIPPED.write_text(write_notes(notes), encoding="utf-8")
        print(f"{len(notes)} certificates, signed by {signer.public_text}")
    if not chosen.names:
        text = write_between(PAGE.read_text(encoding="utf-8"), "audits", lines)
        text = write_run(text, len(lines), time.monotonic() - begun, chosen.workers)
        PAGE.write_text(write_between(text, "corpus", list(render_corpus())), encoding="utf-8")
    return int(any(one.refuted for one in audited))


if __name__ == "__main__":
    raise SystemExit(main())
