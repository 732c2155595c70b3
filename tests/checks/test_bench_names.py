"""`python -m bench NAME` runs that benchmark and no other; a missed bar fails it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("arguments", "ran"), [(["keys"], ["keys"]), (["daily", "median"], ["daily", "median"])]
)
def test_only_what_is_named_runs(
    arguments: list[str], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which they are named; without a name, all."""
    bench = importlib.import_module("bench.__main__")
    seen: list[str] = []
    for name in bench.BENCHMARKS:

        def run(name: str = name) -> None:
            seen.append(name)

        monkeypatch.setitem(bench.BENCHMARKS, name, SimpleNamespace(main=run))
    bench.main(arguments)
    assert seen == ran
    seen.clear()
    bench.main([])
    assert seen == list(bench.BENCHMARKS)


def test_an_unknown_name_lists_close_ones(capsys: Any) -> None:
    """And nothing runs."""
    bench = importlib.import_module("bench.__main__")
    with pytest.raises(SystemExit):
        bench.main(["keyz"])
    assert "did you mean 'keys'" in capsys.readouterr().err


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of bars, with none noted."""
    timing = importlib.import_module("bench.timing")
    monkeypatch.setattr(timing, "BARS", [])
    yield timing


@pytest.mark.parametrize(
    ("value", "is_least", "verdict"),
    [(1.0, False, "kept"), (1.05, False, "within noise"), (1.2, False, "missed")]
    + [(1.0, True, "kept"), (0.95, True, "within noise"), (0.8, True, "missed"), (0, True, "missed")],
)  # fmt: skip
def test_a_bar_is_missed_by_more_than_its_noise(
    bars: Any, capsys: Any, value: float, is_least: bool, verdict: str
) -> None:
    """One table says of each bar whether it was kept; one that is missed fails the run."""
    bars.hold("a ratio", value, 1, is_least=is_least)
    if verdict == "missed":
        with pytest.raises(SystemExit, match="missed: a ratio"):
            bars.show_bars()
    else:
        bars.show_bars()
    assert verdict in capsys.readouterr().out
