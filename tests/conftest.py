"""Fixtures that several rooms share."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

sys.path.insert(0, str(Path(__file__).parent))
# A shell starts what it puts into the background with SIGINT ignored, and children would inherit it:
# tests that press Ctrl-C never ended.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples in every run, however slow the machine is: what fails, fails again. Others:
# --hypothesis-profile=default.
settings.register_profile(
    "dpflow",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("dpflow")
# Nor do examples hang on what else a worker has imported: of all loaded modules it would try the constants.
providers._get_local_constants = lambda: providers._local_constants
pytest_plugins = ["airflow_tasks", "duckdb_files", "pgserver", "s3server", "smallworld"]

#: Modules of few and long tests: at the end of a run one worker would do them alone.
LONG = (
    *("tests/demo/", "tests/airflow/test_real_runs.py", "tests/airflow/test_preload.py"),
    *(
        "tests/integration/deploy/",
        "tests/engine/releases/test_crashes.py",
        "tests/server/test_load.py",
    ),
    *("tests/ledger/test_model.py", "tests/engine/releases/test_unsettled_draws.py"),
    "tests/tables/backends/spark_backend/test_raw_values_on_spark.py",
)


#: Tests of what somebody outside can do, who meets no session that another one left.
OUTSIDE = ("tests/integration/", "tests/demo/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that take long first, then those of many tests: workers take them in this order."""
    for item in items:
        if item.nodeid.startswith(OUTSIDE):
            item.add_marker("own_session")
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (not item.nodeid.startswith(LONG), -counts[item.path]))
