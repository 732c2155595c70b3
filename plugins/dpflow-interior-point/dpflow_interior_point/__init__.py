"""Medians and interior points of columns whose range nobody knows."""

#: The paper, as mechanisms and calculators cite it.
CITATION = (
    "Aliakbarpour, Silver, Steinke, Ullman 2023 "
    "(medians and interior points for non-pathological data)"
)
