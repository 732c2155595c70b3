"""DuckDB's statement ``PIVOT rows ON x IN (...) USING f(y)`` as the SELECT that means the same."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import take_arguments
from dpflow.analyst_sql.parse.source_text import Refusal


def spell_pivot(parsed: Any) -> Any:
    """``SELECT * FROM rows PIVOT (f(y) FOR x IN (...))``. Raises `Refusal` where values are not listed: DuckDB
    would look them up, in a statement before.
    """
    rows, tests, using, group, with_ = take_arguments(
        parsed, "this", "expressions", "using", "group", "with_"
    )
    for test in tests or [parsed]:
        listed = isinstance(test, exp.In) and isinstance(test.this, exp.Column)
        if not listed or not all(isinstance(one, exp.Literal) for one in test.expressions):
            raise Refusal(
                "select-only",
                "PIVOT lists its values: ON a column of the rows below IN (value, ...), with USING",
                test,
            )
        take_arguments(test, "this", "expressions")
    if not isinstance(rows, exp.Table | exp.Subquery):
        raise Refusal("select-only", "PIVOT takes a query in brackets, or a CTE", parsed)
    counts = [exp.Count(this=exp.Star())]
    rows.append("pivots", exp.Pivot(expressions=using or counts, fields=tests, group=group))
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=rows), with_=with_)
