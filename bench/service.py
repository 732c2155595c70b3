"""Answers of a service over loopback, to 1, 10, 100 and 200 clients at once: how long they take, and the service's
processor time for each, beside the same call in a process that holds the table. Published files that a reader has
already, by their ETag. How long the service takes to start.

The clients share one process, which takes from the same processors.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np

from bench.timing import hold, show
from dpflow import Ledger, load_table, sql
from dpflow.server.service import new_token

#: How many clients ask at once, and how many answers are asked for in all: stored, and new.
CLIENTS, STORED, NEW = (1, 10, 100, 200), 1_000, 100
#: Of 200 clients: the least stored answers a second, and the most milliseconds of the service for each.
STORED_BAR, STORED_MS_BAR = 100, 4
EPSILON = "0.01"
#: The most processor time of a new answer, of that of the same call here; the least published files by ETag a second; the
#: most seconds of the processor until the service answers.
NEW_BAR, ETAG_BAR, START_BAR = 1.3, 500, 2
#: Results of the published release, such as a month's days; requests for its file, and readers.
RESULTS, FILES, READERS = 30, 3_000, 10
RELEASE = {
    "mechanism": "histogram",
    "table": "visits",
    "params": {"by": "city", "epsilon": EPSILON},
}
QUERY = "SELECT city, COUNT(*) AS n FROM visits WHERE age > {n} GROUP BY city"
VISITS = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 2},
    "columns": {
        "person": {},
        "city": {"public_keys": ["Oslo", "Rome"]},
        "age": {"lower": 0, "upper": 10**6},
    },
}


def make_world(folder: Path, token: str) -> Ledger:
    """A table, a ledger and a service file in an empty folder."""
    with duckdb.connect(str(folder / "visits.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i % 15000 AS person, i % 90 AS age, "
            "CASE WHEN i % 3 = 0 THEN 'Oslo' ELSE 'Rome' END AS city FROM range(30_000) t(i)"
        )
    principal = {
        "token_sha256": token,
        "scope": "visits/ann",
        "doors": ["sql", "release", "read"],
        "published": ["cities"],
        "tables": ["visits"],
        "concurrent_queries": 1000,
    }
    service = {
        "ledger": "ledger.sqlite",
        "tables": {"visits": "visits.yml"},
        "published": {"cities": {"release": "cities", "scope": "visits/ann"}},
        "principals": {"ann": principal},
    }
    for name, content in (("visits", VISITS), ("service", service)):
        (folder / f"{name}.yml").write_text(json.dumps(content))  # which is YAML, too
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    table = load_table(folder / "visits.yml")
    ledger.grant("visits", 1000, "1e-6", filter="basic", table=table, principal="owner", confirm_large=True)  # fmt: skip
    ledger.quota("visits/ann", 1000, "1e-6", principal="owner")
    return ledger


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, int]]:
    """The address and process of a service that is ready."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [str(Path(sys.executable).with_name("dpflow")), "serve", str(folder / "service.yml")]
    with subprocess.Popen(
        [*command, "--port", str(port)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                with suppress(httpx.TransportError):
                    if httpx.get(f"{address}/readyz").status_code == 200:
                        break
                time.sleep(0.1)
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def _used_seconds(process: int) -> float:
    """Processor seconds of a process, without those of its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _ask_all(address: str, token: str, texts: list[str], clients: int) -> list[float]:
    """Seconds until each answer, with so many clients that ask one after the other."""
    waiting, taken = iter(texts), list[float]()
    # Shorter than the service keeps one: on a busy machine it would close what is about to be used.
    limits = httpx.Limits(max_connections=clients, keepalive_expiry=1)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=120, limits=limits
    ) as client:

        async def work() -> None:
            for text in waiting:
                start = time.perf_counter()
                reply = await client.post("/v1/sql", json={"query": text, "options": {"epsilon": EPSILON}})  # fmt: skip
                while reply.status_code == 202:
                    reply = await client.get(reply.headers["location"], params={"wait": 20})
                reply.raise_for_status()
                taken.append(time.perf_counter() - start)

        await asyncio.gather(*(work() for _ in range(clients)))
    return taken


async def _release_all(address: str, token: str) -> str:
    """Settle the published release's results; the ETag of its file."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=120) as client:
        for number in range(RESULTS):
            body = RELEASE | {"name": "cities", "revision": number + 1}
            reply = await client.post("/v1/release", json=body)
            while reply.status_code == 202:
                reply = await client.get(reply.headers["location"], params={"wait": 20})
            reply.raise_for_status()
        return str((await client.get("/v1/published/cities.csv")).headers["etag"])


async def _read_files(address: str, token: str, tag: str) -> None:
    """Ask for the file with its ETag, over connections that stay: with sockets, because any client costs more than
    the service.
    """
    host, _, port = address.rpartition("/")[2].partition(":")
    request = (
        f"GET /v1/published/cities.csv HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"If-None-Match: {tag}\r\n\r\n"
    ).encode()

    async def read() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(FILES // READERS):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 304"):
                raise RuntimeError("the service sent what its reader has")
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(read() for _ in range(READERS)))


def _time_local(folder: Path, ledger: Ledger, texts: list[str]) -> tuple[list[float], float]:
    """Seconds of each call in this process, and its processor seconds a call."""
    table, taken = load_table(folder / "visits.yml"), list[float]()
    begun = time.process_time()
    for text in texts:
        start = time.perf_counter()
        sql(text, tables=[table], ledger=ledger, scope="visits/ann", epsilon=EPSILON)
        taken.append(time.perf_counter() - start)
    return taken, (time.process_time() - begun) / len(texts)


def _row(what: str, who: str, taken: list[float], rate: float, cpu: float) -> tuple[str, ...]:
    middle, late = (1000 * float(np.quantile(taken, q)) for q in (0.5, 0.99))
    return what, who, f"{middle:.1f} ms", f"{late:.1f} ms", f"{rate:.0f} /s", f"{1000 * cpu:.1f} ms"


def main() -> None:
    """A line for each number of clients, stored and new, and one for the local call."""
    token, digest = new_token()
    rows: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        folder, number = Path(name), iter(range(10**6))
        ledger = make_world(folder, digest)
        local = [QUERY.format(n=next(number)) for _ in range(20)]
        _time_local(folder, ledger, local[:3])
        for what, texts in (("new", local[3:]), ("stored", local * 5)):
            taken, cpu = _time_local(folder, ledger, texts)
            rows.append(_row(what, "none: a call", taken, len(taken) / sum(taken), cpu))
        with serve(folder) as (address, process):
            hold("start of the service, processor seconds", _used_seconds(process), START_BAR, noise=0.2)  # fmt: skip
            stored = [QUERY.format(n=next(number)) for _ in range(10)]
            asyncio.run(_ask_all(address, token, stored, 1))
            for what, most in (("stored", STORED), ("new", NEW)):
                for clients in CLIENTS if what == "stored" else CLIENTS[:-1]:
                    texts = [stored[i % 10] if what == "stored" else QUERY.format(n=next(number)) for i in range(most)]  # fmt: skip
                    is_compared = what == "new" and clients == 1
                    if is_compared:
                        calls = _time_local(folder, ledger, [QUERY.format(n=next(number)) for _ in range(17)])[1]  # fmt: skip
                    before, start = _used_seconds(process), time.perf_counter()
                    taken = asyncio.run(_ask_all(address, token, texts, clients))
                    rate = most / (time.perf_counter() - start)
                    cpu = (_used_seconds(process) - before) / most
                    rows.append(_row(what, str(clients), taken, rate, cpu))
                    if is_compared:
                        # A ledger of more releases is longer to read, so calls before and behind are what it is compared with.
                        calls += _time_local(folder, ledger, [QUERY.format(n=next(number)) for _ in range(17)])[1]  # fmt: skip
                        hold("a new answer of the service, of the call's", 2 * cpu / calls, NEW_BAR, noise=0.2)  # fmt: skip
                    if what == "stored" and clients == CLIENTS[-1]:
                        hold(f"stored answers a second, {clients} clients", rate, STORED_BAR, noise=0.3, is_least=True)  # fmt: skip
                        hold("a stored answer of the service, ms", 1000 * cpu, STORED_MS_BAR, noise=0.3)  # fmt: skip
            tag = asyncio.run(_release_all(address, token))
            before, start = _used_seconds(process), time.perf_counter()
            asyncio.run(_read_files(address, token, tag))
            rate = FILES / (time.perf_counter() - start)
            hold("published files by ETag a second", rate, ETAG_BAR, noise=0.3, is_least=True)
            cpu = 1000 * (_used_seconds(process) - before) / FILES
            rows.append(("file by ETag", str(READERS), "", "", f"{rate:.0f} /s", f"{cpu:.1f} ms"))
    columns = ("answers", "clients", "median", "99 % within", "rate", "processor of the service")
    show("SQL answers of a service on loopback", columns, rows)


if __name__ == "__main__":
    main()
