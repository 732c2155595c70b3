"""From a place to a `Client`."""

from __future__ import annotations

from dpflow.client.interface import Client
from dpflow.client.tokens import find_token


def connect(server: str | None = None, *, token: str | None = None) -> Client:
    """Tables and budgets of a service, or of this machine.

    Args:
        server: the service, such as ``https://dp.example.org``; if left out, the tables and the ledger of
            ``dpflow.yml`` are used in this process.
        token: whose principal asks; that of DPFLOW_TOKEN (for DPFLOW_SERVER alone) or of ``dpflow login``
            if left out.

    Raises:
        InvalidInput: no token is known for the service, or it is ``http://`` beyond this machine.
    """
    if server is None:
        # It brings tables and ledger, which who asks a service need not have.
        from dpflow.client.local import LocalClient

        return LocalClient()
    from dpflow.client.remote import RemoteClient, check_server

    place = check_server(server)
    return RemoteClient(place, token or find_token(place))
