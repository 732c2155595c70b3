"""Files that `dpflow init` writes: a declaration, the catalogue, a first release."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from dpflow.catalogue import FILE_NAME, find_catalogue, is_table_name, load_catalogue
from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.columns import default_step
from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.choose_bounds import PROFILE
from dpflow.errors import InvalidInput

#: Beside the declaration; editors read it by the first line of the YAML.
SCHEMA_FILE = "declaration.schema.json"
#: Where the ledger of a new project is.
LEDGER_FILE = "ledger.sqlite"


#: A limit of a column, or limits by period.
Limits = int | Mapping[str, int]


@dataclass(frozen=True)
class Proposal:
    """What its owner says of a table.

    Attributes:
        unit: the column that names the privacy unit.
        rows: how many rows of one unit count.
        block: a column whose values have a budget each, or None.
        bounds: lower and upper end by column, and a step if one is given.
        keys: public keys by column.
        groups: how many groups of a column one unit may reach, or how many days, months and so on.
        rows_per_group: how many of its rows count in each of them.
        columns: everything that may be read, in order.
        max_rows: how many rows no unit exceeds, as everybody knows.
        within_bounds: columns with no value beyond their bounds, likewise.
        max_rows_per_group: how many of its rows none has in a group or period, likewise.
    """

    name: str
    database: Path
    relation: str
    unit: str
    rows: int
    block: str | None
    columns: Sequence[str]
    bounds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    groups: Mapping[str, Limits] = field(default_factory=dict)
    rows_per_group: Mapping[str, Limits] = field(default_factory=dict)
    max_rows: int | None = None
    within_bounds: Sequence[str] = ()
    max_rows_per_group: Mapping[str, Limits] = field(default_factory=dict)


def parse_bounds(text: str) -> tuple[str, ...]:
    """Both ends, and the step if one is given, of ``0..120`` or ``0..100/0.5``."""
    match = re.fullmatch(r"\s*([^.\s][^/]*?)\s*\.\.\s*([^/]+?)\s*(?:/\s*(\S+)\s*)?", text)
    if match is None:
        raise InvalidInput(
            f"bounds {text[:60]!r} have no two ends; write them as 0..120, -10..40, 2013-01-01..2013-12-31 or 0..100/0.5"
        )
    return tuple(part for part in match.groups() if part is not None)


def add_step(bounds: Sequence[str]) -> tuple[str, ...]:
    """Bounds of a column of fractions, with the default step where none is given and 1 is too coarse."""
    try:
        low, high = map(Fraction, bounds)
    except ValueError:  # a step is given, or a bound is no number, which the declaration refuses
        return tuple(bounds)
    if not low < high or (step := default_step(low, high)) == 1:
        return tuple(bounds)
    return (*bounds, exact_text(step))


def write_declaration(proposal: Proposal, folder: Path) -> str:
    """The text of a declaration that stands in a folder, with a reason for each line."""
    relation = (
        "" if proposal.relation == proposal.name else f"relation: {_scalar(proposal.relation)}\n"
    )
    protects = (
        f"protects: unit-block       # a {proposal.unit}'s rows of one {proposal.block}; each {proposal.block} has a budget\n"
        f"block: {_scalar(proposal.block)}\n"
        if proposal.block
        else ""
    )
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_FILE}\n",
        f"name: {proposal.name}\n",
        f"database: {_scalar(_relative_path(proposal.database, folder))}\n",
        relation,
        f"privacy_unit: {{column: {_scalar(proposal.unit)}}}  # one guarantee protects all rows of one of these\n",
        protects,
        f"contribution_bounds: {{rows: {proposal.rows}}}  # of each of them at most so many rows count\n",
        _write_largest(proposal),
        "columns:  # only these can be read; bounds and keys come from what you know, not from the rows\n",
        *(f"  {_scalar(name)}: {_write_column(name, proposal)}\n" for name in proposal.columns),
    ]
    return "".join(lines)


def _write_largest(proposal: Proposal) -> str:
    if proposal.max_rows is None:
        return ""
    parts = [f"rows: {proposal.max_rows}"]
    if limits := proposal.max_rows_per_group.items():
        of = ", ".join(f"{_scalar(name)}: {_write_limits(limit)}" for name, limit in limits)
        parts.append(f"rows_per_group: {{{of}}}")
    if proposal.within_bounds:
        parts.append(f"within_bounds: [{', '.join(map(_scalar, proposal.within_bounds))}]")
    return f"max_contributions: {{{', '.join(parts)}}}  # nobody has more, as everybody knows\n"


def _write_limits(limits: Limits) -> str:
    if isinstance(limits, int):
        return str(limits)
    return "{" + ", ".join(f"{period}: {n}" for period, n in limits.items()) + "}"


def _write_column(name: str, proposal: Proposal) -> str:
    parts = []
    if name in proposal.bounds:
        low, high, *step = proposal.bounds[name]
        # Dates stay dates: YAML reads them as such.
        parts += [f"lower: {low}", f"upper: {high}", *(f"step: {_scalar(s)}" for s in step)]
    if name in proposal.keys:
        parts.append(f"public_keys: [{', '.join(map(_scalar, proposal.keys[name]))}]")
    for field_name in ("groups", "rows_per_group"):
        limits = getattr(proposal, field_name).get(name)
        parts += [f"{field_name}: {_write_limits(limits)}"] if limits is not None else []
    return "{" + ", ".join(parts) + "}"


def write_release(table: str, mechanism: str, params: Mapping[str, Any], block: str | None) -> str:
    """The text of a first release of a table that the catalogue names. A contribution profile is found by
    its name, which therefore has no block.
    """
    words = " ".join([mechanism, "of", table, *(["by", params["by"]] if "by" in params else [])])
    request: dict[str, Any] = {
        "name": f"{words}{'' if block is None or mechanism == PROFILE else f' {block}'}"
    }
    request |= {"mechanism": mechanism, "table": table, "scope": table}
    request |= {} if block is None else {"blocks": [block]}
    request["params"] = dict(params)
    return yaml.safe_dump(request, sort_keys=False, allow_unicode=True)


_DAG = '''"""Check the rows of {table} and release a statistic of them{daily}."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG{imports}
from dpflow.airflow import BudgetCheckOperator, DataContractOperator, ReleaseOperator

RELEASES = [
    {{
        "name": {name!r},
        "mechanism": {mechanism!r},
        "table": {table!r},
        "scope": {table!r},
        "params": {params!r},
    }}
]
{day}
with DAG(
    {dag_id!r},
    schedule={schedule},{asked}
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={{"retries": 3, "retry_delay": timedelta(minutes=5)}},
    tags=["dpflow"],
):
    budget = BudgetCheckOperator(task_id="budget")
    contract = DataContractOperator(task_id="contract", table={table!r}{blocks})
    budget >> contract >> ReleaseOperator(task_id="release", release=RELEASES{blocks})
'''
_TIMETABLE = """

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
"""


def write_dag(
    table: str, mechanism: str, params: Mapping[str, str], block: str | None, *, by_day: bool
) -> str:
    """The text of a DAG over a table that the catalogue names: daily where each block is a day. Else it is run by hand: a run
    names its block, and of a table without blocks each run pays from the same budget.
    """
    daily, named = block is not None and by_day, block is not None and not by_day
    day = f"\n# Budgets are per {block!r}: "
    if daily:
        day += 'the run\'s interval names the block.\nDAY = "{{ data_interval_start | ds }}"\n'
    else:
        day += "who starts a run names the block, as the rows write it.\n"
    return _DAG.format(
        table=table,
        name=" ".join([mechanism, "of", table, *(["by", params["by"]] if "by" in params else [])]),
        mechanism=mechanism,
        params=dict(params),
        dag_id=f"{table}_daily" if daily else table,
        daily=" each day" if daily else "",
        imports=_TIMETABLE if daily else ", Param\n" if named else "\n",
        schedule='CronDataIntervalTimetable("0 3 * * *", timezone="UTC")' if daily else "None",
        asked='\n    params={"block": Param(type="string")},' if named else "",
        day=day if block is not None else "",
        blocks=", blocks=DAY" if daily else ', blocks="{{ params.block }}"' if named else "",
    )


def add_to_catalogue(folder: Path, name: str, declaration: Path, ledger: str) -> tuple[Path, str]:
    """The catalogue of a folder with one more table: its file, and its text.

    Args:
        ledger: what a new catalogue names; a URL with a password stays out of it.

    Raises:
        InvalidInput: it is written so that a line cannot be added; the message has the line.
    """
    catalogue = find_catalogue(folder)
    file = folder / FILE_NAME if catalogue is None else catalogue.file
    line = f"  {name}: {_relative_path(declaration, file.parent)}\n"
    if catalogue is None:
        place = ledger if "://" in ledger else _relative_path(Path(ledger), folder)
        ledger_line = "" if "://" in ledger and "@" in ledger else f"ledger: {_scalar(place)}\n"
        text = (
            f"# What this project's tables, ledger and budget are called; commands find it upward from where they run.\n"
            f"{ledger_line}scope: {name}\ntables:\n{line}"
        )
        return file, text
    text = file.read_text(encoding="utf-8")
    if name in catalogue.tables:
        return file, text
    if not catalogue.tables and not re.search(r"^tables\s*:", text, re.MULTILINE):
        return file, f"{text.rstrip()}\ntables:\n{line}"
    # As text, because comments and their order are the owner's.
    with_line, number = re.subn(
        r"^(tables\s*:[ \t]*(?:#.*)?\n)", rf"\g<1>{line}", text, flags=re.MULTILINE
    )
    if number != 1:
        raise InvalidInput(
            f"{file} lists its tables on one line; add this one to it: {line.strip()}"
        )
    return file, with_line


def check_catalogue(text: str, folder: Path) -> None:
    """Raises `InvalidDeclaration` if a catalogue's new text would not be read."""
    trial = folder / f".{FILE_NAME}.part"
    try:
        trial.write_text(text, encoding="utf-8")
        load_catalogue(trial)
    finally:
        trial.unlink(missing_ok=True)


def schema_text() -> str:
    """The JSON Schema of declarations."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Table.model_json_schema()
    return json.dumps(schema, indent=1) + "\n"


def write_files(files: Mapping[Path, str]) -> None:
    """Write all files; if one cannot be written, those that are new are taken away."""
    done: list[Path] = []
    try:
        for file, text in files.items():
            new = not file.exists()
            file.write_text(text, encoding="utf-8")
            if new:
                done.append(file)
    except OSError:
        for file in done:
            file.unlink(missing_ok=True)
        raise InvalidInput(f"{file} cannot be written; run it in a folder of yours") from None


def require_table_name(name: str) -> str:
    """A name for a declaration. Raises `InvalidInput` if it is none."""
    if not is_table_name(name):
        raise InvalidInput(
            f"{name[:60]!r} is no name for a table; give one of letters, digits and underscores: --name visits"
        )
    return name


def _relative_path(path: Path, folder: Path) -> str:
    """From the folder if it is below or beside it, else absolute."""
    path, folder = path.resolve(), folder.resolve()
    for up, base in enumerate((folder, *folder.parents)):
        if path.is_relative_to(base) and len(base.parts) > 1:
            return "/".join([".."] * up + [str(path.relative_to(base))])
    return str(path)


def _scalar(value: Any) -> str:
    """A text as YAML writes it: quoted where it would be read as something else."""
    text = yaml.safe_dump(str(value), default_flow_style=True, allow_unicode=True, width=10_000)
    plain = text.removesuffix("\n").removesuffix("\n...").strip()
    # Inside a list or mapping in brackets these would end the value.
    if not plain.startswith(("'", '"')) and any(sign in plain for sign in ",[]{}:#"):
        return json.dumps(str(value), ensure_ascii=False)
    return plain
