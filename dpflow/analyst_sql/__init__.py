"""Analysts' SQL: a query becomes releases of existing mechanisms, and a query over what they released.

Aggregating SELECTs over private rows are copied into nodes of the declared language and written again as
parameters of releases: none of their text reaches the private database. What stands around them is post-processing
and costs nothing. DuckDB runs it over tables of released rows, in a process that reaches nothing else.

Rooms, each above the next: ``answer`` (a query from its text to its answer), ``noise`` (intervals), ``releases`` (which
releases answer it), ``parse`` (its text).
"""
