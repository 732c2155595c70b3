"""docs/how-to/deploy.md and operations.md: each setting is one of Airflow's, each service one of
docker-compose.yml.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow_settings import find_wrong_settings
from compose_services import COMPOSE, ROOT, load_script
from page_runner import examples

PAGES = [ROOT / "docs" / "how-to" / name for name in ("deploy.md", "operations.md")]


def find_settings(node: Any) -> dict[str, str]:
    """Variables in a fragment: keys of a mapping, or Kubernetes' lists of name and value."""
    if isinstance(node, list):
        return {name: value for part in node for name, value in find_settings(part).items()}
    if not isinstance(node, dict):
        return {}
    if str(node.get("name")).startswith("AIRFLOW"):
        return {node["name"]: node["value"]}
    here = {name: value for name, value in node.items() if str(name).startswith("AIRFLOW")}
    return here | find_settings(list(node.values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_airflow_knows_every_setting(page: Path) -> None:
    settings = [
        find_settings(document)
        for example in examples(page)
        if example.language == "yaml"
        for document in yaml.safe_load_all(example.text)
    ]
    assert sum(map(len, settings)) >= 2
    assert [wrong for fragment in settings for wrong in find_wrong_settings(fragment)] == []
    # in prose, too
    prose = re.findall(r"`\[(\w+)\] (\w+)`", page.read_text())
    names = {f"AIRFLOW__{section}__{option}".upper(): "1" for section, option in prose}
    assert find_wrong_settings(names) == []


def test_compose_has_every_service_that_the_pages_name() -> None:
    """Commands of `docker compose` name services; a fragment's connection has the fields of ours."""
    for page in PAGES:
        for command in re.findall(r"docker compose run --rm ([\w-]+)", page.read_text()):
            assert command in COMPOSE["services"]
    text = PAGES[0].read_text()
    for volume in COMPOSE["volumes"]:
        assert f"| `{volume}` |" in text


def test_the_connections_have_the_fields_that_init_writes(tmp_path: Path) -> None:
    """The page's reader has those of ours; who charges has an anchor, too."""
    load_script("make_secrets").write_secrets(tmp_path)
    (made,) = json.loads((tmp_path / "page_connections.json").read_text()).values()
    (example,) = [e for e in examples(PAGES[0]) if e.title == "connections.json"]
    shown = json.loads(example.text)["dpflow_ledger"]
    assert shown.keys() == made.keys() | {"extra"}
    assert json.loads(shown["extra"]).keys() == {"anchor"}
