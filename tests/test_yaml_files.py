"""No file that people write may say a thing twice."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpflow
from dpflow.cli.ask import read_queries
from dpflow.cli.calculate import parse_words
from dpflow.errors import DpflowError, InvalidInput
from dpflow.yaml_files import RepeatedKey, load_yaml, parse_json, parse_yaml

ROOT = Path(dpflow.__file__).parent


@pytest.mark.parametrize(
    "text",
    [
        "epsilon: '0.01'\nepsilon: '0.9'",
        "a: {b: 1, c: 2, b: 3}",
        "- {a: 1, a: 1}",
        "a: 1\n'a': 2",
        "1: x\n0x1: y",
        "2020-01-01: x\n2020-01-01: y",
        "base: &b {x: 1}\na: {<<: *b, y: 1, y: 2}",
        "a: {<<: {x: 1, x: 2}}",
        "? a\n: 1\n? a\n: 2",
    ],
)
def test_a_key_that_is_written_twice_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(RepeatedKey, match="is written twice"):
        parse_yaml(text)
    (tmp_path / "x.yml").write_text(f"outer:\n  - 1\n{text}" if text[0] != "-" else text)
    with pytest.raises(InvalidInput, match=r"x.yml: .* is written twice, again in line \d"):
        load_yaml(tmp_path / "x.yml", "release file")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1: x\n'1': y", {1: "x", "1": "y"}),
        ("base: &b {x: 1}\na: {<<: *b, x: 2}", {"base": {"x": 1}, "a": {"x": 2}}),
        ("a: {x: 1}\nb: {x: 1}", {"a": {"x": 1}, "b": {"x": 1}}),
    ],
)
def test_what_is_not_twice_is_read(text: str, value: Any) -> None:
    """Other mappings, other types and what a merge overrides are not repeated keys."""
    assert parse_yaml(text) == value


def test_json_and_words_of_a_command_line() -> None:
    with pytest.raises(ValueError, match="'a' is written twice"):
        parse_json('{"x": [{"a": 1, "a": 2}]}')
    assert parse_json('{"x": [{"a": 1}, {"a": 2}]}') == {"x": [{"a": 1}, {"a": 2}]}
    # As editors on Windows write a file.
    assert parse_json("\ufeff{}") == parse_json("\ufeff{}".encode()) == parse_yaml("\ufeff{}") == {}
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000)
    with pytest.raises(InvalidInput, match="'a' is written twice"):
        parse_words(["x={a: 1, a: 2}"])


def load_catalogue(file: Path) -> Any:
    from dpflow.catalogue import find_catalogue

    file.rename(file.with_name("dpflow.yml"))
    return find_catalogue(file.parent)


def readers() -> dict[str, Callable[[Path], Any]]:
    """Every function of the product that reads a file that people write."""
    from dpflow.airflow.task_context import NOT_GIVEN, read_request
    from dpflow.engine import load_request
    from dpflow.engine.planning import gate_design, simulate
    from dpflow.quality.contract_file import load_contract
    from dpflow.server import service
    from dpflow.tables.access.declarations import load_table

    assert gate_design and simulate
    return {
        "declaration": load_table,
        "release file": load_request,
        "release file of a task": lambda file: read_request(file.name, NOT_GIVEN, file.parent),
        "contract": load_contract,
        "service": service.load_service,
        "queries": read_queries,
        "dpflow.yml": load_catalogue,
    }


@pytest.mark.parametrize("name", list(readers()))
def test_every_reader_refuses_it(name: str, tmp_path: Path) -> None:
    """Whatever the file is for, and before it is asked what its fields mean."""
    file = tmp_path / "file.yml"
    file.write_text("name: x\nscope: a\nparams: {epsilon: '0.01', epsilon: '0.9'}\n")
    with pytest.raises(DpflowError, match=r"'epsilon' is written twice, again in line 3"):
        readers()[name](file)


def test_files_of_json_are_read_likewise(tmp_path: Path) -> None:
    """A suite of expectations, a champion's file, tokens and certificates."""
    from dpflow.engine.releases.certificates import read_notes
    from dpflow.engine.sessions.champion_file import ChampionFile
    from dpflow.quality.from_suite import read_suites

    file = tmp_path / "suite.json"
    file.write_text('{"name": "s", "expectations": [], "expectations": [{"type": "x"}]}')
    with pytest.raises(InvalidInput, match="'expectations' is written twice"):
        read_suites(file)
    file.write_text('{"champion": "a", "champion": null, "versions": {}}')
    with pytest.raises(InvalidInput, match="holds no champion"):
        ChampionFile(file)._read()
    file.write_text('{"certificates": ["x"], "certificates": []}')
    with pytest.raises(InvalidInput, match="holds no certificates"):
        read_notes(file)


def test_one_module_parses_yaml() -> None:
    """No other file of the product loads YAML, so none can forget it."""
    loaders = re.compile(
        r"yaml\.(safe_|full_|unsafe_)?load(_all)?\(|YAML\(|json\.load\(|json\.loads\([^)]*read_(text|bytes)\("
    )
    mine = inspect.getsourcefile(parse_yaml)
    for folder in (ROOT, ROOT.parent / "plugins", ROOT.parent / "integrations"):
        for file in folder.rglob("*.py"):
            if "tests" not in file.parts and ".venv" not in file.parts and str(file) != mine:
                assert not loaders.search(file.read_text()), file
