"""Witnesses beyond this machine: checkpoints are added once and in order, and what was changed is found."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec
import psycopg
import pytest
from audit_program import load_program
from watched_scopes import copy_aside
from witness_server_run import MODULES, serve_witness

from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable, MissingExtra
from dpflow.ledger.audit import witness_stores
from dpflow.ledger.audit.forward import stream_texts
from dpflow.ledger.audit.witness import open_place
from dpflow.ledger.history.checkpoint import Signer, parse_note

NIGHTLY, OTHER = Signer.create("nightly"), Signer.create("other")
TERMS = {"table": None, "filter": "basic", "principal": "owner"}


@pytest.fixture(params=["http", "s3", "table"])
def keep(request, make_keep):
    """A place of each kind."""
    return make_keep(request.param, NIGHTLY.public_text)


@pytest.fixture
def small(tmp_path, make_place):
    """A ledger on SQLite: what a place does is the same on any."""
    place = make_place(str(tmp_path / "small.sqlite"), tmp_path / "small-anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS)
    return ledger


def test_checkpoints_are_added_in_order(small, keep, ask):
    """Each goes on from the last, an idle night adds none, and no number is given twice."""
    assert open_place(keep).newest() is None
    first = small.witness(keep, NIGHTLY)
    assert first.is_new and first.file == f"000000000001.txt in {keep}"
    assert not small.witness(keep, NIGHTLY).is_new
    ask.reserve(small, "one")
    assert small.witness(keep, NIGHTLY).size == 2
    place = open_place(keep)
    number, note = place.newest()
    assert (number, parse_note(note).checked_after) == (2, 1)
    assert small.verify(since=note, keys=[NIGHTLY.public_text]).ok
    for taken in (1, 2):
        with pytest.raises(LedgerUnavailable, match="another checkpoint was added") as late:
            place.add(taken, note)
        assert late.value.retryable
    assert place.may_be_written() and place.newest() == (2, note)


def test_who_comes_second_tries_again(small, keep, ask):
    """Two that sign at the same time: one is refused, retryably, and goes on from the other's."""
    small.witness(keep, NIGHTLY)
    ask.reserve(small, "one")
    place, sign, raced = open_place(keep), small._sign, []

    def slow(signer, since):
        if not raced:
            raced.append(small._sign)
            small._sign = sign
            assert small.witness(keep, NIGHTLY).is_new
        return sign(signer, since)

    small._sign = slow
    with pytest.raises(LedgerUnavailable, match="another checkpoint was added"):
        small.witness(keep, NIGHTLY)
    assert not small.witness(keep, NIGHTLY).is_new
    assert place.newest()[0] == 2


def change(keep, tmp_path, how):
    """Whoever may write the place changes, or takes away, the first or the newest checkpoint."""
    name = f"00000000000{1 if how == 'first' else 3}.txt"
    if keep.startswith("s3"):
        files = pytest.importorskip("s3fs").S3FileSystem()
        where = {"Bucket": keep.split("/")[2], "Key": f"visits/{name}"}
        if how == "edit":
            files.call_s3("put_object", **where, Body=b"another")
        else:
            files.call_s3("delete_object", **where)
    elif keep.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(tmp_path / "witness" / "notes.sqlite")) as found:
            if how == "edit":
                found.execute("UPDATE dpflow_checkpoint SET note = 'another' WHERE number = 3")
            else:
                found.execute(f"DELETE FROM dpflow_checkpoint WHERE number = {name[11]}")
            found.commit()
    elif how == "edit":
        file = tmp_path / "witness" / name
        file.chmod(0o600)
        file.write_text("another")
    else:
        (tmp_path / "witness" / name).unlink()


@pytest.mark.parametrize("how", ["edit", "first"])
def test_what_was_changed_or_taken_away_is_an_alarm(small, keep, ask, tmp_path, how):
    """Nothing is signed behind it."""
    for name in ("one", "two", "three"):
        ask.reserve(small, name)
        small.witness(keep, NIGHTLY)
    change(keep, tmp_path, how)
    ask.reserve(small, "four")
    if (
        keep.startswith("sqlite") and how == "edit"
    ):  # as if it had been added: what it hid is told by the one before it
        added = small.witness(keep, NIGHTLY)
        assert added.is_new and added.problems[0].startswith("000000000003.txt is no checkpoint")
        return
    # A server that lost a file answers nothing any more.
    with pytest.raises((LedgerCorrupt, LedgerUnavailable)) as alarm:
        small.witness(keep, NIGHTLY)
    if not keep.startswith("http"):
        assert isinstance(alarm.value, LedgerCorrupt)


def test_a_bucket_knows_what_was_deleted_last(small, make_keep, ask, tmp_path):
    """Its versions show even a cut end."""
    keep = make_keep("s3")
    for name in ("one", "two", "three"):
        ask.reserve(small, name)
        small.witness(keep, NIGHTLY)
    change(keep, tmp_path, "last")
    with pytest.raises(LedgerCorrupt, match="000000000003.txt in .* was changed or taken away"):
        small.witness(keep, NIGHTLY)


def test_a_bucket_without_versions_is_no_witness(small, s3_server):
    """A checkpoint in it could be replaced."""
    pytest.importorskip("s3fs").S3FileSystem().call_s3("create_bucket", Bucket="plain")
    with pytest.raises(InvalidInput, match="keeps no versions"):
        small.witness("s3://plain/visits")


@pytest.mark.parametrize(
    "name",
    [
        "http://127.0.0.1:1/w",
        "sqlite:////nowhere/notes.sqlite",
        "postgresql+psycopg://nobody:s3cret@127.0.0.1:1/notes?password=s3cret",
    ],
)
def test_a_place_out_of_reach_is_named_without_its_password(small, name):
    """Retryable, at once, and with the fix."""
    begin = time.monotonic()
    with pytest.raises(LedgerUnavailable, match="cannot be read or written") as error:
        small.witness(name)
    assert error.value.retryable and "s3cret" not in str(error.value)
    assert time.monotonic() - begin < 30


def test_a_bucket_out_of_reach(small, monkeypatch):
    """As above; it needs no server, but the package."""
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{part}", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(LedgerUnavailable, match="cannot be read or written"):
        small.witness("s3://gone/visits")


def test_a_missing_package_is_named(monkeypatch):
    """The one of the bucket, or the extra."""

    def refuse(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", refuse)
    with pytest.raises(MissingExtra, match="pip install s3fs"):
        open_place("s3://bucket/visits").newest()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match="extra 'remote'"):
        open_place("s3://bucket/visits").newest()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("http://example.org/w", "in the clear"),
        ("https://me:s3cret@example.org/w", "https://HOST/PATH"),
        ("s3://me:s3cret@bucket", "s3://BUCKET/FOLDER"),
        ("s3://bucket/[a]", "s3://BUCKET/FOLDER"),
        ("nothing://me:s3cret@host/x", "cannot be read from its URL"),
    ],
)
def test_addresses_that_are_refused(name, why):
    """Without repeating a password."""
    with pytest.raises(InvalidInput, match=why) as error:
        open_place(name)
    assert "s3cret" not in str(error.value)


# --- who may write --------------------------------------------------------------------------------


def test_a_table_that_this_login_cannot_write(small, postgres, ask):
    """Only its own user may add; who reads is told so, and its checkpoints are evidence."""
    url = postgres()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE dpflow_checkpoint (number INTEGER PRIMARY KEY, note TEXT NOT NULL)"
        )
        login = f"reader_{connection.info.dbname}"
        connection.execute(f"CREATE ROLE {login} LOGIN")
        connection.execute(f"GRANT SELECT ON dpflow_checkpoint TO {login}")
    small.witness(url, NIGHTLY)
    reading = open_place(url.replace("//postgres", f"//{login}", 1))
    assert reading.newest() == open_place(url).newest()
    assert open_place(url).may_be_written() and not reading.may_be_written()
    with pytest.raises(InvalidInput, match="lets this user add no checkpoint"):
        reading.add(2, reading.newest()[1])
    assert open_place(url).newest()[0] == 1


def test_a_read_that_is_forbidden_is_out_of_reach(small, monkeypatch):
    """Credentials that expired: nothing was to be added, charges go on, and a check says what it did not compare."""

    class Files:
        def call_s3(self, *args, **fields):
            raise PermissionError("Access Denied")

        cat = cat_file = call_s3

    monkeypatch.setattr(witness_stores.ObjectPlace, "_files", Files())
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS", "s3://bucket/w")
    place = open_place("s3://bucket/w")
    for read in (place.newest, lambda: place._read(1), lambda: place._read_many([1])):
        with pytest.raises(LedgerUnavailable, match=r"cannot be read or written \(access denied\)"):
            read()
    with pytest.raises(InvalidInput, match="lets this user add no checkpoint"):
        place._put(1, "note", ())
    assert "access denied" in small.statement("flights").comparison


def test_a_server_knows_its_witness_by_the_token(small, make_keep, monkeypatch):
    """With it, who charges could have written the place; without it they read, and add nothing."""
    keep = make_keep("http", NIGHTLY.public_text)
    small.witness(keep, NIGHTLY)
    assert open_place(keep).may_be_written()
    for token in ("", "another"):
        monkeypatch.setenv("DPFLOW_LEDGER_WITNESS_TOKEN", token)
        place = open_place(keep)
        assert not place.may_be_written()
        with pytest.raises(InvalidInput, match="lets this user add no checkpoint"):
            place.add(2, place.newest()[1])


def test_a_server_says_that_a_checkpoint_was_taken_away(small, make_keep, tmp_path):
    """An alarm, and nothing that a later try could mend."""
    keep = make_keep("http", NIGHTLY.public_text)
    small.witness(keep, NIGHTLY)
    file = tmp_path / "witness" / "000000000001.txt"
    file.rename(file.with_name("000000000002.txt"))
    with pytest.raises(LedgerCorrupt, match="a checkpoint is gone"):
        open_place(keep).newest()


def test_a_server_may_ask_a_token_of_readers(small, tmp_path, monkeypatch):
    """One that adds nothing; the witness's own reads, too."""
    folder = tmp_path / "kept"
    folder.mkdir()
    with serve_witness(folder, [NIGHTLY.public_text], "write", "read") as keep:
        monkeypatch.setenv("DPFLOW_LEDGER_WITNESS_TOKEN", "write")
        small.witness(keep, NIGHTLY)
        monkeypatch.setenv("DPFLOW_LEDGER_WITNESS_TOKEN", "read")
        place = open_place(keep)
        assert place.newest()[0] == 1 and not place.may_be_written()
        for token in ("", "another"):
            monkeypatch.setenv("DPFLOW_LEDGER_WITNESS_TOKEN", token)
            with pytest.raises(LedgerUnavailable, match="status 401"):
                place.newest()


def send_slowly(keep, note, stop):
    """The status of a PUT that sends one byte more now and then, until it is answered or told to stop."""
    host, port = keep.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        head = f"PUT /2 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer t0ken\r\n"
        body = json.dumps(note).encode() + b"\n"
        line.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        line.sendall(b"%x\r\n%s\r\nfffff\r\n" % (len(body), body))
        line.settimeout(0.05)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                return line.recv(1000).split()[1]
            line.sendall(b"[")
    return b""


def test_a_slow_sender_stops_no_witness(small, make_keep, ask):
    """It holds nothing while it sends."""
    keep, stop = make_keep("http", NIGHTLY.public_text), threading.Event()
    small.witness(keep, NIGHTLY)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(send_slowly, keep, open_place(keep).newest()[1], stop)
        try:
            ask.reserve(small, "one")
            begin = time.monotonic()
            assert small.witness(keep, NIGHTLY).is_new
            assert time.monotonic() - begin < 30 and not slow.done()
        finally:
            stop.set()


@pytest.mark.parametrize(
    ("limits", "status"), [({"SECONDS": 1}, b"408"), ({"LARGEST": 10**5}, b"413")]
)
def test_a_server_reads_no_body_without_end(small, tmp_path, monkeypatch, limits, status):
    """Neither in time nor in size."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setenv("DPFLOW_LEDGER_WITNESS_TOKEN", "t0ken")
    with serve_witness(folder, [NIGHTLY.public_text], "t0ken", **limits) as keep:
        small.witness(keep, NIGHTLY)
        assert send_slowly(keep, open_place(keep).newest()[1], threading.Event()) == status
        assert open_place(keep).newest()[0] == 1


# --- the reference server -------------------------------------------------------------------------


def test_a_server_takes_only_what_extends_its_newest(small, make_keep, ask, make_place, tmp_path):
    """Another history, another's signature, entries that are no chain or left out: refused, and nothing is added."""
    keep = make_keep("http", NIGHTLY.public_text)
    ask.reserve(small, "one")
    small.witness(keep, NIGHTLY)
    place, old = open_place(keep), parse_note(open_place(keep).newest()[1])
    ask.reserve(small, "two")
    ask.reserve(small, "three")
    note = small.checkpoint(NIGHTLY)
    lines = [*stream_texts(small._database, old, parse_note(note))]
    other = make_place(str(tmp_path / "o.sqlite"), tmp_path / "o").open()
    other.grant("flights", 9, 0, **TERMS)
    edited = json.loads(lines[0])
    edited[5] = "another"
    for bad, entries, why in (
        (small._sign(OTHER, None), lines, "no trusted key"),
        (other.checkpoint(NIGHTLY), lines, "another ledger's"),
        (note, lines[:-1], "at another head"),
        (note, [], "at another head"),
        (note, lines[1:], "no chain"),
        (note, [json.dumps(edited, separators=(",", ":")), *lines[1:]], "no chain"),
        (note, ["{}"], "impossible"),
        ("x", lines, "impossible|no trusted key"),
    ):
        with pytest.raises(LedgerCorrupt, match=why):
            place.add(2, bad, entries)
    assert place.newest()[0] == 1
    place.add(2, note, lines)


def test_a_server_refuses_a_branch_that_its_own_witness_signed(
    make_keep, ask, make_place, tmp_path
):
    """A witness whose files were put back, too, cannot hide what was lost: the server holds the other head."""
    keep = make_keep("http", NIGHTLY.public_text)
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS)
    copy_aside(place, tmp_path)
    ask.reserve(ledger, "lost")
    ledger.witness(keep, NIGHTLY)
    seen = parse_note(open_place(keep).newest()[1])
    branch = make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open()
    ask.reserve(branch, "other")
    ask.reserve(branch, "third")
    note = branch._sign(NIGHTLY, None)
    with pytest.raises(LedgerCorrupt, match="of another history"):
        open_place(keep).add(2, note, stream_texts(branch._database, seen, parse_note(note)))


def test_a_server_that_was_killed_while_it_wrote_loses_nothing(tmp_path, small, ask):
    """At each step of an addition: the newest is whole, and the next addition goes through."""
    folder = tmp_path / "witness"
    folder.mkdir()
    first = small.checkpoint(NIGHTLY)
    ask.reserve(small, "one")
    second = small.checkpoint(NIGHTLY)
    rows = [
        row.encode() for row in stream_texts(small._database, parse_note(first), parse_note(second))
    ]
    with load_program(MODULES) as modules:
        module = modules["witness_server"]
        server = module.Witness(folder, [NIGHTLY.public_text])
        assert server.add(1, [json.dumps(first)])[0] == 201
        steps = ("fsync", "link", "unlink", "open")
        for step, after in itertools.product(steps, (False, True)):
            child = os.fork()
            if child == 0:
                real = getattr(os, step)

                def die(*words, real=real, after=after):
                    if after:
                        real(*words)
                    os.kill(os.getpid(), signal.SIGKILL)

                setattr(module.os, step, die)
                server.add(2, [json.dumps(second), *rows])
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert os.WIFSIGNALED(status), step
            assert server.read(1) == first and server.read(2) in (None, second)
            for file in folder.glob("*2.txt"):
                file.unlink()
        assert server.add(2, [json.dumps(second), *rows])[0] == 201
        (folder / ".draft").unlink(missing_ok=True)
        os.link(folder / "000000000002.txt", folder / ".draft")  # killed before it was taken away
        ask.reserve(small, "two")
        third = small.checkpoint(NIGHTLY)
        rows = stream_texts(small._database, parse_note(second), parse_note(third))
        assert server.add(3, [json.dumps(third), *(row.encode() for row in rows)])[0] == 201
        assert [server.read(number) for number in (1, 2, 3)] == [first, second, third]


# --- deaths ---------------------------------------------------------------------------------------


def test_a_death_at_any_step_of_an_addition_leaves_a_place_that_goes_on(
    small, keep, ask, tmp_path, monkeypatch
):
    """Killed before, while and after the place has it: the next one adds it or finds it, once."""
    small.witness(keep, NIGHTLY)
    for step, name in enumerate(("_put", "_put", "_read", "notes")):
        ask.reserve(small, f"d{step}")
        child = os.fork()
        if child == 0:
            kind = type(open_place(keep))
            real = getattr(kind, name)

            def die(self, *words, real=real, step=step):
                if step == 1:
                    real(self, *words)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(kind, name, die)
            small.witness(keep, NIGHTLY)
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        small.witness(keep, NIGHTLY)
        number, note = open_place(keep).newest()
        assert (number, parse_note(note).size) == (step + 2, step + 2)
        assert not small.witness(keep, NIGHTLY).is_new
