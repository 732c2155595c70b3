"""Mechanisms: one file each."""
