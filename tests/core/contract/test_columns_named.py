"""Which columns a text may name: what depends on a declaration follows from it."""

from __future__ import annotations

import pytest

from dpflow.core.contract.columns import may_name


@pytest.mark.parametrize(
    ("text", "column", "named"),
    [
        ("old = 1", "old", True),
        ("cold = 1", "old", False),
        ("OLD = 1", "old", True),
        ('"a b" = 1', "a b", True),
        ("t.old = 1", "t.old", True),
        # As texts write such names: with a sign doubled or escaped.
        ('"o""ld" = 1', 'o"ld', True),
        ("Sums(column='o\\\\ld')", "o\\ld", True),
        ("Sums(column='o\\nld')", "o\nld", True),
    ],
)
def test_no_name_is_overlooked(text: str, column: str, named: bool) -> None:
    assert may_name(text, column) is named
