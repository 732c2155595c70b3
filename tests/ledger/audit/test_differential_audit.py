"""Every entry of legal histories, one field of it changed and sealed again: what verification refuses the audit
program refuses with a sentence, and neither of them crashes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import every_entry
import pytest
from audit_program import load_program, start_audit, start_program

from dpflow.ledger import Ledger
from dpflow.ledger.audit import verify
from dpflow.ledger.audit.recheck import RESERVED_KINDS, Recheck
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor

VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 2**31, 2**62, 10**40, 1.5, float("nan"), "", "0", "-1", "1e-30", "1e99", "NaN",
    "1/0", "0/0", "x", "a/b", "s", "open", "closed", "reserved", "settled", "0" * 64, [], [""], ["r", "0"], ["r", "0", "1"],
    [["s", "", 0, 0, 0]], {}, {"a": 1},
]  # fmt: skip
TOP = ("at", "kind", "scope", "release_id", "principal", "body", "seq", "root")
RAW = ["", "[", "null", "[" * 100_000, "{}", '{"a":1,"a":2}', " {}", "9" * 5000]


def change(value: Any) -> Iterator[Any]:
    """What may stand in a value's place: everything else, and the value a little changed."""
    yield from VALUES
    yield from sorted(RESERVED_KINDS)
    yield [value, value]
    yield {"a": value}
    if type(value) is int:
        yield from (value - 1, value + 1, -value, str(value), float(value), bool(value))
    if type(value) is str:
        yield from (value + "x", " " + value, value[:-1], value.upper(), value * 1000)
    if isinstance(value, list):
        yield from (value * 2, value[:-1], value[1:], value[::-1], [*value, None])
    if isinstance(value, dict):
        yield value | {"epsilon": "1"}
        yield value | {"": None}


def mutate(value: Any) -> Iterator[Any]:
    """Every value with one change in it, in JSON within its texts, too."""
    yield from change(value)
    if isinstance(value, dict):
        for name, part in value.items():
            rest = {key: other for key, other in value.items() if key != name}
            yield rest
            yield rest | {name + "x": part}
            yield from (rest | {name: changed} for changed in mutate(part))
    if isinstance(value, list):
        for at, part in enumerate(value):
            yield from ([*value[:at], changed, *value[at + 1 :]] for changed in mutate(part))
    if isinstance(value, str) and value[:1] in ("{", "["):
        for changed in mutate(json.loads(value)):
            yield chain.canonical_json(changed)
        yield from RAW


def mutate_entry(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every single-field mutation of an entry, without hash and seal."""
    for body in mutate(json.loads(entry["body"])):
        yield entry | {"body": chain.canonical_json(body)}
    for name in TOP:
        for value in [*change(entry[name]), *RAW]:
            yield entry | {name: value}


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    """The audit program in this process, and its decimal context. Signatures are checked once each."""
    with load_program() as modules, pytest.MonkeyPatch.context() as patch:
        signatures = modules["signatures"]
        patch.setattr(signatures, "is_signed", functools.cache(signatures.is_signed))
        yield modules["audit"]


def is_legal(recheck: Recheck, anchor: Anchor, start: Any, entries: list[dict[str, Any]]) -> bool:
    """Whether verification holds: chain, seals and rules."""
    auditor = chain.Auditor(anchor, marked=False, start=start)
    for row in auditor.pass_entries(verify.ENTRIES.row(**entry) for entry in entries):
        recheck.apply_entry(row)
    return not (auditor.problems or recheck.problems)


def strip_seal(entry: dict[str, Any]) -> dict[str, Any]:
    """What the program reads of an entry."""
    return {name: value for name, value in entry.items() if name != "seal"}


@pytest.mark.parametrize("share", [0.005, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("write", [every_entry.write_history, every_entry.write_losses])
def test_what_verification_refuses_the_audit_program_refuses(program, tmp_path, write, share):
    """A share of all mutations of a history: whoever holds the anchor's key seals what they like."""
    text, anchor = write(tmp_path)
    chance = random.Random(44)
    lines = [json.loads(line) for line in text.splitlines()]
    entries = [{n: v for n, v in e.items() if n != "line"} for e in lines if e["line"] == "entry"]
    audit, recheck, kinds, n_legal = program.Audit(), Recheck(), set(), 0
    for at, entry in enumerate(entries):
        start = (at, entries[at - 1]["hash"] if at else chain.first_link(anchor.ledger_id))
        for number, mutated in enumerate(mutate_entry(entry)):
            if mutated == entry or chance.random() > share:
                continue
            changed = [mutated, *map(dict, entries[at + 1 :])]
            with contextlib.suppress(TypeError, ValueError):
                every_entry.seal(changed, anchor, previous=start[1])
            if "hash" not in changed[-1]:
                continue
            kinds.add(entry["kind"])
            for length in (1, len(changed)):
                part = changed[:length]
                legal = is_legal(copy.deepcopy(recheck), anchor, start, part)
                said = program.judge(map(strip_seal, part), copy.deepcopy(audit))
                assert legal or said, (number, mutated, said)
                if said:
                    break
            n_legal += not said
        assert is_legal(recheck, anchor, start, [entry])
        assert program.judge([strip_seal(entry)], audit) == ""
    assert n_legal  # a control: not everything is refused
    if share == 1:
        assert len(kinds) > 5


def test_every_kind_is_in_these_histories(tmp_path):
    """A control of the test above."""
    kinds = set()
    for name, write in vars(every_entry).items():
        if name.startswith("write_"):
            (tmp_path / name).mkdir()
            lines = map(json.loads, write(tmp_path / name)[0].splitlines())
            kinds |= {line["kind"] for line in lines if line["line"] == "entry"}
    assert kinds > RESERVED_KINDS


def set_in(kind: str, path: str, value: Any) -> Any:
    """An attack: put a value into the body of the first entry of a kind, in a text within it if there is a slash."""

    def attack(entries: list[dict[str, Any]]) -> None:
        entry = next(e for e in entries if e["kind"] == kind)
        body, (outer, _, name) = json.loads(entry["body"]), path.partition("/")
        inner = json.loads(body[outer]) if name else value
        if name:
            inner = chain.canonical_json(inner | {name: value})
        entry["body"] = chain.canonical_json(body | {outer: inner})

    return attack


def set_release_id(kind: str, value: str) -> Any:
    """An attack: name another release in the first entry of a kind."""

    def attack(entries: list[dict[str, Any]]) -> None:
        next(e for e in entries if e["kind"] == kind)["release_id"] = value

    return attack


def tell_twice(entries: list[dict[str, Any]]) -> None:
    at = next(n for n, e in enumerate(entries) if e["kind"] == "verdict")
    entries.insert(at, dict(entries[at]))


FORGED = {
    "an event of an unknown kind": set_in("reserve", "event", '{"epsilon":"1","kind":"gdp.v1"}'),
    "a verdict twice": tell_twice,
    "a verdict of no release": set_release_id("verdict", "f" * 16),
    "a verdict of no answer": set_in("verdict", "version", 9),
    "no id": set_release_id("reserve", ""),
    "a slot of one name": set_in("reserve", "slot", ["r"]),
    "a slot of three names": set_in("join", "slot", ["r", "1", "2"]),
    "order 0": set_in("grant", "filter/order", "0"),
    "order 1": set_in("grant", "filter/order", "1"),
    "tail_delta 0": set_in("grant", "filter/tail_delta", "0"),
    "a short charge": set_in("reserve", "charges", [["s", "", 10**12]]),
    "charges of no scope": set_in("reserve", "charges", []),
    "an amount below zero": set_in("reserve", "charges", [["s", "", -1, 0, 10**12]]),
    "a capacity that is not there": set_in("grant", "capacity", None),
}


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Anchor]:
    """Every kind of an entry but those of losses."""
    return every_entry.write_history(tmp_path_factory.mktemp("history"))


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_entry_is_refused_with_a_sentence(program, history, name):
    """What the program took, or ended in a traceback at."""
    text, anchor = history
    lines = [json.loads(line) for line in text.splitlines()]
    entries = [strip_seal(line) for line in lines if line["line"] == "entry"]
    for entry in entries:
        del entry["line"]
    assert program.judge(map(strip_seal, entries), program.Audit()) == ""
    FORGED[name](entries)
    for number, entry in enumerate(entries, 1):
        entry["seq"] = number
    every_entry.seal(entries, anchor)
    assert "breaks a rule: " in program.judge(map(strip_seal, entries), program.Audit())


FILES = {
    "empty": b"",
    "no export": b"{}\n",
    "no JSON": b"ledger",
    "another schema": b'{"line":"header","format":"dpflow-ledger","schema":"9","ledger":"a"}\n',
    "deep": b"[" * 200_000,
    "no text": b"\xff\xfe",
    "SQLite by name only": b"SQLite format 3\0" + b"x" * 5000,
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_ledger_is_refused_with_a_sentence(program, tmp_path, name):
    """An export is a file from elsewhere."""
    file = tmp_path / "file"
    file.write_bytes(FILES[name])
    assert program.judge(program.entries(str(file)), program.Audit())
    assert "cannot be read" in program.judge(program.entries(str(tmp_path / "no")), program.Audit())


def test_damaged_lines_are_refused_with_a_sentence(program, history, tmp_path):
    """Lines of other kinds, with fields that are missing, too many or of another type, or none."""
    lines, file = history[0].splitlines(), tmp_path / "file"
    damaged = ["[]", "{}", "null", "x", '{"line":"note"}', '{"line":[]}']
    for line in map(json.loads, (lines[0], lines[1], lines[-1])):
        for name in line:
            rest = {key: value for key, value in line.items() if key != name}
            damaged += map(
                json.dumps, (rest, rest | {name: None}, rest | {name: {}}, line | {"": 1})
            )
    for each in damaged:
        for at in (0, 2):
            file.write_text("\n".join([*lines[:at], each, *lines[at + 1 :]]))
            assert program.judge(program.entries(str(file)), program.Audit()), (at, each)


def test_the_program_says_no_where_its_checks_are_left_out(history, tmp_path):
    """`python -O` removes assertions."""
    assert "all within the rules" in start_audit(history[0], tmp_path).stderr
    command = [sys.executable, "-O", "audit.py", "ledger.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode and "leaves out every check" in done.stderr
    done = start_program("gone.jsonl", folder=tmp_path)
    assert done.returncode and "Traceback" not in done.stderr


def test_verification_names_forged_entries_beside_its_rows(tmp_path):
    """Names of other types do not sort beside texts: none of them was named."""
    text, anchor = every_entry.write_history(tmp_path)
    lines = [json.loads(line) for line in text.splitlines()]
    entries = [line for line in lines if line["line"] == "entry"]
    for entry, query in zip((e for e in entries if e["kind"] == "answer"), ("a", 5, None)):
        body = json.loads(entry["body"]) | {"query": query}
        entry["body"] = chain.canonical_json(body)
    every_entry.seal(entries, anchor)
    file = tmp_path / "ledger.sqlite"
    find = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for (name,) in connection.execute(find).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for entry in entries:
            values = [entry[name] for name in ("body", "previous", "hash", "seal", "seq")]
            query = (
                "UPDATE dpflow_entry SET body = ?, previous = ?, hash = ?, seal = ? WHERE seq = ?"
            )
            connection.execute(query, values)
    report = Ledger(file, anchor=tmp_path / "anchor").verify()
    assert "/5 is not the one that was given" in str(report)
