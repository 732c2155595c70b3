"""More requests than the queue takes, and clients that are slow or vanish: what is accepted is paid once, the rest not."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from own_certificate import write_certificate
from service_world import TOKENS, TRUST, Server, ServiceWorld, headers_of

from dpflow.client.remote import RemoteClient
from dpflow.errors import ServiceUnavailable
from dpflow.server.bodies import MAX_BODIES

#: What one of the requests costs, in thousandths; more principals than one fill the queue.
COST = "0.001"
CLIENTS = 8
#: Of a request that a socket sends, with its authorization and the length of its body.
HEAD = (
    "POST /v1/release HTTP/1.1\r\nHost: x\r\nAuthorization: {}\r\n"
    "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)


def ask(number: int) -> dict[str, Any]:
    """A release like no other."""
    params = {"by": "city", "epsilon": COST}
    return {"name": f"n{number}", "mechanism": "histogram", "table": "visits", "params": params}


@pytest.mark.parametrize("number", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_flood_is_bounded_and_paid_exactly(tmp_path: Path, number: int) -> None:
    """Each is answered with 202, or with 429 and when to come again. Meanwhile twenty clients hold a half request, and
    twenty vanish.
    """
    world = ServiceWorld(tmp_path, max_waiting=20)
    server = Server(world.file)
    answers: Counter[int] = Counter()
    accepted: set[str] = set()
    lock = threading.Lock()

    def flood(part: int) -> None:
        with server.client(("ann", "bob")[part % 2]) as client:
            for n in range(part, number, CLIENTS):
                answer = client.post("/v1/release", json=ask(n))
                with lock:
                    answers[answer.status_code] += 1
                    if answer.status_code == 202:
                        accepted.add(answer.json()["job"])
                    else:
                        assert answer.json()["error"] == "too_many_requests"
                        assert int(answer.headers["Retry-After"]) >= 1

    try:
        fields = Path(f"/proc/{server.process.pid}/status").read_text().split("VmRSS:")[1].split()
        before = int(fields[0]) * 1024
        halves = []
        for _ in range(20):
            halves.append(socket.create_connection(("127.0.0.1", server.port)))
            halves[-1].sendall(
                (HEAD.format(headers_of("ann")["Authorization"], 1000) + "{").encode()
            )
        threads = [threading.Thread(target=flood, args=(part,)) for part in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for n in range(20):
            body = json.dumps(ask(number + n))
            with socket.create_connection(("127.0.0.1", server.port)) as sender:
                head = HEAD.format(headers_of("bob")["Authorization"], len(body))
                sender.sendall((head + body).encode())
        while asking := [thread for thread in threads if thread.is_alive()]:
            assert httpx.get(f"{server.url}/healthz", timeout=30, verify=TRUST).status_code == 200
            asking[0].join(1)
        fields = Path(f"/proc/{server.process.pid}/status").read_text().split("VmRSS:")[1].split()
        grown = (int(fields[0]) * 1024) - before
        for half in halves:
            half.close()
        # What was accepted is settled, also of those who asked no more.
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and any(
            not one.settled for one in world.ledger.reserved_releases()
        ):
            time.sleep(0.05)
        with server.client("ann") as client:
            while any(client.get(f"/v1/jobs/{job}").status_code == 202 for job in sorted(accepted)):
                time.sleep(0.05)
    finally:
        server.stop()
    assert sum(answers.values()) == number and set(answers) <= {202, 429}
    settled = [one for one in world.ledger.releases() if one.settled]
    assert len(accepted) <= len(settled) <= len(accepted) + 20
    (row,) = world.ledger.remaining("visits").rows()
    assert row["epsilon_spent"] == f"{len(settled) / 1000:g}"
    assert not list(world.ledger.reserved_releases()) and world.ledger.verify().ok
    assert grown < 300 * 2**20
    print(f"{dict(answers)}; {len(settled)} settled; {grown / 2**20:.0f} MB more")


def test_bodies_that_never_end_fill_no_memory(tmp_path: Path) -> None:
    """One principal opened as many connections as it liked, and sent all but the last byte of a largest body on each. So did
    strangers, at places that ask for no token.
    """
    world = ServiceWorld(tmp_path, max_bytes=100_000)
    server = Server(world.file)

    def send(path: str, header: str, length: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: {length}\r\n\r\n"
        connection.sendall(head.encode() + bytes(length - 1))
        return connection

    token = f"Authorization: {headers_of('ann')['Authorization']}\r\n"
    try:
        halves = [send("/v1/sql", token, 100_000) for _ in range(MAX_BODIES)]
        with server.client("ann") as ann, server.client("bob") as bob:
            # Once all of it has arrived, one more is refused; another principal's and small ones are not.
            deadline = time.monotonic() + 30
            status, large = 0, {"query": "SELECT 1" + " " * 9_000}
            while status != 429 and time.monotonic() < deadline:
                status = ann.post("/v1/explain", json=large).status_code
                time.sleep(0.1)
            assert status == 429 and bob.post("/v1/explain", json=large).status_code == 422
            assert ann.get("/v1/tables").status_code == 200
            for half in halves:
                half.close()
            while status == 429 and time.monotonic() < deadline:
                status = ann.post("/v1/explain", json=large).status_code
                time.sleep(0.1)
            assert status == 422
        for path in ("/healthz", "/nothing", "/budgets/login", "/v1/sql"):
            with send(path, "", 90_000) as stranger:
                assert stranger.recv(12) in (b"HTTP/1.1 413", b"HTTP/1.1 401")
    finally:
        server.stop()


#: Of a process with few file descriptors, which gives a client a second for the head of a request.
FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import dpflow.server.connections
dpflow.server.connections.HEAD_SECONDS = 1
"""


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side ended it, within ten seconds."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_strangers_who_send_nothing_keep_nobody_out(tmp_path: Path) -> None:
    """More idle connections than the process has file descriptors: the oldest make room, and the rest is closed soon. So is
    one whose head has no end, and one that drips behind an answer.
    """
    server = Server(ServiceWorld(tmp_path).file, prelude=FEW)
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
    with server.client("ann") as client:
        assert client.get("/v1/tables").status_code == 200
        # Who asks for another protocol is answered in this one.
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers["Sec-WebSocket-Key"] = "MDEyMzQ1Njc4OWFiY2RlZg=="
        assert client.get("/v1/tables", headers=headers).status_code == 200
    assert all(is_closed(connection) for connection in idle)
    with socket.create_connection(("127.0.0.1", server.port)) as endless:
        with contextlib.suppress(ConnectionError):
            endless.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 2**18)
        assert is_closed(endless)
    with socket.create_connection(("127.0.0.1", server.port)) as dripping:
        dripping.sendall(b"POST /v1/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        assert b"401" in dripping.recv(100)
        deadline = time.monotonic() + 10
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                dripping.sendall(b" ")
                time.sleep(0.2)
        assert time.monotonic() < deadline
    server.stop()


def test_strangers_who_speak_no_tls_keep_nobody_out(tmp_path: Path) -> None:
    """More connections than the process has file descriptors, which begin no handshake, or half of one, or are no TLS at
    all: the oldest make room, and the rest is closed soon. They come in one burst, while the process does something else.
    """
    certificate = write_certificate(tmp_path)
    server = Server(ServiceWorld(tmp_path).file, prelude=FEW, certificate=certificate)
    server.process.send_signal(signal.SIGSTOP)
    try:
        idle = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(150)]
    finally:
        server.process.send_signal(signal.SIGCONT)
    for number, connection in enumerate(idle):
        with contextlib.suppress(ConnectionError):
            connection.sendall(
                (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n")[number % 3]
            )
    with server.client("ann") as client:
        assert client.get("/v1/tables").status_code == 200
        assert all(is_closed(connection) for connection in idle)
        assert client.get("/v1/tables").status_code == 200
    late = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
    server.stop()
    assert all(is_closed(connection) for connection in late)
    assert "Traceback" not in server.log, server.log


def test_a_service_with_tls_answers_nothing_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client asks by HTTPS where it trusts the certificate, and sends nothing where it does not; old protocols are refused."""
    world, certificate = ServiceWorld(tmp_path), write_certificate(tmp_path)
    server = Server(world.file, certificate=certificate)
    try:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/readyz")
        client = RemoteClient(server.url, TOKENS["ann"][0])
        with pytest.raises(ServiceUnavailable):
            client.settle("release", ask(1))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = RemoteClient(server.url, TOKENS["ann"][0])
        assert client.settle("release", ask(1))["name"] == "n1"
        assert (
            ssl.get_server_certificate(("127.0.0.1", server.port)).split()
            == certificate.read_text().split()
        )
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        address = "127.0.0.1", server.port
        with pytest.raises(OSError), socket.create_connection(address) as connection:
            old.wrap_socket(connection)
    finally:
        server.stop()
