"""`python -m experiments [name ...]`: run all experiments, or the named ones or papers; write
figures and docs/research/experiments.md.
"""

from __future__ import annotations

import re
import sys

from rich.console import Console

from experiments import (
    adaptive_composition,
    contracts,
    contributions,
    distributions,
    evidence,
    flights,
    gate_methods,
    interior,
    learning,
    one_door,
    prediction,
    real_medians,
    stable_median,
    synthetic_tables,
)
from experiments.report import DOCS, draw, section

PAPERS = (
    stable_median,
    adaptive_composition,
    flights,
    gate_methods,
    interior,
    real_medians,
    distributions,
    learning,
    one_door,
    prediction,
    synthetic_tables,
    contracts,
    contributions,
    evidence,
)
PAGE = DOCS / "experiments.md"
HEAD = """# Experiments

`make experiments` runs every simulation on this page again and rewrites it; `python -m experiments NAME` runs one. Data are
simulated, so the truth is known, unless a section names real ones; seeds are fixed. Each section ends with what had to hold
and what was found.
"""


def main(names: list[str]) -> int:
    """Run, write, and say which bounds do not hold. Returns how many."""
    console, broken = Console(), 0
    written = _sections()
    for paper in PAPERS:
        for experiment in paper.EXPERIMENTS:
            if (
                names
                and experiment.name not in names
                and paper.__name__.split(".")[-1] not in names
            ):
                continue
            console.print(f"figure {experiment.number}: {experiment.title} ...")
            found = experiment.run(experiment.runs)
            written[experiment.number] = section(experiment, found, draw(experiment, found))
            for line in found.broken:
                console.print(f"[red]does not hold[/red] {line}")
            broken += len(found.broken)
            PAGE.write_text(
                HEAD + "\n" + "\n".join(written[n] for n in sorted(written)), encoding="utf-8"
            )
    return broken


def _sections() -> dict[int, str]:
    """What the page already says, by figure: a named experiment replaces its own section only."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = re.split(r"(?m)^(?=## Figure (\d+)\.)", text)[1:]
    return {int(number): body.rstrip("\n") + "\n" for number, body in zip(parts[::2], parts[1::2])}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
