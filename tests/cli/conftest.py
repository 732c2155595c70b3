"""Verbs of `dpflow ledger`, in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ledger_verbs import Run
from typer.testing import CliRunner

from dpflow.cli import app

if TYPE_CHECKING:
    from smallworld import Tiny


@pytest.fixture
def run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a verb in this process; a refusal is raised, `--json` output is parsed."""
    monkeypatch.setenv("DPFLOW_LEDGER", str(tiny.ledger))
    monkeypatch.setenv("DPFLOW_PRINCIPAL", "tester")
    monkeypatch.delenv("DPFLOW_LEDGER_ANCHOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tiny.folder)

    def runs(*words: object) -> Any:
        done = CliRunner().invoke(app, ["ledger", *map(str, words)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return runs
