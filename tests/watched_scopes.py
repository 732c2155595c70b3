"""Scopes that demand a witness after three charges: who signs, and how far the witness is."""

from __future__ import annotations

import shutil

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


def copy_aside(place, folder):
    """Copy a ledger of a file and its anchor to ``copy.sqlite`` and ``copy-anchor`` in a folder."""
    place.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(place.anchor, folder / "copy-anchor")
    shutil.copy(place.target, folder / "copy.sqlite")
