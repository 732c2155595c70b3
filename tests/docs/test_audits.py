"""The page of audits says of every mechanism what was measured, or that nothing was."""

from __future__ import annotations

import re
from pathlib import Path

from checks import audit_table
from dpflow.registry import Registry
from dpflow.testing.corpus import CONTROLS

PAGE = (Path(__file__).parents[2] / "docs/research/audits.md").read_text(encoding="utf-8")


def test_every_mechanism_has_a_line_or_is_said_to_have_none() -> None:
    """No line is of a refuted guarantee, and whoever has no line is named above the table."""
    lines = re.findall(r"^\| `(\w+)` \| (?:exact|drawn) \|.*\| ([\w ]+) \|$", PAGE, re.MULTILINE)
    assert {verdict for _, verdict in lines} == {"not refuted", "no power"}
    _, _, rest = PAGE.partition("Not audited for this page yet: ")
    without = set(re.findall(r"`(\w+)`", rest.partition(". ")[0]))
    assert not without & {name for name, _ in lines}
    assert without | {name for name, _ in lines} == set(Registry.load().mechanisms)


def test_every_broken_mechanism_has_a_line() -> None:
    for line in audit_table.render_corpus():
        assert line in PAGE
    assert len({type(control.mechanism) for control in CONTROLS}) >= 40


def test_tables_are_written_between_their_marks() -> None:
    """Head and text around stay; a second writing changes nothing."""
    once = audit_table.write_between(PAGE, "audits", ["| x |"])
    assert once == audit_table.write_between(once, "audits", ["| x |"])
    assert "| mechanism | method |" in once and "| x |\n<!-- audits: end -->" in once
    assert once.partition("## Broken")[2] == PAGE.partition("## Broken")[2]
