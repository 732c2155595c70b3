"""Sessions that break their contract on purpose, by mistakes in keeping state."""

from __future__ import annotations

from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import State, Verdict
from dpflow.core.sampling.randomness import Source
from dpflow.mechanisms.above_threshold import AboveThreshold
from dpflow.testing.harness import StreamSource


class ChangesState(AboveThreshold):
    """Changes the state that it was given: a crashed answer is then asked on another one."""

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        verdict, after = super().answer(params, table, state, query, answer, source)
        state.data["noise"] = after.data["noise"] + 1
        return verdict, after


class FixedNoise(AboveThreshold):
    """Draws its threshold and all of its noise from a fixed seed."""

    def open(self, params: Any, table: Table, source: Source) -> State:
        return super().open(params, table, StreamSource(1))

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        return super().answer(params, table, state, query, answer, StreamSource(2))
