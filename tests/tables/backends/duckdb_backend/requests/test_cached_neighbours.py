"""Cached partial aggregates of two files that differ by one unit: what rows do to the cache shows in
that unit's blocks only, and a cached answer equals one that reads the rows.

The twins share one history: what the owner writes, rewrites, refreshes and exchanges, which processes
release at once, which of them are killed in the middle of a write, when the disk is full. Only the
changes of one unit's rows are in one of them alone.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from twin_tables import (
    ACTS,
    DAYS,
    EXTRA,
    FULL_DISK,
    LARGEST,
    MADE,
    REQUESTS,
    Asked,
    World,
    changes,
    check_distance,
    histories,
    touched_days,
    write_change,
)

from dpflow.errors import NotSealed
from dpflow.tables.backends.duckdb_backend.requests import cached_blocks
from dpflow.tables.backends.duckdb_backend.requests.partial_cache import PartialCache
from dpflow.testing.neighbours import answer_fingerprint


def check_history(
    history: Any, mode: str, strict: bool = True, requests: Sequence[Any] = REQUESTS
) -> None:
    """Write one history into two files, of which one lacks a unit, and release after each step."""
    with tempfile.TemporaryDirectory() as folder:
        worlds = [World(Path(folder) / name, mode, strict=strict) for name in ("with", "without")]
        touched: set[str] = set()
        for steps, act, days in [([], "", 3), *history]:
            for change in steps:
                touched |= touched_days(change)
                for world in worlds[: 1 if change[1] == EXTRA else 2]:
                    world.write(write_change(change))
            for world in worlds:
                world.version += act == "refresh"
                if act in ACTS:
                    world.write(ACTS[act])
            for request in requests:
                asked = Asked(request, DAYS[:days])
                check_distance(asked, *(world.answer(asked) for world in worlds), touched)


#: Corrected amounts of a day come with one unit's late row; then it is deleted, and moved.
LATE = [
    ([("insert", EXTRA, (DAYS[0], "a", 3), DAYS[0])], "reload", 3),
    ([("delete", EXTRA, (DAYS[0], "a", 3), DAYS[0])], "reload", 3),
    ([("insert", EXTRA, (DAYS[1], "c", 5), DAYS[1])], "dimension", 2),
    ([("move", EXTRA, (DAYS[1], "c", 5), DAYS[2])], "refresh", 3),
]


@pytest.mark.parametrize(
    ("mode", "requests"), [("checked", REQUESTS[::4]), ("sealed", REQUESTS[2:3])]
)
def test_twin_files_differ_by_one_unit(mode: str, requests: Sequence[Any]) -> None:
    """Late rows, deletes, moves, corrected amounts, refreshes: the twins' statistics differ by at
    most the claimed sensitivity in each block that had the unit's rows, and a cached answer is what
    the rows give, or gave when they were sealed.
    """
    check_history(LATE, mode, requests=requests)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["checked", "sealed"])
@settings(max_examples=50)
@given(history=histories)
def test_twin_files_differ_by_one_unit_at_length(mode: str, history: Any) -> None:
    """The same with any history, and every request after each step."""
    check_history(history, mode)


def count_rows(reading: Any, blocks: Sequence[str]) -> dict[str, str]:
    """States of blocks as they once were: how many rows each has."""
    query = f"SELECT CAST(d AS VARCHAR), count(*) FROM {reading.relation} GROUP BY d"
    counts = dict(reading.connection.fetch_rows(query))
    return {block: str(counts.get(block, 0)) for block in blocks}


def is_with_unit(partials: PartialCache) -> bool:
    return partials.folder.parent.name == "with"


def let_rows_decide(patch: pytest.MonkeyPatch, broken: str) -> None:
    """Make one thing of the cache follow rows that a neighbour has and the other has not."""
    if broken == "number of rows":
        patch.setattr(cached_blocks, "_block_states", count_rows)
    elif broken == "draws":
        patch.setattr(PartialCache, "draw_salt", property(is_with_unit))
    elif broken == "full disk":
        write_entry = PartialCache.write_entry
        patch.setattr(
            PartialCache,
            "write_entry",
            lambda self, *entry: is_with_unit(self) or write_entry(self, *entry),
        )
    elif broken == "eviction":
        patch.setattr(
            PartialCache,
            "remove_old",
            lambda self: is_with_unit(self) and [one.unlink() for one in self.folder.iterdir()],
        )
    else:
        patch.setattr(cached_blocks, "_block_states", lambda _, blocks: dict.fromkeys(blocks, "x"))


@pytest.mark.parametrize(
    ("mode", "broken"),
    [
        ("sealed", "number of rows"),
        ("checked", "number of rows"),
        ("checked", "draws"),
        ("sealed", "draws"),
        ("sealed", "full disk"),
        ("sealed", "eviction"),
    ],
)
def test_a_cache_that_rows_decide_is_caught(
    monkeypatch: pytest.MonkeyPatch, mode: str, broken: str
) -> None:
    """By the distance of the twins alone, without a look at what an answer should be."""
    let_rows_decide(monkeypatch, broken)
    with pytest.raises(AssertionError):
        check_history(LATE, mode, strict=False, requests=REQUESTS[:1])


def test_a_stale_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that both twins give: no neighbour tells, but it is not what the rows give."""
    let_rows_decide(monkeypatch, "nothing is compared")
    with pytest.raises(AssertionError):
        check_history(LATE, "checked", requests=REQUESTS[:1])


def check_many_blocks(folder: Path, mode: str, days: int) -> None:
    """Blocks that all have rows of the extra unit, which come, change and go."""
    all_days = tuple(str(date(2013, 1, 1) + timedelta(number)) for number in range(days))
    made = MADE.replace("(i % 3)", f"(i % {days})").replace("range(84)", f"range({days * 9})")
    worlds = [World(folder / name, mode, made) for name in ("with", "without")]
    rows = "SELECT {}, DATE '2013-01-01' + i::INT, {}, {}, 1, '' FROM range({}) t(i)"
    steps = [
        (f"INSERT INTO data {rows.format(EXTRA, quote, i, days)}", "SELECT 1")
        for i, quote in ((5, "'a'"), (2, "'b'"))
    ]
    steps += [
        (f"DELETE FROM data WHERE u = {EXTRA} AND v = 2", "UPDATE data SET v = 5 - v WHERE u < 9"),
        (f"UPDATE data SET d = d + 1 WHERE u = {EXTRA} AND d < '{all_days[-1]}'", "CHECKPOINT"),
        (f"DELETE FROM data WHERE u = {EXTRA}", ACTS["rewrite"]),
    ]
    for one_unit, owner in steps:
        worlds[0].write(one_unit)
        for world in worlds:
            world.write(owner)
        for named in {all_days, all_days[-30:], all_days[1:2]}:
            asked = Asked(REQUESTS[0], named)
            answers = [world.answer(asked) for world in worlds]
            check_distance(asked, *answers, set(all_days))


@pytest.mark.parametrize("mode", ["checked", pytest.param("sealed", marks=pytest.mark.slow)])
def test_blocks_with_one_unit_in_all(tmp_path: Path, mode: str) -> None:
    """Claims add up over the blocks, and hold for each."""
    check_many_blocks(tmp_path, mode, 3)


@pytest.mark.slow
@pytest.mark.parametrize("days", [30, 365])
@pytest.mark.parametrize("mode", ["checked", "sealed"])
def test_a_year_of_blocks_with_one_unit_in_all(tmp_path: Path, mode: str, days: int) -> None:
    """The same over thirty days, and over 365 with thirty of them released beside."""
    check_many_blocks(tmp_path, mode, days)


DRIVER = """
import hashlib, hmac, json, os, signal, sys
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.tables.private import PrivateTable
from dpflow.testing.neighbours import answer_fingerprint
WATCHED = ("requests/partial_cache.py", "requests/cached_blocks.py")

def seal(data):
    return hmac.new(b"key", data, hashlib.sha256).hexdigest()

def run(job):
    left = iter([False] * (job["line"] - 1) + [True])
    def trace(frame, event, argument):
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if event == "line" and next(left, False):
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    table = PrivateTable(Table.model_validate(job["declared"]), job["where"], seal)
    if job["line"]:
        sys.settrace(trace)
    return repr(answer_fingerprint(table.answer(eval(job["request"]), job["days"])))

def start(job):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, run(job).encode())
        finally:
            os._exit(0)
    os.close(write)
    return pid, read

for line in sys.stdin:
    texts = []
    for pid, read in [start(job) for job in json.loads(line)]:
        with open(read) as shown:
            texts.append(shown.read())
        os.waitpid(pid, 0)
    print(json.dumps(texts), flush=True)
"""


@cache
def start_driver() -> subprocess.Popen[str]:
    """A process that has imported everything and opened nothing, and forks one for each job."""
    command = [sys.executable, "-c", DRIVER]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(driver.kill)
    return driver


def run_jobs(jobs: Sequence[tuple[World, Asked]], line: int = 0) -> list[str]:
    """Fingerprints of answers that processes of their own give at the same time; empty of those
    killed when they come to a line of the cache's code, counted from the first.
    """
    driver = start_driver()
    assert driver.stdin and driver.stdout
    content = [
        {
            "declared": world.declare(asked, world.path),
            "where": asked.where,
            "request": repr(asked.request),
            "days": asked.days,
            "line": line,
        }
        for world, asked in jobs
    ]
    driver.stdin.write(json.dumps(content) + "\n")
    driver.stdin.flush()
    return list(json.loads(driver.stdout.readline()))


#: What happened in all examples of this process, for the note of a long run.
COUNTS: Counter[str] = Counter()

some_days = st.sets(st.sampled_from(DAYS), min_size=1).map(lambda days: tuple(sorted(days)))
questions = st.builds(
    Asked,
    st.sampled_from(REQUESTS),
    some_days,
    st.sampled_from([LARGEST, LARGEST, 2]),
    st.sampled_from(["text IS NOT NULL OR n >= 0", "text IS NOT NULL OR n >= 0", "n < 3", None]),
)


class Twins(RuleBasedStateMachine):
    """Two files with one history, of which one lacks a unit."""

    mode, strict = "checked", True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dpflow-twins-"))
        self.worlds = [
            World(self.folder / name, self.mode, strict=self.strict) for name in ("with", "without")
        ]
        self.touched: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(change=changes, into_file=st.booleans())
    def change_rows(self, change: Any, into_file: bool) -> None:
        """Rows of one unit are late, deleted, updated, moved to other blocks and groups."""
        self.touched |= touched_days(change)
        for world in self.worlds[: 1 if change[1] == EXTRA else 2]:
            world.write(write_change(change), into_file)
        COUNTS["changes"] += 1

    @rule()
    def fill_all_blocks(self) -> None:
        """The extra unit has rows in every block."""
        self.touched |= set(DAYS)
        rows = f"SELECT {EXTRA}, DATE '{DAYS[0]}' + i::INT, 'b', 4, 1, '' FROM range(3) t(i)"
        self.worlds[0].write(f"INSERT INTO data {rows}")

    @rule(act=st.sampled_from([*ACTS, "refresh", "exchange", "CHECKPOINT"]))
    def act_as_owner(self, act: str) -> None:
        """The table or file is written again, amounts corrected, dimensions changed, seals raised."""
        for world in self.worlds:
            if act == "exchange":
                world.exchange_file()
            elif act == "refresh":
                world.version += 1
            else:
                world.write(ACTS.get(act, act))
        COUNTS[act] += 1

    @rule(asked=questions)
    def release(self, asked: Asked) -> None:
        """Exact statistics of the twins, before noise."""
        check_distance(asked, *(world.answer(asked) for world in self.worlds), self.touched)
        COUNTS["releases"] += 2

    @rule(asked=questions, line=st.integers(1, 260))
    def kill_a_release(self, asked: Asked, line: int) -> None:
        """SIGKILL at any line of the cache's code, the same in both worlds."""
        for world in self.worlds:
            world.stop(asked)
        killed = [not text for text in run_jobs([(world, asked) for world in self.worlds], line)]
        COUNTS["killed"] += sum(killed)

    @rule(one=questions, other=questions, same=st.booleans())
    def release_twice_at_once(self, one: Asked, other: Asked, same: bool) -> None:
        """Two processes in each world, which write one cache."""
        both = [one, one if same else other]
        expected = [
            repr(answer_fingerprint(cached_blocks.merge_parts(world.expect(asked))))
            for world in self.worlds
            for asked in both
        ]
        assert run_jobs([(world, asked) for world in self.worlds for asked in both]) == expected
        COUNTS["at once"] += 4

    @rule(asked=questions, call=st.sampled_from(FULL_DISK), after=st.integers(0, 3))
    def fill_the_disk(self, asked: Asked, call: str, after: int) -> None:
        """What cannot be sealed gives no number; what is checked gives the right one."""
        numbers = []
        for world in self.worlds:
            if self.mode == "sealed":
                world.stop(asked)
            fails = iter(range(after))
            real = getattr(os, call)

            def full(
                path: Any, *given: Any, real: Any = real, fails: Any = fails, **named: Any
            ) -> Any:
                # A file of the cache, or a descriptor, which only the cache uses.
                ours = ".partials" in str(path) or call == "fsync" or call == "posix_fallocate"
                if ours and next(fails, None) is None:
                    raise OSError(28, "No space left on device")
                return real(path, *given, **named)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, call, full)
                try:
                    numbers.append(world.open_table(asked).answer(asked.request, asked.days))
                except NotSealed:
                    assert self.mode == "sealed"
                    COUNTS["not sealed"] += 1
        assert len(numbers) in ((0, 2) if self.mode == "sealed" else (2,))
        for world, number in zip(self.worlds, numbers, strict=False):
            expected = cached_blocks.merge_parts(world.expect(asked))
            assert not self.strict or answer_fingerprint(number) == answer_fingerprint(expected)
        if numbers:
            check_distance(asked, *numbers, self.touched)


def run_twins(mode: str, examples: int, steps: int, **changes: Any) -> None:
    """Run so many histories of so many steps."""
    # The module's name: as in `adversary_model.run_model`.
    parts = {"mode": mode, "__module__": "drawn", **changes}
    machine = type("Twins" + mode.title(), (Twins,), parts)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("mode", ["checked", "sealed"])
def test_twin_histories(mode: str) -> None:
    """A few histories with kills, two processes, full disks, two declarations and conditions."""
    run_twins(mode, examples=2, steps=6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["checked", "sealed"])
def test_twin_histories_at_length(mode: str) -> None:
    """Many of them; ``DPFLOW_TWINS`` says how many."""
    COUNTS.clear()
    run_twins(mode, examples=int(os.environ.get("DPFLOW_TWINS", "60")), steps=20)
    print(mode, dict(COUNTS))
