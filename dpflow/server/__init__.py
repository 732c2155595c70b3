"""`dpflow serve`: private predictions over HTTP. The only package that imports fastapi.

service     the YAML file that says what is served and to whom
principals  who may ask now, and how often
batches     requests that wait together are answered in one ledger transaction
refusals    what a client hears instead of an answer
metrics     what Prometheus may know
app         the endpoints: predictions, the session's public side, health, readiness, metrics
"""
