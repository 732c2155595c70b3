"""The attacks on the gate on means fool a plain test set, and not the gate."""

from __future__ import annotations

import re

import pytest

from experiments.mean_gate import measure


@pytest.mark.slow
def test_attacks_fool_a_test_set_and_no_gate() -> None:
    lines = "\n".join(measure(10))
    plain = re.findall(r"\| plain test set \| ([\w ]+) \| (\d+) of 10", lines)
    assert int(dict(plain[:6])["votes"]) <= 2 and int(dict(plain[6:])["near"]) >= 1
    gates = re.findall(r"\| (?:epsilon|no noise|planned)[^|]*\| ([\w ]+) \| (\d+) of 10", lines)
    assert [n for _, n in gates[:18]] == ["10"] * 18 and [n for _, n in gates[18:]] == ["0"] * 9
