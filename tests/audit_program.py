"""The audit program of docs/audit, as a third party runs it."""

from __future__ import annotations

import contextlib
import decimal
import importlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from page_runner import ROOT

from dpflow.ledger import Ledger

PROGRAM = ROOT / "docs" / "audit"
MODULES = ("fitting", "shapes", "costs", "signatures", "decisions", "audit")


def write_program(folder: Path) -> None:
    """Copy its files."""
    for name in (f"{module}.py" for module in MODULES):
        text = (PROGRAM / name).read_text()
        assert len(text.splitlines()) < 200 and not re.search("(import|from) dpflow", text)
        (folder / name).write_text(text)


def start_program(*files: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it where `write_program` wrote it, without site packages: there is no dpflow to import."""
    command = [sys.executable, "-E", "-s", "-S", "audit.py", *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def run_audit(
    export: str, folder: Path, *notes: str, keys: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """What it says of an export, and of checkpoints kept elsewhere that these keys signed."""
    write_program(folder)
    files = {"ledger.jsonl": export} | {f"note-{n}.txt": note for n, note in enumerate(notes)}
    for name, text in files.items():
        (folder / name).write_text(text)
    return start_program(*files, *keys, folder=folder)


def export_text(ledger: Ledger) -> str:
    """A whole export."""
    stream = io.StringIO()
    ledger.export(stream)
    return stream.getvalue()


@contextlib.contextmanager
def load_program() -> Iterator[dict[str, Any]]:
    """Its modules by name, in this process and with its decimal context."""
    with pytest.MonkeyPatch.context() as patch, decimal.localcontext():
        patch.syspath_prepend(str(PROGRAM))
        try:
            yield {name: importlib.import_module(name) for name in MODULES}
        finally:
            for name in MODULES:
                sys.modules.pop(name, None)
