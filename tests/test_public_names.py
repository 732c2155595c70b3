"""Public names: the map, the type checker's imports, the pages and the reference say the same."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpflow
from checks import reference
from dpflow.core.contract.declaration import Table
from dpflow.tables.private import PrivateTable
from dpflow.tables.snapshot import SnapshotTable

ROOT = Path(__file__).parents[1]
PACKAGES = ("dpflow", "dpflow.airflow", "dpflow.quality")
#: Modules that pages and examples may import from: the map, doors with maps of their own, and what authors of plugins
#: build on.
FRONTS = re.compile(
    r"dpflow(\.(airflow(\.asset_events|\.preload)?|quality|errors|client\.dbapi|demo\.data|(core|testing)(\.\w+)*))?"
)
#: What follows ``dpflow.`` in the names of files, of MLflow's tags and of a group of entry points.
NO_ATTRIBUTES = ("yml", "in", "snapshot", "commitment", "comparison", "backends")
EXAMPLES = [
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "adr" not in p.parts),
    *sorted((ROOT / "dags").rglob("*.py")),
    *sorted((ROOT / "integrations").glob("*/README.md")),
    *sorted((ROOT / "integrations").glob("*/example/*.py")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]
CODE = [
    path
    for room in ("plugins", "integrations")
    for path in sorted((ROOT / room).rglob("*.py"))
    if "tests" not in path.parts
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_found(package: str) -> None:
    """By attribute, by a star import and in ``dir``."""
    module = importlib.import_module(package)
    assert len(module.__all__) == len({*module.__all__}) >= 7
    for name in module.__all__:
        assert getattr(module, name) is not None
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)  # noqa: S102
    assert {*module.__all__} <= {*names} and {*module.__all__} <= {*dir(module)}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_read_the_same_names(package: str) -> None:
    """The imports under TYPE_CHECKING are those of the mapping."""
    module = importlib.import_module(package)
    (block,) = [
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == module._MODULES


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_no_attribute(package: str) -> None:
    """As of any module."""
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Legder'"):
        module.Legder  # noqa: B018


def test_importing_dpflow_imports_nothing_of_it() -> None:
    """Neither numpy nor any part of dpflow that a name needs."""
    code = "import dpflow, sys; print([m for m in sys.modules if m.startswith('dpflow.') or m == 'numpy'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['dpflow.lazy_names']"


def test_no_public_name_reads_private_rows() -> None:
    """The reader is no public name, nothing public takes or returns it, and `dpflow.tables` does not hand it out."""
    from dpflow import tables

    for module in (dpflow, tables):
        assert not {"PrivateTable", "SnapshotTable"} & {*dir(module), *module.__all__}
        for name in module.__all__:
            thing = getattr(module, name)
            assert not (inspect.isclass(thing) and issubclass(thing, PrivateTable))
            if callable(thing) and not inspect.isclass(thing):
                assert not re.search("PrivateTable|SnapshotTable", str(inspect.signature(thing)))


@pytest.mark.parametrize("reader", [PrivateTable, SnapshotTable])
def test_the_readers_text_says_what_to_use(reader: type[PrivateTable]) -> None:
    """And no value: neither a name nor a bound of the table."""
    fields = {"name": "visits", "database": "v.duckdb", "privacy_unit": {"column": "person"}}
    table = Table.model_validate(fields | {"contribution_bounds": {"rows": 7}, "columns": {}})
    said = "internal reader of private rows; use dpflow.release or dpflow.sql"
    assert repr(reader(table)) == str(reader(table)) == said


def test_every_error_is_public() -> None:
    """All classes of `dpflow.errors`, and nothing else from there."""
    from dpflow import errors

    classes = {n for n, thing in vars(errors).items() if inspect.isclass(thing) and thing.__module__ == errors.__name__}  # fmt: skip
    assert {n for n, module in dpflow._MODULES.items() if module == "dpflow.errors"} == classes


def test_the_map_and_the_reference_have_every_name() -> None:
    """The package's docstring names each but the single errors, and the reference documents each."""
    from dpflow import errors

    assert dpflow.__doc__ is not None
    named = {*re.findall(r"`(\w+)`", dpflow.__doc__)}
    single_errors = {n for n in dpflow.__all__ if hasattr(errors, n)} - named
    assert {*dpflow.__all__} - named == single_errors
    assert {"DpflowError", "InvalidInput", "LedgerError", "TableError"} <= named
    page, table = reference.python_page(), reference.errors_page()
    for name in dpflow.__all__:
        if hasattr(errors, name):
            assert re.search(rf"^\| `{name}` \| \S", table, re.MULTILINE), name
        else:
            section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
            assert section is not None, name
            prose = re.sub(r"```.*?```", "", section[1], flags=re.DOTALL)
            assert len(prose.split()) >= 4, name


def list_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each import of dpflow in a file, or in a page's blocks; and names after ``dpflow.``."""
    text = path.read_text(encoding="utf-8")
    for module, names in re.findall(
        r"^ *from (dpflow(?:\.\w+)*) import (\([^)]*\)|[^\n]*)", text, re.MULTILINE
    ):
        yield from (
            (module, name) for name in re.findall(r"(\w+)(?: as \w+)?", names.split("#")[0])
        )
    for module in re.findall(r"^ *import (dpflow(?:\.\w+)+)", text, re.MULTILINE):
        yield module, ""
    for name in re.findall(r"(?<![\w./-])dpflow\.([A-Za-z]\w*)(?=[(`:,. ])", text):
        is_module = any((ROOT / "dpflow" / f).exists() for f in (name, f"{name}.py"))
        if not is_module and name not in NO_ATTRIBUTES:
            yield "dpflow", name


@pytest.mark.parametrize("path", [*EXAMPLES, *CODE], ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_shown_is_public(path: Path) -> None:
    """Names from `dpflow` are in its ``__all__``; pages and examples take all else from fronts."""
    for module, name in list_imports(path):
        if module in PACKAGES and name:
            assert name in importlib.import_module(module).__all__, f"from {module} import {name}"
        if path in EXAMPLES:
            assert FRONTS.fullmatch(module), f"from {module} import {name}"


def test_an_internal_name_on_a_page_is_seen(tmp_path: Path) -> None:
    """Negative control, of each form."""
    page = tmp_path / "page.md"
    page.write_text(
        "`dpflow.PrivateTable`\n```python\nfrom dpflow import (\n    plan,\n    api as door,\n)\n"
        "from dpflow.tables.private import PrivateTable  # rows\nimport dpflow.engine\ndpflow.reader(1)\n```\n"
        "in `dpflow.yml` and `dpflow.airflow`"
    )
    assert [*list_imports(page)] == [
        ("dpflow", "plan"),
        ("dpflow", "api"),
        ("dpflow.tables.private", "PrivateTable"),
        ("dpflow.engine", ""),
        ("dpflow", "PrivateTable"),
        ("dpflow", "reader"),
    ]
    assert not FRONTS.fullmatch("dpflow.engine") and not FRONTS.fullmatch("dpflow.tables.private")
