"""Programs in forks of a process that has imported what they need: processes of their own, without a start of Python.

Tests' own processes are not forked for a program that opens DuckDB: a connection of theirs that the fork collects
crashes it, and a lock that one of their threads holds is never released.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crashes import fault_environment

from dpflow import fault_points

#: What programs of dpflow import, services among them.
MODULES = (
    *("dpflow", "dpflow.engine", "dpflow.registry", "dpflow.tables.private", "dpflow.analyst_sql"),
    *("dpflow.cli.commands", "dpflow.cli.serve", "dpflow.server.app", "uvicorn"),
)


class ForkingProcess:
    """A process that opens nothing, and forks a child for each program.

    Args:
        module: the module of tests whose `prepare` it calls before the first fork.
        environment: its own, at its start.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        start = "import sys; sys.path.insert(0, sys.argv[1]); import forked_programs; forked_programs.serve(sys.argv[2])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, str(Path(__file__).parent), module],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._turn = threading.Lock()
        atexit.register(self.close)

    def ask(self, *question: Any) -> int:
        """Its answer to a question of `serve`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "it could not start; see above"
        return int(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class ForkedProcess:
    """A process that was forked, with what tests use of `subprocess.Popen`.

    Args:
        program: its text.
        arguments: what it sees as its command line's.
        environment: all of its environment.
        streams: files that it adds its standard output and its errors to.
        server: the process that is forked.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[str],
        server: ForkingProcess | None = None,
    ) -> None:
        self._server = server or start_server()
        self._code: int | None = None
        question = program, dict(environment), list(arguments), list(streams)
        self.pid = self._server.ask("start", *question)
        self._end, self._turn = os.pidfd_open(self.pid), threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal; raises `subprocess.TimeoutExpired` after so many seconds."""
        if self._code is None:
            ended = select.poll()
            ended.register(self._end, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            with self._turn:
                if self._code is None:
                    self._code = self._server.ask("wait", self.pid)
        return self._code

    def poll(self) -> int | None:
        """Its exit code once it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._end)


class ForkedProgram:
    """A program that runs beside this process.

    Args:
        program: its text.
        arguments: what it sees as its command line's.
        fault: the point of `dpflow.fault_points` at which it is killed.
        environment: its environment; by default this process's.
        server: the process that is forked.
    """

    def __init__(
        self,
        program: str,
        *arguments: str,
        fault: str | None = None,
        environment: Mapping[str, str] | None = None,
        server: ForkingProcess | None = None,
    ) -> None:
        seen = dict(os.environ if environment is None else environment)
        if fault is not None:
            seen = fault_environment(fault, env=seen)
        self._folder = TemporaryDirectory()
        self._streams = [Path(self._folder.name, name) for name in ("out", "errors")]
        streams = list(map(str, self._streams))
        self._process = ForkedProcess(program, arguments, seen, streams, server)

    def wait(self) -> tuple[int, list[str]]:
        """Its exit code, negative for a signal, and what it wrote to its streams."""
        code = self._process.wait()
        written = [stream.read_text() for stream in self._streams]
        self._folder.cleanup()
        return code, written


def run_forked(program: str, *arguments: str, fault: str | None = None) -> int:
    """The exit code of a program that has ended."""
    code, (_, errors) = ForkedProgram(program, *arguments, fault=fault).wait()
    sys.stderr.write(errors)
    return code


@cache
def start_server() -> ForkingProcess:
    """The process of all programs of this worker that need no Airflow."""
    return ForkingProcess(__name__, os.environ)


def prepare() -> None:
    """Import what programs of dpflow need."""
    for module in MODULES:
        importlib.import_module(module)
    from dpflow.registry import Registry

    Registry.load()


def serve(module: str) -> None:
    """Start programs and wait for them, as lines ask, until there are no more."""
    found = importlib.import_module(module)
    sys.path.pop(0)  # the folder of this file
    found.prepare()
    gc.freeze()  # what this process leaves is no garbage of the programs
    for line in sys.stdin:
        what, *rest = json.loads(line)
        if what == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1])
        elif (answer := os.fork()) == 0:
            _run(*rest)
        print(answer, flush=True)


def _run(
    program: str, environment: Mapping[str, str], arguments: Sequence[str], streams: Sequence[str]
) -> None:
    """Run a program in this process, as one that was started for it."""
    code = 1
    try:
        for number, stream in enumerate(streams, start=1):
            os.dup2(os.open(stream, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        sys.argv[:] = ["-c", *arguments]
        fault_points.armed = environment.get(
            "DPFLOW_FAULT", ""
        )  # it was read when dpflow was imported
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
