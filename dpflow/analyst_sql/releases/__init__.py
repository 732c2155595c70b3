"""Which releases answer those SELECTs: their parts and prices, grouping levels, targets, and stored releases that are free."""
