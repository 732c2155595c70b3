"""What is installed is pinned, hashed, licensed, listed, and held against advisories."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checks.bill_of_materials import LOCK, main, make_bill, read_licence, read_lock

#: Words of licences that allow use beside an Apache-2.0 program, as the lock's distributions have them.
ALLOWED = re.compile(
    r"MIT|Apache|BSD|ISC|Mozilla|MPL|Python Software Foundation|PSF|Unlicense|CC0|Zlib|DFSG"
)
#: Weak copyleft, or a choice that includes such a licence: used unchanged, as libraries of their own.
NAMED = {"LGPL-3.0-only": {"psycopg", "psycopg-binary"}}
#: Their metadata say nothing here; what their sources say. httpx2-jsfetch is locked for browsers alone, and nowhere installed.
UNSAID = {
    "appnope": "BSD-2-Clause",
    "httpx2-jsfetch": "BSD-3-Clause",
    "openlineage-sql": "Apache-2.0",
    "pyyaml-ft": "MIT",
    "skops": "MIT",
}


def test_every_dependency_is_pinned_and_hashed() -> None:
    """Each has one version and the hash of each file that may be installed."""
    components = read_lock()
    assert len(components) > 100
    assert [one.name for one in components if not one.hashes] == []
    assert "uv pip sync" in (LOCK.parent / "Makefile").read_text()


def test_a_line_without_a_version_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("numpy>=1\n")
    with pytest.raises(ValueError, match="no pinned"):
        read_lock(lock)


def test_licences_are_known() -> None:
    """Every licence is one of those that somebody read and allowed."""
    unknown = {}
    for one in read_lock():
        licence = read_licence(one.name) or UNSAID.get(one.name, "")
        named = one.name in NAMED.get(licence, ())
        # A choice among several is ours to make.
        if not named and not ALLOWED.search(licence) and "Artistic" not in licence:
            unknown[one.name] = licence
    assert unknown == {}


def test_the_bill_of_materials_names_the_lock(tmp_path: Path) -> None:
    """All of it, the same bytes each time."""
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert main([str(first)]) == main([str(second)]) == 0
    assert first.read_bytes() == second.read_bytes()
    bill = json.loads(first.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    named = {(one["name"], one["version"]) for one in bill["components"]}
    assert named == {(one.name, one.version) for one in read_lock()}
    references = [one["bom-ref"] for one in make_bill(read_lock())["components"]]
    assert len(set(references)) == len(references)


@pytest.mark.slow
def test_no_advisory_names_the_lock(tmp_path: Path) -> None:
    """Where advisories can be reached; elsewhere it is skipped, and says so."""
    uv = Path(sys.executable).parent / "uv"
    words = [uv, "tool", "run", "pip-audit", "--requirement", LOCK, "--disable-pip"]
    words += ["--require-hashes", "--progress-spinner", "off", "--format", "json"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode and not ran.stdout.lstrip().startswith("{"):
        pytest.skip(f"advisories cannot be reached from here: {ran.stderr.strip()[-300:]}")
    found = json.loads(ran.stdout)["dependencies"]
    assert {one["name"]: one["vulns"] for one in found if one.get("vulns")} == {}
