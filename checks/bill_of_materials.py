"""What the repository installs, as a bill of materials: ``python -m checks.bill_of_materials FILE``.

CycloneDX 1.6 in JSON, from the lock: each distribution with its version, the SHA-256 of its files, and the
licence that its metadata names. The same lock and environment give the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"


@dataclass(frozen=True)
class Component:
    """One line of the lock: a distribution, and the hashes of the files that may be installed."""

    name: str
    version: str
    hashes: tuple[str, ...]


def read_lock(lock: Path = LOCK) -> list[Component]:
    """Every distribution of a lock. Raises ValueError for a line that pins none."""
    components = []
    text = re.sub(r"\\\n", " ", lock.read_text(encoding="utf-8"))
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pinned = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line)
        if pinned is None:
            raise ValueError(f"no pinned distribution: {line[:80]}")
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
        components.append(Component(pinned[1], pinned[2], hashes))
    return components


def read_licence(name: str) -> str:
    """What an installed distribution says of its licence: its expression, classifiers or first
    words; "" where it says nothing or is not installed here.
    """
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    if expression := found.get("License-Expression"):
        return str(expression)
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in found.get_all("Classifier") or ()
        if line.startswith("License ::") and line != "License :: OSI Approved"
    ]
    if classifiers:
        return " OR ".join(classifiers)
    # Some write the whole text of the licence there.
    words = str(found.get("License") or "").strip()
    return words.splitlines()[0][:80] if words else ""


def make_bill(components: list[Component]) -> dict[str, Any]:
    """The bill of materials."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "dpflow"}},
        "components": [
            {
                "type": "library",
                "name": one.name,
                "version": one.version,
                "purl": f"pkg:pypi/{one.name.lower()}@{one.version}",
                "bom-ref": f"pkg:pypi/{one.name.lower()}@{one.version}",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in one.hashes],
                "licenses": [{"license": {"name": read_licence(one.name) or "unknown"}}],
            }
            for one in components
        ],
    }


def main(words: list[str]) -> int:
    """Write the file that is named."""
    if len(words) != 1:
        print("usage: python -m checks.bill_of_materials FILE", file=sys.stderr)
        return 2
    text = json.dumps(make_bill(read_lock()), indent=1, sort_keys=True) + "\n"
    Path(words[0]).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
