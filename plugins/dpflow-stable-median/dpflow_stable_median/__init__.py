"""Reuse one data set for adaptively chosen questions: stable medians, verified answers, and how many
rows they need.
"""
