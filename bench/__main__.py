"""`make bench`: every benchmark, each a table of rates and ratios."""

from __future__ import annotations

from bench import ledger, samplers, tables

for module in (samplers, tables, ledger):
    module.main()
