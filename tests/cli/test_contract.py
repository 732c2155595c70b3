"""`dpflow contract`: plan, run, suggest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from dpflow.cli.commands import import_command
from dpflow.errors import ContractViolated, InvalidInput
from dpflow.ledger import Ledger
from tests.smallworld import forbid_reads

if TYPE_CHECKING:
    from smallworld import Tiny


def run(tiny: Tiny, *words: str) -> Any:
    """The command's JSON; whatever it raises is raised."""
    from dpflow.cli.contract import app

    assert import_command("contract") is not None
    told = CliRunner().invoke(app, [*words, "--json"], env={"DPFLOW_LEDGER": str(tiny.ledger)})
    if told.exception is not None:
        raise told.exception
    return json.loads(told.stdout)


def write(tiny: Tiny, **changes: Any) -> str:
    """A contract's file in the tiny world."""
    content = {
        "name": "daily",
        "table": "visits.yml",
        "scope": "visits",
        "mode": "metered",
        "epsilon": "0.5",
        "checks": [{"name": "some", "check": "rows", "at_most": 10**6}],
    }
    place = tiny.folder / "daily.yml"
    place.write_text(yaml.safe_dump({k: v for k, v in (content | changes).items() if v}))
    return str(place)


def test_a_contract_is_planned_run_and_suggested(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan charges nothing, a run is free the second time, history suggests a bound."""
    file, day = write(tiny), ("--block", "2020-01-01")
    with monkeypatch.context() as patch:
        forbid_reads(patch)
        (plan,) = run(tiny, "plan", file, *day)
    assert plan["epsilon"] == "0.5" and "error of some" in plan
    page = tiny.folder / "page.html"
    first = run(tiny, "run", file, *day, "--page", str(page))
    again = run(tiny, "run", file, *day)
    assert first["passed"] and first["checks"] == again["checks"]
    assert again["receipts"][0]["replayed"] and "daily" in page.read_text()
    (found,) = run(tiny, "suggest", file)
    assert found["asked"] == first["checks"][0]["summary"]
    assert found["runs"] == 1 and 20 < int(found["suggested"]) < 200


def test_a_broken_contract_fails_after_it_was_shown(tiny: Tiny) -> None:
    """The page is written, then the command ends with the error."""
    checks = [{"name": "many", "check": "rows", "at_least": 10**6}]
    file, page = write(tiny, checks=checks), tiny.folder / "page.html"
    with pytest.raises(ContractViolated, match="violated: many"):
        run(tiny, "run", file, "--block", "2020-01-01", "--page", str(page))
    assert "not kept" in page.read_text()


def test_a_page_that_cannot_be_written_costs_nothing(tiny: Tiny) -> None:
    (tiny.folder / "alias.html").symlink_to(tiny.database)
    for page, message in (("nowhere/page.html", "cannot be written"), ("alias.html", "private")):
        with pytest.raises(InvalidInput, match=message):
            place = str(tiny.folder / page)
            run(tiny, "run", write(tiny), "--block", "2020-01-01", "--page", place)
    assert Ledger(tiny.ledger).releases() == []


def test_a_watch_is_compared_with_paying_each_time(tiny: Tiny) -> None:
    """The plan names both costs, the margins, and which is cheaper."""
    (plan,) = run(tiny, "plan", write(tiny, mode="watch"), "--block", "2020-01-01")
    assert plan["cheaper"] == "metered" and "margin of some" in plan
    assert plan["watch"].startswith("epsilon 0.5")


@pytest.mark.parametrize("mode", ["public", "trusted"])
def test_free_contracts_need_no_ledger(tiny: Tiny, mode: str) -> None:
    file = write(tiny, mode=mode, scope=None, epsilon=None, checks=None)
    assert run(tiny, "plan", file)[0]["cost"] == "nothing is charged"
    assert run(tiny, "run", file, "--block", "2020-01-01")["passed"]
