"""Import once, in the scheduler, what every task imports: LocalExecutor forks its tasks from there.

Call `preload_tasks` in ``$AIRFLOW_HOME/config/airflow_local_settings.py``. On Linux and with
LocalExecutor a release then costs a tenth of the CPU time, a contract a twentieth. Other
processes of Airflow, other executors and macOS, where tasks start a new interpreter, gain nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path

#: What a task of dpflow's operators imports when it runs, beside the operators themselves.
TASK_MODULES = (
    "numpy",
    "dpflow.engine",
    "dpflow.ledger",
    "dpflow.tables",
    "dpflow.quality.contract_run",
    "dpflow.quality.validation_result",
    "great_expectations",
    "sqlalchemy.dialects.sqlite",
    "duckdb_sqlalchemy",
)

#: Threads do not survive a fork, but the locks they hold do. These pools start at import.
THREAD_POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

log = logging.getLogger(__name__)


def preload_tasks(*modules: str) -> tuple[str, ...]:
    """Import what tasks need if this process is the scheduler; operators only in the DAG processor.

    Nothing is opened: no table, no ledger, no connection, no thread. So a child that is forked
    afterwards shares read-only memory with its parent and nothing else. BLAS is held to one
    thread, unless the environment already says how many.

    Args:
        modules: further modules that the workflow's own tasks import, e.g. ``mlflow``. They
            are imported first. One that is not installed is left out.

    Returns: The modules that are imported now; none in other processes of Airflow. An import that
        fails is logged and left to the tasks.
    """
    component = airflow_component(sys.argv)
    if component not in ("scheduler", "dag-processor"):
        return ()
    for name in THREAD_POOLS:
        os.environ.setdefault(name, "1")
    # pandas imports pyarrow where it is installed, whose allocator starts a thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    names = (*modules, *TASK_MODULES) if component == "scheduler" else ()
    with warnings.catch_warnings():
        # libraries that look into every loaded module meet deprecated names there
        warnings.simplefilter("ignore")
        loaded = tuple(name for name in names if _try_import(name))
        _import_own(with_plugins=component == "scheduler")
    if (threads := count_threads()) > 1:
        log.warning(
            "%d threads run in the scheduler after the import of %s; a forked task loses them, so "
            "leave out the module that starts one",
            threads,
            ", ".join(loaded),
        )
    return loaded


def airflow_component(argv: list[str]) -> str:
    """Which process of Airflow a command line starts: "scheduler", "api-server", or ""."""
    return next((word for word in argv[1:] if not word.startswith("-")), "")


def count_threads() -> int:
    """Threads of this process, those of C libraries included where the system counts them."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()


def _try_import(name: str) -> bool:
    from dpflow.extras import name_main_file

    try:
        with name_main_file():
            import_module(name)
    except ModuleNotFoundError:  # an extra that this installation does without
        return False
    # No reason to stop the scheduler: the task meets the same error and reports it.
    except Exception:
        log.warning("%s cannot be imported, so it is not preloaded", name, exc_info=True)
        return False
    return True


def _import_own(*, with_plugins: bool) -> None:
    """Import the operators, and what plugins install. A plugin's error is left to the tasks."""
    try:
        import dpflow.airflow

        for name in dpflow.airflow.__all__:
            getattr(dpflow.airflow, name)
        if with_plugins:
            from dpflow.registry import Registry

            Registry.load()
    except Exception:
        log.warning("dpflow cannot be preloaded", exc_info=True)
