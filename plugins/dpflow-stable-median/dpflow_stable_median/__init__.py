"""Reuse one data set for adaptively chosen questions: stable medians, verified claims, and how many
rows they need.
"""
