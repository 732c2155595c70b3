"""`dpflow ui`: the address with its token, and nothing without."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.demo.airflow_environment import find_free_port
from dpflow.server.service import token_digest

if TYPE_CHECKING:
    from budget_books import Books


def start(books: Books, *options: str) -> tuple[subprocess.Popen[str], str]:
    """The command, and the address that it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DPFLOW")}
    command = [
        sys.executable,
        "-c",
        "from dpflow.cli import main; main()",
        "ui",
        "--port",
        str(find_free_port()),
    ]
    process = subprocess.Popen(
        [*command, "--ledger", str(books.place), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ask(address: str, **options: Any) -> httpx.Response:
    """A page of a server that may still be starting."""
    transport = httpx.HTTPTransport(retries=8)
    with httpx.Client(transport=transport, follow_redirects=True) as client:
        return client.get(address, **options)


def test_the_printed_address_opens_the_page(books: Books) -> None:
    """Its token becomes a cookie and leaves the address; without it there is nothing. An interrupt
    ends the command.
    """
    process, address = start(books, "--prefix", "budget//")
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/budget/\?token=\S{40,}", address)
        page = ask(address)
        assert "Privacy budgets" in page.text and "token" not in str(page.url)
        assert (
            page.history[0].headers["set-cookie"].lower().endswith("httponly; path=/; samesite=lax")
        )
        bare, token = address.split("?token=")
        for refused in (ask(bare), ask(f"{bare}?token=no"), ask(bare, cookies={"dpflow_ui": "no"})):
            assert refused.status_code == 401 and "flights" not in refused.text
        assert (
            ask(f"{bare}releases", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        )
        assert ask(f"{bare}scope?name=flights&token={token}").url.query == b"name=flights"
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors and token not in errors


def test_a_token_that_stays(books: Books) -> None:
    """Made once, named by its digest, and not printed again."""
    made = CliRunner().invoke(app, ["ui", "--new-token"]).output
    secret, digest = re.findall(r": (\S+)$", made, re.MULTILINE)
    assert token_digest(secret) == digest
    process, address = start(books, "--token-sha256", digest)
    try:
        assert "token" not in address
        assert ask(address, headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        assert ask(address, headers={"Authorization": f"Bearer {digest}"}).status_code == 401
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize(("arguments", "says"), [
    (["--ledger", "nowhere.sqlite"], "there is no ledger at"),
    (["--token-sha256", "abc"], "dpflow ui --new-token"),
])  # fmt: skip
def test_a_mistake_is_told_before_the_port_opens(arguments: list[str], says: str) -> None:
    from dpflow.errors import InvalidInput

    outcome = CliRunner().invoke(app, ["ui", *arguments])
    assert isinstance(outcome.exception, InvalidInput) and says in str(outcome.exception)
