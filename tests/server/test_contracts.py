"""The door ``contract``: a metered contract of the owner's, paid once for each run of a DAG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_world import TOKENS, ServiceWorld, asker, serve_here, settle, task
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.errors import ContractViolated, InvalidInput
from dpflow.quality.contract_run import ContractOutcome
from dpflow.server.contracts import load_contracts
from dpflow.server.service import load_service

CONTRACT: dict[str, Any] = {
    "name": "daily",
    "table": "visits.yml",
    "mode": "metered",
    "scope": "visits/ann",
    "epsilon": "10",
    "checks": [
        {"name": "old", "check": "violations", "condition": "age > 40", "at_most": "0.01"},
        {"name": "many", "check": "rows", "at_least": 300},
    ],
}


def make_world(folder: Path, **changes: Any) -> ServiceWorld:
    world = ServiceWorld(folder)
    service = yaml.safe_load(world.file.read_text())
    (folder / "daily.yml").write_text(yaml.safe_dump(CONTRACT | changes))
    (folder / "other.yml").write_text(yaml.safe_dump(CONTRACT | {"scope": "visits/bob"}))
    service["contracts"] = {"daily": "daily.yml", "bobs": "other.yml", "hidden": "daily.yml"}
    service["principals"]["ann"] = asker(
        "ann", role="scheduler", doors=["contract"], contracts=["daily", "bobs"]
    )
    world.file.write_text(yaml.safe_dump(service))
    return world


def test_a_contract_is_paid_once_for_a_run(tmp_path: Path) -> None:
    """A violated contract is an answer; a retry is free, another run pays; the verdicts are those of paid noise."""
    world = make_world(tmp_path)

    def spent() -> str:
        return str(world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"])

    with world.test_client("ann") as client:
        body = task("check") | {"contract": "daily"}
        plans = client.post("/v1/tasks/contract", json=body | {"plan_only": True}).json()["plans"]
        assert len(plans) == 1 and "epsilon 10" in plans[0] and spent() == "0"
        assert client.post("/v1/tasks/contract", json=body).status_code == 202
        answer = settle(client, "tasks/contract", body)
        outcome = ContractOutcome.from_json(answer.json())
        assert {one.name: one.verdict for one in outcome.checks} == {
            "old": "violated",
            "many": "kept",
        }
        assert not outcome.passed and outcome.to_json() == answer.json() and spent() == "10"
        again = client.post("/v1/tasks/contract", json=body)
        assert again.status_code == 200 and again.json()["checks"] == answer.json()["checks"]
        assert spent() == "10"
        settle(client, "tasks/contract", task("check", day=2) | {"contract": "daily"})
        assert spent() == "20"
        hidden, absent = (
            client.post("/v1/tasks/contract", json=task() | {"contract": name})
            for name in ("hidden", "hiddex")
        )
        assert hidden.status_code == absent.status_code == 422
        assert hidden.text.replace("hidden", "X") == absent.text.replace("hiddex", "X")
        theirs = client.post("/v1/tasks/contract", json=task() | {"contract": "bobs"})
        assert "paid from another scope" in theirs.json()["message"]
    assert world.ledger.verify().ok


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"mode": "trusted", "epsilon": None, "checks": None, "scope": None},
            "noisy numbers alone",
        ),
        ({"mode": "watch", "period": "run"}, "noisy numbers alone"),
        ({"table": "private.yml"}, "not served"),
    ],
)
def test_a_contract_that_a_row_decides_is_not_served(
    tmp_path: Path, changes: Any, said: str
) -> None:
    world = make_world(tmp_path)
    text = (
        (tmp_path / "visits.yml")
        .read_text()
        .replace("name: visits", "name: private\nrelation: visits")
    )
    (tmp_path / "private.yml").write_text(text)
    changed = {k: v for k, v in (CONTRACT | changes).items() if v is not None}
    (tmp_path / "daily.yml").write_text(yaml.safe_dump(changed))
    with pytest.raises(InvalidInput, match=said):
        load_contracts(load_service(world.file))


def test_a_contract_is_checked_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a DAG, and without a file beside it: paid once for its revision and blocks, by each principal."""
    (tmp_path / "owner").mkdir()
    (tmp_path / "client").mkdir()
    world = make_world(tmp_path / "owner", epsilon="2")
    service = yaml.safe_load(world.file.read_text())
    service["principals"]["ann"]["role"] = "analyst"
    # She pays from the same scope, and has a run of her own.
    service["principals"]["bob"] = asker("bob") | {
        "scope": "visits/ann", "doors": ["contract"], "contracts": ["daily"]
    }  # fmt: skip
    world.file.write_text(yaml.safe_dump(service))
    monkeypatch.chdir(tmp_path / "client")

    def spent() -> str:
        return str(world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"])

    def check(name: str, contract: str = "daily") -> Any:
        monkeypatch.setenv("DPFLOW_TOKEN", TOKENS[name][0])
        return CliRunner().invoke(app, ["contract", "run", contract, "--json"])

    with serve_here(world) as server:
        monkeypatch.setenv("DPFLOW_SERVER", server)
        first = check("ann")
        outcome = ContractOutcome.from_json(json.loads(first.stdout))
        assert isinstance(first.exception, ContractViolated) and not outcome.passed
        assert spent() == "2"
        again = ContractOutcome.from_json(json.loads(check("ann").stdout))
        assert again.checks == outcome.checks and spent() == "2"
        check("bob")
        assert spent() == "4"
        assert "no contract 'hidden'" in str(check("ann", "hidden").exception)
        with world.test_client("cyd") as client:
            assert client.post("/v1/contract", json={"contract": "daily"}).status_code == 403
    assert not list((tmp_path / "client").iterdir()) and world.ledger.verify().ok
