"""Medians and interior points of columns whose range nobody knows."""
