"""Tests of what conditions and expressions mean: sessions over private files are kept, as in a release."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def keep_sessions(kept_sessions: None) -> None:
    """To open one takes longer than most answers do."""
