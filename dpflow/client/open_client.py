"""From a place to a `Client`."""

from __future__ import annotations

import os

from dpflow.catalogue import find_server
from dpflow.client.interface import Client
from dpflow.client.tokens import find_token
from dpflow.errors import InvalidInput
from dpflow.extras import require_local


def connect(server: str | None = None, *, token: str | None = None) -> Client:
    """Tables and budgets of a service, or of this machine.

    Args:
        server: the service, such as ``https://dp.example.org``; if left out, the tables and the ledger of
            ``dpflow.yml`` are used in this process.
        token: whose principal asks; that of DPFLOW_TOKEN (for DPFLOW_SERVER alone) or of ``dpflow login``
            if left out.

    Raises:
        InvalidInput: no token is known for the service, or it is ``http://`` beyond this machine; or no address was given
            and ``dpflow.yml`` or DPFLOW_SERVER names a service in place of a ledger.
    """
    if server is None:
        _require_local()
        # It brings tables and ledger, which who asks a service need not have.
        with require_local("a ledger here"):
            from dpflow.client.local import LocalClient

        return LocalClient()
    from dpflow.client.remote import RemoteClient, check_server

    place = check_server(server)
    return RemoteClient(place, token or find_token(place))


def _require_local() -> None:
    """Raises `InvalidInput` where tables and ledger are at a service, which is asked by its address."""
    named = None if os.environ.get("DPFLOW_LEDGER") else find_server()
    if named is None:
        return
    host = named.partition("://")[2]
    raise InvalidInput(
        f"tables and ledger are at {named}, which is asked by its address: give it to connect, or write "
        f"dpflow://{host}/ as the URL"
    )
