"""`dpflow serve`: private predictions over HTTP. The only package that imports fastapi.

service    the YAML file that says what is served and to whom
batches    requests that wait together are answered in one ledger transaction
app        the endpoints: predictions, the session's public side, health, metrics
"""
