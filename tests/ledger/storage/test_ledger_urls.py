"""URLs of a ledger, which hold a login: no part of a password is ever told."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpflow.errors import InvalidInput, LedgerUnavailable
from dpflow.ledger import BudgetView, Ledger


@pytest.mark.parametrize(
    "rest",
    [
        *("ann:sec@secret@127.0.0.1:9/db", "ann:sec@secret/x@127.0.0.1:9/db", "ann:sec/secret/db"),
        *("a/nn:secret@127.0.0.1:9/db", "ann:secret@127.0.0.1:port/db", "ann:secret@[::1/db"),
    ],
)
def test_a_url_that_cannot_be_told_is_refused(rest: str, tmp_path: Path) -> None:
    """Where a password is not escaped, parts of it are taken for the host or the database."""
    url = f"postgresql+psycopg://{rest}"
    for open_ledger in (BudgetView, lambda place: Ledger(place, anchor=tmp_path)):
        with pytest.raises(InvalidInput, match="%40 for @") as refused:
            open_ledger(url)
        assert "sec" not in str(refused.value) and refused.value.__context__ is None


@pytest.mark.parametrize(
    "rest",
    ["ann:secret@127.0.0.1:9/db", "ann@127.0.0.1:9/db?password=secret", "ann:sec/secret@127.0.0.1:9/db?sslpassword=secret"],
)  # fmt: skip
def test_a_server_out_of_reach_is_told_without_passwords(rest: str) -> None:
    with pytest.raises(LedgerUnavailable) as refused:
        BudgetView(f"postgresql+psycopg://{rest}")
    assert "sec" not in str(refused.value) and "@127.0.0.1:9/db is out of reach" in str(
        refused.value
    )


def test_a_socket_is_told() -> None:
    with pytest.raises(LedgerUnavailable, match="host=%2Fnowhere"):
        BudgetView("postgresql+psycopg://ann@/db?host=/nowhere&password=secret")
