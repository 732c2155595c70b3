"""The page of mechanisms lists what is built in, and its example plans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.engine import load_request, make_plan
from dpflow.engine.releases.request import ReleaseRequest, parse_request
from dpflow.registry import Registry

if TYPE_CHECKING:
    from smallworld import Tiny

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "choose-a-mechanism.md").read_text(encoding="utf-8")


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


def test_the_release_file_has_every_field() -> None:
    """The commented file lists all fields there are, and is one."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert set(yaml.safe_load(block)) == set(ReleaseRequest.model_fields)
    assert parse_request(yaml.safe_load(block), Path()).publish is not None


def test_the_example_plans(tiny: Tiny) -> None:
    """A price for target errors, and both targets are kept."""
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    block, quantiles, search, total = re.findall(r"(?:^    .*\n)+", prose, re.MULTILINE)
    wanted = make_plan(load_request(tiny.file(**yaml.safe_load(block))), Registry.load())
    assert wanted.error_bound is not None
    assert wanted.error_bound.half_width["count"] <= 40
    assert wanted.error_bound.half_width["mean(age)"] <= 0.5
    assert (
        make_plan(load_request(tiny.file(**yaml.safe_load(quantiles))), Registry.load()).error_bound
        is not None
    )
    asked = yaml.safe_load(search.replace("cost", "age"))
    assert make_plan(load_request(tiny.file(**asked)), Registry.load()).privacy_cost() == ("0.1", "0")
    request = load_request(tiny.file(**yaml.safe_load(total)))
    assert request.bounds == ("cost range",)


def test_the_break_even_is_where_the_page_says() -> None:
    """At epsilon 1 and delta 1e-6 Laplace noise is smaller at 8 groups, Gaussian at 10."""
    mechanism = Registry.load().mechanism("histogram")
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
