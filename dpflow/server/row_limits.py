"""How many rows a reply may have: what the plan says to have more is refused before the charge, and nothing after it. Rows
above the limit are left out of what was released: stored results stay whole, so the same request has the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpflow.core.contract.published_release import PublishedRelease
from dpflow.counted import counted
from dpflow.errors import PlanRefused
from dpflow.server.jobs import Reply


def require_rows(rows: int | None, max_rows: int | None) -> None:
    """Raises `PlanRefused` for more rows than a reply may have.

    Args:
        rows: that it has at most; None where only the release knows.
    """
    if rows is not None and max_rows is not None and rows > max_rows:
        raise PlanRefused(
            f"this returns up to {counted(rows, 'row')}, and one reply to this principal may have {max_rows}; ask for fewer "
            f"groups, or add LIMIT {max_rows} to a query"
        )


def cut_reply(reply: Reply, max_rows: int | None) -> Reply:
    """The answer of a query or release with its first rows; ``rows_left_out`` is the number of others. Replies without
    rows stay as they are.
    """
    result = reply.get("result")
    if "values" in reply:
        kept = reply | {"values": reply["values"][:max_rows]}
        left_out = len(reply["values"]) - len(kept["values"])
        kept["notes"] = [*reply["notes"], _describe_rest(left_out, max_rows)]
    elif result is not None:
        cut = result | {"rows": result["rows"][:max_rows]}
        left_out = len(result["rows"]) - len(cut["rows"])
        if table := result.get("synthetic"):
            cut["synthetic"] = table | {"rows": table["rows"][:max_rows]}
            left_out += len(table["rows"]) - len(cut["synthetic"]["rows"])
        kept = reply | {"result": cut, "rows": len(cut["rows"])}
    else:
        return reply
    return kept | {"rows_left_out": left_out} if left_out else reply


def cut_releases(
    releases: Sequence[PublishedRelease], max_rows: int | None
) -> tuple[list[PublishedRelease], int]:
    """Releases with their first rows, all together, and the number of others."""
    kept, left_out, room = [], 0, max_rows
    for one in releases:
        rows = one.result.rows[:room]
        left_out += len(one.result.rows) - len(rows)
        room = None if room is None else room - len(rows)
        kept.append(replace(one, result=replace(one.result, rows=rows)))
    return kept, left_out


def _describe_rest(left_out: int, max_rows: int | None) -> str:
    return f"{counted(left_out, 'row')} left out: one reply to this principal may have {max_rows}"
