"""The reference server of a witness, docs/audit/witness_server.py, in this process."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from audit_program import PROGRAM

MODULES = ("fitting", "shapes", "costs", "signatures", "witness_server")


@contextlib.contextmanager
def load_server() -> Iterator[Any]:
    """Its module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROGRAM))
        try:
            yield importlib.import_module("witness_server")
        finally:
            for name in MODULES:
                sys.modules.pop(name, None)


@contextlib.contextmanager
def serve_witness(
    folder: Path, keys: Sequence[str], token: str, read_token: str = "", **limits: int
) -> Iterator[str]:
    """Its address while it runs.

    Args:
        limits: values of the module's constants.
    """
    with load_server() as module:
        vars(module).update(limits)
        server = module.make_server(folder, 0, [*keys], token, read_token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield "http://{}:{}".format(*server.server_address)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
