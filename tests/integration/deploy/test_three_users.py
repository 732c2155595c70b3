"""Users of one machine and one service: the owner's files open for nobody else, and everybody asks by a door of their own.

The owner makes the folder as docs/how-to/run-a-service.md prescribes, with its commands. An analyst asks by command line,
notebook and SQLAlchemy; a real Airflow of another user loads and releases seven days, has a worker and the service
killed, and backfills four days in parallel; a CI user gates a model; an auditor reads it all. Needs root, to be several users.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from page_runner import ROOT, examples
from service_world import asker
from sql_world import DECLARATION, ROWS
from sqlalchemy import make_url

from dpflow.demo.airflow_environment import find_free_port
from dpflow.server.service import new_token

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users"),
]

USERS = {"owner": 61001, "airflow": 61002, "analyst": 61003, "ci": 61004, "auditor": 61005}
DAYS = [f"2026-01-{day:02}" for day in range(1, 12)]
MAIN = "from dpflow.cli import main; main()"
HOLDOUT = """
CREATE TABLE holdout AS SELECT i AS person, (i % 100) / 100 AS a, (i % 7) / 7 AS b, (i % 100 >= 50)::INTEGER AS late
FROM range(4000) t(i)
"""
HOLDOUT_TABLE = {
    "name": "holdout",
    "database": "holdout.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "holdout": True,
    "columns": {
        "person": {},
        "a": {"lower": 0, "upper": 1},
        "b": {"lower": 0, "upper": 1},
        "late": {"lower": 0, "upper": 1, "step": 1},
    },
}
GATE = {
    "name": "late",
    "mechanism": "gate",
    "table": "holdout.yml",
    "scope": "holdout",
    "params": {"metric": "accuracy", "threshold": "0.2", "epsilon": 40, "queries": 20, "failures": 3},
}  # fmt: skip
TABLES = """
import sys, duckdb
for name, rows in zip(("visits", "holdout"), sys.argv[1:]):
    with duckdb.connect(f"{name}.duckdb") as connection:
        connection.execute(rows)
"""
#: Opens whatever it is told, and says what it could.
SNOOP = """
import json, os, sys
opened = []
for place in json.load(sys.stdin):
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open(place, flags))
            opened.append(place)
        except OSError:
            pass
print(json.dumps(opened))
"""
NOTEBOOK = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
for cell in ("%load_ext dpflow.notebook", "%%dpsql mean\\n-- dp: epsilon=0.25\\nSELECT avg(age) AS a FROM visits", "print(len(mean.rows))"):
    reply = client.execute_interactive(cell, timeout=300)["content"]
    assert reply["status"] == "ok", reply
manager.shutdown_kernel(now=True)
"""
ENGINE = """
import sys, pandas, sqlalchemy as sa
with sa.create_engine(sys.argv[1]).connect() as connection:
    print(pandas.read_sql("SELECT city, max(age) AS m FROM visits GROUP BY city", connection).shape)
    try:
        connection.exec_driver_sql("SELECT * FROM visits")
    except sa.exc.ProgrammingError as error:
        print("no-star" in str(error))
"""
CANDIDATE = """
import numpy as np, skops.io
from sklearn.linear_model import LogisticRegression
rows = np.random.default_rng(0).random((400, 2))
skops.io.dump(LogisticRegression().fit(rows, (rows[:, 0] >= 0.5).astype(int)), "good.skops")
"""
DAG = """
import os, signal
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable

from dpflow.airflow import LoadOperator, ReleaseOperator

DAY = "{{ data_interval_start | ds }}"


class Killed(ReleaseOperator):
    def defer(self, **kwargs):
        marker = Path(os.environ["AIRFLOW_HOME"], "killed")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().defer(**kwargs)


with DAG("team_visits", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
         start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 31), catchup=False, max_active_runs=4,
         default_args={"retries": 8, "retry_delay": timedelta(seconds=1)}):
    LoadOperator(task_id="load", load="daily", blocks=DAY) >> Killed(task_id="release", release={
        "name": "by city", "mechanism": "histogram", "table": "visits", "where": f"day = '{DAY}'",
        "params": {"by": "city", "epsilon": "0.1"}})
"""
#: Backfills of so many days one by one and in parallel, then a clear; prints the states of runs and tries of tasks.
WALK = """
import json, sys
from pathlib import Path

from dpflow.demo.airflow_environment import airflow_environment, find_free_port
from dpflow.demo.airflow_stage import PROCESSES, Stage
from dpflow.demo.workspace import Workspace

connection, *backfills = json.load(sys.stdin)
workspace = Workspace(Path.home())
environment = airflow_environment(workspace, find_free_port())
del environment["AIRFLOW_CONN_DPFLOW_LEDGER"]
environment |= {"AIRFLOW_CONN_DPFLOW": json.dumps(connection), "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}
stage = Stage(workspace.logs, environment)
dag, client, count = "team_visits", stage.client, 0
stage.migrate()
try:
    stage.start({**PROCESSES, "triggerer": ("triggerer",)})
    stage.await_health()
    stage.wait("the DAG", lambda: client.get(f"dags/{dag}"))

    def ended():
        states = [run["state"] for run in client.list_runs(dag)]
        return sum(state in ("success", "failed") for state in states) >= count

    def progress():
        return [run["state"] for run in client.list_runs(dag)]

    for days, parallel in backfills:
        client.post("backfills", {
            "dag_id": dag, "from_date": f"{days[0]}T00:00:00Z", "to_date": f"{days[-1]}T12:00:00Z",
            "max_active_runs": parallel, "reprocess_behavior": "none", "run_backwards": False, "dag_run_conf": {}})
        count += len(days)
        stage.wait(f"{count} runs", ended, progress)
        stage.wait("the backfill's end", lambda: all(
            one["completed_at"] for one in client.get("backfills", dag_id=dag)["backfills"]))
    run = client.list_runs(dag)[0]["dag_run_id"]
    client.clear(dag, run)
    stage.wait("the cleared run", ended, progress)
    states = {run["dag_run_id"]: run["state"] for run in client.list_runs(dag)}
    tries = [task["try_number"] for run in states for task in client.list_tasks(dag, run)]
    print("WALKED", json.dumps([sorted(states.values()), max(tries)]))
finally:
    stage.stop()
"""


class Machine:
    """A folder that all users may enter, with a home for each, and an interpreter that they may run."""

    def __init__(self, root: Path) -> None:
        self.root, self.closed = root, list[str]()
        root.chmod(0o755)
        self.python = make_interpreter(root)
        for name, uid in USERS.items():
            self.home(name).mkdir(mode=0o700)
            os.chown(self.home(name), uid, uid)

    def home(self, user: str) -> Path:
        return self.root / user

    def terms(self, user: str, **more: str) -> dict[str, Any]:
        """Arguments of a process of a user: nothing of root's environment is in it."""
        uid, home = USERS[user], str(self.home(user))
        path = f"{Path(self.python).parent}:/usr/bin:/bin"
        own = {"HOME": home, "USER": user, "LOGNAME": user, "PATH": path, "LANG": "C.UTF-8"}
        own |= {"AIRFLOW_HOME": home, "TMPDIR": home} | more
        return {"user": uid, "group": uid, "extra_groups": [], "umask": 0o077, "cwd": home, "env": own}  # fmt: skip

    def run(self, user: str, program: str, *words: str, said: str = "", code: int = 0) -> str:
        """What a Python program of a user prints."""
        done = subprocess.run(
            [self.python, "-c", program, *words], input=said, capture_output=True, text=True, timeout=1800, **self.terms(user)
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout

    def dpflow(self, user: str, *words: str, said: str = "") -> str:
        return self.run(user, MAIN, *words, said=said)

    def own(self, *words: str) -> str:
        """A command of the owner, in the folder."""
        return self.run("owner", f"import os; os.chdir('dp'); {MAIN}", *words)

    def write(self, user: str, name: str, content: Any) -> None:
        """A file of a user, as `yaml` unless it is a text."""
        file = self.home(user) / name
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        for place in (file.parent, file):
            os.chown(place, USERS[user], USERS[user])


def make_interpreter(root: Path) -> str:
    """A Python with this one's packages that others may run: the system's where this one is in root's home."""
    base = Path(sys.executable).resolve()
    if all(folder.stat().st_mode & 0o005 == 0o005 for folder in base.parents):
        return sys.executable
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = shutil.which(version, path="/usr/local/bin:/usr/bin")
    if found is None:
        pytest.skip(f"no {version} that other users may run")
    environment = root / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "lib" / version).mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"home = {Path(found).parent}\n")
    (environment / "bin" / "python").symlink_to(found)
    packages = Path(httpx.__file__).parents[1]
    (environment / "lib" / version / "site-packages").symlink_to(packages)
    return str(environment / "bin" / "python")


class Service:
    """``dpflow serve`` of the owner."""

    def __init__(self, machine: Machine, port: int, **environment: str) -> None:
        self.machine, self.port, self.url = machine, port, f"http://127.0.0.1:{port}"
        self._environment = environment
        self.start()

    def start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  the process writes on
        words = ["serve", "dp/service.yml", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [self.machine.python, "-c", MAIN, *words],
            stdout=subprocess.DEVNULL, stderr=self.log, **self.machine.terms("owner", **self._environment),
        )  # fmt: skip
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return
            time.sleep(0.2)
        self.log.seek(0)
        raise TimeoutError(f"the service does not start: {self.log.read()[-2000:].decode()}")

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(60)


@pytest.fixture
def machine() -> Iterator[Machine]:
    root = Path(tempfile.mkdtemp(prefix="dpflow-users-", dir="/tmp"))
    yield Machine(root)
    shutil.rmtree(root, ignore_errors=True)


def prepare_owner(machine: Machine, ledger: str, tokens: dict[str, tuple[str, str]]) -> None:
    """The page's folder, with what the owner's commands make in it."""
    ((made,),) = [
        [line.removeprefix("$ ") for line in one.text.splitlines() if line.startswith("$ mkdir")]
        for one in examples(ROOT / "docs" / "how-to" / "run-a-service.md")
        if "mkdir" in one.text
    ]
    subprocess.run(made.split(), check=True, **machine.terms("owner"))
    assert (machine.home("owner") / "dp").stat().st_mode & 0o777 == 0o700
    principals = {
        "airflow": {"role": "scheduler", "scope": "visits/team", "doors": ["release", "load"],
                    "loads": ["daily"], "dag_prefixes": ["team_"], "tables": ["visits"]},
        "analyst": {"scope": "visits/analyst", "doors": ["sql"], "tables": ["visits"]},
        "ci": {"scope": "holdout", "doors": ["gate"], "gates": ["late"], "tables": []},
        "auditor": {"role": "auditor"},
    }  # fmt: skip
    for name, terms in principals.items():
        base = {} if name == "auditor" else asker("ann")
        principals[name] = base | terms | {"token_sha256": tokens[name][1]}
    service = {
        "ledger": ledger, "anchor": "anchor", "max_bytes": 10**7,
        "tables": {"visits": "visits.yml", "holdout": "holdout.yml"},
        "loads": {"daily": {"table": "visits", "source": "incoming/{block}.csv", "by": "day"}},
        "gates": {"late": {"gate": "late.yml"}},
        "principals": principals,
    }  # fmt: skip
    contents = {"visits.yml": DECLARATION, "holdout.yml": HOLDOUT_TABLE, "late.yml": GATE}
    contents["dpflow.yml"] = {"ledger": ledger, "anchor": "anchor"}
    for name, content in (contents | {"service.yml": service}).items():
        machine.write("owner", f"dp/{name}", content)
    for day in DAYS:
        rows = "".join(f"{n},Oslo,c1,30,1.25,{day}\n" for n in range(50))
        machine.write("owner", f"dp/incoming/{day}.csv", f"person,city,clinic,age,cost,day\n{rows}")
    machine.run("owner", f"import os; os.chdir('dp')\n{TABLES}", ROWS, HOLDOUT)
    # "basic" adds up, so sums are exact.
    grant = ["--epsilon", "50", "--filter", "basic", "--confirm-large"]
    rules = [*grant, "--delta", "1e-3", "--table", "visits.yml"]
    machine.own("ledger", "grant", "visits", *rules)
    machine.own("ledger", "grant", "holdout", *grant, "--table", "holdout.yml")
    for scope, period in (("visits/team", ()), ("visits/analyst", ("--period", "day"))):
        machine.own("ledger", "quota", scope, "--epsilon", "5", *period)


def require_closed(machine: Machine, service: Service) -> None:
    """No other user opens any of it. The owner opens all that is on the disk, so the list is a true one."""
    # Every file and folder of the owner, and what the kernel shows of the running service.
    home, process = machine.home("owner"), Path(f"/proc/{service.process.pid}")
    shown = [process / name for name in ("environ", "mem", "cwd/service.yml", "fd/0", "root/etc/hostname", "maps")]  # fmt: skip
    places = [str(home), *map(str, home.rglob("*")), *map(str, shown), *machine.closed]
    assert len(places) > 25
    for user in USERS.keys() - {"owner"}:
        assert json.loads(machine.run(user, SNOOP, said=json.dumps(places))) == [], user
    files = [str(file) for file in machine.home("owner").rglob("*") if file.is_file()]
    opened = json.loads(machine.run("owner", SNOOP, said=json.dumps(files)))
    assert set(opened) == set(files)


def kill_service_once(machine: Machine, service: Service) -> threading.Thread:
    """kill -9 once a worker has died, while days are released; and the same again, on the same port."""

    def watch() -> None:
        while not (machine.home("airflow") / "airflow" / "killed").exists():
            time.sleep(0.5)
        service.stop(signal.SIGKILL)
        service.start()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def walk(machine: Machine, services: list[Service], tokens: dict[str, tuple[str, str]], days: int) -> None:  # fmt: skip
    first, last = services[0], services[-1]
    require_closed(machine, first)
    for user in ("analyst", "ci", "auditor"):
        machine.write(user, "dpflow.yml", {"server": last.url})
        machine.dpflow(user, "login", said=tokens[user][0] + "\n")
        (kept,) = machine.home(user).rglob("tokens.json")
        assert kept.stat().st_mode & 0o777 == 0o600
    # The analyst.
    query = "SELECT city, count(*) AS n FROM visits GROUP BY city"
    answer = json.loads(machine.dpflow("analyst", "sql", query, "--epsilon", "0.5", "--json"))
    assert len(answer["rows"]) == 3 and not answer["free"]
    assert machine.run("analyst", NOTEBOOK).strip().endswith("1")
    url = f"dpflow://127.0.0.1:{last.port}/?epsilon=0.125"
    assert machine.run("analyst", ENGINE, url).split("\n")[:2] == ["(3, 2)", "True"]
    # Another user's Airflow.
    machine.write("airflow", "dags/team.py", DAG)
    connection = {"conn_type": "dpflow", "host": first.url, "password": tokens["airflow"][0]}
    killer = kill_service_once(machine, first)
    alone, parallel = DAYS[:days], DAYS[days:][:4]
    said = json.dumps([connection, [alone, 1], [parallel, 4]])
    walked = machine.run("airflow", WALK, said=said).partition("WALKED ")[2]
    killer.join(120)
    assert not killer.is_alive()
    states, tries = json.loads(walked)
    assert states == ["success"] * (days + 4) and tries > 1
    # The pipeline.
    machine.run("ci", CANDIDATE)
    candidate = {"name": "good", "file": "good.skops", "features": ["a", "b"], "label": "late", "claim": "0.9"}  # fmt: skip
    machine.write("ci", "candidates.yml", [candidate])
    verdict = json.loads(machine.dpflow("ci", "gate", "submit", "late", "candidates.yml", "--json"))
    assert verdict["verdicts"][0]["verdict"] == "yes"
    # The auditor, who sees every scope, and sums that are exact.
    budgets = json.loads(machine.dpflow("auditor", "ledger", "show", "--json"))
    spent = {row["scope"]: Decimal(row["epsilon_spent"]) for row in budgets}
    released = Decimal("0.1") * (days + 4)
    expected = {"visits/team": released, "visits/analyst": Decimal("0.875"), "holdout": Decimal(40)}
    assert spent == expected | {"visits": released + Decimal("0.875")}
    entries = json.loads(machine.dpflow("auditor", "ledger", "history", "--json"))
    assert {one["principal"] for one in entries} >= {"airflow", "analyst", "ci"}
    assert sum(one["kind"] == "reserve" and one["principal"] == "airflow" for one in entries) == days + 4  # fmt: skip
    require_closed(machine, first)


def test_three_users_of_one_machine(machine: Machine) -> None:
    tokens = {name: new_token() for name in USERS}
    prepare_owner(machine, "ledger.sqlite", tokens)
    service = Service(machine, find_free_port())
    try:
        walk(machine, [service], tokens, 7)
    finally:
        service.stop()
    assert json.loads(machine.own("ledger", "verify", "--json"))["problems"] == []


def test_three_users_with_two_workers_on_postgresql(
    machine: Machine, postgres: Callable[[], str]
) -> None:
    """Airflow asks one worker, which is killed, and the people ask the other one."""
    tokens = {name: new_token() for name in USERS}
    url = postgres().replace(":@", "@")
    # Nobody but the owner reaches the socket of a server that asks for no password.
    socket = Path(str(make_url(url).query["host"]))
    os.chown(socket, -1, USERS["owner"])
    socket.chmod(0o710)
    machine.closed = [str(socket), *map(str, socket.glob(".s.PGSQL.*")), str(socket / "PG_VERSION")]
    prepare_owner(machine, url, tokens)
    # The test's login is the database's owner.
    services = [Service(machine, find_free_port(), DPFLOW_LEDGER_OWNER="1") for _ in range(2)]
    try:
        walk(machine, services, tokens, 7)
    finally:
        for service in services:
            service.stop()
