"""The page of tables: the owner's look at a contract runs as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_runner import ROOT, examples

if TYPE_CHECKING:
    from smallworld import Tiny

PATH = ROOT / "docs" / "guides" / "tables.md"


def test_the_owner_sees_whether_promises_hold(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bounds that nobody keeps: the bit says no, and the suite names what is expected of the column."""
    monkeypatch.chdir(tiny.folder)
    look, *_ = (e.text for e in examples(PATH) if e.language == "python" and e.title is None)
    for columns, kept in (
        ({"age": {"lower": 0, "upper": 120}}, True),
        ({"age": {"lower": 500, "upper": 900}}, False),
    ):
        tiny.declare(columns=columns)
        exec(look, {})  # noqa: S102
        said = capsys.readouterr().out.splitlines()
        assert said[0] == str(kept) and "ExpectColumnValuesToBeBetween age" in said
