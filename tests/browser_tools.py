"""A browser for all pages: Debian's chromium, by playwright-core."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "integration" / "browser" / "look_at_budgets.mjs"


@pytest.fixture(scope="session")
def browser_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with playwright-core."""
    place = tmp_path_factory.mktemp("tools")
    subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(place), "playwright-core@1.64.1"], check=True
    )
    return place


def look(tools: Path, *orders: dict[str, Any]) -> list[dict[str, Any]]:
    """What a browser sees of each page that is ordered."""
    command = ["node", str(SCRIPT), str(tools), json.dumps(orders)]
    return list(
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    )
