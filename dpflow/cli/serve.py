"""`dpflow serve`: tables, releases, SQL and predictions over HTTP."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.console import LedgerOption, open_ledger
from dpflow.counted import counted
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.loopback import is_loopback

if TYPE_CHECKING:
    from dpflow.engine.prediction.session import PredictionSession


def command(
    file: Annotated[
        Path | None, typer.Argument(help="A service file (YAML): tables, principals, limits.")
    ] = None,
    ledger: LedgerOption = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than this needs TLS, or a proxy.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8321,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM): answer over HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of it (PEM).")] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="Listen beyond this machine without TLS: a proxy before it has it.",
        ),
    ] = False,
    log_requests: Annotated[
        bool,
        typer.Option(
            help="Write a line for each request: principal, endpoint, status, time; no points, no answers."
        ),
    ] = True,
    token: Annotated[
        bool, typer.Option("--new-token", help="Make a token for a principal, and exit.")
    ] = False,
) -> None:
    """Serve tables, releases, SQL and predictions over HTTP.

    What was charged and not settled when the service last ended is finished first. Every session of
    predictions is charged when the service first starts, and resumed after that.
    """
    from dpflow.server.service import load_service, new_token

    if token:
        secret, digest = new_token()
        print(
            f"token (shown once, for the principal): {secret}\ntoken_sha256 (for the service file): {digest}"
        )
        return
    if file is None:
        raise InvalidInput("name a service file, or --new-token to make a token for one")
    if "DPFLOW_SIGNING_KEY" in os.environ:
        raise InvalidInput(
            "a service reads no person's key, so that none of its decisions is its own; unset DPFLOW_SIGNING_KEY"
        )
    # After the token: making one needs no server installed.
    with require_extra("serve", "a server"):
        import uvicorn

        from dpflow.server.app import STOP_SECONDS, create_app
        from dpflow.server.connections import (
            ACCEPTED_AT_ONCE,
            BoundedConnection,
            QueueingServer,
            TlsConnection,
        )
        from dpflow.server.predictions import open_in_background, open_sessions
        from dpflow.server.principals import Principals
    from dpflow.registry import Registry

    tls = _load_tls(tls_certificate, tls_key)
    if tls is None and not behind_proxy and not is_loopback(host):
        raise InvalidInput(
            f"tokens would travel to {host} in the clear; give --tls-certificate and --tls-key, or --behind-proxy where a "
            "proxy before this service has TLS"
        )
    service, registry = load_service(file), Registry.load()
    own_anchor = service.anchor if ledger is None else None
    book = open_ledger(ledger or service.ledger, files=[file], anchor=own_anchor)
    if log_requests:
        _log_requests()
    # No point is answered before all sessions are charged and learned.
    opened = open_in_background(partial(open_sessions, service, book, registry))
    connection: Any = BoundedConnection if tls is None else partial(TlsConnection, tls)
    server = QueueingServer(
        uvicorn.Config(
            create_app(service, Principals(file, service), opened, book, registry),
            host=host,
            port=port,
            log_level="warning",
            # It would say paths as strangers wrote them.
            access_log=False,
            server_header=False,
            http=connection,
            # Nothing here speaks it, and such a connection is none of ours.
            ws="none",
            # That of uvloop reads on where TLS has to read first.
            loop="auto" if tls is None else "asyncio",
            backlog=ACCEPTED_AT_ONCE,
            # Else a client that never ends its request keeps the process.
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )

    def say_ready(done: Future[Mapping[str, PredictionSession]]) -> None:
        if done.exception() is not None:
            server.should_exit = True
            return
        for name, session in done.result().items():
            print(f"{name}: {counted(session.cached_left, 'prediction')} left", flush=True)
        if service.tables:
            print(f"{file} serves {', '.join(service.tables)} at {host}:{port}", flush=True)

    opened.add_done_callback(say_ready)
    server.run()
    # What kept sessions from opening is this command's error.
    if opened.done():
        opened.result()


def _load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What the server needs for HTTPS, if it has that. Raises `InvalidInput`."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InvalidInput("TLS needs a certificate and its key: --tls-certificate and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"{certificate} and {key} are no certificate and key in PEM that can be read "
            f"({type(error).__name__}); correct them"
        ) from None
    return context


def _log_requests() -> None:
    log = logging.getLogger("dpflow.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
