"""The notebook cell ``%%dpsql``: load it with ``%load_ext dpflow.notebook``.

    %%dpsql answer
    -- dp: epsilon=0.5
    SELECT city, COUNT(*) AS n FROM visits GROUP BY city

The name behind ``%%dpsql`` is the variable that holds the answer; without one it is shown only. The
cell is asked as `dpflow.sql` asks it, with the ledger and tables of ``dpflow.yml``, or at the service that
``dpflow.yml`` or DPFLOW_SERVER names; names of Python variables in ``$name`` are its parameters. EXPLAIN is shown as a
table, and a refusal, also one in a cell of Python, as its sentence without a traceback.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import dpflow
from dpflow.analyst_sql.answer.plan_text import plan_lines
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.parse.text_and_options import read_source
from dpflow.api import open_ledger, plan_sql, sql
from dpflow.catalogue import find_server
from dpflow.engine.releases.result_table import write_html
from dpflow.errors import DpflowError, InvalidInput

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, repr=False)
class ExplainedPlan:
    """What EXPLAIN says of a query (`dpflow.analyst_sql.answer.sql_plan.SqlPlan.explain`), for people."""

    view: dict[str, Any]

    def __repr__(self) -> str:
        return "\n".join(f"{what:24} {text}" for what, text in plan_lines(self.view))

    def _repr_html_(self) -> str:
        return write_html("EXPLAIN; nothing was charged", ["", ""], list(plan_lines(self.view)))


def run_cell(line: str, cell: str, variables: dict[str, Any]) -> Any:
    """What a cell shows; ``variables`` are those of the notebook. Raises as `dpflow.sql`."""
    name = line.strip()
    if name and not _NAME.fullmatch(name):
        raise InvalidInput(
            f"%%dpsql takes the name of a variable, and {name[:40]!r} is none; options go into the first line of the "
            "cell, such as -- dp: epsilon=0.5"
        )
    source = read_source(cell)
    parameters = {one: variables[one] for one in source.list_parameters() if one in variables}
    answer: SqlAnswer | SqlPlan | dict[str, Any]
    if server := find_server():
        client = dpflow.connect(server)
        ask = client.explain if source.explain else client.sql
        answer = ask(cell, parameters=parameters)
    elif source.explain:
        answer = plan_sql(cell, parameters=parameters)
    else:
        answer = sql(cell, parameters=parameters)
    if name:
        variables[name] = answer
    if isinstance(answer, SqlPlan):
        answer = answer.explain(open_ledger())
    return ExplainedPlan(answer) if isinstance(answer, dict) else answer


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext`` calls."""

    def dpsql(line: str, cell: str) -> Any:
        try:
            return run_cell(line, cell, shell.user_ns)
        except DpflowError as error:
            _print_error(error)
        return None

    def show_error(shell: Any, kind: type, error: DpflowError, *place: Any, **where: Any) -> None:
        _print_error(error)

    # Of other cells, too.
    shell.set_custom_exc((DpflowError,), show_error)
    shell.register_magic_function(dpsql, magic_kind="cell", magic_name="dpsql")


def _print_error(error: DpflowError) -> None:
    """A refusal is a sentence with a place in it, and no traceback."""
    print(f"{type(error).__name__}: {error}")
