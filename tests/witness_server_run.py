"""The reference server of a witness, docs/audit/witness_server.py, in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit_program import load_program

MODULES = ("fitting", "shapes", "costs", "signatures", "witness_server")


@contextlib.contextmanager
def serve_witness(
    folder: Path, keys: Sequence[str], token: str, read_token: str = "", **limits: int
) -> Iterator[str]:
    """Its address while it runs.

    Args:
        limits: values of the module's constants.
    """
    with load_program(MODULES) as modules:
        module = modules["witness_server"]
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
