"""`dpflow calculate`: inputs as words, a table or JSON, a picture, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import Field
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.cli.calculate import _cell_text
from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.contract.calculator import Calculator, Sheet
from dpflow.core.contract.mechanism import Params
from dpflow.errors import DpflowError, InvalidInput, UnknownName
from dpflow.hookspecs import hookimpl
from dpflow.registry import Registry


class NoiseParams(Params):
    """``epsilon``: the price. ``sizes``: numbers of rows."""

    epsilon: Epsilon
    sizes: list[int] = Field(default=[1, 10])


def show_noise(params: NoiseParams) -> Sheet:
    """How large is the noise?"""
    rows = tuple((n, float(1 / params.epsilon / n)) for n in params.sizes)
    return Sheet(("rows", "share"), rows, ("only an example",), x="rows")


@hookimpl
def dpflow_register_calculators() -> list[Calculator]:
    return [Calculator(show_noise, "a test")]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(dpflow_register_calculators=dpflow_register_calculators)
    monkeypatch.setattr(Registry, "load", classmethod(lambda cls: cls({"example 1.0": plugin})))


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["calculate", *words])
    if isinstance(done.exception, DpflowError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_answers(tmp_path: Path) -> None:
    assert "only an example" in run("noise", "epsilon=0.5")
    found = json.loads(run("noise", "epsilon=0.5", "sizes=[1, 2]", "--json"))
    assert found == {
        "columns": ["rows", "share"],
        "rows": [[1, 2.0], [2, 1.0]],
        "notes": ["only an example"],
    }
    run("noise", "epsilon=1", "--plot", str(tmp_path / "noise.png"))
    assert (tmp_path / "noise.png").read_bytes().startswith(b"\x89PNG")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="noise"):
        run("nois")
    with pytest.raises(InvalidInput, match="epsilon"):
        run("noise", "epsilon=-1")
    with pytest.raises(InvalidInput, match="write field=value"):
        run("noise", "epsilon")
    with pytest.raises(InvalidInput, match="given twice"):
        run("noise", "epsilon=1", "epsilon=2")
    with pytest.raises(InvalidInput, match="picture"):
        run("noise", "epsilon=1", "--plot", str(tmp_path / "none" / "noise.png"))


def test_many_curves_are_a_line_each() -> None:
    """A sheet with more curves than a screen is wide is printed with one method a line, so that no
    number is broken in two.
    """
    from dpflow.cli.calculate import MANY, _sheet_table
    from dpflow.core.contract.calculator import Sheet

    wide = Sheet(
        ("x", *(f"method {i}" for i in range(MANY))),
        ((10, *range(MANY)), (100, *range(MANY))),
        x="x",
    )
    columns, rows = _sheet_table(wide)
    assert columns == ("x", "10", "100") and rows[1] == ("method 1", 1, 1) and len(rows) == MANY
    assert _sheet_table(Sheet(("x", "y"), ((1, 2),), x="x")) == (("x", "y"), [(1, 2)])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300, 0.5, 3.0])
def test_any_number_has_its_cell(number: float) -> None:
    """A calculator may answer with no number at all, or with infinity."""
    assert float(_cell_text(number)) == number or _cell_text(number) == "nan"
