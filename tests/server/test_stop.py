"""A service that is told to stop ends soon, whatever its clients do, and loses nothing that was charged."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

from service_world import QUERY, RELEASE, TOKENS, Server, ServiceWorld

#: What each of the two waits of a service that stops takes here.
STOP_SECONDS = 1
#: A draw that does not end while the process lives.
BLOCKED_DRAW = f"""
import time
from dpflow import fault_points
from dpflow.server import app
app.STOP_SECONDS = {STOP_SECONDS}
fault_points.pass_point = lambda point: time.sleep(600) if point == "draw.after" else None
"""


def send(port: int, text: str) -> socket.socket:
    """The beginning of a request, on a connection that stays open."""
    client = socket.create_connection(("127.0.0.1", port), 60)
    client.sendall(text.encode())
    return client


def test_half_sent_requests_and_a_running_job_keep_no_process(tmp_path: Path) -> None:
    """They are answered with 503 or closed; the charged job is settled by the next start, paid once."""
    world = ServiceWorld(tmp_path)
    server = Server(world.file, prelude=BLOCKED_DRAW, is_fresh=True)
    with server.client("ann") as ann:
        job = ann.post("/v1/release", json=RELEASE).json()["job"]
        deadline = time.monotonic() + 60
        while not world.ledger.reserved_releases() and time.monotonic() < deadline:
            time.sleep(0.05)
    token = f"Authorization: Bearer {TOKENS['ann'][0]}\r\n"
    body = f"Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{{{QUERY[:9]}"
    headers = send(server.port, f"POST /v1/sql HTTP/1.1\r\n{token}")
    half = send(server.port, f"POST /v1/sql HTTP/1.1\r\nHost: x\r\n{token}{body}")
    poll = send(server.port, f"GET /v1/jobs/{job}?wait=20 HTTP/1.1\r\nHost: x\r\n{token}\r\n")
    time.sleep(0.3)
    began = time.monotonic()
    server.stop(signal.SIGTERM)
    # Both waits, and what a busy machine takes.
    assert time.monotonic() - began < 2 * STOP_SECONDS + 10
    assert headers.recv(9) == b""
    for client in (half, poll):
        answer = client.makefile().read()
        assert answer.startswith("HTTP/1.1 503 ")
        assert json.loads(answer.partition("\n\n")[2])["error"] == "try_again"
    assert "Traceback" not in server.log
    with world.test_client("ann") as next_start:
        settled = next_start.get(f"/v1/jobs/{job}", params={"wait": 20})
        assert (settled.status_code, settled.json()["name"]) == (200, "daily")
    kinds = [entry.kind for entry in world.ledger.history("visits/ann")]
    assert kinds.count("reserve") == kinds.count("settle") == 1
    assert not world.ledger.reserved_releases() and world.ledger.verify().ok
