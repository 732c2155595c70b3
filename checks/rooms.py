"""Rules of the rooms that import contracts cannot say; ``python -m checks.rooms`` fails if one is broken.

- core does no I/O: no file, no environment, no clock, no generator of its own.
- only tables opens a private source: nobody else imports DuckDB.
- only fail_closed draws: nobody else makes the source of noise for a release.
- a query of private rows is written in one room: the backend that runs it, above how a file is read.
- arithmetic over row values is written in one module, which knows that it cannot overflow.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Modules that reach outside the process, or whose answers its arguments do not determine.
OUTSIDE = frozenset(
    "io os random secrets shutil socket sqlite3 subprocess tempfile time urllib yaml".split()  # noqa: SIM905
)
CLOCKS = {"now", "today", "utcnow"}
#: Methods of paths that touch the disk; a path as a value is pure.
FILES = frozenset(
    "exists is_dir is_file iterdir mkdir open read_bytes read_text resolve "  # noqa: SIM905
    "samefile stat touch unlink write_bytes write_text".split()
)


@dataclass(frozen=True)
class Rule:
    """What must not stand in some files.

    Attributes:
        name: the rule in a sentence.
        rooms: folders that it is about, relative to the repository.
        finds: what breaks it, in one file.
        exceptions: files and folders that may, and why.
    """

    name: str
    rooms: tuple[str, ...]
    finds: Callable[[ast.AST], Iterator[tuple[int, str]]]
    exceptions: dict[str, str]


def find_input_output(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Imports that reach outside, clocks, and calls that touch files or terminals."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (
            (node.lineno, f"import {name}") for name in names if name.split(".")[0] in OUTSIDE
        )
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in {"open", "print", "input"}:
                yield node.lineno, f"{function.id}()"
            if isinstance(function, ast.Attribute) and function.attr in CLOCKS | FILES:
                yield node.lineno, f".{function.attr}()"
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "np.random":
            yield node.lineno, "np.random"


def find_connections(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Imports of DuckDB, also by a name in a call, and its URLs."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            names = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
        yield from (
            (node.lineno, f"import {name}")
            for name in names
            if name.split(".")[0] in ("duckdb", "_duckdb")
        )
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("duckdb://")
        ):
            yield node.lineno, node.value


def find_system_sources(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls of `SystemSource`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "SystemSource":
            yield node.lineno, "SystemSource()"


#: How statements begin; the words of SQL in capitals, for sentences begin so, too.
STATEMENT = re.compile(
    r"\(?(SELECT|WITH|INSERT INTO|CREATE|COPY|DELETE FROM|UPDATE|ATTACH) |.*[ )](FROM|GROUP BY|ORDER BY|JOIN) \(?$"
)


def find_statements(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts that are put together to statements; docstrings and texts without a part are none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            if any(STATEMENT.match(str(part)) for part in parts):
                yield node.lineno, "a statement put together"


#: Arithmetic in SQL beside an operand: a part that is put in (here §), a name, a number or a bracket.
_OPERAND = r"[§\w)\]\"']"
ARITHMETIC = re.compile(
    rf"{_OPERAND} (?:[-+*/%]|//|<<|>>|&|div|DIV) [§\w(\"']|\b(?:pmod|avg|sum)\((?!\*?\))|(?<!\w)-\(?§"
)
#: What looks like it and is none: a star for all columns, and days of an example.
_NO_ARITHMETIC = re.compile(r"SELECT (?:§, |\w+, )?\*|\* (?:FROM|EXCLUDE)|count\(\*\)")


def find_arithmetic(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts with arithmetic of SQL; docstrings and what is said in errors are none."""
    spoken = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            spoken.add(id(node.value))
        says = isinstance(node, ast.Call) and re.search(
            r"[Rr]efuse|Error|Unreadable|Input|Busy|warning|Interrupted|Damaged",
            ast.unparse(node.func),
        )
        if says or isinstance(node, ast.Raise):
            spoken |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in spoken:
            continue
        if isinstance(node, ast.JoinedStr):
            spoken |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "§" for part in node.values]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = [node.value]
        else:
            continue
        text = _NO_ARITHMETIC.sub("", "".join(map(str, parts)))
        if found := ARITHMETIC.search(text):
            yield node.lineno, f"{found[0]!r} in a text"


RULES = (
    Rule(
        "core does no I/O",
        ("dpflow/core",),
        find_input_output,
        {"dpflow/core/sampling/randomness.py": "the one door to the operating system's entropy"},
    ),
    Rule(
        "only tables opens a private source",
        ("dpflow", "plugins"),
        find_connections,
        {
            "dpflow/tables": "the room that may",
        },
    ),
    Rule(
        "only fail_closed draws",
        ("dpflow", "plugins"),
        find_system_sources,
        {
            "dpflow/engine/fail_closed.py": "the guard around every draw",
            "dpflow/registry.py": "tries estimators on random rows of its own",
            "dpflow/testing": "conformance and audits draw on example tables",
            "plugins/dpflow-interior-point/dpflow_interior_point/theory": "simulates on public columns",
        },
    ),
    Rule(
        "queries of private rows stand in the backend that runs them",
        ("dpflow", "plugins"),
        find_statements,
        {
            "dpflow/tables/backends/duckdb_backend": "DuckDB's statements over private rows",
            "dpflow/tables/backends/spark_backend": "Spark's expressions over private rows",
            "dpflow/tables/access": "how DuckDB opens files, and what it is asked of its catalogue",
            "dpflow/tables/loading": "an owner's rows on their way into a file",
            "dpflow/tables/public": "published results and public points",
            "dpflow/ledger": "the ledger's own database",
        },
    ),
    Rule(
        "only tables.access.arithmetic writes arithmetic over row values",
        ("dpflow/tables/access", "dpflow/tables/backends", "dpflow/tables/language"),
        find_arithmetic,
        {
            "dpflow/tables/access/arithmetic.py": "knows the range of what it writes",
            "dpflow/tables/backends/spark_backend/canaries.py": "constants that show what a server does",
        },
    ),
)


def list_files(rule: Rule, root: Path) -> Iterator[Path]:
    """The product's files that a rule is about."""
    for room in rule.rooms:
        for path in sorted((root / room).rglob("*.py")):
            place = path.relative_to(root)
            allowed = any(place.is_relative_to(name) for name in rule.exceptions)
            if not allowed and "tests" not in place.parts:
                yield path


def find_breaches(root: Path = ROOT) -> list[str]:
    """Each breach of a rule with its file, line and what stands there."""
    return [
        f"{path.relative_to(root)}:{line}: {what}: {rule.name}"
        for rule in RULES
        for path in list_files(rule, root)
        for line, what in rule.finds(ast.parse(path.read_text(encoding="utf-8")))
    ]


if __name__ == "__main__":
    breaches = find_breaches()
    print("\n".join(breaches) or f"rooms: {len(RULES)} rules kept")
    sys.exit(bool(breaches))
