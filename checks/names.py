"""Measures names against the rules of the house; ``python -m checks.names`` fails above a limit.

Counted in ``dpflow`` and in the plugins' packages, tests left out. A function's words are split at underscores, a leading
underscore is no word, special methods are not counted. With a folder as argument only files below it are shown and
nothing fails: ``python -m checks.names --list dpflow/tables`` lists each name that counts against a limit.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Participles, bare adjectives and prepositions that stood for nouns; rule 1 of the house.
IRREGULAR = [
    "drawn",
    "known",
    "kept",
    "found",
    "said",
    "given",
    "made",
    "wanted",
    "held",
    "left",
    "told",
    "shown",
    "written",
    "read",
    "taken",
    "chosen",
    "cut",
    "split",
    "met",
    "put",
    "set",
    "spent",
    "paid",
    "born",
    "bound",
    "built",
    "caught",
    "dealt",
    "done",
    "fallen",
    "felt",
    "fit",
    "gone",
    "grown",
    "hidden",
    "hit",
    "hurt",
    "laid",
    "led",
    "lent",
    "lost",
    "meant",
    "meant",
    "put",
    "run",
    "seen",
    "sent",
    "shut",
    "spread",
    "stood",
    "sunk",
    "sworn",
    "thrown",
    "torn",
    "understood",
    "won",
    "worn",
]
#: These end in -ed or -en, or are irregular, and are nouns, verbs or terms of the field all the same.
NOT_PARTICIPLES = set(
    [
        "need",
        "seed",
        "speed",
        "feed",
        "embed",
        "exceed",
        "proceed",
        "token",
        "open",
        "even",
        "seven",
        "children",
        "listen",
        "happen",
        "run",
        "set",
        "read",
        "cut",
        "put",
        "split",
        "fit",
        "hit",
        "let",
        "bound",
        "spread",
        "left",
    ]
)
#: Locals that say that something happened to a thing, and not what the thing is.
LOCALS = set(
    [
        "drawn",
        "declared",
        "supposed",
        "known",
        "kept",
        "found",
        "said",
        "asked",
        "wanted",
        "made",
        "given",
        "held",
        "answered",
        "checked",
        "inside",
        "needed",
        "told",
        "shown",
        "chosen",
        "priced",
        "named",
        "paid",
        "opened",
        "measured",
        "own",
        "each",
        "such",
        "both",
        "besides",
        "place",
        "places",
    ]
)
#: Stems and public class names that may have two meanings, and why.
SHARED_STEMS = {
    "__init__": "every package has one",
    "__main__": "python -m",
    "plugin": "each distribution's hookimpls",
    "sql": "doors named after their noun: cli; the SQL text that tables writes",
    "session": "a door in airflow, an open session in the engine",
    "release": "doors named after their verb: cli, airflow",
    "publish": "doors named after their verb: cli; tables publishes",
    "plan": "doors named after their verb: cli; the engine's plan",
    "load": "doors named after their verb: cli; tables builds private files",
    "ledger": "doors named after their noun: cli; the ledger itself",
    "audit": "doors named after their verb: cli; the audit by draws",
    "audit_examples": "each distribution's tables and parameters for audits",
    "calculators": "each distribution's calculators",
    "records": "rows for a learner in tables, values of the ledger",
    "report": "the demo's page, a forecast's tables",
    "provider": "what Airflow reads",
    "estimators": "a command that lists them",
    "mechanisms": "a command that lists them",
    "demo": "a command, and what it runs",
    "reusable_holdout": "a mechanism and its operator",
    "bounds": "a mechanism's name",
    "data_contract": "doors named after their noun: cli, airflow",
}
LIMITS = {
    "participle functions, %": 4.0,
    "one-word functions, %": 45.0,
    "locals from the list, %": 1.5,
    "lines over 100 characters, %": 5.0,
    "comments per 100 lines, at least": 3.0,
    "public methods of mechanisms documented, %, at least": 90.0,
    "stems with two meanings": 0,
    "public class names with two meanings": 0,
}


@dataclass
class Count:
    """What was counted in some files, and the names that count against a limit."""

    functions: int = 0
    participles: list[str] = field(default_factory=list)
    one_word: list[str] = field(default_factory=list)
    locals: int = 0
    bad_locals: list[str] = field(default_factory=list)
    lines: int = 0
    long_lines: list[str] = field(default_factory=list)
    comments: int = 0
    code_lines: int = 0
    methods: int = 0
    undocumented: list[str] = field(default_factory=list)


def is_participle(name: str) -> bool:
    """Whether the last word of a name is a past participle."""
    word = name.strip("_").split("_")[-1]
    if word in NOT_PARTICIPLES:
        return False
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 3)


def source_files(folder: Path = ROOT) -> list[Path]:
    """Product files: dpflow and the plugins' packages."""
    files = [*(ROOT / "dpflow").rglob("*.py"), *ROOT.glob("plugins/*/dpflow_*/**/*.py")]
    return sorted(p for p in files if folder in p.parents or p == folder)


def count_file(path: Path, count: Count) -> None:
    """Add one file to a count."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    place = path.relative_to(ROOT)
    lines = text.splitlines()
    count.lines += len(lines)
    count.long_lines += [f"{place}:{i}" for i, line in enumerate(lines, 1) if len(line) > 100]
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    count.comments += sum(token.type == tokenize.COMMENT for token in tokens)
    count.code_lines += len(code_lines(tree, tokens))
    bases = mechanism_classes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, where = node.name, f"{place}:{node.lineno} {node.name}"
            if name.startswith("__") and name.endswith("__"):
                continue
            count.functions += 1
            if is_participle(name):
                count.participles.append(where)
            if "_" not in name.strip("_"):
                count.one_word.append(where)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            count.locals += 1
            if node.id.strip("_") in LOCALS:
                count.bad_locals.append(f"{place}:{node.lineno} {node.id}")
    for owner in bases:
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                count.methods += 1
                if ast.get_docstring(method) is None:
                    count.undocumented.append(f"{place}:{method.lineno} {owner.name}.{method.name}")


def code_lines(tree: ast.Module, tokens: list[tokenize.TokenInfo]) -> set[int]:
    """Numbers of the lines that hold code: no blanks, comments or docstrings."""
    skip = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    used = {
        n
        for token in tokens
        if token.type not in skip
        for n in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                used -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return used


def mechanism_classes(tree: ast.Module) -> list[ast.ClassDef]:
    """Classes that have a name, a summary and Params of their own: mechanisms, sessions and calculators."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = {
                t.id
                for b in node.body
                if isinstance(b, ast.Assign)
                for t in b.targets
                if isinstance(t, ast.Name)
            }
            if {"name", "Params"} <= names or {"name", "summary"} <= names:
                found.append(node)
    return found


def repeated_names(files: list[Path]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """File stems and public class names that stand for two things, but for those that say why."""
    stems: dict[str, list[str]] = defaultdict(list)
    classes: dict[str, list[str]] = defaultdict(list)
    for path in files:
        stems[path.stem].append(str(path.relative_to(ROOT)))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path.relative_to(ROOT)))
    return (
        {
            stem: places
            for stem, places in stems.items()
            if len(places) > 1 and stem not in SHARED_STEMS
        },
        {name: places for name, places in classes.items() if len(places) > 1},
    )


def percent(bad: list[str], all_names: int) -> float:
    """The share of names that count against a limit; none of none is no share."""
    return 100 * len(bad) / max(all_names, 1)


def measure(files: list[Path]) -> tuple[Count, dict[str, float]]:
    """All figures of some files, by the names of `LIMITS`."""
    count = Count()
    for path in files:
        count_file(path, count)
    stems, classes = repeated_names(files)
    return count, {
        "participle functions, %": percent(count.participles, count.functions),
        "one-word functions, %": percent(count.one_word, count.functions),
        "locals from the list, %": percent(count.bad_locals, count.locals),
        "lines over 100 characters, %": percent(count.long_lines, count.lines),
        "comments per 100 lines, at least": 100 * count.comments / max(count.lines, 1),
        "public methods of mechanisms documented, %, at least": 100
        - percent(count.undocumented, count.methods),
        "stems with two meanings": len(stems),
        "public class names with two meanings": len(classes),
    }


def findings(count: Count, files: list[Path]) -> Iterator[str]:
    """Each name that counts against a limit."""
    for what, places in vars(count).items():
        if isinstance(places, list):
            yield f"## {what}: {len(places)}"
            yield from (f"  {place}" for place in places)
    for repeated in repeated_names(files):
        yield from (f"  {name}: {', '.join(places)}" for name, places in repeated.items())


def main(arguments: list[str]) -> int:
    """Print the figures; 1 if one is beyond its limit."""
    listed = "--list" in arguments
    folders = [ROOT / a for a in arguments if not a.startswith("--")]
    files = [p for folder in folders for p in source_files(folder)] if folders else source_files()
    count, figures = measure(files)
    if listed:
        print("\n".join(findings(count, files)))
    failed = False
    for name, figure in figures.items():
        limit = LIMITS[name]
        bad = figure < limit if name.endswith("at least") else figure > limit
        failed |= bad
        print(f"{name:55} {figure:8.1f}   limit {limit:g}{'   <- beyond' if bad else ''}")
    print(
        f"{count.functions} functions, {count.lines} lines, {count.code_lines} of them code, in {len(files)} files"
    )
    names = Counter(place.split(" ")[-1].strip("_") for place in count.bad_locals)
    if not listed and names:
        print(
            "most frequent locals from the list:",
            ", ".join(f"{n} {c}" for n, c in names.most_common(12)),
        )
    return int(failed and not folders)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
