"""The drills for owners: the page runs, and its commands alone answer an auditor's twelve questions."""

from __future__ import annotations

import os
import re
from pathlib import Path

from page_runner import ROOT, examples, inside, run_example, run_main

PAGE = ROOT / "docs" / "how-to" / "drills.md"
#: What an answer must say, by a word of its question.
ANSWERS = {
    "Who spent": ("number of visits, Monday", "0.4"),
    "one principal": ("principal", "0.4"),
    "What is left": ("1.6",),
    "one guarantee": ("0.4",),
    "Who granted": ("epsilon 2, delta 0, filter basic; self-declared",),
    "recovered": ("history",),
    "gate": ("history",),
    "intact": ("chain, anchor and sums hold", "self-declared, not signed", "no checkpoint"),
    "last night": ("compared with the checkpoint of entry 3",),
    "settled": ("1 charged, 1 settled",),
    "fail": ("no draw failed unexpectedly (1 notes read)",),
    "refused": ("page.html",),
}


def test_twelve_questions_are_answered_by_commands_alone(tmp_path: Path) -> None:
    """Each command of the table ends well and says what was asked, before any drill."""
    asked = re.findall(r"^\| ([^|]+\?) \| `dpflow ([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert len(asked) == len(ANSWERS) == 12
    with inside(tmp_path):
        names: dict[str, object] = {"__name__": "page"}
        for example in examples(PAGE):
            if "export ledger.jsonl" in example.text:
                break
            run_example(example, names)
        for question, command in asked:
            ((_, words),) = [item for item in ANSWERS.items() if item[0] in question]
            # Wide enough that no name is broken.
            os.environ["COLUMNS"] = "200"
            status, output, errors = run_main(command.split())
            output += errors
            assert status == 0, (command, output)
            assert [word for word in words if word not in output] == [], (command, output)
