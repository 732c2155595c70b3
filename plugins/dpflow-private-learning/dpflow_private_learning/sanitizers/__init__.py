"""Sanitizers: a private column in, an artificial table or a list of estimates out, on which every question is free."""
