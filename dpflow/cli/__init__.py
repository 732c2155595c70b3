"""The command line: one file per command. A user's mistake is one sentence on stderr, never a
traceback.
"""

from __future__ import annotations

import sys

import typer

from dpflow.cli import (
    ask,
    calculate,
    demo,
    ledger,
    mechanisms,
    plan,
    predict,
    publish,
    release,
    sample_sizes,
    serve,
)
from dpflow.errors import DpflowError

app = typer.Typer(
    help="Differential privacy as a workflow primitive: nothing leaves a private table unless it was charged first.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.command)
app.command("mechanisms")(mechanisms.command)
app.command("plan")(plan.command)
app.command("release")(release.command)
app.command("ask")(ask.command)
app.command("calculate")(calculate.command)
app.command("samples")(sample_sizes.command)
app.command("predict")(predict.command)
app.command("serve")(serve.command)
app.command("publish")(publish.command)
app.add_typer(ledger.app, name="ledger")


def main() -> None:
    """Entry point of the console script: 0 done, 1 refused (again would not help), 75 try again
    later.
    """
    try:
        app()
    except DpflowError as error:
        retry = " (trying again later can help)" if error.retryable else ""
        print(f"dpflow: {error}{retry}", file=sys.stderr)
        sys.exit(75 if error.retryable else 1)
    except KeyboardInterrupt:
        sys.exit(130)
