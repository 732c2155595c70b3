"""`make bench`: every benchmark, each a table of rates and ratios, then one table of all bars; `python -m bench
NAME ...` runs those that it names.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from bench import (
    accuracy,
    candidates,
    charge_ways,
    daily,
    hammer,
    holdout,
    interior,
    keys,
    learning,
    ledger,
    ledger_history,
    load,
    median,
    prediction,
    publish,
    queries,
    release,
    samplers,
    service,
    shapes,
    startup,
    tables,
    verification,
)
from bench.timing import show, show_bars
from dpflow.errors import UnknownName

BENCHMARKS = {
    module.__name__.removeprefix("bench."): module
    for module in (
        samplers,
        startup,
        median,
        release,
        publish,
        queries,
        tables,
        shapes,
        load,
        accuracy,
        keys,
        daily,
        holdout,
        candidates,
        interior,
        learning,
        ledger,
        charge_ways,
        ledger_history,
        hammer,
        verification,
        prediction,
        service,
    )
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the named benchmarks in their order, or all; an unknown name lists close ones. Fails where a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--write", action="store_true", help="write the bars into docs/internals/speed.md, too"
    )
    parsed = parser.parse_args(arguments)
    names = parsed.names
    for name in names:
        if name not in BENCHMARKS:
            parser.error(str(UnknownName("benchmark", name, BENCHMARKS)))
    taken = []
    for name in names or BENCHMARKS:
        begin = time.monotonic()
        try:
            BENCHMARKS[name].main()
            end = ""
        except Exception as error:  # noqa: BLE001  the others are still of use
            traceback.print_exc()
            end = f"failed: {type(error).__name__}"
        taken.append((name, f"{time.monotonic() - begin:.0f} s", end))
        print(f"{name}: {taken[-1][1]} {end}", file=sys.stderr, flush=True)
    show("how long each took", ("benchmark", "time", "failed"), taken)
    show_bars(write=parsed.write)
    if any(end for _, _, end in taken):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
