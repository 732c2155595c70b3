"""A real Airflow in the demo's workspace: started, watched, and gone afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpflow.demo import airflow_client
from dpflow.demo.airflow_client import AirflowClient, DemoFailed
from dpflow.demo.airflow_environment import airflow_environment, find_free_port, mark_of
from dpflow.demo.supervisor import end_processes, is_alive
from dpflow.demo.workspace import Workspace

#: Airflow's command for each process, by the name of its log.
PROCESSES: Mapping[str, Sequence[str]] = {
    name: (name,) for name in ("api-server", "scheduler", "dag-processor")
}
AIRFLOW = (sys.executable, "-m", "airflow")
RESTARTS = 3  # of processes that end by themselves; on SQLite a busy Airflow's scheduler may
WINDOW = (
    600.0  # seconds in which there may be so many; an Airflow that stays up has more in a month
)
SUPERVISOR_LOG = "supervisor.log"  # a line for each process that was started again
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
TAIL = 8  # lines of a log in a message


class Stage:
    """A running Airflow; ``client`` is its REST API.

    Args:
        logs: folder of the processes' logs.
        env: environment of its processes.
        detached: whether it goes on when this process ends.
    """

    def __init__(self, logs: Path, env: Mapping[str, str], *, detached: bool = False) -> None:
        self.logs, self.env, self._detached = logs, dict(env), detached
        self.client = AirflowClient(env["AIRFLOW__API__BASE_URL"], self.check_processes)
        self.supervisor: subprocess.Popen[bytes] | None = None

    def migrate(self) -> None:
        """Make or upgrade the metadata database. Raises `DemoFailed`."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / "migrate.log").open("wb") as log:
            command = [*AIRFLOW, "db", "migrate"]
            outcome = subprocess.run(command, env=self.env, stdout=log, stderr=log, check=False)
        if outcome.returncode:
            raise DemoFailed("airflow db migrate failed" + quote_tail(self.logs / "migrate.log"))

    def start(
        self,
        processes: Mapping[str, Sequence[str]] = PROCESSES,
        environments: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Start processes under a supervisor, which ends them when this process ends.

        Args:
            processes: the arguments of ``airflow`` for each, by its name.
            environments: what is added to the environment of each, as containers have their own.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        for name in processes:
            (self.logs / f"{name}.log").unlink(missing_ok=True)
        config = {
            "commands": {name: [*AIRFLOW, *words] for name, words in processes.items()},
            "environments": {name: dict(more) for name, more in (environments or {}).items()},
            "logs": str(self.logs),
            "restarts": RESTARTS,
            "window": WINDOW,
            "patience": GRACE,
            "detached": self._detached,
        }
        with (self.logs / SUPERVISOR_LOG).open("wb") as log:
            self.supervisor = subprocess.Popen(
                [sys.executable, "-m", "dpflow.demo.supervisor"],
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal ends this process, which then ends the others in order
                start_new_session=True,
            )
        assert self.supervisor.stdin is not None
        self.supervisor.stdin.write(json.dumps(config).encode() + b"\n")
        self.supervisor.stdin.flush()

    def check_processes(self) -> None:
        """Raise `DemoFailed` when a process kept ending by itself."""
        # the supervisor ends by itself only when a service did so too often
        if self.supervisor is None or self.supervisor.poll() is None:
            return
        output = (self.logs / SUPERVISOR_LOG).read_text().split()
        name = output[-1] if output else "supervisor"
        raise DemoFailed(
            f"airflow {name} ended by itself {RESTARTS + 1} times within {WINDOW:.0f} s"
            + quote_tail(self.logs / f"{name}.log")
        )

    def stop(self) -> None:
        """End every process: politely, then by force."""
        self.client.close()
        if self.supervisor is not None:
            assert self.supervisor.stdin is not None
            # its end of input and the signal say the same; either may come too late
            with suppress(BrokenPipeError):
                self.supervisor.stdin.close()
            with suppress(ProcessLookupError):
                self.supervisor.send_signal(signal.SIGTERM)
            self.supervisor.wait()

    def wait(
        self,
        what: str,
        done: Callable[[], Any],
        progress: Callable[[], Any] | None = None,
        every: float = 1.0,
    ) -> Any:
        """Poll until ``done`` returns something true, as long as something moves.

        Args:
            what: what is waited for, for the message.
            done: asked ``every`` so many seconds.
            progress: anything that changes while work goes on; tasks' logs do, too.

        Raises:
            DemoFailed: nothing changed for `airflow_client.PATIENCE` seconds, or a process keeps
                ending. There is no other deadline.
        """
        last_state, last_change = None, time.monotonic()
        while True:
            self.check_processes()
            if result := done():
                return result
            # services write without progress, so their logs say nothing here
            state = (self._measure_logs(), progress() if progress else None)
            if state != last_state:
                last_state, last_change = state, time.monotonic()
            elif time.monotonic() - last_change > airflow_client.PATIENCE:
                raise DemoFailed(
                    f"nothing moved for {airflow_client.PATIENCE:.0f} s while waiting for {what}"
                    + quote_tail(self.newest_log())
                )
            time.sleep(every)

    def await_health(self) -> None:
        """Wait until the scheduler beats, and log in where no password is needed."""

        def ready() -> bool:
            return self.client.is_healthy() and (bool(self._has_login()) or self.client.log_in())

        self.wait("a healthy Airflow", ready, every=0.5)

    def _has_login(self) -> bool:
        return self.env["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] != "True"

    def _task_logs(self) -> list[Path]:
        return list(Path(self.env["AIRFLOW_HOME"], "logs").glob("dag_id=*/**/*.log"))

    def _measure_logs(self) -> int:
        """Bytes of what tasks and the starting scheduler wrote; others write without progress."""
        files = [*self._task_logs(), self.logs / "migrate.log"]
        return sum(file.stat().st_size for file in files if file.exists())

    def newest_log(self) -> Path:
        """The log of the task that wrote last; before there is one, the scheduler's."""
        logs = [(file.stat().st_mtime, file) for file in self._task_logs()]
        return max(logs, default=(0.0, self.logs / "scheduler.log"))[1]

    def explain_failure(self, dag: str, run: str) -> str:
        """The failed task of a run with the last lines of its log, to put behind a sentence."""
        for task in self.client.list_tasks(dag, run):
            if task["state"] == "failed":
                folder = Path(self.env["AIRFLOW_HOME"], "logs", f"dag_id={dag}", f"run_id={run}")
                logs = sorted(folder.glob(f"task_id={task['task_id']}/**/*.log"))
                return f" at task {task['task_id']}" + (quote_tail(logs[-1]) if logs else "")
        return quote_tail(self.logs / "scheduler.log")


def quote_tail(log: Path, lines: int = TAIL) -> str:
    """The end of a log, to put behind a sentence; lines of JSON as their event and error."""
    try:
        text = log.read_text(errors="replace").splitlines()
    except OSError:
        return f"; there is no log {log}"
    readable = (line for line in map(_readable_line, text) if not line.startswith("::"))
    tail = [line for line in readable if line.strip()][-lines:]
    return "\n".join([f"; the end of {log}:", *(f"    {line[:300]}" for line in tail)])


def _readable_line(line: str) -> str:
    try:
        record = json.loads(line)
        errors = [f"{e['exc_type']}: {e['exc_value']}" for e in record.get("error_detail") or ()]
        return " ".join([str(record["event"]), *errors])
    except (ValueError, KeyError, TypeError, AttributeError):
        return line


def end_leftovers(workspace: Workspace) -> int:
    """End processes of an earlier run in this workspace; how many there were."""
    return end_processes(mark_of(workspace), GRACE)


def read_supervisor(workspace: Workspace) -> int | None:
    """Process id of the supervisor that `--up` left running in this workspace, if it runs."""
    with suppress(OSError, ValueError):
        pid = int(workspace.supervisor_file.read_text())
        command = Path(f"/proc/{pid}/cmdline")
        # the number may have passed to another program
        ours = not command.exists() or b"dpflow.demo.supervisor" in command.read_bytes()
        return pid if is_alive(pid) and ours else None
    return None


@contextmanager
def running_stage(workspace: Workspace, **more: str) -> Iterator[Stage]:
    """An Airflow that is healthy on entry and gone on exit; ``more`` goes into its environment."""
    stage = Stage(workspace.logs, airflow_environment(workspace, find_free_port()) | more)
    try:
        stage.migrate()
        stage.start()
        stage.await_health()
        yield stage
    finally:
        stage.stop()
