"""Recomputing a history costs little more than hashing it. `python -m bench.verification` has the
parts.
"""

from __future__ import annotations

import pytest

from bench.verification import BAR, make_ledger, measure


@pytest.mark.slow
def test_rules_cost_little_beside_hashing(tmp_path):
    """Chain, seals and rules against hashing, HMAC and json.loads of the same entries, in processor
    time. It was 2.9 times with JSON encoders made for each entry and digests of representations.
    """
    _, least = measure(make_ledger(tmp_path, 2000))
    floor = least["hashing, HMAC and json.loads"]
    assert floor < least["chain, seals and rules"] <= BAR * floor
    assert least["the whole verification"] <= 2 * BAR * floor
