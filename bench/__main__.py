"""`make bench`: every benchmark, each a table of rates and ratios."""

from __future__ import annotations

from bench import hammer, holdout, interior, learning, ledger, median, prediction, release, samplers, tables

for module in (samplers, median, release, tables, holdout, interior, learning, ledger, hammer, prediction):
    module.main()
