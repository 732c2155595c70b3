"""Where a declaration says that its rows are on Spark."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dpflow.core.contract.strict_models import Strict


class SparkSource(Strict):
    """Rows that a Spark cluster reads, through Spark Connect.

    Attributes:
        spark: the server, as ``sc://host:port`` without a user or parameters, or a connection's
            name. The address of the connection ``lake``, with its credentials, is in the environment
            variable ``DPFLOW_SPARK_LAKE``.
        table: a folder of Parquet files as the cluster names it, such as ``s3://lake/visits``.
    """

    example = "{spark: lake, table: 's3://lake/visits'}"

    spark: Annotated[
        str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,62}|sc://[A-Za-z0-9.-]+(:[0-9]{1,5})?)$")
    ]
    table: Annotated[str, Field(pattern=r"^[^*?\[\]{}\\\x00-\x1f]*/[^*?\[\]{}\\\x00-\x1f]*$")]
