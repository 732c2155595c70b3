"""What one request of a principal may cost and return. What a plan says to be above is refused before the charge, and
nothing after it: rows above the limit are left out of what was released. Stored results stay whole, so the same request
has the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.events import Unprotected
from dpflow.core.contract.published_release import PublishedRelease
from dpflow.counted import counted
from dpflow.engine.releases.plan import Plan
from dpflow.server.job_queue import Reply
from dpflow.server.service import Principal


def find_excess(terms: Principal, plans: Sequence[Plan], rows: int | None) -> str:
    """Why these plans together are above what one request may be; "" if they are not.

    Args:
        rows: that the reply has at most; None where only the release knows.
    """
    if rows is not None and terms.max_rows is not None and rows > terms.max_rows:
        return (
            f"this returns up to {counted(rows, 'row')}, and one reply to this principal may have {terms.max_rows}; ask for "
            f"fewer groups, or add LIMIT {terms.max_rows} to a query"
        )
    costs = [plan.privacy_cost() for plan in plans]
    limits = {"epsilon": terms.max_epsilon, "delta": terms.max_delta}
    for position, (name, limit) in enumerate(limits.items()):
        cost = sum((Fraction(amounts[position]) for amounts in costs), Fraction(0))
        if limit is None:
            continue
        if cost > limit:
            return f"this costs {name} {exact_text(cost)}, and one request of this principal may cost {exact_text(limit)}; ask for less"
        if any(isinstance(plan.event, Unprotected) for plan in plans):
            return f"this makes no privacy guarantee, and one request of this principal may cost {name} {exact_text(limit)}"
    return ""


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
