"""The page of tables: the owner's look at a contract runs as it stands, and finds what fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from smallworld import Tiny

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "tables.md").read_text(encoding="utf-8")


def test_the_owner_sees_which_promise_is_broken(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bounds that nobody keeps: the bit says no, and the owner's program names the column."""
    monkeypatch.chdir(tiny.folder)
    bit, look = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for columns, kept in (
        ({"age": {"lower": 0, "upper": 120}}, True),
        ({"age": {"lower": 500, "upper": 900}}, False),
    ):
        tiny.declare(columns=columns)
        found: dict[str, object] = {}
        exec(bit.replace("quality.check(", "kept = quality.check("), found)  # noqa: S102
        exec(look, found)  # noqa: S102
        assert found["kept"] is kept
        assert f"{kept} ExpectColumnValuesToBeBetween age" in capsys.readouterr().out
