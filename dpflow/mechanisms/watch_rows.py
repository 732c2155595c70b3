"""A session that watches a data contract's checks: quiet answers are free, alarms use it up.

Definition: the checks of `dpflow.core.toolbox.row_checks`, fixed when the session is opened. A
question names a check, and a block if the session has blocks; the answer is "alarm" when the check's
excess plus noise is no less than a margin plus the noise of a secret threshold, else "quiet". So
many "alarm" answers as ``alarms`` says, and the session closes.

Guarantee: epsilon-differential privacy of the whole session, for the declared privacy unit and
neighbouring relation, whatever the number of questions (`dpflow.core.toolbox.sparse_vector`). All
excesses are scaled to one sensitivity D: a unit moves a scaled excess by no more than the sum of
|coefficient| x L1 sensitivity over its moments. Where a declaration protects a unit's rows of one
block, every named block is charged epsilon, whole, at opening: neighbours differ in one block, so
questions about the others are the same on both.

Error: in a session of ``questions`` questions, all noise together stays within the margin with
probability 95 %. So whoever keeps all checks gets no alarm with that probability, and an excess of
twice the margin is found with it. The margin is public (`watch_margins`), and follows from epsilon.

When not to use it: to learn by how much a check is violated, or where alarms are usual (`check_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event, SparseVector
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.printed_numbers import print_width
from dpflow.core.contract.requests import Answer, GroupedSums
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import half_width
from dpflow.core.toolbox.row_checks import (
    RowCheck,
    RowChecks,
    ScaledExcess,
    computed_columns,
    query_check,
    scale_excesses,
)
from dpflow.core.toolbox.sparse_vector import Engine, Memory
from dpflow.errors import InvalidInput, UnknownName

#: The margin fails in a session with at most this probability.
FAILURE = 0.05


class WatchRowsParams(Params):
    """``checks``: bounds on the rows (`RowCheck`). ``epsilon``: the privacy cost of the session.
    ``alarms``: how many it allows before it closes. ``questions``: for how many its margin is made;
    more may be asked, with more false alarms.
    """

    checks: RowChecks
    epsilon: Epsilon
    alarms: Annotated[int, Field(ge=1, le=1000)] = 1
    questions: Annotated[int, Field(ge=1, le=10**6)]


class WatchQuery(Params):
    """``check``: the name of one. ``block``: one of the session's blocks; without it all of them."""

    check: str
    block: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class WatchRows(InteractiveMechanism[WatchRowsParams, WatchQuery]):
    """Which checks, in which blocks, are violated by more than the margin?"""

    name = "watch_rows"
    job = "gate"
    summary = "session: are a data contract's checks violated? free until one is"
    citation = "Dwork, Roth 2014, Algorithms 1-2, Theorem 3.23; linear checks in dpflow.core.toolbox.row_checks"
    Query = WatchQuery

    def computed_columns(self, params: WatchRowsParams, table: Table) -> Mapping[str, Column]:
        """1 in the rows that a check counts."""
        return computed_columns(params.checks, table)

    def event(self, params: WatchRowsParams, table: Table) -> Event:
        """One sparse-vector guarantee for the whole session, however many answers are "quiet"."""
        scale_checks(params, table)  # refuses what no question could be answered with
        return SparseVector(params.epsilon)

    def note(self, params: WatchRowsParams, table: Table) -> str:
        """The margin of each check."""
        margins = ", ".join(
            f"{name} {print_width(margin)}" for name, margin in watch_margins(params, table).items()
        )
        return (
            f"an alarm means an excess above 0, and twice the margin is found, with 95 % for "
            f"{params.questions} questions together; margins: {margins}"
        )

    def open(self, params: WatchRowsParams, table: Table, source: Source) -> State:
        """Draws the secret noise of the first threshold."""
        _, engine = scale_checks(params, table)
        return State(engine.start_session(source).to_json())

    def fixed_requests(self, params: WatchRowsParams, table: Table) -> list[GroupedSums]:
        """The moments of each check."""
        return [query_check(check, table).data_request() for check in params.checks]

    def read_blocks(self, query: WatchQuery, blocks: Sequence[str]) -> Sequence[str]:
        """The block that the query names; it must be one that was charged."""
        if query.block is None:
            return blocks
        if query.block not in blocks:
            raise InvalidInput(
                f"block {query.block!r} is none of the session's {len(blocks)} blocks; open a session that names it"
            )
        return (query.block,)

    def data_request(self, params: WatchRowsParams, query: WatchQuery, table: Table) -> GroupedSums:
        """The moments of one check. Raises `UnknownName` for a check that the session has not."""
        return query_check(_find_check(params, query.check), table).data_request()

    def answer(
        self,
        params: WatchRowsParams,
        table: Table,
        state: State,
        query: WatchQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """ "quiet", "alarm" or "exhausted"; only "alarm" uses up one of the alarms."""
        scaled, engine = scale_checks(params, table)
        memory = Memory.from_json(state.data)
        if memory.is_exhausted(engine):
            return Verdict({"verdict": "exhausted"}, closed=True), state
        excess = scaled[query.check]
        moments = {moment: int(answer.moment(*moment)[0]) for moment in excess.coefficients}
        # Below minus the margin is above the margin, mirrored.
        alarm, memory = engine.compare_value(
            memory, -excess.evaluate(moments), -scaled_margin(engine, params.questions), source
        )
        asked = {"check": query.check, "block": query.block or ""}
        verdict = asked | {"verdict": "alarm" if alarm else "quiet"}
        return Verdict(verdict, closed=memory.is_exhausted(engine)), State(memory.to_json())


def scale_checks(params: WatchRowsParams, table: Table) -> tuple[dict[str, ScaledExcess], Engine]:
    """The checks on one scale, and the sparse vector over them. Raises `PlanRefused` where these need
    noise beyond what can be drawn.
    """
    scaled, reach = scale_excesses(params.checks, table)
    engine = Engine(params.epsilon / params.alarms, reach, params.alarms)
    engine.require_scales()
    return scaled, engine


def _find_check(params: WatchRowsParams, name: str) -> RowCheck:
    for check in params.checks:
        if check.name == name:
            return check
    raise UnknownName("check", name, [check.name for check in params.checks])


def scaled_margin(engine: Engine, questions: int) -> int:
    """A bound on the noise of the thresholds and of all questions together, on the common scale,
    that fails with probability `FAILURE` at most (a union bound; half of it for either kind).
    """
    thresholds = half_width(engine.threshold_scale, FAILURE / 2 / engine.failures)
    return thresholds + half_width(engine.query_scale, FAILURE / 2 / questions)


def watch_margins(params: WatchRowsParams, table: Table) -> dict[str, float]:
    """The margin of each check, in the unit of its excess (rows, for a share). An excess of twice
    the margin is found with 95 %, over all questions.

    Args:
        table: the declaration with the checks' computed columns, as a plan has it.
    """
    scaled, engine = scale_checks(params, table)
    margin = scaled_margin(engine, params.questions)
    return {name: math.ceil(margin) / float(one.factor) for name, one in scaled.items()}


def list_examples() -> dict[str, list[dict[str, Any]]]:
    """What an audit tries."""
    # A replaced unit leaves kind b for kind a. Quiet answers about b, whose excess is at the margin of 4,
    # drive the threshold's noise up, and one alarm about a then costs the rest. Rows have the columns that
    # the checks compute, too.
    table = {
        "name": "audited",
        "database": "audited.duckdb",
        "privacy_unit": {"column": "user"},
        "neighbours": "replace",
        "contribution_bounds": {"rows": 1},
        "columns": {"user": {}, "kind": {"public_keys": ["b", "a"]}},
    }
    checks = [
        {"name": kind, "check": "violations", "condition": f"kind = '{kind}'", "at_most": "0"}
        for kind in "ba"
    ]
    in_b, in_a = ({"kind": k, "check_b": k == "b", "check_a": k == "a"} for k in "ba")
    return {
        "watch_rows": [
            {
                "table": table,
                "params": {"epsilon": "6", "checks": checks, "questions": 4},
                "queries": [{"check": kind} for kind in "bbba"],
                "sides": {"shared": [[4, in_b], [3, in_a]], "left": [in_b], "right": [in_a]},
            }
        ]
    }
