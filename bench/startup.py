"""What starting costs: the command line against a minimal typer application, and our operators
against Airflow's base class.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from bench.timing import show

REPEATS = 5
OPERATORS = (
    "from dpflow.airflow import BudgetBranchOperator, BudgetCheckOperator, BudgetGrantOperator, "
    "BudgetReportOperator, DataContractOperator, PrivatePredictionOperator, ReleaseOperator, "
    "ReusableHoldoutOperator, SessionOperator, SqlReleaseOperator"
)
BASE = "from airflow.sdk import BaseOperator"
HELP = "import sys; sys.argv = ['dpflow', '--help']; from dpflow.cli import main; main()"
#: As many commands as ours, each with an option, and no other import than typer.
MINIMAL = """
import sys
import typer
app = typer.Typer(no_args_is_help=True)
for number in range({commands}):
    @app.command(f"command-{{number}}")
    def command(option: str = "") -> None:
        "What this command does, in one line of help."
sys.argv = ["minimal", "--help"]
app()
"""


def least_cpu(codes: dict[str, str]) -> dict[str, float]:
    """Least CPU seconds of fresh processes that run each code, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"AIRFLOW_HOME": home}
        for turn in range(REPEATS + 1):
            for name, code in codes.items():
                before = os.times()
                subprocess.run(
                    [sys.executable, "-c", code], env=environment, capture_output=True, check=True
                )
                after = os.times()
                # The first round writes byte code and fills the disk's cache.
                if turn:
                    seconds[name].append(
                        after.children_user
                        + after.children_system
                        - before.children_user
                        - before.children_system
                    )
    return {name: min(values) for name, values in seconds.items()}


def main() -> None:
    """Print both ratios."""
    from dpflow.cli.commands import COMMANDS

    minimal = MINIMAL.format(commands=len(COMMANDS))
    cpu = least_cpu({"help": HELP, "minimal": minimal, "operators": OPERATORS, "base": BASE})
    rows = [
        (title, f"{cpu[ours]:.2f} s", f"{cpu[theirs]:.2f} s", f"{cpu[ours] / cpu[theirs]:.2f}", bar)
        for title, ours, theirs, bar in (
            ("dpflow --help, against a minimal typer application", "help", "minimal", "1.5"),
            ("import of our operators, against BaseOperator", "operators", "base", "1.1"),
        )
    ]
    show(
        f"start-up, least CPU time of {REPEATS} fresh processes",
        ("what", "ours", "theirs", "ratio", "at most"),
        rows,
    )


if __name__ == "__main__":
    main()
