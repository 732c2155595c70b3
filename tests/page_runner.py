"""Runs every example of a page of the documentation, in order, in one empty folder.

A fenced block is one of these, or the page's test fails:

- a block with a ``title`` is written to the file of that name, and a Python one is run as well, unless a later
  ``$ python TITLE`` runs it;
- a ``python`` block is run, names are shared down the page;
- in a ``console`` block each line after ``$`` is run and must succeed (``# exit 1`` at its end says otherwise).
  What ``dpflow`` reads and prints may be files (``< FILE``, ``> FILE``), and a service runs on (``&``).
  Lines below a command are what it prints, up to
  numbers, identifiers and white space; ``...`` stands for any others. `page_outputs` writes them;
- a ``yaml`` or ``json`` block is read; ``text`` is what a person sees, and nothing is done with it;
- a block after the comment ``<!-- not run: REASON -->`` is left alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from airflow_runs import start_airflow
from forked_programs import ForkedProgram

from dpflow.engine import fail_closed
from dpflow.testing.harness import StreamSource

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"(?P<marker><!-- not run: (?P<reason>[^>]+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
#: Columns of a terminal that fit into a page.
WIDTH = 110
#: Services that a page started; they end with it.
SERVICES: list[subprocess.Popen[bytes]] = []
SHELL = ("cat", "cp", "echo", "head", "ls", "mkdir", "mv", "rm", "tail")


@dataclass(frozen=True)
class Example:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    reason: str | None  # why it is not run
    is_program: bool  # a later command runs it

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def examples(page: Path) -> Iterator[Example]:
    """The fenced blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        yield read_example(page, text, match)


def read_example(page: Path, text: str, match: re.Match[str]) -> Example:
    """The block that `FENCE` found."""
    indent = len(match["indent"])
    body = "".join(line[indent:] for line in match["body"].splitlines(keepends=True))
    title = re.search(r'title="([^"]+)"', match["options"])
    line = text.count("\n", 0, match.start("language")) + 1
    name = title and title[1]
    is_program = name is not None and f"$ python {name}" in text
    return Example(page, line, match["language"], name, body, match["reason"], is_program)


def run_page(page: Path, folder: Path) -> dict[str, Any]:
    """Run all examples of a page; returns the names that its Python left."""
    names: dict[str, Any] = {"__name__": "page"}
    with inside(folder):
        blocks = [example for example in examples(page) if example.reason is None]
        for place, example in enumerate(blocks):
            is_planned = any(later.language == "python" for later in blocks[place:])
            try:
                run_example(example, names, brief="dpflow audit" if is_planned else "dpflow ")
            except Exception as error:
                raise AssertionError(f"{example}: {error}") from error
    return names


def run_example(example: Example, names: dict[str, Any], brief: str = "dpflow audit") -> None:
    """Write, read or run one block; audits of commands that begin with ``brief`` take little work."""
    if example.title is not None:
        path = Path(example.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.text, encoding="utf-8")
    if example.language == "python":
        if not example.is_program:
            run_python(example, names)
    elif example.language == "console":
        for command in commands(example.text):
            # An audit says the same words after less work, but a certificate covers less, and programs below may plan
            # what it covers.
            line = command.line
            if line.startswith(brief):
                line = line.replace("--seconds 5", "--seconds 1")
            printed = run_command(line, command.status)
            if command.output and not shows(command.output, printed):
                raise ValueError(
                    f"{command.line!r} prints {printed}, and the page says {command.output}"
                )
    elif example.language == "yaml":
        yaml.safe_load(example.text)
    elif example.language == "json":
        json.loads(example.text)
    elif example.language not in ("text", "csv", "sql", "toml", "ini", "mermaid") or (
        example.language in ("sql", "toml", "ini") and example.title is None
    ):
        raise ValueError(f"nothing runs a block of {example.language or 'no language'!r}")


def run_python(example: Example, names: dict[str, Any]) -> None:
    """Run a program; a DAG file in a fork of its own, because Airflow keeps what it imports."""
    if "airflow.sdk" in example.text:
        environment = os.environ | {"AIRFLOW_HOME": str(Path("airflow").resolve())}
        place = f"import os, sys; os.chdir({str(Path.cwd())!r}); sys.path.insert(0, '')\n"
        start_airflow().run(place + example.text, environment)
        return
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(example.text, str(example), "exec"), names)


@dataclass(frozen=True)
class Command:
    """A command of a console block, the exit status that it ends with, and what the page says it prints."""

    source: str
    status: int
    output: str

    @property
    def line(self) -> str:
        """As a shell reads it."""
        return self.source.replace("\\\n", " ").split("  # exit")[0].strip()


def commands(text: str) -> Iterator[Command]:
    """The commands of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        # A line that ends with a backslash goes on in the next one.
        match = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL)
        assert match is not None
        status = re.search(r"# exit (\d+)\s*$", match[1])
        yield Command(match[1], int(status[1]) if status else 0, match[2].strip())


def shows(expected: str, printed: str) -> bool:
    """Whether a text has the words of another, with any numbers, and with gaps where it says ``...``."""
    parts = [_read_words(part) for part in re.split(r"(?<!\S)\.\.\.(?!\S)", expected)]
    words, place = _read_words(printed), 0
    for i, part in enumerate(parts):
        ends = [n for n in range(place, len(words) + 1) if words[n : n + len(part)] == part]
        if not ends or (i == 0 and ends[0]):
            return False
        place = (ends[-1] if i == len(parts) - 1 else ends[0]) + len(part)
    return place == len(words)


def _read_words(text: str) -> list[str]:
    text = re.sub(r"[\u2500-\u257f]", " ", text)
    # An id of 16 digits has no decimal one once in 7 million times.
    text = re.sub(r"\b((?=\w*\d)[0-9a-f]{6,}|[0-9a-f]{16})\b", "0", text)
    return re.sub(r"[-+−]?\d[\d,.:]*(e[-+]?\d+)?", "0", text).split()


def run_command(command: str, status: int) -> str:
    """Run one line of a console block; returns what it prints, or of a failure its error."""
    words, errors = shlex.split(command), ""
    if words[0] == "export":
        for assignment in words[1:]:
            name, _, value = assignment.partition("=")
            os.environ[name] = value
        return ""
    if words[0] == "cd":
        os.chdir(words[1])
        return ""
    if words[0] == "dpflow" and words[-1] == "&":
        start_service(words[1:-1])
        return ""
    if words[0] == "dpflow" and words[-2:-1] == ["<"]:
        with open(words[-1], encoding="utf-8") as file, patch.object(sys, "stdin", file):
            found, output, errors = run_main(words[1:-2])
    elif words[0] == "dpflow" and words[-2:-1] == [">"]:
        found, output, errors = run_main(words[1:-2])
        Path(words[-1]).write_text(output, encoding="utf-8")
        output = ""
    elif words[0] == "dpflow" and "dags" in words:
        # It imports DAG files, so it runs in a process that may import Airflow.
        program = (
            f"import os, sys\nos.chdir({str(Path.cwd())!r})\nsys.argv = {words!r}\n"
            "from dpflow.cli.commands import run_app\n"
            "code = 0\ntry:\n    run_app()\nexcept SystemExit as end:\n    code = end.code or 0\n"
            f"assert code == {status}, code\n"
        )
        environment = os.environ | {"AIRFLOW_HOME": str(Path("airflow").resolve())}
        return start_airflow().run(program, environment)[0]
    elif words[0] == "dpflow":
        found, output, errors = run_main(words[1:])
    elif words[0] == "python" and words[1].endswith(".py"):
        # In a fork that need not import dpflow.
        program = (
            f"import os, runpy, sys\nos.chdir({str(Path.cwd())!r})\nsys.path.insert(0, os.getcwd())\n"
            f"sys.argv = {words[1:]!r}\nrunpy.run_path({words[1]!r}, run_name='__main__')\n"
        )
        found, (output, errors) = ForkedProgram(program).wait()
    elif words[0] in (*SHELL, "python"):
        words = [sys.executable, *words[1:]] if words[0] == "python" else words
        line = command if words[0] != sys.executable else shlex.join(words)
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        found, output, errors = done.returncode, done.stdout, done.stderr
    else:
        raise ValueError(f"nothing runs {words[0]!r}; say why with a comment 'not run'")
    if found != status:
        text = (output + errors)[-2000:]
        raise ValueError(f"{command!r} ended with {found} and not with {status}: {text}")
    printed = output if status == 0 else errors
    # As on the machine of who reads the page.
    printed = printed.replace(os.environ["XDG_CONFIG_HOME"], "~/.config")
    return printed.replace(f"{Path.cwd()}/", "").replace(str(Path.home()), "~")


def start_service(words: list[str]) -> None:
    """Run ``dpflow serve`` beside the page until its end; returns once it answers."""
    program = [sys.executable, "-c", "from dpflow.cli import main; main()", *words]
    service = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    SERVICES.append(service)
    port = int(words[words.index("--port") + 1])
    for _ in range(600):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if service.poll() is not None:
            break
        time.sleep(0.1)
    raise ValueError(f"{shlex.join(words)} does not answer")


def run_in(folder: Path, *words: str) -> tuple[int, str, str]:
    """What `run_main` gives in a folder, in an environment that names no ledger."""
    with inside(folder):
        os.environ.pop("DPFLOW_LEDGER", None)
        return run_main([*words])


def show_in(folder: Path, *words: str, status: int = 0) -> str:
    """What a command prints in a folder, where it ends with this status."""
    ended, output, errors = run_in(folder, *words)
    assert ended == status, errors
    return output if status == 0 else output + errors


def run_main(words: list[str]) -> tuple[int, str, str]:
    """The exit status, standard output and standard error of a command, without a new process."""
    from dpflow.cli.commands import run_app

    output, errors, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["dpflow", *words]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            run_app()
    except SystemExit as end:
        return (0 if end.code is None else int(end.code)), output.getvalue(), errors.getvalue()
    finally:
        sys.argv = before
    return 0, output.getvalue(), errors.getvalue()


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, with an environment that is put back."""
    environment, before = dict(os.environ), Path.cwd()
    os.chdir(folder)
    os.environ |= {"COLUMNS": str(WIDTH), "XDG_CONFIG_HOME": str(folder / "config")}
    sys.path.insert(0, str(folder))
    seeds = count(7)
    try:
        # The same noise in each run, so that words which noise decides are those of the page.
        with patch.object(fail_closed, "SystemSource", lambda: StreamSource(next(seeds))):
            yield
    finally:
        while SERVICES:
            service = SERVICES.pop()
            service.kill()
            service.wait()
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(folder)):
                del sys.modules[name]
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
