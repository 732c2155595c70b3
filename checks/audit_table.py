"""``python -m checks.audit_table``: audits every mechanism and writes docs/research/audits.md.

``--seconds N`` gives each mechanism so much CPU time, 50 by default; names audit only these, print
their lines, and leave the page. ``--certify KEY`` signs what is not refuted, with this private key, into
``dpflow/certificates.json``: wheels that are built afterwards ship it.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpflow.engine.releases.certificates import PASSED, SHIPPED, MechanismCertificate, write_notes
from dpflow.ledger.history.checkpoint import Signer
from dpflow.registry import Registry
from dpflow.testing.corpus import CONTROLS
from dpflow.testing.examples import read_examples
from dpflow.testing.mechanism_audit import MechanismAudit, audit_mechanism

PAGE = Path(__file__).parents[1] / "docs" / "research" / "audits.md"
#: What stands between these lines is made by this program.
MARKS = {name: (f"<!-- {name}: made -->", f"<!-- {name}: end -->") for name in ("audits", "corpus")}


def render_audit(audit: MechanismAudit) -> str:
    """One mechanism as a line of the table."""
    weaker = "none seen" if audit.weakened is None else f"1/{audit.weakened}"
    cells = (
        f"`{audit.mechanism}`",
        audit.method,
        audit.neighbours,
        f"{audit.epsilon:.3g}",
        f"{audit.delta:.2g}",
        f"{audit.share:.2f}",
        weaker,
        f"{audit.power:.4g}",
        f"{audit.seconds:.0f}",
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


def main() -> int:
    """Audit, print as it goes, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--certify", type=Path, metavar="KEY")
    chosen = parser.parse_args()
    signer = chosen.certify and Signer.parse(chosen.certify.read_text(encoding="utf-8"))
    registry = Registry.load()
    lines, notes, refuted, begun = [], [], False, time.monotonic()
    for name in chosen.names or registry.mechanisms:
        mechanism, examples = (
            registry.find_mechanism(name),
            read_examples(registry.collect_examples(name)),
        )
        audit = audit_mechanism(mechanism, examples, chosen.seconds)
        lines.append(render_audit(audit))
        refuted |= audit.refuted
        if signer and audit.verdict == PASSED:
            origin = registry.origin[name]
            notes.append(
                MechanismCertificate.of_audit(mechanism, origin, audit.to_json()).sign(signer)
            )
        print(lines[-1], flush=True)
    print(f"{len(lines)} mechanisms in {time.monotonic() - begun:.0f} s")
    if signer:
        SHIPPED.write_text(write_notes(notes), encoding="utf-8")
        print(f"{len(notes)} certificates, signed by {signer.public_text}")
    if not chosen.names:
        text = write_between(PAGE.read_text(encoding="utf-8"), "audits", lines)
        # A note on what an earlier table lacked says nothing of this one.
        text = re.sub(r"<!-- partial: made.*?<!-- partial: end -->\n\n", "", text, flags=re.DOTALL)
        PAGE.write_text(write_between(text, "corpus", list(render_corpus())), encoding="utf-8")
    return int(refuted)


if __name__ == "__main__":
    raise SystemExit(main())
