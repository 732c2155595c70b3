"""What a spender's database role may do on PostgreSQL, with the SQL that is shipped."""

from __future__ import annotations

from importlib import resources

import psycopg
import pytest

from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger


@pytest.fixture
def spender(postgres, tmp_path):
    """The URL of a granted ledger for somebody who may only spend."""
    url = postgres()
    owner = Ledger(url, anchor=tmp_path / "anchor", create=True)
    owner.grant("flights", 1, 0, filter="basic", principal="owner")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for _ in range(2):  # running it again is harmless
            connection.execute(resources.files("dpflow.ledger").joinpath("roles.sql").read_text())
    return url + ("&" if "?" in url else "?") + "options=-crole%3Ddpflow_spender"


def test_a_spender_spends(spender, tmp_path, ask):
    """Charging, settling, retrying, sessions: all of it works for the role."""
    ledger = Ledger(spender, anchor=tmp_path / "anchor")
    ledger.settle(ask.reserve(ledger), {"value": 1})
    ask.reserve(ledger, "b"), ask.reserve(ledger, "b")
    held = ledger.open_session(ask.key("gate"), **ask.terms(), state={"v": 0}, exclusive=False)
    ledger.answer(held.session_id, query="q", expected_version=0, state={}, answer={}, closed=True)
    assert ask.spent(ledger) == {"": "0.3"} and ledger.verify().ok


def test_a_spender_cannot_grant(spender, tmp_path):
    """A grant by the role is refused, and the message says why."""
    ledger = Ledger(spender, anchor=tmp_path / "anchor")
    with pytest.raises(InvalidInput, match="database role"):
        ledger.grant("flights", 9, 0, filter="basic", principal="me")
    assert ledger.scope("flights").epsilon == 1 and ledger.verify().ok


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("UPDATE dpflow_scope SET protects = ''", "permission denied"),
        ("UPDATE dpflow_entry SET kind = ''", "permission denied"),
        ("DELETE FROM dpflow_entry", "permission denied"),
        ("TRUNCATE dpflow_entry", "permission denied"),
        ("DELETE FROM dpflow_account", "permission denied"),
        ("DELETE FROM dpflow_release", "permission denied"),
        ("UPDATE dpflow_release SET digest = ''", "permission denied"),
        ("UPDATE dpflow_account SET epsilon = 0", "stays so"),
        ("UPDATE dpflow_release SET result = '{}'", "stays so"),
        ("DROP TABLE dpflow_entry", "must be owner"),
    ],
)
def test_a_spender_cannot_rewrite(spender, tmp_path, ask, statement, refusal):
    """By hand, too, the role takes no charge back and changes nothing that is settled."""
    ledger = Ledger(spender, anchor=tmp_path / "anchor")
    ledger.settle(ask.reserve(ledger), {"value": 1})
    with (
        psycopg.connect(spender.replace("+psycopg", "")) as connection,
        pytest.raises(psycopg.Error, match=refusal),
    ):
        connection.execute(statement)
    assert ledger.verify().ok
