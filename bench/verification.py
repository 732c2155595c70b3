"""What a verification costs beside what no verification can do without: hashing each entry, its HMAC,
and reading its JSON.

Processor time, the least of several runs in turns. The bar is on recomputation: the chain, the seals
and every rule, for the entries whose hashing it is compared with. It does not cover the rest of a
whole verification, which compares the tables with the history, opens every encrypted result, has the
database check its indices, and computes the root of all rows. A whole one took 4.4 times the same
floor on a quiet machine and 5.2 times on a busy one; a slow test asks for twice the bar.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.timing import hold, show
from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseCharge, ReleaseKey, make_slot
from dpflow.ledger.audit import verify
from dpflow.ledger.audit.recheck import recheck_entries
from dpflow.ledger.history import chain

RELEASES, REPEATS, AT_ONCE, BAR = 4_000, 7, 50, 2.5


def make_ledger(folder: Path, releases: int, at_once: int = AT_ONCE) -> Ledger:
    """A ledger with settled releases of mapped tasks: two entries for each."""
    ledger = Ledger(folder / "ledger", anchor=folder / "anchor", create=True)
    ledger.grant(
        "bench", 10**6, 0, table=None, filter="hybrid", principal="bench", confirm_large=True
    )
    spend(ledger, range(releases // at_once), at_once)
    return ledger


def spend(ledger: Ledger, runs: Iterable[int], at_once: int, task: str = "task") -> None:
    """Charge and settle so many mapped releases in each run."""
    request = {"name": "count", "mechanism": "count", "params": {"epsilon": "0.001"}, "table": "t"}
    for run in runs:
        asks = [
            ReleaseCharge(
                ReleaseKey("bench", "dag", task, f"run-{run}", f"{instance:064x}"),
                event=Pure("0.001"),
                blocks=(),
                family="f" * 64,
                slot=make_slot("dag", f"run-{run}", task, instance=str(instance)),
                principal="airflow:dag",
                request=request,
            )
            for instance in range(at_once)
        ]
        held = ledger.reserve_many(asks)
        ledger.settle_many([(one, {"rows": [[1, 2, 3]]}, "0" * 64) for one in held])


def measure(ledger: Ledger, repeats: int = REPEATS) -> tuple[int, dict[str, float]]:
    """How many entries there are, and the least processor seconds of each part."""
    with ledger._database.begin_reading() as transaction:
        entries = list(transaction.stream(verify.ENTRIES))

    def floor() -> None:
        for entry in entries:
            text = json.dumps(entry[:9], separators=(",", ":"))
            seal = f"entry\0{entry.seq} {hashlib.sha256(text.encode()).hexdigest()}"
            hmac.digest(b"k" * 32, seal.encode(), "sha256").hex()
            json.loads(entry.body)

    def history() -> None:
        auditor = chain.Auditor(ledger._anchor)
        recheck = recheck_entries(auditor.pass_entries(entries))
        assert not auditor.problems and not recheck.problems

    def results() -> None:
        cipher = ledger._cipher.read_many()
        with ledger._database.begin_reading() as transaction:
            rows = transaction.stream(verify.RELEASES)
            deque((verify.open_result(cipher, row, row.result, row.wrapped) for row in rows), 0)

    def whole() -> None:
        assert ledger.verify().ok

    parts: dict[str, Callable[[], Any]] = {
        "hashing, HMAC and json.loads": floor,
        "chain, seals and rules": history,
        "reading and opening results": results,
        "the whole verification": whole,
    }
    least = dict.fromkeys(parts, float("inf"))
    for _ in range(repeats):
        for name, part in parts.items():
            start = time.process_time()
            part()
            least[name] = min(least[name], time.process_time() - start)
    return len(entries), least


def main() -> None:
    """A line for each part."""
    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as folder:
        number, least = measure(make_ledger(Path(folder), RELEASES))
    floor = least["hashing, HMAC and json.loads"]
    rows = [
        (name, f"{1e6 * seconds / number:.1f} us", f"{seconds / floor:.2f}")
        for name, seconds in least.items()
    ]
    hold("verification: chain, seals and rules", least["chain, seals and rules"] / floor, BAR)
    columns = ("part", "processor an entry", "ratio")
    show(f"verification of {number} entries", columns, rows)


if __name__ == "__main__":
    main()
