"""What a load did, for its owner. The numbers are exact aggregates of private rows: no repr shows
them, and only whoever calls is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rejects:
    """Rows of a source that were not taken, of one kind.

    Attributes:
        source: the file or table they come from.
        column: what could not be read; empty if the whole row is at fault.
        kind: why, such as ``"not INTEGER"``, never a value.
        rows: how many.
        lines: the first of their lines in a file, for who corrects it.
    """

    source: str
    column: str
    kind: str
    rows: int = field(repr=False)
    lines: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class LoadReport:
    """Outcome of a load.

    Attributes:
        table: the table in the private file.
        loaded: False if nothing was changed, because the rows stand there already or because too
            many were rejected.
        repeated: the same source was loaded before.
        rows: how many rows were taken.
        rejected: how many were not.
        rejects: why not, by source, column and kind.
        ignored_columns: columns of the source that nobody declared, so that they were not loaded.
    """

    table: str
    loaded: bool
    repeated: bool = False
    rows: int = field(default=0, repr=False)
    rejected: int = field(default=0, repr=False)
    rejects: tuple[Rejects, ...] = field(default=(), repr=False)
    ignored_columns: tuple[str, ...] = ()
