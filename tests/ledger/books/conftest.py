"""Ledgers with a scope that demands a witness, and where the witness keeps its checkpoints."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from watched_scopes import DEMAND, NIGHTLY, OTHER, TERMS, copy_aside

from dpflow.ledger.audit.witness import open_place


@pytest.fixture(params=["folder", "git", "http", "s3", "table"])
def keep(request, make_keep):
    """A place of a witness of each kind, that those who charge know."""
    return make_keep(request.param, NIGHTLY.public_text, OTHER.public_text)


@pytest.fixture
def watched(place):
    """A ledger with a scope that demands a witness after three charges, and one that does not."""
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ledger.grant("free", 9, 0, **TERMS)
    return ledger


@pytest.fixture
def live():
    """Of what `restored` is a copy: its ledger, and the first checkpoint that its witness signed."""
    return SimpleNamespace()


@pytest.fixture
def restored(make_place, keep, ask, tmp_path, live):
    """Opens a copy, put back with its anchor, whose witness has signed a later entry: nothing inside shows it."""
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 9, 0, **TERMS, **DEMAND)
    ledger.grant("free", 9, 0, **TERMS)
    live.ledger = ledger
    ledger.witness(keep, NIGHTLY)
    live.first = open_place(keep).newest()[1]
    ask.reserve(ledger, "d0")
    copy_aside(place, tmp_path)
    ask.reserve(ledger, "lost")
    ledger.witness(keep, NIGHTLY)
    return make_place(str(tmp_path / "copy.sqlite"), tmp_path / "copy-anchor").open
