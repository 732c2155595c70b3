"""Scopes that demand a witness after three charges: who signs, and how far the witness is."""

from __future__ import annotations

from dpflow.ledger import ReleaseCharge
from dpflow.ledger.history.checkpoint import Signer

NIGHTLY, OTHER, EVE = map(Signer.create, ("nightly", "other", "eve"))
TERMS = {"table": None, "filter": "basic", "principal": "owner"}
DEMAND = {"witness": NIGHTLY.public_text, "witness_every": 3}


def charge(ask, name):
    return ReleaseCharge(ask.key(name), **ask.terms())


def state_of(ledger):
    (state,) = ledger.witness_states()
    return state.size, state.charges
