"""The command line: one file per command. A user's mistake is one sentence on stderr, never a
traceback.

This file imports nothing slow, so that `main` is there before anything slow is: `dpflow.cli.commands`
has the table of commands.
"""

from __future__ import annotations

import gc
import sys
from typing import Any


def main() -> None:
    """Entry point of the console script: 0 done, 1 refused (again would not help), 75 try again
    later, 130 interrupted. A gate's 1 is its no; there refused is 2.
    """
    # Most of what a command makes are classes and functions, in which no search finds garbage.
    gc.set_threshold(200_000)
    try:
        from dpflow.cli.commands import run_app

        run_app()
    except KeyboardInterrupt:  # also during the imports, which take longer than most commands
        sys.exit(130)


def __getattr__(name: str) -> Any:
    """Import the typer application when it is first used."""
    if name != "app":
        raise AttributeError(f"module 'dpflow.cli' has no attribute {name!r}")
    from dpflow.cli.commands import app

    return app
