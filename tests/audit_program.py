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


def start_audit(export: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What it says of an export in a process of its own."""
    write_program(folder)
    (folder / "ledger.jsonl").write_text(export)
    return start_program("ledger.jsonl", folder=folder)


def run_audit(
    export: str, folder: Path, *notes: str, keys: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """What it says of an export, and of checkpoints kept elsewhere that these keys signed; here, without a start of
    Python.
    """
    files = {"ledger.jsonl": export} | {f"note-{n}.txt": note for n, note in enumerate(notes)}
    for name, text in files.items():
        (folder / name).write_text(text)
    words, code = ["audit.py", *files, *keys], 0
    output, errors = io.StringIO(), io.StringIO()
    with load_program() as modules, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", words)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                modules["audit"].main()
            except SystemExit as end:
                code = 1
                print(end.code, file=sys.stderr)
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def export_text(ledger: Ledger) -> str:
    """A whole export."""
    stream = io.StringIO()
    ledger.export(stream)
    return stream.getvalue()


@contextlib.contextmanager
def load_program(names: Sequence[str] = MODULES) -> Iterator[dict[str, Any]]:
    """Its modules, or others of its folder, by name, in this process and with its decimal context."""
    with pytest.MonkeyPatch.context() as patch, decimal.localcontext():
        patch.syspath_prepend(str(PROGRAM))
        try:
            yield {name: importlib.import_module(name) for name in names}
        finally:
            for name in names:
                sys.modules.pop(name, None)
