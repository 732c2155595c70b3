"""`dpflow gate`, as a pipeline runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner, Result

from dpflow.cli import app
from dpflow.errors import DpflowError

if TYPE_CHECKING:
    from smallworld import Tiny


def run_gate(tiny: Tiny, *words: object) -> Result:
    """The command over the tiny ledger; raises what it refuses."""
    words = ("gate", *words, "--ledger", tiny.ledger, "--json")
    done = CliRunner().invoke(app, [*map(str, words)])
    if isinstance(done.exception, DpflowError):
        raise done.exception
    return done


def ask_gate(tiny: Tiny, *words: object) -> tuple[int, Any]:
    """Its exit code, and what it prints."""
    done = run_gate(tiny, *words)
    return done.exit_code, json.loads(done.stdout)
