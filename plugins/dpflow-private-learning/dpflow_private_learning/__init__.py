"""Private learning and sanitization (Beimel, Nissim, Stemmer 2013/2016) as dpflow mechanisms,
planners and bounds.

``dpflow mechanisms`` and ``dpflow calculate`` list what this distribution adds. From Python:

- `dpflow_private_learning.base`: exponential mechanism over pieces, stability, choosing, RecConcave;
- `dpflow_private_learning.mechanisms.quasi_concave`: a base class for new promise problems;
- `dpflow_private_learning.learners`, `.sanitizers`: the algorithms as functions and mechanisms;
- `dpflow_private_learning.building_blocks.hypotheses`: rules that predict and read as SQL;
- `dpflow_private_learning.bounds`: rows needed, lower bounds, comparison tables.
"""
