"""A witness over HTTP, which keeps the checkpoints of one ledger and lets none in that does not extend the last:

    WITNESS_TOKEN=... python witness_server.py FOLDER PORT VERIFIER_KEY ...

GET /    the newest checkpoint, its number in the header Number; 204 before there is one
GET /N   checkpoint N; 404 if there is none
PUT /N   adds it. The body is lines of JSON: the note as a text, then each entry between the newest checkpoint and
         this one, as the list that its hash is of. From the first entry on, if a recovery took the newest over.
         201 added, 401 no token, 409 not the next number, 422 why it does not extend the newest

All requests carry Authorization: Bearer TOKEN. It listens on this machine alone, behind a server for TLS.
Whoever runs it, and nobody who charges, may write the folder. Entries are checked and not kept.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from shapes import FIELDS
from signatures import note_signers, people

LONGEST = 64 * 2**20  # bytes of a line


def read_head(note, keys):
    """The ledger, size and head that a note states, which one of these keys signed."""
    signers, lines = note_signers(note, keys)
    assert signers, "no trusted key signed it"
    return lines[0], int(lines[1]), base64.b64decode(lines[2], validate=True).hex()


def require_extended(old, new, lines):
    """Raises AssertionError unless these entries lead from one head to the other."""
    (ledger, *seen), (is_of, *end) = old, new
    assert is_of == ledger, "another ledger's"
    at, took_over, is_whole = seen, False, False
    for number, line in enumerate(lines):
        entry = dict(zip(FIELDS, json.loads(line), strict=True))
        if number == 0 and entry["seq"] == 1:
            at, is_whole = [0, "0" * 64], True
        assert [entry["seq"] - 1, entry["previous"]] == at, "the entries are no chain"
        at = [entry["seq"], hashlib.sha256(line).hexdigest()]
        if entry["kind"] == "recover":
            named = json.loads(entry["body"])["checkpoint"] or [""]
            took_over |= named[:3] == [ledger.rpartition("/")[2], *seen]
        is_whole &= at != seen
    assert at == end, "the entries end at another head"
    assert not is_whole or took_over, "the newest checkpoint is of another history"


class Witness:
    def __init__(self, folder, keys):
        people(keys)
        self.folder, self.keys, self.turn = Path(folder), keys, threading.Lock()

    def read(self, number):
        file = self.folder / f"{number:012}.txt"
        return file.read_text() if file.exists() else None

    def newest(self):
        names = sorted(file.name for file in self.folder.glob("[0-9]*.txt"))
        assert names == [f"{n:012}.txt" for n in range(1, len(names) + 1)], "a checkpoint is gone"
        return len(names)

    def add(self, number, lines):
        """Status and reason."""
        lines = iter(lines)
        note = json.loads(next(lines))
        with self.turn:
            if number != self.newest() + 1:
                return 409, "not the next checkpoint"
            new = read_head(note, self.keys)
            if number > 1:
                require_extended(read_head(self.read(number - 1), self.keys), new, lines)
            draft = self.folder / ".draft"
            draft.unlink(
                missing_ok=True
            )  # of one that was killed: perhaps a second name of what it added
            with open(draft, "w") as stream:
                stream.write(note)
                stream.flush()
                os.fsync(stream.fileno())
            os.link(draft, self.folder / f"{number:012}.txt")  # fails if it is there
            os.unlink(draft)
            handle = os.open(self.folder, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        return 201, ""


class Handler(BaseHTTPRequestHandler):
    witness, token = None, ""
    protocol_version, timeout = "HTTP/1.1", 60

    def answer(self, status, text="", number=""):
        self.close_connection = True
        self.send_response(status)
        for name, value in (("Number", number), ("Content-Length", len(text.encode()))):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(text.encode())

    def begin(self):
        """The number that is asked for, 0 for the newest; None if that was answered."""
        told = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(told, b"Bearer " + self.token.encode()):
            return self.answer(401)
        match = re.fullmatch("/|/([1-9][0-9]{0,11})", self.path)
        return int(match[1] or 0) if match else self.answer(404)

    def do_GET(self):
        number = self.begin()
        if number is not None:
            newest = self.witness.newest()
            number = number or newest
            note = self.witness.read(number)
            self.answer(*((200, note, number) if note else (404 if number else 204,)))

    def do_PUT(self):
        number = self.begin()
        if number is not None:
            lines = self.lines()
            try:
                status, reason = self.witness.add(number, lines)
            except AssertionError as rule:
                status, reason = 422, str(rule)
            except (AttributeError, LookupError, TypeError, ValueError, StopIteration):
                status, reason = 422, "it says something impossible"
            for _ in lines:  # whoever sends hears an answer at the end
                pass
            self.answer(status, reason)

    def lines(self):
        """The lines of a body in chunks."""
        left = b""
        while size := int(self.rfile.readline(20).strip() or b"0", 16):
            assert size <= LONGEST, "a chunk too long"
            left += self.rfile.read(size)
            self.rfile.readline(2)
            *whole, left = left.split(b"\n")
            assert len(left) <= LONGEST, "a line too long"
            yield from whole

    def log_message(self, *_):
        """No log: a path says nothing."""


def make_server(folder, port, keys, token):
    """A server that is not started. One process may serve a folder."""
    fields = {"witness": Witness(folder, keys), "token": token}
    return ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (Handler,), fields))


if __name__ == "__main__":
    if not __debug__ or not os.environ.get("WITNESS_TOKEN"):
        sys.exit("set WITNESS_TOKEN, and run it without -O, which leaves out every check")
    make_server(
        sys.argv[1], int(sys.argv[2]), sys.argv[3:], os.environ["WITNESS_TOKEN"]
    ).serve_forever()
