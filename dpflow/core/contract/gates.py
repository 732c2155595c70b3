"""Which mechanisms are gates, for doors that look at names only."""

#: Mechanisms whose sessions are gates.
GATE_MECHANISMS = ("reusable_holdout", "thresholdout")
