"""Every error says when it is raised, what to do, and whether a retry can help."""

from __future__ import annotations

import inspect
import re

import pytest

from dpflow import errors

CLASSES = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.DpflowError)
]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_error_is_documented(error: type[errors.DpflowError]) -> None:
    """The reference is made of these texts."""
    what, _, advice = inspect.cleandoc(error.__doc__ or "").partition("\n\n")
    assert what.endswith(".") and "retry" in advice.replace("``retryable``", "retry")
    hopeless = re.search(r"retry[^.]* cannot help", advice)
    assert (error.retryable and not hopeless) or not error.retryable


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_the_tree_says_what_is_retryable(error: type[errors.DpflowError]) -> None:
    """One line of the module's tree for each class."""
    (line,) = re.findall(rf"^.*\b{error.__name__}\b.*$", errors.__doc__ or "", re.MULTILINE)
    assert ("(retryable)" in line) == error.retryable
