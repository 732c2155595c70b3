"""The table of commands. A command's module is imported when the command runs, because most of them
import a database or an array library; its help in the list comes from here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

#: Command to help, which is the first paragraph of the command's docstring. Its module has its name.
COMMANDS = {
    "demo": "Run the main job on real data, then write a report.",
    "load": "Load rows into a private DuckDB file, with declared types: all of them, or none.",
    "init": "Declare a table: propose from its catalogue, ask what only its owner knows, grant, plan.",
    "tables": "List the tables that dpflow.yml names, or the service: what is protected, budgets.",
    "describe": "Show one table: whom it protects, its columns and bounds, and what is left of its budgets.",
    "check": "Say whether declarations, sources, ledger, anchor, extras and Airflow fit together; with --runs, days without a release.",
    "reference": "List mechanisms by job, estimators, calculators and errors; search them, or explain one.",
    "new-mechanism": "Write a package for a mechanism of your own: a count of rows to change, tests, and CI.",
    "audit": "Measure a mechanism's guarantee: by its exact output distributions, or by draws.",
    "certify": "Audit mechanisms, and sign what was found about the code that is installed here.",
    "plan": "Say what a release or a whole schedule will cost, before anything is spent.",
    "release": "Charge, draw, settle and publish releases; list past ones.",
    "cdf": "Ask a released distribution for shares and quantiles, or draw it; free, as often as you like.",
    "sql": "Answer a SELECT over a private table, from stored releases where they do.",
    "ask": "Ask a session, in order; without a query, show what is left of it.",
    "gate": "A holdout gate: plan, open, submit candidates, review the champion.",
    "contract": "Data contracts: what they cost, whether rows keep them, thresholds from history.",
    "calculate": "Answer a question about methods: how many rows, how much noise, what no method can reach.",
    "predict": "Answer a table of points from a prediction session.",
    "serve": "Serve tables, releases, SQL and predictions over HTTP.",
    "login": "Keep the token of a service in a file of mode 0600, once the service has accepted it.",
    "ui": "Show budgets, releases, sessions and alarms in a browser.",
    "publish": "Copy settled results that are missing from an output table.",
    "ledger": "Grant budgets; show what is left, what happened, and verify it.",
}


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they run. Its help knows them from the table."""

    # True while help or completion goes through all commands: none is imported for that.
    _lists_commands = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, imported now; in a list of all commands only its name and help."""
        if self._lists_commands or cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        return import_command(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help without importing a command."""
        self._lists_commands = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists_commands = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command's name without importing any."""
        self._lists_commands = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._lists_commands = False


def import_command(name: str) -> Any:
    """The command of this name, ready to run. Takes as long as its module's imports."""
    module = import_module(f"dpflow.cli.{name.replace('-', '_')}")
    # A module with an app of its own is a group of commands, such as the ledger's.
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    single = typer.Typer(add_completion=False)
    single.command(name)(module.command)
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    help="Differential privacy as a workflow primitive: nothing leaves a private table unless it "
    "was charged first.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# Stand-ins for the list in the help: `LazyGroup` imports a command when it runs.
for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(lambda: None)


def _print_version(requested: bool) -> None:
    if requested:
        from dpflow import __version__

        print(f"dpflow {__version__}")
        raise typer.Exit


@app.callback()
def _common_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """The group's own options."""


def run_app() -> None:
    """Run the command line, and end the process with a sentence if a command is refused."""
    from dpflow.error_boundary import contain_errors
    from dpflow.errors import DpflowError
    from dpflow.extras import require_local

    def run() -> None:
        with require_local("this command"):
            app()

    try:
        contain_errors(run)
    except DpflowError as error:
        retry = " (trying again later can help)" if error.retryable else ""
        print(f"dpflow: {error}{retry}", file=sys.stderr)
        # EX_TEMPFAIL of sysexits.h: a script can tell what is worth a retry.
        sys.exit(75 if error.retryable else error.exit_code)
