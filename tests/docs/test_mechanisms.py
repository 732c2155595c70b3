"""The page of mechanisms lists what is built in, and its example plans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from page_runner import ROOT, examples

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.engine import load_request, make_plan
from dpflow.engine.releases.request import ReleaseRequest, parse_request
from dpflow.registry import Registry

if TYPE_CHECKING:
    from smallworld import Tiny

PATH = ROOT / "docs" / "how-to" / "choose-a-mechanism.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_every_mechanism_has_a_row() -> None:
    """Rows and built-in one-shot mechanisms are the same set."""
    registry = Registry.load()
    built_in = {
        n
        for n, m in registry.mechanisms.items()
        if registry.origin[n].startswith("dpflow.mechanisms.")
    }
    listed = {
        name
        for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert listed == {name for name in built_in if isinstance(registry.mechanisms[name], Mechanism)}


def titled(title: str) -> Any:
    """The YAML file of this name on the page."""
    (text,) = [example.text for example in examples(PATH) if example.title == title]
    return yaml.safe_load(text)


def test_the_release_file_has_every_field() -> None:
    """The commented file lists all fields there are, and is one; blocks and bounds stand in comments, for this
    table has none.
    """
    fields = titled("every_field.yml")
    assert {*fields, "blocks", "bounds"} == set(ReleaseRequest.model_fields)
    assert parse_request(fields, Path()).publish is not None


def test_the_example_keeps_its_targets(tiny: Tiny) -> None:
    """A cost for target errors, and both targets are kept; a search costs what it says."""
    block = {"blocks": ["2020-01-01"]}
    plan = make_plan(load_request(tiny.file(**titled("report.yml") | block)), Registry.load())
    assert plan.error_bound is not None
    assert plan.error_bound.half_width["count"] <= 40
    assert plan.error_bound.half_width["mean(age)"] <= 0.5
    search = titled("cost_range.yml") | {"params": {"column": "age", "epsilon": 0.1}} | block
    plan = make_plan(load_request(tiny.file(**search)), Registry.load())
    assert plan.privacy_cost() == ("0.1", "0")
    assert load_request(tiny.file(**titled("total_cost.yml"))).bounds == ("cost range",)


def test_the_break_even_is_where_the_page_says() -> None:
    """At epsilon 1 and delta 1e-6 Laplace noise is smaller at 8 groups, Gaussian at 10."""
    mechanism = Registry.load().find_mechanism("histogram")
    for groups, law in ((8, "discrete-laplace.v1"), (10, "discrete-gaussian.v1")):
        table = Table.model_validate(
            {
                "name": "t",
                "database": "t",
                "privacy_unit": {"column": "user"},
                "contribution_bounds": {"rows": groups, "groups": groups, "rows_per_group": 1},
                "columns": {"user": {}, "kind": {"public_keys": [f"k{i}" for i in range(100)]}},
            }
        )
        params = mechanism.Params.model_validate({"by": "kind", "epsilon": "1", "delta": "1e-6"})
        assert mechanism.event(params, table).kind == law
