"""Spark, through Spark Connect, as a query backend.

`spark_answers` is the class. `spark_connection` is an open session, which lists files and keeps the
server's texts out of errors; `spark_session` opens, checks and keeps sessions; `canaries` asks a server
what its answers rest on; `spark_sources` finds the state that is read; `spark_columns` says how a column
of each type is read; `spark_rendering` writes the declared language; `hash_bounding` limits contributions
by one hash of nonce, unit and group; `spark_queries` answers each kind of request.
"""

from dpflow.tables.backends.spark_backend.spark_answers import SparkBackend

__all__ = ["SparkBackend"]
