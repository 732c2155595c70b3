"""Does a table keep what its declaration promises? The only importer of Great Expectations, and
only once it is asked.

A contract finds broken pipelines, not odd days: rows that a declared rule maps (a NULL, a clamped
value, an unknown key, one lone unit, no row at all) keep it. What leaves is one bit; no value,
count or message of the data does. The bit is not charged to any budget, so it is for owners who
trust whoever sees it.
"""

from dpflow.quality.expectations import suite
from dpflow.quality.validate import check

__all__ = ["check", "suite"]
