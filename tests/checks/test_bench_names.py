"""`python -m bench NAME` runs that benchmark and no other."""

from __future__ import annotations

import importlib
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
