"""Private learning and sanitization (Beimel, Nissim, Stemmer 2013/2016) as dpflow mechanisms,
planners and bounds.

``dpflow reference`` lists what this distribution adds. From Python:

- `dpflow_private_learning.mechanisms`: one file for each learner and sanitizer;
- `dpflow_private_learning.mechanisms.quasi_concave`: a base class for new promise problems;
- `dpflow_private_learning.building_blocks`: exponential mechanism over runs, stability, choosing,
  RecConcave; `hypotheses` holds the rules, which predict and read as SQL;
- `dpflow_private_learning.theory`: rows needed, lower bounds, comparison tables.
"""
