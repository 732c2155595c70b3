"""What a full verification and a nightly checkpoint cost: of a long history, and forward from its last checkpoint.

    python -m bench.nightly [ENTRIES] [NEW]

Wall clock, processor time and memory, each in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.bulk_history import grow
from bench.timing import hold, show, show_bars
from bench.verification import AT_ONCE, spend

ENTRIES, NEW = 1_000_000, 1_000
#: The most seconds and MiB of a full verification of a million entries, and seconds of a checkpoint.
SECONDS, MEBIBYTES, CHECKPOINT_SECONDS = 60, 500, 2
OPEN = (
    "import sys; from dpflow.ledger import Ledger\n"
    "folder = sys.argv[1]\n"
    "ledger = Ledger(f'{folder}/ledger', anchor=f'{folder}/anchor')\n"
)
RUNS = {
    "verification": "open(f'{folder}/first', 'w').write(ledger.checkpoint())",
    "checkpoint": "ledger.checkpoint(since=open(f'{folder}/first').read())",
}
#: Of its own memory: what the kernel says of a child holds the memory of the process that started it.
PEAK = "\nprint(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"


def main(entries: int = ENTRIES, new: int = NEW) -> None:
    """Make a history, verify and sign it, add to it, and time the next checkpoint."""
    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        folder = Path(name)
        ledger = grow(folder, entries)
        verified = _measure("verification", name)
        spend(ledger, range(new // 2 // AT_ONCE), AT_ONCE, "new")
        checkpoint = _measure("checkpoint", name)
    rows = [
        (title, *(f"{figure:.2f} s" for figure in figures[:2]), f"{figures[2]:.0f} MiB")
        for title, figures in (
            (f"verifying {entries:,} entries", verified),
            (f"a checkpoint of {new:,} new ones", checkpoint),
        )
    ]
    show("a long history", ("what", "wall", "processor", "memory"), rows)
    if entries == ENTRIES:
        hold("verifying a million entries, seconds", verified[1], SECONDS, noise=0.3)
        hold("verifying a million entries, MiB", verified[2], MEBIBYTES)
        hold("a checkpoint of new entries, seconds", checkpoint[1], CHECKPOINT_SECONDS, noise=0.3)


def _measure(run: str, folder: str) -> tuple[float, float, float]:
    """Seconds on the wall and of the processor, and MiB, of a process."""
    start = time.monotonic()
    command = [sys.executable, "-c", OPEN + RUNS[run] + PEAK, folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    peak = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the {run} failed")
    return time.monotonic() - start, used.ru_utime + used.ru_stime, int(peak) / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    show_bars()
