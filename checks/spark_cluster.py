"""Apache Spark itself on loopback: a master, workers, and a server of Spark Connect.

``make spark`` builds the environment, for `pyspark` owns the same package as the client that dpflow
uses. Java 17 comes from the system. Everything binds to 127.0.0.1 and writes to one folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-spark"
_START_SECONDS = 600
#: Of the server's: partitions for a small machine, and stages that are as they stand in the plan.
SETTINGS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "true",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


def find_spark_home() -> Path:
    """Where Spark is installed. Raises `FileNotFoundError` with what to do."""
    for home in ENVIRONMENT.glob("lib/python*/site-packages/pyspark"):
        if shutil.which("java") is None:
            raise FileNotFoundError("Apache Spark needs Java 17 on the path; install it")
        return home
    raise FileNotFoundError("there is no environment with Apache Spark; build it with: make spark")


class SparkCluster:
    """A running cluster. ``address`` is its server's, for declarations.

    Attributes:
        processes: each program by its name: master, worker-0, ..., connect.
    """

    def __init__(self, folder: Path, workers: int, settings: dict[str, str]) -> None:
        self.folder, self.settings = folder, SETTINGS | settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._home = find_spark_home()
        self._master, self._connect, self._ui = (_find_free_port() for _ in range(3))
        self._workers = workers

    @property
    def address(self) -> str:
        """The server of Spark Connect."""
        return f"sc://127.0.0.1:{self._connect}"

    def start(self) -> None:
        """Start everything, and wait until the server answers and every worker has its executor."""
        package = "org.apache.spark.deploy"
        master = "local[2]"
        if self._workers:
            at = ("--host", "127.0.0.1", "--webui-port", "0")
            self._run("master", f"{package}.master.Master", *at, "--port", str(self._master))
            master = f"spark://127.0.0.1:{self._master}"
        for i in range(self._workers):
            self.start_worker(i)
        ports = {"spark.connect.grpc.binding.port": self._connect, "spark.ui.port": self._ui}
        settings = self.settings | {name: str(port) for name, port in ports.items()}
        options = [word for item in settings.items() for word in ("--conf", "=".join(item))]
        submit = ("--master", master, *options)
        server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
        self._run("connect", f"{package}.SparkSubmit", *submit, *server, "spark-internal")
        self._wait_until(lambda: _listens(self._connect), "the server of Spark Connect")
        self._wait_until(lambda: self.count_executors() == self._workers, "the executors")

    def start_worker(self, i: int) -> None:
        """A worker of one core, which runs one executor."""
        memory = self.settings["spark.executor.memory"]
        size = ("--cores", "1", "--memory", memory, "--work-dir", str(self.folder / f"worker-{i}"))
        at = ("--host", "127.0.0.1", "--webui-port", "0")
        name = "org.apache.spark.deploy.worker.Worker"
        self._run(f"worker-{i}", name, *at, *size, f"spark://127.0.0.1:{self._master}")

    def kill(self, name: str) -> None:
        """End a program and those that it started, as a machine that loses its power does."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_executors(self) -> None:
        """End every executor; its worker starts another."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
                if any(int(parent) == one.pid for one in self.processes.values()):
                    os.kill(int(pid), signal.SIGKILL)

    def stop(self) -> None:
        """End whatever still runs."""
        for name in list(self.processes):
            self.kill(name)

    def list_stages(self) -> list[dict[str, Any]]:
        """Each try of each stage, as Spark's own page tells them."""
        return [stage for one in self._ask("") for stage in self._ask(f"/{one['id']}/stages")]

    def sum_memory(self, stage: dict[str, Any]) -> int:
        """The most bytes that each task of a stage took of the memory for sorts and groups, added up."""
        which = f"/stages/{stage['stageId']}/{stage['attemptId']}/taskList?length=100000"
        tasks = [task for one in self._ask("") for task in self._ask(f"/{one['id']}{which}")]
        return sum(task.get("taskMetrics", {}).get("peakExecutionMemory", 0) for task in tasks)

    def count_executors(self) -> int:
        """Of those that run now."""
        found = [one for app in self._ask("") for one in self._ask(f"/{app['id']}/executors")]
        return sum(one["id"] != "driver" for one in found)

    def _ask(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self._ui}/api/v1/applications{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            # Not there yet.
            return []

    def _run(self, name: str, program: str, *words: str) -> None:
        environ = os.environ | {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        if name != "connect":
            environ["SPARK_DAEMON_MEMORY"] = "256m"
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), program, *words],
                cwd=self.folder, env=environ, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _START_SECONDS
        while not condition():
            ended = [name for name, one in self.processes.items() if one.poll() is not None]
            if ended or time.monotonic() > end:
                logs = ", ".join(str(self.folder / f"{name}.log") for name in ended) or self.folder
                raise RuntimeError(f"{what} did not start; look at {logs}")
            time.sleep(0.2)


def _find_free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def run_cluster(
    folder: Path, workers: int = 2, settings: dict[str, str] | None = None
) -> Iterator[SparkCluster]:
    """A cluster that ends with the block; without workers it is one process with two cores. ``settings``
    are Spark's own, beside `SETTINGS`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cluster = SparkCluster(folder, workers, settings or {})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def main() -> None:
    """Run a cluster until a signal ends it: ``python -m checks.spark_cluster FOLDER``."""
    ends = {signal.SIGINT, signal.SIGTERM}
    with run_cluster(Path(sys.argv[1])) as cluster:
        # Blocked, or the signal would end this process alone.
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        print(cluster.address, flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
