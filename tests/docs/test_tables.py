"""The page of tables: the owner's look at a contract runs as it stands, and finds what fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_runner import ROOT, examples

if TYPE_CHECKING:
    from smallworld import Tiny

PATH = ROOT / "docs" / "guides" / "tables.md"


def test_the_owner_sees_which_promise_is_broken(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bounds that nobody keeps: the bit says no, and the owner's program names the column."""
    monkeypatch.chdir(tiny.folder)
    bit, look, *_ = (e.text for e in examples(PATH) if e.language == "python" and e.title is None)
    for columns, kept in (
        ({"age": {"lower": 0, "upper": 120}}, True),
        ({"age": {"lower": 500, "upper": 900}}, False),
    ):
        tiny.declare(columns=columns)
        found: dict[str, object] = {}
        exec(bit, found)  # noqa: S102
        exec(look, found)  # noqa: S102
        assert found["holds"] is kept
        assert f"{kept} ExpectColumnValuesToBeBetween age" in capsys.readouterr().out
