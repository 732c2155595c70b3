"""Sessions that break their privacy guarantee on purpose: the sparse vectors that Lyu, Su and Li (2017)
found in the literature, and mistakes in keeping state.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import State, Verdict
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.core.toolbox.sparse_vector import Engine, Memory
from dpflow.mechanisms.above_threshold import AboveThreshold


class _HandMade(AboveThreshold):
    """Answers with noise of its own: ``query_noise`` in units of the right scale."""

    query_noise = Fraction(1)
    stops = True
    tells_value = False

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        engine, memory = self._make_engine(params, table), Memory.from_json(state.data)
        if self.stops and memory.is_exhausted(engine):
            return Verdict({"verdict": "exhausted"}, closed=True), state
        scale = engine.query_scale * self.query_noise
        noisy = int(answer.rows[0]) + (int(discrete_laplace(scale, 1, source)[0]) if scale else 0)
        if noisy > query.threshold + memory.noise:
            return Verdict({"verdict": "above"}), state
        after = Memory(memory.failures + 1, engine.start_session(source).noise)
        body: dict[str, Any] = {"verdict": "below"}
        if self.tells_value:
            body["value"] = noisy
        return Verdict(body, self.stops and after.is_exhausted(engine)), State(after.to_json())


class NeverCounts(_HandMade):
    """Never counts its costly answers (Chen et al. 2015; algorithm 6 of Lyu, Su, Li)."""

    stops = False


class NoQueryNoise(_HandMade):
    """Noise on the threshold alone (Stoddard et al. 2014; algorithm 5)."""

    query_noise = Fraction(0)


class TellsNoisyValue(_HandMade):
    """Releases the noisy number that it compared (Roth 2011; algorithm 3)."""

    tells_value = True


class NoiseOfOneAnswer(AboveThreshold):
    """Several costly answers with the noise of one (Lee, Clifton 2014; algorithm 4)."""

    def _make_engine(self, params: Any, table: Table) -> Engine:
        return replace(super()._make_engine(params, table), epsilon=2 * params.epsilon)


class HalfTheNoise(AboveThreshold):
    """Half of the noise that its privacy cost asks for."""

    def _make_engine(self, params: Any, table: Table) -> Engine:
        engine = super()._make_engine(params, table)
        return replace(engine, epsilon=2 * engine.epsilon)


class KeepsThreshold(_HandMade):
    """Uses the same noisy threshold again after a costly answer."""

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        verdict, after = super().answer(params, table, state, query, answer, source)
        return verdict, State(after.data | {"noise": state.data["noise"]})


class ChangesState(AboveThreshold):
    """Changes the state that it was given: a crashed answer is then asked on another one."""

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        verdict, after = super().answer(params, table, state, query, answer, source)
        state.data["noise"] = after.data["noise"] + 1
        return verdict, after


class TellsThreshold(AboveThreshold):
    """Shows its secret noise in the answer."""

    def answer(
        self, params: Any, table: Table, state: State, query: Any, answer: Any, source: Source
    ) -> tuple[Verdict, State]:
        verdict, after = super().answer(params, table, state, query, answer, source)
        body = verdict.body | {"margin": int(answer.rows[0]) - state.data["noise"]}
        return replace(verdict, body=body), after
