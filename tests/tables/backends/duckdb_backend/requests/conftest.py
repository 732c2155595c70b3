"""A table whose sums are cached, and what of it is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cached_tables import ROWS, again

from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.tables.backends.duckdb_backend.requests.handlers import HANDLERS
from dpflow.tables.private import PrivateTable


@pytest.fixture
def table(make: Any) -> PrivateTable:
    """Five days, of which every unit has many rows in many groups; sums are kept."""
    declared = make(
        ROWS,
        block="d",
        protects="unit-block",
        cached_partials="checked",
        contribution_bounds={"rows": 999, "groups": 99},
    )
    return again(
        declared,
        columns={
            "v": {"lower": 0, "upper": 12},
            "k": {"public_keys": ["a", "b", "c", "x"]},
            "n": {},
        },
    )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each block that is cut."""
    taken: list[Any] = []
    for kind in (GroupedSums, SortedValues):
        handler = HANDLERS[kind]

        def counting(reading: Any, request: Any, real: Any = handler.answer) -> Any:
            taken.append(request)
            return real(reading, request)

        monkeypatch.setitem(HANDLERS, kind, replace(handler, answer=counting))
    return taken
