"""Where errors end: what a library says about its failure may quote a row, so none of it leaves.

A text of DuckDB, Arrow, pandas, SQLAlchemy or Great Expectations quotes values, and so may what
Python itself says of a private value. An exception also carries others (``__context__``,
``__cause__``), notes, and frames whose variables are rows and unpaid draws; tools that collect
errors keep them all. So everything a caller can reach ends here: dpflow's own errors pass without
company, all others become a fixed sentence. Raised outside the handler, they have no context.
"""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from dpflow.errors import DpflowError, UnexpectedFailure
from dpflow.fault_points import FaultInjected

P = ParamSpec("P")
T = TypeVar("T")
Translate = Callable[[Exception], DpflowError]

#: Libraries that private values pass through, by the first part of their loggers' names.
LIBRARIES = frozenset(
    (
        *("great_expectations", "sqlalchemy", "duckdb", "duckdb_sqlalchemy", "pandas", "pyarrow"),
        *("numpy", "scipy", "sklearn", "joblib", "skops", "mlflow", "sqlglot"),
        *("pyspark", "grpc"),
    )
)


def name_error(error: Exception) -> str:
    """An error's class and its place in our code, and the text of an error of ours; for its owner alone."""
    text = f": {error}" if isinstance(error, DpflowError) else ""
    return f"{type(error).__name__}{_last_place(error.__traceback__)}{text}"


def describe_failure(error: Exception) -> DpflowError:
    """An error that nobody foresaw, in our words: its class and the place in our code, never its
    text.
    """
    scarce = isinstance(error, MemoryError | OSError)
    advice = (
        "free memory, disk and descriptors, or restore what this machine could not reach"
        if scarce
        else "report the class and the place"
    )
    return UnexpectedFailure(
        f"dpflow failed in a way that it does not foresee ({type(error).__name__}{_last_place(error.__traceback__)}); the "
        f"error's own text is withheld, as it may quote rows; nothing is charged twice, so try again, and {advice}"
    )


def contain_errors(
    action: Callable[[], T],
    translate: Translate = describe_failure,
    passing: tuple[type[Exception], ...] = (),
) -> T:
    """What an action returns. What it raises leaves alone: without context, cause, notes and frames.

    Args:
        translate: the sentence for an error that is not dpflow's own.
        passing: other errors that keep their text.

    Raises:
        DpflowError: the action's own, or what ``translate`` says.
    """
    leaving: BaseException
    try:
        return action()
    except BaseException as error:  # noqa: BLE001  whatever it is, its text may quote a row
        # A fault stops the process, as what is no `Exception` does.
        ours = isinstance(error, (DpflowError, FaultInjected, *passing))
        leaving = error if ours or not isinstance(error, Exception) else translate(error)
    # Outside the handler, which would become the context.
    leaving.__context__ = leaving.__cause__ = None
    leaving.__dict__.pop("__notes__", None)
    raise leaving.with_traceback(None)


def errors_end_here(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function a door: see `contain_errors`."""

    @functools.wraps(function)
    def call_contained(*args: P.args, **kwargs: P.kwargs) -> T:
        return contain_errors(lambda: function(*args, **kwargs))

    return call_contained


def _last_place(frames: TracebackType | None) -> str:
    """The last file and line of dpflow in a traceback, as the end of a phrase."""
    location, root = "", Path(__file__).parent
    while frames is not None:
        file = Path(frames.tb_frame.f_code.co_filename)
        if file.is_relative_to(root) and file != Path(__file__):
            location = f" in {file.relative_to(root.parent)} line {frames.tb_lineno}"
        frames = frames.tb_next
    return location


_silence = threading.Lock()
_inside = 0
_restore: list[Callable[[], None]] = []
_NOWHERE = logging.NullHandler()
#: All loggers, as they were the last time, and those of libraries among them.
_known: tuple[list[tuple[str, Any]], list[logging.Logger]] = ([], [])


@contextmanager
def silence_libraries() -> Iterator[None]:
    """No warnings, and no records of the libraries that private values pass through, for as long as
    any thread is inside.

    Both are one for all threads: the first that enters switches them off, the last one on again.
    """
    global _inside
    with _silence:
        _inside += 1
        if _inside == 1:
            _switch_off()
    try:
        yield
    finally:
        with _silence:
            _inside -= 1
            if _inside == 0:
                while _restore:
                    _restore.pop()()


def _switch_off() -> None:
    filters = warnings.catch_warnings()
    filters.__enter__()
    _restore.append(lambda: filters.__exit__(None, None, None))
    warnings.simplefilter("ignore")
    # Loggers that libraries make meanwhile end at their library's first one.
    for name in (*LIBRARIES, "py.warnings"):
        logger = logging.getLogger(name)
        logger.addHandler(_NOWHERE)
        _restore.append(functools.partial(logger.removeHandler, _NOWHERE))
        _restore.append(functools.partial(setattr, logger, "propagate", logger.propagate))
        logger.propagate = False
    # Those that exist may have handlers of their own.
    for existing in _list_loggers():
        _restore.append(functools.partial(setattr, existing, "disabled", existing.disabled))
        existing.disabled = True


def _list_loggers() -> list[logging.Logger]:
    """The loggers of `LIBRARIES`, looked for again once there is another logger of any name."""
    global _known
    loggers = list(logging.root.manager.loggerDict.items())
    if loggers != _known[0]:
        of_libraries = [
            logger
            for name, logger in loggers
            if isinstance(logger, logging.Logger) and name.partition(".")[0] in LIBRARIES
        ]
        _known = loggers, of_libraries
    return _known[1]
