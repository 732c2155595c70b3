"""A process that has imported Airflow once and is forked for each program.

Imports are most of what a run of a small DAG costs. Airflow is not initialised before the fork: settings,
connections and the database are those of the program's own environment.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path

from forked_programs import ForkedProgram, ForkingProcess

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
INITIALISE = "from airflow import settings; settings.initialize(); del settings\n"


class AirflowProcess:
    """Runs programs that use Airflow.

    Args:
        home: a folder for what Airflow writes by itself.
    """

    def __init__(self, home: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")}
        environment |= {AS_LIBRARY: "1", "AIRFLOW_HOME": str(home)}
        self._server = ForkingProcess(__name__, environment)

    def start(self, program: str, environment: Mapping[str, str], *arguments: str) -> ForkedProgram:
        """A program that runs beside this process."""
        text = INITIALISE + program
        return ForkedProgram(text, *arguments, environment=environment, server=self._server)

    def run(self, program: str, environment: Mapping[str, str], *arguments: str) -> list[str]:
        """What the program wrote to its streams; it must end well."""
        code, written = self.start(program, environment, *arguments).wait()
        assert code == 0, f"ended with {code}: " + "".join(text[-3000:] for text in written)
        return written


def prepare() -> None:
    """Import what runs of DAGs need, and build what a run builds at its first use: relations of Airflow's tables, and the
    routes of the server of tasks, which it asks in its own process.
    """
    for module in MODULES:
        # Airflow 3.1 has not all of them.
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    from airflow.models import import_all_models
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from sqlalchemy.orm import configure_mappers

    import_all_models()
    configure_mappers()
    # By a name of its own, as routes are built by a question else, which needs a loop's thread; and threads end in a fork.
    getattr(in_process_api_server().app, "_cadwyn_initialize", lambda: None)()
