"""Names in docstrings and pages must exist; ``python -m checks.references`` lists those that do not.

A name in single backticks in a docstring is a reference. It must be one of: a module, class,
function or constant of this repository (dotted or by its last part), an attribute or field of a
class or an argument of a function there, a word that code uses as a text (the name of a mechanism,
a materialisation), a module of the standard library, or a file. In pages, dotted names that begin
with ``dpflow.`` are references.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Folders of code whose docstrings are read.
CODE = ("dpflow", "plugins", "integrations", "checks", "bench", "experiments", "dags")
#: Names of other packages that docstrings may refer to by their whole path.
FOREIGN = re.compile(
    r"^(airflow|duckdb|numpy|np|pandas|pyspark|sqlglot|sqlalchemy|pydantic|pytest|random|typing)\."
)
#: What may follow ``dpflow.`` in the name of a file.
FILES = frozenset({"yml", "in", "sqlite", "duckdb"})
_REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][A-Za-z0-9_.]*)`(?!`)")
_PAGE_NAME = re.compile(r"(?<![\w./-])(dpflow(?:\.[A-Za-z_]\w*)+)")


def python_files() -> list[Path]:
    """All product code, without tests and environments."""
    return [
        path
        for folder in CODE
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not {"tests", ".venv", "node_modules"} & set(path.relative_to(ROOT).parts)
    ]


def module_name(path: Path) -> str:
    """The dotted name of a file, from its distribution's root."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in ("plugins", "integrations"):
        parts = parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def collect_names(trees: dict[Path, ast.AST]) -> tuple[set[str], set[str]]:
    """Dotted names of modules and of what they define; and every name by its last part."""
    dotted, last = set[str](), set[str]()
    for path, tree in trees.items():
        module = module_name(path)
        dotted.add(module)
        last |= set(module.split("."))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                last.add(node.name)
            elif isinstance(node, ast.Name | ast.alias):
                last.add(node.id if isinstance(node, ast.Name) else (node.asname or node.name))
            elif isinstance(node, ast.arg):
                last.add(node.arg)
            elif isinstance(node, ast.Attribute):
                last.add(node.attr)
            elif isinstance(node, ast.keyword) and node.arg:
                last.add(node.arg)
            elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
                last.add(str(node.value))
        dotted |= {f"{module}.{name}" for name in _members(tree)}
    return dotted, last


def _members(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """What a module or class defines, classes with their members."""
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _members(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (prefix + (alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (
                    prefix + name.id for name in ast.walk(target) if isinstance(name, ast.Name)
                )
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _members(node, prefix)


def find_stale() -> Iterator[str]:
    """Each reference that names nothing, with its place."""
    trees = {path: ast.parse(path.read_text()) for path in python_files()}
    dotted, last = collect_names(trees)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ):
                continue
            for name in _REFERENCE.findall(ast.get_docstring(node, clean=False) or ""):
                if not _exists(name, dotted, last):
                    line = getattr(node, "lineno", 1)
                    yield f"{path.relative_to(ROOT)}:{line}: `{name}` names nothing"
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for name in _PAGE_NAME.findall(line):
                # A file's name, or a placeholder of one.
                if name.split(".")[1] in FILES:
                    continue
                if not _exists(name.rstrip("."), dotted, last):
                    yield f"{page.relative_to(ROOT)}:{number}: {name} names nothing"


def _exists(name: str, dotted: set[str], last: set[str]) -> bool:
    parts = name.split(".")
    if len(parts) == 1:
        return name in last or name in sys.stdlib_module_names or (ROOT / name).exists()
    if FOREIGN.match(name) or (ROOT / name).exists():
        return True
    if name.startswith(("dpflow", "bench.", "checks.", "experiments.")):
        # A member of a class may be inherited: the class must exist, and the member somewhere.
        return name in dotted or (".".join(parts[:-1]) in dotted and parts[-1] in last)
    return all(part in last for part in parts)


def main() -> None:
    """Print what names nothing, and fail if there is any."""
    stale = list(find_stale())
    print(*stale, sep="\n")
    sys.exit(bool(stale))


if __name__ == "__main__":
    main()
