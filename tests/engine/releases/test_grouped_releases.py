"""Releases by several columns and expressions, through plan and ledger."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dpflow.engine.releases.execute import release
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import load_request
from dpflow.ledger import Ledger
from dpflow.registry import Registry

if TYPE_CHECKING:
    from smallworld import Tiny


def test_one_spelling_one_plan(tiny: Tiny) -> None:
    """Spaces, case and a list are one grouping, hence one digest; another order is another one."""
    registry = Registry.load()

    def plan(by: object) -> Plan:
        params = {"by": by, "epsilon": "0.5"}
        return make_plan(load_request(tiny.file(mechanism="histogram", params=params)), registry)

    digests = {plan(by).digest for by in ("city, age > 30", "CITY,(age>30)", ["city", "age > 30"])}
    assert len(digests) == 1
    assert plan("age > 30, city").digest not in digests


def test_a_release_has_every_cell(tiny: Tiny) -> None:
    """Each combination of public keys comes with its noise, and its key says which it is."""
    params = {"by": "city, bucket(age, 50)", "epsilon": "0.5"}
    registry = Registry.load()
    plan = make_plan(load_request(tiny.file(mechanism="histogram", params=params)), registry)
    receipt = release(plan, Ledger(tiny.ledger), registry)
    keys = [tuple(json.loads(row.key)) for row in receipt.result.rows]
    assert keys == [(city, age) for city in ("Oslo", "Rome") for age in ("0", "50", "100")]


def test_a_combined_column_depends_on_its_parts(tiny: Tiny) -> None:
    """Other public keys of a part are another release."""
    digests = set()
    for keys in (["Oslo", "Rome"], ["Oslo", "Paris"]):
        columns = {
            "city": {"public_keys": keys},
            "old": {"expression": "age > 40", "public_keys": ["true", "false"]},
            "age": {"lower": 0, "upper": 120},
            "both": {"parts": ["city", "old"]},
        }
        tiny.declare(columns=columns)
        file = tiny.file(mechanism="histogram", params={"by": "both", "epsilon": "0.5"})
        digests.add(make_plan(load_request(file), Registry.load()).digest)
    assert len(digests) == 2
