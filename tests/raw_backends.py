"""The matrix of raw values on other backends than a DuckDB file: a list of Parquet files, and Spark.

A type's tables are written to Parquet, and loaded from there into the DuckDB file that is the reference.
On each backend a case must show the same with raw values and without, and answer what the reference
answers, exactly: contributions are within their bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import raw_matrix
from raw_answers import ask
from raw_matrix import KINDS, PLACES, Case, World, running_cases
from raw_outcomes import distance
from spark_servers import declare_source

from dpflow.tables.access.file_list import SUFFIX
from dpflow.tables.backends.spark_backend import spark_sources
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.private import PrivateTable

#: Types whose raw values DuckDB does not write to Parquet, or does not load from there.
UNWRITTEN = {
    *("TIME", "TIME_NS", "TIMESTAMP_S", "TIMESTAMP_MS", "INTERVAL"),
    *("JSON", "ENUM", "BIT", "BIGNUM", "MAP"),
}
PARQUET_KINDS = [name for name in KINDS if name not in UNWRITTEN]


class ParquetWorld(World):
    """A type's tables as Parquet files, as one backend reads them. The DuckDB file is the reference."""

    @classmethod
    def make(cls, kind: str, folder: Path) -> ParquetWorld:
        """The world of a type by its name."""
        return cls(KINDS[kind], folder, through_parquet=True)

    @cached_property
    def reference(self) -> World:
        """The same tables in the DuckDB file."""
        reference = World.__new__(World)
        reference.__dict__ |= self.__dict__ | {"_closing": ExitStack(), "_session": None}
        self._closing.callback(reference._closing.close)
        return reference

    def answer(self, case: Case, relation: str) -> Any:
        private = PrivateTable(self.table(case, relation), self.where(case))
        request, blocks = self.request(case), self.blocks(case)
        with private.hold_open():
            private.check_schema()
            private.check_request(request, blocks)
            return ask(private, request, blocks)


class ListWorld(ParquetWorld):
    """By lists of verified files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for relation in ("plain", "near", "shared", "every"):
            folder = self.folder / relation
            list_files([folder / "part.parquet"], folder, relation, self.list(relation))

    def list(self, relation: str) -> Path:
        """The list of a relation's file."""
        return self.folder / f"{relation}{SUFFIX}"

    def place(self, relation: str) -> dict[str, Any]:
        return {"database": self.list(relation), "relation": relation}


class SparkWorld(ParquetWorld):
    """By a server of Spark Connect. Files stay as they are, so each folder is listed once."""

    server = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_answers(self._closing, spark_sources, "_read_text_types")
        keep_answers(self._closing, SparkConnection, "list_files")

    def place(self, relation: str) -> dict[str, Any]:
        return {"source": declare_source(self.server, self.folder / relation)}


def keep_answers(closing: ExitStack, place: Any, name: str) -> None:
    """Until then, a function or method that is asked of a folder again answers as the first time."""
    ask, answers = getattr(place, name), dict[str, Any]()

    def find(*arguments: Any) -> Any:
        folder = next(a for a in arguments if isinstance(a, str))
        if folder not in answers:
            answers[folder] = ask(*arguments)
        return answers[folder]

    closing.enter_context(patch.object(place, name, find))


def list_cases(joined: bool) -> list[Case]:
    """The cases that differ on other backends: uncached, and in one form of bounding."""
    joins = ("unit join", "unit of a join", "dimension", "dimension key")
    return [
        case
        for case in running_cases()
        if (case.cached, case.form) == ("off", "sorted") and (joined or case.role[0] not in joins)
    ]


def turn_places(cases: Sequence[Case], number: int) -> list[Case]:
    """Every role, request and condition once: of those that differ in the column's place alone one, and with the
    next number the one in the next place.
    """
    first: dict[tuple[str, ...], int] = {}
    turned = []
    for case in cases:
        if len(case.role) == 2:
            way = (case.role[1], case.request, case.where)
            turn = first.setdefault(way, len(first)) + number
            if PLACES.index(case.role[0]) != turn % len(PLACES):
                continue
        turned.append(case)
    return turned


def sample_cases(kinds: Sequence[str], size: int, joined: bool) -> dict[str, list[Case]]:
    """By type as many cases: each time that with the most facets that no earlier one has."""
    seen: set[tuple[str, ...]] = set()
    part: dict[str, list[Case]] = {}
    cases = list_cases(joined)
    for number, kind in enumerate(kinds):
        rest = [*cases[number * 7 % len(cases) :], *cases[: number * 7 % len(cases)]]
        for _ in range(size):
            best = max(rest, key=lambda case: len(_facets(kind, case) - seen))
            seen |= _facets(kind, best)
            rest.remove(best)
            part.setdefault(kind, []).append(best)
    return part


def _facets(kind: str, case: Case) -> set[tuple[str, ...]]:
    return case.facets() | {("kind and use", kind, case.role[-1])}


def check_on_backend(world: ParquetWorld, case: Case) -> bool:
    """A case shows on a backend the same with raw values and without, and what the reference answers.
    Whether both answered.
    """
    # Backends divide units by hashes of their own, so all are in one group.
    with patch.object(raw_matrix, "GROUPS", 1):
        plain = world.run(case, "plain")
        answered = False
        # A date or time beyond the calendar has no key on Spark.
        is_by_every_key = case.role[-1] == "private key" or case.request == "unit sizes"
        alike = "near" if is_by_every_key else "shared"
        for relation in ("plain", alike, "every"):
            shown = plain if relation == "plain" else world.run(case, relation)
            where = f"{type(world).__name__}, {world.kind.name}, {case}, {relation}"
            assert shown == plain, f"{where}: {shown.shown} is not {plain.shown}"
            if shown.answer is None or relation == "every":
                continue
            expected = world.reference.run(case, relation)
            if expected.answer is not None:
                answered = True
                apart = compare(shown.answer, expected.answer)
                assert not apart, f"{where}: {apart}"
    return answered


def compare(answer: Any, reference: Any) -> Any:
    """Where an answer is another than the reference's: numbers of estimators but for their last digits."""
    if isinstance(answer, np.ndarray):
        return not np.allclose(answer, reference, rtol=1e-9, atol=1e-9, equal_nan=True)
    return distance(Counter(answer), Counter(reference))
