"""Verification of the tables against the history, and export."""
