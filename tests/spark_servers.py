"""Where tests find rows on Spark: what a declaration says of a server that they start."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

#: What Sail's server answers to ``version()``; Apache Spark needs no trust, and ignores it.
SAIL = version("pysail")


def declare_source(server: str, table: Any) -> dict[str, Any]:
    """A table's ``source`` on either kind of server."""
    return {"spark": server, "table": str(table), "trusted_server": SAIL}
