"""Every example on every page is run, and every link leads somewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from page_runner import ROOT, examples, run_page

from checks import reference

PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if "adr" not in p.parts)
#: Pages that somebody wrote: `python -m experiments` writes the other.
WRITTEN = [
    ROOT / "README.md",
    *(p for p in (ROOT / "docs").rglob("*.md") if p.name != "experiments.md"),
]
#: A search for bounds takes an empty bin with probability 5 %, as its page says; then a page starts again. Bounds
#: that no integer holds are refused, and those of some 10^18, which no noise covers: 4 of 1,500 searches.
UNLUCKY = ("found bounds that column", "need noise of more than 2^50 steps")
FEW_EXAMPLES = 0.25  # of all blocks may be left out with a reason


@pytest.mark.parametrize(
    # `test_quickstart` runs that page, and looks at its answers.
    "page",
    [page for page in PAGES if page.name != "quickstart.md"],
    ids=lambda p: str(p.relative_to(ROOT / "docs")),
)
def test_every_example_runs(page: Path, tmp_path: Path) -> None:
    """From the top of the page to its end, in one folder."""
    for folder in (tmp_path / "first", tmp_path / "second", tmp_path / "third"):
        folder.mkdir()
        try:
            return run_page(page, folder)
        except AssertionError as error:
            if not any(words in str(error) for words in UNLUCKY):
                raise
    pytest.fail("three searches for bounds in a row took an empty bin")


def test_nobody_chooses_an_accuracy() -> None:
    """From a CSV file to a median, a distribution and a synthetic table: the pages, which run above, have no
    ``alpha`` in any block, and their grants are those of `dpflow init`.
    """
    text = "".join(
        block.text
        for name in ("ask-for-distributions.md", "make-a-synthetic-table.md")
        for block in examples(ROOT / "docs" / "how-to" / name)
    )
    for mechanism in ("cdf", "median", "synthesize"):
        assert f"mechanism: {mechanism}\n" in text
    assert text.count("$ dpflow init") == 2
    assert "alpha" not in text and "ledger grant" not in text


def test_few_examples_are_left_out() -> None:
    """A reason is no way out: nearly all blocks run."""
    blocks = [example for page in PAGES for example in examples(page)]
    skipped = [str(example) for example in blocks if example.reason is not None]
    assert len(skipped) <= FEW_EXAMPLES * len(blocks), skipped


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda p: p.name)
def test_links_lead_to_files(page: Path) -> None:
    """Relative links of a page name files, and generated pages are in the menu."""
    menu = (ROOT / "mkdocs.yml").read_text()
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve()
        assert path.exists() or f"reference/{path.name}" in menu, f"{page.name}: {target}"


@pytest.mark.parametrize(
    "name", ["declaration", "release-file", "catalogue", "mechanisms", "cli", "operators"]
)
def test_every_field_has_its_meaning(name: str) -> None:
    """No cell of a generated table is empty, and links on the page lead to its own headings."""
    text = reference.PAGES[name]()
    assert re.findall(r"^\| `.*\| +\|.*", text, re.MULTILINE) == []
    headings = {head.lower().replace(" ", "-") for head in re.findall(r"^##+ (.*)", text, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.name)
def test_sentences_are_short(page: Path) -> None:
    """At most 25 words each, in prose without code blocks, tables, headings and links."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```|^ {4,}\S.*$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |\||#)", text.replace("**", ""))
    prose = (" ".join(part.split()) for part in parts if not part.lstrip().startswith(("|", "#")))
    short = (re.sub(r"`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", part)) for part in prose)
    sentences = [one for part in short for one in re.split(r"(?<=[.!?]) ", part)]
    assert [s for s in sentences if len(re.findall(r"\S*\w\S*", s)) > 25] == []


#: What people write where a secret should be.
WORDS = (
    "test",
    "test1",
    "test2",
    "token",
    "secret",
    "password",
    "admin",
    "example",
    "dpflow",
    "changeme",
    "12345",
    "123456",
)


def test_no_page_shows_the_digest_of_a_word() -> None:
    """Who copied it would have a service that a word opens."""
    digests = {hashlib.sha256(word.encode()).hexdigest(): word for word in WORDS}
    shown = {page.name: re.findall(r"\b[0-9a-f]{64}\b", page.read_text()) for page in PAGES}
    assert sum(map(len, shown.values())) >= 5
    assert not {
        name: digests[one] for name, found in shown.items() for one in found if one in digests
    }
