"""The services of docker-compose.yml as processes of this machine: its commands and environments,
with places below a folder, free ports and loopback instead of containers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from dpflow import Ledger
from dpflow.demo.airflow_environment import find_free_port, inherited_environment
from dpflow.demo.airflow_stage import Stage
from dpflow.demo.workspace import copy_example_dags

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
#: Services that stay up, and the environment that all of Airflow's share.
SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")


def load_script(name: str) -> ModuleType:
    """A program of deploy/, which is in no package."""
    spec = util.spec_from_file_location(name, ROOT / "deploy" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Deployment:
    """The services below a folder.

    Args:
        root: stands for the containers' file systems.
        socket: folder of the Unix socket of a PostgreSQL server that asks for passwords.
    """

    def __init__(self, root: Path, socket: str) -> None:
        self.root, self.secrets = root, root / "secrets"
        self.port, self.health_port = find_free_port(), find_free_port()
        self.service_port = find_free_port()
        self.more: dict[str, str] = {}  #: what a test adds to every environment
        mounted = ("work", "anchor", "owner", "tls", "ca", "logs", "users")
        for name in ("project/private", "project/incoming", *mounted):
            (root / "opt" / name).mkdir(parents=True)
        script = load_script("make_secrets")
        url = f"https://127.0.0.1:{self.service_port}"
        script.write_secrets(self.secrets, host=socket, service=url)
        script.write_service(self.service_folder, self.secrets)
        self._socket = socket
        self._ports = {
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(self.health_port),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(find_free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(find_free_port()),
        }

    @property
    def dags(self) -> Path:
        """The folder of DAGs; a test puts its own there before `run_init`."""
        return self.root / "opt" / "project" / "dags"

    @property
    def service_folder(self) -> Path:
        """The folder of the service's file and declarations."""
        return self.root / "opt" / "project" / "service"

    def give_tasks_the_ledger(self) -> None:
        """Connect tasks to the ledger itself, as on machines of one's own without a service."""
        connection = {
            "conn_type": "dpflow_ledger",
            "host": self._socket,
            "port": 5432,
            "login": "dpflow_service",
            "password": (self.secrets / "dpflow_service_password").read_text().rstrip(),
            "schema": "dpflow",
            "extra": json.dumps({"anchor": str(self.root / "opt" / "anchor")}),
        }
        file = self.secrets / "tasks_connections.json"
        file.write_text(json.dumps({"dpflow_ledger": connection}))

    @contextmanager
    def serve(self) -> Iterator[subprocess.Popen[bytes]]:
        """The service ``service``, ready, with the variables of its container and no others."""
        told, log = COMPOSE["services"]["service"], self.root / "service.log"
        every = self.environment("service")
        names = {*told["environment"], "PATH", "LANG", "NO_PROXY"}
        env = {name: text for name, text in every.items() if name in names}
        run = str(self.root / "run" / "service")
        words = [word.replace("$$", "$") for word in [*told["entrypoint"], *told["command"]]]
        here = {"/run/secrets": run, "/opt/dpflow": str(self.root / "opt"), "0.0.0.0": "127.0.0.1"}
        for place, there in here.items():
            words = [word.replace(place, there) for word in words]
        folder = told["working_dir"].replace("/opt/dpflow", str(self.root / "opt"))
        with log.open("ab") as written:
            process = subprocess.Popen(
                [*words, "--port", str(self.service_port)],
                env=env | {"HOME": str(self.root)}, cwd=folder, stdout=written, stderr=written,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while self.run_healthcheck("service") != 0:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield process
        finally:
            process.terminate()
            process.wait(60)

    def environment(self, service: str, home: str = "") -> dict[str, str]:
        """What a service's container is told, with its own AIRFLOW_HOME and its own secrets."""
        config = self.root / "homes" / (home or service) / "config"
        config.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "deploy" / "airflow_local_settings.py", config)
        run = self.root / "run" / (home or service)
        run.mkdir(parents=True, exist_ok=True)
        for secret in COMPOSE["services"][service].get("secrets", ()):
            long = secret if isinstance(secret, dict) else {"source": secret, "target": secret}
            source = ROOT / COMPOSE["secrets"][long["source"]]["file"]
            target = run / long["target"]
            if not target.is_symlink():
                target.symlink_to(self.secrets / source.name)
        places = {
            "/run/secrets": str(run),
            "/opt/dpflow": str(self.root / "opt"),
            "http://api-server:8080": f"http://127.0.0.1:{self.port}",
            "http://localhost:8080": f"http://127.0.0.1:{self.port}",
            "0.0.0.0": "127.0.0.1",
        }
        told = {}
        for name, text in COMPOSE["services"][service].get("environment", {}).items():
            for place, here in places.items():
                text = text.replace(place, here)
            told[name] = text
        return (
            inherited_environment()
            | told
            | self._ports
            | {
                "AIRFLOW_HOME": str(self.root / "homes" / (home or service)),
                "AIRFLOW__API__PORT": str(self.port),
                # each service has a folder of logs here, so that they are asked of each other
                "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.root / "logs" / service),
                # what the test adds: a lighter server, and DAGs that are read sooner
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
                # a busy machine answers tasks late
                "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
                "DPFLOW_SECRETS": str(run),
                "DPFLOW_PLACE": str(self.root / "opt"),
                "NO_PROXY": "127.0.0.1,localhost",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            }
            | self.more
        )

    def prepare_dags(self) -> None:
        """The folder of DAGs that compose mounts: the demo's, and the one that asks the service."""
        copy_example_dags(self.dags)
        shutil.copy(ROOT / "dags" / "service_flights.py", self.dags)

    def run_init(self) -> None:
        """The service ``init``, as often as a test likes."""
        command = [sys.executable, str(ROOT / "deploy" / "init.py")]
        done = subprocess.run(
            command, env=self.environment("init"), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    def run_owner(self, service: str, *words: str) -> str:
        """A command of the service ``owner`` or ``demo``, in its folder; what it printed."""
        told = COMPOSE["services"][service]
        entry = [word.replace("$$", "$") for word in told["entrypoint"]]
        run = self.root / "run" / service
        env = self.environment(service)
        here = {
            "python": sys.executable,
            "/opt/dpflow/init.py": str(ROOT / "deploy" / "init.py"),
        }
        command = [here.get(w, w).replace("/run/secrets", str(run)) for w in [*entry, *words]]
        folder = told["working_dir"].replace("/opt/dpflow", str(self.root / "opt"))
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def open_ledger(self) -> Ledger:
        """The ledger as its owner sees it."""
        place = (self.secrets / "dpflow_owner_url").read_text()
        return Ledger(place, anchor=self.root / "opt" / "anchor", owner=True)

    def make_stage(self, more: Mapping[str, tuple[str, ...]] | None = None) -> Stage:
        """The services that stay up, started; ``more`` names other processes by their arguments,
        as "scheduler 2" of the service "scheduler".
        """
        commands = {name: tuple(COMPOSE["services"][name]["command"][1:]) for name in SERVICES}
        commands |= more or {}
        environments = {
            name: self.environment(name.split()[0], home=name.replace(" ", "-"))
            for name in commands
        }
        for name in more or ():  # two on one machine need two ports
            port = "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT"
            environments[name][port] = str(find_free_port())
        env = environments["scheduler"] | {
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        }
        stage = Stage(self.root / "process-logs", env)
        stage.start(commands, environments)
        return stage

    def log_in(self, stage: Stage) -> None:
        """Wait for a healthy Airflow, and log in with the password of the secrets."""
        password = (self.secrets / "admin_password").read_text()
        stage.wait("a login", lambda: stage.client.log_in("admin", password))
        stage.await_health()

    def run_healthcheck(self, service: str) -> int:
        """The exit code of a service's health check, with its own environment."""
        test = COMPOSE["services"][service]["healthcheck"]["test"][1:]
        here = {
            "/opt/dpflow/healthcheck.py": str(ROOT / "deploy" / "healthcheck.py"),
            "8080": str(self.port),
            "8974": str(self.health_port),
            "8321": str(self.service_port),
            "/opt/dpflow/tls/tls.crt": str(self.root / "opt" / "tls" / "tls.crt"),
            "python": sys.executable,
        }
        command = [here.get(word, word) for word in test]
        env = self.environment(service)
        return subprocess.run(command, env=env, capture_output=True, check=False).returncode
