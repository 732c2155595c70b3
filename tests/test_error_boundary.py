"""The boundary itself: what passes, what it becomes, and what is silent for how long."""

from __future__ import annotations

import logging
import threading
import warnings

import pytest

from dpflow.error_boundary import contain_errors, errors_end_here, silence_libraries
from dpflow.errors import TableBusy, UnexpectedFailure
from dpflow.fault_points import FaultInjected

SECRET = "the age of Ann is 4711"


def fail(error: BaseException) -> None:
    error.add_note(SECRET)
    try:
        raise ValueError(SECRET)
    except ValueError as cause:
        raise error from cause


@pytest.mark.parametrize(
    "error", [TableBusy("busy"), FaultInjected("x"), KeyboardInterrupt(), SystemExit(1)], ids=repr
)
def test_what_passes_leaves_alone(error: BaseException) -> None:
    """Our own errors, and what ends a process, keep their words and nothing else."""
    with pytest.raises(type(error)) as caught:
        errors_end_here(fail)(error)
    assert caught.value is error
    assert error.__context__ is error.__cause__ is None and not hasattr(error, "__notes__")
    frames = [entry.frame.code.raw.co_name for entry in caught.traceback]
    assert frames[1:] == ["call_contained", "contain_errors"]


@pytest.mark.parametrize(
    "error", [KeyError(SECRET), MemoryError(SECRET), OSError(28, SECRET)], ids=repr
)
def test_another_error_becomes_a_sentence(error: Exception) -> None:
    """Its class and the place in dpflow's code are said, and that a retry may help."""
    with pytest.raises(UnexpectedFailure, match=type(error).__name__) as caught:
        contain_errors(lambda: silence_and_fail(error))
    assert "in dpflow/" not in str(caught.value)  # it failed in this file, which is not ours
    assert SECRET not in str(caught.value) and caught.value.retryable
    assert caught.value.__context__ is caught.value.__cause__ is None


def silence_and_fail(error: Exception) -> None:
    with silence_libraries():
        fail(error)


def test_an_error_keeps_its_words_only_if_a_door_says_so() -> None:
    """Airflow's own exceptions, in a task."""
    with pytest.raises(LookupError, match=SECRET):
        contain_errors(lambda: fail(LookupError(SECRET)), passing=(LookupError,))


def test_all_threads_are_silent_until_the_last_has_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two overlap: the end of the first wakes no library while the second is inside."""
    logger, first_out = logging.getLogger("sklearn.some"), threading.Event()
    # Airflow's logging configuration, in a test before this one, may have switched them off.
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logging.getLogger("sklearn"), "propagate", True)
    monkeypatch.setattr(logging.root.manager, "disable", 0)
    caplog.set_level(logging.ERROR, "sklearn.some")
    inside = threading.Barrier(2)

    def leave_first() -> None:
        with silence_libraries():
            inside.wait(10)
        first_out.set()

    thread = threading.Thread(target=leave_first)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with silence_libraries():
            thread.start()
            inside.wait(10)
            assert first_out.wait(10)
            logger.error(SECRET)
            warnings.warn(SECRET, stacklevel=1)
        assert not heard and not caplog.records
        logger.error("awake")
        warnings.warn("awake", stacklevel=1)
        assert [str(warning.message) for warning in heard] == ["awake"]
    assert [record.getMessage() for record in caplog.records] == ["awake"]
    thread.join(10)
