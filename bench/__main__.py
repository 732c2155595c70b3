"""`make bench`: every benchmark, each a table of rates and ratios."""

from __future__ import annotations

from bench import (
    accuracy,
    daily,
    hammer,
    holdout,
    interior,
    keys,
    learning,
    ledger,
    ledger_history,
    median,
    prediction,
    publish,
    release,
    samplers,
    startup,
    tables,
    verification,
)

for module in (
    samplers,
    startup,
    median,
    release,
    publish,
    tables,
    accuracy,
    keys,
    daily,
    holdout,
    interior,
    learning,
    ledger,
    ledger_history,
    hammer,
    verification,
    prediction,
):
    module.main()
