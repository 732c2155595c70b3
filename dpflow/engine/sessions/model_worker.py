"""The program of the processes that compute candidates' predictions: `dpflow.engine.sessions.model_process` starts it.

A first process imports what models need and sees no model. For each candidate it makes a copy of itself, which locks
itself (`dpflow.engine.sessions.model_sandbox`), and only then gets a file. No answer holds a text that was made after rows
came.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import struct
import warnings
from importlib import import_module
from typing import IO, Any

import numpy as np

from dpflow.engine.sessions.candidate import FIXED, LoadedModel, load_bytes
from dpflow.engine.sessions.model_sandbox import lock_process
from dpflow.errors import InvalidInput
from dpflow.tables.public.query_worker import read_message, write_message

#: What is sent to the first process, and its answers: a word, and seconds or the number of a process.
COMMAND = struct.Struct(">4sQ")
FORK, KILL = b"fork", b"kill"
READY = COMMAND.pack(b"done", 0)
#: Bytes of a message about a model, and of the model.
MAX_TEXT, MAX_FILE = 100_000, 2**30


def write_array(array: Any) -> bytes:
    """An array of numbers or texts. Raises `ValueError` for another one."""
    values = np.asarray(array)
    if values.dtype == object and all(isinstance(value, str) for value in values.ravel()):
        values = values.astype(str)
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()


def read_array(content: bytes) -> Any:
    """The array of `write_array`. Raises `ValueError` for anything else."""
    return np.load(io.BytesIO(content), allow_pickle=False)


def import_models() -> None:
    """Import all that a model may be made of or use, and use some, while files can be opened."""
    import skops.io

    # Threads of a model's own would be processes, which a locked one may not make.
    import_module("joblib").parallel_config(backend="sequential")
    for name in FIXED:
        module, _, last = name.rstrip(".").rpartition(".")
        import_module(module if last[0].isupper() else f"{module}.{last}")
    from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, PolynomialFeatures, StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    rows, labels = np.arange(16.0).reshape(8, 2) % 5, np.arange(8) % 2
    models = [
        make_pipeline(
            SimpleImputer(), StandardScaler(), PolynomialFeatures(), LogisticRegression()
        ),
        make_pipeline(KBinsDiscretizer(2, encode="ordinal"), GaussianNB()),
        RandomForestClassifier(2),
        BaggingClassifier(DecisionTreeClassifier(), 2),
        *(AdaBoostClassifier(n_estimators=2), SGDClassifier(max_iter=2), Ridge()),
    ]
    for model in models:
        data = skops.io.dumps(model.fit(rows, labels))
        loaded = load_bytes("", ("a", "b"), "", data)
        loaded.predict(rows)
        loaded.score(rows)


def load_first(source: IO[bytes], target: IO[bytes]) -> LoadedModel | None:
    """Load the model that the first two messages bring, and say what it is; None if it is none."""
    about, data = read_message(source, MAX_TEXT), read_message(source, MAX_FILE)
    if about is None or data is None:
        return None
    fields = json.loads(about)
    try:
        model = load_bytes(fields["name"], tuple(fields["features"]), "the file", data)
        # It is slow or large for any row, so it is before there is one.
        zeros = np.zeros((256, len(fields["features"])))
        for function in (model.predict, model.score):
            try:
                function(zeros)
            except Exception:  # noqa: BLE001, S112  a model may refuse such rows
                continue
    except InvalidInput as error:
        write_message(target, json.dumps({"refused": str(error)[:2000]}).encode())
        return None
    said = {"identity": model.identity.hex(), "alone": model.predicts_rows_alone}
    write_message(target, json.dumps(said).encode())
    return model


def serve_model(source: IO[bytes], target: IO[bytes], max_bytes: int, max_seconds: int) -> None:
    """Answer about one model until the pipe ends."""
    lock_process(max_bytes, max_seconds)
    model = load_first(source, target)
    while model is not None and (request := read_message(source, 2**40)) is not None:
        function = {b"p": model.predict, b"s": model.score}[request[:1]]
        try:
            answer = b"+" + write_array(function(read_array(request[1:])))
        # Any failure may depend on a row, so it is only said that there is one.
        except Exception:  # noqa: BLE001
            answer = b"-"
        write_message(target, answer)


def main(max_bytes: int) -> None:
    """Make copies until the socket on the standard input ends: ``fork`` comes with the seconds that a copy may compute
    and two pipes, and is answered with its process's number; ``kill`` comes with that number.
    """
    warnings.simplefilter("ignore")
    import_models()
    control = socket.socket(fileno=0)
    control.sendall(READY)
    copies: set[int] = set()
    while True:
        request, pipes, _, _ = socket.recv_fds(control, COMMAND.size, 2)
        if len(request) < COMMAND.size:
            os._exit(0)
        word, number = COMMAND.unpack(request)
        if word == KILL:
            # Not waited for before, so that the number is still this copy's.
            if number in copies:
                os.kill(number, signal.SIGKILL)
                os.waitpid(number, 0)
                copies.remove(number)
            control.sendall(READY)
            continue
        copy = os.fork()
        if copy == 0:
            control.close()
            # Without what an interpreter does at its end, for which a locked one has no rights.
            with contextlib.suppress(BaseException):
                serve_model(os.fdopen(pipes[0], "rb"), os.fdopen(pipes[1], "wb"), max_bytes, number)
            os._exit(0)
        copies.add(copy)
        for pipe in pipes:
            os.close(pipe)
        control.sendall(COMMAND.pack(FORK, copy))
