"""`python -m dpflow.demo.supervisor`: starts processes, starts them again, and outlives none of them.

It stands between the demo and Airflow, in a session of its own. Whatever Airflow's processes start
becomes its descendant for as long as it lives (Linux: a "child subreaper"), also a task that leads
a process group of its own, or a worker whose parent was killed. It ends when told by a signal, or
when its standard input ends, which the system closes when the demo dies in whatever way. Its
direct children get SIGTERM from the system when it is killed itself. Elsewhere than on Linux
only process groups are ended.

Only the standard library is imported, so that it costs little.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
KEEPS_ENDING = 3  #: exit code when a process ended by itself too often; its name is the last output
BEAT = 0.2  #: seconds between two looks at the processes


class Supervisor:
    """The processes of one configuration.

    Args:
        config: ``commands`` (name to argument list), ``environments`` (name to what is added to
            this process's environment), ``logs`` (folder), ``restarts`` (of all of them together
            within ``window`` seconds), ``patience`` (seconds between SIGTERM and SIGKILL), and
            ``detached`` (whether the end of standard input means nothing).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._services: dict[int, str] = {}  # by process id
        self._restarts: list[float] = []  # when, on the monotonic clock
        self._ending = False

    def run(self) -> int:
        """Start everything, watch it, end it; the exit code."""
        set_process_option(PR_SET_CHILD_SUBREAPER, 1)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, self._request_end)
        for name in self._config["commands"]:
            self._launch(name)
        failure = ""
        # a failure ends the loop like a signal, so that one way out ends all processes
        while not (self._ending or failure or self._misses_owner()):
            failure = self._restart_services()
        self._end_all()
        if failure:
            print(failure, flush=True)
        return KEEPS_ENDING if failure else 0

    def _request_end(self, *_: object) -> None:
        self._ending = True

    def _misses_owner(self) -> bool:
        """Wait a beat; whether standard input ended in it."""
        if self._config["detached"]:
            time.sleep(BEAT)
            return False
        ready, _, _ = select.select([0], [], [], BEAT)
        return bool(ready) and not os.read(0, 1)

    def _launch(self, name: str) -> int:
        """Start a service; its process id."""
        # read before the fork: in the child the question would come too late
        parent = os.getpid()
        environment = os.environ | self._config["environments"].get(name, {})
        with Path(self._config["logs"], f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self._config["commands"][name],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),
            )
        process.returncode = 0  # reaped below with all others, not by subprocess
        self._services[process.pid] = name
        return process.pid

    def _restart_services(self) -> str:
        """Reap what ended and start services again; the name of one that ended too often."""
        for pid, status in _reap_children():
            if (name := self._services.pop(pid, None)) is None:
                continue
            # its workers belong to nobody now, and would work beside those of the next one
            _kill_all(set(list_descendants(os.getpid())) - self._descendants_of_services())
            now, window = time.monotonic(), self._config["window"]
            self._restarts = [at for at in self._restarts if now - at < window]
            if len(self._restarts) == self._config["restarts"]:
                _tell(f"{name} ended ({status}), too often to be started again")
                return name
            self._restarts.append(now)
            new, count = self._launch(name), f"{len(self._restarts)} of {self._config['restarts']}"
            _tell(
                f"{name} ended ({status}) and was started again as process {new}; "
                f"restart {count} within {window:g} s"
            )
        return ""

    def _descendants_of_services(self) -> set[int]:
        return {pid for service in self._services for pid in (service, *list_descendants(service))}

    def _end_all(self) -> None:
        """Ask the services, then kill everything that descends from this process."""
        # Airflow's own way first: its scheduler ends workers and tasks, and says so in the logs
        for pid in self._services:
            signal_group(pid, signal.SIGTERM)
        until = time.monotonic() + self._config["patience"]
        while list_descendants(os.getpid()) and time.monotonic() < until:
            _reap_children()
            time.sleep(BEAT / 2)
        # groups, too, for systems where descendants cannot be listed
        for pid in self._services:
            signal_group(pid, signal.SIGKILL)
        _kill_all(set(list_descendants(os.getpid())))


def set_process_option(option: int, value: int) -> None:
    """Call Linux's prctl; nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with(parent: int) -> None:
    """In a new child: let the system end it when its parent does."""
    set_process_option(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def _tell(sentence: str) -> None:
    """One line of standard output, with the time."""
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), sentence, flush=True)


def _reap_children() -> list[tuple[int, str]]:
    """Process ids of children that ended, adopted ones included, and how each ended."""
    ended = []
    with suppress(ChildProcessError):
        while (answer := os.waitpid(-1, os.WNOHANG))[0] != 0:
            code = os.waitstatus_to_exitcode(answer[1])
            ended.append((answer[0], f"exit code {code}" if code >= 0 else f"signal {-code}"))
    return ended


def _kill_all(pids: set[int]) -> None:
    """SIGKILL processes and what they start meanwhile, until none of them is left."""
    # a process may start another one between the list and the signal, so until none is left
    while pids:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap_children()
        time.sleep(BEAT / 10)
        pids = {below for pid in pids for below in (pid, *list_descendants(pid)) if is_alive(below)}


def list_descendants(ancestor: int) -> list[int]:
    """Living processes below one, as /proc has them; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # the name in parentheses may hold anything, spaces and parentheses included
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    below, queue = [], [ancestor]
    while queue:
        queue += (more := children.get(queue.pop(), []))
        below += more
    return below


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        if sys.platform == "linux":
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def signal_group(pid: int, signum: int) -> None:
    """Send a signal to the process group that a process leads; nothing if it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signum)


def list_processes(variable: str) -> list[int]:
    """Processes that were started with ``NAME=value`` in their environment, as far as readable."""
    marked = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in environment.read_bytes().split(b"\0"):
                marked.append(int(environment.parent.name))
    # a demo that was started from a marked shell is no left-over
    return [pid for pid in marked if pid != os.getpid()]


def end_processes(variable: str, patience: float = 10) -> int:
    """End what an earlier run left: SIGTERM, then SIGKILL. Returns how many processes there were."""
    pids = {below for pid in list_processes(variable) for below in (pid, *list_descendants(pid))}
    # a test may be the child of what it looks for
    pids.discard(os.getpid())
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + patience
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(BEAT / 2)
    _kill_all({pid for pid in pids if is_alive(pid)})
    return len(pids)


def main() -> int:
    """Read a configuration as one line of JSON from standard input, and run it."""
    line = bytearray()
    # byte by byte: whatever is behind the line, or its end, stays for the loop to see
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return 0
        line += byte
    return Supervisor(json.loads(line)).run()


if __name__ == "__main__":
    sys.exit(main())
