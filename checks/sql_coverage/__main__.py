"""Asks all three the same queries, and writes docs/research/sql-coverage.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError

from checks.sql_coverage import tutorials
from checks.sql_coverage.ask_dpflow import ask_dpflow, list_tables
from checks.sql_coverage.units import UNITS, list_paths

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "research" / "sql-coverage.md"
#: Packages of the environments that the scripts run in.
PACKAGES = {
    "fetch_queries": (
        "duckdb==1.5.5",
        "duckdb-extension-tpch==1.5.5",
        "duckdb-extension-tpcds==1.5.5",
    ),
    "ask_qrlew": ("pyqrlew==0.9.27", "sqlalchemy"),
    "ask_smartnoise": ("smartnoise-sql==1.0.10", "setuptools<81"),
}
ENGINES = ("dpflow", "Qrlew 0.9.27", "SmartNoise SQL 1.0.10")


def run_script(name: str, given: str = "") -> Any:
    """What a script prints, run in an environment of its own."""
    uv, options = Path(sys.executable).with_name("uv"), ["--quiet", "--isolated", "--no-project"]
    packages = [word for package in PACKAGES[name] for word in ("--with", package)]
    done = subprocess.run(
        [str(uv), "run", *options, "--python", "3.11", *packages, "python", str(HERE / f"{name}.py")],
        input=given,
        stdout=subprocess.PIPE,
        # Of what it panics at, Qrlew writes long traces.
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def make_questions() -> dict[str, Any]:
    """By list: tables, and for each query its text and the units that it may protect."""
    lists = run_script("fetch_queries")
    for name, queries in (("PipelineDP", tutorials.PIPELINE_DP), ("Tumult", tutorials.TUMULT)):
        lists[name] = {"tables": tutorials.TABLES, "queries": queries}
    groups = {}
    for name, group in lists.items():
        tables, questions = group["tables"], {}
        for key, text in group["queries"].items():
            used = list_tables(text, tables)
            units = {
                unit: {table: column for table, column in columns.items() if table in used}
                for unit, columns in UNITS[name].items()
                if used & set(columns)
            }
            questions[key] = {
                "text": text,
                "qualified": qualify(text, tables),
                "units": units,
                "paths": {
                    unit: [path for path in list_paths(name, unit) if path[0] in used]
                    for unit in units
                },
            }
        groups[name] = {"tables": tables, "questions": questions}
    return groups


def qualify(text: str, tables: dict[str, dict[str, str]]) -> str:
    """The query with schemas, as SmartNoise wants it; in PostgreSQL's dialect on both sides, so that
    nothing is added to it.
    """
    try:
        parsed = parse_one(text, dialect="postgres")
    except ParseError:
        parsed = parse_one(text, dialect="duckdb")
    for table in parsed.find_all(exp.Table):
        if table.name.lower() in tables:
            table.set("db", exp.to_identifier("main"))
    return parsed.sql(dialect="postgres")


def main() -> None:
    """Ask, and write the page."""
    groups = make_questions()
    verdicts = {
        name: {
            key: [ask_dpflow(one["text"], group["tables"], one["units"])]
            for key, one in group["questions"].items()
        }
        for name, group in groups.items()
    }
    for script in ("ask_qrlew", "ask_smartnoise"):
        replies = run_script(script, json.dumps(groups))
        for name, answers in verdicts.items():
            for key, answer in answers.items():
                answer.append(replies[name][key])
    PAGE.write_text("\n".join(write_page(verdicts)) + "\n")
    print(f"wrote {PAGE}")


def write_page(verdicts: dict[str, dict[str, list[str]]]) -> list[str]:
    """The page's lines."""
    lines = [(HERE / "page.md").read_text().rstrip(), "", "## How many are accepted", ""]
    lines += [f"| queries | {' | '.join(ENGINES)} |", "|---|---|---|---|"]
    for name, answers in verdicts.items():
        counts = [
            sum(answer[n] == "accepted" for answer in answers.values()) for n in range(len(ENGINES))
        ]
        lines.append(f"| {name}, {len(answers)} | {' | '.join(map(str, counts))} |")
    lines += [
        "",
        "## What dpflow refuses, by rule",
        "",
        "| queries | rule | how many |",
        "|---|---|---|",
    ]
    for name, answers in verdicts.items():
        rules = Counter(answer[0] for answer in answers.values() if answer[0] != "accepted")
        lines += [f"| {name} | `{rule}` | {count} |" for rule, count in rules.most_common()]
    lines += [
        "",
        "## Query by query",
        "",
        f"| query | {' | '.join(ENGINES)} |",
        "|---|---|---|---|",
    ]
    for name, answers in verdicts.items():
        for key, answer in answers.items():
            words = [
                answer[0],
                *("accepted" if one == "accepted" else "refused" for one in answer[1:]),
            ]
            lines.append(f"| {name} {key} | {' | '.join(words)} |")
    return lines


if __name__ == "__main__":
    main()
