"""`dpflow ui`: the budget page."""

from __future__ import annotations

import hmac
from typing import Annotated

import typer

from dpflow.cli.console import LedgerOption, require_place
from dpflow.cli.statement import PublishedOption, find_published
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra


def command(
    ledger: LedgerOption = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; put TLS in front of any other than this.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8322,
    prefix: Annotated[
        str, typer.Option(help="Where a proxy shows the page, such as /budget.")
    ] = "",
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help="A folder or another place of signed checkpoints, to be held against it; DPFLOW_LEDGER_WITNESS if left out."
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Verifier key of who signs them; may be repeated."),
    ] = None,
    published: PublishedOption = None,
    token_sha256: Annotated[
        str | None,
        typer.Option(
            envvar="DPFLOW_UI_TOKEN_SHA256",
            help="SHA-256 of the token, as --new-token prints it; a token of this run if left out.",
        ),
    ] = None,
    token: Annotated[
        bool, typer.Option("--new-token", help="Make a token that stays, and exit.")
    ] = False,
) -> None:
    """Show budgets, releases, sessions and alarms in a browser.

    It reads the ledger without its anchor, and writes nothing.
    """
    from dpflow.server.service import new_token, token_digest

    secret, digest = new_token()
    if token:
        print(f"token (shown once): {secret}\ntoken_sha256 (for --token-sha256): {digest}")
        return
    if token_sha256 is not None and (
        len(token_sha256) != 64 or not set(token_sha256) <= set("0123456789abcdef")
    ):
        raise InvalidInput("token_sha256 is no SHA-256; make one with: dpflow ui --new-token")
    with require_extra("serve", "the budget page"):
        import uvicorn

        from dpflow.ui.application import clean_prefix, create_app
    from dpflow.ledger import BudgetView
    from dpflow.ui.token_gate import TokenGate
    from dpflow.ui.visit import Audience, Host

    # Opened before the port: a wrong place is told at once.
    view = BudgetView(require_place(ledger), checkpoints=checkpoints, keys=key or ())
    host_page = Host(find_published(published))
    app = create_app(lambda: view, audience=lambda: Audience(), prefix=prefix, host=host_page)
    expected = token_sha256 or digest
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}{clean_prefix(prefix)}/"
    print(place if token_sha256 else f"{place}?token={secret}", flush=True)
    uvicorn.run(
        TokenGate(app, lambda text: hmac.compare_digest(token_digest(text), expected)),
        host=host,
        port=port,
        log_level="warning",
        # Addresses hold the token once.
        access_log=False,
    )
