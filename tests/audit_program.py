"""The audit program of docs/how-to/operate-the-ledger.md, as a third party runs it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from page_runner import ROOT

from dpflow.ledger import Ledger

PAGE = ROOT / "docs" / "how-to" / "operate-the-ledger.md"


def write_program(folder: Path) -> None:
    """Its two files, as the page has them."""
    for name in ("costs.py", "audit.py"):
        (text,) = re.findall(rf'```python title="{name}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
        assert len(text.splitlines()) < 150 and not re.search("(import|from) dpflow", text)
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
