"""What a nightly checkpoint costs: a verification forward from the last one, beside a long history.

    python -m bench.nightly [ENTRIES] [NEW]

Wall clock and processor time of `dpflow ledger checkpoint --since`, in a process of its own so that
its memory is its own, too.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.timing import show
from bench.verification import AT_ONCE, make_ledger, spend

ENTRIES, NEW = 1_000_000, 1_000


def main(entries: int = ENTRIES, new: int = NEW) -> None:
    """Make a history, sign it, add to it, and time the next checkpoint."""
    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        folder = Path(name)
        ledger = make_ledger(folder, entries // 2, at_once=1000)
        signer = ledger.signer
        (folder / "first").write_text(ledger.checkpoint(signer))
        spend(ledger, range(new // 2 // AT_ONCE), AT_ONCE, "new")
        program = (
            "import sys; from dpflow.ledger import Ledger\n"
            "folder = sys.argv[1]\n"
            "ledger = Ledger(f'{folder}/ledger', anchor=f'{folder}/anchor')\n"
            "ledger.checkpoint(since=open(f'{folder}/first').read())\n"
        )
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", program, name], check=True)
        wall, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    row = (
        f"{wall:.2f} s",
        f"{used.ru_utime + used.ru_stime:.2f} s",
        f"{used.ru_maxrss // 1024} MB",
    )
    show(f"a checkpoint of {new} entries on {entries}", ("wall", "processor", "memory"), [row])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
