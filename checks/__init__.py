"""Checks of the house that no linter has: names, words, rooms."""
