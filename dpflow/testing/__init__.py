"""For mechanism authors: conformance checks, exact and black-box audits, entropy scripts, fault
points.
"""
