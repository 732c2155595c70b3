"""`dpflow serve`: one service that holds rows and keys. With dpflow.ui the only package that imports fastapi.

service       the YAML file that says which tables are served and to whom
principals    who may ask now, and how often
data_service  what is done for a principal: plans, releases, SQL, budgets, history
jobs          one queue per source for what reads private rows
queries       the endpoints of these
predictions   the door ``predict``: sessions and their endpoints
batches       points that wait together are answered in one ledger transaction
refusals      what a client hears instead of an answer
bodies        size limits, strict JSON, headers and the access log
metrics       what Prometheus may know
app           all of it as one application
"""
