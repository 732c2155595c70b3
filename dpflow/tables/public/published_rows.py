"""Published answers as tables that queries join with what was released: their numbers keep the intervals that
they were published with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from dpflow.errors import InvalidInput
from dpflow.tables.public.named_tables import find_answer, list_answers
from dpflow.tables.public.public_file import read_file
from dpflow.tables.public.public_tables import MAX_ROWS
from dpflow.tables.public.query_process import RowTable

#: Confidences of a column without noise, and of one whose noise has no interval.
EXACT, NO_INTERVAL = 100, 0


@dataclass(frozen=True)
class PublishedRows(RowTable):
    """Rows of one published answer.

    Attributes:
        confidences: for each column per cent with which a value's interval holds, and then the two columns behind
            it are its ends; `EXACT` without noise, `NO_INTERVAL` where nothing bounds the noise.
        chosen: noise chose which rows there are.
        answer: the name that they are published under.
    """

    confidences: Sequence[int] = ()
    chosen: bool = True
    answer: str = ""

    def has_interval(self, position: int) -> bool:
        """Whether a column's values have intervals. Those of rows that noise chose do not hold one by one."""
        name = self.columns[position][0].casefold()
        beside = [column.casefold() for column, _ in self.columns[position + 1 : position + 3]]
        ends = (f"{name}_noise_low", f"{name}_noise_high")
        # A column that had no noise before has its ends elsewhere.
        has_ends = len(beside) == 2 and all(map(str.startswith, beside, ends))
        return not self.chosen and has_ends and NO_INTERVAL < self.confidences[position] < EXACT

    def count_failures(self, position: int) -> int:
        """How many times 5 % a column's intervals may fail."""
        return -(-(EXACT - self.confidences[position]) // 5)

    def write_rows(self, ends: Sequence[str]) -> RowTable:
        """The rows with three columns beside each that has intervals, whose names end so: the two ends, and how many
        times 5 % they may fail.
        """
        columns, values = list(self.columns), list(self.values)
        for position, (name, _) in enumerate(self.columns):
            if self.has_interval(position):
                kinds = ("DOUBLE", "DOUBLE", "BIGINT")
                columns += [(name + end, kind) for end, kind in zip(ends, kinds)]
                low, high = self.values[position + 1 : position + 3]
                values += [low, high, [self.count_failures(position)] * len(low)]
        return RowTable(self.name, columns, values)


def load_published_rows(database: Path, name: str) -> PublishedRows | None:
    """The answers that a published file has under a name, or under ``NAME_latest``; None if there is none.

    Raises:
        InvalidInput: they have too many rows.
        NotPublished: another process writes the file.
    """

    def read(connection: duckdb.DuckDBPyConnection) -> PublishedRows | None:
        answer = find_answer(connection, name)
        if answer is None:
            return None
        columns = ", ".join(f"CAST({place} AS VARCHAR)" for place, _, _ in answer.columns)
        # Not as they were stored: the answer's order may be that of its noise, and a query may take the first rows.
        places = [place for place, _, _ in answer.columns[: len(answer.confidences)]]
        exact = [place for place, held in zip(places, answer.confidences) if held == EXACT]
        order = ", ".join(["interval_start, block, run", *exact, f"hash({', '.join(places)})"])
        query = f"SELECT {columns} FROM {answer.source} ORDER BY {order} LIMIT {MAX_ROWS + 1}"
        rows = connection.execute(query).fetchall()
        if len(rows) > MAX_ROWS:
            raise InvalidInput(
                f"the published answer {name!r} has more than {MAX_ROWS:,} rows; ask for {name}_latest, or a coarser answer"
            )
        kinds = [(column, kind) for _, column, kind in answer.columns]
        values = [list(column) for column in zip(*rows)] or [[] for _ in kinds]
        own = len(answer.confidences)
        confidences = [*answer.confidences, *[EXACT] * (len(kinds) - own)]
        return PublishedRows(name, kinds, values, confidences, answer.chosen, name)

    return read_file(database, 30.0, read) if database.exists() else None


def list_published(database: Path) -> list[str]:
    """The names of answers that a published file has; none without a file. Raises `NotPublished`."""
    return read_file(database, 30.0, list_answers) if database.exists() else []
