"""`make bench`: every benchmark, each a table of rates and ratios, then one table of all bars; `python -m bench
NAME ...` runs those that it names.
"""

from __future__ import annotations

import argparse
import time
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
    names = parser.parse_args(arguments).names
    for name in names:
        if name not in BENCHMARKS:
            parser.error(str(UnknownName("benchmark", name, BENCHMARKS)))
    # Apache Spark has an environment of its own, so it runs where it is named.
    taken = []
    for name in names or (name for name in BENCHMARKS if name != "spark"):
        begin = time.monotonic()
        BENCHMARKS[name].main()
        taken.append((name, f"{time.monotonic() - begin:.0f} s"))
    show("how long each took", ("benchmark", "time"), taken)
    show_bars()


if __name__ == "__main__":
    main()
