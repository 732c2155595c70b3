"""The audit program of docs/audit, as a third party runs it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from page_runner import ROOT

from dpflow.ledger import Ledger

PROGRAM = ROOT / "docs" / "audit"


def write_program(folder: Path) -> None:
    """Copy its files."""
    for name in ("costs.py", "signatures.py", "decisions.py", "audit.py"):
        text = (PROGRAM / name).read_text()
        assert len(text.splitlines()) < 200 and not re.search("(import|from) dpflow", text)
        (folder / name).write_text(text)


def start_program(file: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it where `write_program` wrote it, without site packages: there is no dpflow to import."""
    command = [sys.executable, "-E", "-s", "-S", "audit.py", file]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def run_audit(export: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What it says of an export."""
    write_program(folder)
    (folder / "ledger.jsonl").write_text(export)
    return start_program("ledger.jsonl", folder)


def export_text(ledger: Ledger) -> str:
    """A whole export."""
    stream = io.StringIO()
    ledger.export(stream)
    return stream.getvalue()
