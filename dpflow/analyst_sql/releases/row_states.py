"""Which parts of a query read the same rows: an answer that combines them is true of one state of these alone."""

from __future__ import annotations

from collections.abc import Sequence

from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.core.contract.joins import plain_relation


def group_by_rows(parts: Sequence[PartPlan]) -> list[list[int]]:
    """Positions of parts, those together that read one private table and have a block in common, or no blocks."""
    groups: list[list[int]] = []
    for position, part in enumerate(parts):
        shared = [one for one in groups if any(_share_rows(part, parts[n]) for n in one)]
        groups = [one for one in groups if one not in shared]
        groups.append([*(n for one in shared for n in one), position])
    return groups


def _share_rows(part: PartPlan, other: PartPlan) -> bool:
    (rows, blocks), (other_rows, other_blocks) = map(_find_rows, (part, other))
    is_apart = blocks and other_blocks and not blocks & other_blocks
    return rows == other_rows and not is_apart


def _find_rows(part: PartPlan) -> tuple[object, set[str]]:
    """Where a part's rows are, and the blocks that are read; none if all are."""
    table = part.plan.table
    rows = table.database, table.source, plain_relation(table.relation_name)
    return rows, set(part.plan.read_blocks)
