"""The page of threats names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from page_runner import ROOT

PAGE = (ROOT / "docs" / "guides" / "threats.md").read_text()
NAMED = sorted(set(re.findall(r"`(\S+\.py)::(test_\w+)`", PAGE)))


@cache
def list_tests(path: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert name in list_tests(path)


def test_every_threat_names_a_test() -> None:
    """No line of the tables of threats is without one; another page's line is not taken for one."""
    tables = re.split(r"^\| threat \|.*\n\| --- .*\n", PAGE, flags=re.MULTILINE)[1:]
    lines = [line for table in tables for line in table.split("\n\n")[0].splitlines()]
    assert len(lines) >= 25
    assert [line for line in lines if "::test_" not in line] == []
