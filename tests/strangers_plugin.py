"""A stranger's plugin, written from the page for mechanism authors alone, and what can go wrong in it.

The sound mechanisms follow docs/how-to/write-a-mechanism-plugin.md. Each other class is one of them with
one mistake, as an author makes it who reads the page in a hurry.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event, Pure
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.results import ErrorBound, Result, Row, Synthetic
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.core.toolbox.noise import laplace_noise


class RowsParams(Params):
    """``epsilon``: the privacy cost."""

    epsilon: Epsilon


class NoisyRows(Mechanism[Any]):
    """One number: rows, plus noise."""

    name = "noisy_rows"
    summary = "number of rows"
    citation = "Dwork, McSherry, Nissim, Smith 2006"
    Params = RowsParams

    def noise(self, params: Any, table: Any) -> Any:
        moved = table.sensitivity(self.data_request(params, table))
        return laplace_noise(moved.rows, params.epsilon)

    def event(self, params: Any, table: Any) -> Event:
        event: Event = self.noise(params, table).event
        return event

    def data_request(self, params: Any, table: Any) -> GroupedSums:
        return GroupedSums(rows_per_group=table.contribution_bounds.rows)

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        return self.result(params, table, self.noisy(params, table, answer, source))

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        return int(self.noise(params, table).add_noise(answer.rows, source)[0])

    def result(self, params: Any, table: Any, value: Any, width: float | None = None) -> Result:
        own = float(self.noise(params, table).half_width())
        return Result((Row("", "count", value, own if width is None else width),))

    def error_bound(self, params: Any, table: Any) -> ErrorBound:
        return ErrorBound({"count": self.noise(params, table).half_width()})


class RowsInDocument(NoisyRows):
    """Keeps the number of rows for the reader, who may want to know it."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        rows = super().draw(params, table, answer, source).rows
        return Result(rows, {"fitted_on": int(answer.rows.sum())})


class RowsInSynthetic(NoisyRows):
    """A synthetic table as long as the private one."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        rows = super().draw(params, table, answer, source).rows
        table_of = Synthetic((("n", "whole"),), ((1,),) * min(50, int(answer.rows.sum())))
        return Result(rows, synthetic=table_of)


class RowsInError(NoisyRows):
    """A standard error that divides by the number of rows."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        width = float(self.noise(params, table).half_width()) + 1 / (1 + int(answer.rows[0]))
        return self.result(params, table, self.noisy(params, table, answer, source), width)


class OverwrittenRow(NoisyRows):
    """Fills the result with exact rows first, and writes the noisy ones over them."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        noisy = super().draw(params, table, answer, source).rows
        return Result((Row("", "count", int(answer.rows[0])), *noisy))


class NumberOfRows(NoisyRows):
    """An empty table has an empty result."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        noisy = super().draw(params, table, answer, source)
        return noisy if answer.rows.any() else Result(())


class LessNoise(NoisyRows):
    """Ten percent less noise."""

    share = Fraction(9, 10)

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        scale = self.share * table.contribution_bounds.rows / params.epsilon
        return int(answer.rows[0]) + int(discrete_laplace(scale, 1, source)[0])


class HalfNoise(LessNoise):
    """Half of the noise."""

    share = Fraction(1, 2)


class OneRow(NoisyRows):
    """Takes every unit for one row."""

    def noise(self, params: Any, table: Any) -> Any:
        return laplace_noise(table.sensitivity(GroupedSums()).rows, params.epsilon)

    def event(self, params: Any, table: Any) -> Event:
        return Pure(params.epsilon)


class NoNoise(NoisyRows):
    """Forgets to add it."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        return int(answer.rows[0])


class FloatLaplace(NoisyRows):
    """The textbook's inverse, on doubles."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        u = (source.draw_bits(53) + 0.5) * 2.0**-53 - 0.5
        scale = table.contribution_bounds.rows / float(params.epsilon)
        return float(answer.rows[0]) - scale * math.copysign(math.log(1 - 2 * abs(u)), u)


class FloatGaussian(NoisyRows):
    """Box and Muller's, on doubles."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        u = (source.draw_bits(53) + 1) * 2.0**-53
        v = (source.draw_bits(53) + 1) * 2.0**-53
        sigma = 5 * table.contribution_bounds.rows / float(params.epsilon)
        noise = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
        return float(answer.rows[0]) + sigma * noise


class TimeByData(NoisyRows):
    """Walks over the rows one by one."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        for _ in range(int(answer.rows[0]) % 7):
            math.factorial(10_000)
        return super().noisy(params, table, answer, source)


class NumpyNoise(NoisyRows):
    """The generator that everybody uses."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        scale = table.contribution_bounds.rows / float(params.epsilon)
        return round(int(answer.rows[0]) + float(np.random.default_rng().laplace(0, scale)))


class NoSource(NoisyRows):
    """Noise that follows the declaration, not the source: the same each time."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        return int(answer.rows[0]) + len(table.name)


class Prints(NoisyRows):
    """A line that was for debugging."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        sys.stdout.write(f"{answer.rows}")
        return super().noisy(params, table, answer, source)


class Logs(NoisyRows):
    """The same, as a library's debug line."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        logging.getLogger("acme").debug("rows %s", answer.rows)
        return super().noisy(params, table, answer, source)


class WritesToDescriptor(NoisyRows):
    """Past everything that Python could redirect."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        os.write(2, b"rows %d\n" % int(answer.rows[0]))
        return super().noisy(params, table, answer, source)


class SetsEnvironment(NoisyRows):
    """Every later process of this one reads it."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        os.environ["ACME_ROWS"] = str(int(answer.rows[0]))
        return super().noisy(params, table, answer, source)


class MakesFolder(NoisyRows):
    """A folder for the report, called by what is in it."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        folder = Path(tempfile.gettempdir()) / f"acme-{int(answer.rows[0])}"
        folder.mkdir(exist_ok=True)
        folder.rmdir()
        return super().noisy(params, table, answer, source)


class SendsMetric(NoisyRows):
    """How large tables are is good to know for who operates the service."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"rows:%d|g" % int(answer.rows[0]), ("127.0.0.1", 9))
        return super().noisy(params, table, answer, source)


class RunsProgram(NoisyRows):
    """Its arguments stand in the list of processes."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        subprocess.run(["true", str(int(answer.rows[0]))], check=True)
        return super().noisy(params, table, answer, source)


class KeepsInDefault(NoisyRows):
    """A list that all calls share."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any, seen: Any = []) -> Any:  # noqa: B006
        seen.append(int(answer.rows[0]))
        return super().noisy(params, table, answer, source)


class KeepsInParams(NoisyRows):
    """The plan holds them, and lives on."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        params.__dict__["rows"] = int(answer.rows[0])
        return super().noisy(params, table, answer, source)


class LabelledText(str):
    """A text with a remark of its own."""

    rows = 0


class KeyThatCarries(NoisyRows):
    """A key that looks empty."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        (row,) = super().draw(params, table, answer, source).rows
        key = LabelledText("")
        key.rows = int(answer.rows[0])
        return Result((Row(key, row.measure, row.value, row.half_width_95),))


class MarkThatCarries(NoisyRows):
    """A mark that is a number of rows."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        (row,) = super().draw(params, table, answer, source).rows
        return Result((Row(row.key, row.measure, None, only_a_bound=int(answer.rows[0])),))  # type: ignore[arg-type]


class SyntheticOfAnotherKind(NoisyRows):
    """Columns as a data frame has them."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        rows = super().draw(params, table, answer, source).rows
        return Result(rows, synthetic={"rows": [int(answer.rows[0])]})  # type: ignore[arg-type]


class SetInDocument(NoisyRows):
    """A document that no JSON writes."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        rows = super().draw(params, table, answer, source).rows
        return Result(rows, document={"seen": {int(answer.rows[0])}})


LAST = {"rows": 0}


class KeepsInModule(NoisyRows):
    """For the next release of the process to read."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        LAST["rows"] = int(answer.rows[0])
        return super().noisy(params, table, answer, source)


class KeepsInClass(NoisyRows):
    """For every later instance."""

    seen = 0

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        type(self).seen = int(answer.rows[0])
        return super().noisy(params, table, answer, source)


class DrawsUntilItSuits(NoisyRows):
    """No negative number of rows, and none that is more than twice too large."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        noisy = -1
        while not 0 <= noisy <= 2 * int(answer.rows[0]) + 1:
            noisy = super().noisy(params, table, answer, source)
        return noisy


class Raises(NoisyRows):
    """Divides by the number of rows."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        return super().noisy(params, table, answer, source) + 0 // int(answer.rows[0])


class Remembers(NoisyRows):
    """Keeps what it saw for next time."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        self.seen = int(answer.rows[0])
        return super().noisy(params, table, answer, source)


class ChangesAnswer(NoisyRows):
    """Adds in place."""

    def noisy(self, params: Any, table: Any, answer: Any, source: Any) -> Any:
        answer.rows[:] = self.noise(params, table).add_noise(answer.rows, source)
        return int(answer.rows[0])


class SmallError(NoisyRows):
    """States the scale of the noise as its 95 % error."""

    def error_bound(self, params: Any, table: Any) -> ErrorBound:
        return ErrorBound({"count": table.contribution_bounds.rows / float(params.epsilon)})


class MoreRows(NoisyRows):
    """Asks for more rows of a unit than are declared."""

    def data_request(self, params: Any, table: Any) -> GroupedSums:
        return GroupedSums(rows_per_group=10 * table.contribution_bounds.rows)


class GroupParams(RowsParams):
    """``epsilon``: the privacy cost. ``by``: a column."""

    by: str


class RowsByKey(NoisyRows):
    """Rows of each key of a column, plus noise; private keys as they are."""

    name = "rows_by_key"
    Params = GroupParams

    def event(self, params: Any, table: Any) -> Event:
        return Pure(params.epsilon)

    def data_request(self, params: Any, table: Any) -> GroupedSums:
        groups, rows_per_group, rows = table.bounds_for(params.by)
        keys = table.column(params.by).public_keys
        return GroupedSums(params.by, keys, groups, rows_per_group, rows=rows)

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        scale = 2 * table.bounds_for(params.by).rows / params.epsilon
        noise = discrete_laplace(scale, len(answer.keys), source)
        listed = [
            Row(key, "count", int(n) + int(x)) for key, n, x in zip(answer.keys, answer.rows, noise)
        ]
        return Result(tuple(sorted(listed, key=lambda row: row.key)))

    def error_bound(self, params: Any, table: Any) -> ErrorBound | None:  # type: ignore[override]
        return None


class OrderOfRows(RowsByKey):
    """Keys in the order in which the rows came."""

    def draw(self, params: Any, table: Any, answer: Any, source: Any) -> Result:
        rows = super().draw(params, table, answer, source).rows
        return Result(tuple(sorted(rows, key=lambda row: answer.keys.index(row.key))))


class AskParams(RowsParams):
    """``epsilon``: the privacy cost of the session. ``questions``: how many it answers."""

    questions: Annotated[int, Field(ge=1, le=100)] = 2


class AskQuery(Params):
    """``above``: is the number of rows above this?"""

    threshold: int = 0


class AskRows(InteractiveMechanism[Any, Any]):
    """A session: some noisy comparisons, each with its share of epsilon."""

    name = "ask_rows"
    summary = "session: is the number of rows above a threshold?"
    citation = "Dwork, McSherry, Nissim, Smith 2006"
    Params = AskParams
    Query = AskQuery
    share = 1
    step = 1

    def event(self, params: Any, table: Any) -> Event:
        return Pure(params.epsilon)

    def open(self, params: Any, table: Any, source: Any) -> State:
        return State({"asked": 0})

    def data_request(self, params: Any, query: Any, table: Any) -> GroupedSums:
        return GroupedSums(rows_per_group=table.contribution_bounds.rows)

    def answer(
        self, params: Any, table: Any, state: State, query: Any, answer: Any, source: Any
    ) -> tuple[Verdict, State]:
        if state.data["asked"] >= params.questions:
            return Verdict({"verdict": "used up"}, closed=True), state
        scale = table.contribution_bounds.rows * params.questions / params.epsilon / self.share
        noisy = int(answer.rows[0]) + int(discrete_laplace(scale, 1, source)[0])
        after = State({"asked": state.data["asked"] + self.step})
        verdict = "above" if noisy > query.threshold else "below"
        return Verdict({"verdict": verdict}, closed=after.data["asked"] >= params.questions), after


class SessionOfHalfTheNoise(AskRows):
    """Half of the noise that its cost asks for."""

    share = 2


class SessionThatNeverCounts(AskRows):
    """Forgets that an answer was one."""

    step = 0
