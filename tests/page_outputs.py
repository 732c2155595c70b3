"""Writes what commands print into pages of the documentation: ``python tests/page_outputs.py [--all] PAGE...``

Each page is run from its top in an empty folder. Outputs that a page shows below its commands are written again,
with ``--all`` those of all commands. The middle of a long one is left out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from page_runner import FENCE, commands, inside, read_example, run_command, run_example

#: Lines of an output that a page shows, from its top and from its end.
TOP, END = 12, 3


def write_page(page: Path, *, add: bool) -> None:
    """Run a page and put its outputs in; with ``add`` those that it does not show yet."""
    text, written, place = page.read_text(encoding="utf-8"), "", 0
    names: dict[str, Any] = {"__name__": "page"}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, inside(Path(folder)):
        for match in FENCE.finditer(text):
            example = read_example(page, text, match)
            written += text[place : match.start("body")]
            place = match.start("body")
            if example.reason is not None:
                continue
            if example.language != "console":
                run_example(example, names)
                continue
            blocks = []
            for command in commands(example.text):
                # The command and what it prints now.
                printed = run_command(command.line, command.status)
                blocks.append(f"$ {command.source}")
                if not (add or command.output):
                    continue
                lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
                # A release's document, which is for programs, follows its table.
                if "{" in lines[1:]:
                    lines = [*lines[: lines.index("{")], "..."]
                if len(lines) > TOP + END + 2:
                    lines = [*lines[:TOP], "...", *lines[-END:]]
                blocks += lines
            body = "".join(
                " " * len(match["indent"]) + line + "\n" for line in "\n".join(blocks).split("\n")
            )
            written += body
            place = match.end("body")
    page.write_text(written + text[place:], encoding="utf-8")


if __name__ == "__main__":
    pages = [name for name in sys.argv[1:] if name != "--all"]
    for name in pages:
        write_page(Path(name).resolve(), add=len(pages) < len(sys.argv) - 1)
