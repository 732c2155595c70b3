"""Rules of the rooms that import contracts cannot say; ``python -m checks.rooms`` fails if one is broken.

- core does no I/O: no file, no environment, no clock, no generator of its own.
- core knows no cluster: what a query backend reads is declared in tables, through the base in the contract.
- a method that subclasses must write is abstract.
- only tables opens a private source: nothing else imports DuckDB or Spark.
- only tables and the engine use the reader of private rows; analysts, plugins and doors take declarations.
- only tables and the ledger run statements on a database.
- only fail_closed draws: nobody else makes the source of noise for a release.
- a query of private rows is written in one room: the backend that runs it, above how a file is read.
- arithmetic over row values is written in one module, which knows that it cannot overflow.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
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
        finds: what breaks it, among all nodes of one file.
        exceptions: folders, files and single functions or names of a file (``FILE:NAME``) that may, and why.
    """

    name: str
    rooms: tuple[str, ...]
    finds: Callable[[Sequence[ast.AST]], Iterator[tuple[int, str]]]
    exceptions: dict[str, str]


def find_input_output(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Imports that reach outside, clocks, and calls that touch files or terminals."""
    for node in nodes:
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


def find_clusters(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Names and texts, docstrings among them, that speak of Spark."""
    for node in nodes:
        for field in ("id", "attr", "arg", "name", "asname", "module", "value"):
            text = getattr(node, field, None)
            if isinstance(text, str) and (match := re.search("spark", text, re.IGNORECASE)):
                yield getattr(node, "lineno", 1), match[0]


def find_unwritten_methods(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """``raise NotImplementedError``, which is noticed when it is too late."""
    for node in nodes:
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node):
            yield node.lineno, "raise NotImplementedError"


#: Packages whose connections read private tables.
DRIVERS = frozenset(
    "_duckdb adbc_driver_duckdb adbc_driver_manager databricks duckdb duckdb_engine duckdb_sqlalchemy ibis pyspark".split()  # noqa: SIM905
)


def list_imports(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Each imported module and each imported name by its whole path; also modules named in a call."""
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            names = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
        yield from ((node.lineno, name) for name in names)


def find_connections(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Imports of DuckDB and Spark, also by a name in a call, and DuckDB's URLs."""
    for line, name in list_imports(nodes):
        if name.split(".")[0] in DRIVERS:
            yield line, f"import {name}"
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("duckdb://")
        ):
            yield node.lineno, node.value


#: Modules that read private rows, or lend a connection to them.
READER_MODULES = tuple(
    f"dpflow.tables.{name}"
    for name in (
        "private",
        "snapshot",
        "backends",
        "access.contract_rows",
        "access.file_list.open_",
        "access.isolated_database",
    )
)
#: The same under the names by which other modules may have imported them.
READERS = frozenset({"PrivateTable", "SnapshotTable", "find_backend", "open_list"})


def find_readers(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Imports and names of what reads private rows."""
    for line, name in list_imports(nodes):
        if name.startswith(READER_MODULES) or name.split(".")[-1] in READERS:
            yield line, f"import {name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and (
            node.attr in READERS or ast.unparse(node).endswith("file_list.open_source")
        ):
            yield node.lineno, node.attr


#: Methods that run a statement, on whatever object.
RUNS = frozenset(
    "exec_driver_sql execute executemany executescript fetch_arrays fetch_rows from_query read_sql read_sql_query".split()  # noqa: SIM905
)
#: Objects whose methods ``sql`` and ``query`` run a statement.
CONNECTION = re.compile(r"(con|conn|connection|cursor|database|db|session|spark)(\(.*\))?$", re.I)


def find_runs(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Calls that run a statement on a database, or open one."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).split(".")[-1]
        # `dpflow.connect` gives a client, which has declarations alone.
        if name in ("create_engine", "connect") and ast.unparse(node.func) != "dpflow.connect":
            yield node.lineno, f"{name}()"
        if not isinstance(node.func, ast.Attribute):
            continue
        # A method of a base class, as of Airflow's operators, runs nothing.
        on_itself = node.args and ast.unparse(node.args[0]) == "self"
        on_connection = name in ("query", "sql") and CONNECTION.search(ast.unparse(node.func.value))
        if (name in RUNS and not on_itself) or on_connection:
            yield node.lineno, f".{name}()"


def find_system_sources(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Calls of `SystemSource`."""
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "SystemSource":
            yield node.lineno, "SystemSource()"


#: How statements begin; the words of SQL in capitals, for sentences begin so, too.
BEGINNING = re.compile(
    r"\s*\(?(SELECT|WITH|INSERT INTO|CREATE|COPY|DELETE FROM|UPDATE|ATTACH|DESCRIBE|SUMMARIZE|PRAGMA)\s"
    r"|\s*\(?select\s.*\sfrom\s",
    re.DOTALL,
)
STATEMENT = re.compile(rf"{BEGINNING.pattern}|.*[ )](FROM|GROUP BY|ORDER BY|JOIN) \(?$", re.DOTALL)


def find_statements(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Texts that are statements, and parts that are put together to one; docstrings are none."""
    texts = set[int]()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            texts |= {id(part) for part in node.values}
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            if any(STATEMENT.match(str(part)) for part in parts):
                yield node.lineno, "a statement put together"
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in texts
            and BEGINNING.match(node.value)
        ):
            yield node.lineno, "a statement"


#: Arithmetic in SQL: an operator beside an operand, which is a part that is put in (here §), a name, a number or a
#: bracket; without blanks beside a part; alone, to be put between operands; or put in itself.
_OPERATOR = r"(?:[-+*/%&|^]|//|<<|>>|[dD][iI][vV])"
ARITHMETIC = re.compile(
    rf"[§\w)\]\"'] {_OPERATOR} [§\w(\"']"
    rf"|§[-+*/%&](?=[§(\d])|[)\d][-+*/%&](?=§)|(?<!\w)-\(?§|^\(?§ § §\)?$|^ {_OPERATOR} $"
    r"|::[A-Za-z]"
    r"|\b(?i:pmod|avg|sum|abs|power|pow|product|mod|negative|add|subtract|multiply|divide|bit_count|factorial)\((?!\*?\))"
)
#: What looks like it and is none: a star for all columns, and days of an example.
_NO_ARITHMETIC = re.compile(r"SELECT (?:§, |\w+, )?\*|\* (?:FROM|EXCLUDE)|count\(\*\)")
#: Nodes of sqlglot and functions of Spark that compute, by the modules that have them.
_COMPUTING = {
    "exp": "Abs Add BitwiseAnd BitwiseLeftShift BitwiseOr BitwiseRightShift BitwiseXor Div IntDiv Mod Mul Neg Pow Sub Sum Avg",
    "functions": "abs avg mean negative pmod pow power product shiftleft shiftright sum try_add try_divide try_multiply",
}
_COMPUTES = {f"{module}.{name}" for module, names in _COMPUTING.items() for name in names.split()}


def find_arithmetic(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Texts with arithmetic of SQL, and nodes and functions of libraries that write it; docstrings and
    what is said in errors are none.
    """
    spoken = set[int]()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            spoken.add(id(node.value))
        says = isinstance(node, ast.Call) and re.search(
            r"[Rr]efuse|Error|Unreadable|Input|Busy|warning|Interrupted|Damaged|RuleBroken|require_operands",
            ast.unparse(node.func),
        )
        if says or isinstance(node, ast.Raise):
            spoken |= {id(inner) for inner in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node).lstrip("_").split(".")
            name = ".".join(path[-2:]).lstrip("_")
            if name in _COMPUTES:
                yield node.lineno, name
        if id(node) in spoken:
            continue
        if isinstance(node, ast.JoinedStr):
            spoken |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "§" for part in node.values]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = [re.sub(r"\{\w*\}|%s", "§", node.value)]
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
    Rule("core knows no cluster", ("dpflow/core",), find_clusters, {}),
    Rule(
        "a method that subclasses write is abstract",
        ("dpflow", "plugins"),
        find_unwritten_methods,
        {"dpflow/hookspecs.py": "bodies of hook specifications, which pluggy never runs"},
    ),
    Rule(
        "only tables opens a private source",
        ("dpflow", "plugins", "integrations"),
        find_connections,
        {
            "dpflow/tables": "the room that may",
        },
    ),
    Rule(
        "only tables and the engine use the reader of private rows",
        ("dpflow", "plugins", "integrations", "dags"),
        find_readers,
        {
            "dpflow/tables": "where it is",
            "dpflow/engine": "charges before it reads",
            "dpflow/cli/load.py": "the owner's pass over a source on Spark",
            "dpflow/quality/contract_run.py": "asks the catalogue for usable columns, mode public",
            "dpflow/quality/validate.py": "judges rows for their owner, mode trusted",
            "dpflow/testing/backend_bounds.py": "checks of backends on tables of their own",
            "dpflow/testing/backend_checks.py": "checks of backends on tables of their own",
            "dpflow/testing/backend_relations.py": "checks of backends on tables of their own",
        },
    ),
    Rule(
        "only tables and the ledger run statements",
        ("dpflow", "plugins", "integrations"),
        find_runs,
        {
            "dpflow/tables": "reads private rows and public files",
            "dpflow/ledger": "the ledger's own database",
            "dpflow/fault_points.py": "passes the ledger's statements on",
            "integrations/dpflow-dbt/dpflow_dbt/plugin.py": "dbt's own file, where answers are stored",
        },
    ),
    Rule(
        "only fail_closed draws",
        ("dpflow", "plugins", "integrations"),
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
        ("dpflow", "plugins", "integrations"),
        find_statements,
        {
            "integrations/dpflow-dbt/dpflow_dbt/plugin.py": "dbt's own file, where answers are stored",
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
        ("dpflow/tables", "plugins"),
        find_arithmetic,
        {
            "dpflow/tables/access/arithmetic.py": "knows the range of what it writes",
            "dpflow/tables/backends/spark_backend/canaries.py": "constants that show what a server does",
            "dpflow/tables/public": "published numbers and public points, which are read for no release",
            "dpflow/tables/access/view_expressions.py:_write_node": "comparisons of a table in the module",
            "dpflow/tables/language/nodes.py:_canonical_text": "a condition as people read it, which no engine runs",
            "dpflow/tables/access/object_stores.py:require_plain_objects": "a slash of a path",
            "dpflow/tables/backends/spark_backend/spark_sources.py:open_folder": "a slash of a path",
            "dpflow/tables/backends/spark_backend/spark_sources.py:_open_version": "a slash of a path",
            "dpflow/tables/loading/exact_values.py:_UUID": "a pattern",
            "plugins/dpflow-private-learning/dpflow_private_learning/building_blocks/hypotheses.py:sql_expression": (
                "DOUBLEs of the SQL of a learned rule, which its reader runs and no release does"
            ),
            **{
                f"plugins/dpflow-{name}/dpflow_{name.replace('-', '_')}/theory": "formulas in sentences"
                for name in (
                    "interior-point",
                    "private-learning",
                    "private-prediction",
                    "stable-median",
                )
            },
        },
    ),
)


def is_subject(rule: Rule, place: Path) -> bool:
    """Whether a rule is about a file, given relative to the repository."""
    inside = any(place.is_relative_to(room) for room in rule.rooms)
    return inside and not any(place.is_relative_to(name) for name in rule.exceptions)


def find_breaches(root: Path = ROOT) -> list[str]:
    """Each breach of a rule with its file, line and what stands there."""
    breaches = []
    folders = {room.split("/")[0] for rule in RULES for room in rule.rooms}
    for path in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        place = path.relative_to(root)
        rules = [rule for rule in RULES if is_subject(rule, place)]
        if not rules or "tests" in place.parts:
            continue
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        breaches += [
            f"{place}:{line}: {what}: {rule.name}"
            for rule in rules
            for line, what in rule.finds(nodes)
            if not any(f"{place}:{name}" in rule.exceptions for name in name_scopes(nodes, line))
        ]
    return breaches


def name_scopes(nodes: Sequence[ast.AST], line: int) -> list[str]:
    """The functions that a line is in, and the name that it assigns to."""
    names = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.Assign) and (
            node.lineno <= line <= (node.end_lineno or line)
        ):
            names.append(
                node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.targets[0])
            )
    return names


if __name__ == "__main__":
    breaches = find_breaches()
    print("\n".join(breaches) or f"rooms: {len(RULES)} rules kept")
    sys.exit(bool(breaches))
