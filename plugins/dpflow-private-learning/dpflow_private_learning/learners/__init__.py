"""Learners: a labelled private table in, a rule out."""
