"""SIGKILL after every statement, at every named point and before each line of seven modules, the
first and the last time that it is passed: one charge, one result, published once.

A release is charged, aggregated, drawn, settled and published; a session is opened and asked twice,
with answers so noisy that a second draw would show.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dpflow.fault_points import POINTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smallworld import Tiny

# A process that has imported everything and opened nothing forks one child for every test, and that one for every
# try: quick, and DuckDB starts afresh.
DRIVER = """
import json, os, signal, sys
from collections import Counter
from itertools import count
from pathlib import Path
from dpflow import Ledger, Session, load_table, plan, release
from dpflow import fault_points
from dpflow.engine.releases.request import Publish
from dpflow.registry import Registry
Registry.load()  # imports every plugin before the first fork
for line in sys.stdin:
    if (test := os.fork()) == 0:
        break
    if code := os.waitpid(test, 0)[1]:
        print(code, flush=True)
else:
    sys.exit()
folder, target, life, *points = json.loads(line)
folder = Path(folder)
anchor = folder / "anchor"
WATCHED = ("dpflow/engine/releases/execute.py", "dpflow/engine/sessions/session.py",
           "dpflow/tables/public/publish.py", "dpflow/ledger/books/releases.py",
           "dpflow/ledger/books/sessions.py", "dpflow/ledger/history/chain.py", "dpflow/ledger/history/anchor.py")
TERMS = dict(scope="visits", blocks=["2020-01-01"], epsilon="0.001")

def a_release(name):
    wanted = plan("count", folder / "visits.yml", name=name, publish=Publish(database=folder / "out.duckdb"), **TERMS)
    return release(wanted, Ledger(target, anchor=anchor)).result.rows[0].value

def a_session(name):
    wanted = plan("above_threshold", folder / "visits.yml", name=name, failures=5, **TERMS)
    session = Session.open(wanted, Ledger(target, anchor=anchor), Registry.load())
    return [session.ask({"threshold": threshold}) for threshold in (20, 60)]

run = {"release": a_release, "session": a_session, "answer": a_session}[life]

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

def prepare():
    Ledger(target, anchor=anchor, create=True).grant("visits", 1, "1e-6", filter="basic",
                                                     table=load_table(folder / "visits.yml"), principal="owner")

def open_only(name):
    wanted = plan("above_threshold", folder / "visits.yml", name=name, failures=5, **TERMS)
    return Session.open(wanted, Ledger(target, anchor=anchor), Registry.load()).id

def traced(name, passed, files=WATCHED):
    def trace(frame, event, argument):
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            passed(frame.f_code.co_filename, frame.f_lineno)
        return trace
    sys.settrace(trace)
    try:
        return run(name)
    finally:
        sys.settrace(None)

def passages(name):
    # The first and the last time in every one of three lives, for ids are drawn; the life before makes files.
    run(name)
    lives = [Counter() for _ in range(3)]
    for number, times in enumerate(lives):
        traced(f"{name}{number}", lambda *line: times.update([line]))
    least = lives[0] & lives[1] & lives[2]
    return sorted({(*line, n) for line, number in least.items() for n in (0, number - 1)})

def doomed(name, point):
    if isinstance(point, str):
        fault_points.armed = point + ":kill"
        if point.startswith("statement"):
            fault_points.count_statements()
        return run(name)
    file, number, before = point
    left = iter([False] * before + [True])
    def passed(_, line):
        if line == number and next(left, False):
            os.kill(os.getpid(), signal.SIGKILL)
    return traced(name, passed, file)

assert child(prepare)[0] == 0
killed, every = 0, points[0].partition(".") if len(points) == 1 else None
if every and every[0] == "line":
    points = json.loads(child(lambda: passages("watched"))[1])[::int(every[2])]
elif every:
    points = (f"{every[0]}.{n}" for n in count(1, int(every[2])))
extra = 4 * int(bool(every) and every[0] == "line")  # the lives that were watched
for number, point in enumerate(points):
    name = f"r{number}"
    if life == "answer":
        assert child(lambda: open_only(name))[0] == 0
    code, text = child(lambda: doomed(name, point))
    killed += code == -signal.SIGKILL
    assert (code, text) == (-signal.SIGKILL, "") or (code == 0 and text and every), (point, code, text)
    first, second = child(lambda: run(name)), child(lambda: run(name))
    assert first == second and first[0] == 0 and first[1] and text in ("", first[1]), (point, first, second)
    if code == 0 and isinstance(point, str):
        break

def books():
    import duckdb
    ledger, out = Ledger(target, anchor=anchor), folder / "out.duckdb"
    rows, ids = 0, 0
    if out.exists():
        with duckdb.connect(str(out)) as connection:
            connection.execute("SET enable_progress_bar = false")  # it would stand before the JSON
            ((rows, ids),) = connection.execute("SELECT count(*), count(DISTINCT release_id) FROM releases").fetchall()
    kept = ledger.releases()
    answers = sum(len(ledger.answers(session.release_id)) for session in kept if life != "release")
    spent = ledger.remaining("visits").rows()[0]["epsilon_spent"]
    return [len(kept), sorted({r.state for r in kept}), rows, ids, answers, spent, ledger.verify().problems]

print(json.dumps([killed, number + 1 + extra, extra, json.loads(child(books)[1])]))
"""

RELEASE = [
    point
    for point in POINTS
    if not point.startswith(("session", "verdict", "load", "witness", "histogram"))
]
OPENING = ["session.before-commit", "session.after-commit"]
ANSWER = ["aggregate.after", "draw.after"]


@pytest.fixture(scope="module")
def driver() -> Iterator[subprocess.Popen[str]]:
    """The process that runs tests in forks of itself; it takes a line for each and answers with one."""
    command = [sys.executable, "-c", DRIVER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("life", "points"),
    [
        pytest.param("release", RELEASE, id="release"),
        pytest.param("session", OPENING, id="opening"),
        pytest.param("answer", ANSWER, id="answer"),
        pytest.param("release", ["line.293"], id="release-lines"),
        pytest.param("session", ["line.397"], id="session-lines"),
        *(
            pytest.param(life, [f"{step}.1"], marks=pytest.mark.slow, id=f"{life}-every-{step}")
            for life in ("release", "session")
            for step in ("statement", "line")
        ),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_killed_anywhere(
    tiny: Tiny,
    driver: subprocess.Popen[str],
    request: pytest.FixtureRequest,
    kind: str,
    life: str,
    points: list[str],
) -> None:
    """Named points, SQL statements, and lines of everything between the reservation and the
    published row. Every child that dies is followed by two more tries, which show one result; books
    and output agree at the end.
    """
    target = (
        str(tiny.folder / "other.sqlite")
        if kind == "sqlite"
        else request.getfixturevalue("postgres")()
    )
    assert driver.stdin is not None and driver.stdout is not None
    driver.stdin.write(json.dumps([str(tiny.folder), target, life, *points]) + "\n")
    driver.stdin.flush()
    said = json.loads(driver.stdout.readline())
    assert isinstance(said, list), f"ended with {said}; see standard error"
    deaths, tries, watched, books = said
    charges, states, rows, ids, answers, spent, problems = books
    if points[0].startswith("line."):
        assert deaths == tries - watched
    else:
        assert deaths == (len(points) if len(points) > 1 else tries - 1)
    assert deaths >= 2
    assert (charges, problems, round(float(spent) * 1000)) == (tries, [], tries)
    if life == "release":
        assert (states, rows, ids) == (["settled"], tries, tries)
    else:
        assert (states, answers) == (["open"], 2 * tries)


FULL = """
import sys
from pathlib import Path
from dpflow import Ledger, plan, release
from dpflow.engine.releases.request import Publish
from dpflow.errors import NotPublished
from dpflow.tables.public.publish import read_published
folder, small, ledger = Path(sys.argv[1]), Path(sys.argv[2]), Ledger(sys.argv[1] + "/ledger.sqlite")
publishing = sys.modules["dpflow.tables.public.publish"]
publish = publishing.publish
publishing.publish = lambda *words, **_: publish(*words, deadline=0.5)

def run(name):
    wanted = plan("count", folder / "visits.yml", name=name, scope="visits", blocks=["2020-01-01"], epsilon="0.25",
                  publish=Publish(database=small / "out.duckdb"))
    return release(wanted, ledger)

for number, name in enumerate(("new file", "old file")):
    ballast = small / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    for _ in range(2):
        try:
            run(name)
        except NotPublished as error:
            assert error.retryable and ("No space left" in str(error) or "its disk is full" in str(error)), error
        else:
            raise AssertionError("published on a full disk")
    settled = ledger.releases()[number].result
    ballast.unlink()
    for _ in range(2):
        receipt = run(name)
        assert receipt.replayed and receipt.result.to_json() == settled
    assert len(read_published(small / "out.duckdb", "releases")) == number + 1
# The lock of writers stays, and no copy does.
assert sorted(path.name for path in small.iterdir()) == [".out.duckdb.lock", "out.duckdb"]
assert ledger.remaining("visits").rows()[0]["epsilon_spent"] == "0.5" and ledger.verify().ok
print("done")
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no way to a file system of our own")
def test_no_space_for_the_published_table(tiny: Tiny) -> None:
    """A full disk under the output: paid, settled, retryable; the same release publishes the
    settled result later.
    """
    small = tiny.folder / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=2m none "$0" && exec "$1" -c "$2" "$3" "$0"'
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        str(small),
        sys.executable,
    ]
    done = subprocess.run([*command, FULL, str(tiny.folder)], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no file system of our own here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
