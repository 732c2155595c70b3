"""A witness over HTTP, which keeps the checkpoints of one ledger and lets none in that does not extend the last:

    WITNESS_TOKEN=... WITNESS_READ_TOKEN=... python witness_server.py FOLDER PORT VERIFIER_KEY ...

GET /    the newest checkpoint, its number in the header Number; 204 before there is one
GET /N   checkpoint N; 404 if there is none
PUT /N   adds it. The body is lines of JSON: the note as a text, then each entry between the newest checkpoint and
         this one, as the list that its hash is of. From the first entry on, if a recovery took the newest over.
         201 added, 401 no token, 408 too slow, 409 not the next number, 413 too long, 422 why it does not extend the newest

PUT carries Authorization: Bearer WITNESS_TOKEN, which the witness alone has. GET carries that or WITNESS_READ_TOKEN;
without a WITNESS_READ_TOKEN all may read. It listens on this machine alone, behind a server for TLS.
Whoever runs it, and nobody who charges, may write the folder. Entries are checked and not kept.
It needs shapes.py, signatures.py, costs.py and fitting.py beside it.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from shapes import FIELDS
from signatures import note_signers, people

LONGEST = 64 * 2**20  # bytes of a line
LARGEST = 2**30  # bytes of a body
SECONDS = 600  # for a whole body


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
            first = hashlib.sha256(f"dpflow.ledger\n{ledger.rpartition('/')[2]}".encode())
            at, is_whole = [0, first.hexdigest()], True
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
        if number != self.newest() + 1:
            return 409, "not the next checkpoint"
        new = read_head(note, self.keys)
        if number > 1:
            require_extended(read_head(self.read(number - 1), self.keys), new, lines)
        with self.turn:
            if number != self.newest() + 1:
                return 409, "another was first"
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


def read_lines(body):
    while line := body.readline(LONGEST + 1):
        assert len(line) <= LONGEST, "a line too long"
        yield line.rstrip(b"\n")


class Handler(BaseHTTPRequestHandler):
    witness, token, read_token = None, "", ""
    protocol_version, timeout = "HTTP/1.1", 60

    def answer(self, status, text="", number=""):
        self.close_connection = True
        self.connection.settimeout(self.timeout)
        self.send_response(status)
        for name, value in (("Number", number), ("Content-Length", len(text.encode()))):
            self.send_header(name, str(value))
        with contextlib.suppress(OSError):  # whoever asked may be gone
            self.end_headers()
            self.wfile.write(text.encode())

    def begin(self, *tokens):
        """The number that is asked for, 0 for the newest; None if that was answered."""
        told = self.headers.get("Authorization", "").encode()
        known = [hmac.compare_digest(told, b"Bearer " + token.encode()) for token in tokens]
        if tokens and not any(known):
            return self.answer(401)
        match = re.fullmatch("/|/([1-9][0-9]{0,11})", self.path)
        return int(match[1] or 0) if match else self.answer(404)

    def do_GET(self):
        number = self.begin(*([self.token, self.read_token] if self.read_token else []))
        if number is not None:
            try:
                newest = self.witness.newest()
            except AssertionError as rule:
                return self.answer(422, str(rule))
            number = number or newest
            note = self.witness.read(number)
            self.answer(*((200, note, number) if note else (404 if number else 204,)))

    def do_PUT(self):
        number = self.begin(self.token)
        if number is None:
            return
        with tempfile.TemporaryFile() as body:  # whole, before anybody waits for it
            status, reason = self.receive(body)
            if not status:
                body.seek(0)
                try:
                    status, reason = self.witness.add(number, read_lines(body))
                except AssertionError as rule:
                    status, reason = 422, str(rule)
                except (
                    AttributeError,
                    LookupError,
                    TypeError,
                    ValueError,
                    RecursionError,
                    StopIteration,
                ):
                    status, reason = 422, "it says something impossible"
        self.answer(status, reason)

    def receive(self, body):
        """Write a body in chunks to a file. Status and reason if it is none; 0 if it is whole."""
        end, left = time.monotonic() + SECONDS, LARGEST
        try:
            while size := int(self.read_size(end), 16):
                left -= size
                if size < 0 or left < 0:
                    return 413, "too long"
                for piece in self.read_pieces(size, end):
                    body.write(piece)
                self.read_size(end)  # a line's end
        except OSError:
            return 408, "too slow"
        except ValueError:
            return 422, "no body in chunks"
        return 0, ""

    def read_size(self, end):
        """A short line."""
        line = b""
        while not line.endswith(b"\n") and len(line) < 20:
            line += b"".join(self.read_pieces(1, end))
        return line.strip()

    def read_pieces(self, size, end):
        """So many bytes, as they come, before a time."""
        while size > 0:
            self.connection.settimeout(max(min(end - time.monotonic(), self.timeout), 0.001))
            piece = self.rfile.read1(min(size, 2**16))
            if not piece or time.monotonic() > end:
                raise TimeoutError
            size -= len(piece)
            yield piece

    def log_message(self, *_):
        """No log: a path says nothing."""


def make_server(folder, port, keys, token, read_token=""):
    """A server that is not started. One process may serve a folder."""
    fields = {"witness": Witness(folder, keys), "token": token, "read_token": read_token}
    return ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (Handler,), fields))


if __name__ == "__main__":
    if not __debug__ or not os.environ.get("WITNESS_TOKEN"):
        sys.exit("set WITNESS_TOKEN, and run it without -O, which leaves out every check")
    make_server(
        sys.argv[1],
        int(sys.argv[2]),
        sys.argv[3:],
        os.environ["WITNESS_TOKEN"],
        os.environ.get("WITNESS_READ_TOKEN", ""),
    ).serve_forever()
