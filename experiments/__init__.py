"""Experiments of the papers, rerun: `make experiments`. One module per paper; each has
``EXPERIMENTS``, a list of `Experiment`.

An experiment simulates data whose truth is known, lets an analyst loose on it, and states bounds
that must hold. Its numbers go to docs/research/experiments.md and its figure to docs/research/figures. Seeds are
fixed; nothing here is private.
"""
