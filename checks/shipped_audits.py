"""``python -m checks.shipped_audits``: are the audits that wheels would ship about the code that is here?

An audit names digests of the mechanism's package and of dpflow's core and tables
(`dpflow.engine.releases.certificates`). A later change of one file makes it a statement about other code. This
prints every mechanism whose audit is stale, and what changed, and how many are fresh, missing or not
certifiable. Exit code 1 if one is stale; with ``--whole`` also if one is missing. ``make wheels`` runs it first.

``make certificates`` makes them again, all at once. ``--drop`` deletes the files: nothing is shipped then, which
is no wrong claim.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpflow.engine.releases.certificates import MechanismCertificate, shipped_audits_file
from dpflow.registry import Registry

#: Mechanisms that promise no privacy, so that no audit can certify them.
UNCERTIFIABLE = ("effective_rounds",)


@dataclass(frozen=True)
class ShippedAudit:
    """What is shipped about one mechanism.

    Attributes:
        mechanism: its name.
        state: ``fresh``, ``stale`` or ``missing``.
        changed: what a stale one is not about any more.
    """

    mechanism: str
    state: Literal["fresh", "stale", "missing"]
    changed: tuple[str, ...] = ()


def list_shipped_audits(registry: Registry) -> Iterator[ShippedAudit]:
    """One entry for each installed mechanism, and for each audit of one that is not installed."""
    listed = dict[Path, dict[str, Any]]()
    for name, mechanism in registry.mechanisms.items():
        file = shipped_audits_file(mechanism)
        audits = listed.setdefault(file, _read_audits(file))
        if name in audits:
            changed = tuple(_list_changes(audits.pop(name), mechanism, registry.origin[name]))
            yield ShippedAudit(name, "stale" if changed else "fresh", changed)
        elif name not in UNCERTIFIABLE:
            yield ShippedAudit(name, "missing")
    for audits in listed.values():
        for name in audits:
            yield ShippedAudit(name, "stale", ("the mechanism itself",))


def _read_audits(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    return {one["mechanism"]: one for one in json.loads(file.read_text("utf-8"))["audits"]}


def _list_changes(audit: dict[str, Any], mechanism: Any, distribution: str) -> list[str]:
    try:
        shipped = MechanismCertificate(**audit)
    except TypeError:
        return ["what an audit holds"]
    moved = [] if shipped.distribution == distribution else ["its distribution"]
    return shipped.list_differences(mechanism) + moved


def main() -> int:
    """Print what is shipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="a missing audit is an error, too")
    parser.add_argument("--drop", action="store_true", help="delete all shipped audits")
    chosen = parser.parse_args()
    registry = Registry.load()
    if chosen.drop:
        for file in {shipped_audits_file(one) for one in registry.mechanisms.values()}:
            file.unlink(missing_ok=True)
    audits = [*list_shipped_audits(registry)]
    for one in audits:
        if one.state == "stale":
            print(f"stale: {one.mechanism} ({', '.join(one.changed)} changed since it was audited)")
        elif one.state == "missing" and chosen.whole:
            print(f"missing: {one.mechanism}")
    counts = {
        state: sum(one.state == state for one in audits) for state in ("fresh", "stale", "missing")
    }
    print("shipped audits: " + ", ".join(f"{number} {state}" for state, number in counts.items()))
    failing = counts["stale"] + (counts["missing"] if chosen.whole else 0)
    if failing:
        print(
            "make them again (make certificates), or ship none (python -m checks.shipped_audits --drop)"
        )
    return int(failing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
