"""dbt models that are differentially private answers.

``Plugin`` is what dbt-duckdb loads for ``module: dpflow_dbt``; ``python -m dpflow_dbt`` prints where
the dbt package with the materialisation ``dp_release`` is.
"""

from dpflow_dbt.plugin import Plugin

__all__ = ["Plugin"]
