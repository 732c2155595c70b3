"""The page of audits says of every mechanism what was measured, or that nothing was."""

from __future__ import annotations

import re
from pathlib import Path

from checks import audit_table
from dpflow.registry import Registry
from dpflow.testing.corpus import CONTROLS

PAGE = (Path(__file__).parents[2] / "docs/research/audits.md").read_text(encoding="utf-8")

#: Audits of these see no weaker noise.
NO_POWER = {"multiplicative_weights", "seeded_median"}


def test_every_mechanism_has_a_line() -> None:
    """No line is of a refuted guarantee, and what an audit would catch is said of nearly all."""
    lines = re.findall(
        r"^\| `(\w+)`[^|]* \| (exact|replayed|drawn|none) \|.*\| ([\w ]+) \|$", PAGE, re.MULTILINE
    )
    assert {name for name, _, _ in lines} == set(Registry.load().mechanisms)
    assert {name for name, method, _ in lines if method == "none"} == {"effective_rounds"}
    blind = {name for name, _, verdict in lines if verdict == "no power"}
    assert blind <= NO_POWER
    assert {verdict for _, _, verdict in lines} - {"no power"} == {"not refuted", "no guarantee"}


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
