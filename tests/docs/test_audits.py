"""The page of audits says of every mechanism what was measured, or that nothing was."""

from __future__ import annotations

import re
from pathlib import Path

from checks import audit_table
from dpflow.registry import Registry
from tests.testing.corpus import CONTROLS, TWINS
from tests.testing.corpus.own_states import READERS

PAGE = (Path(__file__).parents[2] / "docs/research/audits.md").read_text(encoding="utf-8")


def test_every_mechanism_has_a_line() -> None:
    """No line is of a refuted guarantee, and half of the noise is caught everywhere."""
    lines = re.findall(
        r"^\| `(\w+)`[^|]* \| (exact|replayed|parts|drawn|none) \|.*\| ([\w /]+) \| ([\d.]+) \| \d+ \| [\w ]+ \| ([\w ]+) \|$",
        PAGE,
        re.MULTILINE,
    )
    assert {line[0] for line in lines} == set(Registry.load().mechanisms)
    promises = [line for line in lines if line[1] != "none"]
    assert {line[0] for line in lines} - {line[0] for line in promises} == {"effective_rounds"}
    assert {verdict for *_, verdict in promises} == {"not refuted"}
    assert [line for line in promises if line[2] != "1/2" or float(line[3]) < 0.99] == []


def test_every_broken_mechanism_has_a_line() -> None:
    for line in audit_table.render_corpus():
        assert line in PAGE
    wrong, sound = {type(control.mechanism) for control in CONTROLS}, {type(one) for one in TWINS}
    assert (
        f"holds {len(wrong)} mechanisms with one mistake each, and {len(sound)} sound ones" in PAGE
    )
    assert f"{len(READERS)} more follow a clock" in PAGE and len(wrong) >= 40


def test_tables_are_written_between_their_marks() -> None:
    """Head and text around stay; a second writing changes nothing."""
    once = audit_table.write_between(PAGE, "audits", ["| x |"])
    assert once == audit_table.write_between(once, "audits", ["| x |"])
    assert "| mechanism | method |" in once and "| x |\n<!-- audits: end -->" in once
    assert once.partition("## Broken")[2] == PAGE.partition("## Broken")[2]


def test_the_page_says_of_the_run_how_long_it_took() -> None:
    once = audit_table.write_run(PAGE, 62, 1290.0, 2)
    assert "All 62 lines below were made in one run, in 22 minutes by 2 processes." in once
    assert once == audit_table.write_run(once, 62, 1290.0, 2)
