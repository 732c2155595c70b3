"""The command line: one file per command. A user's mistake is one sentence on stderr, never a
traceback.

This file imports nothing slow, so that `main` is there before anything slow is: `dpflow.cli.commands`
has the table of commands.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Any


def main() -> None:
    """Entry point of the console script: 0 done, 1 refused (again would not help), 75 try again
    later, 130 interrupted. A gate's 1 is its no; there refused is 2.

    The process is this command's alone and ends with it; inside another program call
    `dpflow.cli.commands.run_app`.
    """
    # Most of what a command makes are classes and functions, in which no search finds garbage.
    gc.set_threshold(200_000)
    # No command needs any, and the first model would read the metadata of all distributions for them.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # An error that nobody expected leaves this as it is, and a traceback.
    status = [1]
    # Registered first, so it runs last, when threads have ended and all else was closed. Taking every module
    # apart first is a fifth of a command's CPU.
    atexit.register(_end_process, status)
    try:
        from dpflow.cli.commands import run_app

        run_app()
        status[0] = 0
    except KeyboardInterrupt:  # also during the imports, which take longer than most commands
        status[0] = 130
        sys.exit(130)
    except SystemExit as end:
        status[0] = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


def _end_process(status: list[int]) -> None:
    """End without the interpreter's own clean-up, which frees memory alone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status[0])


def __getattr__(name: str) -> Any:
    """Import the typer application when it is first used."""
    if name != "app":
        raise AttributeError(f"module 'dpflow.cli' has no attribute {name!r}")
    from dpflow.cli.commands import app

    return app
