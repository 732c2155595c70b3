"""`make bench`: every benchmark, each a table of rates and ratios."""

from __future__ import annotations

from bench import ledger, median, samplers, tables

for module in (samplers, median, tables, ledger):
    module.main()
