"""SIGKILL after every statement and every named point of a whole release: one charge, one result, published once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dpflow.core.faults import POINTS

if TYPE_CHECKING:
    from smallworld import Tiny

# A process that has imported everything and opened nothing forks one child for every try: quick, and DuckDB starts afresh.
DRIVER = """
import json, os, signal, sys
from fractions import Fraction
from pathlib import Path
from dpflow import Ledger, load_table, plan, release
from dpflow.core import faults
from dpflow.engine.request import Publish
folder, target, points = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
anchor = folder / "anchor"

def run(name):
    wanted = plan("count", folder / "visits.yml", name=name, scope="visits", blocks=["2020-01-01"], epsilon="0.001",
                  publish=Publish(database=folder / "out.duckdb"))
    return release(wanted, Ledger(target, anchor=anchor)).result.rows[0].value

def child(work):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as shown:
        text = shown.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text

def doomed(name, point):
    os.environ["DPFLOW_FAULT"] = point + ":kill"
    if point.startswith("statement"):
        faults.count_statements()
    return run(name)

def prepare():
    Ledger(target, anchor=anchor, create=True).grant("visits", 1, 0, filter="basic", table=load_table(folder / "visits.yml"),
                                                     principal="owner")

assert child(prepare)[0] == 0
killed = 0
for number, point in enumerate(points or map("statement.{}".format, range(1, 200))):
    name = f"r{number}"
    code, text = child(lambda: doomed(name, point))
    killed += code == -signal.SIGKILL
    assert (code, text) == (-signal.SIGKILL, "") or (code == 0 and text and not points), (point, code, text)
    first, second = child(lambda: run(name)), child(lambda: run(name))
    assert first == second and first[0] == 0 and first[1] and text in ("", first[1]), (point, first, second)
    if code == 0:
        break

def count():
    import duckdb
    ledger = Ledger(target, anchor=anchor)
    with duckdb.connect(str(folder / "out.duckdb")) as out:
        ((rows, ids),) = out.execute("SELECT count(*), count(DISTINCT release_id) FROM releases").fetchall()
    states = {r.state for r in ledger.releases()}
    spent = ledger.remaining("visits").rows()[0]["epsilon_spent"]
    return [len(ledger.releases()), sorted(states), rows, ids, spent, ledger.verify().problems]

print(json.dumps([killed, number + 1, json.loads(child(count)[1])]))
"""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["points", pytest.param("statements", marks=pytest.mark.slow)])
def test_killed_anywhere(tiny: Tiny, request: pytest.FixtureRequest, kind: str, where: str) -> None:
    """Every child that dies is followed by a retry, which shows one result; books and output agree at the end."""
    target = str(tiny.folder / "other.sqlite") if kind == "sqlite" else request.getfixturevalue("postgres")()
    points = [point for point in POINTS if not point.startswith("session")] if where == "points" else []
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tiny.folder), target, *points], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    killed, tries, (charges, states, rows, ids, spent, problems) = json.loads(done.stdout)
    assert killed == (len(points) or tries - 1) and killed >= 8
    assert (charges, states, rows, ids, problems) == (tries, ["settled"], tries, tries, [])
    assert round(float(spent) * 1000) == tries
