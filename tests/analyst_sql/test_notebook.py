"""The cell ``%%dpsql``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.notebook import load_ipython_extension

if TYPE_CHECKING:
    from sql_world import World


def test_a_cell_is_answered(
    fresh: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the tables of dpflow.yml, parameters from the notebook, and sentences for refusals."""
    catalogue = "ledger: ledger.sqlite\nscope: visits\ntables: {visits: visits.yml}\n"
    (fresh.folder / "dpflow.yml").write_text(catalogue)
    monkeypatch.chdir(fresh.folder)
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)
    magics: dict[str, Any] = {}
    shell = SimpleNamespace(
        user_ns={"least": 20},
        register_magic_function=lambda call, magic_kind, magic_name: magics.update(
            {(magic_kind, magic_name): call}
        ),
        set_custom_exc=lambda kinds, handler: magics.update({kinds: handler}),
    )
    load_ipython_extension(shell)
    cell = (
        "-- dp: epsilon=1\nSELECT city, COUNT(*) AS n FROM visits WHERE age > $least GROUP BY city"
    )
    answer = magics["cell", "dpsql"]("answer", cell)
    assert answer.rows and shell.user_ns["answer"] is answer
    assert "<table>" in answer._repr_html_() and "n: 95 % noise interval" in answer._repr_html_()
    assert magics["cell", "dpsql"]("", cell).free
    assert magics["cell", "dpsql"]("", "SELECT * FROM visits") is None
    plan = magics["cell", "dpsql"]("p", "-- dp: epsilon=1\nEXPLAIN SELECT COUNT(*) FROM visits")
    assert ">forecast</td>" in plan._repr_html_()
    assert ">the ledger would accept it now</td>" in plan._repr_html_()
    assert "the ledger would accept it now" in repr(plan) and shell.user_ns["p"].to_pay
    # What stands in a text or a comment is no parameter, whatever the notebook's variables are called.
    shell.user_ns |= {"Rome": 1, "x": SimpleNamespace()}
    quoted = f"{cell.replace('>', '<> 7 AND age >').replace('GROUP', chr(10) + 'GROUP')} -- $x"
    assert magics["cell", "dpsql"]("", quoted.replace("<> 7", "<> 7 AND city <> '$Rome'")).rows
    assert magics["cell", "dpsql"]("", cell.replace("$least", "$x")) is None
    assert magics["cell", "dpsql"]("two words", cell) is None
    printed = capsys.readouterr().out
    assert "'x' is of type SimpleNamespace; give a plain number" in printed
    assert "no-star" in printed and "name of a variable" in printed
