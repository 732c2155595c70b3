"""The command line starts quickly, and ends quietly whenever it is interrupted."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.cli.commands import COMMANDS, import_command

if TYPE_CHECKING:
    from smallworld import Tiny

#: Runs the console script's entry point after something was put in front of its imports.
SCRIPT = """
import sys
{before}
sys.argv = ["dpflow", *{words!r}]
try:
    from dpflow.cli import main
    main()
finally:
    print(*(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
"""
#: Presses Ctrl-C when this module is about to be imported.
INTERRUPT = """
import os, signal
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
"""


def start(
    *words: str, before: str = "", heavy: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(before=before, words=words, heavy=heavy)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("no-such-command",), ()])
def test_the_list_of_commands_imports_none(words: tuple[str, ...]) -> None:
    """Not even a mistyped command does."""
    heavy = ("duckdb", "sqlalchemy", "numpy", "psycopg", "dpflow.registry", "pandas")
    done = start(*words, heavy=heavy)
    assert done.stderr.splitlines()[-1] == ""
    if words == ("--help",):
        assert all(f"│ {name} " in done.stdout for name in COMMANDS)


def test_a_command_imports_no_other_ledger_or_service(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger on SQLite needs no PostgreSQL, who asks no service speaks no HTTP, and help needs no ledger."""
    monkeypatch.setenv("DPFLOW_LEDGER", str(tiny.ledger))
    heavy = ("sqlalchemy.dialects.postgresql", "http.client", "dpflow.client.remote", "numpy")
    done = start("ledger", "show", heavy=("sqlalchemy", *heavy))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "sqlalchemy")
    assert start("plan", "--help", heavy=("sqlalchemy", *heavy)).stderr.splitlines()[-1] == ""


@pytest.mark.slow
def test_a_plan_and_a_stored_answer_need_no_arrays(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy is an eighth of their CPU. The first answer is new, and needs it."""
    monkeypatch.chdir(tiny.folder)
    monkeypatch.setenv("DPFLOW_LEDGER", str(tiny.ledger))
    file = tiny.file()
    sql = (
        "sql",
        "--table",
        "visits.yml",
        "--scope",
        "visits",
        "--epsilon",
        "0.1",
        "--block",
        "2020-01-01",
    )
    text = "SELECT COUNT(*) FROM visits"
    last = []
    for words in ((*sql, text), (*sql, text), ("plan", str(file))):
        done = start(*words, heavy=("numpy",))
        assert done.returncode == 0, done.stderr
        last.append(done.stderr.splitlines()[-1])
    assert last == ["numpy", "", ""]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_what_they_say(name: str) -> None:
    """The help in the list is the first paragraph of the command's own docstring, or of its
    group's help.
    """
    module = import_module(f"dpflow.cli.{name.replace('-', '_')}")
    own = module.app.info.help if hasattr(module, "app") else inspect.getdoc(module.command)
    assert " ".join(own.split("\n\n")[0].split()) == COMMANDS[name]
    assert import_command(name).help.split("\n\n")[0] == own.split("\n\n")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    """Its options' texts are markup to the terminal; one with a stray bracket ended in an error."""
    inner = getattr(import_command(name), "commands", ())
    for words in ([name], *([name, one] for one in inner)):
        done = CliRunner().invoke(app, [*words, "--help"])
        assert done.exit_code == 0, (words, done.exception)


def test_a_mistyped_command_is_guessed() -> None:
    """From the table."""
    done = CliRunner().invoke(app, ["releas"])
    assert done.exit_code == 2 and "Did you mean 'release'?" in done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dpflow.cli.commands", ("--help",)),
        ("typer", ("--help",)),
        ("dpflow.cli.ledger", ("ledger", "show")),
        ("sqlalchemy", ("ledger", "show", "--ledger", "ledger.sqlite")),
        ("dpflow.mechanisms.count", ("reference",)),
    ],
)
def test_ctrl_c_during_imports_is_quiet(name: str, words: tuple[str, ...]) -> None:
    """Exit code 130 and no traceback, wherever the imports are."""
    done = start(*words, before=INTERRUPT.format(name=name))
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
