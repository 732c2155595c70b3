"""Private predictions: training and voting against bare scikit-learn and numpy, the walk, and
answers over HTTP.

The second table has two floors, neither of which stores anything: the same 200 fitted models'
`predict` with a vectorised count and draw in numpy, and one matrix product, which knows that the
models are linear and holds all their weights. A session learns that, too, and finds, encodes, names
and stores the points and answers too.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import yaml
from dpflow_private_prediction.building_blocks.features import matrix
from dpflow_private_prediction.mechanisms.vote import PredictVote, VoteParams
from dpflow_private_prediction.mechanisms.walk import PredictWalk, WalkParams

from bench.timing import medians, show
from dpflow import open_predictions, plan
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import RecordArrays
from dpflow.core.sampling.randomness import SystemSource
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

ROWS, FEATURES, SHARDS, POINTS = 1_000_000, 20, 200, 100_000
NAMES = tuple(f"f{i}" for i in range(FEATURES))
SECONDS, CONNECTIONS = 6.0, 32
DECLARATION: dict[str, Any] = {
    "name": "bench",
    "database": "bench.duckdb",
    "privacy_unit": {"column": "id"},
    "contribution_bounds": {"rows": 1},
    "columns": {name: {"lower": -3, "upper": 3, "step": "0.001"} for name in NAMES}
    | {"late": {"public_keys": ["no", "yes"]}},
}
VOTE = {
    "features": list(NAMES),
    "label": "late",
    "epsilon": "0.1",
    "predictions": 10**6,
    "shards": SHARDS,
}


def rows(number: int) -> tuple[RecordArrays, Table]:
    """Rows of twenty numbers whose label is a noisy linear rule, as the tables layer hands them
    over.
    """
    rng = np.random.default_rng(0)
    codes = rng.integers(-3000, 3001, (number, FEATURES))
    late = (codes[:, 0] + codes[:, 1] + rng.normal(0, 2000, number) > 0).astype(np.int64)
    columns = {name: codes[:, i].copy() for i, name in enumerate(NAMES)} | {"late": late}
    return RecordArrays(np.arange(number), columns), Table.model_validate(DECLARATION)


def training() -> None:
    """Two hundred models on a million rows: ours from encoded rows; scikit-learn from shards that
    lie ready, or from those rows.

    The bare loop may split its products over all processors, as scikit-learn does unless told
    otherwise.
    """
    from sklearn.linear_model import LogisticRegression

    records, table = rows(ROWS)
    params, source, mechanism = VoteParams.model_validate(VOTE), SystemSource(), PredictVote()
    columns, late = [records.columns[name] for name in NAMES], records.columns["late"]
    shard = np.random.default_rng(1).integers(0, SHARDS, ROWS)

    def ready() -> list[tuple[Any, Any]]:
        x = matrix(table, NAMES, columns)
        return [(x[shard == i], late[shard == i]) for i in range(SHARDS)]

    def fit(part: tuple[Any, Any]) -> Any:
        return LogisticRegression().fit(*part)

    def threads() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fit, parts))

    parts = ready()
    taken = medians(
        {
            "scikit-learn, one after the other": lambda: [fit(part) for part in parts],
            "the same, and splitting the rows": lambda: [fit(part) for part in ready()],
            "scikit-learn, in threads": threads,
            "predict_vote": lambda: mechanism.learn(params, table, records, source),
        },
        repeats=5,
    )
    floor = taken["scikit-learn, one after the other"]
    lines = [(name, f"{s:.2f} s", f"{s / floor:.2f}") for name, s in taken.items()]
    show(
        f"{SHARDS} LogisticRegression on {ROWS:,} x {FEATURES} rows",
        ("work", "median", "times the loop"),
        lines,
    )


def voting() -> None:
    """A batch of new points through session and ledger, SQLite with synchronous=FULL."""
    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        book, declaration = world(Path(name), 20_000)
        made = plan("predict_vote", declaration, name="bench", scope="bench", **VOTE)
        session = open_predictions(made, book)
        session.learn_models()
        models = session._learned.models
        rng, table = np.random.default_rng(1), load_table(declaration)

        def fresh() -> Any:
            return rng.integers(-3000, 3001, (POINTS, FEATURES)) / 1000

        def say(model: Any, points: Any) -> Any:
            return model.fitted.predict(points)

        def numpy_vote() -> Any:
            points = matrix(table, NAMES, (fresh() * 1000).astype(np.int64).T)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                ones = sum(pool.map(lambda model: say(model, points), models))
            return rng.random(POINTS) < 1 / (1 + np.exp(-0.05 * (2 * ones - SHARDS)))

        weights = np.stack([model.fitted.coef_[0] for model in models], axis=1)
        bias = np.array([model.fitted.intercept_[0] for model in models])

        def product() -> Any:
            points = matrix(table, NAMES, (fresh() * 1000).astype(np.int64).T)
            ones = (points @ weights + bias > 0).sum(axis=1)
            return rng.random(POINTS) < 1 / (1 + np.exp(-0.05 * (2 * ones - SHARDS)))

        taken = medians(
            {
                "numpy vote of the models": numpy_vote,
                "numpy vote as one product": product,
                "session and ledger": lambda: session.predict(fresh()),
            },
            repeats=7,
        )
    models_floor, product_floor = (
        taken["numpy vote of the models"],
        taken["numpy vote as one product"],
    )
    lines = [
        (n, f"{s:.3f} s", f"{s / models_floor:.2f}", f"{s / product_floor:.2f}")
        for n, s in taken.items()
    ]
    columns = ("work", "median", "times the models' vote", "times the product")
    show(f"{POINTS:,} new points, a vote of {SHARDS} models", columns, lines)


def walking() -> None:
    """As many rows as queries, against sorting the rows and the queries."""
    records, table = rows(ROWS)
    rng, source, mechanism = np.random.default_rng(2), SystemSource(), PredictWalk()
    wide = table.column("f0").model_copy(update={"lower": 0, "upper": 10**9, "step": 1})
    table = table.model_copy(update={"columns": table.columns | {"f0": wide}})
    line = RecordArrays(
        records.units, {"f0": rng.integers(0, 10**9, ROWS), "late": records.columns["late"]}
    )
    given = {"features": ["f0"], "label": "late", "epsilon": "0.01", "predictions": 10**9}
    params, points = WalkParams.model_validate(given), rng.integers(0, 10**9, (ROWS, 1))

    def walk() -> Any:
        return mechanism.predict(
            params, table, mechanism.learn(params, table, line, source), points, source
        )

    taken = medians(
        {"sort both": lambda: (np.sort(line.columns["f0"]), np.sort(points[:, 0])), "walk": walk},
        repeats=3,
    )
    lines = [(name, f"{s:.2f} s", f"{s / taken['sort both']:.1f}") for name, s in taken.items()]
    show(f"walk of {ROWS:,} rows, {ROWS:,} queries", ("work", "median", "times the sorts"), lines)


def world(folder: Path, number: int) -> tuple[Ledger, Path]:
    """A private table in DuckDB, its declaration, and a ledger with all the budget in the world."""
    declaration = folder / "bench.yml"
    declaration.write_text(yaml.safe_dump(DECLARATION))
    numbers = ", ".join(f"random() * 6 - 3 AS {name}" for name in NAMES)
    with duckdb.connect(str(folder / "bench.duckdb")) as connection:
        rule = "CASE WHEN f0 + f1 + random() * 4 - 2 > 0 THEN 'yes' ELSE 'no' END"
        connection.execute(
            f"CREATE TABLE bench AS SELECT *, {rule} AS late FROM (SELECT i AS id, {numbers} FROM range({number}) t(i))"
        )
    book = Ledger(folder / "ledger.sqlite", create=True)
    book.grant(
        "bench",
        10**6,
        "0.5",
        filter="renyi",
        table=load_table(declaration),
        principal="bench",
        confirm_large=True,
    )
    return book, declaration


def serving() -> None:
    """Closed loops over keep-alive connections against `dpflow serve` in a process of its own: one
    point a request.
    """
    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        folder = Path(name)
        world(folder, 20_000)
        made = {
            "name": "bench",
            "mechanism": "predict_vote",
            "table": "bench.yml",
            "scope": "bench",
            "params": VOTE,
        }
        (folder / "session.yml").write_text(yaml.safe_dump(made))
        from dpflow.server.service import new_token

        token, digest = new_token()
        principals = {"bench": {"token_sha256": digest, "scope": "bench", "doors": ["predict"]}}
        (folder / "service.yml").write_text(
            yaml.safe_dump({"predict": {"session": "session.yml"}, "principals": principals})
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            str(Path(sys.executable).with_name("dpflow")),
            "serve",
            str(folder / "service.yml"),
        ]
        server = subprocess.Popen(
            [*command, "--ledger", str(folder / "ledger.sqlite"), "--port", str(port)],
            stderr=subprocess.DEVNULL,
        )
        try:
            lines = []
            for points in (1, 20):
                took = asyncio.run(load(port, token, points))
                rate = points * len(took) / SECONDS
                lines.append(
                    (
                        str(points),
                        f"{rate:.0f} /s",
                        f"{1000 * np.quantile(took, 0.5):.0f} ms",
                        f"{1000 * np.quantile(took, 0.99):.0f} ms",
                    )
                )
        finally:
            server.terminate()
            server.wait()
    columns = ("points a request", "new answers, durable", "median", "99 % within")
    show(f"dpflow serve, {CONNECTIONS} connections, a vote of {SHARDS} models", columns, lines)


async def load(port: int, token: str, points: int) -> list[float]:
    """Seconds of every request."""
    rng, took = np.random.default_rng(points), list[float]()
    for _ in range(2400):  # it learns first
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"):
                break
        except OSError:
            await asyncio.sleep(0.1)
    start = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (now := time.perf_counter()) < start + SECONDS:
            body = json.dumps(
                {"points": (rng.integers(-3000, 3001, (points, FEATURES)) / 1000).tolist()}
            ).encode()
            head = (
                f"POST /v1/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert answer.startswith("http/1.1 200"), answer
            await reader.readexactly(int(answer.split("content-length:")[1].split("\r\n")[0]))
            took.append(time.perf_counter() - now)
        writer.close()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return took


def main() -> None:
    """Four tables."""
    training()
    voting()
    walking()
    serving()


if __name__ == "__main__":
    main()
