"""Sessions that break their contract on purpose.

The first two lose their state. The others are sparse vectors with the wrong noise: four that were
published (listed by Lyu, Su, Li 2017, "Understanding the Sparse Vector Technique", section 3), and
two of our own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import State, Verdict
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.core.toolbox.sparse_vector import Engine, Memory
from dpflow.mechanisms.above_threshold import AboveThreshold
from dpflow.testing.examples import Example
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


class TellsValue(AboveThreshold):
    """Shows the noisy value that it compared (Roth 2011): "below" and the value together tell the
    threshold's noise, which the other answers relied on.
    """

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        engine, memory = self._make_engine(params, table), Memory.from_json(state.data)
        if memory.is_exhausted(engine):
            return Verdict({"verdict": "exhausted"}, closed=True), state
        value = int(answer.rows[0]) + int(discrete_laplace(engine.query_scale, 1, source)[0])
        if value > query.threshold + memory.noise:
            return Verdict({"verdict": "above"}), state
        after = Memory(memory.failures + 1, memory.noise)
        body = {"verdict": "below", "value": value}
        return Verdict(body, closed=after.is_exhausted(engine)), State(after.to_json())


class _OneThreshold(AboveThreshold):
    """Keeps one noisy threshold for the whole session, and may add noise to a value or not."""

    counts = True

    def _value_noise(self, engine: Engine, source: Source) -> int:
        # As if the session allowed one failure, however many it allows.
        scale = engine.query_scale / engine.failures
        return int(discrete_laplace(scale, 1, source)[0])

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        engine, memory = self._make_engine(params, table), Memory.from_json(state.data)
        if memory.is_exhausted(engine):
            return Verdict({"verdict": "exhausted"}, closed=True), state
        value = int(answer.rows[0]) + self._value_noise(engine, source)
        if value > query.threshold + memory.noise:
            return Verdict({"verdict": "above"}), state
        after = Memory(memory.failures + self.counts, memory.noise)
        return Verdict({"verdict": "below"}, closed=after.is_exhausted(engine)), State(
            after.to_json()
        )


class NoiseForOneFailure(_OneThreshold):
    """Allows several failures with the noise of one (Lee, Clifton 2014)."""


class NoValueNoise(_OneThreshold):
    """Hides the threshold only, and never counts (Stoddard, Chen, Machanavajjhala 2014)."""

    counts = False

    def _value_noise(self, engine: Engine, source: Source) -> int:
        return 0


class NeverCloses(_OneThreshold):
    """Hides values too, and never counts (Chen, Xiao, Zhang, Xu 2015)."""

    counts = False


class HalfTheNoise(AboveThreshold):
    """Half of the noise that its cost asks for."""

    def _make_engine(self, params: Any, table: Table) -> Engine:
        engine = super()._make_engine(params, table)
        return replace(engine, epsilon=2 * engine.epsilon)


class NeverCounts(AboveThreshold):
    """Forgets that an answer "below" was one: the session never ends."""

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        verdict, after = super().answer(params, table, state, query, answer, source)
        return replace(verdict, closed=False), State(after.data | {"failures": 0})


def _make_example(epsilon: str, failures: int, queries: tuple[tuple[str, int], ...]) -> Example:
    """Counts of two groups near their thresholds; a replaced unit leaves one for the other."""
    table = Table.model_validate(
        {
            "name": "tiny",
            "database": "tiny.duckdb",
            "privacy_unit": {"column": "user"},
            "neighbours": "replace",
            "contribution_bounds": {"rows": 1},
            "columns": {"user": {}, "kind": {"public_keys": ["b", "a"]}},
        }
    )
    asked = [{"by": "kind", "key": key, "threshold": threshold} for key, threshold in queries]
    return Example(table, {"epsilon": epsilon, "failures": failures}, asked)


#: On these the sound session keeps its guarantee, and every one above from `TellsValue` on breaks it.
ONE_FAILURE = _make_example("6", 1, (("b", 5), ("b", 5), ("b", 5), ("a", 4)))
TWO_FAILURES = _make_example("12", 2, (("b", 5), ("a", 4), ("a", 4)))
