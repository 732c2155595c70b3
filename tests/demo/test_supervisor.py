"""Nothing outlives the demo: a stand-in process tree instead of Airflow, ended in every way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crashes import wait_for

from dpflow.demo.supervisor import (
    KEEPS_ENDING,
    end_processes,
    is_alive,
    list_descendants,
    list_processes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process trees are read from /proc")

#: As Airflow: a service, a worker below it, and a task that leads a group of its own and is deaf.
SERVICE = """
import os, signal, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        time.sleep(0.05)
time.sleep(600)
"""
FAILING = "import sys; print('why'); sys.exit(3)"

#: Stands for the demo: starts a supervisor as `Stage` does, tells its id, and sleeps.
OWNER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
supervisor = subprocess.Popen([sys.executable, "-m", "dpflow.demo.supervisor"], stdin=subprocess.PIPE, start_new_session=True)
supervisor.stdin.write(sys.argv[1].encode() + b"\\n")
supervisor.stdin.flush()
print(supervisor.pid, flush=True)
time.sleep(600)
"""


def configure(folder: Path, service: str = SERVICE, **changes: object) -> str:
    """A supervisor's configuration with two services."""
    command = [sys.executable, "-c", service]
    config = {
        "commands": {"one": command, "two": command},
        "environments": {},
        "logs": str(folder),
        "restarts": 2,
        "window": 60,
        "patience": 0.3,
        "detached": False,
    }
    return json.dumps(config | changes)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int, list[int]]]]:
    """Starts an owner; gives it, its supervisor and the six processes below that."""
    mark = f"DPFLOW_DEMO={tmp_path}"

    def start(**changes: object) -> tuple[subprocess.Popen[str], int, list[int]]:
        command = [sys.executable, "-c", OWNER, configure(tmp_path, **changes)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"DPFLOW_DEMO": str(tmp_path)},
        )
        assert process.stdout is not None
        supervisor = int(process.stdout.readline())
        wait_for(lambda: len(list_descendants(supervisor)) == 6)
        return process, supervisor, list_descendants(supervisor)

    yield start
    end_processes(mark, 0.1)
    assert not list_processes(mark)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_all_end_with_their_owner(owner, signum: signal.Signals) -> None:
    process, supervisor, below = owner()
    process.send_signal(signum)
    process.wait()
    wait_for(lambda: not any(map(is_alive, [supervisor, *below])))


def test_a_supervisor_that_is_killed_takes_the_services_with_it(owner) -> None:
    """What is left, a deaf task, is found by its mark and ended by the next run."""
    process, supervisor, below = owner()
    os.kill(supervisor, signal.SIGKILL)
    services = [pid for pid in below if os.getsid(pid) == pid]
    wait_for(lambda: not any(map(is_alive, services)))
    process.kill()
    process.wait()


def test_the_next_run_ends_what_is_left(owner, tmp_path: Path) -> None:
    process, supervisor, below = owner()
    for pid in (process.pid, supervisor):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    end_processes(f"DPFLOW_DEMO={tmp_path}", 0.2)
    assert not any(map(is_alive, below))


def test_a_detached_one_goes_on_and_ends_when_told(owner) -> None:
    process, supervisor, below = owner(detached=True)
    process.kill()
    process.wait()
    time.sleep(0.6)
    assert all(map(is_alive, [supervisor, *below]))
    os.kill(supervisor, signal.SIGTERM)
    wait_for(lambda: not any(map(is_alive, [supervisor, *below])))


def test_workers_of_a_killed_service_do_not_work_beside_the_next_ones(owner) -> None:
    _, supervisor, below = owner()
    service = next(pid for pid in below if os.getsid(pid) == pid)
    workers = list_descendants(service)
    os.kill(service, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, workers)))
    wait_for(lambda: len(list_descendants(supervisor)) == 6)
    others = set(below) - {service, *workers}
    assert len(others) == 3 and others <= set(list_descendants(supervisor))


def test_services_that_keep_ending_end_all_of_it(tmp_path: Path) -> None:
    """The last output is the service's name, and its log has every try."""
    config = configure(tmp_path, commands={"one": [sys.executable, "-c", FAILING]})
    command = [sys.executable, "-m", "dpflow.demo.supervisor"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(config + "\n")
        process.stdin.flush()
        assert process.wait(120) == KEEPS_ENDING
        *told, last = process.stdout.read().splitlines()
    assert last == "one" and len(told) == 3
    ending = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ one ended \(exit code 3\)"
    for count, line in enumerate(told[:2], 1):
        again = rf"{ending} and was started again as process \d+; restart {count} of 2 within 60 s"
        assert re.fullmatch(again, line)
    assert re.fullmatch(f"{ending}, too often to be started again", told[2])
    assert (tmp_path / "one.log").read_text().count("why") == 3


def test_what_ends_seldom_is_started_again_whenever_it_does(tmp_path: Path) -> None:
    """Restarts are counted within a window; one count for all of a month ended `make up`."""
    seldom = "import os, time; time.sleep(0.2); os.kill(os.getpid(), 9)"
    config = configure(tmp_path, commands={"one": [sys.executable, "-c", seldom]}, window=0.3)
    command = [sys.executable, "-m", "dpflow.demo.supervisor"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(config + "\n")
        process.stdin.flush()
        told = [process.stdout.readline() for _ in range(5)]
        process.stdin.close()
        assert process.wait(120) == 0
    assert all("one ended (signal 9) and was started again as process" in line for line in told)


def test_an_owner_that_dies_before_it_says_what_to_do_leaves_nothing() -> None:
    command = [sys.executable, "-m", "dpflow.demo.supervisor"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0
