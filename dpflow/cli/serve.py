"""`dpflow serve`: private predictions over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.console import LedgerOption, open_ledger
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra


def command(
    file: Annotated[
        Path | None, typer.Argument(help="A service file (YAML): session, principals.")
    ] = None,
    ledger: LedgerOption = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; put TLS in front of any other than this.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8321,
    token: Annotated[
        bool, typer.Option("--new-token", help="Make a token for a principal, and exit.")
    ] = False,
) -> None:
    """Answer points over HTTP.

    Every principal's session is charged when the service first starts, and resumed after that.
    """
    from dpflow.server.service import load_service, new_token, open_sessions

    if token:
        secret, digest = new_token()
        print(
            f"token (shown once, for the principal): {secret}\ntoken_sha256 (for the service file): {digest}"
        )
        return
    if file is None:
        raise InvalidInput("name a service file, or --new-token to make a token for one")
    # After the token: making one needs no server installed.
    with require_extra("serve", "a server"):
        import uvicorn

        from dpflow.server.app import create_app
    from dpflow.registry import Registry

    service, book = load_service(file), open_ledger(ledger, files=[file])
    # Charged before the port opens: no request ever waits for a budget.
    sessions = open_sessions(service, book, Registry.load())
    for name, session in sessions.items():
        print(f"{name}: {session.cached_left} predictions left")
    uvicorn.run(
        create_app(service, sessions, book),
        host=host,
        port=port,
        log_level="warning",
        # /metrics counts requests; an access log would say who asked when.
        access_log=False,
    )
