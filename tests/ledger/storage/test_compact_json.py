"""One spelling of JSON, which digests, seals and exports rely on: that of the standard library."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.ledger.storage.compact_json import canonical_json, encode_finite, encode_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
#: Names of one kind can be sorted.
NAMES = st.sampled_from([st.text(), st.integers(), st.floats(), st.booleans()])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | NAMES.flatmap(lambda names: st.dictionaries(names, inner))
    ),
)


@given(VALUES)
def test_texts_are_those_of_the_standard_library(value):
    """With spaces left out, names sorted or as they come."""
    assert encode_json(value) == json.dumps(value, separators=(",", ":"))
    assert canonical_json(value) == json.dumps(value, separators=(",", ":"), sort_keys=True)


@pytest.mark.parametrize("value", [b"bytes", Fraction(1, 3), {1, 2}, {"name": object()}])
def test_what_is_no_json_is_refused(value):
    """As the standard library does."""
    with pytest.raises(TypeError):
        encode_json(value)


def test_numbers_that_are_not_finite_are_refused():
    """Where a reader will parse it; and a list that holds itself ends."""
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            encode_finite([value])
    endless = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        encode_finite(endless)
