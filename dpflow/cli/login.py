"""`dpflow login`: keep the token of a service, for the commands that ask it."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

import typer

import dpflow
from dpflow.catalogue import find_server
from dpflow.client.remote import check_server
from dpflow.client.tokens import store_token
from dpflow.errors import InvalidInput


def command(
    server: Annotated[
        str | None,
        typer.Argument(
            help="The service, such as https://dp.example.org; DPFLOW_SERVER, or that of dpflow.yml, if left out."
        ),
    ] = None,
) -> None:
    """Keep the token of a service in a file of mode 0600, once the service has accepted it.

    The token is asked for, or read from the standard input where that is no terminal.
    """
    server = server or find_server()
    if server is None:
        raise InvalidInput("name the service, such as: dpflow login https://dp.example.org")
    place = check_server(server)
    is_person = sys.stdin.isatty()
    token = getpass.getpass(f"token for {place}: ") if is_person else sys.stdin.readline()
    tables = dpflow.connect(place, token=token.strip()).tables()
    file = store_token(place, token.strip())
    names = ", ".join(table["table"] for table in tables) or "none"
    print(f"{place} accepts it (tables: {names}); it is kept in {file}")
