"""Candidates' models in processes of their own: no environment, keys, files or network, limited time and memory.

Such a process gets the rows that its model reads, and gives numbers. It is killed when it takes too long. Death before
rows were sent is the file's fault and charges nothing; after that it fails the whole answer (`CandidateStopped`): units
that were scored before would differ from those after it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from dpflow.engine.sessions import model_worker
from dpflow.engine.sessions.candidate import CandidateStopped, LoadedModel
from dpflow.engine.sessions.model_sandbox import is_lockable
from dpflow.engine.sessions.model_worker import read_array, write_array
from dpflow.errors import InvalidInput, TableUnreadable
from dpflow.tables.public.query_worker import read_message, write_message

#: Bytes of memory that a process may address, and seconds for its start.
MAX_MEMORY, MAX_START = 4 * 2**30, 300
#: Bytes of an answer: of each row, such as a label of 250 characters, and beside them.
_ROW_BYTES, _MORE_BYTES = 1000, 10_000


class ModelProcesses:
    """Loads models into processes, which end with it.

    Args:
        max_seconds: that a model may compute, loading it included.
    """

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._processes: list[ModelProcess] = []

    def __enter__(self) -> ModelProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.stop()

    def load(self, name: str, features: Sequence[str], file: Path) -> LoadedModel:
        """A `dpflow.engine.sessions.candidate.ModelLoader`.

        Raises:
            InvalidInput: the file is no model, or too slow or large for one.
            TableUnreadable: this machine does not isolate a process.
        """
        process = ModelProcess(self._max_seconds)
        self._processes.append(process)
        return process.load(name, features, file.read_bytes())


class FirstProcess:
    """The process whose copies compute; it is started with the first candidate, and again where it ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, max_seconds: int) -> tuple[int, IO[bytes], IO[bytes]]:
        """The number of a new copy, and the pipes to and from it. Raises `TableUnreadable`."""
        with self._lock:
            control = self._start()
            theirs, ours = os.pipe(), os.pipe()
            try:
                command = model_worker.COMMAND.pack(model_worker.FORK, max_seconds)
                socket.send_fds(control, [command], [theirs[0], ours[1]])
                _, number = self._receive(control)
            except (OSError, struct.error):
                self._stop()
                for pipe in (theirs[1], ours[0]):
                    os.close(pipe)
                raise _refuse_start() from None
            finally:
                for pipe in (theirs[0], ours[1]):
                    os.close(pipe)
        return number, os.fdopen(theirs[1], "wb"), os.fdopen(ours[0], "rb")

    def kill(self, number: int) -> None:
        """End a copy."""
        with self._lock, contextlib.suppress(OSError, struct.error):
            if self._control is not None:
                self._control.sendall(model_worker.COMMAND.pack(model_worker.KILL, number))
                self._receive(self._control)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _start(self) -> socket.socket:
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        self._stop()
        if not is_lockable():
            raise TableUnreadable(
                "candidates of strangers are scored by a locked process, which needs Linux on x86_64 or aarch64"
            )
        self._control, theirs = socket.socketpair()
        program = f"from {model_worker.__name__} import main; main({MAX_MEMORY})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", program],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # More threads would be processes, which a locked one may not make.
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                cwd="/",
            )
        self._control.settimeout(MAX_START)
        try:
            self._receive(self._control)
        except (OSError, struct.error):
            self._stop()
            raise _refuse_start() from None
        return self._control

    def _receive(self, control: socket.socket) -> tuple[bytes, int]:
        word, number = model_worker.COMMAND.unpack(control.recv(model_worker.COMMAND.size))
        return bytes(word), int(number)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None


def _refuse_start() -> TableUnreadable:
    return TableUnreadable("the process that scores candidates does not start")


class ModelProcess:
    """One copy. It is locked before it gets its model."""

    def __init__(self, max_seconds: float) -> None:
        self._seconds = max_seconds
        self._lock = threading.Lock()
        self._is_stopped = self._is_closed = False
        self.number, self._requests, self._replies = FIRST.fork(int(max_seconds) + 1)

    def load(self, name: str, features: Sequence[str], data: bytes) -> LoadedModel:
        """The model. Raises `InvalidInput`."""
        about = json.dumps({"name": name, "features": list(features)}).encode()
        answer = self._exchange((about, data), model_worker.MAX_TEXT)
        if answer is None:
            raise InvalidInput(
                f"candidate {name}: its file is too large or slow: loading it and scoring 256 rows of zeros takes more "
                f"than {self._seconds:g} s or {MAX_MEMORY} bytes"
            )
        said = json.loads(answer)
        if "refused" in said:
            raise InvalidInput(str(said["refused"]))
        return LoadedModel(
            bytes.fromhex(said["identity"]),
            bool(said["alone"]),
            lambda matrix: self._compute(b"p", matrix),
            lambda matrix: self._compute(b"s", matrix),
            self._require_running,
        )

    def stop(self) -> None:
        """End the process."""
        if self._is_closed:
            return
        self._is_stopped = self._is_closed = True
        FIRST.kill(self.number)
        for stream in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                stream.close()

    def _require_running(self) -> None:
        if self._is_stopped:
            raise CandidateStopped

    def _compute(self, kind: bytes, matrix: Any) -> Any:
        """What the model says of rows. Raises `CandidateStopped`, and `ValueError` where it fails."""
        self._require_running()
        max_bytes = _MORE_BYTES + _ROW_BYTES * len(matrix)
        answer = self._exchange((kind + write_array(matrix),), max_bytes)
        if answer is None:
            raise CandidateStopped
        if answer[:1] != b"+":
            raise ValueError("the model fails on these rows")
        return read_array(answer[1:])

    def _exchange(self, messages: Sequence[bytes], max_bytes: int) -> bytes | None:
        """The process's reply; None, and it is stopped, if there is none in time."""

        def ask() -> bytes | None:
            for message in messages:
                write_message(self._requests, message)
            return read_message(self._replies, max_bytes)

        with self._lock:
            begun = time.monotonic()
            reply = self._wait(ask)
            self._seconds -= time.monotonic() - begun
            if reply is None or self._seconds <= 0:
                self.stop()
                return None
            return reply

    def _wait(self, action: Callable[[], bytes | None]) -> bytes | None:
        timer = threading.Timer(max(self._seconds, 0), FIRST.kill, [self.number])
        timer.daemon = True
        timer.start()
        try:
            return action()
        except (OSError, ValueError):
            return None
        finally:
            timer.cancel()


#: That of this process.
FIRST = FirstProcess()
atexit.register(FIRST.close)
