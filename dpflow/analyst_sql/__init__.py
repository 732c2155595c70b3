"""Analysts' SQL: a query becomes releases of existing mechanisms, and its answer is computed from
what they released.

Text is parsed, copied into nodes of the declared language, and written again as parameters of
releases: none of it reaches a database. Select lists, HAVING, ORDER BY and LIMIT work on released
numbers alone, so they cost nothing.
"""
