"""A process that has imported Airflow once and runs each program in a fork of itself.

Imports are most of what a run of a small DAG costs. Airflow is not initialised before the fork: settings,
connections and the database are those of the program's own environment.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

from dpflow import fault_points

#: What runs of DAGs import, besides what these import. Providers are found by Airflow in the fork.
MODULES = (
    "airflow.api_fastapi.execution_api.app",
    "airflow.dag_processing.dagbag",
    "airflow.models.dagbundle",
    "airflow.models.dagrun",
    "airflow.providers.standard.operators.bash",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "dpflow.airflow",
    "dpflow.airflow.sql_release",
    "dpflow.analyst_sql",
    "dpflow.engine",
    "dpflow.quality.validation_result",
    "dpflow.registry",
)
#: Airflow reads its settings when it is imported, but for a program that uses it as a library.
AS_LIBRARY = "_AIRFLOW__AS_LIBRARY"


class AirflowProcess:
    """Runs programs that use Airflow.

    Args:
        home: a folder for what Airflow writes by itself.
    """

    def __init__(self, home: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
        environment |= {AS_LIBRARY: "1", "AIRFLOW_HOME": str(home)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, environment: Mapping[str, str], *arguments: str) -> list[str]:
        """What the program wrote to its streams; it must end well."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            streams = [str(Path(folder) / name) for name in ("out", "errors")]
            question = [program, dict(environment), list(arguments), streams]
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            status = self._process.stdout.readline().strip()
            assert status, "Airflow could not be imported; see above"
            written = [Path(stream).read_text() for stream in streams]
        assert status == "0", f"ended with {status}: " + "".join(text[-3000:] for text in written)
        return written

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _run_here(
    program: str, environment: Mapping[str, str], arguments: list[str], streams: list[str]
) -> int:
    """Run the program in this process, as one that was started for it."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[:] = ["-c", *arguments]
    fault_points.armed = environment.get("DPFLOW_FAULT", "")  # it was read when dpflow was imported
    try:
        from airflow import settings

        settings.initialize()
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _build_early() -> None:
    """Build what a run builds at its first use: relations of Airflow's tables, and the routes of the server of tasks,
    which it asks in its own process.
    """
    from airflow.models import import_all_models
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from sqlalchemy.orm import configure_mappers

    import_all_models()
    configure_mappers()
    # By a name of its own, as routes are built by a question else, which needs a loop's thread; and threads end in a fork.
    getattr(in_process_api_server().app, "_cadwyn_initialize", lambda: None)()


def serve() -> None:
    """Answer questions of lines until there are no more."""
    sys.path.pop(0)  # the folder of this file
    for module in MODULES:
        # Airflow 3.1 has not all of them.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    _build_early()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = _run_here(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
