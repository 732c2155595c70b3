"""The guard around every draw: a failure shows as "none" and in nothing else."""

from __future__ import annotations

import ast
import logging
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpflow.engine
from dpflow.core.sampling.randomness import Source
from dpflow.engine.fail_closed import draw_before_rows, draw_or_none
from dpflow.errors import InvalidInput, LedgerUnavailable, TableBusy
from dpflow.fault_points import FaultInjected

SECRET = "the age of Ann is 4711"


class OwnError(Exception):
    """What a mechanism may raise; its text is a row's."""


def raising(error: BaseException) -> Any:
    def draw(source: Source) -> str:
        raise error

    return draw


def test_a_draw_has_randomness_and_its_result_is_returned() -> None:
    """Every draw has a source of its own."""
    draws = [draw_or_none(lambda source: source.draw_words(4), None) for _ in range(2)]
    assert draws[0] is not None and draws[1] is not None
    assert draws[0].dtype == np.uint64 and not np.array_equal(draws[0], draws[1])
    assert not np.array_equal(
        *(draw_before_rows(lambda source: source.draw_words(4)) for _ in range(2))
    )


@pytest.mark.parametrize(
    "error",
    [
        OwnError(SECRET),
        ValueError(SECRET),
        KeyError(SECRET),
        InvalidInput(SECRET),
        MemoryError(SECRET),
        RecursionError(SECRET),
        AssertionError(SECRET),
        StopIteration(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_draw_raises_becomes_none_and_reaches_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """No message, no log, no output, and no context of an error that the caller raises next."""
    error.add_note(SECRET)
    caplog.set_level(logging.DEBUG)
    assert draw_or_none(raising(error), "none") == "none"
    with pytest.raises(LookupError) as seen:
        draw_or_none(raising(error), "none")
        raise LookupError("what the caller has to say")
    shown = "".join(traceback.format_exception(seen.value))
    assert seen.value.__context__ is None and seen.value.__cause__ is None
    assert SECRET not in shown + caplog.text + "".join(capsys.readouterr())


@pytest.mark.parametrize("error", [TableBusy("busy"), LedgerUnavailable("away")], ids=str)
def test_what_a_retry_can_mend_passes(error: Exception) -> None:
    """Nothing was drawn, so to try again is no rejection sampling."""
    with pytest.raises(type(error)) as seen:
        draw_or_none(raising(error), "none")
    assert seen.value is error


@pytest.mark.parametrize("error", [FaultInjected("x"), KeyboardInterrupt(), SystemExit(1)])
def test_what_stops_a_process_passes(error: BaseException) -> None:
    """Injected faults and signals settle nothing: the next try takes the reservation over."""
    with pytest.raises(type(error)):
        draw_or_none(raising(error), "none")


def test_a_first_state_is_drawn_before_rows_and_may_fail_loudly() -> None:
    """It sees public values only."""
    with pytest.raises(OwnError):
        draw_before_rows(raising(OwnError("state")))


def test_nothing_else_in_the_engine_makes_a_source() -> None:
    """No draw goes round the guard."""
    users = []
    for path in Path(dpflow.engine.__file__).parent.rglob("*.py"):
        names = {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }
        if "SystemSource" in names:
            users.append(path.name)
    assert users == ["fail_closed.py"]
