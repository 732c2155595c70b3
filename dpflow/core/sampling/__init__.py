"""Randomness: one door to entropy, and exact vectorised samplers over it."""
